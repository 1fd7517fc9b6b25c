/* The kernels behind ops.h: one set per backend, in cpu/ or cuda/. Operators call them with operands that they have
 * checked; fused kernels call them for what they do not fuse. */
#ifndef KERNELS_H
#define KERNELS_H

#include "ops.h"

/* Declares the kernel of an operator, with the same arguments. */
#define KERNEL(operator_name) __typeof__(operator_name) operator_name##_kernel

KERNEL(tensor_convert); KERNEL(tensor_scale); KERNEL(tensor_add); KERNEL(tensor_fill); KERNEL(transpose_rows);
KERNEL(embedding_forward); KERNEL(embedding_backward);
KERNEL(layernorm_forward); KERNEL(layernorm_backward);
KERNEL(linear_forward); KERNEL(linear_backward_input); KERNEL(linear_backward_weight);
KERNEL(quantize);
KERNEL(attention_forward); KERNEL(attention_backward);
KERNEL(gelu_forward); KERNEL(gelu_backward);
KERNEL(residual_forward);
KERNEL(cross_entropy_forward); KERNEL(cross_entropy_backward);
KERNEL(cross_entropy_max); KERNEL(cross_entropy_sums); KERNEL(cross_entropy_loss); KERNEL(ids_in_slice);
KERNEL(adamw_update); KERNEL(square_sum_into); KERNEL(clip_scale_into);
void column_sums_kernel(Tensor sum, Tensor t);         /* sum (W) += sum over t's rows, t (R, W) */
void rope_kernel(Tensor qkv, Tensor rope, bool back);
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add);

#endif
