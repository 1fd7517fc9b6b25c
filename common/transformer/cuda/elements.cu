/* Operators that compute each element, or each row, independently: bound by memory bandwidth. */
#include "kernel_cuda.cuh"

/* ---- GELU ---- */

/* 1 + tanh(u) = 2 * sigmoid(2u), so GELU is x * sigmoid(2u). It uses 2^x and a division with errors of up to 2 units in
 * the last place: exact ones would take longer than the memory accesses. 2.302... = 2 * sqrt(2 / pi) * log2(e). */
__device__ static float gelu_sigmoid(float x)
{
    return __fdividef(1, 1 + exp2f(-2.3022081982f * (x + 0.044715f * x * x * x)));
}

struct Gelu {
    __device__ float operator()(float, float x) const
    {
        return x * gelu_sigmoid(x);
    }
};

void gelu_forward_kernel(Tensor out, Tensor x)
{
    FOR_TYPE(x.dtype, T, compute<T, T>(out, x, x, Gelu()));
}

struct GeluBackward {
    __device__ float operator()(float d_out, float x) const
    {
        const float s = gelu_sigmoid(x), slope = 1.5957691216057308f * (1 + 3 * 0.044715f * x * x);

        return d_out * (s + x * s * (1 - s) * slope);
    }
};

void gelu_backward_kernel(Tensor d_x, Tensor d_out, Tensor x)
{
    FOR_TYPE(x.dtype, T, compute<T, T>(d_x, d_out, x, GeluBackward()));
}

/* ---- residual ---- */

template <typename T, int N>
__global__ void residual_forward_rows(T *out, const T *x, const T *branch, const T *bias, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float v[N], add[N], b[N] = {0};
            load(v, x + i * width + j, N);
            load(add, branch + i * width + j, N);
            if (bias)
                load(b, bias + j, N);
            for (int k = 0; k < N; k++)
                v[k] = v[k] + add[k] + b[k];
            store(out + i * width + j, v, N);
        }
}

void residual_forward_kernel(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    FOR_TYPE(x.dtype, T, PACKED(rows_aligned(out, x, branch, bias.data ? bias : x), T, N,
        LAUNCH_ROWS(x, N, residual_forward_rows<T, N>, out, x, branch, bias)));
}

/* ---- embedding ---- */

template <typename T, int N>
__global__ void embedding_forward_rows(T *out, const int32_t *ids, const T *weight, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const int64_t id = ids[i];
        EACH_COLUMN(j, N, width) {
            float v[N] = {0};
            if (id >= 0)
                load(v, weight + id * width + j, N);
            store(out + i * width + j, v, N);
        }
    }
}

void embedding_forward_kernel(Tensor out, Tensor ids, Tensor weight)
{
    FOR_TYPE(out.dtype, T, PACKED(rows_aligned(out, weight), T, N,
        LAUNCH_ROWS(out, N, embedding_forward_rows<T, N>, out, ids, weight)));
}

/* ---- rotary positions ---- */

/* A thread block rotates the pairs of a row's q and k, head by head, N pairs per thread. v, the last third of each
 * head, is not rotated. */
template <typename T, int N>
__global__ void rope_rows(T *qkv, const float *rope, int64_t rows, int64_t positions, unsigned heads, unsigned half,
                          float direction)
{
    EACH_ROW(i, rows) {
        const float *cosine = rope + i % positions * 2 * half, *sine = cosine + half;
        for (unsigned e = threadIdx.x; e < 2 * heads * half / N; e += blockDim.x) {
            const unsigned part = e / (half / N), j = e % (half / N) * N;
            T *x = qkv + (i * heads * 3 + part / 2 * 3 + part % 2) * 2 * half + j;
            float a[N], b[N], c[N], s[N];
            load(a, x, N);
            load(b, x + half, N);
            load(c, cosine + j, N);
            load(s, sine + j, N);
            for (int k = 0; k < N; k++) {
                const float first = a[k], turn = direction * s[k];
                a[k] = first * c[k] - b[k] * turn;
                b[k] = b[k] * c[k] + first * turn;
            }
            store(x, a, N);
            store(x + half, b, N);
        }
    }
}

void rope_kernel(Tensor qkv, Tensor rope, bool back)
{
    const int64_t rows = tensor_rows(qkv), D = tensor_width(rope), heads = tensor_width(qkv) / (3 * D);
    const bool wide = D / 2 * dtype_size(qkv.dtype) % 16 == 0;

    FOR_TYPE(qkv.dtype, T, PACKED(wide && aligned(qkv) && aligned(rope, 32), T, N,
        LAUNCH(rope_rows<T, N>, row_blocks(rows), row_threads(heads * D, N), qkv, rope, rows, rope.shape[0], heads,
               D / 2, back ? -1 : 1)));
}

/* ---- plain memory ---- */

struct Scale {
    float factor;
    __device__ float operator()(float, float x) const
    {
        return x * factor;
    }
};

void tensor_scale_kernel(Tensor t, double factor)
{
    FOR_TYPE(t.dtype, T, compute<T, T>(t, t, t, Scale{(float)factor}));
}

void tensor_convert_kernel(Tensor to, Tensor from)
{
    FOR_TYPE(to.dtype, To, FOR_TYPE(from.dtype, From, compute<To, From>(to, to, from, Scale{1})));
}

struct Add {
    __device__ float operator()(float x, float y) const
    {
        return x + y;
    }
};

/* to may also be BF16, a parameter's gradient. */
void tensor_add_kernel(Tensor to, Tensor from)
{
    FOR_GRADIENT(to.dtype, G, FOR_TYPE(from.dtype, T, compute<G, T>(to, to, from, Add())));
}

/* ---- AdamW (Loshchilov & Hutter 2019) ---- */

/* Arguments that are the same for all elements. */
typedef struct {
    float beta1, beta2, eps, scale, rate, root, decay;
    const double *scale_there;      /* used instead of scale, unless NULL */
} AdamW;

/* copy: receives the new parameters in another type; or NULL. */
template <typename T, typename C, typename G, int N>
__global__ void adamw_all(T *params, C *copy, float *m, float *v, const G *gradients, AdamW a, int64_t count)
{
    if (a.scale_there)
        a.scale = *a.scale_there;
    if (isnan(a.scale))
        return;
    EACH_PACK(i, N, count) {
        float param[N], mean[N], square[N], g[N];
        load(param, params + i, count - i);
        load(mean, m + i, count - i);
        load(square, v + i, count - i);
        load(g, gradients + i, count - i);
        for (int k = 0; k < N; k++) {
            g[k] *= a.scale;
            mean[k] = a.beta1 * mean[k] + (1 - a.beta1) * g[k];
            square[k] = a.beta2 * square[k] + (1 - a.beta2) * g[k] * g[k];
            param[k] -= a.decay * param[k] + a.rate * mean[k] / (sqrtf(square[k]) * a.root + a.eps);
        }
        store(params + i, param, count - i);
        if (copy)
            store(copy + i, param, count - i);
        store(m + i, mean, count - i);
        store(v + i, square, count - i);
    }
}

void adamw_update_kernel(Tensor params, Tensor copy, Tensor m, Tensor v, Tensor gradients, AdamWArguments a)
{
    const int64_t count = tensor_count(params);
    const AdamW f = {(float)a.beta1, (float)a.beta2, (float)a.eps, (float)a.gradient_scale,
                     (float)(a.lr / a.correction1), (float)(1 / sqrt(a.correction2)),
                     (float)(a.lr * a.weight_decay), data<double>(a.scale)};
    const bool can = aligned(params, m, v, gradients) && aligned(copy, 4 * dtype_size(copy.dtype));

    FOR_TYPE(params.dtype, T, FOR_TYPE(copy.dtype, C, FOR_GRADIENT(gradients.dtype, G, PACKED(can, float, N,
        LAUNCH(adamw_all<T, C, G, N>, blocks(count, N), THREADS, params, copy, m, v, gradients, f, count)))));
}
