#!/bin/sh
# make check-machine: checks what this machine can run, and what to install for more. Builds and installs nothing in the
# tree; each check ends after a few seconds. Its status is 0 if "make run" and "make test" would work.
#
# One line per check: "ok"; "--" if something is limited; "NO" if nothing runs without it. The Makefile passes what it
# found as CC, OPTIMIZE, MPI_CFLAGS, MPI_LIBS, BLAS_CFLAGS, BLAS_LIBS, NVCC, NCCL and NCCL_CFLAGS.
# shellcheck disable=SC2086             # these are lists of words
set -u
cd "$(dirname "$0")/../.." || exit 1
if [ -z "${OPTIMIZE-}" ]; then          # not called by make
    command -v make >/dev/null && exec make --no-print-directory check-machine
    CC=gcc OPTIMIZE="-O1" MPI_CFLAGS="" MPI_LIBS="" BLAS_CFLAGS="" BLAS_LIBS=-lopenblas NVCC="" NCCL="" NCCL_CFLAGS=""
fi
PROC=${PROC-/proc}                      # a test sets others
CGROUP=${CGROUP-/sys/fs/cgroup}
SHARED=${SHARED-/dev/shm}

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
status=0
packages=$(tests/workshop/deps.sh --missing)
missing() {             # missing PACKAGE: "make deps" would install it
    case " $packages " in *" $1 "*) ;; *) packages="$packages${packages:+ }$1" ;; esac
}
report() {               # report ok|--|NO WHAT FINDING [WHAT TO DO]...
    [ "$1" != NO ] || status=1
    printf '%s  %-9s %s\n' "$1" "$2" "$3"
    shift 3
    for todo in "$@"; do
        printf '%14s-> %s\n' "" "$todo"
    done
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
compile() {             # compile WHAT FLAG...: compiles part WHAT of check_machine.c, as the Makefile would
    what=$1
    shift
    within 8 $CC -std=c11 -D_GNU_SOURCE $OPTIMIZE -fopenmp -DCHECK_$what tests/workshop/check_machine.c "$@" \
        -o "$dir/$what"
}
why() {                 # the first error line of the last command
    echo "${late:-$(grep -m 1 -iE 'error|cannot|not found|fatal' "$dir/err" || grep -m 1 '[a-z]' "$dir/err")}"
}
above() {               # above A B: version A is later than B
    [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$1" ]
}
number() {              # number FILE: its content, if that is a number
    sed -n '/^[0-9][0-9]*$/p' "$1" 2>/dev/null
}
gb() {
    awk -v bytes="$1" 'BEGIN {printf "%.1f GB", bytes / 1e9}'
}
parameters() {          # parameters BYTES: how many fit, at 16 bytes per parameter
    awk -v n="$(($1 / 16))" 'BEGIN {printf n < 1e9 ? "%.0f million" : "%.1f billion", n < 1e9 ? n / 1e6 : n / 1e9}'
}
plural() {              # plural N: an s, unless N is 1
    [ "$1" -eq 1 ] || echo s
}

# ---- The system ----
machine=$(uname -m)
system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)
kernel=$(cat "$PROC/version" 2>/dev/null)
case $(uname) in
Linux) ;;
*) report NO system "$(uname): the programs are for Linux" "use the container that .devcontainer/Dockerfile describes" ;;
esac
wsl=""
case $kernel in
*WSL2*) wsl=", under WSL 2" ;;
*Microsoft*) wsl=", under WSL 1, which has neither GPUs nor fast files: in PowerShell, wsl --set-version NAME 2" ;;
esac
case $machine in
x86_64) report ok system "${system:-Linux}, $machine$wsl" ;;
aarch64) report ok system "${system:-Linux}, $machine$wsl: everything builds, but only x86_64 is tested" ;;
*) report -- system "${system:-Linux}, $machine$wsl: tested on x86_64, builds on aarch64, unknown on this machine" ;;
esac
case $wsl$PWD in
,*/mnt/[a-z]/*) report -- files "$PWD is on the disk of Windows, which is slow from here" "clone it below your home" ;;
esac

# ---- What compiles ----
if compile OPENMP && within 4 "$dir/OPENMP"; then
    read -r threads cores <"$dir/out"
    version=$($CC -dumpfullversion 2>/dev/null)
    report ok compiler "$CC $version; an OpenMP program runs on $threads thread$(plural "$threads")"
elif ! command -v "$CC" >/dev/null; then
    report NO compiler "$CC is not in PATH"
    missing build-essential
else
    report NO compiler "$CC does not compile and run an OpenMP program: $(why)"
fi
cores=${cores:-$(env -u OMP_NUM_THREADS nproc)}
if within 2 make --version && grep -q '^GNU Make' "$dir/out"; then
    report ok make "$(head -n 1 "$dir/out")"
else
    report NO make "${late:-not GNU make: $(command -v make || echo "nothing in PATH")}"
    missing build-essential
fi

# ---- MPI: two ranks must see each other ----
mpi=$(printf '#include <mpi.h>\n#ifdef MPICH_VERSION\nlibrary MPICH MPICH_VERSION\n#elif defined OMPI_MAJOR_VERSION
library Open MPI OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION\n#endif\n' | $CC -E -P $MPI_CFLAGS - 2>/dev/null |
    sed -n 's/^library [0-9]* *"\(.*\)"$/MPICH \1/p; s/^library Open MPI \([0-9]*\) *\. *\([0-9]*\)$/Open MPI \1.\2/p')
launcher=""
within 2 mpiexec --version && launcher=$(grep -oiE -m 1 'HYDRA|Open ?MPI|OpenRTE|PRRTE|Intel' "$dir/out")
case $launcher in
HYDRA) launcher=MPICH ;;
OpenRTE | PRRTE | "Open MPI" | OpenMPI) launcher="Open MPI" ;;
*) launcher=${launcher:-"an unknown library"} ;;
esac
is_mpich="sudo apt-get install mpich libmpich-dev; sudo update-alternatives --set mpi /usr/bin/mpicc.mpich; sudo \
update-alternatives --set mpirun /usr/bin/mpirun.mpich"
if [ -z "$MPI_LIBS" ]; then
    report NO MPI "mpicc is not in PATH, or reports no libraries" "on a cluster: module avail mpich"
    missing libmpich-dev
    missing mpich
elif ! compile MPI $MPI_CFLAGS $MPI_LIBS; then
    case $mpi in
    "Open MPI"*)
        report NO MPI "mpicc is of $mpi, which lacks functions of MPI 4 that the programs call (names with _c)" "$is_mpich"
        ;;
    *) report NO MPI "no program can be compiled for ${mpi:-the library of mpicc}: $(why)" "use MPICH 4.0 or later" ;;
    esac
elif ! command -v mpiexec >/dev/null; then
    report NO MPI "$mpi, but mpiexec is not in PATH"
    missing mpich
elif within 4 mpiexec -n 2 "$dir/MPI" && sort -n "$dir/out" >"$dir/sorted" &&
    [ "$(cut -d ' ' -f 1-3 "$dir/sorted" | tr '\n' ' ')" = "0 2 3 1 2 3 " ]; then
    report ok MPI "$mpi: 2 ranks on $(cut -d ' ' -f 4 "$dir/sorted" | sort -u | tr '\n' ' ')see each other"
elif [ "$(cut -d ' ' -f 1-3 "$dir/out" | tr '\n' ' ')" = "0 1 1 0 1 1 " ]; then
    if [ "$launcher" != "${mpi% *}" ]; then
        report NO MPI "each of 2 ranks is rank 0 of 1: mpicc belongs to $mpi, but mpiexec to $launcher" "$is_mpich"
    elif [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" = 4.2.0-5build3 ]; then
        report NO MPI "each of 2 ranks is rank 0 of 1: this is the broken MPICH 4.2.0-5build3 of Ubuntu 24.04" \
            "make deps repairs it, or tells how"
    else
        report NO MPI "each of 2 ranks is rank 0 of 1, though mpicc and mpiexec both belong to $mpi" \
            "is there another libmpi in LD_LIBRARY_PATH (${LD_LIBRARY_PATH:-empty}) or $(command -v mpiexec)?"
    fi
else
    report NO MPI "$mpi, but mpiexec -n 2 fails: $(why)"
    case $(why) in
    *host* | *address*) echo "              -> is the name of this machine, $(uname -n), in /etc/hosts?" ;;
    esac
fi

# ---- BLAS ----
if ! compile BLAS $BLAS_CFLAGS $BLAS_LIBS; then
    report NO BLAS "OpenBLAS is missing: no program can be compiled with $BLAS_LIBS"
    missing libopenblas-openmp-dev
elif ! within 5 "$dir/BLAS"; then
    report NO BLAS "a program that multiplies matrices fails: ${late:-status $result} $(head -n 1 "$dir/err")"
else
    read -r wrong version parallel blas_threads rate kernels <"$dir/out"
    of="kernels for $kernels"
    fast=""
    grep -qm 1 -w avx2 "$PROC/cpuinfo" 2>/dev/null && fast=Haswell
    grep -qm 1 -w avx512bw "$PROC/cpuinfo" 2>/dev/null && fast=SkylakeX
    if [ "$kernels" = Prescott ] && [ -n "$fast" ]; then        # device_prepare does the same
        within 5 env OPENBLAS_CORETYPE=$fast "$dir/BLAS" &&
            read -r wrong version parallel blas_threads rate kernels <"$dir/out"
        of="takes this CPU for one of 2004 (Prescott), so the programs choose its kernels for $fast"
    fi
    speed="$rate GFLOP/s in float on $blas_threads thread$(plural "$blas_threads")"
    if [ "$wrong" -ne 0 ]; then
        report NO BLAS "OpenBLAS $version multiplies wrongly: $wrong of 21 elements" "is it built for this CPU?"
    elif [ "$parallel" -ne 2 ]; then
        report -- BLAS "OpenBLAS $version is not its OpenMP build: up to 10 times slower; $speed"
        missing libopenblas-openmp-dev
    else
        report ok BLAS "OpenBLAS $version, OpenMP, $of: right numbers, $speed"
    fi
fi

# ---- Other libraries and programs ----
library() {             # library NAME HEADER FLAG PACKAGE
    if printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <%s>
int main(void) { return 0; }\n' "$2" | within_stdin $CC -x c - $3 -o "$dir/library"; then
        report ok "$1" "<$2>, $3"
    else
        report NO "$1" "<$2> or $3 is missing"
        missing "$4"
    fi
}
within_stdin() {
    timeout -k 1 5 "$@" >"$dir/out" 2>"$dir/err"
}
library cJSON cjson/cJSON.h -lcjson libcjson-dev
library cmocka cmocka.h -lcmocka libcmocka-dev
if within 3 gnuplot --version; then
    report ok gnuplot "$(head -n 1 "$dir/out")"
else
    report -- gnuplot "not in PATH: no \"make figures\"; everything else runs"
    missing gnuplot-nox
fi

# ---- GPUs ----
gpus=0 gpu="" gpu_works="" cuda_driver="" cuda="" gpu_todo=""
if [ -n "$NVCC" ] && within 3 "$NVCC" --version; then
    cuda=$(sed -n 's/.*release \([0-9.]*\),.*/\1/p' "$dir/out")
fi
if within 3 nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version --format=csv,noheader,nounits &&
    grep -E ', [0-9]+\.[0-9]+, ' "$dir/out" >"$dir/all"; then
    within 6 tests/workshop/gpus.sh $NVCC
    built=$(cat "$dir/out")
    lowest=$(echo "$built" | tr ' ' '\n' | sed -nE 's/^(sm|compute)_//p' | sort -n | head -n 1)
    awk -F ', *' -v lowest="${lowest:-0}" '10 * $3 >= lowest' "$dir/all" >"$dir/gpus"
    left_out=$(awk -F ', *' -v lowest="${lowest:-0}" '10 * $3 < lowest {print $1}' "$dir/all" | sort -u | tr '\n' ,)
    gpus=$(wc -l <"$dir/gpus")
    gpu=$(head -n 1 "$dir/gpus" | cut -d , -f 1)
    gpu_bytes=$(($(head -n 1 "$dir/gpus" | cut -d , -f 2 | tr -dc 0-9) * 1048576))
    capability=$(cut -d , -f 3 "$dir/gpus" | tr -d ' ' | sort -V | head -n 1)
    driver=$(head -n 1 "$dir/gpus" | cut -d , -f 4 | tr -d ' ')
    within 3 nvidia-smi && cuda_driver=$(sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9.]*\).*/\1/p' "$dir/out" | head -n 1)
    found="$gpus x $gpu, $(gb "$gpu_bytes"), sm_$(echo "$capability" | tr -d .), driver $driver (CUDA $cuda_driver)"
    toolkit="from NVIDIA's packages (https://developer.nvidia.com/cuda-downloads): sudo apt-get install \
cuda-toolkit-$(echo "$cuda_driver" | tr . -)"
    if [ -z "$lowest" ]; then
        report -- GPU "$found, but everything runs on the CPU: $built"
        [ -n "$cuda" ] || echo "              -> is there a /usr/local/cuda/bin?"
        above 7.5 "$capability" || gpu_todo=$toolkit
    elif [ -n "$cuda_driver" ] && above "${cuda%%.*}" "${cuda_driver%%.*}"; then
        report -- GPU "$found, but this driver is too old for nvcc of CUDA $cuda: programs will not start" \
            "a newer driver, or CUDA ${cuda_driver%%.*}"
        gpu_todo=$toolkit
    else
        gpu_works=yes
        report ok GPU "$found; nvcc of CUDA $cuda builds for $built"
        [ -z "$left_out" ] || echo "              -> older, not used: ${left_out%,}"
    fi
else
    [ -z "$late" ] || late="nvidia-smi gives $late"
    report -- GPU "${late:-$(grep -m 1 . "$dir/out" || echo "no NVIDIA GPU found (nvidia-smi)")}: everything runs on the CPU"
    [ -z "$wsl" ] || [ ! -e /usr/lib/wsl/lib/nvidia-smi ] || echo "              -> export PATH=\$PATH:/usr/lib/wsl/lib"
fi
nccl=$(printf '#include <nccl.h>\nversion NCCL_MAJOR.NCCL_MINOR.NCCL_PATCH\n' |
    $CC $NCCL_CFLAGS -E -P - 2>/dev/null | sed -n 's/^version//p' | tr -d ' ')
if [ "$NCCL" = yes ]; then
    report ok NCCL "nccl.h $nccl"
elif [ -n "$nccl" ]; then
    report -- NCCL "nccl.h is of $nccl, but 2.17 or later is needed: ranks on GPUs communicate over MPI, which is slower" \
        "NCCL_HOME=DIR, if a newer one is elsewhere"
else
    report -- NCCL "no nccl.h: ranks on GPUs communicate over MPI, through the host's memory, which is slower" \
        "NCCL_HOME=DIR, if it is elsewhere"
fi

# ---- Cores, memory, disk ----
cpus=$cores
quota=$(sed -n 's/^\([0-9]*\) \([0-9]*\)$/\1 \2/p' "$CGROUP/cpu.max" 2>/dev/null |
    awk '{print int(($1 + $2 - 1) / $2)}')
[ -n "$quota" ] || quota=$(paste -d ' ' "$CGROUP/cpu/cpu.cfs_quota_us" "$CGROUP/cpu/cpu.cfs_period_us" 2>/dev/null |
    awk '$1 > 0 {print int(($1 + $2 - 1) / $2)}')
if [ -n "$quota" ] && [ "$quota" -lt "$cores" ]; then
    cpus=$quota
    report -- cores "$cores are visible, but this control group (container) may use only $quota at a time" \
        "use --threads $quota, or fewer with several ranks: programs count the visible cores"
else
    report ok cores "$cores: up to $cores rank$(plural "$cores") with one core each; more are slower, but correct"
fi
load=$(cut -d ' ' -f 1 "$PROC/loadavg" 2>/dev/null)
if [ "${load%%.*}" -gt "$cpus" ] 2>/dev/null; then
    report -- load "this machine is busy (load $load): times and GFLOP/s will be worse than on an idle one"
fi
total=$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' "$PROC/meminfo" 2>/dev/null || echo 0) * 1024))
available=$(($(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' "$PROC/meminfo" 2>/dev/null || echo 0) * 1024))
limit=$(number "$CGROUP/memory.max") used=$(number "$CGROUP/memory.current") kinds=$CGROUP/memory.stat of=""
[ -n "$limit" ] || {
    limit=$(number "$CGROUP/memory/memory.limit_in_bytes")
    used=$(number "$CGROUP/memory/memory.usage_in_bytes")
    kinds=$CGROUP/memory/memory.stat of=total_
}
# cached files do not count: the kernel drops them when memory is needed
cached=$(awk -v of="$of" '$1 == of "inactive_file" || $1 == of "active_file" {sum += $2}
    END {printf "%.0f", sum}' "$kinds" 2>/dev/null)
[ -z "$used" ] || [ "${cached:-0}" -gt "$used" ] || used=$((used - ${cached:-0}))
limited=""
if [ -n "$limit" ] && [ -n "$used" ] && [ "${#limit}" -lt 16 ] && [ $((limit - used)) -lt "$available" ]; then
    available=$((limit - used))
    limited=", by the limit of the control group (container)"
fi
memory="$(gb "$available") of $(gb "$total") available$limited"
if [ "$available" -lt 1000000000 ]; then
    report NO memory "$memory: the tests need about 1 GB" "close something, or give the container or virtual machine more"
else
    report ok memory "$memory: $(parameters "$available") parameters at 16 bytes each, minus activations"
fi
case $wsl in
*2) echo "              -> more for WSL: memory=... and processors=... below [wsl2] in %UserProfile%\\.wslconfig" ;;
esac

shared=$(df -Pk "$SHARED" 2>/dev/null | awk 'NR == 2 {print $4}')
in_docker="in a container: docker run --shm-size=1g"
if [ "${shared:-0}" -lt 40960 ]; then
    report -- "$SHARED" "$((${shared:-0} / 1024)) MB: MPICH takes 4.2 MB per rank, so 8 ranks will not start" "$in_docker"
elif [ -n "$gpu_works" ] && [ "$gpus" -gt 1 ] && [ "$NCCL" = yes ] && [ "$shared" -lt 1000000 ]; then
    report -- "$SHARED" "$((shared / 1024)) MB: NCCL needs more, where GPUs have no peer access" "$in_docker"
else
    report ok "$SHARED" "$(gb $((shared * 1024))) for messages between ranks"
fi
disk=$(df -Pk . | awk 'NR == 2 {print $4}')
if [ "$disk" -lt 204800 ]; then
    report NO disk "$((disk / 1024)) MB free: build/ takes about 100 MB, and tests write 100 MB more"
else
    report ok disk "$(gb $((disk * 1024))) free for build/"
fi

# ---- In plain words ----
echo
[ "$cpus" -lt 8 ] && several="with up to $cpus rank$(plural "$cpus") at full speed, with up to 8 for correctness"
[ "$cpus" -lt 8 ] || several="with up to $cpus ranks at full speed"
if [ "$status" -ne 0 ]; then
    echo "Not yet: fix the lines with NO first."
elif [ -n "$gpu_works" ]; then
    room="$(parameters "$gpu_bytes") parameters per GPU"
    if [ "$gpus" -eq 1 ]; then
        echo "On the GPU '$gpu': all ten programs (make run STAGE=NN), $room; ranks of 03 to 07, 09, 10 (NP=2) share it."
    elif [ "$NCCL" = yes ]; then
        echo "On $gpus GPUs '$gpu': all ten programs, $room; 03 to 07, 09, 10 with up to $gpus ranks, one GPU each," \
            "over NCCL."
    else
        echo "On $gpus GPUs '$gpu': all ten programs, $room; 03 to 07, 09, 10 with up to $gpus ranks, one GPU each," \
            "without NCCL."
    fi
    echo "On the CPU: 01, 02 and 08 on $cpus core$(plural "$cpus"), 03 to 07, 09 and 10 $several."
else
    echo "On the CPU: 01, 02 and 08 on $cpus core$(plural "$cpus"), 03 to 07, 09 and 10 $several."
fi
if [ "$status" -eq 0 ]; then
    [ "$cpus" -ge 2 ] && echo "make run: yes. make test: yes, about 5 minutes."
    [ "$cpus" -ge 2 ] || echo "make run: yes. make test: yes, about 10 minutes on one core."
fi
if [ -n "$packages" ]; then
    if command -v apt-get >/dev/null; then
        echo "To install (\"make deps\" does it): sudo apt-get install $packages"
    else
        tests/workshop/deps.sh | sed 's/^missing:/To install:/'
    fi
fi
[ -z "$gpu_todo" ] || echo "For the GPU, $gpu_todo"
[ -z "$gpu_works" ] || [ "$gpus" -lt 2 ] || [ "$NCCL" = yes ] ||
    echo "For NCCL, from the packages of NVIDIA: sudo apt-get install libnccl2 libnccl-dev"
exit $status
