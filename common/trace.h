/* --trace FILE: a Chrome trace (open it at ui.perfetto.dev): a process per rank, with spans for each phase of a step,
 * operator and transfer, and counters for memory by category.
 *
 * Two counters show memory. "allocated" is the memory tracker's (memory.h). "live" is what is still needed: a value
 * lives from the operator that writes it to the last operator that reads it. (What only a transfer writes is left out.)
 * The programs allocate everything at the start, so "allocated" is flat. "live" shows the anatomy of a step:
 * activations grow during forward and shrink during backward, while gradients grow. (Playbook: "Profiling the memory
 * usage".)
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stdio.h>

#include "device.h"
#include "live.h"

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
    const char *phase;              /* an operator's: the program's span that it is in; NULL: in none */
    DeviceEvent begin, end;
    int row;                        /* the trace's row, below the rank's name */
} TraceSpan;

/* For --timeline: the step between these two calls is recorded. trace_spans returns its spans, of which the first is
 * the whole step. 0: no step was recorded. */
void trace_step_begins(void);
void trace_step_ends(void);
int64_t trace_spans(TraceSpan **spans);
double trace_seconds(DeviceEvent *event);       /* since time 0 */

void trace_begin(const char *name);             /* begins a span: "forward"; spans nest */
void trace_end(void);                           /* ends the innermost open span, also an operator's */

/* For operator.c: records an operator's operands, in the order of TraceAccess; then begins its span. */
void trace_operand(Tensor t, TraceAccess access);
void trace_operator(const char *name);

/* For comm/groups.c: a transfer's span, from its start to the end of its wait. Several may be in flight. */
int trace_transfer_begin(const char *name, const char *group);  /* returns the span, for the calls below; -1: none,
                                                                 * because nothing is recorded */
void trace_transfer_end(int span);
void trace_transfer_was(int span, double begin, double end);    /* --pretend: sets its simulated times, in seconds */

/* For allocate.c. */
void trace_memory(void);                        /* records the tracked bytes, after a change */
void trace_allocation(Tensor t, Category category);

#endif
