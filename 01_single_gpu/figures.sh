# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# Live memory over two steps, and activations against the sequence's length, for each --recompute.
program=build/cpu/01_single_gpu
for mode in none selective full; do
    echo "01_single_gpu --recompute $mode"
    $program --layers 6 --hidden 128 --heads 4 --seq 256 --micro-batch 4 --accumulate 1 --steps 2 --quiet \
        --threads 1 \
        --recompute $mode --trace "$work/trace"
    # each 1/300 of the time has one row: that of the moment with the largest total
    awk -f 01_single_gpu/live.awk "$work/trace" | awk '
        { time[NR] = $1; line[NR] = substr($0, index($0, " ")); for (i = 2; i <= NF; i++) sum[NR] += $i }
        END {
            bin = time[NR] / 300
            for (row = 1; row <= NR; row++) {
                at = int(time[row] / bin)
                if (!(at in best) || sum[row] > sum[best[at]]) best[at] = row
            }
            for (at = 0; at <= 300; at++) {
                if (at in best) row = best[at]; else row = last
                print at * bin, line[row]; print (at + 1) * bin, line[row]
                for (last = row; last < NR && time[last + 1] < (at + 1) * bin; last++) ;
            }
        }' >"$work/live_$mode"
    : >"$work/sequence_$mode"
    for seq in 64 128 256 384 512 768 1024; do
        $program --layers 4 --hidden 256 --heads 8 --seq $seq --micro-batch 1 --accumulate 1 --steps 1 --quiet \
            --recompute $mode --report "$work/report"
        fields | awk -v seq=$seq '/"activations"/ { on = 1 }
            on && /"measured"/ { measured = $2 / 1e6 }
            on && /"predicted"/ { print seq, measured, $2 / 1e6; exit }' >>"$work/sequence_$mode"
    done
done
gnuplot -e "work='$work'" 01_single_gpu/memory.gnuplot
gnuplot -e "work='$work'" 01_single_gpu/sequence.gnuplot
echo "drew 01_single_gpu/memory.svg and 01_single_gpu/sequence.svg"
