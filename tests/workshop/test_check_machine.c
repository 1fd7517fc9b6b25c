/* make check-machine reports what is installed, what is missing and what to do about it. The tests simulate machines by
 * a PATH with some programs replaced or left out, and by copies of the kernel's files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness.h"

/* Puts a file into the temporary directory. */
static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_temporary(name), "w");

    if (!f || fputs(text, f) < 0 || fclose(f))
        fail_msg("cannot write %s", name);
    chmod(in_temporary(name), 0755);
}

#define SH "#!/bin/sh\n"
#define SMI(GPUS, CUDA) SH "gpus() { printf '" GPUS "'; }\ncase $1 in -L) gpus | sed 's/^/GPU 0: /' ;;\n" \
    "*=compute_cap) gpus | cut -d , -f 3 | tr -d ' ' ;; --query*) gpus ;; *) echo '| CUDA " CUDA " |' ;; esac\n"
#define NVCC(CUDA) SH "case $1 in --list*) printf 'compute_61\\ncompute_75\\ncompute_90\\ncompute_89\\n' ;; " \
    "*) echo 'release " CUDA ",' ;; esac\n"
/* starts each rank as rank 0 of 1, like a launcher of another MPI library */
#define MPIEXEC(NAME) SH "[ $1 = -n ] || { echo '" NAME "'; exit; }\nshift 2\n\"$@\"\n\"$@\"\n"

/* A machine is a list of these directories, searched in order. `bin`, which all machines have, has the programs of this
 * PATH except six, which other directories replace; `real` has three of those six. */
static int make_directories(void **state)
{
    (void)state;
    run_well("mkdir bin real alone foreign one_gpu two_gpus old_driver old_gpu mixed old_nvcc broken "
             "small hangs proc free limited repaired old_nccl no_nccl");
    put("link.sh", "IFS=:\nfor d in $PATH; do ln -s \"$d\"/* bin/; done 2>/dev/null\n"
                   "for f in mpicc mpiexec gnuplot; do\n"
                   "printf '#!/bin/sh\\nexec %s \"$@\"\\n' \"$(command -v $f)\" >real/$f\nchmod +x real/$f\ndone\n"
                   "for f in mpicc mpiexec gnuplot nvidia-smi nvcc dpkg-query; do rm -f bin/$f; done\n");
    result_free(run("sh link.sh"));
    put("alone/mpiexec", MPIEXEC("HYDRA build details:"));
    put("alone/dpkg-query", SH "echo 4.2.0-5build3\n");
    put("repaired/apt-cache", SH "printf 'libmpich12:\\n  Candidate: 4.2.0-5ubuntu1\\n'\n");
    put("repaired/apt-get", SH "echo apt-get \"$@\" >>apt\n");
    put("repaired/sudo", SH "exec \"$@\"\n");
    put("foreign/mpiexec", MPIEXEC("mpiexec (OpenRTE) 4.1.4"));
    put("one_gpu/nvidia-smi", SMI("Tesla T4, 15360, 7.5, 550.54\\n", "Version: 12.4"));
    put("one_gpu/nvcc", NVCC("12.6"));
    put("two_gpus/nvidia-smi", SMI("NVIDIA H200, 143771, 9.0, 610.43\\nNVIDIA H200, 143771, 9.0, 610.43\\n",
                                   "UMD Version: 13.3"));
    put("two_gpus/nvcc", NVCC("13.0"));
    put("small/df", SH "echo\necho x x x $([ $2 = / ] && echo 65536 || echo 9999999)\n");
    /* nccl.h that is too old, and one that hides any other */
    put("old_nccl/nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 16\n#define NCCL_PATCH 5\n");
    put("no_nccl/nccl.h", "#include <no-such-header.h>\n");
    put("old_driver/nvidia-smi", SMI("Tesla T4, 15360, 7.5, 470.82\\n", "Version: 11.4"));
    put("old_driver/nvcc", NVCC("12.2"));
    put("old_gpu/nvidia-smi", SMI("GeForce GTX 1080, 8192, 6.1, 550.54\\n", "Version: 12.4"));
    put("mixed/nvidia-smi", SMI("GeForce GTX 1080, 8192, 6.1, 550.54\\nRTX 4090, 24564, 8.9, 550.54\\n"
                                "RTX 5090, 32607, 12.0, 550.54\\n", "Version: 12.4"));
    put("broken/nvidia-smi", SH "echo 'NVIDIA-SMI has failed, because it does not reach the driver'\n");
    put("old_nvcc/nvcc", NVCC("11.8"));
    put("hangs/nvidia-smi", SH "sleep 60\n");
    put("hangs/mpiexec", SH "[ $1 = -n ] || { echo HYDRA build details:; exit; }\nsleep 60\n");

    put("proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2\n");
    put("proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n");
    put("proc/cpuinfo", "flags : fpu sse2 avx avx2 fma\n");
    put("proc/loadavg", "0.10 0.20 0.30 1/100 4242\n");
    put("limited/cpu.max", "50000 100000\n");
    put("limited/memory.max", "3000000000\n");
    put("limited/memory.current", "1500000000\n");
    put("limited/memory.stat", "anon 900000000\ninactive_file 400000000\nactive_file 100000000\n");

    /* other kinds of OpenBLAS */
    put("blas.c", "#include <stdlib.h>\n"
                  "#define GEMM(NAME, T) void NAME(int order, int ta, int tb, int m, int n, int k, T s, const T *a, "
                  "int la, const T *b, int lb, T t, T *c, int lc) {"
                  " for (int i = 0; i < m && m < 100; i++) for (int j = 0; j < n; j++) { T sum = !!getenv(\"WRONG\");"
                  " for (int p = 0; p < k; p++) sum += a[i * la + p] * b[p * lb + j]; c[i * lc + j] = sum; } }\n"
                  "GEMM(cblas_sgemm, float) GEMM(cblas_dgemm, double)\n"
                  "char *openblas_get_config(void) { return \"OpenBLAS 0.3.99 \"; }\n"
                  "char *openblas_get_corename(void) { return \"Prescott\"; }\n"
                  "int openblas_get_parallel(void) { return atoi(getenv(\"PARALLEL\")); }\n"
                  "int openblas_get_num_threads(void) { return 1; }\n");
    run_well("gcc -w -shared -fPIC blas.c -o libopenblas.so");

    /* make.sh DIRECTORIES ARGUMENT...: make there */
    put("make.sh", "path=''\nfor d in $1; do path=$path$PWD/$d:; done\nshift\n"
                   "exec env -u MAKEFLAGS -u MAKELEVEL -u SANITIZE PATH=$path$PWD/bin make --no-print-directory -C "
                   SOURCE " \"$@\"\n");
    /* machine.sh DIRECTORIES CGROUP ENVIRONMENT VARIABLE...: make check-machine there */
    put("machine.sh", "path=$1\nexport PROC=$PWD/proc CGROUP=$PWD/$2 SHARED=/ $3\nshift 3\n"
                      "exec sh make.sh \"$path\" check-machine \"$@\"\n");
    return 0;
}

static void has(const Result *r, const char *text)
{
    if (!strstr(r->out, text))
        fail_msg("not printed: %s\n%s%s", text, r->out, r->err);
}

static void lacks(const Result *r, const char *text)
{
    if (strstr(r->out, text))
        fail_msg("printed: %s\n%s%s", text, r->out, r->err);
}

static void ends_with(Result r, bool well)
{
    if ((r.status == 0) != well)
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    result_free(r);
}

static int cores(void)
{
    Result r = run("nproc");
    const int count = atoi(r.out);

    result_free(r);
    return count;
}

static void all_is_well(void **state)
{
    Result r = run("sh machine.sh 'real one_gpu' limited '' NCCL_CFLAGS=-I%s", in_temporary("no_nccl"));

    (void)state;
    has(&r, "under WSL 2");
    has(&r, "ok  MPI       MPICH");
    has(&r, " see each other\n");
    has(&r, "ok  GPU       1 x Tesla T4, 16.1 GB, sm_75, driver 550.54 (CUDA 12.4); nvcc of CUDA 12.6 builds for "
            "sm_75\n");
    has(&r, "--  NCCL      no nccl.h");
    if (cores() > 1)
        has(&r, "control group (container) may use only 1 at a time");
    has(&r, "2.0 GB of 16.4 GB available, by the limit of the control group (container): 125 million parameters");
    has(&r, "%UserProfile%\\.wslconfig");
    has(&r, "On the GPU 'Tesla T4': all ten programs (make run STAGE=NN), 1.0 billion parameters per GPU; ranks of "
            "03 to 07, 09, 10 (NP=2) share it.\n");
    has(&r, "make test: yes");
    lacks(&r, "NO  ");
    ends_with(r, true);
}

static void what_only_limits_some_things_is_no_failure(void **state)
{
    Result r = run("sh machine.sh 'small real two_gpus' free PARALLEL=2 NCCL_CFLAGS=-I%s BLAS_LIBS=%s",
                   SOURCE "/tests/fakes/nccl_2.17", in_temporary("libopenblas.so"));

    (void)state;
    has(&r, "ok  BLAS      OpenBLAS 0.3.99, OpenMP, takes this CPU for one of 2004 (Prescott), so the programs choose "
            "its kernels for Haswell: right numbers");
    has(&r, "8.2 GB of 16.4 GB available: 512 million parameters");
    has(&r, "ok  NCCL      nccl.h 2.17.1");
    has(&r, "--  /         64 MB: NCCL needs more");
    has(&r, "On 2 GPUs 'NVIDIA H200': all ten programs, 9.4 billion parameters per GPU; 03 to 07, 09, 10 with up to 2 "
            "ranks, one GPU each, over NCCL.\n");
    ends_with(r, true);

    unlink(in_temporary("real/gnuplot"));
    r = run("sh machine.sh 'real old_gpu' free PARALLEL=1 NCCL_CFLAGS=-I%s BLAS_LIBS=%s", in_temporary("old_nccl"),
            in_temporary("libopenblas.so"));
    has(&r, "--  NCCL      nccl.h is of 2.16.5, but 2.17 or later is needed");
    has(&r, "--  BLAS      OpenBLAS 0.3.99 is not its OpenMP build");
    has(&r, "--  GPU       1 x GeForce GTX 1080, 8.6 GB, sm_61, driver 550.54 (CUDA 12.4), but everything "
            "runs on the CPU: nvcc, of the NVIDIA CUDA toolkit, is not in PATH");
    has(&r, "--  gnuplot   not in PATH");
    has(&r, "On the CPU: 01, 02 and 08 on ");
    has(&r, "libopenblas-openmp-dev");
    ends_with(r, true);
}

static void ranks_that_are_alone_are_found(void **state)
{
    Result r = run("sh machine.sh 'alone real old_driver' free ''");

    (void)state;
    has(&r, "NO  MPI       each of 2 ranks is rank 0 of 1: this is the broken MPICH 4.2.0-5build3 of Ubuntu 24.04\n");
    has(&r, "--  GPU       1 x Tesla T4, 16.1 GB, sm_75, driver 470.82 (CUDA 11.4), but this driver is too old "
            "for nvcc of CUDA 12.2");
    has(&r, "Not yet: fix the lines with NO first.");
    lacks(&r, "make test: yes");
    ends_with(r, false);

    r = run("sh machine.sh 'foreign real' free 'WRONG=1 PARALLEL=2' BLAS_LIBS=%s", in_temporary("libopenblas.so"));
    has(&r, "but mpiexec to Open MPI\n");
    has(&r, "-> sudo apt-get install mpich libmpich-dev; sudo update-alternatives");
    has(&r, "NO  BLAS      OpenBLAS 0.3.99 multiplies wrongly: 21 of 21 elements");
    ends_with(r, false);
}

/* make deps, with and without a newer package in apt than the broken one. */
static void a_broken_mpich_is_repaired(void **state)
{
    Result r = run("sh -c 'PATH=repaired:alone:real:bin sh " SOURCE "/tests/workshop/deps.sh && cat apt'");

    (void)state;
    has(&r, "installing MPICH 4.2.0-5ubuntu1 in place of 4.2.0-5build3");
    has(&r, "apt-get install -y -qq --no-install-recommends libmpich12 libmpich-dev mpich\n");
    ends_with(r, true);

    put("repaired/apt-cache", SH "printf 'libmpich12:\\n  Candidate: 4.2.0-5build3\\n'\n");
    r = run("sh -c 'PATH=repaired:alone:real:bin sh " SOURCE "/tests/workshop/deps.sh'");
    has(&r, "4.2.0-5.1 is repaired. Fetch\nlibmpich12, libmpich-dev and mpich, for ");
    ends_with(r, true);
}

/* GPUs that nvcc of CUDA 12 can build for are used, and in one line each, why others are not. */
static void gpus_are_used_if_they_can_be(void **state)
{
    static const struct {
        const char *machine, *built;
    } table[] = {
        {"mixed:one_gpu", "sm_89 compute_90\n"},
        {"old_gpu:one_gpu", "the GPUs here (sm_61) are older than Turing (sm_75)\n"},
        {"old_nvcc:one_gpu", "nvcc is of CUDA 11.8, but 12.0 or later is needed\n"},
        {"broken:one_gpu", ""},
    };
    Result r;

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        r = run("sh -c 'PATH=%s:bin sh " SOURCE "/tests/workshop/gpus.sh nvcc'", table[i].machine);
        assert_string_equal(r.out, table[i].built);
        ends_with(r, true);
    }
    r = run("sh make.sh 'real mixed one_gpu' -n run");
    has(&r, " -gencode=arch=compute_89,code=compute_89 -gencode=arch=compute_89,code=sm_89 "
            "-gencode=arch=compute_90,code=compute_90\"");
    has(&r, "\nbuild/cuda/01_single_gpu --steps");
    ends_with(r, true);
    r = run("sh make.sh 'real old_nvcc one_gpu' -n run");
    has(&r, "running on the CPU: nvcc is of CUDA 11.8, but 12.0 or later is needed\"\n");
    has(&r, "\nbuild/cpu/01_single_gpu --steps");
    ends_with(r, true);
    r = run("sh make.sh 'real old_nvcc' cuda");
    has(&r, "cuda: nvcc is of CUDA 11.8, but 12.0 or later is needed; \"make cpu\" builds for the CPU\n");
    lacks(&r, "CC");
    ends_with(r, false);
    r = run("sh machine.sh 'real mixed one_gpu' free ''");
    has(&r, "ok  GPU       2 x RTX 4090, 25.8 GB, sm_89, driver 550.54 (CUDA 12.4); nvcc of CUDA 12.6 builds for sm_89 "
            "compute_90\n              -> older, not used: GeForce GTX 1080\n");
    ends_with(r, true);
    r = run("sh machine.sh 'real broken old_nvcc' free ''");
    has(&r, "--  GPU       NVIDIA-SMI has failed, because");
    ends_with(r, true);
}

static void nccl_of_2_17_is_enough(void **state)
{
    const char *place = in_temporary("build");

    (void)state;
    run_well("sh make.sh real BUILD=%s NCCL_CFLAGS=-I" SOURCE "/tests/fakes/nccl_2.17 %s/cpu64/obj/common/comm/nccl.o",
             place, place);
}

/* Two machines at the same time, each with a program that does not respond. */
static void nothing_hangs(void **state)
{
    (void)state;
    if (!full_tests())
        skip();                                 /* it waits for eight seconds */
    Result r = run("sh -c 'sh machine.sh hangs free \"\" >1 & sh machine.sh \"hangs real\" free \"\" >2; wait; "
                   "cat 1; echo == 2; cat 2'");
    char *second = strstr(r.out, "== 2");

    assert_non_null(second);
    assert_true(r.seconds < 20);                /* far less than 60; on a busy machine more than the 10 it should be */
    has(&r, "NO  MPI       mpicc is not in PATH");
    has(&r, "--  GPU       nvidia-smi gives no response in 3 s: everything runs on the CPU\n");
    has(&r, "sudo apt-get install");
    has(&r, "libmpich-dev");
    if (!strstr(second, "but mpiexec -n 2 fails: no response in 4 s\n"))
        fail_msg("mpiexec: %s", second);
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_well),
        cmocka_unit_test(what_only_limits_some_things_is_no_failure),
        cmocka_unit_test(ranks_that_are_alone_are_found),
        cmocka_unit_test(a_broken_mpich_is_repaired),
        cmocka_unit_test(gpus_are_used_if_they_can_be),
        cmocka_unit_test(nccl_of_2_17_is_enough),
        cmocka_unit_test(nothing_hangs),
    };
    return cmocka_run_group_tests(tests, make_directories, NULL);
}
