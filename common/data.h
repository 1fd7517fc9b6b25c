/* Training data: one long sequence of tokens in a file, of which a step's batch takes pieces.
 *
 * A file is text, one token a byte, unless it begins with llm.c's token header (magic 20240520, version 1, count;
 * 256 int32 in all) or is named *.bin: then it is uint16 tokens. The last tenth is held out for evaluation.
 *
 * Which pieces a step takes depends on seed and step alone, not on how many ranks share it: sequence g of step s
 * starts at token Philox(seed, s, g) mod (training tokens - seq). So a run is continued from its step and seed, and
 * every layout sees the same global batch.
 */
#ifndef DATA_H
#define DATA_H

#include <stdint.h>

#include "tensor.h"

typedef struct {
    Tensor inputs, targets;         /* (B, T) I32: tokens, and for each the one that follows it */
} Batch;

/* Opens options.data and checks all of it: long enough for --seq, every token below --vocab. */
void data_open(void);
int64_t data_tokens(void);          /* of training */
int64_t data_held_out(void);        /* of evaluation */
const char *data_kind(void);        /* "text, a token a byte", for messages */
uint64_t data_hash(void);           /* of all tokens: ranks compare it */

Batch batch_create(void);           /* for options.micro_batch sequences of options.config.seq tokens */

/* Fills a batch of (B, T): B sequences of the step's global batch from number `sequence` on, and of each the T tokens
 * from number `token` on. */
void batch_load(Batch batch, int64_t step, int64_t sequence, int64_t token);

/* The same from the held-out tokens: piece i of `pieces` evenly spread over them, B sequences each. */
void batch_held_out(Batch batch, int64_t i, int64_t pieces, int64_t token);

/* Tokens from the host, as inputs only: targets become -1. */
void batch_tokens(Batch batch, const int32_t *tokens);

/* Sequence g of a step as the host has it: seq + 1 tokens, of which the first seq are inputs and the last seq
 * targets. */
void data_sequence(int64_t step, int64_t g, int64_t *tokens);

#endif
