# One step of 2 x 2 x 2 ranks; below it rank 0's last backward and optimizer step, with the transfers in flight. steps:
# begin and end in seconds, rank, kind (1 to 3: forward, backward, optimizer), micro-batch. zoom: begin, end, row (0:
# operators, else a group), kind of operator (1 to 3: matmul, attention, other). Where no operator runs, it waits.
set terminal svg size 960,640 font "sans-serif,12" background "white"
set output "09_combined/timeline.svg"
set multiplot
set lmargin at screen 0.16
set rmargin at screen 0.985
set border 1 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set style fill solid 1.0 noborder
set key off
unset ytics
# Okabe and Ito's colors
step_color(kind) = kind == 4 ? 0xe6e6e6 : kind == 1 ? 0x0072b2 : kind == 2 ? 0xe69f00 : 0xcc79a7
transfer_color = 0xd55e00                       # each group has its row
operator_color(kind) = kind == 1 ? 0x999999 : kind == 2 ? 0x444444 : 0xcccccc
array where[4] = [0.52, 0.64, 0.77, 0.90]
array what[4] = ["forward", "backward", "optimizer", "idle"]

stats work."/steps" using 2 nooutput
last = STATS_max
set tmargin at screen 0.93
set bmargin at screen 0.47
set xrange [0:last*1.003] noextend
set yrange [7.7:-0.7]
set label 1 "one step, in seconds; numbers are micro-batches" at graph 0, screen 0.965 left tc rgb "#333333"
do for [i = 1:4] {
    set object i rectangle at graph where[i] - 0.018, screen 0.965 size graph 0.018, screen 0.02 fc rgb step_color(i) \
        fs solid noborder
    set label 10 + i what[i] at graph where[i], screen 0.965 left tc rgb "#333333"
}
do for [r = 0:7] {
    set object 10 + r rectangle from 0, r - 0.4 to last, r + 0.4 behind fc rgb step_color(4) fs solid noborder
    set label 20 + r sprintf("rank %d: tp %d cp %d pp %d", r, r % 2, r / 2 % 2, r / 4) at graph -0.01, first r right \
        font ",10" tc rgb "#333333"
}
plot work."/steps" using (($1+$2)/2):3:($1+0.008):($2-0.008):($3-0.4):($3+0.4):(step_color($4)) with boxxyerror lc rgb variable, \
     work."/steps" using (($1+$2)/2):3:($5 < 0 ? "" : sprintf("%d", $5)): \
         ($4 == 2 ? 0x000000 : 0xffffff) with labels font ",11" tc rgb variable

unset object
unset label
set xrange [*:*]
set yrange [*:*]
stats work."/zoom" using ($3 == 0 ? $1 : NaN) nooutput
first = STATS_min - 0.02
array lanes[5] = ["compute", "tp", "cp", "pp", "replicas"]
place(row) = row == 0 ? 0 : row == 1 ? 1 : row == 4 ? 2 : row == 7 ? 3 : 4
set tmargin at screen 0.37
set bmargin at screen 0.085
set xrange [first:last*1.001] noextend
set yrange [4.6:-0.7]
set xlabel "seconds (simulated hardware)" offset 0,0.3 tc rgb "#333333"
set label 1 "rank 0 from its last backward on (dark: attention); peach: it waits, so a transfer is exposed" \
    at graph 0, screen 0.382 left tc rgb "#333333"
do for [i = 1:5] {
    set label 20 + i lanes[i] at graph -0.01, first i - 1 right font ",10" tc rgb "#333333"
}
set object 40 rectangle from graph 0, first -0.5 to graph 1, first 4.5 behind fc rgb 0xf9c9b0 fs solid noborder
plot work."/zoom" using ($3 == 0 ? ($1+$2)/2 : NaN):(2):1:2:(-0.52):(4.52) with boxxyerror lc rgb "white", \
     work."/zoom" using (($1+$2)/2):(place($3)):1:2:(place($3)-0.38):(place($3)+0.38): \
         ($3 == 0 ? operator_color($4) : transfer_color) with boxxyerror lc rgb variable
unset multiplot
