/* Deadlines for what can't keep its own: MPI_Init, MPI_Finalize, the rank's exit. A small process beside each rank
 * keeps the time, because a rank that waits inside of MPI, or is stopped (SIGSTOP), cannot.
 */
#ifndef WATCHDOG_H
#define WATCHDOG_H

/* Starts that process, before there are threads; it ends with the rank. */
void watchdog_start(void);
void watchdog_stop(void);

/* The rank has so many seconds until the next call, or its end; 0: as long as it likes. A rank that takes longer is
 * killed, and one line on stderr says what it was to do ("end the program"). A stopped rank is killed first, so that
 * the line names it: the others have a tenth and 5 seconds more. Time doesn't count while the watchdog was stopped too
 * (a suspended job), or while a debugger holds the rank. rank: its number; -1: not known yet. */
void watchdog_expect(double seconds, int rank, const char *todo);

#endif
