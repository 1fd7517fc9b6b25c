# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# The loads of experts over training, with and without the balance loss; and one step of four ranks under --pretend.
program=build/cpu/10_expert_parallel
for balance in 0.01 0; do
    echo "10_expert_parallel --balance $balance"
    $program --layers 4 --hidden 64 --heads 4 --seq 64 --micro-batch 8 --accumulate 4 --steps 300 --lr 3e-3 \
        --threads 1 --quiet --balance $balance --metrics "$work/metrics"
    # step; busiest, idlest and dropped, averaged over five steps
    awk -F, 'NR > 1 { d += $12; b += $13; i += $14 }
        NR > 1 && $1 % 5 == 0 { print $1 - 2, b / 5, i / 5, d / 5; b = i = d = 0 }' "$work/metrics" \
        >"$work/load_$balance"
    rm "$work/metrics"
done
gnuplot -e "work='$work'" 10_expert_parallel/load.gnuplot
echo "10_expert_parallel --ep 4, under --pretend"
yes | tr 'y\n' '\001\002' | head -c 20000 >"$work/tokens"                  # tokens 1 and 2
mpiexec -n 4 $program --ep 4 --experts 16 --layers 2 --hidden 64 --heads 2 --vocab 4 --seq 64 --micro-batch 4 \
    --accumulate 1 --steps 2 --threads 1 --quiet --data "$work/tokens" --pretend 0.05,0.0008,100 \
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
