/* Linear layers in fp8 (Micikevicius et al. 2022). E4M3 holds numbers up to 448, E5M2 up to 57344. So numbers are
 * stored divided by a scale, which quantize writes where out.scale points: max |x| / 448 or 57344, over the numbers
 * that share it (out.scaling). PER_1X32 rounds it up to a power of two, of which it stores the exponent, a byte
 * (MXFP8). Scales begin at a multiple of 16 bytes, because cuBLASLt refuses them elsewhere. fp8 tensor cores (except a
 * B200's) multiply rows of one matrix by rows of the other, nothing else. Backward sums over other dimensions than
 * forward, so it needs transposed copies: quantize makes either copy, or both with the same scale if it is PER_TENSOR.
 *
 * out (R, out) = x (R, in) times weight (out, in) transposed, plus bias (out) or NONE. x and weight are fp8, not both
 * E5M2, with one scale each, or both PER_1X32, or of the other two not both PER_128X128. R, in and out are multiples of
 * 16, or of 128 unless scales are PER_TENSOR.
 */
#ifndef FP8_H
#define FP8_H

#include <string.h>

#include "../common/transformer/kernels.h"

#ifdef __CUDACC__
#define HOST_AND_DEVICE __host__ __device__
#else
#define HOST_AND_DEVICE
#endif

/* Whether the device multiplies matrices with such scales. */
bool fp8_supports(Scaling scaling);
void quantize(Tensor out /* (R, W) or NONE */, Tensor transposed /* (W, R) or NONE */, Tensor x /* (R, W) */);
void linear_fp8(Tensor out, Tensor x, Tensor weight, Tensor bias);
void linear_fp8_add(Tensor out /* +=, a parameter's gradient: REAL or BF16 */, Tensor x, Tensor weight);

/* ---- scales, in the order in which cuBLASLt reads them (sections "128-element 1D and 128x128 2D Block Scaling" and
 * "1D Block Scaling Factors Layout" of its documentation) ---- */

/* Returns the place of the scale of element (row, column): in floats, with PER_1X32 in bytes. */
HOST_AND_DEVICE static inline int64_t scale_place(Scaling scaling, int64_t rows, int64_t width, int64_t row,
                                                  int64_t column)
{
    switch (scaling) {
    case PER_1X128:                         /* a column of tiles after the other */
        return column / 128 * rows + row;
    case PER_128X128:                       /* a row of tiles after the other, each padded to a multiple of 4 */
        return row / 128 * ((width / 128 + 3) / 4 * 4) + column / 128;
    case PER_1X32:                          /* 128 rows x 4 scales together: rows 0, 32, 64, 96, then 1, 33, 65, 97 */
        return (row / 128 * (width / 128) + column / 128) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column / 32 % 4;
    default:
        return 0;
    }
}

/* Returns the scale of numbers of which the largest magnitude is amax. If that is NaN or Inf, so is the scale: as a
 * number NaN, as a byte 255. No scale is below 2^-126, so 1 / scale is finite. */
HOST_AND_DEVICE static inline float scale_for(float amax, float largest, Scaling scaling)
{
    float scale = amax == 0 ? 1 : amax / largest + (amax - amax);
    uint32_t bits;

    if (scale < 0x1p-126f)
        scale = 0x1p-126f;
    if (scaling == PER_1X32) {
        memcpy(&bits, &scale, sizeof bits);
        bits &= 0x7fffffff;
        bits = bits > 0x7f800000 ? 0x7f800000 : (bits + 0x7fffff) & 0x7f800000;     /* the exponent, rounded up */
        bits = bits ? bits : 1 << 23;
        memcpy(&scale, &bits, sizeof scale);
    }
    return scale;
}

HOST_AND_DEVICE static inline void scale_store(float *scales, int64_t place, float scale, Scaling scaling)
{
    uint32_t bits;

    memcpy(&bits, &scale, sizeof bits);
    if (scaling == PER_1X32)
        ((uint8_t *)scales)[place] = bits >> 23;
    else
        scales[place] = scale;
}

/* ---- what a backend provides, in fp8_cpu.c or fp8_cuda.cu; only fp8.c calls the kernels ---- */
__typeof__(quantize) quantize_kernel;
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add);
#endif
