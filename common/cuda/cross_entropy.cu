/* Cross-entropy over full rows of logits. A thread block per row. */
#include "kernel.cuh"

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
