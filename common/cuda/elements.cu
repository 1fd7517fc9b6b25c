/* Operators that compute each element, or each row, independently: bound by memory bandwidth. */
#include "kernel.cuh"

/* ---- GELU ---- */

/* 1 + tanh(u) = 2 * sigmoid(2u), so GELU is x * sigmoid(2u). It uses 2^x and a division with errors of up to 2 units in
 * the last place: exact ones would take longer than the memory accesses. 2.302... = 2 * sqrt(2 / pi) * log2(e). */
__device__ static float gelu_sigmoid(float x)
{
    return __fdividef(1, 1 + exp2f(-2.3022081982f * (x + 0.044715f * x * x * x)));
}

template <typename T, int N> __global__ void gelu_forward_all(T *out, const T *x, int64_t count)
{
    EACH_PACK(i, N, count) {
        float v[N];
        load(v, x + i, count - i);
        for (int k = 0; k < N; k++)
            v[k] *= gelu_sigmoid(v[k]);
        store(out + i, v, count - i);
    }
}

void gelu_forward_kernel(Tensor out, Tensor x)
{
    const int64_t count = tensor_count(x);

    FOR_TYPE(x.dtype, T, PACKED(aligned(out) && aligned(x), T, N,
        LAUNCH(gelu_forward_all<T, N>, blocks(count, N), THREADS, data<T>(out), data<T>(x), count)));
}

template <typename T, int N> __global__ void gelu_backward_all(T *d_x, const T *d_out, const T *x, int64_t count)
{
    EACH_PACK(i, N, count) {
        float v[N], d[N];
        load(v, x + i, count - i);
        load(d, d_out + i, count - i);
        for (int k = 0; k < N; k++) {
            const float s = gelu_sigmoid(v[k]);
            const float slope = 1.5957691216057308f * (1 + 3 * 0.044715f * v[k] * v[k]);
            d[k] *= s + v[k] * s * (1 - s) * slope;
        }
        store(d_x + i, d, count - i);
    }
}

void gelu_backward_kernel(Tensor d_x, Tensor d_out, Tensor x)
{
    const int64_t count = tensor_count(x);

    FOR_TYPE(x.dtype, T, PACKED(aligned(d_x) && aligned(d_out) && aligned(x), T, N,
        LAUNCH(gelu_backward_all<T, N>, blocks(count, N), THREADS, data<T>(d_x), data<T>(d_out), data<T>(x), count)));
}

/* ---- residual ---- */

template <typename T, int N>
__global__ void residual_forward_rows(T *out, const T *x, const T *branch, const T *bias, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float v[N], add[N], b[N];
            load(v, x + i * width + j, N);
            load(add, branch + i * width + j, N);
            load(b, bias + j, N);
            for (int k = 0; k < N; k++)
                v[k] = v[k] + add[k] + b[k];
            store(out + i * width + j, v, N);
        }
}

void residual_forward_kernel(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const bool wide = width * dtype_size(x.dtype) % 16 == 0;

    FOR_TYPE(x.dtype, T, PACKED(wide && aligned(out) && aligned(x) && aligned(branch) && aligned(bias), T, N,
        LAUNCH(residual_forward_rows<T, N>, row_blocks(rows), row_threads(width, N), data<T>(out), data<T>(x),
               data<T>(branch), data<T>(bias), rows, width)));
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
    const int64_t rows = tensor_count(ids), width = tensor_width(out);
    const bool wide = width * dtype_size(out.dtype) % 16 == 0;

    FOR_TYPE(out.dtype, T, PACKED(wide && aligned(out) && aligned(weight), T, N,
        LAUNCH(embedding_forward_rows<T, N>, row_blocks(rows), row_threads(width, N), data<T>(out), data<int32_t>(ids),
               data<T>(weight), rows, width)));
}

__global__ void ids_in_slice_all(int32_t *out, const int32_t *ids, int64_t first, int64_t n, int64_t count)
{
    EACH_PACK(i, 1, count)
        out[i] = ids[i] >= first && ids[i] < first + n ? ids[i] - first : -1;
}

void ids_in_slice_kernel(Tensor out, Tensor ids, int64_t first, int64_t n)
{
    const int64_t count = tensor_count(ids);

    LAUNCH(ids_in_slice_all, blocks(count, 1), THREADS, data<int32_t>(out), data<int32_t>(ids), first, n, count);
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
        LAUNCH(rope_rows<T, N>, row_blocks(rows), row_threads(heads * D, N), data<T>(qkv), data<float>(rope), rows,
               rope.shape[0], (unsigned)heads, (unsigned)D / 2, back ? -1.0f : 1.0f)));
}

/* ---- plain memory ---- */

/* 16 bytes of the larger type at a time. */
template <typename To, typename From, int N> __global__ void convert_all(To *to, const From *from, int64_t count)
{
    EACH_PACK(i, N, count) {
        float v[N];
        load(v, from + i, count - i);
        store(to + i, v, count - i);
    }
}

template <typename To, typename From> static void convert(Tensor to, Tensor from)
{
    const int64_t count = tensor_count(to);
    constexpr int most = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

    if (aligned(to) && aligned(from))
        LAUNCH(convert_all<To, From, most>, blocks(count, most), THREADS, data<To>(to), data<From>(from), count);
    else
        LAUNCH(convert_all<To, From, 1>, blocks(count, 1), THREADS, data<To>(to), data<From>(from), count);
}

void tensor_convert_kernel(Tensor to, Tensor from)
{
    FOR_TYPE(to.dtype, To, FOR_TYPE(from.dtype, From, convert<To, From>(to, from)));
}

template <typename T, int N> __global__ void scale_all(T *x, float factor, int64_t count)
{
    EACH_PACK(i, N, count) {
        float v[N];
        load(v, x + i, count - i);
        for (int k = 0; k < N; k++)
            v[k] *= factor;
        store(x + i, v, count - i);
    }
}

void tensor_scale_kernel(Tensor t, double factor)
{
    const int64_t count = tensor_count(t);

    FOR_TYPE(t.dtype, T, PACKED(aligned(t), T, N,
        LAUNCH(scale_all<T, N>, blocks(count, N), THREADS, data<T>(t), (float)factor, count)));
}

template <int N> __global__ void fill_all(float *x, float value, int64_t count)
{
    EACH_PACK(i, N, count) {
        float v[N];
        for (int k = 0; k < N; k++)
            v[k] = value;
        store(x + i, v, count - i);
    }
}

void tensor_fill_kernel(Tensor t, double value)
{
    const int64_t count = tensor_count(t);

    PACKED(aligned(t), float, N,
        LAUNCH(fill_all<N>, blocks(count, N), THREADS, data<float>(t), (float)value, count));
}

template <typename T, int N> __global__ void add_all(float *to, const T *from, int64_t count)
{
    EACH_PACK(i, N, count) {
        float v[N], add[N];
        load(v, to + i, count - i);
        load(add, from + i, count - i);
        for (int k = 0; k < N; k++)
            v[k] += add[k];
        store(to + i, v, count - i);
    }
}

void tensor_add_kernel(Tensor to, Tensor from)
{
    const int64_t count = tensor_count(to);

    FOR_TYPE(from.dtype, T, PACKED(aligned(to) && aligned(from), float, N,
        LAUNCH(add_all<T, N>, blocks(count, N), THREADS, data<float>(to), data<T>(from), count)));
}

/* A warp copies a row, so that short rows keep all of a block's threads busy. */
template <typename T, int N>
__global__ void transpose_rows_all(T *out, const T *in, int64_t X, int64_t Y, int64_t W)
{
    EACH_WARP_ROW(i, X * Y) {
        const int64_t y = i / X, x = i % X;
        EACH_COLUMN(j, N, W) {
            float v[N];
            load(v, in + (x * Y + y) * W + j, N);
            store(out + i * W + j, v, N);
        }
    }
}

void transpose_rows_kernel(Tensor out, Tensor in)
{
    const int64_t X = in.shape[0], Y = in.shape[1], W = in.shape[2];

    FOR_TYPE(in.dtype, T, PACKED(W % (16 / (int)sizeof(T)) == 0 && aligned(out) && aligned(in), T, N,
        LAUNCH(transpose_rows_all<T, N>, warp_row_blocks(X * Y), dim3(WARP, THREADS / WARP), data<T>(out), data<T>(in),
               X, Y, W)));
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
    const bool can = aligned(params) && aligned(copy, 4 * dtype_size(copy.dtype)) && aligned(m) && aligned(v)
                     && aligned(gradients);

    FOR_TYPE(params.dtype, T, FOR_TYPE(copy.dtype, C, FOR_GRADIENT(gradients.dtype, G, PACKED(can, float, N,
        LAUNCH(adamw_all<T, C, G, N>, blocks(count, N), THREADS, data<T>(params), data<C>(copy), data<float>(m),
               data<float>(v), data<G>(gradients), f, count)))));
}
