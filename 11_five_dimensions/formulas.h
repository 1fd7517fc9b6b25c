/* Parameters and memory of one rank, from sizes alone. predict() checks the program against these formulas, to the
 * byte; tools/planner plans with them.
 */
#ifndef MIXTURE_FORMULAS_H
#define MIXTURE_FORMULAS_H

#include "../09_combined/formulas.h"

/* The local sizes of one rank, in the letters of combined.h; in RankShape F is an expert's width. */
typedef struct {
    RankShape rank;             /* the grid of attention; replica, replicas: of the parameters that are no experts */
    int64_t e, E, K;            /* experts; on this rank; that a token takes */
    int64_t G, Q, P;            /* tokens per span; slots per expert and span; per local expert */
    int64_t all_layers;         /* of the model: each rank counts the loads of all */
    int expert_replica, expert_replicas;            /* rank in edp, and its size */
} MixtureShape;

/* Parameters that are updated together: elements of one unit on this rank, and how many such units it has. */
typedef struct {
    int64_t count, units;
    bool experts;               /* reduced and sharded over edp, not over the replicas */
} MixtureUnits;
enum { MIXTURE_UNITS = 4 };

/* The embedding; of a block all but experts: (4 H^2 + 3 H) / tp, which tp splits, and (5 + e) H, which it replicates;
 * the final LayerNorm; a block's local experts. */
void mixture_units(const MixtureShape *m, MixtureUnits units[MIXTURE_UNITS]);
double mixture_elements(const MixtureShape *m);             /* of all parameters on this rank */
double mixture_updated(const MixtureShape *m);              /* of those that this rank updates */

/* Fills in the peak bytes of each memory category, without the d_q_parts of a GPU's kernels. */
void mixture_memory(const MixtureShape *m, double bytes[MEM_CATEGORIES]);

#endif
