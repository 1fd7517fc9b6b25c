/* Output files: checked before a run computes anything. */
#ifndef OUTPUTS_H
#define OUTPUTS_H

#include <stdbool.h>
#include <stdio.h>

/* Fails if rank 0 cannot write to `path`, or if a file is there that does not have `beginning` in its first bytes, as
 * such outputs do. path may be NULL: no output. */
void output_check(const char *option, const char *path, const char *beginning);

/* Opens `path` to append to it, and locks it until it is closed: fails if another run has it open. The first rank to
 * write empties the file; a stream or link, such as /dev/stdout, stays as it is. output_close fails if something could
 * not be written. */
FILE *output_open(const char *option, const char *path, bool first);
void output_close(const char *option, const char *path, FILE *f);

#endif
