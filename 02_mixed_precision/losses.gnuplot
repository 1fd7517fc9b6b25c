# Loss in each format, and its distance from fp32 on the same batches. Columns: step, loss, loss - fp32 loss.
set terminal svg size 720,560 font "sans-serif,12" background "white"
set output "02_mixed_precision/losses.svg"
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set xrange [0:1000]
set multiplot layout 2,1
set lmargin at screen 0.115
set rmargin at screen 0.965
set yrange [1.5:6]
set ylabel "loss, nats per byte" tc rgb "#333333"
set key right top samplen 2 maxrows 4
plot work."/loss_fp16_unscaled" using 1:2 with lines lw 2 lc rgb "#d55e00" title "fp16 unscaled, large batch", \
     work."/loss_bf16_alone" using 1:2 with lines lw 2 lc rgb "#e69f00" title "bf16, no master weights", \
     work."/loss_fp32" using 1:2 with lines lw 5 lc rgb "#bbbbbb" title "fp32", \
     work."/loss_bf16" using 1:2 with lines lw 2 lc rgb "#0072b2" title "bf16", \
     work."/loss_fp16" using 1:2 with lines dt 2 lw 2 lc rgb "#009e73" title "fp16", \
     work."/loss_fp8" using 1:2 with lines dt 3 lw 2 lc rgb "#cc79a7" title "fp8", \
     work."/loss_fp8_tile" using 1:2 with lines dt 4 lw 2 lc rgb "#000000" title "fp8 with tiles", \
     work."/loss_fp8_mx" using 1:2 with lines dt 5 lw 2 lc rgb "#56b4e9" title "MXFP8"
set xlabel "step" tc rgb "#333333"
set ylabel "loss - fp32 loss" tc rgb "#333333"
unset key
set yrange [-0.02:0.3]
plot work."/loss_fp16_unscaled" using 1:3 with lines lw 2 lc rgb "#d55e00", \
     work."/loss_bf16_alone" using 1:3 with lines lw 2 lc rgb "#e69f00", \
     work."/loss_fp32" using 1:3 with lines lw 5 lc rgb "#bbbbbb", \
     work."/loss_bf16" using 1:3 with lines lw 2 lc rgb "#0072b2", \
     work."/loss_fp16" using 1:3 with lines dt 2 lw 2 lc rgb "#009e73", \
     work."/loss_fp8" using 1:3 with lines dt 3 lw 2 lc rgb "#cc79a7", \
     work."/loss_fp8_tile" using 1:3 with lines dt 4 lw 2 lc rgb "#000000", \
     work."/loss_fp8_mx" using 1:3 with lines dt 5 lw 2 lc rgb "#56b4e9"
unset multiplot
