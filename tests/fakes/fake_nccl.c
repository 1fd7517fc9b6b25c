/* A fake NCCL, with the CUDA calls that comm/nccl.c uses, for tests without a GPU. It runs on fake_device.c's streams
 * and over MPI, and behaves as badly as the real ones may. Work runs late. Making a communicator, and its first use,
 * wait for its other ranks. Either is an error while a kernel may be waiting for other ranks; NCCL could hang there.
 *
 * Environment variables:
 *   FAKE_NCCL_FAIL="ncclSend 3"  the third such call of rank 1 returns an error
 *   FAKE_NCCL_FAIL="async 3"     a communicator of rank 1 has an asynchronous error after its third operation
 *   FAKE_NCCL_LOSE=3             rank 1's third operation never ends
 *   FAKE_NCCL_STOP=3             the third operation's call never returns, on all ranks; -1: making a communicator
 *   FAKE_NCCL_VERSION=22507      is 2.25.7
 *   FAKE_NCCL_LOG=1              prints when communicators are made and first used
 * LOSE and STOP count operations on more than 8 elements; 0 means those before the first such operation.
 */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/comm.h"
#include "../../common/device.h"
#include "fake_device.h"

enum { MOST = 64 };                             /* ranks; calls per group */

/* ---- Errors on demand ---- */

static bool fails(const char *name)
{
    static int calls;
    const char *failing = getenv("FAKE_NCCL_FAIL");
    const size_t length = strlen(name);

    return failing && comm_rank(world) == 1 && !strncmp(failing, name, length) && failing[length] == ' '
        && ++calls == atoi(failing + length);
}

static bool env_equals(const char *name, int number)
{
    return getenv(name) && atoi(getenv(name)) == number;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "invalid usage" : "an error of the fake";
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = getenv("FAKE_NCCL_VERSION") ? atoi(getenv("FAKE_NCCL_VERSION")) : NCCL_VERSION(2, 26, 0);
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "its last words";
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "an error of the fake CUDA";
}

/* ---- CUDA ---- */

struct CUevent_st {
    FakeMark *mark;                             /* NULL: not recorded yet */
};

/* An error stays until cudaGetLastError clears it: operators, which check after each kernel, would find it. */
static cudaError_t last_error;

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

#define CUDA_MAY_FAIL() do { if (last_error || fails(__func__)) return cudaErrorUnknown; } while (0)

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    CUDA_MAY_FAIL();
    *lowest = 0, *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    CUDA_MAY_FAIL();
    if (flags != cudaStreamNonBlocking || priority != -5)
        return cudaErrorInvalidValue;
    *stream = (cudaStream_t)fake_stream_create();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUDA_MAY_FAIL();
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CUDA_MAY_FAIL();
    (void)flags;
    *event = calloc(1, sizeof **event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    CUDA_MAY_FAIL();
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUDA_MAY_FAIL();
    event->mark = fake_mark((FakeStream *)stream);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CUDA_MAY_FAIL();
    last_error = !event->mark || fake_passed(event->mark) ? cudaSuccess : cudaErrorNotReady;
    return last_error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CUDA_MAY_FAIL();
    (void)flags;
    if (event->mark)                            /* like CUDA: no effect if the event was never recorded */
        fake_wait((FakeStream *)stream, event->mark);
    return cudaSuccess;
}

/* ---- Communicators ---- */

typedef struct {                                /* one call of NCCL */
    enum { REDUCE_TO_ALL, REDUCE_TO_ONE, FROM_ONE, TO_PEER, FROM_PEER } kind;
    const char *in;
    char *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;
    char *sent, *received[MOST];
} Call;

typedef struct {                                /* the calls of a group, or a single call */
    ncclComm_t comm;
    FakeStream *stream;
    int count;
    Call call[MOST];
    bool begun, lost;
    int requests;
    MPI_Request request[2 * MOST * MOST];
} Job;

struct ncclComm {
    int size, rank, name, tag, creator;
    int world[MOST], joined[MOST][2];           /* world: each rank's number in MPI_COMM_WORLD */
    bool failed;
    FakeStream *stream;                         /* NULL: not used yet */
    ncclComm_t next;
};

static ncclComm_t comms;

enum { HELLO, TABLE, CONNECT, DATA, TAGS, FIRST_TAG = 1 << 22 };

#define MAY_FAIL() do { if (fails(__func__)) return ncclSystemError; } while (0)

static unsigned chance(void)                    /* random: differs per rank, the same in each run */
{
    static unsigned x;

    if (!x)
        x = 12345 + 1000 * comm_rank(world);
    x = x * 1664525 + 1013904223;
    return x >> 16;
}

static bool all_done(int requests, MPI_Request *request)
{
    int done = true;

    for (int i = 0; i < requests && done; i++)
        MPI_Test(&request[i], &done, MPI_STATUS_IGNORE);
    return done;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;

    MAY_FAIL();
    *(int *)id->internal = comm_rank(world) * 4096 + made++;
    return ncclSuccess;
}

/* Blocks without a deadline, as NCCL does. */
static void wait_all(int requests, MPI_Request *request)
{
    while (!all_done(requests, request))
        sched_yield();
}

/* Returns whether a kernel of another communicator may be waiting for other ranks. */
static bool others_run(const struct ncclComm *c)
{
    for (const struct ncclComm *other = comms; other; other = other->next)
        if (other != c && other->stream && !fake_idle(other->stream))
            return true;
    return false;
}

static void log_event(const struct ncclComm *c, const char *what)
{
    if (getenv("FAKE_NCCL_LOG"))
        fprintf(stderr, "rank %d %s %d\n", comm_rank(world), what, c->name);
}

/* All ranks send their number to the creator of the id, which sends the table of all ranks back. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    ncclComm_t c = calloc(1, sizeof *c);
    int identity[2] = {rank, comm_rank(world)}, requests = 0;
    MPI_Request request[2 * MOST];

    MAY_FAIL();
    if (config->blocking != 1 || config->maxCTAs < 1 || config->maxCTAs > 16 || size > MOST || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    if (others_run(NULL))
        return ncclInvalidUsage;
    c->name = *(int *)id.internal;
    c->size = size, c->rank = rank, c->tag = FIRST_TAG + TAGS * c->name, c->creator = c->name / 4096;
    const bool creator = identity[1] == c->creator;
    log_event(c, "makes");
    while (env_equals("FAKE_NCCL_STOP", -1))
        sleep(1);
    MPI_Isend(identity, 2, MPI_INT, c->creator, c->tag + HELLO, MPI_COMM_WORLD, &request[requests++]);
    for (int r = 0; r < size && creator; r++)
        MPI_Irecv(c->joined[r], 2, MPI_INT, MPI_ANY_SOURCE, c->tag + HELLO, MPI_COMM_WORLD, &request[requests++]);
    wait_all(requests, request);
    requests = 0;
    for (int r = 0; r < size && creator; r++)
        c->world[c->joined[r][0]] = c->joined[r][1];
    for (int r = 0; r < size && creator; r++)
        if (c->world[r] != c->creator)
            MPI_Isend(c->world, size, MPI_INT, c->world[r], c->tag + TABLE, MPI_COMM_WORLD, &request[requests++]);
    if (!creator)
        MPI_Irecv(c->world, size, MPI_INT, c->creator, c->tag + TABLE, MPI_COMM_WORLD, &request[requests++]);
    wait_all(requests, request);
    c->next = comms;
    comms = *comm = c;
    return ncclSuccess;
}

/* The first use waits for all ranks of the communicator. */
static ncclResult_t connect_ranks(ncclComm_t c)
{
    static char nothing;
    int requests = 0;
    MPI_Request request[2 * MOST];

    if (others_run(c))
        return ncclInvalidUsage;
    log_event(c, "uses");
    for (int r = 0; r < c->size; r++) {
        MPI_Isend(&nothing, 0, MPI_CHAR, c->world[r], c->tag + CONNECT, MPI_COMM_WORLD, &request[requests++]);
        MPI_Irecv(&nothing, 0, MPI_CHAR, c->world[r], c->tag + CONNECT, MPI_COMM_WORLD, &request[requests++]);
    }
    wait_all(requests, request);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    MAY_FAIL();
    if (c->stream && chance() % 4 == 0)         /* a GPU progresses without being asked */
        fake_step(c->stream);
    *state = c->failed ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    ncclComm_t *at = &comms;

    MAY_FAIL();
    if (c->stream && !fake_idle(c->stream))
        return ncclInvalidUsage;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    free(c);
    return ncclSuccess;
}

/* ---- A job, as its stream runs it ---- */

static int size_of(ncclDataType_t type)
{
    return type == ncclFloat64 ? 8 : type == ncclFloat32 || type == ncclInt32 ? 4
        : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 1;
}

/* number and set_number read and write an element. They round to the nearest, ties to even, and convert FP16 without
 * subnormals. */
static double number(ncclDataType_t type, const char *data, size_t i)
{
    uint16_t half;
    uint32_t bits;
    float f;

    data += i * size_of(type);
    memcpy(&half, data, 2);
    switch (type) {
    case ncclFloat64:
        return *(const double *)data;
    case ncclFloat32:
        return *(const float *)data;
    case ncclInt32:
        return *(const int32_t *)data;
    case ncclBfloat16:
        bits = (uint32_t)half << 16;
        break;
    default:                                    /* half: change the exponent's bias */
        bits = (uint32_t)(half & 0x8000) << 16 | (half & 0x7fff ? ((uint32_t)(half & 0x7fff) << 13) + (112u << 23) : 0);
    }
    memcpy(&f, &bits, 4);
    return f;
}

static void set_number(ncclDataType_t type, char *data, size_t i, double x)
{
    const float f = x;
    uint32_t bits;

    data += i * size_of(type);
    memcpy(&bits, &f, 4);
    const uint32_t magnitude = (bits & 0x7fffffff) - (112u << 23);      /* with the exponent's bias of FP16 */
    const uint16_t brain = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint16_t half = (bits >> 16 & 0x8000) | (f != 0 ? (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13 : 0);
    switch (type) {
    case ncclFloat64:
        *(double *)data = x;
        break;
    case ncclFloat32:
        *(float *)data = f;
        break;
    case ncclInt32:
        *(int32_t *)data = (int32_t)x;
        break;
    case ncclBfloat16:
        memcpy(data, &brain, 2);
        break;
    default:
        memcpy(data, &half, 2);
    }
}

static bool sends_to(const Call *c, int me, int r)
{
    return c->kind == REDUCE_TO_ALL || (c->kind == REDUCE_TO_ONE && r == c->peer)
        || (c->kind == FROM_ONE && me == c->peer) || (c->kind == TO_PEER && r == c->peer);
}

static bool receives_from(const Call *c, int me, int r)
{
    return c->kind == REDUCE_TO_ALL || (c->kind == REDUCE_TO_ONE && me == c->peer)
        || (c->kind == FROM_ONE && r == c->peer) || (c->kind == FROM_PEER && r == c->peer);
}

static void begin_job(Job *j)
{
    ncclComm_t c = j->comm;

    for (Call *k = j->call; k < j->call + j->count; k++) {
        const size_t bytes = k->count * size_of(k->type);
        for (int r = 0; r < c->size; r++)
            if (sends_to(k, c->rank, r)) {
                if (!k->sent)
                    k->sent = memcpy(malloc(bytes), fake_storage(k->in), bytes);
                MPI_Issend_c(k->sent, bytes, MPI_BYTE, c->world[r], c->tag + DATA, MPI_COMM_WORLD,
                             &j->request[j->requests++]);
            }
        for (int r = 0; r < c->size; r++)
            if (receives_from(k, c->rank, r)) {
                k->received[r] = malloc(bytes);
                MPI_Irecv_c(k->received[r], bytes, MPI_BYTE, c->world[r], c->tag + DATA, MPI_COMM_WORLD,
                            &j->request[j->requests++]);
            }
    }
    j->begun = true;
}

static bool run_job(void *work)
{
    Job *j = work;
    ncclComm_t c = j->comm;

    if (j->lost)
        return false;
    if (!j->begun)
        begin_job(j);
    if (!all_done(j->requests, j->request))
        return false;
    for (Call *k = j->call; k < j->call + j->count; k++) {
        char *out = k->out ? fake_storage(k->out) : NULL, *first = NULL;
        for (int r = 0; r < c->size; r++) {
            char *from = k->received[r];
            if (from && first)                  /* reduce in the order of ranks */
                for (size_t i = 0; i < k->count; i++) {
                    const double x = number(k->type, first, i), y = number(k->type, from, i);
                    set_number(k->type, first, i, k->op == ncclMax ? (x > y ? x : y) : x + y);
                }
            else if (from)
                first = from;
        }
        if (first)
            memcpy(out, first, k->count * size_of(k->type));
        for (int r = 0; r < c->size; r++)
            free(k->received[r]);
        free(k->sent);
    }
    free(j);
    return true;
}

/* ---- NCCL's calls: each joins the job of its group ---- */

static Job *group;
static int depth;

static ncclResult_t submit(void)
{
    static int jobs;
    Job *j = group;
    ncclResult_t result = ncclSuccess;

    group = NULL;
    if (!j)
        return ncclSuccess;
    jobs += j->call[0].count > 8;
    while (env_equals("FAKE_NCCL_STOP", jobs))
        sleep(1);
    if (!j->comm->stream)
        result = connect_ranks(j->comm);
    j->comm->stream = j->stream;
    j->lost = comm_rank(world) == 1 && env_equals("FAKE_NCCL_LOSE", jobs);
    j->comm->failed = fails("async");
    fake_queue(j->stream, run_job, j);
    return result;
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, Call call)
{
    if (!group) {
        group = calloc(1, sizeof *group);
        group->comm = comm, group->stream = (FakeStream *)stream;
    }
    if (group->comm != comm || group->stream != (FakeStream *)stream || group->count == MOST
        || call.peer >= comm->size)
        return ncclInvalidArgument;
    group->call[group->count++] = call;
    return ncclSuccess;
}

static ncclResult_t add_alone(ncclComm_t comm, cudaStream_t stream, Call call)
{
    const ncclResult_t result = add(comm, stream, call);

    return result != ncclSuccess || depth ? result : submit();
}

ncclResult_t ncclGroupStart(void)
{
    MAY_FAIL();
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    MAY_FAIL();
    return --depth ? ncclSuccess : submit();
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL();
    return add_alone(comm, stream, (Call){REDUCE_TO_ALL, in, out, count, type, op});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL();
    return add_alone(comm, stream, (Call){REDUCE_TO_ONE, in, out, count, type, op, root});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    MAY_FAIL();
    return add_alone(comm, stream, (Call){FROM_ONE, in, out, count, type, ncclSum, root});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL();
    for (int r = 0; r < comm->size; r++)
        add(comm, stream, (Call){REDUCE_TO_ONE, (const char *)in + r * count * size_of(type), out, count, type, op, r});
    return depth ? ncclSuccess : submit();
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    MAY_FAIL();
    for (int r = 0; r < comm->size; r++)
        add(comm, stream, (Call){FROM_ONE, in, (char *)out + r * count * size_of(type), count, type, ncclSum, r});
    return depth ? ncclSuccess : submit();
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL();
    return add_alone(comm, stream, (Call){TO_PEER, in, NULL, count, type, ncclSum, peer});
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL();
    return add_alone(comm, stream, (Call){FROM_PEER, NULL, out, count, type, ncclSum, peer});
}
