/* What users of cuBLASLt share with matmul.cu: checked calls, one handle, one workspace. */
#ifndef CUBLAS_CUH
#define CUBLAS_CUH

#include <cublasLt.h>

#include "../tensor.h"

#define CUBLAS(call) cublas_check(call, #call, __FILE__, __LINE__)
void cublas_check(cublasStatus_t status, const char *call, const char *file, int line);

/* out (R, M) = in (R, K) times weight, plus beta * out, and then what the epilogue adds while sums are in registers:
 *     DEFAULT           nothing
 *     BIAS              bias (M)
 *     GELU_AUX_BIAS     bias, of which the sum goes to up (R, M), and GELU of it to out
 *     DGELU             the product times GELU's slope at up (R, M)
 * weight is (M, K), with DGELU, which is backward's, (K, M); bias and up are NONE where not named.
 * False, and nothing was done: cuBLASLt has no such matmul of these sizes, or places. */
bool matmul_lt(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up, float beta);

/* Scratch memory, of the size that cuBLAS takes for itself on the largest GPUs. With memory of its own it would be free
 * to choose anew. */
static const int64_t WORKSPACE = 32 << 20;
void *matmul_workspace(void);

#endif
