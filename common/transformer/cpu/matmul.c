/* Linear layers on the CPU, by OpenBLAS. loops.c describes the order of sums. */
#include "kernel_cpu.h"

#include <string.h>

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

void linear_product(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, real alpha)
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
    linear_product(out, x, weight, bias, false, 1);
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
