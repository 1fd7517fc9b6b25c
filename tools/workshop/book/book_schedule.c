/* "book schedule": draws a schedule of 06. */
#include <stdlib.h>
#include <string.h>

#include "../../../06_pipeline_parallel/simulation.h"
#include "../../../common/base/error.h"

void schedule(int count, char **name, char **value);

/* One rank draws; none of the functions that these pages call waits for another. */
Comm *world;
int comm_rank(const Comm *comm)
{
    (void)comm;
    return 0;
}

void schedule(int count, char **name, char **value)
{
    static const char *const kinds[] = {"afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"};
    Pipeline pipe = {.kind = ONE_F_ONE_B, .p = 4, .m = 8, .v_c = 1};
    const char *times = NULL;

    for (int i = 0; i < count; i++) {
        int *const number = *name[i] == 'r' ? &pipe.p : *name[i] == 'm' ? &pipe.m : &pipe.v_c;
        if (!strcmp(name[i], "times"))
            times = value[i];
        else if (strcmp(name[i], "kind"))
            *number = atoi(value[i]);
        for (int k = AFAB; k <= DUALPIPE_V; k++)
            pipe.kind = strcmp(value[i], kinds[k]) ? pipe.kind : (ScheduleKind)k;
    }
    if (pipe.p < 1 || pipe.p > 64 || pipe.m < 1 || pipe.m > 64 || pipe.v_c < 1 || pipe.v_c > 64)
        fail_usage("expected ranks, micro-batches and chunks from 1 to 64, got %d, %d, %d", pipe.p, pipe.m, pipe.v_c);
    pipe.layers = 2 * pipe.p * pipe.v_c;
    pipeline_check(&pipe);
    const Simulation s = simulate(pipe, times_of(times), stdout);
    simulation_print(&s);
}
