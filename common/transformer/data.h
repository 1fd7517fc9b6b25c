/* Training data: one long sequence of tokens in a file, from which each step's batch takes sequences.
 *
 * A file that starts with llm.c's header (magic, version, count; 256 int32 in all) has uint16 tokens (20240520, 1) or
 * uint32 ones (20240801, 7). Without a header, *.bin has uint16 tokens, or uint32 if --vocab exceeds 65,536. Any other
 * file is text, one token per byte. The last tenth is validation data.
 *
 * A step's sequences depend on seed and step alone, not on the number of ranks: sequence g of step s starts at token
 * Philox(seed, s, g) mod (training tokens - seq). So step and seed are enough to resume, and every parallel
 * configuration sees the same global batch. */
#ifndef DATA_H
#define DATA_H

#include <stdint.h>

#include "../base/tensor.h"

typedef struct {
    Tensor inputs, targets;         /* (B, T) I32: tokens, and for each token the next one */
} Batch;

/* Opens options.data, or the project's own text, and reads it once to check it. Fails if it is too short for --seq, if
 * a token is not below --vocab, or if it is neither text, which has no byte 0, nor a file of tokens. Fills in
 * data_file. */
void data_open(void);
typedef struct {
    int64_t training, validation;   /* tokens */
    const char *kind;               /* "text, one token per byte", "uint16 tokens" or "uint32 tokens" */
    uint64_t hash;                  /* of all tokens: ranks compare it, and so does a run that resumes */
} DataFile;
extern DataFile data_file;

/* Allocates a batch of options.micro_batch sequences of options.config.seq tokens. */
Batch batch_create(void);

/* Fills a batch of (B, T) with B sequences of the step's global batch, from number `sequence`, and of each its T tokens
 * from number `token`. */
void batch_load(Batch batch, int64_t step, int64_t sequence, int64_t token);

/* Fills a batch with validation sequences: batch i of `pieces`, spread evenly over the validation tokens, B sequences
 * each; of each sequence its T tokens from number `token`. */
void batch_validation(Batch batch, int64_t i, int64_t pieces, int64_t token);

/* Copies sequence g of a step to the host: seq + 1 tokens, of which the first seq are the inputs and the last seq the
 * targets. */
void data_sequence(int64_t step, int64_t g, int64_t *tokens);

#endif
