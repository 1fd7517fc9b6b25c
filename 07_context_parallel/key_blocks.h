/* Operators of attention by blocks of keys, for ranks that have only some of the keys: C queries and `keys` keys. q,
 * out (B, C, A, D); k, v (B, keys, A, D); lse, delta (B, C, A, 1). causal: queries and keys are the same tokens (keys
 * = C), and query i attends to keys 0 to i; otherwise every query attends to every key. scores (2, A, Q, keys) is
 * workspace for Q queries of each head at a time. All REAL. attention_merge combines the outputs that the blocks give
 * for the same queries (Milakov & Gimelshein 2018). Backward takes lse and delta over all blocks, and then runs per
 * block. */
#ifndef KEY_BLOCKS_H
#define KEY_BLOCKS_H

#include "../common/transformer/kernels.h"

void attention_block_forward(Tensor out, Tensor lse, Tensor scores, Tensor q, Tensor k, Tensor v, bool causal);
void attention_block_backward(Tensor d_q /* += */, Tensor d_k /* += */, Tensor d_v /* += */, Tensor scores,
                              Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal);
/* Merges another block's output (R, D) and lse (R, 1) into out and lse. Start with out 0 and lse -INFINITY. */
void attention_merge(Tensor out, Tensor lse, Tensor block_out, Tensor block_lse);
/* delta (R, A) REAL = sum over D of d_out * out, both (R, A*D), of any type. */
void attention_delta(Tensor delta, Tensor d_out, Tensor out);
void transpose_rows(Tensor out, Tensor in);     /* in (X, Y, W), out (Y, X, W): transposes rows of width W */
void tensor_fill(Tensor t, double value);       /* REAL only */
int64_t attention_block_queries(void);          /* Q: the most queries that the backend takes at a time */
int64_t attention_pairs(void);                  /* query-key pairs that attention_block_forward has computed so far */

/* ---- what a backend provides, in key_blocks_cpu.c or key_blocks_cuda.cu; only key_blocks.c calls the kernels ---- */
__typeof__(attention_block_forward) attention_block_forward_kernel;
__typeof__(attention_block_backward) attention_block_backward_kernel;
__typeof__(attention_merge) attention_merge_kernel; __typeof__(attention_delta) attention_delta_kernel;
__typeof__(transpose_rows) transpose_rows_kernel; __typeof__(tensor_fill) tensor_fill_kernel;
#endif
