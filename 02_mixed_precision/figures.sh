# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# Losses on the same batches in each type: step, mean of 25 losses, difference from fp32's. A loss scale below 1 has the
# effect of a larger batch, whose mean scales each token's gradient down.
program=build/cpu/02_mixed_precision
while read -r name options; do
    echo "02_mixed_precision $options"
    $program --preset small --seq 64 --accumulate 1 --steps 1000 --lr 3e-4 --threads 1 --quiet $options \
        --metrics "$work/metrics"
    awk -F, 'NR > 1 { sum += $3; if ($1 % 25 == 0) { print $1 - 12, sum / 25; sum = 0 } }' "$work/metrics" \
        >"$work/one"
    rm "$work/metrics"
    [ "$name" = fp32 ] && cp "$work/one" "$work/base"
    paste -d " " "$work/one" "$work/base" | awk '{ print $1, $2, $2 - $4 }' >"$work/loss_$name"
    tail -1 "$work/loss_$name"
done <<END
fp32 --dtype fp32
bf16 --dtype bf16
bf16_alone --dtype bf16 --master none
fp16 --dtype fp16
fp16_unscaled --dtype fp16 --loss-scale 0.0009765625 --loss-scale-growth 0
fp8 --dtype fp8
fp8_tile --dtype fp8 --fp8-scaling tile
fp8_mx --dtype fp8 --fp8-scaling mx
END
# Errors of a product whose input has one outlier.
make --no-print-directory build/cpu/test_formats
build/cpu/test_formats | awk '$1 == "outlier" { print $2, $4, $6, $8, $10 }' >"$work/outlier"
for figure in losses outlier; do
    gnuplot -e "work='$work'" 02_mixed_precision/$figure.gnuplot
    echo "drew 02_mixed_precision/$figure.svg"
done
