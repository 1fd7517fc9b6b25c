/* Operators that do the work of several of common/ops.h's in one pass over memory: what is between them stays in
 * registers and caches. (Playbook: "Fused Kernels", "Flash Attention".) Conventions, shapes and types as in ops.h.
 */
#ifndef FUSED_H
#define FUSED_H

#include "../common/ops.h"

/* ---- FlashAttention (Dao et al. 2022, Dao 2023): attention_forward and _backward without probs, of which only tiles
 * ever exist. out (B, T, A*D), qkv (B, T, 3*A*D), lse (B, A, T) REAL: each row's log sum exp of the scores, from which
 * backward computes probabilities again; dots (B, A, T) REAL: workspace, rowsum(d_out * out). ---- */
void flash_attention_forward(Tensor out, Tensor lse, Tensor qkv);
void flash_attention_backward(Tensor d_qkv, Tensor dots, Tensor d_out, Tensor qkv, Tensor out, Tensor lse);

/* ---- FlashAttention of a chunk of queries and one of keys, a step of a ring (09): q, out (B, C, A, D), k, v (B, K, A,
 * D), lse, dots (B, C, A, 1). It takes what other keys gave, in out and lse, both REAL, and goes on from there: at first
 * 0 and -INFINITY. causal: queries and keys are the same tokens, K = C; otherwise every query sees every key. Backward
 * adds to d_q, d_k and d_v, REAL, and takes lse and dots (attention_dots) of all keys together. ---- */
void flash_block_forward(Tensor out /* in place */, Tensor lse /* in place */, Tensor q, Tensor k, Tensor v, bool causal);
void flash_block_backward(Tensor d_q /* += */, Tensor d_k /* += */, Tensor d_v /* += */, Tensor d_out, Tensor q,
                          Tensor k, Tensor v, Tensor lse, Tensor dots, bool causal);

/* ---- residual_forward and layernorm_forward of the sum: sum = x + branch + branch_bias, out = LayerNorm(sum);
 * backward adds LayerNorm's gradient to d_sum, which then is the gradient of x and branch, and adds the sum of d_sum's
 * rows to d_branch_bias. ---- */
void residual_layernorm_forward(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch, Tensor branch_bias,
                                Tensor weight, Tensor bias);
void residual_layernorm_backward(Tensor d_sum /* += */, Tensor d_branch_bias /* += */, Tensor d_weight /* += */,
                                 Tensor d_bias /* += */, Tensor d_out, Tensor sum, Tensor stats, Tensor weight);

/* ---- linear_forward and gelu_forward: up (R, M) = x times weight transposed, plus bias; out = GELU(up). Backward is
 * that of the next linear and of GELU: d_up = (d_out (R, N) times weight (N, M)) * GELU'(up). ---- */
void linear_gelu_forward(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias);
void linear_gelu_backward(Tensor d_up, Tensor d_out, Tensor weight, Tensor up);

/* ---- cross_entropy_forward and _backward, in place: logits (R, V) become their gradient, with its own scale ---- */
void cross_entropy_both(Tensor loss /* += */, Tensor logits, Tensor targets, double scale, double gradient_scale);

/* ---- what a backend has, fused_cpu.c or fused_cuda/; the kernels for fused.c alone ---- */
#ifdef __cplusplus
extern "C" {
#endif
const char *linear_gelu_unfused(DType dtype);   /* why this device has no such pass for the type; NULL: it has */
void flash_attention_forward_kernel(Tensor out, Tensor lse, Tensor qkv);
void flash_attention_backward_kernel(Tensor d_qkv, Tensor dots, Tensor d_out, Tensor qkv, Tensor out, Tensor lse);
void flash_block_forward_kernel(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, bool causal);
void flash_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_out, Tensor q, Tensor k, Tensor v,
                                 Tensor lse, Tensor dots, bool causal);
void residual_layernorm_forward_kernel(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch,
                                       Tensor branch_bias, Tensor weight, Tensor bias);
void residual_layernorm_backward_kernel(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias,
                                        Tensor d_out, Tensor sum, Tensor stats, Tensor weight);
void linear_gelu_forward_kernel(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias);
void linear_gelu_backward_kernel(Tensor d_up, Tensor d_out, Tensor weight, Tensor up);
void cross_entropy_both_kernel(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale);
#ifdef __cplusplus
}
#endif

#endif
