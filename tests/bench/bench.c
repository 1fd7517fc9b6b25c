/* The FLOP/s of 01_single_gpu, and of 12_llama on one rank, over those of this machine's OpenBLAS sgemm (1024 x 1024 x
 * 1024), and the time of each operator in a step. sgemm is measured before and after every run, because a machine's
 * speed changes over time. A round whose two sgemm rates differ by more than a tenth was disturbed and is repeated, a
 * few times. A model has 6N + 12*L*h*s FLOPs per token.
 */
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../common/base/device.h"
#include "bench.h"

enum { ROUNDS = 5, TRIES = 12 };

static const struct {
    const char *name, *program, *options;
    int steps;
} shapes[] = {
    {"small: L4 h256 T128 B4 v256", "01_single_gpu",
     "--layers 4 --hidden 256 --heads 4 --vocab 256 --seq 128 --micro-batch 4", 30},
    {"124M: L12 h768 T64 B4 v50304", "01_single_gpu", "--preset 124m --seq 64 --micro-batch 4", 4},
    {"Llama 135M: L30 h576 T64 B4", "12_llama", "--preset smollm2-135m --seq 64 --micro-batch 4", 4},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double sgemm_rate(int threads)
{
    enum { N = 1024 };
    static float *a;
    double best = 0;

    if (!a)
        a = calloc(3 * N * N, sizeof *a);
    omp_set_num_threads(threads);
    for (int i = 0; i < 20; i++) {
        const double begin = clock_seconds();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, a, N, a + N * N, N, 0, a + 2 * N * N, N);
        best = fmax(best, 2.0 * N * N * N / (clock_seconds() - begin));
    }
    return best;
}

typedef struct {
    double ratio, least, most;          /* FLOP/s over sgemm's: median, least, most */
    double sgemm, step;                 /* medians: FLOP/s, seconds of a step */
    int rounds;
} Speed;

static Speed measure(int shape, int threads)
{
    double ratio[TRIES], sgemm[TRIES], step[TRIES];
    Speed s = {0};

    for (int try = 0; try < TRIES && s.rounds < ROUNDS; try++) {
        const double before = sgemm_rate(threads);
        run_well(BUILD "/cpu/%s %s --accumulate 1 --steps %d --threads %d --quiet --metrics m.csv "
                 "--report r.json", shapes[shape].program, shapes[shape].options, shapes[shape].steps + 1, threads);
        const double after = sgemm_rate(threads);
        if (fabs(before - after) > 0.1 * fmax(before, after))
            continue;
        double tokens[1];
        read_column("m.csv", "tokens", tokens, 1);
        step[s.rounds] = median_of("seconds");
        sgemm[s.rounds] = (before + after) / 2;
        ratio[s.rounds] = json_number("r.json", "flops_per_token") * tokens[0] / step[s.rounds]
                          / sgemm[s.rounds];
        s.rounds++;
    }
    if (s.rounds == 0)
        return s;
    s.sgemm = median(sgemm, s.rounds);
    s.step = median(step, s.rounds);
    s.ratio = median(ratio, s.rounds);
    s.least = ratio[0], s.most = ratio[s.rounds - 1];
    return s;
}

int main(int argc, char **argv)
{
    (void)argc;
    device_prepare(argv);
    const int cores = omp_get_num_procs();

    printf("OpenBLAS with %s kernels\n\n", openblas_get_corename());
    printf("%-32s %8s %14s %14s %8s %16s\n", "shape", "threads", "sgemm GFLOP/s", "step", "ratio", "(least, most)");
    for (int shape = 0; shape < SHAPES; shape++) {
        Speed one = {0};
        for (int threads = 1; threads <= (cores > 1 ? 2 : 1); threads++) {
            const Speed s = measure(shape, threads);
            if (s.rounds == 0) {
                printf("%-32s %8d   not measured: other work on the machine disturbed every round\n",
                       shapes[shape].name, threads);
                continue;
            }
            printf("%-32s %8d %14.1f %11.1f ms %8.2f    (%.2f, %.2f) of %d rounds\n", shapes[shape].name, threads,
                   s.sgemm / 1e9, 1e3 * s.step, s.ratio, s.least, s.most, s.rounds);
            if (threads == 1)
                one = s;
            else if (one.rounds)
                printf("%-32s two threads are %.2f times as fast as one; in sgemm %.2f times\n", "",
                       one.step / s.step, s.sgemm / one.sgemm);
            print_operators("", 0.001, 0);
        }
    }
    return 0;
}
