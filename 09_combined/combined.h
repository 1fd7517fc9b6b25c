/* What the files of 09 share: groups, sizes and activations. train.c has the grid, the blocks and the step. It calls
 * ring.c, attention over the ranks of cp as in 07, and pipeline.c, the order of micro-batches over the ranks of pp as
 * in 06. activations.c has what a block saves.
 */
#ifndef COMBINED_H
#define COMBINED_H

#include "../common/ultrascale.h"

extern int cp_size, pp_size;
extern Comm *cp, *pp;               /* the ranks whose coordinates differ from this rank's in this dimension only */
extern DType dtype;                 /* of activations, their gradients, and weights; gradients of weights are REAL */

/* Local sizes, on this rank. Shapes in comments use these letters. */
extern int64_t B, T, R;             /* sequences per micro-batch, local tokens of each, local rows of the residual
                                     * stream: B*T / tp_size */
extern int64_t L, H, A, D, F, V;    /* layers of the full model, hidden size; local heads, head size, local MLP width,
                                     * local vocabulary */
extern int64_t C;                   /* tokens per sequence chunk; rows go chunk by chunk: (local_chunks, B, C) */
extern int local_chunks;            /* sequence chunks on this rank, of each sequence */
extern int in_flight;               /* micro-batches whose activations are stored at once */

/* BlockActs, for ring.c and pipeline.c too. A program that compiles these two files with blocks of its own defines
 * BLOCK_ACTS first. */
#ifndef BLOCK_ACTS
#define BLOCK_ACTS "block_acts.h"
#endif
#include BLOCK_ACTS

typedef struct {                    /* of one micro-batch in flight */
    Tensor *x;                      /* [L + 1] of (R, H): residual stream into each block, and out of the last */
    BlockActs *blocks;              /* [L] */
    int begin, end;                 /* this pipeline stage's layers; x[begin] is a view of recv_x */
    Tensor d_x;                     /* (R, H)  gradient of the residual stream */
    Batch batch;                    /* (local_chunks * B, C) */
    Request *receiving[2], *sending[2];     /* x, d_x */
} Acts;

/* ---- activations.c ---- */

BlockActs block_acts_create(Category category, BlockActs first, bool shared);

/* ---- ring.c ---- */

int chunk_number(int rank, int i);
Batch chunk_of(Batch batch, int i);
void context_attention_forward(BlockActs *a);
void context_attention_backward(BlockActs *a, BlockActs *d);
void ring_create(void);                                         /* allocates its buffers */

/* ---- pipeline.c ---- */

typedef enum { FORWARD, BACKWARD } ActionKind;
typedef struct {
    ActionKind kind;
    int micro;
} Action;

extern Acts *acts;                  /* [micro-batch % in_flight] */
Action action_of(int i);
Acts *acts_of(Action action);
Tensor recv_x_of(Action action);
void start_receive(Action action);
void start_send(Action action);
void pipeline_create(Range layers);                             /* allocates acts and its buffers */

#endif
