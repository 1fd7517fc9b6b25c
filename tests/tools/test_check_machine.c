/* make check-machine and make deps on machines that are simulated by a PATH with some programs replaced or left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness.h"

/* Puts a file into the temporary directory. */
static void put(const char *name, const char *text)
{
    chmod(write_file(name, text, strlen(text)), 0755);
}

#define SH "#!/bin/sh\n"
#define SMI(GPUS, CUDA) SH "gpus() { printf '" GPUS "'; }\ncase $1 in -L) gpus | sed 's/^/GPU 0: /' ;;\n" \
    "*=compute_cap) gpus | cut -d , -f 3 | tr -d ' ' ;; --query*) gpus ;; *) echo '| CUDA " CUDA " |' ;; esac\n"
#define NVCC(CUDA) SH "case $1 in --list*) printf 'compute_61\\ncompute_75\\ncompute_90\\ncompute_89\\n' ;; " \
    "*) echo 'release " CUDA ",' ;; esac\n"

/* A machine is a list of these directories, searched in order. `bin`, which all machines have, has the programs of this
 * PATH except six, which other directories replace; `real` has three of those six. */
static int make_directories(void **state)
{
    run_well("mkdir bin real alone one_gpu old_gpu mixed old_nvcc noble repaired offline nccl old_nccl");
    put("link.sh", "IFS=:\nfor d in $PATH; do ln -s \"$d\"/* bin/; done 2>/dev/null\n"
                   "for f in mpicc mpiexec gnuplot; do\n"
                   "printf '#!/bin/sh\\nexec %s \"$@\"\\n' \"$(command -v $f)\" >real/$f\nchmod +x real/$f\ndone\n"
                   "for f in mpicc mpiexec gnuplot nvidia-smi nvcc dpkg-query; do rm -f bin/$f; done\n");
    result_free(run("sh link.sh"));
    put("alone/mpiexec", SH "shift 2\n\"$@\"\n\"$@\"\n");       /* each rank is rank 0 of 1 */
    put("alone/dpkg-query", SH "echo ${MPICH-4.2.0-5build3}\n");
    put("one_gpu/nvidia-smi", SMI("Tesla T4, 15360 MiB, 7.5, 550.54\\n", "Version: 12.4"));
    put("one_gpu/nvcc", NVCC("12.6"));
    put("old_gpu/nvidia-smi", SMI("GeForce GTX 1080, 8192 MiB, 6.1, 550.54\\n", "Version: 12.4"));
    put("mixed/nvidia-smi", SMI("GeForce GTX 1080, 8192, 6.1, 550.54\\nRTX 4090, 24564, 8.9, 550.54\\n"
                                "RTX 5090, 32607, 12.0, 550.54\\n", "Version: 12.4"));
    put("old_nvcc/nvcc", NVCC("11.8"));
    /* Ubuntu 24.04, and with a later MPICH */
    put("noble/id", SH "echo 0\n");
    put("noble/apt-get", SH "echo apt-get \"$@\" >&2\n");
    put("noble/apt-cache", SH "echo '  Candidate: 4.2.0-5build3'\n");
    put("noble/dpkg-query", SH "echo 4.2.0-5build3\n");
    put("repaired/apt-cache", SH "echo '  Candidate: 4.2.0-5ubuntu1'\n");
    put("offline/apt-get", SH "exit 100\n");
    /* an OpenBLAS whose threading is as the environment says, with the kernels of one processor */
    put("blas.c", "#include <stdlib.h>\nchar *openblas_get_config(void) { return \"OpenBLAS 0.3.99 \"; }\n"
                  "int openblas_get_parallel(void) { return atoi(getenv(\"PARALLEL\")); }\n"
                  "char *openblas_get_corename(void) { return \"Haswell\"; }\nvoid cblas_sgemm(void) {}\n");
    run_well("gcc -w -shared -fPIC blas.c -o libopenblas.so");
    put("nccl/nccl.h", "typedef struct { int maxCTAs; } ncclConfig_t; typedef enum { ncclBfloat16 } ncclDataType_t;\n");
    put("old_nccl/nccl.h", "\n");
    /* make.sh DIRECTORIES ARGUMENT...: make there */
    put("make.sh", "path=''\nfor d in $1; do path=$path$PWD/$d:; done\nshift\n"
                   "exec env -u MAKEFLAGS -u MAKELEVEL -u SANITIZE PATH=$path$PWD/bin make --no-print-directory -C "
                   SOURCE " \"$@\"\n");
    return 0;
}

static void limits_are_no_failures(void **state)
{
    expect(run("env PARALLEL=2 OPENBLAS_CORETYPE=haswell sh make.sh 'real one_gpu' check-machine BLAS_LIBS=%s "
               "NCCL_CFLAGS=-I%s", in_temporary("libopenblas.so"), in_temporary("nccl")), 0,
           "ok  packages  all are installed\n|ok  MPI       |: 2 ranks see each other\n|"
           "ok  BLAS      OpenBLAS 0.3.99, OpenMP, Haswell kernels\n|"
           "ok  GPU       1 x Tesla T4, 15360 MiB, 7.5, 550.54: nvcc builds for sm_75\n|ok  NCCL      nccl.h|"
           "make run: yes. make test: yes, about");
    expect(run("env PARALLEL=2 OPENBLAS_CORETYPE=SkylakeX sh make.sh real check-machine BLAS_LIBS=%s",
               in_temporary("libopenblas.so")), 0,
           "--  BLAS      OpenBLAS 0.3.99 takes Haswell kernels, since it has no SkylakeX kernels\n");
    unlink(in_temporary("real/gnuplot"));
    expect(run("env PARALLEL=1 sh make.sh 'real old_gpu' check-machine BLAS_LIBS=%s NCCL_CFLAGS=-I%s",
               in_temporary("libopenblas.so"), in_temporary("old_nccl")), 0,
           "--  packages  missing, but only tests and figures need them: gnuplot-nox|"
           "--  NCCL      no nccl.h of 2.17 or later|--  BLAS      OpenBLAS 0.3.99 is not its OpenMP build|"
           "6.1, 550.54, but everything runs on the CPU: nvcc, of the NVIDIA CUDA toolkit, is not in PATH\n");
}

static void what_fails_is_named(void **state)
{
    expect(run("sh make.sh 'alone real' check-machine"), FAILS,
           "NO  MPI       each of 2 ranks is rank 0 of 1: this is the broken MPICH 4.2.0-5build3 of Ubuntu 24.04\n|"
           "Not yet: fix the lines with NO first.\n");
    expect(run("env MPICH=4.1 sh make.sh 'alone real' check-machine"), FAILS, "rank 0 of 1: mpicc and mpiexec (");
    expect(run("sh make.sh one_gpu check-machine"), FAILS,
           "NO  packages  missing: |NO  MPI       no MPI program compiles");
}

/* GPUs that nvcc of CUDA 12 can build for are used, and in one line each, why others are not. */
static void gpus_are_used_if_they_can_be(void **state)
{
    expect(run("sh make.sh 'real mixed one_gpu' -n run"), 0,
           " -gencode=arch=compute_89,code=compute_89 -gencode=arch=compute_89,code=sm_89 "
           "-gencode=arch=compute_90,code=compute_90\"|"
           "\nbuild/cuda/01_single_gpu --steps");
    expect(run("sh make.sh 'real old_nvcc one_gpu' -n run"), 0,
           "running on the CPU: nvcc is of CUDA 11.8, but 12.0 or later is needed\"\n|"
           "\nbuild/cpu/01_single_gpu --steps");
    expect(run("sh make.sh 'real old_gpu one_gpu' -n run"), 0,
           "running on the CPU: the GPUs here (sm_61) are older than Turing (sm_75)\"\n");
    expect(run("sh make.sh real test-cuda"), FAILS, "test-cuda: no GPU is found; \"make test\" has these tests on a ");
    expect(run("sh make.sh 'real old_gpu one_gpu' bench-cuda"), FAILS,
           "bench-cuda: the GPUs here (sm_61) are older than Turing (sm_75); \"make bench\" measures the CPU\n");
    expect(run("sh make.sh 'real old_nvcc' cuda"), FAILS,
           "cuda: nvcc is of CUDA 11.8, but 12.0 or later is needed; \"make cpu\" builds for the CPU\n");
}

/* What is missing is installed, and nothing else: MPICH where there is no MPI, but not a broken one. */
static void what_is_missing_is_installed(void **state)
{
    expect(run("sh make.sh noble deps-run"), 0,
           "MPICH 4.2.0-5build3 of this distribution is broken: Open MPI takes its place\n|"
           "installing openmpi-bin libopenmpi-dev\n|apt-get update -qq\n|"
           "apt-get install -y -qq --no-install-recommends openmpi-bin libopenmpi-dev\n");
    expect(run("sh make.sh 'repaired noble' deps"), 0,
           "installing mpich libmpich-dev gnuplot-nox libmpich-dev libmpich12\n");
    expect(run("sh make.sh 'offline noble' deps-run"), FAILS,
           "missing: mpich libmpich-dev; apt-get update failed\n|conda install -c conda-forge mpich openblas cjson ");
}

/* A program may run on another machine than the one that built it: without that machine's instructions (zmm registers
 * are AVX-512's), and with the text of the tree that it lies in. */
static void programs_may_be_moved(void **state)
{
    put("portable.sh", "file=cpu/obj/common/transformer/cpu/attention.o\n"
                       "sh make.sh real PORTABLE=1 BUILD=$PWD $PWD/$file || exit 1\n"
                       "! grep march=native cpu/flags && ! objdump -d $file | grep zmm\n");
    run_well("sh portable.sh");
    run_well("sh -c 'mkdir -p moved/build/cpu moved/01_single_gpu && cp " BUILD "/cpu/01_single_gpu moved/build/cpu && "
             "head -c 100000 " SOURCE "/01_single_gpu/shakespeare.txt > moved/01_single_gpu/shakespeare.txt'");
    expect(run("moved/build/cpu/01_single_gpu --preset tiny --steps 1"), 0,
           "/moved/01_single_gpu/shakespeare.txt: text, one token per byte: 90,000 training");
    run_well("rm -r moved/01_single_gpu");
    expect(run("moved/build/cpu/01_single_gpu --preset tiny --steps 1"), 0,
           "data    " SOURCE "/01_single_gpu/shakespeare.txt: text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_no_failures), cmocka_unit_test(what_fails_is_named),
        cmocka_unit_test(gpus_are_used_if_they_can_be), cmocka_unit_test(what_is_missing_is_installed),
        cmocka_unit_test(programs_may_be_moved),
    };
    return cmocka_run_group_tests(tests, make_directories, NULL);
}
