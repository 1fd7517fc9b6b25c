#include "tensors.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/base/random.h"
#include "harness.h"

enum { GUARD = 64, MOST = 128 };        /* elements on either side; tensors at a time */

static struct {
    Tensor full;                        /* the tensor with its guards */
    int64_t first, end;                 /* the tensor's bytes in it */
} created[MOST];
static int created_count;
static double *arrays[MOST];
static int array_count;
int guarded_shift;

/* Exists on the simulated GPU only, which checks each access. */
void simulated_forbid(const void *data, int64_t bytes, bool forbidden) __attribute__((weak));

static void forbid_guards(int i, bool forbidden)
{
    char *data = created[i].full.data;

    if (simulated_forbid) {
        simulated_forbid(data, created[i].first, forbidden);
        simulated_forbid(data + created[i].end, tensor_bytes(created[i].full) - created[i].end, forbidden);
    }
}

Tensor guarded(DType dtype, const char *name, Shape s)
{
    int64_t count = 1;

    for (int i = 0; i < s.dims; i++)
        count *= s.n[i];
    const Tensor full = tensor_create(MEM_WORKSPACE, dtype, name, shape(count + 2 * GUARD));
    const int64_t before = GUARD + guarded_shift, size = dtype_size(dtype);
    void *ones = memset(malloc(tensor_bytes(full)), 0xff, tensor_bytes(full));
    device_upload(full.data, ones, tensor_bytes(full));
    free(ones);
    assert_true(created_count < MOST);
    created[created_count].full = full;
    created[created_count].first = before * size, created[created_count].end = (before + count) * size;
    forbid_guards(created_count++, true);
    return tensor_view(tensor_range(full, before, count), s);
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

Tensor random_like(Tensor t)
{
    real *x = malloc(tensor_count(t) * sizeof *x);

    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = random_number();
    tensor_from_host(t, x);
    free(x);
    return t;
}

Tensor filled(const char *name, Shape s)
{
    return random_like(empty(name, s));
}

Tensor ids_below(const char *name, int64_t count, int64_t limit)
{
    const Tensor t = guarded(I32, name, shape(count));
    int32_t *ids = malloc(4 * count);

    for (int64_t i = 0; i < count; i++)
        ids[i] = i % 4 == 1 ? -1 : (int32_t)((uint64_t)fabs(1e6 * random_number()) % limit);
    device_upload(t.data, ids, 4 * count);
    free(ids);
    return t;
}

double *zeros(int64_t count)
{
    assert_true(array_count < MOST);
    return arrays[array_count++] = calloc(count + 1, sizeof(double));
}

double *numbers(Tensor t)
{
    double *x = zeros(tensor_count(t));
    real *elements = malloc(tensor_count(t) * sizeof *elements);

    tensor_to_host(elements, t);
    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = elements[i];
    free(elements);
    return x;
}

void assert_near(Tensor t, const double *expected, double most)
{
    const double *x = numbers(t);
    double largest = FLT_MIN;                   /* below, a float may be 0 */

    for (int64_t i = 0; i < tensor_count(t); i++)
        largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < tensor_count(t); i++)
        if (!(fabs(x[i] - expected[i]) <= most * largest))
            fail_msg("%s: element %lld is %.17g, not %.17g", tensor_describe(t), (long long)i, x[i], expected[i]);
    free(arrays[--array_count]);
}

void guarded_release(void)
{
    for (int i = 0; i < created_count; i++) {
        const int64_t bytes = tensor_bytes(created[i].full);
        unsigned char *x = malloc(bytes);
        forbid_guards(i, false);
        device_download(x, created[i].full.data, bytes);
        for (int64_t k = 0; k < bytes; k++)
            if ((k < created[i].first || k >= created[i].end) && x[k] != 0xff)
                fail_msg("an element outside of %s was written", created[i].full.name);
        free(x);
        tensor_free(&created[i].full, MEM_WORKSPACE);
    }
    while (array_count)
        free(arrays[--array_count]);
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
