#include "fused.h"

#include "../common/operator.h"

/* lse or delta (B, A, T): one number per query and head. */
static bool is_per_query(Tensor t, Tensor qkv, Tensor out)
{
    return t.data && t.dtype == REAL && t.dims == 3 && qkv.dims == 3 && t.shape[0] == qkv.shape[0]
        && t.shape[2] == qkv.shape[1] && tensor_width(out) % t.shape[1] == 0;
}

/* FLOPs of forward's two products, over the pairs that the causal mask leaves, diagonal included. */
static double flash_flops(Tensor qkv)
{
    const int64_t width = tensor_width(qkv) / 3;

    return 4.0 * tensor_rows(qkv) * width * (qkv.shape[1] + 1) / 2;
}

void flash_attention_forward(Tensor out, Tensor lse, Tensor qkv)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(out);

    op_begin("flash_attention_forward", OPERANDS(out, lse), OPERANDS(), OPERANDS(qkv), flash_flops(qkv),
             is_matrix_of(qkv.dtype, out, rows, width) && is_matrix_of(qkv.dtype, qkv, rows, 3 * width)
                 && is_per_query(lse, qkv, out),
             "out (B, T, A*D), lse (B, A, T) REAL, qkv (B, T, 3*A*D) like out");
    flash_attention_forward_kernel(out, lse, qkv);
    op_end();
}

/* 2.5 times the FLOPs of forward: five products of tiles, where forward has two. */
void flash_attention_backward(Tensor d_qkv, Tensor delta, Tensor d_out, Tensor qkv, Tensor out, Tensor lse)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(out);

    op_begin(
        "flash_attention_backward", OPERANDS(d_qkv, delta), OPERANDS(), OPERANDS(d_out, qkv, out, lse),
        2.5 * flash_flops(qkv),
        is_matrix_of(qkv.dtype, out, rows, width) && is_matrix_of(qkv.dtype, d_out, rows, width)
            && is_matrix_of(qkv.dtype, qkv, rows, 3 * width)
            && is_matrix_of(qkv.dtype, d_qkv, rows, 3 * width) && is_per_query(lse, qkv, out)
            && is_per_query(delta, qkv, out)
            && delta.shape[1] == lse.shape[1],
        "d_qkv (B, T, 3*A*D), delta (B, A, T) REAL, d_out (B, T, A*D), qkv like d_qkv, out like d_out, lse like delta");
    flash_attention_backward_kernel(d_qkv, delta, d_out, qkv, out, lse);
    op_end();
}

static bool is_chunk(DType dtype, Tensor t, Tensor like, int64_t tokens, int64_t size)
{
    return t.data && is_stored(dtype) && t.dtype == dtype && t.dims == 4 && t.shape[0] == like.shape[0]
           && t.shape[1] == tokens && t.shape[2] == like.shape[2] && t.shape[3] == size;
}

/* Whether the operands of a step of the ring fit: out and sum (with D = 1) have q's shape, v has that of k. */
static bool chunks_fit(Tensor q, Tensor out, Tensor sum, Tensor k, Tensor v, bool causal)
{
    const int64_t C = q.shape[1], K = k.shape[1], D = q.shape[3];

    return is_chunk(q.dtype, q, q, C, D) && is_chunk(out.dtype, out, q, C, D) && is_chunk(REAL, sum, q, C, 1)
           && is_chunk(k.dtype, k, q, K, D) && is_chunk(k.dtype, v, q, K, D) && (!causal || K == C);
}

static double chunk_flops(Tensor q, Tensor k, bool causal)
{
    const double C = q.shape[1];

    return 4.0 * q.shape[0] * q.shape[2] * q.shape[3] * (causal ? C * (C + 1) / 2 : C * k.shape[1]);
}

void flash_block_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, bool causal)
{
    op_begin("flash_block_forward", OPERANDS(), OPERANDS(out, lse), OPERANDS(q, k, v), chunk_flops(q, k, causal),
             chunks_fit(q, out, lse, k, v, causal) && out.dtype == REAL && k.dtype == q.dtype,
             "out (B, C, A, D) and lse (B, C, A, 1) REAL, q like out, k and v (B, K, A, D), of one type, K = C if "
             "causal");
    flash_block_forward_kernel(out, lse, q, k, v, causal);
    op_end();
}

void flash_block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor lse,
                          Tensor delta, bool causal)
{
    op_begin("flash_block_backward", OPERANDS(), OPERANDS(d_q, d_k, d_v), OPERANDS(d_out, q, k, v, lse, delta),
             2.5 * chunk_flops(q, k, causal),
             chunks_fit(q, d_out, lse, k, v, causal) && chunks_fit(d_q, d_out, delta, d_k, d_v, causal)
                 && d_q.dtype == REAL && d_k.dtype == REAL && k.dtype == q.dtype && d_out.dtype == q.dtype
                 && d_k.shape[1] == k.shape[1],
             "d_q (B, C, A, D), d_k and d_v (B, K, A, D) REAL, d_out and q like d_q, k and v like d_k, of one type, "
             "lse and delta (B, C, A, 1) REAL, K = C if causal");
    flash_block_backward_kernel(d_q, d_k, d_v, d_out, q, k, v, lse, delta, causal);
    op_end();
}

void residual_layernorm_forward(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch, Tensor branch_bias,
                                Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin(
        "residual_layernorm_forward", OPERANDS(sum, out, stats), OPERANDS(),
        OPERANDS(x, branch, branch_bias, weight, bias), 0,
        is_matrix_of(x.dtype, x, rows, width) && is_matrix_of(x.dtype, branch, rows, width)
            && is_matrix_of(x.dtype, sum, rows, width)
            && is_matrix_of(x.dtype, out, rows, width) && is_matrix(stats, rows, 2)
            && is_vector_of(x.dtype, branch_bias, width)
            && is_vector_of(x.dtype, weight, width) && is_vector_of(x.dtype, bias, width),
        "sum (R, H), out (R, H), stats (R, 2), x (R, H), branch (R, H), branch_bias (H), weight (H), bias (H), of one "
        "type but stats, REAL");
    residual_layernorm_forward_kernel(sum, out, stats, x, branch, branch_bias, weight, bias);
    op_end();
}

void residual_layernorm_backward(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias, Tensor d_out,
                                 Tensor sum, Tensor stats, Tensor weight)
{
    const int64_t rows = tensor_rows(sum), width = tensor_width(sum);
    const DType g = d_bias.dtype;

    op_begin(
        "residual_layernorm_backward", OPERANDS(), OPERANDS(d_sum, d_branch_bias, d_weight, d_bias),
        OPERANDS(d_out, sum, stats, weight), 0,
        is_matrix_of(sum.dtype, sum, rows, width) && is_matrix_of(sum.dtype, d_sum, rows, width)
            && is_matrix_of(sum.dtype, d_out, rows, width)
            && is_matrix(stats, rows, 2) && is_vector_of(sum.dtype, weight, width) && is_gradient(g)
            && is_vector_of(g, d_branch_bias, width) && is_vector_of(g, d_weight, width)
            && is_vector_of(g, d_bias, width),
        "d_sum (R, H), d_branch_bias (H), d_weight (H), d_bias (H), d_out (R, H), sum (R, H), stats (R, 2), weight "
        "(H), of one type but the three gradients of parameters, REAL or BF16, and stats, REAL");
    residual_layernorm_backward_kernel(d_sum, d_branch_bias, d_weight, d_bias, d_out, sum, stats, weight);
    op_end();
}

void linear_gelu_forward(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);

    op_begin("linear_gelu_forward", OPERANDS(out, up), OPERANDS(), OPERANDS(x, weight, bias), 2.0 * rows * k * m,
             is_matrix_of(x.dtype, x, rows, k) && is_matrix_of(x.dtype, out, rows, m)
                 && is_matrix_of(x.dtype, up, rows, m)
                 && is_matrix_of(x.dtype, weight, m, k) && is_vector_of(x.dtype, bias, m),
             "out (R, M), up (R, M), x (R, K), weight (M, K), bias (M), of one type");
    linear_gelu_forward_kernel(out, up, x, weight, bias);
    op_end();
}

void linear_gelu_backward(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    const int64_t rows = tensor_rows(up), n = tensor_width(d_out), m = tensor_width(up);

    op_begin("linear_gelu_backward", OPERANDS(d_up), OPERANDS(), OPERANDS(d_out, weight, up), 2.0 * rows * n * m,
             is_matrix_of(up.dtype, up, rows, m) && is_matrix_of(up.dtype, d_up, rows, m)
                 && is_matrix_of(up.dtype, d_out, rows, n)
                 && is_matrix_of(up.dtype, weight, n, m),
             "d_up (R, M), d_out (R, N), weight (N, M), up (R, M), of one type");
    linear_gelu_backward_kernel(d_up, d_out, weight, up);
    op_end();
}

void cross_entropy_both(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    const int64_t rows = tensor_rows(logits);

    op_begin("cross_entropy_both", OPERANDS(), OPERANDS(loss, logits), OPERANDS(targets), 0,
             is_f64_scalar(loss) && is_matrix_of(logits.dtype, logits, rows, tensor_width(logits))
                 && are_ids(targets, rows),
             "loss (1) F64, logits (R, V), targets (R) I32");
    cross_entropy_both_kernel(loss, logits, targets, scale, gradient_scale);
    op_end();
}
