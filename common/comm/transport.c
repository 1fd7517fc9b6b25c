/* The choice of the transport, its connections, and its end. */
#include <stdlib.h>
#include <string.h>

#include "transport.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/options.h"
#include "../base/print.h"

const Transport *comm_transport = &transport_mpi;

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
    /* Before CUDA's first call, which reads the environment. So ranks that share a GPU, and then take MPI, load all
     * kernels at the start as well. */
    if (!mpi && transport_nccl)
        transport_nccl->prepare();
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
        return "NCCL";
    }
    if (options.comm == COMM_NCCL)
        fail("--comm nccl: expected a GPU for each rank, but rank %d shares its GPU with %d other %s; try --comm mpi",
             first, sharing(devices, first) - 1, sharing(devices, first) > 2 ? "ranks" : "rank");
    return format_text("%s: NCCL needs a GPU for each rank", words);
}

void comm_sends_to(Comm *comm, int to)
{
    if (to < 0)
        return;
    comm->used[SEND] = true;
    const bool previous = to != (comm->rank + 1) % comm->size;
    comm->sends[previous] = true;
}

void comm_connect(void)
{
    for (Comm *c = world; c; c = c->next) {
        bool (*all)[COMM_OPS] = host_alloc(c->size * sizeof *all, "what the ranks of a group will send");
        comm_gather_host(c, all, c->used, sizeof c->used);
        for (int r = 0; r < c->size; r++)       /* some predictions are made on one rank only */
            for (int op = 0; op < COMM_OPS; op++)
                c->used[op] = c->used[op] || all[r][op];
        free(all);
    }
    for (Comm *c = world; c && comm_transport->connect; c = c->next)
        if (c->size > 1)
            comm_transport->connect(c);
}

_Noreturn void comm_exit(int status)
{
    fail_unprinted();
    if (comm_transport->end)
        comm_transport->end();
    ranks_end();
    exit(status);
}
