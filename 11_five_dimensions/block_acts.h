#ifndef MIXTURE_BLOCK_ACTS_H
#define MIXTURE_BLOCK_ACTS_H

#include "../10_expert_parallel/experts.h"
#include "../common/ultrascale.h"

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

#endif
