/* Functions that all CUDA kernels share: reading and writing elements, sums over a block, loops over the grid,
 * launches.
 *
 * Elements are stored as float, bf16 or fp16 (a template's T; parameters' gradients: G), computed in float and rounded
 * once, when they are written. The order of sums depends only on sizes and on where tensors lie, so it is the same in
 * every run: threads add up their own terms, a fixed tree combines threads, and partial sums are added by index. There
 * are no atomics.
 *
 * Kernels read and write N elements at a time: 16 bytes (PACKED) if all operands, or all their rows, lie at multiples
 * of 16, else one element. Elements are counted in 64 bits, and loops stride over the grid, so no size is too large.
 */
#ifndef KERNEL_CUH
#define KERNEL_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <map>
#include <stdint.h>
#include <type_traits>

#include "device_cuda.h"
extern "C" {
#include "../kernels.h"
}

/* ---- elements ---- */

template <typename T> __device__ inline float number(T x)
{
    return x;
}

/* To the nearest, ties to even. */
template <typename T> __device__ inline void set(T *to, float x)
{
    *to = x;
}

template <typename T, int N> struct alignas(N * sizeof(T)) Pack {
    T x[N];
};

/* N elements, or only `left`; the others read as 0. N elements must lie at a multiple of their size. */
template <int N, typename T> __device__ inline void load(float (&to)[N], const T *from, int64_t left)
{
    if (left >= N) {
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
    if (left >= N) {
        Pack<T, N> p;
        for (int k = 0; k < N; k++)
            set(&p.x[k], from[k]);
        *(Pack<T, N> *)to = p;
    } else {
        for (int k = 0; k < N; k++)
            if (k < left)
                set(&to[k], from[k]);
    }
}

/* ---- loops: packs of a flat tensor over the grid; rows over blocks, and a row's packs over a block's threads. Packs
 * fill the row: its width is a multiple of N ---- */

#define EACH_PACK(i, N, count) \
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; \
         i += (int64_t)gridDim.x * blockDim.x * N)
#define EACH_ROW(i, rows) for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
#define EACH_WARP_ROW(i, rows) \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; i < rows; i += (int64_t)gridDim.x * blockDim.y)
#define EACH_COLUMN(j, N, width) for (int64_t j = (int64_t)threadIdx.x * N; j < width; j += (int64_t)blockDim.x * N)

/* ---- sums and maxima: every thread of the warp or block calls them, in full warps, and gets the result ---- */

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP, MOST_THREADS = 512 };

template <typename S> __device__ inline S warp_sum(S x)
{
    for (int apart = WARP / 2; apart; apart /= 2)
        x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

template <> __device__ inline float2 warp_sum(float2 x)         /* two sums behind the same barriers of block_sum */
{
    return make_float2(warp_sum(x.x), warp_sum(x.y));
}

__device__ inline float warp_max(float x)
{
    for (int apart = WARP / 2; apart; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

/* Each warp stores what `combine` gives; then every warp combines all of these, in the same order. After the first
 * barrier all are stored; after the second all have been read, and the next call may write. */
template <typename S, S combine(S)> __device__ inline S over_block(S x, S none)
{
    __shared__ S of_warp[WARP];
    const int lane = threadIdx.x % WARP;

    x = combine(x);
    if (lane == 0)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = combine(lane < blockDim.x / WARP ? of_warp[lane] : none);
    __syncthreads();
    return x;
}

template <typename S> __device__ inline S block_sum(S x)
{
    return over_block<S, warp_sum<S>>(x, S());
}

__device__ inline float block_max(float x)
{
    return over_block<float, warp_max>(x, -INFINITY);
}

/* ---- rows of logits, or of attention's scores: a thread block per row ---- */

/* Computes the row's maximum and the sum of exp(x - max), for every thread. An empty row has -Inf and 0. */
template <int N, typename T> __device__ inline float row_max(const T *in, int64_t width)
{
    float v[N], max = -INFINITY;

    EACH_COLUMN(j, N, width) {
        load(v, in + j, N);
        for (int k = 0; k < N; k++)
            max = fmaxf(max, v[k]);
    }
    return block_max(max);
}

template <int N, typename T> __device__ inline float row_sum(const T *in, float max, int64_t width)
{
    float v[N], sum = 0;

    EACH_COLUMN(j, N, width) {
        load(v, in + j, N);
        for (int k = 0; k < N; k++)
            sum += expf(v[k] - max);
    }
    return block_sum(sum);
}

/* ---- launches ---- */

template <typename T> static T *data(Tensor t)
{
    return (T *)t.data;
}

static inline bool aligned(Tensor t, int bytes)
{
    return (uintptr_t)t.data % bytes == 0;
}

/* Whether all tensors, or all their rows, start at multiples of 16 bytes. */
template <typename... Tensors> static bool aligned(Tensors... t)
{
    return (aligned(t, 16) && ...);
}

template <typename... Tensors> static bool rows_aligned(Tensors... t)
{
    return aligned(t...) && ((tensor_width(t) * dtype_size(t.dtype) % 16 == 0) && ...);
}

static inline int64_t clamped(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Blocks of THREADS for `count` elements, n per thread; blocks for rows, n per block; threads for a row's columns, n
 * per thread. */
static inline int64_t blocks(int64_t count, int n)
{
    return clamped((count + THREADS * n - 1) / (THREADS * n), 1, 1 << 16);
}

static inline int64_t row_blocks(int64_t rows, int n = 1)
{
    return clamped((rows + n - 1) / n, 1, 1 << 20);
}

static inline int row_threads(int64_t width, int n)
{
    return clamped((width / n + WARP - 1) / WARP, 1, MOST_THREADS / WARP) * WARP;
}

/* An argument as a kernel's parameter of type P; of a tensor, its data. */
template <typename P> static P parameter(Tensor t)
{
    return static_cast<P>(t.data);
}

template <typename P, typename A> static P parameter(A a)
{
    return static_cast<P>(a);
}

/* shared: bytes of `extern __shared__` memory. More than 48 KB must be requested once before the launch; 8 KB of
 * them are left to the kernel's other shared memory. */
template <typename... P, typename... A>
static void launch(const char *call, const char *file, int line, int shared, void (*kernel)(P...), dim3 grid,
                   dim3 threads, A... a)
{
    static std::map<void (*)(P...), int> requested;
    cudaLaunchConfig_t config = {};

    config.gridDim = grid, config.blockDim = threads;
    config.dynamicSmemBytes = shared, config.stream = (cudaStream_t)device_stream();
    if (shared > 40 << 10 && shared > requested[kernel]) {
        cuda_check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                   call, file, line);
        requested[kernel] = shared;
    }
    cuda_check(cudaLaunchKernelEx(&config, kernel, parameter<P>(a)...), call, file, line);
}

template <typename... P, typename... A>
static void launch_rows(const char *call, const char *file, int line, Tensor t, int n, void (*kernel)(P...), A... a)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t);

    launch(call, file, line, 0, kernel, row_blocks(rows), row_threads(width, n), a..., rows, width);
}

/* LAUNCH(kernel, grid, threads, arguments...), LAUNCH_SHARED(bytes, kernel, ...), LAUNCH_ROWS(tensor, n, kernel,
 * arguments...). The last is for a block per row of the tensor, with n columns per thread; the kernel's last arguments
 * are the rows and their width. */
#define LAUNCH(...) launch(#__VA_ARGS__, __FILE__, __LINE__, 0, __VA_ARGS__)
#define LAUNCH_SHARED(bytes, ...) launch(#__VA_ARGS__, __FILE__, __LINE__, bytes, __VA_ARGS__)
#define LAUNCH_ROWS(...) launch_rows(#__VA_ARGS__, __FILE__, __LINE__, __VA_ARGS__)

/* Runs statements with T as a dtype's C++ type; or with G, of parameters' gradients: float or bf16. */
#define FOR_TYPE(dtype_of, T, ...) \
    switch (dtype_of) { \
    case BF16: TYPE_CASE(__nv_bfloat16, T, __VA_ARGS__) \
    case F16: TYPE_CASE(__half, T, __VA_ARGS__) \
    default: TYPE_CASE(float, T, __VA_ARGS__) \
    }
#define FOR_GRADIENT(dtype_of, G, ...) \
    switch (dtype_of) { \
    case BF16: TYPE_CASE(__nv_bfloat16, G, __VA_ARGS__) \
    default: TYPE_CASE(float, G, __VA_ARGS__) \
    }
#define TYPE_CASE(type, T, ...) { \
        typedef type T; \
        __VA_ARGS__; \
        break; \
    }

/* Runs statements with N as the elements of type T in 16 bytes if `can`, else 1. */
#define PACKED(can, T, N, ...) \
    if (can) { \
        constexpr int N = 16 / sizeof(T); \
        __VA_ARGS__; \
    } else { \
        constexpr int N = 1; \
        __VA_ARGS__; \
    }

/* ---- elements of flat tensors, one by one ---- */

/* to[i] = f(a[i], b[i]). to may be a or b. What f ignores is not read. */
template <int N, typename To, typename From, typename F>
__global__ void each_element(To *to, const To *a, const From *b, F f, int64_t count)
{
    EACH_PACK(i, N, count) {
        float x[N], y[N];
        load(x, a + i, count - i);
        load(y, b + i, count - i);
        for (int k = 0; k < N; k++)
            x[k] = f(x[k], y[k]);
        store(to + i, x, count - i);
    }
}

/* 16 bytes of the larger type at a time. */
template <typename To, typename From, typename F> static void compute(Tensor to, Tensor a, Tensor b, F f)
{
    typedef std::conditional_t<(sizeof(To) > sizeof(From)), To, From> Larger;
    const int64_t count = tensor_count(to);

    PACKED(aligned(to, a, b), Larger, N,
        LAUNCH(each_element<N, To, From, F>, blocks(count, N), THREADS, to, a, b, f, count));
}

/* ---- matmul.cu ---- */

/* Matrices, one or several, in one group or several: rows lie ld elements apart, matrices `stride`, groups `apart`. */
typedef struct {
    void *data;
    DType dtype;
    int64_t ld, stride, apart;
    const float *scale;                         /* of fp8, on the device; otherwise NULL */
    Scaling scaling;
} Matrix;

/* The part of a matrix that starts at a row and column. */
static inline Matrix from(Matrix m, int64_t row, int64_t column)
{
    m.data = (char *)m.data + (row * m.ld + column) * dtype_size(m.dtype);
    return m;
}

static inline Matrix rows_of(Tensor t)
{
    return (Matrix){t.data, t.dtype, tensor_width(t), 0, 0, t.scale, t.scaling};
}

/* Computes, for `count` matrices of each group, c (m, n) = alpha * a (m, k) times b (k, n), plus beta * c; a and b may
 * be stored transposed. a and b have one type, c the same or float; sums are float. fp8: only b is transposed. */
void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b,
            float beta, Matrix c, int64_t count, int64_t groups = 1);

/* Computes y (R, out) = in (R, in) times weight, and applies the epilogue while sums are in registers:
 *     BIAS              out = y + bias (out)
 *     GELU_AUX_BIAS     up (R, out) = y + bias, out = GELU(up)
 *     DGELU             out = y times GELU's slope at up (R, out)
 * weight is (out, in); with DGELU, which is for backward, (in, out). bias and up are NONE where not named. Returns
 * false, and does nothing, if cuBLASLt has no such matmul for these sizes and addresses. */
bool matmul_with(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up);

/* ---- linear.cu ---- */

/* out = x times weight transposed, plus bias, or plus out's current values; `at_once`: by one matmul. */
void linear_product(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, bool at_once);

/* ---- layernorm.cu ---- */

/* layernorm_backward; and, unless NONE, d_sum (W) += sum over the rows of the new d_x. */
void layernorm_backward_sums(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_sum, Tensor d_out, Tensor x,
                             Tensor stats, Tensor weight);

#endif
