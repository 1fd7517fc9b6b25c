/* Cross-entropy over full rows of logits, and over one slice of the vocabulary. A thread block per row. */
#include "kernel.cuh"

/* ---- cross-entropy ---- */

/* Computes the row's maximum and the sum of exp(x - max), for every thread. An empty row has -Inf and 0. */
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
        LAUNCH_ROWS(logits, 16 / sizeof(T), cross_entropy_forward_rows<T>, lse, logits);
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
    const bool alike = ((uintptr_t)logits.data - (uintptr_t)d_logits.data) % 16 == 0;

    FOR_TYPE(logits.dtype, T, PACKED(alike, T, N,
        LAUNCH_ROWS(logits, N, cross_entropy_backward_rows<T, N>, d_logits, logits, lse, targets, scale)));
}

/* ---- cross-entropy over slices of the vocabulary ---- */

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
    FOR_TYPE(logits.dtype, T, LAUNCH_ROWS(logits, 4, cross_entropy_max_rows<T>, max, logits));
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
    FOR_TYPE(logits.dtype, T, LAUNCH_ROWS(logits, 4, cross_entropy_sums_rows<T>, sums, logits, max, targets));
}

__global__ void cross_entropy_of_sums(double *loss, float *lse, const float *sums, const float *max, int64_t rows,
                                      double scale)
{
    double total = 0;

    EACH_COLUMN(i, 1, rows) {
        lse[i] = max[i] + logf(sums[2 * i]);
        total += (double)max[i] - sums[2 * i + 1] + logf(sums[2 * i]);     /* not from lse, a rounded float */
    }
    total = block_sum(total);
    if (threadIdx.x == 0)
        *loss += scale * total;
}

void cross_entropy_loss_kernel(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale)
{
    LAUNCH(cross_entropy_of_sums, 1, MOST_THREADS, loss, lse, sums, max, tensor_rows(sums), scale);
}
