/* Linear layers: matmuls (matmul.cu) with their biases, and quantization to fp8. */
#include <cuda_fp8.h>

#include "cublas.cuh"
#include "kernel.cuh"

/* ---- linear ---- */

template <typename T, int N> __global__ void fill_rows(T *out, const T *row, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float v[N];
            load(v, row + j, N);
            store(out + i * width + j, v, N);
        }
}

/* Writes the bias to out, where cuBLASLt cannot add it: the product is then added to it. The sum is still rounded once,
 * but out is written, read and written again. Returns the product's beta. */
static float begin_with(Tensor out, Tensor bias)
{
    if (!bias.data)
        return 0;
    FOR_TYPE(out.dtype, T, PACKED(rows_aligned(out, bias), T, N, LAUNCH_ROWS(out, N, fill_rows<T, N>, out, bias)));
    return 1;
}

/* Computes out = x times weight transposed, plus bias, or plus out's current values; `at_once`: by one matmul. */
static void linear(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, bool at_once)
{
    const auto unfused = [&] {
        const float beta = add ? 1 : begin_with(out, bias);
        matmul(false, true, tensor_rows(x), tensor_width(out), tensor_width(x), 1, rows_of(x), rows_of(weight), beta,
               rows_of(out), 1);
    };

    if (at_once)
        matmul_with(CUBLASLT_EPILOGUE_BIAS, out, x, weight, bias, NONE, unfused);
    else
        unfused();
}

void linear_forward_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    linear(out, x, weight, bias, false, bias.data);
}

/* cuBLASLt adds no float bias to a product of fp8. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    if (!aligned(out, x, weight))
        fail("linear_fp8: %s, %s and %s must begin at multiples of 16 bytes", out.name, x.name, weight.name);
    linear(out, x, weight, bias, add, bias.data && bias.dtype != F32);
}

void linear_backward_input_kernel(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int64_t rows = tensor_rows(d_out), k = tensor_width(d_x), m = tensor_width(d_out);

    matmul(false, false, rows, k, m, 1, rows_of(d_out), rows_of(weight), 0, rows_of(d_x), 1);
}

void linear_backward_weight_kernel(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(d_out), bytes = m * k * 4;

    if (d_weight.dtype == BF16 && x.dtype != BF16) {            /* cuBLAS adds to bf16 only from bf16 inputs */
        const Tensor product = {device_scratch(bytes), NULL, F32, 2, {m, k}};
        matmul(true, false, m, k, rows, 1, rows_of(d_out), rows_of(x), 0, rows_of(product), 1);
        tensor_add_kernel(d_weight, product);
        device_free(product.data, bytes);
    } else {
        matmul(true, false, m, k, rows, 1, rows_of(d_out), rows_of(x), 1, rows_of(d_weight), 1);
    }
    if (d_bias.data)
        column_sums_kernel(d_bias, d_out);
}

/* ---- quantization: the largest |x|, the scale, and x / scale rounded ---- */

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

void quantize_kernel(Tensor out, Tensor transposed, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x), count = rows * width;
    const int64_t tiles = ((rows + TILE - 1) / TILE) * ((width + TILE - 1) / TILE);
    const Tensor any = out.data ? out : transposed;
    const bool fours = rows % 4 == 0 && width % 4 == 0 && aligned(out, 4) && aligned(transposed, 4) && aligned(x);
    const __nv_fp8_interpretation_t format = any.dtype == E4M3 ? __NV_E4M3 : __NV_E5M2;
    enum { PARTS = 1024 };
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
