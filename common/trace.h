/* --trace FILE: what happened when, as a Chrome trace (open it at ui.perfetto.dev): a process a rank, spans for the
 * parts of a step and every operator, and how much memory was in use, by category.
 *
 * Two counters tell of memory. "allocated" is what the account (memory.h) holds. "live" is what was needed: from an
 * operator's write to the last read of what it wrote. The programs allocate everything once, at the start, so
 * "allocated" is flat, and "live" draws the anatomy of a step: activations grow through forward and fall through
 * backward, while gradients grow. (Playbook: "Profiling the memory usage".)
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>

#include "tensor.h"

/* Starts to record, for a file that trace_close writes; without trace_open all calls here do nothing. */
void trace_open(const char *path, int rank);
void trace_close(void);

void trace_begin(const char *name);             /* a span: "forward"; they nest */
void trace_end(void);

/* For ops.c: an operator's span, and before it each operand, in the order read, updated, written. */
typedef enum { TRACE_READ, TRACE_UPDATE, TRACE_WRITE, TRACE_ZERO } TraceAccess;
void trace_operand(Tensor t, TraceAccess access);
void trace_operator_begin(const char *name);
void trace_operator_end(void);

/* For memory.c and tensor.c. */
void trace_memory(void);                        /* the account has changed */
void trace_allocation(Tensor t, Category category);

#endif
