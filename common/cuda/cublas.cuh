/* matmul.cu: cuBLASLt matmuls with an epilogue, or with fp8 operands. */
#ifndef CUBLAS_CUH
#define CUBLAS_CUH

#include <cublasLt.h>
#include <functional>

#include "device_cuda.h"

/* Computes the same with several kernels. */
typedef std::function<void()> Unfused;

/* Computes y (R, out) = in (R, in) times weight, and applies the epilogue while sums are in registers:
 *     BIAS              out = y + bias (out)
 *     GELU_AUX_BIAS     up (R, out) = y + bias, out = GELU(up)
 *     DGELU             out = y times GELU's slope at up (R, out)
 * weight is (out, in); with DGELU, which is for backward, (in, out). bias and up are NONE where not named. Calls
 * `unfused` if cuBLASLt has no such matmul for these sizes and addresses. */
void matmul_with(cublasLtEpilogue_t epilogue, Tensor out, Tensor in, Tensor weight, Tensor bias, Tensor up,
                 const Unfused &unfused);

/* linear.cu: out = x times weight transposed, plus bias, or plus out's current values; `at_once`: by one matmul. */
void linear_product(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, bool at_once);

#endif
