/* MPI: starts the ranks, and carries numbers and tensors between their hosts. On a GPU a transfer is a download, MPI's
 * transfer and an upload, without overlap: so several ranks can share a GPU.
 *
 * MPI's blocking calls spin, and keep a rank on the same core from working. So a transfer is started, and the one loop
 * of comm_wait_for waits for it. */
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"
#include "../formats.h"
#include "../options.h"

/* Functions with _c, whose counts have 64 bits, are MPI-4's: MPICH has them from 4.0 on, Open MPI from 6.0 on. With an
 * older library the same functions count in ints, and mpi_check_count refuses a larger tensor. */
#if MPI_VERSION >= 4
typedef MPI_Count Count;
typedef MPI_Aint Offset;
int64_t mpi_largest_count = INT64_MAX;
#else
typedef int Count, Offset;
int64_t mpi_largest_count = INT32_MAX;
#define MPI_Op_create_c MPI_Op_create
#define MPI_Iallgather_c MPI_Iallgather
#define MPI_Iallgatherv_c MPI_Iallgatherv
#define MPI_Iallreduce_c MPI_Iallreduce
#define MPI_Ialltoall_c MPI_Ialltoall
#define MPI_Ibcast_c MPI_Ibcast
#define MPI_Irecv_c MPI_Irecv
#define MPI_Ireduce_scatter_c MPI_Ireduce_scatter
#define MPI_Isend_c MPI_Isend
#define MPI_Issend_c MPI_Issend
#endif

struct CommLocal comm_local;

typedef struct {
    MPI_Request request[2];     /* the second: a shift's receive */
    Count *counts;              /* MPI reads them until the transfer is done */
    Offset *firsts;
    void *out, *in;             /* host copies of a GPU's tensors, or an in-place reduce_scatter's result */
    void *upload;               /* where `out` goes at the end */
    int64_t bytes;
} Handle;

static MPI_Comm mpi_of(const Comm *comm)
{
    return *(MPI_Comm *)comm->mpi;
}

/* ---- Deadlines ---- */

static char doing[160];

/* Ends all ranks. The launcher forwards this rank's line first. MPI_Abort may never return, because the launcher cannot
 * be reached, or because a signal has interrupted MPI: then an alarm, whose action is the default one, ends the rank. */
_Noreturn void mpi_abort(int status)
{
    static int first;
    int started;

    signal(SIGALRM, SIG_DFL);
    alarm(1);
    usleep(100000);
    if (!first && MPI_Initialized(&started) == MPI_SUCCESS && started) {
        first = status;                         /* MPI_Abort exits, and so calls this a second time */
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);       /* it also prints a line, which says no more */
        MPI_Abort(MPI_COMM_WORLD, status);
    }
    _exit(first ? first : status);
}

/* Prints what this rank has waited for too long, and gives the others a moment to print theirs. */
static void on_alarm(int number)
{
    (void)number;
    dprintf(STDERR_FILENO, "%s: rank %d %s, for %d seconds (--timeout)\n", error_name(), world->rank, doing,
            options.timeout);
    usleep(options.timeout < 100 ? 50000 * options.timeout : 5000000);
    mpi_abort(1);
}

void comm_deadline(const char *format, ...)
{
    va_list list;

    alarm(0);
    if (!options.timeout)
        return;
    va_start(list, format);
    vsnprintf(doing, sizeof doing, format, list);
    va_end(list);
    alarm(options.timeout);
}

void comm_deadline_met(void)
{
    alarm(0);
}

/* ---- Start and end ---- */

/* Counts the cores per rank: those that this machine's ranks may use, divided by the ranks; or, if a launcher has bound
 * each rank to fewer, those. 0: more cores than a cpu_set_t holds. Open MPI binds two ranks to one core each: then the
 * other cores that it may use itself are unused. */
static void count_cores(MPI_Comm local)
{
    cpu_set_t mine, together, launcher;

    CPU_ZERO(&mine);
    CPU_ZERO(&launcher);
    sched_getaffinity(0, sizeof mine, &mine);
    MPI_Allreduce(&mine, &together, sizeof mine / sizeof(uint64_t), MPI_UINT64_T, MPI_BOR, local);
    const int all = CPU_COUNT(&together), cores = all / comm_local.size, bound = CPU_COUNT(&mine);
    comm_local.cores = bound < cores || bound == 0 ? bound : cores < 1 ? 1 : cores;
    if (getenv("OMPI_COMM_WORLD_SIZE") && !sched_getaffinity(getppid(), sizeof launcher, &launcher))
        comm_local.unused = CPU_COUNT(&launcher) > all ? CPU_COUNT(&launcher) - all : 0;
}

/* A launcher that belongs to another MPI than the program starts ranks that do not see each other. */
static void check_launcher(void)
{
    static const char *const counts[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
    static const char *const launchers[] = {"MPICH's or Intel MPI's mpiexec", "Open MPI's mpiexec", "srun"};
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;

    MPI_Get_library_version(library, &length);
    for (int i = 0; i < 3 && world->size == 1; i++)
        if (getenv(counts[i]) && atoi(getenv(counts[i])) > 1)
            fail("%s started %s ranks, but each is alone, because it cannot start this program's MPI (%.*s); %s",
                 launchers[i], getenv(counts[i]), (int)strcspn(library, ",\n"), library, i == 2
                 ? "try srun --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI"
                 : "take mpicc and mpiexec of one installation (make check-machine)");
}

void mpi_begin(int *argc, char ***argv)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESETHAND | SA_NODEFER};
    MPI_Comm local;
    int threads, seconds;

    for (int i = 1; i < *argc; i++)             /* --timeout holds from here on; command_line.c checks it later */
        if ((sscanf((*argv)[i], "--timeout=%d", &seconds) == 1
             || (!strcmp((*argv)[i], "--timeout") && i + 1 < *argc && sscanf((*argv)[i + 1], "%d", &seconds) == 1))
            && seconds >= 0)
            options.timeout = seconds;
    sigaction(SIGALRM, &action, NULL);
    comm_deadline("starts");
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &threads);         /* operators' threads don't call MPI */
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    world->mpi = host_alloc(sizeof(MPI_Comm), "a group of ranks");
    *(MPI_Comm *)world->mpi = MPI_COMM_WORLD;
    check_launcher();
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &comm_local.rank);
    MPI_Comm_size(local, &comm_local.size);
    count_cores(local);
    MPI_Comm_free(&local);
    comm_deadline_met();
}

void mpi_end(void)
{
    comm_deadline("waits for the other ranks to end");
    MPI_Finalize();
    comm_deadline_met();
}

void *mpi_split(Comm *comm, int color, int *rank, int *size)
{
    MPI_Comm *group = host_alloc(sizeof *group, "a group of ranks");

    comm_deadline("waits for the other ranks of group %s to form groups", comm->name);
    MPI_Comm_split(mpi_of(comm), color < 0 ? MPI_UNDEFINED : color, comm->rank, group);
    comm_deadline_met();
    if (*group == MPI_COMM_NULL)
        return NULL;
    MPI_Comm_rank(*group, rank);
    MPI_Comm_size(*group, size);
    return group;
}

void comm_gather_host(Comm *comm, void *all, const void *mine, int64_t bytes)
{
    Handle *h = host_alloc(sizeof *h, "a transfer");
    void *handle = h;

    h->request[1] = MPI_REQUEST_NULL;
    MPI_Iallgather_c(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, mpi_of(comm), h->request);
    comm_deadline("waits for the other ranks' numbers, after operation %lld of group %s", (long long)comm->operations,
                  comm->name);
    comm_wait_for(&transport_mpi, &handle);
    comm_deadline_met();
}

void mpi_progress(void)
{
    int there;

    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
}

/* ---- Transfers ---- */

/* Adds BF16 numbers, which MPI has no sum for. Each sum is rounded, as NCCL's are. */
static void add_bf16(void *from, void *to, Count *count, MPI_Datatype *type)
{
    (void)type;
    for (Count i = 0; i < *count; i++)
        ((uint16_t *)to)[i] = bf16_of(float_of_bf16(((uint16_t *)to)[i]) + float_of_bf16(((uint16_t *)from)[i]));
}

static MPI_Op op_of(const Transfer *t)
{
    static MPI_Op bf16 = MPI_OP_NULL;

    if (t->dtype != BF16)
        return t->reduce == SUM ? MPI_SUM : MPI_MAX;
    if (bf16 == MPI_OP_NULL)
        MPI_Op_create_c(add_bf16, true, &bf16);
    return bf16;
}

/* Any dtype can be moved; few can be reduced. */
static MPI_Datatype type_of(const Transfer *t)
{
    const int size = dtype_size(t->dtype);

    if ((t->op == ALL_REDUCE || t->op == REDUCE_SCATTER) && t->dtype != F64 && t->dtype != F32 && t->dtype != I32
        && !(t->dtype == BF16 && t->reduce == SUM))
        fail("%s of %s in group %s: MPI reduces F64, F32, I32 and sums of BF16 only", comm_op_name[t->op],
             dtype_name(t->dtype), t->comm->name);
    return t->dtype == F64 ? MPI_DOUBLE : t->dtype == F32 ? MPI_FLOAT : size == 4 ? MPI_INT32_T
         : size == 2 ? MPI_INT16_T : MPI_INT8_T;
}

/* Sets the handle's counts and offsets to the shards of a tensor of `count` elements. */
static void split(Handle *h, const Comm *comm, int64_t count)
{
    h->counts = host_alloc(comm->size * sizeof *h->counts, "a collective");
    h->firsts = host_alloc(comm->size * sizeof *h->firsts, "a collective");
    for (int r = 0; r < comm->size; r++) {
        const Range shard = range_split(count, r, comm->size);
        h->counts[r] = shard.count;
        h->firsts[r] = shard.first;
    }
}

void mpi_check_count(const Comm *comm, int op, DType dtype, int64_t count)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;

    if (count <= mpi_largest_count)
        return;
    MPI_Get_library_version(library, &length);
    fail("%s of %lld %s in group %s: %.*s counts to %lld only; build with MPICH from 4.0 on, which counts further",
         comm_op_name[op], (long long)count, dtype_name(dtype), comm->name, (int)strcspn(library, ",\n"), library,
         (long long)mpi_largest_count);
}

void *mpi_start_host(Transfer t)
{
    const MPI_Comm mpi = mpi_of(t.comm);
    const MPI_Datatype type = type_of(&t);
    const int64_t size = dtype_size(t.dtype);
    char *out = t.out, *in = t.in;
    Handle *h = host_alloc(sizeof *h, "a transfer");

    mpi_check_count(t.comm, t.op, t.dtype, t.count);
    h->request[1] = MPI_REQUEST_NULL;
    switch (t.op) {
    case ALL_REDUCE:
        MPI_Iallreduce_c(MPI_IN_PLACE, out, t.count, type, op_of(&t), mpi, h->request);
        break;
    case REDUCE_SCATTER:
        split(h, t.comm, t.count);
        if (out >= in && out < in + t.count * size) {
            /* MPI's buffers must not overlap, and MPICH's MPI_IN_PLACE ends the program if shard 1 is larger than shard
             * 0: it copies between overlapping buffers */
            h->upload = out, h->bytes = h->counts[t.comm->rank] * size;
            out = h->out = host_alloc(h->bytes, "a shard");
        }
        MPI_Ireduce_scatter_c(in, out, h->counts, type, op_of(&t), mpi, h->request);
        break;
    case ALL_GATHER:
        split(h, t.comm, t.count);
        in = in >= out && in < out + t.count * size ? MPI_IN_PLACE : in;
        MPI_Iallgatherv_c(in, h->counts[t.comm->rank], type, out, h->counts, h->firsts, type, mpi, h->request);
        break;
    case ALL_TO_ALL:
        MPI_Ialltoall_c(in, t.count / t.comm->size, type, out, t.count / t.comm->size, type, mpi, h->request);
        break;
    case BROADCAST:
        MPI_Ibcast_c(out, t.count, type, t.peer, mpi, h->request);
        break;
    case SEND:
        if (t.rendezvous)
            MPI_Issend_c(in, t.count, type, t.peer, t.tag, mpi, h->request);
        else
            MPI_Isend_c(in, t.count, type, t.peer, t.tag, mpi, h->request);
        break;
    case SHIFT:
        MPI_Irecv_c(out, t.count, type, (t.comm->rank + t.comm->size - 1) % t.comm->size, t.tag, mpi, h->request + 1);
        MPI_Isend_c(in, t.count, type, t.peer, t.tag, mpi, h->request);
        break;
    default:
        MPI_Irecv_c(out, t.count, type, t.peer, t.tag, mpi, h->request);
    }
    return h;
}

/* A GPU's tensors: to the host first, and back in done(). */
static void *start(Transfer t)
{
    if (device_is_host())
        return mpi_start_host(t);
    const int64_t size = dtype_size(t.dtype), full = t.count * size;
    const Range shard = range_split(t.count, t.comm->rank, t.comm->size);
    char *out = host_alloc(full, "a transfer"), *in = host_alloc(full, "a transfer");
    Transfer host = t;

    host.out = out, host.in = in;
    if (t.op == ALL_GATHER)
        device_download(in, t.in, shard.count * size);
    else if (t.in)
        device_download(in, t.in, full);
    else if (t.op != RECV)
        device_download(out, t.out, full);
    Handle *h = mpi_start_host(host);
    h->out = out, h->in = in, h->upload = t.out;
    h->bytes = t.op == REDUCE_SCATTER ? shard.count * size : t.op == SEND ? 0 : full;
    return h;
}

static bool done(void *handle)
{
    Handle *h = handle;
    MPI_Status unused[2];
    int done;

    MPI_Testall(2, h->request, &done, unused);
    if (!done)
        return false;
    if (h->upload)
        device_upload(h->upload, h->out, h->bytes);
    free(h->out);
    free(h->in);
    free(h->counts);
    free(h->firsts);
    free(h);
    return true;
}

const Transport transport_mpi = {.name = "MPI", .start = start, .done = done};
