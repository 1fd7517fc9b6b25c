/* The files that a run leaves: one program writes them, beside their place, and puts them there when they are complete.
 * Devices, pipes and links (/dev/stdout) are written to directly. All ranks make these calls, but for the last two.
 */
#ifndef OUTPUTS_H
#define OUTPUTS_H

#include <stdbool.h>
#include <stdio.h>

/* Before anything is computed: checks that --OPTION's file can be written, and returns where to write it until it is
 * complete. NULL: for no path. */
char *output_claim(const char *option, const char *path);

/* After output_claim, when all ranks have come so far: rank after rank will add to the file, so all must find it. */
void output_find(const char *option, const char *tmp, const char *path);

void output_deliver(const char *option, const char *tmp, const char *path);     /* puts the complete file in place */

/* A file that grows row by row, in its place: rank 0 gets it, the others NULL. */
FILE *output_append(const char *option, const char *path);

void output_empty(const char *path);            /* what is in a file from before goes */
bool output_is_stdout(const char *path);        /* a log: it keeps what it has, and gets what is printed in between */

#endif
