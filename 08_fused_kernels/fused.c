#include "fused.h"

#include "../common/operator.h"

/* lse or dots: one number for each query of each head. */
static bool is_per_query(Tensor t, Tensor qkv, Tensor out)
{
    return t.data && t.dtype == REAL && t.dims == 3 && qkv.dims == 3 && t.shape[0] == qkv.shape[0]
        && t.shape[2] == qkv.shape[1] && tensor_width(out) % t.shape[1] == 0;
}

/* Of the half of the pairs that the mask leaves, with the diagonal. */
static double flash_flops(Tensor qkv)
{
    const int64_t width = tensor_width(qkv) / 3;

    return 4.0 * tensor_rows(qkv) * width * (qkv.shape[1] + 1) / 2;
}

void flash_attention_forward(Tensor out, Tensor lse, Tensor qkv)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(out);

    op_begin("flash_attention_forward", OPERANDS(out, lse), OPERANDS(), OPERANDS(qkv), flash_flops(qkv),
             as(qkv.dtype, out, rows, width) && as(qkv.dtype, qkv, rows, 3 * width) && is_per_query(lse, qkv, out),
             "out (B, T, A*D), lse (B, A, T) REAL, qkv (B, T, 3*A*D) like out");
    flash_attention_forward_kernel(out, lse, qkv);
    op_end();
}

/* Five products of tiles where forward has two. */
void flash_attention_backward(Tensor d_qkv, Tensor dots, Tensor d_out, Tensor qkv, Tensor out, Tensor lse)
{
    const int64_t rows = tensor_rows(qkv), width = tensor_width(out);

    op_begin(
        "flash_attention_backward", OPERANDS(d_qkv, dots), OPERANDS(), OPERANDS(d_out, qkv, out, lse),
        2.5 * flash_flops(qkv),
        as(qkv.dtype, out, rows, width) && as(qkv.dtype, d_out, rows, width) && as(qkv.dtype, qkv, rows, 3 * width)
            && as(qkv.dtype, d_qkv, rows, 3 * width) && is_per_query(lse, qkv, out) && is_per_query(dots, qkv, out)
            && dots.shape[1] == lse.shape[1],
        "d_qkv (B, T, 3*A*D), dots (B, A, T) REAL, d_out (B, T, A*D), qkv like d_qkv, out like d_out, lse like dots");
    flash_attention_backward_kernel(d_qkv, dots, d_out, qkv, out, lse);
    op_end();
}

static bool is_chunk(DType dtype, Tensor t, Tensor like, int64_t tokens, int64_t size)
{
    return t.data && is_stored(dtype) && t.dtype == dtype && t.dims == 4 && t.shape[0] == like.shape[0]
           && t.shape[1] == tokens && t.shape[2] == like.shape[2] && t.shape[3] == size;
}

/* q and what is like it, of types of their own; k and v, and what is like them. */
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
                          Tensor dots, bool causal)
{
    op_begin("flash_block_backward", OPERANDS(), OPERANDS(d_q, d_k, d_v), OPERANDS(d_out, q, k, v, lse, dots),
             2.5 * chunk_flops(q, k, causal),
             chunks_fit(q, d_out, lse, k, v, causal) && chunks_fit(d_q, d_out, dots, d_k, d_v, causal)
                 && d_q.dtype == REAL && d_k.dtype == REAL && k.dtype == q.dtype && d_out.dtype == q.dtype
                 && d_k.shape[1] == k.shape[1],
             "d_q (B, C, A, D), d_k and d_v (B, K, A, D) REAL, d_out and q like d_q, k and v like d_k, of one type, lse "
             "and dots (B, C, A, 1) REAL, K = C if causal");
    flash_block_backward_kernel(d_q, d_k, d_v, d_out, q, k, v, lse, dots, causal);
    op_end();
}

void residual_layernorm_forward(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch, Tensor branch_bias,
                                Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin(
        "residual_layernorm_forward", OPERANDS(sum, out, stats), OPERANDS(),
        OPERANDS(x, branch, branch_bias, weight, bias), 0,
        as(x.dtype, x, rows, width) && as(x.dtype, branch, rows, width) && as(x.dtype, sum, rows, width)
            && as(x.dtype, out, rows, width) && is(stats, rows, 2) && as_vector(x.dtype, branch_bias, width)
            && as_vector(x.dtype, weight, width) && as_vector(x.dtype, bias, width),
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
        as(sum.dtype, sum, rows, width) && as(sum.dtype, d_sum, rows, width) && as(sum.dtype, d_out, rows, width)
            && is(stats, rows, 2) && as_vector(sum.dtype, weight, width) && is_gradient(g)
            && as_vector(g, d_branch_bias, width) && as_vector(g, d_weight, width) && as_vector(g, d_bias, width),
        "d_sum (R, H), d_branch_bias (H), d_weight (H), d_bias (H), d_out (R, H), sum (R, H), stats (R, 2), weight "
        "(H), of one type but the three gradients of parameters, REAL or BF16, and stats, REAL");
    residual_layernorm_backward_kernel(d_sum, d_branch_bias, d_weight, d_bias, d_out, sum, stats, weight);
    op_end();
}

void linear_gelu_forward(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);

    op_begin("linear_gelu_forward", OPERANDS(out, up), OPERANDS(), OPERANDS(x, weight, bias), 2.0 * rows * k * m,
             as(x.dtype, x, rows, k) && as(x.dtype, out, rows, m) && as(x.dtype, up, rows, m)
                 && as(x.dtype, weight, m, k) && as_vector(x.dtype, bias, m),
             "out (R, M), up (R, M), x (R, K), weight (M, K), bias (M), of one type");
    linear_gelu_forward_kernel(out, up, x, weight, bias);
    op_end();
}

void linear_gelu_backward(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    const int64_t rows = tensor_rows(up), n = tensor_width(d_out), m = tensor_width(up);

    op_begin("linear_gelu_backward", OPERANDS(d_up), OPERANDS(), OPERANDS(d_out, weight, up), 2.0 * rows * n * m,
             as(up.dtype, up, rows, m) && as(up.dtype, d_up, rows, m) && as(up.dtype, d_out, rows, n)
                 && as(up.dtype, weight, n, m),
             "d_up (R, M), d_out (R, N), weight (N, M), up (R, M), of one type");
    linear_gelu_backward_kernel(d_up, d_out, weight, up);
    op_end();
}

void cross_entropy_both(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    const int64_t rows = tensor_rows(logits);

    op_begin("cross_entropy_both", OPERANDS(), OPERANDS(loss, logits), OPERANDS(targets), 0,
             is_total(loss) && as(logits.dtype, logits, rows, tensor_width(logits)) && are_ids(targets, rows),
             "loss (1) F64, logits (R, V), targets (R) I32");
    cross_entropy_both_kernel(loss, logits, targets, scale, gradient_scale);
    op_end();
}
