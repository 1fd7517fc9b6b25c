/* Instructions that access memory, or the registers of other lanes. */
#include "fragments.h"
#include "numbers.h"
#include "ptx.h"

#include <algorithm>
#include <string.h>

template <typename F> static inline void each(uint32_t lanes, F f)
{
    for (; lanes; lanes &= lanes - 1)
        f(__builtin_ctz(lanes));
}

/* ---- ld, st ---- */

static void check_aligned(uint64_t address, unsigned bytes, int lane)
{
    if (address % bytes)
        simulated_error("%s: address 0x%lx is no multiple of the %u bytes of the access", here(lane).c_str(), address,
                        bytes);
}

/* Checks the access of `bytes` bytes by each lane, and counts it. Sets where they lie on the host. */
static void access(const Warp &w, const Instruction &i, uint32_t lanes, unsigned bytes, bool writes, uint8_t *at[LANES])
{
    Block &b = *w.block;
    uint64_t addresses[LANES];
    bool shared = i.space == SHARED;

    each(lanes, [&](int l) {
        uint64_t &a = addresses[l] = i.offset
            + (i.address_width == 4 ? w.lane<uint32_t>(i.from[0])[l] : w.lane<uint64_t>(i.from[0])[l]);
        if (i.space == GENERIC && (shared = a - SHARED_WINDOW < b.shared.size))
            a -= SHARED_WINDOW;
        check_aligned(a, bytes, l);
        at[l] = (shared ? b.shared : global_memory).access(a, bytes, l, writes);
    });
    if (counting)
        count_access(addresses, lanes, bytes, shared);
}

static inline uint64_t bits_at(const uint8_t *from, int bytes)
{
    return bytes == 4 ? *(const uint32_t *)from : bytes == 2 ? *(const uint16_t *)from
         : bytes == 8 ? *(const uint64_t *)from : *from;
}

static inline void set_bits(uint8_t *to, int bytes, uint64_t bits)
{
    bytes == 4 ? (void)(*(uint32_t *)to = bits) : bytes == 2 ? (void)(*(uint16_t *)to = bits)
        : bytes == 8 ? (void)(*(uint64_t *)to = bits) : (void)(*to = bits);
}

/* A register may be wider than what is loaded: the rest is zeros, or the sign. */
void load(Warp &w, const Instruction &i, uint32_t lanes)
{
    const int unused = 64 - 8 * i.bytes;
    uint8_t *from[LANES];

    if (i.space == PARAMETERS)
        std::fill(from, from + LANES, (uint8_t *)w.block->parameters + i.offset);
    else
        access(w, i, lanes, i.count * i.bytes, READS, from);
    each(lanes, [&](int l) {
        for (int v = 0; v < i.count; v++) {
            const uint64_t bits = bits_at(from[l] + v * i.bytes, i.bytes);
            set_bits(w.registers + i.to[v] + l * i.width, i.width,
                     i.extends_sign ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits);
        }
    });
}

void store(Warp &w, const Instruction &i, uint32_t lanes)
{
    uint8_t *to[LANES];

    access(w, i, lanes, i.count * i.bytes, WRITES, to);
    each(lanes, [&](int l) {
        for (int v = 0; v < i.count; v++)
            set_bits(to[l] + v * i.bytes, i.bytes, bits_at(w.registers + i.from[1 + v] + l * i.width, i.bytes));
    });
}

/* ---- mov with {a, b}: the first is in the lower bits ---- */

void pack(Warp &w, const Instruction &i, uint32_t lanes)
{
    each(lanes, [&](int l) {
        uint64_t bits = 0;
        for (int v = i.count; v-- > 0;)
            bits = bits << 8 * i.bytes | bits_at(w.registers + i.from[v] + l * i.bytes, i.bytes);
        set_bits(w.registers + i.to[0] + l * i.width, i.width, bits);
    });
}

void unpack(Warp &w, const Instruction &i, uint32_t lanes)
{
    each(lanes, [&](int l) {
        const uint64_t bits = bits_at(w.registers + i.from[0] + l * i.width, i.width);
        for (int v = 0; v < i.count; v++)
            set_bits(w.registers + i.to[v] + l * i.bytes, i.bytes, bits >> 8 * i.bytes * v);
    });
}

/* ---- exchanges between lanes ---- */

/* All lanes that the mask names must run the instruction together. */
static void check_members(const Warp &w, uint32_t place, uint32_t lanes)
{
    const int first = __builtin_ctz(lanes);
    const uint32_t members = w.lane<uint32_t>(place)[first];

    if (members & w.alive & ~lanes || !(members >> first & 1))
        simulated_error("%s: the lanes are 0x%08x, but its mask is 0x%08x", here(first).c_str(), lanes, members);
}

static void warp_barrier(Warp &w, const Instruction &i, uint32_t lanes)
{
    check_members(w, i.from[0], lanes);
    w.segment = segment_begins(w.block->number, w.number, w.block->barriers);
}

static void vote_any(Warp &w, const Instruction &i, uint32_t lanes)
{
    uint32_t &to = w.predicate(i.to[0]);

    check_members(w, i.from[1], lanes);
    to = w.predicate(i.from[0]) & lanes ? to | lanes : to & ~lanes;
}

static void ballot(Warp &w, const Instruction &i, uint32_t lanes)
{
    const uint32_t which = w.predicate(i.from[0]) & lanes;

    check_members(w, i.from[1], lanes);
    each(lanes, [&](int l) { w.lane<uint32_t>(i.to[0])[l] = which; });
}

enum Shuffle { BUTTERFLY, INDEX };
template <Shuffle kind> static void shuffle(Warp &w, const Instruction &i, uint32_t lanes)
{
    uint32_t all[LANES], inside = 0;

    check_members(w, i.from[3], lanes);
    memcpy(all, w.lane<uint32_t>(i.from[0]), sizeof all);
    each(lanes, [&](int l) {
        const int b = w.lane<uint32_t>(i.from[1])[l] & 31, c = w.lane<uint32_t>(i.from[2])[l];
        const int clamp = c & 31, mask = c >> 8 & 31, most = (l & mask) | (clamp & ~mask), least = l & mask;
        int from = kind == BUTTERFLY ? l ^ b : least | (b & ~mask);
        const bool in = from <= most;
        from = in ? from : l;
        if (!(lanes >> from & 1))
            simulated_error("%s: it reads lane %d, which does not take part", here(l).c_str(), from);
        inside |= (uint32_t)in << l;
        w.lane<uint32_t>(i.to[0])[l] = all[from];
    });
    w.predicate(i.to[1]) = (w.predicate(i.to[1]) & ~lanes) | inside;
}

/* ---- tensor cores ---- */

static void check_full(uint32_t lanes)
{
    if (lanes != ~0u)
        simulated_error("%s: only lanes 0x%08x of the warp run it", here(__builtin_ctz(lanes)).c_str(), lanes);
}

template <bool transposed> static void load_matrices(Warp &w, const Instruction &i, uint32_t lanes)
{
    uint8_t *row[LANES];

    check_full(lanes);
    access(w, i, lanes, 16, READS, row);
    for (int matrix = 0; matrix < 4; matrix++)
        for (int l = 0; l < LANES; l++)
            for (int x = 0; x < 2; x++) {
                const Element e = matrix_element(l, x, transposed);
                memcpy(&w.lane<uint16_t>(i.to[matrix])[2 * l + x], row[8 * matrix + e.row] + 2 * e.column, 2);
            }
}

/* sum (16, 8) += left (16, 16) times right (16, 8). Products are exact in float. */
template <float (*number)(uint16_t)> static void multiply_add(Warp &w, const Instruction &i, uint32_t lanes)
{
    float left[16][16], right[16][8], sum[16][8];

    check_full(lanes);
    for (int l = 0; l < LANES; l++) {
        for (int x = 0; x < 8; x++) {
            const Element e = left_element(l, x);
            left[e.row][e.column] = number(w.lane<uint16_t>(i.from[x / 2])[2 * l + x % 2]);
        }
        for (int x = 0; x < 4; x++) {
            const Element e = right_element(l, x), s = sum_element(l, x);
            right[e.row][e.column] = number(w.lane<uint16_t>(i.from[4 + x / 2])[2 * l + x % 2]);
            sum[s.row][s.column] = w.lane<float>(i.from[6 + x])[l];
        }
    }
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int c = 0; c < 8; c++)
                sum[r][c] += left[r][k] * right[k][c];
    for (int l = 0; l < LANES; l++)
        for (int x = 0; x < 4; x++) {
            const Element s = sum_element(l, x);
            w.lane<float>(i.to[x])[l] = sum[s.row][s.column];
        }
}

/* ---- asynchronous copies: until the wait, the destination is NaN, and nobody may touch it ---- */

void copy_async(Warp &w, const Instruction &i, uint32_t lanes)
{
    uint64_t targets[LANES], sources[LANES];
    uint32_t reading = 0;

    each(lanes, [&](int l) {
        const uint64_t to = w.lane<uint32_t>(i.from[0])[l], from = w.lane<uint64_t>(i.from[1])[l] + i.offset;
        const uint32_t there = w.lane<uint32_t>(i.from[3])[l];
        targets[l] = to, sources[l] = from, reading |= (uint32_t)(there != 0) << l;
        check_aligned(to, i.bytes, l);
        check_aligned(from, i.bytes, l);
        if (there > i.bytes)
            simulated_error("%s copies %u bytes to %d", here(l).c_str(), there, i.bytes);
        memset(w.block->shared.access(to, i.bytes, l, WRITES), 0xff, i.bytes);
        w.block->shared.mark(to, i.bytes, PENDING);
        w.copies.push_back({to, from, i.bytes, (uint8_t)there, (uint8_t)l, w.groups_of_copies[l]});
    });
    if (counting) {
        count_access(targets, lanes, i.bytes, true);
        count_access(sources, reading, i.bytes, false);
    }
}

static void copies_commit(Warp &w, const Instruction &, uint32_t lanes)
{
    each(lanes, [&](int l) { w.groups_of_copies[l]++; });
}

static void copies_wait(Warp &w, const Instruction &i, uint32_t lanes)
{
    Memory &shared = w.block->shared;
    const auto arrives = [&](const Copy &c) {
        if (!(lanes >> c.lane & 1)
            || (i.from[0] && c.group + w.lane<uint32_t>(i.from[0])[c.lane] >= w.groups_of_copies[c.lane]))
            return false;
        uint8_t data[16] = {0};
        if (c.there)
            memcpy(data, global_memory.access(c.from, c.there, c.lane, READS), c.there);
        shared.mark(c.to, c.bytes, UNWRITTEN);
        memcpy(shared.access(c.to, c.bytes, c.lane, WRITES), data, c.bytes);
        return true;
    };

    w.copies.erase(std::remove_if(w.copies.begin(), w.copies.end(), arrives), w.copies.end());
}

#define SHUFFLE(NAME, KIND) {"shfl.sync." NAME ".b32", {shuffle<KIND>, {4, 1}, {4, 4, 4, 4}}}
#define MULTIPLY_ADD(TYPE, NUMBER) {"mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32", \
    {multiply_add<NUMBER>, {4, 4, 4, 4}, {4, 4, 4, 4, 4, 4, 4, 4, 4, 4}}}

const Table of_warps = {
    {"bra", {NULL, {}, {LABEL}, BRANCH}},
    {"bra.uni", {NULL, {}, {LABEL}, BRANCH}},
    {"ret", {NULL, {}, {}, RETURN}},
    {"exit", {NULL, {}, {}, RETURN}},
    {"bar.sync", {NULL, {}, {4}, BARRIER}},
    {"bar.red.or.pred", {NULL, {1}, {4, 1}, BARRIER}},
    {"bar.warp.sync", {warp_barrier, {}, {4}}},
    SHUFFLE("bfly", BUTTERFLY),
    SHUFFLE("idx", INDEX),
    {"vote.sync.any.pred", {vote_any, {1}, {1, 4}}},
    {"vote.sync.ballot.b32", {ballot, {4}, {1, 4}}},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", {load_matrices<false>, {4, 4, 4, 4}, {ADDRESS}}},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", {load_matrices<true>, {4, 4, 4, 4}, {ADDRESS}}},
    MULTIPLY_ADD("f16", float_of_half),
    MULTIPLY_ADD("bf16", float_of_bfloat),
    {"cp.async.cg.shared.global", {copy_async, {}, {4, ADDRESS, 4, 4}}},
    {"cp.async.ca.shared.global", {copy_async, {}, {4, ADDRESS, 4, 4}}},
    {"cp.async.commit_group", {copies_commit, {}, {}}},
    {"cp.async.wait_group", {copies_wait, {}, {4}}},
    {"cp.async.wait_all", {copies_wait, {}, {}}},
};
