/* FlashAttention's forward (Dao et al. 2022, Dao 2023): a block has a tile of queries, and loops over tiles of keys and
 * values. Scores and probabilities exist only in registers. While scores are computed, the copy of the values to shared
 * memory is in flight; while values are multiplied, that of the next keys is. Where shared memory has room for only one
 * of the two (sm_75, heads above 96), both use one buffer, one after the other. */
#ifndef FLASH_FORWARD_CUH
#define FLASH_FORWARD_CUH

#include "flash.cuh"

/* A warp has 32 queries (M = 2), so that it uses each loaded key and value twice. Queries of heads up to 64 stay in
 * registers. Per product of 16 x 8 x 16 shared memory then moves 144 bytes: 128 out and, with 8 warps, 16 in. At its
 * datasheet's rate an H100 multiplies in the time of 128. mma.sync reaches 63% of that rate (Luo et al. 2025, arXiv
 * 2501.12084, section 6.2), in the time of 203, so shared memory keeps up. Larger heads leave no registers for
 * queries. */
template <typename T, int PAD> struct Forward {
    enum {
        M = sizeof(T) == 4 ? 1 : 2,
        HELD = sizeof(T) == 2 && PAD <= 64 ? PAD : 0,           /* columns */
        WARPS = HELD ? 8 : 4,
        QUERIES = 16 * M * WARPS,
        KEYS = sizeof(T) * PAD <= 256 ? sizeof(T) == 2 ? 64 : 32 : 16,
        THREADS = WARPS * WARP,
        QUERIES_BYTES = QUERIES * APART<T, PAD> * sizeof(T),
        KEYS_BYTES = KEYS * APART<T, PAD> * sizeof(T)
    };
};

/* Adds a tile to the online softmax of one row (Milakov & Gimelshein 2018): updates max and sum, and turns the scores
 * p[0 to N - 1][2h, 2h + 1] into exp(score - max). Returns exp(old max - max), by which older sums must be scaled. */
template <int N> __device__ static float softmax_tile(float (&p)[N][4], int h, float &max, float &sum, float scale)
{
    float most = max, s = 0;

#pragma unroll
    for (int j = 0; j < 2 * N; j++)
        most = fmaxf(most, p[j / 2][2 * h + j % 2]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));          /* the row lies in four lanes */
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
    for (int j = 0; j < 2 * N; j++) {
        float &x = p[j / 2][2 * h + j % 2];
        x = power_of_two(x * scale - most * scale);
        s += x;
    }
    const float shrink = power_of_two((max - most) * scale);    /* 0 at the first tile: max is -Inf */
    sum = sum * shrink + s;                                     /* per lane: its columns; added up at the end */
    max = most;
    return shrink;
}

/* CHUNK: continues from out and lse over earlier chunks of keys, as a softmax with max = lse and sum = 1. */
template <typename T, typename O, int PAD, bool CHUNK>
__global__ void __launch_bounds__(Forward<T, PAD>::THREADS)
flash_forward_tiles(O *out, float *lse, Heads<T> in, int64_t blocks, int buffers, Sizes s)
{
    typedef Forward<T, PAD> F;
    extern __shared__ __align__(16) char shared[];
    T *const q = (T *)shared, *const k = (T *)(shared + F::QUERIES_BYTES);
    T *const v = (T *)((char *)k + (buffers - 1) * F::KEYS_BYTES);
    const Place at = place_of_block(s, blocks);
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 16 * F::M;          /* this warp's first row */
    const int first = (int)(blocks - 1 - at.tile) * F::QUERIES; /* tiles with the most keys first */
    const int tokens = (int)s.tokens, keys = (int)s.keys;
    const bool causal = !CHUNK || s.causal;
    const int end = causal && first + F::QUERIES < keys ? first + F::QUERIES : keys;
    const T *of_q = in.q + at.batch * s.tokens * in.row + at.head * in.head;
    const T *of_k = in.k + at.batch * s.keys * in.row + at.head * in.head;
    const T *of_v = in.v + at.batch * s.keys * in.row + at.head * in.head;
    float sum[F::M][PAD / 8][4] = {}, p[F::M][F::KEYS / 8][4], max[F::M][2], total[F::M][2];

    out += (at.batch * s.tokens * s.heads + at.head) * s.size;
    lse += at.batch * s.tokens * s.heads + at.head * s.sum_head;
#pragma unroll
    for (int i = 0; i < 2 * F::M; i++) {
        const int row = first + own + 8 * i + lane / 4;
        const int m = i / 2, h = i % 2;
        const bool there = CHUNK && row < tokens;
        max[m][h] = there ? lse[row * s.sum_row] / s.scale : -INFINITY;
        total[m][h] = there && lane % 4 == 0;
#pragma unroll
        for (int j = 0; CHUNK && j < PAD / 4; j++) {
            const int64_t column = j / 2 * 8 + lane % 4 * 2 + j % 2;
            if (there && column < s.size)
                sum[m][j / 2][2 * h + j % 2] = number(out[row * s.heads * s.size + column]);
        }
    }
    load_tile<F::QUERIES, PAD, F::THREADS>(q, of_q, in.row, first, s.tokens, s);
    load_tile<F::KEYS, PAD, F::THREADS>(k, of_k, in.row, 0, s.keys, s);
    if (F::HELD) {
        copies_done();
        __syncthreads();
    }
    const Rows<T, PAD, F::M, F::HELD> queries(q + own * APART<T, PAD>);
    for (int key = 0; key < end; key += F::KEYS) {          /* tiles right of the diagonal are empty */
        const bool next = key + F::KEYS < end;
        const bool seen = first + own < tokens && (!causal || key < first + own + 16 * F::M);   /* by this warp */
        copies_done();
        __syncthreads();                        /* keys have arrived; no thread reads the previous values any more */
        if (buffers == 2)
            load_tile<F::KEYS, PAD, F::THREADS>(v, of_v, in.row, key, s.keys, s);
        if (seen) {
            rows_by_rows(p, queries, k);
            /* the last key in this tile that the warp's first row sees; without a mask, that every row sees */
            const int ahead = causal ? first + own - key : keys - key < F::KEYS ? keys - key - 1 : F::KEYS;
            if (ahead < F::KEYS - 1)            /* otherwise the tile is fully left of the diagonal, as most are */
#pragma unroll
                for (int i = 0; i < F::M * F::KEYS / 2; i++) {
                    const int m = i / (F::KEYS / 2), h = i % 4 / 2, j = i % (F::KEYS / 2) / 4;
                    if (j * 8 + lane % 4 * 2 + i % 2 > ahead + (causal ? 16 * m + 8 * h + lane / 4 : 0))
                        p[m][j][i % 4] = -INFINITY;
                }
#pragma unroll
            for (int i = 0; i < 2 * F::M; i++) {
                const int m = i / 2, h = i % 2;
                const float shrink = softmax_tile(p[m], h, max[m][h], total[m][h], s.scale * LOG2_E);
                if (__any_sync(~0u, shrink != 1))               /* rare after the first tiles */
#pragma unroll
                    for (int j = 0; j < PAD / 4; j++)
                        sum[m][j / 2][2 * h + j % 2] *= shrink;
            }
        }
        if (buffers == 1) {
            __syncthreads();                    /* no thread reads the keys any more: values take their place */
            load_tile<F::KEYS, PAD, F::THREADS>(v, of_v, in.row, key, s.keys, s);
        }
        copies_done();
        __syncthreads();                        /* values have arrived; no thread reads the keys any more */
        if (next && buffers == 2)
            load_tile<F::KEYS, PAD, F::THREADS>(k, of_k, in.row, key + F::KEYS, s.keys, s);
        if (seen)
            add_product<PAD>(sum, p, v);
        if (next && buffers == 1) {
            __syncthreads();
            load_tile<F::KEYS, PAD, F::THREADS>(k, of_k, in.row, key + F::KEYS, s.keys, s);
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * F::M; i++) {
        const int row = first + own + 8 * i + lane / 4;
        const int m = i / 2, h = i % 2;
        float all = total[m][h];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        if (row >= tokens)
            continue;
        store_row<PAD>(out + row * s.heads * s.size, sum[m], h, 1 / all, s);
        if (lane % 4 == 0)
            lse[row * s.sum_row] = max[m][h] * s.scale + logf(all);
    }
}

template <int PAD, bool CHUNK, typename T, typename O>
static void forward_tiles(O *out, Tensor lse, Heads<T> in, Sizes s)
{
    typedef Forward<T, PAD> F;
    const int64_t blocks = (s.tokens + F::QUERIES - 1) / F::QUERIES;
    const int buffers = buffers_for(F::QUERIES_BYTES, F::KEYS_BYTES, F::THREADS);

    s.together = heads_together(s.batch * s.heads, blocks);
    LAUNCH_SHARED(F::QUERIES_BYTES + buffers * F::KEYS_BYTES, (flash_forward_tiles<T, O, PAD, CHUNK>),
                  blocks * s.heads * s.batch, F::THREADS, out, data<float>(lse), in, blocks, buffers, s);
}

template <int PAD> void Flash<PAD>::attention_forward(Tensor out, Tensor lse, Tensor qkv, Sizes s)
{
    FOR_TYPE(qkv.dtype, T, forward_tiles<PAD, false>(data<T>(out), lse, heads_of<T>(qkv, s), s));
}

template <int PAD> void Flash<PAD>::block_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, Sizes s)
{
    FOR_TYPE(q.dtype, T, forward_tiles<PAD, true>(data<float>(out), lse, heads_of_chunk<T>(q, k, v, s), s));
}

#endif
