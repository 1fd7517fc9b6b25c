/* For check_machine.sh. With -DCHECK_MPI, prints each rank's number, the number of ranks, and the library. Otherwise:
 * OpenBLAS's threading (0: none, 1: POSIX threads, 2: OpenMP), version, and kernels: those that a program has, and, if
 * OPENBLAS_CORETYPE names others, those. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CHECK_MPI
#include <mpi.h>

int main(int argc, char **argv)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank, size, length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(library, &length);
    printf("%d %d %.*s\n", rank, size, (int)strcspn(library, "\n"), library);
    MPI_Finalize();
}

#else
#include <cblas.h>
#include <strings.h>

#include "../../common/base/device.h"

int main(int argc, char **argv)
{
    char version[64] = "?";

    (void)argc;
    device_prepare(argv);
    const char *kernels = openblas_get_corename(), *chosen = getenv("OPENBLAS_CORETYPE");
    sscanf(openblas_get_config(), "OpenBLAS %63s", version);
    printf("%d %s %s %s\n", openblas_get_parallel(), version, kernels,
           chosen && strcasecmp(chosen, kernels) ? chosen : "");
}
#endif
