/* What collectives.c and measure.c share. */
#ifndef COLLECTIVES_H
#define COLLECTIVES_H

#include "../common/ultrascale.h"

typedef enum { ALL, SHARD, AT_ROOT, IN_INBOX } Where;   /* the result: on all ranks; a shard; on the root; in inbox */
typedef enum { RING, TREE, DOUBLING, TWO_LEVEL, PAIRWISE, DIRECT } Algorithm;
typedef struct {
    const char *name;
    Algorithm algorithm;
    void (*ours)(Comm *, Tensor), (*library)(Comm *, Tensor);   /* the library's may leave more than ours; NULL: none */
    bool reduces, own;                                  /* own: a rank brings only its shard */
    Where result;
} Collective;

extern const Collective collectives[];
extern const int collective_count;
extern const char *const algorithm_name[];
extern int root;                                        /* of broadcast, reduce, gather and scatter */
extern int nodes;                                       /* of two-level: the ranks of a node, and how many nodes */
extern Comm *node, *across;

int power_below(int n);                                 /* the largest power of two that is at most n */

/* ---- measure.c ---- */

int64_t bytes_predicted(const Collective *a, Comm *c, int64_t K);       /* that this rank sends for K REALs */

/* Prints the table of one collective, by one of its algorithms or (-1) all, for sizes that double from min to max;
 * below it the fit, and where ring and tree cross. plot: a figure to draw, or NULL. t has at least max bytes. */
void measure_table(const char *name, int algorithm, Tensor t, int64_t min, int64_t max, const char *plot);

/* Writes --machine's file. links: groups of the first 2, 4, 8, ... ranks; NULL where this rank is in none. between: a
 * group with a rank per node; NULL: there is one node. */
void measure_machine(const char *path, Comm **links, Comm *between, Tensor t, int64_t max);

#endif
