/* Output files and directories: checked before a run computes anything. */
#ifndef OUTPUTS_H
#define OUTPUTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Fails if rank 0 cannot write to `path`, or if a file is there that does not have `beginning` in its first bytes, as
 * such outputs do. path may be NULL: no output. */
void output_check(const char *option, const char *path, const char *beginning);

/* Opens `path` to append to it. The first rank to write empties the file; a stream or link, such as /dev/stdout, stays
 * as it is. output_close fails if something could not be written. */
FILE *output_open(const char *option, const char *path, bool first);
void output_close(const char *option, const char *path, FILE *f);

/* ---- Directories: PATH has nothing but `files`, whose names end with NULL, and is replaced as a whole ---- */

/* Returns the directory's name + end, without slashes between. The caller frees it. */
char *directory_beside(const char *directory, const char *end);

/* Locks DIR.lock until the program ends. Fails if another program holds it, if DIR has other files, or if a trial shows
 * that DIR.tmp, of `bytes` with a file of `largest`, could not be created. Call it on rank 0. */
void directory_claim(const char *directory, const char *const *files, int64_t bytes, int64_t largest);

/* Makes the complete DIR.tmp DIR; a killed program leaves DIR, or DIR.old and no DIR. Call it on rank 0. */
void directory_replace(const char *directory, const char *const *files);

#endif
