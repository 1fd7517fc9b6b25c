/* Compares predict()'s memory (memory.h) and traffic (comm.h) with the machine before training, and with the measured
 * numbers after it.
 */
#ifndef PREDICTION_H
#define PREDICTION_H

#include <stdbool.h>

#include "../comm/comm.h"
#include "../base/options.h"

/* The playbook's formula, printed beside the tracked memory, for the activations that blocks save for backward. rows: L
 * s b, rows of the residual stream summed over layers. Bytes: rows * h (34 + 5 a s / h); without attention's scores
 * rows * h * 34; with the blocks' inputs alone rows * h * 2. The table prints `note` behind the formula. */
void estimate_activations(Recompute recompute, double rows, const char *note);

/* Prints the predicted memory, and fails if the device has less than all its ranks need: with the largest category, and
 * the options that shrink it. Call it on all ranks after predict() and comm_connect(), which takes memory. */
void memory_check_fits(void);

/* Prints tracked and predicted memory, and the playbook's. Returns whether a category's tracked peak differs from the
 * prediction; prints each one on every rank, with --quiet too. */
bool memory_check(void);

/* Returns whether, in this step, a group's calls or bytes differ from the prediction; prints the first that does. */
bool traffic_check(int step);
void traffic_print(void);                                       /* prints the last step that was checked */
int traffic_of_step(const CommStats **stats);                   /* the same, for the report; returns how many */

#endif
