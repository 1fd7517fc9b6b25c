/* Attention by blocks of keys: batched matmuls over the heads of a sequence, with a softmax between them. scores (2, A,
 * Q, keys) has room for P and dP. */
#include "../common/transformer/cuda/attention.cuh"
extern "C" {
#include "key_blocks.h"
}

int64_t attention_block_queries(void)
{
    return 512;
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

/* ---- merging the outputs of two blocks of keys ---- */

/* A warp per row, since rows are one head wide. Each output is divided by its own sum, exp(lse). Weighted with exp(lse
 * - common lse), they add up to the common output. */
__global__ void attention_merge_rows(float *out, float *lse, const float *part, const float *part_lse, int64_t rows,
                                     int64_t width)
{
    EACH_WARP_ROW(i, rows) {
        const float x = lse[i], y = part_lse[i], max = fmaxf(x, y), in_x = expf(x - max), in_y = expf(y - max);
        const float sum = in_x + in_y, share_x = in_x / sum, share_y = in_y / sum;
        EACH_COLUMN(j, 1, width)
            out[i * width + j] = share_x * out[i * width + j] + share_y * part[i * width + j];
        __syncwarp();                           /* all have read lse */
        if (threadIdx.x == 0)
            lse[i] = max + logf(sum);
    }
}

void attention_merge_kernel(Tensor out, Tensor lse, Tensor part, Tensor part_lse)
{
    const int64_t rows = tensor_rows(out);

    LAUNCH(attention_merge_rows, row_blocks(rows, WARPS), dim3(WARP, WARPS), out, lse, part, part_lse, rows,
           tensor_width(out));
}

/* ---- attention_delta: a warp per row, N elements a lane ---- */

template <typename T, int N>
__global__ void attention_delta_rows(float *delta, const T *d_out, const T *out, int64_t rows, int64_t width)
{
    EACH_WARP_ROW(i, rows) {
        float dot = 0, x[N], y[N];
        EACH_COLUMN(j, N, width) {
            load(x, d_out + i * width + j, N);
            load(y, out + i * width + j, N);
            for (int k = 0; k < N; k++)
                dot += x[k] * y[k];
        }
        dot = warp_sum(dot);
        if (threadIdx.x == 0)
            delta[i] = dot;
    }
}

void attention_delta_kernel(Tensor delta, Tensor d_out, Tensor out)
{
    const int64_t rows = tensor_count(delta), width = tensor_count(out) / rows;
    const bool wide = aligned(d_out, out) && width * dtype_size(out.dtype) % 16 == 0;

    FOR_TYPE(out.dtype, T, PACKED(wide, T, N,
        LAUNCH((attention_delta_rows<T, N>), row_blocks(rows, WARPS), dim3(WARP, WARPS), delta, d_out, out, rows,
               width)));
}

/* A warp copies a row, so that short rows keep all of a block's threads busy. */
template <typename T, int N>
__global__ void transpose_rows_all(T *out, const T *in, int64_t X, int64_t Y, int64_t W)
{
    EACH_WARP_ROW(i, X * Y) {
        const int64_t y = i / X, x = i % X;
        EACH_COLUMN(j, N, W) {
            float v[N];
            load(v, in + (x * Y + y) * W + j, N);
            store(out + i * W + j, v, N);
        }
    }
}

void transpose_rows_kernel(Tensor out, Tensor in)
{
    const int64_t X = in.shape[0], Y = in.shape[1], W = in.shape[2];

    FOR_TYPE(in.dtype, T, PACKED(rows_aligned(out, in), T, N,
        LAUNCH(transpose_rows_all<T, N>, row_blocks(X * Y, WARPS), dim3(WARP, WARPS), out, in, X, Y, W)));
}

struct Fill {
    float value;
    __device__ float operator()(float, float) const
    {
        return value;
    }
};

void tensor_fill_kernel(Tensor t, double value)
{
    compute<float, float>(t, t, t, Fill{(float)value});
}
