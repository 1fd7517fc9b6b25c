/* Attention by batched matmuls over the heads of all sequences, with a softmax over the rows of scores between them.
 *
 * Queries are processed in blocks of QUERIES. A block computes scores for the keys up to its last query; keys after
 * that are fully masked and are not computed. A block's scores are float, in scratch memory, so that they are rounded
 * once, as probabilities: those of as many sequences at a time as MOST_SCRATCH bytes hold. */
#include "attention.cuh"

static const int64_t QUERIES = 512, MOST_SCRATCH = 64 << 20;

/* d_scores = probs * (d_probs - sum(d_probs * probs)) * scale, 0 where masked. d_scores may be d_probs. */
template <typename T>
__global__ void softmax_backward_rows(Matrix d_scores, Matrix d_probs, Matrix probs, int64_t heads, int64_t n,
                                      int64_t first, int64_t keys, float scale)
{
    EACH_ROW(row, heads * n) {
        const int64_t head = row / n, i = row % n, seen = seen_by(first, i, keys, true);
        const float *d = row_of<float>(d_probs, head, i);
        const T *p = row_of<T>(probs, head, i);
        T *d_s = row_of<T>(d_scores, head, i);
        float dot = 0;
        EACH_COLUMN(j, 1, seen)
            dot += d[j] * number(p[j]);
        dot = block_sum(dot);
        EACH_COLUMN(j, 1, keys)
            set(&d_s[j], j < seen ? scale * number(p[j]) * (d[j] - dot) : 0);
    }
}

/* ---- attention with all probabilities ---- */

/* (B*T, A*x) as (B, T, A, x). */
static Tensor heads_of(Tensor t, Tensor probs)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2];

    return (Tensor){t.data, t.name, t.dtype, 4, {B, T, A, tensor_count(t) / (B * T * A)}};
}

/* A block's scores, in scratch memory. */
static Matrix scores_of(Tensor probs, float *scratch)
{
    const int64_t A = probs.shape[1], T = probs.shape[2], ld = (T + 3) / 4 * 4, head = (T < QUERIES ? T : QUERIES) * ld;

    return (Matrix){scratch, F32, ld, head, A * head};
}

/* Returns how many sequences are processed at a time. */
static int64_t sequences_at_once(Tensor probs)
{
    return clamped(MOST_SCRATCH / (scores_of(probs, NULL).apart * 4), 1, probs.shape[0]);
}

void attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;
    const int64_t most = sequences_at_once(probs), bytes = most * scores_of(probs, NULL).apart * 4;
    float *scratch = (float *)device_scratch(bytes);

    for (int64_t b = 0; b < B; b += most) {
        const int64_t sequences = B - b < most ? B - b : most, heads = sequences * A;
        const Matrix q = tokens_of(heads_of(qkv, probs), b, 0), k = from(q, 0, D), v = from(q, 0, 2 * D);
        for (int64_t first = 0; first < T; first += QUERIES) {
            const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
            const Matrix p = queries_of(probs, b, first), s = scores_of(probs, scratch);
            matmul(false, true, n, keys, D, 1 / sqrtf(D), from(q, first, 0), k, 0, s, A, sequences);
            FOR_TYPE(probs.dtype, E,
                LAUNCH(softmax_rows<E>, row_blocks(heads * n), row_threads(keys, 4), p, s, nullptr, heads, n, first,
                       keys, true));
            matmul(false, false, n, D, keys, 1, p, v, 0, tokens_of(heads_of(out, probs), b, first), A, sequences);
        }
    }
    device_free(scratch, bytes);
}

/* Per block of queries: dP = dO V^T, dS = P * (dP - rowsum(dP * P)) / sqrt(D), dQ = dS K. Then per block of keys: dK =
 * dS^T Q and dV = P^T dO, over all queries that attend to it, so that each is written once. */
void attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(d_out) / A;
    const int64_t most = sequences_at_once(probs), bytes = most * scores_of(probs, NULL).apart * 4;
    float *scratch = (float *)device_scratch(bytes);

    for (int64_t b = 0; b < B; b += most) {
        const int64_t sequences = B - b < most ? B - b : most, heads = sequences * A;
        const Matrix q = tokens_of(heads_of(qkv, probs), b, 0), k = from(q, 0, D), v = from(q, 0, 2 * D);
        const Matrix d_q = tokens_of(heads_of(d_qkv, probs), b, 0), d_k = from(d_q, 0, D), d_v = from(d_q, 0, 2 * D);
        const Matrix d_o = tokens_of(heads_of(d_out, probs), b, 0);
        for (int64_t first = 0; first < T; first += QUERIES) {
            const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
            const Matrix p = queries_of(probs, b, first), d_s = queries_of(d_probs, b, first);
            const Matrix d_p = scores_of(probs, scratch);
            matmul(false, true, n, keys, D, 1, from(d_o, first, 0), v, 0, d_p, A, sequences);
            FOR_TYPE(probs.dtype, E,
                LAUNCH(softmax_backward_rows<E>, row_blocks(heads * n), row_threads(keys, 4), d_s, d_p, p, heads, n,
                       first, keys, 1 / sqrtf(D)));
            matmul(false, false, n, D, keys, 1, d_s, k, 0, from(d_q, first, 0), A, sequences);
        }
        for (int64_t first = 0; first < T; first += QUERIES) {
            const int64_t n = T - first < QUERIES ? T - first : QUERIES, queries = T - first;
            const Matrix p = from(queries_of(probs, b, first), 0, first);
            const Matrix d_s = from(queries_of(d_probs, b, first), 0, first);
            matmul(true, false, n, D, queries, 1, d_s, from(q, first, 0), 0, from(d_k, first, 0), A, sequences);
            matmul(true, false, n, D, queries, 1, p, from(d_o, first, 0), 0, from(d_v, first, 0), A, sequences);
        }
    }
    device_free(scratch, bytes);
}
