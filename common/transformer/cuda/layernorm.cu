/* LayerNorm, and sums of columns over rows, in two passes: partial sums first, which are then added in order. */
#include "kernel_cuda.cuh"

/* ---- sums of columns over rows ---- */

/* A block sums a warp's width of columns, N per thread, over one part of the rows; its GROUPS warps take turns with the
 * rows. The number of parts depends on the rows alone. */
enum { GROUPS = 8 };

static dim3 column_blocks(int64_t width, int n, int64_t parts)
{
    return dim3((width + WARP * n - 1) / (WARP * n), parts);
}

/* out[0 .. N) = sum over the warps' sums of each column, in the order of the warps. out is the thread's own place, and
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
#pragma unroll 4                                /* several loads in flight at a time */
        for (int64_t i = rows * p / parts + threadIdx.y; i < rows * (p + 1) / parts; i += GROUPS) {
            load(v, in + i * width + j, N);
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
    store_sums(j < width ? partial + p * width + j : NULL, sum);
}

/* Each of up to three sums += its partial sums, in partial (parts, sums, width), in order. A block adds a warp's width
 * of columns of one sum; its warps take turns. */
template <typename G>
__global__ void add_parts(G *first, G *second, G *third, const float *partial, int64_t parts, int64_t width)
{
    __shared__ float total[WARP];
    const int64_t j = (int64_t)blockIdx.x * WARP + threadIdx.x, which = blockIdx.y, sums = gridDim.y;
    G *const to = which == 0 ? first : which == 1 ? second : third;
    float s[1] = {0};

    if (j < width)
        for (int64_t p = threadIdx.y; p < parts; p += GROUPS)
            s[0] += partial[(sums * p + which) * width + j];
    store_sums(&total[threadIdx.x], s);
    if (j < width && threadIdx.y == 0)
        set(&to[j], number(to[j]) + total[threadIdx.x]);
}

void column_sums_kernel(Tensor sum, Tensor t)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t), parts = clamped(rows / 64, 1, 128);
    const int64_t bytes = parts * width * 4;
    float *partial = (float *)device_scratch(bytes);

    FOR_TYPE(t.dtype, T, PACKED(rows_aligned(t), T, N,
        LAUNCH(column_parts<T, N>, column_blocks(width, N, parts), dim3(WARP, GROUPS), partial, t, rows, width)));
    FOR_GRADIENT(sum.dtype, G,
        LAUNCH(add_parts<G>, column_blocks(width, 1, 1), dim3(WARP, GROUPS), sum, NONE, NONE, partial, parts, width));
    device_free(partial, bytes);
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
        const float rstd = 1 / sqrtf(block_sum(squares) / width + 1e-5f);
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            load(w, weight + j, N);
            load(b, bias + j, N);
            for (int k = 0; k < N; k++)
                v[k] = (v[k] - mean) * rstd * w[k] + b[k];
            store(out + i * width + j, v, N);
        }
        if (threadIdx.x == 0) {
            stats[2 * i] = mean;
            stats[2 * i + 1] = rstd;
        }
    }
}

void layernorm_forward_kernel(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias)
{
    FOR_TYPE(x.dtype, T, PACKED(rows_aligned(out, x, weight, bias), T, N,
        LAUNCH_ROWS(x, N, layernorm_forward_rows<T, N>, out, stats, x, weight, bias)));
}

/* With n = (x - mean) * rstd and g = d_out * weight: d_x += rstd * (g - mean(g) - n * mean(g * n)). A block takes one
 * part of the rows. In shared memory it also sums its rows of d_out * n, of d_out and, if SUMS is 3, of the new d_x. So
 * memory is read once: the second reading of a row is from the cache. If a row's sums do not fit into shared memory, a
 * block has only a `slice` of the columns, by blockIdx.y, and reads the others for the row's means. */
template <typename T, int N, int SUMS>
__global__ void layernorm_backward_rows(T *d_x, float *partial, const T *d_out, const T *x, const float *stats,
                                        const T *weight, int64_t rows, int64_t width, int64_t slice)
{
    extern __shared__ __align__(32) float sums[];
    const int64_t parts = gridDim.x, part = blockIdx.x, begin = blockIdx.y * slice;
    const int64_t columns = width - begin < slice ? width - begin : slice;
    float v[N], g[N], w[N], d[N], s[N] = {0};

    EACH_COLUMN(j, N, columns)                  /* no other thread reads these */
        for (int which = 0; which < SUMS; which++)
            store(sums + which * slice + j, s, N);
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; i++) {
        const T *in = x + i * width, *d_o = d_out + i * width;
        const float mean = stats[2 * i], rstd = stats[2 * i + 1];
        float2 of_row = {};                     /* sums of g, and of g * n */
        EACH_COLUMN(j, N, width) {
            load(v, in + j, N);
            load(g, d_o + j, N);
            load(w, weight + j, N);
            for (int k = 0; k < N; k++) {
                of_row.x += g[k] * w[k];
                of_row.y += g[k] * w[k] * (v[k] - mean) * rstd;
            }
        }
        of_row = block_sum(of_row);
        const float sum = of_row.x / width, sum_n = of_row.y / width;
        EACH_COLUMN(j, N, columns) {
            load(v, in + begin + j, N);
            load(g, d_o + begin + j, N);
            load(w, weight + begin + j, N);
            load(d, d_x + i * width + begin + j, N);
            for (int k = 0; k < N; k++) {
                v[k] = (v[k] - mean) * rstd;
                d[k] += rstd * (g[k] * w[k] - sum - v[k] * sum_n);
            }
            store(d_x + i * width + begin + j, d, N);
            for (int which = 0; which < SUMS; which++) {
                load(s, sums + which * slice + j, N);
                for (int k = 0; k < N; k++)
                    s[k] += which == 0 ? g[k] * v[k] : which == 1 ? g[k] : d[k];
                store(sums + which * slice + j, s, N);
            }
        }
    }
    EACH_COLUMN(j, N, columns)
        for (int which = 0; which < SUMS; which++) {
            load(s, sums + which * slice + j, N);
            store(partial + (SUMS * part + which) * width + begin + j, s, N);
        }
}

void layernorm_backward_sums(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_sum, Tensor d_out, Tensor x,
                             Tensor stats, Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x), sums = d_sum.data ? 3 : 2;
    const int64_t parts = clamped(rows / 8, 1, 512), bytes = parts * sums * width * 4;
    const int64_t most = (60 << 10) / (sums * 4), slices = (width + most - 1) / most;       /* 60 KB fit on any GPU */
    const int64_t slice = ((width + slices - 1) / slices + 7) / 8 * 8;
    float *partial = (float *)device_scratch(bytes);

    FOR_TYPE(x.dtype, T, PACKED(rows_aligned(d_x, d_out, x, weight), T, N,
        LAUNCH_SHARED(sums * slice * 4, sums == 3 ? layernorm_backward_rows<T, N, 3> : layernorm_backward_rows<T, N, 2>,
                      dim3(parts, slices), row_threads(width, N), d_x, partial, d_out, x, stats, weight, rows, width,
                      slice)));
    FOR_GRADIENT(d_bias.dtype, G,
        LAUNCH(add_parts<G>, column_blocks(width, 1, sums), dim3(WARP, GROUPS), d_weight, d_bias, d_sum, partial,
               parts, width));
    device_free(partial, bytes);
}

void layernorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                               Tensor weight)
{
    layernorm_backward_sums(d_x, d_weight, d_bias, NONE, d_out, x, stats, weight);
}
