/* The kernels of Llama's block. Sums have a fixed order: threads split rows, columns, heads, or groups of heads. */
#include "llama.h"

#include <math.h>

#include "../common/transformer/cpu/kernel_cpu.h"

/* ---- RMSNorm ---- */

void rmsnorm_forward_kernel(Tensor out, Tensor rstd, Tensor x, Tensor weight, double eps)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *w = load(weight, 0, width, 0);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 1);
        real *o = staging(out, i * width, width, 2), squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < width; j++)
            squares += in[j] * in[j];
        const real r = ((real *)rstd.data)[i] = 1 / (real)sqrt(squares / width + (real)eps);
        for (int64_t j = 0; j < width; j++)
            o[j] = in[j] * r * w[j];
        store(out, i * width, width, o);
    }
}

/* With n = x * rstd and g = d_out * weight: d_x += rstd * (g - n * mean(g * n)). */
void rmsnorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_out, Tensor x, Tensor rstd, Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const real *w = load(weight, 0, width, 0), *rstds = rstd.data;

#pragma omp parallel
    {
#pragma omp for
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width, width, 1), *d_o = load(d_out, i * width, width, 2), r = rstds[i];
            real *d_in = update(d_x, i * width, width, 3), sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < width; j++)
                sum += d_o[j] * w[j] * in[j] * r;
            for (int64_t j = 0; j < width; j++)
                d_in[j] += r * (d_o[j] * w[j] - in[j] * r * (sum / width));
            store(d_x, i * width, width, d_in);
        }
        const Range c = columns_of_thread(width);
        real *d_w = update(d_weight, c.first, c.count, 2);
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width + c.first, c.count, 0);
            const real *d_o = load(d_out, i * width + c.first, c.count, 1);
            for (int64_t j = 0; j < c.count; j++)
                d_w[j] += d_o[j] * in[j] * rstds[i];
        }
        store(d_weight, c.first, c.count, d_w);
    }
}

/* ---- rotary positions ---- */

void grouped_rope_kernel(Tensor qkv, Tensor rope, int64_t kv_heads, bool back)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(qkv), T = rope.shape[0], D = tensor_width(rope);
    const int64_t heads = width / D - kv_heads;                         /* of q and k; v has no position */
    const real direction = back ? -1 : 1;

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        real *turned = update(qkv, i * width, heads * D, 0);
        for (int64_t head = 0; head < heads; head++)
            rotate(turned + head * D, row(rope, i % T), D, direction);
        store(qkv, i * width, heads * D, turned);
    }
}

/* ---- attention ---- */

enum { QUERIES = 64 };                          /* at once, as in common/transformer/cpu/attention.c */

/* One head's columns in the rows of sequence b. */
static Matrix head_of(Tensor t, int64_t b, int64_t T, int64_t head, int64_t D)
{
    return (Matrix){row(t, b * T) + head * D, tensor_width(t)};
}

static Matrix scores_of(Tensor t, int64_t b, int64_t head)
{
    return (Matrix){row(t, (b * t.shape[1] + head) * t.shape[2]), t.shape[2]};
}

void grouped_attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;
    const int64_t K = (tensor_width(qkv) / D - A) / 2;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t group = a / (A / K);
            const Matrix q = head_of(qkv, b, T, a, D), k = head_of(qkv, b, T, A + group, D);
            const Matrix v = head_of(qkv, b, T, A + K + group, D), o = head_of(out, b, T, a, D);
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const Matrix p = submatrix(scores_of(probs, b, a), first, 0);
                matmul(false, true, n, keys, D, 1 / (real)sqrt(D), submatrix(q, first, 0), k, 0, p);
                for (int64_t i = 0; i < n; i++)
                    softmax(p.data + i * p.ld, first + i + 1, keys);
                matmul(false, false, n, D, keys, 1, p, v, 0, submatrix(o, first, 0));
            }
        }
}

/* As attention_backward_kernel. One thread adds up dK and dV over the heads of q in their group. */
void grouped_attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(d_out) / A;
    const int64_t K = (tensor_width(qkv) / D - A) / 2, G = A / K, blocks = (T + QUERIES - 1) / QUERIES;
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t group = 0; group < K; group++) {
            const Matrix k = head_of(qkv, b, T, A + group, D), d_k = head_of(d_qkv, b, T, A + group, D);
            const Matrix v = head_of(qkv, b, T, A + K + group, D), d_v = head_of(d_qkv, b, T, A + K + group, D);
            for (int64_t i = 0; i < G * blocks; i++) {
                /* a head's last block first: of the first head it reaches all keys, and writes their gradients */
                const int64_t a = group * G + i / blocks, first = (blocks - 1 - i % blocks) * QUERIES;
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const real beta = i == 0 ? 0 : 1;
                const Matrix q = submatrix(head_of(qkv, b, T, a, D), first, 0);
                const Matrix d_q = submatrix(head_of(d_qkv, b, T, a, D), first, 0);
                const Matrix d_o = submatrix(head_of(d_out, b, T, a, D), first, 0);
                const Matrix p = submatrix(scores_of(probs, b, a), first, 0);
                const Matrix d_p = submatrix(scores_of(d_probs, b, a), first, 0);
                matmul(false, true, n, keys, D, 1, d_o, v, 0, d_p);
                for (int64_t r = 0; r < n; r++)
                    softmax_backward(d_p.data + r * d_p.ld, p.data + r * p.ld, keys, scale);
                matmul(false, false, n, D, keys, 1, d_p, k, 0, d_q);
                matmul(true, false, keys, D, n, 1, d_p, q, beta, d_k);
                matmul(true, false, keys, D, n, 1, p, d_o, beta, d_v);
            }
        }
}

/* ---- SwiGLU ---- */

void swiglu_forward_kernel(Tensor out, Tensor gate_up)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *gate = load(gate_up, 2 * i * width, 2 * width, 0), *up = gate + width;
        real *o = staging(out, i * width, width, 1);
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            o[j] = gate[j] / (1 + real_exp(-gate[j])) * up[j];
        store(out, i * width, width, o);
    }
}

/* With s = sigmoid(gate): silu = gate * s, and its slope is s * (1 + gate * (1 - s)). */
void swiglu_backward_kernel(Tensor d_gate_up, Tensor d_out, Tensor gate_up)
{
    const int64_t rows = tensor_rows(d_out), width = tensor_width(d_out);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *gate = load(gate_up, 2 * i * width, 2 * width, 0), *up = gate + width;
        const real *d_o = load(d_out, i * width, width, 1);
        real *d_gate = staging(d_gate_up, 2 * i * width, 2 * width, 2), *d_up = d_gate + width;
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            const real s = 1 / (1 + real_exp(-gate[j]));
            d_gate[j] = d_o[j] * up[j] * s * (1 + gate[j] * (1 - s));
            d_up[j] = d_o[j] * gate[j] * s;
        }
        store(d_gate_up, 2 * i * width, 2 * width, d_gate);
    }
}
