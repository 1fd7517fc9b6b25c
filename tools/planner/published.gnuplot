# Published runs and their predictions. memory: the grid, GiB measured, GiB predicted; best_MODEL: nodes, tokens/s per
# GPU of the fastest run, of the run that the planner chooses, and predicted for the chosen run.
set terminal svg size 960,470 font "sans-serif,12" background "white"
set output "tools/planner/published.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set multiplot
set lmargin at screen 0.15
set rmargin at screen 0.47
set bmargin at screen 0.13
set tmargin at screen 0.91
set title "8B on 128 GPUs, ZeRO-1, micro-batches of 1" tc rgb "#333333"
set xlabel "GiB on the fullest rank" tc rgb "#333333"
set style fill solid 1 noborder
stats work."/memory" using 2 nooutput
set yrange [STATS_records - 0.4:-0.6]
set xrange [0:70]
set grid xtics lc rgb "#dddddd"
set key bottom right samplen 1 opaque box lc rgb "#ffffff"
plot work."/memory" using (0):0:(0):3:($0-0.35):($0+0.35):ytic(1) with boxxyerror lc rgb "#a0cbe8" title "predicted", \
     "" using 2:0 with points pt 7 ps 0.7 lc rgb "#222222" title "published"
set ytics nomirror auto
set lmargin at screen 0.59
set rmargin at screen 0.985
set title "the fastest grid, by number of nodes" tc rgb "#333333"
set xlabel "nodes of 8 H100s" tc rgb "#333333"
set ylabel "tokens/s per GPU" offset 1,0 tc rgb "#333333"
set xrange [0.8:100]
set yrange [130:70000]
set logscale xy
set xtics nomirror (1, 2, 4, 8, 16, 32, 64)
set ytics nomirror ("200" 200, "500" 500, "1,000" 1000, "2,000" 2000, "5,000" 5000, "10,000" 10000, \
    "20,000" 20000, "50,000" 50000)
unset grid
set grid ytics lc rgb "#dddddd"
set key at graph 0.02,0.02 bottom left Left reverse samplen 2 noopaque nobox
array model[4] = ["1B", "3B", "8B", "80B"]
array color[4] = [0x0072b2, 0xe69f00, 0x009e73, 0xcc79a7]
array nodes[4] = [1, 2, 1, 8]
array tokens[4] = [40150, 16385, 7503, 665]
do for [i = 1:4] { set label i model[i] at nodes[i],1.35 * tokens[i] center tc rgb color[i] }
plot for [i = 1:4] work."/best_".model[i] using 1:2 with points pt 7 ps 0.8 lc rgb color[i] notitle, \
     for [i = 1:4] work."/best_".model[i] using 1:3 with points pt 6 ps 1.5 lw 1.5 lc rgb color[i] notitle, \
     for [i = 1:4] work."/best_".model[i] using 1:4 with lines lw 1.5 lc rgb color[i] notitle, \
     NaN with points pt 7 ps 0.8 lc rgb "#555555" title "the fastest published run", \
     NaN with points pt 6 ps 1.5 lw 1.5 lc rgb "#555555" title "the run that the planner chooses", \
     NaN with lines lw 1.5 lc rgb "#555555" title "predicted for this run"
