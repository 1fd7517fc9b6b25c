/* make bench STAGE=02, 03, 08: the time of a step in each type, on two ranks of one thread each, or with each fusion,
 * over the first variant's. Every round runs all variants in turn, so that a disturbance affects all of them. The result
 * is the median, over five rounds, of the ratio to the first variant in the same round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { ROUNDS = 5, STEPS = 6, MOST = 8 };

#define CPU BUILD "/cpu/"
#define TWO "mpiexec -n 2 " BUILD "/cpu/"
#define FUSED CPU "08_fused_kernels --accumulate 1 --fuse "
#define SMALL "--layers 4 --hidden 256 --heads 4 --vocab 256 "

static const struct {
    const char *number;
    const char *variants[MOST];             /* all are compared with the first */
    const char *shapes[2];
} benches[] = {
    {"02",
     {CPU "02_mixed_precision --accumulate 1 --dtype fp32", CPU "02_mixed_precision --accumulate 1 --dtype bf16",
      CPU "02_mixed_precision --accumulate 1 --dtype fp16", CPU "02_mixed_precision --accumulate 1 --dtype fp8"},
     {SMALL "--seq 128 --micro-batch 4", "--layers 4 --hidden 768 --heads 12 --vocab 256 --seq 256 --micro-batch 4"}},
    {"03",                                  /* on the same global batch, and as many cores */
     {CPU "01_single_gpu --threads 2 --accumulate 4", TWO "03_data_parallel --threads 1 --accumulate 2 --sync naive",
      TWO "03_data_parallel --threads 1 --accumulate 2 --sync overlap",
      TWO "03_data_parallel --threads 1 --accumulate 2 --sync bucket",
      TWO "04_zero --threads 1 --accumulate 2 --zero 1", TWO "04_zero --threads 1 --accumulate 2 --zero 2",
      TWO "04_zero --threads 1 --accumulate 2 --zero 3"},
     {SMALL "--seq 128 --micro-batch 4"}},
    {"08",
     {FUSED "none", FUSED "attention", FUSED "layernorm", FUSED "gelu", FUSED "cross-entropy", FUSED "adamw",
      FUSED "all"},
     {SMALL "--seq 128 --micro-batch 8", SMALL "--seq 1024 --micro-batch 1"}},
};

/* The median seconds of a step; sets *peak to the run's peak memory in bytes. */
static double step_of(const char *variant, const char *shape, double *peak)
{
    run_well("rm -f m.csv");
    run_well("%s %s --steps %d --quiet --metrics m.csv", variant, shape, STEPS + 1);
    read_column("m.csv", "peak_bytes", peak, 1);
    return median_of("seconds");
}

int main(int argc, char **argv)
{
    for (size_t b = 0; b < sizeof benches / sizeof *benches; b++) {
        if (argc < 2 || strcmp(argv[1], benches[b].number))
            continue;
        for (int s = 0; s < 2 && benches[b].shapes[s]; s++) {
            double step[MOST][ROUNDS], ratio[MOST][ROUNDS], peak[MOST];
            int count = 0;
            while (count < MOST && benches[b].variants[count])
                count++;
            printf("%s\n%-60s %12s %10s %15s %12s\n", benches[b].shapes[s], "", "step", "of first", "(least, most)",
                   "peak");
            for (int round = 0; round < ROUNDS; round++)
                for (int v = 0; v < count; v++) {
                    step[v][round] = step_of(benches[b].variants[v], benches[b].shapes[s], &peak[v]);
                    ratio[v][round] = step[v][round] / step[0][round];
                }
            for (int v = 0; v < count; v++) {
                const double of_first = median(ratio[v], ROUNDS);
                printf("%-60s %9.1f ms %10.2f    (%.2f, %.2f) %9.1f MB\n", strstr(benches[b].variants[v], "/cpu/") + 5,
                       1e3 * median(step[v], ROUNDS), of_first, ratio[v][0], ratio[v][ROUNDS - 1], peak[v] / 1e6);
            }
            printf("\n");
        }
    }
    return 0;
}
