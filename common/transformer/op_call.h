/* What happens before and after every operator: operands are checked; calls, FLOPs and bytes counted; the trace gets a
 * span; and --pretend waits. Between op_begin and op_end an operator calls its backend's kernel.
 */
#ifndef OP_CALL_H
#define OP_CALL_H

#include <stdbool.h>

#include "operands.h"

/* The body of an operator: OP_CALL(the call of its kernel, flops, takes, operands). The operator has the name of the
 * function around it; `takes` is the rule of operands.h.
 *
 * Under --pretend it takes at least flops / the device's speed. Only matmuls and attention have FLOPs, and as many
 * as in the 6N + 12*L*h*s formula: scores that backward computes again are not counted. But attention by blocks of
 * keys counts fewer: only the pairs that the mask leaves. */
#define OP_CALL(call, flops, takes, ...) \
    do { \
        OP_BEGIN(flops, takes, __VA_ARGS__); \
        call; \
        op_end(); \
    } while (0)

#define OP_BEGIN(flops, takes, ...) op_begin(__func__, flops, takes, OPERANDS(__VA_ARGS__))
void op_begin(const char *name, double flops, const char *takes, Operands operands);
void op_end(void);

/* Between the two: checks and counts a tensor of a list that the operator reads. */
void op_reads(const char *takes, Tensor t);

/* Before an operator: fails unless its operands fit a rule that `takes` cannot state. */
#define OP_REQUIRE(fits, rule, ...) \
    do { \
        if (!(fits)) \
            operands_refuse(__func__, rule, &OPERANDS(__VA_ARGS__)); \
    } while (0)

/* ---- statistics per operator, in order of first use ---- */
typedef struct {
    const char *name;
    int64_t calls;
    double seconds, flops, bytes;               /* seconds: on a GPU measured under --report only, because each call
                                                 * takes two events; bytes: each operand once, read or written */
} OpStats;
int ops_stats(const OpStats **stats);           /* returns how many; waits for a GPU to finish the last one */
void ops_stats_reset(void);
void ops_stats_enable(bool yes);                /* whether operators are counted from now on; at first they are */

#endif
