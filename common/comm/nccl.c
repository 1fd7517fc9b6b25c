/* Transfers over NCCL, from GPU to GPU. Each rank has one of its own.
 *
 * The host only queues them: a transfer waits, in a stream of its own, for what was queued in the device's stream
 * before it, and comm_wait makes the device's stream wait for the transfer. So the host runs ahead, and a transfer
 * overlaps with all operators between its start and its wait.
 *
 * NCCL's calls may wait inside for the same call of another rank: a communicator's first transfer connects the ranks.
 * In a ring, where each rank first sends, all would wait forever. So communicators are non-blocking: a call returns
 * ncclInProgress, and only when that is over may the next one on this communicator be made and the stream be relied on.
 * On another one it may be made meanwhile from NCCL 2.27 on: before, a thread had one call in progress in all (its
 * src/include/group.h), and the ranks of a ring need two.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"

static void nccl_check(ncclResult_t result, const char *call, int line)
{
    if (result != ncclSuccess && result != ncclInProgress)
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
    enum { WAITING, CALLED, QUEUED } state;     /* for the line; NCCL was called; NCCL has put it into the stream */
    bool waited;                        /* the device's stream waits for it */
    double since;                       /* when the device was seen to have come to its start; 0: not yet */
    struct Move *next;
} Move;

/* A communicator with a stream, in which its transfers run one after the other. NCCL has no tags, and a transfer on a
 * communicator runs after those before it: if a send stood behind a receive, two ranks could wait for each other. So
 * messages have a line for each pair and direction, and a group's collectives one of their own. */
typedef struct Line {
    int rank, size;                     /* on a pair's line the sender is rank 0 */
    ncclUniqueId id;
    void *arriving;                     /* the id, by MPI; NULL: it is here */
    ncclComm_t nccl;                    /* NULL: not yet */
    cudaStream_t stream;
    Move *first, *last;                 /* not over, or not waited for; in their order */
    Move *turn;                         /* the first that isn't in the stream yet */
    bool ending;
    struct Line *next;
} Line;

typedef struct {                        /* a group's lines, made when first used; to and from: by rank */
    Line *collectives, **to, **from;
} Group;

static Line *lines;
static int64_t moves;

/* The id comes from one of the line's ranks: the group's first, a pair's sender. */
static Line *line_create(Transfer t)
{
    enum { WORDS = sizeof(ncclUniqueId) / sizeof(int32_t) };
    const bool message = t.op >= SEND;
    Line *l = calloc(1, sizeof *l);
    int lowest, highest;

    if (!l)
        fail("no memory for a communicator");
    l->rank = message ? t.op == RECV : t.comm->rank;
    l->size = message ? 2 : t.comm->size;
    if (l->rank == 0)
        NCCL(ncclGetUniqueId(&l->id));
    l->arriving = transport_mpi.start((Transfer){.comm = t.comm, .op = message ? t.op : BROADCAST, .out = &l->id,
                                                 .in = &l->id, .count = WORDS, .dtype = I32,
                                                 .peer = message ? t.peer : 0, .tag = NCCL_TAG});
    /* a transfer that has all it needs should not queue behind the operators that it overlaps with */
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, highest));
    l->next = lines;
    lines = l;
    return l;
}

static Line *line_of(Transfer t)
{
    Group *g = t.comm->nccl;

    if (!g) {
        g = t.comm->nccl = calloc(1, sizeof *g);
        if (g)
            g->to = calloc(2 * (size_t)t.comm->size, sizeof(Line *));
        if (!g || !g->to)
            fail("no memory for the lines of group %s", t.comm->name);
        g->from = g->to + t.comm->size;
    }
    Line **l = t.op == SEND ? &g->to[t.peer] : t.op == RECV ? &g->from[t.peer] : &g->collectives;
    if (!*l)
        *l = line_create(t);
    return *l;
}

/* Whether NCCL is through with the last call on this line. Here its errors show, also those of transfers under way. */
static bool settled(const Line *l)
{
    ncclResult_t state;

    NCCL(ncclCommGetAsyncError(l->nccl, &state));
    if (state != ncclSuccess && state != ncclInProgress)
        fail("NCCL, on a communicator of %d ranks: %s; %s", l->size, ncclGetErrorString(state),
             ncclGetLastError(l->nccl));
    return state == ncclSuccess;
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

static void call(const Line *l, const Transfer *t)
{
    const ncclDataType_t type = type_of(t);

    if (t->count == 0)
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

static bool over(const Move *m)
{
    return m->state == QUEUED && reached(m->over);
}

/* As far as it goes without waiting. */
static void advance(Line *l)
{
    if (l->arriving) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        if (!transport_mpi.done(l->arriving))
            return;
        l->arriving = NULL;
        config.blocking = 0;
        NCCL(ncclCommInitRankConfig(&l->nccl, l->size, l->id, l->rank, &config));
    }
    while (settled(l) && l->turn) {
        Move *m = l->turn;
        if (m->state == WAITING) {
            CUDA(cudaStreamWaitEvent(l->stream, m->ready, 0));
            call(l, &m->t);
            m->state = CALLED;
        } else {
            CUDA(cudaEventRecord(m->over, l->stream));
            m->state = QUEUED;
            l->turn = m->next;
        }
    }
    while (l->first && l->first->waited && over(l->first)) {
        Move *m = l->first;
        l->first = m->next;
        CUDA(cudaEventDestroy(m->ready));
        CUDA(cudaEventDestroy(m->over));
        free(m);
    }
}

static void progress(void)
{
    for (Line *l = lines; l; l = l->next)
        advance(l);
}

static void *start(Transfer t)
{
    Line *l = line_of(t);
    Move *m = calloc(1, sizeof *m);

    if (!m)
        fail("no memory for a transfer");
    m->t = t;
    m->number = moves++;
    CUDA(cudaEventCreateWithFlags(&m->ready, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&m->over, cudaEventDisableTiming));
    CUDA(cudaEventRecord(m->ready, device_stream()));
    if (l->first)
        l->last->next = m;
    else
        l->first = m;
    l->last = m;
    if (!l->turn)
        l->turn = m;
    advance(l);
    return m;
}

static bool done(void *handle)
{
    Move *m = handle;

    if (m->state != QUEUED)
        return false;
    CUDA(cudaStreamWaitEvent(device_stream(), m->over, 0));
    m->waited = true;
    return true;
}

static bool unfinished(Transfer *t, double *since)
{
    const Move *oldest = NULL;

    for (Line *l = lines; l; l = l->next)
        for (Move *m = l->first; m; m = m->next) {
            if (!m->since && reached(m->ready))         /* until then this GPU computes, and waits for nobody */
                m->since = clock_seconds();
            if (m->since && m->waited && !over(m) && (!oldest || m->number < oldest->number))
                oldest = m;
        }
    if (oldest)
        *t = oldest->t, *since = oldest->since;
    return oldest != NULL;
}

static bool end(void)
{
    progress();
    for (Line **at = &lines, *l; (l = *at); ) {
        if (!l->ending && !l->first && settled(l)) {
            NCCL(ncclCommFinalize(l->nccl));
            l->ending = true;
        }
        if (!l->ending || !settled(l)) {
            at = &l->next;
            continue;
        }
        NCCL(ncclCommDestroy(l->nccl));
        CUDA(cudaStreamDestroy(l->stream));
        *at = l->next;
        free(l);
    }
    return !lines;
}

/* NCCL's kernels wait for other ranks': one that is loaded only then, or that shares a queue of the hardware with one
 * that waits, could keep them waiting for ever. One rank alone waits for nobody, and starts earlier without.
 * (Where MPI_Init itself uses CUDA this comes too late: there the launcher's environment must have them.) */
static void prepare(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* An order of all communicators' kernels on a GPU, that of the program, is not to be had here: a call that is in
     * progress makes its kernel later, in a thread of NCCL's, which then would end with "invalid usage". */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
}

static void place(char text[PLACE_TEXT])
{
    int device;

    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetPCIBusId(text, PLACE_TEXT, device));
}

static int version(int *needed)
{
    int here;

    NCCL(ncclGetVersion(&here));
    *needed = NCCL_VERSION(2, 27, 0);
    return here;
}

static const Transport transport = {.name = "NCCL", .start = start, .done = done, .progress = progress,
                                    .unfinished = unfinished, .prepare = prepare, .end = end, .place = place,
                                    .version = version};
const Transport *const transport_nccl = &transport;
