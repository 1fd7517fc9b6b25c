/* Numbers of the types that CUDA's libraries store, and of the 16-bit formats that kernels use. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <bit>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <library_types.h>
#include <stdint.h>
#include <vector>

#include "memory.h"

static inline float float_of_bfloat(uint16_t x)                 /* the upper half of a float */
{
    return std::bit_cast<float>((uint32_t)x << 16);
}

static inline uint16_t bfloat_of(float x)
{
    const uint32_t bits = std::bit_cast<uint32_t>(x);

    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline float float_of_half(uint16_t x)
{
    static const std::vector<float> table = [] {                /* for speed */
        std::vector<float> of;
        for (int bits = 0; bits < 1 << 16; bits++)
            of.push_back(__half2float(__half(__half_raw{(uint16_t)bits})));
        return of;
    }();

    return table[x];
}

static inline uint16_t half_of(float x)
{
    return __half_raw(__float2half_rn(x)).x;
}

static inline int size_of(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_64F:
        return 8;
    case CUDA_R_32F:
    case CUDA_R_32I:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    default:
        return 1;
    }
}

/* The i-th number of an array. */
static inline double get(const void *data, cudaDataType_t type, int64_t i)
{
    switch (type) {
    case CUDA_R_64F:
        return ((const double *)data)[i];
    case CUDA_R_32F:
        return ((const float *)data)[i];
    case CUDA_R_32I:
        return ((const int32_t *)data)[i];
    case CUDA_R_8U:
        return ((const uint8_t *)data)[i];
    case CUDA_R_16F:
        return float_of_half(((const uint16_t *)data)[i]);
    case CUDA_R_16BF:
        return float_of_bfloat(((const uint16_t *)data)[i]);
    case CUDA_R_8F_E4M3:
        return (float)((const __nv_fp8_e4m3 *)data)[i];
    case CUDA_R_8F_E5M2:
        return (float)((const __nv_fp8_e5m2 *)data)[i];
    default:
        simulated_error("numbers of type %d are not simulated", type);
    }
}

static inline void put(void *data, cudaDataType_t type, int64_t i, double x)
{
    if (type == CUDA_R_64F)
        ((double *)data)[i] = x;
    else if (type == CUDA_R_32F)
        ((float *)data)[i] = (float)x;
    else if (type == CUDA_R_32I)
        ((int32_t *)data)[i] = (int32_t)x;
    else if (type == CUDA_R_16F || type == CUDA_R_16BF)
        ((uint16_t *)data)[i] = type == CUDA_R_16F ? half_of((float)x) : bfloat_of((float)x);
    else
        simulated_error("results of type %d are not simulated", type);
}

#endif
