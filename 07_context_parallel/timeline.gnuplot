# One step of four ranks with --attention ring and zigzag, on one clock. Columns: begin and end in seconds, row from the
# top, kind (0 to 3: idle, attention forward, attention backward, other compute), rank of K and V (-1: none).
set terminal svg size 960,320 font "sans-serif,12" background "white"
set output "07_context_parallel/timeline.svg"
set lmargin at screen 0.065
set rmargin at screen 0.99
set tmargin at screen 0.99
set bmargin at screen 0.18
set border 1 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "seconds (simulated hardware)" offset 0,0.3 tc rgb "#333333"
set xrange [0:*] noextend
set yrange [10.2:-0.6]
unset ytics
do for [panel = 0:1] {
    set label word("ring zigzag", panel + 1) at graph 0, first 5 * panel tc rgb "#333333"
    do for [rank = 0:3] {
        set label sprintf("rank %d", rank) at graph -0.008, first 5 * panel + 1 + rank right font ",10" tc rgb "#333333"
    }
}
# Okabe and Ito's colors
color(kind) = kind == 0 ? 0xe6e6e6 : kind == 1 ? 0x0072b2 : kind == 2 ? 0xe69f00 : 0x7f7f7f
array where[4] = [0.12, 0.44, 0.62, 0.79]
array what[4] = ["attention forward (number: rank of K, V)", "attention backward", "other compute", "idle"]
do for [i = 1:4] {
    set object i rectangle at graph where[i], first 0 size graph 0.018, first 0.7 fc rgb color(i % 4) fs solid noborder
    set label what[i] at graph where[i] + 0.015, first 0 tc rgb "#333333"
}
set style fill solid 1.0 noborder
set key off
gap(kind) = kind == 1 || kind == 2 ? 0.0012 : 0
plot work."/boxes" using (($1+$2)/2):3:($1+gap($4)):($2-gap($4)):($3-0.42):($3+0.42):(color($4)) \
         with boxxyerror lc rgb variable, \
     work."/boxes" using (($1+$2)/2):3:($5 < 0 ? "" : sprintf("%d", $5)):($4 == 1 ? 0xffffff : 0x000000) with labels \
         font ",10" tc rgb variable
