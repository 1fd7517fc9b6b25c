/* --report FILE: JSON of memory by category and traffic by operation, measured and predicted, of time, and of
 * operators, for each rank.
 */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stdint.h>

/* Where the time of a step went. The first one isn't counted: it also makes threads, and meets memory and libraries for
 * the first time. */
void report_step_begins(void);
void report_step_ends(double seconds, bool first, bool last);

void report_number(const char *name, double value);             /* one more of this rank; the name lives on */
void report_held_out(int64_t step, double loss);                /* of an evaluation */

/* Rank after rank adds its entry; the last one closes the array and adds what is the same for all. */
void report_write(const char *path, double peak_flops, bool first, bool last);

#endif
