# Loads of experts over training, with and without the balance loss. Columns: step, largest and smallest load of an
# expert over the even share, part of the choices that was dropped.
set terminal svg size 960,320 font "sans-serif,12" background "white"
set output "10_expert_parallel/load.svg"
set multiplot layout 1,2 margins 0.07,0.985,0.19,0.88 spacing 0.08
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set xlabel "step" offset 0,0.3 tc rgb "#333333"
set xrange [0:300]
set yrange [0:4.2]
set style fill transparent solid 0.45 noborder
set title "load over the even share: from the idlest expert to the busiest" offset 0,-0.3 tc rgb "#333333"
set key at graph 0.97,0.86 right reverse Left samplen 1.5
plot work."/load_0" using 1:3:2 with filledcurves lc rgb "#e69f00" title "--balance 0", \
     work."/load_0.01" using 1:3:2 with filledcurves lc rgb "#0072b2" title "--balance 0.01", \
     1 with lines dt 2 lc rgb "#333333" notitle
set yrange [0:0.5]
set title "fraction of choices that was dropped" offset 0,-0.3 tc rgb "#333333"
set key off
set label 1 "--balance 0" at graph 0.98,0.92 right tc rgb "#b37700"
set label 2 "--balance 0.01" at graph 0.98,0.25 right tc rgb "#0072b2"
plot work."/load_0" using 1:4 with lines lw 2 lc rgb "#e69f00", \
     work."/load_0.01" using 1:4 with lines lw 2 lc rgb "#0072b2"
unset multiplot
