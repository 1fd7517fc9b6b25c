# Activations against sequence length. Columns: length, then megabytes measured, predicted, by the playbook's formula.
set terminal svg size 720,420 font "sans-serif,12" background "white"
set output "01_single_gpu/sequence.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set xlabel "sequence length, tokens" tc rgb "#333333"
set ylabel "activations, MB" tc rgb "#333333"
set xrange [0:1050]
set yrange [0:*]
set key left top samplen 2
plot work."/sequence_none" using 1:2 with points pt 7 lc rgb "#0072b2" title "--recompute none, measured", \
     "" using 1:3 smooth csplines lw 2 lc rgb "#0072b2" title "predicted", \
     "" using 1:4 smooth csplines dt 2 lw 2 lc rgb "#0072b2" title "playbook's formula (2-byte elements, dropout)", \
     work."/sequence_selective" using 1:2 with points pt 7 lc rgb "#e69f00" title "--recompute selective, measured", \
     "" using 1:3 smooth csplines lw 2 lc rgb "#e69f00" title "predicted", \
     work."/sequence_full" using 1:2 with points pt 7 lc rgb "#009e73" title "--recompute full, measured", \
     "" using 1:3 smooth csplines lw 2 lc rgb "#009e73" title "predicted"
