/* One program at a time writes to a file or a directory: it holds a lock on an empty file beside it, PLACE.lock. The
 * system gives the lock back when the process ends, however it does. The file goes with it, unless the program was
 * killed; then it stays, and means nothing. */
#ifndef LOCK_H
#define LOCK_H

/* While starting, on all ranks: rank 0 takes PLACE.lock, or fails if another program has it. `option` and `given` are
 * for messages: what a person has called the place. */
void lock_take(const char *option, const char *given, const char *place);

void lock_release_all(void);            /* at the end of a run that went well: what is written is complete */

#endif
