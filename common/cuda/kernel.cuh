/* Functions that all CUDA kernels share: reading and writing elements, sums over a block, loops over the grid,
 * launches.
 *
 * Elements are stored as float, bf16 or fp16 (a template's T; parameters' gradients: G), computed in float and rounded
 * once, when they are written. The order of sums depends only on sizes and on where tensors lie, so it is the same in
 * every run: threads add up their own terms, a fixed tree combines threads, and partial sums are added by index. There
 * are no atomics.
 *
 * Kernels read and write N elements at a time: 16 bytes (PACKED) if all operands lie at multiples of 16, else one
 * element. Rows of logits are long, and their width is often odd (50,257): there packs of 16 bytes cross the row's ends
 * (RAGGED). Elements are counted in 64 bits, and loops stride over the grid, so no size is too large.
 */
#ifndef KERNEL_CUH
#define KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "device_cuda.h"
#include "../kernels.h"

/* ---- elements ---- */

__device__ inline float number(float x)
{
    return x;
}

__device__ inline float number(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ inline float number(__half x)
{
    return __half2float(x);
}

/* To the nearest, ties to even. */
__device__ inline void set(float *to, float x)
{
    *to = x;
}

__device__ inline void set(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

__device__ inline void set(__half *to, float x)
{
    *to = __float2half_rn(x);
}

template <typename T, int N> struct alignas(N * sizeof(T)) Pack {
    T x[N];
};

/* N elements, or only `left`; the others read as 0. Packs must lie at multiples of their size. */
template <int N, typename T> __device__ inline void load(float (&to)[N], const T *from, int64_t left)
{
    if (N > 1 && left >= N) {
        const Pack<T, N> p = *(const Pack<T, N> *)from;
        for (int k = 0; k < N; k++)
            to[k] = number(p.x[k]);
    } else {
        for (int k = 0; k < N; k++)
            to[k] = k < left ? number(from[k]) : 0;
    }
}

template <int N, typename T> __device__ inline void store(T *to, const float (&from)[N], int64_t left)
{
    if (N > 1 && left >= N) {
        Pack<T, N> p;
        for (int k = 0; k < N; k++)
            set(&p.x[k], from[k]);
        *(Pack<T, N> *)to = p;
    } else {
        for (int k = 0; k < N && k < left; k++)
            set(&to[k], from[k]);
    }
}

/* N elements of a row, from element j on. Those outside the row read as `outside`, and are not written. */
template <int N, typename T>
__device__ inline void load_ragged(float (&to)[N], const T *row, int64_t j, int64_t width, float outside)
{
    if (j >= 0 && j + N <= width)
        load(to, row + j, N);
    else
        for (int k = 0; k < N; k++)
            to[k] = j + k >= 0 && j + k < width ? number(row[j + k]) : outside;
}

template <int N, typename T>
__device__ inline void store_ragged(T *row, const float (&from)[N], int64_t j, int64_t width)
{
    if (j >= 0 && j + N <= width)
        store(row + j, from, N);
    else
        for (int k = 0; k < N; k++)
            if (j + k >= 0 && j + k < width)
                set(&row[j + k], from[k]);
}

/* ---- loops: packs of a flat tensor over the grid; rows over blocks, and a row's packs over a block's threads. Packs
 * fill the row, whose width is then a multiple of N; or they are ragged, and start at the last multiple of 16 bytes at
 * or before the row's start ---- */

#define EACH_PACK(i, N, count) \
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; \
         i += (int64_t)gridDim.x * blockDim.x * N)
#define EACH_ROW(i, rows) for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
#define EACH_WARP_ROW(i, rows) \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; i < rows; i += (int64_t)gridDim.x * blockDim.y)
#define EACH_COLUMN(j, N, width) for (int64_t j = (int64_t)threadIdx.x * N; j < width; j += (int64_t)blockDim.x * N)
#define EACH_RAGGED(j, N, row, width) \
    for (int64_t j = (int64_t)threadIdx.x * N - (int64_t)((uintptr_t)(row) / sizeof *(row) % N); j < width; \
         j += (int64_t)blockDim.x * N)

/* ---- sums and maxima: every thread of the warp or block calls them, in full warps, and gets the result ---- */

enum { WARP = 32, THREADS = 256, MOST_THREADS = 512 };

template <typename S> __device__ inline S warp_sum(S x)
{
    for (int apart = WARP / 2; apart; apart /= 2)
        x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

__device__ inline float warp_max(float x)
{
    for (int apart = WARP / 2; apart; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

/* Each warp stores its result; then every warp combines all of them, in the same order. After the first barrier all are
 * stored; after the second all have been read, and the next call may write. */
template <typename S> __device__ inline S block_sum(S x)
{
    __shared__ S of_warp[WARP];
    const int lane = threadIdx.x % WARP;

    x = warp_sum(x);
    if (lane == 0)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_sum(lane < blockDim.x / WARP ? of_warp[lane] : 0);
    __syncthreads();
    return x;
}

__device__ inline float block_max(float x)
{
    __shared__ float of_warp[WARP];
    const int lane = threadIdx.x % WARP;

    x = warp_max(x);
    if (lane == 0)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_max(lane < blockDim.x / WARP ? of_warp[lane] : -INFINITY);
    __syncthreads();
    return x;
}

/* ---- launches ---- */

template <typename T> static T *data(Tensor t)
{
    return (T *)t.data;
}

static inline bool aligned(Tensor t, int bytes = 16)
{
    return (uintptr_t)t.data % bytes == 0;
}

static inline int64_t clamped(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Blocks of THREADS for `count` elements, n per thread; blocks for rows; threads for a row's columns, n per thread. */
static inline int64_t blocks(int64_t count, int n)
{
    return clamped((count + THREADS * n - 1) / (THREADS * n), 1, 1 << 16);
}

static inline int64_t row_blocks(int64_t rows)
{
    return clamped(rows, 1, 1 << 20);
}

/* Blocks for a warp per row. */
static inline int64_t warp_row_blocks(int64_t rows)
{
    return clamped((rows + THREADS / WARP - 1) / (THREADS / WARP), 1, 1 << 20);
}

static inline int row_threads(int64_t width, int n)
{
    return clamped((width / n + WARP - 1) / WARP, 1, MOST_THREADS / WARP) * WARP;
}

/* shared: bytes of `extern __shared__` memory. More than 48 KB, with the kernel's other shared memory, must be
 * requested before the launch. */
template <typename... P, typename... A>
static void launch(const char *call, const char *file, int line, int shared, void (*kernel)(P...), dim3 grid,
                   dim3 threads, A... a)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = grid, config.blockDim = threads;
    config.dynamicSmemBytes = shared, config.stream = (cudaStream_t)device_stream();
    if (shared > 40 << 10)
        cuda_check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                   call, file, line);
    cuda_check(cudaLaunchKernelEx(&config, kernel, a...), call, file, line);
}

/* LAUNCH(kernel, grid, threads, arguments...), LAUNCH_SHARED(bytes, kernel, ...) */
#define LAUNCH(...) launch(#__VA_ARGS__, __FILE__, __LINE__, 0, __VA_ARGS__)
#define LAUNCH_SHARED(bytes, ...) launch(#__VA_ARGS__, __FILE__, __LINE__, bytes, __VA_ARGS__)

/* Runs statements with T as a dtype's C++ type. */
#define FOR_TYPE(dtype_of, T, ...) \
    do { \
        switch (dtype_of) { \
        case BF16: { \
            typedef __nv_bfloat16 T; \
            __VA_ARGS__; \
            break; \
        } \
        case F16: { \
            typedef __half T; \
            __VA_ARGS__; \
            break; \
        } \
        default: { \
            typedef float T; \
            __VA_ARGS__; \
        } \
        } \
    } while (0)

/* The same, with G, for gradients of parameters: float or bf16. */
#define FOR_GRADIENT(dtype_of, G, ...) \
    do { \
        if (dtype_of == BF16) { \
            typedef __nv_bfloat16 G; \
            __VA_ARGS__; \
        } else { \
            typedef float G; \
            __VA_ARGS__; \
        } \
    } while (0)

/* Runs statements with N as the elements of type T in 16 bytes if `can`, else 1. */
#define PACKED(can, T, N, ...) \
    do { \
        if (can) { \
            constexpr int N = 16 / sizeof(T); \
            __VA_ARGS__; \
        } else { \
            constexpr int N = 1; \
            __VA_ARGS__; \
        } \
    } while (0)

/* ---- matmul.cu ---- */

/* Matrices, one or several: rows lie ld elements apart, matrices `stride`. */
typedef struct {
    void *data;
    DType dtype;
    int64_t ld, stride;
} Matrix;

/* The part of a matrix that starts at a row and column. */
static inline Matrix from(Matrix m, int64_t row, int64_t column)
{
    m.data = (char *)m.data + (row * m.ld + column) * dtype_size(m.dtype);
    return m;
}

static inline Matrix rows_of(Tensor t)
{
    Matrix m = {t.data, t.dtype, tensor_width(t), 0};

    return m;
}

/* Computes, for `count` matrices, c (m, n) = alpha * a (m, k) times b (k, n), plus beta * c; a and b may be stored
 * transposed. a and b have one type, c the same or float; sums are float. */
void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b,
            float beta, Matrix c, int64_t count);

/* ---- layernorm.cu ---- */

/* layernorm_backward; and, unless NONE, d_sum (W) += sum over the rows of the new d_x. */
void layernorm_backward_sums(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_sum, Tensor d_out, Tensor x,
                             Tensor stats, Tensor weight);

#endif
