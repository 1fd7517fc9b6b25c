#include "trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "error.h"
#include "live.h"
#include "options.h"

typedef struct {
    const char *name;
    const char *group;          /* a transfer's; NULL: not a transfer */
    const char *phase;          /* an operator's: the program's span that it is in; NULL: in none */
    DeviceEvent begin, end;
    int row;                    /* the trace's row, below the rank's name */
} Span;

enum { PROGRAM, OPERATORS, TRANSFERS, TRANSFER_ROWS = 32 };     /* rows; overlapping transfers use one row each */

typedef struct {                /* tracked bytes at a moment */
    DeviceEvent when;
    int64_t used[MEM_CATEGORIES];
} Sample;

static bool recording, tracing; /* spans; for --trace also memory */
static int process;
static double start;
static LIST(Span) spans;
static int64_t step_first = -1, step_end;       /* the spans of the step that trace_spans returns; -1: none */
static LIST(Sample) samples;
static int open_spans[16], depth;

static void begin_span(const char *name, int row)
{
    device_range_begin(name);
    if (!recording)
        return;
    const char *phase = depth ? spans.at[open_spans[(depth - 1) % 16]].name : NULL;
    open_spans[depth++ % 16] = spans.count;
    APPEND(spans, (Span){.name = name, .phase = phase, .begin = device_event(), .row = row});
}

void trace_open(int rank, double moment)
{
    recording = tracing = options.trace;
    process = rank;
    start = moment;
}

void trace_step_begins(void)
{
    recording = true;
    step_first = spans.count;
    begin_span("step", PROGRAM);
}

void trace_step_ends(void)
{
    if (step_first < 0 || step_end)
        return;
    trace_end();
    step_end = spans.count;
    recording = tracing;
}

int64_t trace_spans(TraceSpan **of)
{
    const int64_t count = step_end ? step_end - step_first : 0;

    *of = host_alloc(count * sizeof **of, "the spans of a step");
    for (int64_t i = 0; i < count; i++) {
        Span *s = &spans.at[step_first + i];
        s->begin.seconds = device_event_seconds(&s->begin), s->end.seconds = device_event_seconds(&s->end);
        (*of)[i] = (TraceSpan){s->name, s->group, s->row == OPERATORS ? s->phase ? s->phase : "" : NULL,
                               s->begin.seconds - start,
                               fmax(s->begin.seconds, s->end.seconds) - start};     /* if it is still in flight */
    }
    return count;
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
        return -1;
    while (row < TRANSFER_ROWS - 1 && row_taken[row])
        row++;
    row_taken[row] = true;
    APPEND(spans, (Span){.name = name, .group = group, .begin = device_event(), .row = TRANSFERS + row});
    return spans.count - 1;
}

void trace_transfer_end(int span)
{
    if (span < 0)
        return;
    spans.at[span].end = device_event();
    row_taken[spans.at[span].row - TRANSFERS] = false;
}

void trace_transfer_was(int span, double begin, double end)
{
    if (span < 0)
        return;
    device_event_seconds(&spans.at[span].begin);        /* frees the GPU's events; their times are replaced */
    device_event_seconds(&spans.at[span].end);
    spans.at[span].begin.seconds = begin;
    spans.at[span].end.seconds = end;
}

void trace_memory(void)
{
    if (!tracing)
        return;
    Sample s = {.when = device_event()};
    for (int c = 0; c < MEM_CATEGORIES; c++)
        s.used[c] = memory_entry(c).used;
    APPEND(samples, s);
}

void trace_allocation(Tensor t, Category category)
{
    if (tracing)
        live_allocation(t, category);
}

void trace_operand(Tensor t, TraceAccess access)
{
    if (tracing && t.data)
        live_operand(t, access, spans.count);
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

void trace_write(FILE *f, bool first, bool last)
{
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
    const Change *changes;
    const int64_t count = live_changes(&changes);
    int64_t live[MEM_CATEGORIES] = {0};
    for (const Change *c = changes; c < changes + count; c++) {
        const Change *next = c + 1 < changes + count ? c + 1 : NULL;
        const Span *s = &spans.at[c->span];
        live[c->category] += c->bytes;
        if (!next || next->span != c->span || next->after != c->after)
            write_counter(f, "live", microseconds(c->after ? s->end.seconds : s->begin.seconds), live);
    }
    if (last)
        fprintf(f, "\n]\n");
}
