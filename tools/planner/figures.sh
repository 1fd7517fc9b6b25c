# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# A plan, the first page's figure, and the published runs of other programs beside the planner's predictions.
planner=tools/planner
$planner/figure.sh $planner/plan.svg build/cpu/plan --model llama3-70b --gpus 512 --batch 4M --cp 1
build/cpu/plan --published $planner/published_runs.csv --predictions "$work/predicted" >/dev/null
sed 's/"[^"]*"//g' "$work/predicted" | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    $at["counted"] != "no" && $at["published_tokens_per_second_per_gpu"] && $(NF - 1) {
    print $at["published_tokens_per_second_per_gpu"], $(NF - 1) }' >"$work/runs"
title=$(awk '{ near += $2 / $1 > 0.8 && $2 / $1 < 1.2 } END { print near " of " NR }' "$work/runs")
gnuplot -e "work='$work'; title='$title'" $planner/published.gnuplot
echo "drew $planner/published.svg"
$planner/memory.sh
