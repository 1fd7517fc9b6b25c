/* AdamW without a wait of the host: the gradients' scale on the GPU, and copies that arrive while it works. */
#include "../../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "../fused.h"
}

/* Computed once, by one thread: otherwise each of AdamW's threads would do a square root and a division in double. */
__global__ void clip_scale(double *scale, const double *square_sum, double clip)
{
    const double norm = sqrt(*square_sum);

    if (threadIdx.x == 0)
        *scale = !isfinite(norm) ? NAN : clip > 0 && norm + 1e-6 > clip ? clip / (norm + 1e-6) : 1;
}

void clip_scale_into_kernel(Tensor scale, Tensor square_sum, double clip)
{
    LAUNCH(clip_scale, 1, WARP, scale, square_sum, clip);
}

void download_start(double *to, Tensor from)
{
    CUDA(cudaMemcpyAsync(to, from.data, sizeof *to, cudaMemcpyDeviceToHost, (cudaStream_t)device_stream()));
}
