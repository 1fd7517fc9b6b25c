/* For check_machine.sh. With -DCHECK_MPI, prints each rank's number, the number of ranks, the sum of rank + 1 over all
 * ranks, and the library. Otherwise: the number of wrong elements in a product, the version of OpenBLAS, its threading
 * (0: none, 1: POSIX threads, 2: OpenMP), its number of threads, and GFLOP/s in float. */
#include <stdio.h>
#include <string.h>

#ifdef CHECK_MPI
#include <mpi.h>

int main(int argc, char **argv)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank, size, sum, length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(library, &length);
    sum = rank + 1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d %d %d %.*s\n", rank, size, sum, (int)strcspn(library, "\n"), library);
    MPI_Finalize();
}

#else
#include <cblas.h>
#include <omp.h>

enum { N = 512 };
static float a[N * N], b[N * N], c[N * N];

int main(void)
{
    char version[64] = "?";
    double best = 0;
    int wrong = 0;

    for (int i = 0; i < N * N; i++)
        a[i] = i / N % 5, b[i] = i / N % 7;             /* small integers, equal in a row: every sum is exact */
    for (double begin = omp_get_wtime(); omp_get_wtime() - begin < 0.3;) {      /* the best; others were disturbed */
        const double start = omp_get_wtime();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, a, N, b, N, 0, c, N);
        const double rate = 2e-9 * N * N * N / (omp_get_wtime() - start);
        best = rate > best ? rate : best;
    }
    for (int i = 0; i < N * N; i++)
        wrong += c[i] != N * (i / N % 5) * (i % N % 7);
    sscanf(openblas_get_config(), "OpenBLAS %63s", version);
    printf("%d %s %d %d %.0f\n", wrong, version, openblas_get_parallel(), openblas_get_num_threads(), best);
}
#endif
