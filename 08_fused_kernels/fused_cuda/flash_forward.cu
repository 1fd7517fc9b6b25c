/* FlashAttention's forward (Dao et al. 2022, Dao 2023): a block has a tile of queries, and keys and values pass by in
 * tiles. Scores and probabilities are never anywhere but in registers. While scores are computed, values are on their
 * way to shared memory; while those are multiplied, the next keys are. */
#include "flash.cuh"

template <typename T, int PAD> struct Forward {
    enum {
        WARPS = 4,
        M = sizeof(T) == 4 ? 1 : 2,             /* with two, a warp uses each operand that it loads twice */
        QUERIES = 16 * M * WARPS,
        KEYS = Tile<T, PAD>::OTHER,
        APART = Tile<T, PAD>::APART,
        THREADS = WARPS * WARP,
        BYTES = (QUERIES + 2 * KEYS) * APART * sizeof(T)
    };
};

/* The softmax of a row whose scores come tile by tile (Milakov & Gimelshein 2018): p[0 to N - 1][2h, 2h + 1] become
 * exp(score - largest score so far). Returns what all sums under the last largest score must be multiplied with. */
template <int N> __device__ static float softmax_tile(float (&p)[N][4], int h, float &max, float &sum, float scale)
{
    float most = max, s = 0;

#pragma unroll
    for (int j = 0; j < 2 * N; j++)
        most = fmaxf(most, p[j / 2][2 * h + j % 2]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));          /* four lanes have the row */
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
    for (int j = 0; j < 2 * N; j++) {
        float &x = p[j / 2][2 * h + j % 2];
        x = power_of_two(x * scale - most * scale);
        s += x;
    }
    const float shrink = power_of_two((max - most) * scale);    /* -Inf at the first tile: 0 */
    sum = sum * shrink + s;                                     /* this lane's columns; the others' are added at last */
    max = most;
    return shrink;
}

template <typename T, int PAD>
__global__ void __launch_bounds__(Forward<T, PAD>::THREADS)
flash_forward_tiles(T *out, float *lse, const T *qkv, int64_t blocks, Sizes s)
{
    typedef Forward<T, PAD> F;
    extern __shared__ __align__(16) char shared[];
    T *const q = (T *)shared, *const k = q + F::QUERIES * F::APART, *const v = k + F::KEYS * F::APART;
    const Place at = place_of_block(s.heads, blocks);
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 16 * F::M;          /* this warp's first row */
    const int64_t first = (blocks - 1 - at.tile) * F::QUERIES;  /* the last ones see the most keys: they come first */
    const int64_t end = first + F::QUERIES < s.tokens ? first + F::QUERIES : s.tokens, ld = 3 * s.heads * s.size;
    const T *in = qkv + (at.batch * s.tokens * s.heads + at.head) * 3 * s.size;
    float sum[F::M][PAD / 8][4] = {}, p[F::M][F::KEYS / 8][4], max[F::M][2], total[F::M][2];

    for (int m = 0; m < F::M; m++)
        for (int h = 0; h < 2; h++)
            max[m][h] = -INFINITY, total[m][h] = 0;
    load_tile<F::QUERIES, PAD, F::THREADS>(q, in, ld, first, s);
    load_tile<F::KEYS, PAD, F::THREADS>(k, in + s.size, ld, 0, s);
    for (int64_t key = 0; key < end; key += F::KEYS) {          /* tiles behind the diagonal are empty */
        const bool seen = key < first + own + 16 * F::M;        /* by this warp's last row */
        copies_done();
        __syncthreads();                        /* keys are there, and all have done with the last values */
        load_tile<F::KEYS, PAD, F::THREADS>(v, in + 2 * s.size, ld, key, s);
        if (seen) {
            rows_by_rows<PAD>(p, q + own * F::APART, k);
            const int ahead = (int)(first + own - key);         /* of this warp's first row: its last key */
            if (ahead < F::KEYS - 1)            /* else the tile is left of the diagonal altogether, as most are */
#pragma unroll
                for (int i = 0; i < F::M * F::KEYS / 2; i++) {
                    const int m = i / (F::KEYS / 2), h = i % 4 / 2, j = i % (F::KEYS / 2) / 4;
                    if (j * 8 + lane % 4 * 2 + i % 2 > ahead + 16 * m + 8 * h + lane / 4)
                        p[m][j][i % 4] = -INFINITY;
                }
#pragma unroll
            for (int i = 0; i < 2 * F::M; i++) {
                const int m = i / 2, h = i % 2;
                const float shrink = softmax_tile(p[m], h, max[m][h], total[m][h], s.scale * LOG2_E);
                if (__any_sync(~0u, shrink != 1))               /* rarely, after the first tiles */
#pragma unroll
                    for (int j = 0; j < PAD / 4; j++)
                        sum[m][j / 2][2 * h + j % 2] *= shrink;
            }
        }
        copies_done();
        __syncthreads();                        /* values are there, and all have done with the keys */
        if (key + F::KEYS < end)
            load_tile<F::KEYS, PAD, F::THREADS>(k, in + s.size, ld, key + F::KEYS, s);
        if (seen)
            add_product<PAD>(sum, p, v);
    }
#pragma unroll
    for (int i = 0; i < 2 * F::M; i++) {
        const int64_t row = first + own + 8 * i + lane / 4;
        const int m = i / 2, h = i % 2;
        float all = total[m][h];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        if (row >= s.tokens)
            continue;
        store_row<PAD>(out + ((at.batch * s.tokens + row) * s.heads + at.head) * s.size, sum[m], h, 1 / all, s);
        if (lane % 4 == 0)
            lse[(at.batch * s.heads + at.head) * s.tokens + row] = max[m][h] * s.scale + logf(all);
    }
}

void flash_attention_forward_kernel(Tensor out, Tensor lse, Tensor qkv)
{
    Sizes s = sizes_of(qkv, lse, "flash_attention_forward");

    s.wide = s.wide && aligned(out);
    FOR_TYPE(qkv.dtype, T, FOR_HEAD_SIZE(s.size, PAD,
        typedef Forward<T, PAD> F;
        const int64_t blocks = (s.tokens + F::QUERIES - 1) / F::QUERIES;
        LAUNCH_SHARED(F::BYTES, flash_forward_tiles<T, PAD>, blocks * s.heads * s.batch, F::THREADS, data<T>(out),
                      data<float>(lse), data<T>(qkv), blocks, s)));
}
