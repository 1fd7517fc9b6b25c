#ifndef BLOCK_ACTS_H
#define BLOCK_ACTS_H

#include "../common/ultrascale.h"

/* What one block's forward saves for its backward. The block's input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   stats: mean and rstd */
    Tensor qkv;                     /* (B, T, 3*A*D)    per head: q, k, v; q and k after RoPE */
    Tensor lse;                     /* (B*T*A)          log-sum-exp of each softmax; in d: delta, rowsum(dO*O) */
    Tensor attn_out;                /* (B, T, A*D)      output of attention, input of the projection */
    Tensor mid;                     /* (R, H)           residual stream between attention and MLP */
    Tensor ln2, ln2_stats;          /* (R, H), (R, 2) */
    Tensor up, gelu;                /* (B, T, F) */
    Tensor branch;                  /* (R, H)           what attention, then the MLP, adds to the stream; not saved */
} BlockActs;

#endif
