/* Conversions between float and the 16-bit formats, by NVIDIA's own headers. A table makes those from fp16 fast. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

static inline float float_of_bfloat(uint16_t x)                 /* the upper half of a float */
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t bfloat_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline float float_of_half(uint16_t x)
{
    struct Table {
        float of[1 << 16];

        Table()
        {
            for (int bits = 0; bits < 1 << 16; bits++) {
                const uint16_t h = bits;
                __half half;
                memcpy((void *)&half, &h, sizeof h);
                of[bits] = __half2float(half);
            }
        }
    };
    static const Table table;

    return table.of[x];
}

static inline uint16_t half_of(float x)
{
    const __half half = __float2half_rn(x);
    uint16_t bits;

    memcpy(&bits, (const void *)&half, sizeof bits);
    return bits;
}

#endif
