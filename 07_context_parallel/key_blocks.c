#include "key_blocks.h"

#include "../common/transformer/op_call.h"

static int64_t pairs;

int64_t attention_pairs(void)
{
    return pairs;
}

/* Unlike attention_forward's, the FLOPs of blocks count only the pairs that the mask leaves. */
static int64_t block_pairs(Tensor q, Tensor k, bool causal)
{
    const int64_t C = q.shape[1];

    return q.shape[0] * q.shape[2] * (causal ? C * (C + 1) / 2 : C * k.shape[1]);
}

void attention_block_forward(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal)
{
    OP_REQUIRE(!causal || k.shape[1] == q.shape[1], "q B,C,A,D; k B,C,A,D, because it is causal", q, k);
    pairs += block_pairs(q, k, causal);
    OP_CALL(attention_block_forward_kernel(out, lse, scores, q, k, v, causal),
            4.0 * block_pairs(q, k, causal) * tensor_width(q),
            "=out B,C,A,D REAL; =lse B,C,A,1 REAL; =scores 2,A,Q,K REAL; q B,C,A,D REAL; k B,K,A,D REAL; "
            "v B,K,A,D REAL", out, lse, scores, q, k, v);
}

void attention_block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q, Tensor k,
                              Tensor v, Tensor lse, Tensor delta, bool causal)
{
    OP_REQUIRE(!causal || k.shape[1] == q.shape[1], "q B,C,A,D; k B,C,A,D, because it is causal", q, k);
    OP_CALL(attention_block_backward_kernel(d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta, causal),
            8.0 * block_pairs(q, k, causal) * tensor_width(q),
            "+d_q B,C,A,D REAL; +d_k B,K,A,D REAL; +d_v B,K,A,D REAL; =scores 2,A,Q,K REAL; d_out B,C,A,D REAL; "
            "q B,C,A,D REAL; k B,K,A,D REAL; v B,K,A,D REAL; lse B,C,A,1 REAL; delta B,C,A,1 REAL",
            d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta);
}

void attention_merge(Tensor out, Tensor lse, Tensor block_out, Tensor block_lse)
{
    OP_CALL(attention_merge_kernel(out, lse, block_out, block_lse), 0,
            "+out R,D REAL; +lse R,1 REAL; block_out R,D REAL; block_lse R,1 REAL", out, lse, block_out, block_lse);
}

void attention_delta(Tensor delta, Tensor d_out, Tensor out)
{
    OP_CALL(attention_delta_kernel(delta, d_out, out), 0, "=delta R,A REAL; d_out R,A*D; out R,A*D", delta, d_out, out);
}

void transpose_rows(Tensor out, Tensor in)
{
    OP_CALL(transpose_rows_kernel(out, in), 0, "=out Y,X,W; in X,Y,W", out, in);
}

void tensor_fill(Tensor t, double value)
{
    OP_CALL(tensor_fill_kernel(t, value), 0, "=t N REAL", t);
}
