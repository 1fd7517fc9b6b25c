/* Matmuls, by cuBLASLt.
 *
 * There is one stream and one workspace. Each kind of matmul uses the algorithm that the library lists first, so sums
 * are the same in every run. (On an H100 a step was no faster with the fastest of the first eight.) Partial
 * sums stay float until they are added. */
#include <array>
#include <cublas_v2.h>
#include <map>
#include <stdio.h>

#include "kernel_cuda.cuh"

#define CUBLAS(call) cublas_check(call, #call, __FILE__, __LINE__)
static void cublas_check(cublasStatus_t status, const char *call, const char *file, int line)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("%s (%s:%d): %s", call, file, line, cublasGetStatusString(status));
}

static const int64_t WORKSPACE = 32 << 20;      /* as cuBLAS allocates for itself on the largest GPUs */
static void *workspace;
static cublasLtHandle_t cublas_lt;
static cublasHandle_t cublas;                   /* for matmuls that cuBLASLt hasn't */

/* Later, while a receive spins on the GPU, the handles' creation could wait for it. */
void matmul_begin(void)
{
    workspace = device_scratch(WORKSPACE);
    CUBLAS(cublasLtCreate(&cublas_lt));
    CUBLAS(cublasCreate(&cublas));
    CUBLAS(cublasSetStream(cublas, (cudaStream_t)device_stream()));
    CUBLAS(cublasSetWorkspace(cublas, workspace, WORKSPACE));
    CUBLAS(cublasSetMathMode(cublas, (cublasMath_t)(CUBLAS_DEFAULT_MATH
                                                    | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
}

static cudaDataType_t cuda_type(DType dtype)
{
    return dtype == BF16   ? CUDA_R_16BF
           : dtype == F16  ? CUDA_R_16F
           : dtype == E4M3 ? CUDA_R_8F_E4M3
           : dtype == E5M2 ? CUDA_R_8F_E5M2
                           : CUDA_R_32F;
}

static cublasComputeType_t compute_type(DType dtype)
{
    return dtype == F32 && device_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static cublasOperation_t operation(bool transposed)
{
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/* ---- one kind of matmul, and its algorithm ---- */

/* c (m, n) = alpha * a (m, k) times b (k, n), plus beta * c, for `count` matrices, as in kernel_cuda.cuh; and the
 * epilogue. */
typedef struct {
    bool a_transposed, b_transposed;
    int64_t m, n, k;
    float alpha;
    Matrix a, b;
    float beta;
    Matrix c;
    int64_t count;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *up;
} Product;

/* How the library computes products of one kind. */
typedef struct {
    bool can;                                   /* the library has such a matmul */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

/* Returns the matrices' alignment: a power of two, at most 16 bytes, since no load is wider. */
static uint32_t alignment_of(const Matrix &m, int64_t count)
{
    const uintptr_t places = (uintptr_t)m.data | (count > 1 ? m.stride * dtype_size(m.dtype) : 0);
    uint32_t bytes = 16;

    while (places % bytes)
        bytes /= 2;
    return bytes;
}

/* Everything that the library's choice may depend on; of addresses, their alignment. */
typedef std::array<int64_t, 22> Kind;

static Kind kind_of(const Product &x)
{
    return {x.m, x.n, x.k, x.count, x.a_transposed, x.b_transposed, x.epilogue, compute_type(x.a.dtype),
            x.a.dtype, x.a.ld, x.a.stride, alignment_of(x.a, x.count), x.a.scaling,
            x.b.dtype, x.b.ld, x.b.stride, alignment_of(x.b, x.count), x.b.scaling,
            x.c.dtype, x.c.ld, x.c.stride, alignment_of(x.c, x.count)};
}

#define SET(p, attribute, value) \
    CUBLAS(cublasLtMatmulDescSetAttribute((p).matmul, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))
#define PREFER(preference, attribute, value) \
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##attribute, &(value), sizeof(value)))

/* Describes matrices that are stored as rows of `width`: to the library, which is column-major, these are columns. */
static cublasLtMatrixLayout_t layout_of(const Matrix &m, int32_t count, int64_t rows, int64_t width)
{
    cublasLtMatrixLayout_t layout;

    CUBLAS(cublasLtMatrixLayoutCreate(&layout, cuda_type(m.dtype), width, rows, m.ld));
    if (count > 1) {
        CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
        CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.stride,
                                                sizeof m.stride));
    }
    return layout;
}

/* Before CUDA 12.9 there is only PER_TENSOR. */
static void set_scaling(const Plan &p, const Product &x)
{
#if CUBLAS_VERSION >= 120900
    static const cublasLtMatmulMatrixScale_t modes[] = {
        CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0};

    SET(p, A_SCALE_MODE, modes[x.b.scaling]);   /* its A is our b */
    SET(p, B_SCALE_MODE, modes[x.a.scaling]);
#endif
}

static void set_pointers(const Plan &p, const Product &x)
{
    if (x.a.scale) {
        SET(p, A_SCALE_POINTER, x.b.scale);     /* its A is our b */
        SET(p, B_SCALE_POINTER, x.a.scale);
    }
    if (x.bias)
        SET(p, BIAS_POINTER, x.bias);
    if (x.up)
        SET(p, EPILOGUE_AUX_POINTER, x.up);
}

/* Computes c^T (n, m) = b^T a^T, so that no matrix is transposed in memory. */
static Plan plan_for(const Product &x)
{
    Plan p = {};
    const cublasOperation_t op_a = operation(x.a_transposed), op_b = operation(x.b_transposed);
    const uint64_t most = WORKSPACE;
    /* Sums of activations times weights need few bits, those of gradients more. With tiles there is no fast mode. */
    const int8_t fast = x.a.dtype == E4M3 && x.b.dtype == E4M3 && x.a.scaling == PER_TENSOR;
    const uint32_t place_a = alignment_of(x.a, x.count), place_b = alignment_of(x.b, x.count);
    const uint32_t place_c = alignment_of(x.c, x.count);
    /* With an epilogue, sums are not split: the epilogue could get a sum that is rounded already
     * (github.com/pytorch/pytorch, pull request 180875). */
    const uint32_t parts = x.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                                   : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t candidate;
    Product any = x;                            /* later biases are only known to be aligned to 16 bytes */
    int found = 0;

    CUBLAS(cublasLtMatmulDescCreate(&p.matmul, compute_type(x.a.dtype), CUDA_R_32F));
    SET(p, TRANSA, op_b);
    SET(p, TRANSB, op_a);
    SET(p, EPILOGUE, x.epilogue);
    if (x.a.scale) {
        SET(p, FAST_ACCUM, fast);
        set_scaling(p, x);
    }
    if (x.up)
        SET(p, EPILOGUE_AUX_LD, x.n);
    any.bias = x.bias ? (void *)16 : NULL;      /* (pull request 194497 there) */
    any.up = x.up ? (void *)16 : NULL;
    set_pointers(p, any);
    p.a = x.a_transposed ? layout_of(x.a, x.count, x.k, x.m) : layout_of(x.a, x.count, x.m, x.k);
    p.b = x.b_transposed ? layout_of(x.b, x.count, x.n, x.k) : layout_of(x.b, x.count, x.k, x.n);
    p.c = layout_of(x.c, x.count, x.m, x.n);
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    PREFER(preference, MAX_WORKSPACE_BYTES, most);
    PREFER(preference, REDUCTION_SCHEME_MASK, parts);
    PREFER(preference, MIN_ALIGNMENT_A_BYTES, place_b);         /* its A is our b; by default it assumes 256 */
    PREFER(preference, MIN_ALIGNMENT_B_BYTES, place_a);
    PREFER(preference, MIN_ALIGNMENT_C_BYTES, place_c);
    PREFER(preference, MIN_ALIGNMENT_D_BYTES, place_c);
    p.can = cublasLtMatmulAlgoGetHeuristic(cublas_lt, p.matmul, p.b, p.a, p.c, p.c, preference, 1, &candidate, &found)
                == CUBLAS_STATUS_SUCCESS
            && found > 0 && candidate.state == CUBLAS_STATUS_SUCCESS;
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    if (p.can)
        p.algorithm = candidate.algo;
    else
        fprintf(stderr, "cuBLASLt has no matmul of (%lld, %lld) %s by %lld%s on this GPU\n", (long long)x.m,
                (long long)x.k, dtype_name(x.a.dtype), (long long)x.n,
                x.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? "" : " with bias or GELU: other kernels compute these");
    return p;
}

/* Runs the product. Returns false, and does nothing, if the library has no such matmul. */
static bool product(const Product &x)
{
    static std::map<Kind, Plan> plans;
    const auto [place, is_new] = plans.try_emplace(kind_of(x));
    Plan &p = place->second;

    if (is_new)
        p = plan_for(x);
    if (!p.can)
        return false;
    set_pointers(p, x);
    CUBLAS(cublasLtMatmul(cublas_lt, p.matmul, &x.alpha, x.b.data, p.b, x.a.data, p.a, &x.beta, x.c.data, p.c,
                          x.c.data, p.c, &p.algorithm, workspace, WORKSPACE, (cudaStream_t)device_stream()));
    return true;
}

/* ---- functions for operators ---- */

/* The addresses of all matrices of a, then of b, then of c. */
__global__ void list_matrices(char **list, Matrix a, Matrix b, Matrix c, int64_t count, int64_t all, int size,
                              int c_size)
{
    EACH_PACK(i, 1, 3 * all) {
        const Matrix m = i < all ? a : i < 2 * all ? b : c;
        list[i] = (char *)m.data + (i % all / count * m.apart + i % count * m.stride) * (i < 2 * all ? size : c_size);
    }
}

/* cuBLAS supports all our dtypes but fp8. */
void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b,
            float beta, Matrix c, int64_t count, int64_t groups)
{
    const cudaDataType_t type = cuda_type(a.dtype);
    const int64_t all = groups * count, bytes = 3 * all * sizeof(void *);

    /* No library takes two strides, so groups are a list of addresses. cuBLAS does not look at these, and assumes that
     * they are aligned; where they are not, each group is a call. */
    if (groups > 1 && alignment_of(a, all) == 16 && alignment_of(b, all) == 16 && alignment_of(c, all) == 16) {
        void **const list = (void **)device_scratch(bytes);
        LAUNCH(list_matrices, blocks(3 * all, 1), THREADS, (char **)list, a, b, c, count, all, dtype_size(a.dtype),
               dtype_size(c.dtype));
        CUBLAS(cublasGemmBatchedEx_64(cublas, operation(b_transposed), operation(a_transposed), n, m, k, &alpha,
                                      list + all, type, b.ld, list, type, a.ld, &beta, list + 2 * all,
                                      cuda_type(c.dtype), c.ld, all, compute_type(a.dtype), CUBLAS_GEMM_DEFAULT));
        device_free(list, bytes);
        return;
    }
    for (int64_t g = 1; g < groups; g++) {
        matmul(a_transposed, b_transposed, m, n, k, alpha, a, b, beta, c, count);
        a = from(a, 0, a.apart), b = from(b, 0, b.apart), c = from(c, 0, c.apart);
    }
    const Product x = {a_transposed, b_transposed, m, n, k, alpha, a, b, beta, c, count, CUBLASLT_EPILOGUE_DEFAULT};
    if (product(x))
        return;
    if (a.scale)
        fail("linear_fp8: cuBLASLt has no matmul of (%lld, %lld) %s by (%lld, %lld) %s to %s%s on this GPU",
             (long long)m, (long long)k, dtype_name(a.dtype), (long long)n, (long long)k, dtype_name(b.dtype),
             dtype_name(c.dtype), a.scaling == PER_TENSOR ? "" : " with scales per tile");
    CUBLAS(cublasGemmStridedBatchedEx_64(cublas, operation(b_transposed), operation(a_transposed), n, m, k, &alpha,
                                         b.data, type, b.ld, b.stride, a.data, type, a.ld, a.stride, &beta, c.data,
                                         cuda_type(c.dtype), c.ld, c.stride, count, compute_type(a.dtype),
                                         CUBLAS_GEMM_DEFAULT));
}

bool matmul_with(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up)
{
    const int64_t k = tensor_width(in), n = tensor_width(out);
    const Product x = {false, epilogue != CUBLASLT_EPILOGUE_DGELU, tensor_rows(in), n, k, 1, rows_of(in),
                       rows_of(weight), 0, rows_of(out), 1, epilogue, bias.data, up.data};

    return rows_aligned(out, in) && aligned(weight, bias, up) && product(x);
}
