# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# One step on 2 x 2 x 2 ranks under --pretend: all ranks, and rank 0's last backward with its transfers. The vocabulary
# is small, so that the last pipeline stage's output projection takes little time.
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
            row = group[4] == "" ? 0 : index("tp cp pp replicas embedding world", group[4])
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
            if (f[2] > from - 2e4 && f[1] < last && f[3] < 19)      # no embedding, too short to see; no world
                print (f[1] - start) / 1e6, (f[2] - start) / 1e6, f[3], f[4] >zoom
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
