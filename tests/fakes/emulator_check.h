/* Checks each memory access of kernels on the emulated GPU, as compute-sanitizer's memcheck and racecheck do on a GPU.
 * g++ -fsanitize=thread puts a call before each access. emulator_check.cc implements these calls, in place of the
 * sanitizer's library, which has no notion of a GPU's barriers and memories.
 *
 * An access is an error
 * - if the memory is not the GPU's: outside of every tensor, freed, or the host's;
 * - if its address is not aligned to its size, or an index is out of an array's bounds;
 * - if it races: two threads access the same bytes, one writes, and nothing orders the two. The block's barrier orders
 *   its threads, and __syncwarp the lanes of a warp. An exchange between lanes orders nothing, nor does anything order
 *   two blocks of a launch.
 */
#ifndef EMULATOR_CHECK_H
#define EMULATOR_CHECK_H

#include <stddef.h>
#include <stdint.h>

enum { SHARED_BYTES = 227 << 10 };      /* of a block, at most */
enum { RUN_BITS = 26, BARRIER_BITS = 14, SYNC_BITS = 12 };         /* bits of the numbers below */

/* The emulated thread that this CPU thread runs. The emulator sets it. */
struct Actor {
    bool in_kernel;
    uint32_t run;                       /* the block's number over all launches, from 1 */
    uint32_t first_run;                 /* the number of the launch's first block */
    uint32_t barriers, syncs;           /* passed by the block; by the warp since the last barrier */
    int thread;
    const char *stack;
    size_t stack_bytes, shared_bytes;   /* the thread's stack; the block's dynamic shared memory */
};
extern thread_local Actor actor;

/* Checks an access that the emulator makes for a thread. at: the address of the code that made it. */
void check_access(const void *data, int64_t bytes, bool writes, const void *at);

/* Allocates memory of the GPU; returns NULL if there is none left. */
void *check_alloc(size_t bytes);
void check_free(void *data);
/* Ends the program unless all bytes belong to one allocation of the GPU. `what` names the access in the message. */
void check_whole(const void *data, int64_t bytes, const char *what);

#endif
