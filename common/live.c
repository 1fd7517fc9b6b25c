#include "live.h"

#include <stdlib.h>

#include "error.h"

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

static LIST(Allocation) allocations;
static LIST(Change) changes;

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

static void use(const Allocation *a, Piece *p, TraceAccess access, int span)
{
    /* an operator that overwrites what it reads needs the memory once, not twice */
    if (access == TRACE_ZERO || (access == TRACE_WRITE && p->last != span))
        end_value(a, p, false);
    if (access == TRACE_ZERO)
        return;
    if (p->born < 0 && (access != TRACE_READ || lasts(a)))
        p->born = access == TRACE_READ ? 0 : span;
    p->last = span;
}

void live_allocation(Tensor t, Category category)
{
    Allocation a = {t.data, tensor_bytes(t), category};

    APPEND(a.pieces, (Piece){0, a.bytes, -1, 0});
    APPEND(allocations, a);
}

void live_operand(Tensor t, TraceAccess access, int span)
{
    int64_t i = allocations.count;

    while (--i >= 0) {
        Allocation *a = &allocations.at[i];
        const int64_t first = (const char *)t.data - a->data, end = first + tensor_bytes(t);
        if (first < 0 || first >= a->bytes)
            continue;
        cut(a, first);
        cut(a, end);
        for (Piece *p = a->pieces.at; p < a->pieces.at + a->pieces.count; p++)
            if (first <= p->first && p->end <= end)
                use(a, p, access, span);
        return;
    }
}

static int by_time(const void *a, const void *b)
{
    const Change *x = a, *y = b;

    return x->span != y->span ? x->span - y->span : x->after - y->after;
}

int64_t live_changes(const Change **all)
{
    for (Allocation *a = allocations.at; a < allocations.at + allocations.count; a++)
        for (Piece *p = a->pieces.at; p < a->pieces.at + a->pieces.count; p++)
            end_value(a, p, lasts(a));
    if (changes.count)                                  /* none: no step was done */
        qsort(changes.at, changes.count, sizeof *changes.at, by_time);
    *all = changes.at;
    return changes.count;
}
