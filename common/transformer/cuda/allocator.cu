/* A GPU's memory, and copies between it and the host's.
 *
 * Memory is allocated and freed in the stream's order: its next user is queued behind its last reader, so the host does
 * not wait. cudaFree would wait for all streams, and in one of them a transfer may wait for a rank that waits for this
 * host. Freed memory stays in the driver's pool, which splits and joins it for other sizes.
 */
#include <cuda_runtime.h>
#include <string.h>

#include "device_cuda.h"

static cudaMemPool_t pool;

static cudaStream_t stream(void)
{
    return (cudaStream_t)device_stream();
}

/* Allocates memory, not zeroed; NULL: the GPU has too little. */
static void *allocate(int64_t bytes)
{
    void *data;
    const cudaError_t error = cudaMallocAsync(&data, bytes ? bytes : 1, stream());

    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();                     /* clears it, so that no later call reports it */
        return NULL;
    }
    cuda_check(error, "cudaMallocAsync(&data, bytes, stream)", __FILE__, __LINE__);
    return data;
}

void *device_alloc(int64_t bytes)
{
    void *data = allocate(bytes);

    if (data)
        device_zero(data, bytes);
    return data;
}

void device_free(void *data, int64_t bytes)
{
    (void)bytes;
    CUDA(cudaFreeAsync(data, stream()));
}

void *device_scratch(int64_t bytes)
{
    void *data = allocate(bytes);

    if (!data)
        fail("not enough memory for an operator's scratch: needs %s, the GPU has less; " MEMORY_HINT,
             bytes_text(bytes));
    return data;
}

int64_t device_memory_available(void)
{
    size_t free_now, total;
    uint64_t reserved, used;

    CUDA(cudaMemGetInfo(&free_now, &total));
    CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    return free_now + reserved - used;
}

void *device_pinned(int64_t bytes)
{
    void *data;

    CUDA(cudaHostAlloc(&data, bytes, cudaHostAllocDefault));
    return memset(data, 0, bytes);
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

/* Uploads go through a ring of pinned slots: once the host has copied it, the caller may reuse its buffer, and the copy
 * to the GPU is queued like any work. The host waits only if it comes to a slot that the GPU has not copied yet. */
enum { SLOTS = 16 };
static const int64_t SLOT = 1 << 20;            /* bytes */

static struct {
    void *data;
    cudaEvent_t empty;
} ring[SLOTS];

void memory_begin(int device)
{
    uint64_t keep_all = UINT64_MAX;             /* the default: the pool releases its free memory at every wait */
    int pools;

    CUDA(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
    if (!pools)
        fail("%s has no memory pools (cudaMallocAsync), as some virtual GPUs haven't; build/cpu/ has the programs for "
             "the CPU", device_name());
    CUDA(cudaDeviceGetDefaultMemPool(&pool, device));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
    for (int i = 0; i < SLOTS; i++) {
        ring[i].data = device_pinned(SLOT);
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
