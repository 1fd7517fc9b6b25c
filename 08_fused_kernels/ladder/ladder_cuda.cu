/* The matmul ladder in CUDA: C (m, n) = A (m, k) B (k, n), row-major, from one thread per element to tensor cores. Each
 * rung adds one idea to the previous rung, and the table shows what the idea gained. ladder_cpu.c is the same ladder on
 * the CPU.
 *
 * Ragged sizes: rows of all matrices begin at multiples of 16 bytes, with zeros between a row's end and the next row.
 * So a load of 16 bytes only needs to check that it begins inside the matrix. Other accesses are guarded: reads outside
 * give 0, writes outside are skipped. */
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "../fused_cuda/tensor_cores.cuh"       /* asynchronous copies and a warp's products, for rungs 5 and 6 */
#include "ladder.h"

/* ---- 1. Naive ---- */

/* One thread per element of C. The 32 threads of a warp have consecutive threadIdx.x and run together: here they
 * compute 32 rows of one column. Each thread reads another row of A and writes another row of C. For the warp these are
 * 32 accesses to memory, each of 32 bytes, of which 4 are used. (Of B, all threads read the same float.) */
__global__ void naive(int m, int n, int k, const float *a, int a_row, const float *b, int b_row, float *c, int c_row)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;

    if (i >= m || j >= n)
        return;
    for (int p = 0; p < k; p++)
        sum += a[(size_t)i * a_row + p] * b[(size_t)p * b_row + j];
    c[(size_t)i * c_row + j] = sum;
}

/* ---- 2. Coalesced ---- */

/* Rung 1 with i and j exchanged: a warp computes 32 columns of one row. It reads B and writes C in 128 contiguous
 * bytes, one access to memory. Of A, all threads read the same float. */
__global__ void coalesced(int m, int n, int k, const float *a, int a_row, const float *b, int b_row, float *c,
                          int c_row)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;

    if (i >= m || j >= n)
        return;
    for (int p = 0; p < k; p++)
        sum += a[(size_t)i * a_row + p] * b[(size_t)p * b_row + j];
    c[(size_t)i * c_row + j] = sum;
}

/* ---- 3. Tiles in shared memory ---- */

enum { SIDE = 32 };

/* A block of 32 x 32 threads computes 32 x 32 elements of C. It loads 32 x 32 floats of A and of B into shared memory,
 * one of each per thread. Then each thread uses 32 of each, so memory is read 32 times less often. */
__global__ void tiles(int m, int n, int k, const float *a, int a_row, const float *b, int b_row, float *c, int c_row)
{
    __shared__ float tile_a[SIDE][SIDE], tile_b[SIDE][SIDE];
    const int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * SIDE + y, j = blockIdx.x * SIDE + x;
    float sum = 0;

    for (int p = 0; p < k; p += SIDE) {
        tile_a[y][x] = i < m && p + x < k ? a[(size_t)i * a_row + p + x] : 0;
        tile_b[y][x] = p + y < k && j < n ? b[(size_t)(p + y) * b_row + j] : 0;
        __syncthreads();                        /* all threads have written: all may read */
        for (int q = 0; q < SIDE; q++)
            sum += tile_a[y][q] * tile_b[q][x];
        __syncthreads();                        /* all threads have read: all may write the next tiles */
    }
    if (i < m && j < n)
        c[(size_t)i * c_row + j] = sum;
}

/* ---- 4. Registers ---- */

enum { TILE = 128, EACH = 8, THREADS = TILE / EACH * (TILE / EACH) };

/* In rung 3 each multiplication loads two floats from shared memory, which delivers a quarter of what the arithmetic
 * units could use. Here a thread computes 8 x 8 elements: each step of k loads 8 + 8 floats for 64 multiplications. A
 * block of 256 threads computes 128 x 128. A thread's rows and columns lie 16 apart, so that the threads of a warp read
 * neighboring floats: 16 floats in 16 different banks of shared memory. */
__global__ void __launch_bounds__(THREADS, 2) registers(int m, int n, int k, const float *a, int a_row, const float *b,
                                                        int b_row, float *c, int c_row)
{
    enum { DEPTH = 8, STEP = TILE / EACH };
    __shared__ float tile_a[TILE][DEPTH], tile_b[DEPTH][TILE];
    const int x = threadIdx.x % STEP, y = threadIdx.x / STEP, i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
    float sum[EACH][EACH] = {};

    for (int p = 0; p < k; p += DEPTH) {
#pragma unroll
        for (int at = threadIdx.x, part = 0; part < TILE * DEPTH / THREADS; part++, at += THREADS) {
            const int i = at / DEPTH, q = at % DEPTH, r = at / TILE, j = at % TILE;
            tile_a[i][q] = i0 + i < m && p + q < k ? a[(size_t)(i0 + i) * a_row + p + q] : 0;
            tile_b[r][j] = p + r < k && j0 + j < n ? b[(size_t)(p + r) * b_row + j0 + j] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < DEPTH; q++) {
            float left[EACH], right[EACH];
#pragma unroll
            for (int r = 0; r < EACH; r++) {
                left[r] = tile_a[y + r * STEP][q];
                right[r] = tile_b[q][x + r * STEP];
            }
#pragma unroll
            for (int r = 0; r < EACH; r++)
#pragma unroll
                for (int s = 0; s < EACH; s++)
                    sum[r][s] += left[r] * right[s];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int s = 0; s < EACH; s++) {
            const int i = i0 + y + r * STEP, j = j0 + x + s * STEP;
            if (i < m && j < n)
                c[(size_t)i * c_row + j] = sum[r][s];
        }
}

/* ---- Asynchronous copies ---- */

/* Starts copying 16 bytes from global to shared memory; zeros if they do not lie inside the matrix. From sm_80 on the
 * copy bypasses the registers, and the thread continues at once. copies_end() closes a group of copies, and
 * copies_wait<N>() waits until all groups of this thread but the last N have arrived; those of other threads also need
 * __syncthreads(). Before sm_80 the thread waits in begin_copy(). */
template <typename Element>
static __device__ __forceinline__ void copy_16(void *to, const Element *from, int offset, bool inside)
{
    begin_copy<16>(to, from + (inside ? offset : 0), inside);
}

/* ---- 5. Wide loads, two buffers ---- */

/* Rung 4 with two changes. All loads take 16 bytes, from memory and from shared memory, with a quarter of the
 * instructions. And while one tile is multiplied, the copy of the next into a second buffer is in flight: one barrier
 * per tile, and no thread waits for memory.
 *
 * A warp computes 32 x 64 elements, its 32 lanes as 4 x 8. A lane has 8 rows, every fourth, and 2 x 4 columns, 32
 * apart. The lanes of the first 4 rows and 32 columns; the pattern repeats to the right and below:
 *
 *     columns    0..3   4..7  8..11 12..15 16..19 20..23 24..27 28..31
 *       row 0       0      2      4      6      8     10     12     14
 *           1       1      3      5      7      9     11     13     15
 *           2      16     18     20     22     24     26     28     30
 *           3      17     19     21     23     25     27     29     31
 *
 * With 16 bytes per lane, shared memory serves 128 bytes at a time: 8 lanes, or 16 if pairs of neighbors read the same
 * bytes, as lanes 0 and 1 do of B, and lanes 0 and 2 of A. Rows of A have 8 floats but a stride of 12, so that the 4
 * rows that a warp reads begin at banks 0, 12, 24 and 4: no two overlap. */
enum { WIDE_DEPTH = 8, WIDE_ROW = WIDE_DEPTH + 4 };

/* Starts loading the tiles that begin at a and b. m, n, k: rows and columns left from there on. */
static __device__ __forceinline__ void fetch_wide(float (*tile_a)[WIDE_ROW], float (*tile_b)[TILE], int m, int n, int k,
                                                  const float *a, int a_row, const float *b, int b_row)
{
#pragma unroll
    for (int at = threadIdx.x, part = 0; part < TILE * WIDE_DEPTH / 4 / THREADS; part++, at += THREADS) {
        const int i = at / (WIDE_DEPTH / 4), q = at % (WIDE_DEPTH / 4) * 4;
        const int r = at / (TILE / 4), j = at % (TILE / 4) * 4;
        copy_16(&tile_a[i][q], a, i * a_row + q, i < m && q < k);
        copy_16(&tile_b[r][j], b, r * b_row + j, r < k && j < n);
    }
    copies_end();
}

static __device__ __forceinline__ void spread(float *to, float4 from)
{
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

/* Two blocks per multiprocessor, at 128 registers per thread: one computes while the other waits at its barrier. */
__global__ void __launch_bounds__(THREADS, 2) wide(int m, int n, int k, const float *a, int a_row, const float *b,
                                                   int b_row, float *c, int c_row)
{
    __shared__ __align__(16) float tile_a[2][TILE][WIDE_ROW], tile_b[2][WIDE_DEPTH][TILE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
    const int y = warp / 2 * 32 + lane / 16 * 2 + lane % 2, x = warp % 2 * 64 + lane / 2 % 8 * 4;
    float sum[EACH][EACH] = {};

    m -= i0, a += (size_t)i0 * a_row, n -= j0, b += j0, c += (size_t)i0 * c_row + j0;
    fetch_wide(tile_a[0], tile_b[0], m, n, k, a, a_row, b, b_row);
    for (int now = 0; k > 0; k -= WIDE_DEPTH, now ^= 1) {
        copies_wait<0>();
        __syncthreads();            /* this tile has arrived; no thread reads the other buffer any more */
        a += WIDE_DEPTH, b += (size_t)WIDE_DEPTH * b_row;
        if (k > WIDE_DEPTH)
            fetch_wide(tile_a[now ^ 1], tile_b[now ^ 1], m, n, k - WIDE_DEPTH, a, a_row, b, b_row);
#pragma unroll
        for (int q = 0; q < WIDE_DEPTH; q += 4) {
            float left[EACH][4];                            /* 8 rows of A, 4 steps of k */
#pragma unroll
            for (int r = 0; r < EACH; r++)
                spread(left[r], *(const float4 *)&tile_a[now][y + 4 * r][q]);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                float right[EACH];
                spread(right, *(const float4 *)&tile_b[now][q + step][x]);
                spread(right + 4, *(const float4 *)&tile_b[now][q + step][x + 32]);
#pragma unroll
                for (int r = 0; r < EACH; r++)
#pragma unroll
                    for (int s = 0; s < EACH; s++)
                        sum[r][s] += left[r][step] * right[s];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = y + 4 * r, j = x + 32 * half;
            const float *from = sum[r] + 4 * half;
            if (i < m && j < n)
                *(float4 *)&c[i * c_row + j] = make_float4(from[0], from[1], from[2], from[3]);
        }
}

/* ---- 6. Tensor cores ---- */

/* A and B in bf16, C in float. One instruction of a warp multiplies 16 x 16 by 16 x 8 (multiply_add; tensor_cores.cuh
 * has the layout over lanes); what remains is feeding it. A block of 8 warps computes 128 x 256 of C, each warp 64 x
 * 64: 128 sums per thread. k advances by 32, in four buffers: while one is multiplied, three more are in flight.
 *
 * In shared memory, rows consist of pieces of 16 bytes (8 elements), and load_matrices reads the same piece of 8 rows
 * at a time. Rows lie 64 (A) or 512 bytes (B) apart, so those pieces would be in the same banks, and would be read one
 * after the other. So pieces are permuted within their row, by exclusive or with the row's number. The pieces of 8 rows
 * are then in 8 different places:
 *
 *     piece of A:    row 0:  0 1 2 3     row 2:  1 0 3 2     row 4:  2 3 0 1     row 6:  3 2 1 0
 *                    row 1:  0 1 2 3     row 3:  1 0 3 2     row 5:  2 3 0 1     row 7:  3 2 1 0
 */
enum { TENSOR_ROWS = 128, TENSOR_COLUMNS = 256, TENSOR_DEPTH = 32, STAGES = 4, PATCH = 8 };
enum { PIECES_A = TENSOR_DEPTH / 8, PIECES_B = TENSOR_COLUMNS / 8 };                    /* per row */
enum { BYTES_A = TENSOR_ROWS * PIECES_A * 16, STAGE = BYTES_A + TENSOR_DEPTH * PIECES_B * 16 };
enum { TENSOR_SHARED = STAGES * STAGE };                                                /* 96 KB */

static __device__ __forceinline__ int place_a(int row, int piece)
{
    return (row * PIECES_A + (piece ^ (row / 2 % 4))) * 16;
}

static __device__ __forceinline__ int place_b(int row, int piece)
{
    return BYTES_A + (row * PIECES_B + (piece ^ (row % 8))) * 16;
}

static __device__ __forceinline__ void fetch_tensor(char *stage, int m, int n, int k, const __nv_bfloat16 *a, int a_row,
                                                    const __nv_bfloat16 *b, int b_row)
{
#pragma unroll
    for (int at = threadIdx.x, part = 0; part < TENSOR_ROWS * PIECES_A / THREADS; part++, at += THREADS) {
        const int i = at / PIECES_A, piece = at % PIECES_A;
        copy_16(stage + place_a(i, piece), a, i * a_row + piece * 8, i < m && piece * 8 < k);
    }
#pragma unroll
    for (int at = threadIdx.x, part = 0; part < TENSOR_DEPTH * PIECES_B / THREADS; part++, at += THREADS) {
        const int q = at / PIECES_B, piece = at % PIECES_B;
        copy_16(stage + place_b(q, piece), b, q * b_row + piece * 8, q < k && piece * 8 < n);
    }
}

/* Loads a warp's operands for 16 steps of k: 4 blocks of 16 rows of A, 4 blocks of 16 columns of B. */
static __device__ __forceinline__ void load_tensor(unsigned left[4][4], unsigned right[4][4], const char *stage, int y,
                                                   int x, int step)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < 4; r++)
        load_matrices(left[r], stage + place_a(y + 16 * r + lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int s = 0; s < 4; s++)
        load_matrices_transposed(right[s], stage + place_b(step * 16 + lane % 16, (x + 16 * s) / 8 + lane / 16));
}

__global__ void __launch_bounds__(THREADS) tensor_cores(int m, int n, int k, const __nv_bfloat16 *a, int a_row,
                                                        const __nv_bfloat16 *b, int b_row, float *c, int c_row)
{
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, y = warp / 4 * 64, x = warp % 4 * 64;

    /* Blocks with neighboring numbers run at the same time. To share rows and columns that stay in L2, they go down 8
     * tiles, then one to the right, and so on. */
    const int down = (m + TENSOR_ROWS - 1) / TENSOR_ROWS, across = (n + TENSOR_COLUMNS - 1) / TENSOR_COLUMNS;
    const int patch = blockIdx.x / (PATCH * across), at = blockIdx.x % (PATCH * across);
    const int height = min(PATCH, down - patch * PATCH);
    const int i0 = (patch * PATCH + at % height) * TENSOR_ROWS, j0 = at / height * TENSOR_COLUMNS;

    const int tiles = (k + TENSOR_DEPTH - 1) / TENSOR_DEPTH;
    float sum[4][8][4] = {};                                /* 16 x 8 elements each: 64 x 64 for the warp */
    unsigned left[2][4][4], right[2][4][4];

    m -= i0, a += (size_t)i0 * a_row, n -= j0, b += j0, c += (size_t)i0 * c_row + j0;
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < tiles)
            fetch_tensor(shared + t * STAGE, m, n, k - t * TENSOR_DEPTH, a, a_row, b, b_row);
        copies_end();                                       /* an empty group also counts */
        a += TENSOR_DEPTH, b += (size_t)TENSOR_DEPTH * b_row;
    }
    for (int t = 0; t < tiles; t++) {
        const int next = t + STAGES - 1;
        copies_wait<STAGES - 2>();                          /* tile t has arrived, the next two may be in flight */
        __syncthreads();                                    /* for all threads; none reads tile t - 1 any more */
        const char *stage = shared + t % STAGES * STAGE;
        load_tensor(left[0], right[0], stage, y, x, 0);
        if (next < tiles)                                   /* into the buffer of tile t - 1 */
            fetch_tensor(shared + next % STAGES * STAGE, m, n, k - next * TENSOR_DEPTH, a, a_row, b, b_row);
        copies_end();
        a += TENSOR_DEPTH, b += (size_t)TENSOR_DEPTH * b_row;
#pragma unroll
        for (int step = 0; step < TENSOR_DEPTH / 16; step++) {
            if (step + 1 < TENSOR_DEPTH / 16)               /* loads the next 16 while these are multiplied */
                load_tensor(left[(step + 1) % 2], right[(step + 1) % 2], stage, y, x, step + 1);
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int s = 0; s < 8; s++)
                    multiply_add<__nv_bfloat16>(sum[r][s], left[step % 2][r], right[step % 2][s / 2][s % 2 * 2],
                                                right[step % 2][s / 2][s % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int s = 0; s < 8; s++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = y + 16 * r + lane / 4 + 8 * half, j = x + 8 * s + lane % 4 * 2;
                if (i < m && j < n)
                    *(float2 *)&c[i * c_row + j] = make_float2(sum[r][s][2 * half], sum[r][s][2 * half + 1]);
            }
}

/* ---- The program ---- */

#define CUDA(call) cuda_check(call, #call)
#define CUBLAS(call) cublas_check(call, #call)

static void cuda_check(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        fail("%s: %s%s", call, cudaGetErrorString(error),
             error == cudaErrorNoKernelImageForDevice ? "; \"make ladder ARCH=sm_XX\" builds for sm_XX" : "");
}

static void cublas_check(cublasStatus_t status, const char *call)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("%s: %s", call, cublasGetStatusString(status));
}

typedef struct {
    int m, n, k, a_row, b_row, c_row;       /* x_row: row stride in elements, a multiple of 8 */
    float *a, *b, *c;
    __nv_bfloat16 *a_16, *b_16;             /* a and b rounded to bf16 */
    cublasHandle_t cublas;
} Product;

static int ceil_div(int length, int size)
{
    return (length + size - 1) / size;
}

static void run_naive(const Product *p)
{
    const dim3 grid(ceil_div(p->m, SIDE), ceil_div(p->n, SIDE)), block(SIDE, SIDE);
    naive<<<grid, block>>>(p->m, p->n, p->k, p->a, p->a_row, p->b, p->b_row, p->c, p->c_row);
}

static void run_coalesced(const Product *p)
{
    const dim3 grid(ceil_div(p->n, SIDE), ceil_div(p->m, SIDE)), block(SIDE, SIDE);
    coalesced<<<grid, block>>>(p->m, p->n, p->k, p->a, p->a_row, p->b, p->b_row, p->c, p->c_row);
}

static void run_tiles(const Product *p)
{
    const dim3 grid(ceil_div(p->n, SIDE), ceil_div(p->m, SIDE)), block(SIDE, SIDE);
    tiles<<<grid, block>>>(p->m, p->n, p->k, p->a, p->a_row, p->b, p->b_row, p->c, p->c_row);
}

static void run_registers(const Product *p)
{
    const dim3 grid(ceil_div(p->n, TILE), ceil_div(p->m, TILE));
    registers<<<grid, THREADS>>>(p->m, p->n, p->k, p->a, p->a_row, p->b, p->b_row, p->c, p->c_row);
}

static void run_wide(const Product *p)
{
    const dim3 grid(ceil_div(p->n, TILE), ceil_div(p->m, TILE));
    wide<<<grid, THREADS>>>(p->m, p->n, p->k, p->a, p->a_row, p->b, p->b_row, p->c, p->c_row);
}

static void run_tensor_cores(const Product *p)
{
    const int blocks = ceil_div(p->m, TENSOR_ROWS) * ceil_div(p->n, TENSOR_COLUMNS);
    CUDA(cudaFuncSetAttribute(tensor_cores, cudaFuncAttributeMaxDynamicSharedMemorySize, TENSOR_SHARED));
    tensor_cores<<<blocks, THREADS, TENSOR_SHARED>>>(p->m, p->n, p->k, p->a_16, p->a_row, p->b_16, p->b_row, p->c,
                                                     p->c_row);
}

/* cuBLAS is column-major: it sees all three matrices transposed, and C^T = B^T A^T. In true float: TF32 is opt-in. */
static void run_cublas(const Product *p)
{
    const float one = 1, zero = 0;
    CUBLAS(cublasGemmEx(p->cublas, CUBLAS_OP_N, CUBLAS_OP_N, p->n, p->m, p->k, &one, p->b, CUDA_R_32F, p->b_row, p->a,
                        CUDA_R_32F, p->a_row, &zero, p->c, CUDA_R_32F, p->c_row, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT));
}

static void run_cublas_16(const Product *p)
{
    const float one = 1, zero = 0;
    CUBLAS(cublasGemmEx(p->cublas, CUBLAS_OP_N, CUBLAS_OP_N, p->n, p->m, p->k, &one, p->b_16, CUDA_R_16BF, p->b_row,
                        p->a_16, CUDA_R_16BF, p->a_row, &zero, p->c, CUDA_R_32F, p->c_row, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT));
}

typedef struct {
    const char *name;
    void (*run)(const Product *p);
    const char *idea;
} Rung;

enum { RUNGS = 7, TENSOR_RUNG = 6 };
static const Rung rungs[RUNGS + 1] = {
    {"", NULL, ""},
    {"naive", run_naive, "one thread per element; a warp runs down a column"},
    {"coalesced", run_coalesced, "a warp runs along a row: its 32 reads are one access"},
    {"tiles", run_tiles, "32 x 32 tiles in shared memory, each float used 32 times"},
    {"registers", run_registers, "8 x 8 elements per thread: 16 loads for 64 multiplications"},
    {"wide loads", run_wide, "16 bytes per load, and the next tile is in flight meanwhile"},
    {"tensor cores", run_tensor_cores, "bf16: a warp multiplies 16 x 16 by 16 x 8 at once; four buffers"},
    {"cuBLAS", run_cublas, "float: the reference of rungs 1 to 5"},
};
static const Rung cublas_16 = {"cuBLAS", run_cublas_16, "bf16: the reference of rung 6"};

typedef struct {
    double seconds, library;                /* per run, and per run of cuBLAS in the same type: medians */
} Times;

static double run_once(const Rung *r, const Product *p)
{
    static cudaEvent_t begin, end;
    float milliseconds;

    if (!begin) {
        CUDA(cudaEventCreate(&begin));
        CUDA(cudaEventCreate(&end));
    }
    CUDA(cudaEventRecord(begin));
    r->run(p);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    return milliseconds / 1e3;
}

/* Times a rung and cuBLAS in alternating runs: a GPU's clock changes with its temperature, but hardly between
 * neighbors in time. C has been computed once, in `first` seconds; if that took long, it is the only run. */
static Times measure(const Ladder *l, const Rung *r, const Product *p, double first)
{
    const Rung *library = r == &rungs[TENSOR_RUNG] || r == &cublas_16 ? &cublas_16 : &rungs[RUNGS];
    double rung[LADDER_TIMES], other[LADDER_TIMES], spent = 0;
    Times t = {first, 0};
    int count = 0;

    run_once(library, p);
    if (first > l->seconds) {
        t.library = run_once(library, p);
        return t;
    }
    while (count < LADDER_TIMES && (count < 5 || spent < l->seconds)) {
        r->run(p);                  /* while the GPU runs this one, the host queues the timed one: on an idle GPU, */
        rung[count] = run_once(r, p);           /* the host's launch time would count */
        library->run(p);
        other[count] = run_once(library, p);
        spent += rung[count] + other[count];
        count++;
    }
    t.seconds = ladder_median(rung, count);
    t.library = ladder_median(other, count);
    return t;
}

/* Allocates device memory, filled with zeros. */
static void *device_zeros(int64_t rows, int row, int size)
{
    void *x;

    CUDA(cudaMalloc(&x, rows * row * size));
    CUDA(cudaMemset(x, 0, rows * row * size));
    return x;
}

static void upload(void *to, int row, const void *from, int rows, int columns, int size)
{
    CUDA(cudaMemcpy2D(to, (size_t)row * size, from, (size_t)columns * size, (size_t)columns * size, rows,
                      cudaMemcpyHostToDevice));
}

static void download(float *to, const Product *p)
{
    CUDA(cudaMemcpy2D(to, p->n * sizeof *to, p->c, p->c_row * sizeof *to, p->n * sizeof *to, p->m,
                      cudaMemcpyDeviceToHost));
}

static __nv_bfloat16 *upload_rounded(const float *from, int rows, int columns, int row)
{
    const int64_t count = (int64_t)rows * columns;
    __nv_bfloat16 *rounded = (__nv_bfloat16 *)malloc(count * sizeof *rounded), *to;

    if (!rounded)
        fail("not enough memory for a matrix of %d x %d in bf16; try a smaller --size", rows, columns);
    for (int64_t i = 0; i < count; i++)
        rounded[i] = __float2bfloat16(from[i]);
    to = (__nv_bfloat16 *)device_zeros(rows, row, sizeof *to);
    upload(to, row, rounded, rows, columns, sizeof *to);
    free(rounded);
    return to;
}

/* Returns the bytes read and written per second; the best of six trials. */
static double copy_bandwidth(const Ladder *l)
{
    const size_t bytes = (size_t)l->copy * 500000;          /* half of them are read, half written */
    void *from = device_zeros(bytes / 16, 16, 1), *to = device_zeros(bytes / 16, 16, 1);
    cudaEvent_t begin, end;
    float milliseconds, best = INFINITY;

    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int trial = 0; trial < 6; trial++) {
        CUDA(cudaEventRecord(begin));
        CUDA(cudaMemcpyAsync(to, from, bytes / 16 * 16, cudaMemcpyDeviceToDevice));
        CUDA(cudaEventRecord(end));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
        best = fminf(best, milliseconds);
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaFree(from));
    CUDA(cudaFree(to));
    return 2.0 * bytes / (best / 1e3);
}

int main(int argc, char **argv)
{
    Ladder l = {4096, 4096, 4096, 0, 1000, 1, RUNGS, {}, true};
    Product p = {};
    cudaDeviceProp gpu;
    int count = 0;

    ladder_options(&l, false,
                   "Multiplies matrices in seven ways, each with one more idea, and prints what each gained.", argc,
                   argv);
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess || count == 0)
        fail("no GPU found (%s); build/cpu/ladder is the same ladder on the CPU",
             found != cudaSuccess ? cudaGetErrorString(found) : "the count is 0");
    CUDA(cudaGetDeviceProperties(&gpu, 0));
    const bool has_bf16 = gpu.major >= 8;
    if (!has_bf16 && l.rung[TENSOR_RUNG])
        printf("rung %d is skipped: this GPU (sm_%d%d) has no bf16, which needs sm_80\n\n", TENSOR_RUNG, gpu.major,
               gpu.minor);
    l.rung[TENSOR_RUNG] &= has_bf16;

    const int m = p.m = l.m, n = p.n = l.n, k = p.k = l.k;
    p.a_row = ceil_div(k, 8) * 8, p.b_row = p.c_row = ceil_div(n, 8) * 8;
    float *a = ladder_matrix(m, k), *b = ladder_matrix(k, n), *c = ladder_matrix(m, n);
    float *want = ladder_matrix(m, n), *want_16 = ladder_matrix(m, n);
    ladder_fill(a, (int64_t)m * k, 1);
    ladder_fill(b, (int64_t)k * n, 2);
    double *row = ladder_norms(a, m, k, k, 1), *column = ladder_norms(b, n, k, 1, n);
    p.a = (float *)device_zeros(m, p.a_row, sizeof(float)), p.b = (float *)device_zeros(k, p.b_row, sizeof(float));
    p.c = (float *)device_zeros(m, p.c_row, sizeof(float));
    upload(p.a, p.a_row, a, m, k, sizeof(float));
    upload(p.b, p.b_row, b, k, n, sizeof(float));
    CUBLAS(cublasCreate(&p.cublas));
    run_once(&rungs[RUNGS], &p);
    download(want, &p);
    if (has_bf16) {
        p.a_16 = upload_rounded(a, m, k, p.a_row), p.b_16 = upload_rounded(b, k, n, p.b_row);
        run_once(&cublas_16, &p);
        download(want_16, &p);
    }

    printf("C (%d, %d) = A (%d, %d) B (%d, %d); %s, sm_%d%d, %d multiprocessors\n\n", m, n, m, k, k, n, gpu.name,
           gpu.major, gpu.minor, gpu.multiProcessorCount);
    ladder_head(&l, "cuBLAS");
    double before = -1;
    for (int i = 1; i <= RUNGS; i++) {
        const Rung *r = &rungs[i];
        const float *right = i == TENSOR_RUNG ? want_16 : want;
        int64_t at = 0;
        if (!l.rung[i]) {
            before = -1;
            continue;
        }
        CUDA(cudaMemset(p.c, 0xff, (size_t)m * p.c_row * sizeof *p.c));     /* NaN: shows what a rung does not write */
        const double first = run_once(r, &p);
        download(c, &p);
        const double error = ladder_error(c, right, m, n, row, column, &at);
        if (!(error <= ladder_allowed(k)))
            fail("rung %d (%s) is wrong: C[%lld][%lld] is %g, with cuBLAS %g", i, r->name, (long long)(at / n),
                 (long long)(at % n), c[at], right[at]);
        const Times t = measure(&l, r, &p, first);
        const double now = ladder_flops(&l) / t.seconds;
        ladder_row(&l, i, r->name, now, t.library / t.seconds, i < RUNGS && before > 0 ? now / before : -1, error,
                   r->idea);
        before = now;
    }
    const double rate = ladder_flops(&l) / measure(&l, &rungs[RUNGS], &p, 0).library;
    const double rate_16 = has_bf16 ? ladder_flops(&l) / measure(&l, &cublas_16, &p, 0).library : 0;
    if (has_bf16)
        ladder_row(&l, 0, cublas_16.name, rate_16, 1, -1, -1, cublas_16.idea);
    const double bandwidth = l.copy ? copy_bandwidth(&l) : 0;
    ladder_roofline(&l, "cuBLAS in float", rate, bandwidth, sizeof(float));
    if (has_bf16)
        ladder_roofline(&l, "cuBLAS in bf16", rate_16, bandwidth, sizeof(__nv_bfloat16));
    CUBLAS(cublasDestroy(p.cublas));
    CUDA(cudaFree(p.a));
    CUDA(cudaFree(p.b));
    CUDA(cudaFree(p.c));
    CUDA(cudaFree(p.a_16));
    CUDA(cudaFree(p.b_16));
    free(a), free(b), free(c), free(want), free(want_16), free(row), free(column);
    fail_unprinted();
    return 0;
}
