# Activations against sequence length, and the playbook's formula. Columns: length, then megabytes measured, predicted.
set terminal svg size 720,420 font "sans-serif,12" background "white"
set output "01_single_gpu/sequence.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set xlabel "sequence length, tokens" tc rgb "#333333"
set ylabel "activations, MB" tc rgb "#333333"
set xrange [0:1050]
set yrange [0:250]
set key off
# The prediction is a polynomial of degree 2.
set fit quiet logfile "/dev/null"
predicted_none(s) = a0 + a1 * s + a2 * s ** 2
predicted_selective(s) = b0 + b1 * s + b2 * s ** 2
predicted_full(s) = c0 + c1 * s + c2 * s ** 2
fit predicted_none(x) work."/sequence_none" using 1:3 via a0, a1, a2
fit predicted_selective(x) work."/sequence_selective" using 1:3 via b0, b1, b2
fit predicted_full(x) work."/sequence_full" using 1:3 via c0, c1, c2
set label "--recompute none" at first 850, 165 right tc rgb "#0072b2"
set label "--recompute selective" at first 1045, 118 right tc rgb "#9a6a00"
set label "--recompute full" at first 1045, 37 right tc rgb "#00704f"
playbook(s) = 4 * s * 256 * (34 + 5 * 8 * s / 256.) / 1e6           # L s b h (34 + 5 a s / h)
set label "dots: measured; lines: predicted; dashed: the playbook's formula" at graph 0.02, graph 0.95 tc rgb "#333333"
plot playbook(x) lw 1.5 dt "-" lc rgb "#555555", work."/sequence_none" using 1:2 with points pt 7 lc rgb "#0072b2", predicted_none(x) lw 2 lc rgb "#0072b2", \
     work."/sequence_selective" using 1:2 with points pt 7 lc rgb "#e69f00", \
     predicted_selective(x) lw 2 lc rgb "#e69f00", \
     work."/sequence_full" using 1:2 with points pt 7 lc rgb "#009e73", predicted_full(x) lw 2 lc rgb "#009e73"
