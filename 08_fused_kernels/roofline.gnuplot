# The roofline of an H100 in bf16 (datasheet: 989 TFLOP/s, 3.35 TB/s), with operators before and after fusion, by FLOPs
# per byte. 8,192 tokens, h = 4096, heads of D = 64, s = 4096; every operand crosses memory once.
set terminal svg size 860,430 font "sans-serif,13" background "white"
set output "08_fused_kernels/roofline.svg"
peak = 989.0
bandwidth = 3.35
R = 8192.0; h = 4096.0; D = 64.0; s = 4096.0
roof(x) = x * bandwidth < peak ? x * bandwidth : peak
residual = (1 + 8) / 10.0                           # then LayerNorm: read two, write one; read one, write one
layernorm = (1 + 8) / 8.0                           # with the residual: reads two, writes two
gelu = 10 / 4.0                                     # reads one, writes one
linear_gelu = 2 * R * h * 4 * h / (2 * (R * h + 4 * h * h + 2 * R * 4 * h))     # writes up and GELU(up)
scores = D                                          # 2 s^2 D FLOPs; half of s^2 scores, written and read
flash = s / 4                                       # 2 s^2 D FLOPs; q, k, v read, output written
set logscale xy
set xrange [0.1:6000]
set yrange [0.3:3000]
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "FLOPs per byte of memory traffic" tc rgb "#333333"
set ylabel "attainable TFLOP/s" tc rgb "#333333"
set key off
set label 1 "989 TFLOP/s: tensor cores" at 300,1500 right tc rgb "#666666"
set label 2 "3.35 TB/s: memory" at 3.5,22 right tc rgb "#666666"
set label 3 "ridge: 295" at 295,0.42 center tc rgb "#666666"
set arrow 1 from 295,0.55 to 295,989 nohead dt 3 lc rgb "#999999"
set style arrow 1 head filled size screen 0.012,20 lc rgb "#d55e00" lw 1.5
set arrow 2 from gelu * 1.15,roof(gelu) to linear_gelu * 0.93,peak * 0.9 arrowstyle 1
set arrow 3 from scores * 1.15,roof(scores) to flash * 0.92,peak * 0.9 arrowstyle 1
set label 4 "residual, then LayerNorm" at 0.13,roof(residual) * 2.3 left
set label 5 "residual + LayerNorm" at layernorm * 1.2,roof(layernorm) * 0.78 left
set label 6 "GELU" at gelu * 1.3,roof(gelu) * 0.72 left
set label 7 "attention with its scores in memory" at scores * 0.85,roof(scores) * 1.15 right
set label 8 "FlashAttention" at flash * 0.95,peak * 1.75 center
set label 9 "linear + GELU" at linear_gelu * 1.05,peak * 0.62 left
plot roof(x) lw 2 lc rgb "#0072b2" with lines, \
    "+" using (residual):(roof(residual)) every ::0::0 with points pt 6 ps 0.9 lw 1.5 lc rgb "#333333", \
    "+" using (gelu):(roof(gelu)) every ::0::0 with points pt 6 ps 0.9 lw 1.5 lc rgb "#333333", \
    "+" using (scores):(roof(scores)) every ::0::0 with points pt 6 ps 0.9 lw 1.5 lc rgb "#333333", \
    "+" using (layernorm):(roof(layernorm)) every ::0::0 with points pt 7 ps 0.9 lc rgb "#d55e00", \
    "+" using (flash):(roof(flash)) every ::0::0 with points pt 7 ps 0.9 lc rgb "#d55e00", \
    "+" using (linear_gelu):(roof(linear_gelu)) every ::0::0 with points pt 7 ps 0.9 lc rgb "#d55e00"
