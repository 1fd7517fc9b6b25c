# Published runs of other programs. runs: tokens/s per GPU, published and predicted.
set terminal svg size 640,520 font "sans-serif,14" background "white"
set output "tools/planner/published.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "published tokens/s per GPU" tc rgb "#333333"
set ylabel "predicted" tc rgb "#333333"
set title title." published runs are predicted within 20% (grey)" tc rgb "#333333"
set logscale xy
set xrange [8:200000]
set yrange [8:200000]
set format "%'.0f"
set style fill solid 1 noborder
plot "+" using 1:(0.8*$1):(1.2*$1) with filledcurves lc rgb "#dddddd" notitle, \
    work."/runs" using 1:2 with points pt 7 ps 0.6 lc rgb "#0072b2" notitle
