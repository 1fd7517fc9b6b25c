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
compiled() {            # compiled FLAG...: compiles check_machine.c, as the Makefile would
    within 8 $CC -std=c11 -D_GNU_SOURCE $OPTIMIZE -fopenmp tools/machine/check_machine.c "$@" -o "$dir/check"
}
why() {                 # the first error line of the last command
    echo "${late:-$(grep -m 1 -iE 'error|cannot|not found|fatal' "$dir/err" || grep -m 1 '[a-z]' "$dir/err")}"
}
free_mb() {
    df -Pm "$1" 2>/dev/null | awk 'NR == 2 {print $4}'
}

# ---- System, packages ----
system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)
case $(uname)-$(uname -m) in
Linux-x86_64 | Linux-aarch64) report ok system "${system:-Linux}, $(uname -m)" ;;
Linux-*) report -- system "${system:-Linux}, $(uname -m): only x86_64 and aarch64 have been tried" ;;
*) report NO system "$(uname): the programs are for Linux" "use the container of .devcontainer/Dockerfile" ;;
esac
missing=$(tools/machine/deps.sh --missing)
needed=$(tools/machine/deps.sh --missing run)
case $needed,$missing in
,) report ok packages "all are installed" ;;
,gnuplot-nox) report -- packages "no gnuplot: no \"make figures\"; everything else runs" "make deps" ;;
,*) report -- packages "missing, but only tests and figures need them: $missing" "make deps" ;;
*) report NO packages "missing: $missing" "make deps installs them, or tells what to install" ;;
esac

# ---- MPI: two ranks must see each other. BLAS: right products, fast ones ----
one="take both from one: sudo update-alternatives --config mpi, then --config mpirun; on a cluster: module list"
alone="each of 2 ranks is rank 0 of 1"
if ! compiled -DCHECK_MPI $MPI_CFLAGS $MPI_LIBS; then
    report NO MPI "no MPI program compiles with $CC and the flags of mpicc: $(why)" \
        "make deps installs MPICH; on a cluster: module avail mpi"
elif ! within 4 mpiexec -n 2 "$dir/check"; then
    report NO MPI "mpiexec -n 2 fails: $(why)" "is the name of this machine, $(uname -n), in /etc/hosts?"
elif [ "$(sort "$dir/out" | cut -d ' ' -f 1-3 | tr '\n' ' ')" = "0 2 3 1 2 3 " ]; then
    library=$(head -n 1 "$dir/out" | tr '\t' ' ' | cut -d ' ' -f 4-)
    case $library in
    "Open MPI"*) report ok MPI "${library%%,*}: 2 ranks see each other" "before you start mpiexec yourself, once a \
shell: . tools/machine/open_mpi.sh" ;;
    *) report ok MPI "$library: 2 ranks see each other" ;;
    esac
elif [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" = 4.2.0-5build3 ]; then
    report NO MPI "$alone: this is the broken MPICH 4.2.0-5build3 of Ubuntu 24.04" "make deps repairs it"
else
    report NO MPI "$alone: mpicc and mpiexec ($(command -v mpiexec)) belong to different libraries" "$one"
fi
if ! compiled $BLAS_CFLAGS $BLAS_LIBS || ! within 5 "$dir/check"; then
    report NO BLAS "no program of OpenBLAS compiles with $BLAS_LIBS, and runs: $(why)"
else
    read -r wrong version parallel threads rate <"$dir/out"
    case $wrong,$parallel in
    0,2) report ok BLAS "OpenBLAS $version, OpenMP: right numbers, $rate GFLOP/s in float on $threads threads" ;;
    0,*) report -- BLAS "OpenBLAS $version is not its OpenMP build: up to 10 times slower; $rate GFLOP/s in float" \
        "sudo apt-get install libopenblas-openmp-dev" ;;
    *) report NO BLAS "OpenBLAS $version multiplies wrongly: $wrong wrong elements" "is it built for this CPU?" ;;
    esac
fi

# ---- GPUs ----
if within 3 nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version --format=csv,noheader; then
    gpu="$(wc -l <"$dir/out") x $(head -n 1 "$dir/out")"
    within 6 tools/machine/gpus.sh $NVCC
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
if [ "$NCCL" = yes ]; then
    report ok NCCL "nccl.h is found: ranks with a GPU each communicate over NCCL"
else
    report -- NCCL "no nccl.h of 2.17 or later: ranks on GPUs communicate over MPI, slower" \
        "sudo apt-get install libnccl2 libnccl-dev; or NCCL_HOME=DIR, if it is elsewhere"
fi

# ---- Cores, memory, disk: what a control group (container) leaves ----
cores=$(env -u OMP_NUM_THREADS nproc)
quota=$(awk '$1 > 0 {print int(($1 + $2 - 1) / $2)}' "$CGROUP/cpu.max" 2>/dev/null)
[ "${quota:-$cores}" -ge "$cores" ] || cores=$quota
report ok cores "$cores: as many ranks with one core each; more are slower, but correct"
memory=$(awk '/^MemAvailable/ {print int($2 / 1000)}' "$PROC/meminfo")
used=$(sed -n 's/^anon //p' "$CGROUP/memory.stat" 2>/dev/null)      # without cached files, which the kernel drops
limit=$(awk -v used="$used" '$1 > 0 {print int(($1 - used) / 1000000)}' "$CGROUP/memory.max" 2>/dev/null)
[ "${limit:-$memory}" -ge "$memory" ] || memory=$limit
if [ "$memory" -lt 1000 ]; then
    report NO memory "$memory MB available: the tests need about 1 GB" "close something, or give the container more"
else
    report ok memory "$memory MB available: $((memory / 16)) million parameters at 16 bytes each, minus activations"
fi
if [ "$(free_mb /dev/shm)" -lt 40 ]; then
    report -- /dev/shm "less than 40 MB: MPI takes about 4 MB per rank, so 8 ranks will not start" \
        "in a container: docker run --shm-size=1g, or --ipc=host"
elif [ "$(free_mb /dev/shm)" -lt 200 ] && [ -n "${gpu-}" ]; then
    report -- /dev/shm "less than 200 MB: too little for NCCL with several GPUs" \
        "in a container: docker run --shm-size=1g, or --ipc=host"
fi
[ "$(free_mb .)" -ge 200 ] || report NO disk "less than 200 MB free: build/ and the tests need as much"

echo
[ "$status" -eq 0 ] || echo "Not yet: fix the lines with NO first."
case $status,$missing in
0,*cmocka*) echo "make run: yes. make test: no, for want of cmocka." ;;
0,*) echo "make run: yes. make test: yes, about $((cores > 1 ? 5 : 10)) minutes." ;;
esac
exit $status
