#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"

struct Comm {
    MPI_Comm mpi;
    int rank, size;
};

static Comm world_comm;
static int local_rank, local_size = 1;
static bool starting, ended;

Comm *world = &world_comm;

/* MPI's own waits spin, and ranks that share a core would spin against each other's work. */
static void wait_for(MPI_Request *request)
{
    int done = 0;

    while (MPI_Test(request, &done, MPI_STATUS_IGNORE), !done)
        sched_yield();
}

/* What all ranks must know before they go on or end: the lowest rank that failed and its status; or size, and 0. */
static int first_failed(int status, int *its_status)
{
    int mine = (status ? world->rank : world->size) * 256 + status, lowest;
    MPI_Request request;

    MPI_Iallreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, world->mpi, &request);
    wait_for(&request);
    *its_status = lowest % 256;
    return lowest / 256;
}

_Noreturn void comm_exit(int status)
{
    ended = true;
    MPI_Finalize();
    exit(status);
}

static void end_all(const char *line, int status)
{
    if (starting) {
        if (first_failed(status, &status) == world->rank)
            fprintf(stderr, "%s\n", line);
        comm_exit(status);
    }
    ended = true;
    fprintf(stderr, "%s\n", line);
    fflush(stderr);
    if (world->size > 1)
        MPI_Abort(MPI_COMM_WORLD, status);
    exit(status);
}

/* A rank that leaves without a word would keep the others waiting, under a launcher that reports success. */
static void at_exit(void)
{
    if (!ended && world->size > 1)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

void comm_begin(int *argc, char ***argv)
{
    const char *launched = getenv("PMI_SIZE");
    MPI_Comm local;

    MPI_Init(argc, argv);
    world->mpi = MPI_COMM_WORLD;
    MPI_Comm_rank(world->mpi, &world->rank);
    MPI_Comm_size(world->mpi, &world->size);
    if (launched && atoi(launched) > 1 && world->size == 1)
        fail("mpiexec started %s ranks, but MPI shows each a world of one (Ubuntu 24.04's MPICH 4.2.0-5build3 does "
             "this): \"make deps\" repairs it or says how", launched);
    MPI_Comm_split_type(world->mpi, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &local_rank);
    MPI_Comm_size(local, &local_size);
    MPI_Comm_free(&local);
    starting = true;
    error_end_with(end_all);
    atexit(at_exit);
}

void comm_agree(void)
{
    int status;

    if (first_failed(0, &status) < world->size)             /* that rank prints its line */
        comm_exit(status);
}

void comm_started(void)
{
    comm_agree();
    starting = false;
}

int comm_rank(const Comm *comm)
{
    return comm->rank;
}

int comm_size(const Comm *comm)
{
    return comm->size;
}

int comm_local_rank(void)
{
    return local_rank;
}

int comm_local_size(void)
{
    return local_size;
}

double comm_sum(Comm *comm, double x)
{
    double *all = malloc(comm->size * sizeof *all), sum = 0;
    MPI_Request request;

    if (!all)
        fail("no memory for %d numbers", comm->size);
    MPI_Iallgather(&x, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, comm->mpi, &request);
    wait_for(&request);
    for (int r = 0; r < comm->size; r++)        /* in the order of ranks: the same on all, and in every run */
        sum += all[r];
    free(all);
    return sum;
}

void comm_progress(void)
{
    int there;

    if (world->size > 1)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world->mpi, &there, MPI_STATUS_IGNORE);
}
