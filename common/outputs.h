/* What a run leaves: files, and the checkpoint's directory. One program at a time writes to a place: it holds a lock on
 * an empty file beside it, PLACE.lock, which the system gives back however the process ends. (The file goes too, unless
 * the program was killed; then it stays, and means nothing.) Until an output is complete it stands beside its place, as
 * PLACE.tmp. A link stands for what it leads to. Devices, pipes and the log that stdout goes to are written directly,
 * by whoever wants to.
 *
 * All ranks make these calls, but for output_place.
 */
#ifndef OUTPUTS_H
#define OUTPUTS_H

#include <stdbool.h>
#include <stdio.h>

/* Where a path leads, without slashes at its end, in a new string. Fails if it is a link to what is not there. */
char *output_place(const char *option, const char *path);

/* Before anything is computed: takes PLACE.lock, or fails if somebody else has it, and makes PLACE.tmp, an empty file
 * or a directory, which all ranks must find. Returns its path, or `path` itself for what is written directly; NULL: for
 * no path. */
char *output_claim(const char *option, const char *path, bool directory);

void output_deliver(const char *option, const char *tmp, const char *path);     /* puts the complete file in place */

/* A file that grows row by row, in its place: rank 0 gets it, the others NULL. *rows: whether it may have rows already,
 * as a device, a pipe or a log has not. */
FILE *output_append(const char *option, const char *path, bool *rows);

#endif
