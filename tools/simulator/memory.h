/* The memories of the simulated GPU. Beside each byte lie two records, its shadow: which access wrote it last, and
 * which read it since. From these each access is checked. It is an error
 * - if the byte belongs to no allocation, or to one that was freed;
 * - if it is read before it was written, or before the asynchronous copy to it was waited for;
 * - if the access races: another one of the same byte, of which one writes, is not ordered with it.
 *
 * What orders accesses: one thread's follow one another; the block's barrier orders its threads, and bar.warp.sync the
 * lanes of a warp. An exchange between lanes orders nothing. Two blocks of a launch are not ordered. Two pieces of work
 * (launches, copies, calls of libraries) are ordered by their stream, by events, and by the host's waits.
 *
 * A segment is what a warp runs from one barrier to the next, and gets a number. Work that is no kernel is one segment.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <string>
#include <vector>

/* segment << 7 | lane << 2 | who else read it */
typedef uint32_t Record;
enum : Record { FORBIDDEN, UNWRITTEN, PENDING, WRITTEN };       /* not of a segment: by a copy in flight; long ago */
enum { SEGMENT_BITS = 25, SEGMENT_SHIFT = 32 - SEGMENT_BITS };

enum { READS = false, WRITES = true };

struct Memory {
    const char *name;
    uint64_t base, size;                /* the address of its first byte, as kernels see it */
    uint8_t *data;
    Record *written, *read;

    /* Checks the access of a lane to `bytes` bytes, and records it. Returns where they lie on the host. */
    uint8_t *access(uint64_t address, uint64_t bytes, unsigned lane, bool writes);
    /* The same for a copy or a library. */
    uint8_t *access_all(uint64_t address, uint64_t bytes, bool writes)
    {
        return access(address, bytes, 0, writes);
    }
    void mark(uint64_t address, uint64_t bytes, Record record);

private:
    template <int N> void access_of(uint64_t address, unsigned lane, bool writes);
    uint8_t *place(uint64_t address, uint64_t bytes, unsigned lane, bool writes) const;
    [[noreturn]] void fault(Record old, uint64_t address, unsigned lane, bool writes, bool wrote) const;
};

extern Memory global_memory;

/* ---- segments ---- */

/* For each stream, how much of its work has been done before. */
typedef std::vector<uint32_t> Clock;
void clock_join(Clock &to, const Clock &from);

/* Starts a piece of work, or goes on with it: number `number` of a stream, after what `clock` says. */
void work_begins(const char *name, int stream, uint32_t number, const Clock &clock);
/* The next accesses are of a segment of its own. A kernel's: of a warp, after so many barriers. */
uint32_t segment_begins(uint32_t block, uint16_t warp, uint16_t barriers);
void segment_is(uint32_t segment);

/* Ends the program with one line on what the GPU was doing. launcher.cc adds the kernel's place. */
[[noreturn]] void simulated_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern std::string (*place_of_lane)(unsigned lane);             /* NULL: no kernel runs */
std::string here(unsigned lane);        /* what runs */

/* ---- allocations ---- */

void *global_alloc(size_t bytes);       /* NULL: not enough */
void global_free(void *data);           /* in the order of the work */
size_t global_bytes_of(const void *data);                       /* of the allocation that begins there; 0: none */
bool is_global(const void *address);
uint64_t global_limit(void);            /* SIMULATED_MEMORY, in bytes */

#endif
