/* The operators: everything that is computed. Outputs come first, then inputs. Forward operators write their outputs.
 * Backward operators add to the gradients of parameters, and write those of activations unless += stands beside them.
 *
 * ops.c checks shapes and dtypes, counts the call, and calls the backend's kernel (kernels.h) in cpu/ or cuda/. A call
 * whose shapes don't fit ends the program with the operator, the tensors and their shapes.
 *
 * Shapes: R rows are often (B, T) sequences x tokens. Unless a comment says otherwise, only the last dimension and the
 * product of the others count. A local heads of size D; in, out: a linear layer's widths.
 *
 * Dtypes: a call's activations, their gradients and its weights are all REAL, all BF16 or all F16. Elements are
 * computed in REAL (matmuls accumulate in it) and rounded once, when they are written. A call's gradients of parameters
 * (+=) are all REAL or all BF16. Always REAL: stats, lse, rope, and what is marked REAL below.
 */
#ifndef OPS_H
#define OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/tensor.h"

/* ---- plain memory ---- */
void tensor_zero(Tensor t);
void tensor_copy(Tensor to, Tensor from);               /* same count and type */
double tensor_item(Tensor t);                           /* returns the only element, F64 or REAL; waits */
void tensor_convert(Tensor to, Tensor from);            /* same count; each REAL, BF16 or F16; rounds to nearest */
void tensor_scale(Tensor t, double factor);             /* in place */
void tensor_add(Tensor to /* += */, Tensor from);       /* same count; to REAL */

/* ---- embedding: weight (V, H), ids (R) I32, out (R, H) ---- */
void embedding_forward(Tensor out, Tensor ids, Tensor weight);          /* id -1: a row of zeros */
void embedding_backward(Tensor d_weight /* += */, Tensor d_out, Tensor ids);

/* ---- LayerNorm, eps 1e-5 (Ba et al. 2016): out = (x - mean) / sqrt(variance + eps) * weight + bias.
 * x, out (R, H), weight, bias (H), stats (R, 2) = mean and rstd = 1 / sqrt(variance + eps) ---- */
void layernorm_forward(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias);
void layernorm_backward(Tensor d_x /* += */, Tensor d_weight /* += */, Tensor d_bias /* += */,
                        Tensor d_out, Tensor x, Tensor stats, Tensor weight);

/* ---- linear: out (R, out) = x (R, in) times weight (out, in) transposed, plus bias (out) or NONE ---- */
void linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
void linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight);
void linear_backward_weight(Tensor d_weight /* += */, Tensor d_bias /* +=, or NONE */, Tensor d_out, Tensor x);

/* ---- rotary positions (Su et al. 2021): base 10000, on all D elements of a head, rotate-half as in GPT-NeoX.
 * rope (T, D) holds D/2 cosines, then D/2 sines. qkv (R, 3*A*D) has q, k, v of each head in turn; row i has position
 * i mod T; v is not rotated. ---- */
void rope_table(Tensor rope, int64_t first);                            /* for positions first, first + 1, ... */
void rope_forward(Tensor qkv, Tensor rope);                             /* in place */
void rope_backward(Tensor d_qkv, Tensor rope);                          /* in place: rotates back */

/* ---- causal attention, per head: probs (B, A, T, T) = softmax(q k^T / sqrt(D)), out (B, T, A*D) = probs v. Masked
 * probabilities are 0; blocks that are fully masked are left untouched. d_probs is workspace of probs' shape. ---- */
void attention_forward(Tensor out, Tensor probs, Tensor qkv);
void attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs);

/* ---- GELU, tanh form (Hendrycks & Gimpel 2016): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) ---- */
void gelu_forward(Tensor out, Tensor x);
void gelu_backward(Tensor d_x, Tensor d_out, Tensor x);

/* ---- residual: out = x + branch + bias. The gradients of x and branch are d_out itself. x, branch, out (R, H) ---- */
void residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias /* or NONE */);
void residual_backward(Tensor d_bias /* += */, Tensor d_out);

/* ---- cross-entropy: loss (1) F64 += scale * (sum over rows of lse - logits[target]), lse (R) = log sum exp(logits).
 * logits (R, V), targets (R) I32; target -1: not in this slice of the vocabulary, so nothing is subtracted from lse.
 * d_logits may be logits. ---- */
void cross_entropy_forward(Tensor loss /* += */, Tensor lse, Tensor logits, Tensor targets, double scale);
void cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale);

/* ---- for the optimizer (optimizer.h): flat tensors of equal length ---- */
typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2;            /* bias corrections: 1 - beta^updates */
    double gradient_scale;                      /* from clipping; NaN: nothing is updated */
    Tensor scale;                               /* (1) F64 on the device, used instead of gradient_scale; or NONE */
} AdamWArguments;
void adamw_update(Tensor params, Tensor copy /* of params, rounded; or NONE */, Tensor m /* REAL */,
                  Tensor v /* REAL */, Tensor gradients, AdamWArguments a);
void square_sum_into(Tensor sum, const Tensor *list, int count);        /* sum (1) F64: over all tensors, in double, in
                                                                         * a fixed order */

#endif
