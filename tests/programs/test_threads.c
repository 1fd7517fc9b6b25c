/* How many threads a rank has, by options and variables. */
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
    expect(run(TWO FAST, "OMP_NUM_THREADS=3"), 0, "\ndevice  3 threads (OMP_NUM_THREADS) of | per rank, ");
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

int main(void)
{
    static const char *const variables[] = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES",
                                            "GOMP_CPU_AFFINITY"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_those_asked_for),
        cmocka_unit_test(the_limit_of_threads_holds),
        cmocka_unit_test(bound_threads_have_all_cores),
    };

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);                 /* a test sets them itself */
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
