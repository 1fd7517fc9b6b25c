/* FlashAttention's backward: P = exp(scores - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - delta),
 * dQ = dS K / sqrt(D), dK = dS^T Q / sqrt(D).
 *
 * A block has a tile of keys, and loops over tiles of queries: five products of tiles. dK and dV stay in registers.
 * Scores and dP come out transposed, a warp's own keys by queries, so that P and dS lie as the left operands of dV and
 * dK. dS goes through shared memory to dQ, whose columns and rows are dealt to all warps.
 *
 * dQ is a sum over all tiles of keys. If several blocks added to it, the order would change from run to run, and so
 * would the last bits. Here one block computes several tiles of keys of a head, one after the other, and adds to dQ in
 * memory: always the same thread to the same number, so that nothing waits. With few sequences and heads, `groups`
 * blocks share a head's tiles. Each has its own dQ, which flash_query_gradients adds up, in order. (Recomputing scores
 * and dP in a second kernel, by queries, needs no sum, but 7 products of tiles.) */
#ifndef FLASH_BACKWARD_CUH
#define FLASH_BACKWARD_CUH

#include "flash.cuh"

/* dK and dV take 128 of 255 registers: of 32 keys a warp (M = 2) with heads of 64, of 16 keys with heads of 128. With
 * 32 keys a warp uses each loaded row of Q and dO twice. Scores and dP are computed for STRIP queries at a time. LARGE:
 * a block of 8 warps, where shared memory has room. What registers are left hold rows of K. */
template <typename T, int PAD, bool LARGE> struct Backward {
    enum {
        M = sizeof(T) == 2 && PAD <= 64 ? 2 : 1,
        HELD = LARGE ? PAD : 0,                 /* columns of keys in registers */
        WARPS = LARGE ? 8 : sizeof(T) * PAD > 256 ? 2 : 4,
        THREADS = WARPS * WARP,
        OWN = 16 * M * WARPS,                   /* keys */
        OTHER = LARGE ? 64 * M : sizeof(T) * PAD > 256 ? 16 : 32,       /* queries */
        STRIP = LARGE && M == 2 || OTHER < 32 ? 16 : 32,
        QUERIES_APART = OTHER + 8,              /* rows of dS^T, in different banks as all rows are */
        QUERY_M = OTHER < 32 ? 1 : 2,           /* dQ: a warp has 16 times this many queries, */
        QUERY_WARPS = WARPS / (OTHER / (16 * QUERY_M)),         /* and this many warps share the columns, */
        QUERY_N = 2 * ((PAD / 16 + QUERY_WARPS - 1) / QUERY_WARPS),     /* 8 times this many each, */
        QUERY_ROW = 8 * QUERY_N * QUERY_WARPS,  /* PAD or a little more */
        OWN_BYTES = OWN * (2 * APART<T, PAD> + QUERIES_APART) * sizeof(T),
        OTHER_BYTES = 2 * OTHER * (APART<T, PAD> * sizeof(T) + sizeof(float))
    };
};

/* A tile of queries in shared memory: q and dO, with their lse and delta. */
template <typename T, int PAD, int OTHER> struct Queries {
    T q[OTHER * APART<T, PAD>], d_out[OTHER * APART<T, PAD>];
    float lse[OTHER], delta[OTHER];
};

/* buffers: with 2, the copy of the next tile of queries is in flight while the current one is used. parts: of dQ,
 * (groups, B, A, T rounded up to full tiles, QUERY_ROW), each head's numbers as place_of_numbers says. */
template <typename T, typename O, int PAD, bool LARGE, bool CHUNK>
__global__ void __launch_bounds__(Backward<T, PAD, LARGE>::THREADS)
flash_backward_tiles(Heads<O> to, float *parts, const T *d_out, Heads<T> in, const float *lse, const float *delta,
                     int64_t groups, int buffers, Sizes s)
{
    typedef Backward<T, PAD, LARGE> K;
    extern __shared__ __align__(16) char shared[];
    T *const own_k = (T *)shared, *const own_v = own_k + K::OWN * APART<T, PAD>;
    T *const d_scores = own_v + K::OWN * APART<T, PAD>;         /* dS^T */
    Queries<T, PAD, K::OTHER> *const queries = (Queries<T, PAD, K::OTHER> *)(shared + K::OWN_BYTES);
    const Place at = place_of_block(s, groups);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, own = warp * 16 * K::M; /* this warp's first key */
    const bool causal = !CHUNK || s.causal;
    const int tokens = (int)s.tokens, keys_all = (int)s.keys;
    const int64_t ld = in.row, ld_out = s.heads * s.size, head = at.batch * s.heads + at.head;
    const T *q = in.q + at.batch * s.tokens * ld + at.head * in.head;
    const T *k = in.k + at.batch * s.keys * ld + at.head * in.head, *v = in.v + (k - in.k);
    const T *d_o = d_out + (at.batch * s.tokens * s.heads + at.head) * s.size;
    /* dQ: this warp's first query and column in a tile */
    const int query = warp / K::QUERY_WARPS * 16 * K::QUERY_M, column = warp % K::QUERY_WARPS * 8 * K::QUERY_N;

    lse += at.batch * s.tokens * s.heads + at.head * s.sum_head;
    delta += at.batch * s.tokens * s.heads + at.head * s.sum_head;
    parts += (at.tile * s.batch * s.heads + head) * ((tokens + K::OTHER - 1) / K::OTHER * K::OTHER) * K::QUERY_ROW;
    const auto load_queries = [&](Queries<T, PAD, K::OTHER> *o, int64_t other) {
        load_tile<K::OTHER, PAD, K::THREADS>(o->q, q, ld, other, s.tokens, s);
        load_tile<K::OTHER, PAD, K::THREADS>(o->d_out, d_o, ld_out, other, s.tokens, s);
        if (threadIdx.x < K::OTHER) {
            const bool there = other + threadIdx.x < s.tokens;
            const int64_t row = there ? other + threadIdx.x : 0;
            begin_copy<4>(&o->lse[threadIdx.x], &lse[row * s.sum_row], there);
            begin_copy<4>(&o->delta[threadIdx.x], &delta[row * s.sum_row], there);
        }
    };
    /* The group's tiles: g, 2G - 1 - g, 2G + g, ... of G groups, so that the causal mask leaves alike work to all. */
    for (int i = 0, first; (first = (int)(i * groups + (i % 2 ? groups - 1 - at.tile : at.tile)) * K::OWN) < keys_all;
         i++) {
        float d_k[K::M][PAD / 8][4] = {}, d_v[K::M][PAD / 8][4] = {};
        int now = 0;
        __syncthreads();                        /* no thread reads the previous tile of keys any more */
        load_tile<K::OWN, PAD, K::THREADS>(own_k, k, ld, first, s.keys, s);
        load_tile<K::OWN, PAD, K::THREADS>(own_v, v, ld, first, s.keys, s);
        if (K::HELD) {
            copies_done();
            __syncthreads();
        }
        const Rows<T, PAD, K::M, K::HELD> keys(own_k + own * APART<T, PAD>);
        const Rows<T, PAD, K::M, 0> values(own_v + own * APART<T, PAD>);
        const int begin = causal ? first : 0;   /* tiles before the diagonal are empty */
        load_queries(queries, begin);
        for (int other = begin; other < tokens; other += K::OTHER) {
            const Queries<T, PAD, K::OTHER> *o = &queries[now];
            const bool next = other + K::OTHER < tokens;
            const int ahead = first + own - other;      /* this warp's first key, beside the tile's queries */
            const int there = tokens - other < K::OTHER ? tokens - other : K::OTHER, keys_end = keys_all - other;
            copies_done();
            __syncthreads();                    /* queries have arrived; no thread reads the previous ones, or dS */
            if (next && buffers == 2)
                load_queries(&queries[now = !now], other + K::OTHER);
#pragma unroll 1
            for (int strip = 0; strip < K::OTHER; strip += K::STRIP) {
                float p[K::M][K::STRIP / 8][4] = {}, d[K::M][K::STRIP / 8][4] = {};
                if (!causal || ahead < strip + K::STRIP) {      /* some query sees this warp's first key */
                    rows_by_rows(p, keys, o->q + strip * APART<T, PAD>);
                    rows_by_rows(d, values, o->d_out + strip * APART<T, PAD>);
#pragma unroll
                    for (int j = 0; j < K::M * K::STRIP / 2; j++) {
                        const int n = j / 4 / K::M, m = j / 4 % K::M;   /* by n first: few of lse in registers */
                        const int theirs = strip + n * 8 + lane % 4 * 2 + j % 2;        /* the query */
                        float &x = p[m][n][j % 4], &y = d[m][n][j % 4];
                        x = power_of_two(x * (s.scale * LOG2_E) - o->lse[theirs] * LOG2_E);
                        y = x * (y - o->delta[theirs]);
                    }
                    /* most strips lie on one side of the diagonal, and need no mask */
                    if (there < strip + K::STRIP || ahead + 16 * K::M > (causal ? strip + 1 : keys_end))
#pragma unroll
                        for (int j = 0; j < K::M * K::STRIP / 2; j++) {
                            const int m = j / (K::STRIP / 2), n = j % (K::STRIP / 2) / 4;
                            const int mine = ahead + 16 * m + j % 4 / 2 * 8 + lane / 4;
                            const int theirs = strip + n * 8 + lane % 4 * 2 + j % 2;
                            if (theirs >= there || (causal ? mine > theirs : mine >= keys_end))
                                p[m][n][j % 4] = d[m][n][j % 4] = 0;
                        }
                    add_product<PAD>(d_v, p, o->d_out + strip * APART<T, PAD>);
                    add_product<PAD>(d_k, d, o->q + strip * APART<T, PAD>);
                }
#pragma unroll
                for (int j = 0; j < K::M * K::STRIP / 4; j++) {
                    const int m = j / (K::STRIP / 4), n = j % (K::STRIP / 4) / 2, h = j % 2;
                    T *const row = d_scores + (own + 16 * m + 8 * h + lane / 4) * K::QUERIES_APART;
                    const float x[2] = {d[m][n][2 * h], d[m][n][2 * h + 1]};
                    store(row + strip + 8 * n + lane % 4 * 2, x, 2);
                }
            }
            float d_q[K::QUERY_M][K::QUERY_N][4] = {};
            const int columns = K::QUERY_ROW == PAD ? 8 * K::QUERY_N : PAD - column;
            __syncthreads();                    /* all of dS is there */
            const int last = causal ? other + query + 16 * K::QUERY_M - first : K::OWN;     /* key seen, plus 1 */
            add_columns_by_columns<PAD, K::QUERIES_APART>(d_q, d_scores + query, own_k + column,
                                                          last < K::OWN ? last : K::OWN, columns);
            /* the first tile of keys begins dQ, the next ones add to it */
            put_sum<K::QUERY_ROW>(parts + place_of_numbers<K::QUERY_ROW>(other + query, column), d_q, i > 0);
            if (next && buffers == 1) {
                __syncthreads();                /* no thread reads this tile any more */
                load_queries(queries, other + K::OTHER);
            }
        }
#pragma unroll
        for (int j = 0; j < 2 * K::M; j++) {
            const int m = j / 2, h = j % 2;
            const int64_t row = first + own + 8 * j + lane / 4;
            const int64_t place = (at.batch * s.keys + row) * to.row + at.head * to.head;
            if (row >= s.keys)
                continue;
            if constexpr (CHUNK) {
                add_row<PAD>(to.k + place, d_k[m], h, s.scale, s);
                add_row<PAD>(to.v + place, d_v[m], h, 1, s);
            } else {
                store_row<PAD>(to.k + place, d_k[m], h, s.scale, s);
                store_row<PAD>(to.v + place, d_v[m], h, 1, s);
            }
        }
    }
}

/* dQ = or, if ADD, += the sum of its parts / sqrt(D). The first tile of keys of group g is tile g, so a query has a
 * part of each group whose first tile it sees. A thread has the 4 numbers of a lane (place_of_numbers), of head
 * blockIdx.x. N: 2 where a pair of columns is aligned, else 1. */
template <typename K, bool ADD, int N, typename O>
__global__ void flash_query_gradients(Heads<O> to, const float *parts, int64_t groups, int64_t of_head, bool causal,
                                      Sizes s)
{
    enum { ACROSS = K::QUERY_ROW / 16 };        /* blocks of 16 columns */
    const int64_t batch = blockIdx.x / (int)s.heads, part = gridDim.x * of_head;

    parts += blockIdx.x * of_head;
    for (int64_t i = (blockIdx.y * THREADS + threadIdx.x) * 4; i < of_head; i += gridDim.y * THREADS * 4) {
        const int64_t token = i / 128 / ACROSS * 8 + i % 128 / 16, column = i / 128 % ACROSS * 16 + i % 16 / 2;
        O *const d_q = to.q + (batch * s.tokens + token) * to.row + (blockIdx.x - batch * s.heads) * to.head + column;
        float sum[4] = {}, x[4];
        if (token >= s.tokens)
            return;
        for (int64_t g = 0; g < groups && (!causal || g * K::OWN <= token); g++) {
            load(x, parts + g * part + i, 4);
            for (int k = 0; k < 4; k++)
                sum[k] += x[k];
        }
        for (int k = 0; k < 4; k += N) {
            const int apart = k / 2 * 8 + k % 2;
            float y[N] = {};
            if (column + apart >= s.size)
                continue;
            if (ADD)
                load(y, d_q + apart, N);
            for (int n = 0; n < N; n++)
                y[n] += sum[k + n] * s.scale;
            store(d_q + apart, y, N);
        }
    }
}

/* Whether the blocks are large: for half precision, where shared memory has room. */
template <typename T, int PAD> static bool is_large(Sizes s)
{
    typedef Backward<T, PAD, true> K;

    return sizeof(T) == 2 && s.keys > Backward<T, PAD, false>::OWN
        && buffers_for(K::OWN_BYTES, K::OTHER_BYTES, K::THREADS);
}

/* The elements of one group's dQ; and the number of groups: enough for all multiprocessors, but in at most 1 GB, unless
 * a single group needs more. */
template <typename K> static int64_t part_of(Sizes s)
{
    return s.batch * s.heads * ((s.tokens + K::OTHER - 1) / K::OTHER * K::OTHER) * K::QUERY_ROW;
}

template <typename K> static int64_t groups_of(Sizes s)
{
    enum { BLOCKS = 256, MOST = 1 << 28 };      /* MOST: elements */
    const int64_t tiles = (s.keys + K::OWN - 1) / K::OWN, heads = s.batch * s.heads, room = MOST / part_of<K>(s);
    const int64_t wanted = (BLOCKS + heads - 1) / heads;

    return clamped(wanted < room ? wanted : room, 1, tiles);
}

template <int PAD> int64_t Flash<PAD>::parts(DType dtype, Sizes s)
{
    FOR_TYPE(dtype, T,
        typedef Backward<T, PAD, false> Small;
        typedef Backward<T, PAD, true> Large;
        return is_large<T, PAD>(s) ? groups_of<Large>(s) * part_of<Large>(s) : groups_of<Small>(s) * part_of<Small>(s));
    return 0;
}

template <int PAD, bool LARGE, bool CHUNK, typename T, typename O>
static void backward_tiles(Heads<O> to, Tensor parts, const T *d_out, Heads<T> in, Tensor lse, Tensor delta, Sizes s)
{
    typedef Backward<T, PAD, LARGE> K;
    const int buffers = buffers_for(K::OWN_BYTES, K::OTHER_BYTES, K::THREADS);
    const int64_t groups = groups_of<K>(s), heads = s.batch * s.heads;

    static_assert(sizeof(Queries<T, PAD, K::OTHER>) == K::OTHER_BYTES, "tiles lie at multiples of 16 bytes");
    s.together = heads_together(heads, groups);
    LAUNCH_SHARED(K::OWN_BYTES + buffers * K::OTHER_BYTES, (flash_backward_tiles<T, O, PAD, LARGE, CHUNK>),
                  heads * groups, K::THREADS, to, data<float>(parts), d_out, in, data<float>(lse), data<float>(delta),
                  groups, buffers, s);
    const int64_t of_head = part_of<K>(s) / heads;
    const auto gradients = s.wide ? flash_query_gradients<K, CHUNK, 2, O> : flash_query_gradients<K, CHUNK, 1, O>;
    LAUNCH(gradients, dim3(heads, clamped((of_head + 4 * THREADS - 1) / (4 * THREADS), 1, 65535)), THREADS, to,
           data<float>(parts), groups, of_head, !CHUNK || s.causal, s);
}

template <int PAD, bool CHUNK, typename T, typename O>
static void backward(Heads<O> to, Tensor parts, const T *d_out, Heads<T> in, Tensor lse, Tensor delta, Sizes s)
{
    typedef Backward<T, PAD, false> Small;

    static_assert(Small::OWN_BYTES + Small::OTHER_BYTES <= 64 << 10, "fits on any GPU");
    if constexpr (sizeof(T) == 2)
        if (is_large<T, PAD>(s)) {
            backward_tiles<PAD, true, CHUNK>(to, parts, d_out, in, lse, delta, s);
            return;
        }
    backward_tiles<PAD, false, CHUNK>(to, parts, d_out, in, lse, delta, s);
}

template <int PAD>
void Flash<PAD>::attention_backward(Tensor d_qkv, Tensor parts, Tensor d_out, Tensor qkv, Tensor lse, Tensor delta,
                                    Sizes s)
{
    FOR_TYPE(qkv.dtype, T,
        backward<PAD, false>(heads_of<T>(d_qkv, s), parts, data<T>(d_out), heads_of<T>(qkv, s), lse, delta, s));
}

template <int PAD>
void Flash<PAD>::block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor parts, Tensor d_out, Tensor q, Tensor k,
                                Tensor v, Tensor lse, Tensor delta, Sizes s)
{
    FOR_TYPE(q.dtype, T,
        backward<PAD, true>(heads_of_chunk<float>(d_q, d_k, d_v, s), parts, data<T>(d_out),
                            heads_of_chunk<T>(q, k, v, s), lse, delta, s));
}

#endif
