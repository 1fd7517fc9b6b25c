/* --metrics FILE: CSV with a header, a row for each step, from rank 0. All calls do nothing without the option. */
#ifndef METRICS_H
#define METRICS_H

#include "checkpoint.h"

void metrics_open(void);                                /* all ranks; before anything is computed */

/* When nothing else can be wrong any more: the rows of a run before go, or with --load those after its checkpoint. */
void metrics_begin(const TrainState *state);

/* After a step, with state's step and tokens; mfu: NaN if the device's rate isn't known. */
void metrics_row(const TrainState *state, double loss, double norm, double lr, double seconds, double tokens_per_second,
                 double mfu);
void metrics_close(void);

#endif
