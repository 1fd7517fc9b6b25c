/* Runs a launch, block by block and warp by warp. A warp runs until all its lanes wait at the block's barrier or have
 * ended. Blocks and warps take turns in an order that SIMULATED_ORDER chooses, since a program must not depend on it.
 */
#include "ptx.h"

#include <algorithm>
#include <stdlib.h>
#include <string.h>

Order simulated_order(void)
{
    static const char *const set = getenv("SIMULATED_ORDER"), *const name = set ? set : "shuffled";
    static const Order order = !strcmp(name, "shuffled") ? SHUFFLED : !strcmp(name, "reversed") ? REVERSED : IN_ORDER;

    if (order == IN_ORDER && strcmp(name, "in-order"))
        simulated_error("SIMULATED_ORDER: expected in-order, reversed or shuffled, got '%s'", name);
    return order;
}

unsigned chance(unsigned below)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13, x ^= x >> 7, x ^= x << 17;    /* xorshift (Marsaglia 2003) */
    return (unsigned)(x >> 33) % below;
}

/* The numbers from 0 on, in the chosen order. */
static std::vector<uint32_t> ordered(uint32_t count)
{
    std::vector<uint32_t> order(count);

    for (uint32_t i = 0; i < count; i++)
        order[i] = simulated_order() == REVERSED ? count - 1 - i : i;
    for (uint32_t i = count; simulated_order() == SHUFFLED && i > 1; i--)
        std::swap(order[i - 1], order[chance(i)]);
    return order;
}

/* ---- errors ---- */

static const Warp *running;
static const Instruction *at;

static std::string place(unsigned lane)
{
    const Kernel &k = *running->block->kernel;
    const char *file = k.source(at->file), *slash = strrchr(file, '/');

    return plain_name(k) + " (" + (slash ? slash + 1 : file) + ":" + std::to_string(at->line) + "), thread "
           + std::to_string(running->number * LANES + lane) + " of block " + std::to_string(running->block->number)
           + ", \"" + std::string(at->text) + "\"";
}

/* ---- a warp ---- */

static void add_group(Warp &w, int at, uint32_t lanes)
{
    if (lanes)
        w.groups[at] |= lanes;
}

static void lanes_end(Warp &w, uint32_t lanes)
{
    w.alive &= ~lanes;
    for (const Copy &c : w.copies)
        if (lanes >> c.lane & 1)
            simulated_error("%s: it ends before its asynchronous copies were waited for", place(c.lane).c_str());
}

static void arrive(Warp &w, int number, uint32_t lanes)
{
    if (lanes != w.alive)
        simulated_error("%s: lanes 0x%08x of the warp are not here", place(__builtin_ctz(lanes)).c_str(),
                        w.alive & ~lanes);
    w.waiting = lanes;
    w.at = number;
}

/* Lanes that branch differently become two groups. The one that is behind runs first, so that they meet again. */
static void run_warp(Warp &w)
{
    const Kernel &k = *w.block->kernel;

    running = &w;
    segment_is(w.segment);
    while (!w.groups.empty()) {
        int number = w.groups.begin()->first;
        uint32_t lanes = w.groups.begin()->second;
        w.groups.erase(w.groups.begin());
        const int meets = w.groups.empty() ? INT32_MAX : w.groups.begin()->first;
        while (lanes && number < meets) {
            const Instruction &i = k.code[number];
            uint32_t active = lanes;
            if (i.guard)
                active &= i.guard_not ? ~w.predicate(i.guard) : w.predicate(i.guard);
            at = &i;
            if (counting)
                count_instruction(i);
            number++;
            if (!active)
                continue;
            if (i.control == NEXT) {
                i.run(w, i, active);
            } else if (i.control == BRANCH && active == lanes) {
                number = i.target;
            } else {
                if (i.control == BRANCH)
                    add_group(w, i.target, active);
                else if (i.control == RETURN)
                    lanes_end(w, active);
                else
                    arrive(w, number - 1, active);
                add_group(w, number, lanes & ~active);
                lanes = 0;
            }
        }
        add_group(w, number, lanes);
    }
}

/* ---- a block ---- */

/* All threads have arrived or ended: the barrier opens. bar.red.or also tells them whether one of them has `true`. */
static void open_barrier(Block &b)
{
    const Instruction *first = NULL;
    bool any = false;

    for (Warp &w : b.warps)
        if (w.waiting) {
            const Instruction &i = b.kernel->code[w.at];
            running = &w, at = &i;
            if (first && (first->file != i.file || first->line != i.line))
                simulated_error("%s: other threads of the block wait at the barrier of line %u", place(0).c_str(),
                                first->line);
            first = &i;
            any |= i.to[0] && w.predicate(i.from[1]) & w.waiting;
        }
    if (++b.barriers == 0)
        simulated_error("%s: more barriers than are counted", place(0).c_str());
    for (Warp &w : b.warps)
        if (w.waiting) {
            const Instruction &i = b.kernel->code[w.at];
            if (i.to[0])
                w.predicate(i.to[0]) = (w.predicate(i.to[0]) & ~w.waiting) | (any ? w.waiting : 0);
            add_group(w, w.at + 1, w.waiting);
            w.waiting = 0;
            w.segment = segment_begins(b.number, w.number, b.barriers);
        }
}

static void run_block(Block &b)
{
    for (bool on = true; on;) {
        on = false;
        for (uint32_t w : ordered(b.warps.size())) {
            run_warp(b.warps[w]);
            on |= b.warps[w].waiting != 0;
        }
        if (on)
            open_barrier(b);
    }
}

/* ---- a launch ---- */

static void set_specials(Warp &w, dim3 grid, dim3 threads)
{
    const uint32_t n = w.block->number;
    const dim3 block(n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y);

    for (int l = 0; l < LANES; l++) {
        const uint32_t t = w.number * LANES + l;
        const dim3 thread(t % threads.x, t / threads.x % threads.y, t / threads.x / threads.y);
        const dim3 values[SPECIALS] = {thread, threads, block, grid};
        for (int s = 0; s < SPECIALS; s++)
            for (int x = 0; x < 3; x++)
                if (const uint32_t place = w.block->kernel->special[s][x])
                    w.lane<uint32_t>(place)[l] = (&values[s].x)[x];
    }
}

static void begin_block(Block &b, dim3 grid, dim3 threads)
{
    const int count = threads.x * threads.y * threads.z;

    b.barriers = 0;
    memset(b.shared.data, 0xff, b.shared.size);
    b.shared.mark(0, b.shared.size, UNWRITTEN);
    for (Warp &w : b.warps) {
        const int lanes = std::min<int>(LANES, count - w.number * LANES);
        w.alive = lanes == LANES ? ~0u : (1u << lanes) - 1;
        w.waiting = 0;
        w.groups.clear();
        add_group(w, 0, w.alive);
        w.copies.clear();
        memset(w.groups_of_copies, 0, sizeof w.groups_of_copies);
        w.segment = segment_begins(b.number, w.number, 0);
        set_specials(w, grid, threads);
    }
}

void run_grid(Kernel *kernel, dim3 grid, dim3 threads, size_t dynamic_shared, const uint8_t *parameters)
{
    const size_t shared = (kernel->static_shared + 127) / 128 * 128 + dynamic_shared;
    const size_t file = (kernel->file_bytes + 63) / 64 * 64;
    const int warps = (threads.x * threads.y * threads.z + LANES - 1) / LANES;
    static std::vector<uint8_t> registers, memory;
    static std::vector<Record> records;
    Block b = {};

    registers.resize(std::max(registers.size(), file * warps + 64));
    memory.resize(std::max(memory.size(), shared));
    records.resize(std::max(records.size(), 2 * shared));
    b.kernel = kernel, b.parameters = parameters;
    b.shared = {"shared memory", 0, shared, memory.data(), records.data(), records.data() + shared};
    b.warps.resize(warps);
    for (int n = 0; n < warps; n++) {
        b.warps[n].registers = (uint8_t *)(((uintptr_t)registers.data() + 63) / 64 * 64) + n * file;
        b.warps[n].number = n, b.warps[n].block = &b;
        for (const Constant &c : kernel->constants)
            for (int l = 0; l < (c.width == 1 ? 1 : LANES); l++)
                memcpy(b.warps[n].registers + c.at + l * c.width, &c.value, c.width == 1 ? 4 : c.width);
    }
    place_of_lane = place;
    if (counting)
        count_launch(*kernel);
    for (uint32_t n : ordered(grid.x * grid.y * grid.z)) {
        b.number = n;
        begin_block(b, grid, threads);
        run_block(b);
    }
    place_of_lane = NULL;
}
