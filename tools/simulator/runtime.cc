/* libcudart's devices, memory and launches, and what nvcc's own code calls at a launch. */
#include "runtime.h"

#include <map>
#include <sstream>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuple>

#include "ptx.h"

static int number(const char *variable, int otherwise)
{
    const char *text = getenv(variable);

    return text ? atoi(text) : otherwise;
}

static bool is_eager(const char *variable)
{
    return getenv(variable) && !strcmp(getenv(variable), "EAGER");
}

const Settings &settings(void)
{
    static const Settings first = [] {
        const bool eager = is_eager("CUDA_MODULE_LOADING") && is_eager("CUDA_MODULE_DATA_LOADING");
        if (eager)
            count_call("kernels all loaded at the start");
        return Settings{number("CUDA_DEVICE_MAX_CONNECTIONS", 8), eager};
    }();

    return first;
}

int multiprocessors(void)
{
    return 132;
}

/* Those of the machine's GPUs that this process sees: all, or a list as in CUDA_VISIBLE_DEVICES, "0,3". */
static std::vector<int> visible(void)
{
    const char *list = getenv("SIMULATED_VISIBLE_DEVICES");
    std::istringstream some(list ? list : "");
    std::vector<int> devices;

    for (int d; some >> d; some.ignore())
        devices.push_back(d);
    for (int d = 0; !list && d < number("SIMULATED_GPUS", 8); d++)
        devices.push_back(d);
    return devices;
}

extern "C" {

/* ---- the device: each rank has its own, under any number ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    settings();
    *count = (int)visible().size();
    return *count ? cudaSuccess : error(cudaErrorNoDevice);
}

CUDA_CALL(cudaSetDevice(int))
CUDA_CALL(cudaGetDevice(int *device), *device = 0)

static int capability(void)
{
    return number("SIMULATED_SM", 90);
}

static int shared_bytes(void)                   /* of a block, at most */
{
    return (capability() >= 90 ? 227 : capability() == 80 ? 163 : 99) << 10;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "simulated GPU");
    p->uuid.bytes[0] = visible()[device];
    p->totalGlobalMem = global_limit();
    p->major = capability() / 10, p->minor = capability() % 10;
    p->multiProcessorCount = multiprocessors();
    p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = shared_bytes();
    p->warpSize = LANES, p->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    const std::map<cudaDeviceAttr, int> values = {
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_bytes()},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, shared_bytes() + 1024},
        {cudaDevAttrMemoryPoolsSupported, 1},
        {cudaDevAttrMultiProcessorCount, multiprocessors()},
        {cudaDevAttrClockRate, 1000000},
        {cudaDevAttrComputeCapabilityMajor, capability() / 10},
        {cudaDevAttrComputeCapabilityMinor, capability() % 10},
    };

    *value = values.count(attribute) ? values.at(attribute) : 0;
    return values.count(attribute) ? cudaSuccess : error(cudaErrorInvalidValue);
}

/* ---- memory ---- */

static uint64_t used, most_used;
static std::map<const char *, size_t> pinned;

cudaError_t cudaMallocAsync(void **data, size_t bytes, cudaStream_t)
{
    if (used + bytes > global_limit())
        return error(cudaErrorMemoryAllocation);
    used += bytes;
    most_used = std::max(most_used, used);
    *data = global_alloc(bytes);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes) { return cudaMallocAsync(data, bytes, NULL); }

cudaError_t cudaFreeAsync(void *data, cudaStream_t stream)
{
    if (!global_bytes_of(data))
        return error(cudaErrorInvalidValue);
    used -= global_bytes_of(data);
    enqueue(stream, "cudaFreeAsync", [=] { global_free(data); });
    return cudaSuccess;
}

cudaError_t cudaFree(void *data)
{
    cudaDeviceSynchronize();
    return data ? cudaFreeAsync(data, NULL) : cudaSuccess;
}

/* The pool keeps what is freed. */
CUDA_CALL(cudaMemGetInfo(size_t *available, size_t *total), *total = global_limit(); *available = *total - most_used)
CUDA_CALL(cudaDeviceGetDefaultMemPool(cudaMemPool_t *, int))
CUDA_CALL(cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *))
CUDA_CALL(cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void *value),
          *(uint64_t *)value = attribute == cudaMemPoolAttrUsedMemCurrent ? used : most_used)

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned)
{
    *data = malloc(bytes + 1);
    pinned[(char *)*data] = bytes;
    count_call("cudaHostAlloc");
    return *data ? cudaSuccess : error(cudaErrorMemoryAllocation);
}

static bool is_pinned(const void *data)
{
    const auto after = pinned.upper_bound((const char *)data);

    return after != pinned.begin() && (const char *)data < std::prev(after)->first + std::prev(after)->second;
}

static void copy_now(void *to, const void *from, size_t bytes)
{
    const void *source = is_global(from) ? global_memory.access_all((uint64_t)from, bytes, READS) : from;
    void *target = is_global(to) ? global_memory.access_all((uint64_t)to, bytes, WRITES) : to;

    memmove(target, source, bytes);
}

/* For parity.c: kernels must not touch the memory beside a tensor. */
void simulated_forbid(const void *data, int64_t bytes, bool forbidden)
{
    cudaDeviceSynchronize();
    global_memory.mark((uint64_t)data, bytes, forbidden ? FORBIDDEN : WRITTEN);
}

/* Only pinned memory of the host is read or written later; CUDA copies other memory during the call. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    const bool from_host = kind == cudaMemcpyHostToDevice, to_host = kind == cudaMemcpyDeviceToHost;

    if (bytes == 0)
        return cudaSuccess;
    if (is_global(from) == from_host || is_global(to) == to_host)
        simulated_error("cudaMemcpy of %zu bytes from %p to %p: an address is not of the memory that %s says", bytes,
                        from, to, from_host ? "HostToDevice" : to_host ? "DeviceToHost" : "DeviceToDevice");
    std::vector<char> staged;
    if (from_host && !is_pinned(from))
        staged.assign((const char *)from, (const char *)from + bytes);
    enqueue(stream, "cudaMemcpyAsync", [=] { copy_now(to, staged.empty() ? from : staged.data(), bytes); });
    return to_host && !is_pinned(to) ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, NULL);

    return e ? e : cudaStreamSynchronize(NULL);
}

CUDA_CALL(cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                       cudaMemcpyKind kind),
          for (size_t i = 0; i < height; i++)
              cudaMemcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind))

CUDA_CALL(cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream),
          enqueue(stream, "cudaMemset",
                  [=] { memset(global_memory.access_all((uint64_t)data, bytes, WRITES), value, bytes); }))
cudaError_t cudaMemset(void *data, int value, size_t bytes) { return cudaMemsetAsync(data, value, bytes, NULL); }

/* ---- kernels ---- */

/* The fat binary, as nvcc -no-compress writes it: a header, then entries with a header each. Entries of kind 1 are
 * PTX. */
void **__cudaRegisterFatBinary(void *wrapper)
{
    struct Header { uint32_t magic; uint16_t version, header_bytes; uint64_t bytes; } h;
    struct Entry { uint16_t kind, version; uint32_t header_bytes; uint64_t bytes; } e;
    const char *data = *(const char **)((char *)wrapper + 8);
    Module *module = new Module;

    memcpy(&h, data, sizeof h);
    const char *const end = data + h.header_bytes + h.bytes;
    for (data += h.header_bytes; data < end; data += e.header_bytes + e.bytes) {
        memcpy(&e, data, sizeof e);
        if (e.kind == 1)
            module->text = data + e.header_bytes;
    }
    return (void **)module;
}

void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}

/* The module and the name of each kernel. Programs register them before main, in any order of files. */
static auto &functions(void)
{
    static auto *all = new std::map<const void *, std::pair<Module *, const char *>>;

    return *all;
}

void __cudaRegisterFunction(void **module, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *)
{
    functions()[host] = {(Module *)module, name};
}

static Kernel *kernel_of(const void *function)
{
    const auto f = functions().find(function);

    if (f == functions().end())
        simulated_error("a launch of a kernel that no file registers");
    return find_kernel(f->second.first, f->second.second);
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value)
{
    Kernel *k = kernel_of(function);

    count_call("cudaFuncSetAttribute");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value + k->static_shared > shared_bytes())
        return error(cudaErrorInvalidValue);
    k->most_dynamic_shared = value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 threads, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    Kernel *k = kernel_of(function);
    const uint64_t count = (uint64_t)threads.x * threads.y * threads.z;
    std::vector<uint8_t> parameters(k->parameter_bytes + 1);

    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x >> 31 || grid.y >> 16 || grid.z >> 16 || count == 0
        || count > (unsigned)k->most_threads || threads.z > 64)
        return error(cudaErrorInvalidConfiguration);
    if (shared > k->most_dynamic_shared)
        return error(cudaErrorInvalidValue);
    count_call("launches");
    for (size_t p = 0; p < k->parameters.size(); p++)
        memcpy(&parameters[k->parameters[p].offset], arguments[p], k->parameters[p].bytes);
    enqueue(stream, k->name.c_str(), [=] { run_grid(k, grid, threads, shared, parameters.data()); });
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *function, void **arguments)
{
    if (c->numAttrs)
        simulated_error("cudaLaunchKernelEx: launch attributes are not simulated");
    return cudaLaunchKernel(function, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream);
}

static std::tuple<dim3, dim3, size_t, cudaStream_t> configured;         /* by <<< >>> */

CUDA_CALL(__cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, cudaStream_t stream),
          configured = {grid, threads, shared, stream})
CUDA_CALL(__cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared, void *stream),
          std::tie(*grid, *threads, *shared, *(cudaStream_t *)stream) = configured)
CUDA_CALL(__cudaGetKernel(cudaKernel_t *kernel, const void *function), *kernel = (cudaKernel_t)function)

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, threads, arguments, shared, stream);
}

}
