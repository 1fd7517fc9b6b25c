# One step of four ranks by each schedule, all on one clock. boxes: begin and end in seconds, row from the top, kind
# (0 to 3: idle, forward, backward, weight gradients alone), model chunk, micro-batch. panels: number, name, measured
# bubble; its first row, of naive, is not drawn.
set terminal svg size 960,800 font "sans-serif,12" background "white"
set output "06_pipeline_parallel/timeline.svg"
set lmargin at screen 0.065
set rmargin at screen 0.99
set tmargin at screen 0.995
set bmargin at screen 0.075
set border 1 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xlabel "seconds on simulated hardware, for the same eight micro-batches: shorter is better" offset 0,0.3 tc rgb "#333333"
set xrange [0:*] noextend
set yrange [30.2:-2.4]
unset ytics
do for [panel = 0:5] {
    do for [rank = 0:3] {
        set label sprintf("rank %d", rank) at graph -0.008, first 5 * panel + 1 + rank right font ",10" tc rgb "#333333"
    }
}
# Okabe and Ito's colors, a lighter one for the second model chunk
color(kind, chunk) = kind == 0 ? 0xe6e6e6 : kind == 3 ? 0x009e73 : \
    kind == 1 ? (chunk > 0 ? 0x8ccbf0 : 0x0072b2) : (chunk > 0 ? 0xf7d98c : 0xe69f00)
ink(kind, chunk) = kind == 2 || chunk > 0 ? 0x000000 : 0xffffff
written(micro, kind) = kind == 0 ? "" : micro
title(name, idle) = sprintf("{/:Bold %s: bubble %.0f%%}", name, 100 * idle)
array where[4] = [0.01, 0.105, 0.335, 0.535]
array what[4] = ["forward", "backward or input gradients", "weight gradients only", "idle: the bubble"]
do for [i = 1:4] {
    set object i rectangle at graph where[i], first -1.7 size graph 0.018, first 0.8 fc rgb color(i % 4, 0) \
        fs solid noborder
    set label what[i] at graph where[i] + 0.015, first -1.7 tc rgb "#333333"
}
do for [kind = 1:2] {
    set object 4 + kind rectangle at graph 0.755 + 0.02 * kind, first -1.7 size graph 0.018, first 0.8 fc rgb color(kind, 1) \
        fs solid noborder
}
set label "the second model chunk" at graph 0.81, first -1.7 tc rgb "#333333"
set style fill solid 1.0 noborder
set key off
plot work."/boxes" using (($1+$2)/2):3:($1+0.02):($2-0.02):($3-0.42):($3+0.42):(color($4, $5)) with boxxyerror \
         lc rgb variable, \
     work."/boxes" using (($1+$2)/2):3:(written(strcol(6), $4)):(ink($4, $5)) \
         with labels font ",9" tc rgb variable, \
     work."/panels" every ::1 using (0):(5*$1):(title(strcol(2), $3)) with labels left tc rgb "#333333"
