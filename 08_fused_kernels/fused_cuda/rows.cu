/* Fused operators with one block per row: residual and LayerNorm, the loss and its gradient. */
#include "../../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "../fused.h"
}

/* Bytes of a row of float in shared memory. Each thread reads only the columns that it wrote: no barrier. */
static const int64_t MOST_SHARED = 48 << 10;

/* ---- residual and LayerNorm ---- */

template <typename T, int N>
__global__ void residual_layernorm_forward_rows(T *sum, T *out, float *stats, const T *x, const T *branch,
                                                const T *branch_bias, const T *weight, const T *bias, int64_t rows,
                                                int64_t width)
{
    extern __shared__ __align__(32) float row[];

    EACH_ROW(i, rows) {
        float v[N], a[N], b[N], total = 0, squares = 0;
        EACH_COLUMN(j, N, width) {
            load(v, x + i * width + j, N);
            load(a, branch + i * width + j, N);
            load(b, branch_bias + j, N);
            for (int k = 0; k < N; k++) {
                v[k] += a[k] + b[k];
                total += v[k];
            }
            store(row + j, v, N);
            store(sum + i * width + j, v, N);
        }
        const float mean = block_sum(total) / width;
        EACH_COLUMN(j, N, width) {
            load(v, row + j, N);
            for (int k = 0; k < N; k++)
                squares += (v[k] - mean) * (v[k] - mean);
        }
        const float inverse = 1 / sqrtf(block_sum(squares) / width + 1e-5f);
        EACH_COLUMN(j, N, width) {
            load(v, row + j, N);
            load(a, weight + j, N);
            load(b, bias + j, N);
            for (int k = 0; k < N; k++)
                v[k] = (v[k] - mean) * inverse * a[k] + b[k];
            store(out + i * width + j, v, N);
        }
        if (threadIdx.x == 0) {
            stats[2 * i] = mean;
            stats[2 * i + 1] = inverse;
        }
    }
}

void residual_layernorm_forward_kernel(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch,
                                       Tensor branch_bias, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x), bytes = width * 4;
    const bool can = width * dtype_size(x.dtype) % 16 == 0 && aligned(sum) && aligned(out) && aligned(x)
                     && aligned(branch) && aligned(branch_bias) && aligned(weight) && aligned(bias);

    if (bytes > MOST_SHARED) {                  /* a row does not fit a block's shared memory */
        residual_forward_kernel(sum, x, branch, branch_bias);
        layernorm_forward_kernel(out, stats, sum, weight, bias);
        return;
    }
    FOR_TYPE(x.dtype, T, PACKED(can, T, N,
        LAUNCH_SHARED(bytes, residual_layernorm_forward_rows<T, N>, row_blocks(rows), row_threads(width, N),
                      data<T>(sum), data<T>(out), data<float>(stats), data<T>(x), data<T>(branch), data<T>(branch_bias),
                      data<T>(weight), data<T>(bias), rows, width)));
}

void residual_layernorm_backward_kernel(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias,
                                        Tensor d_out, Tensor sum, Tensor stats, Tensor weight)
{
    layernorm_backward_sums(d_sum, d_weight, d_bias, d_branch_bias, d_out, sum, stats, weight);
}

/* ---- cross-entropy ---- */

/* Reads each row twice: first for its largest logit and, by online softmax within and between threads, the sum of
 * exp(logit - largest); then for the gradient, in place. */
template <typename T, int N>
__global__ void cross_entropy_both_rows(double *losses, T *logits, const int32_t *targets, int64_t rows, int64_t width,
                                        float gradient_scale)
{
    EACH_ROW(i, rows) {
        T *const row = logits + i * width;
        const int64_t target = targets[i];
        float v[N], max = -INFINITY, sum = 0;
        EACH_COLUMN(j, N, width) {
            float most = max;
            load(v, row + j, N);
            for (int k = 0; k < N; k++)
                most = fmaxf(most, v[k]);
            if (most > max)                     /* at first sum and exp(-Inf) are 0 */
                sum *= expf(max - most);
            max = most;
            for (int k = 0; k < N; k++)         /* while all are -Inf they add 0; NaN stays NaN */
                sum += expf(v[k] - (max == -INFINITY ? 0 : max));
        }
        const float largest = block_max(max);
        sum = block_sum(max == -INFINITY ? sum : sum * expf(max - largest));
        if (threadIdx.x == 0)
            losses[i] = (double)largest - (target < 0 ? 0 : number(row[target])) + logf(sum);
        __syncthreads();                        /* the target's logit has been read */
        const float factor = gradient_scale / sum;
        EACH_COLUMN(j, N, width) {
            load(v, row + j, N);
            for (int k = 0; k < N; k++)
                v[k] = factor * expf(v[k] - largest) - (j + k == target ? gradient_scale : 0);
            store(row + j, v, N);
        }
    }
}

/* One block, as in cross_entropy_forward: adds the rows' losses in double, in a fixed order. */
__global__ void cross_entropy_both_total(double *loss, const double *losses, int64_t rows, double scale)
{
    double total = 0;

    EACH_COLUMN(i, 1, rows)
        total += losses[i];
    total = block_sum(total);
    if (threadIdx.x == 0)
        *loss += scale * total;
}

void cross_entropy_both_kernel(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits), bytes = rows * sizeof(double);
    double *losses = (double *)device_scratch(bytes);

    FOR_TYPE(logits.dtype, T, PACKED(rows_aligned(logits), T, N,
        LAUNCH(cross_entropy_both_rows<T, N>, row_blocks(rows), row_threads(width, N), losses, data<T>(logits),
               data<int32_t>(targets), rows, width, (float)gradient_scale)));
    LAUNCH(cross_entropy_both_total, 1, MOST_THREADS, data<double>(loss), losses, rows, scale);
    device_free(losses, bytes);
}
