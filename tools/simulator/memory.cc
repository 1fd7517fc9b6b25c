#include "memory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

std::string (*place_of_lane)(unsigned lane);
static const char *work_name = "the host";

void simulated_error(const char *format, ...)
{
    char text[1000];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "simulated GPU: %s\n", text);               /* at once: other ranks print too */
    _exit(1);
}

/* ---- segments and work ---- */

struct Segment {
    uint32_t block;
    uint16_t warp, barriers;
};

struct Work {
    uint32_t first;                             /* its first segment */
    int stream;
    uint32_t number;
};

static std::vector<Work> works;                 /* in the order in which they ran */
static std::vector<std::vector<uint32_t>> first_of;     /* first_of[stream][number]: a work's first segment */
static std::vector<Segment> segments;           /* of the work that runs */
static uint32_t next_segment = 1, first, safe, now;     /* safe: earlier segments are ordered before this work */
static Clock work_clock;

void clock_join(Clock &to, const Clock &from)
{
    to.resize(std::max(to.size(), from.size()));
    for (size_t i = 0; i < from.size(); i++)
        to[i] = std::max(to[i], from[i]);
}

static uint32_t reached(const Clock &clock, size_t stream)
{
    return stream < clock.size() ? clock[stream] : 0;
}

/* Numbers run out: all accesses so far count as ordered. */
static void forget_segments(void);

void work_begins(const char *name, int stream, uint32_t number, const Clock &clock)
{
    if (next_segment >> (SEGMENT_BITS - 1))
        forget_segments();
    work_name = name;
    work_clock = clock;
    segments.clear();
    first = safe = next_segment;
    if ((size_t)stream >= first_of.size())
        first_of.resize(stream + 1);
    first_of[stream].resize(number + 1, UINT32_MAX);
    first_of[stream][number] = std::min(first, first_of[stream][number]);
    works.push_back({first, stream, number});
    for (size_t s = 0; s < first_of.size(); s++)        /* the first work of each stream that is not ordered before */
        for (size_t n = reached(clock, s) + 1; s != (size_t)stream && n < first_of[s].size(); n++)
            if (first_of[s][n] != UINT32_MAX) {
                safe = std::min(safe, first_of[s][n]);
                break;
            }
    segment_begins(0, 0, 0);
}

uint32_t segment_begins(uint32_t block, uint16_t warp, uint16_t barriers)
{
    if (next_segment >> SEGMENT_BITS)
        simulated_error("%s: one launch has more than %d million segments between barriers; try a smaller model",
                        work_name, 1 << (SEGMENT_BITS - 21));
    segments.push_back({block, warp, barriers});
    return now = next_segment++;
}

void segment_is(uint32_t segment)
{
    now = segment;
}

/* ---- order ---- */

enum { ONE, SOME_LANES, SOME_WARPS, SOME_BLOCKS };              /* readers: a lane; several of a warp, block, launch */

static const Work &work_of(uint32_t segment)
{
    return std::upper_bound(works.begin(), works.end(), segment,
                            [](uint32_t s, const Work &w) { return s < w.first; })[-1];
}

static bool work_precedes(const Work &w)
{
    return w.stream == works.back().stream || reached(work_clock, w.stream) >= w.number;
}

/* Returns whether the access that `old` records is ordered before one of this lane now. */
static bool ordered_late(Record old, unsigned lane)
{
    const uint32_t segment = old >> SEGMENT_SHIFT, kind = old & 3;

    if (segment < first)
        return work_precedes(work_of(segment));
    const Segment &a = segments[segment - first], &b = segments[now - first];
    if (segment == now)
        return kind == ONE && lane == (old >> 2 & 31);
    if (kind == SOME_BLOCKS || a.block != b.block)
        return false;
    return a.barriers != b.barriers || (a.warp == b.warp && kind != SOME_WARPS);
}

static inline bool ordered(Record old, unsigned lane)
{
    return old >> SEGMENT_SHIFT < safe || ordered_late(old, lane);
}

/* The record of the readers `old` and this one. It remembers the last reader, and whether there are others with which
 * a write that follows would have to be ordered too. */
static Record joined(Record old, Record mine)
{
    const uint32_t segment = old >> SEGMENT_SHIFT, kind = old & 3;

    if (segment < first)
        return mine;
    const Segment &a = segments[segment - first], &b = segments[now - first];
    if (segment == now)
        return kind != ONE ? old : (old ^ mine) >> 2 ? mine | SOME_LANES : mine;
    if (kind == SOME_BLOCKS || a.block != b.block)
        return mine | SOME_BLOCKS;
    return a.barriers == b.barriers && (a.warp != b.warp || kind == SOME_WARPS) ? mine | SOME_WARPS : mine;
}

/* ---- accesses ---- */

std::string here(unsigned lane)
{
    return place_of_lane ? place_of_lane(lane) : std::string(work_name);
}

uint8_t *Memory::place(uint64_t address, uint64_t bytes, unsigned lane, bool writes) const
{
    if (address - base >= size || bytes > size - (address - base))
        simulated_error("%s %s %lu bytes at 0x%lx, outside of %s", here(lane).c_str(), writes ? "writes" : "reads",
                        bytes, address, name);
    return data + (address - base);
}

/* Reports the access of a byte whose record is `old`; wrote: of the last write, else of a reader. */
void Memory::fault(Record old, uint64_t address, unsigned lane, bool writes, bool wrote) const
{
    const uint32_t segment = old >> SEGMENT_SHIFT;
    char what[200] = "outside of every allocation: beside a tensor, or freed";

    if (old == UNWRITTEN) {
        strcpy(what, "that was never written");
    } else if (old == PENDING) {
        strcpy(what, "to which an asynchronous copy is in flight: no wait for it came before");
    } else if (old != FORBIDDEN && segment < first) {
        const Work &w = work_of(segment);
        snprintf(what, sizeof what, "that work %u of stream %d %s: no event and no wait orders the two", w.number,
                 w.stream, wrote ? "wrote" : "reads");
    } else if (old != FORBIDDEN) {
        const Segment &s = segments[segment - first];
        snprintf(what, sizeof what, "that thread %d of block %u %s: no barrier orders the two",
                 s.warp * 32 + (old >> 2 & 31), s.block, wrote ? "wrote" : "reads");
    }
    simulated_error("%s %s 0x%lx, %s %s", here(lane).c_str(), writes ? "writes" : "reads", address, name, what);
}

/* Most accesses find that all their N bytes were last used by earlier work, or find the same records everywhere. Then
 * one check is enough. */
template <int N> void Memory::access_of(uint64_t address, unsigned lane, bool writes)
{
    Record *const w = written + (address - base), *const r = read + (address - base);
    const Record mine = now << SEGMENT_SHIFT | lane << 2, old = w[0], reader = r[0];
    Record differs = 0, least = old, most = 0;

    for (int i = 0; i < N; i++) {
        differs |= (w[i] ^ old) | (r[i] ^ reader);
        least = std::min(least, w[i]);
        most = std::max(most, std::max(w[i], r[i]));
    }
    if (differs && (least < WRITTEN || most >= safe << SEGMENT_SHIFT)) {
        access_of<(N + 1) / 2>(address, lane, writes);
        access_of<(N + 1) / 2>(address + N / 2, lane, writes);
        return;
    }
    if (old == FORBIDDEN || old == PENDING || (old == UNWRITTEN && !writes) || !ordered(old, lane))
        fault(old, address, lane, writes, true);
    if (writes && !ordered(reader, lane))
        fault(reader, address, lane, writes, false);
    std::fill(r, r + N, writes ? 0 : joined(reader, mine));
    if (writes)
        std::fill(w, w + N, mine);
}

uint8_t *Memory::access(uint64_t address, uint64_t bytes, unsigned lane, bool writes)
{
    uint8_t *const at = place(address, bytes, lane, writes);

    while (bytes) {
        const uint64_t piece = bytes >= 256 ? 256 : bytes >= 16 ? 16 : std::bit_floor(bytes);
        (piece == 256 ? access_of<256>(address, lane, writes)
         : piece == 16 ? access_of<16>(address, lane, writes)
         : piece == 8  ? access_of<8>(address, lane, writes)
         : piece == 4  ? access_of<4>(address, lane, writes)
         : piece == 2  ? access_of<2>(address, lane, writes)
                       : access_of<1>(address, lane, writes));
        address += piece, bytes -= piece;
    }
    return at;
}

void Memory::mark(uint64_t address, uint64_t bytes, Record record)
{
    std::fill(written + (address - base), written + (address - base) + bytes, record);
    std::fill(read + (address - base), read + (address - base) + bytes, 0);
}

/* ---- allocations ---- */

/* GPU addresses are not host addresses: a host that dereferences one crashes. Addresses are not used again, so that
 * one of freed memory stays wrong. All of this is reserved, and exists once it is touched. */
enum : uint64_t { ADDRESSES = 1ull << 37, PAGE = 4096 };

template <typename T> static T *reserve(uint64_t count, int protection)
{
    const uint64_t bytes = count * sizeof(T);
    void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        simulated_error("the host has no room for %lu bytes of addresses", bytes);
    return (T *)p;
}

Memory global_memory = {"the GPU's memory", (uint64_t)reserve<uint8_t>(ADDRESSES, PROT_NONE), ADDRESSES,
                        reserve<uint8_t>(ADDRESSES, PROT_READ | PROT_WRITE),
                        reserve<Record>(ADDRESSES, PROT_READ | PROT_WRITE),
                        reserve<Record>(ADDRESSES, PROT_READ | PROT_WRITE)};
static std::map<uint64_t, size_t> allocations;
static uint64_t next_address = PAGE;            /* from the base on */

bool is_global(const void *address)
{
    return (uint64_t)address - global_memory.base < ADDRESSES;
}

uint64_t global_limit(void)
{
    const char *limit = getenv("SIMULATED_MEMORY");

    return limit ? strtoull(limit, NULL, 10) : 4ull << 30;
}

void *global_alloc(size_t bytes)
{
    const uint64_t address = global_memory.base + next_address, room = (bytes / PAGE + 2) * PAGE;

    if (next_address + room > ADDRESSES)
        simulated_error("the addresses for %lu GB are used up; a simulated run must be shorter", ADDRESSES >> 30);
    next_address += room;                       /* at least a page that nobody owns follows */
    allocations[address] = bytes;
    global_memory.mark(address, bytes, UNWRITTEN);
    return (void *)address;
}

size_t global_bytes_of(const void *data)
{
    const auto a = allocations.find((uint64_t)data);

    return a == allocations.end() ? 0 : a->second;
}

void global_free(void *data)
{
    const uint64_t bytes = global_bytes_of(data), from = (uint64_t)data - global_memory.base;
    const uint64_t room = (bytes / PAGE + 1) * PAGE;

    global_memory.access_all((uint64_t)data, bytes, WRITES);    /* no other work may still use it */
    madvise(global_memory.data + from, room, MADV_DONTNEED);
    madvise(global_memory.written + from, room * sizeof(Record), MADV_DONTNEED);
    madvise(global_memory.read + from, room * sizeof(Record), MADV_DONTNEED);
    allocations.erase((uint64_t)data);
}

static void forget_segments(void)
{
    for (const auto &a : allocations)
        for (uint64_t i = a.first - global_memory.base; i < a.first - global_memory.base + a.second; i++) {
            global_memory.written[i] = std::min<Record>(global_memory.written[i], WRITTEN);
            global_memory.read[i] = 0;
        }
    for (auto &stream : first_of)
        std::fill(stream.begin(), stream.end(), UINT32_MAX);
    works.clear();
    next_segment = 1;
}
