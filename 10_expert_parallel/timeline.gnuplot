# One step of rank 0: its operators, and the all-to-alls of its four local experts. Columns: begin and end in seconds,
# row, kind. Where no operator runs, rank 0 waits.
set terminal svg size 960,260 font "sans-serif,12" background "white"
set output "10_expert_parallel/timeline.svg"
set border 1 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "seconds (simulated hardware)" tc rgb "#333333"
set xrange [0:*]
stats work."/boxes" using 2 nooutput
set yrange [-0.6:2.5]
set ytics ("rank 0 compute" 1, "all-to-alls" 0)
set style fill solid 1.0 border rgb "white"
set key off
color(k) = k == 1 ? 0x0072b2 : k == 2 ? 0xe69f00 : k == 3 ? 0x009e73 : k == 4 ? 0xbbbbbb : 0xd55e00
set label 1 "linear, forward" at graph 0.02, first 1.75 point pt 5 ps 1.2 lc rgb "#0072b2" offset 1,-0.25 tc rgb "#333333"
set label 2 "input gradients" at graph 0.18, first 1.75 point pt 5 ps 1.2 lc rgb "#e69f00" offset 1,-0.25 tc rgb "#333333"
set label 3 "weight gradients" at graph 0.34, first 1.75 point pt 5 ps 1.2 lc rgb "#009e73" offset 1,-0.25 tc rgb "#333333"
set label 4 "other operators" at graph 0.52, first 1.75 point pt 5 ps 1.2 lc rgb "#bbbbbb" offset 1,-0.25 tc rgb "#333333"
set label 5 "all-to-all, one per local expert and direction" at graph 0.68, first 1.75 point pt 5 ps 1.2 lc rgb "#d55e00" offset 1,-0.25 tc rgb "#333333"
set label 6 "rank 0 waits: an all-to-all is exposed" at graph 0.02, first 2.25 point pt 5 ps 1.2 lc rgb "#f9c9b0" \
    offset 1,-0.25 tc rgb "#333333"
set object 1 rectangle from 0, -0.45 to STATS_max, 1.45 behind fc rgb 0xf9c9b0 fs solid noborder
plot work."/boxes" using ($3 == 1 ? ($1+$2)/2 : NaN):(0.5):1:2:(-0.47):(1.47) with boxxyerror \
         lc rgb "white" fs noborder, \
     work."/boxes" using (($1+$2)/2):3:1:2:($3-0.4):($3+0.4):(color($4)) with boxxyerror lc rgb variable
