/* Attention on the CPU, with all probabilities stored. Each head of a sequence takes a few small products; threads
 * share the heads. */
#include "kernel_cpu.h"

#include <math.h>

/* Queries are processed in blocks of this many. A block computes scores for the keys up to its last query; blocks of
 * keys after that are fully masked and are not computed. */
enum { QUERIES = 64 };

void attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t head = (b * T * A + a) * D, scores = (b * A + a) * T * T;
            const Matrix q = load_matrix(qkv, 3 * head, T, 3 * D, 3 * A * D, 0);
            const Matrix k = submatrix(q, 0, D), v = submatrix(k, 0, D);
            const Matrix o = staging_matrix(out, head, T, D, A * D, 1);
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const Matrix p = staging_matrix(probs, scores + first * T, n, keys, T, 2);
                matmul(false, true, n, keys, D, 1 / (real)sqrt(D), submatrix(q, first, 0), k, 0, p);
                for (int64_t i = 0; i < n; i++)
                    softmax(p.data + i * p.ld, first + i + 1, keys);
                matmul(false, false, n, D, keys, 1, p, v, 0, submatrix(o, first, 0));
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
            const Matrix q = load_matrix(qkv, 3 * head, T, 3 * D, ld, 0);
            const Matrix k = submatrix(q, 0, D), v = submatrix(k, 0, D);
            const Matrix d_q = staging_matrix(d_qkv, 3 * head, T, 3 * D, ld, 1);
            const Matrix d_k = submatrix(d_q, 0, D), d_v = submatrix(d_k, 0, D);
            const Matrix all_d_o = load_matrix(d_out, head, T, D, A * D, 2);
            /* the last block first: it reaches all keys and writes their gradients; the others add to them */
            for (int64_t first = (T - 1) / QUERIES * QUERIES; first >= 0; first -= QUERIES) {
                const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
                const real beta = keys == T ? 0 : 1;
                const Matrix p = load_matrix(probs, scores + first * T, n, keys, T, 3);
                const Matrix d_o = submatrix(all_d_o, first, 0);
                const Matrix d_p = staging_matrix(d_probs, scores + first * T, n, keys, T, 4);
                matmul(false, true, n, keys, D, 1, d_o, v, 0, d_p);
                for (int64_t i = 0; i < n; i++)
                    softmax_backward(d_p.data + i * d_p.ld, p.data + i * p.ld, keys, scale);
                matmul(false, false, n, D, keys, 1, d_p, k, 0, submatrix(d_q, first, 0));
                matmul(true, false, keys, D, n, 1, d_p, submatrix(q, first, 0), beta, d_k);
                matmul(true, false, keys, D, n, 1, p, d_o, beta, d_v);
            }
            store_matrix(d_qkv, 3 * head, T, 3 * D, ld, d_q);
        }
}
