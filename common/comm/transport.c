/* The choice of the transport, its connections, and its end. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Returns this rank's device, which a child process looks up: CUDA reads its environment at a process's first call, and
 * only NCCL needs what its prepare() sets. With that, ranks that share a GPU would each load all kernels of all
 * libraries at the start, for seconds and into a gigabyte of the GPU's memory. */
static DeviceId device_without_cuda(void)
{
    DeviceId id;
    int ends[2];

    fflush(stdout);
    const pid_t child = pipe(ends) ? -1 : fork();
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);       /* an error is found again below */
        error_set_rank(0, _exit);
        id = device_id(comm_local.rank);
        _exit(write(ends[1], &id, sizeof id) != sizeof id);
    }
    bool known = false;
    if (child > 0) {
        comm_deadline("waits for CUDA to name its GPU");
        close(ends[1]);
        known = read(ends[0], &id, sizeof id) == sizeof id;
        close(ends[0]);
        waitpid(child, NULL, 0);
        comm_deadline_met();
    }
    if (!known) {                               /* an MPI with CUDA of its own, say: there is none in a child */
        transport_nccl->prepare();
        id = device_id(comm_local.rank);
    }
    return id;
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
    mine = mpi || !transport_nccl ? device_id(comm_local.rank) : device_without_cuda();
    comm_gather_host(world, devices, &mine, sizeof mine);
    comm_local.sharing = sharing(devices, world->rank);
    if (mpi)
        return words;
    if (!transport_nccl)
        return format_text("%s: this build has no NCCL", words);
    while (first < world->size && sharing(devices, first) == 1)
        first++;
    if (first == world->size) {
        transport_nccl->prepare();
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
