#!/bin/sh
# Draws a plan: memory of the ten fastest kinds of grid, and tokens/s per GPU of the fastest grid on 1 to 1024 GPUs.
#   figure.sh FILE.svg PLAN --model NAME --gpus N ...
set -eu
svg=$1 plan=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$plan "$@" --csv "$work/all" >"$work/text"
# per grid: its name, GiB by category, tokens/s per GPU
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
    NR > 1 && kinds < 10 && $at["fits"] && !seen[$at["tp"], $at["cp"], $at["pp"], $at["ep"]]++ {
    kinds++; name = ""; count = split("tp cp pp ep dp", size, " ")
    for (i = 1; i <= count; i++) if ($at[size[i]] > 1) name = name size[i] " " $at[size[i]] ", "
    printf "\"%s%s x %s, ZeRO-%s%s\"", name, $at["micro_batch"], $at["accumulate"], $at["zero"],
        $at["recompute"] == "none" ? "" : ", recomputed"
    for (i = at["parameters_bytes"]; i <= at["workspace_bytes"]; i++) printf " %.3f", $i / 2 ^ 30
    printf " %d\n", $at["tokens_per_second_per_gpu"] }' "$work/all" >"$work/memory"
: >"$work/scaling"
for n in 1 2 4 8 16 32 64 128 256 512 1024; do
    if $plan "$@" --gpus $n --csv "$work/one" >/dev/null 2>&1; then
        awk -F, -v n=$n 'NR == 1 { while ($++i != "tokens_per_second_per_gpu"); } NR == 2 { print n, $i }' "$work/one" \
            >>"$work/scaling"
    fi
done
# "8B on 64 H100s", and the GiB that fit, from the first lines of the plan
title=$(awk 'NR == 1 { sub(/:.*/, ""); model = /^[0-9.]+[a-z]$/ ? toupper($0) : $0 }
    / GPUs, / { sub(",", "", $3); print model " on " $1 " " toupper($3) "s"; exit }' "$work/text")
limit=$(sed -n 's/.* fit in \([0-9.]*\) GiB per GPU.*/\1/p' "$work/text")
margin=$(awk -F'"' 'length($2) > longest { longest = length($2) } END { print 0.03 + 0.0062 * longest }' "$work/memory")
gnuplot -e "margin=$margin; work='$work'; svg='$svg'; title='$title'; limit=${limit:-0}" "$(dirname "$0")/plan.gnuplot"
echo "drew $svg"
