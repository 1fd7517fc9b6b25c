/* The kernels of Llama's block on a GPU. */
#include "../common/transformer/cuda/attention.cuh"
extern "C" {
#include "llama.h"
}

/* ---- RMSNorm ---- */

template <typename T, int N>
__global__ void rmsnorm_forward_rows(T *out, float *rstd, const T *x, const T *weight, float eps, int64_t rows,
                                     int64_t width)
{
    EACH_ROW(i, rows) {
        float v[N], w[N], squares = 0;
        EACH_COLUMN(j, N, width) {
            load(v, x + i * width + j, N);
            for (int k = 0; k < N; k++)
                squares += v[k] * v[k];
        }
        const float r = 1 / sqrtf(block_sum(squares) / width + eps);
        EACH_COLUMN(j, N, width) {
            load(v, x + i * width + j, N);
            load(w, weight + j, N);
            for (int k = 0; k < N; k++)
                v[k] = v[k] * r * w[k];
            store(out + i * width + j, v, N);
        }
        if (threadIdx.x == 0)
            rstd[i] = r;
    }
}

void rmsnorm_forward_kernel(Tensor out, Tensor rstd, Tensor x, Tensor weight, double eps)
{
    FOR_TYPE(x.dtype, T, PACKED(rows_aligned(out, x, weight), T, N,
        LAUNCH_ROWS(x, N, rmsnorm_forward_rows<T, N>, out, rstd, x, weight, (float)eps)));
}

/* With n = x * rstd and g = d_out * weight: d_x += rstd * (g - n * mean(g * n)). */
template <typename T, int N>
__global__ void rmsnorm_backward_rows(T *d_x, const T *d_out, const T *x, const float *rstd, const T *weight,
                                      int64_t rows, int64_t width)
{
    EACH_ROW(i, rows) {
        const float r = rstd[i];
        float v[N], g[N], w[N], d[N], sum = 0;
        EACH_COLUMN(j, N, width) {
            load(v, x + i * width + j, N);
            load(g, d_out + i * width + j, N);
            load(w, weight + j, N);
            for (int k = 0; k < N; k++)
                sum += g[k] * w[k] * v[k] * r;
        }
        const float mean = block_sum(sum) / width;
        EACH_COLUMN(j, N, width) {
            load(v, x + i * width + j, N);
            load(g, d_out + i * width + j, N);
            load(w, weight + j, N);
            load(d, d_x + i * width + j, N);
            for (int k = 0; k < N; k++)
                d[k] += r * (g[k] * w[k] - v[k] * r * mean);
            store(d_x + i * width + j, d, N);
        }
    }
}

/* partial (parts, width): sums over a part of the rows; a thread has N columns. */
template <typename T, int N>
__global__ void rmsnorm_weight_parts(float *partial, const T *d_out, const T *x, const float *rstd, int64_t rows,
                                     int64_t width)
{
    const int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N, part = blockIdx.y, parts = gridDim.y;
    float v[N], g[N], sum[N] = {0};

    if (j >= width)
        return;
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; i++) {
        load(v, x + i * width + j, N);
        load(g, d_out + i * width + j, N);
        for (int k = 0; k < N; k++)
            sum[k] += g[k] * v[k] * rstd[i];
    }
    store(partial + part * width + j, sum, N);
}

template <typename G> __global__ void add_weight_parts(G *d_weight, const float *partial, int64_t parts, int64_t width)
{
    EACH_PACK(j, 1, width) {
        float sum = 0;
        for (int64_t p = 0; p < parts; p++)
            sum += partial[p * width + j];
        set(&d_weight[j], number(d_weight[j]) + sum);
    }
}

void rmsnorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_out, Tensor x, Tensor rstd, Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x), parts = clamped(rows / 8, 1, 256);
    const int64_t bytes = parts * width * 4;
    float *partial = (float *)device_scratch(bytes);

    FOR_TYPE(x.dtype, T, PACKED(rows_aligned(d_x, d_out, x, weight), T, N,
        LAUNCH_ROWS(x, N, rmsnorm_backward_rows<T, N>, d_x, d_out, x, rstd, weight);
        LAUNCH(rmsnorm_weight_parts<T, N>, dim3((width + THREADS * N - 1) / (THREADS * N), parts), THREADS, partial,
               d_out, x, rstd, rows, width)));
    FOR_GRADIENT(d_weight.dtype, G,
        LAUNCH(add_weight_parts<G>, blocks(width, 1), THREADS, d_weight, partial, parts, width));
    device_free(partial, bytes);
}

/* ---- rotary positions ---- */

template <typename T>
__global__ void grouped_rope_rows(T *qkv, const float *rope, int64_t heads, int64_t rows, int64_t width,
                                  int64_t positions, int64_t D, float direction)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(pair, 1, heads * (D / 2)) {
            const int64_t j = pair % (D / 2);
            const float *cosine = rope + i % positions * D, c = cosine[j], s = direction * cosine[D / 2 + j];
            T *x = qkv + i * width + pair / (D / 2) * D + j, *y = x + D / 2;
            const float a = number(*x), b = number(*y);
            set(x, a * c - b * s);
            set(y, b * c + a * s);
        }
}

void grouped_rope_kernel(Tensor qkv, Tensor rope, int64_t kv_heads, bool back)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(qkv), D = tensor_width(rope);
    const int64_t heads = width / D - kv_heads;             /* of q and k; v has no position */

    FOR_TYPE(qkv.dtype, T,
        LAUNCH(grouped_rope_rows<T>, row_blocks(rows), row_threads(heads * (D / 2), 1), qkv, rope, heads, rows, width,
               rope.shape[0], D, back ? -1.f : 1.f));
}

/* ---- attention: member g of every group at a time, of all KV heads and sequences ---- */

static const int64_t QUERIES = 512;

typedef struct {
    int64_t B, A, T, D, K, G;                   /* G heads of q share each of K */
} Sizes;

static Sizes sizes_of(Tensor out, Tensor probs, Tensor qkv)
{
    Sizes s = {probs.shape[0], probs.shape[1], probs.shape[2]};

    s.D = tensor_width(out) / s.A;
    s.K = (tensor_width(qkv) / s.D - s.A) / 2;
    s.G = s.A / s.K;
    return s;
}

/* From a head on, every `apart`-th head's columns, of K; a sequence is a group of matrices. */
static Matrix heads_from(Tensor t, const Sizes *s, int64_t head, int64_t apart)
{
    return (Matrix){(float *)t.data + head * s->D, F32, tensor_width(t), apart * s->D, s->T * tensor_width(t)};
}

/* The scores of member g of each group, of K in a sequence. */
static Matrix scores_from(Tensor t, const Sizes *s, int64_t g)
{
    const int64_t head = s->T * s->T;

    return (Matrix){(float *)t.data + g * head, F32, s->T, s->G * head, s->A * head};
}

/* softmax_rows and softmax_backward_rows count heads of one sequence, so these are launched for each. */
static Matrix of_sequence(Matrix m, int64_t b)
{
    m.data = (float *)m.data + b * m.apart;
    return m;
}

void grouped_attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv)
{
    const Sizes s = sizes_of(out, probs, qkv);
    const Matrix k = heads_from(qkv, &s, s.A, 1), v = heads_from(qkv, &s, s.A + s.K, 1);

    for (int64_t g = 0; g < s.G; g++) {
        const Matrix q = heads_from(qkv, &s, g, s.G), o = heads_from(out, &s, g, s.G), all = scores_from(probs, &s, g);
        for (int64_t first = 0; first < s.T; first += QUERIES) {
            const int64_t n = s.T - first < QUERIES ? s.T - first : QUERIES, keys = first + n;
            const Matrix p = from(all, first, 0);
            matmul(false, true, n, keys, s.D, 1 / sqrtf(s.D), from(q, first, 0), k, 0, p, s.K, s.B);
            for (int64_t b = 0; b < s.B; b++)
                LAUNCH(softmax_rows<float>, row_blocks(s.K * n), row_threads(keys, 4), of_sequence(p, b),
                       of_sequence(p, b), nullptr, s.K, n, first, keys, true);
            matmul(false, false, n, s.D, keys, 1, p, v, 0, from(o, first, 0), s.K, s.B);
        }
    }
}

/* d_scores = probs * (d_probs - sum(d_probs * probs)) * scale, 0 where masked, in place. */
__global__ void softmax_backward_in_place(Matrix d, Matrix probs, int64_t heads, int64_t n, int64_t first, int64_t keys,
                                          float scale)
{
    EACH_ROW(row, heads * n) {
        const int64_t head = row / n, i = row % n, seen = seen_by(first, i, keys, true);
        const float *p = row_of<float>(probs, head, i);
        float *d_s = row_of<float>(d, head, i), dot = 0;
        EACH_COLUMN(j, 1, seen)
            dot += d_s[j] * p[j];
        dot = block_sum(dot);
        EACH_COLUMN(j, 1, keys)
            d_s[j] = j < seen ? scale * p[j] * (d_s[j] - dot) : 0;
    }
}

/* As attention_backward_kernel in attention.cu. dK and dV are sums over the members of a group, in order. */
void grouped_attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    const Sizes s = sizes_of(d_out, probs, qkv);
    const Matrix k = heads_from(qkv, &s, s.A, 1), v = heads_from(qkv, &s, s.A + s.K, 1);
    const Matrix d_k = heads_from(d_qkv, &s, s.A, 1), d_v = heads_from(d_qkv, &s, s.A + s.K, 1);

    for (int64_t g = 0; g < s.G; g++) {
        const Matrix q = heads_from(qkv, &s, g, s.G), d_q = heads_from(d_qkv, &s, g, s.G);
        const Matrix d_o = heads_from(d_out, &s, g, s.G), p = scores_from(probs, &s, g);
        const Matrix d_s = scores_from(d_probs, &s, g);
        for (int64_t first = 0; first < s.T; first += QUERIES) {
            const int64_t n = s.T - first < QUERIES ? s.T - first : QUERIES, keys = first + n;
            const Matrix d = from(d_s, first, 0);
            matmul(false, true, n, keys, s.D, 1, from(d_o, first, 0), v, 0, d, s.K, s.B);
            for (int64_t b = 0; b < s.B; b++)
                LAUNCH(softmax_backward_in_place, row_blocks(s.K * n), row_threads(keys, 4), of_sequence(d, b),
                       of_sequence(from(p, first, 0), b), s.K, n, first, keys, 1 / sqrtf(s.D));
            matmul(false, false, n, s.D, keys, 1, d, k, 0, from(d_q, first, 0), s.K, s.B);
        }
        for (int64_t first = 0; first < s.T; first += QUERIES) {
            const int64_t n = s.T - first < QUERIES ? s.T - first : QUERIES, queries = s.T - first;
            const float beta = g ? 1 : 0;
            matmul(true, false, n, s.D, queries, 1, from(d_s, first, first), from(q, first, 0), beta,
                   from(d_k, first, 0), s.K, s.B);
            matmul(true, false, n, s.D, queries, 1, from(p, first, first), from(d_o, first, 0), beta,
                   from(d_v, first, 0), s.K, s.B);
        }
    }
}

/* ---- SwiGLU ---- */

template <typename T, int N>
__global__ void swiglu_forward_rows(T *out, const T *gate_up, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float gate[N], up[N];
            load(gate, gate_up + 2 * i * width + j, N);
            load(up, gate_up + (2 * i + 1) * width + j, N);
            for (int k = 0; k < N; k++)
                up[k] *= gate[k] / (1 + expf(-gate[k]));
            store(out + i * width + j, up, N);
        }
}

void swiglu_forward_kernel(Tensor out, Tensor gate_up)
{
    FOR_TYPE(out.dtype, T, PACKED(rows_aligned(out, gate_up), T, N,
        LAUNCH_ROWS(out, N, swiglu_forward_rows<T, N>, out, gate_up)));
}

/* With s = sigmoid(gate): silu = gate * s, and its slope is s * (1 + gate * (1 - s)). */
template <typename T, int N>
__global__ void swiglu_backward_rows(T *d_gate_up, const T *d_out, const T *gate_up, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float gate[N], up[N], d[N];
            load(gate, gate_up + 2 * i * width + j, N);
            load(up, gate_up + (2 * i + 1) * width + j, N);
            load(d, d_out + i * width + j, N);
            for (int k = 0; k < N; k++) {
                const float s = 1 / (1 + expf(-gate[k])), d_gate = d[k] * up[k] * s * (1 + gate[k] * (1 - s));
                up[k] = d[k] * gate[k] * s;
                gate[k] = d_gate;
            }
            store(d_gate_up + 2 * i * width + j, gate, N);
            store(d_gate_up + (2 * i + 1) * width + j, up, N);
        }
}

void swiglu_backward_kernel(Tensor d_gate_up, Tensor d_out, Tensor gate_up)
{
    FOR_TYPE(d_out.dtype, T, PACKED(rows_aligned(d_out, d_gate_up, gate_up), T, N,
        LAUNCH_ROWS(d_out, N, swiglu_backward_rows<T, N>, d_gate_up, d_out, gate_up)));
}
