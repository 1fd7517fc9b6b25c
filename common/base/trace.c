#include "trace.h"

#include <stdlib.h>

#include "error.h"
#include "options.h"

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

enum { TRANSFER_ROWS = 32 };

typedef struct {
    Tensor tensor;
    const char *category;
    int64_t bytes, used;        /* bytes: negative if it was freed; used: of the category, then */
    DeviceEvent when;
} Allocation;

static bool recording, tracing; /* spans; for --trace also memory */
static int process;
static double start;
static LIST(TraceSpan) spans;
static int64_t step_first = -1, step_end;       /* the spans of the step that trace_spans returns; -1: none */
static LIST(Allocation) allocations;
static int open_spans[16], depth;

static void begin_span(const char *name, int row)
{
    device_range_begin(name);
    if (!recording)
        return;
    const char *phase = depth ? spans.at[open_spans[(depth - 1) % 16]].name : "";
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

void trace_operator(const char *name, const char *takes, const Tensor *operands, int count)
{
    size_t length;

    begin_span(name, TRACE_OPERATOR);
    if (!tracing)
        return;
    TraceSpan *s = &spans.at[spans.count - 1];
    s->takes = takes;
    FILE *text = open_memstream(&s->operands, &length);
    for (const Tensor *t = operands; t < operands + count; t++) {
        const char *of = t->data ? t->name : "none";
        fprintf(text, t == operands ? "%s" : "; %s", of);
        fprintf(text, " %lld %lld", (long long)(intptr_t)t->data, (long long)tensor_bytes(*t));
    }
    fclose(text);
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

void trace_memory(Tensor t, const char *category, int64_t bytes, int64_t used)
{
    if (tracing)
        APPEND(allocations, (Allocation){t, category, bytes, used, device_event()});
}

/* ---- The file ---- */

void trace_write(FILE *f, bool first, bool last)
{
    fprintf(f, "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            first ? "[" : ",", process, process);
    for (TraceSpan *s = spans.at; s < spans.at + spans.count; s++) {
        const double begin = 1e6 * trace_seconds(&s->begin), end = 1e6 * trace_seconds(&s->end);
        fprintf(f, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", s->name, process,
                s->row, begin, end - begin);
        if (s->operands)
            fprintf(f, ",\"args\":{\"takes\":\"%s\",\"operands\":\"%s\"}", s->takes, s->operands);
        fprintf(f, s->group ? ",\"cat\":\"%s\"}" : "}", s->group);
    }
    for (Allocation *a = allocations.at; a < allocations.at + allocations.count; a++) {
        const double when = 1e6 * trace_seconds(&a->when);
        fprintf(f, ",\n{\"name\":\"%s\",\"ph\":\"i\",\"pid\":%d,\"ts\":%.3f,\"cat\":\"%s\",\"args\":{\"operands\":"
                "\"%s %lld %lld\"}}", a->tensor.name, process, when, a->category, a->tensor.name,
                (long long)(intptr_t)a->tensor.data, (long long)a->bytes);
        fprintf(f, ",\n{\"name\":\"allocated\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"%s\":%lld}}",
                process, when, a->category, (long long)a->used);
    }
    if (last)
        fprintf(f, "\n]\n");
}
