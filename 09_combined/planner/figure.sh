#!/bin/sh
# Draws a plan: memory of the ten fastest grids, and tokens/s per GPU of the fastest grid on 1 to 1024 GPUs.
#   figure.sh FILE.svg PLAN --model NAME --gpus N ...
set -eu
svg=$1 plan=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$plan "$@" --csv "$work/all" >"$work/text"
# per grid: its name, GiB by category, tokens/s
awk -F, 'NR > 1 && NR <= 11 && $9 {
    name = ""; split("tp cp pp dp", direction, " ")
    for (i = 1; i <= 4; i++) if ($i > 1) name = name direction[i] " " $i ", "
    printf "\"%s%s x %s, ZeRO-%s%s\"", name, $5, $6, $7, $8 == "full" ? ", recomputed" : ""
    for (i = 10; i <= 16; i++) printf " %.3f", $i / 2 ^ 30
    print "", $27 }' "$work/all" >"$work/memory"
: >"$work/scaling"
for n in 1 2 4 8 16 32 64 128 256 512 1024; do
    if $plan "$@" --gpus $n --csv "$work/one" >/dev/null 2>&1; then
        awk -F, -v n=$n 'NR == 2 { print n, $27 }' "$work/one" >>"$work/scaling"
    fi
done
gnuplot -e "work='$work'; svg='$svg'; title='$(awk -F: 'NR == 1 { model = $1 } NR == 2 { split($0, word, ","); print model ", " word[1] word[2] }' "$work/text")'" \
    "$(dirname "$0")/plan.gnuplot"
echo "drew $svg"
