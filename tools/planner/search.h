/* Every grid of ranks of a cluster, with its cost. */
#ifndef SEARCH_H
#define SEARCH_H

#include "costs.h"

typedef struct {
    Grid grid;
    Memory memory;
    Time time;                      /* of a grid that does not fit: 0, as are tokens and mfu */
    double tokens, mfu;             /* tokens/s per GPU; fraction of the peak, without recomputed FLOPs */
} Candidate;

typedef struct {
    Candidate *all;                 /* the best; the others that fit, fastest first; then the rest, smallest first */
    int count, fitting;
    Candidate fastest;              /* of those that fit: the best, or at most 3% faster */
} Candidates;

/* The sizes of a grid, by name; those up to PP and then EP, ZERO, RECOMPUTE are techniques. */
typedef enum { TP, CP, PP, EP, ETP, DP, MICRO_BATCH, ACCUMULATE, CHUNKS, REPLICATE, ZERO, RECOMPUTE,
               DIMENSIONS } Dimension;
extern const char *const dimension_name[DIMENSIONS];
int grid_size(const Grid *g, Dimension d);
const char *size_text(Dimension d, int size);       /* "2"; of RECOMPUTE "none", "selective" or "full" */
int recompute_named(const char *text);              /* -1: none */

typedef struct {
    bool given;                     /* else all sizes are allowed */
    int least, most;
} Range;

typedef struct {                    /* the input of a plan */
    Model model;
    Cluster cluster;
    Hardware hardware;
    Constants constants;
    int sequences;                  /* per step, on all ranks together */
    double tokens, price;           /* of the whole training; of a GPU-hour. 0: not given */
    Range limits[DIMENSIONS];
} Query;

/* NULL if a grid is possible; else why not, in one line: the values, and what is expected (a format_text). */
const char *grid_error(const Query *q, const Grid *g);

Candidate candidate_of(const Query *q, const Grid *g);      /* with its time, whether it fits or not */

/* All candidates; possibly none, and none that fit. The caller frees c.all. */
Candidates candidates(const Query *q);

/* The same with the best first; fails if no grid is possible, or none fits, and names what would be. The best is one of
 * those within 3% of the fastest, which is less than the formulas' error: with 5% of the memory to spare, if there is
 * one; then with the fewest techniques; then the fastest. */
Candidates search(const Query *q);
int technique_count(const Grid *g);                      /* but for ZeRO-1, which costs nothing */

/* The fastest candidate that fits and differs from the best in `d`, in no other technique; NULL: none. */
const Candidate *fastest_other(const Candidates *c, Dimension d);

/* "tp=2,pp=4,dp=8,..." (a format_text): the sizes that differ from those of `but`; NULL: all that say something. */
const char *grid_text(const Grid *g, const Grid *but);

/* Reads such a text. Sizes not named are 1; dp and accumulate follow from GPUs and batch. NULL, or what is wrong. */
const char *grid_read(const Query *q, const char *text, Grid *g);

#endif
