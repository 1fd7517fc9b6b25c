/* Fused operators of which every row is one block's: residual and LayerNorm, the loss and its gradient. */
#include "../../common/cuda/kernel.cuh"
#include "../fused.h"

/* Rows of float in shared memory: each thread's own columns, so that no thread waits for another. */
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

    if (bytes > MOST_SHARED) {                  /* too wide for one block's memory */
        residual_forward_kernel(sum, x, branch, branch_bias);
        layernorm_forward_kernel(out, stats, sum, weight, bias);
        return;
    }
    FOR_TYPE(x.dtype, T, PACKED(can, T, N,
        LAUNCH_SHARED(bytes, residual_layernorm_forward_rows<T, N>, row_blocks(rows), row_threads(width, N),
                      data<T>(sum), data<T>(out), data<float>(stats), data<T>(x), data<T>(branch), data<T>(branch_bias),
                      data<T>(weight), data<T>(bias), rows, width)));
}

/* Rows go in parts, a block each, which reads every row once: for the gradient of the sum, and for its share of the
 * sums over rows. partial (parts, 3, width): of the weight, the bias and the branch's bias. */
template <typename T, int N>
__global__ void residual_layernorm_backward_rows(T *d_sum, float *partial, const T *d_out, const T *sum,
                                                 const float *stats, const T *weight, int64_t rows, int64_t width)
{
    extern __shared__ __align__(32) float sums[];
    float *const d_weight = sums, *const d_bias = d_weight + width, *const d_branch = d_bias + width;
    const int64_t parts = gridDim.x, part = blockIdx.x;
    float v[N], g[N], w[N], d[N], s[N];

    EACH_COLUMN(j, N, width) {
        for (int k = 0; k < N; k++)
            s[k] = 0;
        store(d_weight + j, s, N);
        store(d_bias + j, s, N);
        store(d_branch + j, s, N);
    }
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; i++) {
        const float mean = stats[2 * i], inverse = stats[2 * i + 1];
        float total = 0, total_n = 0;
        EACH_COLUMN(j, N, width) {
            load(v, sum + i * width + j, N);
            load(g, d_out + i * width + j, N);
            load(w, weight + j, N);
            for (int k = 0; k < N; k++) {
                total += g[k] * w[k];
                total_n += g[k] * w[k] * (v[k] - mean) * inverse;
            }
        }
        total = block_sum(total) / width;
        total_n = block_sum(total_n) / width;
        EACH_COLUMN(j, N, width) {              /* the same columns: from the cache */
            load(v, sum + i * width + j, N);
            load(g, d_out + i * width + j, N);
            load(w, weight + j, N);
            load(d, d_sum + i * width + j, N);
            for (int k = 0; k < N; k++) {
                v[k] = (v[k] - mean) * inverse;
                d[k] += inverse * (g[k] * w[k] - total - v[k] * total_n);
            }
            store(d_sum + i * width + j, d, N);
            load(s, d_weight + j, N);
            for (int k = 0; k < N; k++)
                s[k] += g[k] * v[k];
            store(d_weight + j, s, N);
            load(s, d_bias + j, N);
            for (int k = 0; k < N; k++)
                s[k] += g[k];
            store(d_bias + j, s, N);
            load(s, d_branch + j, N);
            for (int k = 0; k < N; k++)
                s[k] += d[k];
            store(d_branch + j, s, N);
        }
    }
    EACH_COLUMN(j, N, width)
        for (int which = 0; which < 3; which++) {
            load(s, sums + which * width + j, N);
            store(partial + (3 * part + which) * width + j, s, N);
        }
}

/* A block has 32 columns of one of the three; its warps add up every GROUPS-th part each, and the first the warps. */
enum { GROUPS = 8 };

template <typename G>
__global__ void add_three_parts(G *d_weight, G *d_bias, G *d_branch, const float *partial, int64_t parts, int64_t width)
{
    __shared__ float of_group[GROUPS][WARP];
    const int64_t j = (int64_t)blockIdx.x * WARP + threadIdx.x, which = blockIdx.y;
    G *const to = which == 0 ? d_weight : which == 1 ? d_bias : d_branch;
    float s = 0;

    if (j < width)
        for (int64_t p = threadIdx.y; p < parts; p += GROUPS)
            s += partial[(3 * p + which) * width + j];
    of_group[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    if (j < width && threadIdx.y == 0) {
        s = 0;
        for (int g = 0; g < GROUPS; g++)
            s += of_group[g][threadIdx.x];
        set(&to[j], number(to[j]) + s);
    }
}

void residual_layernorm_backward_kernel(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias,
                                        Tensor d_out, Tensor sum, Tensor stats, Tensor weight)
{
    const int64_t rows = tensor_rows(sum), width = tensor_width(sum), shared = 3 * width * 4;
    const int64_t parts = clamped(rows / 8, 1, 1024), bytes = parts * shared;
    const bool can = width * dtype_size(sum.dtype) % 16 == 0 && aligned(d_sum) && aligned(d_out) && aligned(sum)
                     && aligned(weight);

    if (shared > MOST_SHARED) {
        layernorm_backward_kernel(d_sum, d_weight, d_bias, d_out, sum, stats, weight);
        column_sums(d_branch_bias, d_sum);
        return;
    }
    float *partial = (float *)device_scratch(bytes);
    FOR_TYPE(sum.dtype, T, PACKED(can, T, N,
        LAUNCH_SHARED(shared, residual_layernorm_backward_rows<T, N>, parts, row_threads(width, N), data<T>(d_sum),
                      partial, data<T>(d_out), data<T>(sum), data<float>(stats), data<T>(weight), rows, width)));
    FOR_GRADIENT(d_bias.dtype, G,
        LAUNCH(add_three_parts<G>, dim3((width + WARP - 1) / WARP, 3), dim3(WARP, GROUPS), data<G>(d_weight),
               data<G>(d_bias), data<G>(d_branch_bias), partial, parts, width));
    device_scratch_free(partial, bytes);
}

/* ---- cross-entropy ---- */

/* Once over the row for its largest logit and the sum of exp(logit - largest), together: a sum under a smaller largest
 * one is multiplied with exp of the difference, in a thread and between them. Once more for the gradient, in place. */
template <typename T>
__global__ void cross_entropy_both_rows(double *losses, T *logits, const int32_t *targets, int64_t rows, int64_t width,
                                        float gradient_scale)
{
    constexpr int N = 16 / sizeof(T);

    EACH_ROW(i, rows) {
        T *const row = logits + i * width;
        const int64_t target = targets[i];
        float v[N], max = -INFINITY, sum = 0;
        EACH_RAGGED(j, N, row, width) {
            float most = max;
            load_ragged(v, row, j, width, -INFINITY);
            for (int k = 0; k < N; k++)
                most = fmaxf(most, v[k]);
            if (most > max)                     /* at first sum is 0, and exp(-Inf) too */
                sum *= expf(max - most);
            max = most;
            for (int k = 0; k < N; k++)         /* while all are -Inf, they count nothing, and NaN stays NaN */
                sum += expf(v[k] - (max == -INFINITY ? 0 : max));
        }
        const float largest = block_max(max);
        sum = block_sum(max == -INFINITY ? sum : sum * expf(max - largest));
        if (threadIdx.x == 0)
            losses[i] = (double)largest - (target < 0 ? 0 : number(row[target])) + logf(sum);
        __syncthreads();                        /* the target's logit is read */
        const float share = gradient_scale / sum;
        EACH_RAGGED(j, N, row, width) {
            load_ragged(v, row, j, width, -INFINITY);
            for (int k = 0; k < N; k++)
                v[k] = share * expf(v[k] - largest) - (j + k == target ? gradient_scale : 0);
            store_ragged(row, v, j, width);
        }
    }
}

/* One block, as in cross_entropy_forward: the loss is one sum, in double, in a fixed order. */
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

    FOR_TYPE(logits.dtype, T,
        LAUNCH(cross_entropy_both_rows<T>, row_blocks(rows), row_threads(width, 16 / sizeof(T)), losses,
               data<T>(logits), data<int32_t>(targets), rows, width, (float)gradient_scale));
    LAUNCH(cross_entropy_both_total, 1, MOST_THREADS, data<double>(loss), losses, rows, scale);
    device_scratch_free(losses, bytes);
}
