/* Memory of one rank, in bytes, from sizes alone. train.c's predict() checks the program against these formulas, to the
 * byte; planner/costs.c plans with them.
 */
#ifndef FORMULAS_H
#define FORMULAS_H

#include <stdbool.h>
#include <stdint.h>

#include "../common/base/memory.h"

/* The local sizes of one rank, in train.c's letters. */
typedef struct {
    int64_t B, T, R;            /* sequences per micro-batch; local tokens of each; local rows of the residual stream */
    int64_t H, A, D, F, V;      /* hidden; local: heads of size D, MLP width, rows of the embedding */
    int64_t S;                  /* rows whose logits exist at once */
    int64_t layers;             /* of this pipeline stage */
    bool first, last;           /* this pipeline stage has the embedding at the start; the head */
    int64_t in_flight;          /* micro-batches whose activations are stored at once */
    int tp, cp;
    int replica, replicas;      /* rank in the group with the same parameters (dp x cp), and its size */
    bool zero;                  /* ZeRO-1: this rank updates its shard of each unit; else all elements */
    bool recompute;             /* full recomputation: blocks store their inputs only */
    int stored, real;           /* bytes per element: of activations and weights; of gradients and optimizer states */
    bool master;                /* AdamW updates master weights, `real` bytes each */
} RankShape;

/* Elements of one block on this rank: (12 H^2 + 7 H) / tp, which tensor parallelism splits, and 6 H, which it
 * replicates: LayerNorms, and the biases that are added once. */
int64_t block_elements(const RankShape *r);
double local_elements(const RankShape *r);      /* of all parameters on this rank */
double updated_elements(const RankShape *r);    /* of those that this rank updates */

/* Fills in the peak bytes of each memory category. */
void rank_memory(const RankShape *r, double bytes[MEM_CATEGORIES]);

#endif
