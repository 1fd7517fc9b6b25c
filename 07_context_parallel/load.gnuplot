# Query-key pairs that each rank computes, over the mean of all ranks. Columns: rank, ratio.
set terminal svg size 960,300 font "sans-serif,12" background "white"
set output "07_context_parallel/load.svg"
set multiplot layout 1,2 margins 0.08,0.985,0.17,0.88 spacing 0.05
set style fill solid 1.0 noborder
set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set xtics 1 scale 0
set ytics 0.5
set yrange [0:2.2]
set grid ytics lc rgb "#dddddd"
set xlabel "rank" offset 0,0.3 tc rgb "#333333"
do for [n in "4 8"] {
    set xrange [-0.6:n - 0.4]
    set title n." ranks" offset 0,-0.3 tc rgb "#333333"
    if (n == 4) { set ylabel "query-key pairs, over the mean" offset 0.5,0 tc rgb "#333333" } else { unset ylabel }
    if (n == 4) { set key inside left top reverse Left samplen 1.5 } else { set key off }
    plot work."/load_ring_".n using ($1 - 0.2):2:(0.38) with boxes lc rgb "#e69f00" title "ring (and allgather)", \
         work."/load_zigzag_".n using ($1 + 0.2):2:(0.38) with boxes lc rgb "#0072b2" title "zigzag (and ulysses)", \
         work."/load_ring_".n using ($1 - 0.23):($2 + 0.09):(sprintf("%.2f", $2)) with labels font ",9" \
             tc rgb "#333333" notitle
}
unset multiplot
