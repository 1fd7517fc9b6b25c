/* Linear layers on the CPU, by OpenBLAS, also in fp8. ops.c describes the order of sums. */
#include "kernel.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- linear ---- */

void column_sums_kernel(Tensor sum, Tensor t)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t);

#pragma omp parallel
    {
        const Range c = columns_of_thread(width);
        real *s = update(sum, c.first, c.count, 0);
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(t, i * width + c.first, c.count, 1);
            for (int64_t j = 0; j < c.count; j++)
                s[j] += in[j];
        }
        store(sum, c.first, c.count, s);
    }
}

/* Matrices of a small format are multiplied this many outputs at a time, so that scratch memory stays small. */
static int64_t outputs_at_once(Tensor t, int64_t outputs)
{
    return t.dtype == REAL ? outputs : 1024;
}

/* Computes out = alpha * x times weight transposed, plus bias, or plus out's current values. */
static void linear(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, real alpha)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);
    const int64_t at_once = outputs_at_once(weight, m);
    const Matrix in = load_matrix(x, 0, rows, k, k, 0);
    const real *b = bias.data ? load(bias, 0, m, 3) : NULL;

    for (int64_t first = 0; first < m; first += at_once) {
        const int64_t n = m - first < at_once ? m - first : at_once;
        const Matrix w = load_matrix(weight, first * k, n, k, k, 1);
        const Matrix o = add ? load_matrix(out, first, rows, n, m, 2) : staging_matrix(out, first, rows, n, m, 2);
        if (b) {
#pragma omp parallel for
            for (int64_t i = 0; i < rows; i++)
                memcpy(o.data + i * o.ld, b + first, n * sizeof(real));
        }
        matmul(false, true, rows, n, k, alpha, in, w, b || add ? 1 : 0, o);
        store_matrix(out, first, rows, n, m, o);
    }
}

void linear_forward_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    linear(out, x, weight, bias, false, 1);
}

void linear_backward_input_kernel(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int64_t rows = tensor_rows(d_out), k = tensor_width(d_x), m = tensor_width(d_out);
    const int64_t at_once = outputs_at_once(weight, m);
    const Matrix d_in = staging_matrix(d_x, 0, rows, k, k, 0);

    for (int64_t first = 0; first < m; first += at_once) {
        const int64_t n = m - first < at_once ? m - first : at_once;
        const Matrix w = load_matrix(weight, first * k, n, k, k, 1), d_o = load_matrix(d_out, first, rows, n, m, 2);
        matmul(false, false, rows, k, n, 1, d_o, w, first ? 1 : 0, d_in);
    }
    store_matrix(d_x, 0, rows, k, k, d_in);
}

void linear_backward_weight_kernel(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(d_out);
    const int64_t at_once = outputs_at_once(d_out, m);
    const Matrix in = load_matrix(x, 0, rows, k, k, 0);

    for (int64_t first = 0; first < m; first += at_once) {
        const int64_t n = m - first < at_once ? m - first : at_once;
        const Matrix d_w = load_matrix(d_weight, first * k, n, k, k, 1);
        matmul(true, false, n, k, rows, 1, load_matrix(d_out, first, rows, n, m, 2), in, 1, d_w);
        store_matrix(d_weight, first * k, n, k, k, d_w);
    }
    if (d_bias.data)
        column_sums_kernel(d_bias, d_out);
}

/* ---- linear in fp8 ---- */

void quantize_kernel(Tensor out, Tensor transposed, Tensor x)
{
    enum { COLUMNS = 16 };
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const DType dtype = out.data ? out.dtype : transposed.dtype;
    float *scale = out.data ? out.scale : transposed.scale;
    real amax = 0;

    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 0);
        real most = 0, nan = 0;                     /* nan: NaN if there is NaN or Inf, else 0 */
#pragma omp simd reduction(max : most) reduction(+ : nan)
        for (int64_t j = 0; j < width; j++) {
            const real a = in[j] < 0 ? -in[j] : in[j];
            most = a > most ? a : most;
            nan += a * 0;
        }
        amax = most > amax || nan != 0 ? most + nan : amax;
    }
    *scale = amax == 0 ? 1 : amax / (real)format_largest(dtype);
    const real s = *scale;
    if (out.data) {
#pragma omp parallel for
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width, width, 0);
            real *o = scratch(1, width);
            for (int64_t j = 0; j < width; j++)
                o[j] = in[j] / s;
            formats_write(element(out, i * width), o, dtype, width);
        }
    }
    if (transposed.data) {
#pragma omp parallel for
        for (int64_t first = 0; first < width; first += COLUMNS) {
            const int64_t n = width - first < COLUMNS ? width - first : COLUMNS;
            real *o = scratch(1, COLUMNS * rows);
            for (int64_t i = 0; i < rows; i++) {
                const real *in = load(x, i * width + first, n, 0);
                for (int64_t j = 0; j < n; j++)
                    o[j * rows + i] = in[j] / s;
            }
            for (int64_t j = 0; j < n; j++)
                formats_write(element(transposed, (first + j) * rows), o + j * rows, dtype, rows);
        }
    }
}

/* Products of two fp8 numbers are exact in float. The scales are multiplied in at the end, as on a GPU. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    linear(out, x, weight, bias, add, (real)*x.scale * *weight.scale);
}
