#include "emulator_check.h"

#include <atomic>
#include <link.h>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

thread_local Actor actor;
/* The block's dynamic shared memory, one variable per name that kernels use (emulator.cc). */
extern thread_local char shared[];
extern thread_local float row[], sums[];

/* ---- stamps: which thread last read and last wrote each byte, and when ---- */

/* Stamp 0: no thread has. A read's stamp tells whether other threads also read since the block's last barrier. */
enum Readers { ONE, OF_A_WARP, OF_WARPS, OF_BLOCKS };
enum { WARP_SIZE = 32 };
static const uint64_t FORBIDDEN = ~0ull;

struct Stamp {
    uint32_t readers, thread, sync, barrier, run;
};

enum { THREAD_AT = 2, SYNC_AT = THREAD_AT + 10, BARRIER_AT = SYNC_AT + SYNC_BITS, RUN_AT = BARRIER_AT + BARRIER_BITS };

static Stamp stamp_of(uint64_t bits)
{
    return {(uint32_t)bits & 3, (uint32_t)(bits >> THREAD_AT) & 1023,
            (uint32_t)(bits >> SYNC_AT) & ((1u << SYNC_BITS) - 1),
            (uint32_t)(bits >> BARRIER_AT) & ((1u << BARRIER_BITS) - 1), (uint32_t)(bits >> RUN_AT)};
}

static uint64_t bits_of(Stamp s)
{
    return s.readers | (uint64_t)s.thread << THREAD_AT | (uint64_t)s.sync << SYNC_AT | (uint64_t)s.barrier << BARRIER_AT
           | (uint64_t)s.run << RUN_AT;
}

struct Byte {
    std::atomic<uint64_t> written, read;        /* blocks run in parallel; a lost stamp would hide a mistake */
};

/* ---- memory: the GPU's is a range of addresses; shared memory is thread-local, per CPU thread ---- */

enum { APART = 4096, ALIGNMENT = 512 };
static const size_t GPU_BYTES = 64ull << 30;
static char *gpu;                               /* allocations follow one another; addresses are never reused */
static size_t gpu_used;
static Byte *gpu_bytes;
static std::map<void *, size_t> allocated;

static thread_local struct {
    char *first, *end;
    Byte *bytes;
} local;

/* The linker's addresses of the program's start, and of its first variable that isn't constant. */
extern const char program asm("__executable_start"), variables asm("__data_start");

static void *must(void *data, size_t bytes)
{
    if (data && data != MAP_FAILED)
        return data;
    fprintf(stderr, "emulated GPU: no memory for %zu bytes\n", bytes);
    _exit(1);
}

/* Reserves a range of addresses without memory. */
static void *reserve(size_t bytes)
{
    return must(mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), bytes);
}

static bool fill(void *data, size_t bytes)
{
    const uintptr_t page = sysconf(_SC_PAGESIZE), first = (uintptr_t)data / page * page;

    return mprotect((void *)first, (uintptr_t)data + bytes - first, PROT_READ | PROT_WRITE) == 0;
}

static void forbid(const void *data, size_t bytes, uint64_t value)
{
    for (size_t i = 0; i < bytes; i++)
        gpu_bytes[(const char *)data - gpu + i].written = value;
}

void *check_alloc(size_t bytes)
{
    if (!gpu) {
        gpu = (char *)reserve(GPU_BYTES);
        gpu_bytes = (Byte *)reserve(GPU_BYTES * sizeof(Byte));
    }
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + APART;
    char *data = gpu + gpu_used;
    if (rounded > GPU_BYTES - gpu_used || !fill(data, rounded)
        || !fill(&gpu_bytes[gpu_used], rounded * sizeof(Byte)))
        return NULL;
    gpu_used += rounded;
    forbid(data + bytes, rounded - bytes, FORBIDDEN);
    for (size_t i = 0; i < bytes; i += 4096 / sizeof(Byte))     /* touches each page, so that Linux maps it now */
        gpu_bytes[data - gpu + i].read = 0;
    allocated[data] = bytes;
    return data;
}

void check_free(void *data)
{
    if (!data)
        return;
    forbid(data, allocated.at(data), FORBIDDEN);
    allocated.erase(data);
}

/* Forbids access to a tensor's guards. Tests declare it weak: a real GPU's build lacks it. */
extern "C" void emulated_forbid(const void *data, int64_t bytes, bool forbidden)
{
    forbid(data, bytes, forbidden ? FORBIDDEN : 0);
}

/* Finds the program's thread-local variables, which include the kernels' __shared__ ones. */
static int find_thread_locals(struct dl_phdr_info *info, size_t, void *)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            local.first = (char *)info->dlpi_tls_data;
            local.end = local.first + info->dlpi_phdr[i].p_memsz;
            const size_t count = local.end - local.first;
            local.bytes = (Byte *)must(calloc(count, sizeof(Byte)), count * sizeof(Byte));
        }
    return 1;                                   /* stop: the program comes first */
}

/* ---- errors ---- */

/* Ends the program with the kernel's name and line, and those of the functions that it was inlined into. */
[[noreturn]] static void wrong(const void *at, const char *what)
{
    static std::atomic_flag reporting;
    char command[256];

    while (reporting.test_and_set())                 /* another CPU thread prints an error */
        pause();
    fprintf(stderr, "emulated GPU: thread %d of a block %s\n", actor.thread, what);
    snprintf(command, sizeof command, "addr2line -sifCe /proc/%d/exe %#zx >&2", (int)getpid(),
             (size_t)((const char *)at - &program));
    if (system(command))
        fprintf(stderr, "(install addr2line to see where)\n");
    _exit(1);
}

/* Returns whether nothing orders the stamp's access and the current one. */
static bool races(Stamp s, bool on_gpu)
{
    if (s.run != actor.run)
        return on_gpu && s.run >= actor.first_run;
    if (s.readers == OF_BLOCKS)
        return true;
    if (s.barrier != actor.barriers)
        return false;
    if (s.readers == ONE && s.thread == (uint32_t)actor.thread)
        return false;
    return s.readers == OF_WARPS || s.thread / WARP_SIZE != (uint32_t)actor.thread / WARP_SIZE
           || s.sync == actor.syncs;
}

/* Returns the new stamp of a byte that was read before and is read again. */
static Stamp read_too(Stamp before, Stamp mine, bool on_gpu)
{
    if (on_gpu && before.run >= actor.first_run && before.readers == OF_BLOCKS)
        return before;
    if (on_gpu && before.run >= actor.first_run && before.run != mine.run) {
        mine.readers = OF_BLOCKS;
    } else if (before.run == mine.run && before.barrier == mine.barrier) {
        if (before.readers == OF_WARPS || before.thread / WARP_SIZE != mine.thread / WARP_SIZE)
            mine.readers = OF_WARPS;
        else if (before.sync == mine.sync && (before.readers == OF_A_WARP || before.thread != mine.thread))
            mine.readers = OF_A_WARP;
    }
    return mine;
}

void check_access(const void *data, int64_t bytes, bool writes, const void *at)
{
    const char *p = (const char *)data;
    Byte *b;
    bool on_gpu = false;

    if (!actor.in_kernel || (size_t)(p - actor.stack) < actor.stack_bytes)
        return;
    if (!local.bytes)
        dl_iterate_phdr(find_thread_locals, NULL);
    if (p >= local.first && p < local.end) {
        b = &local.bytes[p - local.first];
        const char *of[] = {shared, (const char *)row, (const char *)sums};
        for (const char *dynamic : of)
            if (p >= dynamic && p < dynamic + SHARED_BYTES && p + bytes > dynamic + actor.shared_bytes)
                wrong(at, "goes beyond the block's dynamic shared memory");
    } else if ((size_t)(p - gpu) < gpu_used) {
        b = &gpu_bytes[p - gpu];
        on_gpu = true;
    } else {
        if (!writes && p >= &program && p < &variables)         /* a constant */
            return;
        wrong(at, "goes to memory that isn't the GPU's");
    }
    const Stamp mine = {ONE, (uint32_t)actor.thread, actor.syncs, actor.barriers, actor.run};
    uint64_t written = 0, read = 0, now = bits_of(mine);
    for (int64_t i = 0; i < bytes; i++) {
        const uint64_t last_written = written, last_read = read;        /* of the previous byte, mostly the same */
        written = b[i].written.load(std::memory_order_relaxed);
        read = b[i].read.load(std::memory_order_relaxed);
        if (written != last_written) {
            if (written == FORBIDDEN)
                wrong(at, "goes beside a tensor, or to one that was freed");
            if (written && races(stamp_of(written), on_gpu))
                wrong(at, writes ? "writes what another one writes, and nothing orders the two"
                                 : "reads what another one writes, and nothing orders the two");
        }
        if (writes) {
            if (read && read != last_read && races(stamp_of(read), on_gpu))
                wrong(at, "writes what another one reads, and nothing orders the two");
            b[i].written.store(now, std::memory_order_relaxed);
        } else {
            if (i == 0 || read != last_read)
                now = bits_of(read_too(stamp_of(read), mine, on_gpu));
            if (now != read)
                b[i].read.store(now, std::memory_order_relaxed);
        }
    }
}

void check_whole(const void *data, int64_t bytes, const char *what)
{
    auto a = allocated.upper_bound((void *)data);

    if (bytes == 0)
        return;
    if (a != allocated.begin()) {
        --a;
        if ((const char *)data + bytes <= (char *)a->first + a->second)
            return;
    }
    fprintf(stderr, "emulated GPU: %s of %lld bytes that aren't all the GPU's\n", what, (long long)bytes);
    _exit(1);
}

/* ---- the compiler's calls ---- */

#define ACCESS(name, bytes, writes, aligned) \
    void __tsan_##name##bytes(void *data) \
    { \
        if (aligned && (uintptr_t)data % bytes && actor.in_kernel) \
            wrong(__builtin_return_address(0), "goes to what isn't aligned to its size"); \
        check_access(data, bytes, writes, __builtin_return_address(0)); \
    }
#define ACCESSES(bytes) \
    ACCESS(read, bytes, false, true) \
    ACCESS(write, bytes, true, true) \
    ACCESS(unaligned_read, bytes, false, false) \
    ACCESS(unaligned_write, bytes, true, false)

extern "C" {

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void *data, size_t bytes)
{
    check_access(data, bytes, false, __builtin_return_address(0));
}

void __tsan_write_range(void *data, size_t bytes)
{
    check_access(data, bytes, true, __builtin_return_address(0));
}

void __tsan_init(void)
{
}

/* -fsanitize=bounds,alignment */
struct Where {
    const char *file;
    uint32_t line, column;
};

void __ubsan_handle_out_of_bounds(const Where *where, void *)
{
    fprintf(stderr, "emulated GPU: an index beyond its array, %s:%u\n", where->file, where->line);
    _exit(1);
}

void __ubsan_handle_type_mismatch_v1(const Where *where, void *)
{
    fprintf(stderr, "emulated GPU: an address that isn't aligned to its type, %s:%u\n", where->file, where->line);
    _exit(1);
}

}
