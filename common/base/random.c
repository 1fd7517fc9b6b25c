#include "random.h"

#include <math.h>

Philox philox(uint64_t key, uint64_t counter_high, uint64_t counter_low)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (Philox){{c0, c1, c2, c3}};
}

static Philox of_stream(uint64_t seed, int stream, uint64_t i, uint64_t j)
{
    return philox(seed, (uint64_t)stream << 56 | i, j);
}

/* Returns the middle of one of 2^52 equal intervals of (0, 1): never 0, never 1. */
static double uniform(uint32_t low, uint32_t high)
{
    return ((double)(((uint64_t)high << 32 | low) >> 12) + 0.5) * 0x1p-52;
}

uint64_t random_bits(uint64_t seed, int stream, uint64_t i, uint64_t j)
{
    const Philox p = of_stream(seed, stream, i, j);

    return (uint64_t)p.word[1] << 32 | p.word[0];
}

double random_uniform(uint64_t seed, int stream, uint64_t i, uint64_t j)
{
    const Philox p = of_stream(seed, stream, i, j);

    return uniform(p.word[0], p.word[1]);
}

double random_normal(uint64_t seed, int stream, uint64_t i, uint64_t j)
{
    const Philox p = of_stream(seed, stream, i, j / 2);
    const double radius = sqrt(-2 * log(uniform(p.word[0], p.word[1])));
    const double angle = 6.283185307179586 * uniform(p.word[2], p.word[3]);

    return radius * (j % 2 ? sin(angle) : cos(angle));
}
