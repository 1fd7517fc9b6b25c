/* The kernels on the CPU. Matmuls are OpenBLAS; the rest are loops that OpenMP spreads over threads and the compiler
 * over vector lanes.
 *
 * Every sum has an order that depends on the sizes alone, so that two runs are equal bit for bit: threads divide
 * rows or columns, never the terms of one sum. ("omp simd reduction" keeps partial sums in the lanes of a vector,
 * always the same ones; "omp parallel reduction" would combine threads as they happen to finish.)
 *
 * Kernels see a tensor through row(): the one place that knows how numbers are stored. They read a row, compute in
 * real, and write a row.
 */
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "ops_backend.h"
#include "vector_math.h"

static real *row(Tensor t, int64_t i)
{
    return (real *)t.data + i * tensor_width(t);
}

static const int32_t *ids_of(Tensor t)
{
    return t.data;
}

/* This thread's columns; whole cache lines of 16 floats, so that threads don't write to the same one. */
static Range columns_of_thread(int64_t width)
{
    const Range lines = range_part((width + 15) / 16, omp_get_thread_num(), omp_get_num_threads());
    const int64_t first = lines.first * 16, end = (lines.first + lines.count) * 16;

    return (Range){first, (end < width ? end : width) - first};
}

/* ---- embedding ---- */

void embedding_forward_kernel(Tensor out, Tensor ids, Tensor weight)
{
    const int64_t rows = tensor_count(ids), width = tensor_width(out);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const int32_t id = ids_of(ids)[i];
        if (id < 0)
            memset(row(out, i), 0, width * sizeof(real));
        else
            memcpy(row(out, i), row(weight, id), width * sizeof(real));
    }
}

void embedding_backward_kernel(Tensor d_weight, Tensor d_out, Tensor ids)
{
    const int64_t rows = tensor_count(ids), width = tensor_width(d_out);

    /* an id may come twice: each thread takes all rows of its own columns */
#pragma omp parallel
    {
        const Range c = columns_of_thread(width);
        for (int64_t i = 0; i < rows; i++) {
            const int32_t id = ids_of(ids)[i];
            if (id < 0)
                continue;
            real *d_w = row(d_weight, id) + c.first;
            const real *d_o = row(d_out, i) + c.first;
            for (int64_t j = 0; j < c.count; j++)
                d_w[j] += d_o[j];
        }
    }
}

/* ---- LayerNorm ---- */

void layernorm_forward_kernel(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *w = weight.data, *b = bias.data;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(x, i);
        real *o = row(out, i), sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++)
            sum += in[j];
        const real mean = sum / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < width; j++)
            squares += (in[j] - mean) * (in[j] - mean);
        const real inverse = 1 / (real)sqrt(squares / width + (real)1e-5);
        for (int64_t j = 0; j < width; j++)
            o[j] = (in[j] - mean) * inverse * w[j] + b[j];
        row(stats, i)[0] = mean;
        row(stats, i)[1] = inverse;
    }
}

/* With n = (x - mean) * inverse and g = d_out * weight: d_x = inverse * (g - mean(g) - n * mean(g * n)). */
void layernorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                               Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *w = weight.data;

#pragma omp parallel
    {
#pragma omp for
        for (int64_t i = 0; i < rows; i++) {
            const real *in = row(x, i), *d_o = row(d_out, i), mean = row(stats, i)[0], inverse = row(stats, i)[1];
            real *d_in = row(d_x, i), sum = 0, sum_n = 0;
#pragma omp simd reduction(+ : sum, sum_n)
            for (int64_t j = 0; j < width; j++) {
                sum += d_o[j] * w[j];
                sum_n += d_o[j] * w[j] * (in[j] - mean) * inverse;
            }
            for (int64_t j = 0; j < width; j++)
                d_in[j] += inverse * (d_o[j] * w[j] - sum / width - (in[j] - mean) * inverse * (sum_n / width));
        }
        const Range c = columns_of_thread(width);
        real *d_w = (real *)d_weight.data + c.first, *d_b = (real *)d_bias.data + c.first;
        for (int64_t i = 0; i < rows; i++) {
            const real *in = row(x, i) + c.first, *d_o = row(d_out, i) + c.first;
            const real mean = row(stats, i)[0], inverse = row(stats, i)[1];
            for (int64_t j = 0; j < c.count; j++) {
                d_w[j] += d_o[j] * (in[j] - mean) * inverse;
                d_b[j] += d_o[j];
            }
        }
    }
}

/* ---- linear ---- */

/* c (m, n) = alpha * a (m, k) times b (k, n), plus beta * c; a and b may be stored transposed; ld: the distance
 * between rows as stored. */
static void matmul(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
                   int64_t ld_a, const real *b, int64_t ld_b, real beta, real *c, int64_t ld_c)
{
#ifdef REAL64
    cblas_dgemm
#else
    cblas_sgemm
#endif
        (CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n, k,
         alpha, a, ld_a, b, ld_b, beta, c, ld_c);
}

/* sum (W) += the rows of t (R, W) */
static void column_sums(Tensor sum, Tensor t)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t);

#pragma omp parallel
    {
        const Range c = columns_of_thread(width);
        real *s = (real *)sum.data + c.first;
        for (int64_t i = 0; i < rows; i++) {
            const real *in = row(t, i) + c.first;
            for (int64_t j = 0; j < c.count; j++)
                s[j] += in[j];
        }
    }
}

void linear_forward_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);

    if (bias.data) {
#pragma omp parallel for
        for (int64_t i = 0; i < rows; i++)
            memcpy(row(out, i), bias.data, m * sizeof(real));
    }
    matmul(false, true, rows, m, k, 1, x.data, k, weight.data, k, bias.data ? 1 : 0, out.data, m);
}

void linear_backward_input_kernel(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int64_t rows = tensor_rows(d_out), k = tensor_width(d_x), m = tensor_width(d_out);

    matmul(false, false, rows, k, m, 1, d_out.data, m, weight.data, k, 0, d_x.data, k);
}

void linear_backward_weight_kernel(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(d_out);

    matmul(true, false, m, k, rows, 1, d_out.data, m, x.data, k, 1, d_weight.data, k);
    if (d_bias.data)
        column_sums(d_bias, d_out);
}

/* ---- rotary positions ---- */

void rope_kernel(Tensor qkv, Tensor rope, bool back)
{
    const int64_t rows = tensor_rows(qkv), T = rope.shape[0], D = tensor_width(rope);
    const int64_t heads = tensor_width(qkv) / (3 * D), half = D / 2;
    const real direction = back ? -1 : 1;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *cosine = row(rope, i % T), *sine = cosine + half;
        for (int64_t part = 0; part < 3 * heads; part++) {
            if (part % 3 == 2)                      /* v has no position */
                continue;
            real *x = row(qkv, i) + part * D, *y = x + half;
#pragma omp simd
            for (int64_t j = 0; j < half; j++) {
                const real c = cosine[j], s = direction * sine[j], a = x[j], b = y[j];
                x[j] = a * c - b * s;
                y[j] = b * c + a * s;
            }
        }
    }
}

/* ---- attention ---- */

/* Queries go in blocks of so many; a block's queries look at the keys up to its last one, and the blocks of keys
 * behind it, which the mask would empty, are not computed. */
enum { QUERIES = 64 };

/* One head of one sequence. Rows of q, k and v lie ld apart, those of out and its gradient ld_out. */
typedef struct {
    real *q, *k, *v, *out, *probs;
    int64_t ld, ld_out;
} Head;

static Head head_of(Tensor qkv, Tensor out, Tensor probs, int64_t b, int64_t a)
{
    const int64_t A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;
    real *q = row(qkv, 0) + (b * T * A + a) * 3 * D;

    return (Head){.q = q, .k = q + D, .v = q + 2 * D, .out = row(out, 0) + (b * T * A + a) * D,
                  .probs = row(probs, (b * A + a) * T), .ld = 3 * A * D, .ld_out = A * D};
}

/* In place over the first `seen` of n scores; the others, behind the mask, become 0. Returns log sum exp(scores). */
static real softmax(real *scores, int64_t seen, int64_t n)
{
    real max = scores[0], sum = 0;

#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < seen; j++)
        max = scores[j] > max ? scores[j] : max;
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

void attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const Head h = head_of(qkv, out, probs, b, a);
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                real *p = h.probs + first * T;
                matmul(false, true, n, keys, D, 1 / (real)sqrt(D), h.q + first * h.ld, h.ld, h.k, h.ld, 0, p, T);
                for (int64_t i = 0; i < n; i++)
                    softmax(p + i * T, first + i + 1, keys);
                matmul(false, false, n, D, keys, 1, p, T, h.v, h.ld, 0, h.out + first * h.ld_out, h.ld_out);
            }
        }
}

/* dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dP * P)) / sqrt(D), dQ = dS K, dK = dS^T Q. */
void attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(d_out) / A;
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const Head h = head_of(qkv, d_out, probs, b, a), d = head_of(d_qkv, d_out, d_probs, b, a);
            /* from the last block on: it reaches all keys and writes their gradients, the others add to them */
            for (int64_t first = (T - 1) / QUERIES * QUERIES; first >= 0; first -= QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const real beta = keys == T ? 0 : 1, *p = h.probs + first * T, *d_o = d.out + first * d.ld_out;
                real *d_p = d.probs + first * T;
                matmul(false, true, n, keys, D, 1, d_o, d.ld_out, h.v, h.ld, 0, d_p, T);
                for (int64_t i = 0; i < n; i++) {
                    const real *p_row = p + i * T;
                    real *d_row = d_p + i * T, dot = 0;
#pragma omp simd reduction(+ : dot)
                    for (int64_t j = 0; j < keys; j++)
                        dot += d_row[j] * p_row[j];
                    for (int64_t j = 0; j < keys; j++)
                        d_row[j] = scale * p_row[j] * (d_row[j] - dot);
                }
                matmul(false, false, n, D, keys, 1, d_p, T, h.k, h.ld, 0, d.q + first * d.ld, d.ld);
                matmul(true, false, keys, D, n, 1, d_p, T, h.q + first * h.ld, h.ld, beta, d.k, d.ld);
                matmul(true, false, keys, D, n, 1, p, T, d_o, d.ld_out, beta, d.v, d.ld);
            }
        }
}

/* ---- GELU ---- */

/* 1 + tanh(u) = 2 * sigmoid(2u), so GELU is x * sigmoid(2u): no cancellation, and one exp. */
static inline real gelu_sigmoid(real x)
{
    return 1 / (1 + real_exp((real)-1.5957691216057308 * (x + (real)0.044715 * x * x * x)));
}

void gelu_forward_kernel(Tensor out, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(x, i);
        real *o = row(out, i);
        for (int64_t j = 0; j < width; j++)
            o[j] = in[j] * gelu_sigmoid(in[j]);
    }
}

void gelu_backward_kernel(Tensor d_x, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(x, i), *d_o = row(d_out, i);
        real *d_in = row(d_x, i);
        for (int64_t j = 0; j < width; j++) {
            const real v = in[j], s = gelu_sigmoid(v);
            const real slope = (real)1.5957691216057308 * (1 + (real)(3 * 0.044715) * v * v);
            d_in[j] = d_o[j] * (s + v * s * (1 - s) * slope);
        }
    }
}

/* ---- residual ---- */

void residual_forward_kernel(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *b = bias.data;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(x, i), *add = row(branch, i);
        real *o = row(out, i);
        for (int64_t j = 0; j < width; j++)
            o[j] = in[j] + add[j] + b[j];
    }
}

void residual_backward_kernel(Tensor d_bias, Tensor d_out)
{
    column_sums(d_bias, d_out);
}

/* ---- cross-entropy ---- */

void cross_entropy_forward_kernel(Tensor loss, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);
    real *log_sum = lse.data;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(logits, i);
        real max = in[0], sum = 0;
#pragma omp simd reduction(max : max)
        for (int64_t j = 0; j < width; j++)
            max = in[j] > max ? in[j] : max;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++)
            sum += real_exp(in[j] - max);
        log_sum[i] = max + (real)log(sum);
    }
    double total = 0;
    for (int64_t i = 0; i < rows; i++)
        total += (double)log_sum[i] - (ids_of(targets)[i] < 0 ? 0 : row(logits, i)[ids_of(targets)[i]]);
    *(double *)loss.data += scale * total;
}

void cross_entropy_backward_kernel(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(logits, i), log_sum = row(lse, 0)[i];
        const int32_t target = ids_of(targets)[i];
        const real s = scale;
        real *d = row(d_logits, i);
#pragma omp simd                                    /* though d may be the row itself */
        for (int64_t j = 0; j < width; j++)
            d[j] = s * real_exp(in[j] - log_sum);
        if (target >= 0)
            d[target] -= s;
    }
}

/* ---- cross-entropy in parts ---- */

void cross_entropy_max_kernel(Tensor max, Tensor logits)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(logits, i);
        real most = in[0];
#pragma omp simd reduction(max : most)
        for (int64_t j = 0; j < width; j++)
            most = in[j] > most ? in[j] : most;
        row(max, 0)[i] = most;
    }
}

void cross_entropy_sums_kernel(Tensor sums, Tensor logits, Tensor max, Tensor targets)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = row(logits, i), most = row(max, 0)[i];
        const int32_t target = ids_of(targets)[i];
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++)
            sum += real_exp(in[j] - most);
        row(sums, i)[0] = sum;
        row(sums, i)[1] = target < 0 ? 0 : in[target];
    }
}

void cross_entropy_loss_kernel(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale)
{
    const int64_t rows = tensor_rows(sums);
    double total = 0;

    for (int64_t i = 0; i < rows; i++) {
        row(lse, 0)[i] = row(max, 0)[i] + (real)log(row(sums, i)[0]);
        total += (double)row(lse, 0)[i] - row(sums, i)[1];
    }
    *(double *)loss.data += scale * total;
}

void ids_in_slice_kernel(Tensor out, Tensor ids, int64_t first, int64_t count)
{
    int32_t *to = out.data;

    for (int64_t i = 0; i < tensor_count(ids); i++) {
        const int32_t id = ids_of(ids)[i];
        to[i] = id >= first && id < first + count ? (int32_t)(id - first) : -1;
    }
}

/* ---- the optimizer's ---- */

void adamw_update_kernel(Tensor params, Tensor m, Tensor v, Tensor gradients, AdamWArguments a)
{
    const int64_t count = tensor_count(params);
    const real beta1 = a.beta1, beta2 = a.beta2, eps = a.eps, scale = a.gradient_scale;
    const real rate = a.lr / a.correction1, root = 1 / sqrt(a.correction2), keep = 1 - a.lr * a.weight_decay;
    const real *gradient = gradients.data;
    real *param = params.data, *mean = m.data, *square = v.data;

#pragma omp parallel for simd
    for (int64_t i = 0; i < count; i++) {
        const real g = gradient[i] * scale;
        mean[i] = beta1 * mean[i] + (1 - beta1) * g;
        square[i] = beta2 * square[i] + (1 - beta2) * g * g;
        param[i] = keep * param[i] - rate * mean[i] / ((real)sqrt(square[i]) * root + eps);
    }
}

double square_sum_kernel(const Tensor *list, int count)
{
    enum { PARTS = 64 };                        /* fixed, so that the sum doesn't depend on the number of threads */
    double part[PARTS], sum = 0;

    for (int k = 0; k < count; k++) {
        const real *x = list[k].data;
#pragma omp parallel for
        for (int p = 0; p < PARTS; p++) {
            const Range r = range_part(tensor_count(list[k]), p, PARTS);
            double s = 0;
#pragma omp simd reduction(+ : s)
            for (int64_t i = r.first; i < r.first + r.count; i++)
                s += (double)x[i] * x[i];
            part[p] = s;
        }
        for (int p = 0; p < PARTS; p++)
            sum += part[p];
    }
    return sum;
}

/* ---- attention by blocks of keys ---- */

/* One head's tokens of sequence b, from the first on, in (B, C, A, x): rows lie A*x apart. */
static real *tokens_of(Tensor t, int64_t b, int64_t first, int64_t head)
{
    return row(t, (b * t.shape[1] + first) * t.shape[2] + head);
}

/* scores has room for each head's share, so heads are what threads divide; sequences and queries follow each other. */
void attention_block_forward_kernel(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], Q = scores.shape[2];
    const int64_t ld = A * D;

#pragma omp parallel for
    for (int64_t a = 0; a < A; a++) {
        real *p = row(scores, a * Q);
        for (int64_t b = 0; b < B; b++)
            for (int64_t first = 0; first < C; first += Q) {
                const int64_t n = C - first < Q ? C - first : Q, keys = causal ? first + n : K;
                real *log_sum = tokens_of(lse, b, first, a);
                matmul(false, true, n, keys, D, 1 / (real)sqrt(D), tokens_of(q, b, first, a), ld, tokens_of(k, b, 0, a),
                       ld, 0, p, K);
                for (int64_t i = 0; i < n; i++)
                    log_sum[i * A] = softmax(p + i * K, causal ? first + i + 1 : keys, keys);
                matmul(false, false, n, D, keys, 1, p, K, tokens_of(v, b, 0, a), ld, 0, tokens_of(out, b, first, a), ld);
            }
    }
}

/* P = exp(S - lse), dP = dO V^T, dS = P * (dP - dots) / sqrt(D); dQ += dS K, dK += dS^T Q, dV += P^T dO. */
void attention_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q, Tensor k,
                                     Tensor v, Tensor lse, Tensor dots, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], Q = scores.shape[2];
    const int64_t ld = A * D;
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for
    for (int64_t a = 0; a < A; a++) {
        real *p = row(scores, a * Q), *d_p = row(scores, (A + a) * Q);
        for (int64_t b = 0; b < B; b++)
            for (int64_t first = 0; first < C; first += Q) {
                const int64_t n = C - first < Q ? C - first : Q, keys = causal ? first + n : K;
                const real *log_sum = tokens_of(lse, b, first, a), *dot = tokens_of(dots, b, first, a);
                const real *queries = tokens_of(q, b, first, a), *d_o = tokens_of(d_out, b, first, a);
                matmul(false, true, n, keys, D, scale, queries, ld, tokens_of(k, b, 0, a), ld, 0, p, K);
                matmul(false, true, n, keys, D, 1, d_o, ld, tokens_of(v, b, 0, a), ld, 0, d_p, K);
                for (int64_t i = 0; i < n; i++) {
                    const int64_t seen = causal ? first + i + 1 : keys;
                    const real l = log_sum[i * A], d = dot[i * A];
                    real *p_row = p + i * K, *d_row = d_p + i * K;
#pragma omp simd
                    for (int64_t j = 0; j < seen; j++) {
                        p_row[j] = real_exp(p_row[j] - l);
                        d_row[j] = scale * p_row[j] * (d_row[j] - d);
                    }
                    for (int64_t j = seen; j < keys; j++)
                        p_row[j] = d_row[j] = 0;
                }
                matmul(false, false, n, D, keys, 1, d_p, K, tokens_of(k, b, 0, a), ld, 1, tokens_of(d_q, b, first, a), ld);
                matmul(true, false, keys, D, n, 1, d_p, K, queries, ld, 1, tokens_of(d_k, b, 0, a), ld);
                matmul(true, false, keys, D, n, 1, p, K, d_o, ld, 1, tokens_of(d_v, b, 0, a), ld);
            }
    }
}

/* Both are divided by their own sum, exp(lse): weighed with their shares of the common one they add up. */
void attention_merge_kernel(Tensor out, Tensor lse, Tensor part, Tensor part_lse)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);
    const real *part_sum = part_lse.data;
    real *log_sum = lse.data;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real x = log_sum[i], y = part_sum[i], max = x > y ? x : y, in_x = real_exp(x - max), in_y = real_exp(y - max);
        const real sum = in_x + in_y, share_x = in_x / sum, share_y = in_y / sum;
        const real *add = row(part, i);
        real *o = row(out, i);
        for (int64_t j = 0; j < width; j++)
            o[j] = share_x * o[j] + share_y * add[j];
        log_sum[i] = max + (real)log(sum);
    }
}

void attention_dots_kernel(Tensor dots, Tensor d_out, Tensor out)
{
    const int64_t count = tensor_count(dots), D = tensor_count(out) / count;
    real *to = dots.data;

#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        const real *o = row(out, 0) + i * D, *d_o = row(d_out, 0) + i * D;
        real dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t j = 0; j < D; j++)
            dot += d_o[j] * o[j];
        to[i] = dot;
    }
}

void tensor_fill_kernel(Tensor t, double value)
{
    const int64_t count = tensor_count(t);
    real *x = t.data;

#pragma omp parallel for simd
    for (int64_t i = 0; i < count; i++)
        x[i] = value;
}

void tensor_add_kernel(Tensor to, Tensor from)
{
    const int64_t count = tensor_count(to);
    const real *in = from.data;
    real *x = to.data;

#pragma omp parallel for simd
    for (int64_t i = 0; i < count; i++)
        x[i] += in[i];
}

void transpose_rows_kernel(Tensor out, Tensor in)
{
    const int64_t X = in.shape[0], Y = in.shape[1], W = in.shape[2];

#pragma omp parallel for collapse(2)
    for (int64_t y = 0; y < Y; y++)
        for (int64_t x = 0; x < X; x++)
            memcpy(row(out, y * X + x), row(in, x * Y + y), W * sizeof(real));
}
