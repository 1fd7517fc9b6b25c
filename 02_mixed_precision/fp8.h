/* Linear layers in fp8 (Micikevicius et al. 2022). E4M3 holds numbers up to 448, E5M2 up to 57344. So a tensor is
 * stored divided by its scale, max |x| / 448 or 57344, which quantize writes where out.scale points. This is at a
 * multiple of 16 bytes, because cuBLASLt refuses scales elsewhere. fp8 tensor cores (except a B200's) multiply rows of
 * one matrix by rows of the other, nothing else. Backward sums over other dimensions than forward, so it needs
 * transposed copies: quantize makes either copy, or both with the same scale.
 *
 * out (R, out) = x (R, in) times weight (out, in) transposed, plus bias (out) or NONE. x and weight are fp8, not both
 * E5M2; R, in and out are multiples of 16. */
#ifndef FP8_H
#define FP8_H

#include "../common/transformer/kernels.h"

void quantize(Tensor out /* (R, W) or NONE */, Tensor transposed /* (W, R) or NONE */, Tensor x /* (R, W) */);
void linear_fp8(Tensor out, Tensor x, Tensor weight, Tensor bias);
void linear_fp8_add(Tensor out /* +=, a parameter's gradient: REAL or BF16 */, Tensor x, Tensor weight);

/* ---- what a backend provides, in fp8_cpu.c or fp8_cuda.cu; only fp8.c calls the kernels ---- */
__typeof__(quantize) quantize_kernel;
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add);
#endif
