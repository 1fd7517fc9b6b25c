# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# A plan, and the published runs beside the planner's predictions.
planner=tools/planner
$planner/figure.sh $planner/plan.svg build/cpu/plan --model 8b --gpus 64
build/cpu/plan --runs $planner/playbook_runs.csv --predictions "$work/runs" >/dev/null
# 8B with micro-batches of 1 on 16 nodes: the grid, GiB measured, GiB predicted
awk -F, '$1 == "8B" && $2 == 16 && $3 == 1 && $9 == 1 && $8 <= 8 {
    printf "\"tp %d, pp %d, dp %d\" %s %s\n", $8, $7, $6, $13, $15 }' "$work/runs" >"$work/memory"
# per model and number of nodes: tokens/s of the fastest run, of the one predicted to be fastest, its prediction
for model in 1B 3B 8B 80B; do
    awk -F, -v model=$model '$1 == model {
        if ($11 > best[$2]) best[$2] = $11
        if ($14 > predicted[$2]) { predicted[$2] = $14; measured[$2] = $11 }
    } END { for (n in best) print n, best[n], measured[n], predicted[n] }' "$work/runs" |
        sort -n >"$work/best_$model"
done
gnuplot -e "work='$work'" $planner/published.gnuplot
echo "drew $planner/published.svg"
