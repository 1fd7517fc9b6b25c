/* --report FILE: JSON with each rank's memory by category, traffic by operation (both measured and predicted), time,
 * and operators. --metrics FILE: CSV with a header and one row per step, written by rank 0.
 */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "checkpoint.h"

/* Measures where a step's time goes. The first step is left out: it also starts threads, and loads libraries. */
void report_step_ends(double seconds, bool first, bool last);

void report_number(const char *name, double value);             /* adds a number of this rank */
void report_validation(int64_t step, double loss);              /* adds an evaluation's loss, nats per token */

/* Writes this rank's entry to the file. Ranks take turns; the last one closes the array and adds what all ranks have in
 * common. peak_flops: FLOP/s of all ranks together. */
void report_write(FILE *f, double peak_flops, bool first, bool last);

/* ---- --metrics; without it these do nothing ---- */
void metrics_open(const TrainState *state);             /* --load appends to the file */

/* Appends a row, with state's step and tokens. */
void metrics_row(const TrainState *state, double loss, double norm, double lr, double seconds, double tokens_per_second,
                 double mfu);
void metrics_close(void);

#endif
