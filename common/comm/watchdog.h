/* Deadlines for MPI_Init, MPI_Finalize and the rank's exit. A small process beside each rank keeps the time, because a
 * rank that waits inside MPI, or is stopped (SIGSTOP), cannot.
 */
#ifndef WATCHDOG_H
#define WATCHDOG_H

/* Starts the watchdog process; call it before any thread exists. The watchdog ends with the rank. */
void watchdog_start(void);
void watchdog_stop(void);

/* Gives the rank `seconds` seconds until the next call, or its end; 0: no deadline. A rank that takes longer is killed,
 * and one line on stderr names its task, `todo` ("end the program"). A stopped rank is killed first, so that the line
 * names it: the others have a tenth and 5 seconds more. Time does not count while the watchdog is stopped too (a
 * suspended job), or while a debugger holds the rank. rank: its number; -1: not known yet. */
void watchdog_expect(double seconds, int rank, const char *todo);

#endif
