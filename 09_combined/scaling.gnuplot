# Tokens/s per rank, relative to one rank, one dimension at a time, on simulated hardware with two links; and the
# playbook's published tokens/s per GPU, relative to its smallest run. All files: ranks, relative tokens/s.
set terminal svg size 960,300 font "sans-serif,12" background "white"
set output "09_combined/scaling.svg"
set multiplot layout 1,4 margins 0.065,0.99,0.17,0.76 spacing 0.035
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd"
set logscale x 2
set xtics (1, 2, 4, 8, 16, 32, 64, 128, 256) font ",10"
set yrange [0:1.08]
set xlabel "ranks" offset 0,0.5 tc rgb "#333333"
set key off
ours(direction, link) = work."/scaling_".direction."_".link
array what[3] = ["fast link, simulated", "slow link, simulated", "H100s (playbook)"]
set style line 1 lc rgb "#0072b2" lw 2 pt 7 ps 0.7
set style line 2 lc rgb "#d55e00" lw 2 pt 7 ps 0.7
set style line 3 lc rgb "#666666" lw 2 pt 6 ps 0.7 dt 2
do for [i = 1:3] {
    set label i what[i] at screen 0.065 + 0.2 * (i - 1), screen 0.93 offset 1,-0.25 point ls i tc rgb "#333333"
}
do for [direction in "dp tp cp pp"] {
    set title direction eq "dp" ? "data parallelism" : direction eq "tp" ? "tensor parallelism" : \
              direction eq "cp" ? "context parallelism" : "pipeline parallelism" offset 0,-0.5 tc rgb "#333333"
    set xrange [0.85:direction eq "dp" ? 300 : direction eq "tp" ? 38 : 19]
    if (direction eq "dp") {
        set ylabel "tokens/s per rank, relative" offset 1.5,0 tc rgb "#333333"
    }
    last = direction eq "cp" ? 2 : 3            # the playbook has no throughput of cp
    plot for [i = 1:last] (i == 1 ? ours(direction, "fast") : i == 2 ? ours(direction, "slow") \
                           : work."/playbook_".direction) \
         with linespoints ls i
    unset ylabel
    unset label
    set format y ""
}
unset multiplot
