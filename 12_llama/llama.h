/* Operators of Llama's block (Touvron et al. 2023). A local heads of q share K of k and v: head a of q reads KV head
 * a / (A/K), so the heads of a group are neighbors. qkv (R, (A+2*K)*D) has all q, then all k, then all v: a rank's rows
 * of the three matrices lie one after another, so one matmul computes them. Conventions are those of
 * common/transformer/ops.h. */
#ifndef LLAMA_H
#define LLAMA_H

#include "../common/base/options.h"
#include "../common/transformer/kernels.h"

/* ---- RMSNorm (Zhang & Sennrich 2019): out = x * rstd * weight, rstd (R) REAL = 1 / sqrt(mean(x^2) + eps).
 * x, out (R, H), weight (H) ---- */
void rmsnorm_forward(Tensor out, Tensor rstd, Tensor x, Tensor weight, double eps);
void rmsnorm_backward(Tensor d_x /* += */, Tensor d_weight /* += */, Tensor d_out, Tensor x, Tensor rstd,
                      Tensor weight);

/* ---- rotary positions of any base theta, with Llama 3's change of frequencies if scaling.factor is not 0: as
 * Hugging Face's rope_type "llama3", long wavelengths are stretched by factor, short ones stay, and those between
 * original_seq / high_freq_factor and original_seq / low_freq_factor are mixed. rope as in ops.h; q and k are rotated,
 * v is not ---- */
void scaled_rope_table(Tensor rope, double theta, RopeScaling scaling);         /* for positions 0 to T - 1 */
void grouped_rope_forward(Tensor qkv, Tensor rope, int64_t kv_heads);           /* in place */
void grouped_rope_backward(Tensor d_qkv, Tensor rope, int64_t kv_heads);        /* in place: rotates back */

/* ---- causal attention with grouped queries (Ainslie et al. 2023), all REAL; probs (B, A, T, T), out (B, T, A*D) and
 * d_probs as in ops.h. The gradient of a KV head is the sum over its group, in order. ---- */
void grouped_attention_forward(Tensor out, Tensor probs, Tensor qkv);
void grouped_attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs);

/* ---- SwiGLU (Shazeer 2020): out (R, F) = silu(gate) * up, silu(x) = x / (1 + exp(-x)); gate_up (R, 2*F) ---- */
void swiglu_forward(Tensor out, Tensor gate_up);
void swiglu_backward(Tensor d_gate_up, Tensor d_out, Tensor gate_up);

/* ---- what a backend provides, in llama_cpu.c or llama_cuda.cu; only llama.c calls the kernels ---- */
__typeof__(rmsnorm_forward) rmsnorm_forward_kernel; __typeof__(rmsnorm_backward) rmsnorm_backward_kernel;
__typeof__(grouped_attention_forward) grouped_attention_forward_kernel;
__typeof__(grouped_attention_backward) grouped_attention_backward_kernel;
__typeof__(swiglu_forward) swiglu_forward_kernel; __typeof__(swiglu_backward) swiglu_backward_kernel;
void grouped_rope_kernel(Tensor qkv, Tensor rope, int64_t kv_heads, bool back);
#endif
