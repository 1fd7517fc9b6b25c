/* "book schedule": draws a schedule of 06. */
#include <stdlib.h>
#include <string.h>

#include "../../../06_pipeline_parallel/simulation.h"
#include "../../../common/error.h"

void schedule(int count, char **pair);

/* One rank draws; none of the functions that these pages call waits for another. */
Comm *world;
int comm_rank(const Comm *comm)
{
    (void)comm;
    return 0;
}

static int integer(const char *name, const char *text, int most)
{
    char *end;
    const long value = strtol(text, &end, 10);

    if (!*text || *end || value < 1 || value > most)
        fail_usage("--%s: expected an integer from 1 to %d, got '%s'", name, most, text);
    return value;
}

void schedule(int count, char **pair)
{
    static const char *const kinds[] = {"afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"};
    Pipeline pipe = {.kind = ONE_F_ONE_B, .p = 4, .m = 8, .v_c = 1};
    const char *times = NULL;

    for (int i = 0; i < count; i++) {
        char *value = strchr(pair[i], '=');
        *value++ = 0;
        if (!strcmp(pair[i], "kind"))
            for (int k = AFAB; k <= DUALPIPE_V; k++)
                pipe.kind = strcmp(value, kinds[k]) ? pipe.kind : (ScheduleKind)k;
        else if (!strcmp(pair[i], "times"))
            times = value;
        else
            *(*pair[i] == 'r' ? &pipe.p : *pair[i] == 'm' ? &pipe.m : &pipe.v_c) = integer(pair[i], value, 64);
    }
    pipe.layers = 2 * pipe.p * pipe.v_c;
    pipeline_check(&pipe);
    const Simulation s = simulate(pipe, times_of(times), stdout);
    simulation_print(&s);
}
