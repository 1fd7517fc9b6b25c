#!/bin/sh
# One real model through all chapters: Llama 3 70B on 64 H100s. Between <!-- journey --> and <!-- /journey --> each
# README has the rows of the chapters so far. The planner computes memory and seconds; what a GPU sends follows from the
# chapters' formulas.
#   journey.sh --update    writes the tables
#   journey.sh --check     fails if a table is out of date
set -eu
cd "$(dirname "$0")/../.."
plan=${PLAN:-build/cpu/plan}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# row CHAPTER WORDS GRID SENT STORED [OPTION...]: adds a chapter's row. SENT is what a GPU sends per step, and STORED
# what it stores besides what the planner counts, in bytes: expressions in the letters of NOTATION.md (h, s, L, f, v: of
# the model), in k(n) = (n-1)/n, in kv, the elements of a token's k, and in N and X, all parameters of the dense model
# and those of the mixture's experts.
row() {
    chapter=$1 words=$2 grid=$3 sent=$4 stored=$5
    shift 5
    "$plan" --model llama3-70b --gpus 64 --batch 4M "$@" --explain "$grid" >"$dir/explained"
    numbers=$(awk '
        function k(n) {return (n - 1) / n}
        function text(x) {
            x = sprintf(x < 10 ? "%.1f" : "%.0f", x)
            return length(x) > 3 ? substr(x, 1, length(x) - 3) "," substr(x, length(x) - 2) : x
        }
        function gib(x) {return text(x / 2 ^ 30)}
        {number = $2; gsub(",", "", number)}
        $3 ~ /^bytes/ {bytes[$1] = number}
        /^  total .* fit$/ {limit = $(NF - 1) * 2 ^ 30}
        /^  [a-z]+ .* (us|ms|s)  / {seconds[$1] = $2 / ($3 == "us" ? 1e6 : $3 == "ms" ? 1e3 : 1)}
        END {
            L = 80; h = s = 8192; f = 28672; v = 128256; kv = 1024
            X = L * 8 * 3 * h * f / 2
            N = 2 * h * v + L * (2 * h * h + 2 * h * kv + 3 * h * f + 2 * h) + h
            sent = '"$sent"'; stored = '"$stored"'
            states = bytes["parameters"] + bytes["master"] + bytes["gradients"] + bytes["optimizer"]
            waits = seconds["tensor"] + seconds["context"] + seconds["experts"] + seconds["bubble"] + seconds["data"]
            total = bytes["total"] + stored
            print gib(states), "|", gib(bytes["activations"] + stored), "|", gib(total), "|",
                (sent ? text(sent / 1e9) : "-"), "|",
                (total > limit ? "too large |" : text(seconds["total"]) " | " text(waits))
        }' "$dir/explained")
    echo "| [$chapter](../$(echo "$chapter"_*)/README.md) | $words | $numbers |" >>"$dir/$chapter"
}

mixture="--experts 8 --top-k 2 --expert-width 14336"
row 01 "one GPU, fp32" dp=1 0 0 --gpus 1 --dtype fp32
row 02 "one GPU, bf16" dp=1 0 0 --gpus 1
row 03 "dp 64" dp=64,zero=0 "2 * k(64) * 4 * N" 0
row 04 "dp 64, ZeRO-3" dp=64,zero=3 "8 * (2 + 2 + 4) * N * k(64)" 0
row 04 "the same, all blocks recomputed" dp=64,zero=3,recompute=full "8 * (2 + 2 + 4) * N * k(64)" 0
row 05 "tp 8, dp 8, ZeRO-1" tp=8,dp=8,zero=1 "64 * (10 * L + 5) * s * h * 2 * k(8) + (4 + 2) * N / 8 * k(8)" 0
row 06 "pp 16, dp 4, ZeRO-1, recomputed" pp=16,dp=4,zero=1,recompute=full \
    "128 * 2 * s * h * 2 + (4 + 2) * N / 16 * k(4)" 0
row 07 "cp 8, dp 8, ZeRO-3" cp=8,dp=8,zero=3 \
    "64 * (L * (3 * 8 - 2) * 2 * s / 8 * kv * 2 + (2 + 2 + 4) * N * k(64))" 0
row 07 "the same, recomputed, for 131,072 tokens" cp=8,dp=8,zero=3,recompute=full \
    "4 * (L * (4 * 8 - 3) * 2 * 16 * s / 8 * kv * 2 + (2 + 2 + 4) * N * k(64))" 0 --seq 128K
row 08 "the grid of 05, without FlashAttention" tp=8,dp=8,zero=1 \
    "64 * (10 * L + 5) * s * h * 2 * k(8) + (4 + 2) * N / 8 * k(8)" "2 * L * 64 / 8 * s * s"
row 09 "tp 8, pp 2, dp 4, ZeRO-1" tp=8,pp=2,dp=4,zero=1 \
    "128 * ((10 * L / 2 + 2) * s * h * 2 * k(8) + s / 8 * h * 2) + (4 + 2) * N / 16 * k(4)" 0
row 10 "240B, a mixture: ep 8, dp 64, ZeRO-3, recomputed" ep=8,dp=64,zero=3,recompute=full \
    "8 * (L * (4 + 2) * 2 * s * h * 2 * k(8) + (2 + 2 + 4) * ((N - X / 4) * k(64) + X / 8 * k(8)))" 0 $mixture
row 11 "240B: tp 4, pp 8 in 10 chunks, dp 2, ep 8, ZeRO-1, recomputed" \
    tp=4,pp=8,dp=2,ep=8,micro-batch=2,chunks=10,zero=1,recompute=full \
    "128 * L / 8 * ((7 * k(4) + (4 + 2) * 2 / 4 * k(8)) * 2 * s * h * 2 + 2 * 2 * s / 4 * h * 2) \
    + (4 + 2) * (N - X / 4) / 32 * k(2)" 0 $mixture
row 12 "the grid of 09, with 64 heads of k and v" tp=8,pp=2,dp=4,zero=1 \
    "128 * ((10 * L / 2 + 2) * s * h * 2 * k(8) + s / 8 * h * 2) + (4 + 2) * (N + L * 2 * h * 7 * kv) / 16 * k(4)" 0 \
    --kv-heads 64

{
    echo '| | on 64 GPUs | states, GiB | activations, GiB | in all, GiB | sends, GB | a step, s | of it waits, s |'
    echo '|---|---|--:|--:|--:|--:|--:|--:|'
} >"$dir/table"
status=0
for chapter in 01 02 03 04 05 06 07 08 09 10 11 12; do
    readme=$(echo "$chapter"_*/README.md)
    cat "$dir/$chapter" >>"$dir/table"
    awk -v table="$dir/table" '
        /^<!-- \/journey -->$/ {inside = 0}
        !inside
        /^<!-- journey -->$/ {inside = found = 1; while ((getline line <table) > 0) print line}
        END {exit !found || inside}' "$readme" >"$dir/renewed" ||
        { echo "$readme: expected <!-- journey -->, a table and <!-- /journey -->"; exit 1; }
    cmp -s "$dir/renewed" "$readme" && continue
    case ${1-} in
    --update) cp "$dir/renewed" "$readme" ;;
    *) echo "$readme: its table of Llama 3 70B is out of date; \"make journey\" renews it" && status=1 ;;
    esac
done
exit $status
