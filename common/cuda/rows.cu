/* Operators with sums: over a row, by the block that has the row; over columns and whole tensors, in two passes, parts
 * first and then the parts in their order. */
#include <stdlib.h>

#include "../error.h"
#include "kernel.cuh"

/* ---- sums over the rows of each column ---- */

/* A block takes a warp's width of columns, N a thread, of one part of the rows; its GROUPS warps take turns with the
 * rows. How many parts there are follows from the rows alone. */
enum { GROUPS = 8 };

static int64_t parts_of(int64_t rows)
{
    return clamped(rows / 64, 1, 128);
}

static dim3 column_blocks(int64_t width, int n, int64_t parts)
{
    return dim3((width + WARP * n - 1) / (WARP * n), parts);
}

/* out[0 .. N) = the warps' sums of each column, added up in the order of the warps; out is the thread's own place, and
 * each warp writes some of its columns. */
template <int N> __device__ static void store_sums(float *out, const float (&x)[N])
{
    __shared__ float of_group[GROUPS][N][WARP];

    for (int k = 0; k < N; k++)
        of_group[threadIdx.y][k][threadIdx.x] = x[k];
    __syncthreads();
    if (out)
        for (int k = threadIdx.y; k < N; k += GROUPS) {
            float sum = 0;
            for (int g = 0; g < GROUPS; g++)
                sum += of_group[g][k][threadIdx.x];
            out[k] = sum;
        }
    __syncthreads();
}

/* partial (parts, width) */
template <typename T, int N> __global__ void column_parts(float *partial, const T *in, int64_t rows, int64_t width)
{
    const int64_t j = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N, p = blockIdx.y, parts = gridDim.y;
    float sum[N] = {0}, v[N];

    if (j < width)
#pragma unroll 4                                /* several rows on their way at a time */
        for (int64_t i = rows * p / parts + threadIdx.y; i < rows * (p + 1) / parts; i += GROUPS) {
            load(v, in + i * width + j, N);
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
    store_sums(j < width ? partial + p * width + j : NULL, sum);
}

/* sum += the parts, in their order: a block a warp's width of columns, its warps in turn. */
template <typename G> __global__ void add_parts(G *sum, const float *partial, int64_t parts, int64_t width)
{
    __shared__ float total[WARP];
    const int64_t j = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float s[1] = {0};

    if (j < width)
        for (int64_t p = threadIdx.y; p < parts; p += GROUPS)
            s[0] += partial[p * width + j];
    store_sums(&total[threadIdx.x], s);
    if (j < width && threadIdx.y == 0)
        set(&sum[j], number(sum[j]) + total[threadIdx.x]);
}

void column_sums(Tensor sum, Tensor t)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t), parts = parts_of(rows), bytes = parts * width * 4;
    const bool wide = width * dtype_size(t.dtype) % 16 == 0;
    float *partial = (float *)device_scratch(bytes);

    FOR_TYPE(t.dtype, T, PACKED(wide && aligned(t), T, N,
        LAUNCH(column_parts<T, N>, column_blocks(width, N, parts), dim3(WARP, GROUPS), partial, data<T>(t), rows,
               width)));
    FOR_GRADIENT(sum.dtype, G,
        LAUNCH(add_parts<G>, column_blocks(width, 1, 1), dim3(WARP, GROUPS), data<G>(sum), partial, parts, width));
    device_scratch_free(partial, bytes);
}

void residual_backward_kernel(Tensor d_bias, Tensor d_out)
{
    column_sums(d_bias, d_out);
}

/* ---- LayerNorm ---- */

template <typename T, int N>
__global__ void layernorm_forward_rows(T *out, float *stats, const T *x, const T *weight, const T *bias, int64_t rows,
                                       int64_t width)
{
    EACH_ROW(i, rows) {
        const T *in = x + i * width;
        float v[N], w[N], b[N], sum = 0, squares = 0;
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            for (int k = 0; k < N; k++)
                sum += v[k];
        }
        const float mean = block_sum(sum) / width;
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            for (int k = 0; k < N; k++)
                squares += (v[k] - mean) * (v[k] - mean);
        }
        const float inverse = 1 / sqrtf(block_sum(squares) / width + 1e-5f);
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            load(w, weight + j, N);
            load(b, bias + j, N);
            for (int k = 0; k < N; k++)
                v[k] = (v[k] - mean) * inverse * w[k] + b[k];
            store(out + i * width + j, v, N);
        }
        if (threadIdx.x == 0) {
            stats[2 * i] = mean;
            stats[2 * i + 1] = inverse;
        }
    }
}

void layernorm_forward_kernel(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const bool wide = width * dtype_size(x.dtype) % 16 == 0;

    FOR_TYPE(x.dtype, T, PACKED(wide && aligned(out) && aligned(x) && aligned(weight) && aligned(bias), T, N,
        LAUNCH(layernorm_forward_rows<T, N>, row_blocks(rows), row_threads(width, N), data<T>(out), data<float>(stats),
               data<T>(x), data<T>(weight), data<T>(bias), rows, width)));
}

/* With n = (x - mean) * inverse and g = d_out * weight: d_x += inverse * (g - mean(g) - n * mean(g * n)). */
template <typename T, int N>
__global__ void layernorm_backward_rows(T *d_x, const T *d_out, const T *x, const float *stats, const T *weight,
                                        int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const T *in = x + i * width, *d_o = d_out + i * width;
        const float mean = stats[2 * i], inverse = stats[2 * i + 1];
        float v[N], g[N], w[N], d[N], sum = 0, sum_n = 0;
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            load(g, d_o + j, N);
            load(w, weight + j, N);
            for (int k = 0; k < N; k++) {
                sum += g[k] * w[k];
                sum_n += g[k] * w[k] * (v[k] - mean) * inverse;
            }
        }
        sum = block_sum(sum) / width;
        sum_n = block_sum(sum_n) / width;
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            load(g, d_o + j, N);
            load(w, weight + j, N);
            load(d, d_x + i * width + j, N);
            for (int k = 0; k < N; k++)
                d[k] += inverse * (g[k] * w[k] - sum - (v[k] - mean) * inverse * sum_n);
            store(d_x + i * width + j, d, N);
        }
    }
}

/* of_weight and of_bias (parts, width), like column_parts. */
template <typename T, int N>
__global__ void layernorm_parts(float *of_weight, float *of_bias, const T *d_out, const T *x, const float *stats,
                                int64_t rows, int64_t width)
{
    const int64_t j = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N, p = blockIdx.y, parts = gridDim.y;
    float w[N] = {0}, b[N] = {0}, d[N], v[N];

    if (j < width)
#pragma unroll 4
        for (int64_t i = rows * p / parts + threadIdx.y; i < rows * (p + 1) / parts; i += GROUPS) {
            const float mean = stats[2 * i], inverse = stats[2 * i + 1];
            load(d, d_out + i * width + j, N);
            load(v, x + i * width + j, N);
            for (int k = 0; k < N; k++) {
                w[k] += d[k] * (v[k] - mean) * inverse;
                b[k] += d[k];
            }
        }
    store_sums(j < width ? of_weight + p * width + j : NULL, w);
    store_sums(j < width ? of_bias + p * width + j : NULL, b);
}

void layernorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                               Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x), parts = parts_of(rows), bytes = 2 * parts * width * 4;
    const bool wide = width * dtype_size(x.dtype) % 16 == 0;
    float *of_weight = (float *)device_scratch(bytes), *of_bias = of_weight + parts * width;

    FOR_TYPE(x.dtype, T,
        PACKED(wide && aligned(d_x) && aligned(d_out) && aligned(x) && aligned(weight), T, N,
            LAUNCH(layernorm_backward_rows<T, N>, row_blocks(rows), row_threads(width, N), data<T>(d_x), data<T>(d_out),
                   data<T>(x), data<float>(stats), data<T>(weight), rows, width);
            LAUNCH(layernorm_parts<T, N>, column_blocks(width, N, parts), dim3(WARP, GROUPS), of_weight, of_bias,
                   data<T>(d_out), data<T>(x), data<float>(stats), rows, width)));
    FOR_GRADIENT(d_bias.dtype, G,
        LAUNCH(add_parts<G>, column_blocks(width, 1, 1), dim3(WARP, GROUPS), data<G>(d_weight), of_weight, parts,
               width);
        LAUNCH(add_parts<G>, column_blocks(width, 1, 1), dim3(WARP, GROUPS), data<G>(d_bias), of_bias, parts, width));
    device_scratch_free(of_weight, bytes);
}

/* ---- the embedding's gradient ---- */

/* Each row of the weight that is used belongs to one block: that of the first row i with its id; later rows with the
 * same id leave at once. The block adds up all rows with its id in their order, in float. To find them it looks through
 * the ids, THREADS at a time: rows^2 comparisons of numbers in the cache, which are little beside the rows themselves,
 * and nothing needs to be sorted or added atomically. A thread has COLUMNS columns, THREADS apart. */
enum { COLUMNS = 4 };

template <typename T, typename G>
__global__ void embedding_backward_rows(G *d_weight, const T *d_out, const int32_t *ids, int64_t rows, int64_t width)
{
    __shared__ int found[THREADS], of_warp[THREADS / WARP];
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const int64_t i = blockIdx.x, column = (int64_t)blockIdx.y * THREADS * COLUMNS + thread;
    const int32_t id = ids[i];
    const T *from[COLUMNS];                     /* behind the row's end: its last column, read in vain */
    float sum[COLUMNS] = {0};

    if (id < 0)
        return;
    for (int64_t begin = 0; begin < i; begin += THREADS)
        if (__syncthreads_or(begin + thread < i && ids[begin + thread] == id))
            return;
    for (int k = 0; k < COLUMNS; k++)
        from[k] = d_out + (column + k * THREADS < width ? column + k * THREADS : width - 1);
    for (int64_t begin = i; begin < rows; begin += THREADS) {
        /* which of these rows have the id, in order: each warp's come behind those of the warps before it */
        const bool same = begin + thread < rows && ids[begin + thread] == id;
        const unsigned of_lanes = __ballot_sync(~0u, same);
        int before = __popc(of_lanes & ((1u << lane) - 1)), count = 0;
        if (lane == 0)
            of_warp[warp] = __popc(of_lanes);
        __syncthreads();
        for (int w = 0; w < THREADS / WARP; w++) {
            before += w < warp ? of_warp[w] : 0;
            count += of_warp[w];
        }
        if (same)
            found[before] = thread;
        __syncthreads();
#pragma unroll 8                                /* a frequent id has many rows: several on their way at a time */
        for (int f = 0; f < count; f++)
            for (int k = 0; k < COLUMNS; k++)
                sum[k] += number(from[k][(begin + found[f]) * width]);
    }                                           /* found is written again only behind the next round's first barrier */
    for (int k = 0; k < COLUMNS; k++)
        if (column + k * THREADS < width) {
            G *d_w = d_weight + id * width + column + k * THREADS;
            set(d_w, number(*d_w) + sum[k]);
        }
}

void embedding_backward_kernel(Tensor d_weight, Tensor d_out, Tensor ids)
{
    const int64_t rows = tensor_count(ids), width = tensor_width(d_out);
    const dim3 grid(rows, (width + THREADS * COLUMNS - 1) / (THREADS * COLUMNS));

    FOR_TYPE(d_out.dtype, T, FOR_GRADIENT(d_weight.dtype, G,
        LAUNCH(embedding_backward_rows<T, G>, grid, THREADS, data<G>(d_weight), data<T>(d_out), data<int32_t>(ids),
               rows, width)));
}

/* ---- cross-entropy ---- */

/* The row's maximum, and the sum of exp(x - max), for every thread: of outside the row, -Inf and 0. */
template <typename T> __device__ static float row_max(const T *in, int64_t width)
{
    constexpr int N = 16 / sizeof(T);
    float v[N], max = -INFINITY;

    EACH_RAGGED(j, N, in, width) {
        load_ragged(v, in, j, width, -INFINITY);
        for (int k = 0; k < N; k++)
            max = fmaxf(max, v[k]);
    }
    return block_max(max);
}

template <typename T> __device__ static float row_sum(const T *in, float max, int64_t width)
{
    constexpr int N = 16 / sizeof(T);
    float v[N], sum = 0;

    EACH_RAGGED(j, N, in, width) {
        load_ragged(v, in, j, width, -INFINITY);
        for (int k = 0; k < N; k++)
            sum += expf(v[k] - max);
    }
    return block_sum(sum);
}

template <typename T>
__global__ void cross_entropy_forward_rows(float *lse, const T *logits, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const T *in = logits + i * width;
        const float max = row_max(in, width), sum = row_sum(in, max, width);
        if (threadIdx.x == 0)
            lse[i] = max + logf(sum);
    }
}

/* One block: the loss is one sum, in double, and rows are few. */
template <typename T>
__global__ void cross_entropy_total(double *loss, const float *lse, const T *logits, const int32_t *targets,
                                    int64_t rows, int64_t width, double scale)
{
    double total = 0;

    EACH_COLUMN(i, 1, rows)
        total += (double)lse[i] - (targets[i] < 0 ? 0 : number(logits[i * width + targets[i]]));
    total = block_sum(total);
    if (threadIdx.x == 0)
        *loss += scale * total;
}

void cross_entropy_forward_kernel(Tensor loss, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

    FOR_TYPE(logits.dtype, T,
        LAUNCH(cross_entropy_forward_rows<T>, row_blocks(rows), row_threads(width, 16 / sizeof(T)), data<float>(lse),
               data<T>(logits), rows, width);
        LAUNCH(cross_entropy_total<T>, 1, MOST_THREADS, data<double>(loss), data<float>(lse), data<T>(logits),
               data<int32_t>(targets), rows, width, scale));
}

/* d_logits may be logits: each thread reads what it then writes. */
template <typename T, int N>
__global__ void cross_entropy_backward_rows(T *d_logits, const T *logits, const float *lse, const int32_t *targets,
                                            int64_t rows, int64_t width, float scale)
{
    EACH_ROW(i, rows) {
        const float log_sum = lse[i];
        const int64_t target = targets[i];
        EACH_RAGGED(j, N, logits + i * width, width) {
            float v[N];
            load_ragged(v, logits + i * width, j, width, 0);
            for (int k = 0; k < N; k++)
                v[k] = scale * (expf(v[k] - log_sum) - (j + k == target ? 1 : 0));
            store_ragged(d_logits + i * width, v, j, width);
        }
    }
}

void cross_entropy_backward_kernel(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);
    const bool alike = ((uintptr_t)logits.data - (uintptr_t)d_logits.data) % 16 == 0;

    FOR_TYPE(logits.dtype, T, PACKED(alike, T, N,
        LAUNCH(cross_entropy_backward_rows<T, N>, row_blocks(rows), row_threads(width, N), data<T>(d_logits),
               data<T>(logits), data<float>(lse), data<int32_t>(targets), rows, width, (float)scale)));
}

/* ---- cross-entropy in parts ---- */

template <typename T>
__global__ void cross_entropy_max_rows(float *max, const T *logits, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const float most = row_max(logits + i * width, width);
        if (threadIdx.x == 0)
            max[i] = most;
    }
}

void cross_entropy_max_kernel(Tensor max, Tensor logits)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

    FOR_TYPE(logits.dtype, T,
        LAUNCH(cross_entropy_max_rows<T>, row_blocks(rows), row_threads(width, 4), data<float>(max), data<T>(logits),
               rows, width));
}

template <typename T>
__global__ void cross_entropy_sums_rows(float *sums, const T *logits, const float *max, const int32_t *targets,
                                        int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const T *in = logits + i * width;
        const float sum = row_sum(in, max[i], width);
        if (threadIdx.x == 0) {
            sums[2 * i] = sum;
            sums[2 * i + 1] = targets[i] < 0 ? 0 : number(in[targets[i]]);
        }
    }
}

void cross_entropy_sums_kernel(Tensor sums, Tensor logits, Tensor max, Tensor targets)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

    FOR_TYPE(logits.dtype, T,
        LAUNCH(cross_entropy_sums_rows<T>, row_blocks(rows), row_threads(width, 4), data<float>(sums), data<T>(logits),
               data<float>(max), data<int32_t>(targets), rows, width));
}

__global__ void cross_entropy_of_sums(double *loss, float *lse, const float *sums, const float *max, int64_t rows,
                                      double scale)
{
    double total = 0;

    EACH_COLUMN(i, 1, rows) {
        lse[i] = max[i] + logf(sums[2 * i]);
        total += (double)max[i] - sums[2 * i + 1] + logf(sums[2 * i]);     /* lse is rounded at the logits' size */
    }
    total = block_sum(total);
    if (threadIdx.x == 0)
        *loss += scale * total;
}

void cross_entropy_loss_kernel(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale)
{
    LAUNCH(cross_entropy_of_sums, 1, MOST_THREADS, data<double>(loss), data<float>(lse), data<float>(sums),
           data<float>(max), tensor_rows(sums), scale);
}

/* ---- the sum of all squares ---- */

/* Tensors are cut into pieces of this many elements, a block each; one block adds up the pieces. */
static const int64_t PIECE = 1 << 16;

typedef struct {
    const void *data;
    int64_t count;
    bool is_bf16;
} Piece;

/* This thread's share. */
template <typename T> __device__ static double squares(const T *x, int64_t count)
{
    constexpr int N = 16 / sizeof(T);
    double sum = 0;

    EACH_RAGGED(i, N, x, count) {
        float v[N];
        load_ragged(v, x, i, count, 0);
        for (int k = 0; k < N; k++)
            sum += (double)v[k] * v[k];
    }
    return sum;
}

__global__ void square_pieces(double *partial, const Piece *pieces)
{
    const Piece piece = pieces[blockIdx.x];
    const double sum = block_sum(piece.is_bf16 ? squares((const __nv_bfloat16 *)piece.data, piece.count)
                                               : squares((const float *)piece.data, piece.count));

    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void square_total(double *total, const double *partial, int64_t count)
{
    double sum = 0;

    EACH_COLUMN(i, 1, count)
        sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *total = sum;
}

static void square_sum_to(double *total, const Tensor *list, int count)
{
    int64_t n = 0;

    for (int k = 0; k < count; k++)
        n += (tensor_count(list[k]) + PIECE - 1) / PIECE;
    if (n == 0) {
        device_zero(total, sizeof *total);
        return;
    }
    Piece *pieces = (Piece *)malloc(n * sizeof *pieces), *next = pieces;
    if (!pieces)
        fail("no memory for a list of %lld pieces of gradients", (long long)n);
    for (int k = 0; k < count; k++)
        for (int64_t i = 0; i < tensor_count(list[k]); i += PIECE)
            *next++ = (Piece){(char *)list[k].data + i * dtype_size(list[k].dtype),
                              clamped(tensor_count(list[k]) - i, 0, PIECE), list[k].dtype == BF16};
    const int64_t bytes = n * sizeof *pieces, partial_bytes = n * sizeof(double);
    Piece *there = (Piece *)device_scratch(bytes);
    double *partial = (double *)device_scratch(partial_bytes);
    device_upload(there, pieces, bytes);
    free(pieces);
    LAUNCH(square_pieces, n, THREADS, partial, there);
    LAUNCH(square_total, 1, MOST_THREADS, total, partial, n);
    device_scratch_free(there, bytes);
    device_scratch_free(partial, partial_bytes);
}

void square_sum_into_kernel(Tensor sum, const Tensor *list, int count)
{
    square_sum_to(data<double>(sum), list, count);
}

/* By one thread, once: AdamW's would each take a square root and a division in double. */
__global__ void clip_scale(double *scale, const double *square_sum, double clip)
{
    const double norm = sqrt(*square_sum);

    if (threadIdx.x == 0)
        *scale = !isfinite(norm) ? NAN : clip > 0 && norm + 1e-6 > clip ? clip / (norm + 1e-6) : 1;
}

void clip_scale_into_kernel(Tensor scale, Tensor square_sum, double clip)
{
    LAUNCH(clip_scale, 1, WARP, data<double>(scale), data<double>(square_sum), clip);
}

double square_sum_kernel(const Tensor *list, int count)
{
    double sum, *total = (double *)device_scratch(sizeof *total);

    square_sum_to(total, list, count);
    device_download(&sum, total, sizeof sum);
    device_scratch_free(total, sizeof *total);
    return sum;
}

/* ---- rows that were computed with some of the keys each ---- */

/* A warp a row: rows are a head's, and short. Both are divided by their own sum, exp(lse): weighed with their shares of
 * the common one they add up. */
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

    LAUNCH(attention_merge_rows, warp_row_blocks(rows), dim3(WARP, THREADS / WARP), data<float>(out), data<float>(lse),
           data<float>(part), data<float>(part_lse), rows, tensor_width(out));
}

template <typename T>
__global__ void attention_dots_rows(float *dots, const T *d_out, const T *out, int64_t rows, int64_t width)
{
    EACH_WARP_ROW(i, rows) {
        float dot = 0;
        EACH_COLUMN(j, 1, width)
            dot += number(d_out[i * width + j]) * number(out[i * width + j]);
        dot = warp_sum(dot);
        if (threadIdx.x == 0)
            dots[i] = dot;
    }
}

void attention_dots_kernel(Tensor dots, Tensor d_out, Tensor out)
{
    const int64_t count = tensor_count(dots);

    FOR_TYPE(out.dtype, T,
        LAUNCH(attention_dots_rows<T>, warp_row_blocks(count), dim3(WARP, THREADS / WARP), data<float>(dots),
               data<T>(d_out), data<T>(out), count, tensor_count(out) / count));
}
