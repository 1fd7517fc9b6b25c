/* Three small programs with which check_machine.sh tests OpenMP, MPI and BLAS. It compiles them one at a time, because
 * any library may be missing. They print values; the script interprets them. */
#if defined CHECK_OPENMP
#include <omp.h>
#include <stdio.h>

int main(void)
{
    int threads = 0;

#pragma omp parallel
#pragma omp atomic
    threads++;
    printf("%d %d\n", threads, omp_get_num_procs());
    return 0;
}

#elif defined CHECK_MPI
/* Each rank prints its number, the number of ranks, the sum of rank + 1 over all ranks, and its host. The sum uses a
 * function with 64-bit counts (_c), as the programs do: older MPI libraries lack them. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    char host[MPI_MAX_PROCESSOR_NAME];
    int rank, size, sum, length;
    MPI_Request request;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    sum = rank + 1;
    MPI_Iallreduce_c(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    printf("%d %d %d %s\n", rank, size, sum, host);
    MPI_Finalize();
    return 0;
}

#elif defined CHECK_BLAS
/* Prints the number of wrong elements in two products; the version of OpenBLAS; its threading (0: none, 1: POSIX
 * threads, 2: OpenMP); its number of threads; GFLOP/s in float; the CPU type whose kernels it uses. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 512 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(void)
{
    enum { M = 7, K = 5, COLUMNS = 3 };
    double a[M * K], b[K * COLUMNS], c[M * COLUMNS], best = 0;
    float af[M * K], bf[K * COLUMNS], cf[M * COLUMNS], *x = calloc(3 * N * N, sizeof *x);
    char version[64] = "?";
    int wrong = 0;

    for (int i = 0; i < M * K; i++)
        af[i] = a[i] = i % 4 - 1;               /* small integers: every sum is exact */
    for (int i = 0; i < K * COLUMNS; i++)
        bf[i] = b[i] = i % 5 - 2;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, M, COLUMNS, K, 1, a, K, b, COLUMNS, 0, c, COLUMNS);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, M, COLUMNS, K, 1, af, K, bf, COLUMNS, 0, cf, COLUMNS);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < COLUMNS; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += a[i * K + k] * b[k * COLUMNS + j];
            wrong += c[i * COLUMNS + j] != sum || cf[i * COLUMNS + j] != sum;
        }
    if (!x)
        return 1;
    for (double begin = now(); now() - begin < 0.3;) {          /* the best; slower rounds were disturbed */
        const double start = now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, x, N, x + N * N, N, 0, x + 2 * N * N, N);
        const double rate = 2e-9 * N * N * N / (now() - start);
        best = rate > best ? rate : best;
    }
    free(x);
    sscanf(openblas_get_config(), "OpenBLAS %63s", version);
    printf("%d %s %d %d %.0f %s\n", wrong, version, openblas_get_parallel(), openblas_get_num_threads(), best,
           openblas_get_corename());
    return 0;
}
#endif
