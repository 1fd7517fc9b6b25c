/* matmul.cu: matmuls by cuBLASLt, for operators that end them with more than a sum, or whose operands are fp8. */
#ifndef CUBLAS_CUH
#define CUBLAS_CUH

#include <cublasLt.h>
#include <functional>

#include "../tensor.h"

/* The same by several kernels. */
typedef std::function<void()> Apart;

/* out (R, M) = in (R, K) times weight, and then what the epilogue adds while sums are in registers:
 *     BIAS              bias (M)
 *     GELU_AUX_BIAS     bias, of which the sum goes to up (R, M), and GELU of it to out
 *     DGELU             the product times GELU's slope at up (R, M)
 * weight is (M, K), with DGELU, which is backward's, (K, M); bias and up are NONE where not named.
 * Where cuBLASLt has no such matmul of these sizes or places, `apart` is called; and, with --autotune on, where it is
 * faster. */
void matmul_with(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up,
                 const Apart &apart);

/* out (R, M) = in (R, K) times weight (M, K) transposed, plus beta * out; fp8 with scales. False: there is none. */
bool matmul_fp8(Tensor out, Tensor in, Tensor weight, float beta);

#endif
