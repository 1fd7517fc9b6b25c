/* The kernels behind ops.h: one set per backend, in cpu/ or cuda/. Operators call them with operands that are
 * checked; fused kernels call them for what they do not fuse. __typeof__(f) f_kernel: with the arguments of f. */
#ifndef KERNELS_H
#define KERNELS_H

#include "ops.h"

__typeof__(tensor_convert) tensor_convert_kernel; __typeof__(tensor_scale) tensor_scale_kernel;
__typeof__(tensor_add) tensor_add_kernel;
__typeof__(embedding_forward) embedding_forward_kernel; __typeof__(embedding_backward) embedding_backward_kernel;
__typeof__(layernorm_forward) layernorm_forward_kernel; __typeof__(layernorm_backward) layernorm_backward_kernel;
__typeof__(linear_forward) linear_forward_kernel; __typeof__(linear_backward_input) linear_backward_input_kernel;
__typeof__(linear_backward_weight) linear_backward_weight_kernel;
__typeof__(attention_forward) attention_forward_kernel; __typeof__(attention_backward) attention_backward_kernel;
__typeof__(gelu_forward) gelu_forward_kernel; __typeof__(gelu_backward) gelu_backward_kernel;
__typeof__(residual_forward) residual_forward_kernel;
__typeof__(cross_entropy_forward) cross_entropy_forward_kernel;
__typeof__(cross_entropy_backward) cross_entropy_backward_kernel;
__typeof__(adamw_update) adamw_update_kernel; __typeof__(square_sum_into) square_sum_into_kernel;
void column_sums_kernel(Tensor sum, Tensor t);         /* sum (W) += sum over t's rows, t (R, W) */
void rope_kernel(Tensor qkv, Tensor rope, bool back);

#endif
