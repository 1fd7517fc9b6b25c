/* --metrics FILE: CSV with a header and one row per step, written by rank 0. Without the option all calls do
 * nothing. */
#ifndef METRICS_H
#define METRICS_H

#include "checkpoint.h"

void metrics_open(void);                                /* on all ranks, before anything is computed */

/* Removes the rows of an earlier run, or with --load those after the checkpoint's step. Call it when start-up can no
 * longer fail. */
void metrics_begin(const TrainState *state);

/* Appends a row, with state's step and tokens; mfu: NaN if the device's peak is unknown. */
void metrics_row(const TrainState *state, double loss, double norm, double lr, double seconds, double tokens_per_second,
                 double mfu);
void metrics_close(void);

#endif
