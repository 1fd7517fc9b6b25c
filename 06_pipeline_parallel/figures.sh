# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# One step on four ranks with each schedule: the actions of each rank over time under --pretend. The vocabulary is
# small, so that the output projection takes little time. "naive", which does other work, is measured and not drawn.
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
    mpiexec -n 4 $program $model --pretend 0.005,10,1 --trace "$work/trace" --report "$work/report"
    fields | awk -v panel=$panel -v name=$1 -F: '
        /"bubble"/ { sum += $2 }
        /"bubble_simulated"/ { simulated = $2 }
        /"bubble"/ { each = each " " $2 + 0 }
        /"bubble_inside"/ { inside = inside " " $2 + 0 }
        /"activations"/ { on = 1 }
        on && /"measured"/ { bytes = bytes " " $2 + 0; on = 0 }
        END { print panel, name, sum / 4, simulated, each, "inside" inside, "bytes" bytes }' >>"$work/panels"
    [ $1 != naive ] || continue
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
cat "$work/panels"
echo "drew 06_pipeline_parallel/timeline.svg"
