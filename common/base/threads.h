/* The CPU's threads: how many a process has, and which cores they may use. */
#ifndef THREADS_H
#define THREADS_H

#include <sched.h>

/* Sets how many OpenMP has, and so OpenBLAS's OpenMP build: `wanted`; if that is 0, OMP_NUM_THREADS; if this is not
 * set, `cores`. OMP_THREAD_LIMIT lowers the last two; the program ends if more are wanted. */
void threads_set(int wanted, int cores);
const char *threads_text(void);             /* "2 threads", or "1 thread (OMP_NUM_THREADS)" if that is why */

/* The cores that this process may use; none if the machine has more than a cpu_set_t holds. */
cpu_set_t threads_cores(void);

#endif
