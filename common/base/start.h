/* How the process was started, and to start it again. */
#ifndef START_H
#define START_H

#include <stdbool.h>

/* Whether SIGHUP was ignored, as nohup asks. UCX, a library of some MPIs, takes that signal for its own debugging when
 * it is loaded, so this was looked up before any library started. */
bool started_by_nohup(void);

/* Starts the program again, in this process, as it was started: with the same arguments, signals and cores. Returns
 * only if that fails. */
void start_again(char **argv);

#endif
