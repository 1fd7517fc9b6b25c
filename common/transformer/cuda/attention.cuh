/* What attention with all probabilities and attention by blocks of keys share. */
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include "kernel_cuda.cuh"

/* ---- the matrices of all heads of a sequence, from sequence b on; a sequence is a group ---- */

/* Tokens from `first` on, in (B, T, A, x): rows lie A*x elements apart, heads x. */
static Matrix tokens_of(Tensor t, int64_t b, int64_t first)
{
    const int64_t A = t.shape[2], x = t.shape[3];
    const Matrix all = {t.data, t.dtype, A * x, x, t.shape[1] * A * x};

    return from(all, b * t.shape[1] + first, 0);
}

/* Queries from `first` on, in (B, A, T, keys), such as probabilities. */
static Matrix queries_of(Tensor t, int64_t b, int64_t first)
{
    const int64_t A = t.shape[1], T = t.shape[2], keys = t.shape[3];
    const Matrix all = {t.data, t.dtype, keys, T * keys, A * T * keys};

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
        const float max = row_max<1>(s, seen), sum = row_sum<1>(s, max, seen), inverse = 1 / sum;
        EACH_COLUMN(j, 1, keys)                 /* exp again, which is faster than storing and loading it */
            set(&p[j], j < seen ? expf(s[j] - max) * inverse : 0);
        if (lse && threadIdx.x == 0)
            lse[i * heads + head] = max + logf(sum);
    }
}

#endif
