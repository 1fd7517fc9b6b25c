/* What a person reads: lines that one rank prints for all, and numbers in words. Each text is in one of a few static
 * buffers: good until the eighth call after.
 */
#ifndef PRINT_H
#define PRINT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* To stdout, on rank 0, unless --quiet. What stands above tells which rank this is, by print_enable; before, all
 * print. */
void print_rank_0(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_enable(bool yes);

const char *number_text(int64_t n);             /* "12,345,678" */
const char *bytes_text(double bytes);           /* "17.3 MB": 1 MB is 10^6 bytes */
const char *duration_text(double seconds);      /* "1:05:09" */
const char *divisors_text(int n);               /* "1, 2, 3, 6": what divides n (at most 65536), for messages */

#ifdef __cplusplus
}
#endif

#endif
