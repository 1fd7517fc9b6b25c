#include "trace.h"

#include <stdlib.h>

#include "error.h"
#include "live.h"
#include "options.h"

enum { TRANSFER_ROWS = 32 };

typedef struct {                /* tracked bytes at a moment */
    DeviceEvent when;
    int64_t used[MEM_CATEGORIES];
} Sample;

static bool recording, tracing; /* spans; for --trace also memory */
static int process;
static double start;
static LIST(TraceSpan) spans;
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
    APPEND(spans, (TraceSpan){.name = name, .phase = phase, .begin = device_event(), .row = row});
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
    begin_span("step", TRACE_PROGRAM);
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
    *of = step_end ? &spans.at[step_first] : NULL;
    return step_end ? step_end - step_first : 0;
}

double trace_seconds(DeviceEvent *event)
{
    event->seconds = device_event_seconds(event);
    return event->seconds - start;
}

void trace_begin(const char *name)
{
    begin_span(name, TRACE_PROGRAM);
}

void trace_operator(const char *name)
{
    begin_span(name, TRACE_OPERATOR);
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
    APPEND(spans, (TraceSpan){.name = name, .group = group, .begin = device_event(), .row = TRACE_TRANSFER + row});
    return spans.count - 1;
}

void trace_transfer_end(int span)
{
    if (span < 0)
        return;
    spans.at[span].end = device_event();
    row_taken[spans.at[span].row - TRACE_TRANSFER] = false;
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
        TraceSpan *s = &spans.at[i];
        const double begin = 1e6 * trace_seconds(&s->begin), end = 1e6 * trace_seconds(&s->end);
        fprintf(f, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", s->name, process,
                s->row, begin, end - begin);
        fprintf(f, s->group ? ",\"cat\":\"%s\"}" : "}", s->group);
    }
    for (int64_t i = 0; i < samples.count; i++)
        write_counter(f, "allocated", 1e6 * trace_seconds(&samples.at[i].when), samples.at[i].used);
    const Change *changes;
    const int64_t count = live_changes(&changes);
    int64_t live[MEM_CATEGORIES] = {0};
    for (const Change *c = changes; c < changes + count; c++) {
        const Change *next = c + 1 < changes + count ? c + 1 : NULL;
        TraceSpan *s = &spans.at[c->span];
        live[c->category] += c->bytes;
        if (!next || next->span != c->span || next->after != c->after)
            write_counter(f, "live", 1e6 * trace_seconds(c->after ? &s->end : &s->begin), live);
    }
    if (last)
        fprintf(f, "\n]\n");
}
