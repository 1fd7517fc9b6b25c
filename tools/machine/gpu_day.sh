#!/usr/bin/env bash
# gpu_day.sh SECONDS [SECTION...]: the first checks on a machine with GPUs, in the time that there is. A check that
# would not fit any more is left out, and a line says so. One that fails stops nothing, and one that hangs is ended.
# Sections, by value; without one, all:
#   start      the smallest runs, in every call; if 01 fails, nothing else is tried
#   prove      operators and gradients beside the CPU's; small types; equal runs; 03 to 12 on 8 ranks
#   several    with several GPUs: transfers over NCCL beside MPI, speed, cold starts of pipelines
#   speed      tokens/s and MFU of 01, 02, 08 and 12 with 124M and 1.3B parameters; operators; attention; the ladder
#   torch      08 beside a compiled PyTorch
#   more       the other schedules, ZeRO stages and kinds of attention; 00; memory; training
#   counters   what the largest kernels wait for, by Nsight Compute; launches and gaps, by Nsight Systems
#   sanitize   compute-sanitizer: memcheck, racecheck, initcheck, synccheck
# On one H100: start 3 s, prove 60, speed 220, torch 120, more 60, counters 30, sanitize 30.
#
# ONLY, a regular expression, chooses the checks after start whose names have it: ONLY=fp8.
#
# Run it in the root of the tree: `make gpu-day MINUTES=12` builds the programs, then calls it. For a machine with a GPU
# and CUDA's libraries, but without MPI or compilers, gpu_pack.sh makes PACK (build/gpu_pack) elsewhere. OUT
# (tests/bench/gpu/CARD, with the GPU's name) gets summary.txt, one screen; report.txt, all checks; and logs.tar.gz, all
# that they printed. SIMULATE=1 takes the simulated GPU, and small models.
set -u
all="start prove several speed torch more counters sanitize"
case ${1-} in '' | *[!0-9]*) echo "usage: gpu_day.sh SECONDS [SECTION...], of: $all"; exit 2 ;; esac
budget=$1
shift
for section in "$@"; do
    case " $all " in *" $section "*) ;; *) echo "gpu_day.sh: $section is none of: $all"; exit 2 ;; esac
done
sections=" start ${*:-$all} " root=$PWD pack=${PACK:-$PWD/build/gpu_pack} began=$(date +%s) tmp=$(mktemp -d)
reference=$pack/reference backend=cuda
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ -z "${SIMULATE-}" ] || { backend=simulated gpus=4 card="simulated GPU"; }
[ "$gpus" -gt 0 ] || { echo "gpu_day.sh: nvidia-smi finds no GPU; SIMULATE=1 tries the checks without"; exit 1; }
out=${OUT:-$root/$([ -n "${SIMULATE-}" ] && echo build/gpu_day || echo tests/bench/gpu/${card// /-})}
logs=$out/logs report=$out/report.txt
mkdir -p "$logs" || exit 1
: >"$report"

say() { printf '%s\n' "$*" | tee -a "$report"; }
left() { echo $((budget + began - $(date +%s))); }
wants() {
    section=$1
    case $sections in *" $1 "*) passed[$1]=0 failed[$1]="" omitted[$1]="" ;; *) false ;; esac
}
declare -A passed failed omitted

# check NAME EXPECTED_SECONDS COMMAND: runs it, unless too little time is left. The lines that $show chooses (a sed
# script), the last $lines of them, are printed; if it fails, so are its last ones. With $keep they are in the summary.
check() {
    local name=$1 expected=$2 status begin limit
    shift 2
    [[ $section = start || $name =~ ${ONLY-} ]] || return 1
    limit=$(left) begin=$(date +%s)
    if [ "$limit" -lt "$expected" ]; then
        say "-- $name: left out, it needs $expected s and $limit s are left"
        omitted[$section]+=" $name"
        return 1
    fi
    [ -n "${SIMULATE-}" ] || [ "$limit" -lt $((4 * expected + 30)) ] || limit=$((4 * expected + 30))
    printf '$ %s\n' "$(printf %s "$*" | tr -s ' \n' ' ')" >"$logs/$name.txt"
    timeout -k 5 "$limit" bash -c "$*" </dev/null >>"$logs/$name.txt" 2>&1
    status=$?
    say "== $name: status $status, $(($(date +%s) - begin)) s (expected $expected)"
    sed -n "1d;${show-\$p}" "$logs/$name.txt" | cut -c1-240 | tail -n "${lines-12}" >"$tmp/shown"
    tee -a "$report" <"$tmp/shown"
    [ -z "${keep-}" ] || sed "s/^[0-9][^:]*: //; s/^ */$name: /" "$tmp/shown" >>"$tmp/kept"
    if [ $status = 0 ]; then
        passed[$section]=$((passed[$section] + 1))
    else
        failed[$section]+=" $name"
        tail -n 5 "$logs/$name.txt" | tr -cd '\n -~' | cut -c1-240 | tee -a "$report"
    fi
    return $status
}
finish() {
    local all_failed=""
    {
        echo "$card, $(date +%F), commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown):" \
            "$((budget - $(left))) of $budget s"
        for section in $all; do
            [ -n "${passed[$section]-}" ] || continue
            [ "$(wc -w <<<"${omitted[$section]}")" -le 6 ] || omitted[$section]=" $(wc -w <<<"${omitted[$section]}")"
            printf '%-10s %3d passed, failed:%s, left out:%s\n' "$section" "${passed[$section]}" \
                "${failed[$section]:- none}" "${omitted[$section]:- none}"
        done
        cat "$tmp/kept" 2>/dev/null
    } >"$out/summary.txt"
    echo
    cat "$out/summary.txt"
    for section in $all; do all_failed+=${failed[$section]-}; done
    tar czf "$out/logs.tar.gz" -C "$out" logs
    rm -rf "$logs" "$tmp"
    [ -z "$all_failed" ]
    exit
}

# ---- the programs: of this tree, or of a pack: wrappers with the path of their libraries; PyTorch keeps its own ----
if [ ! -e "$pack/pack.tar.xz" ]; then
    bin=$root/build/$backend cpu=$root/build/cpu real=$bin real_cpu=$cpu with=""
    . tools/machine/open_mpi.sh
else
    bin=$tmp/bin cpu=$tmp/cpu real=$pack/pack/bin real_cpu=$pack/pack/cpu dirs=$pack/pack/lib
    mkdir -p "$bin" "$cpu"
    [ -d "$pack/pack" ] || tar xJf "$pack/pack.tar.xz" -C "$pack"
    libraries=libgomp.so.1
    [ -n "${SIMULATE-}" ] || libraries="libcublasLt.so.13 libcudart.so.13 libnccl.so.2 $libraries"
    for library in $libraries; do
        found=$(ldconfig -p | awk -v l="$library" '$1 == l {print $NF; exit}')
        [ -n "$found" ] || found=$(find /usr/local /opt /usr/lib -name "$library" 2>/dev/null | head -n 1)
        if [ -n "$found" ]; then dirs=$dirs:$(dirname "$found"); else say "no $library on this machine"; fi
    done
    with="env LD_LIBRARY_PATH=$dirs UCX_MODULE_DIR=$pack/pack/lib/ucx UCX_TLS=self,shm"
    wrap() { printf '#!/bin/sh\nexec %s %s "$@"\n' "$with" "$1" >"$2"; chmod +x "$2"; }
    for p in "$real"/[0-9]* "$real"/{ladder,parity}; do wrap "$p" "$bin/${p##*/}"; done
    for p in parity compare bench_cuda; do wrap "$real_cpu/$p" "$cpu/$p"; done
    wrap "$real/mpiexec.hydra" "$tmp/mpiexec"
    # hydra looks for its proxy in PATH, and for this machine's own name
    export PATH=$tmp:$real:$PATH HYDRA_LAUNCHER=fork
    grep -qs "$(hostname)" /etc/hosts || echo "127.0.0.1 $(hostname)" >>/etc/hosts
fi
export PATH=$PATH:/usr/local/cuda/bin

# ---- start ----
wants start
if [ -z "${SIMULATE-}" ]; then
    lines=40 show=p check machine 2 "nvidia-smi -L
        nvidia-smi --query-gpu=driver_version,clocks.max.sm,power.limit,memory.total --format=csv
        [ $gpus -lt 2 ] || nvidia-smi topo -m
        grep -m1 'model name' /proc/cpuinfo; nproc; ldd --version | sed -n 1p; df -h /dev/shm | tail -n 1
        ! $with ldd $real/08_fused_kernels $real/parity $real_cpu/parity | grep 'not found'" || finish
fi
show='/device\|step\|rror/p' check smoke 3 "$bin/01_single_gpu --preset tiny --steps 3" || finish
check fused 2 "$bin/08_fused_kernels --preset tiny --steps 3"

# ---- prove ----
differences='/differ\|agree\|rror/p'
small="--layers 8 --hidden 64 --heads 8 --vocab 256 --seq 48 --steps 1 --quiet --check --tf32 off"
long="--layers 2 --hidden 128 --vocab 256 --seq 300 --micro-batch 2 --accumulate 1 --steps 1 --quiet --tf32 off"
alone() {               # lines of: reference, heads, program, options
    while read -r to heads program options; do
        sizes="$small --micro-batch 4 --accumulate 2"
        [ "$heads" = 8 ] || sizes="$long --heads $heads"
        show=$differences lines=3 check "alone_${program%%_*}_${to}_${options//[^a-z0-9]/}" 2 "$bin/$program $sizes \
            $options --dump-gradients $tmp/g && $cpu/compare $reference/$to.safetensors $tmp/g 1e-5 $heads"
    done
}
together() {            # lines of: reference, ranks, program, options. MPI, since NCCL needs a GPU for each rank
    while read -r to ranks program options; do
        show=$differences lines=3 check "together_${program%%_*}_${ranks}_${options//[^a-z0-9]/}" 3 "mpiexec -n $ranks \
            $bin/$program $small --comm mpi --threads 1 $options --dump-gradients $tmp/g &&
            $cpu/compare $reference/$to.safetensors $tmp/g 1e-5 8"
    done
}
cat >"$tmp/losses.py" <<'PY'
import csv, sys
a, b = (list(csv.DictReader(open(f)))[:int(sys.argv[3])] for f in sys.argv[1:3])
loss, norm = (max(abs(float(x[k]) / float(y[k]) - 1) for x, y in zip(a, b)) for k in ("loss", "grad_norm"))
print(f"{len(a)} losses differ by {loss:.1e} (1e-3), norms by {norm:.1e} (1e-2)")
sys.exit(not (loss <= 1e-3 and norm <= 1e-2))
PY
if wants prove; then
    if lines=1 check operators_gpu 4 "cd $tmp && $bin/parity tested 0"; then
        # the CPU compares while the GPU goes on
        (cd "$tmp" && timeout 300 "$cpu/parity" reference "$(tail -n 1 "$logs/operators_gpu.txt")" tested \
            >"$tmp/compared" 2>&1 || echo "operators differ" >>"$tmp/compared") &
        comparing=$!
    fi
    for size in 1 100x37x129 300x270x70 520x512x64; do
        check "ladder_$size" 1 "$bin/ladder --size $size --seconds 0 --copy 1"
    done
    twice=$([ -n "${SIMULATE-}" ] && echo tiny || echo 10m)
    check equal_runs 2 "cd $tmp; for i in 1 2; do $bin/08_fused_kernels --preset $twice --steps 2 --quiet \
        --dump-gradients \$i.g --metrics \$i.csv || exit 1; cut -d, -f3,4 \$i.csv >\$i.losses; done
        cmp 1.g 2.g && cmp 1.losses 2.losses && echo equal bit for bit"
    for dtype in fp32 bf16 fp16 fp8 "fp8 --fp8-scaling tile --seq 64"; do
        for p in 02_mixed_precision 08_fused_kernels; do
            steps=$([ "${dtype%% *}" = fp8 ] && echo 2 || echo 3) name=${p%%_*}_$(echo "$dtype" | tr -d ' -')
            show=$differences lines=3 check "$name" 2 "rm -f $tmp/m.csv; $bin/$p $small --hidden 128 \
                --steps 3 --dtype $dtype --micro-batch 4 --accumulate 2 --metrics $tmp/m.csv &&
                python3 $tmp/losses.py $tmp/m.csv $reference/$name.csv $steps"
        done
    done
    alone <<END
        01 8 01_single_gpu
        01 8 01_single_gpu --recompute full
        01 8 01_single_gpu --recompute selective
        01 8 02_mixed_precision --dtype fp32
        01 8 08_fused_kernels --dtype fp32 --fuse all
        01 8 09_combined --dtype fp32
        10 8 10_expert_parallel --span 12
        12 8 12_llama --kv-heads 2
        64 2 01_single_gpu
        64 2 08_fused_kernels --dtype fp32 --fuse all
        128 1 01_single_gpu
        128 1 08_fused_kernels --dtype fp32 --fuse all
END
    together <<END
        01 8 03_data_parallel --sync overlap --micro-batch 1 --accumulate 1
        01 8 04_zero --zero 3 --micro-batch 1 --accumulate 1
        01 8 05_tensor_parallel --sequence-parallel --micro-batch 4 --accumulate 2
        01 8 06_pipeline_parallel --schedule 1f1b --micro-batch 4 --accumulate 2
        01 8 07_context_parallel --attention ring --micro-batch 4 --accumulate 2
        01 8 09_combined --dtype fp32 --tp 2 --pp 2 --cp 2 --micro-batch 4 --accumulate 2
        10 8 10_expert_parallel --ep 4 --span 12 --micro-batch 1 --accumulate 1
        10 8 11_five_dimensions --dtype fp32 --tp 2 --pp 2 --cp 2 --ep 4 --span 12 --micro-batch 4 --accumulate 2
        12 8 12_llama --kv-heads 2 --sequence-parallel --overlap --micro-batch 4 --accumulate 2
END
fi

# ---- several GPUs ----
if [ -n "${SIMULATE-}" ]; then
    model="--layers 2 --hidden 32 --heads 2 --seq 16 --vocab 256 --micro-batch 1" starts=1 lengths="16 32"
else
    model="--preset 10m --timeout 60" starts=50 lengths="8192 16384 32768"
fi
if wants several && [ "$gpus" -lt 2 ]; then
    say "-- several: left out, there is one GPU"
    omitted[several]=" all, there is one GPU"
elif wants several; then
    while read -r program options; do
        options="$model $options"
        [ $program != 12_llama ] || options=${options/10m/small}        # it has no 10m
        show=$differences check "nccl_${program%%_*}" 15 "for comm in nccl mpi; do rm -f $tmp/\$comm.csv
                mpiexec -n $gpus $bin/$program $options --steps 2 --check --comm \$comm --quiet \
                    --metrics $tmp/\$comm.csv || exit 1; done
            python3 $tmp/losses.py $tmp/nccl.csv $tmp/mpi.csv 2"
    done <<END
        03_data_parallel --sync overlap
        04_zero --zero 3
        05_tensor_parallel --heads $gpus
        06_pipeline_parallel --layers $gpus
        07_context_parallel --attention ring
        09_combined --dtype fp32 --pp 2 --layers 2
        10_expert_parallel --ep 2
        12_llama --heads $gpus --overlap --sequence-parallel
END
    show='/^comm /p' check a_gpu_per_rank 8 "mpiexec \
            -n 1 env CUDA_VISIBLE_DEVICES=0 SIMULATED_VISIBLE_DEVICES=0 $bin/03_data_parallel $model --steps 1 : \
            -n 1 env CUDA_VISIBLE_DEVICES=1 SIMULATED_VISIBLE_DEVICES=1 $bin/03_data_parallel $model --steps 1 \
            >$tmp/o 2>&1; status=\$?; cat $tmp/o; grep -q 'comm    NCCL' $tmp/o && exit \$status"
    while read -r name program options; do
        keep=1 show='/^step.*tokens/p' lines=1 check "$name" 8 \
            "mpiexec -n $gpus $bin/$program $model $options --steps 5"
    done <<END
        naive_nccl 03_data_parallel --sync naive
        overlap_nccl 03_data_parallel --sync overlap
        overlap_mpi 03_data_parallel --sync overlap --comm mpi
        combined_nccl 09_combined
END
    if command -v all_reduce_perf >/dev/null; then
        lines=12 show=p check all_reduce_perf 20 "all_reduce_perf -b 8M -e 256M -f 2 -g $gpus"
    else
        say "-- all_reduce_perf: left out, nccl-tests are not installed"
    fi
    for schedule in afab 1f1b "interleaved --chunks 2" zero-bubble zb-v dualpipe-v; do
        check "cold_${schedule%% *}" 20 "end=\$((\$(date +%s) + 90))
            for i in \$(seq $starts); do [ \$(date +%s) -lt \$end ] || break
                mpiexec -n $gpus $bin/06_pipeline_parallel $model --layers $((2 * gpus)) --accumulate $((2 * gpus)) \
                    --schedule $schedule --steps 2 --quiet --timeout 60 || exit 1
                echo start \$i is well; done"
    done
fi

# ---- speed ----
speed() {               # NAME EXPECTED_SECONDS WHAT COMMAND, as in bench_cuda
    local name=$1 expected=$2 what=$3
    shift 3
    show=p lines=24 check "$name" "$expected" "$cpu/bench_cuda $bin $what '$*'"
}
if [ -n "${SIMULATE-}" ]; then
    big="--preset tiny --layers 1 --hidden 32 --heads 2 --seq 16" little=$big llama=$big ladder=32 heads="64 1 64 1"
    tile="--hidden 128 --seq 64 --fp8-scaling tile"
else
    big="--preset 1.3b" little="--preset 124m" llama="--preset llama3.2-1b" ladder=4096 tile="--fp8-scaling tile"
    heads="128 16 2048 8
        64 32 2048 8
        128 16 8192 2
        64 32 8192 2
        64 12 1024 4"
fi
if wants speed; then
    keep=1
    speed 08_1.3b 16 speed 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 7
    keep="" speed 08_1.3b_operators 13 operators 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 4
    speed 01_1.3b 14 speed 01_single_gpu $big --accumulate 4 --steps 4
    speed 12_1b 14 speed 12_llama $llama --micro-batch 2 --accumulate 4 --steps 4
    speed 08_124m 3 speed 08_fused_kernels $little --steps 12
    speed 08_124m_mb32 3 speed 08_fused_kernels $little --micro-batch 32 --accumulate 1 --steps 12
    keep="" speed 08_124m_operators 3 operators 08_fused_kernels $little --micro-batch 32 --accumulate 1 --steps 8
    while read -r size count tokens sequences; do
        speed "attention_${size}_${tokens}_$sequences" 3 flash 08_fused_kernels --layers 4 --hidden $((size * count)) \
            --heads "$count" --seq "$tokens" --micro-batch "$sequences" --accumulate 1 --vocab 256 --steps 6
    done <<<"$heads"
    speed 02_1.3b 14 speed 02_mixed_precision $big --steps 4
    speed 08_1.3b_fp8 15 speed 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 5 --dtype fp8
    speed 08_1.3b_fp8_tile 15 speed 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 5 --dtype fp8 $tile
    speed 02_124m_bf16 3 speed 02_mixed_precision $little --steps 8
    speed 02_124m_fp8 3 speed 02_mixed_precision $little --steps 8 --dtype fp8
    speed 01_124m 3 speed 01_single_gpu $little --steps 6
    keep="" show='/[0-9]%/p' lines=20 check ladder 18 "$bin/ladder --size $ladder"
    speed 08_1.3b_mb2 14 speed 08_fused_kernels $big --steps 5
    speed 02_1.3b_fp8 14 speed 02_mixed_precision $big --steps 4 --dtype fp8
    keep=""
    speed 08_1.3b_fp8_operators 14 operators 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 4 --dtype fp8
    speed 08_1.3b_fp8_tile_operators 14 operators 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 4 \
        --dtype fp8 $tile
    speed 12_1b_operators 14 operators 12_llama $llama --micro-batch 2 --accumulate 4 --steps 4
fi

# ---- torch ----
if wants torch; then
    if [ -n "${SIMULATE-}" ] || ! python3 -c "import torch, numpy, safetensors" 2>/dev/null; then
        say "-- torch: left out, python3 has no torch, numpy or safetensors, or the GPU is simulated"
        omitted[torch]=" all"
    else
        keep=1 show=p lines=3 check torch 110 \
            "python3 tests/bench/bench_torch.py cuda --cases 8,6 --rounds 1 --steps 4 --programs $bin"
    fi
fi

# ---- more ----
if wants more; then
    check collectives 3 "mpiexec -n 8 $bin/00_collectives --verify --comm mpi"
    together <<END
        01 8 04_zero --zero 1 --micro-batch 1 --accumulate 1
        01 8 04_zero --zero 2 --micro-batch 1 --accumulate 1
        01 8 04_zero --zero 3 --replicate 2 --micro-batch 1 --accumulate 1
        01 8 06_pipeline_parallel --schedule zero-bubble --micro-batch 1 --accumulate 8
        01 4 06_pipeline_parallel --schedule dualpipe-v --micro-batch 1 --accumulate 8
        01 4 06_pipeline_parallel --schedule zb-v --micro-batch 1 --accumulate 8
        01 4 06_pipeline_parallel --schedule interleaved --chunks 2 --micro-batch 2 --accumulate 4
        01 8 06_pipeline_parallel --schedule afab --micro-batch 4 --accumulate 2
        01 8 07_context_parallel --attention zigzag --micro-batch 4 --accumulate 2
        01 8 07_context_parallel --attention ulysses --micro-batch 4 --accumulate 2
        01 8 07_context_parallel --attention allgather --micro-batch 4 --accumulate 2
        01 8 03_data_parallel --sync naive --micro-batch 1 --accumulate 1
        01 8 03_data_parallel --sync bucket --micro-batch 1 --accumulate 1
        01 8 05_tensor_parallel --micro-batch 4 --accumulate 2
        01 4 05_tensor_parallel --sequence-parallel --overlap --recompute full --micro-batch 4 --accumulate 2
        01 8 09_combined --dtype fp32 --tp 2 --cp 2 --micro-batch 4 --accumulate 1
        10 8 11_five_dimensions --dtype fp32 --tp 2 --cp 2 --ep 8 --span 12 --micro-batch 4 --accumulate 1
END
    show='/^comm /p' check ranks_that_share 8 "export CUDA_VISIBLE_DEVICES=0 SIMULATED_GPUS=1
        mpiexec -n 8 $bin/03_data_parallel $model --steps 1 >$tmp/o 2>&1; status=\$?
        cat $tmp/o; grep -q 'NCCL needs a GPU for each rank' $tmp/o && exit \$status"
    for n in $lengths; do
        show='/^workspace/p' check "memory_$n" 4 \
            "$bin/08_fused_kernels $model --seq $n --micro-batch 1 --steps 1 >$tmp/o || exit 1
            cat $tmp/o; awk '/^workspace/ {same = \$2 == \$3} END {exit !same}' $tmp/o"
    done
    show='/FAST_ACCUM/p' lines=4 check fp8_matmuls 3 \
        "CUBLASLT_LOG_LEVEL=2 $bin/02_mixed_precision $model --dtype fp8 --steps 1 --quiet"
    train=$([ -n "${SIMULATE-}" ] && echo --preset tiny --steps 20 || echo --steps 300 --sample 300)
    show='/^step\|^ *val/p' lines=4 check trains 15 "$bin/01_single_gpu $train --eval-every 100"
fi

# ---- counters: the first kernels of a layer of 1.3b; three steps ----
if wants counters; then
    if command -v ncu >/dev/null && [ -z "${SIMULATE-}" ]; then
        while read -r name dtype kernels; do
            show=p lines=6 check "$name" 30 "$with ncu --clock-control none --launch-count 8 --section SpeedOfLight \
                --section WarpStateStats --section SourceCounters --export $tmp/$name --kernel-name regex:'$kernels' \
                $real/08_fused_kernels --layers 1 --hidden 2048 --heads 16 --seq 2048 --micro-batch 8 --accumulate 1 \
                --vocab 50304 --steps 1 --quiet --dtype $dtype
                for page in raw source; do
                    $with ncu --import $tmp/$name.ncu-rep --csv --page \$page >$logs/${name}_\$page.csv; done
                wc -l $logs/${name}_*.csv"
        done <<END
            ncu bf16 flash_|layernorm_backward|cross_entropy
            ncu_fp8 fp8 quantize_|amax_
END
    else
        say "-- ncu: left out, it is not installed, or the GPU is simulated"
    fi
    if [ -n "${SIMULATE-}" ]; then
        show=p check launches 5 "SIMULATED_COUNTS=calls $bin/01_single_gpu $model --steps 3 --quiet"
    elif command -v nsys >/dev/null; then
        show=p lines=40 check launches 15 "$with nsys profile --stats=true --force-overwrite true -o $tmp/steps \
            $real/01_single_gpu $model --steps 3 --quiet"
    else
        say "-- nsys: left out, it is not installed"
    fi
fi

# ---- sanitize ----
if wants sanitize; then
    if [ -n "${SIMULATE-}" ] || ! command -v compute-sanitizer >/dev/null; then
        say "-- sanitize: left out, compute-sanitizer is not installed, or the GPU is simulated"
        omitted[sanitize]=" all"
    else
        one="--layers 1 --vocab 256 --seq 300 --micro-batch 2 --accumulate 1 --steps 1 --quiet"
        while read -r tool program options; do
            show='/=====\|rror/p' lines=3 check "${tool}_${program%%_*}_${options//[^0-9]/}" 8 \
                "$with compute-sanitizer --tool $tool --error-exitcode 9 $real/$program $one $options"
        done <<END
            memcheck 08_fused_kernels --hidden 128 --heads 2
            racecheck 08_fused_kernels --hidden 128 --heads 2
            initcheck 08_fused_kernels --hidden 128 --heads 2
            synccheck 08_fused_kernels --hidden 128 --heads 2
            memcheck 08_fused_kernels --hidden 128 --heads 1
            racecheck 08_fused_kernels --hidden 128 --heads 1
            initcheck 08_fused_kernels --hidden 128 --heads 1
            synccheck 08_fused_kernels --hidden 128 --heads 1
            memcheck 08_fused_kernels --hidden 128 --heads 1 --seq 304 --dtype fp8
            racecheck 08_fused_kernels --hidden 128 --heads 1 --seq 304 --dtype fp8
            racecheck 08_fused_kernels --hidden 128 --heads 1 --seq 320 --dtype fp8 --fp8-scaling tile
            memcheck 01_single_gpu --hidden 64 --heads 2
            memcheck 12_llama --hidden 64 --heads 2
END
    fi
fi

if [ -n "${comparing-}" ]; then
    wait "$comparing"                           # it has run, so its answer counts even if no time is left
    say "== operators, beside the CPU's"
    tail -n 3 "$tmp/compared" | tee -a "$report"
    if grep -q '^operators differ' "$tmp/compared"; then
        failed[prove]+=" operators"
    else
        passed[prove]=$((passed[prove] + 1))
    fi
fi
finish
