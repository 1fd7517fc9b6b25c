/* The cost of ranks on this machine. Compares two ranks with one thread each (03, 04) with one process of two threads
 * (01), on the same global batch. Compares the bandwidth of collectives with memcpy's. The compared runs follow each
 * other, because a machine's speed changes over time.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/ultrascale.h"
#include "bench.h"

enum { ROUNDS = 5, REPEAT = 8 };

/* ---- Run by mpiexec, as a rank ---- */

/* Sets `best` to the least seconds, over several calls, that the slowest rank takes. */
#define BEST(best, call) \
    do { \
        best = INFINITY; \
        for (int i = 0; i < REPEAT; i++) { \
            comm_barrier(world); \
            const double begin = clock_seconds(); \
            call; \
            comm_barrier(world); \
            best = fmin(best, clock_seconds() - begin); \
        } \
    } while (0)

static void worker(void)
{
    static const int64_t sizes[] = {1000, 100000, 4000000, 32000000};

    device_init(comm_local.rank, comm_local.size, 1);
    const int n = comm_size(world);
    for (int s = 0; s < 4; s++) {
        Tensor a = tensor_create(MEM_WORKSPACE, REAL, "a", shape(sizes[s]));
        Tensor b = tensor_create(MEM_WORKSPACE, REAL, "b", shape(sizes[s]));
        const Range range = comm_shard(world, sizes[s]);
        Tensor shard = tensor_range(a, range.first, range.count);
        const double bytes = tensor_bytes(a), ring = bytes * (n - 1) / n;
        double copy, reduce, scatter, gather;
        BEST(copy, memcpy(b.data, a.data, tensor_bytes(a)));
        BEST(reduce, comm_all_reduce(world, a, SUM));
        BEST(scatter, comm_reduce_scatter(world, shard, a));
        BEST(gather, comm_all_gather(world, a, shard));
        if (comm_rank(world) == 0)
            printf("%d ranks, %10.0f bytes: memcpy %5.2f GB/s; sent per rank: all_reduce %5.2f  reduce_scatter %5.2f  "
                   "all_gather %5.2f GB/s\n", n, bytes, bytes / copy / 1e9, 2 * ring / reduce / 1e9,
                   ring / scatter / 1e9, ring / gather / 1e9);
        tensor_free(&a, MEM_WORKSPACE);
        tensor_free(&b, MEM_WORKSPACE);
    }
    comm_exit(0);
}

/* ---- Run by the user: starts the ranks ---- */

static double tokens_per_second(const char *program, int threads, int accumulate)
{
    double values[64], best = 0;

    run_well("%s --threads %d --layers 4 --hidden 256 --heads 4 --seq 128 --micro-batch 4 --accumulate %d --steps 12 "
             "--quiet --metrics m.csv", program, threads, accumulate);
    const int rows = read_column("m.csv", "tokens_per_second", values, 64);
    for (int i = 1; i < rows; i++)
        best = fmax(best, values[i]);
    return best;
}

int main(int argc, char **argv)
{
    static const char *const programs[] = {
        "mpiexec -n 2 " BUILD "/cpu/03_data_parallel --sync naive",
        "mpiexec -n 2 " BUILD "/cpu/03_data_parallel --sync overlap",
        "mpiexec -n 2 " BUILD "/cpu/03_data_parallel --sync bucket", "mpiexec -n 2 " BUILD "/cpu/04_zero --zero 1",
        "mpiexec -n 2 " BUILD "/cpu/04_zero --zero 2", "mpiexec -n 2 " BUILD "/cpu/04_zero --zero 3"};

    if (argc > 1 && !strcmp(argv[1], "worker")) {
        comm_begin(&argc, &argv);
        worker();
    }
    printf("two ranks with one thread each, against one process with two threads: tokens/s, ratio (least, most of %d "
           "rounds)\n", ROUNDS);
    for (unsigned p = 0; p < sizeof programs / sizeof *programs; p++) {
        double ratio[ROUNDS], two[ROUNDS];
        for (int r = 0; r < ROUNDS; r++) {
            const double before = tokens_per_second(BUILD "/cpu/01_single_gpu", 2, 4);
            two[r] = tokens_per_second(programs[p], 1, 2);
            ratio[r] = 2 * two[r] / (before + tokens_per_second(BUILD "/cpu/01_single_gpu", 2, 4));
        }
        const double middle = median(ratio, ROUNDS);
        printf("%-40s %8.0f  %.2f (%.2f, %.2f)\n", strstr(programs[p], "/0") + 1, median(two, ROUNDS), middle, ratio[0],
               ratio[ROUNDS - 1]);
    }
    printf("\n");
    fflush(stdout);
    for (int n = 2; n <= 4; n *= 2) {
        Result r = run("mpiexec -n %d %s worker", n, argv[0]);
        printf("%s%s", r.out, r.err);
        result_free(r);
    }
    return 0;
}
