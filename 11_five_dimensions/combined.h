/* What the files of 11 share: groups, sizes and activations. train.c has the grid, the blocks and the step; mixture.c
 * the experts, as in 10; predict.c memory and traffic. ring.c and pipeline.c are those of 09, so this has the guard of
 * 09's combined.h, and declares what they use.
 */
#ifndef COMBINED_H
#define COMBINED_H

#include "../10_expert_parallel/experts.h"
#include "../common/ultrascale.h"

extern int tp_size, cp_size, pp_size;
extern Comm *tp, *cp, *pp;          /* the ranks whose coordinates differ from this rank's in this dimension only */
extern Comm *ep, *edp, *replicas, *embedding_group;             /* train.c */
extern DType dtype;                 /* of activations, their gradients, and weights; gradients of weights are REAL */
extern bool has_master;
extern int zero;
extern double capacity, balance;    /* slots per even share; weight of the balance loss */

/* Local sizes, on this rank. Shapes in comments use these letters; e counts all experts. */
extern int64_t B, T, R;             /* sequences per micro-batch, local tokens of each, local rows of the residual
                                     * stream: B*T / tp_size */
extern int64_t L, H, A, D, F, V;    /* layers of the full model, hidden size; local heads, head size, an expert's width,
                                     * local vocabulary */
extern int64_t C;                   /* tokens per sequence chunk; rows go chunk by chunk: (local_chunks, B, C) */
extern int64_t S;                   /* rows per slice of the loss: those whose logits exist at once */
extern int64_t E, K;                /* experts on this rank, each of width F; experts that a token takes */
extern int64_t G, Q, P;             /* tokens per span; slots per expert and span; per local expert: ep_size*(R/G)*Q of
                                     * all ranks of ep */
extern int local_chunks;            /* sequence chunks on this rank, of each sequence */
extern int in_flight;               /* micro-batches whose activations are stored at once */
extern int begin, end;              /* the local layers: begin to end - 1 of this pipeline stage */

/* What one block's forward saves for its backward. The block's input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   stats: mean and rstd */
    Tensor qkv;                     /* (B, T, 3*A*D)    per head: q, k, v; q and k after RoPE */
    Tensor lse;                     /* (B*T*A)          log-sum-exp of each softmax; in d: delta, rowsum(dO*O) */
    Tensor attn_out;                /* (B, T, A*D)      output of attention, input of the projection */
    Tensor mid;                     /* (R, H)           residual stream between attention and mixture */
    Tensor ln2, ln2_stats;          /* (R, H), (R, 2) */
    Routing routing;                /* of the local rows, to all experts */
    Tensor in;                      /* (E, P, H)        slots of the local experts: rows of all ranks of ep */
    Tensor up, gelu;                /* (E, P, F) */
    Tensor returned;                /* (E, P, H)        as (e, R/G*Q, H): outputs of all experts for the local rows */
    Tensor branch;                  /* (R, H)           what attention adds to the residual stream; not saved */
} BlockActs;

typedef struct {                    /* of one micro-batch in flight */
    Tensor *x;                      /* [L + 1] of (R, H): residual stream into each block, and out of the last */
    BlockActs *blocks;              /* [L] */
    int begin, end;                 /* this pipeline stage's layers; x[begin] is a view of recv_x */
    Tensor d_x;                     /* (R, H)  gradient of the residual stream */
    Batch batch;                    /* (local_chunks * B, C) */
    Request *receiving[2], *sending[2];     /* x, d_x */
} Acts;

/* ---- train.c, predict.c ---- */

Range own_shard(Comm *over, int64_t unit_count);
void predict(void);

/* ---- mixture.c ---- */

void experts_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x);
void experts_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x);
void balance_begin(void);                                       /* of a step */
void balance_add(int l, Routing *r, double scale);
void count_loads(void);
BlockActs block_acts_create(Category category, BlockActs first, bool shared);
void mixture_create(void);                                      /* allocates its buffers */

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
