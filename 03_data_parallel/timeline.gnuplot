# One step of two ranks, gradients all-reduced after backward and during it. Columns: begin and end in milliseconds,
# row, color.
set terminal svg size 960,420 font "sans-serif,12" background "white"
set output "03_data_parallel/timeline.svg"
set border 1 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "milliseconds (simulated hardware)" tc rgb "#333333"
set xrange [0:*]
set yrange [-0.7:11.5]
set ytics ("rank 0 compute" 10, "communication" 9, "rank 1 compute" 7, "communication" 6, \
    "rank 0 compute" 4, "communication" 3, "rank 1 compute" 1, "communication" 0)
set label 1 "--sync naive" at graph 0.005, first 11.1 tc rgb "#333333"
set label 2 "--sync overlap" at graph 0.005, first 5.1 tc rgb "#333333"
set label 3 "forward" at graph 0.60, first 11.1 tc rgb "#4e79a7"
set label 4 "backward" at graph 0.68, first 11.1 tc rgb "#59a14f"
set label 5 "all-reduce" at graph 0.77, first 11.1 tc rgb "#f28e2b"
set label 6 "optimizer" at graph 0.87, first 11.1 tc rgb "#b07aa1"
set style fill solid 1.0 noborder
set key off
plot work."/timeline" using (($1+$2)/2):3:1:2:($3-0.38):($3+0.38):4 with boxxyerror lc rgb variable
