#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "error.h"
#include "options.h"

typedef struct {
    const char *name;
    const char *group;          /* a transfer's; NULL: not a transfer */
    DeviceEvent begin, end;
    int row;                    /* the trace's row, below the rank's name */
} Span;

enum { PROGRAM, OPERATORS, TRANSFERS, TRANSFER_ROWS = 32 };     /* rows; overlapping transfers use one row each */

typedef struct {
    const char *data;
    int64_t bytes;
    Category category;
} Allocation;

typedef struct {                /* a span read or wrote bytes [first, end) of an allocation */
    int allocation, span;
    int64_t first, end;
    TraceAccess access;
} Access;

typedef struct {                /* at this span, a category's live bytes change */
    int span;
    bool after;                 /* when the span ends, not when it begins */
    Category category;
    int64_t bytes;              /* negative: fewer */
} Change;

typedef struct {                /* tracked bytes at a moment */
    DeviceEvent when;
    int64_t used[MEM_CATEGORIES];
} Sample;

#define LIST(Type) struct { Type *at; int64_t count, room; }
#define APPEND(list, ...) \
    do { \
        if ((list).count == (list).room) { \
            (list).room = (list).room ? 2 * (list).room : 1024; \
            (list).at = realloc((list).at, (list).room * sizeof *(list).at); \
            if (!(list).at) \
                fail("--trace: not enough memory on the host; try fewer --steps"); \
        } \
        (list).at[(list).count++] = (__VA_ARGS__); \
    } while (0)

static bool recording;
static int process;
static double start;
static LIST(Span) spans;
static LIST(Allocation) allocations;
static LIST(Access) accesses;
static LIST(Sample) samples;
static int open_spans[16], depth;

void trace_open(int rank, double moment)
{
    recording = true;
    process = rank;
    start = moment;
}

static void begin_span(const char *name, int row)
{
    device_range_begin(name);
    if (!recording)
        return;
    open_spans[depth++ % 16] = spans.count;
    APPEND(spans, (Span){.name = name, .begin = device_event(), .row = row});
}

void trace_begin(const char *name)
{
    begin_span(name, PROGRAM);
}

void trace_operator(const char *name)
{
    begin_span(name, OPERATORS);
}

void trace_end(void)
{
    device_range_end();
    if (recording)
        spans.at[open_spans[--depth % 16]].end = device_event();
}

static bool row_taken[TRANSFER_ROWS];

int trace_transfer_begin(const char *name, const char *group)
{
    int row = 0;

    if (!recording)
        return 0;
    while (row < TRANSFER_ROWS - 1 && row_taken[row])
        row++;
    row_taken[row] = true;
    APPEND(spans, (Span){.name = name, .group = group, .begin = device_event(), .row = TRANSFERS + row});
    return spans.count - 1;
}

void trace_transfer_end(int span)
{
    if (!recording)
        return;
    spans.at[span].end = device_event();
    row_taken[spans.at[span].row - TRANSFERS] = false;
}

void trace_transfer_was(int span, double begin, double end)
{
    if (!recording)
        return;
    device_event_seconds(&spans.at[span].begin);        /* frees the GPU's events; their times are replaced */
    device_event_seconds(&spans.at[span].end);
    spans.at[span].begin.seconds = begin;
    spans.at[span].end.seconds = end;
}

void trace_allocation(Tensor t, Category category)
{
    if (recording)
        APPEND(allocations, (Allocation){t.data, tensor_bytes(t), category});
}

void trace_operand(Tensor t, TraceAccess access)
{
    if (!recording || !t.data)
        return;
    for (int i = allocations.count - 1; i >= 0; i--) {
        const Allocation *a = &allocations.at[i];
        const int64_t first = (const char *)t.data - a->data;
        if (first >= 0 && first < a->bytes) {
            APPEND(accesses, (Access){i, spans.count, first, first + tensor_bytes(t), access});
            return;
        }
    }
}

void trace_memory(void)
{
    if (!recording)
        return;
    Sample s = {.when = device_event()};
    for (int c = 0; c < MEM_CATEGORIES; c++)
        s.used[c] = memory_entry(c).used;
    APPEND(samples, s);
}

/* ---- Live memory ---- */

static LIST(Change) changes;

/* Orders accesses by allocation, then as they were recorded: by span, and within a span as TraceAccess does. */
static int by_allocation(const void *a, const void *b)
{
    const Access *x = a, *y = b;

    return x->allocation != y->allocation ? x->allocation - y->allocation
         : x->span != y->span ? x->span - y->span : (int)x->access - (int)y->access;
}

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    const Change *x = a, *y = b;

    return x->span != y->span ? (x->span > y->span) - (x->span < y->span) : x->after - y->after;
}

/* Finds when the values in one allocation are live. Splits it wherever an access begins or ends, and treats each piece
 * by itself. A value lives from its write, or the first addition to zeros, to its last use before the next write.
 * Weights and optimizer states stay live to the end: a checkpoint reads them. */
static void lives_of(const Access *access, int64_t count)
{
    const Allocation *a = &allocations.at[access->allocation];
    const bool lasts = a->category == MEM_PARAMETERS || a->category == MEM_MASTER || a->category == MEM_OPTIMIZER;
    int64_t *cuts = host_alloc(2 * count * sizeof *cuts, "--trace (try fewer --steps)"), pieces = 0;

    for (int64_t i = 0; i < count; i++)
        cuts[2 * i] = access[i].first, cuts[2 * i + 1] = access[i].end;
    qsort(cuts, 2 * count, sizeof *cuts, by_number);
    for (int64_t i = 0; i < 2 * count; i++)
        if (!pieces || cuts[i] != cuts[pieces - 1])
            cuts[pieces++] = cuts[i];

    struct { int born, last; } *piece = host_alloc(pieces * sizeof *piece, "--trace (try fewer --steps)");
    for (int64_t p = 0; p < pieces; p++)
        piece[p].born = -1;
    for (int64_t i = 0; i <= count; i++) {              /* one more round ends what is still live */
        const bool over = i == count;
        const int64_t first = over ? 0 : access[i].first, end = over ? cuts[pieces - 1] : access[i].end;
        const int64_t *at = bsearch(over ? &cuts[0] : &first, cuts, pieces, sizeof *cuts, by_number);
        for (int64_t p = at - cuts; p < pieces - 1 && cuts[p] < end; p++) {
            const int64_t bytes = cuts[p + 1] - cuts[p];
            /* an operator that overwrites what it reads needs the memory once, not twice */
            const bool in_place = !over && access[i].access == TRACE_WRITE && piece[p].born >= 0
                                  && piece[p].last == access[i].span;
            const TraceAccess how = over ? TRACE_ZERO : in_place ? TRACE_UPDATE : access[i].access;
            if (piece[p].born >= 0 && (how == TRACE_WRITE || how == TRACE_ZERO)) {
                if (piece[p].last > piece[p].born || (over && lasts))       /* else the value was never used */
                    APPEND(changes, (Change){piece[p].born, false, a->category, bytes});
                if (piece[p].last > piece[p].born && !(over && lasts))
                    APPEND(changes, (Change){piece[p].last, true, a->category, -bytes});
                piece[p].born = -1;
            }
            if (over || how == TRACE_ZERO)
                continue;
            if (piece[p].born < 0 && (how != TRACE_READ || lasts))
                piece[p].born = lasts && how == TRACE_READ ? 0 : access[i].span;
            piece[p].last = access[i].span;
        }
    }
    free(cuts);
    free(piece);
}

static void find_lives(void)
{
    if (accesses.count)                                 /* none: no step was done */
        qsort(accesses.at, accesses.count, sizeof *accesses.at, by_allocation);
    for (int64_t i = 0, n; i < accesses.count; i += n) {
        for (n = 1; i + n < accesses.count && accesses.at[i + n].allocation == accesses.at[i].allocation;)
            n++;
        lives_of(&accesses.at[i], n);
    }
    if (changes.count)
        qsort(changes.at, changes.count, sizeof *changes.at, by_time);
}

/* ---- The file ---- */

static double microseconds(double seconds)
{
    return 1e6 * (seconds - start);
}

static void write_counter(FILE *f, const char *name, double when, const int64_t *bytes)
{
    fprintf(f, ",\n{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{", name, process, when);
    for (int c = 0; c < MEM_CATEGORIES; c++)
        fprintf(f, "%s\"%s\":%lld", c ? "," : "", memory_name[c], (long long)bytes[c]);
    fprintf(f, "}}");
}

void trace_write(const char *path, bool first, bool last)
{
    FILE *f = fopen(path, "a");

    if (!f)
        fail("--trace %s cannot be written: %s", options.trace, strerror(errno));
    fprintf(f, "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            first ? "[" : ",", process, process);
    for (int64_t i = 0; i < spans.count; i++) {
        Span *s = &spans.at[i];
        const double begin = device_event_seconds(&s->begin), end = device_event_seconds(&s->end);
        s->begin.seconds = begin, s->end.seconds = end;
        fprintf(f, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", s->name, process,
                s->row, microseconds(begin), 1e6 * (end - begin));
        fprintf(f, s->group ? ",\"cat\":\"%s\"}" : "}", s->group);
    }
    for (int64_t i = 0; i < samples.count; i++)
        write_counter(f, "allocated", microseconds(device_event_seconds(&samples.at[i].when)), samples.at[i].used);
    find_lives();
    int64_t live[MEM_CATEGORIES] = {0};
    for (int64_t i = 0; i < changes.count; i++) {
        const Change *c = &changes.at[i], *next = i + 1 < changes.count ? c + 1 : NULL;
        const Span *s = &spans.at[c->span];
        live[c->category] += c->bytes;
        if (!next || next->span != c->span || next->after != c->after)
            write_counter(f, "live", microseconds(c->after ? s->end.seconds : s->begin.seconds), live);
    }
    if (last)
        fprintf(f, "\n]\n");
    if (ferror(f) | fclose(f))
        fail("--trace %s could not be written: %s", options.trace, strerror(errno));
}
