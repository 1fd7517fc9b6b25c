/* A linear and GELU as one matmul of cuBLASLt, whose epilogue applies bias and GELU, or GELU's slope, to sums that are
 * still in registers. The library has such matmuls only for some sizes and alignments. For others, the matmul and GELU
 * run one after the other, which costs another read and write.
 *
 * NVIDIA's documentation does not define this GELU. It is the tanh form, as in ops.h: PyTorch uses the epilogue for
 * that form alone. How the library computes tanh is unknown, so fp32 does not use it: the tests ask for 1e-5.
 *
 * Nor does the documentation tell that not all GPUs have it. On some, the library accepts the epilogue but runs it as a
 * separate kernel, slower than ours. In bf16 that is so before Hopper (github.com/karpathy/llm.c, pull requests 338,
 * 591 and 653: RTX 4090; H100 fuses, and so does the 4090 in fp16) and on sm_120 (github.com/sgl-project/sglang, pull
 * request 34350: RTX 5090, 296 us with it, 236 without, but faster on H100 and H200; 28168: faster on B200, sm_100).
 * For GPUs before sm_80 there are no reports. */
#include "../../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "../fused.h"
}

const char *linear_gelu_unfused(DType dtype)
{
    const int major = device_capability() / 10;

    if (dtype == F32)
        return "the tanh of cuBLASLt is not accurate enough for fp32";
    if (major < 8 || major > 10 || (dtype == BF16 && major == 8))
        return "fusing it with cuBLASLt is not known to be faster on this GPU";
    return NULL;
}

void linear_gelu_forward_kernel(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    if (x.dtype != F32 && matmul_with(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, out, x, weight, bias, up))
        return;
    linear_forward_kernel(up, x, weight, bias);
    gelu_forward_kernel(out, up);
}

void linear_gelu_backward_kernel(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    if (up.dtype != F32 && matmul_with(CUBLASLT_EPILOGUE_DGELU, d_up, d_out, weight, NONE, up))
        return;
    linear_backward_input_kernel(d_up, d_out, weight);
    gelu_backward_kernel(d_up, d_up, up);
}
