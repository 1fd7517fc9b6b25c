/* Transfers over NCCL, from GPU to GPU. Each rank has a GPU of its own.
 *
 * The host only queues them. A transfer waits, in a stream of its own, for the work queued before it in the device's
 * stream, and comm_wait makes the device's stream wait for the transfer. So the host runs ahead, and a transfer
 * overlaps with all operators between its start and its wait.
 *
 * Several communicators share a GPU, and an NCCL kernel spins until the other ranks' kernels of the same transfer run.
 * So nothing may hold back a kernel whose turn it is:
 * - Everything that waits on the host for other ranks, or for the GPU to be idle, happens before the first step. Ranks
 *   create and use all communicators once, one after the other, in the same order (connect). From then on a call queues
 *   a kernel and returns. The communicators are blocking: non-blocking ones start a thread per call (src/group.cc of
 *   NCCL).
 * - The kernels of all communicators fit on the GPU together: config.maxCTAs limits each one's multiprocessors. Before
 *   2.26 NCCL does not document communicators that run at the same time as safe: there all keep to half of the GPU.
 * - Streams that share a hardware queue wait for each other: a kernel that may start is stuck behind one that may not.
 *   CUDA has 8 queues by default, and 32 at most (CUDA_DEVICE_MAX_CONNECTIONS). A rank in five groups, one of them with
 *   sends both ways, has eight communicators: four groups' and four pairs'. With two streams that NCCL adds to each,
 *   and the device's, these are 25 streams. One queue for all, which Megatron-LM asks for so that a transfer starts
 *   before matmuls called later, would be wrong here: a receive posted ahead would block the work that its sender waits
 *   for.
 * - A transfer starts before those matmuls because its stream has a higher priority. All transfers have the same
 *   priority, so that all ranks run them in the same order. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"
#include "../options.h"

static void nccl_check(ncclResult_t result, const char *call, int line)
{
    if (result != ncclSuccess)
        fail("%s at %s:%d: %s; %s", call, __FILE__, line, ncclGetErrorString(result), ncclGetLastError(NULL));
}

static void cuda_check(cudaError_t error, const char *call, int line)
{
    if (error != cudaSuccess)
        fail("%s at %s:%d: %s", call, __FILE__, line, cudaGetErrorString(error));
}

#define NCCL(call) nccl_check(call, #call, __LINE__)
#define CUDA(call) cuda_check(call, #call, __LINE__)

/* ---- Lines: communicators and their transfers ---- */

typedef struct Move {                   /* a transfer */
    Transfer t;
    cudaEvent_t ready, over;            /* ready: the device's stream reached its start; over: the line's its end */
    bool waited;                        /* the device's stream waits for it */
    struct Move *next;
} Move;

/* A communicator with a stream, in which its transfers run one after the other. NCCL has no tags, and runs a
 * communicator's transfers in order: if a send were queued behind a receive, two ranks could wait for each other. So
 * each pair of ranks has a line per direction. A group's collectives, shifts and exchanges have one line: all ranks
 * start them in the same order, and both directions of a shift or exchange are one operation. */
typedef struct Line {
    int size;                           /* 2 for a pair, whose sender is rank 0 */
    ncclComm_t nccl;
    cudaStream_t stream;
    Move *first, *last;                 /* not over, or not waited for; in order */
    struct Line *next;
} Line;

typedef struct {                        /* a group's lines; to and from: [0] the next rank, [1] the previous one */
    Line *collectives, *to[2], *from[2];
} Group;

static Line *lines;

static Line *line_of(const Transfer *t)
{
    const Comm *c = t->comm;
    const Group *g = c->nccl;
    const int side = t->peer != (c->rank + 1) % c->size;

    return t->op != SEND && t->op != RECV ? g->collectives : t->op == SEND ? g->to[side] : g->from[side];
}

/* Reports NCCL's errors, also those of transfers in flight. */
static void check(const Line *l)
{
    ncclResult_t state;

    NCCL(ncclCommGetAsyncError(l->nccl, &state));
    if (state != ncclSuccess)
        fail("NCCL, on a communicator of %d ranks: %s; %s", l->size, ncclGetErrorString(state),
             ncclGetLastError(l->nccl));
}

/* ---- Transfers as NCCL's calls ---- */

/* fp8 is moved as bytes. */
static ncclDataType_t type_of(const Transfer *t)
{
    static const ncclDataType_t types[] = {[F64] = ncclFloat64, [F32] = ncclFloat32, [BF16] = ncclBfloat16,
                                           [F16] = ncclFloat16, [E4M3] = ncclUint8, [E5M2] = ncclUint8,
                                           [I32] = ncclInt32};

    if ((t->op == ALL_REDUCE || t->op == REDUCE_SCATTER) && types[t->dtype] == ncclUint8)
        fail("%s of %s in group %s: NCCL can move this dtype, but not reduce it", comm_op_name[t->op],
             dtype_name(t->dtype), t->comm->name);
    return types[t->dtype];
}

/* NCCL's reduce-scatter and all-gather need equal shards. Uneven ones are a reduce to each rank, and a broadcast from
 * each rank, which ncclGroupStart and ncclGroupEnd make one operation. */
static void reduce_scatter(const Line *l, const Transfer *t, ncclDataType_t type)
{
    const char *in = t->in;

    if (t->count % l->size == 0) {
        NCCL(ncclReduceScatter(in, t->out, t->count / l->size, type, ncclSum, l->nccl, l->stream));
        return;
    }
    NCCL(ncclGroupStart());
    for (int r = 0; r < l->size; r++) {
        const Range part = range_split(t->count, r, l->size);
        if (part.count)
            NCCL(ncclReduce(in + part.first * dtype_size(t->dtype), t->out, part.count, type, ncclSum, r, l->nccl,
                            l->stream));
    }
    NCCL(ncclGroupEnd());
}

static void all_gather(const Line *l, const Transfer *t, ncclDataType_t type)
{
    char *out = t->out;

    if (t->count % l->size == 0) {
        NCCL(ncclAllGather(t->in, out, t->count / l->size, type, l->nccl, l->stream));
        return;
    }
    NCCL(ncclGroupStart());
    for (int r = 0; r < l->size; r++) {
        const Range part = range_split(t->count, r, l->size);
        if (part.count)
            NCCL(ncclBroadcast(t->in, out + part.first * dtype_size(t->dtype), part.count, type, r, l->nccl,
                               l->stream));
    }
    NCCL(ncclGroupEnd());
}

static void all_to_all(const Line *l, const Transfer *t, ncclDataType_t type)
{
    const int64_t count = t->count / l->size, bytes = count * dtype_size(t->dtype);

    NCCL(ncclGroupStart());
    for (int r = 0; r < l->size; r++) {
        NCCL(ncclSend((char *)t->in + r * bytes, count, type, r, l->nccl, l->stream));
        NCCL(ncclRecv((char *)t->out + r * bytes, count, type, r, l->nccl, l->stream));
    }
    NCCL(ncclGroupEnd());
}

static void exchange(const Line *l, const Transfer *t, ncclDataType_t type)
{
    NCCL(ncclGroupStart());
    if (t->count)
        NCCL(ncclSend(t->in, t->count, type, t->peer, l->nccl, l->stream));
    if (t->out_count)
        NCCL(ncclRecv(t->out, t->out_count, type, t->from, l->nccl, l->stream));
    NCCL(ncclGroupEnd());
}

static void call_nccl(const Line *l, const Transfer *t)
{
    const ncclDataType_t type = type_of(t);

    if (t->count == 0 && t->out_count == 0)
        return;
    switch (t->op) {
    case ALL_REDUCE:
        NCCL(ncclAllReduce(t->out, t->out, t->count, type, t->reduce == SUM ? ncclSum : ncclMax, l->nccl, l->stream));
        break;
    case REDUCE_SCATTER:
        reduce_scatter(l, t, type);
        break;
    case ALL_GATHER:
        all_gather(l, t, type);
        break;
    case ALL_TO_ALL:
        all_to_all(l, t, type);
        break;
    case BROADCAST:
        NCCL(ncclBroadcast(t->out, t->out, t->count, type, t->peer, l->nccl, l->stream));
        break;
    case SEND:
        NCCL(ncclSend(t->in, t->count, type, 1, l->nccl, l->stream));
        break;
    case SHIFT:
    case EXCHANGE:
        exchange(l, t, type);
        break;
    default:
        NCCL(ncclRecv(t->out, t->count, type, 0, l->nccl, l->stream));
    }
}

/* ---- The transport ---- */

static bool reached(cudaEvent_t event)
{
    const cudaError_t error = cudaEventQuery(event);

    if (error == cudaErrorNotReady)
        cudaGetLastError();             /* clears it, so that the next operator does not report it */
    else
        cuda_check(error, "cudaEventQuery(event)", __LINE__);
    return error == cudaSuccess;
}

static void progress(void)
{
    for (Line *l = lines; l; l = l->next) {
        check(l);
        while (l->first && l->first->waited && reached(l->first->over)) {
            Move *m = l->first;
            l->first = m->next;
            CUDA(cudaEventDestroy(m->ready));
            CUDA(cudaEventDestroy(m->over));
            free(m);
        }
    }
}

/* Called while the host waits for the GPU. NCCL has no deadline: a transfer whose other ranks do not come runs on. */
static void look(double seconds)
{
    progress();
    if (!options.timeout || seconds < options.timeout)
        return;
    for (const Line *l = lines; l; l = l->next)
        if (l->first && reached(l->first->ready) && !reached(l->first->over)) {
            const Transfer *t = &l->first->t;
            comm_deadline("waits for its GPU's %s, operation %lld of group %s", comm_op_name[t->op],
                          (long long)t->number, t->comm->name);
            raise(SIGALRM);
        }
}

static void *start_by_nccl(Transfer t)
{
    Line *l = line_of(&t);
    Move *m = host_alloc(sizeof *m, "a transfer");

    m->t = t;
    CUDA(cudaEventCreateWithFlags(&m->ready, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&m->over, cudaEventDisableTiming));
    if (l->first)
        l->last->next = m;
    else
        l->first = m;
    l->last = m;
    CUDA(cudaEventRecord(m->ready, device_stream()));
    CUDA(cudaStreamWaitEvent(l->stream, m->ready, 0));
    call_nccl(l, &t);
    CUDA(cudaEventRecord(m->over, l->stream));
    return m;
}

static bool done(void *handle)
{
    Move *m = handle;

    progress();
    CUDA(cudaStreamWaitEvent(device_stream(), m->over, 0));
    m->waited = true;
    return true;
}

static void end(void)
{
    device_wait();
    progress();
    comm_deadline("waits for NCCL to end");
    for (Line *l; (l = lines); ) {              /* the same order on all ranks */
        NCCL(ncclCommDestroy(l->nccl));
        CUDA(cudaStreamDestroy(l->stream));
        lines = l->next;
        free(l);
    }
}

/* ---- The start ---- */

/* Runs a transfer once, so that NCCL connects the ranks and loads its kernels. */
static void warm(Transfer t)
{
    const int64_t bytes = t.count * dtype_size(t.dtype);

    t.out_count = t.count;
    t.from = (t.comm->rank + t.comm->size - 1) % t.comm->size;
    t.out = device_alloc(bytes);
    t.in = device_alloc(bytes);
    if (!t.out || !t.in)
        fail("not enough memory on the GPU for a first transfer in group %s", t.comm->name);
    done(start_by_nccl(t));
    device_wait();
    progress();
    device_free(t.out, bytes);
    device_free(t.in, bytes);
}

/* Returns how many multiprocessors all communicators may take together. */
static int available_multiprocessors(void)
{
    int version;

    NCCL(ncclGetVersion(&version));
    return device_multiprocessors() / (version < NCCL_VERSION(2, 26, 0) ? 2 : 1);
}

/* Creates a line with at most `most` multiprocessors. Waits inside NCCL for the line's other ranks. */
static Line *connect_line(const Comm *c, ncclUniqueId id, int size, int rank, int most)
{
    static int taken;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    Line *l = host_alloc(sizeof *l, "a communicator");
    int lowest, highest;

    taken += most;
    if (taken > available_multiprocessors())
        fail("group %s: with its communicators, all groups take %d multiprocessors, but may take %d of the GPU's %d: "
             "their kernels wait for other ranks, so all must fit together; use fewer groups", c->name, taken,
             available_multiprocessors(), device_multiprocessors());
    comm_deadline("waits for NCCL to connect the ranks of group %s", c->name);
    l->size = size;
    config.blocking = 1;
    config.maxCTAs = most;
    NCCL(ncclCommInitRankConfig(&l->nccl, size, id, rank, &config));
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, highest));
    l->next = lines;
    return lines = l;
}

/* Creates the lines between rank s and the next rank: one per direction. */
static void connect_pair(Comm *c, int s, ncclUniqueId up, ncclUniqueId down, int most)
{
    const int next = (s + 1) % c->size, peer = c->rank == s ? next : s, side = peer != (c->rank + 1) % c->size;
    Group *g = c->nccl;
    Line **there = c->rank == s ? &g->to[side] : &g->from[side], **back = c->rank == s ? &g->from[side] : &g->to[side];

    *there = connect_line(c, up, 2, c->rank != s, most);
    warm((Transfer){.comm = c, .op = c->rank == s ? SEND : RECV, .count = 1, .dtype = F32, .peer = peer});
    *back = connect_line(c, down, 2, c->rank == s, most);
    warm((Transfer){.comm = c, .op = c->rank == s ? RECV : SEND, .count = 1, .dtype = F32, .peer = peer});
}

/* A collective's kernel takes an eighth of those available, at most 16 multiprocessors, which should fill the links (not
 * measured yet). A point-to-point kernel, which may spin for long before its sender starts, takes a quarter of that.
 * They are powers of two, because thread blocks start in clusters of up to 4. */
static void connect(Comm *c)
{
    const int pairs = !c->used[SEND] ? 0 : c->size == 2 ? 1 : c->size;
    struct { ncclUniqueId group, up, down; } mine = {0}, *all = host_alloc(c->size * sizeof mine, "NCCL's ids");
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    bool collectives = false;
    int most = 16;

    if (pairs && blocking && atoi(blocking))
        fail("CUDA_LAUNCH_BLOCKING=%s: a receive posted ahead in group %s would wait for a send that its own rank must "
             "let happen first; unset the variable, or use --comm mpi", blocking, c->name);
    while (most > 1 && 8 * most > available_multiprocessors())
        most /= 2;
    c->nccl = host_alloc(sizeof(Group), "a group's communicators");
    for (int op = 0; op < COMM_OPS; op++)
        collectives |= c->used[op] && op != SEND;
    if (collectives && c->rank == 0)
        NCCL(ncclGetUniqueId(&mine.group));
    if (c->rank < pairs) {
        NCCL(ncclGetUniqueId(&mine.up));
        NCCL(ncclGetUniqueId(&mine.down));
    }
    comm_gather_host(c, all, &mine, sizeof mine);
    if (collectives) {
        ((Group *)c->nccl)->collectives = connect_line(c, all[0].group, c->size, c->rank, most);
        warm((Transfer){.comm = c, .op = ALL_REDUCE, .count = c->size, .dtype = F32});
    }
    if (c->used[SHIFT])
        warm((Transfer){.comm = c, .op = SHIFT, .count = 1, .dtype = F32, .peer = (c->rank + 1) % c->size});
    if (c->used[ALL_TO_ALL] || c->used[EXCHANGE])           /* all pairs */
        warm((Transfer){.comm = c, .op = ALL_TO_ALL, .count = c->size, .dtype = F32});
    for (int odd = 0; odd < 2; odd++)           /* even pairs first, then odd ones: no ranks wait in a circle */
        for (int s = odd; s < pairs; s += 2)
            if (c->rank == s || c->rank == (s + 1) % c->size)
                connect_pair(c, s, all[s].up, all[s].down, most > 4 ? most / 4 : 1);
    comm_deadline_met();
    free(all);
}

/* Sets the environment. (If MPI_Init itself uses CUDA this is too late: set these variables in the launcher's
 * environment.) */
static void prepare(void)
{
    /* A kernel that is loaded on first use may wait until the GPU is idle, and so for a transfer whose other rank waits
     * in the same way (CUDA programming guide, "Lazy Loading"). */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* Connect everything that a communicator's collectives may use when it is created, not when a size first needs
     * another algorithm. */
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    /* Do not order the kernels of different communicators: a receive posted ahead would have to start before the work
     * that its sender waits for, and with drivers before 12.3 also to end before it. */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    /* Sums that NVLink's switches compute differ from run to run (NVIDIA/nccl issue 1497). */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    device_while_waiting(look);
}

static const Transport transport = {.name = "NCCL", .start = start_by_nccl, .done = done, .prepare = prepare,
                                    .connect = connect, .end = end};
const Transport *const transport_nccl = &transport;
