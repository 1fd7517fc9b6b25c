/* Fused operators: each does the work of several operators of common/transformer/ops.h in one pass over memory, and
 * keeps what lies between them in registers and caches. (Playbook: "Fused Kernels", "Flash Attention".) Conventions,
 * shapes and types are those of ops.h. */
#ifndef FUSED_H
#define FUSED_H

#include "../common/transformer/kernels.h"

/* --fuse: the chains that run as one operator. */
typedef struct {
    bool attention, layernorm, gelu, cross_entropy, adamw;
} Fusions;
Fusions fusions_of(const char *list);           /* "all", "none", or words with commas; fails if one is unknown */

/* ---- FlashAttention (Dao et al. 2022, Dao 2023): attention_forward and _backward without probs, of which only tiles
 * ever exist. out (B, T, A*D), qkv (B, T, 3*A*D). lse (B, A, T) REAL: log sum exp of each query's scores, from which
 * backward computes the probabilities again. delta (B, A, T) REAL: workspace, rowsum(d_out * out). d_q_parts
 * (flash_parts(...)) REAL, at a multiple of 32 bytes: workspace, on a GPU: dQ's sums over some of the keys. ---- */
void flash_attention_forward(Tensor out, Tensor lse, Tensor qkv);
void flash_attention_backward(Tensor d_qkv, Tensor delta, Tensor d_q_parts, Tensor d_out, Tensor qkv, Tensor out,
                              Tensor lse);

/* ---- FlashAttention of one sequence chunk of queries and one of keys, a step of a ring (09): q, out (B, C, A, D),
 * k, v (B, K, A, D), lse, delta (B, C, A, 1). Forward continues from the result over earlier chunks of keys, in out and
 * lse, both REAL; before the first chunk these are 0 and -INFINITY. causal: queries and keys are the same tokens, so
 * K = C; otherwise every query sees every key. Backward adds to d_q, d_k and d_v, REAL. It needs lse and delta
 * (attention_delta of 07/key_blocks.h) over all chunks of keys. d_q_parts as above. ---- */
void flash_block_forward(Tensor out /* in place */, Tensor lse /* in place */, Tensor q, Tensor k, Tensor v,
                         bool causal);
void flash_block_backward(Tensor d_q /* += */, Tensor d_k /* += */, Tensor d_v /* += */, Tensor d_q_parts,
                          Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal);

/* ---- residual_forward, then layernorm_forward of its output: sum = x + branch + branch_bias, out = LayerNorm(sum).
 * Backward adds LayerNorm's input gradient to d_sum, which then is the gradient of x and of branch. It adds the sum of
 * the rows of d_sum to d_branch_bias. ---- */
void residual_layernorm_forward(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch, Tensor branch_bias,
                                Tensor weight, Tensor bias);
void residual_layernorm_backward(Tensor d_sum /* += */, Tensor d_branch_bias /* += */, Tensor d_weight /* += */,
                                 Tensor d_bias /* += */, Tensor d_out, Tensor sum, Tensor stats, Tensor weight);

/* ---- linear_forward, then gelu_forward: up (R, M) = x times weight transposed, plus bias; out = GELU(up). Backward
 * fuses the next linear's input gradient with GELU's: d_up = (d_out (R, N) times weight (N, M)) * GELU'(up). ---- */
void linear_gelu_forward(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias);
void linear_gelu_backward(Tensor d_up, Tensor d_out, Tensor weight, Tensor up);

/* ---- cross_entropy_forward and _backward in place: logits (R, V) become their gradient, times gradient_scale ---- */
void cross_entropy_both(Tensor loss /* += */, Tensor logits, Tensor targets, double scale, double gradient_scale);

/* ---- for AdamW without a wait of the host: scale = clip_scale (optimizer.h) of square_sum's root, (1) F64 each; NaN
 * if that is Inf or NaN. Copies of numbers to the host arrive while it goes on; an event tells when. ---- */
void clip_scale_into(Tensor scale, Tensor square_sum, double clip);
void download_start(double *to, Tensor from);   /* (1) F64; to: device_pinned */

/* ---- what a backend provides, in fused_cpu.c or fused_cuda/; only fused.c calls the kernels ---- */
/* The elements of d_q_parts, of B sequences of T queries and K keys; 0 on the CPU. */
int64_t flash_parts(DType dtype, int64_t B, int64_t T, int64_t K, int64_t A, int64_t D);
const char *linear_gelu_unfused(DType dtype);   /* why GELU is not fused for dtype on this device; NULL: it is */
__typeof__(flash_attention_forward) flash_attention_forward_kernel;
__typeof__(flash_attention_backward) flash_attention_backward_kernel;
__typeof__(flash_block_forward) flash_block_forward_kernel;
__typeof__(flash_block_backward) flash_block_backward_kernel;
__typeof__(residual_layernorm_forward) residual_layernorm_forward_kernel;
__typeof__(residual_layernorm_backward) residual_layernorm_backward_kernel;
__typeof__(linear_gelu_forward) linear_gelu_forward_kernel;
__typeof__(linear_gelu_backward) linear_gelu_backward_kernel;
__typeof__(cross_entropy_both) cross_entropy_both_kernel; __typeof__(clip_scale_into) clip_scale_into_kernel;
#endif
