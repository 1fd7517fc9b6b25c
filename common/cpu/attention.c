/* Attention on the CPU: with all probabilities stored, and by blocks of keys. Each head of a sequence takes a few small
 * products; threads take turns with them.
 */
#include "kernel.h"

#include <math.h>

/* ---- with all probabilities ---- */

/* Queries are processed in blocks of this many. A block computes scores for the keys up to its last query; blocks of
 * keys after that are fully masked and are not computed. */
enum { QUERIES = 64 };

/* Returns where head a of sequence b starts in (B, T, A * width). ld: elements between its rows. */
static int64_t head_of(Tensor probs, int64_t b, int64_t a, int64_t width, int64_t *ld)
{
    const int64_t A = probs.shape[1], T = probs.shape[2];

    *ld = A * width;
    return (b * T * A + a) * width;
}

/* Softmax in place over the first `seen` of n scores; the others, which are masked, become 0. Returns log sum
 * exp(scores). */
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
            int64_t ld, ld_out;
            const int64_t head = head_of(probs, b, a, 3 * D, &ld), to = head_of(probs, b, a, D, &ld_out);
            const int64_t out_apart = ld_out, scores = (b * A + a) * T * T;
            const real *q = load_matrix(qkv, head, T, 3 * D, &ld, 0), *k = q + D, *v = k + D;
            real *o = room_for_matrix(out, to, T, D, &ld_out, 1);
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                int64_t ld_p = T;
                real *p = room_for_matrix(probs, scores + first * T, n, keys, &ld_p, 2);
                matmul(false, true, n, keys, D, 1 / (real)sqrt(D), q + first * ld, ld, k, ld, 0, p, ld_p);
                for (int64_t i = 0; i < n; i++)
                    softmax(p + i * ld_p, first + i + 1, keys);
                matmul(false, false, n, D, keys, 1, p, ld_p, v, ld, 0, o + first * ld_out, ld_out);
                store_matrix(probs, scores + first * T, n, keys, T, p);
            }
            store_matrix(out, to, T, D, out_apart, o);
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
            int64_t ld, ld_d, ld_out;
            const int64_t head = head_of(probs, b, a, 3 * D, &ld), to = head_of(probs, b, a, D, &ld_out);
            const int64_t apart = ld_d = ld, scores = (b * A + a) * T * T;
            const real *q = load_matrix(qkv, head, T, 3 * D, &ld, 0), *k = q + D, *v = k + D;
            const real *d_o = load_matrix(d_out, to, T, D, &ld_out, 2);
            real *d_q = room_for_matrix(d_qkv, head, T, 3 * D, &ld_d, 1), *d_k = d_q + D, *d_v = d_k + D;
            /* the last block first: it reaches all keys and writes their gradients; the others add to them */
            for (int64_t first = (T - 1) / QUERIES * QUERIES; first >= 0; first -= QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const real beta = keys == T ? 0 : 1;
                int64_t ld_p = T, ld_dp = T;
                const real *p = load_matrix(probs, scores + first * T, n, keys, &ld_p, 3);
                real *d_p = room_for_matrix(d_probs, scores + first * T, n, keys, &ld_dp, 4);
                matmul(false, true, n, keys, D, 1, d_o + first * ld_out, ld_out, v, ld, 0, d_p, ld_dp);
                for (int64_t i = 0; i < n; i++) {
                    const real *p_row = p + i * ld_p;
                    real *d_row = d_p + i * ld_dp, dot = 0;
#pragma omp simd reduction(+ : dot)
                    for (int64_t j = 0; j < keys; j++)
                        dot += d_row[j] * p_row[j];
                    for (int64_t j = 0; j < keys; j++)
                        d_row[j] = scale * p_row[j] * (d_row[j] - dot);
                }
                matmul(false, false, n, D, keys, 1, d_p, ld_dp, k, ld, 0, d_q + first * ld_d, ld_d);
                matmul(true, false, keys, D, n, 1, d_p, ld_dp, q + first * ld, ld, beta, d_k, ld_d);
                matmul(true, false, keys, D, n, 1, p, ld_p, d_o + first * ld_out, ld_out, beta, d_v, ld_d);
            }
            store_matrix(d_qkv, head, T, 3 * D, apart, d_q);
        }
}

/* ---- by blocks of keys ---- */

/* Returns head `head` of sequence b, from token `first` on, in (B, C, A, x): rows lie A*x elements apart. */
static real *tokens_of(Tensor t, int64_t b, int64_t first, int64_t head)
{
    return row(t, (b * t.shape[1] + first) * t.shape[2] + head);
}

int64_t attention_block_queries(void)
{
    return QUERIES;
}

/* scores has room for every head, so threads split the heads; sequences and queries are processed in turn. */
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
                matmul(false, false, n, D, keys, 1, p, K, tokens_of(v, b, 0, a), ld, 0, tokens_of(out, b, first, a),
                       ld);
            }
    }
}

/* P = exp(S - lse), dP = dO V^T, dS = P * (dP - delta) / sqrt(D); dQ += dS K, dK += dS^T Q, dV += P^T dO. */
void attention_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q,
                                     Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal)
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
                const real *log_sum = tokens_of(lse, b, first, a), *dot = tokens_of(delta, b, first, a);
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
                matmul(false, false, n, D, keys, 1, d_p, K, tokens_of(k, b, 0, a), ld, 1, tokens_of(d_q, b, first, a),
                       ld);
                matmul(true, false, keys, D, n, 1, d_p, K, queries, ld, 1, tokens_of(d_k, b, 0, a), ld);
                matmul(true, false, keys, D, n, 1, p, K, d_o, ld, 1, tokens_of(d_v, b, 0, a), ld);
            }
    }
}

/* Each output is divided by its own sum, exp(lse). Weighted with exp(lse - common lse), they add up to the common
 * output. */
void attention_merge_kernel(Tensor out, Tensor lse, Tensor block_out, Tensor block_lse)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);
    const real *block_sum = block_lse.data;
    real *log_sum = lse.data;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real x = log_sum[i], y = block_sum[i], max = x > y ? x : y;
        const real in_x = real_exp(x - max), in_y = real_exp(y - max);
        const real sum = in_x + in_y, weight_x = in_x / sum, weight_y = in_y / sum;
        const real *add = row(block_out, i);
        real *o = row(out, i);
        for (int64_t j = 0; j < width; j++)
            o[j] = weight_x * o[j] + weight_y * add[j];
        log_sum[i] = max + (real)log(sum);
    }
}

void attention_delta_kernel(Tensor delta, Tensor d_out, Tensor out)
{
    const int64_t count = tensor_count(delta), D = tensor_count(out) / count;
    real *to = delta.data;

#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        const real *o = load(out, i * D, D, 0), *d_o = load(d_out, i * D, D, 1);
        real dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t j = 0; j < D; j++)
            dot += d_o[j] * o[j];
        to[i] = dot;
    }
}
