/* A run's output files, and the checkpoint's directory. A place has one writer at a time: the run holds a lock on an
 * empty file beside it, PLACE.lock, which the system releases however the process ends. (The run also removes the file,
 * unless it is killed; a file that is left over locks nothing.) Until an output is complete it is PLACE.tmp. A symbolic
 * link stands for its target. Devices, pipes and the log that stdout goes to are written directly, and not locked.
 *
 * All ranks make these calls, except output_place.
 */
#ifndef OUTPUTS_H
#define OUTPUTS_H

#include <stdbool.h>
#include <stdio.h>

/* Resolves links and removes slashes at the path's end; returns a new string. Fails if a link's target does not
 * exist. */
char *output_place(const char *option, const char *path);

/* Claims an output before anything is computed: locks PLACE.lock, and creates PLACE.tmp, an empty file or a directory.
 * Fails if another run holds the lock, if the option did not write the file that is there, or if a rank cannot see
 * PLACE.tmp. Returns the path to write to: PLACE.tmp, or `path` itself if it is written directly, or NULL if `path`
 * is. */
char *output_claim(const char *option, const char *path, bool directory);

void output_deliver(const char *option, const char *tmp, const char *path);     /* puts the complete file in place */

/* Opens a file that grows row by row, in its place: on rank 0; the other ranks get NULL. *rows: whether it may contain
 * rows already, which devices, pipes and logs do not. Fails if a file is there that is not of --metrics. */
FILE *output_append(const char *option, const char *path, bool *rows);

#endif
