#include "tensor.h"

#include <string.h>

#include "error.h"
#include "print.h"

Range range_split(int64_t count, int r, int n)
{
    /* count * r / n, but divided first, so that large counts times ranks do not overflow */
    const int64_t quotient = count / n, rest = count % n;
    const int64_t first = quotient * r + rest * r / n, end = quotient * (r + 1) + rest * (r + 1) / n;

    return (Range){first, end - first};
}

Range range_split_last(int64_t count, double more, int r, int n)
{
    int64_t last = (count + n - 1) / n;

    while (n > 1 && last > 1 && (count - last) / (n - 1) + 1 < last + more)
        last--;                                 /* the longest other range, with one element more, costs less */
    return r == n - 1 ? (Range){count - last, last} : range_split(count - last, r, n - 1);
}

int64_t equal_share(int64_t count, int n, const char *what)
{
    if (count % n)
        fail("%s %lld is not divisible by %d ranks%s", what, (long long)count, n,
             count > 65536 ? "" : format_text("; use %s", divisors_text(count)));
    return count / n;
}

static int64_t shape_count(Shape s)
{
    int64_t n = 1;

    for (int i = 0; i < s.dims; i++)
        n *= s.n[i];
    return n;
}

Tensor tensor_view(Tensor t, Shape shape)
{
    if (shape_count(shape) != tensor_count(t))
        fail("tensor_view: %s: expected a shape with %lld elements, got one with %lld", tensor_describe(t),
             (long long)tensor_count(t), (long long)shape_count(shape));
    t.dims = shape.dims;
    memcpy(t.shape, shape.n, sizeof t.shape);
    return t;
}

Tensor tensor_range(Tensor t, int64_t first, int64_t count)
{
    if (t.dims < 1 || first < 0 || count < 0 || first + count > t.shape[0])
        fail("tensor_range: %s: rows %lld to %lld are outside of it", tensor_describe(t), (long long)first,
             (long long)(first + count));
    int64_t row = dtype_size(t.dtype);
    for (int i = 1; i < t.dims; i++)
        row *= t.shape[i];
    t.data = (char *)t.data + first * row;
    t.shape[0] = count;
    return t;
}

int64_t tensor_count(Tensor t)
{
    int64_t n = t.data ? 1 : 0;

    for (int i = 0; i < t.dims; i++)
        n *= t.shape[i];
    return n;
}

int64_t tensor_bytes(Tensor t)
{
    return tensor_count(t) * dtype_size(t.dtype);
}

int64_t tensor_rows(Tensor t)
{
    int64_t n = 1;

    for (int i = 0; i < t.dims - 1; i++)
        n *= t.shape[i];
    return n;
}

int64_t tensor_width(Tensor t)
{
    return t.dims ? t.shape[t.dims - 1] : 0;
}

int dtype_size(DType dtype)
{
    static const int size[] = {[F64] = 8, [F32] = 4, [BF16] = 2, [F16] = 2, [E4M3] = 1, [E5M2] = 1, [I32] = 4};

    return size[dtype];
}

const char *dtype_name(DType dtype)
{
    static const char *const name[] = {[F64] = "F64", [F32] = "F32", [BF16] = "BF16", [F16] = "F16",
                                       [E4M3] = "F8_E4M3", [E5M2] = "F8_E5M2", [I32] = "I32"};

    return name[dtype];
}

const char *tensor_describe(Tensor t)
{
    const char *text = format_text("%s is (", t.data || t.name ? t.name : "none");

    for (int i = 0; i < t.dims; i++)
        text = format_text("%s%s%lld", text, i ? ", " : "", (long long)t.shape[i]);
    return format_text("%s)", text);
}
