#include "../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "vocabulary.h"
}

template <typename T, int N>
__global__ void cross_entropy_max_rows(float *max, const T *logits, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const float most = row_max<N>(logits + i * width, width);
        if (threadIdx.x == 0)
            max[i] = most;
    }
}

void cross_entropy_max_kernel(Tensor max, Tensor logits)
{
    FOR_TYPE(logits.dtype, T, PACKED(rows_aligned(logits), T, N,
        LAUNCH_ROWS(logits, N, cross_entropy_max_rows<T, N>, max, logits)));
}

template <typename T, int N>
__global__ void cross_entropy_sums_rows(float *sums, const T *logits, const float *max, const int32_t *targets,
                                        int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const T *in = logits + i * width;
        const float sum = row_sum<N>(in, max[i], width);
        if (threadIdx.x == 0) {
            sums[2 * i] = sum;
            sums[2 * i + 1] = targets[i] < 0 ? 0 : number(in[targets[i]]);
        }
    }
}

void cross_entropy_sums_kernel(Tensor sums, Tensor logits, Tensor max, Tensor targets)
{
    FOR_TYPE(logits.dtype, T, PACKED(rows_aligned(logits), T, N,
        LAUNCH_ROWS(logits, N, cross_entropy_sums_rows<T, N>, sums, logits, max, targets)));
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

__global__ void ids_in_slice_all(int32_t *out, const int32_t *ids, int64_t first, int64_t n, int64_t count)
{
    EACH_PACK(i, 1, count)
        out[i] = ids[i] >= first && ids[i] < first + n ? ids[i] - first : -1;
}

void ids_in_slice_kernel(Tensor out, Tensor ids, int64_t first, int64_t n)
{
    const int64_t count = tensor_count(ids);

    LAUNCH(ids_in_slice_all, blocks(count, 1), THREADS, out, ids, first, n, count);
}
