/* What surrounds every operator: it checks operands, counts calls, FLOPs and bytes, records the trace, and waits under
 * --pretend. Between op_begin and op_end an operator calls its backend's kernel.
 */
#ifndef OPERATOR_H
#define OPERATOR_H

#include <stdbool.h>

#include "tensor.h"

enum { MAX_OPERANDS = 10 };

typedef struct {
    int count;
    Tensor t[MAX_OPERANDS];
} Operands;

#define OPERANDS(...) (Operands){sizeof((Tensor[]){__VA_ARGS__}) / sizeof(Tensor), {__VA_ARGS__}}

/* Begins an operator. `takes` states its operands, in the order of the call. It is the check, and what the program
 * prints if they do not fit:
 *     "=out R,M; x R,K; weight M,K; ?bias M"
 * "=": the operator writes it; "+": adds to it; "0": zeroes it; none: reads it. "?": it may be NONE.
 * Then the shape. One size is the count, two are rows and width (tensor.h), more are all dimensions. A letter stands
 * for the same number everywhere; "3*A*D" is a product.
 * Then the dtype. None: that of activations, the same for all. Otherwise G (gradients: REAL or BF16), REAL, F64, I32,
 * FP8 (E4M3 or E5M2), STORED (REAL, BF16 or F16) or ANY.
 *
 * Under --pretend the operator takes at least flops / its speed. Only matmuls and attention have FLOPs, as in the
 * 6N + 12*L*h*s formula. Attention by blocks of keys is the exception: it counts only the pairs that the mask leaves.
 * Scores that backward computes again are not counted, as in the formula. */
void op_begin(const char *name, double flops, const char *takes, Operands operands);
void op_end(void);

#define OP_BEGIN(name, flops, takes, ...) op_begin(name, flops, takes, OPERANDS(__VA_ARGS__))

/* An operator: OP_CALL(the call of its kernel, "its name", flops, takes, operands). */
#define OP_CALL(call, name, flops, takes, ...) \
    do { \
        OP_BEGIN(name, flops, takes, __VA_ARGS__); \
        call; \
        op_end(); \
    } while (0)

void op_require(bool fits, const char *rule);   /* before op_begin: a rule that `takes` cannot state */
void op_reads(const char *name, const char *takes, Tensor t);      /* before op_begin: one operand of a list */

/* ---- statistics per operator, in order of first use ---- */
typedef struct {
    const char *name;
    int64_t calls;
    double seconds, flops, bytes;               /* seconds: on a GPU with --report only, since each call takes two
                                                 * events; bytes: each operand counted once, read or written */
} OpStats;
int ops_stats(const OpStats **stats);           /* returns how many; waits for a GPU to finish the last one */
void ops_stats_reset(void);
void ops_stats_enable(bool yes);                /* whether operators are counted from now on; at first they are */

#endif
