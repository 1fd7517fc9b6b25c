/* The kernels behind ops.h: one set per backend, in cpu/ or cuda/. Operators call them with operands that they have
 * checked; fused kernels call them for what they do not fuse. A kernel's arguments are those of the operator without
 * the suffix. (rope_kernel is rope_forward and, with `back`, rope_backward; linear_fp8_kernel is linear_fp8 and, with
 * `add`, linear_fp8_add.)
 */
#ifndef KERNELS_H
#define KERNELS_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

void embedding_forward_kernel(Tensor out, Tensor ids, Tensor weight);
void embedding_backward_kernel(Tensor d_weight, Tensor d_out, Tensor ids);
void layernorm_forward_kernel(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias);
void layernorm_backward_kernel(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                               Tensor weight);
void linear_forward_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias);
void linear_backward_input_kernel(Tensor d_x, Tensor d_out, Tensor weight);
void linear_backward_weight_kernel(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x);
void rope_kernel(Tensor qkv, Tensor rope, bool back);
void attention_forward_kernel(Tensor out, Tensor probs, Tensor qkv);
void attention_backward_kernel(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs);
void gelu_forward_kernel(Tensor out, Tensor x);
void gelu_backward_kernel(Tensor d_x, Tensor d_out, Tensor x);
void residual_forward_kernel(Tensor out, Tensor x, Tensor branch, Tensor bias);
void residual_backward_kernel(Tensor d_bias, Tensor d_out);
void cross_entropy_forward_kernel(Tensor loss, Tensor lse, Tensor logits, Tensor targets, double scale);
void cross_entropy_backward_kernel(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale);
void cross_entropy_max_kernel(Tensor max, Tensor logits);
void cross_entropy_sums_kernel(Tensor sums, Tensor logits, Tensor max, Tensor targets);
void cross_entropy_loss_kernel(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale);
void ids_in_slice_kernel(Tensor out, Tensor ids, int64_t first, int64_t count);
void adamw_update_kernel(Tensor params, Tensor copy, Tensor m, Tensor v, Tensor gradients, AdamWArguments a);
double square_sum_kernel(const Tensor *list, int count);
void square_sum_into_kernel(Tensor sum, const Tensor *list, int count);
void clip_scale_into_kernel(Tensor scale, Tensor square_sum, double clip);

void attention_block_forward_kernel(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal);
void attention_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor scores, Tensor d_out, Tensor q,
                                     Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal);
void attention_merge_kernel(Tensor out, Tensor lse, Tensor block_out, Tensor block_lse);
void attention_delta_kernel(Tensor delta, Tensor d_out, Tensor out);
void tensor_convert_kernel(Tensor to, Tensor from);
void tensor_scale_kernel(Tensor t, double factor);
void quantize_kernel(Tensor out, Tensor transposed, Tensor x);
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add);
void tensor_fill_kernel(Tensor t, double value);
void tensor_add_kernel(Tensor to, Tensor from);
void transpose_rows_kernel(Tensor out, Tensor in);

#ifdef __cplusplus
}
#endif

#endif
