/* A linear and GELU as one matmul of cuBLASLt's, whose epilogue applies bias and GELU, or GELU's slope, to sums that
 * are still in registers. It has such matmuls for some sizes and places only; for others, the matmul and GELU follow
 * one another, which costs another read and write.
 *
 * NVIDIA's documentation doesn't say which GELU it is. It is the tanh form, as in ops.h: PyTorch takes this epilogue
 * for that form alone. How tanh is computed is the library's choice, so floats don't go this way: 1e-5 would be too
 * much to ask.
 *
 * Nor does it say that not all GPUs have it: on some the library takes the epilogue, and then runs it as a kernel of
 * its own, which is slower than ours. In bf16 that is so before Hopper (github.com/karpathy/llm.c, pull requests 338,
 * 591 and 653: RTX 4090, where H100 fuses and fp16 is fused too) and on sm_120 (github.com/sgl-project/sglang, pull
 * request 34350: RTX 5090, 296 us with it, 236 without; faster on H100 and H200. 28168: faster on B200, sm_100). Of GPUs before
 * sm_80 nobody says anything. */
#include <stdio.h>
#include <stdlib.h>

#include "../../common/device_cuda.h"
#include "../../common/error.h"
#include "../../common/ops_cuda/cublas.cuh"
#include "../../common/ops_cuda/kernel.cuh"
#include "../fused.h"

const char *linear_gelu_unfused(DType dtype)
{
    const int major = device_capability() / 10;

    if (dtype == F32)
        return "cuBLASLt's tanh is not exact enough for floats";
    if (major < 8 || major > 10 || (dtype == BF16 && major == 8))
        return "on this GPU cuBLASLt is not known to be faster with it";
    return NULL;
}

/* cublasLt is asked once for each kind of matmul how it would do it, if it can. */
typedef struct Plan {
    struct Plan *next;
    bool backward, can;
    int64_t rows, k, m;
    DType dtype;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t layout_in, layout_weight, layout_out;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

#define SET(attribute, value) \
    CUBLAS(cublasLtMatmulDescSetAttribute(p->matmul, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))

static void set_pointers(Plan *p, void *up, void *bias)
{
    SET(EPILOGUE_AUX_POINTER, up);
    if (!p->backward)
        SET(BIAS_POINTER, bias);
}

/* For the library's column-first eyes: out^T (m, rows) = weight, transposed or not, times in^T (k, rows). */
static Plan *new_plan(Plan wanted)
{
    Plan *p = (Plan *)malloc(sizeof *p);
    const cublasOperation_t of_weight = wanted.backward ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = wanted.backward ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const cudaDataType_t type = cuda_type(wanted.dtype);
    const size_t most = WORKSPACE;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;

    if (!p)
        fail("no memory for the plan of a matmul");
    *p = wanted;
    CUBLAS(cublasLtMatmulDescCreate(&p->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(TRANSA, of_weight);
    SET(EPILOGUE, epilogue);
    SET(EPILOGUE_AUX_LD, p->m);
    set_pointers(p, (void *)16, (void *)16);    /* of later ones too no more is known than that 16 divides them */
    CUBLAS(p->backward ? cublasLtMatrixLayoutCreate(&p->layout_weight, type, p->m, p->k, p->m)
                       : cublasLtMatrixLayoutCreate(&p->layout_weight, type, p->k, p->m, p->k));
    CUBLAS(cublasLtMatrixLayoutCreate(&p->layout_in, type, p->k, p->rows, p->k));
    CUBLAS(cublasLtMatrixLayoutCreate(&p->layout_out, type, p->m, p->rows, p->m));
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                                sizeof most));
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                                sizeof reduction));     /* as matmul.cu: parts of a sum stay float */
    /* by itself it counts on operands at multiples of 256 bytes */
    for (int a = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; a <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; a++) {
        const uint32_t alignment = 16;
        CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, (cublasLtMatmulPreferenceAttributes_t)a, &alignment,
                                                    sizeof alignment));
    }
    p->can = cublasLtMatmulAlgoGetHeuristic(cublas_lt(), p->matmul, p->layout_weight, p->layout_in, p->layout_out,
                                            p->layout_out, preference, 1, &best, &found) == CUBLAS_STATUS_SUCCESS
             && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    if (p->can)
        p->algorithm = best.algo;
    else
        fprintf(stderr, "cuBLASLt has no matmul of (%lld, %lld) by %lld with GELU%s: GELU follows it\n",
                (long long)p->rows, (long long)p->k, (long long)p->m, p->backward ? "'s slope" : "");
    return p;
}

/* out (R, M) of in (R, K): with GELU, up written; or backward, times GELU's slope at up. False: there is none. */
static bool matmul_gelu(bool backward, Tensor out, Tensor in, Tensor weight, Tensor up, Tensor bias)
{
    static Plan *plans;
    const int64_t rows = tensor_rows(in), k = tensor_width(in), m = tensor_width(out);
    const float one = 1, zero = 0;
    Plan *p = plans;

    if (out.dtype == F32 || k % 8 || m % 8 || !aligned(out) || !aligned(in) || !aligned(weight) || !aligned(up)
        || !aligned(bias))
        return false;
    while (p && (p->backward != backward || p->rows != rows || p->k != k || p->m != m || p->dtype != out.dtype))
        p = p->next;
    if (!p)
        p = plans = new_plan((Plan){plans, backward, false, rows, k, m, out.dtype});
    if (!p->can)
        return false;
    set_pointers(p, up.data, bias.data);
    CUBLAS(cublasLtMatmul(cublas_lt(), p->matmul, &one, weight.data, p->layout_weight, in.data, p->layout_in, &zero,
                          out.data, p->layout_out, out.data, p->layout_out, &p->algorithm, matmul_workspace(),
                          WORKSPACE, (cudaStream_t)device_stream()));
    return true;
}

void linear_gelu_forward_kernel(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    if (matmul_gelu(false, out, x, weight, up, bias))
        return;
    linear_forward_kernel(up, x, weight, bias);
    gelu_forward_kernel(out, up);
}

void linear_gelu_backward_kernel(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    if (matmul_gelu(true, d_up, d_out, weight, up, NONE))
        return;
    linear_backward_input_kernel(d_up, d_out, weight);
    gelu_backward_kernel(d_up, d_up, up);
}
