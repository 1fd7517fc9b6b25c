/* Compares programs, in parallel configurations and on one rank, with 01 on the same global batch. A model
 * with experts is compared with 10 on one rank. */
#ifndef EQUIVALENCE_H
#define EQUIVALENCE_H

#include <stdbool.h>

typedef struct {
    const char *program, *options;
    int ranks, layers, micro_batch, accumulate;
    const char *recompute;
    int dp;                             /* replicas that split the global batch; 0 stands for 1, in 03 and 04 for all */
    int seq, hidden, heads, vocab;      /* 0 stands for 16, 48, 6 and 97: heads of size 8, a prime vocabulary */
    bool exact;                         /* the same numbers bit for bit, not only within 1e-10 */
    const char *model;                  /* options of a model that 01 does not have */
} Configuration;

/* Runs both in float64, for 4 steps, under full_tests() for 20; the configuration with --check, every other call from a
 * checkpoint of 01. Fails the test unless
 * - gradients of the first step agree within 1e-10 per tensor (q, k and v separately);
 * - losses, norms and the validation loss agree within 1e-10;
 * - the checkpoint saved at the end equals that of 01, its tensors within 1e-10;
 * - memory and traffic of every rank equal the prediction.
 * 01's results are stored for the next call with the same global batch. */
void compare_with_01(const Configuration *l);

/* Compares a covering subset of a program's configurations; under full_tests() all, for 03, 04, 05 and 07. */
void agrees_with_01(const char *program);

#endif
