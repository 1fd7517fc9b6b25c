/* Compares a parallel configuration (a program, its options, a number of ranks) with 01 on the same global batch. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include <stdbool.h>

enum { LAYOUT_STEPS = 20 };

typedef struct {
    const char *program, *options;
    int ranks, layers, micro_batch, accumulate;
    const char *recompute;
    bool full_batch;            /* 05, 06, 07: all ranks work on the same sequences; the batch is not split */
    int seq, hidden, heads, vocab;      /* 0 stands for 16, 48, 6 and 97: heads of size 8, a prime vocabulary */
    int dp;                     /* 09: data-parallel ranks; 0: all ranks, or 1 with full_batch */
} LayoutCase;

/* Runs both in float64 at lr 1e-3, the configuration with --check. Fails the test unless
 * - gradients of step 1 agree within 1e-10 per tensor (q, k and v separately);
 * - losses and norms of 20 steps (10 without full_tests) agree within 1e-10;
 * - memory and traffic of every rank equal the prediction.
 * 01's results are stored for the next call with the same global batch. */
void layout_compare(const LayoutCase *l);

/* Runs 01 on the same global batch, unless its results are stored. Sets the paths of its gradients and metrics, each of
 * up to 256 characters. */
void layout_reference(const LayoutCase *l, char *gradients, char *metrics);

int layout_print_worst(void **state);   /* worst differences so far; a teardown of a group of tests */

#endif
