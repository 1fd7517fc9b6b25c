/* Matmuls: cuBLAS's, and cuBLASLt's for operands in fp8 and for a bias; and what stands around them: quantization.
 *
 * One stream, one workspace, and the algorithm that the library picks for a shape: the same sums in every run. */
#include <cublas_v2.h>
#include <cuda_fp8.h>
#include <stdio.h>
#include <stdlib.h>

#include "../error.h"
#include "cublas.cuh"
#include "kernel.cuh"

/* ---- the libraries ---- */

#define CUBLAS(call) cublas_check(call, #call, __FILE__, __LINE__)
static void cublas_check(cublasStatus_t status, const char *call, const char *file, int line)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("%s (%s:%d): %s", call, file, line, cublasGetStatusString(status));
}

/* Scratch memory, of the size that cuBLAS takes for itself on the largest GPUs. With memory of its own it would be free
 * to choose anew. */
static const int64_t WORKSPACE = 32 << 20;

static void *matmul_workspace(void)
{
    static void *data;

    if (!data)
        data = device_scratch(WORKSPACE);
    return data;
}

static cublasHandle_t cublas(void)
{
    static cublasHandle_t handle;

    if (!handle) {
        CUBLAS(cublasCreate(&handle));
        CUBLAS(cublasSetStream(handle, (cudaStream_t)device_stream()));
        CUBLAS(cublasSetWorkspace(handle, matmul_workspace(), WORKSPACE));
        /* parts of a sum that are computed apart stay float until they are added */
        CUBLAS(cublasSetMathMode(handle, (cublasMath_t)(CUBLAS_DEFAULT_MATH
                                                        | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    }
    return handle;
}

static cudaDataType_t cuda_type(DType dtype)
{
    switch (dtype) {
    case BF16:
        return CUDA_R_16BF;
    case F16:
        return CUDA_R_16F;
    case E4M3:
        return CUDA_R_8F_E4M3;
    case E5M2:
        return CUDA_R_8F_E5M2;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_type(DType dtype)
{
    return dtype == F32 && device_uses_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* cuBLAS counts columns first: our rows are its columns, so it sees every matrix transposed. c^T = b^T a^T then takes
 * the operands in the other order, and nothing moves. */
void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b,
            float beta, Matrix c, int64_t count)
{
    const cublasOperation_t op_a = a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t type = cuda_type(a.dtype), type_c = cuda_type(c.dtype);
    const cublasComputeType_t compute = compute_type(a.dtype);

    if (count == 1)
        CUBLAS(cublasGemmEx_64(cublas(), op_b, op_a, n, m, k, &alpha, b.data, type, b.ld, a.data, type, a.ld, &beta,
                               c.data, type_c, c.ld, compute, CUBLAS_GEMM_DEFAULT));
    else
        CUBLAS(cublasGemmStridedBatchedEx_64(cublas(), op_b, op_a, n, m, k, &alpha, b.data, type, b.ld, b.stride,
                                             a.data, type, a.ld, a.stride, &beta, c.data, type_c, c.ld, c.stride, count,
                                             compute, CUBLAS_GEMM_DEFAULT));
}

/* ---- cuBLASLt: a matmul whose operands are fp8, or that ends with more than a sum ---- */

/* The library is asked once for each kind of matmul how it would do it, if it can. */
typedef struct Plan {
    struct Plan *next;
    cublasLtEpilogue_t epilogue;
    int64_t rows, k, m;
    DType out, in, weight;
    bool can;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t layout_in, layout_weight, layout_out;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

static cublasLtHandle_t cublas_lt(void)
{
    static cublasLtHandle_t handle;

    if (!handle)
        CUBLAS(cublasLtCreate(&handle));
    return handle;
}

void matmul_begin(void)
{
    cublas();
    cublas_lt();
}

#define SET(p, attribute, value) \
    CUBLAS(cublasLtMatmulDescSetAttribute((p)->matmul, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))
#define PREFER(preference, attribute, value) \
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &(value), sizeof(value)))

static bool is_fp8(DType dtype)
{
    return dtype == E4M3 || dtype == E5M2;
}

static void set_pointers(const Plan *p, Tensor in, Tensor weight, Tensor bias, Tensor up)
{
    if (is_fp8(p->in)) {
        SET(p, A_SCALE_POINTER, weight.scale);
        SET(p, B_SCALE_POINTER, in.scale);
    }
    if (bias.data)
        SET(p, BIAS_POINTER, bias.data);
    if (up.data)
        SET(p, EPILOGUE_AUX_POINTER, up.data);
}

/* For the library's column-first eyes: out^T (m, rows) = weight, transposed or not, times in^T (k, rows). */
static Plan *new_plan(Plan wanted, Tensor in, Tensor weight, Tensor bias, Tensor up)
{
    Plan *p = (Plan *)malloc(sizeof *p);
    const bool backward = wanted.epilogue == CUBLASLT_EPILOGUE_DGELU;
    const cublasOperation_t of_weight = backward ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cudaDataType_t type = cuda_type(wanted.weight);
    const size_t most = WORKSPACE;
    /* Parts of a sum stay float here too. With an epilogue there must be none: it may come to a sum of parts that is
     * rounded already (github.com/pytorch/pytorch, pull request 180875). */
    const uint32_t parts = wanted.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                                        : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;

    if (!p)
        fail("no memory for the plan of a matmul");
    *p = wanted;
    CUBLAS(cublasLtMatmulDescCreate(&p->matmul, compute_type(p->in), CUDA_R_32F));
    SET(p, TRANSA, of_weight);
    SET(p, EPILOGUE, p->epilogue);
    if (up.data)
        SET(p, EPILOGUE_AUX_LD, p->m);
    bias.data = bias.data ? (void *)16 : NULL;  /* of later ones no more is known than that 16 divides them */
    up.data = up.data ? (void *)16 : NULL;
    set_pointers(p, in, weight, bias, up);
    CUBLAS(backward ? cublasLtMatrixLayoutCreate(&p->layout_weight, type, p->m, p->k, p->m)
                    : cublasLtMatrixLayoutCreate(&p->layout_weight, type, p->k, p->m, p->k));
    CUBLAS(cublasLtMatrixLayoutCreate(&p->layout_in, cuda_type(p->in), p->k, p->rows, p->k));
    CUBLAS(cublasLtMatrixLayoutCreate(&p->layout_out, cuda_type(p->out), p->m, p->rows, p->m));
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    PREFER(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most);
    PREFER(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, parts);
    /* by itself it counts on operands at multiples of 256 bytes; of a bias, on the 16 that matmul_lt asks for
     * (pull request 194497 there) */
    for (int a = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; a <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; a++) {
        const uint32_t alignment = 16;
        PREFER(preference, (cublasLtMatmulPreferenceAttributes_t)a, alignment);
    }
    p->can = cublasLtMatmulAlgoGetHeuristic(cublas_lt(), p->matmul, p->layout_weight, p->layout_in, p->layout_out,
                                            p->layout_out, preference, 1, &best, &found) == CUBLAS_STATUS_SUCCESS
             && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    if (p->can)
        p->algorithm = best.algo;
    else
        fprintf(stderr, "cuBLASLt has no matmul of (%lld, %lld) %s by %lld%s on this GPU\n", (long long)p->rows,
                (long long)p->k, dtype_name(p->in), (long long)p->m,
                p->epilogue == CUBLASLT_EPILOGUE_BIAS ? " with a bias: it goes before"
                : p->epilogue == CUBLASLT_EPILOGUE_DGELU ? " with GELU's slope: it follows"
                : p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ? " with GELU: it follows" : "");
    return p;
}

bool matmul_lt(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up, float beta)
{
    static Plan *plans;
    const int64_t rows = tensor_rows(in), k = tensor_width(in), m = tensor_width(out);
    const float one = 1;
    Plan *p = plans;

    if (k * dtype_size(in.dtype) % 16 || m * dtype_size(out.dtype) % 16 || !aligned(out) || !aligned(in)
        || !aligned(weight) || !aligned(bias) || !aligned(up))
        return false;
    while (p && (p->epilogue != epilogue || p->rows != rows || p->k != k || p->m != m || p->out != out.dtype
                 || p->in != in.dtype || p->weight != weight.dtype))
        p = p->next;
    if (!p)
        p = plans = new_plan((Plan){plans, epilogue, rows, k, m, out.dtype, in.dtype, weight.dtype}, in, weight, bias,
                             up);
    if (!p->can)
        return false;
    set_pointers(p, in, weight, bias, up);
    CUBLAS(cublasLtMatmul(cublas_lt(), p->matmul, &one, weight.data, p->layout_weight, in.data, p->layout_in, &beta,
                          out.data, p->layout_out, out.data, p->layout_out, &p->algorithm, matmul_workspace(),
                          WORKSPACE, (cudaStream_t)device_stream()));
    return true;
}

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

/* Where cuBLASLt doesn't add it: the bias first, and the product added to it, so the sum of both is rounded once too,
 * but out is written, read and written again. Returns the product's beta. */
static float begin_with(Tensor out, Tensor bias)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);
    const bool wide = width * dtype_size(out.dtype) % 16 == 0;

    if (!bias.data)
        return 0;
    FOR_TYPE(out.dtype, T, PACKED(wide && aligned(out) && aligned(bias), T, N,
        LAUNCH(fill_rows<T, N>, row_blocks(rows), row_threads(width, N), data<T>(out), data<T>(bias), rows, width)));
    return 1;
}

void linear_forward_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);

    if (bias.data && matmul_lt(CUBLASLT_EPILOGUE_BIAS, out, x, weight, bias, NONE, 0))
        return;
    const float beta = begin_with(out, bias);
    matmul(false, true, rows, m, k, 1, rows_of(x), rows_of(weight), beta, rows_of(out), 1);
}

void linear_backward_input_kernel(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int64_t rows = tensor_rows(d_out), k = tensor_width(d_x), m = tensor_width(d_out);

    matmul(false, false, rows, k, m, 1, rows_of(d_out), rows_of(weight), 0, rows_of(d_x), 1);
}

__global__ void add_to_bf16(__nv_bfloat16 *to, const float *from, int64_t count)
{
    EACH_PACK(i, 1, count)
        set(&to[i], number(to[i]) + from[i]);
}

void linear_backward_weight_kernel(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(d_out), bytes = m * k * 4;

    if (d_weight.dtype == BF16 && x.dtype != BF16) {            /* cuBLAS adds to bf16 from bf16 only */
        const Matrix product = {device_scratch(bytes), F32, k, 0};
        matmul(true, false, m, k, rows, 1, rows_of(d_out), rows_of(x), 0, product, 1);
        LAUNCH(add_to_bf16, blocks(m * k, 1), THREADS, data<__nv_bfloat16>(d_weight), (float *)product.data, m * k);
        device_scratch_free(product.data, bytes);
    } else {
        matmul(true, false, m, k, rows, 1, rows_of(d_out), rows_of(x), 1, rows_of(d_weight), 1);
    }
    if (d_bias.data)
        column_sums(d_bias, d_out);
}

/* ---- fp8 ---- */

/* A bias of floats is none of those that cuBLASLt adds to a product of fp8. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    if (!aligned(out) || !aligned(x) || !aligned(weight))
        fail("linear_fp8: %s, %s and %s must begin at multiples of 16 bytes", out.name, x.name, weight.name);
    if (bias.data && bias.dtype != F32 && matmul_lt(CUBLASLT_EPILOGUE_BIAS, out, x, weight, bias, NONE, 0))
        return;
    const float beta = add ? 1 : begin_with(out, bias);
    if (!matmul_lt(CUBLASLT_EPILOGUE_DEFAULT, out, x, weight, NONE, NONE, beta))
        fail("linear_fp8: cuBLASLt has no matmul of (%lld, %lld) %s by (%lld, %lld) %s to %s on this GPU",
             (long long)tensor_rows(x), (long long)tensor_width(x), dtype_name(x.dtype),
             (long long)tensor_rows(weight), (long long)tensor_width(weight), dtype_name(weight.dtype),
             dtype_name(out.dtype));
}

/* ---- quantization: the largest |x|, the scale, and x / scale rounded ---- */

template <typename T, int N> __global__ void amax_parts(float *partial, const T *x, int64_t count)
{
    float max = 0, nan = 0;                             /* nan: NaN if there is NaN or Inf, which max may miss */

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
        partial[blockIdx.x] = max;
}

__global__ void scale_of_parts(float *scale, const float *partial, int64_t count, float largest)
{
    float max = 0, nan = 0;

    EACH_COLUMN(i, 1, count) {
        max = fmaxf(max, partial[i]);
        nan += partial[i] * 0;
    }
    max = block_max(max) + block_sum(nan);
    if (threadIdx.x == 0)
        *scale = max == 0 ? 1 : max / largest;
}

/* A block has a tile of TILE rows and columns, and a thread N neighbours of a row at a time. The tile passes through
 * shared memory: so both copies are written along their rows. Rows there lie 4 bytes further apart than they are long:
 * otherwise a column's bytes would all be in the same few banks. */
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
    enum { PARTS = 1024 };
    float *partial = (float *)device_scratch(PARTS * 4);

    FOR_TYPE(x.dtype, T,
        PACKED(aligned(x), T, N,
            const int64_t parts = clamped(blocks(count, N), 1, PARTS);
            LAUNCH(amax_parts<T, N>, parts, THREADS, partial, data<T>(x), count);
            LAUNCH(scale_of_parts, 1, THREADS, any.scale, partial, parts, any.dtype == E4M3 ? 448.0f : 57344.0f));
        const __nv_fp8_interpretation_t format = any.dtype == E4M3 ? __NV_E4M3 : __NV_E5M2;
        if (fours)
            LAUNCH(quantize_tiles<T, 4>, tiles, THREADS, data<uint8_t>(out), data<uint8_t>(transposed), data<T>(x),
                   any.scale, format, rows, width);
        else
            LAUNCH(quantize_tiles<T, 1>, tiles, THREADS, data<uint8_t>(out), data<uint8_t>(transposed), data<T>(x),
                   any.scale, format, rows, width));
    device_scratch_free(partial, PARTS * 4);
}
