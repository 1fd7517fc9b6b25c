#include "tensors.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/random.h"
#include "harness.h"

enum { GUARD = 32, MOST = 128 };        /* elements on either side; tensors at a time */

static Tensor created[MOST];               /* tensors with their guards */
static int created_count;

Tensor guarded(DType dtype, const char *name, Shape s)
{
    int64_t count = 1;

    for (int i = 0; i < s.dims; i++)
        count *= s.n[i];
    const Tensor full = tensor_create(MEM_WORKSPACE, dtype, name, shape(count + 2 * GUARD));
    memset(full.data, 0xff, tensor_bytes(full));
    assert_true(created_count < MOST);
    created[created_count++] = full;
    return tensor_view(tensor_range(full, GUARD, count), s);
}

Tensor guarded_copy(Tensor t)
{
    const Tensor c = guarded(t.dtype, t.name, (Shape){t.dims, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]}});

    memcpy(c.data, t.data, tensor_bytes(t));
    return c;
}

Tensor zeroed(DType dtype, const char *name, Shape s)
{
    const Tensor t = guarded(dtype, name, s);

    tensor_zero(t);
    return t;
}

Tensor seeded(DType dtype, DType as, const char *name, Shape s, double scale)
{
    const Tensor t = guarded(dtype, name, s), rounded = guarded(as, name, s);
    real *x = malloc(tensor_count(t) * sizeof *x);
    uint64_t seed = 0;

    for (const char *c = name; *c; c++)
        seed = seed * 31 + *c;
    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = scale * random_normal(seed, 7, 0, i);
    tensor_from_host(rounded, x);
    tensor_to_host(x, rounded);
    tensor_from_host(t, x);
    free(x);
    return t;
}

Tensor empty(const char *name, Shape s)
{
    return guarded(REAL, name, s);
}

real *data(Tensor t)
{
    return t.data;
}

Tensor filled(const char *name, Shape s)
{
    const Tensor t = empty(name, s);

    for (int64_t i = 0; i < tensor_count(t); i++)
        data(t)[i] = random_number();
    return t;
}

void assert_near(Tensor t, const double *expected, double most)
{
    double largest = FLT_MIN;                   /* below, a float may be 0 */

    for (int64_t i = 0; i < tensor_count(t); i++)
        largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < tensor_count(t); i++)
        if (!(fabs(data(t)[i] - expected[i]) <= most * largest))
            fail_msg("%s: element %lld is %.17g, not %.17g", tensor_describe(t), (long long)i, (double)data(t)[i],
                     expected[i]);
}

void guarded_release(void)
{
    for (int i = 0; i < created_count; i++) {
        const int64_t guard = GUARD * dtype_size(created[i].dtype), end = tensor_bytes(created[i]) - guard;
        const unsigned char *bytes = created[i].data;
        for (int64_t k = 0; k < guard; k++)
            if (bytes[k] != 0xff || bytes[end + k] != 0xff)
                fail_msg("an element outside of %s was written", created[i].name);
        tensor_free(&created[i], MEM_WORKSPACE);
    }
    created_count = 0;
}

enum { SEED = 881726454 };
static uint64_t state = SEED;

void random_again(void)
{
    state = SEED;
}

double random_number(void)
{
    double sum = 0;

    for (int i = 0; i < 2; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;        /* xorshift (Marsaglia 2003) */
        sum += (double)(state >> 11) * 0x1p-53 - 0.5;
    }
    return sum * sqrt(6);
}
