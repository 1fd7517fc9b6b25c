/* --report FILE: JSON with each rank's memory by category, traffic by operation (both measured and predicted), time,
 * and operators.
 */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stdint.h>

/* Measure where a step's time goes. The first step is left out: it also starts threads, and loads libraries. */
void report_step_begins(void);
void report_step_ends(double seconds, bool first, bool last);

void report_number(const char *name, double value);             /* adds a number of this rank; keeps `name` */
void report_validation(int64_t step, double loss);              /* adds an evaluation's loss, nats per token */

/* Appends this rank's entry. Ranks take turns; the last one closes the array and adds what all ranks have in common.
 * peak_flops: FLOP/s of all ranks together. */
void report_write(const char *path, double peak_flops, bool first, bool last);

#endif
