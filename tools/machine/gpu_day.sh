#!/bin/sh
# gpu_day.sh BACKEND GPUS REPORT: the first checks on a machine with GPUs, for somebody who has it for half an hour.
# Short checks come first, so that each is tried before the long ones begin. The report has each command, what it should
# print, the end of what it printed, its status and seconds; N.txt beside it has all that check N printed. A check that
# fails stops nothing, and one that hangs is ended. A status of 0 is all that the script judges: read what was printed
# beside what should be. BACKEND is the build's directory: cuda; or simulated, where each run is short: that tests this
# script.
set -u
backend=$1 gpus=$2 report=$3
build=build/$backend out=$(dirname "$report")
make="make -j$(nproc)"                  # without -j it has one job: the make that started this script shares none
mkdir -p "$out"
: >"$report"

if [ "$backend" = simulated ]; then
    size="--layers 2 --hidden 32 --heads 2 --seq 16 --vocab 256 --micro-batch 1" starts=1 tokens="16 32"
    make="echo left out on the simulated GPU: make"
else
    size="--preset 10m --timeout 60" starts=50 tokens="8192 16384 32768"
fi

# check WHAT EXPECTED COMMAND [SECONDS]
began_all=$(date +%s) number=0 failed=""
check() {
    began=$(date +%s) number=$((number + 1))
    printf '\n== %s\n   minute %d, should print: %s\n   $ %s\n' "$1" $(((began - began_all) / 60)) "$2" "$3" |
        tee -a "$report"
    timeout -k 10 "${4-200}" sh -c "$3" </dev/null >"$out/$number.txt" 2>&1
    status=$?
    tail -n 60 "$out/$number.txt" >>"$report"
    echo "   status $status, $(($(date +%s) - began)) seconds" | tee -a "$report"
    [ $status = 0 ] || failed="$failed
  $number.txt: $1"
}

check "this machine" "the GPUs, NVLink between them (NV18), NCCL ok, 200 MB of /dev/shm or more" \
    "$make check-machine; if [ $backend = cuda ]; then nvidia-smi; nvidia-smi topo -m; fi" 60
for dtype in fp32 bf16 fp16 fp8; do
    for program in 02_mixed_precision 08_fused_kernels; do
        check "$program in $dtype" "a loss that falls" "$build/$program $size --dtype $dtype --steps 3"
    done
done
check "matmuls in fp8" "FAST_ACCUM with E4M3 by E4M3 only" \
    "CUBLASLT_LOG_LEVEL=2 $build/02_mixed_precision $size --dtype fp8 --steps 1 --quiet"
check "two equal runs" "nothing from cmp" \
    "for i in 1 2; do $build/01_single_gpu $size --steps 2 --quiet --dump-gradients $out/\$i.safetensors || exit 1; done
        cmp $out/1.safetensors $out/2.safetensors"
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
        check "$program over NCCL and MPI" "equal losses" \
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
    check "a GPU per rank, by CUDA_VISIBLE_DEVICES" "comm NCCL" \
        "mpiexec -n 1 env CUDA_VISIBLE_DEVICES=0 SIMULATED_VISIBLE_DEVICES=0 $build/03_data_parallel $size --steps 1 : \
            -n 1 env CUDA_VISIBLE_DEVICES=1 SIMULATED_VISIBLE_DEVICES=1 $build/03_data_parallel $size --steps 1"
    for options in "--sync naive" "--sync overlap" "--sync overlap --comm mpi"; do
        check "03 $options" "overlap: more tokens/s than naive, and than over MPI" \
            "mpiexec -n $gpus $build/03_data_parallel $size $options --steps 5"
    done
    check "09, whose all-reduce overlaps" "tokens/s, to compare with 03" \
        "mpiexec -n $gpus $build/09_combined $size --steps 5"
    check "all-reduce of nccl-tests" "busbw, to compare with the report of 03's all_reduce" \
        "if command -v all_reduce_perf; then all_reduce_perf -b 8M -e 256M -f 2 -g $gpus
            else echo all_reduce_perf is not installed; fi"
fi

check "launches and gaps of three steps" "few gaps between kernels; no cudaMalloc in steps" \
    "if [ $backend = simulated ]; then SIMULATED_COUNTS=calls $build/01_single_gpu $size --steps 3 --quiet
        elif command -v nsys; then nsys profile --stats=true --force-overwrite true -o $out/steps \
            $build/01_single_gpu $size --steps 3 --quiet
        else echo nsys is not installed; fi"
check "operators and gradients" "PASSED, with no test FAILED" "$make test-cuda" 600
if [ "$gpus" -ge 2 ]; then
    for schedule in afab 1f1b "interleaved --chunks 2" zero-bubble zb-v dualpipe-v; do
        check "$starts cold starts of $schedule" "no rank that waits (--timeout)" \
            "end=\$((\$(date +%s) + 90))
            for i in \$(seq $starts); do [ \$(date +%s) -lt \$end ] || break
                mpiexec -n $gpus $build/06_pipeline_parallel $size --layers $((2 * gpus)) \
                    --accumulate $((2 * gpus)) --schedule $schedule --steps 2 --quiet --timeout 60 || exit 1
                echo start \$i is well; done"
    done
fi
check "speed of the operators" "a bandwidth near the datasheet's" "$make bench-cuda" 600
check "speed beside PyTorch" "01 not slower than PyTorch without compile" \
    "if python3 -c 'import torch, numpy, safetensors'; then $make bench-torch
        else echo torch, numpy or safetensors is not installed; fi" 600
printf '\nfailed:%s\n' "${failed:- none}" | tee -a "$report"
