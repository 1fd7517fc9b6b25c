/* --trace FILE: a Chrome trace (open it at ui.perfetto.dev): a process per rank, with spans for each phase of a step,
 * operator and transfer, what each operator takes, each allocation, and a counter of the allocated memory by category.
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stdio.h>

#include "device.h"

/* Starts recording for --trace. Until then, but for the step of --timeline, the calls below record nothing, and only
 * name ranges for a GPU's profiler. start: time 0 of the trace, on clock_seconds's clock, which the ranks of one
 * machine share. */
void trace_open(int rank, double start);

/* Writes this rank's events to the file. Ranks take turns; the last one completes it. */
void trace_write(FILE *f, bool first, bool last);

enum { TRACE_PROGRAM, TRACE_OPERATOR, TRACE_TRANSFER };       /* rows; from here on one per transfer in flight */
typedef struct {
    const char *name;
    const char *group;              /* a transfer's; NULL: not a transfer */
    const char *phase;              /* an operator's: the program's span that it is in; "": in none */
    DeviceEvent begin, end;
    int row;                        /* the trace's row, below the rank's name */
    char *operands;                 /* an operator's, for --trace: name, address and bytes of each; else NULL */
    const char *takes;              /* how it uses each of them (operands.h) */
} TraceSpan;

/* For --timeline: the step between these two calls is recorded. trace_spans returns its spans, of which the first is
 * the whole step. 0: no step was recorded. */
void trace_step_begins(void);
void trace_step_ends(void);
int64_t trace_spans(TraceSpan **spans);
double trace_seconds(DeviceEvent *event);       /* since time 0 */

void trace_begin(const char *name);             /* begins a span: "forward"; spans nest */
void trace_end(void);                           /* ends the innermost open span, also an operator's */

/* For op_call.c: begins an operator's span. `takes` says how it uses its operands (operands.h). */
void trace_operator(const char *name, const char *takes, const Tensor *operands, int count);

/* For comm/: a transfer's span, from its start to the end of its wait. Several may be in flight. */
int trace_transfer_begin(const char *name, const char *group);  /* returns the span, for the calls below; -1: none,
                                                                 * because nothing is recorded */
void trace_transfer_end(int span);
void trace_transfer_was(int span, double begin, double end);    /* --pretend: sets its simulated times, in seconds */

/* For allocate.c: records that t's memory was taken, or given back: then bytes is negative. used: bytes of its
 * category, then. */
void trace_memory(Tensor t, const char *category, int64_t bytes, int64_t used);

#endif
