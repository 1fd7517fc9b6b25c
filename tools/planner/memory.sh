#!/bin/sh
# Draws what the first page asks: what each technique makes of the 144 GB of Llama 3 8B on 64 GPUs.
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
    "$plan" --model llama3-8b --gpus 64 --batch 512K --explain "$3" >"$work/explained"
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
room=$(awk '/^  total .* fit$/ {print $(NF - 1) * 2 ^ 30 / 1e9}' "$work/explained")      # GB
row 04 "ZeRO-1" dp=64,zero=1
row 04 "ZeRO-3" dp=64,zero=3
row 06 "pipeline, over 8 GPUs" pp=8,dp=8,zero=0
row 05 "tensor, over 8 GPUs" tp=8,dp=8,zero=0
row 09 "both, over 64 GPUs" tp=8,pp=8,zero=0

case ${1-} in
--check)
    cut -d '"' -f 4,6 "$work/rows" | tr '"' '\n' | while read -r label; do
        grep -qF -- ">$label<" "$svg" ||
            { echo "$svg: does not say \"$label\"; \"tools/workshop/figures.sh planner\" renews it"; exit 1; }
    done
    # says WORDS OPTION...: WORDS, in which the seconds of a step and of its bubble stand for @ and BUBBLE.
    says() {
        words=$1
        shift
        "$plan" "$@" | awk -v words="$words" '
            /^  bubble .* s  / {sub("BUBBLE", sprintf("%.1f", $2), words)}
            /^  total .* s  / {sub("@", sprintf($2 < 10 ? "%.2f s" : "%.0f s", $2), words); print words}'
    }
    small="--model llama3-8b --batch 512K" large="--model llama3-70b --batch 4M --gpus 64"
    alone="--tp 1 --cp 1 --pp 1 --zero 3 --explain best"
    both="@ (tensor parallelism over 8, a pipeline over 2, ZeRO-1"
    {
        says "@ (ZeRO-3)" $small --gpus 64 $alone
        says "@ (ZeRO-3)" $large $alone
        for grid in best tp=8,pp=2,zero=1,chunks=16; do         # the page names the best grid
            says "$both" $small --gpus 512 --explain $grid
        done
        for grid in best tp=8,pp=2,zero=1; do
            says "$both" $large --explain $grid
        done
        says "finds takes @: ZeRO-1" $small --gpus 64 --explain dp=64,zero=1,recompute=selective
        "$plan" $small --gpus 64 | awk -F '|' 'NF == 3 && $2 ~ /[0-9] *$/ {
            n = split($2, column, " "); least = !least || column[n] < least ? column[n] : least}
            END {printf "finds takes %.2f s\n", least}'
        says "8 sequences at a time takes @" $small --gpus 64 --explain tp=8,dp=8,zero=0,micro-batch=8
        says "interleaved chunks @" $small --gpus 64 --explain pp=8,dp=8,zero=0,chunks=4
        says "in all BUBBLE of @" $small --gpus 64 --explain pp=8,dp=8,zero=0
        echo "room for $(printf %.0f "$room") GB"
        "$plan" $small --gpus 64 | tr '\n' ' ' |
            sed -E 's/.*(by less than [0-9.]+%), (nine in ten by less than [0-9.]+%).*/\1, and \2/'
        echo
        "$plan" --runs tools/planner/playbook_runs.csv | awk '/^all that count/ {
            printf "%d runs with nanotron, half of the predicted speeds are off by less than %d%% ", $4, $5 + 1
            printf "(some are far off), and half of the memory sizes by less than %d%%\n", $7 + 1}'
    } | while read -r words; do
        tr -s '\n ' ' ' <README.md | grep -qF -- "$words" || { echo "README.md: does not say \"$words\""; exit 1; }
    done ;;
*) gnuplot -e "work='$work'; svg='$svg'; room=$room" tools/planner/memory.gnuplot && echo "drew $svg" ;;
esac
