/* make bench STAGE=02, STAGE=08: the time of a step in each type, or with each fusion, over the first variant's. Every
 * round runs all variants in turn, so that a disturbance affects all of them. The result is the median, over five
 * rounds, of the ratio to the first variant in the same round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { ROUNDS = 5, STEPS = 6, MOST = 8 };

static const struct {
    const char *number, *program;
    const char *variants[MOST];             /* options; all are compared with the first */
    const char *shapes[2];
} benches[] = {
    {"02", "02_mixed_precision",
     {"--dtype fp32", "--dtype bf16", "--dtype fp16", "--dtype fp8"},
     {"--layers 4 --hidden 256 --heads 4 --vocab 256 --seq 128 --micro-batch 4",
      "--layers 4 --hidden 768 --heads 12 --vocab 256 --seq 256 --micro-batch 4"}},
    {"08", "08_fused_kernels",
     {"--fuse none", "--fuse attention", "--fuse layernorm", "--fuse gelu", "--fuse cross-entropy", "--fuse adamw",
      "--fuse all"},
     {"--layers 4 --hidden 256 --heads 4 --vocab 256 --seq 128 --micro-batch 8",
      "--layers 4 --hidden 256 --heads 4 --vocab 256 --seq 1024 --micro-batch 1"}},
};

/* The median seconds of a step; sets *peak to the run's peak memory in bytes. */
static double step_of(const char *program, const char *shape, const char *variant, double *peak)
{
    run_well(BUILD "/cpu/%s %s %s --accumulate 1 --steps %d --quiet --metrics m.csv", program, shape, variant,
             STEPS + 1);
    read_column("m.csv", "peak_bytes", peak, 1);
    return median_of("seconds");
}

int main(int argc, char **argv)
{
    for (size_t b = 0; b < sizeof benches / sizeof *benches; b++) {
        if (argc < 2 || strcmp(argv[1], benches[b].number))
            continue;
        for (int s = 0; s < 2; s++) {
            double step[MOST][ROUNDS], ratio[MOST][ROUNDS], peak[MOST];
            int count = 0;
            while (count < MOST && benches[b].variants[count])
                count++;
            printf("%s %s\n%-24s %12s %10s %15s %12s\n", benches[b].program, benches[b].shapes[s], "", "step",
                   "of first", "(least, most)", "peak");
            for (int round = 0; round < ROUNDS; round++)
                for (int v = 0; v < count; v++) {
                    step[v][round] =
                        step_of(benches[b].program, benches[b].shapes[s], benches[b].variants[v], &peak[v]);
                    ratio[v][round] = step[v][round] / step[0][round];
                }
            for (int v = 0; v < count; v++) {
                const double of_first = median(ratio[v], ROUNDS);
                printf("%-24s %9.1f ms %10.2f    (%.2f, %.2f) %9.1f MB\n", benches[b].variants[v],
                       1e3 * median(step[v], ROUNDS), of_first, ratio[v][0], ratio[v][ROUNDS - 1], peak[v] / 1e6);
            }
            printf("\n");
        }
    }
    return 0;
}
