/* Looking at what was learned: the loss on held-out tokens, and text written by the model. Both go through the
 * stage's own forward pass.
 */
#ifndef TEXT_H
#define TEXT_H

#include "data.h"

/* The stage's forward pass over a batch: leaves logits, and adds the batch's mean loss to its loss tensor. */
typedef void (*LogitsFunction)(Batch batch);

int64_t text_pieces(void);         /* batches that an evaluation takes, of data.h's held-out pieces */

/* Mean loss in nats a token over pieces spread evenly over the held-out tokens; prints and returns it. */
double text_evaluate(LogitsFunction logits_of, Tensor loss, Batch batch);

/* Writes --sample tokens that continue --prompt: each drawn from softmax(logits / --temperature). logits (B, T, V). */
void text_sample(LogitsFunction logits_of, Tensor logits, Batch batch);

#endif
