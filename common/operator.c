#include "operator.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "device.h"
#include "error.h"
#include "options.h"
#include "print.h"
#include "trace.h"

enum { OPERATORS = 64 };
static OpStats stats[OPERATORS];
static int stats_count;

static OpStats *current;                        /* the operator between op_begin and op_end */
static OpStats uncounted;                       /* operators while counting is disabled */
static bool counting = true;
static double began, flops_of_call, read_before;

/* On a GPU an operator has not run yet when its call returns. Its time is that between two events in the stream, read
 * once the device has reached them. */
enum { POINTS = 4096 };
static struct {
    OpStats *stats;
    DeviceEvent begin, end;
} points[POINTS];
static int64_t points_begun, points_read;       /* since the start; number n is at n mod POINTS */

static OpStats *stats_of(const char *name)
{
    for (int i = 0; i < stats_count; i++)
        if (!strcmp(stats[i].name, name))
            return &stats[i];
    if (stats_count == OPERATORS)
        fail("%s: there are more than %d operators; raise OPERATORS in operator.c", name, OPERATORS);
    stats[stats_count].name = name;
    return &stats[stats_count++];
}

static void read_point(void)
{
    const int64_t i = points_read++ % POINTS;
    const double begin = device_event_seconds(&points[i].begin), end = device_event_seconds(&points[i].end);

    points[i].stats->seconds += end - begin;
}

/* ---- What an operator takes ---- */

/* Whether the product `size`, such as "3*A*D", is n. Binds its letter if one is unknown. With several it cannot tell:
 * then it returns `unsure`. */
static bool matches(const char *size, size_t length, int64_t n, int64_t *letters, bool unsure)
{
    int64_t *unknown = NULL, product = 1;
    int unknowns = 0;

    for (const char *c = size; c < size + length; c += strcspn(c, "*") + 1) {
        int64_t *letter = *c >= 'A' && *c <= 'Z' ? &letters[*c - 'A'] : NULL;
        if (letter && *letter < 0)
            unknown = letter, unknowns++;
        else
            product *= letter ? *letter : atoll(c);
    }
    if (unknowns > 1)
        return unsure;
    if (unknown && product && n % product == 0)
        *unknown = n / product, product = n;
    return product == n;
}

static bool shape_fits(Tensor t, const char *shape, size_t length, int64_t *letters, bool unsure)
{
    const char *size[5], *end = shape + length;
    int sizes = 0;

    for (const char *c = shape; c < end && sizes < 5; c += strcspn(c, ", ") + 1)
        size[sizes++] = c;
    size[sizes] = end + 1;
    if (sizes > 2 && sizes != t.dims)
        return false;
    for (int i = 0; i < sizes; i++) {
        const int64_t n = sizes == 1 ? tensor_count(t) : sizes > 2 ? t.shape[i] : i ? tensor_width(t) : tensor_rows(t);
        if (!matches(size[i], size[i + 1] - size[i] - 1, n, letters, unsure))
            return false;
    }
    return true;
}

/* Whether the dtype is what the word of a rule stands for. No word: the dtype of the activations before. */
static bool dtype_fits(DType dtype, const char *word, size_t length, int *activations)
{
    enum { STORED = 1 << REAL | 1 << BF16 | 1 << F16 };
    static const struct { const char *word; unsigned dtypes; } kinds[] = {
        {"", STORED}, {"G", 1 << REAL | 1 << BF16}, {"REAL", 1 << REAL}, {"F64", 1 << F64}, {"I32", 1 << I32},
        {"FP8", 1 << E4M3 | 1 << E5M2}, {"STORED", STORED}, {"ANY", ~0u}};
    size_t k = 0;

    while (strlen(kinds[k].word) != length || strncmp(kinds[k].word, word, length))
        if (++k == sizeof kinds / sizeof *kinds)
            return false;
    if (length == 0 && *activations < 0)
        *activations = dtype;
    return kinds[k].dtypes >> dtype & 1 && (length > 0 || (int)dtype == *activations);
}

static const char *unmet;               /* op_require's rule that the operands break */

static _Noreturn void refuse(const char *name, const char *takes, const Operands *o)
{
    const char *text = "";

    for (int i = 0; i < o->count; i++)
        text = format_text("%s%s%s%s", text, i ? ", " : "", o->t[i].data ? tensor_describe(o->t[i]) : "none",
                           o->t[i].data ? format_text(" %s", dtype_name(o->t[i].dtype)) : "");
    fail("%s: %s; but it takes %s%s%s", name, text, takes, unmet ? ", and " : "", unmet ? unmet : "");
}

void op_require(bool fits, const char *rule)
{
    if (!fits)
        unmet = rule;
}

/* Checks the operands against `takes`. Twice, because the first pass finds letters that an earlier operand has in a
 * product only. */
static void check_operands(const char *name, const char *takes, const Operands *o)
{
    int64_t letters[26];

    memset(letters, 0xff, sizeof letters);
    for (int pass = 0; pass < 2; pass++) {
        int activations = -1, i = 0;
        for (const char *c = takes, *end; *c; c = *end ? end + 2 : end, i++) {
            const char *shape = c + strcspn(c, " ") + 1;
            const size_t length = strcspn(shape, " ;");
            const char *dtype = shape[length] == ' ' ? shape + length + 1 : shape + length;
            const bool optional = strchr("=+0", *c) ? c[1] == '?' : *c == '?';
            const Tensor t = i < o->count ? o->t[i] : NONE;
            end = c + strcspn(c, ";");
            if (t.data ? !shape_fits(t, shape, length, letters, pass == 0)
                             || !dtype_fits(t.dtype, dtype, end - dtype, &activations)
                       : !optional)
                refuse(name, takes, o);
        }
    }
    if (unmet)
        refuse(name, takes, o);
}

void op_begin(const char *name, double flops, const char *takes, Operands o)
{
    double bytes = read_before;

    check_operands(name, takes, &o);
    for (int i = 0; i < o.count; i++)
        bytes += tensor_bytes(o.t[i]);
    current = counting ? stats_of(name) : &uncounted;
    current->calls++;
    current->flops += flops;
    current->bytes += bytes;
    read_before = 0;
    flops_of_call = flops;
    trace_operator(name, takes, o.t, o.count);
    began = clock_seconds();
    if (options.report && !device_is_host()) {
        if (points_begun - points_read == POINTS)
            read_point();
        points[points_begun % POINTS].stats = current;
        points[points_begun % POINTS].begin = device_event();
    }
}

void op_reads(const char *name, const char *takes, Tensor t)
{
    check_operands(name, takes, &OPERANDS(t));
    read_before += tensor_bytes(t);
}

void op_end(void)
{
    if (options.pretend) {
        device_wait();
        while (clock_seconds() - began < flops_of_call / options.pretend_flops) {
            comm_progress();
            sched_yield();                      /* to other ranks on this core that have real work */
        }
    }
    comm_progress();                            /* MPI moves data only inside its calls */
    if (device_is_host())
        current->seconds += clock_seconds() - began;
    else if (options.report)
        points[points_begun++ % POINTS].end = device_event();
    trace_end();
}

int ops_stats(const OpStats **s)
{
    while (points_read < points_begun)
        read_point();
    *s = stats;
    return stats_count;
}

void ops_stats_reset(void)
{
    while (points_read < points_begun)
        read_point();
    stats_count = 0;
    memset(stats, 0, sizeof stats);
}

void ops_stats_enable(bool yes)
{
    counting = yes;
}
