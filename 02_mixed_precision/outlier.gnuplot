# The error of an fp8 product beside an outlier. Columns: its size, errors in E4M3, in E5M2, with tiles, in MXFP8.
set terminal svg size 720,300 font "sans-serif,12" background "white"
set output "02_mixed_precision/outlier.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set lmargin at screen 0.115
set rmargin at screen 0.965
set xlabel "size of one outlier; all other numbers are about 1" tc rgb "#333333"
set ylabel "error of the product" tc rgb "#333333"
set logscale xy
set format x "10^{%L}"
set xrange [1:1e8]
set yrange [0.02:1.5]
set key top left Left reverse samplen 2
plot work."/outlier" using 1:2 with lines dt 3 lw 2 lc rgb "#cc79a7" title "E4M3, a scale per tensor", \
     work."/outlier" using 1:3 with lines dt 3 lw 2 lc rgb "#d55e00" title "E5M2, a scale per tensor", \
     work."/outlier" using 1:4 with lines dt 4 lw 2 lc rgb "#000000" title "E4M3, a scale per tile", \
     work."/outlier" using 1:5 with lines dt 5 lw 2 lc rgb "#56b4e9" title "MXFP8"
