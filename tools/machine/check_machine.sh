#!/bin/sh
# make check-machine: checks what this machine can run, and what to install for more. Builds and installs nothing in the
# tree. Its status is 0 if "make run" and "make test" would work.
#
# One line per check: "ok"; "--" if something is limited; "NO" if nothing runs without it. The Makefile passes what it
# found as CC, OPTIMIZE, MPI_CFLAGS, MPI_LIBS, BLAS_CFLAGS, BLAS_LIBS, NVCC, NCCL and NCCL_CFLAGS.
# shellcheck disable=SC2086,SC2154      # these are lists of words
set -u
cd "$(dirname "$0")/../.." || exit 1

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
status=0
report() {              # report ok|--|NO WHAT FINDING [WHAT TO DO]
    [ "$1" != NO ] || status=1
    printf '%s  %-9s %s\n' "$1" "$2" "$3"
    [ -z "${4-}" ] || printf '%14s-> %s\n' "" "$4"
}
limited() {             # limited COMMAND...: runs it for eight seconds at most; output in $dir/out and $dir/err
    timeout -k 1 8 "$@" </dev/null >"$dir/out" 2>"$dir/err"
}
compiled() {            # compiled ARGUMENT...: compiles check_machine.c, as the Makefile would
    limited $CC -std=c11 -D_GNU_SOURCE $OPTIMIZE -fopenmp tools/machine/check_machine.c "$@" -o "$dir/check"
}
why() {                 # the first error line of the last command
    grep -m 1 -iE 'error|cannot|not found|fatal' "$dir/err" || grep -m 1 '[a-z]' "$dir/err" || echo "no response"
}

missing=$(tools/machine/deps.sh --missing)
needed=$(tools/machine/deps.sh --missing run)
case $needed,$missing in
,) report ok packages "all are installed" ;;
,*) report -- packages "missing, but only tests and figures need them: $missing" "make deps" ;;
*) report NO packages "missing: $missing" "make deps installs them, or tells what to install" ;;
esac

# Two ranks must see each other.
alone="each of 2 ranks is rank 0 of 1"
if ! compiled -DCHECK_MPI $MPI_CFLAGS $MPI_LIBS; then
    report NO MPI "no MPI program compiles with $CC and the flags of mpicc: $(why)" \
        "make deps installs MPICH; on a cluster: module avail mpi"
elif ! limited mpiexec -n 2 "$dir/check"; then
    report NO MPI "mpiexec -n 2 fails: $(why)" "is the name of this machine, $(uname -n), in /etc/hosts?"
elif [ "$(sort "$dir/out" | cut -d ' ' -f 1-2 | tr '\n' ' ')" = "0 2 1 2 " ]; then
    library=$(head -n 1 "$dir/out" | tr '\t' ' ' | cut -d ' ' -f 3-)
    case $library in
    "Open MPI"*) report ok MPI "${library%%,*}: 2 ranks see each other" "before you start mpiexec yourself, once a \
shell: . tools/machine/open_mpi.sh" ;;
    *) report ok MPI "$library: 2 ranks see each other" ;;
    esac
elif [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" = 4.2.0-5build3 ]; then
    report NO MPI "$alone: this is the broken MPICH 4.2.0-5build3 of Ubuntu 24.04" "make deps repairs it"
else
    report NO MPI "$alone: mpicc and mpiexec ($(command -v mpiexec)) belong to different libraries" \
        "take both from one: sudo update-alternatives --config mpi, then --config mpirun; on a cluster: module list"
fi

kernels="common/transformer/cpu/device_kernels.c common/base/start.c common/base/threads.c common/base/error.c"
if ! compiled $kernels $BLAS_CFLAGS $BLAS_LIBS || ! limited "$dir/check"; then
    report NO BLAS "no program of OpenBLAS compiles with $BLAS_LIBS, and runs: $(why)"
else
    read -r parallel version has chosen <"$dir/out"
    case $parallel,$chosen in
    2,) report ok BLAS "OpenBLAS $version, OpenMP, $has kernels" ;;
    2,*) report -- BLAS "OpenBLAS $version takes $has kernels, since it has no $chosen kernels" \
        "slow if the processor is newer than these; a build for all processors, such as Debian's, has more" ;;
    *) report -- BLAS "OpenBLAS $version is not its OpenMP build: up to 10 times slower" \
        "sudo apt-get install libopenblas-openmp-dev" ;;
    esac
fi

if limited nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version --format=csv,noheader; then
    gpu="$(wc -l <"$dir/out") x $(head -n 1 "$dir/out")"
    built=$(tools/machine/gpus.sh $NVCC)
    case $built in
    sm_* | compute_*) report ok GPU "$gpu: nvcc builds for $built" ;;
    *) report -- GPU "$gpu, but everything runs on the CPU: $built" "https://developer.nvidia.com/cuda-downloads" ;;
    esac
else
    report -- GPU "no NVIDIA GPU found: everything runs on the CPU" "nvidia-smi: $(cat "$dir/out" "$dir/err")"
fi
if [ "$NCCL" = yes ]; then
    report ok NCCL "nccl.h is found: ranks with a GPU each communicate over NCCL"
else
    report -- NCCL "no nccl.h of 2.17 or later: ranks on GPUs communicate over MPI, slower" \
        "sudo apt-get install libnccl2 libnccl-dev; or NCCL_HOME=DIR, if it is elsewhere"
fi
if [ "$(df -Pm /dev/shm | awk 'NR == 2 {print $4}')" -lt 200 ]; then
    report -- /dev/shm "less than 200 MB: MPI takes about 4 MB per rank, NCCL more" \
        "in a container: docker run --shm-size=1g, or --ipc=host"
fi

echo
[ "$status" -eq 0 ] || echo "Not yet: fix the lines with NO first."
case $status,$missing in
0,*cmocka*) echo "make run: yes. make test: no, for want of cmocka." ;;
0,*) echo "make run: yes. make test: yes, about $(($(nproc) > 1 ? 5 : 10)) minutes." ;;
esac
exit $status
