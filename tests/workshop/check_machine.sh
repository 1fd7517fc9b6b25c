#!/bin/sh
# make check-machine: checks what this machine can run, and what to install for more. Builds and installs nothing in the
# tree; each check ends after a few seconds. Its status is 0 if "make run" and "make test" would work.
#
# One line per check: "ok"; "--" if something is limited; "NO" if nothing runs without it. The Makefile passes what it
# found as CC, OPTIMIZE, MPI_CFLAGS, MPI_LIBS, BLAS_CFLAGS, BLAS_LIBS, NVCC, NCCL and NCCL_CFLAGS.
# shellcheck disable=SC2086,SC2154      # these are lists of words
set -u
cd "$(dirname "$0")/../.." || exit 1
PROC=${PROC-/proc}                      # a test sets others
CGROUP=${CGROUP-/sys/fs/cgroup}
SHARED=${SHARED-/dev/shm}

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
status=0
report() {              # report ok|--|NO WHAT FINDING [WHAT TO DO]
    [ "$1" != NO ] || status=1
    printf '%s  %-9s %s\n' "$1" "$2" "$3"
    [ -z "${4-}" ] || printf '%14s-> %s\n' "" "$4"
}
within() {              # within SECONDS COMMAND...: runs it with a time limit; output in $dir/out and $dir/err
    seconds=$1
    shift
    timeout -k 1 "$seconds" "$@" </dev/null >"$dir/out" 2>"$dir/err"
    result=$?
    late=""
    case $result in 124 | 137) late="no response in $seconds s" ;; esac
    return $result
}
compiled() {            # compiled WHAT FLAG...: compiles part WHAT of check_machine.c, as the Makefile would
    what=$1
    shift
    within 8 $CC -std=c11 -D_GNU_SOURCE $OPTIMIZE -fopenmp -DCHECK_$what tests/workshop/check_machine.c "$@" \
        -o "$dir/$what"
}
why() {                 # the first error line of the last command
    echo "${late:-$(grep -m 1 -iE 'error|cannot|not found|fatal' "$dir/err" || grep -m 1 '[a-z]' "$dir/err")}"
}
kilobytes() {           # kilobytes NAME: a value in /proc/meminfo
    sed -n "s/^$1: *\([0-9]*\) kB/\1/p" "$PROC/meminfo"
}
free_kilobytes() {
    df -Pk "$1" 2>/dev/null | awk 'NR == 2 {print $4}'
}
gb() {                  # gb KILOBYTES
    awk -v kilobytes="$1" 'BEGIN {printf "%.1f GB", kilobytes * 1024 / 1e9}'
}

# ---- System, compiler, packages ----
system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)
case $(uname)-$(uname -m) in
Linux-x86_64) report ok system "${system:-Linux}, x86_64" ;;
Linux-*) report -- system "${system:-Linux}, $(uname -m): builds on aarch64, but only x86_64 is tested" ;;
*) report NO system "$(uname): the programs are for Linux" "use the container of .devcontainer/Dockerfile" ;;
esac
if compiled OPENMP && within 4 "$dir/OPENMP"; then
    report ok compiler "$CC $($CC -dumpfullversion): an OpenMP program runs on $(cat "$dir/out") threads"
else
    report NO compiler "$CC does not compile and run an OpenMP program: $(why)"
fi
missing=$(tests/workshop/deps.sh --missing)
case $missing in
"") report ok packages "all are installed" ;;
gnuplot-nox) report -- packages "no gnuplot: no \"make figures\"; everything else runs" "make deps" ;;
*) report NO packages "missing: $missing" "make deps installs them, or tells what to install" ;;
esac

# ---- MPI: two ranks must see each other. BLAS: right products, fast ones ----
mpich="sudo apt-get install mpich libmpich-dev; sudo update-alternatives --set mpi /usr/bin/mpicc.mpich; sudo \
update-alternatives --set mpirun /usr/bin/mpirun.mpich"
alone="each of 2 ranks is rank 0 of 1"
if ! compiled MPI $MPI_CFLAGS $MPI_LIBS; then
    report NO MPI "no program of MPI 4 compiles with the flags of mpicc: $(why)" \
        "use MPICH 4.0 or later; Open MPI lacks functions: $mpich; on a cluster: module avail mpich"
elif ! within 4 mpiexec -n 2 "$dir/MPI"; then
    report NO MPI "mpiexec -n 2 fails: $(why)" "is the name of this machine, $(uname -n), in /etc/hosts?"
elif [ "$(sort "$dir/out" | cut -d ' ' -f 1-3 | tr '\n' ' ')" = "0 2 3 1 2 3 " ]; then
    report ok MPI "$(head -n 1 "$dir/out" | tr '\t' ' ' | cut -d ' ' -f 4-): 2 ranks see each other"
elif [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" = 4.2.0-5build3 ]; then
    report NO MPI "$alone: this is the broken MPICH 4.2.0-5build3 of Ubuntu 24.04" "make deps repairs it, or tells how"
else
    report NO MPI "$alone: mpicc and mpiexec ($(command -v mpiexec)) belong to different libraries" "$mpich"
fi
if ! compiled BLAS $BLAS_CFLAGS $BLAS_LIBS || ! within 5 "$dir/BLAS"; then
    report NO BLAS "no program of OpenBLAS compiles with $BLAS_LIBS, and runs: $(why)"
else
    fast=Haswell
    ! grep -qm 1 -w avx512bw "$PROC/cpuinfo" || fast=SkylakeX
    kernels=$(cut -d ' ' -f 6 "$dir/out")
    if [ "$kernels" = Prescott ] && grep -qm 1 -w avx2 "$PROC/cpuinfo"; then            # device_prepare does the same
        within 5 env OPENBLAS_CORETYPE=$fast "$dir/BLAS"
        kernels="$fast, which the programs choose: it takes this CPU for one of 2004 (Prescott)"
    fi
    read -r wrong version parallel threads rate _ <"$dir/out"
    speed="$rate GFLOP/s in float on $threads threads, kernels for $kernels"
    if [ "$wrong" -ne 0 ]; then
        report NO BLAS "OpenBLAS $version multiplies wrongly: $wrong wrong elements" "is it built for this CPU?"
    elif [ "$parallel" -ne 2 ]; then
        report -- BLAS "OpenBLAS $version is not its OpenMP build: up to 10 times slower; $speed" \
            "sudo apt-get install libopenblas-openmp-dev"
    else
        report ok BLAS "OpenBLAS $version, OpenMP: right numbers, $speed"
    fi
fi

# ---- GPUs ----
if within 3 nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version --format=csv,noheader; then
    gpu="$(wc -l <"$dir/out") x $(head -n 1 "$dir/out")"
    within 6 tests/workshop/gpus.sh $NVCC
    built=$(cat "$dir/out")
    within 3 nvidia-smi
    driver=$(sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9]*\).*/\1/p' "$dir/out" | head -n 1)
    cuda=$(${NVCC:-false} --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    case $built in
    sm_* | compute_*)
        if [ "${driver:-$cuda}" -ge "$cuda" ]; then
            report ok GPU "$gpu: nvcc builds for $built"
        else
            report -- GPU "$gpu: this driver is too old for nvcc of CUDA $cuda" "a newer driver, or CUDA $driver"
        fi ;;
    *) report -- GPU "$gpu, but everything runs on the CPU: $built" "https://developer.nvidia.com/cuda-downloads" ;;
    esac
else
    report -- GPU "no NVIDIA GPU found: everything runs on the CPU" "nvidia-smi: ${late:-$(cat "$dir/out" "$dir/err")}"
fi
nccl=$(printf '#include <nccl.h>\nversion NCCL_MAJOR.NCCL_MINOR.NCCL_PATCH\n' |
    $CC $NCCL_CFLAGS -E -P - 2>/dev/null | sed -n 's/^version//p' | tr -d ' ')
if [ "$NCCL" = yes ]; then
    report ok NCCL "nccl.h $nccl"
else
    report -- NCCL "no nccl.h of 2.17 or later${nccl:+, but of $nccl}: ranks on GPUs communicate over MPI, slower" \
        "sudo apt-get install libnccl2 libnccl-dev; or NCCL_HOME=DIR, if it is elsewhere"
fi

# ---- Cores, memory, disk: what a control group (container) leaves ----
cores=$(env -u OMP_NUM_THREADS nproc)
quota=$(awk '$1 > 0 {print int(($1 + $2 - 1) / $2)}' "$CGROUP/cpu.max" 2>/dev/null)
if [ "${quota:-$cores}" -lt "$cores" ]; then
    report -- cores "$cores are visible, but this container may use only $quota at a time" "use --threads $quota"
else
    report ok cores "$cores: as many ranks with one core each; more are slower, but correct"
fi
memory=$(kilobytes MemAvailable)
used=$(sed -n 's/^anon //p' "$CGROUP/memory.stat" 2>/dev/null)      # without cached files, which the kernel drops
limit=$(awk -v used="$used" '$1 > 0 {printf "%.0f", ($1 - used) / 1024}' "$CGROUP/memory.max" 2>/dev/null)
[ "${limit:-$memory}" -ge "$memory" ] || memory=$limit
found="$(gb "$memory") of $(gb "$(kilobytes MemTotal)") available"
if [ "$memory" -lt 1000000 ]; then
    report NO memory "$found: the tests need about 1 GB" "close something, or give the container more"
else
    report ok memory "$found: $((memory * 1024 / 16000000)) million parameters at 16 bytes each, minus activations"
fi
if [ "$(free_kilobytes "$SHARED")" -lt 40960 ]; then
    report -- "$SHARED" "less than 40 MB: MPICH takes 4.2 MB per rank, so 8 ranks will not start" \
        "in a container: docker run --shm-size=1g"
else
    report ok "$SHARED" "$(gb "$(free_kilobytes "$SHARED")") for messages between ranks"
fi
if [ "$(free_kilobytes .)" -lt 204800 ]; then
    report NO disk "less than 200 MB free: build/ takes about 100 MB, and tests write 100 MB more"
else
    report ok disk "$(gb "$(free_kilobytes .)") free for build/"
fi

echo
[ "$status" -eq 0 ] || echo "Not yet: fix the lines with NO first."
[ "$status" -ne 0 ] || echo "make run: yes. make test: yes, about $((${quota:-$cores} > 1 ? 5 : 10)) minutes."
exit $status
