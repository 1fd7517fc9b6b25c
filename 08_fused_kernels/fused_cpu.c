/* The fused operators on the CPU. What a GPU keeps in registers and shared memory stays in registers and caches here:
 * tiles and blocks of rows are small enough for that.
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "../common/ops_cpu.h"
#include "fused.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- FlashAttention ---- */

/* A tile: so many queries by so many keys. Its scores, 128 KB of floats, fit a core's second cache. */
enum { QUERIES = 128, KEYS = 256 };

/* One head of one sequence in scratch memory: T rows of q, k, v, one after the other. */
static const real *load_head(Tensor qkv, int64_t A, int64_t D, int64_t b, int64_t a, int64_t *ld)
{
    const int64_t T = qkv.shape[1];

    *ld = 3 * A * D;
    return load_matrix(qkv, (b * T * A + a) * 3 * D, T, 3 * D, ld, 0);
}

/* The softmax of a row whose scores come tile by tile (Milakov & Gimelshein 2018): its largest score so far, and the sum
 * of exp(score - largest). What was summed up under a smaller largest score is multiplied with exp of the difference. */
static void softmax_tile(real *scores, int64_t seen, int64_t keys, real *max, real *sum, real *out, int64_t D)
{
    real most = *max, s = 0;

#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < seen; j++)
        most = scores[j] > most ? scores[j] : most;
#pragma omp simd reduction(+ : s)
    for (int64_t j = 0; j < seen; j++) {
        scores[j] = real_exp(scores[j] - most);
        s += scores[j];
    }
    for (int64_t j = seen; j < keys; j++)
        scores[j] = 0;
    const real shrink = real_exp(*max - most);          /* -Inf at the first tile: 0 */
    for (int64_t d = 0; d < D; d++)
        out[d] *= shrink;
    *sum = *sum * shrink + s;
    *max = most;
}

void flash_attention_forward_kernel(Tensor out, Tensor lse, Tensor qkv)
{
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1], D = tensor_width(out) / A;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            int64_t ld;
            const real *q = load_head(qkv, A, D, b, a, &ld), *k = q + D, *v = k + D;
            real *log_sum = row(lse, b * A + a), *o = scratch(1, QUERIES * D), *scores = scratch(2, QUERIES * KEYS);
            real max[QUERIES], sum[QUERIES];
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = least(QUERIES, T - first);
                memset(o, 0, n * D * sizeof *o);
                for (int64_t i = 0; i < n; i++)
                    max[i] = -INFINITY, sum[i] = 0;
                for (int64_t key = 0; key < first + n; key += KEYS) {          /* tiles behind the diagonal are empty */
                    const int64_t keys = least(KEYS, first + n - key);
                    matmul(false, true, n, keys, D, 1 / (real)sqrt(D), q + first * ld, ld, k + key * ld, ld, 0, scores,
                           KEYS);
                    for (int64_t i = 0; i < n; i++)
                        if (first + i >= key)
                            softmax_tile(scores + i * KEYS, least(keys, first + i - key + 1), keys, &max[i], &sum[i],
                                         o + i * D, D);
                        else
                            memset(scores + i * KEYS, 0, keys * sizeof *scores);
                    matmul(false, false, n, D, keys, 1, scores, KEYS, v + key * ld, ld, 1, o, D);
                }
                for (int64_t i = 0; i < n; i++) {
                    const int64_t at = (b * T + first + i) * A * D + a * D;
                    real *to = room(out, at, D, 3);
                    for (int64_t d = 0; d < D; d++)
                        to[d] = o[i * D + d] / sum[i];
                    store(out, at, D, to);
                    log_sum[first + i] = max[i] + (real)log(sum[i]);
                }
            }
        }
}

/* P = exp(S - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - dots) / sqrt(D), dQ = dS K, dK = dS^T Q. */
void flash_attention_backward_kernel(Tensor d_qkv, Tensor dots, Tensor d_out, Tensor qkv, Tensor out, Tensor lse)
{
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1], D = tensor_width(out) / A;
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            int64_t ld, ld_out = A * D, ld_d = 3 * A * D;
            const int64_t head = (b * T * A + a) * 3 * D, to = (b * T * A + a) * D;
            const real *q = load_head(qkv, A, D, b, a, &ld), *k = q + D, *v = k + D, *log_sum = row(lse, b * A + a);
            const real *d_o = load_matrix(d_out, to, T, D, &ld_out, 1);
            real *d_q = room_for_matrix(d_qkv, head, T, 3 * D, &ld_d, 2), *d_k = d_q + D, *d_v = d_k + D;
            real *dot = row(dots, b * A + a), *p = scratch(3, 2 * QUERIES * KEYS), *d_p = p + QUERIES * KEYS;
            for (int64_t i = 0; i < T; i++) {
                const real *o = load(out, to + i * A * D, D, 4);
                real sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < D; d++)
                    sum += d_o[i * ld_out + d] * o[d];
                dot[i] = sum;
                memset(d_q + i * ld_d, 0, 3 * D * sizeof *d_q);
            }
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = least(QUERIES, T - first);
                for (int64_t key = 0; key < first + n; key += KEYS) {
                    const int64_t keys = least(KEYS, first + n - key);
                    matmul(false, true, n, keys, D, scale, q + first * ld, ld, k + key * ld, ld, 0, p, KEYS);
                    matmul(false, true, n, keys, D, 1, d_o + first * ld_out, ld_out, v + key * ld, ld, 0, d_p, KEYS);
                    for (int64_t i = 0; i < n; i++) {
                        const int64_t seen = first + i < key ? 0 : least(keys, first + i - key + 1);
                        const real l = log_sum[first + i], t = dot[first + i];
                        real *p_row = p + i * KEYS, *d_row = d_p + i * KEYS;
#pragma omp simd
                        for (int64_t j = 0; j < seen; j++) {
                            p_row[j] = real_exp(p_row[j] - l);
                            d_row[j] = scale * p_row[j] * (d_row[j] - t);
                        }
                        for (int64_t j = seen; j < keys; j++)
                            p_row[j] = d_row[j] = 0;
                    }
                    matmul(false, false, n, D, keys, 1, d_p, KEYS, k + key * ld, ld, 1, d_q + first * ld_d, ld_d);
                    matmul(true, false, keys, D, n, 1, d_p, KEYS, q + first * ld, ld, 1, d_k + key * ld_d, ld_d);
                    matmul(true, false, keys, D, n, 1, p, KEYS, d_o + first * ld_out, ld_out, 1, d_v + key * ld_d, ld_d);
                }
            }
            store_matrix(d_qkv, head, T, 3 * D, 3 * A * D, d_q);
        }
}

/* ---- residual and LayerNorm ---- */

void residual_layernorm_forward_kernel(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch,
                                       Tensor branch_bias, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    real *vectors = scratch(4, 3 * width), *add = vectors, *w = add + width, *b = w + width;

    memcpy(add, load(branch_bias, 0, width, 0), width * sizeof *add);
    memcpy(w, load(weight, 0, width, 0), width * sizeof *w);
    memcpy(b, load(bias, 0, width, 0), width * sizeof *b);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 0), *br = load(branch, i * width, width, 1);
        real *s = room(sum, i * width, width, 2), *o = room(out, i * width, width, 3), total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < width; j++) {
            s[j] = in[j] + br[j] + add[j];
            total += s[j];
        }
        const real mean = total / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < width; j++)
            squares += (s[j] - mean) * (s[j] - mean);
        const real inverse = 1 / (real)sqrt(squares / width + (real)1e-5);
        for (int64_t j = 0; j < width; j++)
            o[j] = (s[j] - mean) * inverse * w[j] + b[j];
        store(sum, i * width, width, s);
        store(out, i * width, width, o);
        row(stats, i)[0] = mean;
        row(stats, i)[1] = inverse;
    }
}

/* Rows go in a fixed number of parts, each with sums of its own for the vectors' gradients, which are added up in order:
 * so that every row is read once, and the sums don't depend on the number of threads. */
void residual_layernorm_backward_kernel(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias, Tensor d_out,
                                        Tensor sum, Tensor stats, Tensor weight)
{
    enum { PARTS = 16 };
    const int64_t rows = tensor_rows(sum), width = tensor_width(sum);
    real *sums = scratch(4, (3 * PARTS + 1) * width), *w = sums + 3 * PARTS * width;
    Tensor *const to[] = {&d_weight, &d_bias, &d_branch_bias};

    memset(sums, 0, 3 * PARTS * width * sizeof *sums);
    memcpy(w, load(weight, 0, width, 0), width * sizeof *w);
#pragma omp parallel for
    for (int part = 0; part < PARTS; part++) {
        const Range r = range_part(rows, part, PARTS);
        real *d_w = sums + 3 * part * width, *d_b = d_w + width, *d_branch = d_b + width;
        for (int64_t i = r.first; i < r.first + r.count; i++) {
            const real *in = load(sum, i * width, width, 0), *d_o = load(d_out, i * width, width, 1);
            const real mean = row(stats, i)[0], inverse = row(stats, i)[1];
            real *d_in = update(d_sum, i * width, width, 2), total = 0, total_n = 0;
#pragma omp simd reduction(+ : total, total_n)
            for (int64_t j = 0; j < width; j++) {
                total += d_o[j] * w[j];
                total_n += d_o[j] * w[j] * (in[j] - mean) * inverse;
            }
#pragma omp simd
            for (int64_t j = 0; j < width; j++) {
                const real n = (in[j] - mean) * inverse;
                d_in[j] += inverse * (d_o[j] * w[j] - total / width - n * (total_n / width));
                d_w[j] += d_o[j] * n;
                d_b[j] += d_o[j];
                d_branch[j] += d_in[j];
            }
            store(d_sum, i * width, width, d_in);
        }
    }
    for (int k = 0; k < 3; k++) {
        real *d = update(*to[k], 0, width, 0);
        for (int part = 0; part < PARTS; part++)
            for (int64_t j = 0; j < width; j++)
                d[j] += sums[(3 * part + k) * width + j];
        store(*to[k], 0, width, d);
    }
}

/* ---- linear and GELU ---- */

/* Rows are multiplied so many at a time, and GELU follows while what came out is still in the cache. */
static int64_t rows_at_once(int64_t rows)
{
    return least(128, (rows + omp_get_max_threads() - 1) / omp_get_max_threads());
}

/* 1 + tanh(u) = 2 * sigmoid(2u), so GELU is x * sigmoid(2u). */
static inline real gelu_sigmoid(real x)
{
    return 1 / (1 + real_exp((real)-1.5957691216057308 * (x + (real)0.044715 * x * x * x)));
}

void linear_gelu_forward_kernel(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out), at_once = rows_at_once(rows);
    int64_t ld_w = k;
    const real *w = load_matrix(weight, 0, m, k, &ld_w, 0), *b = load(bias, 0, m, 1);

#pragma omp parallel for
    for (int64_t first = 0; first < rows; first += at_once) {
        const int64_t n = least(at_once, rows - first);
        int64_t ld_x = k, ld_u = m;
        const real *in = load_matrix(x, first * k, n, k, &ld_x, 2);
        real *u = room_for_matrix(up, first * m, n, m, &ld_u, 3);
        matmul(false, true, n, m, k, 1, in, ld_x, w, ld_w, 0, u, ld_u);
        for (int64_t i = 0; i < n; i++) {
            real *o = room(out, (first + i) * m, m, 4), *u_row = u + i * ld_u;
            for (int64_t j = 0; j < m; j++) {
                u_row[j] += b[j];
                o[j] = u_row[j] * gelu_sigmoid(u_row[j]);
            }
            store(out, (first + i) * m, m, o);
        }
        store_matrix(up, first * m, n, m, m, u);
    }
}

void linear_gelu_backward_kernel(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    const int64_t rows = tensor_rows(up), n = tensor_width(d_out), m = tensor_width(up), at_once = rows_at_once(rows);
    int64_t ld_w = m;
    const real *w = load_matrix(weight, 0, n, m, &ld_w, 0);

#pragma omp parallel for
    for (int64_t first = 0; first < rows; first += at_once) {
        const int64_t count = least(at_once, rows - first);
        int64_t ld_o = n, ld_u = m;
        const real *d_o = load_matrix(d_out, first * n, count, n, &ld_o, 2);
        real *d_u = room_for_matrix(d_up, first * m, count, m, &ld_u, 3);
        matmul(false, false, count, m, n, 1, d_o, ld_o, w, ld_w, 0, d_u, ld_u);
        for (int64_t i = 0; i < count; i++) {
            const real *in = load(up, (first + i) * m, m, 4);
            real *d = d_u + i * ld_u;
            for (int64_t j = 0; j < m; j++) {
                const real v = in[j], s = gelu_sigmoid(v);
                d[j] *= s + v * s * (1 - s) * (real)1.5957691216057308 * (1 + (real)(3 * 0.044715) * v * v);
            }
        }
        store_matrix(d_up, first * m, count, m, m, d_u);
    }
}

/* ---- cross-entropy ---- */

/* exp is computed once: it gives the sum, and divided by it the gradient. */
void cross_entropy_both_kernel(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);
    const int32_t *ids = targets.data;
    real *losses = scratch(4, rows);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(logits, i * width, width, 0);
        real *d = room(logits, i * width, width, 1), max = in[0], sum = 0;
        const real target = ids[i] < 0 ? 0 : in[ids[i]];
#pragma omp simd reduction(max : max)
        for (int64_t j = 0; j < width; j++)
            max = in[j] > max ? in[j] : max;
#pragma omp simd reduction(+ : sum)                     /* though d may be the row itself */
        for (int64_t j = 0; j < width; j++) {
            d[j] = real_exp(in[j] - max);
            sum += d[j];
        }
        const real share = (real)gradient_scale / sum;
        for (int64_t j = 0; j < width; j++)
            d[j] *= share;
        if (ids[i] >= 0)
            d[ids[i]] -= (real)gradient_scale;
        store(logits, i * width, width, d);
        losses[i] = max + (real)log(sum) - target;
    }
    double total = 0;
    for (int64_t i = 0; i < rows; i++)
        total += losses[i];
    *(double *)loss.data += scale * total;
}
