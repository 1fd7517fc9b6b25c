/* Counts what kernels do, and prints at the end of the program what bounds their speed. */
#include "ptx.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_set>

const bool counting = getenv("SIMULATED_COUNTS") != NULL;

struct Counts {
    uint64_t launches, instructions, of_kind[COPY + 1];         /* instructions of a warp */
    uint64_t wavefronts, least_wavefronts;                      /* of shared memory; if no lanes met in a bank */
    uint64_t sectors, needed, distinct;                         /* of global memory, of 32 bytes; `needed` in bytes */
};

static std::map<std::string, Counts> counts;
static std::map<std::string, uint64_t> calls;   /* of the host */
static Counts *now;
static std::unordered_set<uint64_t> touched;    /* sectors of this launch */

Kind kind_of(const std::string &name)
{
    const std::string n = name.substr(0, name.find('.')), type = name.substr(name.rfind('.') + 1);

    if (type == "f32" && (n == "fma" || n == "add" || n == "sub" || n == "mul"))
        return FLOAT;
    return n == "ex2" ? EXPONENT : n == "mma" ? MATRIX : n == "ldmatrix" ? LOAD_MATRICES
         : name.find("cp.async.c") == 0 && name.find(".shared") != std::string::npos ? COPY : OTHER;
}

void count_launch(const Kernel &k)
{
    now = &counts[plain_name(k)];
    now->launches++;
    touched.clear();
}

void count_call(const char *name)
{
    calls[name]++;
}

void count_instruction(const Instruction &i)
{
    now->instructions++;
    now->of_kind[i.kind]++;
}

/* Leaves each number once, and returns how many there are. */
static size_t different(std::vector<uint64_t> &numbers)
{
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    return numbers.size();
}

/* Shared memory has 32 banks of 4 bytes. Per cycle each delivers one word: a wavefront. Accesses of 8 bytes are served
 * half a warp at a time, of 16 bytes (and ldmatrix) a quarter. (A GPU may serve lanes together that read the same
 * bytes.) */
static void count_wavefronts(const uint64_t *addresses, uint32_t lanes, unsigned bytes)
{
    const int together = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;

    for (int first = 0; first < LANES; first += together) {
        std::vector<uint64_t> words;
        int of_bank[32] = {0}, most = 0;
        for (int l = first; l < first + together; l++)
            for (unsigned b = 0; lanes >> l & 1 && b < bytes; b += 4)
                words.push_back((addresses[l] + b) / 4);
        now->least_wavefronts += (different(words) + 31) / 32;
        for (uint64_t w : words)
            most = std::max(most, ++of_bank[w % 32]);
        now->wavefronts += most;
    }
}

void count_access(const uint64_t addresses[LANES], uint32_t lanes, unsigned bytes, bool shared)
{
    std::vector<uint64_t> places;

    if (shared)
        return count_wavefronts(addresses, lanes, bytes);
    for (; lanes; lanes &= lanes - 1)
        places.push_back(addresses[__builtin_ctz(lanes)]);
    now->needed += bytes * different(places);
    for (uint64_t &p : places)
        p /= 32;
    now->sectors += different(places);
    for (uint64_t p : places)
        now->distinct += touched.insert(p).second;
}

/* ---- the tables ---- */

/* Datasheets and architecture whitepapers: A100 SXM 80 GB, H100 SXM, H200 SXM. Per multiprocessor and cycle, all three
 * issue 4 instructions of a warp, compute 16 exponents, and move 128 bytes between registers and what is shared memory
 * and L1: a wavefront, or four sectors. The clock is that of the tensor cores' peak. */
static const struct Gpu {
    const char *name;
    int multiprocessors, floats;                /* floats: multiply-adds per multiprocessor and cycle */
    double clock, matrix_flops, bytes;          /* Hz; FLOP/s in bf16 and fp16; bytes/s of memory */
} gpus[] = {
    {"A100", 108, 64, 1.41e9, 312e12, 2.039e12},
    {"H100", 132, 128, 1.83e9, 989.4e12, 3.35e12},
    {"H200", 132, 128, 1.83e9, 989.4e12, 4.8e12},
};

/* Returns the longest of the times. print: one line. */
static double bounds(const Counts &c, const Gpu &g, bool print)
{
    static const char *const names[] = {"tensor cores", "floats", "exponents", "L1", "memory", "issue"};
    const double cycles = g.clock * g.multiprocessors * c.launches, flops = 2.0 * 16 * 8 * 16 * c.of_kind[MATRIX];
    const double seconds[] = {flops / g.matrix_flops / c.launches, c.of_kind[FLOAT] * 32 / cycles / g.floats,
                              c.of_kind[EXPONENT] * 32 / cycles / 16, (c.wavefronts + c.sectors / 4) / cycles,
                              c.distinct * 32 / g.bytes / c.launches, c.instructions / cycles / 4};
    const int longest = std::max_element(seconds, seconds + 6) - seconds;

    if (!print)
        return seconds[longest];
    printf("  %s", g.name);
    for (int i = 0; i < 6; i++)
        printf(" %9.2f", seconds[i] * 1e6);
    printf("  %s", names[longest]);
    if (longest > 1 && (flops || 8 * c.of_kind[FLOAT] > c.instructions))
        printf(": at most %.0f%% of the peak of %s", 100 * seconds[flops == 0] / seconds[longest], names[flops == 0]);
    printf("\n");
    return seconds[longest];
}

static struct AtEnd {
    ~AtEnd()
    {
        const char *const what = getenv("SIMULATED_COUNTS");
        if (what && !strcmp(what, "calls")) {
            for (const auto &c : calls)
                printf("calls: %s %llu\n", c.first.c_str(), (unsigned long long)c.second);
            return;
        }
        if (counting && !counts.empty())
            printf("\nper launch, in thousands: PTX instructions of warps; wavefronts; sectors of 32 bytes\n"
                   "on each GPU, microseconds if nothing but this took time: bounds, nothing is measured\n");
        for (const auto &k : counts) {
            const Counts &c = k.second;
            const double n = 1e3 * c.launches;
            if (bounds(c, gpus[0], false) < 0.5e-6)             /* nobody waits for it */
                continue;
            printf("\n%s, launched %llu times\n", k.first.c_str(), (unsigned long long)c.launches);
            printf("  instructions %.1f: float %.1f, ex2 %.1f, mma %.1f, ldmatrix %.1f, cp.async %.1f\n",
                   c.instructions / n, c.of_kind[FLOAT] / n, c.of_kind[EXPONENT] / n, c.of_kind[MATRIX] / n,
                   c.of_kind[LOAD_MATRICES] / n, c.of_kind[COPY] / n);
            printf("  shared memory: %.1f wavefronts, %.1f without conflicts\n", c.wavefronts / n,
                   c.least_wavefronts / n);
            printf("  memory: %.1f sectors, %.1f if each carried only what is used, %.1f different ones\n",
                   c.sectors / n, c.needed / 32 / n, c.distinct / n);
            printf("       tensor c.    floats exponents        L1    memory     issue  the longest\n");
            for (const Gpu &g : gpus)
                bounds(c, g, true);
        }
    }
} at_end;
