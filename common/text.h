/* Looking at what was learned: the loss on held-out tokens, and text written by the model. Both go through the
 * stage's own forward pass.
 */
#ifndef TEXT_H
#define TEXT_H

#include "data.h"

/* The stage's forward pass over a batch. The one adds the batch's mean loss to the stage's loss tensor, the other
 * returns the logits (1, V) of one of the batch's B*T tokens. */
typedef void (*LossFunction)(Batch batch);
typedef Tensor (*LogitsFunction)(Batch batch, int64_t row);

int64_t text_pieces(void);         /* batches that an evaluation takes, of data.h's held-out pieces */

/* Mean loss in nats a token over pieces spread evenly over the held-out tokens; prints it. */
void text_evaluate(LossFunction loss_of, Tensor loss, Batch batch);

/* Writes --sample tokens that continue --prompt: each drawn from softmax(logits / --temperature). */
void text_sample_from(LogitsFunction logits_of, Batch batch);

/* The same where loss_of leaves the logits of all the batch's tokens. */
void text_sample(LossFunction loss_of, Tensor logits, Batch batch);

#endif
