/* Functions that the CPU kernels share: access to a tensor's elements as reals, and BLAS's product.
 *
 * Kernels compute in real. If a tensor always stores reals, they use its elements directly: row(). If it may store a
 * small format (formats.h), they use load(), staging(), update() and store(). For reals these return pointers to the
 * tensor's own elements; otherwise they convert to and from scratch memory, and store() rounds each result once. So one
 * copy of each kernel serves all dtypes. */
#ifndef KERNEL_CPU_H
#define KERNEL_CPU_H

#include <cblas.h>
#include <omp.h>

#include "../../base/formats.h"
#include "../kernels.h"
#include "vector_math.h"

/* scratch.c: returns scratch memory for `count` reals, per thread and number (0 to 4). Its contents last until the next
 * call with that number. It is not tracked, like BLAS's own buffers and a GPU's scratch (device_cuda.h). */
real *scratch(int number, int64_t count);

static inline real *row(Tensor t, int64_t i)
{
    return (real *)t.data + i * tensor_width(t);
}

static inline const int32_t *ids_of(Tensor t)
{
    return t.data;
}

static inline char *element(Tensor t, int64_t first)
{
    return (char *)t.data + first * dtype_size(t.dtype);
}

/* Returns t's elements [first, first + count) as reals; conversions use scratch memory `number`. */
static inline const real *load(Tensor t, int64_t first, int64_t count, int number)
{
    if (t.dtype == REAL)
        return (const real *)t.data + first;
    real *to = scratch(number, count);
    formats_read(to, element(t, first), t.dtype, count);
    return to;
}

/* Returns where to compute the reals that store() then stores as those elements. */
static inline real *staging(Tensor t, int64_t first, int64_t count, int number)
{
    return t.dtype == REAL ? (real *)t.data + first : scratch(number, count);
}

/* As staging, but with the elements' current values, to add to them. */
static inline real *update(Tensor t, int64_t first, int64_t count, int number)
{
    return (real *)load(t, first, count, number);
}

static inline void store(Tensor t, int64_t first, int64_t count, const real *from)
{
    if (t.dtype != REAL)
        formats_write(element(t, first), from, t.dtype, count);
}

/* Rows of reals, `ld` elements apart. */
typedef struct {
    real *data;
    int64_t ld;
} Matrix;

/* The part of a matrix that starts at a row and column. */
static inline Matrix submatrix(Matrix m, int64_t row, int64_t column)
{
    m.data += row * m.ld + column;
    return m;
}

/* As load(), staging() and store(), for a matrix: rows of `width` elements from element `first` on, `ld` apart. */
static inline Matrix staging_matrix(Tensor t, int64_t first, int64_t rows, int64_t width, int64_t ld, int number)
{
    return t.dtype == REAL ? (Matrix){(real *)t.data + first, ld} : (Matrix){scratch(number, rows * width), width};
}

static inline Matrix load_matrix(Tensor t, int64_t first, int64_t rows, int64_t width, int64_t ld, int number)
{
    const Matrix m = staging_matrix(t, first, rows, width, ld, number);

    if (t.dtype != REAL) {
#pragma omp parallel for
        for (int64_t i = 0; i < rows; i++)
            formats_read(m.data + i * width, element(t, first + i * ld), t.dtype, width);
    }
    return m;
}

static inline void store_matrix(Tensor t, int64_t first, int64_t rows, int64_t width, int64_t ld, Matrix m)
{
    if (t.dtype == REAL)
        return;
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++)
        formats_write(element(t, first + i * ld), m.data + i * width, t.dtype, width);
}

/* Computes c (m, n) = alpha * a (m, k) times b (k, n), plus beta * c; a and b may be stored transposed. */
static inline void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, real alpha, Matrix a,
                          Matrix b, real beta, Matrix c)
{
#ifdef REAL64
    cblas_dgemm
#else
    cblas_sgemm
#endif
        (CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n, k,
         alpha, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
}

/* matmul.c: out = alpha * x times weight transposed, plus bias, or plus out's current values. */
void linear_product(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, real alpha);

/* Returns the largest of n numbers. */
static inline real largest_of(const real *x, int64_t n)
{
    real max = x[0];

#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < n; j++)
        max = x[j] > max ? x[j] : max;
    return max;
}

/* Returns the sum of exp(x - max). */
static inline real exp_sum(const real *x, int64_t n, real max)
{
    real sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += real_exp(x[j] - max);
    return sum;
}

/* Softmax in place over the first `seen` of n scores; the others, which are masked, become 0. Returns log sum
 * exp(scores). */
static inline real softmax(real *scores, int64_t seen, int64_t n)
{
    const real max = largest_of(scores, seen);
    real sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < seen; j++) {
        scores[j] = real_exp(scores[j] - max);
        sum += scores[j];
    }
    const real inverse = 1 / sum;
    for (int64_t j = 0; j < seen; j++)
        scores[j] *= inverse;
    for (int64_t j = seen; j < n; j++)
        scores[j] = 0;
    return max + (real)log(sum);
}

/* Softmax's backward pass, in place over the n keys that a query sees: turns d, the gradients of the probabilities p,
 * into the gradients of the products of q and k: scale * p * (d - sum(d * p)). */
static inline void softmax_backward(real *d, const real *p, int64_t n, real scale)
{
    real dot = 0;

#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < n; j++)
        dot += d[j] * p[j];
    for (int64_t j = 0; j < n; j++)
        d[j] = scale * p[j] * (d[j] - dot);
}

/* Rotates one head's D elements in place: pairs (j, j + D/2) by the angles whose D/2 cosines and D/2 sines stand in
 * `angles`; direction -1 rotates back. */
static inline void rotate(real *head, const real *angles, int64_t D, real direction)
{
    const int64_t half = D / 2;

#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        const real c = angles[j], s = direction * angles[half + j], a = head[j], b = head[half + j];
        head[j] = a * c - b * s;
        head[half + j] = b * c + a * s;
    }
}

/* GELU and its derivative. 1 + tanh(u) = 2 * sigmoid(2u), so GELU is x * sigmoid(2u): one exp, and no cancellation. */
static inline real gelu_sigmoid(real x)
{
    return 1 / (1 + real_exp((real)-1.5957691216057308 * (x + (real)0.044715 * x * x * x)));
}

static inline real gelu(real x)
{
    return x * gelu_sigmoid(x);
}

static inline real gelu_slope(real x)
{
    const real s = gelu_sigmoid(x), inner = (real)1.5957691216057308 * (1 + (real)(3 * 0.044715) * x * x);

    return s + x * s * (1 - s) * inner;
}

/* Returns this thread's columns: full cache lines of 16 floats, so that no two threads write to the same line. */
static inline Range columns_of_thread(int64_t width)
{
    const Range lines = range_split((width + 15) / 16, omp_get_thread_num(), omp_get_num_threads());
    const int64_t first = lines.first * 16, end = (lines.first + lines.count) * 16;

    return (Range){first, (end < width ? end : width) - first};
}

#endif
