#!/bin/sh
# Draws the figures of the READMEs from runs made now: needs gnuplot and "make cpu". Arguments: of which stages (01 02 03).
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Live memory over two steps, and activations against the sequence's length, for each --recompute.
figures_01() {
    program=build/cpu/01_single_gpu
    for mode in none selective full; do
        echo "01_single_gpu --recompute $mode"
        $program --layers 6 --hidden 128 --heads 4 --seq 256 --micro-batch 4 --accumulate 1 --steps 2 --quiet \
            --threads 1 \
            --recompute $mode --trace "$work/trace"
        # from the first forward on, seconds and megabytes of each category: in every 1/300 of the time, of the moment
        # with the largest sum
        awk -F'"ts":|,"args":[{]|}}' '
            /"name":"forward"/ && !start { start = $2 + 0 }
            /"name":"live"/ && $2 >= start {
                n = split($3, field, /[:,]/); time[++rows] = $2; line[rows] = ""; sum[rows] = 0
                for (i = 2; i <= n; i += 2) { line[rows] = line[rows] " " field[i] / 1e6; sum[rows] += field[i] }
            }
            END {
                bin = (time[rows] - time[1]) / 300
                for (row = 1; row <= rows; row++) {
                    at = int((time[row] - time[1]) / bin)
                    if (!(at in best) || sum[row] > sum[best[at]]) best[at] = row
                }
                for (at = 0; at <= 300; at++) {
                    if (at in best) row = best[at]; else row = last
                    print at * bin / 1e6, line[row]; print (at + 1) * bin / 1e6, line[row]
                    for (last = row; last < rows && time[last + 1] < time[1] + (at + 1) * bin; last++) ;
                }
            }' "$work/trace" >"$work/live_$mode"
        : >"$work/sequence_$mode"
        for seq in 64 128 256 384 512 768 1024; do
            $program --layers 4 --hidden 256 --heads 8 --seq $seq --micro-batch 1 --accumulate 1 --steps 1 --quiet \
                --recompute $mode --report "$work/report"
            awk -v seq=$seq '/"activations"/ { on = 1 }
                on && /measured|predicted|playbook/ { gsub(/[",]/, ""); value[$1] = $2 / 1e6 }
                on && /}/ { print seq, value["measured:"], value["predicted:"], value["playbook:"]; exit }' \
                "$work/report" >>"$work/sequence_$mode"
        done
    done
    gnuplot -e "work='$work'" 01_single_gpu/memory.gnuplot
    gnuplot -e "work='$work'" 01_single_gpu/sequence.gnuplot
    echo "drew 01_single_gpu/memory.svg and 01_single_gpu/sequence.svg"
}

# Losses on the same batches in each type: step, mean of 25 losses, and that less fp32's. A loss scale below 1 stands for
# a larger batch, whose mean gives each token a smaller share.
figures_02() {
    program=build/cpu/02_mixed_precision
    cp build/text.txt "$work/text"
    while read -r name options; do
        echo "02_mixed_precision $options"
        $program --preset small --seq 64 --accumulate 1 --steps 1000 --lr 3e-4 --threads 1 --quiet $options \
            --data "$work/text" --metrics "$work/metrics"
        awk -F, 'NR > 1 { sum += $3; if ($1 % 25 == 0) { print $1 - 12, sum / 25; sum = 0 } }' "$work/metrics" \
            >"$work/one"
        rm "$work/metrics"
        [ "$name" = fp32 ] && cp "$work/one" "$work/base"
        paste -d " " "$work/one" "$work/base" | awk '{ print $1, $2, $2 - $4 }' >"$work/loss_$name"
        tail -1 "$work/loss_$name"
    done <<END
fp32 --dtype fp32
bf16 --dtype bf16
bf16_alone --dtype bf16 --master none
fp16 --dtype fp16
fp16_unscaled --dtype fp16 --loss-scale 0.0009765625 --loss-scale-growth 0
fp8 --dtype fp8
END
    gnuplot -e "work='$work'" 02_mixed_precision/losses.gnuplot
    echo "drew 02_mixed_precision/losses.svg"
}

# One step under --pretend, the gradients summed after backward and during it.
figures_03() {
    program=build/cpu/03_data_parallel
    : >"$work/timeline"
    for mode in naive overlap; do
        echo "03_data_parallel --sync $mode"
        mpiexec -n 2 $program --layers 6 --hidden 128 --heads 4 --seq 64 --micro-batch 2 --accumulate 1 --quiet --steps 2 \
            --sync $mode --pretend 4,0.05,20 --trace "$work/trace"
        # of the second step: forward, backward and optimizer of each rank, and its transfers
        tr ',{}' '   ' <"$work/trace" | awk -v top=$([ $mode = naive ] && echo 10 || echo 4) '
            /"ph":"X"/ {
                split($1, name, "\""); split($3, pid, ":"); split($4, tid, ":"); split($5, ts, ":"); split($6, dur, ":")
                color["forward"] = "0x4e79a7"; color["backward"] = "0x59a14f"; color["optimizer"] = "0xb07aa1"
                color["all_reduce"] = "0xf28e2b"
                what = name[4]
                if (!(what in color)) next
                n++; row[n] = top - 3 * pid[2] - (what == "all_reduce"); from[n] = ts[2]; to[n] = ts[2] + dur[2]
                kind[n] = color[what]
                if (what == "forward" && (++forwards[pid[2]]) == 2 && (start == "" || ts[2] < start)) start = ts[2]
            }
            END {
                for (i = 1; i <= n; i++)
                    if (from[i] >= start) print (from[i] - start) / 1000, (to[i] - start) / 1000, row[i], kind[i]
            }
        ' >>"$work/timeline"
    done
    gnuplot -e "work='$work'" 03_data_parallel/timeline.gnuplot
    echo "drew 03_data_parallel/timeline.svg"
}

for stage in ${*:-01 02 03}; do
    "figures_$stage"
done
