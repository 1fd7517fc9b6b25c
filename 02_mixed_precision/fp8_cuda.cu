/* Quantization: the largest |x|, the scale, and x / scale rounded; first for a scale per tensor, then for scales per
 * tile. The product is cuBLASLt's. */
#include <cuda_fp8.h>

#include "../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
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
        out[blockIdx.x] = largest == 0 ? max : max == 0 ? 1 : max / largest;
}

/* A block takes a tile of TILE rows and columns, a thread N neighbors of a row at a time. The tile goes through shared
 * memory, so that both copies are written along their rows. Its rows are padded by 4 bytes: otherwise a column's bytes
 * would share a few banks. */
enum { TILE = 64 };

template <typename T, int N>
__global__ void quantize_tiles(uint8_t *out, uint8_t *transposed, const T *x, const float *scale,
                               __nv_fp8_interpretation_t format, int64_t rows, int64_t width)
{
    __shared__ __align__(16) uint8_t tile[TILE][TILE + 4];
    const int64_t across = (width + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    const int along = threadIdx.x % (TILE / N) * N, step = THREADS / (TILE / N);
    const float s = *scale;

    for (int r = threadIdx.x / (TILE / N); r < TILE && row + r < rows; r += step)
        if (column + along < width) {
            float v[N];
            Pack<uint8_t, N> p;
            load(v, x + (row + r) * width + column + along, N);
            for (int k = 0; k < N; k++)
                p.x[k] = __nv_cvt_float_to_fp8(v[k] / s, __NV_SATFINITE, format);
            *(Pack<uint8_t, N> *)&tile[r][along] = p;
            if (out)
                *(Pack<uint8_t, N> *)&out[(row + r) * width + column + along] = p;
        }
    if (!transposed)
        return;
    __syncthreads();
    for (int c = threadIdx.x / (TILE / N); c < TILE && column + c < width; c += step)
        if (row + along < rows) {
            Pack<uint8_t, N> p;
            for (int k = 0; k < N; k++)
                p.x[k] = tile[along + k][c];
            *(Pack<uint8_t, N> *)&transposed[(column + c) * rows + row + along] = p;
        }
}

/* ---- a scale per tile ---- */

enum { SIDE = 128 };

/* Magnitudes are compared as bits: NaN is larger than Inf. */
__device__ static uint32_t warp_most(uint32_t x)
{
    for (int apart = WARP / 2; apart; apart /= 2)
        x = max(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

/* A block takes SIDE rows and columns of the copy, and reads them of x once, into shared memory. Then a warp takes row
 * after row; a lane has an element of each 32. The padding keeps a column's elements in different banks. */
template <typename T, int N>
__global__ void quantize_scaled(uint8_t *copy, float *scales, const T *x, Scaling scaling,
                                __nv_fp8_interpretation_t format, float largest, int64_t rows, int64_t width,
                                bool transposed)
{
    enum { PITCH = SIDE + 4 / sizeof(T), PARTS = SIDE / WARP };
    extern __shared__ __align__(16) uint8_t memory[];
    T *const tile = (T *)memory;
    const int64_t row = blockIdx.x / (width / SIDE) * SIDE, column = blockIdx.x % (width / SIDE) * SIDE;
    const T *const from = transposed ? x + column * rows + row : x + row * width + column;
    const int lane = threadIdx.x % WARP;
    uint32_t of_block = 0;

    for (int i = threadIdx.x * N; i < SIDE * SIDE; i += THREADS * N) {
        float v[N];
        load(v, from + i / SIDE * (transposed ? rows : width) + i % SIDE, N);
        for (int k = 0; k < N; k++) {
            set(&tile[i / SIDE * PITCH + i % SIDE + k], v[k]);
            of_block = max(of_block, __float_as_uint(fabsf(v[k])));
        }
    }
    of_block = over_block<uint32_t, warp_most>(of_block, 0);
    for (int r = threadIdx.x / WARP; r < SIDE; r += WARPS) {
        float v[PARTS];
        uint32_t amax[PARTS], of_row = 0;
        for (int k = 0; k < PARTS; k++) {
            const int c = k * WARP + lane;
            v[k] = number(transposed ? tile[c * PITCH + r] : tile[r * PITCH + c]);
            amax[k] = __float_as_uint(fabsf(v[k]));
            of_row = max(of_row, amax[k]);
        }
        of_row = warp_most(of_row);
        for (int k = 0; k < PARTS; k++) {
            const uint32_t most = scaling == PER_1X32 ? warp_most(amax[k]) : scaling == PER_1X128 ? of_row : of_block;
            const float s = scale_for(__uint_as_float(most), largest, scaling);
            const bool first = lane == 0 && (k == 0 || scaling == PER_1X32) && (r == 0 || scaling != PER_128X128);
            if (first)
                scale_store(scales, scale_place(scaling, rows, width, row + r, column + k * WARP), s, scaling);
            copy[(row + r) * width + column + k * WARP + lane] =
                __nv_cvt_float_to_fp8(v[k] / s, __NV_SATFINITE, format);
        }
    }
}

static void quantize_tiled(Tensor copy, Tensor x, bool transposed)
{
    const int64_t rows = tensor_rows(copy), width = tensor_width(copy);
    const __nv_fp8_interpretation_t format = copy.dtype == E4M3 ? __NV_E4M3 : __NV_E5M2;
    const float largest = copy.dtype == E4M3 ? 448 : 57344;

    FOR_TYPE(x.dtype, T,
        PACKED(aligned(x), T, N,
            LAUNCH_SHARED(SIDE * (SIDE * sizeof(T) + 4), quantize_scaled<T, N>, rows / SIDE * (width / SIDE), THREADS,
                          copy, copy.scale, x, copy.scaling, format, largest, rows, width, transposed)));
}

void quantize_kernel(Tensor out, Tensor transposed, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x), count = rows * width;
    const int64_t tiles = ((rows + TILE - 1) / TILE) * ((width + TILE - 1) / TILE);
    const Tensor any = out.data ? out : transposed;
    const bool fours = rows % 4 == 0 && width % 4 == 0 && aligned(out, 4) && aligned(transposed, 4) && aligned(x);
    const __nv_fp8_interpretation_t format = any.dtype == E4M3 ? __NV_E4M3 : __NV_E5M2;
    enum { PARTS = 1024 };

    if (any.scaling != PER_TENSOR) {
        quantize_tiled(any, x, !out.data);
        return;
    }
    float *partial = (float *)device_scratch(PARTS * 4);

    FOR_TYPE(x.dtype, T,
        PACKED(aligned(x), T, N,
            const int64_t parts = clamped(blocks(count, N), 1, PARTS);
            LAUNCH(amax_parts<T, N>, parts, THREADS, partial, x, count, 0);
            LAUNCH(amax_parts<float, 1>, 1, THREADS, any.scale, partial, parts, any.dtype == E4M3 ? 448 : 57344));
        PACKED(fours, float, N,
            LAUNCH(quantize_tiles<T, N>, tiles, THREADS, out, transposed, x, any.scale, format, rows, width)));
    device_free(partial, PARTS * 4);
}

/* cuBLASLt adds no float bias to a product of fp8. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    if (!aligned(out, x, weight))
        fail("linear_fp8: %s, %s and %s must begin at multiples of 16 bytes", out.name, x.name, weight.name);
    linear_product(out, x, weight, bias, add, bias.data && bias.dtype != F32);
}
