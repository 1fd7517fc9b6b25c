/* A linear and GELU as one matmul of cuBLASLt's, whose epilogue applies bias and GELU, or GELU's slope, to sums that
 * are still in registers. It has such matmuls for some sizes and places only; for others, the matmul and GELU follow
 * one another, which costs another read and write. So they do, with --autotune on, where that takes less time (llm.c
 * has the epilogue off by default, on Hopper too).
 *
 * NVIDIA's documentation doesn't say which GELU it is. It is the tanh form, as in ops.h: PyTorch takes this epilogue
 * for that form alone. How tanh is computed is the library's choice, so floats don't go this way: 1e-5 would be too
 * much to ask.
 *
 * Nor does it say that not all GPUs have it: on some the library takes the epilogue, and then runs it as a kernel of
 * its own, which is slower than ours. In bf16 that is so before Hopper (github.com/karpathy/llm.c, pull requests 338,
 * 591 and 653: RTX 4090, where H100 fuses and fp16 is fused too) and on sm_120 (github.com/sgl-project/sglang, pull
 * request 34350: RTX 5090, 296 us with it, 236 without, but faster on H100 and H200; 28168: faster on B200, sm_100). Of
 * GPUs before sm_80 nobody says anything. */
#include "../../common/cuda/device_cuda.h"
#include "../../common/cuda/cublas.cuh"
#include "../../common/cuda/kernel.cuh"
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

void linear_gelu_forward_kernel(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    const auto apart = [&] {
        linear_forward_kernel(up, x, weight, bias);
        gelu_forward_kernel(out, up);
    };

    if (x.dtype == F32)
        apart();
    else
        matmul_with(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, out, x, weight, bias, up, apart);
}

void linear_gelu_backward_kernel(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    const auto apart = [&] {
        linear_backward_input_kernel(d_up, d_out, weight);
        gelu_backward_kernel(d_up, d_up, up);
    };

    if (up.dtype == F32)
        apart();
    else
        matmul_with(CUBLASLT_EPILOGUE_DGELU, d_up, d_out, weight, NONE, up, apart);
}
