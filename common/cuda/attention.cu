/* Attention by batched matmuls over the heads of a sequence, with a softmax over the rows of scores between them.
 *
 * Queries are processed in blocks of QUERIES. A block computes scores for the keys up to its last query; keys after
 * that are fully masked and are not computed. Scores are float. If probabilities are stored in fewer bits, a block's
 * scores lie in scratch memory, so that they are rounded once, as probabilities. */
#include "kernel.cuh"

static const int64_t QUERIES = 512;

/* ---- the matrices of all heads of one sequence ---- */

/* Tokens from `first` on, in (B, T, A, x): rows lie A*x elements apart, heads x. */
static Matrix tokens_of(Tensor t, int64_t b, int64_t first)
{
    const int64_t A = t.shape[2], x = t.shape[3];
    const Matrix all = {t.data, t.dtype, A * x, x};

    return from(all, b * t.shape[1] + first, 0);
}

/* Queries from `first` on, in (B, A, T, keys), such as probabilities. */
static Matrix queries_of(Tensor t, int64_t b, int64_t first)
{
    const int64_t A = t.shape[1], T = t.shape[2], keys = t.shape[3];
    const Matrix all = {t.data, t.dtype, keys, T * keys};

    return from(all, b * A * T + first, 0);
}

/* ---- softmax of rows: for each of `heads` heads, n queries from `first` on; a thread block per row ---- */

/* Returns how many of the `keys` keys query `first` + i attends to. */
__device__ static int64_t seen_by(int64_t first, int64_t i, int64_t keys, bool causal)
{
    return causal ? first + i + 1 : keys;
}

template <typename T> __device__ static T *row_of(Matrix m, int64_t head, int64_t i)
{
    return (T *)m.data + head * m.stride + i * m.ld;
}

/* probs = softmax(scores), 0 where masked; and lse[i * heads + head], unless NULL. probs may be the scores. */
template <typename T>
__global__ void softmax_rows(Matrix probs, Matrix scores, float *lse, int64_t heads, int64_t n, int64_t first,
                             int64_t keys, bool causal)
{
    EACH_ROW(row, heads * n) {
        const int64_t head = row / n, i = row % n, seen = seen_by(first, i, keys, causal);
        const float *s = row_of<float>(scores, head, i);
        T *p = row_of<T>(probs, head, i);
        float max = -INFINITY, sum = 0;
        EACH_COLUMN(j, 1, seen)
            max = fmaxf(max, s[j]);
        max = block_max(max);
        EACH_COLUMN(j, 1, seen)
            sum += expf(s[j] - max);
        sum = block_sum(sum);
        const float inverse = 1 / sum;
        EACH_COLUMN(j, 1, keys)                 /* exp again, which is faster than storing and loading it */
            set(&p[j], j < seen ? expf(s[j] - max) * inverse : 0);
        if (lse && threadIdx.x == 0)
            lse[i * heads + head] = max + logf(sum);
    }
}

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

/* A block's scores: in place if probabilities are stored as float, else in scratch memory. */
static Matrix scores_of(Tensor probs, Matrix p, float *scratch)
{
    const int64_t T = probs.shape[2], ld = (T + 3) / 4 * 4;

    return probs.dtype == F32 ? p : (Matrix){scratch, F32, ld, (T < QUERIES ? T : QUERIES) * ld};
}

static int64_t scratch_bytes(Tensor probs)
{
    return probs.dtype == F32 ? 0 : probs.shape[1] * scores_of(probs, (Matrix){0}, NULL).stride * 4;
}

void attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(out) / A;
    const int64_t bytes = scratch_bytes(probs);
    float *scratch = bytes ? (float *)device_scratch(bytes) : NULL;

    for (int64_t b = 0; b < B; b++) {
        const Matrix q = tokens_of(heads_of(qkv, probs), b, 0), k = from(q, 0, D), v = from(q, 0, 2 * D);
        for (int64_t first = 0; first < T; first += QUERIES) {
            const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
            const Matrix p = queries_of(probs, b, first), s = scores_of(probs, p, scratch);
            matmul(false, true, n, keys, D, 1 / sqrtf(D), from(q, first, 0), k, 0, s, A);
            FOR_TYPE(probs.dtype, E,
                LAUNCH(softmax_rows<E>, row_blocks(A * n), row_threads(keys, 4), p, s, nullptr, A, n, first, keys,
                       true));
            matmul(false, false, n, D, keys, 1, p, v, 0, tokens_of(heads_of(out, probs), b, first), A);
        }
    }
    if (bytes)
        device_free(scratch, bytes);
}

/* Per block of queries: dP = dO V^T, dS = P * (dP - rowsum(dP * P)) / sqrt(D), dQ = dS K. Then per block of keys: dK =
 * dS^T Q and dV = P^T dO, over all queries that attend to it, so that each is written once. */
void attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    const int64_t B = probs.shape[0], A = probs.shape[1], T = probs.shape[2], D = tensor_width(d_out) / A;
    const int64_t bytes = scratch_bytes(probs);
    float *scratch = bytes ? (float *)device_scratch(bytes) : NULL;

    for (int64_t b = 0; b < B; b++) {
        const Matrix q = tokens_of(heads_of(qkv, probs), b, 0), k = from(q, 0, D), v = from(q, 0, 2 * D);
        const Matrix d_q = tokens_of(heads_of(d_qkv, probs), b, 0), d_k = from(d_q, 0, D), d_v = from(d_q, 0, 2 * D);
        const Matrix d_o = tokens_of(heads_of(d_out, probs), b, 0);
        for (int64_t first = 0; first < T; first += QUERIES) {
            const int64_t n = T - first < QUERIES ? T - first : QUERIES, keys = first + n;
            const Matrix p = queries_of(probs, b, first), d_s = queries_of(d_probs, b, first);
            const Matrix d_p = scores_of(probs, d_s, scratch);
            matmul(false, true, n, keys, D, 1, from(d_o, first, 0), v, 0, d_p, A);
            FOR_TYPE(probs.dtype, E,
                LAUNCH(softmax_backward_rows<E>, row_blocks(A * n), row_threads(keys, 4), d_s, d_p, p, A, n, first,
                       keys, 1 / sqrtf(D)));
            matmul(false, false, n, D, keys, 1, d_s, k, 0, from(d_q, first, 0), A);
        }
        for (int64_t first = 0; first < T; first += QUERIES) {
            const int64_t n = T - first < QUERIES ? T - first : QUERIES, queries = T - first;
            const Matrix p = from(queries_of(probs, b, first), 0, first);
            const Matrix d_s = from(queries_of(d_probs, b, first), 0, first);
            matmul(true, false, n, D, queries, 1, d_s, from(q, first, 0), 0, from(d_k, first, 0), A);
            matmul(true, false, n, D, queries, 1, p, from(d_o, first, 0), 0, from(d_v, first, 0), A);
        }
    }
    if (bytes)
        device_free(scratch, bytes);
}

/* ---- attention by blocks of keys: scores (2, A, Q, keys) has room for P and dP ---- */

int64_t attention_block_queries(void)
{
    return QUERIES;
}

void attention_block_forward_kernel(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], Q = scores.shape[2];
    const Matrix p = queries_of(scores, 0, 0);

    for (int64_t b = 0; b < B; b++)
        for (int64_t first = 0; first < C; first += Q) {
            const int64_t n = C - first < Q ? C - first : Q, keys = causal ? first + n : K;
            matmul(false, true, n, keys, D, 1 / sqrtf(D), tokens_of(q, b, first), tokens_of(k, b, 0), 0, p, A);
            LAUNCH(softmax_rows<float>, row_blocks(A * n), row_threads(keys, 4), p, p, tokens_of(lse, b, first).data,
                   A, n, first, keys, causal);
            matmul(false, false, n, D, keys, 1, p, tokens_of(v, b, 0), 0, tokens_of(out, b, first), A);
        }
}

/* In place: p becomes exp(p - lse), d_p becomes p * (d_p - delta) * scale, both 0 where masked. */
__global__ void probs_backward_rows(Matrix p, Matrix d_p, const float *lse, const float *delta, int64_t heads,
                                    int64_t n, int64_t first, int64_t keys, bool causal, float scale)
{
    EACH_ROW(row, heads * n) {
        const int64_t head = row / n, i = row % n, seen = seen_by(first, i, keys, causal);
        const float l = lse[i * heads + head], dot = delta[i * heads + head];
        float *p_row = row_of<float>(p, head, i), *d_row = row_of<float>(d_p, head, i);
        EACH_COLUMN(j, 1, keys) {
            p_row[j] = j < seen ? expf(p_row[j] - l) : 0;
            d_row[j] = j < seen ? scale * p_row[j] * (d_row[j] - dot) : 0;
        }
    }
}

/* P = exp(S - lse), dP = dO V^T, dS = P * (dP - delta) / sqrt(D); dQ += dS K, dK += dS^T Q, dV += P^T dO. */
void attention_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q,
                                     Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], Q = scores.shape[2];
    const Matrix p = queries_of(scores, 0, 0), d_p = queries_of(scores, 1, 0);
    const float scale = 1 / sqrtf(D);

    for (int64_t b = 0; b < B; b++)
        for (int64_t first = 0; first < C; first += Q) {
            const int64_t n = C - first < Q ? C - first : Q, keys = causal ? first + n : K;
            const Matrix queries = tokens_of(q, b, first), d_o = tokens_of(d_out, b, first);
            matmul(false, true, n, keys, D, scale, queries, tokens_of(k, b, 0), 0, p, A);
            matmul(false, true, n, keys, D, 1, d_o, tokens_of(v, b, 0), 0, d_p, A);
            LAUNCH(probs_backward_rows, row_blocks(A * n), row_threads(keys, 4), p, d_p,
                   tokens_of(lse, b, first).data, tokens_of(delta, b, first).data, A, n, first, keys, causal, scale);
            matmul(false, false, n, D, keys, 1, d_p, tokens_of(k, b, 0), 1, tokens_of(d_q, b, first), A);
            matmul(true, false, keys, D, n, 1, d_p, queries, 1, tokens_of(d_k, b, 0), A);
            matmul(true, false, keys, D, n, 1, p, d_o, 1, tokens_of(d_v, b, 0), A);
        }
}
