/* Quantization: the largest |x|, the scale, and x / scale rounded. A scale per tensor needs a pass of its own before; a
 * tile's scale does not. The product is cuBLASLt's. */
#include <cuda_fp8.h>

#include "../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "../common/base/formats.h"
#include "fp8.h"
}

/* Tiles of 128 are Hopper's, blocks of 32 Blackwell's (cuBLAS's documentation, "Narrow Precision Data Types Usage"). */
bool fp8_supports(Scaling scaling)
{
    const int sm = device_capability();

    return scaling == PER_TENSOR ? sm >= 89 : CUBLAS_VERSION >= 120900 && (scaling == PER_1X32 ? sm >= 100 : sm == 90);
}

/* out: each block's largest |x|; or, unless `largest` is 0, the scale that makes it `largest`. */
template <typename T, int N> __global__ void amax_parts(float *out, const T *x, int64_t count, float largest)
{
    float max = 0, nan = 0;                             /* nan: NaN if there is a NaN or Inf, which max may miss */

    EACH_PACK(i, N, count) {
        float v[N];
        load(v, x + i, count - i);
        for (int k = 0; k < N; k++) {
            max = fmaxf(max, fabsf(v[k]));
            nan += v[k] * 0;
        }
    }
    max = block_max(max) + block_sum(nan);
    if (threadIdx.x == 0)
        out[blockIdx.x] = largest == 0 ? max : scale_for(max, largest, PER_TENSOR);
}

/* Returns the largest of a group of LANES. Magnitudes are compared as bits: NaN is larger than Inf. */
template <int LANES> __device__ static uint32_t most_of(uint32_t x)
{
    for (int apart = LANES / 2; apart; apart /= 2)
        x = max(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

/* Returns x / s, rounded as by a division, in three instructions instead of a dozen: the product with 1 / s, corrected
 * by what it misses of x. */
__device__ static float quotient(float x, float s, float inverse)
{
    const float q = x * inverse;

    return fmaf(fmaf(-q, s, x), inverse, q);
}

/* A block takes SIDE rows and columns of the copy. N elements, FOUR or one, are read or written at a time.
 * 1. A warp reads FOUR rows of x; if the copy is transposed, each lane transposes its FOUR x FOUR elements.
 * 2. A thread finds the largest number in one of a row's PARTS; threads together find the largest in the row or tile.
 * 3. A warp rounds row after row of the copy.
 * Rows are padded in shared memory, which keeps them in different banks. */
enum { SIDE = 128, FOUR = SIDE / WARP, PARTS = SIDE / 32, PITCH = SIDE + FOUR };

template <typename T, int N, __nv_fp8_interpretation_t FORMAT>
__global__ void quantize_tiles(uint8_t *copy, float *scales, const T *x, Scaling scaling, float largest, int64_t rows,
                               int64_t width, bool transposed)
{
    typedef Pack<T, FOUR> Fours;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ float scale_of[SIDE][PARTS], inverse_of[SIDE][PARTS];
    T *const tile = (T *)memory;
    const int64_t across = (width + SIDE - 1) / SIDE;
    const int64_t row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    const int64_t x_row = transposed ? column : row, x_column = transposed ? row : column;
    const int64_t x_rows = transposed ? width : rows, x_width = transposed ? rows : width;
    const int warp = threadIdx.x / WARP, at = threadIdx.x % WARP * FOUR;
    const int r = threadIdx.x / PARTS, c = threadIdx.x % PARTS * (SIDE / PARTS);
    float v[FOUR], scale;

    for (int i = warp * FOUR; i < SIDE; i += blockDim.x / WARP * FOUR) {
        Fours of_x[FOUR] = {};
        for (int k = 0; k < FOUR; k++)
            for (int n = 0; n < FOUR; n += N)
                if (x_row + i + k < x_rows && x_column + at + n < x_width)
                    *(Pack<T, N> *)&of_x[k].x[n] =
                        *(const Pack<T, N> *)&x[(x_row + i + k) * x_width + x_column + at + n];
        for (int k = 0; k < FOUR; k++) {
            const Fours down = {of_x[0].x[k], of_x[1].x[k], of_x[2].x[k], of_x[3].x[k]};
            *(Fours *)&tile[transposed ? (at + k) * PITCH + i : (i + k) * PITCH + at] = transposed ? down : of_x[k];
        }
    }
    __syncthreads();
    if (scaling == PER_TENSOR) {
        scale = *scales;
    } else {
        uint32_t most = 0;
        for (int k = 0; k < SIDE / PARTS; k += FOUR) {
            load(v, &tile[r * PITCH + c + k], FOUR);
            for (int n = 0; n < FOUR; n++)
                most = max(most, __float_as_uint(fabsf(v[n])));
        }
        if (scaling == PER_1X128)
            most = most_of<PARTS>(most);
        if (scaling == PER_128X128)
            most = over_block<uint32_t, most_of<WARP>>(most, 0);
        scale = scale_for(__uint_as_float(most), largest, scaling);
        if (scaling == PER_1X32 || (c == 0 && (scaling == PER_1X128 || r == 0)))
            scale_store(scales, scale_place(scaling, rows, width, row + r, column + c), scale, scaling);
    }
    scale_of[r][c / (SIDE / PARTS)] = scale;
    inverse_of[r][c / (SIDE / PARTS)] = 1 / scale;
    __syncthreads();
    for (int i = warp; i < SIDE && row + i < rows; i += blockDim.x / WARP) {
        const float s = scale_of[i][at / (SIDE / PARTS)], inverse = inverse_of[i][at / (SIDE / PARTS)];
        load(v, &tile[i * PITCH + at], FOUR);
        for (int k = 0; k < FOUR; k += N) {
            Pack<uint8_t, N> p;
            for (int n = 0; n < N; n++)
                p.x[n] = __nv_cvt_float_to_fp8(quotient(v[k + n], s, inverse), __NV_SATFINITE, FORMAT);
            if (column + at + k < width)
                *(Pack<uint8_t, N> *)&copy[(row + i) * width + column + at + k] = p;
        }
    }
}

static void quantize_copy(Tensor copy, Tensor x, bool transposed)
{
    const int64_t rows = tensor_rows(copy), width = tensor_width(copy);
    const int64_t tiles = (rows + SIDE - 1) / SIDE * ((width + SIDE - 1) / SIDE);
    const bool fours = rows % 4 == 0 && width % 4 == 0 && aligned(copy, 4) && aligned(x);

    FOR_TYPE(x.dtype, T,
        PACKED(fours, float, N,
            LAUNCH_SHARED(SIDE * PITCH * sizeof(T),
                          copy.dtype == E4M3 ? quantize_tiles<T, N, __NV_E4M3> : quantize_tiles<T, N, __NV_E5M2>,
                          tiles, SIDE * PARTS, copy, copy.scale, x, copy.scaling, format_largest(copy.dtype), rows,
                          width, transposed)));
}

void quantize_kernel(Tensor out, Tensor transposed, Tensor x)
{
    const int64_t count = tensor_count(x);
    const Tensor any = out.data ? out : transposed;
    enum { MOST = 1024 };

    if (any.scaling == PER_TENSOR) {
        float *partial = (float *)device_scratch(MOST * 4);
        FOR_TYPE(x.dtype, T,
            PACKED(aligned(x), T, N,
                const int64_t parts = clamped(blocks(count, N), 1, MOST);
                LAUNCH(amax_parts<T, N>, parts, THREADS, partial, x, count, 0);
                LAUNCH(amax_parts<float, 1>, 1, THREADS, any.scale, partial, parts, format_largest(any.dtype))));
        device_free(partial, MOST * 4);
    }
    if (out.data)
        quantize_copy(out, x, false);
    if (transposed.data)
        quantize_copy(transposed, x, true);
}

/* cuBLASLt adds no float bias to a product of fp8. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    if (!aligned(out, x, weight))
        fail("linear_fp8: %s, %s and %s must begin at multiples of 16 bytes", out.name, x.name, weight.name);
    linear_product(out, x, weight, bias, add, bias.data && bias.dtype != F32);
}
