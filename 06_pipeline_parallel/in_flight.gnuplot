# Activations in flight over one step of four ranks, by each schedule, as simulated with T_F = T_B = T_W. flight_NAME
# has one block per rank. Columns: time (1: a rank's forward), micro-batches in flight, over all layers of the rank.
set terminal svg size 960,420 font "sans-serif,12" background "white"
set output "06_pipeline_parallel/in_flight.svg"
array name[6] = ["afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"]
set multiplot
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xrange [0:34]
set yrange [0:9.5]
set ytics 4
set xtics 10
set key off
do for [i = 1:6] {
    do for [r = 0:3] {
        set lmargin at screen 0.1 + 0.151 * (i - 1)
        set rmargin at screen 0.1 + 0.151 * (i - 1) + 0.134
        set tmargin at screen 0.93 - 0.2 * r
        set bmargin at screen 0.93 - 0.2 * r - 0.17
        if (r == 0) {
            set title name[i] offset 0,-0.7 tc rgb "#333333"
        } else {
            unset title
        }
        if (r == 3) {
            set format x
            set xlabel "time, in units of T_F" offset 0,0.6 tc rgb "#333333"
        } else {
            set format x ""
            unset xlabel
        }
        if (i == 1) {
            set format y
            set ylabel sprintf("rank %d", r) offset 1,0 tc rgb "#333333"
        } else {
            set format y ""
            unset ylabel
        }
        if (i == 1 && r == 0) {
            set label 2 "micro-batches in flight (number: maximum)" at screen 0.015, screen 0.5 center rotate \
                tc rgb "#333333"
        } else {
            unset label 2
        }
        file = work."/flight_".name[i]
        stats file every :::r::r using 2 nooutput
        set label 1 sprintf("%g", STATS_max) at graph 0.97, graph 0.86 right font ",13" tc rgb "#333333"
        # Okabe and Ito's blue
        plot file every :::r::r using 1:2 with filledcurves y1=0 fc rgb "#0072b2" fs solid 0.75 noborder
    }
}
unset multiplot
