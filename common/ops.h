/* The operators: everything that is computed. Outputs come first, then inputs. Forward writes its outputs;
 * gradients of parameters accumulate (+=), gradients of activations are written, except the residual stream's.
 *
 * ops.c checks shapes and types, measures, and calls the kernel of the backend (kernels.h), in cpu/ops.c and
 * cpu/attention.c or in cuda/. A call whose shapes don't fit ends the program and names the operator, the tensors
 * and their shapes.
 *
 * Shapes: R rows are often (B, T) sequences x tokens; only the last dimension and the product of the others count,
 * where nothing else is said. A heads of size D.
 *
 * Types: activations, their gradients and weights are REAL, or all of a call are BF16, or all F16: then each element is
 * read, computed with in REAL (matmuls accumulate in it) and rounded once, when it is written. Gradients of parameters
 * (+=) are REAL or BF16, all of a call alike. REAL always: stats, lse, rope, and what is marked REAL below.
 */
#ifndef OPS_H
#define OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plain memory ---- */
void tensor_zero(Tensor t);
void tensor_copy(Tensor to, Tensor from);               /* same count and type */
double tensor_item(Tensor t);                           /* the one element, F64 or REAL, on the host; waits */
void tensor_convert(Tensor to, Tensor from);            /* same count; each REAL, BF16 or F16: to the nearest */
void tensor_scale(Tensor t, double factor);             /* in place */
void tensor_add(Tensor to /* += */, Tensor from);       /* same count; to REAL */
void transpose_rows(Tensor out, Tensor in);             /* in (X, Y, W), out (Y, X, W): rows of W change places */

/* ---- embedding: weight (V, H), ids (R) I32, out (R, H) ---- */
void embedding_forward(Tensor out, Tensor ids, Tensor weight);          /* id -1: a row of zeros */
void embedding_backward(Tensor d_weight /* += */, Tensor d_out, Tensor ids);

/* ---- LayerNorm, eps 1e-5 (Ba et al. 2016): out = (x - mean) / sqrt(variance + eps) * weight + bias.
 * x, out (R, H), weight, bias (H), stats (R, 2): mean and 1 / sqrt(variance + eps) ---- */
void layernorm_forward(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias);
void layernorm_backward(Tensor d_x /* += */, Tensor d_weight /* += */, Tensor d_bias /* += */,
                        Tensor d_out, Tensor x, Tensor stats, Tensor weight);

/* ---- linear: out (R, M) = x (R, K) times weight (M, K) transposed, plus bias (M) or NONE ---- */
void linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
void linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight);
void linear_backward_weight(Tensor d_weight /* += */, Tensor d_bias /* +=, or NONE */, Tensor d_out, Tensor x);

/* ---- linear in fp8 (Micikevicius et al. 2022). E4M3 holds numbers up to 448, E5M2 up to 57344, so a tensor is stored
 * divided by its scale, max |x| over that number, which quantize writes to where out.scale points. fp8 tensor cores
 * (but a B200's) multiply in one form only: rows of one matrix by rows of the other. So backward, which sums over other
 * dimensions than forward, needs transposed copies: quantize makes either copy or both, with one scale for the two.
 * out (R, M) = x (R, K) times weight (M, K) transposed, plus bias (M) or NONE; x and weight fp8, not both E5M2; R, K
 * and M multiples of 16 ---- */
void quantize(Tensor out /* (R, K) or NONE */, Tensor transposed /* (K, R) or NONE */, Tensor x);
void linear_fp8(Tensor out, Tensor x, Tensor weight, Tensor bias);
void linear_fp8_add(Tensor out /* +=, as gradients of parameters are stored */, Tensor x, Tensor weight);

/* ---- rotary positions (Su et al. 2021), base 10000, the whole head, halves rotated against each other as in
 * GPT-NeoX: rope (T, D) holds D/2 cosines, then D/2 sines; qkv (R, 3*A*D) goes head by head: q, k, v. Row i has
 * position i mod T. v stays as it is. ---- */
void rope_table(Tensor rope, int64_t first);                            /* for positions first, first + 1, ... */
void rope_forward(Tensor qkv, Tensor rope);                             /* in place */
void rope_backward(Tensor d_qkv, Tensor rope);                          /* in place: turns back */

/* ---- causal attention: probs (B, A, T, T) = softmax(q k^T / sqrt(D)), out (B, T, A*D) = probs v, for each head.
 * What the mask excludes is 0 or, in whole blocks of it, not touched. d_probs: workspace like probs. ---- */
void attention_forward(Tensor out, Tensor probs, Tensor qkv);
void attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs);

/* ---- GELU, tanh form (Hendrycks & Gimpel 2016): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) ---- */
void gelu_forward(Tensor out, Tensor x);
void gelu_backward(Tensor d_x, Tensor d_out, Tensor x);

/* ---- residual: out = x + branch + bias. The gradients of x and branch are d_out itself. x, branch, out (R, H) ---- */
void residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias);
void residual_backward(Tensor d_bias /* += */, Tensor d_out);

/* ---- cross-entropy: loss (1) F64 += scale * sum over rows of lse - logits[target], lse (R) = log sum exp(logits);
 * logits (R, V), targets (R) I32, -1: there is none (in this slice of the vocabulary), and nothing is subtracted from
 * lse. d_logits may be logits. ---- */
void cross_entropy_forward(Tensor loss /* += */, Tensor lse, Tensor logits, Tensor targets, double scale);
void cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale);

/* ---- the same in parts, for logits (R, V) that are one slice of the vocabulary: each rank's row maxima, (R),
 * become the maximum over the ranks; each rank's sums, (R, 2), of exp(logit - max) and of the target's logit (0 where
 * the target is another rank's, -1), become their sum over the ranks; then lse and loss as above, on every rank.
 * Backward is cross_entropy_backward, on the slice. REAL, all but logits, loss, targets and ids. ---- */
void cross_entropy_max(Tensor max, Tensor logits);
void cross_entropy_sums(Tensor sums, Tensor logits, Tensor max, Tensor targets);
void cross_entropy_loss(Tensor loss /* += */, Tensor lse, Tensor sums, Tensor max, double scale);
void ids_in_slice(Tensor out, Tensor ids, int64_t first, int64_t count);        /* id - first, or -1 outside; I32 */

/* ---- the optimizer's (optimizer.h): one range of elements, all flat and of one length ---- */
typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2;            /* 1 - beta^t, of the moments' bias toward 0 */
    double gradient_scale;                      /* the clipping's; NaN: nothing is updated */
    Tensor scale;                               /* the same on the device, (1) F64, in its place; or NONE */
} AdamWArguments;
void adamw_update(Tensor params, Tensor copy /* of params, rounded; or NONE */, Tensor m /* REAL */,
                  Tensor v /* REAL */, Tensor gradients, AdamWArguments a);
double square_sum(const Tensor *list, int count);       /* over all of them, in double, in a fixed order; waits */
/* The same, and the scale that follows from it, (1) F64 each, on the device: the host waits for neither. The scale is
 * clip_scale's (optimizer.h) of the sum's root; NaN if that is Inf or NaN. */
void square_sum_into(Tensor sum, const Tensor *list, int count);
void clip_scale_into(Tensor scale, Tensor square_sum, double clip);

/* ---- attention by blocks of keys: what ranks compute that have only some of them ----
 * q, out (B, C, A, D), queries; k, v (B, K, A, D), keys; lse, dots (B, C, A, 1). causal: queries and keys are the
 * same tokens (K = C), and query i sees keys 0 to i; otherwise every query sees every key. scores (2, A, Q, K) is
 * workspace, for Q queries of each head at a time. All REAL. Queries that see several blocks of keys merge what each
 * of them gave (Milakov & Gimelshein 2018); backward takes lse and dots of all blocks together, and then each block by
 * itself. */
void attention_block_forward(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal);
void attention_block_backward(Tensor d_q /* += */, Tensor d_k /* += */, Tensor d_v /* += */, Tensor scores,
                              Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor lse, Tensor dots, bool causal);
/* out (R, D), lse (R, 1) become those of their keys and part's together; out 0 and lse -INFINITY: of no keys yet. */
void attention_merge(Tensor out /* in place */, Tensor lse /* in place */, Tensor part, Tensor part_lse);
void attention_dots(Tensor dots, Tensor d_out, Tensor out);     /* (R, A) REAL = sums over D of d_out * out, (R, A*D) */
int64_t attention_block_queries(void);          /* the largest Q of use: the backend's own */
int64_t attention_pairs(void);                  /* pairs of a query and a key that block_forward has computed, so far */

/* ---- REAL only ---- */
void tensor_fill(Tensor t, double value);

#ifdef __cplusplus
}
#endif

#endif
