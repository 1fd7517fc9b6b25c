/* Matmuls, by cuBLASLt.
 *
 * There is one stream and one workspace. Each kind of matmul uses the algorithm that the library lists first, so sums
 * are the same in every run. With --autotune on it uses the fastest of the listed ones, which may differ between runs.
 * Partial sums stay float until they are added. */
#include <cublas_v2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../error.h"
#include "cublas.cuh"
#include "kernel.cuh"

#define CUBLAS(call) cublas_check(call, #call, __FILE__, __LINE__)
static void cublas_check(cublasStatus_t status, const char *call, const char *file, int line)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("%s (%s:%d): %s", call, file, line, cublasGetStatusString(status));
}

/* Scratch memory, of the size that cuBLAS allocates for itself on the largest GPUs. */
static const int64_t WORKSPACE = 32 << 20;

static void *matmul_workspace(void)
{
    static void *data;

    if (!data)
        data = device_scratch(WORKSPACE);
    return data;
}

static cublasLtHandle_t cublas_lt(void)
{
    static cublasLtHandle_t handle;

    if (!handle)
        CUBLAS(cublasLtCreate(&handle));
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

/* ---- one kind of matmul, and its algorithm ---- */

/* c (m, n) = alpha * a (m, k) times b (k, n), plus beta * c, for `count` matrices, as in kernel.cuh; and the
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
    const float *scale_a, *scale_b;             /* of fp8, on the device */
    const void *bias;
    void *up;
} Product;

/* Everything that the library's choice may depend on; of addresses, their alignment in bytes. */
typedef struct {
    int64_t m, n, k, count, ld[3], stride[3];
    int32_t type[3], alignment[3], transposed[2], epilogue, computed;
} Kind;

typedef struct Plan {
    struct Plan *next;
    Kind kind;
    bool can;                                   /* the library has such a matmul */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

/* Returns the matrices' alignment: a power of two, at most 16 bytes, since no load is wider. */
static int32_t alignment_of(const Matrix *m, int64_t count)
{
    const uintptr_t places = (uintptr_t)m->data | (count > 1 ? m->stride * dtype_size(m->dtype) : 0);
    int32_t bytes = 16;

    while (places % bytes)
        bytes /= 2;
    return bytes;
}

static Kind kind_of(const Product *x)
{
    const Matrix *const matrices[] = {&x->a, &x->b, &x->c};
    Kind kind;

    memset(&kind, 0, sizeof kind);              /* kinds are compared byte by byte */
    kind.m = x->m, kind.n = x->n, kind.k = x->k, kind.count = x->count;
    kind.transposed[0] = x->a_transposed, kind.transposed[1] = x->b_transposed;
    kind.epilogue = x->epilogue, kind.computed = compute_type(x->a.dtype);
    for (int i = 0; i < 3; i++) {
        kind.ld[i] = matrices[i]->ld;
        kind.stride[i] = x->count > 1 ? matrices[i]->stride : 0;
        kind.type[i] = cuda_type(matrices[i]->dtype);
        kind.alignment[i] = alignment_of(matrices[i], x->count);
    }
    return kind;
}

#define SET(p, attribute, value) \
    CUBLAS(cublasLtMatmulDescSetAttribute((p)->matmul, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))
#define PREFER(preference, attribute, value) \
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##attribute, &(value), sizeof(value)))

/* Describes matrix i of a kind, stored as rows of `width`: to the library, which is column-major, these are columns. */
static cublasLtMatrixLayout_t layout_of(const Kind *kind, int i, int64_t rows, int64_t width)
{
    const int32_t count = kind->count;
    cublasLtMatrixLayout_t layout;

    CUBLAS(cublasLtMatrixLayoutCreate(&layout, (cudaDataType_t)kind->type[i], width, rows, kind->ld[i]));
    if (count > 1) {
        CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
        CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &kind->stride[i],
                                                sizeof kind->stride[i]));
    }
    return layout;
}

static void set_pointers(const Plan *p, const Product *x)
{
    if (x->scale_a) {
        SET(p, A_SCALE_POINTER, x->scale_b);    /* its A is our b */
        SET(p, B_SCALE_POINTER, x->scale_a);
    }
    if (x->bias)
        SET(p, BIAS_POINTER, x->bias);
    if (x->up)
        SET(p, EPILOGUE_AUX_POINTER, x->up);
}

/* c: receives the product; beta multiplies the product's own c. */
static void start(const Plan *p, const Product *x, const cublasLtMatmulAlgo_t *algorithm, void *c)
{
    CUBLAS(cublasLtMatmul(cublas_lt(), p->matmul, &x->alpha, x->b.data, p->b, x->a.data, p->a, &x->beta, x->c.data,
                          p->c, c, p->c, algorithm, matmul_workspace(), WORKSPACE, (cudaStream_t)device_stream()));
}

static const char *epilogue_text(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS            ? " with a bias: it goes before"
           : epilogue == CUBLASLT_EPILOGUE_DGELU         ? " with GELU's slope: it follows"
           : epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ? " with GELU: it follows"
                                                         : ": cuBLAS's is taken";
}

/* Computes c^T (n, m) = b^T a^T, so that no matrix is transposed in memory. */
static Plan *new_plan(const Kind *kind, const Product *x)
{
    Plan *p = (Plan *)malloc(sizeof *p);
    const cublasOperation_t op_a = x->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = x->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t most = WORKSPACE;
    const uint32_t place_a = kind->alignment[0], place_b = kind->alignment[1], place_c = kind->alignment[2];
    /* With an epilogue, sums are not split: the epilogue could get a sum that is rounded already
     * (github.com/pytorch/pytorch, pull request 180875). */
    const uint32_t parts = x->epilogue == CUBLASLT_EPILOGUE_DEFAULT ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                                    : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t candidate;
    Product any = *x;                           /* later biases are only known to be aligned to 16 bytes */
    int found = 0;

    if (!p)
        fail("not enough memory on the host for the plan of a matmul");
    memset(p, 0, sizeof *p);
    p->kind = *kind;
    CUBLAS(cublasLtMatmulDescCreate(&p->matmul, compute_type(x->a.dtype), CUDA_R_32F));
    SET(p, TRANSA, op_b);
    SET(p, TRANSB, op_a);
    SET(p, EPILOGUE, x->epilogue);
    if (x->up)
        SET(p, EPILOGUE_AUX_LD, x->n);
    any.bias = x->bias ? (void *)16 : NULL;     /* (pull request 194497 there) */
    any.up = x->up ? (void *)16 : NULL;
    set_pointers(p, &any);
    p->a = x->a_transposed ? layout_of(kind, 0, x->k, x->m) : layout_of(kind, 0, x->m, x->k);
    p->b = x->b_transposed ? layout_of(kind, 1, x->n, x->k) : layout_of(kind, 1, x->k, x->n);
    p->c = layout_of(kind, 2, x->m, x->n);
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    PREFER(preference, MAX_WORKSPACE_BYTES, most);
    PREFER(preference, REDUCTION_SCHEME_MASK, parts);
    PREFER(preference, MIN_ALIGNMENT_A_BYTES, place_b);         /* its A is our b; by default it assumes 256 */
    PREFER(preference, MIN_ALIGNMENT_B_BYTES, place_a);
    PREFER(preference, MIN_ALIGNMENT_C_BYTES, place_c);
    PREFER(preference, MIN_ALIGNMENT_D_BYTES, place_c);
    p->can = cublasLtMatmulAlgoGetHeuristic(cublas_lt(), p->matmul, p->b, p->a, p->c, p->c, preference, 1,
                                            &candidate, &found) == CUBLAS_STATUS_SUCCESS
             && found > 0 && candidate.state == CUBLAS_STATUS_SUCCESS;
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    if (!p->can) {
        fprintf(stderr, "cuBLASLt has no matmul of (%lld, %lld) %s by %lld%s on this GPU\n", (long long)x->m,
                (long long)x->k, dtype_name(x->a.dtype), (long long)x->n, epilogue_text(kind->epilogue));
        return p;
    }
    p->algorithm = candidate.algo;
    return p;
}

/* Runs the product. Returns false, and does nothing, if the library has no such matmul. */
static bool product(const Product *x)
{
    static Plan *plans;
    const Kind kind = kind_of(x);
    Plan *p = plans;

    while (p && memcmp(&p->kind, &kind, sizeof kind))
        p = p->next;
    if (!p) {
        p = new_plan(&kind, x);
        p->next = plans;
        plans = p;
    }
    if (p->can) {
        set_pointers(p, x);
        start(p, x, &p->algorithm, x->c.data);
    }
    return p->can;
}

/* ---- functions for operators ---- */

static cublasHandle_t cublas(void)
{
    static cublasHandle_t handle;

    if (!handle) {
        CUBLAS(cublasCreate(&handle));
        CUBLAS(cublasSetStream(handle, (cudaStream_t)device_stream()));
        CUBLAS(cublasSetWorkspace(handle, matmul_workspace(), WORKSPACE));
        CUBLAS(cublasSetMathMode(handle, (cublasMath_t)(CUBLAS_DEFAULT_MATH
                                                        | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    }
    return handle;
}

/* Later, while a receive spins on the GPU, the handle's creation could wait for it. */
void matmul_begin(void)
{
    cublas_lt();
    cublas();
}

/* cuBLAS supports all our dtypes but fp8. */
void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b,
            float beta, Matrix c, int64_t count)
{
    const Product x = {a_transposed, b_transposed, m, n, k, alpha, a, b, beta, c, count, CUBLASLT_EPILOGUE_DEFAULT};
    const cudaDataType_t type = cuda_type(a.dtype);

    if (!product(&x))
        CUBLAS(cublasGemmStridedBatchedEx_64(cublas(), b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                             a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, b.data, type,
                                             b.ld, b.stride, a.data, type, a.ld, a.stride, &beta, c.data,
                                             cuda_type(c.dtype), c.ld, c.stride, count, compute_type(a.dtype),
                                             CUBLAS_GEMM_DEFAULT));
}

void matmul_with(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up,
                 const Apart &apart)
{
    const int64_t k = tensor_width(in), n = tensor_width(out);
    const Product x = {false, epilogue != CUBLASLT_EPILOGUE_DGELU, tensor_rows(in), n, k, 1, rows_of(in),
                       rows_of(weight), 0, rows_of(out), 1, epilogue, in.scale, weight.scale, bias.data, up.data};
    const bool can = k * dtype_size(in.dtype) % 16 == 0 && n * dtype_size(out.dtype) % 16 == 0 && aligned(out)
                     && aligned(in) && aligned(weight) && aligned(bias) && aligned(up);

    if (!can || !product(&x))
        apart();
}

bool matmul_fp8(Tensor out, Tensor in, Tensor weight, float beta)
{
    const Product x = {false, true, tensor_rows(in), tensor_width(out), tensor_width(in), 1, rows_of(in),
                       rows_of(weight), beta, rows_of(out), 1, CUBLASLT_EPILOGUE_DEFAULT, in.scale, weight.scale};

    return product(&x);
}
