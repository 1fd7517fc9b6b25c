/* Counter-based random numbers: a pure function of a key and a counter, so that any rank can compute any element of any
 * sequence alone. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

/* 128 random bits of this key and counter. */
typedef struct {
    uint32_t word[4];
} Philox;
Philox philox(uint64_t key, uint64_t counter_high, uint64_t counter_low);

/* Purposes: streams with different purposes never overlap. */
enum { STREAM_PARAMETERS = 0, STREAM_BATCHES = 1, STREAM_SAMPLING = 2 };

/* A 64-bit integer, and a number in (0, 1), of (seed, stream, i, j). i < 2^56. */
uint64_t random_bits(uint64_t seed, int stream, uint64_t i, uint64_t j);
double random_uniform(uint64_t seed, int stream, uint64_t i, uint64_t j);

/* Normal(0, 1), by Box and Muller: elements 2k and 2k + 1 share one Philox evaluation. */
double random_normal(uint64_t seed, int stream, uint64_t i, uint64_t j);

#endif
