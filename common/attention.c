/* The operators of attention: over all keys, and by blocks of keys. */
#include "ops.h"

#include "kernels.h"
#include "operator.h"

static bool attention_fits(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t rows = probs.shape[0] * probs.shape[2], width = tensor_width(out);

    return probs.dims == 4 && probs.data && is_stored(probs.dtype) && probs.shape[2] == probs.shape[3]
           && width % probs.shape[1] == 0 && is_matrix_of(probs.dtype, out, rows, width)
           && is_matrix_of(probs.dtype, qkv, rows, 3 * width);
}

/* FLOPs of q k^T and probs v over all T^2 pairs of each head: the 12*L*h*s of model_flops_per_token. */
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

/* (B, C, A, D) REAL. */
static bool is_block(Tensor t, int64_t B, int64_t C, int64_t A, int64_t D)
{
    return t.data && t.dtype == REAL && t.dims == 4 && t.shape[0] == B && t.shape[1] == C && t.shape[2] == A
           && t.shape[3] == D;
}

/* sum: lse or delta, one number per query and head. */
static bool block_fits(Tensor scores, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sum, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], keys = k.shape[1];

    return is_block(q, B, C, A, D) && is_block(k, B, keys, A, D) && is_block(v, B, keys, A, D)
           && is_block(out, B, C, A, D) && is_block(sum, B, C, A, 1) && is_block(scores, 2, A, scores.shape[2], keys)
           && scores.shape[2] > 0 && (!causal || keys == C);
}

static int64_t block_pairs(Tensor q, Tensor k, bool causal)
{
    const int64_t C = q.shape[1];

    return q.shape[0] * q.shape[2] * (causal ? C * (C + 1) / 2 : C * k.shape[1]);
}

/* Unlike attention_flops, the FLOPs here count only the pairs that the mask leaves. Scores that backward computes again
 * are not counted. */
void attention_block_forward(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal)
{
    op_begin(
        "attention_block_forward", OPERANDS(out, lse, scores), OPERANDS(), OPERANDS(q, k, v),
        4.0 * block_pairs(q, k, causal) * tensor_width(q), block_fits(scores, q, k, v, out, lse, causal),
        "out (B, C, A, D), lse (B, C, A, 1), scores (2, A, Q, keys), q like out, k and v (B, keys, A, D), keys = C if "
        "causal");
    attention_block_forward_kernel(out, lse, scores, q, k, v, causal);
    pairs += block_pairs(q, k, causal);
    op_end();
}

void attention_block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q, Tensor k,
                              Tensor v, Tensor lse, Tensor delta, bool causal)
{
    op_begin(
        "attention_block_backward", OPERANDS(scores), OPERANDS(d_q, d_k, d_v), OPERANDS(d_out, q, k, v, lse, delta),
        8.0 * block_pairs(q, k, causal) * tensor_width(q),
        block_fits(scores, q, k, v, d_out, lse, causal) && block_fits(scores, d_q, d_k, d_v, d_out, delta, causal)
            && is_block(d_q, q.shape[0], q.shape[1], q.shape[2], q.shape[3]) && d_k.shape[1] == k.shape[1],
        "scores (2, A, Q, keys), d_q (B, C, A, D), d_k and d_v (B, keys, A, D), d_out and q like d_q, k and v like "
        "d_k, lse and delta (B, C, A, 1), keys = C if causal");
    attention_block_backward_kernel(d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta, causal);
    op_end();
}

void attention_merge(Tensor out, Tensor lse, Tensor block_out, Tensor block_lse)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);

    op_begin("attention_merge", OPERANDS(), OPERANDS(out, lse), OPERANDS(block_out, block_lse), 0,
             is_matrix(out, rows, width) && is_matrix(lse, rows, 1) && is_matrix(block_out, rows, width)
                 && is_matrix(block_lse, rows, 1),
             "out (R, D), lse (R, 1), block_out like out, block_lse like lse");
    attention_merge_kernel(out, lse, block_out, block_lse);
    op_end();
}

void attention_delta(Tensor delta, Tensor d_out, Tensor out)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out);

    op_begin("attention_delta", OPERANDS(delta), OPERANDS(), OPERANDS(d_out, out), 0,
             is_matrix_of(out.dtype, out, rows, width) && is_matrix_of(out.dtype, d_out, rows, width)
                 && is_matrix(delta, rows, tensor_width(delta)) && width % tensor_width(delta) == 0,
             "delta (R, A) REAL, d_out and out (R, A*D), of one type");
    attention_delta_kernel(delta, d_out, out);
    op_end();
}
