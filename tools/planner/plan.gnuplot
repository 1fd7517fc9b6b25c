# A plan (figure.sh). kinds: the name and the grid of each kind's fastest grid, tokens/s per GPU.
stats work."/kinds" using 2 nooutput
set terminal svg size 760,90+62*STATS_records enhanced font "sans-serif,14" background "white"
set output svg
set title title.": the fastest grid of each kind" tc rgb "#333333" font ",15"
set xlabel "tokens/s per GPU" tc rgb "#333333"
set border 2 lc rgb "#666666"
set lmargin 34
set rmargin 8
set tics nomirror textcolor rgb "#333333" scale 0
unset xtics
set xrange [0:1.02*STATS_max]
set yrange [STATS_records-0.5:-0.5]
set style fill solid 1 noborder
plot work."/kinds" using (0):0:(0):2:($0-0.33):($0+0.33):ytic(1) with boxxyerror lc rgb "#0072b2" notitle, \
    "" using 2:0:(sprintf("%'d", $2)) with labels left offset 0.6,0 tc rgb "#333333" notitle
