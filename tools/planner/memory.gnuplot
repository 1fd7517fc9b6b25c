# What a GPU stores with each technique (memory.sh). rows: name, GB of parameters, gradients, optimizer states,
# activations and buffers, GB in all, seconds of a step. room: GB that fit.
stats work."/rows" using 2 nooutput
set terminal svg size 960,82+34*STATS_records enhanced font "sans-serif,14" background "white"
set output svg
set border 2 lc rgb "#666666"
set lmargin 27
set rmargin 1
set tmargin 3.2
set bmargin 2.6
set tics nomirror textcolor rgb "#333333" scale 0
set xtics 0,20,180 format "%g" scale 0.5
color(i) = word("#0072b2 #e69f00 #cc79a7 #009e73 #d55e00", i)
do for [i=1:5] {
    x = 0.26 + word("0 0.135 0.26 0.425 0.56", i)
    set object i rectangle at screen x,0.95 size screen 0.026,0.028 fc rgb color(i) fs solid noborder
    set label i word("parameters gradients optimizer activations buffers", i).(i == 3 ? " states" : "") \
        at screen x+0.02,0.95 tc rgb "#333333"
}
set label 6 "GB per GPU" at 80,STATS_records+1 center tc rgb "#333333"
set label 7 sprintf("an H100 has room for %.0f GB", room) at room,-0.9 center tc rgb "#333333"
set label 10 "chapter" at -2,-0.85 right tc rgb "#333333"
set label 8 "in all" at 215,-0.85 right tc rgb "#333333"
set label 9 "a step takes" at 255,-0.85 right tc rgb "#333333"
set xrange [0:256]
set yrange [STATS_records-0.5:-0.5]
set style fill solid 1 noborder
set arrow 1 from room,STATS_records-0.5 to room,-0.5 nohead front dt (6,4) lw 1.5 lc rgb "#333333"
left(i) = i == 1 ? 0 : sum [k=1:i-1] column(k+1)
inside(i) = column(i+1) < 4 ? "" : sprintf("%.0f", column(i+1))
middle(i) = left(i) + (column(i+1) < 80 ? column(i+1)/2 : 22)
plot for [i=1:5] work."/rows" using (0):0:(left(i)):(left(i)+column(i+1)):($0-0.36):($0+0.36):ytic(1) \
         with boxxyerror fs solid lc rgb color(i) notitle, \
     for [i=1:4] "" using (middle(i)):0:(inside(i)) with labels center tc rgb word("white black black white", i) \
         notitle, \
     "" using (215):0:7 with labels right tc rgb "#333333" notitle, \
     "" using (255):0:8 with labels right tc rgb "#333333" notitle
