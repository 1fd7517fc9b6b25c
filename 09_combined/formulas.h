/* Memory of one rank of a grid, in bytes, from sizes alone. train.c's predict() holds the program to it, byte by byte,
 * and plan.c plans with it.
 */
#ifndef FORMULAS_H
#define FORMULAS_H

#include <stdbool.h>
#include <stdint.h>

#include "../common/memory.h"

/* What one rank has: sizes with train.c's letters. */
typedef struct {
    int64_t B, T, R;            /* sequences of a micro-batch; local tokens of each, rows of the residual stream */
    int64_t H, A, D, F, V;      /* hidden; local heads of size D, MLP width, rows of the embedding */
    int64_t S;                  /* rows of logits at once */
    int64_t layers;             /* of this pipeline stage */
    bool first, last;           /* this pipeline stage has the embedding at the start; the head */
    int64_t in_flight;          /* micro-batches whose activations are stored at once */
    int tp, cp;
    int replica, replicas;      /* the number in the group of ranks with the same parameters, and its size */
    bool zero;                  /* ZeRO-1: optimizer states of a shard of each unit; else of all elements */
    bool recompute;             /* full recomputation: blocks store their inputs alone */
    int stored, real;           /* bytes of an element: of activations and weights, and of their gradients' sums */
    bool master;                /* weights are stored a second time, as `real`, and AdamW updates those */
} Place;

/* Elements of one block on this rank: (12 H^2 + 7 H) / tp, and what tensor parallelism replicates, LayerNorms and the
 * biases that are added once: 6 H. */
int64_t block_elements(const Place *p);
double local_elements(const Place *p);          /* of all parameters on this rank */
double updated_elements(const Place *p);        /* of those that this rank updates */

/* Peak bytes by category. */
void memory_of_place(const Place *p, double bytes[MEM_CATEGORIES]);

#endif
