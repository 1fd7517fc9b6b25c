#!/usr/bin/env bash
# gpu_references.sh DIR BUILD: writes into DIR what gpu_day.sh compares a GPU's results with: gradients from one process
# in double, and the losses of small types from the CPU in float. BUILD has cpu/ and cpu64/.
set -euo pipefail
dir=$1 build=$2
small="--layers 8 --hidden 64 --heads 8 --vocab 256 --seq 48 --micro-batch 4 --accumulate 2 --quiet"
long="--layers 2 --hidden 128 --vocab 256 --seq 300 --micro-batch 2 --accumulate 1 --steps 1 --quiet"

mkdir -p "$dir"
"$build/cpu64/01_single_gpu" $small --steps 1 --dump-gradients "$dir/01.safetensors"
"$build/cpu64/10_expert_parallel" $small --steps 1 --span 12 --dump-gradients "$dir/10.safetensors"
"$build/cpu64/12_llama" $small --steps 1 --kv-heads 2 --dump-gradients "$dir/12.safetensors"
for heads in 2 1; do                    # of 64 and of 128
    "$build/cpu64/01_single_gpu" $long --heads $heads --dump-gradients "$dir/$((128 / heads)).safetensors"
done
for program in 02_mixed_precision 08_fused_kernels; do
    for dtype in fp32 bf16 fp16 fp8 "fp8 --fp8-scaling tile --seq 64"; do
        metrics=$dir/${program%%_*}_$(echo "$dtype" | tr -d ' -').csv
        rm -f "$metrics"
        "$build/cpu/$program" $small --hidden 128 --steps 3 --dtype $dtype --metrics "$metrics"
    done
done
