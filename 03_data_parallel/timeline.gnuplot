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
set label 3 "forward" at graph 0.54, first 11.1 point pt 5 ps 1.3 lc rgb "#0072b2" offset 1,-0.25 tc rgb "#333333"
set label 4 "backward" at graph 0.645, first 11.1 point pt 5 ps 1.3 lc rgb "#e69f00" offset 1,-0.25 tc rgb "#333333"
set label 5 "all-reduce" at graph 0.76, first 11.1 point pt 5 ps 1.3 lc rgb "#d55e00" offset 1,-0.25 tc rgb "#333333"
set label 6 "optimizer" at graph 0.885, first 11.1 point pt 5 ps 1.3 lc rgb "#cc79a7" offset 1,-0.25 tc rgb "#333333"
set style fill solid 1.0 noborder
set key off
plot work."/timeline" using (($1+$2)/2):3:1:2:($3-0.38):($3+0.38):4 with boxxyerror lc rgb variable
