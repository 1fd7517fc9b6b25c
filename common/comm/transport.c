/* The choice of the transport, and its end. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"
#include "../options.h"
#include "../print.h"

const Transport *comm_transport = &transport_mpi;

/* Returns how many ranks have the device of rank r, itself included. */
static int sharing(const DeviceId *devices, int r)
{
    int ranks = 0;

    for (int other = 0; other < world->size; other++)
        ranks += !memcmp(&devices[other], &devices[r], sizeof *devices);
    return ranks;
}

/* Asks in a child process: CUDA reads its settings at a process's first call, and prepare's depend on the answer. */
static DeviceId ask_device(void)
{
    DeviceId id;
    int ends[2];

    if (pipe(ends))
        fail("no pipe to a child process; are too many files open?");
    if (fork() == 0) {
        close(STDERR_FILENO);
        error_set_rank(world->rank, _exit);
        id = device_id(comm_local.rank);
        _exit(write(ends[1], &id, sizeof id) != sizeof id);
    }
    close(ends[1]);
    if (read(ends[0], &id, sizeof id) != sizeof id)
        id = device_id(comm_local.rank);        /* says why not; or MPI has called CUDA, so that a child cannot */
    close(ends[0]);
    wait(NULL);
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
    mine = ask_device();
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
        return comm_transport->name;
    }
    if (options.comm == COMM_NCCL)
        fail("--comm nccl: expected a GPU for each rank, but rank %d shares its GPU with %d other %s; try --comm mpi",
             first, sharing(devices, first) - 1, sharing(devices, first) > 2 ? "ranks" : "rank");
    return format_text("%s: NCCL needs a GPU for each rank", words);
}

_Noreturn void comm_exit(int status)
{
    fail_unprinted();
    if (comm_transport->end)
        comm_transport->end();
    ranks_end();
    exit(status);
}
