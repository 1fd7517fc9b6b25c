/* Attention on the CPU: with all probabilities stored, and by blocks of keys. Each head of a sequence takes a few small
 * products; threads take turns with them.
 */
#include "kernel.h"

#include <math.h>

/* ---- with all probabilities ---- */

/* Queries are processed in blocks of this many. A block computes scores for the keys up to its last query; blocks of
 * keys after that are fully masked and are not computed. */
enum { QUERIES = 64 };

/* Softmax in place over the first `seen` of n scores; the others, which are masked, become 0. Returns log sum
 * exp(scores). */
static real softmax(real *scores, int64_t seen, int64_t n)
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

void attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t head = (b * T * A + a) * D, scores = (b * A + a) * T * T;
            const Matrix q = load_matrix(qkv, 3 * head, T, 3 * D, 3 * A * D, 0), k = from(q, 0, D), v = from(k, 0, D);
            const Matrix o = staging_matrix(out, head, T, D, A * D, 1);
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const Matrix p = staging_matrix(probs, scores + first * T, n, keys, T, 2);
                matmul(false, true, n, keys, D, 1 / (real)sqrt(D), from(q, first, 0), k, 0, p);
                for (int64_t i = 0; i < n; i++)
                    softmax(p.data + i * p.ld, first + i + 1, keys);
                matmul(false, false, n, D, keys, 1, p, v, 0, from(o, first, 0));
                store_matrix(probs, scores + first * T, n, keys, T, p);
            }
            store_matrix(out, head, T, D, A * D, o);
        }
}

/* dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dP * P)) / sqrt(D), dQ = dS K, dK = dS^T Q. */
void attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(d_out) / A;
    const int64_t ld = 3 * A * D;
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t head = (b * T * A + a) * D, scores = (b * A + a) * T * T;
            const Matrix q = load_matrix(qkv, 3 * head, T, 3 * D, ld, 0), k = from(q, 0, D), v = from(k, 0, D);
            const Matrix d_q = staging_matrix(d_qkv, 3 * head, T, 3 * D, ld, 1);
            const Matrix d_k = from(d_q, 0, D), d_v = from(d_k, 0, D);
            const Matrix all_d_o = load_matrix(d_out, head, T, D, A * D, 2);
            /* the last block first: it reaches all keys and writes their gradients; the others add to them */
            for (int64_t first = (T - 1) / QUERIES * QUERIES; first >= 0; first -= QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const real beta = keys == T ? 0 : 1;
                const Matrix p = load_matrix(probs, scores + first * T, n, keys, T, 3), d_o = from(all_d_o, first, 0);
                const Matrix d_p = staging_matrix(d_probs, scores + first * T, n, keys, T, 4);
                matmul(false, true, n, keys, D, 1, d_o, v, 0, d_p);
                for (int64_t i = 0; i < n; i++) {
                    const real *p_row = p.data + i * p.ld;
                    real *d_row = d_p.data + i * d_p.ld, dot = 0;
#pragma omp simd reduction(+ : dot)
                    for (int64_t j = 0; j < keys; j++)
                        dot += d_row[j] * p_row[j];
                    for (int64_t j = 0; j < keys; j++)
                        d_row[j] = scale * p_row[j] * (d_row[j] - dot);
                }
                matmul(false, false, n, D, keys, 1, d_p, k, 0, from(d_q, first, 0));
                matmul(true, false, keys, D, n, 1, d_p, from(q, first, 0), beta, d_k);
                matmul(true, false, keys, D, n, 1, p, d_o, beta, d_v);
            }
            store_matrix(d_qkv, 3 * head, T, 3 * D, ld, d_q);
        }
}

/* ---- by blocks of keys ---- */

/* Head `head` of sequence b, from token `first` on, in (B, C, A, x): rows lie A*x elements apart. */
static Matrix tokens_of(Tensor t, int64_t b, int64_t first, int64_t head)
{
    return (Matrix){row(t, (b * t.shape[1] + first) * t.shape[2] + head), t.shape[2] * t.shape[3]};
}

int64_t attention_block_queries(void)
{
    return QUERIES;
}

/* scores has room for every head, so threads split the heads; sequences and queries are processed in turn. */
void attention_block_forward_kernel(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], Q = scores.shape[2];
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for
    for (int64_t a = 0; a < A; a++) {
        const Matrix p = {row(scores, a * Q), K};
        for (int64_t b = 0; b < B; b++)
            for (int64_t first = 0; first < C; first += Q) {
                const int64_t n = C - first < Q ? C - first : Q, keys = causal ? first + n : K;
                real *log_sum = tokens_of(lse, b, first, a).data;
                matmul(false, true, n, keys, D, scale, tokens_of(q, b, first, a), tokens_of(k, b, 0, a), 0, p);
                for (int64_t i = 0; i < n; i++)
                    log_sum[i * A] = softmax(p.data + i * K, causal ? first + i + 1 : keys, keys);
                matmul(false, false, n, D, keys, 1, p, tokens_of(v, b, 0, a), 0, tokens_of(out, b, first, a));
            }
    }
}

/* P = exp(S - lse), dP = dO V^T, dS = P * (dP - delta) / sqrt(D); dQ += dS K, dK += dS^T Q, dV += P^T dO. */
void attention_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q,
                                     Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], Q = scores.shape[2];
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for
    for (int64_t a = 0; a < A; a++) {
        const Matrix p = {row(scores, a * Q), K}, d_p = {row(scores, (A + a) * Q), K};
        for (int64_t b = 0; b < B; b++)
            for (int64_t first = 0; first < C; first += Q) {
                const int64_t n = C - first < Q ? C - first : Q, keys = causal ? first + n : K;
                const real *log_sum = tokens_of(lse, b, first, a).data, *dot = tokens_of(delta, b, first, a).data;
                const Matrix queries = tokens_of(q, b, first, a), d_o = tokens_of(d_out, b, first, a);
                matmul(false, true, n, keys, D, scale, queries, tokens_of(k, b, 0, a), 0, p);
                matmul(false, true, n, keys, D, 1, d_o, tokens_of(v, b, 0, a), 0, d_p);
                for (int64_t i = 0; i < n; i++) {
                    const int64_t seen = causal ? first + i + 1 : keys;
                    const real l = log_sum[i * A], d = dot[i * A];
                    real *p_row = p.data + i * K, *d_row = d_p.data + i * K;
#pragma omp simd
                    for (int64_t j = 0; j < seen; j++) {
                        p_row[j] = real_exp(p_row[j] - l);
                        d_row[j] = scale * p_row[j] * (d_row[j] - d);
                    }
                    for (int64_t j = seen; j < keys; j++)
                        p_row[j] = d_row[j] = 0;
                }
                matmul(false, false, n, D, keys, 1, d_p, tokens_of(k, b, 0, a), 1, tokens_of(d_q, b, first, a));
                matmul(true, false, keys, D, n, 1, d_p, queries, 1, tokens_of(d_k, b, 0, a));
                matmul(true, false, keys, D, n, 1, p, d_o, 1, tokens_of(d_v, b, 0, a));
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
