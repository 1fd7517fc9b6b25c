# A plan (figure.sh). memory: the grid's name, GiB of seven categories, tokens/s; scaling: GPUs, tokens/s per GPU.
# limit: GiB that fit on a GPU; 0: none. margin: where the bars start, as a fraction of the width.
set terminal svg size 960,470 font "sans-serif,12" background "white"
set output svg
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
array color[7] = [0x0072b2, 0x56b4e9, 0xe69f00, 0xcc79a7, 0x009e73, 0xd55e00, 0xbbbbbb]
array name[7] = ["parameters", "master", "gradients", "optimizer", "activations", "communication", "workspace"]
array most[7]
do for [k = 1:7] { stats work."/memory" using k+1 nooutput; most[k] = STATS_max }
stats work."/memory" using (sum [k = 2:8] column(k)) nooutput
right = limit > 0 ? limit : STATS_max
set multiplot
set title title.": memory of the ten fastest grids" tc rgb "#333333"
set xlabel "GiB on the fullest rank; 2 x 4: 2 sequences x 4 micro-batches" tc rgb "#333333"
set lmargin at screen margin
set rmargin at screen 0.635
set bmargin at screen 0.25
set tmargin at screen 0.88
set style fill solid 1 noborder
set yrange [9.6:-1]
set xrange [0:1.24 * right]
set xtics 0,right > 90 ? 20 : right > 40 ? 10 : right > 10 ? 5 : right > 2 ? 1 : right / 4.0,right
set ytics font ",10"
set grid xtics lc rgb "#dddddd"
set key at screen 0.42,0.095 center top horizontal maxcols 4 samplen 1 width 1 font ",10"
from(k) = k == 1 ? 0 : sum [i = 1:k-1] column(i + 1)
set label 1 "tokens/s" at first 1.13 * right,-0.75 center tc rgb "#333333" font ",11"
if (limit > 0) set arrow 1 from first limit,-0.45 to first limit,9.6 nohead lw 1.5 dt 2 lc rgb "#333333"
if (limit > 0) set label 2 sprintf("%.1f GiB fit", limit) at first 0.985 * limit,-0.75 right tc rgb "#333333" font ",11"
plot for [k = 1:7] work."/memory" using (0):0:(from(k)):(from(k) + column(k + 1)):($0-0.38):($0+0.38):ytic(1) \
    with boxxyerror lc rgb color[k] title (most[k] >= 0.05 ? name[k] : ""), \
    "" using (1.13 * right):0:(sprintf("%'d", column(9))) with labels center tc rgb "#333333" notitle
set ytics nomirror auto font ",12" format "%'.0f"
unset key
unset label 1
unset label 2
unset arrow 1
set lmargin at screen 0.73
set rmargin at screen 0.965
set title "the fastest grid, by number of GPUs" tc rgb "#333333"
set xlabel "GPUs" tc rgb "#333333"
set ylabel "tokens/s per GPU" offset 1,0 tc rgb "#333333"
set xrange [*:*]
set logscale x 2
set xtics nomirror out auto font ",10"
set yrange [0:*]
unset grid
set grid ytics lc rgb "#dddddd"
plot work."/scaling" using 1:2 with linespoints pt 7 lw 2 lc rgb "#0072b2"
