#!/usr/bin/env bash
# gpu_quarter.sh SECONDS SECTION...: what to learn from a GPU in a quarter of an hour. Run it in the root of the tree,
# on a machine with the GPU, after gpu_pack.sh has made DIR elsewhere (PACK=DIR; build/gpu_pack). SECONDS is the time it
# may take: a check that would not fit any more is left out, and a line says so. Sections, by value:
#   start      the smallest runs, in every call; if 01 fails, nothing else is tried
#   prove      operators and gradients beside the CPU's; small types; equal runs; 03 to 11 on 8 ranks that share the GPU
#   speed      tokens/s and MFU of 01, 02 and 08 with 124M and 1.3B parameters; operators; attention; the ladder
#   torch      08 beside a compiled PyTorch
#   more       the other schedules, ZeRO stages and kinds of attention; 00; training
#   ncu        what the largest kernels wait for, instruction by instruction
#   sanitize   compute-sanitizer: memcheck, racecheck, initcheck, synccheck
# On an H100: start 3 s, prove 36, speed 165, torch 110, more 70, ncu 45, sanitize 25. OUT (build/gpu_quarter) gets
# summary.txt and logs.tar.gz. SIMULATE=1 tries the script on the simulated GPU, with its build and the references.
set -u
budget=${1:?usage: gpu_quarter.sh SECONDS SECTION...}
shift
sections=" $* " root=$PWD out=${OUT:-$PWD/build/gpu_quarter} pack=${PACK:-$PWD/build/gpu_pack} began=$(date +%s)
reference=$pack/reference logs=$out/logs summary=$out/summary.txt tmp=$(mktemp -d)
mkdir -p "$logs"
: >"$summary"
text="--data $root/01_single_gpu/shakespeare.txt"

say() { printf '%s\n' "$*" | tee -a "$summary"; }
elapsed() { echo $(($(date +%s) - began)); }
wants() { case $sections in *" $1 "*) true ;; *) false ;; esac }

# check NAME EXPECTED_SECONDS COMMAND: runs it, unless too little time is left. The lines that $show chooses (a sed
# script), the last $lines of them, go to the summary; if it fails, so do its last ones.
failed=""
check() {
    local name=$1 expected=$2 status begin left=$((budget - $(elapsed)))
    shift 2
    if [ "$left" -lt "$expected" ]; then
        say "-- $name: left out, $left s are left"
        return 1
    fi
    begin=$(date +%s)
    [ -n "${SIMULATE-}" ] || [ $left -lt $((4 * expected + 30)) ] || left=$((4 * expected + 30))
    timeout -k 5 "$left" bash -c "$*" </dev/null >"$logs/$name.txt" 2>&1
    status=$?
    say "== $name: status $status, $(($(date +%s) - begin)) s (expected $expected)"
    sed -n "${show-\$p}" "$logs/$name.txt" | cut -c1-200 | tail -n "${lines-12}" | tee -a "$summary"
    [ $status = 0 ] || { failed="$failed $name"; tail -n 5 "$logs/$name.txt" | cut -c1-300 | tee -a "$summary"; }
    return $status
}
finish() {
    say "took $(elapsed) s; failed:${failed:- none}"
    tar czf "$out/logs.tar.gz" -C "$out" logs
    rm -rf "$logs" "$tmp"
    [ -z "$failed" ]
    exit
}

# ---- the programs: wrappers with the path of their libraries, so that PyTorch keeps its own ----
if [ -n "${SIMULATE-}" ]; then
    bin=$root/build/simulated cpu=$root/build/cpu real=$bin with=""
else
    bin=$root/build/cuda cpu=$tmp/cpu real=$pack/pack/bin dirs=$pack/pack/lib
    mkdir -p "$bin" "$cpu"
    [ -d "$pack/pack" ] || tar xJf "$pack/pack.tar.xz" -C "$pack"
    for library in libcublasLt.so.13 libcudart.so.13 libnccl.so.2 libgomp.so.1; do
        found=$(ldconfig -p | awk -v l="$library" '$1 == l {print $NF; exit}')
        [ -n "$found" ] || found=$(find /usr/local /opt /usr/lib -name "$library" 2>/dev/null | head -n 1)
        if [ -n "$found" ]; then dirs=$dirs:$(dirname "$found"); else say "no $library on this machine"; fi
    done
    with="env LD_LIBRARY_PATH=$dirs UCX_MODULE_DIR=$pack/pack/lib/ucx UCX_TLS=self,shm"
    wrap() { rm -f "$2"; printf '#!/bin/sh\nexec %s %s "$@"\n' "$with" "$1" >"$2"; chmod +x "$2"; }
    for p in "$real"/[0-9]* "$real"/{ladder,parity}; do wrap "$p" "$bin/${p##*/}"; done
    for p in parity compare; do wrap "$pack/pack/cpu/$p" "$cpu/$p"; done
    wrap "$real/mpiexec.hydra" "$tmp/mpiexec"
    # hydra looks for its proxy in PATH, and for this machine's own name
    export PATH=$tmp:$real:$PATH:/usr/local/cuda/bin HYDRA_LAUNCHER=fork
    grep -q "$(hostname)" /etc/hosts || echo "127.0.0.1 $(hostname)" >>/etc/hosts
fi

# ---- start ----
if [ -z "${SIMULATE-}" ]; then
    lines=40 show=p check machine 2 "nvidia-smi -L
        nvidia-smi --query-gpu=driver_version,clocks.max.sm,power.limit,memory.total --format=csv
        grep -m1 'model name' /proc/cpuinfo; nproc; ldd --version | sed -n 1p
        ! $with ldd $real/08_fused_kernels $real/parity $real/mpiexec.hydra $pack/pack/cpu/parity | grep 'not found'" ||
        finish
fi
show='/device\|step\|rror/p' check smoke 3 "$bin/01_single_gpu --preset tiny --steps 3 $text" || finish
check fused 2 "$bin/08_fused_kernels --preset tiny --steps 3 $text"

# ---- prove ----
differences='/differ\|agree\|rror/p'
small="--layers 8 --hidden 64 --heads 8 --vocab 256 --seq 48 --steps 1 --quiet --check --tf32 off $text"
long="--layers 2 --hidden 128 --vocab 256 --seq 300 --micro-batch 2 --accumulate 1 --steps 1 --quiet --tf32 off $text"
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
if wants prove; then
    if lines=1 check operators_gpu 4 "cd $tmp && $bin/parity tested 0"; then
        # the CPU compares while the GPU goes on
        (cd "$tmp" && "$cpu/parity" reference "$(tail -n 1 "$logs/operators_gpu.txt")" tested \
            >"$logs/operators.txt" 2>&1 || echo "operators differ" >>"$logs/operators.txt") &
        comparing=$!
    fi
    for size in 1 100x37x129 300x270x70 520x512x64; do
        check "ladder_$size" 1 "$bin/ladder --size $size --seconds 0 --copy 1"
    done
    check equal_runs 2 "cd $tmp; for i in 1 2; do $bin/08_fused_kernels --preset ${TWICE-10m} --steps 2 --quiet $text \
        --dump-gradients \$i.g --metrics \$i.csv || exit 1; cut -d, -f3,4 \$i.csv >\$i.losses; done
        cmp 1.g 2.g && cmp 1.losses 2.losses && echo equal bit for bit"
    cat >"$tmp/losses.py" <<'PY'
import csv, sys
a, b = (list(csv.DictReader(open(f)))[:int(sys.argv[3])] for f in sys.argv[1:3])
loss, norm = (max(abs(float(x[k]) / float(y[k]) - 1) for x, y in zip(a, b)) for k in ("loss", "grad_norm"))
print(f"{len(a)} losses differ from the CPU's by {loss:.1e} (1e-3), norms by {norm:.1e} (1e-2)")
sys.exit(not (loss <= 1e-3 and norm <= 1e-2))
PY
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
END
fi

# ---- speed ----
# A table of a --report: each operator's time, rates and floor, at the peak of the GPU and the speed of copies. Operands
# that are read and written count once.
cat >"$tmp/operators.py" <<'PY'
import json, sys
r, bandwidth = json.load(open(sys.argv[1])), float(sys.argv[2])
operators, steps = r["ranks"][0]["operators"], max(1, r["ranks"][0]["time"]["steps"])
total = sum(x["seconds"] for x in operators)
seconds = r["ranks"][0]["time"]["seconds"]
print(f"{steps} steps of {seconds / steps * 1e3:.1f} ms, operators {total / steps * 1e3:.1f} ms")
for x in sorted(operators, key=lambda x: -x["seconds"]):
    if x["seconds"] > 0.004 * total:
        s, floor = x["seconds"], max(x["flops"] / r["peak_flops"], x["bytes"] / bandwidth)
        print(f"{x['op']:<28}{100 * s / total:5.1f}% {1e3 * s / steps:9.3f} ms {1e6 * s / x['calls']:9.1f} us/call "
              f"{x['flops'] / s / 1e12:7.1f} TFLOP/s {x['bytes'] / s / 1e12:6.2f} TB/s  floor {100 * floor / s:4.0f}%")
PY
cat >"$tmp/median.py" <<'PY'
import csv, statistics, sys
rows = list(csv.DictReader(open(sys.argv[1])))[1:]
m = lambda k: statistics.median(float(r[k]) for r in rows)
print(f"{m('tokens_per_second'):,.0f} tokens/s, MFU {100 * m('mfu'):.1f}%, {1e3 * m('seconds'):.1f} ms per step, "
      f"loss {rows[-1]['loss'][:7]}, {float(rows[-1]['peak_bytes']) / 1e9:.1f} GB")
PY
bandwidth=3.0e12
nvidia-smi -L 2>/dev/null | grep -q H200 && bandwidth=4.3e12
speed() {               # NAME EXPECTED_SECONDS PROGRAM OPTIONS
    local name=$1 expected=$2 program=$3
    shift 3
    lines=1 check "$name" "$expected" "$bin/$program $text --quiet --metrics $logs/$name.csv $* &&
        python3 $tmp/median.py $logs/$name.csv"
}
operators() {           # the same
    local name=$1 expected=$2 program=$3
    shift 3
    show=${show-p} lines=24 check "$name" "$expected" "$bin/$program $text --quiet --report $logs/$name.json $* &&
        python3 $tmp/operators.py $logs/$name.json $bandwidth"
}
attention() {           # lines of: size of heads, heads, tokens, sequences
    while read -r size heads tokens sequences; do
        show='/steps of\|^flash/p' operators "attention_${size}_${tokens}_$sequences" 3 08_fused_kernels --layers 4 \
            --hidden $((size * heads)) --heads "$heads" --seq "$tokens" --micro-batch "$sequences" --accumulate 1 \
            --vocab 256 --steps 6
    done
}
big=${BIG---preset 1.3b} little=${LITTLE---preset 124m}
if wants speed; then
    speed 08_1.3b 16 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 7
    operators 08_1.3b_operators 13 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 4
    speed 08_124m 3 08_fused_kernels $little --steps 12
    speed 08_124m_mb32 3 08_fused_kernels $little --micro-batch 32 --accumulate 1 --steps 12
    operators 08_124m_operators 3 08_fused_kernels $little --micro-batch 32 --accumulate 1 --steps 8
    attention <<<"${SHAPES-128 16 2048 8
        64 32 2048 8
        128 16 8192 2
        64 32 8192 2
        64 12 1024 4}"
    speed 02_1.3b 14 02_mixed_precision $big --steps 4
    speed 08_1.3b_fp8 15 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 5 --dtype fp8
    speed 08_1.3b_fp8_tile 15 08_fused_kernels $big --micro-batch 8 --accumulate 4 --steps 5 --dtype fp8 \
        --fp8-scaling tile
    speed 02_124m_bf16 3 02_mixed_precision $little --steps 8
    speed 02_124m_fp8 3 02_mixed_precision $little --steps 8 --dtype fp8
    speed 01_124m 3 01_single_gpu $little --steps 6
    speed 01_1.3b 14 01_single_gpu $big --accumulate 4 --steps 4
    show='/[0-9]%/p' lines=20 check ladder 18 "$bin/ladder --size ${LADDER-4096}"
    speed 08_1.3b_mb2 14 08_fused_kernels $big --steps 5
    speed 02_1.3b_fp8 14 02_mixed_precision $big --steps 4 --dtype fp8
fi

# ---- torch: two of bench_torch.py's cases, one round ----
if wants torch; then
    cat >"$tmp/torch_cases.py" <<PY
import sys
path = "$root/tests/bench/bench_torch.py"
g = {"__name__": "bench_torch", "__file__": path}
sys.argv = [path, "cuda"]
exec(compile(open(path).read().rsplit("\nmain()", 1)[0], path, "exec"), g)
g["ROUNDS"], g["WARM_UP"], g["TIMED"] = 1, 2, 4
big, little = g["LARGE"] | dict(micro_batch=4, accumulate=8), g["SMALL"] | dict(micro_batch=16, accumulate=2)
g["CASES"]["cuda"] = [("08_fused_kernels", "--fuse all $text", big, "bf16", True),
                      ("08_fused_kernels", "--fuse all $text", little, "bf16", True)]
g["main"]()
PY
    show=p lines=8 check torch 110 "python3 $tmp/torch_cases.py"
fi

# ---- more ----
if wants more; then
    check collectives 3 "mpiexec -n 8 $bin/00_collectives --verify --comm mpi"
    together <<END
        01 8 04_zero --zero 1 --micro-batch 1 --accumulate 1
        01 8 04_zero --zero 2 --micro-batch 1 --accumulate 1
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
    show='/NCCL/p' check without_comm 15 "mpiexec -n 8 $bin/03_data_parallel $small --micro-batch 1 --accumulate 1"
    lines=12 show=p check trains 15 "$bin/01_single_gpu $text --steps 300 --eval-every 100 --sample 300 --quiet"
fi

# ---- ncu: the first kernels of a layer of 1.3b ----
if wants ncu; then
    show=p lines=6 check ncu 45 "$with ncu --clock-control none --launch-count 8 --section SpeedOfLight \
        --section WarpStateStats --section SourceCounters --export $tmp/kernels \
        --kernel-name regex:'flash_|layernorm_backward|cross_entropy' \
        $real/08_fused_kernels --layers 1 --hidden 2048 --heads 16 --seq 2048 --micro-batch 8 --accumulate 1 \
        --vocab 50304 --steps 1 --quiet $text
        for page in raw source; do
            $with ncu --import $tmp/kernels.ncu-rep --csv --page \$page >$logs/ncu_\$page.csv; done
        wc -l $logs/ncu_*.csv"
fi

# ---- sanitize ----
if wants sanitize; then
    one="--layers 1 --vocab 256 --seq 300 --micro-batch 2 --accumulate 1 --steps 1 --quiet $text"
    for heads in 2 1; do                        # of 64 and of 128
        for tool in memcheck racecheck initcheck synccheck; do
            show='/=====\|rror/p' lines=3 check "${tool}_$((128 / heads))" 8 "$with compute-sanitizer --tool $tool \
                --error-exitcode 9 $real/08_fused_kernels $one --hidden 128 --heads $heads"
        done
    done
    show='/=====\|rror/p' lines=3 check memcheck_01 3 "$with compute-sanitizer --tool memcheck --error-exitcode 9 \
        $real/01_single_gpu $one --hidden 64 --heads 2"
fi

if [ -n "${comparing-}" ]; then
    wait "$comparing"
    say "== operators beside the CPU's"
    tail -n 3 "$logs/operators.txt" | tee -a "$summary"
    ! grep -q "^operators differ" "$logs/operators.txt" || failed="$failed operators"
fi
finish
