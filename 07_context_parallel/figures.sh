# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# The query-key pairs that each rank computes, and one step on four ranks under --pretend.
program=build/cpu/07_context_parallel
for n in 4 8; do
    for method in ring zigzag; do
        echo "07_context_parallel --attention $method, $n ranks"
        mpiexec -n $n $program --layers 1 --hidden 64 --heads 2 --seq 1024 --micro-batch 1 --accumulate 1 \
            --steps 1 --threads 1 --quiet --attention $method --report "$work/report"
        # per rank: its pairs over the average
        fields | awk -F: '/"attention_pairs"/ { pairs[n++] = $2 + 0; sum += $2 }
            END { for (r = 0; r < n; r++) print r, pairs[r] * n / sum }' >"$work/load_${method}_$n"
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
