/* Numbers as a person reads them. Each text is in one of a few static buffers: good until the eighth call after. */
#ifndef PRINT_H
#define PRINT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

const char *number_text(int64_t n);             /* "12,345,678" */
const char *bytes_text(double bytes);           /* "17.3 MB": 1 MB is 10^6 bytes */
const char *duration_text(double seconds);      /* "1:05:09" */
const char *divisors_text(int n);               /* "1, 2, 3, 6": what divides n (at most 65536), for messages */

#ifdef __cplusplus
}
#endif

#endif
