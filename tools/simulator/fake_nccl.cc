/* A fake NCCL for the simulated GPU, over MPI. It behaves as badly as the real one may. Work runs late. Making a
 * communicator, and its first use, wait for its other ranks. Either is an error while a kernel may be waiting for other
 * ranks; NCCL could hang there. So is a stream more than hardware queues, and a kernel that is loaded on first use.
 *
 * Each block of a kernel takes a multiprocessor from its start until the kernel ends, and a kernel starts only when all
 * of its blocks have one: so kernels that wait for other ranks can keep out those that these ranks wait for.
 *
 * Environment variables:
 *   FAKE_NCCL_FAIL=ncclSend:3    the third such call of rank 1 returns an error
 *   FAKE_NCCL_FAIL=async:3       a communicator of rank 1 has an asynchronous error after its third operation
 *   FAKE_NCCL_LOSE=3             rank 1's third operation on more than 8 elements never ends
 *   FAKE_NCCL_ROOM=20            multiprocessors that blocks can take, instead of all of the GPU's
 *   FAKE_NCCL_QUEUES=64          hardware queues, instead of CUDA_DEVICE_MAX_CONNECTIONS
 */
#include <algorithm>
#include <mpi.h>
#include <nccl.h>
#include <sched.h>
#include <set>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "runtime.h"

enum { MOST = 64 };                             /* ranks */

static int world_rank(void)
{
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

/* ---- errors on demand ---- */

static bool fails(const char *name)
{
    static int calls;
    const char *failing = getenv("FAKE_NCCL_FAIL");
    const size_t length = strlen(name);

    return failing && world_rank() == 1 && !strncmp(failing, name, length) && failing[length] == ':'
        && ++calls == atoi(failing + length + 1);
}

#define MAY_FAIL() do { if (fails(__func__)) return ncclSystemError; } while (0)

/* ---- numbers: sums are rounded to the type after each addition ---- */

static cudaDataType_t cuda_type(ncclDataType_t type)
{
    return type == ncclFloat64 ? CUDA_R_64F : type == ncclFloat32 ? CUDA_R_32F : type == ncclInt32 ? CUDA_R_32I
         : type == ncclFloat16 ? CUDA_R_16F : type == ncclBfloat16 ? CUDA_R_16BF : CUDA_R_8U;
}

static int size_of(ncclDataType_t type)
{
    return size_of(cuda_type(type));
}

static double reduced(double a, double b, bool largest)
{
    if (!largest)
        return a + b;
    return a > b ? a : b;
}

static void reduce(void *to, const void *from, size_t count, ncclDataType_t type, bool largest)
{
    for (size_t i = 0; i < count; i++) {
        const double a = get(to, cuda_type(type), i), b = get(from, cuda_type(type), i);
        put(to, cuda_type(type), i, reduced(a, b, largest));
    }
}

/* ---- communicators ---- */

struct ncclComm {
    int size, rank, name, tag;
    int world[MOST];                            /* each rank's number in MPI_COMM_WORLD */
    bool failed, used;
    int running;                                /* operations that are queued, or wait for other ranks */
    int blocks;                                 /* of a kernel */
};

static std::set<ncclComm_t> comms;
static int depth;                               /* of ncclGroupStart */
static int resident;                            /* blocks of all kernels that have started */

enum { HELLO, TABLE, CONNECT, DATA, TAGS, FIRST_TAG = 1 << 22 };

typedef std::vector<MPI_Request> Requests;

static bool all_done(Requests &requests)
{
    int done = true;

    for (size_t i = 0; i < requests.size() && done; i++)
        PMPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
    return done;
}

static void wait_all(Requests requests)         /* without a deadline, as NCCL does */
{
    while (!all_done(requests))
        sched_yield();
}

static void send(Requests &requests, const void *data, size_t bytes, int to, int tag)
{
    requests.emplace_back();
    MPI_Issend_c(data, bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests.back());
}

static void receive(Requests &requests, void *data, size_t bytes, int from, int tag)
{
    requests.emplace_back();
    MPI_Irecv_c(data, bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests.back());
}

/* Returns whether a kernel of another communicator may be waiting for other ranks. */
static bool others_run(const struct ncclComm *c)
{
    return std::any_of(comms.begin(), comms.end(), [=](ncclComm_t other) { return other != c && other->running; });
}

extern "C" {

/* A call that may fail on demand, and is a statement here. */
#define NCCL_CALL(call, ...) ncclResult_t call { MAY_FAIL(); __VA_ARGS__; return ncclSuccess; }

static int ids;

NCCL_CALL(ncclGetVersion(int *version), *version = NCCL_VERSION_CODE)
NCCL_CALL(ncclGetUniqueId(ncclUniqueId *id), *(int *)id->internal = world_rank() * 4096 + ids++)

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "invalid usage" : "an error of the fake";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "its last words";
}

/* All ranks send their number to the creator of the id, which sends the table of all ranks back. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct ncclComm *c = new ncclComm();
    const int name = *(int *)id.internal, creator = name / 4096, identity[2] = {rank, world_rank()};
    const int queues = getenv("FAKE_NCCL_QUEUES") ? atoi(getenv("FAKE_NCCL_QUEUES")) : settings().queues;
    int joined[MOST][2], world[MOST];
    Requests hello, table;

    MAY_FAIL();
    if (others_run(NULL))
        return ncclInvalidUsage;
    /* two streams of NCCL's and the caller's each; NCCL's own from 2.26 on, the device's, CUDA's default one */
    if (3 * (int)comms.size() + 6 > queues)
        simulated_error("%zu communicators have more streams than the %d hardware queues", comms.size() + 1, queues);
    if (!settings().eager)
        simulated_error("kernels are loaded on first use, which waits for the GPU to be idle");
    if (config->blocking != 1 || config->maxCTAs < 1 || config->maxCTAs > 32 || config->cgaClusterSize != 1
        || size > MOST || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    c->blocks = config->maxCTAs;
    c->name = name, c->size = size, c->rank = rank, c->tag = FIRST_TAG + TAGS * name;
    send(hello, identity, sizeof identity, creator, c->tag + HELLO);
    for (int r = 0; r < size && identity[1] == creator; r++)
        receive(hello, joined[r], sizeof joined[r], MPI_ANY_SOURCE, c->tag + HELLO);
    wait_all(hello);
    for (int r = 0; r < size && identity[1] == creator; r++)
        world[joined[r][0]] = joined[r][1];
    for (int r = 0; r < size && identity[1] == creator; r++)
        send(table, world, size * sizeof(int), world[r], c->tag + TABLE);
    receive(table, c->world, size * sizeof(int), creator, c->tag + TABLE);
    wait_all(table);
    comms.insert(*comm = c);
    return ncclSuccess;
}

/* The first use waits for all ranks of the communicator. */
static ncclResult_t connect_ranks(ncclComm_t c)
{
    static char nothing;
    Requests requests;

    if (others_run(c))
        return ncclInvalidUsage;
    for (int r = 0; r < c->size; r++) {
        send(requests, &nothing, 0, c->world[r], c->tag + CONNECT);
        receive(requests, &nothing, 0, c->world[r], c->tag + CONNECT);
    }
    wait_all(requests);
    c->used = true;
    return ncclSuccess;
}

/* The GPU runs without being asked, also while the host waits in MPI: a rank may have all that it needs, and another
 * rank not. */
NCCL_CALL(ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state),
          gpu_runs(); *state = c->failed ? ncclRemoteError : ncclSuccess)

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    gpu_runs();
    return PMPI_Test(request, done, status);
}

int MPI_Testall(int count, MPI_Request *requests, int *done, MPI_Status *statuses)
{
    gpu_runs();
    return PMPI_Testall(count, requests, done, statuses);
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    MAY_FAIL();
    if (c->running)
        return ncclInvalidUsage;
    comms.erase(c);
    delete c;
    return ncclSuccess;
}

}

/* ---- calls: those of a group are one job of the stream ---- */

struct Call {
    enum { REDUCE_TO_ALL, REDUCE_TO_ONE, FROM_ONE, TO_PEER, FROM_PEER } kind;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;

    bool sends_to(int me, int r) const
    {
        return kind == REDUCE_TO_ALL || (kind == FROM_ONE ? me == peer : kind != FROM_PEER && r == peer);
    }
    bool receives_from(int me, int r) const
    {
        return kind == REDUCE_TO_ALL || (kind == REDUCE_TO_ONE ? me == peer : kind != TO_PEER && r == peer);
    }
};

struct Job {
    ncclComm_t comm;
    cudaStream_t stream;
    bool lost, begun;
    std::vector<Call> calls;
    std::vector<std::vector<char>> received;    /* by call and rank */
    Requests requests;
};

/* Returns false if too few multiprocessors are free. */
static bool begin_job(Job &j)
{
    ncclComm_t c = j.comm;
    const char *room = getenv("FAKE_NCCL_ROOM");

    if (resident + c->blocks > (room ? atoi(room) : multiprocessors()))
        return false;
    resident += c->blocks;
    stream_work(j.stream, "NCCL");
    j.received.resize(j.calls.size() * c->size);
    for (size_t i = 0; i < j.calls.size(); i++) {
        const Call &k = j.calls[i];
        const size_t bytes = k.count * size_of(k.type);
        for (int r = 0; r < c->size; r++) {
            std::vector<char> &to = j.received[i * c->size + r];
            if (k.sends_to(c->rank, r))
                send(j.requests, global_memory.access_all((uint64_t)k.in, bytes, READS), bytes, c->world[r],
                     c->tag + DATA);
            if (k.receives_from(c->rank, r)) {
                to.resize(bytes);
                receive(j.requests, to.data(), bytes, c->world[r], c->tag + DATA);
            }
        }
    }
    return j.begun = true;
}

static bool run_job(Job &j)
{
    ncclComm_t c = j.comm;

    if (j.lost || (!j.begun && !begin_job(j)) || !all_done(j.requests))
        return false;
    stream_work(j.stream, "NCCL");
    for (size_t i = 0; i < j.calls.size(); i++) {
        const Call &k = j.calls[i];
        std::vector<char> *first = NULL;
        for (int r = 0; r < c->size; r++) {     /* reduced in the order of ranks */
            std::vector<char> &from = j.received[i * c->size + r];
            if (first && k.receives_from(c->rank, r))
                reduce(first->data(), from.data(), k.count, k.type, k.op == ncclMax);
            else if (k.receives_from(c->rank, r))
                first = &from;
        }
        if (first)
            memcpy(global_memory.access_all((uint64_t)k.out, first->size(), WRITES), first->data(), first->size());
    }
    c->running--;
    resident -= c->blocks;
    return true;
}

static std::shared_ptr<Job> group;

static ncclResult_t submit(void)
{
    static int jobs;
    const std::shared_ptr<Job> j = group;

    if (depth || !j)
        return ncclSuccess;
    group = NULL;
    jobs += j->calls[0].count > 8;
    j->lost = world_rank() == 1 && getenv("FAKE_NCCL_LOSE") && atoi(getenv("FAKE_NCCL_LOSE")) == jobs;
    const ncclResult_t result = j->comm->used ? ncclSuccess : connect_ranks(j->comm);
    j->comm->failed = fails("async");
    j->comm->running++;
    enqueue_polled(j->stream, [=] { return run_job(*j); });
    return result;
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, Call call)
{
    if (!group)
        group = std::make_shared<Job>(Job{comm, stream, false, false, {}, {}, {}});
    if (group->comm != comm || group->stream != stream || call.peer >= comm->size)
        return ncclInvalidArgument;
    group->calls.push_back(call);
    return submit();
}

/* One call per rank, as one operation. */
template <typename F> static ncclResult_t add_parts(ncclComm_t comm, cudaStream_t stream, F part)
{
    depth++;
    for (int r = 0; r < comm->size; r++)
        add(comm, stream, part(r));
    depth--;
    return submit();
}

extern "C" {

NCCL_CALL(ncclGroupStart(void), depth++)
NCCL_CALL(ncclGroupEnd(void), depth--; return submit())
NCCL_CALL(ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                        cudaStream_t stream),
          return add(comm, stream, {Call::REDUCE_TO_ALL, in, out, count, type, op, 0}))
NCCL_CALL(ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                     ncclComm_t comm, cudaStream_t stream),
          return add(comm, stream, {Call::REDUCE_TO_ONE, in, out, count, type, op, root}))
NCCL_CALL(ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream),
          return add(comm, stream, {Call::FROM_ONE, in, out, count, type, ncclSum, root}))
NCCL_CALL(ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
          return add(comm, stream, {Call::TO_PEER, in, NULL, count, type, ncclSum, peer}))
NCCL_CALL(ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
          return add(comm, stream, {Call::FROM_PEER, NULL, out, count, type, ncclSum, peer}))
NCCL_CALL(ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream),
          return add_parts(comm, stream, [=](int r) {
              return Call{Call::REDUCE_TO_ONE, (const char *)in + r * count * size_of(type), out, count, type, op, r};
          }))
NCCL_CALL(ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t stream),
          return add_parts(comm, stream, [=](int r) {
              return Call{Call::FROM_ONE, in, (char *)out + r * count * size_of(type), count, type, ncclSum, r};
          }))

}
