/* Comparing a layout (a stage, its options, so many ranks) with 01 on the same global batch. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include <stdbool.h>

enum { LAYOUT_STEPS = 20 };

typedef struct {
    const char *stage, *options;
    int ranks, layers, micro_batch, accumulate;
    const char *recompute;
    bool whole_batch;           /* 05, 06, 07: ranks share every sequence or micro-batch, instead of dividing them */
    int seq, hidden, heads, vocab;      /* 0: 16, 48, 6 and 97: 6 heads of 8, a prime vocabulary */
    int dp;                     /* 09: so many divide the batch; 0: all or, with whole_batch, none do */
} LayoutCase;

/* Runs both in float64, at lr 1e-3, the layout with --check, and fails the test unless gradients of step 1 agree per
 * tensor (q, k and v apart) within 1e-10 and losses and norms of 20 steps (10 of a covering subset) within 1e-10, and on
 * every rank memory and traffic are what predict() said. References are kept for the next call with the same global
 * batch. */
void layout_compare(const LayoutCase *l);

/* The same global batch in 01: where its gradients and metrics are, each of 256 characters. */
void layout_reference(const LayoutCase *l, char *gradients, char *metrics);

int layout_print_worst(void **state);   /* of all so far: for the end of a group of tests */

#endif
