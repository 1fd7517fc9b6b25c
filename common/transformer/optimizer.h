/* AdamW (Loshchilov & Hutter 2019), its learning-rate schedule, and clipping by the global norm. It works on shards:
 * ranges of the layout that this rank updates, in any buffers of a program.
 */
#ifndef OPTIMIZER_H
#define OPTIMIZER_H

#include "model.h"
#include "../base/tensor.h"

typedef struct {
    int64_t first;                          /* the shard is the layout's elements [first, first + count) */
    Tensor params, gradients, m, v;         /* (count), flat; m and v: first and second moments, REAL */
    Tensor copy;                            /* (count) of a smaller dtype: receives the new params too; or NONE */
} ParamShard;

/* Everything that this rank updates. Updates, norms, initial weights, dumps and checkpoints go through this list. */
typedef struct {
    const Layout *layout;
    ParamShard *shards;
    int count;
    int64_t step;           /* update count: updates made so far */
    Tensor full_params;     /* all ranks' shards together, if this rank keeps them: adamw_check_replicas compares them;
                             * or NONE */
} AdamW;

/* Makes one update. m and v are moving averages of the gradient, times gradient_scale, and of its square; each is
 * divided by its bias correction. Matrices and the embedding also decay, by --weight-decay. Betas and eps are in
 * optimizer.c. */
void adamw_step(AdamW *optimizer, double lr, double gradient_scale);

/* As adamw_step, with a scale on the device, (1) F64. If it is NaN no element changes, but the update count grows. */
void adamw_step_scaled(AdamW *optimizer, double lr, Tensor gradient_scale);

/* Computes the sum of squares, in double, of the gradients that this rank owns. The global norm is the root of its sum
 * over the ranks. The first function waits for the device; the second leaves the sum there, (1) F64. */
double gradient_square_sum(const AdamW *optimizer);
void gradient_square_sum_into(Tensor sum, const AdamW *optimizer);

/* --check: compares over the ranks, bit for bit, the elements that several ranks update or have gathered. Fails with
 * the first parameter that differs, and `when`. */
void adamw_check_replicas(const AdamW *optimizer, const char *when);

/* The factor for gradients of this norm: min(1, clip / (norm + 1e-6)); 1 if --clip is 0. */
double clip_scale(double norm);

/* The learning rate of the step after `step` steps: linear from lr/warmup to lr, then half a cosine down to min_lr at
 * --lr-decay-steps; with 0 decay steps it stays at lr. */
double learning_rate(int64_t step);

#endif
