/* Building blocks of the FlashAttention kernels: tiles of q, k, v and of gradients in shared memory, and a warp's
 * products of them, whose sums stay in registers.
 *
 * A warp has 16 rows, or M times 16, of the block's own tile. It multiplies them by tiles of other rows, one after the
 * other. Sums lie as tensor cores leave them (tensor_cores.cuh); those of float, multiplied without tensor cores, lie
 * the same way, so that the kernels are the same for all types. Lane 4g + t has columns 2t and 2t + 1 of every 8, of
 * rows g and g + 8: sum[m][n][2 * h + k] is row 16m + 8h + g, column 8n + 2t + k. */
#ifndef FLASH_CUH
#define FLASH_CUH

#include "../../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "../fused.h"
}
#include "tensor_cores.cuh"

/* wide: each row of a head begins at a multiple of 16 bytes, and its length in bytes is a multiple of 16. */
typedef struct {
    int64_t batch, tokens, keys, heads, size;   /* tokens: number of queries */
    float scale;                        /* factor on scores: 1 / sqrt(size) */
    bool wide, causal;
    int64_t sum_row, sum_head;          /* strides of lse and delta, in elements */
    int64_t together;                   /* heads whose blocks are neighbors (place_of_block) */
} Sizes;

/* q, k, v, or their gradients. Strides in elements: `row` from token to token, `head` from head to head. */
template <typename T> struct Heads {
    T *q, *k, *v;
    int64_t row, head;
};

constexpr float LOG2_E = 1.44269504f;           /* exp(x) = power_of_two(x * LOG2_E) */

/* A tile's rows have PAD elements: D, then zeros. Their stride is 16 bytes more, an odd multiple of 16 bytes, so that 8
 * rows at the same column lie in different banks of shared memory. */
template <typename T, int PAD> constexpr int APART = PAD + 16 / sizeof(T);

/* The sequence, the head, and which of the head's `blocks` tiles a block computes. Blocks start in their order. Under
 * the causal mask the first tiles have the most work. Those of several heads come first, so that the last blocks to
 * start are short, and no multiprocessor is left alone with a long one. But only of s.together heads, because blocks of
 * a head share its keys and values through the L2 cache. */
typedef struct {
    int64_t batch, head, tile;
} Place;

__device__ inline Place place_of_block(Sizes s, int64_t blocks)
{
    const int64_t first = blockIdx.x / (s.together * blocks) * s.together, left = s.batch * s.heads - first;
    const int64_t heads = left < s.together ? left : s.together, i = blockIdx.x - first * blocks;
    const int64_t head = first + i % heads;
    Place p = {head / s.heads, head % s.heads, i / heads};

    return p;
}

/* Starts loading ROWS rows of a head, from row `first` on, with stride ld; rows from `tokens` on are zeros. A thread
 * copies the same columns of every STEP-th row. The compiler knows all but its first row, so a copy takes a few
 * instructions, beside the many of a tile's products. */
template <int ROWS, int PAD, int THREADS, typename T>
__device__ inline void load_tile(T *tile, const T *head, int64_t ld, int64_t first, int64_t tokens, Sizes s)
{
    constexpr int N = 16 / sizeof(T), PACKS = PAD / N, STEP = THREADS / PACKS;
    const int own = threadIdx.x / PACKS, column = threadIdx.x % PACKS * N;
    const int there = tokens - first < ROWS ? tokens - first : ROWS, rows = column < s.size ? there : 0;
    const T *from = head + (first + own) * ld + column;
    T *to = tile + own * APART<T, PAD> + column;

    if (s.wide && own < STEP)                   /* some threads may have no columns */
#pragma unroll
        for (int row = 0; row < ROWS; row += STEP)
            if (ROWS % STEP == 0 || own + row < ROWS)
                begin_copy<16>(to + row * APART<T, PAD>, from + row * ld, own + row < rows);
    if (!s.wide)
#pragma unroll 1
        for (int i = threadIdx.x; i < ROWS * PAD; i += THREADS) {
            const bool is = i / PAD < there && i % PAD < s.size;
            set(&tile[i / PAD * APART<T, PAD> + i % PAD], is ? number(head[(first + i / PAD) * ld + i % PAD]) : 0);
        }
}

/* A warp's rows of a tile, 16M of them, as left operands. The first HELD columns stay in HELD / 4 * M registers, so
 * that they are loaded once, and not once per product. */
template <typename T, int PAD, int M, int HELD> struct Rows {
    const T *from;
    uint32_t held[HELD ? HELD / 16 : 1][M][4];

    __device__ explicit Rows(const T *rows) : from(rows)
    {
#pragma unroll
        for (int d = 0; d < HELD; d += 16)
            load(held[d / 16], d);
    }
    __device__ void load(uint32_t (&x)[M][4], int column) const
    {
        const int lane = threadIdx.x % WARP;

#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(x[m], &from[(16 * m + lane % 16) * APART<T, PAD> + column + lane / 16 * 8]);
    }
};

/* sum += 16 columns of a, from registers, times 8N rows of b transposed, from the same column on. */
template <int PAD, typename T, int M, int N>
__device__ inline void add_16_columns(float (&sum)[M][N][4], const uint32_t (&a)[M][4], const T *b)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < N; n += 2) {            /* rows of b are columns of the right operand */
        uint32_t y[4];
        load_matrices(y, &b[(8 * n + lane / 16 * 8 + lane % 8) * APART<T, PAD> + lane / 8 % 2 * 8]);
#pragma unroll
        for (int m = 0; m < M; m++) {
            multiply_add<T>(sum[m][n], a[m], y[0], y[1]);
            multiply_add<T>(sum[m][n + 1], a[m], y[2], y[3]);
        }
    }
}

/* sum = a times b transposed: 16M rows of a, this warp's, by 8N rows of b. */
template <typename T, int PAD, int M, int HELD, int N>
__device__ inline void rows_by_rows(float (&sum)[M][N][4], const Rows<T, PAD, M, HELD> &a, const T *b)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int i = 0; i < M * N * 4; i++)
        sum[i / 4 / N][i / 4 % N][i % 4] = 0;
    if constexpr (sizeof(T) == 4) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll 1
        for (int d = 0; d < PAD; d += 4) {
            float4 x[M][2];
#pragma unroll
            for (int i = 0; i < M * 2; i++)
                x[i / 2][i % 2] = *(const float4 *)&a.from[(8 * i + g) * APART<T, PAD> + d];
#pragma unroll
            for (int j = 0; j < N * 2; j++) {
                const float4 y = *(const float4 *)&b[(j / 2 * 8 + 2 * t + j % 2) * APART<T, PAD> + d];
#pragma unroll
                for (int i = 0; i < M * 2; i++) {
                    float &to = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
                    const float4 z = x[i / 2][i % 2];
                    to += z.x * y.x + z.y * y.y + z.z * y.z + z.w * y.w;
                }
            }
        }
    } else {
#pragma unroll
        for (int d = 0; d < HELD; d += 16)
            add_16_columns<PAD>(sum, a.held[d / 16], b + d);
#pragma unroll 4                                /* a full unroll would spill registers, for heads of 128 */
        for (int d = HELD; d < PAD; d += 16) {
            uint32_t x[M][4];
            a.load(x, d);
            add_16_columns<PAD>(sum, x, b + d);
        }
    }
}

/* sum (PAD columns) += p times b. p is another sum of this warp, rounded to T; b has 8N rows. */
template <int PAD, typename T, int M, int N>
__device__ inline void add_product(float (&sum)[M][PAD / 8][4], const float (&p)[M][N][4], const T *b)
{
    const int lane = threadIdx.x % WARP;

    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int j = 0; j < 8 * N; j++) {       /* lane 4g + j % 8 / 2 has column j of a row of p */
            float x[M][2];
#pragma unroll
            for (int i = 0; i < M * 2; i++)
                x[i / 2][i % 2] = __shfl_sync(~0u, p[i / 2][j / 8][i % 2 * 2 + j % 2], lane / 4 * 4 + j % 8 / 2);
#pragma unroll
            for (int d = 0; d < PAD / 8; d++) {
                const float2 y = *(const float2 *)&b[j * APART<T, PAD> + 8 * d + lane % 4 * 2];
#pragma unroll
                for (int i = 0; i < M * 2; i++) {
                    sum[i / 2][d][i % 2 * 2] += x[i / 2][i % 2] * y.x;
                    sum[i / 2][d][i % 2 * 2 + 1] += x[i / 2][i % 2] * y.y;
                }
            }
        }
    } else {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t x[M][4];
#pragma unroll
            for (int i = 0; i < M * 4; i++) {
                const float (&from)[4] = p[i / 4][n + i % 4 / 2];
                x[i / 4][i % 4] = pair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
            }
#pragma unroll
            for (int d = 0; d < PAD / 8; d += 2) {
                uint32_t y[4];
                load_matrices_transposed(y, &b[(8 * n + lane % 16) * APART<T, PAD> + 8 * d + lane / 16 * 8]);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_add<T>(sum[m][d], x[m], y[0], y[1]);
                    multiply_add<T>(sum[m][d + 1], x[m], y[2], y[3]);
                }
            }
        }
    }
}

/* sum (16M rows, 8N columns, of which `columns` count) += a transposed times b, over `rows` rows of both, a multiple of
 * 16. Rows of a lie A_APART elements apart. */
template <int PAD, int A_APART, typename T, int M, int N>
__device__ inline void add_columns_by_columns(float (&sum)[M][N][4], const T *a, const T *b, int rows, int columns)
{
    const int lane = threadIdx.x % WARP;

    if constexpr (sizeof(T) == 4) {
#pragma unroll 1
        for (int row = 0; row < rows; row++)
#pragma unroll
            for (int n = 0; n < N && 8 * n < columns; n++) {
                const float2 y = *(const float2 *)&b[row * APART<T, PAD> + 8 * n + lane % 4 * 2];
#pragma unroll
                for (int i = 0; i < M * 2; i++) {
                    const float x = a[row * A_APART + 8 * i + lane / 4];
                    sum[i / 2][n][i % 2 * 2] += x * y.x;
                    sum[i / 2][n][i % 2 * 2 + 1] += x * y.y;
                }
            }
    } else {
#pragma unroll 2
        for (int row = 0; row < rows; row += 16) {
            uint32_t x[M][4];
#pragma unroll
            for (int m = 0; m < M; m++)
                load_matrices_transposed(x[m], &a[(row + lane / 16 * 8 + lane % 8) * A_APART + 16 * m
                                                  + lane / 8 % 2 * 8]);
#pragma unroll
            for (int n = 0; n < N && 8 * n < columns; n += 2) {
                uint32_t y[4];
                load_matrices_transposed(y, &b[(row + lane % 16) * APART<T, PAD> + 8 * n + lane / 16 * 8]);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_add<T>(sum[m][n], x[m], y[0], y[1]);
                    multiply_add<T>(sum[m][n + 1], x[m], y[2], y[3]);
                }
            }
        }
    }
}

/* Stores row 16m + 8h + g of a sum, times `factor`, to a head's row. All four lanes that have it call this. */
template <int PAD, typename T>
__device__ inline void store_row(T *to, const float (&sum)[PAD / 8][4], int h, float factor, Sizes s)
{
    const int t = threadIdx.x % 4;

#pragma unroll
    for (int d = 0; d < PAD / 8; d++) {
        const int64_t column = 8 * d + 2 * t;
        const float x[2] = {sum[d][2 * h] * factor, sum[d][2 * h + 1] * factor};
        if (s.wide && column < s.size) {
            store(to + column, x, 2);
        } else {
            if (column < s.size)
                set(&to[column], x[0]);
            if (column + 1 < s.size)
                set(&to[column + 1], x[1]);
        }
    }
}

/* store_row that adds to the head's row. */
template <int PAD>
__device__ inline void add_row(float *to, const float (&sum)[PAD / 8][4], int h, float factor, Sizes s)
{
    const int t = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < PAD / 4; i++) {
        const int64_t column = i / 2 * 8 + 2 * t + i % 2;
        if (column < s.size)
            to[column] += sum[i / 2][2 * h + i % 2] * factor;
    }
}

/* A matrix of float in memory lies as lanes have a sum: in blocks of 8 rows and 16 columns, along its rows of COLUMNS.
 * A block is contiguous, and so are a lane's 4 numbers of it: row g, columns 2t, 2t + 1, 2t + 8, 2t + 9. So a warp
 * moves 512 bytes at a time. Returns where the block begins that has this row and column. */
template <int COLUMNS> __device__ inline int64_t place_of_numbers(int64_t row, int column)
{
    return (row / 8 * (COLUMNS / 16) + column / 16) * 128;
}

/* Stores a sum to such a matrix, or adds it: 16M rows and 8N columns, from `place` on, where a block begins. */
template <int COLUMNS, int M, int N>
__device__ inline void put_sum(float *place, const float (&sum)[M][N][4], bool add)
{
#pragma unroll
    for (int i = 0; i < M * N; i++) {           /* blocks, row by row */
        const int row = i / (N / 2), m = row / 2, h = row % 2, n = i % (N / 2) * 2;
        float *const to = place + place_of_numbers<COLUMNS>(8 * row, 8 * n) + threadIdx.x % WARP * 4;
        const float x[4] = {sum[m][n][2 * h], sum[m][n][2 * h + 1], sum[m][n + 1][2 * h], sum[m][n + 1][2 * h + 1]};
        if (add)
            add_alone(to, x);
        else
            store(to, x, 4);
    }
}

/* ---- host code ---- */

static inline void check_size(int64_t size, const char *operator_name)
{
    if (size > 128)
        fail("%s: head size %lld: its tiles hold at most 128; leave attention out of --fuse",
             operator_name, (long long)size);
}

/* Sizes of full sequences: qkv (B, T, 3*A*D), lse (B, A, T). */
static inline Sizes sizes_of(Tensor qkv, Tensor lse, const char *operator_name)
{
    const int64_t A = lse.shape[1], D = tensor_width(qkv) / 3 / A, T = qkv.shape[1];

    check_size(D, operator_name);
    return (Sizes){qkv.shape[0], T, T, A, D, 1 / sqrtf(D), D * dtype_size(qkv.dtype) % 16 == 0 && aligned(qkv), true,
                   1, T};
}

template <typename T> static Heads<T> heads_of(Tensor qkv, Sizes s)
{
    T *const q = data<T>(qkv);

    return (Heads<T>){q, q + s.size, q + 2 * s.size, 3 * s.heads * s.size, 3 * s.size};
}

/* Sizes of sequence chunks: q (B, C, A, D), k and v (B, K, A, D), lse (B, C, A, 1). */
static inline Sizes sizes_of_chunk(Tensor q, Tensor k, Tensor v, bool causal, const char *operator_name)
{
    const int64_t A = q.shape[2], D = q.shape[3];

    check_size(D, operator_name);
    return (Sizes){q.shape[0], q.shape[1], k.shape[1], A, D, 1 / sqrtf(D),
                   D * dtype_size(q.dtype) % 16 == 0 && aligned(q) && aligned(k) && aligned(v), causal, A, 1};
}

template <typename T> static Heads<T> heads_of_chunk(Tensor q, Tensor k, Tensor v, Sizes s)
{
    return (Heads<T>){data<T>(q), data<T>(k), data<T>(v), s.heads * s.size, s.size};
}

/* How many heads of `blocks` blocks each are computed together: about as many as a large GPU computes at a time, and
 * about the same number each time. On the host, since its divisions would spill registers of the kernels. */
static inline int64_t heads_together(int64_t heads, int64_t blocks)
{
    enum { AT_A_TIME = 256 };                   /* blocks: about two for each of an H100's 132 multiprocessors */
    const int64_t fit = (AT_A_TIME + blocks - 1) / blocks, times = (heads + fit - 1) / fit;

    return (heads + times - 1) / times;
}

/* The number of buffers, of `other` bytes, beside `own` bytes of shared memory: two if they fit, so that a copy is in
 * flight behind the products. But not if two blocks can share a multiprocessor with one buffer only (sm_86 and sm_89):
 * a single block has few warps, and while all of them wait nothing computes. 0: not even one fits. */
static inline int buffers_for(int own, int other, int threads)
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
    const bool shared = threads <= 128 && together / (one + RESERVED) >= 2;     /* of 255 registers a thread, too */
    return two <= most && (!shared || together / (two + RESERVED) >= 2) ? 2 : one <= most;
}

/* What the operators launch for heads of up to PAD elements. Compiling this takes long, so each PAD has a file,
 * flash_PAD.cu, and cores compile them side by side. */
template <int PAD> struct Flash {
    static void attention_forward(Tensor out, Tensor lse, Tensor qkv, Sizes s);
    static void block_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, Sizes s);
    static void attention_backward(Tensor d_qkv, Tensor parts, Tensor d_out, Tensor qkv, Tensor lse, Tensor delta,
                                   Sizes s);
    static void block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor parts, Tensor d_out, Tensor q, Tensor k,
                               Tensor v, Tensor lse, Tensor delta, Sizes s);
    static int64_t parts(DType dtype, Sizes s); /* elements of dQ's parts */
};

#endif
