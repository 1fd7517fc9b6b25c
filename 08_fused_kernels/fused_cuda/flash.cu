/* FlashAttention's operators: each chooses the kernels for its head size, and the backward first computes delta. */
#include "flash.cuh"

/* Statements with PAD as the row length of tiles: the head size, rounded up. */
#define FOR_HEAD_SIZE(size, PAD, ...) \
    do { \
        if (size <= 32) { \
            constexpr int PAD = 32; \
            __VA_ARGS__; \
        } else if (size <= 48) { \
            constexpr int PAD = 48; \
            __VA_ARGS__; \
        } else if (size <= 64) { \
            constexpr int PAD = 64; \
            __VA_ARGS__; \
        } else if (size <= 80) { \
            constexpr int PAD = 80; \
            __VA_ARGS__; \
        } else if (size <= 96) { \
            constexpr int PAD = 96; \
            __VA_ARGS__; \
        } else { \
            constexpr int PAD = 128; \
            __VA_ARGS__; \
        } \
    } while (0)

void flash_attention_forward_kernel(Tensor out, Tensor lse, Tensor qkv)
{
    Sizes s = sizes_of(qkv, lse, "flash_attention_forward");

    s.wide = s.wide && aligned(out);
    FOR_HEAD_SIZE(s.size, PAD, Flash<PAD>::attention_forward(out, lse, qkv, s));
}

void flash_block_forward_kernel(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, bool causal)
{
    Sizes s = sizes_of_chunk(q, k, v, causal, "flash_block_forward");

    s.wide = s.wide && aligned(out);
    FOR_HEAD_SIZE(s.size, PAD, Flash<PAD>::block_forward(out, lse, q, k, v, s));
}

/* delta (B, A, T) = rowsum(d_out * out); 2^n lanes have a row, N elements each. */
template <typename T, int N>
__global__ void flash_delta_rows(float *delta, const T *d_out, const T *out, int64_t rows, int lanes, Sizes s)
{
    EACH_WARP_ROW(first, (rows * lanes + WARP - 1) / WARP) {
        const int64_t i = first * (WARP / lanes) + threadIdx.x / lanes;
        const int64_t head = i % s.heads, token = i / s.heads % s.tokens, batch = i / s.heads / s.tokens;
        float dot = 0, x[N], y[N];
        for (int64_t j = threadIdx.x % lanes * N; i < rows && j < s.size; j += lanes * N) {
            load(x, d_out + i * s.size + j, N);
            load(y, out + i * s.size + j, N);
            for (int k = 0; k < N; k++)
                dot += x[k] * y[k];
        }
        for (int apart = lanes / 2; apart; apart /= 2)
            dot += __shfl_xor_sync(~0u, dot, apart);
        if (i < rows && threadIdx.x % lanes == 0)
            delta[(batch * s.heads + head) * s.tokens + token] = dot;
    }
}

int64_t flash_parts(DType dtype, int64_t B, int64_t T, int64_t K, int64_t A, int64_t D)
{
    int64_t elements = 0;

    check_size(D, "flash_attention_backward");
    FOR_HEAD_SIZE(D, PAD, elements = Flash<PAD>::parts(dtype, (Sizes){B, T, K, A, D}));
    return elements;
}

void flash_attention_backward_kernel(Tensor d_qkv, Tensor delta, Tensor d_q_parts, Tensor d_out, Tensor qkv,
                                     Tensor out, Tensor lse)
{
    Sizes s = sizes_of(qkv, lse, "flash_attention_backward");
    const int64_t rows = s.batch * s.tokens * s.heads;

    s.wide = s.wide && aligned(out) && aligned(d_out) && aligned(d_qkv);
    FOR_TYPE(qkv.dtype, T,
        PACKED(s.wide, T, N,
            int lanes = 1;
            while (lanes < WARP && lanes * N < s.size)
                lanes *= 2;
            LAUNCH((flash_delta_rows<T, N>), row_blocks(rows * lanes, THREADS), dim3(WARP, WARPS), data<float>(delta),
                   data<T>(d_out), data<T>(out), rows, lanes, s)));
    FOR_HEAD_SIZE(s.size, PAD, Flash<PAD>::attention_backward(d_qkv, d_q_parts, d_out, qkv, lse, delta, s));
}

void flash_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_q_parts, Tensor d_out, Tensor q,
                                 Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal)
{
    Sizes s = sizes_of_chunk(q, k, v, causal, "flash_block_backward");

    s.wide = s.wide && aligned(d_out) && aligned(d_q);
    FOR_HEAD_SIZE(s.size, PAD, Flash<PAD>::block_backward(d_q, d_k, d_v, d_q_parts, d_out, q, k, v, lse, delta, s));
}
