/* AdamW (Loshchilov & Hutter 2019), the schedule of its rate, and clipping by the global norm. It works on parts:
 * ranges of the layout that this rank updates, wherever a stage keeps them.
 */
#ifndef OPTIMIZER_H
#define OPTIMIZER_H

#include "model.h"
#include "tensor.h"

typedef struct {            /* elements of the layout from `first` on */
    int64_t first;
    Tensor params, gradients, m, v;         /* (count), flat; ranges of whatever buffers a stage has; m and v REAL */
    Tensor copy;                            /* (count) of a smaller type, which gets the new params too; or NONE */
} Part;

/* What updating, norms, initial weights, dumps and checkpoints go through. */
typedef struct {
    const Layout *layout;
    Part *parts;
    int count;
    int64_t step;           /* Adam's t: updates so far */
    Tensor gathered;        /* if each rank keeps all ranks' parts together: those, for adamw_check_replicas; or NONE */
} AdamW;

/* One update: m and v are moving averages of the gradient (times gradient_scale) and of its square, each divided by
 * its bias correction; matrices and the embedding also decay, by --weight-decay. Beta and eps: optimizer.c. */
void adamw_step(AdamW *optimizer, double lr, double gradient_scale);

/* The same with a scale that is on the device, (1) F64. If it is NaN, no element is updated, but t has gone on. */
void adamw_step_scaled(AdamW *optimizer, double lr, Tensor gradient_scale);

/* Sum of squares of the gradients of what this rank owns, in double. Summed over the ranks, its root is the norm. The
 * first one waits for it, the other leaves it on the device, (1) F64. */
double gradient_square_sum(const AdamW *optimizer);
void gradient_square_sum_into(Tensor sum, const AdamW *optimizer);

/* --check: ranks that update or have gathered the same elements hold the same numbers, bit for bit; fails with the
 * first parameter that has drifted. */
void adamw_check_replicas(const AdamW *optimizer);

/* What gradients of this norm are multiplied with: min(1, clip / (norm + 1e-6)), 1 if --clip is 0. */
double clip_scale(double norm);

/* Rate of the step after `step` others: linear from lr/warmup to lr, then half a cosine down to min_lr at
 * --lr-decay-steps; 0: it stays at lr. */
double learning_rate(int64_t step);

#endif
