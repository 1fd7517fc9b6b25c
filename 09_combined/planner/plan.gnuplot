# A plan (figure.sh). memory: the grid's name, GiB of seven categories, tokens/s; scaling: GPUs, tokens/s per GPU.
set terminal svg size 960,470 font "sans-serif,12" background "white"
set output svg
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set multiplot
set size 0.63,1
set origin 0,0
set title title.": the ten fastest grids" tc rgb "#333333"
set xlabel "GiB on the fullest rank; 2 x 4: 2 sequences x 4 micro-batches" tc rgb "#333333"
set lmargin at screen 0.235
set rmargin at screen 0.62
set style fill solid 1 noborder
set yrange [9.6:-0.6]
set xrange [0:*]
set grid xtics lc rgb "#dddddd"
set bmargin at screen 0.26
set key at screen 0.43,0.11 center top horizontal maxcols 4 samplen 1 font ",10"
array color[7] = [0x4e79a7, 0xa0cbe8, 0x59a14f, 0xb07aa1, 0xf28e2b, 0xe15759, 0xbab0ac]
array name[7] = ["parameters", "master", "gradients", "optimizer", "activations", "communication", "workspace"]
from(k) = k == 1 ? 0 : sum [i = 1:k-1] column(i + 1)
plot for [k = 1:7] work."/memory" using (0):0:(from(k)):(from(k) + column(k + 1)):($0-0.38):($0+0.38):ytic(1) \
    with boxxyerror lc rgb color[k] title name[k]
set ytics nomirror auto
unset key
set bmargin at screen 0.26
set lmargin at screen 0.71
set rmargin at screen 0.985
set title "the fastest grid, by number of GPUs" tc rgb "#333333"
set xlabel "GPUs" tc rgb "#333333"
set ylabel "tokens/s per GPU" offset 1,0 tc rgb "#333333"
set xrange [*:*]
set logscale x 2
set yrange [0:*]
unset grid
set grid ytics lc rgb "#dddddd"
plot work."/scaling" using 1:2 with linespoints pt 7 lw 2 lc rgb "#4e79a7"
