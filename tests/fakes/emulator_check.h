/* What kernels on the emulated GPU do with memory, looked at access by access: what compute-sanitizer's memcheck and
 * racecheck find on a GPU. g++ -fsanitize=thread puts a call before each access; the calls end in emulator_check.cc,
 * and not in the sanitizer's library, which knows neither a GPU's barriers nor its memories.
 *
 * Wrong is an access
 * - to what is no memory of the GPU: beside a tensor, freed, or the host's;
 * - that isn't aligned to its size, or has an index beyond an array's bounds;
 * - to what another thread writes, or that writes what another one reads, if nothing orders the two: the block's
 *   barrier does, and __syncwarp between lanes of a warp, but not an exchange between lanes; between blocks nothing.
 */
#ifndef EMULATOR_CHECK_H
#define EMULATOR_CHECK_H

#include <stddef.h>
#include <stdint.h>

enum { SHARED_BYTES = 227 << 10 };      /* of a block, at most */
enum { RUN_BITS = 26, BARRIER_BITS = 14, SYNC_BITS = 12 };         /* what the numbers below may have */

/* Who accesses memory now, on a thread of the CPU: set by the emulator. */
struct Actor {
    bool in_kernel;
    uint32_t run;                       /* of a block: a number of its own, in all launches; from 1 on */
    uint32_t first_run;                 /* that of the launch's first block */
    uint32_t barriers, syncs;           /* passed by the block; by the warp since the last of those */
    int thread;
    const char *stack;
    size_t stack_bytes, shared_bytes;   /* the thread's own; the block's dynamic shared memory */
};
extern thread_local Actor actor;

/* An access: by the emulator, on behalf of a thread that has called it; at: where to, in the program's text. */
void check_access(const void *data, int64_t bytes, bool writes, const void *at);

/* The GPU's memory. NULL: there is no more. */
void *check_alloc(size_t bytes);
void check_free(void *data);
/* What a copy, or a library's kernel, is given must be the GPU's, all of it. */
void check_whole(const void *data, int64_t bytes, const char *what);

#endif
