#include "fp8.h"

#include <math.h>
#include <string.h>

#include "../common/transformer/cpu/kernel_cpu.h"

bool fp8_supports(Scaling scaling)
{
    (void)scaling;              /* all are emulated */
    return true;
}

enum { STRIP = 128 };           /* rows of a copy that are quantized together: as many as a tile has */

/* Returns the largest magnitude of n numbers; NaN if there is NaN or Inf. */
static real magnitude(const real *x, int64_t n)
{
    real most = 0, nan = 0;

#pragma omp simd reduction(max : most) reduction(+ : nan)
    for (int64_t j = 0; j < n; j++) {
        const real a = x[j] < 0 ? -x[j] : x[j];
        most = a > most ? a : most;
        nan += a * 0;
    }
    return most + nan;
}

static real larger(real a, real b)              /* NaN is larger than any number */
{
    return a > b || isnan(a) ? a : b;
}

/* Elements of a row that share a scale. */
static int64_t scaled_together(Tensor t)
{
    return t.scaling == PER_TENSOR ? tensor_width(t) : t.scaling == PER_1X32 ? 32 : 128;
}

static real scale_of(Tensor t, int64_t row, int64_t column)
{
    const int64_t place = scale_place(t.scaling, tensor_rows(t), tensor_width(t), row, column);

    return t.scaling == PER_1X32 ? float_of_bits(((uint8_t *)t.scale)[place] << 23) : t.scale[place];
}

/* Writes the scales of the copy's n rows from `first` on, whose numbers are x. */
static void scale_tiles(Tensor copy, int64_t first, int64_t n, const real *x)
{
    const int64_t rows = tensor_rows(copy), width = tensor_width(copy), columns = scaled_together(copy);
    const int64_t together = copy.scaling == PER_128X128 ? n : 1;

    for (int64_t i = 0; i < n; i += together)
        for (int64_t j = 0; j < width; j += columns) {
            real amax = 0;
            for (int64_t r = i; r < i + together; r++)
                amax = larger(amax, magnitude(x + r * width + j, columns));
            scale_store(copy.scale, scale_place(copy.scaling, rows, width, first + i, j),
                        scale_for(amax, format_largest(copy.dtype), copy.scaling), copy.scaling);
        }
}

/* Reads n columns of x as rows. More than a few at a time would be written to too many places for a cache. */
static void load_transposed(real *to, Tensor x, int64_t first, int64_t n)
{
    enum { COLUMNS = 16 };
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    for (int64_t j = 0; j < n; j += COLUMNS) {
        const int64_t columns = n - j < COLUMNS ? n - j : COLUMNS;
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width + first + j, columns, 0);
            for (int64_t k = 0; k < columns; k++)
                to[(j + k) * rows + i] = in[k];
        }
    }
}

/* Writes the copy, and its scales if it has tiles. */
static void quantize_copy(Tensor copy, Tensor x, bool transposed)
{
    const int64_t rows = tensor_rows(copy), width = tensor_width(copy), together = scaled_together(copy);

#pragma omp parallel for
    for (int64_t first = 0; first < rows; first += STRIP) {
        const int64_t n = rows - first < STRIP ? rows - first : STRIP;
        real *o = scratch(1, STRIP * width);
        if (transposed)
            load_transposed(o, x, first, n);
        else
            memcpy(o, load(x, first * width, n * width, 0), n * width * sizeof(real));
        if (copy.scaling != PER_TENSOR)
            scale_tiles(copy, first, n, o);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < width; j += together) {
                const real s = scale_of(copy, first + i, j);
                for (int64_t k = j; k < j + together; k++)
                    o[i * width + k] /= s;
            }
            formats_write(element(copy, (first + i) * width), o + i * width, copy.dtype, width);
        }
    }
}

void quantize_kernel(Tensor out, Tensor transposed, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const Tensor copy = out.data ? out : transposed;

    if (copy.scaling == PER_TENSOR) {
        real amax = 0;
        for (int64_t i = 0; i < rows; i++)
            amax = larger(amax, magnitude(load(x, i * width, width, 0), width));
        *copy.scale = scale_for(amax, format_largest(copy.dtype), PER_TENSOR);
    }
    if (out.data)
        quantize_copy(out, x, false);
    if (transposed.data)
        quantize_copy(transposed, x, true);
}

/* Returns the matrix times its scales, in scratch memory `number`. */
static Tensor dequantized(Tensor t, int number)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t), together = scaled_together(t);
    const Tensor reals = {scratch(number, rows * width), t.name, REAL, 2, {rows, width}};

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        real *o = (real *)reals.data + i * width;
        formats_read(o, element(t, i * width), t.dtype, width);
        for (int64_t j = 0; j < width; j += together) {
            const real s = scale_of(t, i, j);
            for (int64_t k = j; k < j + together; k++)
                o[k] *= s;
        }
    }
    return reals;
}

/* Products of two fp8 numbers are exact in float. One scale per tensor is multiplied in at the end, as on a GPU. A GPU
 * multiplies the sum over a tile by the tiles' scales; here they are multiplied in before, which is as exact. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    if (x.scaling == PER_TENSOR)
        linear_product(out, x, weight, bias, add, (real)*x.scale * *weight.scale);
    else
        linear_product(out, dequantized(x, 0), dequantized(weight, 1), bias, add, 1);
}
