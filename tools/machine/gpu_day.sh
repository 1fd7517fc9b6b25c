#!/bin/sh
# gpu_day.sh BACKEND GPUS REPORT: the first checks on a machine with GPUs, in the order in which a mistake is found
# soonest. The report has each command, what it should print, what it printed, its status and seconds. A check that
# fails stops nothing. A status of 0 is all that the script judges: read what was printed beside what should be. BACKEND
# is the build's directory: cuda; or simulated, where each run is short: that tests this script.
set -u
backend=$1 gpus=$2 report=$3
build=build/$backend out=$(dirname "$report")
mkdir -p "$out"
: >"$report"

if [ "$backend" = simulated ]; then
    size="--layers 2 --hidden 32 --heads 2 --seq 16 --vocab 256 --micro-batch 1" starts=1 tokens="16 32"
    make() { echo "(left out on the simulated GPU: make $*)"; }
else
    size="--preset 10m" starts=50 tokens="8192 16384 32768"
fi

# check WHAT EXPECTED COMMAND
check() {
    printf '\n== %s\n   should print: %s\n   $ %s\n' "$1" "$2" "$3" | tee -a "$report"
    began=$(date +%s)
    (eval "$3") </dev/null >"$out/printed" 2>&1
    status=$?
    tail -n 60 "$out/printed" >>"$report"
    echo "   status $status, $(($(date +%s) - began)) seconds" | tee -a "$report"
    [ $status = 0 ] || failed="$failed
  $1"
}
failed=""

check "build, operators and gradients" "PASSED, with no test FAILED" "make cuda test-cuda"
for dtype in fp32 bf16 fp16 fp8; do
    for program in 02_mixed_precision 08_fused_kernels; do
        check "$program in $dtype" "a loss that falls; in fp8 FAST_ACCUM with E4M3 by E4M3 only" \
            "CUBLASLT_LOG_LEVEL=2 $build/$program $size --dtype $dtype --steps 3"
    done
done
check "two equal runs" "nothing from cmp" \
    "for i in 1 2; do $build/01_single_gpu $size --steps 2 --quiet --dump-gradients $out/\$i.safetensors || exit 1; done
        cmp $out/1.safetensors $out/2.safetensors"
check "speed of the operators" "a bandwidth near the datasheet's" "make bench-cuda"
check "speed beside PyTorch" "01 not slower than PyTorch without compile" "make bench-torch"
check "launches and gaps of three steps" "few gaps between kernels; no cudaMalloc in steps" \
    "if [ $backend = simulated ]; then SIMULATED_COUNTS=calls $build/01_single_gpu $size --steps 3 --quiet
        elif command -v nsys; then nsys profile --stats=true --force-overwrite true -o $out/steps \
            $build/01_single_gpu $size --steps 3 --quiet
        else echo nsys is not installed; fi"
for n in $tokens; do
    check "memory of $n tokens" "workspace measured = predicted" \
        "$build/08_fused_kernels $size --seq $n --micro-batch 1 --steps 1"
done
check "eight ranks on one GPU" "comm MPI, as NCCL needs a GPU for each rank; memory that fits" \
    "CUDA_VISIBLE_DEVICES=0 SIMULATED_GPUS=1 mpiexec -n 8 $build/03_data_parallel $size --steps 1"

if [ "$gpus" -lt 2 ]; then
    echo "one GPU: what needs several is left out" | tee -a "$report"
else
    while read -r program options; do
        check "$program over NCCL and MPI" "equal losses; NCCL's is faster" \
            "for comm in nccl mpi; do mpiexec -n $gpus $build/$program $size $options --steps 2 --check --comm \$comm \
                --quiet --metrics $out/\$comm.csv || exit 1; done
            cut -d, -f1-4 $out/nccl.csv $out/mpi.csv"
    done <<END
        03_data_parallel --sync overlap
        04_zero --zero 3
        05_tensor_parallel --heads $gpus
        06_pipeline_parallel --layers $gpus
        07_context_parallel --attention ring
        09_combined --dtype fp32 --pp 2 --layers 2
        10_expert_parallel --ep 2
END
    for schedule in afab 1f1b "interleaved --chunks 2" zero-bubble zb-v dualpipe-v; do
        check "$starts cold starts of $schedule" "no rank that waits (--timeout)" \
            "for i in \$(seq $starts); do mpiexec -n $gpus $build/06_pipeline_parallel $size --layers $((2 * gpus)) \
                --accumulate $((2 * gpus)) --schedule $schedule --steps 2 --quiet --timeout 60 || exit 1; done"
    done
    check "a GPU per rank, by CUDA_VISIBLE_DEVICES" "comm NCCL" \
        "mpiexec -n 1 env CUDA_VISIBLE_DEVICES=0 SIMULATED_VISIBLE_DEVICES=0 $build/03_data_parallel $size --steps 1 : \
            -n 1 env CUDA_VISIBLE_DEVICES=1 SIMULATED_VISIBLE_DEVICES=1 $build/03_data_parallel $size --steps 1"
    for sync in naive overlap; do
        check "03 --sync $sync" "overlap: more tokens/s than naive" \
            "mpiexec -n $gpus $build/03_data_parallel $size --sync $sync --steps 5"
    done
    check "09, whose all-reduce overlaps" "tokens/s, to compare with 03" \
        "mpiexec -n $gpus $build/09_combined $size --steps 5"
    check "all-reduce of nccl-tests" "busbw, to compare with the report of 03's all_reduce" \
        "if command -v all_reduce_perf; then all_reduce_perf -b 8M -e 256M -f 2 -g $gpus
            else echo all_reduce_perf is not installed; fi"
fi
printf '\nfailed:%s\n' "${failed:- none}" | tee -a "$report"
