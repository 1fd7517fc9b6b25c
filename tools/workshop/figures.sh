#!/bin/sh
# Draws the READMEs' figures from new runs. Needs gnuplot and "make cpu". Arguments: figures, as 01 or plan (all).
set -eu
cd "$(dirname "$0")/../.."
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
        # from the first forward on, time in seconds and megabytes per category. Each 1/300 of the time has one row:
        # that of the moment with the largest total
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

# Losses on the same batches in each type: step, mean of 25 losses, difference from fp32's. A loss scale below 1 has the
# effect of a larger batch, whose mean scales each token's gradient down.
figures_02() {
    program=build/cpu/02_mixed_precision
    cp 01_single_gpu/shakespeare.txt "$work/text"
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

# One step under --pretend, with the gradients' all-reduces after backward and during it.
figures_03() {
    program=build/cpu/03_data_parallel
    : >"$work/timeline"
    for mode in naive overlap; do
        echo "03_data_parallel --sync $mode"
        mpiexec -n 2 $program --layers 6 --hidden 128 --heads 4 --seq 64 --micro-batch 2 --accumulate 1 --quiet \
            --steps 2 --sync $mode --pretend 4,0.05,20 --trace "$work/trace"
        # the second step: forward, backward, optimizer and transfers of each rank
        tr ',{}' '   ' <"$work/trace" | awk -v top=$([ $mode = naive ] && echo 10 || echo 4) '
            /"ph":"X"/ {
                split($1, name, "\""); split($3, pid, ":"); split($4, tid, ":"); split($5, ts, ":"); split($6, dur, ":")
                color["forward"] = "0x0072b2"; color["backward"] = "0xe69f00"; color["optimizer"] = "0xcc79a7"
                color["all_reduce"] = "0xd55e00"
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

# Bytes per rank by category, for 03 and each ZeRO stage: x, ranks, megabytes.
figures_04() {
    model="--layers 4 --hidden 128 --heads 4 --seq 32 --micro-batch 1 --accumulate 1 --steps 1 --threads 1 --quiet"
    : >"$work/memory"
    x=0
    for program in "03_data_parallel" "04_zero --zero 1" "04_zero --zero 2" "04_zero --zero 3"; do
        echo "$program on 1, 2, 4 and 8 ranks"
        for n in 1 2 4 8; do
            mpiexec -n $n build/cpu/$program $model --report "$work/report"
            awk -v x=$x -v n=$n '
                /"(parameters|gradients|optimizer|communication)":/ { gsub(/[",: {\t]/, ""); name = $0 }
                /"measured":/ && name { gsub(/[",]/, ""); value[name] = $2 / 1e6; name = "" }
                /"total":/ {
                    print x, n, value["parameters"], value["gradients"], value["optimizer"], value["communication"] + 0
                    exit
                }' "$work/report" >>"$work/memory"
            x=$((x + 1))
        done
        x=$((x + 1))
    done
    gnuplot -e "work='$work'" 04_zero/memory.gnuplot
    echo "drew 04_zero/memory.svg"
}

# One step on four ranks with each schedule: the actions of each rank over time under --pretend, and its micro-batches
# in flight as simulated. The vocabulary is small, so that the output projection takes little time.
figures_06() {
    program=build/cpu/06_pipeline_parallel
    yes | tr 'y\n' '\001\002' | head -c 4000 >"$work/tokens"
    : >"$work/boxes"
    : >"$work/panels"
    panel=0
    for options in "naive afab 1 1" "afab afab 8 1" "1f1b 1f1b 8 1" "interleaved interleaved 8 2" \
        "zero-bubble zero-bubble 8 1" "zb-v zb-v 8 2" "dualpipe-v dualpipe-v 8 2"; do
        set -- $options
        chunks=$([ $2 = interleaved ] && echo 2 || echo 1)
        model="--layers 16 --hidden 64 --heads 2 --vocab 4 --seq 8 --micro-batch 2 --steps 2 --quiet --threads 1
            --data $work/tokens --schedule $2 --accumulate $3 --chunks $chunks"
        echo "06_pipeline_parallel --schedule $2 --accumulate $3 --chunks $chunks"
        # the printed schedule's actions: rank, kind (1 to 4: forward, backward, input gradients, weight gradients),
        # micro-batch, model chunk, begin and end in time slots
        mpiexec -n 4 $program $model --print-schedule | awk '
            function actions(rank, micros, chunks,    at, c, kind, slots) {
                for (at = 1; at <= length(micros); at += slots) {
                    c = substr(micros, at, 1); slots = 1
                    if (c == ".") continue
                    kind = c ~ /[0-9]/ ? 1 : c ~ /[A-Z]/ ? 4 : 3
                    if (kind == 3 && substr(micros, at + 1, 1) == c \
                        && substr(chunks, at + 1, 1) == substr(chunks, at, 1)) { kind = 2; slots = 2 }
                    print rank, kind, kind == 1 ? c : index("abcdefgh", tolower(c)) - 1, substr(chunks, at, 1) + 0, \
                        at - 1, at - 1 + slots
                }
            }
            /^rank [0-9]/ && $3 ~ /^[0-9a-zA-Z.]+$/ { if (micros) actions(rank, micros, chunks)
                                                      rank = $2; micros = $3; chunks = "" }
            /^ *chunk/ { chunks = $2 }
            END { actions(rank, micros, chunks) }' >"$work/actions"
        # per rank: time, and the micro-batches in flight from then on, counted over all its layers
        awk -v v=$4 '
            $1 != rank { if (NR > 1) print ""; rank = $1; now = 0; print 0, 0 }
            $2 == 1 { print $5 / v, now / v; now++; print $5 / v, now / v }
            $2 == 2 || $2 == 4 { print $6 / v, now / v; now--; print $6 / v, now / v }' "$work/actions" \
            >"$work/flight_$1"
        mpiexec -n 4 $program $model --pretend 0.005,10,1 --trace "$work/trace" --report "$work/report"
        awk -v panel=$panel -v name=$1 -F'[:,]' '
            /"bubble"/ { sum += $2 }
            /"bubble_simulated"/ { simulated = $2 }
            /"bubble"/ { each = each " " $2 + 0 }
            /"bubble_inside"/ { inside = inside " " $2 + 0 }
            /"activations"/ { on = 1 }
            on && /"measured"/ { bytes = bytes " " $2 + 0; on = 0 }
            END { print panel, name, sum / 4, simulated, each, "inside" inside, "bytes" bytes }' "$work/report" \
            >>"$work/panels"
        # the second step: begin, end, row, kind (1 to 3: forward, backward, weight gradients), model chunk, micro-batch
        tr ',{}' '   ' <"$work/trace" | awk -v panel=$panel -v p=4 '
            FNR == NR { n = total[$1]++; of[$1, n] = $2 == 4 ? 3 : $2 == 1 ? 1 : 2; micros[$1, n] = $3
                        chunks[$1, n] = $4; next }
            /"name":"(forward|backward|backward_input|backward_weight)"/ {
                split($3, pid, ":"); split($5, ts, ":"); split($6, dur, ":")
                r = pid[2] + 0; i = count[r]++ - total[r]
                if (i < 0) next
                k++; from[k] = ts[2]; to[k] = ts[2] + dur[2]; row[k] = 5 * panel + 1 + r
                what[k] = of[r, i]; chunk[k] = chunks[r, i]; micro[k] = micros[r, i]
                if (k == 1 || from[k] < start) start = from[k]
                if (to[k] > end) end = to[k]
            }
            END {
                for (r = 0; r < p; r++) print 0, (end - start) / 1e6, 5 * panel + 1 + r, 0, 0, "-"
                for (i = 1; i <= k; i++)
                    print (from[i] - start) / 1e6, (to[i] - start) / 1e6, row[i], what[i], chunk[i], micro[i]
            }' "$work/actions" - >>"$work/boxes"
        panel=$((panel + 1))
    done
    gnuplot -e "work='$work'" 06_pipeline_parallel/timeline.gnuplot
    gnuplot -e "work='$work'" 06_pipeline_parallel/in_flight.gnuplot
    cat "$work/panels"
    echo "drew 06_pipeline_parallel/timeline.svg and 06_pipeline_parallel/in_flight.svg"
}

# The query-key pairs that each rank computes, and one step on four ranks under --pretend.
figures_07() {
    program=build/cpu/07_context_parallel
    for n in 4 8; do
        for method in ring zigzag; do
            echo "07_context_parallel --attention $method, $n ranks"
            mpiexec -n $n $program --layers 1 --hidden 64 --heads 2 --seq 1024 --micro-batch 1 --accumulate 1 \
                --steps 1 --threads 1 --quiet --attention $method --report "$work/report"
            # per rank: its pairs over the average
            awk -F: '/"attention_pairs"/ { pairs[n++] = $2 + 0; sum += $2 }
                END { for (r = 0; r < n; r++) print r, pairs[r] * n / sum }' "$work/report" >"$work/load_${method}_$n"
        done
    done
    gnuplot -e "work='$work'" 07_context_parallel/load.gnuplot
    panel=0
    : >"$work/boxes"
    for method in ring zigzag; do
        echo "07_context_parallel --attention $method, under --pretend"
        mpiexec -n 4 $program --layers 1 --hidden 64 --heads 2 --seq 2048 --micro-batch 1 --accumulate 1 \
            --steps 2 --threads 1 --quiet --pretend 0.5,1,5 --attention $method --trace "$work/trace"
        # the second step: begin, end, row, kind (1: attention, 2: attention backward, 3: others), owner of the keys.
        # All blocks of a ring step are one box: with zigzag 3 in the first step and 2 in the others; with ring 1.
        tr ',{}' '   ' <"$work/trace" | awk -v panel=$panel -v method=$method -v n=4 '
            /"ph":"X"/ {
                split($1, name, "\""); split($3, pid, ":"); split($4, tid, ":"); split($5, ts, ":"); split($6, dur, ":")
                r = pid[2]; begin = ts[2] + 0; end = begin + dur[2]; row = 5 * panel + 1 + r
                if (name[4] == "forward" && ++steps[r] == 2 && (start == "" || begin < start)) start = begin
                if (steps[r] < 2) next
                if (name[4] == "optimizer" && end > last) last = end
                if (tid[2] != 1) next
                kind = name[4] == "attention_block_forward" ? 1 : name[4] == "attention_block_backward" ? 2 : 3
                if (kind == 3) {                            # omitted if too short to be visible
                    if (end - begin > 500) line[++lines] = begin " " end " " row " 3 -1"
                    next
                }
                i = blocks[r, kind]++
                step = method == "ring" ? i : i < 3 ? 0 : 1 + int((i - 3) / 2)
                if (!((r, kind, step) in from)) from[r, kind, step] = begin
                to[r, kind, step] = end
            }
            END {
                for (r = 0; r < n; r++) print 0, (last - start) / 1e6, 5 * panel + 1 + r, 0, -1
                for (i = 1; i <= lines; i++) {
                    split(line[i], f, " ")
                    print (f[1] - start) / 1e6, (f[2] - start) / 1e6, f[3], f[4], f[5]
                }
                for (r = 0; r < n; r++) for (kind = 1; kind <= 2; kind++) for (step = 0; step < n; step++)
                    if ((r, kind, step) in from)
                        print (from[r, kind, step] - start) / 1e6, (to[r, kind, step] - start) / 1e6, \
                            5 * panel + 1 + r, kind, (r - step + n) % n
            }' >>"$work/boxes"
        panel=$((panel + 1))
    done
    gnuplot -e "work='$work'" 07_context_parallel/timeline.gnuplot
    echo "drew 07_context_parallel/load.svg and 07_context_parallel/timeline.svg"
}

# A roofline from datasheet numbers and formulas.
figures_08() {
    gnuplot 08_fused_kernels/roofline.gnuplot
    echo "drew 08_fused_kernels/roofline.svg"
}

# One step on 2 x 2 x 2 ranks under --pretend: all ranks, and rank 0's last backward with its transfers. The vocabulary
# is small, so that the last pipeline stage's output projection takes little time.
figures_09() {
    yes | tr 'y\n' '\001\002' | head -c 20000 >"$work/tokens"
    echo "09_combined --tp 2 --cp 2 --pp 2, under --pretend"
    mpiexec -n 8 build/cpu/09_combined --dtype fp32 --tp 2 --cp 2 --pp 2 --layers 4 --hidden 64 --heads 8 --vocab 4 \
        --seq 512 --micro-batch 1 --accumulate 4 --steps 2 --threads 1 --quiet --data "$work/tokens" \
        --pretend 0.1,0.003,100 --trace "$work/trace"
    # the second step. steps: begin (of the first operator), end, rank, kind (1: forward, 2: backward, 3: optimizer),
    # micro-batch. zoom, rank 0 from its last backward on: begin, end, row (0: operators, then the groups), kind
    tr ',{}' '   ' <"$work/trace" | awk -v m=4 -v steps="$work/steps" -v zoom="$work/zoom" '
        /"ph":"X"/ {
            split($1, name, "\""); split($3, pid, ":"); split($4, tid, ":"); split($5, ts, ":"); split($6, dur, ":")
            split($7, group, "\"")
            what = name[4]; r = pid[2]; begin = ts[2] + 0; end = begin + dur[2]
            kind = what == "forward" ? 1 : what == "backward" ? 2 : what == "optimizer" ? 3 : 0
            if (kind) {
                i = count[r, kind]++
                if (kind == 1 && i == m && (start == "" || begin < start)) start = begin
                if (i >= (kind == 3 ? 1 : m)) {
                    open[r] = ++lines
                    rest[lines] = end " " r " " kind " " (kind == 3 ? -1 : i - m)
                }
                if (r == 0 && kind == 3) last = end
            } else if (open[r] && tid[2] == 1) {
                first[open[r]] = begin
                if (r == 0 && rest[open[r]] ~ " 2 3$") from = begin
                open[r] = 0
            }
            if (r == 0 && !kind) {
                row = group[4] == "" ? 0 : index("tp cp pp replicas", group[4])
                op[++ops] = begin " " end " " row " " (what ~ /^linear/ ? 1 : what ~ /^flash/ ? 2 : 3)
            }
        }
        END {
            for (i = 1; i <= lines; i++) {
                split(rest[i], f, " ")
                print (first[i] - start) / 1e6, (f[1] - start) / 1e6, f[2], f[3], f[4] >steps
            }
            for (i = 1; i <= ops; i++) {
                split(op[i], f, " ")
                if (f[2] > from - 2e4 && f[1] < last) print (f[1] - start) / 1e6, (f[2] - start) / 1e6, f[3], f[4] >zoom
            }
        }'
    gnuplot -e "work='$work'" 09_combined/timeline.gnuplot

    # Each dimension alone, on a fast and a slow link: tokens/s per rank over those of a single rank. The devices are so
    # slow that few cores can run eight. Relative to them, the links are as fast as NVLink and a network are to GPUs
    # (05). Arguments: ranks, the link's GB/s,latency. Uses the faster of two steps, since other work slows a step down.
    tokens_per_rank() {
        mpiexec -n $1 build/cpu/09_combined --dtype fp32 --$direction $1 $options --micro-batch 1 --hidden 128 \
            --heads 8 --vocab 8 --steps 2 --threads 1 --quiet --data "$work/tokens" --pretend $gflops,$2 \
            --metrics "$work/metrics" </dev/null
        awk -F, -v n=$1 'NR > 1 && $7 > most { most = $7 } END { print most / n }' "$work/metrics"
        rm "$work/metrics"
    }
    while read -r direction gflops fast slow options; do
        one=$(tokens_per_rank 1 $fast,5)
        for link in fast:$fast,5 slow:$slow,20; do
            to="$work/scaling_${direction}_${link%:*}"
            echo "1 1" >"$to"
            for n in 2 4 8; do
                echo $n $(tokens_per_rank $n ${link#*:}) $one | awk '{ print $1, $2 / $3 }' >>"$to"
            done
            echo "09_combined --$direction 1, 2, 4, 8, ${link%:*} link:" $(awk '{ printf "%.2f ", $2 }' "$to")
        done
    done <<END
dp 0.025 0.0018 0.0002 --layers 2 --seq 128 --accumulate 1
tp 0.01 0.00073 0.00008 --layers 2 --seq 128 --accumulate 1
cp 0.025 0.0018 0.0002 --layers 1 --seq 512 --accumulate 1
pp 0.025 0.0018 0.0002 --layers 8 --seq 4 --accumulate 32
END
    # The playbook's tokens/s per GPU, over its smallest run's: its 1B model with dp, its 3B model with tensor and
    # sequence parallelism. For pipelines it reports 14% less on 16 GPUs than on 8.
    printf '%s\n' "8 40149.94" "16 37609.69" "32 35367.61" "64 31112.23" "128 26446.44" "256 15700.38" |
        awk '{ print $1, $2 / 40149.94 }' >"$work/playbook_dp"
    printf '%s\n' "2 14167.25" "4 13460.16" "8 10888.53" "16 6159.3" "32 3609.73" |
        awk '{ print $1, $2 / 14167.25 }' >"$work/playbook_tp"
    printf '%s\n' "8 1" "16 0.86" >"$work/playbook_pp"
    gnuplot -e "work='$work'" 09_combined/scaling.gnuplot
    echo "drew 09_combined/timeline.svg and 09_combined/scaling.svg"
}

# The loads of experts over training, with and without the balance loss; and one step of four ranks under --pretend.
figures_10() {
    program=build/cpu/10_expert_parallel
    cp 01_single_gpu/shakespeare.txt "$work/text"
    for balance in 0.01 0; do
        echo "10_expert_parallel --balance $balance"
        $program --layers 4 --hidden 64 --heads 4 --seq 64 --micro-batch 8 --accumulate 4 --steps 300 --lr 3e-3 \
            --threads 1 --quiet --data "$work/text" --balance $balance --metrics "$work/metrics"
        # step; busiest, idlest and dropped, averaged over five steps
        awk -F, 'NR > 1 { d += $12; b += $13; i += $14 }
            NR > 1 && $1 % 5 == 0 { print $1 - 2, b / 5, i / 5, d / 5; b = i = d = 0 }' "$work/metrics" \
            >"$work/load_$balance"
        rm "$work/metrics"
    done
    gnuplot -e "work='$work'" 10_expert_parallel/load.gnuplot
    echo "10_expert_parallel --ep 4, under --pretend"
    mpiexec -n 4 $program --ep 4 --experts 16 --layers 2 --hidden 64 --heads 2 --vocab 4 --seq 64 --micro-batch 4 \
        --accumulate 1 --steps 2 --threads 1 --quiet --data "$(pairs_of_tokens)" --pretend 0.05,0.0008,100 \
        --trace "$work/trace"
    # rank 0, the second step, until the gradients' all-reduce: begin, end, row (1: operators, 0: transfers), kind (1:
    # linear forward, 2: input gradients, 3: weight gradients, 4: other operators, 5: all-to-all)
    tr ',{}' '   ' <"$work/trace" | awk '
        /"ph":"X"/ {
            split($1, name, "\""); split($3, pid, ":"); split($5, ts, ":"); split($6, dur, ":")
            what = name[4]; begin = ts[2] + 0; end = begin + dur[2]
            if (pid[2] != 0) next
            if (what == "forward" && ++steps == 2) start = begin
            if (!start || begin < start || what == "forward" || what == "backward" || what == "optimizer") next
            if (what == "all_reduce") exit
            kind = what == "all_to_all" ? 5 : what == "linear_forward" ? 1 : what == "linear_backward_input" ? 2 \
                   : what == "linear_backward_weight" ? 3 : 4
            if (end - begin > 500) print (begin - start) / 1e6, (end - start) / 1e6, kind != 5, kind
        }' >"$work/boxes"
    gnuplot -e "work='$work'" 10_expert_parallel/timeline.gnuplot
    echo "drew 10_expert_parallel/load.svg and 10_expert_parallel/timeline.svg"
}

# A file of tokens 1 and 2.
pairs_of_tokens() {
    yes | tr 'y\n' '\001\002' | head -c 20000 >"$work/tokens"
    echo "$work/tokens"
}

# A plan, and the published runs beside the planner's predictions.
figures_plan() {
    planner=tools/planner
    $planner/figure.sh $planner/plan.svg build/cpu/plan --model 8b --gpus 64
    build/cpu/plan --runs $planner/playbook_runs.csv --predictions "$work/runs" >/dev/null
    # 8B with micro-batches of 1 on 16 nodes: the grid, GiB measured, GiB predicted
    awk -F, '$1 == "8B" && $2 == 16 && $3 == 1 && $9 == 1 && $8 <= 8 {
        printf "\"tp %d, pp %d, dp %d\" %s %s\n", $8, $7, $6, $13, $15 }' "$work/runs" >"$work/memory"
    # per model and number of nodes: tokens/s of the fastest run, of the one predicted to be fastest, its prediction
    for model in 1B 3B 8B 80B; do
        awk -F, -v model=$model '$1 == model {
            if ($11 > best[$2]) best[$2] = $11
            if ($14 > predicted[$2]) { predicted[$2] = $14; measured[$2] = $11 }
        } END { for (n in best) print n, best[n], measured[n], predicted[n] }' "$work/runs" |
            sort -n >"$work/best_$model"
    done
    gnuplot -e "work='$work'" $planner/published.gnuplot
    echo "drew $planner/published.svg"
}

# The title of each figure, which browsers show and screen readers read, is its alternative text in the README.
name_figures() {
    for readme in */README.md */*/README.md; do
        sed -n 's/.*!\[\(.*\)\](\([a-z_]*\.svg\)).*/\2 \1/p' "$readme" | sed 's/[&\/]/\\&/g' |
            while read -r file title; do
                sed -i "0,/<title>/s/<title>.*<\/title>/<title>$title<\/title>/" "${readme%README.md}$file"
            done
    done
}

for figure in ${*:-01 02 03 04 06 07 08 09 10 plan}; do
    case $figure in
    01 | 02 | 03 | 04 | 06 | 07 | 08 | 09 | 10 | plan) "figures_$figure" ;;
    *) echo "figures.sh: $figure has no figures; 01, 02, 03, 04, 06, 07, 08, 09, 10 and plan have"; exit 2 ;;
    esac
done
name_figures
