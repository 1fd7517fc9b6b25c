# Tokens/s of a rank over those of one rank, one direction at a time, on simulated hardware with two links; and what the
# playbook published for GPUs: tokens/s of a GPU over those of its smallest run. All files: ranks, share.
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
do for [direction in "dp tp cp pp"] {
    set title direction offset 0,-0.5 tc rgb "#333333"
    set xrange [0.85:direction eq "dp" ? 300 : direction eq "tp" ? 38 : 19]
    if (direction eq "dp") {
        set ylabel "tokens/s of a rank, relative" offset 1.5,0 tc rgb "#333333"
        set key at screen 0.065, screen 0.99 left top reverse Left horizontal maxrows 1 width 1 samplen 1.5 tc rgb "#333333"
    }
    plot ours(direction, "fast") with linespoints pt 7 ps 0.7 lw 2 lc rgb "#0072b2" title "fast link, simulated", \
         ours(direction, "slow") with linespoints pt 7 ps 0.7 lw 2 lc rgb "#d55e00" title "slow link, simulated", \
         direction eq "cp" ? "/dev/null" : work."/playbook_".direction with linespoints pt 6 ps 0.7 dt 2 lw 2 \
             lc rgb "#666666" title "the playbook's GPUs"
    unset ylabel
    set key off
    set format y ""
}
unset multiplot
