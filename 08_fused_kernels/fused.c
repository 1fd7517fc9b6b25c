#include "fused.h"

#include <string.h>

#include "../common/base/error.h"
#include "../common/transformer/op_call.h"

Fusions fusions_of(const char *list)
{
    Fusions f = {0};
    const struct { const char *name; bool *fused; } chains[] = {
        {"attention", &f.attention}, {"layernorm", &f.layernorm}, {"gelu", &f.gelu},
        {"cross-entropy", &f.cross_entropy}, {"adamw", &f.adamw}};

    for (const char *word = list, *end = list; *end && strcmp(list, "none"); word = end + 1) {
        const size_t length = strcspn(word, ",");
        const bool all = length == 3 && !strncmp(word, "all", 3);
        bool known = all;
        end = word + length;
        for (int i = 0; i < 5; i++)
            if (all || (strlen(chains[i].name) == length && !strncmp(word, chains[i].name, length)))
                *chains[i].fused = known = true;
        if (!known)
            fail_usage("--fuse: expected all, none, or a list like a,b of attention|layernorm|gelu|cross-entropy|"
                       "adamw, got '%s': '%.*s' is none of them", list, (int)length, word);
    }
    return f;
}

/* FLOPs of forward's two products, over the pairs that the causal mask leaves, diagonal included. Backward has five
 * products, 2.5 times the FLOPs. */
static double flash_flops(Tensor qkv)
{
    const int64_t width = tensor_width(qkv) / 3;

    return 4.0 * tensor_rows(qkv) * width * (qkv.shape[1] + 1) / 2;
}

static double chunk_flops(Tensor q, Tensor k, bool causal)
{
    const double C = q.shape[1];

    return 4.0 * q.shape[0] * q.shape[2] * q.shape[3] * (causal ? C * (C + 1) / 2 : C * k.shape[1]);
}

void flash_attention_forward(Tensor out, Tensor lse, Tensor qkv)
{
    OP_CALL(flash_attention_forward_kernel(out, lse, qkv), flash_flops(qkv),
            "=out B*T,A*D; =lse B,A,T REAL; qkv B,T,3*A*D", out, lse, qkv);
}

void flash_attention_backward(Tensor d_qkv, Tensor delta, Tensor d_q_parts, Tensor d_out, Tensor qkv, Tensor out,
                              Tensor lse)
{
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1];
    const int64_t parts = flash_parts(qkv.dtype, B, T, T, A, tensor_width(qkv) / 3 / A);

    OP_REQUIRE(tensor_count(d_q_parts) == parts, "d_q_parts P, with P = flash_parts(...)", d_q_parts, qkv, lse);
    OP_CALL(flash_attention_backward_kernel(d_qkv, delta, d_q_parts, d_out, qkv, out, lse), 2.5 * flash_flops(qkv),
            "=d_qkv B,T,3*A*D; =delta B,A,T REAL; =d_q_parts P REAL; d_out B*T,A*D; qkv B,T,3*A*D; out B*T,A*D; "
            "lse B,A,T REAL", d_qkv, delta, d_q_parts, d_out, qkv, out, lse);
}

void flash_block_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, bool causal)
{
    OP_REQUIRE(!causal || k.shape[1] == q.shape[1], "q B,C,A,D; k B,C,A,D, because it is causal", q, k);
    OP_CALL(flash_block_forward_kernel(out, lse, q, k, v, causal), chunk_flops(q, k, causal),
            "+out B,C,A,D REAL; +lse B,C,A,1 REAL; q B,C,A,D; k B,K,A,D; v B,K,A,D", out, lse, q, k, v);
}

void flash_block_backward(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_q_parts, Tensor d_out, Tensor q, Tensor k,
                          Tensor v, Tensor lse, Tensor delta, bool causal)
{
    const int64_t parts = flash_parts(q.dtype, q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.shape[3]);

    OP_REQUIRE(tensor_count(d_q_parts) == parts, "d_q_parts P, with P = flash_parts(...)", d_q_parts, q, k);
    OP_REQUIRE(!causal || k.shape[1] == q.shape[1], "q B,C,A,D; k B,C,A,D, because it is causal", q, k);
    OP_CALL(flash_block_backward_kernel(d_q, d_k, d_v, d_q_parts, d_out, q, k, v, lse, delta, causal),
            2.5 * chunk_flops(q, k, causal),
            "+d_q B,C,A,D REAL; +d_k B,K,A,D REAL; +d_v B,K,A,D REAL; =d_q_parts P REAL; d_out B,C,A,D; q B,C,A,D; "
            "k B,K,A,D; v B,K,A,D; lse B,C,A,1 REAL; delta B,C,A,1 REAL",
            d_q, d_k, d_v, d_q_parts, d_out, q, k, v, lse, delta);
}

void residual_layernorm_forward(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch, Tensor branch_bias,
                                Tensor weight, Tensor bias)
{
    OP_CALL(residual_layernorm_forward_kernel(sum, out, stats, x, branch, branch_bias, weight, bias), 0,
            "=sum R,H; =out R,H; =stats R,2 REAL; x R,H; branch R,H; branch_bias H; weight H; bias H",
            sum, out, stats, x, branch, branch_bias, weight, bias);
}

void residual_layernorm_backward(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias, Tensor d_out,
                                 Tensor sum, Tensor stats, Tensor weight)
{
    OP_CALL(residual_layernorm_backward_kernel(d_sum, d_branch_bias, d_weight, d_bias, d_out, sum, stats, weight), 0,
            "+d_sum R,H; +d_branch_bias H G; +d_weight H G; +d_bias H G; d_out R,H; sum R,H; stats R,2 REAL; weight H",
            d_sum, d_branch_bias, d_weight, d_bias, d_out, sum, stats, weight);
}

void linear_gelu_forward(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    OP_CALL(linear_gelu_forward_kernel(out, up, x, weight, bias), 2.0 * tensor_count(out) * tensor_width(x),
            "=out R,M; =up R,M; x R,K; weight M,K; bias M", out, up, x, weight, bias);
}

void linear_gelu_backward(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    OP_CALL(linear_gelu_backward_kernel(d_up, d_out, weight, up), 2.0 * tensor_count(d_out) * tensor_width(up),
            "=d_up R,M; d_out R,N; weight N,M; up R,M", d_up, d_out, weight, up);
}

void cross_entropy_both(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    OP_CALL(cross_entropy_both_kernel(loss, logits, targets, scale, gradient_scale), 0,
            "+loss 1 F64; +logits R,V; targets R I32", loss, logits, targets);
}

void clip_scale_into(Tensor scale, Tensor square_sum, double clip)
{
    OP_CALL(clip_scale_into_kernel(scale, square_sum, clip), 0, "=scale 1 F64; square_sum 1 F64", scale, square_sum);
}
