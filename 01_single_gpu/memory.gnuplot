# Live memory over two steps, stacked by category, one panel per value of --recompute, with one scale of time. Columns:
# seconds, then megabytes of parameters, master, gradients, optimizer, activations, communication, workspace.
set terminal svg size 960,360 font "sans-serif,12" background "white"
set output "01_single_gpu/memory.svg"
last = 0
do for [mode in "none selective full"] {
    stats work."/live_".mode using 1 nooutput
    last = STATS_max > last ? STATS_max : last
}
set xrange [0:last]
set multiplot layout 1,3 margins 0.075,0.985,0.155,0.78 spacing 0.035
array where[5] = [0.46, 0.575, 0.68, 0.785, 0.895]
array what[5] = ["parameters", "gradients", "optimizer", "activations", "workspace"]
array color[5] = [0x0072b2, 0xe69f00, 0xcc79a7, 0x009e73, 0xbbbbbb]
set style fill solid 1.0 noborder
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xtics autofreq
set format x "%g"
set yrange [0:100]
set grid ytics lc rgb "#dddddd"
set xlabel "seconds" offset 0,0.3 tc rgb "#333333"
set key off
set xtics offset 0,0.2 font ",10"
modes = "none selective full"
do for [i = 1:3] {
    file = work."/live_".word(modes, i)
    set title "--recompute ".word(modes, i) noenhanced
    if (i == 1) { set ylabel "live memory, MB" tc rgb "#333333" } else { unset ylabel; set format y "" }
    if (i == 1) {
        set label 9 "two steps: 6 layers, hidden 128, 4 sequences of 256 tokens" at screen 0.03, 0.95 tc rgb "#333333"
        do for [k = 1:5] {
            set object k rectangle at screen where[k], 0.95 size screen 0.018, 0.035 fc rgb color[k] fs solid noborder
            set label k what[k] at screen where[k] + 0.014, 0.95 tc rgb "#333333"
        }
    } else { unset object; unset label }
    plot file using 1:($2+$5+$4+$6+$8) with filledcurves x1 lc rgb "#bbbbbb" title "workspace", \
         file using 1:($2+$5+$4+$6) with filledcurves x1 lc rgb "#009e73" title "activations", \
         file using 1:($2+$5+$4) with filledcurves x1 lc rgb "#e69f00" title "gradients", \
         file using 1:($2+$5) with filledcurves x1 lc rgb "#cc79a7" title "optimizer", \
         file using 1:2 with filledcurves x1 lc rgb "#0072b2" title "parameters"
}
unset multiplot
