/* Attention by blocks of keys on the CPU. */
#include <math.h>
#include <string.h>

#include "../common/transformer/cpu/kernel_cpu.h"
#include "key_blocks.h"

/* Head `head` of sequence b, from token `first` on, in (B, C, A, x): rows lie A*x elements apart. */
static Matrix tokens_of(Tensor t, int64_t b, int64_t first, int64_t head)
{
    return (Matrix){row(t, (b * t.shape[1] + first) * t.shape[2] + head), t.shape[2] * t.shape[3]};
}

int64_t attention_block_queries(void)
{
    return 64;
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

void transpose_rows_kernel(Tensor out, Tensor in)
{
    const int64_t X = in.shape[0], Y = in.shape[1], W = in.shape[2];

#pragma omp parallel for collapse(2)
    for (int64_t y = 0; y < Y; y++)
        for (int64_t x = 0; x < X; x++)
            memcpy(element(out, (y * X + x) * W), element(in, (x * Y + y) * W), W * dtype_size(in.dtype));
}

void tensor_fill_kernel(Tensor t, double value)
{
    real *x = t.data;

    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = value;
}
