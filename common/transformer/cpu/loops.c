/* The kernels on the CPU. Matmuls use OpenBLAS. The rest are loops that OpenMP spreads over threads and the compiler
 * vectorizes.
 *
 * Two runs with the same number of threads are equal bit for bit. The order of every sum depends only on the sizes, and
 * OpenBLAS's also on the number of threads: threads split rows or columns, or a fixed number of partial sums, which are
 * added in order. ("omp simd reduction" keeps partial sums in the lanes of a vector, always the same ones; "omp
 * parallel reduction" would combine threads in the order in which they finish.)
 *
 * kernel_cpu.h has the access to elements. Matmuls are in matmul.c, attention in attention.c. */
#include "kernel_cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../base/error.h"

/* Flat tensors are processed in pieces of this many elements. */
enum { AT_ONCE = 4096 };

static int64_t piece(int64_t first, int64_t count)
{
    return count - first < AT_ONCE ? count - first : AT_ONCE;
}

/* Computes each element c[i] of `out` as `value`, an expression of the elements a[i] of x and b[i] of y. y may be NONE,
 * and out may be x or y. */
#define EACH_ELEMENT(out, x, y, value) \
    _Pragma("omp parallel for") \
    for (int64_t first = 0; first < tensor_count(out); first += AT_ONCE) { \
        const int64_t n = piece(first, tensor_count(out)); \
        const real *a = load(x, first, n, 0), *b = (y).data ? load(y, first, n, 1) : a; \
        real *c = staging(out, first, n, 2); \
        _Pragma("omp simd") \
        for (int64_t i = 0; i < n; i++) \
            c[i] = value; \
        (void)b; \
        store(out, first, n, c); \
    }

/* ---- embedding ---- */

void embedding_forward_kernel(Tensor out, Tensor ids, Tensor weight)
{
    const int64_t rows = tensor_count(ids), bytes = tensor_width(out) * dtype_size(out.dtype);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const int32_t id = ids_of(ids)[i];
        if (id < 0)
            memset((char *)out.data + i * bytes, 0, bytes);
        else
            memcpy((char *)out.data + i * bytes, (char *)weight.data + id * bytes, bytes);
    }
}

void embedding_backward_kernel(Tensor d_weight, Tensor d_out, Tensor ids)
{
    const int64_t rows = tensor_count(ids), width = tensor_width(d_out), vocabulary = tensor_rows(d_weight);
    int64_t *first = host_alloc((vocabulary + rows) * sizeof *first, "the rows of each token");
    int64_t *next = first + vocabulary;

    /* a linked list of each id's rows, in order (-1 ends it), so that an id's gradient is summed first and rounded
     * once */
    memset(first, 0xff, vocabulary * sizeof *first);
    for (int64_t i = rows - 1; i >= 0; i--)
        if (ids_of(ids)[i] >= 0) {
            next[i] = first[ids_of(ids)[i]];
            first[ids_of(ids)[i]] = i;
        }
#pragma omp parallel
    {
        const Range c = columns_of_thread(width);
        for (int64_t id = 0; id < vocabulary; id++) {
            if (first[id] < 0)
                continue;
            real *d_w = update(d_weight, id * width + c.first, c.count, 0);
            for (int64_t i = first[id]; i >= 0; i = next[i]) {
                const real *d_o = load(d_out, i * width + c.first, c.count, 1);
                for (int64_t j = 0; j < c.count; j++)
                    d_w[j] += d_o[j];
            }
            store(d_weight, id * width + c.first, c.count, d_w);
        }
    }
    free(first);
}

/* ---- LayerNorm ---- */

void layernorm_forward_kernel(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *w = load(weight, 0, width, 0), *b = load(bias, 0, width, 1);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 2);
        real *o = staging(out, i * width, width, 3), squares = 0;
        double sum = 0;                         /* in double: among equal numbers a small error of the mean counts */
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++)
            sum += in[j];
        const real mean = sum / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < width; j++)
            squares += (in[j] - mean) * (in[j] - mean);
        const real rstd = 1 / (real)sqrt(squares / width + (real)1e-5);
        for (int64_t j = 0; j < width; j++)
            o[j] = (in[j] - mean) * rstd * w[j] + b[j];
        store(out, i * width, width, o);
        row(stats, i)[0] = mean;
        row(stats, i)[1] = rstd;
    }
}

/* With n = (x - mean) * rstd and g = d_out * weight: d_x += rstd * (g - mean(g) - n * mean(g * n)). */
void layernorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                               Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *w = load(weight, 0, width, 0);

#pragma omp parallel
    {
#pragma omp for
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width, width, 1), *d_o = load(d_out, i * width, width, 2);
            const real mean = row(stats, i)[0], rstd = row(stats, i)[1];
            real *d_in = update(d_x, i * width, width, 3), sum = 0, sum_n = 0;
#pragma omp simd reduction(+ : sum, sum_n)
            for (int64_t j = 0; j < width; j++) {
                sum += d_o[j] * w[j];
                sum_n += d_o[j] * w[j] * (in[j] - mean) * rstd;
            }
            for (int64_t j = 0; j < width; j++)
                d_in[j] += rstd * (d_o[j] * w[j] - sum / width - (in[j] - mean) * rstd * (sum_n / width));
            store(d_x, i * width, width, d_in);
        }
        const Range c = columns_of_thread(width);
        real *d_w = update(d_weight, c.first, c.count, 2), *d_b = update(d_bias, c.first, c.count, 3);
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width + c.first, c.count, 0);
            const real *d_o = load(d_out, i * width + c.first, c.count, 1);
            const real mean = row(stats, i)[0], rstd = row(stats, i)[1];
            for (int64_t j = 0; j < c.count; j++) {
                d_w[j] += d_o[j] * (in[j] - mean) * rstd;
                d_b[j] += d_o[j];
            }
        }
        store(d_weight, c.first, c.count, d_w);
        store(d_bias, c.first, c.count, d_b);
    }
}

/* ---- rotary positions ---- */

void rope_kernel(Tensor qkv, Tensor rope, bool back)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(qkv), T = rope.shape[0], D = tensor_width(rope);
    const int64_t heads = width / (3 * D);
    const real direction = back ? -1 : 1;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *angles = row(rope, i % T);
        real *turned = update(qkv, i * width, width, 0);
        for (int64_t head = 0; head < heads; head++) {
            rotate(turned + 3 * head * D, angles, D, direction);            /* q */
            rotate(turned + (3 * head + 1) * D, angles, D, direction);      /* k; v has no position */
        }
        store(qkv, i * width, width, turned);
    }
}

/* ---- GELU ---- */

void gelu_forward_kernel(Tensor out, Tensor x)
{
    EACH_ELEMENT(out, x, NONE, gelu(a[i]));
}

void gelu_backward_kernel(Tensor d_x, Tensor d_out, Tensor x)
{
    EACH_ELEMENT(d_x, d_out, x, a[i] * gelu_slope(b[i]));
}

/* ---- residual ---- */

void residual_forward_kernel(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *b = bias.data ? load(bias, 0, width, 0) : NULL;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 1), *add = load(branch, i * width, width, 2);
        real *o = staging(out, i * width, width, 3);
        for (int64_t j = 0; j < width; j++)
            o[j] = in[j] + add[j] + (b ? b[j] : 0);
        store(out, i * width, width, o);
    }
}

/* ---- cross-entropy ---- */

void cross_entropy_forward_kernel(Tensor loss, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);
    real *log_sum = lse.data, *losses = scratch(4, rows);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(logits, i * width, width, 0), max = largest_of(in, width);
        const real log_of_sum = log(exp_sum(in, width, max));
        const int32_t target = ids_of(targets)[i];
        log_sum[i] = max + log_of_sum;
        losses[i] = max - (target < 0 ? 0 : in[target]) + log_of_sum;   /* in this order: max, in[] may be large */
    }
    double total = 0;
    for (int64_t i = 0; i < rows; i++)
        total += losses[i];
    *(double *)loss.data += scale * total;
}

void cross_entropy_backward_kernel(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(logits, i * width, width, 0), log_sum = row(lse, 0)[i];
        const int32_t target = ids_of(targets)[i];
        const real s = scale;
        real *d = staging(d_logits, i * width, width, 1);
#pragma omp simd                                    /* safe although d may alias the row */
        for (int64_t j = 0; j < width; j++)
            d[j] = s * real_exp(in[j] - log_sum);
        if (target >= 0)
            d[target] -= s;
        store(d_logits, i * width, width, d);
    }
}

/* ---- for the optimizer ---- */

void adamw_update_kernel(Tensor params, Tensor copy, Tensor m, Tensor v, Tensor gradients, AdamWArguments a)
{
    const int64_t count = tensor_count(params);
    const real beta1 = a.beta1, beta2 = a.beta2, eps = a.eps;
    const real rate = a.lr / a.correction1, root = 1 / sqrt(a.correction2);
    const real decay = a.lr * a.weight_decay;   /* not 1 - decay, which would round off decay's digits */
    const real scale = a.scale.data ? *(double *)a.scale.data : a.gradient_scale;

    if (isnan(scale))
        return;

#pragma omp parallel for
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        const int64_t n = piece(first, count);
        const real *gradient = load(gradients, first, n, 0);
        real *param = update(params, first, n, 1), *mean = (real *)m.data + first, *square = (real *)v.data + first;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const real g = gradient[i] * scale;
            mean[i] = beta1 * mean[i] + (1 - beta1) * g;
            square[i] = beta2 * square[i] + (1 - beta2) * g * g;
            param[i] -= decay * param[i] + rate * mean[i] / ((real)sqrt(square[i]) * root + eps);
        }
        store(params, first, n, param);
        if (copy.data)
            formats_write(element(copy, first), param, copy.dtype, n);
    }
}

static double squares(const real *x, int64_t count)
{
    double sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

void square_sum_into_kernel(Tensor total, const Tensor *list, int count)
{
    enum { PARTS = 64 };                        /* partial sums: fixed, so that threads do not change the sum's order */
    double part[PARTS], sum = 0;

    for (int k = 0; k < count; k++) {
#pragma omp parallel for
        for (int p = 0; p < PARTS; p++) {
            const Range r = range_split(tensor_count(list[k]), p, PARTS);
            part[p] = 0;
            for (int64_t first = 0; first < r.count; first += AT_ONCE) {
                const int64_t n = piece(first, r.count);
                part[p] += squares(load(list[k], r.first + first, n, 0), n);
            }
        }
        for (int p = 0; p < PARTS; p++)
            sum += part[p];
    }
    *(double *)total.data = sum;
}

void tensor_convert_kernel(Tensor to, Tensor from)
{
    const int64_t count = tensor_count(to);

#pragma omp parallel for
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        const int64_t n = piece(first, count);
        formats_write(element(to, first), load(from, first, n, 0), to.dtype, n);
    }
}

/* ---- plain memory ---- */

void tensor_scale_kernel(Tensor t, double factor)
{
    const real f = factor;

    EACH_ELEMENT(t, t, NONE, a[i] * f);
}

void tensor_add_kernel(Tensor to, Tensor from)
{
    EACH_ELEMENT(to, to, from, a[i] + b[i]);
}
