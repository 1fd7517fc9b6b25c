/* --trace FILE: what happened when, as a Chrome trace (open it at ui.perfetto.dev): a process a rank, spans for the
 * parts of a step and every operator, and how much memory was in use, by category.
 *
 * Two counters tell of memory. "allocated" is what the account (memory.h) holds. "live" is what was needed: from an
 * operator's write to the last read of what it wrote by an operator. (What only a transfer writes is not in it.) The
 * programs allocate everything once, at the start, so "allocated" is flat, and "live" draws the anatomy of a step:
 * activations grow through forward and fall through backward, while gradients grow. (Playbook: "Profiling the memory
 * usage".)
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>

#include "memory.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts to record; without it calls here record nothing, and only name ranges for a GPU's profiler. `start`: the
 * moment that counts as 0, on clock_seconds's clock, which ranks of one machine share. */
void trace_open(int rank, double start);

/* Writes what was recorded: rank after rank appends to one file, and the last one ends it. */
void trace_write(const char *path, bool first, bool last);

void trace_begin(const char *name);             /* a span: "forward"; they nest */
void trace_end(void);                           /* of the latest one that is open, an operator's too */

/* For ops.c: an operator's span begins, and before it each operand, in the order read, updated, written. */
typedef enum { TRACE_READ, TRACE_UPDATE, TRACE_WRITE, TRACE_ZERO } TraceAccess;
void trace_operand(Tensor t, TraceAccess access);
void trace_operator(const char *name);

/* For comm/groups.c: a transfer's span, from its start to the end of the wait for it; several may be under way. */
int trace_transfer_begin(const char *name, const char *group);     /* returns what trace_transfer_end takes */
void trace_transfer_end(int span);
void trace_transfer_was(int span, double begin, double end);    /* --pretend: when it would have been */

/* For allocate.c. */
void trace_memory(void);                        /* the account has changed */
void trace_allocation(Tensor t, Category category);

#ifdef __cplusplus
}
#endif

#endif
