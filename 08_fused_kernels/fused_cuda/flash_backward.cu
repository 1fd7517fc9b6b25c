/* FlashAttention's backward: P = exp(scores - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - delta),
 * dQ = dS K / sqrt(D), dK = dS^T Q / sqrt(D).
 *
 * Gradients of keys are sums over queries, those of queries are sums over keys. A kernel that computes both must add
 * one of them up across blocks, with atomics: in an order that changes from run to run, and so do the last bits. Here
 * one kernel has a block per tile of keys, which loops over queries; another has a block per tile of queries, which
 * loops over keys. Every sum is computed by one block, in the order of the tiles. The price: scores and dP are computed
 * twice, 7 products of tiles instead of 5. Both kernels are one template, with own rows (k and v, or q and dO) and
 * others (q and dO, or k and v). With BY_KEYS, scores and dP come out transposed, as the products that follow need. */
#include "flash.cuh"

/* ---- delta (B, A, T) = rowsum(d_out * out), one warp per row ---- */

template <typename T>
__global__ void flash_delta_rows(float *delta, const T *d_out, const T *out, int64_t rows, Sizes s)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; i < rows; i += (int64_t)gridDim.x * blockDim.y) {
        const int64_t head = i % s.heads, token = i / s.heads % s.tokens, batch = i / s.heads / s.tokens;
        float dot = 0;
        EACH_COLUMN(j, 1, s.size)
            dot += number(d_out[i * s.size + j]) * number(out[i * s.size + j]);
        dot = warp_sum(dot);
        if (threadIdx.x == 0)
            delta[(batch * s.heads + head) * s.tokens + token] = dot;
    }
}

/* ---- the two kernels ---- */

template <typename T, int PAD> struct Backward {
    enum {
        WARPS = sizeof(T) * PAD > 256 ? 2 : 4,
        OWN = 16 * WARPS,
        OTHER = Tile<T, PAD>::OTHER,
        APART = Tile<T, PAD>::APART,
        THREADS = WARPS * WARP,
        OWN_BYTES = 2 * OWN * APART * sizeof(T),
        OTHER_BYTES = 2 * OTHER * (APART * sizeof(T) + sizeof(float))
    };
};

/* A tile of others in shared memory: q and dO, with their lse and delta; or k and v. */
template <typename T, int PAD> struct Others {
    T x[Backward<T, PAD>::OTHER * Backward<T, PAD>::APART], y[Backward<T, PAD>::OTHER * Backward<T, PAD>::APART];
    float lse[Backward<T, PAD>::OTHER], delta[Backward<T, PAD>::OTHER];
};

/* buffers: with 2, the copy of the next tile of others is in flight while the current one is used. */
template <typename T, typename O, int PAD, bool BY_KEYS, bool CHUNK>
__global__ void __launch_bounds__(Backward<T, PAD>::THREADS)
flash_backward_tiles(Heads<O> to, const T *d_out, Heads<T> in, const float *lse, const float *delta, int64_t blocks,
                     int buffers, Sizes s)
{
    typedef Backward<T, PAD> K;
    extern __shared__ __align__(16) char shared[];
    T *const own_x = (T *)shared, *const own_y = own_x + K::OWN * K::APART;             /* k and v; or q and dO */
    Others<T, PAD> *const others = (Others<T, PAD> *)(shared + K::OWN_BYTES);
    const Place at = place_of_block(s.heads, blocks);
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 16;                 /* this warp's first row */
    const int64_t first = (BY_KEYS ? at.tile : blocks - 1 - at.tile) * K::OWN;          /* most others first */
    const bool causal = !CHUNK || s.causal;
    const int64_t ours = BY_KEYS ? s.keys : s.tokens, theirs_all = BY_KEYS ? s.tokens : s.keys;
    const int64_t begin = BY_KEYS && causal ? first : 0;        /* tiles beyond the diagonal are empty */
    const int64_t end = BY_KEYS || !causal || first + K::OWN > s.keys ? theirs_all : first + K::OWN;
    const int64_t ld = in.row, ld_out = s.heads * s.size;
    const T *q = in.q + at.batch * s.tokens * ld + at.head * in.head;
    const T *k = in.k + at.batch * s.keys * ld + at.head * in.head, *v = in.v + (k - in.k);
    const T *d_o = d_out + (at.batch * s.tokens * s.heads + at.head) * s.size;
    float of_x[1][PAD / 8][4] = {}, of_y[1][BY_KEYS ? PAD / 8 : 1][4] = {};             /* dK and dV; or dQ */
    float p[1][K::OTHER / 8][4], d[1][K::OTHER / 8][4], l[2] = {0, 0}, dot[2] = {0, 0};

    lse += at.batch * s.tokens * s.heads + at.head * s.sum_head;
    delta += at.batch * s.tokens * s.heads + at.head * s.sum_head;
    for (int h = 0; h < 2 && !BY_KEYS; h++) {
        const int64_t query = first + own + 8 * h + lane / 4;
        l[h] = query < s.tokens ? lse[query * s.sum_row] : 0;
        dot[h] = query < s.tokens ? delta[query * s.sum_row] : 0;
    }
    const auto load_others = [&](Others<T, PAD> *o, int64_t other) {
        load_tile<K::OTHER, PAD, K::THREADS>(o->x, BY_KEYS ? q : k, ld, other, theirs_all, s);
        load_tile<K::OTHER, PAD, K::THREADS>(o->y, BY_KEYS ? d_o : v, BY_KEYS ? ld_out : ld, other, theirs_all,
                                               s);
        if (BY_KEYS && threadIdx.x < K::OTHER) {
            const bool there = other + threadIdx.x < s.tokens;
            const int64_t query = there ? other + threadIdx.x : 0;
            begin_copy<4>(&o->lse[threadIdx.x], &lse[query * s.sum_row], there);
            begin_copy<4>(&o->delta[threadIdx.x], &delta[query * s.sum_row], there);
        }
    };
    load_tile<K::OWN, PAD, K::THREADS>(own_x, BY_KEYS ? k : q, ld, first, ours, s);
    load_tile<K::OWN, PAD, K::THREADS>(own_y, BY_KEYS ? v : d_o, BY_KEYS ? ld : ld_out, first, ours, s);
    load_others(others, begin);
    int now = 0;
    for (int64_t other = begin; other < end; other += K::OTHER) {
        const Others<T, PAD> *o = &others[now];
        const bool next = other + K::OTHER < end;
        copies_done();
        __syncthreads();                        /* others have arrived; no thread reads the previous ones any more */
        if (next && buffers == 2)
            load_others(&others[now = !now], other + K::OTHER);
        if (!causal || (BY_KEYS ? first + own < other + K::OTHER : other < first + own + 16)) {  /* not all masked */
            rows_by_rows<PAD>(p, own_x + own * K::APART, o->x);
            rows_by_rows<PAD>(d, own_y + own * K::APART, o->y);
#pragma unroll
            for (int i = 0; i < K::OTHER / 2; i++) {
                const int h = i % 4 / 2, theirs = i / 4 * 8 + lane % 4 * 2 + i % 2;     /* rows of the tile of others */
                float &x = p[0][i / 4][i % 4], &y = d[0][i / 4][i % 4];
                x = power_of_two(x * (s.scale * LOG2_E) - (BY_KEYS ? o->lse[theirs] : l[h]) * LOG2_E);
                y = x * (y - (BY_KEYS ? o->delta[theirs] : dot[h]));
            }
            /* both relative to the first row of others; most tiles lie on one side of the diagonal and need no mask */
            const int ahead = (int)(first + own - other);
            const int left = theirs_all - other < K::OTHER ? theirs_all - other : K::OTHER;
            if (left < K::OTHER || (causal && (BY_KEYS ? ahead + 15 > 0 : ahead < K::OTHER - 1)))
#pragma unroll
                for (int i = 0; i < K::OTHER / 2; i++) {
                    const int mine = ahead + i % 4 / 2 * 8 + lane / 4, theirs = i / 4 * 8 + lane % 4 * 2 + i % 2;
                    if (theirs >= left || (causal && (BY_KEYS ? mine > theirs : theirs > mine)))
                        p[0][i / 4][i % 4] = d[0][i / 4][i % 4] = 0;
                }
            if constexpr (BY_KEYS)
                add_product<PAD>(of_y, p, o->y);
            add_product<PAD>(of_x, d, o->x);
        }
        if (next && buffers == 1) {
            __syncthreads();                    /* no thread reads this tile any more */
            load_others(others, other + K::OTHER);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t row = first + own + 8 * h + lane / 4;
        const int64_t place = (at.batch * ours + row) * to.row + at.head * to.head;
        if (row >= ours)
            continue;
        if constexpr (CHUNK) {
            add_row<PAD>((BY_KEYS ? to.k : to.q) + place, of_x[0], h, s.scale, s);
            if constexpr (BY_KEYS)
                add_row<PAD>(to.v + place, of_y[0], h, 1, s);
        } else {
            store_row<PAD>((BY_KEYS ? to.k : to.q) + place, of_x[0], h, s.scale, s);
            if constexpr (BY_KEYS)
                store_row<PAD>(to.v + place, of_y[0], h, 1, s);
        }
    }
}

/* The number of buffers: two if they fit, unless two blocks can share a multiprocessor with one buffer only (sm_86 and
 * sm_89: heads of 64 and 96 in bf16). A single block has few warps, and while all of them wait nothing computes. */
static int buffers_for(int own, int other)
{
    static int most, together;                  /* bytes of shared memory: per block, per multiprocessor */
    enum { RESERVED = 1024 };                   /* bytes that CUDA reserves per block */
    int device;

    if (!most) {
        CUDA(cudaGetDevice(&device));
        CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        CUDA(cudaDeviceGetAttribute(&together, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    }
    const int one = own + other, two = own + 2 * other;
    return two <= most && (together / (two + RESERVED) >= 2 || together / (one + RESERVED) < 2) ? 2 : 1;
}

void flash_attention_backward_kernel(Tensor d_qkv, Tensor delta, Tensor d_out, Tensor qkv, Tensor out, Tensor lse)
{
    Sizes s = sizes_of(qkv, lse, "flash_attention_backward");
    const int64_t rows = s.batch * s.tokens * s.heads;

    s.wide = s.wide && aligned(d_out) && aligned(d_qkv);
    FOR_TYPE(qkv.dtype, T,
        LAUNCH(flash_delta_rows<T>, clamped((rows + THREADS / WARP - 1) / (THREADS / WARP), 1, 1 << 20),
               dim3(WARP, THREADS / WARP), data<float>(delta), data<T>(d_out), data<T>(out), rows, s);
        FOR_HEAD_SIZE(s.size, PAD,
            typedef Backward<T, PAD> K;
            static_assert(sizeof(Others<T, PAD>) == K::OTHER_BYTES, "tiles lie at multiples of 16 bytes");
            const int64_t blocks = (s.tokens + K::OWN - 1) / K::OWN;
            const int buffers = buffers_for(K::OWN_BYTES, K::OTHER_BYTES);
            const int bytes = K::OWN_BYTES + buffers * K::OTHER_BYTES;
            LAUNCH_SHARED(bytes, (flash_backward_tiles<T, T, PAD, true, false>), blocks * s.heads * s.batch,
                          K::THREADS, heads_of<T>(d_qkv, s), data<T>(d_out), heads_of<T>(qkv, s), data<float>(lse),
                          data<float>(delta), blocks, buffers, s);
            LAUNCH_SHARED(bytes, (flash_backward_tiles<T, T, PAD, false, false>), blocks * s.heads * s.batch,
                          K::THREADS, heads_of<T>(d_qkv, s), data<T>(d_out), heads_of<T>(qkv, s), data<float>(lse),
                          data<float>(delta), blocks, buffers, s)));
}

void flash_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_out, Tensor q, Tensor k, Tensor v,
                                 Tensor lse, Tensor delta, bool causal)
{
    Sizes s = sizes_of_chunk(q, k, v, causal, "flash_block_backward");

    s.wide = s.wide && aligned(d_out);
    FOR_TYPE(q.dtype, T, FOR_HEAD_SIZE(s.size, PAD,
        typedef Backward<T, PAD> K;
        const int buffers = buffers_for(K::OWN_BYTES, K::OTHER_BYTES), bytes = K::OWN_BYTES + buffers * K::OTHER_BYTES;
        const int64_t by_keys = (s.keys + K::OWN - 1) / K::OWN, by_queries = (s.tokens + K::OWN - 1) / K::OWN;
        const Heads<float> to = heads_of_chunk<float>(d_q, d_k, d_v, s);
        LAUNCH_SHARED(bytes, (flash_backward_tiles<T, float, PAD, true, true>), by_keys * s.heads * s.batch,
                      K::THREADS, to, data<T>(d_out), heads_of_chunk<T>(q, k, v, s), data<float>(lse),
                      data<float>(delta), by_keys, buffers, s);
        LAUNCH_SHARED(bytes, (flash_backward_tiles<T, float, PAD, false, true>), by_queries * s.heads * s.batch,
                      K::THREADS, to, data<T>(d_out), heads_of_chunk<T>(q, k, v, s), data<float>(lse),
                      data<float>(delta), by_queries, buffers, s)));
}
