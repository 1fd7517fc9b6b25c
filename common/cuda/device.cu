/* A GPU as the device: one stream, in which all work is queued in the order of the calls; the GPU's properties; and
 * events, which give the stream's times on the host's clock. */
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_cuda.h"

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

/* Polls instead of blocking: this GPU may wait for another rank, which waits for something that this host must do. */
void cuda_wait(cudaEvent_t event)
{
    const double begin = clock_seconds();

    for (cudaError_t error; (error = cudaEventQuery(event)) != cudaSuccess; sched_yield()) {
        if (error != cudaErrorNotReady)
            cuda_check(error, "waiting for the GPU", __FILE__, __LINE__);
        cudaGetLastError();                     /* clears it: not ready is no failure */
        if (look)
            look(clock_seconds() - begin);
    }
}

void device_wait(void)
{
    CUDA(cudaEventRecord(waited_for, stream));
    cuda_wait(waited_for);
}

/* ---- Events ---- */

/* An event's time is the host's clock when the first event was reached, plus the time from that one to it: as float
 * milliseconds, exact to a microsecond for the first 16 seconds, to a millisecond for hours. */
static cudaEvent_t first_event;
static double first_seconds;

static void events_begin(void)
{
    CUDA(cudaEventCreate(&first_event));
    CUDA(cudaEventRecord(first_event, stream));
    cuda_wait(first_event);
    first_seconds = clock_seconds();
}

DeviceEvent device_event(void)
{
    DeviceEvent event = {clock_seconds(), NULL};
    cudaEvent_t e;

    CUDA(cudaEventCreate(&e));
    CUDA(cudaEventRecord(e, stream));
    event.handle = e;
    return event;
}

double device_event_seconds(DeviceEvent *event)
{
    const cudaEvent_t e = (cudaEvent_t)event->handle;
    float milliseconds;

    if (!e)
        return event->seconds;
    cuda_wait(e);
    CUDA(cudaEventElapsedTime(&milliseconds, first_event, e));
    CUDA(cudaEventDestroy(e));
    event->handle = NULL;
    return event->seconds = first_seconds + 1e-3 * milliseconds;
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

/* ---- The start ---- */

static const int built[] = {__CUDA_ARCH_LIST__};        /* nvcc's macro, in ascending order: 750, 800 */

/* Returns a rank's GPU among those that this program can use: the PTX for the lowest architecture of the build runs on
 * all later GPUs, and nothing in it on earlier ones, such as an old display card. */
static int device_of(int local_rank)
{
    int count, all = 0, found[64], major, minor;
    const cudaError_t error = cudaGetDeviceCount(&count);       /* without a driver, count stays unset */

    if (error != cudaSuccess || count == 0)
        fail("this program is built for NVIDIA GPUs, but CUDA finds none: %s; build/cpu/ has the programs for the CPU",
             error != cudaSuccess ? cudaGetErrorString(error) : "there are 0 devices");
    for (int d = 0; d < count && all < 64; d++)
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d) == cudaSuccess
            && cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d) == cudaSuccess
            && 100 * major + 10 * minor >= built[0])
            found[all++] = d;
    if (all == 0)
        fail("this program is built for GPUs from sm_%d on, but those here are older; try \"make cuda ARCH=sm_XX\", "
             "from sm_75 on; build/cpu/ has the programs for the CPU", built[0] / 10);
    return found[local_rank % all];
}

DeviceId device_id(int local_rank)
{
    cudaDeviceProp properties;
    DeviceId id;

    CUDA(cudaGetDeviceProperties(&properties, device_of(local_rank)));
    memcpy(id.uuid, properties.uuid.bytes, sizeof id.uuid);
    return id;
}

void device_prepare(char **argv)
{
    (void)argv;
}

void device_init(int local_rank, int local_ranks, int wanted)
{
    const int device = device_of(local_rank);

    CUDA(cudaSetDevice(device));
    CUDA(cudaGetDeviceProperties(&gpu, device));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&waited_for, cudaEventDisableTiming));
    threads = wanted > 0 ? wanted : omp_get_num_procs() / local_ranks;
    threads = threads < 1 ? 1 : threads;
    omp_set_num_threads(threads);               /* for loops on the host: initial weights */
    snprintf(name, sizeof name, "%s, %.1f GB, sm_%d%d", gpu.name, gpu.totalGlobalMem / 1e9, gpu.major, gpu.minor);
    memory_begin(device);
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

bool device_is_host(void)
{
    return false;
}

int device_multiprocessors(void)
{
    return gpu.multiProcessorCount;
}

int device_capability(void)
{
    return 10 * gpu.major + gpu.minor;
}

Support device_supports(DType dtype)
{
    const int sm = device_capability();
    const bool fp8 = dtype == E4M3 || dtype == E5M2;

    return dtype == F32 || dtype == F16 || (dtype == BF16 && sm >= 80) || (fp8 && sm >= 89) ? SUPPORT_NATIVE
                                                                                            : SUPPORT_NONE;
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

/* Peak TFLOP/s from NVIDIA's datasheets and architecture whitepapers, without sparsity, accumulating in float. Both the
 * name and the number of multiprocessors must match, since names alone are ambiguous. Laptop GPUs are left out, even if
 * both match (an "RTX 4060 Laptop GPU"): the laptop sets their clock. If one name is part of another with the same
 * number, the longer one comes first. */
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
