/* Kernels with planted mistakes, which the emulated GPU must find (test_cuda.c). Arguments: the kernel, and the number
 * of its mistake; 0 is the correct kernel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../08_fused_kernels/fused_cuda/tensor_cores.cuh"

enum { THREADS = 64, WARP = 32, COUNT = 1000 };

/* Every thread writes the block's sum of x[0 .. COUNT) to its element of `to`. */
template <int MISTAKE> __global__ void barriers(float *to, const float *x)
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
        if (MISTAKE != 1)                       /* 1: reads before the write */
            __syncthreads();
        to[threadIdx.x] = of_warp[0] + of_warp[1];
        if (MISTAKE != 2)                       /* 2: overwrites before the read */
            __syncthreads();
    }
}

/* Lanes exchange numbers through memory. */
template <int MISTAKE> __global__ void lanes(float *to, const float *x)
{
    extern __shared__ float row[];

    row[threadIdx.x] = x[threadIdx.x];
    if (MISTAKE == 1)
        __shfl_sync(~0u, 0, 0);                 /* does not order memory accesses */
    else
        __syncwarp();
    to[threadIdx.x] = row[threadIdx.x ^ 1];
    __syncwarp();
    row[threadIdx.x + (MISTAKE == 2)] = 0;      /* 2: one element too far */
}

/* Each thread copies one element. */
template <int MISTAKE> __global__ void elements(float *to, const float *x)
{
    const int i = blockIdx.x * THREADS + threadIdx.x, of_array[2] = {0, 1};

    if (i < COUNT + (MISTAKE == 1))             /* 1: one element beyond x and `to` */
        to[MISTAKE == 2 ? threadIdx.x : i] = x[i];          /* 2: other blocks write there */
    if (MISTAKE == 3 && i == 0)
        to[1] = of_array[(int)x[0]];
    if (MISTAKE == 4 && i == 0)
        *(float4 *)(to + 1) = make_float4(0, 0, 0, 0);
}

/* Asynchronous copies of two tiles of a row, with missing waits. */
template <int MISTAKE> __global__ void copies(float *to, const float *x)
{
    extern __shared__ float row[];

    for (int tile = 0; tile < 2; tile++) {
        begin_copy<4>(&row[tile * THREADS + threadIdx.x], &x[tile * THREADS + threadIdx.x], true);
        copies_end();
    }
    for (int tile = 0; tile < 2; tile++) {
        if (tile == 0)
            copies_wait<1 + (MISTAKE == 1)>();              /* 1: does not wait for the first group */
        else
            copies_wait<0>();
        if (MISTAKE != 2)                       /* 2: reads another thread's copy */
            __syncthreads();
        to[tile * THREADS + threadIdx.x] = row[tile * THREADS + (threadIdx.x + 1) % THREADS];
    }
}

/* A graph of one kernel, launched twice. Mistakes are calls that a capture or a launch in flight forbids. */
static cudaError_t graphs(int mistake, float *to, float *x)
{
    const EmulatedStart start = {16, THREADS, 0};
    cudaStream_t const stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready;
    cudaEvent_t event;
    void *more;

    cudaEventCreate(&event);
    if (mistake != 1)                           /* 1: its first launch is captured */
        emulated_start(start, elements<0>, to, (const float *)x);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    emulated_start(start, elements<0>, to, (const float *)x);
    if (mistake == 2)
        cudaMallocAsync(&more, 4, stream);
    if (mistake == 3)
        cudaStreamSynchronize(stream);          /* captured work never runs */
    if (mistake == 4)
        cudaMalloc(&more, 4);
    cudaEventRecord(event, stream);
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (error != cudaSuccess)
        return error;
    if (mistake == 5)
        return cudaEventQuery(event);
    cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    cudaGraphLaunch(ready, stream);
    if (mistake == 6)                           /* 6: the second launch reads x */
        cudaFree(x);
    cudaGraphLaunch(ready, stream);
    cudaGraphExecDestroy(ready);                /* while launches are in flight */
    return cudaSuccess;
}

int main(int argc, char **argv)
{
    static float numbers[COUNT];
    const char *name = argc > 2 ? argv[1] : "";
    const int mistake = argc > 2 ? atoi(argv[2]) : 0;
    float *x, *to;

    for (int i = 0; i < COUNT; i++)
        numbers[i] = 3 + i;
    cudaMalloc((void **)&x, sizeof numbers);
    cudaMalloc((void **)&to, sizeof numbers);
    cudaMemcpyAsync(x, numbers, sizeof numbers, cudaMemcpyHostToDevice, NULL);
#define CASE(kernel, n, grid, threads, shared) \
    if (!strcmp(name, #kernel) && mistake == n) \
        emulated_start({grid, threads, shared}, kernel<n>, to, (const float *)(n == 9 ? numbers : x));
    CASE(barriers, 0, 1, THREADS, 0)
    CASE(barriers, 1, 1, THREADS, 0)
    CASE(barriers, 2, 1, THREADS, 0)
    CASE(lanes, 0, 1, WARP, WARP * sizeof *x)
    CASE(lanes, 1, 1, WARP, WARP * sizeof *x)
    CASE(lanes, 2, 1, WARP, WARP * sizeof *x)
    CASE(elements, 0, 16, THREADS, 0)
    CASE(elements, 1, 16, THREADS, 0)
    CASE(elements, 2, 16, THREADS, 0)
    CASE(elements, 3, 16, THREADS, 0)
    CASE(elements, 4, 16, THREADS, 0)
    CASE(elements, 9, 16, THREADS, 0)           /* reads the host's memory */
    CASE(copies, 0, 1, THREADS, 2 * THREADS * sizeof *x)
    CASE(copies, 1, 1, THREADS, 2 * THREADS * sizeof *x)
    CASE(copies, 2, 1, THREADS, 2 * THREADS * sizeof *x)
    if (!strcmp(name, "freed") && mistake)
        cudaFree(to);
    if (!strcmp(name, "freed"))
        emulated_start({16, THREADS, 0}, elements<0>, to, (const float *)x);
    if (!strcmp(name, "copied"))
        cudaMemcpyAsync(to, numbers, sizeof numbers + 4 * mistake, cudaMemcpyHostToDevice, NULL);
    if (!strcmp(name, "graphs")) {
        const cudaError_t error = graphs(mistake, to, x);
        if (error != cudaSuccess) {
            fprintf(stderr, "%s\n", cudaGetErrorString(error));
            return 1;
        }
    }
    cudaStreamSynchronize(NULL);
    return 0;
}
