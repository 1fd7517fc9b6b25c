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

#define LIST(Type) struct { Type *at; int64_t count, capacity; }
#define APPEND(list, ...) \
    do { \
        if ((list).count == (list).capacity) { \
            (list).capacity = (list).capacity ? 2 * (list).capacity : 16; \
            (list).at = realloc((list).at, (list).capacity * sizeof *(list).at); \
            if (!(list).at) \
                fail("--trace: not enough memory on the host; try fewer --steps"); \
        } \
        (list).at[(list).count++] = (__VA_ARGS__); \
    } while (0)

typedef struct {                /* bytes [first, end) of an allocation, which operators only use together */
    int64_t first, end;
    int born, last;             /* the span that wrote the value in it, and the last one that used it; -1: no value */
} Piece;

typedef struct {
    const char *data;
    int64_t bytes;
    Category category;
    LIST(Piece) pieces;
} Allocation;

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

static bool recording;
static int process;
static double start;
static LIST(Span) spans;
static LIST(Allocation) allocations;
static LIST(Change) changes;
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

void trace_memory(void)
{
    if (!recording)
        return;
    Sample s = {.when = device_event()};
    for (int c = 0; c < MEM_CATEGORIES; c++)
        s.used[c] = memory_entry(c).used;
    APPEND(samples, s);
}

/* ---- Live memory ----
 * A value lives from its write, or the first addition to zeros, to its last use before the next write. Weights and
 * optimizer states stay live to the end: a checkpoint reads them. */

static bool lasts(const Allocation *a)
{
    return a->category == MEM_PARAMETERS || a->category == MEM_MASTER || a->category == MEM_OPTIMIZER;
}

static void end_value(const Allocation *a, Piece *p, bool stays)
{
    const int64_t bytes = p->end - p->first;

    if (p->born >= 0 && (p->last > p->born || stays)) {         /* otherwise the value was never used */
        APPEND(changes, (Change){p->born, false, a->category, bytes});
        if (!stays)
            APPEND(changes, (Change){p->last, true, a->category, -bytes});
    }
    p->born = -1;
}

/* Makes byte `at` the start of a piece. */
static void cut(Allocation *a, int64_t at)
{
    for (int64_t i = 0; i < a->pieces.count; i++) {
        Piece right = a->pieces.at[i];
        if (right.first < at && at < right.end) {
            a->pieces.at[i].end = right.first = at;
            APPEND(a->pieces, right);
        }
    }
}

static void use(const Allocation *a, Piece *p, TraceAccess access)
{
    const int span = spans.count;

    /* an operator that overwrites what it reads needs the memory once, not twice */
    if (access == TRACE_ZERO || (access == TRACE_WRITE && p->last != span))
        end_value(a, p, false);
    if (access == TRACE_ZERO)
        return;
    if (p->born < 0 && (access != TRACE_READ || lasts(a)))
        p->born = access == TRACE_READ ? 0 : span;
    p->last = span;
}

void trace_allocation(Tensor t, Category category)
{
    Allocation a = {t.data, tensor_bytes(t), category};

    if (!recording)
        return;
    APPEND(a.pieces, (Piece){0, a.bytes, -1, 0});
    APPEND(allocations, a);
}

void trace_operand(Tensor t, TraceAccess access)
{
    int64_t i = recording && t.data ? allocations.count : 0;

    while (--i >= 0) {
        Allocation *a = &allocations.at[i];
        const int64_t first = (const char *)t.data - a->data, end = first + tensor_bytes(t);
        if (first < 0 || first >= a->bytes)
            continue;
        cut(a, first);
        cut(a, end);
        for (Piece *p = a->pieces.at; p < a->pieces.at + a->pieces.count; p++)
            if (first <= p->first && p->end <= end)
                use(a, p, access);
        return;
    }
}

static int by_time(const void *a, const void *b)
{
    const Change *x = a, *y = b;

    return x->span != y->span ? x->span - y->span : x->after - y->after;
}

static void end_all_values(void)
{
    for (Allocation *a = allocations.at; a < allocations.at + allocations.count; a++)
        for (Piece *p = a->pieces.at; p < a->pieces.at + a->pieces.count; p++)
            end_value(a, p, lasts(a));
    if (changes.count)                                  /* none: no step was done */
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
    end_all_values();
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
