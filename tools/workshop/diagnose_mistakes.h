/* 01 with a well-known mistake made on purpose: computes on one rank, in float64, what a wrong parallel program would
 * compute on many. Compiled with LLAMA or EXPERTS, it is 12 or 10 instead of 01. */
#ifndef DIAGNOSE_MISTAKES_H
#define DIAGNOSE_MISTAKES_H

#include "../../common/ultrascale.h"

/* What is wrong. Some kinds say more in `what`: which tensors. */
typedef enum {
    NO_MISTAKE,
    /* in forward, up to FROM_ZERO: */
    EMPTY,                      /* all parameters are 0 */
    OWN_SEQUENCES,              /* each rank loads its tokens from different sequences */
    BIASES, BIASES_AGAIN,       /* added once per rank; and once more after the all-reduce */
    FROM_ZERO,                  /* each rank counts its tokens' positions from 0 */
    /* in backward: */
    OWN_TOKENS,                 /* all gradients: only the first rank's tokens */
    OWN_ROWS,                   /* gradients of norms and biases: only the first rank's rows of a micro-batch */
    COPIES,                     /* 12: gradients of k and v: only the heads of q beside each KV head's first copy */
    PARTIAL_SUMS,               /* only those of the first rank; gradients after them differ from those of real ranks */
    ONE_USE,                    /* of the embedding: the other adds no gradient */
    OF_ANOTHER_BLOCK,           /* these activations are read in all blocks */
    D_X_KEPT,                   /* d_x is not set to zero before the last norm's backward */
    D_X_TOO_EARLY               /* proj_bias gets d_x as it is before LayerNorm's backward adds to it */
} Kind;

/* Bits of `what`, by kind. */
enum { PROJ_BIAS = 1, DOWN_BIAS = 2 };
enum { D_LN1 = 1, D_LN2 = 2, D_FINAL = 4 };
enum { LOOKUP = 1, HEAD = 2 };
enum { PROBS_OF_FIRST = 1, PROBS_OF_LAST = 2, ALL_OF_LAST = 4 };

#ifdef LLAMA
#define REFERENCE "12 on one rank"
#elif defined EXPERTS
#define REFERENCE "10 on one rank"
#else
#define REFERENCE "01"
#endif

typedef struct {
    const char *text;           /* completes "matches a run in which" */
    Kind kind;
    int what;
    bool by_token, zigzag;      /* the tokens of a sequence are split over the ranks: tried in order and zig-zag */
} Mistake;

extern const Mistake mistakes[];                /* in the order in which they are tried */
extern const int mistake_count;

extern int ranks, data_ranks;                   /* data_ranks: ranks over which the sequences are split */
extern int cp_ranks;                            /* ranks over which each sequence is split, in addition to `ranks` */
extern int64_t only_sequence;                   /* the only one that adds a gradient; -1: all do */

/* Does what 01's main does before its first step. more: options beside its own. Returns its layout. */
const Layout *mistakes_begin(const char *name, const char *summary, int argc, char **argv, const ProgramOption *more);

/* Computes one step with the mistake. Writes the gradients to `to`, unless it is NULL, and returns the loss. */
double compute(const Mistake *m, double *to);

/* Whether the mistake makes a difference for this shape and number of ranks. One that can be made on one rank is the
 * same on any number: it is tried with `all`. */
bool possible(const Mistake *m, int all);

#endif
