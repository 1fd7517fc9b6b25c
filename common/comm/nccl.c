/* Transfers over NCCL, from GPU to GPU. Each rank has one of its own.
 *
 * The host only queues them: a transfer waits, in a stream of its own, for what was queued in the device's stream
 * before it, and comm_wait makes the device's stream wait for the transfer. So the host runs ahead, and a transfer
 * overlaps with all operators between its start and its wait.
 *
 * Several communicators share a GPU, and a kernel of NCCL's spins until the other ranks' kernels of the same transfer
 * run. They run if nothing holds back a kernel whose turn it is. So:
 * - Whatever waits for other ranks on the host, or for the GPU to be idle, is done before the first step: communicators
 *   are made and used once, one after the other, in the same order on all ranks (connect). From then on a call queues a
 *   kernel and returns. They are blocking ones: a non-blocking one starts a thread for each call (NCCL's src/group.cc).
 * - All communicators' kernels fit on the GPU together: config.maxCTAs says how many multiprocessors one takes.
 * - Streams that share a queue of the hardware's wait for each other: a kernel that may start stands behind one that
 *   may not. By itself CUDA has 8 queues, and 32 at most (CUDA_DEVICE_MAX_CONNECTIONS). A rank in five groups, one of
 *   them with messages both ways, has eight communicators: four groups' and four pairs'. With two streams that NCCL
 *   adds to each, and the device's, these are 25. One queue for all, which Megatron-LM asks for so that a transfer
 *   starts before matmuls that are called later, would be wrong here: a receive that is posted ahead would stand in
 *   front of the work that its sender waits for.
 * - What starts a transfer before those matmuls is the priority of its stream: of two kernels that could start, the one
 *   with the higher priority does. Transfers all have the same, so that no rank prefers another one than its peers.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"

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

/* ---- Lines: communicators and what travels on them ---- */

typedef struct Move {                   /* a transfer */
    Transfer t;
    int64_t number;                     /* of all */
    cudaEvent_t ready, over;            /* the device's stream has come to its start; it is done, in the line's */
    bool waited;                        /* the device's stream waits for it */
    double since;                       /* when the device was seen to have come to its start; 0: not yet */
    struct Move *next;
} Move;

/* A communicator with a stream, in which its transfers run one after the other. NCCL has no tags, and a transfer on a
 * communicator runs after those before it: if a send stood behind a receive, two ranks could wait for each other. So
 * messages have a line for each pair and direction. A group's collectives have one of their own, and shifts are among
 * them: all ranks make them in the same order, and a shift's send and receive are one operation. */
typedef struct Line {
    int size;                           /* a pair's is 2, and its sender is rank 0 */
    int multiprocessors;                /* that its transfers take, at most */
    ncclComm_t nccl;
    cudaStream_t stream;
    Move *first, *last;                 /* not over, or not waited for; in their order */
    Move *half;                         /* the send of a shift whose receive is to come */
    struct Line *next;
} Line;

typedef struct {                        /* a group's lines; to and from: [0] the next rank, [1] the one before */
    Line *collectives, *to[2], *from[2];
} Group;

static Line *lines;
static int64_t moves;

static Line *line_of(const Transfer *t)
{
    const Comm *c = t->comm;
    const Group *g = c->nccl;
    const int side = t->peer != (c->rank + 1) % c->size;

    return t->op < SEND || t->shift ? g->collectives : t->op == SEND ? g->to[side] : g->from[side];
}

/* NCCL's errors show here, also those of transfers under way. */
static void check(const Line *l)
{
    ncclResult_t state;

    NCCL(ncclCommGetAsyncError(l->nccl, &state));
    if (state != ncclSuccess)
        fail("NCCL, on a communicator of %d ranks: %s; %s", l->size, ncclGetErrorString(state),
             ncclGetLastError(l->nccl));
}

/* ---- Transfers as NCCL's calls ---- */

static ncclDataType_t type_of(const Transfer *t)
{
    switch (t->dtype) {
    case F64:
        return ncclFloat64;
    case F32:
        return ncclFloat32;
    case BF16:
        return ncclBfloat16;
    case F16:
        return ncclFloat16;
    case I32:
        return ncclInt32;
    default:
        if (t->op == ALL_REDUCE || t->op == REDUCE_SCATTER)
            fail("%s of %s in group %s: it can be moved, but not added up", comm_op_name[t->op], dtype_name(t->dtype),
                 t->comm->name);
        return ncclUint8;
    }
}

/* NCCL cuts into equal parts only: others are sums that each go to one rank, and broadcasts that each come from one.
 * Between ncclGroupStart and ncclGroupEnd calls become one operation. */
static void reduce_scatter(const Line *l, const Transfer *t, ncclDataType_t type)
{
    const char *in = t->in;

    if (t->count % l->size == 0) {
        NCCL(ncclReduceScatter(in, t->out, t->count / l->size, type, ncclSum, l->nccl, l->stream));
        return;
    }
    NCCL(ncclGroupStart());
    for (int r = 0; r < l->size; r++) {
        const Range part = range_part(t->count, r, l->size);
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
        const Range part = range_part(t->count, r, l->size);
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

static void shift(const Line *l, const Transfer *to, const Transfer *from)
{
    NCCL(ncclGroupStart());
    NCCL(ncclSend(to->in, to->count, type_of(to), to->peer, l->nccl, l->stream));
    NCCL(ncclRecv(from->out, from->count, type_of(from), from->peer, l->nccl, l->stream));
    NCCL(ncclGroupEnd());
}

static void call(const Line *l, const Transfer *t)
{
    const ncclDataType_t type = type_of(t);

    if (t->count == 0)
        return;
    if (t->shift) {
        shift(l, &l->half->t, t);
        return;
    }
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
    default:
        NCCL(ncclRecv(t->out, t->count, type, 0, l->nccl, l->stream));
    }
}

/* ---- The transport ---- */

static bool reached(cudaEvent_t event)
{
    const cudaError_t error = cudaEventQuery(event);

    if (error == cudaErrorNotReady)
        cudaGetLastError();             /* heard: an operator that asks after its kernel's errors shall not find it */
    else
        cuda_check(error, "cudaEventQuery(event)", __LINE__);
    return error == cudaSuccess;
}

static bool progress(void)
{
    bool under_way = false;

    for (Line *l = lines; l; l = l->next) {
        check(l);
        while (l->first && l->first->waited && reached(l->first->over)) {
            Move *m = l->first;
            l->first = m->next;
            CUDA(cudaEventDestroy(m->ready));
            CUDA(cudaEventDestroy(m->over));
            free(m);
        }
        under_way |= l->first != NULL;
    }
    return under_way;
}

/* What is called from now on runs beside the transfers that aren't waited for. */
static void lend(void)
{
    int sum = 0;

    for (const Line *l = lines; l; l = l->next) {
        const Move *m = l->first;
        while (m && m->waited)
            m = m->next;
        sum += m ? l->multiprocessors : 0;
    }
    device_lend(sum);
}

static void *start(Transfer t)
{
    Line *l = line_of(&t);
    Move *m = host_alloc(sizeof *m, "a transfer");

    comm_transfer_begins();
    m->t = t;
    m->number = moves++;
    CUDA(cudaEventCreateWithFlags(&m->ready, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&m->over, cudaEventDisableTiming));
    if (l->first)
        l->last->next = m;
    else
        l->first = m;
    l->last = m;
    lend();
    CUDA(cudaEventRecord(m->ready, device_stream()));
    if (t.shift && t.op == SEND) {
        l->half = m;
        return m;
    }
    CUDA(cudaStreamWaitEvent(l->stream, m->ready, 0));
    call(l, &t);
    CUDA(cudaEventRecord(m->over, l->stream));
    if (t.shift)
        CUDA(cudaEventRecord(l->half->over, l->stream));
    return m;
}

static bool done(void *handle)
{
    Move *m = handle;

    CUDA(cudaStreamWaitEvent(device_stream(), m->over, 0));
    m->waited = true;
    lend();
    return true;
}

static bool unfinished(Transfer *t, double *since)
{
    const Move *oldest = NULL;

    for (Line *l = lines; l; l = l->next)
        for (Move *m = l->first; m; m = m->next) {
            if (!m->since && reached(m->ready))         /* until then this GPU computes, and waits for nobody */
                m->since = clock_seconds();
            if (m->since && m->waited && !reached(m->over) && (!oldest || m->number < oldest->number))
                oldest = m;
        }
    if (oldest)
        *t = oldest->t, *since = oldest->since;
    return oldest != NULL;
}

static bool end(void)
{
    if (progress())
        return false;
    for (Line *l; (l = lines); ) {              /* in the same order on all ranks */
        NCCL(ncclCommDestroy(l->nccl));
        CUDA(cudaStreamDestroy(l->stream));
        lines = l->next;
        free(l);
    }
    return true;
}

/* ---- The start ---- */

/* Once each way that a transfer may go: so NCCL has connected the ranks, and its kernels are loaded. */
static void warm(Transfer t)
{
    const int64_t bytes = t.count * dtype_size(t.dtype);

    t.out = device_alloc(bytes);
    t.in = device_alloc(bytes);
    if (!t.out || !t.in)
        fail("no memory for a first transfer in group %s", t.comm->name);
    Move *m = start(t), *from = NULL;
    if (t.shift) {
        t.op = RECV, t.peer = (t.comm->rank + t.comm->size - 1) % t.comm->size;
        from = start(t);
    }
    done(m);
    if (from)
        done(from);
    device_wait();
    progress();
    device_free(t.out, bytes);
    device_free(t.in, bytes);
}

/* Waits inside of NCCL for the line's other ranks. */
static Line *connect_line(const Comm *c, ncclUniqueId id, int size, int rank, int most)
{
    static int taken;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    Line *l = host_alloc(sizeof *l, "a communicator");
    int lowest, highest;
    char what[64];

    taken += most;
    if (taken > device_multiprocessors())
        fail("group %s: with its communicators those of all groups take %d multiprocessors, but the GPU has %d: their "
             "kernels wait for other ranks, and must fit together", c->name, taken, device_multiprocessors());
    l->size = size, l->multiprocessors = most;
    config.blocking = 1;
    config.maxCTAs = most;
    snprintf(what, sizeof what, "connect group %s over NCCL", c->name);
    comm_watch(what, true);
    NCCL(ncclCommInitRankConfig(&l->nccl, size, id, rank, &config));
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, highest));
    l->next = lines;
    return lines = l;
}

/* The communicators between rank s and the next one. */
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

/* A collective's kernel takes an eighth of the multiprocessors and 16 at most, which is to fill the links (not measured
 * yet); a message's, which may spin for long before its sender comes, a quarter of that. They are powers of two, as
 * thread blocks start in clusters of up to 4. */
static void connect(Comm *c)
{
    const int pairs = !c->used[SEND] ? 0 : c->size == 2 ? 1 : c->size;
    struct { ncclUniqueId group, up, down; } mine = {0}, *all = host_alloc(c->size * sizeof mine, "NCCL's ids");
    bool collectives = false;
    int most = 16;

    c->nccl = host_alloc(sizeof(Group), "a group's communicators");
    for (int op = 0; op <= SHIFT; op++)
        collectives |= c->used[op] && op != SEND;
    while (most > 1 && 8 * most > device_multiprocessors())
        most /= 2;
    if (collectives && c->rank == 0)
        NCCL(ncclGetUniqueId(&mine.group));
    if (c->rank < pairs) {
        NCCL(ncclGetUniqueId(&mine.up));
        NCCL(ncclGetUniqueId(&mine.down));
    }
    comm_gather(c, all, &mine, sizeof mine, "NCCL's ids");
    if (collectives) {
        ((Group *)c->nccl)->collectives = connect_line(c, all[0].group, c->size, c->rank, most);
        warm((Transfer){.comm = c, .op = ALL_REDUCE, .count = c->size, .dtype = F32});
    }
    if (c->used[SHIFT])
        warm((Transfer){.comm = c, .op = SEND, .count = 1, .dtype = F32, .peer = (c->rank + 1) % c->size,
                        .shift = true});
    if (c->used[ALL_TO_ALL])
        warm((Transfer){.comm = c, .op = ALL_TO_ALL, .count = c->size, .dtype = F32});
    for (int odd = 0; odd < 2; odd++)           /* all even ones at once; in this order no ranks wait in a circle */
        for (int s = odd; s < pairs; s += 2)
            if (c->rank == s || c->rank == (s + 1) % c->size)
                connect_pair(c, s, all[s].up, all[s].down, most > 4 ? most / 4 : 1);
    comm_watch(NULL, true);
    free(all);
}

/* (Where MPI_Init itself uses CUDA this comes too late: there the launcher's environment must have it.) */
static void prepare(void)
{
    /* A kernel that is loaded only when it is first used may wait for the whole GPU to be idle, and with it for a
     * transfer whose other rank waits likewise (CUDA programming guide, "Lazy Loading"). */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* All that a communicator's collectives may use is connected when it is made, and not when a size first calls for
     * another algorithm. */
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    /* Communicators' kernels start in no common order: with one, a receive posted ahead would have to start before what
     * its sender waits for, and before version 12.3 of the driver also to end. */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
}

static const Transport transport = {.name = "NCCL", .start = start, .done = done, .progress = progress,
                                    .unfinished = unfinished, .prepare = prepare, .connect = connect, .end = end};
const Transport *const transport_nccl = &transport;
