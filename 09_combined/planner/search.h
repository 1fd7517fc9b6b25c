/* All grids of a cluster, and what each would cost. */
#ifndef SEARCH_H
#define SEARCH_H

#include "costs.h"

typedef struct {
    Grid grid;
    Memory memory;
    Time time;
    double tokens, mfu;             /* tokens/s of a GPU; share of the peak, recomputation not counted */
} Choice;

typedef struct {
    Choice *all;                    /* those that fit, the fastest first; then the others, the smallest first */
    int count, fitting;
} Choices;

typedef struct {                    /* what is asked */
    Model model;
    Cluster cluster;
    Hardware hardware;
    Constants constants;
    int sequences;                  /* of a step */
} Question;

/* What a grid must keep to; NULL: nothing is wrong. Otherwise values, and what would be right, in one line. */
const char *grid_wrong(const Question *q, const Grid *g);

Choice choose(const Question *q, const Grid *g);
bool fits(const Question *q, const Memory *m);

/* Fails, with what would be possible, if there is no grid, or none that fits. */
Choices search(const Question *q);

/* The fastest that fits and differs from the best in what `same` finds unlike; NULL: there is none. */
const Choice *fastest_unlike(const Choices *c, bool (*unlike)(const Grid *best, const Grid *g));

const char *grid_text(const Grid *g);           /* "tp=2,pp=4,dp=8,..."; good until the eighth call after */
Grid grid_parse(const Question *q, const char *text);   /* the same; what isn't named is 1, dp and accumulate follow */

#endif
