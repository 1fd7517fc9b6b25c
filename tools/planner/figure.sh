#!/bin/sh
# Draws a plan: tokens/s per GPU of the fastest grid of each kind, that is of each set of techniques; at most six.
#   figure.sh FILE.svg PLAN --model NAME --gpus N ...
set -eu
svg=$1 plan=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$plan "$@" --csv "$work/all" >"$work/text"
# per kind: its name and the grid, on two lines; tokens/s per GPU
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; split("tp cp pp ep", size, " ")
        split("tensor context pipeline expert", technique, " "); next }
    $at["fits"] && kinds < 6 {
        kind = grid = ""
        for (i = 1; i <= 4; i++) if ($at[size[i]] > 1) {
            kind = kind (kind ? " + " : "") technique[i]; grid = grid size[i] " " $at[size[i]] ", " }
        kind = kind ? kind : "data alone"
        if (seen[kind]++) next
        kinds++
        recompute = $at["recompute"]
        recompute = recompute == "none" ? "" : recompute == "full" ? ", recomputed" : ", partly recomputed"
        printf "\"%s\\n{/*0.8 %sdp %s, ZeRO-%s%s}\" %.0f\n", kind, grid, $at["dp"], $at["zero"], recompute,
            $at["tokens_per_second_per_gpu"] }' "$work/all" >"$work/kinds"
# "8b on 64 h100", from the first lines of the plan
title=$(awk 'NR == 1 { sub(/:.*/, ""); model = $0 } /^GPUs: / { print model " on " $2 " " $4; exit }' "$work/text")
gnuplot -e "work='$work'; svg='$svg'; title='$title'" "$(dirname "$0")/plan.gnuplot"
echo "drew $svg"
