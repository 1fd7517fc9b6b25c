/* Operators with sums: over scattered rows, over rows of logits, over full tensors. */
#include <stdlib.h>

#include "kernel_cuda.cuh"

/* ---- the embedding's gradient ---- */

/* One block per row i of d_out. The first row with an id sums all rows with that id, in order, in float; blocks of
 * later rows with the same id return at once. To find the rows, a block scans the ids, THREADS at a time. These rows^2
 * comparisons of cached numbers take little time beside the rows themselves, and need neither sorting nor atomics. A
 * thread has COLUMNS columns, THREADS apart. */
enum { COLUMNS = 4 };

template <typename T, typename G>
__global__ void embedding_backward_rows(G *d_weight, const T *d_out, const int32_t *ids, int64_t rows, int64_t width)
{
    __shared__ int found[THREADS], of_warp[WARPS];
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const int64_t i = blockIdx.x, column = (int64_t)blockIdx.y * THREADS * COLUMNS + thread;
    const int32_t id = ids[i];
    const T *from[COLUMNS];                     /* beyond the row's end: reads its last column, unused */
    float sum[COLUMNS] = {0};

    if (id < 0)
        return;
    for (int64_t begin = 0; begin < i; begin += THREADS)
        if (__syncthreads_or(begin + thread < i && ids[begin + thread] == id))
            return;
    for (int k = 0; k < COLUMNS; k++)
        from[k] = d_out + (column + k * THREADS < width ? column + k * THREADS : width - 1);
    for (int64_t begin = i; begin < rows; begin += THREADS) {
        /* the rows with this id, in order: each warp's come after those of earlier warps */
        const bool same = begin + thread < rows && ids[begin + thread] == id;
        const unsigned of_lanes = __ballot_sync(~0u, same);
        int before = __popc(of_lanes & ((1u << lane) - 1)), count = 0;
        if (lane == 0)
            of_warp[warp] = __popc(of_lanes);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? of_warp[w] : 0;
            count += of_warp[w];
        }
        if (same)
            found[before] = thread;
        __syncthreads();
#pragma unroll 8                                /* a frequent id has many rows: several loads in flight at a time */
        for (int f = 0; f < count; f++)
            for (int k = 0; k < COLUMNS; k++)
                sum[k] += number(from[k][(begin + found[f]) * width]);
    }                                           /* found is written again only after the next round's first barrier */
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
        LAUNCH(embedding_backward_rows<T, G>, grid, THREADS, d_weight, d_out, ids, rows, width)));
}

/* ---- cross-entropy over full rows of logits: a thread block per row ---- */

template <typename T, int N>
__global__ void cross_entropy_forward_rows(float *lse, const T *logits, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const T *in = logits + i * width;
        const float max = row_max<N>(in, width), sum = row_sum<N>(in, max, width);
        if (threadIdx.x == 0)
            lse[i] = max + logf(sum);
    }
}

/* One thread block, since the loss is one sum, in double, over few rows. */
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
    FOR_TYPE(logits.dtype, T,
        PACKED(rows_aligned(logits), T, N, LAUNCH_ROWS(logits, N, cross_entropy_forward_rows<T, N>, lse, logits));
        LAUNCH(cross_entropy_total<T>, 1, MOST_THREADS, loss, lse, logits, targets, tensor_rows(logits),
               tensor_width(logits), scale));
}

/* d_logits may be logits: each thread reads an element before it writes it. */
template <typename T, int N>
__global__ void cross_entropy_backward_rows(T *d_logits, const T *logits, const float *lse, const int32_t *targets,
                                            float scale, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const float log_sum = lse[i];
        const int64_t target = targets[i];
        EACH_COLUMN(j, N, width) {
            float v[N];
            load(v, logits + i * width + j, N);
            for (int k = 0; k < N; k++)
                v[k] = scale * (expf(v[k] - log_sum) - (j + k == target ? 1 : 0));
            store(d_logits + i * width + j, v, N);
        }
    }
}

void cross_entropy_backward_kernel(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    FOR_TYPE(logits.dtype, T, PACKED(rows_aligned(d_logits, logits), T, N,
        LAUNCH_ROWS(logits, N, cross_entropy_backward_rows<T, N>, d_logits, logits, lse, targets, scale)));
}

/* ---- the sum of all squares ---- */

/* Tensors are split into pieces of this many elements, one block per piece; one block then adds the pieces' sums. */
static const int64_t PIECE = 1 << 16;

typedef struct {
    const void *data;
    int64_t count;
    bool is_bf16;
} Piece;

/* This thread's partial sum. */
template <typename T> __device__ static double squares(const T *x, int64_t count)
{
    double sum = 0;

    PACKED((uintptr_t)x % 16 == 0, T, N,
        EACH_COLUMN(i, N, count) {
            float v[N];
            load(v, x + i, count - i);
            for (int k = 0; k < N; k++)
                sum += (double)v[k] * v[k];
        });
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

void square_sum_into_kernel(Tensor sum, const Tensor *list, int count)
{
    int64_t n = 0;

    for (int k = 0; k < count; k++)
        n += (tensor_count(list[k]) + PIECE - 1) / PIECE;
    if (n == 0) {
        device_zero(sum.data, sizeof(double));
        return;
    }
    Piece *pieces = (Piece *)host_alloc(n * sizeof *pieces, "a list of gradients"), *next = pieces;
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
    LAUNCH(square_total, 1, MOST_THREADS, sum, partial, n);
    device_free(there, bytes);
    device_free(partial, partial_bytes);
}
