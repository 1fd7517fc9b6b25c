/* The operators of attention: whole, and by blocks of keys. */
#include "ops.h"

#include "kernels.h"
#include "operator.h"

static bool attention_fits(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t rows = probs.shape[0] * probs.shape[2], width = tensor_width(out);

    return probs.dims == 4 && probs.data && is_stored(probs.dtype) && probs.shape[2] == probs.shape[3]
           && width % probs.shape[1] == 0 && as(probs.dtype, out, rows, width) && as(probs.dtype, qkv, rows, 3 * width);
}

/* Scores and their sum over values, for all T^2 pairs of a head: what the 12*L*h*s of the FLOPs' formula counts. */
static double attention_flops(Tensor out, Tensor probs)
{
    return 4.0 * tensor_count(out) * probs.shape[2];
}

void attention_forward(Tensor out, Tensor probs, Tensor qkv)
{
    op_begin("attention_forward", OPERANDS(out, probs), OPERANDS(), OPERANDS(qkv), attention_flops(out, probs),
             attention_fits(out, probs, qkv), "out (B, T, A*D), probs (B, A, T, T), qkv (B, T, 3*A*D), of one type");
    attention_forward_kernel(out, probs, qkv);
    op_end();
}

void attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    op_begin("attention_backward", OPERANDS(d_qkv, d_probs), OPERANDS(), OPERANDS(d_out, qkv, probs),
             2 * attention_flops(d_out, probs),
             attention_fits(d_out, probs, qkv) && attention_fits(d_out, d_probs, d_qkv) && d_probs.dtype == probs.dtype
                 && d_probs.shape[0] == probs.shape[0] && d_probs.shape[1] == probs.shape[1],
             "d_qkv (B, T, 3*A*D), d_probs (B, A, T, T), d_out (B, T, A*D), qkv like d_qkv, probs like d_probs, of one "
             "type");
    attention_backward_kernel(d_qkv, d_probs, d_out, qkv, probs);
    op_end();
}

/* ---- Attention by blocks of keys ---- */

static int64_t pairs;

int64_t attention_pairs(void)
{
    return pairs;
}

static bool is_block(Tensor t, int64_t B, int64_t C, int64_t A, int64_t D)
{
    return t.data && t.dtype == REAL && t.dims == 4 && t.shape[0] == B && t.shape[1] == C && t.shape[2] == A
           && t.shape[3] == D;
}

/* Of q, or what is like it; sum has one number for each query and head. */
static bool block_fits(Tensor scores, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sum, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1];

    return is_block(q, B, C, A, D) && is_block(k, B, K, A, D) && is_block(v, B, K, A, D) && is_block(out, B, C, A, D)
           && is_block(sum, B, C, A, 1) && is_block(scores, 2, A, scores.shape[2], K) && scores.shape[2] > 0
           && (!causal || K == C);
}

static int64_t block_pairs(Tensor q, Tensor k, bool causal)
{
    const int64_t C = q.shape[1];

    return q.shape[0] * q.shape[2] * (causal ? C * (C + 1) / 2 : C * k.shape[1]);
}

/* FLOPs of the pairs that the mask leaves, unlike attention_flops: the causal half, over all blocks. Backward computes
 * the scores again, which is not counted. */
void attention_block_forward(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal)
{
    op_begin(
        "attention_block_forward", OPERANDS(out, lse, scores), OPERANDS(), OPERANDS(q, k, v),
        4.0 * block_pairs(q, k, causal) * tensor_width(q), block_fits(scores, q, k, v, out, lse, causal),
        "out (B, C, A, D), lse (B, C, A, 1), scores (2, A, Q, K), q like out, k and v (B, K, A, D), K = C if causal");
    attention_block_forward_kernel(out, lse, scores, q, k, v, causal);
    pairs += block_pairs(q, k, causal);
    op_end();
}

void attention_block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q, Tensor k,
                              Tensor v, Tensor lse, Tensor dots, bool causal)
{
    op_begin(
        "attention_block_backward", OPERANDS(scores), OPERANDS(d_q, d_k, d_v), OPERANDS(d_out, q, k, v, lse, dots),
        8.0 * block_pairs(q, k, causal) * tensor_width(q),
        block_fits(scores, q, k, v, d_out, lse, causal) && block_fits(scores, d_q, d_k, d_v, d_out, dots, causal)
            && is_block(d_q, q.shape[0], q.shape[1], q.shape[2], q.shape[3]) && d_k.shape[1] == k.shape[1],
        "scores (2, A, Q, K), d_q (B, C, A, D), d_k and d_v (B, K, A, D), d_out and q like d_q, k and v like d_k, lse "
        "and dots (B, C, A, 1), K = C if causal");
    attention_block_backward_kernel(d_q, d_k, d_v, scores, d_out, q, k, v, lse, dots, causal);
    op_end();
}

void attention_merge(Tensor out, Tensor lse, Tensor part, Tensor part_lse)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);

    op_begin("attention_merge", OPERANDS(), OPERANDS(out, lse), OPERANDS(part, part_lse), 0,
             is(out, rows, width) && is(lse, rows, 1) && is(part, rows, width) && is(part_lse, rows, 1),
             "out (R, D), lse (R, 1), part like out, part_lse like lse");
    attention_merge_kernel(out, lse, part, part_lse);
    op_end();
}

void attention_dots(Tensor dots, Tensor d_out, Tensor out)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);

    op_begin("attention_dots", OPERANDS(dots), OPERANDS(), OPERANDS(d_out, out), 0,
             as(out.dtype, out, rows, width) && as(out.dtype, d_out, rows, width)
                 && is(dots, rows, tensor_width(dots)) && width % tensor_width(dots) == 0,
             "dots (R, A) REAL, d_out and out (R, A*D), of one type");
    attention_dots_kernel(dots, d_out, out);
    op_end();
}
