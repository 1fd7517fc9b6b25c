/* Transfers over MPI, between buffers on the host. MPI's blocking calls are not used: the one loop of wait.c waits. The
 * variants with _c have 64-bit counts. */
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport.h"
#include "../error.h"
#include "../formats.h"

typedef struct {
    MPI_Request request;
    MPI_Count *counts;          /* MPI reads them until the transfer is done */
    MPI_Aint *firsts;
    char *shard, *shard_to;     /* an in-place reduce_scatter's result, and its place */
    int64_t shard_bytes;
} Handle;

static MPI_Comm alarms;         /* all ranks, for mpi_alarm only */

/* MPI matches a group's collectives by their order alone. Staged ones start when their downloads are done, at different
 * times on different ranks. So they have a communicator of their own, apart from those that start when they are
 * called. */
typedef struct {
    MPI_Comm direct, staged;
} Group;

static MPI_Comm mpi_of(const Comm *comm)
{
    return ((Group *)comm->mpi)->direct;
}

/* Adds BF16 numbers, which MPI has no sum for: it moves them as two-byte integers and calls this. Each sum is rounded,
 * as NCCL's are. */
static void add_bf16(void *from, void *to, MPI_Count *count, MPI_Datatype *type)
{
    real a[256], b[256];

    (void)type;
    for (MPI_Count first = 0; first < *count; first += 256) {
        const int n = *count - first < 256 ? *count - first : 256;
        formats_read(a, (uint16_t *)from + first, BF16, n);
        formats_read(b, (uint16_t *)to + first, BF16, n);
        for (int i = 0; i < n; i++)
            a[i] += b[i];
        formats_write((uint16_t *)to + first, a, BF16, n);
    }
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

/* Returns the MPI type. Any dtype can be moved; few can be reduced. */
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

static void *new_group(MPI_Comm mpi)
{
    Group *g = host_alloc(sizeof *g, "a group of ranks");

    g->direct = mpi;
    MPI_Comm_dup(mpi, &g->staged);
    return g;
}

/* Returns the cores per rank: those that this machine's ranks may use, divided by the ranks; or, if a launcher has
 * bound each rank to fewer, those. 0: more cores than a cpu_set_t holds. */
static int cores_per_rank(MPI_Comm local, int ranks)
{
    cpu_set_t mine, together;

    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    MPI_Allreduce(&mine, &together, sizeof mine / sizeof(uint64_t), MPI_UINT64_T, MPI_BOR, local);
    const int cores = CPU_COUNT(&together) / ranks, bound = CPU_COUNT(&mine);
    return bound < cores || bound == 0 ? bound : cores < 1 ? 1 : cores;
}

/* Ends the program by fail() after an error inside MPI. MPI's own handler may wait for the launcher. */
static void on_error(MPI_Comm *mpi, int *code, ...)
{
    static bool failing;
    char text[MPI_MAX_ERROR_STRING];
    int length;

    (void)mpi;
    if (failing)                                /* an error while the others are told: let that call return */
        return;
    failing = true;
    MPI_Error_string(*code, text, &length);
    fail("MPI: %s", text);
}

void mpi_begin(int *argc, char ***argv, Comm *all, int *machine, int *local_rank, int *local_size, int *local_threads)
{
    static const struct { const char *ranks, *launcher, *todo; } launchers[] = {
        {"PMI_SIZE", "mpiexec", "try \"make deps\", which repairs Ubuntu 24.04's MPICH 4.2.0-5build3 or prints how"},
        {"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun", "try the mpiexec of the MPI that this program was built with"},
        {"SLURM_STEP_NUM_TASKS", "srun", "try srun --mpi=pmi2"}};
    MPI_Errhandler handler;
    MPI_Comm local;
    int threads;

    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &threads);         /* operators' threads don't call MPI */
    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);                   /* groups split from it inherit it */
    all->mpi = new_group(MPI_COMM_WORLD);
    MPI_Comm_rank(MPI_COMM_WORLD, &all->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all->size);
    for (int i = 0; i < 3 && all->size == 1; i++) {
        const char *launched = getenv(launchers[i].ranks);
        if (launched && atoi(launched) > 1)
            fail("%s started %s ranks, but MPI shows each a world of one; %s", launchers[i].launcher, launched,
                 launchers[i].todo);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &alarms);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, all->rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, local_rank);
    MPI_Comm_size(local, local_size);
    *local_threads = cores_per_rank(local, *local_size);
    MPI_Allreduce(&all->rank, machine, 1, MPI_INT, MPI_MIN, local);
    MPI_Comm_free(&local);
}

void *mpi_split(Comm *comm, int color, int *rank, int *size)
{
    MPI_Comm group;

    MPI_Comm_split(mpi_of(comm), color < 0 ? MPI_UNDEFINED : color, comm->rank, &group);
    if (group == MPI_COMM_NULL)
        return NULL;
    MPI_Comm_rank(group, rank);
    MPI_Comm_size(group, size);
    return new_group(group);
}

void mpi_end(void)
{
    MPI_Finalize();
}

/* MPI_Abort asks the launcher to end all ranks, and waits for it. On a machine that is cut off from the launcher,
 * SIGALRM ends the rank after 5 seconds. */
_Noreturn void mpi_abort(int status)
{
    signal(SIGALRM, SIG_DFL);
    alarm(5);
    MPI_Abort(MPI_COMM_WORLD, status);
    abort();                    /* MPI_Abort doesn't return, but isn't declared so */
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

static Handle *new_handle(void)
{
    Handle *h = host_alloc(sizeof *h, "a transfer");

    h->request = MPI_REQUEST_NULL;
    return h;
}

static void *start(Transfer t)
{
    const MPI_Comm mpi = t.staged ? ((Group *)t.comm->mpi)->staged : mpi_of(t.comm);
    const MPI_Datatype type = type_of(&t);
    const int64_t size = dtype_size(t.dtype);
    char *out = t.out, *in = t.in;
    Handle *h = new_handle();

    switch (t.op) {
    case ALL_REDUCE:
        MPI_Iallreduce_c(MPI_IN_PLACE, out, t.count, type, op_of(&t), mpi, &h->request);
        break;
    case REDUCE_SCATTER:
        split(h, t.comm, t.count);
        if (out >= in && out < in + t.count * size) {
            /* MPI's buffers must not overlap, and MPICH's MPI_IN_PLACE ends the program if shard 1 is larger than shard
             * 0: it copies between overlapping buffers */
            h->shard_to = out, h->shard_bytes = h->counts[t.comm->rank] * size;
            out = h->shard = host_alloc(h->shard_bytes, "a shard");
        }
        MPI_Ireduce_scatter_c(in, out, h->counts, type, op_of(&t), mpi, &h->request);
        break;
    case ALL_GATHER:
        split(h, t.comm, t.count);
        in = in >= out && in < out + t.count * size ? MPI_IN_PLACE : in;
        MPI_Iallgatherv_c(in, h->counts[t.comm->rank], type, out, h->counts, h->firsts, type, mpi, &h->request);
        break;
    case ALL_TO_ALL:
        MPI_Ialltoall_c(in, t.count / t.comm->size, type, out, t.count / t.comm->size, type, mpi, &h->request);
        break;
    case BROADCAST:
        if (t.count * size <= INT32_MAX) {
            MPI_Ibcast_c(out, t.count, type, t.peer, mpi, &h->request);
            break;
        }
        split(h, t.comm, 0);                /* MPICH 4.0's broadcast fails at this size: all-gather the root's data */
        h->counts[t.peer] = t.count;
        MPI_Iallgatherv_c(MPI_IN_PLACE, 0, type, out, h->counts, h->firsts, type, mpi, &h->request);
        break;
    case SEND:
        if (t.rendezvous)
            MPI_Issend_c(in, t.count, type, t.peer, t.tag, mpi, &h->request);
        else
            MPI_Isend_c(in, t.count, type, t.peer, t.tag, mpi, &h->request);
        break;
    default:
        MPI_Irecv_c(out, t.count, type, t.peer, t.tag, mpi, &h->request);
    }
    return h;
}

static bool done(void *handle)
{
    Handle *h = handle;
    int done;

    MPI_Test(&h->request, &done, MPI_STATUS_IGNORE);
    if (!done)
        return false;
    if (h->shard)
        memcpy(h->shard_to, h->shard, h->shard_bytes);
    free(h->shard);
    free(h->counts);
    free(h->firsts);
    free(h);
    return true;
}

const Transport transport_mpi = {.name = "MPI", .start = start, .done = done};

void *mpi_start_gather(Comm *comm, void *all, const void *mine, int64_t bytes)
{
    Handle *h = new_handle();

    MPI_Iallgather_c(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, mpi_of(comm), &h->request);
    return h;
}

void mpi_alarm(const char text[ALARM_TEXT])
{
    int rank, size;

    MPI_Comm_rank(alarms, &rank);
    MPI_Comm_size(alarms, &size);
    for (int r = 0; r < size; r++) {
        MPI_Request request;
        if (r == rank)
            continue;
        MPI_Isend(text, ALARM_TEXT, MPI_CHAR, r, 0, alarms, &request);
        MPI_Request_free(&request);             /* the text stays valid until the program ends, which is soon */
    }
}

int mpi_alarmed(char text[ALARM_TEXT])
{
    MPI_Status status;
    int there = 0;

    for (int i = 0; i < 2 && !there; i++)       /* MPICH looks before it progresses, so look twice */
        MPI_Iprobe(MPI_ANY_SOURCE, 0, alarms, &there, &status);
    if (!there)
        return -1;
    MPI_Recv(text, ALARM_TEXT, MPI_CHAR, status.MPI_SOURCE, 0, alarms, MPI_STATUS_IGNORE);
    return status.MPI_SOURCE;
}
