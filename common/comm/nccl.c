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
 * - The kernels of all communicators fit on the GPU together, beside operators: config.maxCTAs limits each one's
 *   blocks, and a block may take a multiprocessor. Before 2.26 NCCL does not document communicators that run at the
 *   same time as safe: there all keep to half of the GPU.
 * - Streams that share a hardware queue wait for each other: a kernel that may start is stuck behind one that may not.
 *   CUDA has 8 queues by default, and 32 at most (CUDA_DEVICE_MAX_CONNECTIONS). NCCL adds two streams to each
 *   communicator's; with one of its own from 2.26 on, the device's and CUDA's default one, nine communicators have 30.
 *   So a pair of ranks has only the directions that it uses: a rank of 06's zb-v, which sends x and d_x to both
 *   neighbors and receives them from both, has eight, and one for all ranks. One queue for all, which Megatron-LM asks
 *   for so that a transfer starts before matmuls called later, would be wrong here: a receive posted ahead would block
 *   the work that its sender waits for.
 * - A transfer starts before those matmuls because its stream has a higher priority. All transfers have the same
 *   priority, so that all ranks run them in the same order. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/options.h"

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
 * each pair of ranks has a line per direction. A group's collectives and exchanges have one line: all ranks start them
 * in the same order, and both directions of an exchange are one operation. */
typedef struct Line {
    int size;                           /* 2 for a pair, whose sender is rank 0 */
    ncclComm_t nccl;
    cudaStream_t stream;
    Move *first;                        /* not over, or not waited for; in order */
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
    Line *l = t->op != SEND && t->op != RECV ? g->collectives : t->op == SEND ? g->to[side] : g->from[side];

    if (!l)
        fail("%s in group %s: predict() has not named it (comm_sends_to)", comm_op_name[t->op], c->name);
    return l;
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

/* NCCL's reduce-scatter and all-gather need equal shards. Uneven ones are a reduce to each rank, or a broadcast from
 * each rank, which ncclGroupStart and ncclGroupEnd make one operation. */
static void move_shards(const Line *l, const Transfer *t, ncclDataType_t type)
{
    const bool gather = t->op == ALL_GATHER;

    if (t->count % l->size == 0) {
        if (gather)
            NCCL(ncclAllGather(t->in, t->out, t->count / l->size, type, l->nccl, l->stream));
        else
            NCCL(ncclReduceScatter(t->in, t->out, t->count / l->size, type, ncclSum, l->nccl, l->stream));
        return;
    }
    NCCL(ncclGroupStart());
    for (int r = 0; r < l->size; r++) {
        const Range part = range_split(t->count, r, l->size);
        const int64_t at = part.first * dtype_size(t->dtype);
        if (part.count && gather)
            NCCL(ncclBroadcast(t->in, (char *)t->out + at, part.count, type, r, l->nccl, l->stream));
        else if (part.count)
            NCCL(ncclReduce((char *)t->in + at, t->out, part.count, type, ncclSum, r, l->nccl, l->stream));
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
    case ALL_GATHER:
        move_shards(l, t, type);
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
    case EXCHANGE:
        NCCL(ncclGroupStart());
        if (t->count)
            NCCL(ncclSend(t->in, t->count, type, t->peer, l->nccl, l->stream));
        if (t->out_count)
            NCCL(ncclRecv(t->out, t->out_count, type, t->from, l->nccl, l->stream));
        NCCL(ncclGroupEnd());
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

/* Reports NCCL's errors, also those of transfers in flight. Frees transfers that are over. */
static void progress(void)
{
    ncclResult_t state;

    for (Line *l = lines; l; l = l->next) {
        NCCL(ncclCommGetAsyncError(l->nccl, &state));
        if (state != ncclSuccess)
            fail("NCCL, on a communicator of %d ranks: %s; %s", l->size, ncclGetErrorString(state),
                 ncclGetLastError(l->nccl));
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
            comm_deadline_passed();
        }
}

static void *start_by_nccl(Transfer t)
{
    Line *l = line_of(&t);
    Move *m = host_alloc(sizeof *m, "a transfer"), **at = &l->first;

    m->t = t;
    CUDA(cudaEventCreateWithFlags(&m->ready, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&m->over, cudaEventDisableTiming));
    while (*at)
        at = &(*at)->next;
    *at = m;
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

static bool has_collectives(const Comm *c)
{
    bool any = false;

    for (int op = 0; op < COMM_OPS; op++)
        any |= c->used[op] && op != SEND;
    return any;
}

/* Returns how many multiprocessors each communicator may take, the same on all ranks, so that those of all groups fit
 * beside each other: at most 32, which should fill all links (not measured yet). A quarter of the GPU is left to
 * operators, half where NCCL is older. */
static int share_of_line(void)
{
    int version, device, all, planned = 0, share, of_rank[world->size];

    NCCL(ncclGetVersion(&version));
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device));
    const int available = all - all / (version < NCCL_VERSION(2, 26, 0) ? 2 : 4);
    for (const Comm *c = world; c; c = c->next)
        if (c->size > 1)
            planned += has_collectives(c) + c->used[SEND] * (c->size > 2 ? 4 : 2);
    share = available / planned;
    if (share == 0)
        fail("NCCL: the kernels of %d communicators wait for other ranks, so all must fit on the GPU together, but "
             "they may take %d of its %d multiprocessors; use fewer groups", planned, available, all);
    comm_gather_host(world, of_rank, &share, sizeof share);
    for (int r = 0; r < world->size; r++)
        share = of_rank[r] < share ? of_rank[r] : share;
    return share < 32 ? share : 32;
}

/* Creates a line. Waits inside NCCL for its other ranks. */
static Line *connect_line(const Comm *c, ncclUniqueId id, int size, int rank)
{
    static int share;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    Line *l = host_alloc(sizeof *l, "a communicator");
    int lowest, highest;

    share = share ? share : share_of_line();
    comm_deadline("waits for NCCL to connect the ranks of group %s", c->name);
    l->size = size;
    config.blocking = 1;
    config.maxCTAs = share;
    config.cgaClusterSize = 1;          /* blocks start one by one, not in clusters for which too little may be free */
    NCCL(ncclCommInitRankConfig(&l->nccl, size, id, rank, &config));
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, highest));
    l->next = lines;
    return lines = l;
}

/* The ids of a group's line, and of those on which a rank sends to its next rank and to its previous one. */
typedef struct {
    ncclUniqueId group, to[2];
    bool sends[2];
} Ids;

/* Creates the line from rank `from` to its neighbor `to`, if it sends there and this rank is one of the two. */
static void connect_pair(Comm *c, const Ids *all, int from, int to)
{
    const int side = to != (from + 1) % c->size, back = from != (to + 1) % c->size;
    Group *g = c->nccl;
    Line **line = c->rank == from ? &g->to[side] : &g->from[back];

    if (!all[from].sends[side] || (c->rank != from && c->rank != to))
        return;
    *line = connect_line(c, all[from].to[side], 2, c->rank == to);
    warm((Transfer){.comm = c, .op = c->rank == from ? SEND : RECV, .count = 1, .dtype = F32,
                    .peer = c->rank == from ? to : from});
}

static void connect(Comm *c)
{
    const int pairs = !c->used[SEND] ? 0 : c->size == 2 ? 1 : c->size;
    Ids mine = {.sends = {c->sends[0], c->sends[1]}}, *all = host_alloc(c->size * sizeof mine, "NCCL's ids");
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");

    if (pairs && blocking && atoi(blocking))
        fail("CUDA_LAUNCH_BLOCKING=%s: a receive posted ahead in group %s would wait for a send that its own rank must "
             "let happen first; unset the variable, or use --comm mpi", blocking, c->name);
    c->nccl = host_alloc(sizeof(Group), "a group's communicators");
    if (has_collectives(c) && c->rank == 0)
        NCCL(ncclGetUniqueId(&mine.group));
    for (int side = 0; side < 2; side++)
        if (mine.sends[side])
            NCCL(ncclGetUniqueId(&mine.to[side]));
    comm_gather_host(c, all, &mine, sizeof mine);
    if (has_collectives(c)) {
        ((Group *)c->nccl)->collectives = connect_line(c, all[0].group, c->size, c->rank);
        warm((Transfer){.comm = c, .op = ALL_REDUCE, .count = c->size, .dtype = F32});
    }
    if (c->used[ALL_TO_ALL] || c->used[EXCHANGE])           /* all pairs */
        warm((Transfer){.comm = c, .op = ALL_TO_ALL, .count = c->size, .dtype = F32});
    for (int odd = 0; odd < 2; odd++)           /* even pairs first, then odd ones: no ranks wait in a circle */
        for (int s = odd; s < pairs; s += 2) {
            connect_pair(c, all, s, (s + 1) % c->size);
            connect_pair(c, all, (s + 1) % c->size, s);
        }
    comm_deadline_met();
    free(all);
}

/* Sets the environment. (If MPI_Init itself uses CUDA this is too late: set these variables in the launcher's
 * environment.) */
static void prepare(void)
{
    /* A kernel that is loaded on first use may wait until the GPU is idle, and so for a transfer whose other rank waits
     * in the same way (CUDA programming guide, "Lazy Loading"). */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_MODULE_DATA_LOADING", "EAGER", 1);     /* of libraries that load their kernels themselves */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);     /* also where Megatron's scripts set 1 */
    /* Connect everything that a communicator's collectives may use when it is created, not when a size first needs
     * another algorithm. */
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    /* NCCL's guide calls communicators that run at the same time safe only from 2.26 on, with 1 here: it starts their
     * kernels in the order of the calls. This needs 0: a receive posted ahead would have to start before the work that
     * its sender waits for, and with drivers before 12.3 also to end before it. So no order makes this safe, but that
     * the blocks of all communicators fit on the GPU together (share_of_line). */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    /* Sums that NVLink's switches compute differ from run to run (NVIDIA/nccl issue 1497). */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    device_while_waiting(look);
}

static const Transport transport = {.start = start_by_nccl, .done = done, .prepare = prepare, .connect = connect,
                                    .end = end};
const Transport *const transport_nccl = &transport;
