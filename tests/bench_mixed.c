/* make bench STAGE=02: a step in each type against fp32's. Types follow one another in every round, so that what
 * disturbs the machine disturbs all of them; of each type the ratio to fp32 in the same round, the median of five.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { ROUNDS = 5, STEPS = 8 };

static const char *const types[] = {"fp32", "bf16", "fp16", "fp8"};
enum { TYPES = sizeof types / sizeof *types };

static const struct {
    const char *name, *options;
} shapes[] = {
    {"L4 h256 T128 B4 v256", "--layers 4 --hidden 256 --heads 4 --vocab 256 --seq 128 --micro-batch 4"},
    {"L4 h768 T256 B4 v256", "--layers 4 --hidden 768 --heads 12 --vocab 256 --seq 256 --micro-batch 4"},
};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Seconds of a step, without the first, which warms up; and the run's peak of memory. */
static double step_of(const char *options, const char *type, double *peak)
{
    double seconds[STEPS + 1], bytes[STEPS + 1];

    run_well(BUILD "/cpu/02_mixed_precision %s --accumulate 1 --steps %d --dtype %s --quiet --metrics m.csv", options,
             STEPS + 1, type);
    const int rows = read_column(in_temporary("m.csv"), "seconds", seconds, STEPS + 1);
    read_column(in_temporary("m.csv"), "peak_bytes", bytes, STEPS + 1);
    *peak = bytes[0];
    qsort(seconds + 1, rows - 1, sizeof *seconds, ascending);
    return seconds[1 + (rows - 1) / 2];
}

int main(void)
{
    printf("%-24s %-6s %12s %10s %18s %12s\n", "shape", "type", "step", "of fp32's", "(least, most)", "peak");
    for (int s = 0; s < (int)(sizeof shapes / sizeof *shapes); s++) {
        double step[TYPES][ROUNDS], ratio[TYPES][ROUNDS], peak[TYPES];
        for (int round = 0; round < ROUNDS; round++)
            for (int t = 0; t < TYPES; t++) {
                step[t][round] = step_of(shapes[s].options, types[t], &peak[t]);
                ratio[t][round] = step[t][round] / step[0][round];
            }
        for (int t = 0; t < TYPES; t++) {
            qsort(step[t], ROUNDS, sizeof **step, ascending);
            qsort(ratio[t], ROUNDS, sizeof **ratio, ascending);
            printf("%-24s %-6s %9.1f ms %10.2f       (%.2f, %.2f) %9.1f MB\n", shapes[s].name, types[t],
                   1e3 * step[t][ROUNDS / 2], ratio[t][ROUNDS / 2], ratio[t][0], ratio[t][ROUNDS - 1], peak[t] / 1e6);
        }
    }
    return 0;
}
