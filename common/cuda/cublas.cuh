/* matmul.cu: a matmul by cuBLASLt, for operators that end it with more than a sum. */
#ifndef CUBLAS_CUH
#define CUBLAS_CUH

#include <cublasLt.h>

#include "../tensor.h"

/* out (R, M) = in (R, K) times weight, plus beta * out, and then what the epilogue adds while sums are in registers:
 *     DEFAULT           nothing
 *     BIAS              bias (M)
 *     GELU_AUX_BIAS     bias, of which the sum goes to up (R, M), and GELU of it to out
 *     DGELU             the product times GELU's slope at up (R, M)
 * weight is (M, K), with DGELU, which is backward's, (K, M); bias and up are NONE where not named.
 * False, and nothing was done: cuBLASLt has no such matmul of these sizes, or places. */
bool matmul_lt(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up, float beta);

#endif
