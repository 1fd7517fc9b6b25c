/* Live memory, for the trace: a value lives from its write, or the first addition to zeros, to its last use before the
 * next write. Weights and optimizer states stay live to the end: a checkpoint reads them. */
#ifndef LIVE_H
#define LIVE_H

#include <stdbool.h>

#include "memory.h"
#include "tensor.h"

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

typedef struct {                /* at this span, a category's live bytes change */
    int span;
    bool after;                 /* when the span ends, not when it begins */
    Category category;
    int64_t bytes;              /* negative: fewer */
} Change;

typedef enum { TRACE_READ, TRACE_UPDATE, TRACE_WRITE, TRACE_ZERO } TraceAccess;

void live_allocation(Tensor t, Category category);
void live_operand(Tensor t, TraceAccess access, int span);
int64_t live_changes(const Change **changes);   /* ends all values; sorted by span; returns how many */

#endif
