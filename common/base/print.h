/* Printing for the user: lines that rank 0 prints for all ranks, and numbers in words. */
#ifndef PRINT_H
#define PRINT_H

#include <stdbool.h>
#include <stdint.h>

/* Prints to stdout on rank 0, unless --quiet. print_enable sets whether this rank prints; until its first call every
 * rank does. */
void print_rank_0(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_enable(bool yes);

/* Likewise, but on a terminal in place of the last such line, unless that one stays. */
void print_status(bool stays, const char *line);
bool print_to_terminal(void);                   /* Open MPI makes ranks' standard output a terminal even where its own
                                                 * goes to a file, so both of a rank's outputs must be one */

/* Formats a text for one message or call: 32 texts later, of this and the functions below, it is overwritten. What
 * lasts longer is a new_text (error.h). */
const char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *number_text(int64_t n);             /* "12,345,678" */
const char *bytes_text(double bytes);           /* "17.3 MB": 1 MB is 10^6 bytes */
const char *duration_text(double seconds);      /* "1:05:09" */
const char *divisors_text(int n);               /* "1, 2, 3 or 6": the divisors of n, n at most 65536 */

#endif
