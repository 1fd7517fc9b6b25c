/* A GPU's memory, and what travels between it and the host's.
 *
 * Memory is taken and given back in the stream's order: who gets it next is queued behind its last reader, so nobody
 * waits. cudaFree would wait for all streams, and in one of them a transfer may wait for a rank that waits for what
 * this host should do next. What is given back stays in the driver's pool, which cuts and joins it for other sizes.
 */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"
#include "../error.h"
#include "../memory.h"
#include "../print.h"

static cudaMemPool_t pool;

static cudaStream_t stream(void)
{
    return (cudaStream_t)device_stream();
}

static uint64_t of_pool(cudaMemPoolAttr attribute)
{
    uint64_t bytes;

    CUDA(cudaMemPoolGetAttribute(pool, attribute, &bytes));
    return bytes;
}

/* Not zeroed; NULL: the GPU has no more. */
static void *take(int64_t bytes)
{
    void *data;
    const cudaError_t error = cudaMallocAsync(&data, bytes ? bytes : 1, stream());

    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();                     /* heard: no later call shall report it */
        return NULL;
    }
    cuda_check(error, "cudaMallocAsync(&data, bytes, stream)", __FILE__, __LINE__);
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
    (void)bytes;
    CUDA(cudaFreeAsync(data, stream()));
}

/* ---- Scratch ---- */

static int64_t scratch_used, scratch_most;      /* bytes, now and at most */

static struct {
    char *data;                                 /* NULL: there is none yet */
    int64_t bytes, used;
    int pieces;                                 /* in use; without any, the block is empty again */
    bool on;
} fixed;

/* Pieces begin where cudaMalloc's do. */
static int64_t rounded(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

void *device_scratch(int64_t bytes)
{
    if (fixed.on) {
        char *piece = fixed.data + fixed.used;
        fixed.used += rounded(bytes);
        fixed.pieces++;
        if (fixed.used > fixed.bytes)
            fail("operators of a CUDA graph need %s of scratch memory at once, but before they needed %s",
                 bytes_text(fixed.used), bytes_text(fixed.bytes));
        return piece;
    }
    void *data = take(bytes);
    if (!data)
        fail("an operator needs %s of scratch memory, but the GPU has no more: %s; %s would need less",
             bytes_text(bytes), memory_in_use(), memory_remedy(MEM_WORKSPACE));
    scratch_used += rounded(bytes);
    scratch_most = scratch_used > scratch_most ? scratch_used : scratch_most;
    return data;
}

void device_scratch_free(void *data, int64_t bytes)
{
    if (fixed.on) {
        fixed.used = --fixed.pieces ? fixed.used : 0;
        return;
    }
    scratch_used -= rounded(bytes);
    device_free(data, bytes);
}

void device_scratch_fix(bool yes)
{
    if (!fixed.data) {
        fixed.bytes = scratch_most - scratch_used;      /* what is in use now stays, as the matmuls' workspace does */
        fixed.data = (char *)device_scratch(fixed.bytes);
    }
    fixed.on = yes;
}

int64_t device_memory_available(void)
{
    size_t free_now, total;

    CUDA(cudaMemGetInfo(&free_now, &total));
    return free_now + of_pool(cudaMemPoolAttrReservedMemCurrent) - of_pool(cudaMemPoolAttrUsedMemCurrent);
}

/* Not measured yet. A few dozen kernels of cuBLAS's, of which each has some MB; partial sums of all rows, or a block of
 * queries' scores in float, and the same once more for a CUDA graph. The matmuls' workspace is taken already. */
int64_t device_memory_beside(void)
{
    enum { KERNELS = 128 << 20, SCRATCH = 128 << 20 };
    const char *loading = getenv("CUDA_MODULE_LOADING");

    return SCRATCH + (loading && !strcmp(loading, "EAGER") ? 0 : KERNELS);
}

int64_t device_memory_reserved(void)
{
    return of_pool(cudaMemPoolAttrReservedMemCurrent);
}

void device_zero(void *data, int64_t bytes)
{
    CUDA(cudaMemsetAsync(data, 0, bytes, stream()));
}

void device_copy(void *to, const void *from, int64_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()));
}

void device_download(void *to, const void *from, int64_t bytes)
{
    device_wait();
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()));
    CUDA(cudaStreamSynchronize(stream()));
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
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()));
}

void device_upload_start(void *to, const void *from, int64_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()));
}

/* Uploads pass through a ring of pinned memory: the caller's buffer is free when the host has copied it, and the copy
 * to the GPU is queued like any work. The host waits only when the ring has gone round and the GPU has not. */
enum { SLOTS = 16 };
static const int64_t SLOT = 1 << 20;            /* bytes */

static struct {
    void *data;
    cudaEvent_t empty;
} ring[SLOTS];

void memory_begin(int device)
{
    uint64_t keep_all = UINT64_MAX;             /* by itself the pool gives all that is free back whenever we wait */
    int pools;

    CUDA(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
    if (!pools)
        fail("%s has no memory pools (cudaMallocAsync), as some virtual GPUs haven't; build/cpu/ has the programs for "
             "the CPU", device_name());
    CUDA(cudaDeviceGetDefaultMemPool(&pool, device));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
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
        cuda_wait(ring[i].empty);
        memcpy(ring[i].data, (const char *)from + done, n);
        CUDA(cudaMemcpyAsync((char *)to + done, ring[i].data, n, cudaMemcpyHostToDevice, stream()));
        CUDA(cudaEventRecord(ring[i].empty, stream()));
        next = (next + 1) % SLOTS;
    }
}
