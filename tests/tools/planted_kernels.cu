/* A program with planted mistakes, which the simulated GPU must find (test_simulator.c). Arguments: the kernel, and the
 * number of its mistake; 0 is the correct one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../08_fused_kernels/fused_cuda/tensor_cores.cuh"

enum { THREADS = 64, WARP = 32, COUNT = 1000 };

/* Every thread writes the block's sum of x[0 .. COUNT) to its element of `to`. */
__global__ void barriers(float *to, const float *x, int mistake)
{
    __shared__ float of_warp[THREADS / WARP];
    float sum = 0;

    for (int i = threadIdx.x; i < COUNT; i += THREADS)
        sum += x[i];
    for (int apart = WARP / 2; apart; apart /= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    for (int round = 0; round < 2; round++) {
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP] = sum;
        if (mistake != 1)                       /* 1: reads before the write */
            __syncthreads();
        to[threadIdx.x] = of_warp[0] + of_warp[1];
        if (mistake != 2)                       /* 2: overwrites before the read */
            __syncthreads();
    }
    if (mistake == 3 && threadIdx.x != 5)       /* 3: not all threads reach it */
        __syncthreads();
}

/* Lanes exchange numbers through memory. */
__global__ void lanes(float *to, const float *x, int mistake)
{
    extern __shared__ float row[];

    if (mistake != 3)                           /* 3: reads what nobody wrote */
        row[threadIdx.x] = x[threadIdx.x];
    if (mistake == 1)
        __shfl_sync(~0u, 0, 0);                 /* does not order memory accesses */
    else
        __syncwarp();
    to[threadIdx.x] = row[threadIdx.x ^ 1];
    __syncwarp();
    row[threadIdx.x + (mistake == 2)] = 0;      /* 2: one element too far */
}

/* Each thread copies one element. */
__global__ void elements(float *to, const float *x, int mistake)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;

    if (i < COUNT + (mistake == 1))             /* 1: one element beyond x and `to` */
        to[mistake == 2 ? threadIdx.x : i] = x[i];          /* 2: other blocks write there */
    if (mistake == 3 && i == 0)
        *(float4 *)(to + 1) = make_float4(0, 0, 0, 0);
}

/* Asynchronous copies of two tiles of a row. */
__global__ void copies(float *to, const float *x, int mistake)
{
    extern __shared__ float row[];

    for (int tile = 0; tile < 2; tile++) {
        begin_copy<4>(&row[tile * THREADS + threadIdx.x], &x[tile * THREADS + threadIdx.x], true);
        copies_end();
    }
    for (int tile = 0; tile < 2; tile++) {
        if (tile == 1)
            copies_wait<0>();
        else if (mistake != 1)                  /* 1: does not wait for the first group */
            copies_wait<1>();
        if (mistake != 2)                       /* 2: reads another thread's copy */
            __syncthreads();
        to[tile * THREADS + threadIdx.x] = row[tile * THREADS + (threadIdx.x + 1) % THREADS];
    }
}

/* One stream copies x to the GPU again, another reads it. */
static void streams(float *to, float *x, const float *numbers, int mistake)
{
    cudaStream_t copying, computing;
    cudaEvent_t copied;
    void *pinned;

    cudaStreamCreateWithFlags(&copying, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&computing, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&copied, cudaEventDisableTiming);
    cudaHostAlloc(&pinned, COUNT * sizeof *x, cudaHostAllocDefault);
    memcpy(pinned, numbers, COUNT * sizeof *x);
    cudaMemcpyAsync(x, pinned, COUNT * sizeof *x, cudaMemcpyHostToDevice, copying);
    cudaEventRecord(copied, copying);
    if (mistake != 1)                           /* 1: nothing orders the copy before the kernel */
        cudaStreamWaitEvent(computing, copied, 0);
    elements<<<16, THREADS, 0, computing>>>(to, x, 0);
    if (mistake != 2)                           /* 2: nor the kernel before the free */
        cudaStreamSynchronize(computing);
    cudaFreeAsync(to, copying);
    cudaStreamSynchronize(copying);
    cudaStreamSynchronize(computing);
}

int main(int argc, char **argv)
{
    static float numbers[COUNT];
    const char *name = argc > 2 ? argv[1] : "";
    const int mistake = argc > 2 ? atoi(argv[2]) : 0;
    const int shared = 2 * THREADS * sizeof *numbers - (mistake == 9 ? 4 : 0);      /* 9: too little */
    float *x, *to;

    for (int i = 0; i < COUNT; i++)
        numbers[i] = 3 + i;
    cudaMalloc((void **)&x, sizeof numbers);
    cudaMalloc((void **)&to, sizeof numbers);
    if (mistake != 8)                           /* 8: x has no numbers */
        cudaMemcpy(x, numbers, sizeof numbers, cudaMemcpyHostToDevice);
    const float *from = mistake == 7 ? numbers : x;         /* 7: the host's memory */
    if (!strcmp(name, "barriers"))
        barriers<<<1, THREADS>>>(to, from, mistake);
    if (!strcmp(name, "lanes"))
        lanes<<<1, WARP, WARP * sizeof *x>>>(to, from, mistake);
    if (!strcmp(name, "elements"))
        elements<<<16, THREADS>>>(to, from, mistake);
    if (!strcmp(name, "copies"))
        copies<<<1, THREADS, shared>>>(to, from, mistake);
    if (!strcmp(name, "streams"))
        streams(to, x, numbers, mistake);
    if (!strcmp(name, "freed")) {
        if (mistake)
            cudaFree(x);
        elements<<<16, THREADS>>>(to, from, 0);
    }
    if (!strcmp(name, "copied"))
        cudaMemcpy(x, numbers, sizeof numbers + (mistake ? 4 : 0), cudaMemcpyHostToDevice);
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess)
        printf("%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
