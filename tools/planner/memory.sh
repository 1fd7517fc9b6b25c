#!/bin/sh
# Draws what the first page asks: what four techniques, alone and together, make of the 128 GB of Llama 3 8B on 64 GPUs.
#   memory.sh            draws memory.svg (needs gnuplot)
#   memory.sh --check    fails if memory.svg lacks a number that the planner says now, or the first page one of these
set -eu
cd "$(dirname "$0")/../.."
plan=${PLAN:-build/cpu/plan}
svg=tools/planner/memory.svg
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# row CHAPTER WORDS GRID: adds a row with the GB of each kind, GB in all and the seconds of a step.
row() {
    "$plan" --model llama3-8b --gpus 64 --batch 512K --state-bytes 16 --explain "$3" >"$work/explained"
    awk -v name="$2   $1" '
        $3 == "bytes" || $3 == "bytes," {number = $2; gsub(",", "", number); gb[$1] = number / 1e9}
        /^  total .* fit$/ {fits = $4 <= $(NF - 1)}
        /^  total .* s  / {seconds = sprintf("%.2f s", $2)}
        END {
            printf "\"%s\" %f %f %f %f %f \"%.0f GB\" \"%s\"\n", name, gb["parameters"], gb["gradients"],
                gb["master"] + gb["optimizer"], gb["activations"], gb["workspace"] + gb["communication"],
                gb["total"], fits ? seconds : "does not fit"
        }' "$work/explained" >>"$work/rows"
}

row 03 "data parallelism" dp=64,zero=0
row 04 "ZeRO-1" dp=64,zero=1
row 04 "ZeRO-3" dp=64,zero=3
row 06 "pipeline, over 8 GPUs" pp=8,dp=8,zero=0
row 05 "tensor, over 8 GPUs" tp=8,dp=8,zero=0
row 09 "tensor 8 x pipeline 8" tp=8,pp=8,zero=0

case ${1-} in
--check)
    cut -d '"' -f 4,6 "$work/rows" | tr '"' '\n' | while read -r label; do
        grep -qF -- ">$label<" "$svg" ||
            { echo "$svg: does not say \"$label\"; \"tools/workshop/figures.sh planner\" renews it"; exit 1; }
    done
    llama="$plan --model llama3-8b --batch 512K --state-bytes 16"
    {
        $llama --gpus 512 --explain tp=8,dp=64,zero=0 |
            awk '/^  total .* s  / {printf "the 64 sequences, and the step takes %.2f s\n", $2}'
        $llama --gpus 64 | tr '\n' ' ' |
            sed -E 's/.*(by less than [0-9.]+%), (nine in ten by less than [0-9.]+%).*/\1, and \2/'
        echo
        $llama --gpus 64 --explain best | awk '/^tp=1,cp=1,pp=1,dp=64,.*,zero=1,/ {best = "ZeRO-1 alone"}
            /^  total .* s  / {printf "%s, with %.2f s\n", best, $2}'
    } | while read -r words; do
        tr -s '\n ' ' ' <README.md | grep -qF -- "$words" || { echo "README.md: does not say \"$words\""; exit 1; }
    done ;;
*) gnuplot -e "work='$work'; svg='$svg'" tools/planner/memory.gnuplot && echo "drew $svg" ;;
esac
