/* Implements the emulated GPU: fibers for threads, and the backend's calls of the CUDA runtime, cuBLAS and cuBLASLt.
 * Arguments are checked as far as NVIDIA documents them.
 *
 * There is one stream. Its work runs as late as possible, when the host waits. A buffer that the host uses before it
 * waited for the copy has wrong numbers. The stream can be captured, in thread-local mode. A call that the capture
 * forbids is an error, or ends the program.
 */
#include "emulator.h"
#include "emulator_check.h"

#include <cblas.h>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

[[noreturn]] void emulated_wrong(const char *what)
{
    fprintf(stderr, "emulated GPU: %s\n", what);
    _exit(1);                   /* exit would destroy variables that threads with other blocks still use */
}

/* ---- the stream ---- */

static std::deque<std::function<void()>> stream;
static uint64_t queued, done;                           /* pieces of work, since the start */

/* A graph is a list of pieces of work with their arguments. While the stream is captured, work goes to the graph. */
typedef std::vector<std::function<void()>> Graph;
static std::shared_ptr<Graph> captured;                 /* NULL: the stream is not captured */
static bool invalid;                                    /* a forbidden call has ended the capture */

static void later(std::function<void()> work)
{
    if (captured) {
        captured->push_back(work);
        return;
    }
    stream.push_back(work);
    queued++;
}

/* Marks a capture as invalid; returns whether the stream is captured. Called by what a capture forbids: waits, queries
 * for completion, and calls outside of the stream, which a graph would not repeat. */
static bool forbidden(void)
{
    invalid |= captured != NULL;
    return captured != NULL;
}

static void work_until(uint64_t piece)
{
    while (done < piece) {
        stream.front()();
        stream.pop_front();
        done++;
    }
}

/* ---- fibers ---- */

enum State { READY, AT_EXCHANGE, AT_BARRIER, DONE };
enum { WARP_SIZE = 32, MOST_THREADS_OF_BLOCK = 1024, STACK = 256 << 10 };

struct Copy {
    void *to;
    const void *from;
    int bytes, group;
    bool there;
};

struct Fiber {
    uint3 index;
    int lane;
    State state;
    bool started;
    int line;                                           /* the line of the barrier where it waits */
    unsigned exchanges, syncs;                          /* syncs: since the last barrier */
    void *stack;
    jmp_buf at;
    std::vector<Copy> copies;
    int group;                                          /* number of the current group of copies */
};

/* The block that this CPU thread runs. The next block reuses its fibers. */
static thread_local struct {
    Fiber fibers[MOST_THREADS_OF_BLOCK];
    char given[2][MOST_THREADS_OF_BLOCK][64];           /* values of this exchange and of the previous one */
    Fiber *now;
    void (*thread)(const void *call);
    const void *call;
    jmp_buf scheduler;
    bool any, any_before;
} block;

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;
thread_local int emulated_lane;
/* A kernel's `extern __shared__` memory has one of these names. */
alignas(128) thread_local char shared[SHARED_BYTES];
alignas(128) thread_local float row[SHARED_BYTES / 4], sums[SHARED_BYTES / 4];

static void leave(State state)
{
    Fiber *f = block.now;

    f->state = state;
    if (!_setjmp(f->at))
        _longjmp(block.scheduler, 1);
}

static void fiber_main(void)
{
    for (;;) {
        block.thread(block.call);
        leave(DONE);
    }
}

static void resume(Fiber *f)
{
    block.now = f;
    threadIdx = f->index;
    emulated_lane = f->lane;
    actor.thread = f - block.fibers;
    actor.syncs = f->syncs;
    actor.stack = (const char *)f->stack;
    if (_setjmp(block.scheduler)) {
        actor.in_kernel = false;
        return;
    }
    actor.in_kernel = true;
    if (f->started)
        _longjmp(f->at, 1);
    f->started = true;
    f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED)
        emulated_wrong("no memory for the stack of a thread");
    actor.stack = (const char *)f->stack;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = f->stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = NULL;
    makecontext(&context, fiber_main, 0);
    setcontext(&context);
}

void emulated_syncthreads(int line)
{
    block.now->line = line;
    leave(AT_BARRIER);
}

bool emulated_syncthreads_or(int line, bool value)
{
    block.any |= value;
    emulated_syncthreads(line);
    return block.any_before;
}

const char *emulated_exchange(const void *mine, int bytes)
{
    Fiber *f = block.now;
    auto &given = block.given[f->exchanges++ % 2];
    const int thread = f - block.fibers;

    memcpy(given[thread], mine, bytes);
    leave(AT_EXCHANGE);
    return given[thread / WARP_SIZE * WARP_SIZE];
}

void emulated_syncwarp(void)
{
    emulated_exchange("", 0);
    actor.syncs = ++block.now->syncs;
    if (actor.syncs >> SYNC_BITS)
        emulated_wrong("more of __syncwarp than are counted");
}

void emulated_copy(void *to, const void *from, int bytes, bool there)
{
    if ((uintptr_t)to % bytes || (uintptr_t)from % bytes)
        emulated_wrong("an asynchronous copy of 16 or 4 bytes that does not begin at a multiple of them");
    check_access(to, bytes, true, __builtin_return_address(0));
    if (there)
        check_access(from, bytes, false, __builtin_return_address(0));
    memset(to, 0xff, bytes);
    block.now->copies.push_back({to, from, bytes, block.now->group, there});
}

/* Completes the copies of all groups before this one. */
static void arrive(int group, const void *at)
{
    std::vector<Copy> in_flight;

    for (const Copy &c : block.now->copies) {
        if (c.group >= group) {
            in_flight.push_back(c);
            continue;
        }
        check_access(c.to, c.bytes, true, at);
        if (c.there)
            memcpy(c.to, c.from, c.bytes);
        else
            memset(c.to, 0, c.bytes);
    }
    block.now->copies = in_flight;
}

void copies_done(void)
{
    copies_end();
    arrive(block.now->group, __builtin_return_address(0));
}

void copies_end(void)
{
    block.now->group++;
}

void emulated_copies_wait(int groups)
{
    arrive(block.now->group - groups, __builtin_return_address(0));
}

/* Runs a warp until all its threads are at a barrier of the block, or have ended. */
static void run_warp(Fiber *warp, bool reverse)
{
    for (;;) {
        int count[4] = {0};
        for (int i = 0; i < WARP_SIZE; i++) {
            Fiber *f = &warp[reverse ? WARP_SIZE - 1 - i : i];
            if (f->state == READY)
                resume(f);
            count[f->state]++;
        }
        if (count[AT_EXCHANGE] == 0)
            return;
        if (count[AT_EXCHANGE] < WARP_SIZE)
            emulated_wrong("lanes of a warp wait for others, which have ended or wait at a barrier of the block");
        for (int i = 0; i < WARP_SIZE; i++)
            warp[i].state = READY;
    }
}

static void run_block(int threads, bool reverse)
{
    for (int live = threads; live;) {
        const int warps = threads / WARP_SIZE;
        for (int w = 0; w < warps; w++)
            run_warp(&block.fibers[(reverse ? warps - 1 - w : w) * WARP_SIZE], reverse);
        block.any_before = block.any;
        block.any = false;
        if (++actor.barriers >> BARRIER_BITS)
            emulated_wrong("more barriers than are counted");
        live = 0;
        for (int i = 0; i < threads; i++)
            if (block.fibers[i].state == AT_BARRIER) {
                if (block.fibers[i].line != block.fibers[0].line)
                    emulated_wrong("threads of a block wait at different barriers");
                block.fibers[i].state = READY;
                block.fibers[i].syncs = 0;
                live++;
            }
        if (live && live < threads)
            emulated_wrong("threads of a block have ended, and others wait for them at a barrier");
    }
    for (int i = 0; i < threads; i++)
        if (!block.fibers[i].copies.empty())
            emulated_wrong("a thread ended before its asynchronous copies were waited for");
}

static void run_grid(cudaLaunchConfig_t c, void (*thread)(const void *call), const void *call)
{
    const int64_t blocks = (int64_t)c.gridDim.x * c.gridDim.y * c.gridDim.z;
    const int threads = c.blockDim.x * c.blockDim.y * c.blockDim.z;
    static int launches;
    static int64_t runs = 1;
    const int64_t first_run = runs;

    launches++;
    runs += blocks;
    if (runs >> RUN_BITS)
        emulated_wrong("more blocks than are counted");
#pragma omp parallel for schedule(dynamic)
    for (int64_t b = 0; b < blocks; b++) {
        block.thread = thread;
        block.call = call;
        blockIdx.x = b % c.gridDim.x;
        blockIdx.y = b / c.gridDim.x % c.gridDim.y;
        blockIdx.z = b / c.gridDim.x / c.gridDim.y;
        blockDim = c.blockDim;
        gridDim = c.gridDim;
        actor.run = first_run + b;
        actor.first_run = first_run;
        actor.barriers = 0;
        actor.stack_bytes = STACK;
        actor.shared_bytes = c.dynamicSmemBytes;
        memset(shared, 0xff, c.dynamicSmemBytes);
        memset(row, 0xff, c.dynamicSmemBytes);
        memset(sums, 0xff, c.dynamicSmemBytes);
        for (int i = 0; i < threads; i++) {
            Fiber *f = &block.fibers[i];
            f->index.x = i % c.blockDim.x;
            f->index.y = i / c.blockDim.x % c.blockDim.y;
            f->index.z = i / c.blockDim.x / c.blockDim.y;
            f->lane = i % WARP_SIZE;
            f->state = READY;
            f->syncs = 0;
            f->group = 0;
        }
        run_block(threads, (b + launches) % 2);
    }
}

void emulated_grid(const cudaLaunchConfig_t *config, void (*thread)(const void *call), const void *call, size_t bytes)
{
    const cudaLaunchConfig_t c = *config;
    std::vector<max_align_t> copy(bytes / sizeof(max_align_t) + 1);

    memcpy(copy.data(), call, bytes);
    later([=] { run_grid(c, thread, copy.data()); });
}

/* ---- launches ---- */

static std::map<const void *, int> most_shared;
static std::set<const void *> loaded;

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > SHARED_BYTES)
        return cudaErrorInvalidValue;
    most_shared[kernel] = value;
    return cudaSuccess;
}

/* Checks a launch. A kernel's static `__shared__` memory is not known to the emulator, which counts 1 KB for it. */
cudaError_t emulated_check(const cudaLaunchConfig_t *c, const void *kernel)
{
    const dim3 g = c->gridDim, b = c->blockDim;
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;

    if (!g.x || !g.y || !g.z || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535 || threads == 0 || threads > 1024)
        return cudaErrorInvalidConfiguration;
    if (threads % WARP_SIZE)
        emulated_wrong("a block whose size is no multiple of a warp");
    if (c->dynamicSmemBytes > (most_shared.count(kernel) ? (size_t)most_shared[kernel] : 47 << 10))
        return cudaErrorInvalidValue;
    if (loaded.insert(kernel).second && captured)
        emulated_wrong("a kernel that is first launched while the stream is captured: to load it may need a wait");
    return cudaSuccess;
}

/* ---- the runtime ---- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

extern "C" {

/* EMULATED_GPUS="61 90" sets the GPUs' architectures, of two digits each, in the order of their numbers. */
static const char *gpus(void)
{
    return getenv("EMULATED_GPUS") ? getenv("EMULATED_GPUS") : "90";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = (strlen(gpus()) + 1) / 3;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated GPU");
    p->major = gpus()[3 * device] - '0';
    p->minor = gpus()[3 * device + 1] - '0';
    p->totalGlobalMem = (size_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    p->multiProcessorCount = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (attribute == cudaDevAttrComputeCapabilityMajor || attribute == cudaDevAttrComputeCapabilityMinor)
        *value = gpus()[3 * device + (attribute == cudaDevAttrComputeCapabilityMinor)] - '0';
    else if (attribute == cudaDevAttrMemoryPoolsSupported)
        *value = 1;
    else if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin
             || attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor)
        *value = 64 << 10;              /* as on sm_75, so that tests cover the kernels for less memory */
    else
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    snprintf(id, length, "0000:%02x:00.0", device);
    return cudaSuccess;
}

/* EMULATED_MEMORY sets the GPU's memory in bytes. With it, calls that wait for all streams are errors: a transfer in
 * some stream may wait for another rank. */
static size_t memory(void)
{
    const char *bytes = getenv("EMULATED_MEMORY");

    return bytes ? strtoull(bytes, NULL, 10) : (size_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

static uint64_t used, reserved;                 /* reserved: the peak of used */
static std::map<void *, size_t> allocated;
static std::map<size_t, std::vector<void *>> pool;

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    const bool limited = getenv("EMULATED_MEMORY");

    *available = memory() - (limited ? reserved : 0);
    *total = limited ? memory() : (size_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return cudaSuccess;
}

static void *allocate(size_t bytes)
{
    std::vector<void *> &unused = pool[bytes];
    void *data = NULL;

    if (getenv("EMULATED_MEMORY") && used + bytes > memory())
        return NULL;
    if (unused.empty())
        data = check_alloc(bytes);
    else {
        data = unused.back();
        unused.pop_back();
    }
    if (!data)
        return NULL;
    allocated[data] = bytes;
    used += bytes;
    reserved = used > reserved ? used : reserved;
    later([=] { memset(data, 0xff, bytes); });          /* NaN until written */
    return data;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    *data = allocate(bytes);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *data)
{
    if (getenv("EMULATED_MEMORY"))
        emulated_wrong("cudaFree waits for all streams, and for the ranks that their transfers wait for");
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    work_until(queued);
    if (data)
        used -= allocated.at(data);
    allocated.erase(data);
    check_free(data);
    return cudaSuccess;
}

/* The memory pool: memory is freed, and may be reused, in stream order. Memory allocated in a graph would belong to the
 * graph. */
cudaError_t cudaMallocAsync(void **data, size_t bytes, cudaStream_t)
{
    if (captured)
        emulated_wrong("memory that a graph takes for itself: the backend's graphs must allocate none");
    return cudaMalloc(data, bytes);
}

cudaError_t cudaFreeAsync(void *data, cudaStream_t)
{
    if (forbidden())
        return cudaErrorInvalidValue;                   /* the memory belongs to no graph */
    const size_t bytes = allocated.at(data);

    allocated.erase(data);
    pool[bytes].push_back(data);
    used -= bytes;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int)
{
    *pool = NULL;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void *value)
{
    return attribute == cudaMemPoolAttrReleaseThreshold && *(uint64_t *)value == UINT64_MAX ? cudaSuccess
                                                                                          : cudaErrorInvalidValue;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void *value)
{
    if (attribute != cudaMemPoolAttrReservedMemCurrent && attribute != cudaMemPoolAttrUsedMemCurrent)
        return cudaErrorInvalidValue;
    *(uint64_t *)value = attribute == cudaMemPoolAttrUsedMemCurrent ? used : reserved;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    *data = malloc(bytes);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *data)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    work_until(queued);
    free(data);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t)
{
    check_whole(data, bytes, "cudaMemset");
    later([=] { memset(data, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *data, int value, size_t bytes)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    return cudaMemsetAsync(data, value, bytes, NULL);
}

static void check_copy(void *to, size_t to_bytes, const void *from, size_t from_bytes, cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyDeviceToHost)
        check_whole(to, to_bytes, "a copy to memory");
    if (kind != cudaMemcpyHostToDevice)
        check_whole(from, from_bytes, "a copy from memory");
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    work_until(queued);
    if (height)
        check_copy(to, (height - 1) * to_pitch + width, from, (height - 1) * from_pitch + width, kind);
    for (size_t i = 0; i < height; i++)
        memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t)
{
    check_copy(to, bytes, from, bytes, kind);
    later([=] { memmove(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = (cudaStream_t)malloc(1);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    work_until(queued);
    return cudaSuccess;
}

/* EMULATED_GRAPHS: prints a line to standard error per graph that is made, and per launch of a graph. */
static cudaError_t log_graph(const char *what, size_t pieces)
{
    if (getenv("EMULATED_GRAPHS"))
        fprintf(stderr, "emulated GPU: a graph of %zu pieces of work is %s\n", pieces, what);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode mode)
{
    if (captured || mode != cudaStreamCaptureModeThreadLocal)       /* forbidden() has the rules of this mode */
        return cudaErrorInvalidValue;
    captured = std::make_shared<Graph>();
    invalid = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph)
{
    if (!captured)
        return cudaErrorIllegalState;
    *graph = invalid ? NULL : (cudaGraph_t) new Graph(*captured);
    captured = NULL;
    return invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long)
{
    *ready = (cudaGraphExec_t) new std::shared_ptr<Graph>(new Graph(*(Graph *)graph));
    return log_graph("made", ((Graph *)graph)->size());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t)
{
    const std::shared_ptr<Graph> graph = *(std::shared_ptr<Graph> *)ready;

    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    later([=] {
        for (const auto &work : *graph)
            work();
    });
    return log_graph("launched", graph->size());
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete (Graph *)graph;
    return cudaSuccess;
}

/* Launches in flight continue. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready)
{
    delete (std::shared_ptr<Graph> *)ready;
    return cudaSuccess;
}

/* An event is reached when all work queued before its recording is done. */
struct Event {
    uint64_t piece;
    double seconds;
    bool in_graph;                                      /* recorded in a capture: never reached */
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = (cudaEvent_t) new Event();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    Event *e = (Event *)event;

    e->in_graph = captured != NULL;
    if (captured)
        return cudaSuccess;
    later([=] { e->seconds = now(); });
    e->piece = queued;
    return cudaSuccess;
}

/* Each query lets the GPU do one piece of work. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const uint64_t piece = ((const Event *)event)->piece;

    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    if (((const Event *)event)->in_graph)
        return cudaErrorCapturedEvent;
    if (done < piece)
        work_until(done + 1);
    return done < piece ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (forbidden())
        return cudaErrorStreamCaptureUnsupported;
    if (((const Event *)event)->in_graph)
        return cudaErrorCapturedEvent;
    work_until(((const Event *)event)->piece);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    work_until(((const Event *)event)->piece);
    delete (Event *)event;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    const Event *a = (const Event *)from, *b = (const Event *)to;

    if (a->in_graph || b->in_graph)
        return cudaErrorCapturedEvent;
    if (done < a->piece || done < b->piece)
        return cudaErrorNotReady;
    *milliseconds = 1e3 * (b->seconds - a->seconds);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorInvalidConfiguration       ? "invalid configuration argument"
         : error == cudaErrorMemoryAllocation           ? "out of memory"
         : error == cudaErrorStreamCaptureUnsupported   ? "operation not permitted when stream is capturing"
         : error == cudaErrorStreamCaptureInvalidated   ? "operation failed due to a previous error during capture"
         : error == cudaErrorCapturedEvent ? "operation not permitted on an event last recorded in a capturing stream"
                                           : "invalid argument";
}

/* ---- cuBLAS: matrices are column-major ---- */

}

static int size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : 2;
}

static float get(const void *data, cudaDataType_t type, int64_t i)
{
    switch (type) {
    case CUDA_R_32F:
        return ((const float *)data)[i];
    case CUDA_R_16BF:
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    case CUDA_R_16F:
        return __half2float(((const __half *)data)[i]);
    case CUDA_R_8F_E4M3:
        return (float)((const __nv_fp8_e4m3 *)data)[i];
    case CUDA_R_8F_E5M2:
        return (float)((const __nv_fp8_e5m2 *)data)[i];
    default:
        emulated_wrong("a matrix of a type that the backend doesn't use");
    }
}

static void put(void *data, cudaDataType_t type, int64_t i, float x)
{
    if (type == CUDA_R_32F)
        ((float *)data)[i] = x;
    else if (type == CUDA_R_16BF)
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x);
    else if (type == CUDA_R_16F)
        ((__half *)data)[i] = __float2half_rn(x);
    else
        emulated_wrong("a product of a type that the backend doesn't use");
}

/* Rounds to 10 bits of mantissa. */
static float tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* Returns the rows x columns matrix as floats, column-major. */
static std::vector<float> floats(const void *data, cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld,
                                 bool rounded)
{
    std::vector<float> x(rows * columns);

    check_whole(data, ((columns - 1) * ld + rows) * size_of(type), "a product's operand");
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            x[j * rows + i] = rounded ? tf32(get(data, type, j * ld + i)) : get(data, type, j * ld + i);
    return x;
}

/* Returns alpha op(a) op(b), m x n, summed over k. halves: sums the second half of k first, to change the rounding. */
static std::vector<float> product(cublasComputeType_t compute, cublasOperation_t op_a, cublasOperation_t op_b,
                                  int64_t m, int64_t n, int64_t k, float alpha, const void *a, cudaDataType_t type_a,
                                  int64_t ld_a, const void *b, cudaDataType_t type_b, int64_t ld_b,
                                  bool halves = false)
{
    const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T, rounded = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const int64_t rows_a = ta ? k : m, rows_b = tb ? n : k;
    const std::vector<float> x = floats(a, type_a, rows_a, ta ? m : k, ld_a, rounded);
    const std::vector<float> y = floats(b, type_b, rows_b, tb ? k : n, ld_b, rounded);
    std::vector<float> c(m * n);

    for (int64_t first = halves ? k / 2 : 0, end = k; end > 0; end = first, first = 0)
        cblas_sgemm(CblasColMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, end - first,
                    alpha, x.data() + first * (ta ? 1 : rows_a), rows_a, y.data() + first * (tb ? rows_b : 1), rows_b,
                    1, c.data(), m);
    return c;
}

static bool is_half(cudaDataType_t type)
{
    return type == CUDA_R_16BF || type == CUDA_R_16F;
}

extern "C" {

cublasStatus_t cublasGemmStridedBatchedEx_64(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m,
                                             int64_t n, int64_t k, const void *alpha, const void *a,
                                             cudaDataType_t type_a, int64_t ld_a, long long stride_a, const void *b,
                                             cudaDataType_t type_b, int64_t ld_b, long long stride_b, const void *beta,
                                             void *c, cudaDataType_t type_c, int64_t ld_c, long long stride_c,
                                             int64_t count, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    const float scale = *(const float *)alpha, old = *(const float *)beta;         /* read at the call, not later */

    check_whole(c, ((count - 1) * stride_c + (n - 1) * ld_c + m) * size_of(type_c), "a product");
    if (m <= 0 || n <= 0 || k <= 0 || count <= 0 || ld_c < m || ld_a < (op_a == CUBLAS_OP_T ? k : m)
        || ld_b < (op_b == CUBLAS_OP_T ? n : k))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (type_a != type_b || (type_c != type_a && !(type_c == CUDA_R_32F && is_half(type_a)))
        || (compute != CUBLAS_COMPUTE_32F && type_a != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    later([=] {
        for (int64_t i = 0; i < count; i++) {
            const std::vector<float> x = product(compute, op_a, op_b, m, n, k, scale,
                                                 (const char *)a + i * stride_a * size_of(type_a), type_a, ld_a,
                                                 (const char *)b + i * stride_b * size_of(type_b), type_b, ld_b);
            char *to = (char *)c + i * stride_c * size_of(type_c);
            for (int64_t j = 0; j < m * n; j++) {
                const int64_t at = j / m * ld_c + j % m;
                put(to, type_c, at, x[j] + (old ? old * get(to, type_c, at) : 0));
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t type_a, int ld_a, const void *b,
                            cudaDataType_t type_b, int ld_b, const void *beta, void *c, cudaDataType_t type_c, int ld_c,
                            cublasComputeType_t compute, cublasGemmAlgo_t how)
{
    return cublasGemmStridedBatchedEx_64(h, op_a, op_b, m, n, k, alpha, a, type_a, ld_a, 0, b, type_b, ld_b, 0, beta, c,
                                         type_c, ld_c, 0, 1, compute, how);
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    *handle = (cublasHandle_t)malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *workspace, size_t)
{
    return (uintptr_t)workspace % 256 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}

}

/* ---- cuBLASLt ---- */

/* A descriptor of cuBLASLt: attributes by their number. Values are pointers, or numbers of 32 or 64 bits. */
struct Description {
    std::map<int, std::vector<char>> attributes;
    cublasComputeType_t compute;                        /* of a matmul; the other fields: of a matrix */
    cudaDataType_t type;
    int64_t rows, columns, ld;

    template <typename T> T at(int attribute, T otherwise) const
    {
        T value = otherwise;
        const auto found = attributes.find(attribute);
        if (found != attributes.end())
            memcpy(&value, found->second.data(), sizeof value);
        return value;
    }
};

static const Description *described(const void *description)
{
    return (const Description *)description;
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    Description *matmul = new Description();

    matmul->compute = compute;
    *d = (cublasLtMatmulDesc_t)matmul;
    return (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32) && scale == CUDA_R_32F
         ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    ((Description *)d)->attributes[attribute].assign((const char *)value, (const char *)value + bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
    Description *d = new Description();

    d->type = type, d->rows = rows, d->columns = columns, d->ld = ld;
    *l = (cublasLtMatrixLayout_t)d;
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    ((Description *)l)->attributes[attribute].assign((const char *)value, (const char *)value + bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = (cublasLtMatmulPreference_t) new Description();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    ((Description *)p)->attributes[attribute].assign((const char *)value, (const char *)value + bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete (Description *)p;
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_fp8(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static bool has_aux(int epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* Returns whether cuBLASLt supports the matmul. fp8 has one form, with sizes and addresses in multiples of 16. The
 * auxiliary matrix of an epilogue needs rows in multiples of 8. Only the emulator refuses half-precision rows of odd
 * length, so that tests cover the backend's alternative, cuBLAS. */
static bool supported(const Description *matmul, const Description *a, const Description *b, const Description *d)
{
    const int epilogue = matmul->at<int>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);

    if (is_fp8(a->type) != is_fp8(b->type) || (a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2))
        return false;
    if (is_fp8(a->type))
        return matmul->at<int>(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T
               && matmul->at<int>(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_N && a->rows % 16 == 0
               && a->columns % 16 == 0 && b->columns % 16 == 0
               && (epilogue == CUBLASLT_EPILOGUE_DEFAULT
                   || (epilogue == CUBLASLT_EPILOGUE_BIAS && is_half(d->type)));
    if (has_aux(epilogue)
        && (d->rows % 8 || matmul->at<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0) < d->rows))
        return false;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        return a->type == b->type && d->type == a->type && (is_half(a->type) || epilogue == CUBLASLT_EPILOGUE_BIAS);
    return a->type == b->type && (d->type == a->type || (d->type == CUDA_R_32F && is_half(a->type)))
           && !(is_half(a->type) && (a->ld % 2 || b->ld % 2))
           && (matmul->compute == CUBLAS_COMPUTE_32F || a->type == CUDA_R_32F);
}

/* Gives up to three algorithms. The second takes the least time, and sums in a different order. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    if (captured)                                       /* fails since CUDA 13.3 (mudler/vllm.cpp, issue 1732) */
        emulated_wrong("cuBLASLt is asked for an algorithm while the stream is captured");
    *found = supported(described(matmul), described(a), described(b), described(d)) ? min(wanted, 3) : 0;
    memset(results, 0, wanted * sizeof *results);
    for (int i = 0; i < *found; i++)
        results[i].algo.data[0] = i + (*found > 1);
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Returns matrix i of a batch. */
static const void *of_batch(const void *first, const Description *d, int i)
{
    const int64_t stride = d->at<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);

    return (const char *)first + i * stride * size_of(d->type);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b,
                              const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algorithm, void *, size_t,
                              cudaStream_t)
{
    const Description *matmul = described(description), of_a = *described(layout_a), of_b = *described(layout_b);
    const Description of_d = *described(layout_d);
    const cublasOperation_t op_a = matmul->at(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
    const cublasOperation_t op_b = matmul->at(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    const int epilogue = matmul->at<int>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    const int64_t ld_aux = matmul->at<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
    const cublasComputeType_t compute = matmul->compute;
    void *aux = matmul->at<void *>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, NULL);
    const void *bias = matmul->at<const void *>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, NULL);
    const float *scale_a = matmul->at<const float *>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, NULL);
    const float *scale_b = matmul->at<const float *>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, NULL);
    const int64_t m = of_d.rows, n = of_d.columns, k = op_a == CUBLAS_OP_T ? of_a.rows : of_a.columns;
    const float scale = *(const float *)alpha, factor = *(const float *)beta;      /* read at the call, not later */
    const int count = of_d.at<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1), how = algorithm->data[0];

    if (!supported(matmul, &of_a, &of_b, &of_d) || (op_b == CUBLAS_OP_T ? of_b.columns : of_b.rows) != k
        || (op_b == CUBLAS_OP_T ? of_b.rows : of_b.columns) != n
        || (op_a == CUBLAS_OP_T ? of_a.columns : of_a.rows) != m
        || of_a.at<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1) != count
        || of_b.at<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1) != count
        || (count > 1 && epilogue != CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < count; i++)
        check_whole(of_batch(d, &of_d, i), ((n - 1) * of_d.ld + m) * size_of(of_d.type), "a product");
    if (has_aux(epilogue))
        check_whole(aux, ((n - 1) * ld_aux + m) * size_of(of_d.type), "GELU's argument");
    if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        check_whole(bias, m * size_of(of_d.type), "a bias");
    later([=] {
        if (how == 1 || how == 3)
            usleep(1000);
        for (int batch = 0; batch < count; batch++) {
            const std::vector<float> x = product(compute, op_a, op_b, m, n, k,
                                                 scale * (scale_a ? *scale_a : 1) * (scale_b ? *scale_b : 1),
                                                 of_batch(a, &of_a, batch), of_a.type, of_a.ld,
                                                 of_batch(b, &of_b, batch), of_b.type, of_b.ld, how == 2);
            const void *from = of_batch(c, &of_d, batch);
            void *to = (void *)of_batch(d, &of_d, batch);
            for (int64_t i = 0; i < m * n; i++) {
                const int64_t at = i / m * of_d.ld + i % m, at_aux = i / m * ld_aux + i % m;
                const bool biased = epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
                const float u = x[i] + (factor ? factor * get(from, of_d.type, at) : 0)
                                + (biased ? get(bias, of_d.type, i % m) : 0);
                const float up = epilogue == CUBLASLT_EPILOGUE_DGELU ? get(aux, of_d.type, at_aux) : u;
                const float root = 0.7978845608f, t = tanhf(root * (up + 0.044715f * up * up * up));
                if (epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS) {
                    put(to, of_d.type, at, u);
                } else if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                    put(aux, of_d.type, at_aux, up);
                    put(to, of_d.type, at, 0.5f * up * (1 + t));
                } else if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
                    const float slope = root * (1 + 3 * 0.044715f * up * up);
                    put(to, of_d.type, at, u * (0.5f * (1 + t) + 0.5f * up * (1 - t * t) * slope));
                } else {
                    emulated_wrong("an epilogue that the backend doesn't use");
                }
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

}
