/* What the files of 11 share. train.c has the grid, the blocks and the step; mixture.c the experts, as in 10; predict.c
 * memory and traffic. ring.c and pipeline.c are those of 09, and so is most of what they share, but not BlockActs.
 */
#ifndef FIVE_DIMENSIONS_H
#define FIVE_DIMENSIONS_H

#define BLOCK_ACTS "../11_five_dimensions/block_acts.h"
#include "../09_combined/combined.h"

extern int tp_size;
extern Comm *tp, *ep, *edp, *replicas, *embedding_group;       /* train.c */
extern bool has_master;
extern int zero;
extern double capacity, balance;    /* slots per even share; weight of the balance loss */

/* Local sizes, beside those of 09. e counts all experts; F is an expert's width. */
extern int64_t S;                   /* rows per slice of the loss: those whose logits exist at once */
extern int64_t E, K;                /* experts on this rank, each of width F; experts that a token takes */
extern int64_t G, Q, P;             /* tokens per span; slots per expert and span; per local expert: ep_size*(R/G)*Q of
                                     * all ranks of ep */

/* ---- train.c, predict.c ---- */

Range own_shard(Comm *over, int64_t unit_count);
void predict(Range local_layers);                               /* this pipeline stage's */

/* ---- mixture.c, which also has block_acts_create ---- */

void experts_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x);
void experts_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x);
void balance_begin(void);                                       /* of a step */
void balance_add(int l, Routing *r, double scale);
void count_loads(void);
void mixture_create(void);                                      /* allocates its buffers */

#endif
