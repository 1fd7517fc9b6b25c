/* The small formats in which tensors may be stored (playbook: "Mixed Precision Training"), emulated in the host's
 * arithmetic; a GPU has instructions for them.
 *
 *            sign exponent mantissa    largest   smallest normal   next to 1    beyond the largest
 *   F32        1      8       23       3.4e38        1.2e-38        1.2e-7      Inf
 *   BF16       1      8        7       3.4e38        1.2e-38        7.8e-3      Inf
 *   F16        1      5       10       65504         6.1e-5         9.8e-4      Inf
 *   E4M3       1      4        3       448           1.6e-2         0.125       448; it has no Inf, and one NaN
 *   E5M2       1      5        2       57344         6.1e-5         0.25        57344
 *
 * Numbers are rounded to the nearest in the format, ties to even, subnormals included; NaN stays NaN. F16: IEEE 754;
 * E4M3 and E5M2: Micikevicius et al. 2022, with saturation. */
#ifndef FORMATS_H
#define FORMATS_H

#include <stdint.h>
#include <string.h>

#include "tensor.h"

/* Convert `count` numbers between reals and a dtype's storage: REAL or a small format. The caller applies fp8
 * scales. */
void formats_read(real *to, const void *from, DType dtype, int64_t count);
void formats_write(void *to, const real *from, DType dtype, int64_t count);

/* Copy a full tensor between the device and reals on the host. */
void tensor_to_host(real *to, Tensor t);
void tensor_from_host(Tensor t, const real *from);

double format_largest(DType dtype);             /* the largest finite number */

/* ---- conversions of single numbers, without branches, so that the compiler vectorizes loops over them ---- */

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns a float that rounds to any smaller format exactly as the real would: its last bit records whether anything
 * was cut off ("round to odd", Boldo & Melquiond 2005). Rounding to nearest twice could create a tie that is none. */
static inline float float_for_rounding(real x)
{
    const float near = (float)x;
#ifdef REAL64
    uint32_t bits = bits_of_float(near);
    if ((near < 0 ? -(double)near : (double)near) > (x < 0 ? -x : x))
        bits--;                                 /* toward zero */
    if (float_of_bits(bits) != x && x == x)
        bits |= 1;
    return float_of_bits(bits);
#else
    return near;
#endif
}

/* Encodes a number in a format with that many bits of exponent and mantissa. Codes above `largest` become `beyond`. */
static inline uint32_t format_encode(real x, int exponent, int mantissa, uint32_t largest, uint32_t beyond,
                                     uint32_t nan)
{
    const int cut = 23 - mantissa, bias = (1 << (exponent - 1)) - 1;
    const uint32_t all = bits_of_float(float_for_rounding(x)), sign = all >> 31, bits = all & 0x7fffffff;
    /* normal: add just less than half of the last bit that stays, or half if that bit is odd; then cut off the rest of
     * the mantissa. A carry into the exponent is correct. */
    const uint32_t normal = (bits - ((uint32_t)(127 - bias) << 23) + (1u << (cut - 1)) - 1 + (bits >> cut & 1)) >> cut;
    /* subnormal: a multiple of 2^(1 - bias - mantissa). Adding a float whose last bit has that value rounds to it. */
    const uint32_t beside = (uint32_t)(127 + 1 - bias + cut) << 23;
    const uint32_t subnormal = bits_of_float(float_of_bits(bits) + float_of_bits(beside)) - beside;
    uint32_t out = bits < (uint32_t)(127 + 1 - bias) << 23 ? subnormal : normal;

    out = out > largest ? beyond : out;
    out = bits > 0x7f800000 ? nan : out;
    return out | sign << (exponent + mantissa);
}

/* Decodes a number of such a format. Codes above `largest` are Inf if the mantissa is 0, else NaN. */
static inline float format_decode(uint32_t all, int exponent, int mantissa, uint32_t largest)
{
    const int cut = 23 - mantissa, bias = (1 << (exponent - 1)) - 1;
    const uint32_t sign = all >> (exponent + mantissa) << 31, bits = all & ((1u << (exponent + mantissa)) - 1);
    const float normal = float_of_bits((bits << cut) + ((uint32_t)(127 - bias) << 23));
    const float subnormal = (float)(int32_t)bits * float_of_bits((uint32_t)(127 + 1 - bias - mantissa) << 23);
    const float special = float_of_bits((bits << cut) | 0x7f800000);

    return float_of_bits(bits_of_float(bits > largest ? special : bits >> mantissa ? normal : subnormal) | sign);
}

/* BF16 is the upper half of a float. */
static inline float float_of_bf16(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}

static inline uint16_t bf16_of(real x)
{
    return (uint16_t)format_encode(x, 8, 7, 0x7f7f, 0x7f80, 0x7fc0);
}

/* float_of_f16 and f16_of, and so on. */
#define FORMAT(name, type, exponent, mantissa, largest, beyond, nan) \
    static inline float float_of_##name(type x) \
    { \
        return format_decode(x, exponent, mantissa, largest); \
    } \
    static inline type name##_of(real x) \
    { \
        return (type)format_encode(x, exponent, mantissa, largest, beyond, nan); \
    }
FORMAT(f16, uint16_t, 5, 10, 0x7bff, 0x7c00, 0x7e00)
FORMAT(e4m3, uint8_t, 4, 3, 0x7e, 0x7e, 0x7f)
FORMAT(e5m2, uint8_t, 5, 2, 0x7b, 0x7b, 0x7f)

#endif
