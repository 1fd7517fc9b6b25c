/* How many threads a rank has, and OpenBLAS's kernels, on machines that are simulated by variables and by a preloaded
 * library. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness.h"

#define ONE BUILD "/cpu/01_single_gpu " SHAPE
#define TWO "mpiexec -n 2 env %s " BUILD "/cpu/03_data_parallel " SHAPE
#define SHAPE "--layers 1 --hidden 8 --heads 1 --seq 8 --steps 0"
#define FAST " --pretend 1e6,1e6,0"             /* saves measuring this machine */

/* "2 threads", of as many cores as this machine has. */
static const char *all_cores(void)
{
    static char text[32];
    const int cores = omp_get_num_procs();

    snprintf(text, sizeof text, "%d thread%s", cores, cores == 1 ? "" : "s");
    return text;
}

/* --threads counts, then OMP_NUM_THREADS, as far as OpenMP accepts it, then the cores. */
static void threads_are_those_asked_for(void **state)
{
    char words[64];

    expect(run("env OMP_NUM_THREADS=3 " ONE FAST), 0, "\ndevice  3 threads (OMP_NUM_THREADS) of ");
    expect(run("env OMP_NUM_THREADS=3,2 " ONE FAST), 0, "\ndevice  3 threads (OMP_NUM_THREADS) of ");
    expect(run("env OMP_NUM_THREADS=3 " ONE FAST " --threads 1"), 0, "\ndevice  1 thread of ");
    expect(run(TWO FAST, "OMP_NUM_THREADS=3"), 0, "\ndevice  3 threads (OMP_NUM_THREADS) of |kernels per rank, ");
    snprintf(words, sizeof words, "\ndevice  %s of ", all_cores());
    expect(run(ONE FAST), 0, words);
    expect(run("env OMP_NUM_THREADS=many " ONE FAST), 0, words);
}

/* OpenBLAS would wait forever for a thread that OpenMP does not give it. */
static void the_limit_of_threads_holds(void **state)
{
    expect(run("timeout -k 1 20 env OMP_THREAD_LIMIT=1 " ONE " --threads 2"), 2,
           "01_single_gpu: --threads: expected at most OMP_THREAD_LIMIT 1, got 2\n");
    expect(run("timeout -k 1 20 env OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=2 " ONE), 0,
           "\ndevice  1 thread (OMP_THREAD_LIMIT) of ");
    expect(run("timeout -k 1 20 env OMP_THREAD_LIMIT=1 " BUILD "/cpu/ladder --size 64 --threads 2"), 2,
           "ladder: --threads: expected at most OMP_THREAD_LIMIT 1, got 2\n");
}

/* Variables that bind threads to cores take no core from a rank. Of several ranks they bind the first threads to one
 * core: a line says so. */
static void bound_threads_have_all_cores(void **state)
{
    static const char *const variables[] = {"OMP_PROC_BIND=true", "OMP_PLACES=threads"};
    char words[64];

    if (omp_get_num_procs() == 1) {
        print_message("this machine has one core, to which everything is bound\n");
        skip();
    }
    snprintf(words, sizeof words, "\ndevice  %s of ", all_cores());
    for (int i = 0; i < 2; i++) {
        expect(run("env %s " ONE FAST, variables[i]), 0, words);
        expect(run(TWO FAST, variables[i]), 0,
               "03_data_parallel: the ranks of a machine bind their threads to the same cores (OMP_PROC_BIND, "
               "OMP_PLACES or GOMP_CPU_AFFINITY is set), and so wait for each other: set OMP_PROC_BIND=false\n");
        Result r = run(TWO FAST, "OMP_PROC_BIND=false OMP_PLACES=threads");
        assert_null(strstr(r.err, "the same cores"));
        expect(r, 0, "\ndevice  ");
    }
}

/* ---- Kernels ---- */

/* Preloaded, it says that OpenBLAS takes the kernels that OPENBLAS_CORETYPE names, without it those of a Pentium 4; or
 * that it has no others than KERNELS. Each start of a program that is called 01 or 03 (of no helper of MPI) adds a line
 * to the file `starts`. */
static const char fake[] =
    "#define _GNU_SOURCE\n"
    "#include <errno.h>\n"
    "#include <fcntl.h>\n"
    "#include <stdlib.h>\n"
    "#include <unistd.h>\n"
    "char *openblas_get_corename(void)\n"
    "{\n"
    "    char *only = getenv(\"KERNELS\"), *chosen = getenv(\"OPENBLAS_CORETYPE\");\n"
    "    return only ? only : chosen ? chosen : \"Prescott\";\n"
    "}\n"
    "__attribute__((constructor)) static void start(void)\n"
    "{\n"
    "    if (*program_invocation_short_name == '0')\n"
    "        write(open(\"starts\", O_WRONLY | O_CREAT | O_APPEND, 0600), \"\\n\", 1);\n"
    "}\n";

/* Checks how often a program starts with these variables, on one rank or two, and what it prints. */
static void check(int ranks, const char *variables, int starts, const char *words)
{
    char all[512];

    snprintf(all, sizeof all, "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 LD_PRELOAD=%s %s",
             in_temporary("fake.so"), variables);
    result_free(run("rm -f starts"));
    if (ranks == 1)
        expect(run("timeout -k 1 20 env %s " ONE FAST " --metrics 'a b.csv'", all), 0, words);
    else
        expect(run(TWO FAST, all), 0, words);
    char *text = read_file("starts");
    if ((int)strlen(text) != starts)
        fail_msg("with \"%s\" %d rank(s) started %zu times instead of %d", variables, ranks, strlen(text), starts);
    free(text);
}

static void kernels_are_those_of_the_processor(void **state)
{
    const char *best = NULL;
    char words[128];

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        best = __builtin_cpu_supports("avx512vl") ? "SkylakeX" : "Haswell";
#endif
    if (!best) {
        print_message("this processor has no AVX2: no kernels of OpenBLAS are too old for it\n");
        skip();
    }
    write_file("fake.c", fake, strlen(fake));
    run_well("gcc -w -shared -fPIC fake.c -o fake.so");
    /* better ones are chosen by starting again, with the same arguments, on the same cores, in every rank */
    snprintf(words, sizeof words, "\ndevice  %s of | with %s kernels, ", all_cores(), best);
    check(1, "", 2, words);
    run_well("test -e 'a b.csv'");
    check(1, "OMP_PROC_BIND=true", 2, words);
    snprintf(words, sizeof words, " with %s kernels per rank, ", best);
    check(2, "", 4, words);
    /* not more than once, not against the user's choice, and not where OpenBLAS has chosen well */
    check(1, "KERNELS=Prescott", 2, " with Prescott kernels, ");
    check(1, "OPENBLAS_CORETYPE=Nehalem", 1, " with Nehalem kernels, ");
    check(1, "KERNELS=Haswell", 1, " with Haswell kernels, ");
    check(1, "KERNELS=Later", 1, " with Later kernels, ");
}

int main(void)
{
    static const char *const variables[] = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES",
                                            "GOMP_CPU_AFFINITY", "OPENBLAS_CORETYPE"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_those_asked_for),
        cmocka_unit_test(the_limit_of_threads_holds),
        cmocka_unit_test(bound_threads_have_all_cores),
        cmocka_unit_test(kernels_are_those_of_the_processor),
    };

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);                 /* a test sets them itself */
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
