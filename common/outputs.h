/* Output files and directories: checked before a run computes anything, and complete or absent. They are written as
 * PATH.tmp, which becomes PATH at the end. Devices and links to files, such as /dev/stdout, are written as they are. */
#ifndef OUTPUTS_H
#define OUTPUTS_H

#include <stdint.h>

/* Fails if rank 0 cannot write to `path`, or if a file is there that does not have `beginning` in its first bytes, as
 * such outputs do. path may be NULL: no output. */
void output_check(const char *option, const char *path, const char *beginning);

/* Returns the name under which to write `path`; all ranks call it before one writes. output_end puts the file in place,
 * when all ranks have written, and frees the name. NULL: no output. */
char *output_begin(const char *path);
void output_end(const char *option, char *written, const char *path);

/* ---- Directories: PATH has nothing but `files`, whose names end with NULL, and is replaced as a whole ---- */

/* Returns the directory's name + end, without slashes between; of a link, that of its target. The caller frees it. */
char *directory_beside(const char *directory, const char *end);

/* Locks DIR.lock until the program ends. Fails if another program holds it, if DIR has other files, or if a trial shows
 * that DIR.tmp, of `bytes` with a file of `largest`, could not be created and replace DIR. Call it on rank 0. */
void directory_claim(const char *directory, const char *const *files, int64_t bytes, int64_t largest);

/* Makes the complete DIR.tmp DIR; a killed program leaves DIR, or DIR.old and no DIR. A user's files in the old DIR are
 * moved aside. Call it on rank 0. */
void directory_replace(const char *directory, const char *const *files);

#endif
