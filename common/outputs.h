/* Output files: checked before a run computes anything, and complete or absent. They are written as PATH.tmp, which
 * becomes PATH at the end. Devices and links, such as /dev/stdout, are written as they are. */
#ifndef OUTPUTS_H
#define OUTPUTS_H

/* Fails if rank 0 cannot write to `path`, or if a file is there that does not have `beginning` in its first bytes, as
 * such outputs do. path may be NULL: no output. */
void output_check(const char *option, const char *path, const char *beginning);

/* Returns the name under which to write `path`; all ranks call it before one writes. output_end puts the file in place,
 * when all ranks have written, and frees the name. NULL: no output. */
char *output_begin(const char *path);
void output_end(const char *option, char *written, const char *path);

#endif
