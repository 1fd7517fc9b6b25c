/* The device as a GPU: one stream, in which everything is queued in the order of the calls, so that memory can change
 * hands without anybody waiting; a pool, because cudaFree waits for the whole device; and events, which tell when the
 * GPU was where, on the host's clock. */
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_cuda.h"
#include "../error.h"
#include "../memory.h"
#include "../print.h"

static cudaDeviceProp gpu;
static char name[320];
static int threads;
static cudaStream_t stream;
static cudaEvent_t waited_for;
static bool tf32;

void cuda_check(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess)
        return;
    fail("%s (%s:%d): %s%s", call, file, line, cudaGetErrorString(error),
         error == cudaErrorNoKernelImageForDevice ? "; \"make cuda ARCH=sm_XX\" builds for other GPUs" : "");
}

void *device_stream(void)
{
    return stream;
}

/* ---- Waiting ---- */

static void (*look)(double seconds);

void device_while_waiting(void (*l)(double seconds))
{
    look = l;
}

/* Not a call that blocks: what this GPU waits for may be another rank, which waits for what this host should do. */
static void wait_for(cudaEvent_t event)
{
    const double begin = clock_seconds();

    for (cudaError_t error; (error = cudaEventQuery(event)) != cudaSuccess; sched_yield()) {
        if (error != cudaErrorNotReady)
            cuda_check(error, "waiting for the GPU", __FILE__, __LINE__);
        cudaGetLastError();                     /* heard: not ready is no failure */
        if (look)
            look(clock_seconds() - begin);
    }
}

void device_wait(void)
{
    CUDA(cudaEventRecord(waited_for, stream));
    wait_for(waited_for);
}

/* ---- The start ---- */

int device_count(void)
{
    int count;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();                     /* heard: no later call shall report it */
        return 0;
    }
    return count;
}

static void upload_begin(void);
static void events_begin(void);

void device_prepare(char **argv)
{
    (void)argv;
}

void device_init(int local_rank, int local_ranks, int wanted)
{
    int count;
    const cudaError_t error = cudaGetDeviceCount(&count);       /* without a driver, count stays unset */

    if (error != cudaSuccess || count == 0)
        fail("this program is built for NVIDIA GPUs, but CUDA finds none: %s; build/cpu/ has the programs for the CPU",
             error != cudaSuccess ? cudaGetErrorString(error) : "there are 0 devices");
    CUDA(cudaSetDevice(local_rank % count));
    CUDA(cudaGetDeviceProperties(&gpu, local_rank % count));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&waited_for, cudaEventDisableTiming));
    threads = wanted > 0 ? wanted : omp_get_num_procs() / local_ranks;
    threads = threads < 1 ? 1 : threads;
    omp_set_num_threads(threads);               /* the host's loops: initial weights */
    snprintf(name, sizeof name, "%s, %.1f GB, sm_%d%d", gpu.name, gpu.totalGlobalMem / 1e9, gpu.major, gpu.minor);
    upload_begin();
    events_begin();
    matmul_begin();
}

const char *device_name(void)
{
    return name;
}

int device_threads(void)
{
    return threads;
}

const char *device_identity(void)
{
    static char text[DEVICE_IDENTITY];

    for (int i = 0; i < (int)sizeof gpu.uuid.bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)gpu.uuid.bytes[i]);
    return text;
}

bool device_is_host(void)
{
    return false;
}

int device_capability(void)
{
    return 10 * gpu.major + gpu.minor;
}

Support device_supports(DType dtype)
{
    switch (dtype) {
    case F32:
    case F16:
        return SUPPORT_NATIVE;
    case BF16:
        return device_capability() >= 80 ? SUPPORT_NATIVE : SUPPORT_NONE;
    case E4M3:
    case E5M2:
        return device_capability() >= 89 ? SUPPORT_NATIVE : SUPPORT_NONE;
    default:
        return SUPPORT_NONE;
    }
}

bool device_use_tf32(void)
{
    tf32 = device_capability() >= 80;
    return tf32;
}

bool device_uses_tf32(void)
{
    return tf32;
}

/* Peaks of NVIDIA's datasheets and architecture whitepapers in TFLOP/s, without sparsity, tensor cores accumulating in
 * float. Names alone don't tell: the number of multiprocessors must match too. A laptop's GPU is none of these, even
 * where its name and number are (an "RTX 4060 Laptop GPU"): how fast it may run is the laptop's choice. Where one name
 * is part of another with the same number, the longer comes first. */
static const struct {
    const char *name;
    int multiprocessors;
    double f32, tf32, half, fp8;
} peaks[] = {
    {"T4", 40, 8.1, 0, 65, 0},
    {"RTX 2060 SUPER", 34, 7.2, 0, 28.7, 0},
    {"RTX 2060", 30, 6.5, 0, 25.8, 0},
    {"RTX 2070 SUPER", 40, 9.1, 0, 36.3, 0},
    {"RTX 2070", 36, 7.5, 0, 29.9, 0},
    {"RTX 2080 Ti", 68, 13.4, 0, 53.8, 0},
    {"RTX 2080 SUPER", 48, 11.2, 0, 44.6, 0},
    {"RTX 2080", 46, 10.1, 0, 40.3, 0},
    {"A100", 108, 19.5, 156, 312, 0},
    {"A30", 56, 10.3, 82, 165, 0},
    {"A10G", 80, 35, 35, 70, 0},
    {"A10", 72, 31.2, 62.5, 125, 0},
    {"A40", 84, 37.4, 74.8, 149.7, 0},
    {"RTX A6000", 84, 38.7, 77.4, 154.8, 0},
    {"RTX 3060 Ti", 38, 16.2, 16.2, 32.4, 0},
    {"RTX 3060", 28, 12.7, 12.7, 25.5, 0},
    {"RTX 3070 Ti", 48, 21.7, 21.7, 43.5, 0},
    {"RTX 3070", 46, 20.3, 20.3, 40.6, 0},
    {"RTX 3080 Ti", 80, 34.1, 34.1, 68.2, 0},
    {"RTX 3080", 70, 30.6, 30.6, 61.3, 0},
    {"RTX 3080", 68, 29.8, 29.8, 59.5, 0},
    {"RTX 3090 Ti", 84, 40, 40, 80, 0},
    {"RTX 3090", 82, 35.6, 35.6, 71, 0},
    {"L40S", 142, 91.6, 183, 362, 733},
    {"L40", 142, 90.5, 90.5, 181, 362},
    {"L4", 58, 30.3, 60, 121, 242},
    {"RTX 6000 Ada", 142, 91.1, 182.1, 364.2, 728.5},
    {"RTX 4060 Ti", 34, 22.1, 22.1, 44.1, 88.2},
    {"RTX 4060", 24, 15.1, 15.1, 30.2, 60.5},
    {"RTX 4070 Ti SUPER", 66, 44.1, 44.1, 88.2, 176.4},
    {"RTX 4070 Ti", 60, 40.1, 40.1, 80.2, 160.4},
    {"RTX 4070 SUPER", 56, 35.5, 35.5, 70.9, 141.9},
    {"RTX 4070", 46, 29.1, 29.1, 58.3, 116.6},
    {"RTX 4080 SUPER", 80, 52.2, 52.2, 104.4, 208.9},
    {"RTX 4080", 76, 48.7, 48.7, 97.5, 194.9},
    {"RTX 4090", 128, 82.6, 82.6, 165.2, 330.3},
    {"H100 NVL", 132, 60, 417, 835, 1671},
    {"H200 NVL", 132, 60, 417, 835, 1671},
    {"H100 PCIe", 114, 51.2, 378, 756, 1513},
    {"H100", 132, 66.9, 494.7, 989.4, 1978.9},
    {"H200", 132, 66.9, 494.7, 989.4, 1978.9},          /* and GH200 */
    {"GB200", 152, 80, 1250, 2500, 5000},
    {"B200", 148, 75, 1125, 2250, 4500},
    {"RTX 5070 Ti", 70, 43.9, 43.9, 87.9, 175.8},
    {"RTX 5070", 48, 30.9, 30.9, 61.7, 123.5},
    {"RTX 5080", 84, 56.3, 56.3, 112.6, 225.1},
    {"RTX 5090", 170, 104.8, 104.8, 209.5, 419},
};

double device_peak_flops(DType dtype)
{
    const bool fp8 = dtype == E4M3 || dtype == E5M2;

    if (device_supports(dtype) == SUPPORT_NONE || strstr(gpu.name, "Laptop") || strstr(gpu.name, "Max-Q"))
        return 0;
    for (const auto &p : peaks)
        if (strstr(gpu.name, p.name) && gpu.multiProcessorCount == p.multiprocessors)
            return 1e12 * (fp8 ? p.fp8 : dtype != F32 ? p.half : tf32 ? p.tf32 : p.f32);
    return 0;
}

/* ---- Memory ---- */

/* What was given back, for the next one that asks for as much: programs ask for the same sizes again and again. */
typedef struct Kept {
    struct Kept *next;
    void *data;
    int64_t bytes;
} Kept;

static Kept *kept;
static int64_t reserved, kept_bytes;

static int64_t rounded(int64_t bytes)
{
    return bytes < 512 ? 512 : (bytes + 511) / 512 * 512;
}

/* cudaFree waits for all streams, and meanwhile this host does nothing for other ranks. So it first does all that it
 * can while the GPU comes to where it is. */
static void give_all_back(void)
{
    device_wait();
    while (kept) {
        Kept *k = kept;
        kept = k->next;
        CUDA(cudaFree(k->data));
        reserved -= k->bytes;
        kept_bytes -= k->bytes;
        free(k);
    }
}

/* Not zeroed; NULL: the GPU has no more. */
static void *take(int64_t wanted)
{
    const int64_t bytes = rounded(wanted);
    void *data;

    for (Kept **at = &kept; *at; at = &(*at)->next)
        if ((*at)->bytes == bytes) {
            Kept *k = *at;
            data = k->data;
            *at = k->next;
            kept_bytes -= bytes;
            free(k);
            return data;
        }
    cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        give_all_back();
        error = cudaMalloc(&data, bytes);
    }
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return NULL;
    }
    cuda_check(error, "cudaMalloc(&data, bytes)", __FILE__, __LINE__);
    reserved += bytes;
    return data;
}

void *device_alloc(int64_t bytes)
{
    void *data = take(bytes);

    if (data)
        device_zero(data, bytes);
    return data;
}

void device_free(void *data, int64_t bytes)
{
    Kept *k = (Kept *)malloc(sizeof *k);

    if (!k)
        fail("no memory for the list of what is free on the GPU");
    k->next = kept, k->data = data, k->bytes = rounded(bytes);
    kept = k;
    kept_bytes += k->bytes;
}

void *device_scratch(int64_t bytes)
{
    void *data = take(bytes);

    if (!data)
        fail("an operator needs %s of scratch memory, but the GPU has no more: %s; %s would need less",
             bytes_text(bytes), memory_in_use(), memory_remedy(MEM_WORKSPACE));
    return data;
}

void device_scratch_free(void *data, int64_t bytes)
{
    device_free(data, bytes);
}

int64_t device_memory_available(void)
{
    size_t free_now, total;

    CUDA(cudaMemGetInfo(&free_now, &total));
    return (int64_t)free_now + kept_bytes;
}

int64_t device_memory_reserved(void)
{
    return reserved;
}

void device_zero(void *data, int64_t bytes)
{
    CUDA(cudaMemsetAsync(data, 0, bytes, stream));
}

void device_copy(void *to, const void *from, int64_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

void device_download(void *to, const void *from, int64_t bytes)
{
    device_wait();
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
}

void *device_host_alloc(int64_t bytes)
{
    void *data;
    const cudaError_t error = cudaHostAlloc(&data, bytes ? bytes : 1, cudaHostAllocDefault);

    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return NULL;
    }
    cuda_check(error, "cudaHostAlloc(&data, bytes)", __FILE__, __LINE__);
    return data;
}

void device_download_start(void *to, const void *from, int64_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
}

void device_upload_start(void *to, const void *from, int64_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
}

/* Uploads pass through a ring of pinned memory: the caller's buffer is free when the host has copied it, and the copy
 * to the GPU is queued like any work. The host waits only when the ring has gone round and the GPU has not. */
enum { SLOTS = 16 };
static const int64_t SLOT = 1 << 20;            /* bytes */

static struct {
    void *data;
    cudaEvent_t empty;
} ring[SLOTS];

static void upload_begin(void)
{
    for (int i = 0; i < SLOTS; i++) {
        CUDA(cudaHostAlloc(&ring[i].data, SLOT, cudaHostAllocDefault));
        CUDA(cudaEventCreateWithFlags(&ring[i].empty, cudaEventDisableTiming));
    }
}

void device_upload(void *to, const void *from, int64_t bytes)
{
    static int next;

    for (int64_t done = 0; done < bytes; done += SLOT) {
        const int i = next;
        const int64_t n = bytes - done < SLOT ? bytes - done : SLOT;
        wait_for(ring[i].empty);
        memcpy(ring[i].data, (const char *)from + done, n);
        CUDA(cudaMemcpyAsync((char *)to + done, ring[i].data, n, cudaMemcpyHostToDevice, stream));
        CUDA(cudaEventRecord(ring[i].empty, stream));
        next = (next + 1) % SLOTS;
    }
}

/* ---- Events ---- */

/* CUDA tells the time between two events, in float milliseconds: exact to a microsecond for some seconds only. So
 * every few seconds an event is kept as an anchor, whose time on the host's clock is that of the anchor before plus the
 * time between them; the first one's is known because the host waited for it. */
static const double ANCHOR_SECONDS = 8;

typedef struct {
    cudaEvent_t event;
    double recorded, seconds;                   /* by the host; when the GPU reached it */
} Anchor;

static Anchor *anchors;
static int anchor_count, anchor_room, anchors_known;

typedef struct Point {
    struct Point *next;                         /* of those that are free */
    cudaEvent_t event;
    int anchor;                                 /* the last before it */
} Point;

static Point *free_points;

static double seconds_between(cudaEvent_t from, cudaEvent_t to)
{
    float milliseconds;

    CUDA(cudaEventElapsedTime(&milliseconds, from, to));
    return 1e-3 * milliseconds;
}

static void anchor_add(double now)
{
    if (anchor_count == anchor_room) {
        anchor_room = anchor_room ? 2 * anchor_room : 64;
        anchors = (Anchor *)realloc(anchors, anchor_room * sizeof *anchors);
        if (!anchors)
            fail("no memory for the times of %d events", anchor_room);
    }
    Anchor *a = &anchors[anchor_count++];
    a->recorded = now;
    CUDA(cudaEventCreate(&a->event));
    CUDA(cudaEventRecord(a->event, stream));
}

static void events_begin(void)
{
    anchor_add(clock_seconds());
    wait_for(anchors[0].event);
    anchors[0].seconds = clock_seconds();
    anchors_known = 1;
}

DeviceEvent device_event(void)
{
    const double now = clock_seconds();
    Point *p = free_points;
    DeviceEvent event = {now, NULL};

    if (now - anchors[anchor_count - 1].recorded > ANCHOR_SECONDS)
        anchor_add(now);
    if (p) {
        free_points = p->next;
    } else {
        p = (Point *)malloc(sizeof *p);
        if (!p)
            fail("no memory for an event");
        CUDA(cudaEventCreate(&p->event));
    }
    p->anchor = anchor_count - 1;
    CUDA(cudaEventRecord(p->event, stream));
    event.handle = p;
    return event;
}

bool device_event_reached(const DeviceEvent *event)
{
    if (!event->handle)
        return true;
    const cudaError_t error = cudaEventQuery(((Point *)event->handle)->event);
    if (error == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    cuda_check(error, "cudaEventQuery(event)", __FILE__, __LINE__);
    return true;
}

double device_event_seconds(DeviceEvent *event)
{
    Point *p = (Point *)event->handle;

    if (!p)
        return event->seconds;
    wait_for(p->event);                         /* and so are all anchors before it reached */
    for (; anchors_known <= p->anchor; anchors_known++) {
        const Anchor *before = &anchors[anchors_known - 1];
        anchors[anchors_known].seconds = before->seconds + seconds_between(before->event, anchors[anchors_known].event);
    }
    event->seconds = anchors[p->anchor].seconds + seconds_between(anchors[p->anchor].event, p->event);
    event->handle = NULL;
    p->next = free_points;
    free_points = p;
    return event->seconds;
}

void device_range_begin(const char *text)
{
    nvtxRangePushA(text);
}

void device_range_end(void)
{
    nvtxRangePop();
}

double clock_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
