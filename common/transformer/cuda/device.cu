/* A GPU as the device: one stream, in which all work is queued in the order of the calls; the GPU's properties; and
 * events, which give the stream's times on the host's clock. */
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "device_cuda.h"

static cudaDeviceProp gpu;
static char name[320];
static cudaStream_t stream;
static cudaEvent_t waited_for;
bool device_tf32;
static int kilohertz;                           /* the highest clock */

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

int64_t device_waits;

void device_wait(void)
{
    device_waits++;
    CUDA(cudaEventRecord(waited_for, stream));
    cuda_wait(waited_for);
}

/* ---- Events ---- */

/* An event's time is the host's clock when the first event was reached, plus the time from that one to it: as float
 * milliseconds, exact to a microsecond for the first 16 seconds, to a millisecond for hours. */
static cudaEvent_t first_event;
static double first_seconds;

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

/* ---- The GPU's speed ---- */

/* TFLOP/s in float, and of tensor cores in half precision, from NVIDIA's datasheets: without sparsity, accumulating in
 * float. Both the name and the number of multiprocessors must match, since names alone are ambiguous. */
typedef struct {
    const char *name;
    int multiprocessors;
    double f32, half;
} Peak;
static const Peak peaks[] = {
    {"T4", 40, 8.1, 65},        {"A100", 108, 19.5, 312},        {"A10G", 80, 35, 70},       {"L4", 58, 30.3, 121},
    {"L40S", 142, 91.6, 362},   {"RTX 4090", 128, 82.6, 165.2},  {"H100 PCIe", 114, 51.2, 756},
    {"H100", 132, 66.9, 989.4}, {"RTX 5090", 170, 104.8, 209.5}, {"H200", 132, 66.9, 989.4}, {"B200", 148, 75, 2250},
};

static Peak peak(void)
{
    for (const Peak &p : peaks)
        if (strstr(gpu.name, p.name) && gpu.multiProcessorCount == p.multiprocessors)
            return p;
    /* any other GPU: its multiprocessors' FLOPs per clock by its generation, at its highest clock */
    const int sm = device_capability(), f32 = sm <= 80 ? 128 : 256;
    const int half = sm == 80 ? 2048 : gpu.major == 9 ? 4096 : gpu.major == 10 ? 8192
                     : strstr(gpu.name, "GeForce") ? 512 : 1024;
    const double clocks = 1e-9 * kilohertz * gpu.multiProcessorCount;
    return (Peak){NULL, 0, f32 * clocks, half * clocks};
}

/* TF32 has half of half precision's rate, fp8 twice of it. */
double device_peak_flops(DType dtype)
{
    const bool fp8 = dtype == E4M3 || dtype == E5M2;

    if (device_supports(dtype) == SUPPORT_NONE)
        return 0;
    return 1e12 * (fp8 ? 2 * peak().half : dtype != F32 ? peak().half : device_tf32 ? peak().half / 2 : peak().f32);
}

/* ---- The start ---- */

/* Returns a rank's GPU. */
static int device_of(int local_rank)
{
    int count;
    const cudaError_t error = cudaGetDeviceCount(&count);       /* without a driver, count stays unset */

    if (error != cudaSuccess || count == 0)
        fail("this program is built for NVIDIA GPUs, but CUDA finds none: %s; build/cpu/ has the programs for the CPU",
             error != cudaSuccess ? cudaGetErrorString(error) : "there are 0 devices");
    return local_rank % count;
}

void device_prepare(char **argv)
{
    (void)argv;
}

DeviceId device_id(int local_rank)
{
    cudaDeviceProp properties;
    DeviceId id;

    CUDA(cudaGetDeviceProperties(&properties, device_of(local_rank)));
    memcpy(id.uuid, properties.uuid.bytes, sizeof id.uuid);
    return id;
}

void device_init(int local_rank)
{
    const int device = device_of(local_rank);

    CUDA(cudaSetDevice(device));
    CUDA(cudaGetDeviceProperties(&gpu, device));
    CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&waited_for, cudaEventDisableTiming));
    snprintf(name, sizeof name, "%s, %.1f GB, sm_%d%d%s", gpu.name, gpu.totalGlobalMem / 1e9, gpu.major, gpu.minor,
             peak().name ? "" : ", its peak estimated");
    memory_begin(device);
    CUDA(cudaEventCreate(&first_event));
    CUDA(cudaEventRecord(first_event, stream));
    cuda_wait(first_event);
    first_seconds = clock_seconds();
    matmul_begin();
}

const char *device_name(void)
{
    return name;
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
    const int sm = device_capability();
    const bool fp8 = dtype == E4M3 || dtype == E5M2;

    return dtype == F32 || dtype == F16 || (dtype == BF16 && sm >= 80) || (fp8 && sm >= 89) ? SUPPORT_NATIVE
                                                                                            : SUPPORT_NONE;
}

bool device_use_tf32(void)
{
    return device_tf32 = device_capability() >= 80;
}
