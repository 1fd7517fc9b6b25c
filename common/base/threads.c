#include "threads.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "error.h"

static const char *reason = "";

void threads_set(int wanted, int cores)
{
    const int limit = omp_get_thread_limit();
    const char *text = getenv("OMP_NUM_THREADS");               /* "4", or "4,2": by level of nesting */
    const int number = text ? atoi(text) : 0;

    /* a product of OpenBLAS shares its work among all threads of which it knows, and would wait for the missing ones */
    if (wanted > limit)
        fail_usage("--threads: expected at most OMP_THREAD_LIMIT %d, got %d", limit, wanted);
    int threads = wanted ? wanted : cores;
    if (!wanted && number > 0 && number == omp_get_max_threads())       /* OpenMP ignores any other text */
        threads = number, reason = " (OMP_NUM_THREADS)";
    if (threads > limit)
        threads = limit, reason = " (OMP_THREAD_LIMIT)";
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
}

const char *threads_text(void)
{
    static char text[64];
    const int threads = omp_get_max_threads();

    snprintf(text, sizeof text, "%d thread%s%s", threads, threads == 1 ? "" : "s", reason);
    return text;
}

/* Where OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set, OpenMP has bound this thread to the first of its places;
 * its other threads will have the others. */
cpu_set_t threads_cores(void)
{
    cpu_set_t cores;

    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    for (int place = 0; place < omp_get_num_places(); place++) {
        const int count = omp_get_place_num_procs(place);
        int core[count + 1];
        omp_get_place_proc_ids(place, core);
        for (int i = 0; i < count; i++)
            CPU_SET(core[i], &cores);
    }
    return cores;
}
