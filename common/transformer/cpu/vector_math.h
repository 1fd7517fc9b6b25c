/* exp for loops that the compiler vectorizes. gcc vectorizes libm's exp only under -ffast-math, which also removes
 * checks for NaN. No branches, no tables. Relative error below 4 units in the last place if the result is a normal
 * number; 0 below that, Inf above, NaN for NaN. */
#ifndef VECTOR_MATH_H
#define VECTOR_MATH_H

#include <math.h>
#include <stdint.h>

#include "../../base/tensor.h"

/* exp(x) = 2^n * exp(r) with n = round(x / ln 2), so that |r| <= ln(2) / 2, where the Taylor series is short. ln 2 is
 * subtracted in two pieces, the first with so few bits that n times it is exact. 2^n is written into the exponent bits
 * as two factors, because n may exceed what one exponent can hold. */
#ifdef REAL64
typedef int64_t real_bits;
#define EXP_MAX 709.8
#define EXP_MIN -708.4
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define MANTISSA 52
#define EXPONENT_BIAS 1023
#define TERMS 13
#else
typedef int32_t real_bits;
#define EXP_MAX 88.8f
#define EXP_MIN -87.34f
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f
#define MANTISSA 23
#define EXPONENT_BIAS 127
#define TERMS 7
#endif

static inline real power_of_two(real n)
{
    /* adding 1.5 * 2^MANTISSA puts an integer into the lowest bits of a number */
    const real magic = EXPONENT_BIAS + (real)3 * ((real_bits)1 << (MANTISSA - 1));
    union { real value; real_bits bits; } x = {.value = n + magic};

    x.bits = (real_bits)((uint64_t)x.bits << MANTISSA);
    return x.value;
}

static inline real real_exp(real x)
{
    static const real inverse_factorial[] = {1, 1, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
                                             1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800,
                                             1.0 / 479001600, 1.0 / 6227020800};
    const real low = x < (real)EXP_MIN ? (real)EXP_MIN : x, in = low > (real)EXP_MAX ? (real)EXP_MAX : low;
    const real n = (real)rint(in * (real)1.4426950408889634), half = (real)rint(n / 2);
    const real r = (in - n * (real)LN2_HIGH) - n * (real)LN2_LOW;
    real p = inverse_factorial[TERMS];

    for (int k = TERMS - 1; k >= 0; k--)
        p = p * r + inverse_factorial[k];
    p = p * power_of_two(half) * power_of_two(n - half);
    return x < (real)EXP_MIN ? 0 : p;           /* above EXP_MAX p is Inf already */
}

#endif
