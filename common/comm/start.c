/* The program's start and end: joining the ranks, choosing the transport, comparing what the ranks were given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"
#include "../options.h"
#include "../print.h"

static Comm world_group = {.name = "world"};
Comm *world = &world_group;
const Transport *comm_transport = &transport_mpi;

static bool ended;

/* A rank that exits without comm_exit ends the others: they would wait for it, and mpiexec could report success. */
static void at_exit(void)
{
    if (!ended)
        mpi_abort(1);
}

void comm_begin(int *argc, char ***argv)
{
    mpi_begin(argc, argv);
    error_set_rank(world->rank, world->size > 1 ? mpi_abort : NULL);
    if (world->size > 1)
        atexit(at_exit);
}

/* Returns how many ranks have the device of rank r, itself included. */
static int sharing(const DeviceId *devices, int r)
{
    int ranks = 0;

    for (int other = 0; other < world->size; other++)
        ranks += !memcmp(&devices[other], &devices[r], sizeof *devices);
    return ranks;
}

/* GPUs are compared, not counted: a launcher may show each rank another one. */
const char *comm_choose(void)
{
    const char *const words = "MPI, through the host's memory";
    const bool mpi = options.comm == COMM_MPI || world->size == 1;
    DeviceId mine, devices[world->size];
    int first = 0;

    if (options.comm == COMM_NCCL && (device_is_host() || !transport_nccl))
        fail("--comm nccl: this build %s", device_is_host() ? "computes on the CPU; build/cuda/ has NCCL"
             : "has no NCCL, because nccl.h was not found (make cuda NCCL_HOME=DIR)");
    comm_local.sharing = comm_local.size;
    if (device_is_host())
        return "MPI";
    if (transport_nccl && !mpi)
        transport_nccl->prepare();              /* CUDA reads its settings at the first call */
    mine = device_id(comm_local.rank);
    comm_gather_host(world, devices, &mine, sizeof mine);
    comm_local.sharing = sharing(devices, world->rank);
    if (mpi)
        return words;
    if (!transport_nccl)
        return format_text("%s: this build has no NCCL", words);
    while (first < world->size && sharing(devices, first) == 1)
        first++;
    if (first == world->size) {
        comm_transport = transport_nccl;
        return comm_transport->name;
    }
    if (options.comm == COMM_NCCL)
        fail("--comm nccl: expected a GPU for each rank, but rank %d shares its GPU with %d other %s; try --comm mpi",
             first, sharing(devices, first) - 1, sharing(devices, first) > 2 ? "ranks" : "rank");
    return format_text("%s: NCCL needs a GPU for each rank", words);
}

_Noreturn void comm_exit(int status)
{
    if (comm_transport->end)
        comm_transport->end();
    mpi_end();
    ended = true;
    exit(status);
}

void comm_check_same(const char *what, uint64_t hash)
{
    uint64_t all[world->size];

    comm_gather_host(world, all, &hash, sizeof hash);
    for (int r = 1; r < world->size; r++)
        if (all[r] != all[0])
            fail("%s: rank %d has another than rank 0; all ranks must have the same", what, r);
}

char *comm_rank_table(void)
{
    struct Process { char host[64]; int pid; } mine = {.pid = getpid()}, all[world->size];
    char *table, *before = "";
    size_t size;
    FILE *out = open_memstream(&table, &size);

    gethostname(mine.host, sizeof mine.host - 1);
    comm_gather_host(world, all, &mine, sizeof mine);
    for (int r = 0; r < world->size; r++) {
        fprintf(out, "%srank %d = %s:%d", before, r, all[r].host, all[r].pid);
        before = r + 1 < world->size && strcmp(all[r].host, all[r + 1].host) ? "\n" : ", ";
    }
    fclose(out);
    return table;
}
