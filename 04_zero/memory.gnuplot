# Bytes per rank, stacked by category, for 03 and each ZeRO stage on 1, 2, 4 and 8 ranks. Columns: x, ranks, then
# megabytes of parameters, gradients, optimizer, communication.
set terminal svg size 960,400 font "sans-serif,12" background "white"
set output "04_zero/memory.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set xlabel "ranks n" tc rgb "#333333"
set ylabel "memory per rank, MB" tc rgb "#333333"
set xrange [-0.8:18.8]
set yrange [0:20]
set label 1 "03: data parallelism" at 1.5,18.8 center tc rgb "#333333"
set label 2 "--zero 1" at 6.5,18.8 center tc rgb "#333333"
set label 3 "--zero 2" at 11.5,18.8 center tc rgb "#333333"
set label 4 "--zero 3" at 16.5,18.8 center tc rgb "#333333"
set style fill solid 1.0 noborder
set key outside right center reverse Left samplen 1.5
plot work."/memory" using 1:(0):($1-0.4):($1+0.4):($3+$4+$5):($3+$4+$5+$6) with boxxyerror fs pattern 5 \
         lc rgb "#d55e00" title "unit slots", \
     "" using 1:(0):($1-0.4):($1+0.4):($3+$4):($3+$4+$5) with boxxyerror lc rgb "#cc79a7" title "optimizer states", \
     "" using 1:(0):($1-0.4):($1+0.4):($3):($3+$4) with boxxyerror lc rgb "#e69f00" title "gradients", \
     "" using 1:(0):($1-0.4):($1+0.4):(0):($3):xtic(2) with boxxyerror lc rgb "#0072b2" title "parameters"
