# One step of rank 0: its operators, and the all-to-alls of its four local experts. Columns: begin and end in seconds,
# row, kind.
set terminal svg size 960,230 font "sans-serif,12" background "white"
set output "10_expert_parallel/timeline.svg"
set border 1 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "seconds (simulated hardware)" tc rgb "#333333"
set xrange [0:*]
set yrange [-0.6:2.1]
set ytics ("rank 0 compute" 1, "all-to-alls" 0)
set style fill solid 1.0 border rgb "white"
set key off
color(k) = k == 1 ? 0x4e79a7 : k == 2 ? 0x59a14f : k == 3 ? 0x8cd17d : k == 4 ? 0xbab0ac : 0xf28e2b
set label 1 "linear, forward" at graph 0.02, first 1.75 tc rgb "#4e79a7"
set label 2 "input gradients" at graph 0.18, first 1.75 tc rgb "#59a14f"
set label 3 "weight gradients" at graph 0.34, first 1.75 tc rgb "#6bb55c"
set label 4 "other operators" at graph 0.52, first 1.75 tc rgb "#8a817d"
set label 5 "all-to-all, one per local expert and direction" at graph 0.68, first 1.75 tc rgb "#f28e2b"
plot work."/boxes" using (($1+$2)/2):3:1:2:($3-0.4):($3+0.4):(color($4)) with boxxyerror lc rgb variable
