/* What is around every operator: it checks the operands, enters them into the account and the trace, and waits under
 * --pretend. Between op_begin and op_end an operator calls its backend's kernel.
 */
#ifndef OPERATOR_H
#define OPERATOR_H

#include <stdbool.h>

#include "tensor.h"

typedef struct {
    int count;
    Tensor t[8];
} Operands;

#define OPERANDS(...) (Operands){sizeof((Tensor[]){__VA_ARGS__}) / sizeof(Tensor), {__VA_ARGS__}}

/* An operator starts: what it writes, what it adds to, what it reads (NONE counts as nothing), its FLOPs, and whether
 * its operands fit; if not, the program ends and says what they are and the rule. */
void op_begin(const char *name, Operands writes, Operands updates, Operands reads, double flops, bool fits,
              const char *rule);
void op_end(void);

void op_reads(Tensor t);                        /* before op_begin: one more operand, where there is a list of them */

/* ---- what op_begin's `fits` is made of ---- */

/* (rows, width) of type REAL, whatever its dimensions. */
static inline bool is(Tensor t, int64_t rows, int64_t width)
{
    return t.data && t.dtype == REAL && tensor_rows(t) == rows && tensor_width(t) == width;
}

static inline bool is_vector(Tensor t, int64_t count)
{
    return t.data && t.dtype == REAL && tensor_count(t) == count;
}

/* Types that activations and weights can have, and those of parameters' gradients. */
static inline bool is_stored(DType dtype)
{
    return dtype == REAL || dtype == BF16 || dtype == F16;
}

static inline bool is_gradient(DType dtype)
{
    return dtype == REAL || dtype == BF16;
}

/* (rows, width), stored as `dtype`, the type of the operator's first such operand. */
static inline bool as(DType dtype, Tensor t, int64_t rows, int64_t width)
{
    return is_stored(dtype) && t.data && t.dtype == dtype && tensor_rows(t) == rows && tensor_width(t) == width;
}

static inline bool as_vector(DType dtype, Tensor t, int64_t count)
{
    return is_stored(dtype) && t.data && t.dtype == dtype && tensor_count(t) == count;
}

/* (1) F64: the loss, a sum of squares. */
static inline bool is_total(Tensor t)
{
    return t.data && t.dtype == F64 && tensor_count(t) == 1;
}

static inline bool are_ids(Tensor t, int64_t count)
{
    return t.data && t.dtype == I32 && tensor_count(t) == count;
}

/* ---- what ran so far, in order of first use ---- */
typedef struct {
    const char *name;
    int64_t calls;
    double seconds, flops, bytes;               /* bytes: every operand once, read or written */
} OpAccount;
int ops_account(const OpAccount **accounts);    /* how many; on a GPU this waits for the last of them */
void ops_account_reset(void);
void ops_count(bool yes);                       /* whether operators are entered from now on: they are at first */

/* From now on operators' seconds are measured on a GPU too: events before and after each cost the host a little. On the
 * CPU they always are. */
void ops_time(void);

/* --pretend: every operator takes at least as long as it would at so many FLOP/s; 0: as long as it takes. Only matmuls
 * and attention have FLOPs by this count: that of the 6N + 12*L*h*s formula, but attention by blocks of keys counts
 * only the pairs that the mask leaves, and what it computes again in backward not at all, as the formula does. */
void ops_pretend(double flops_per_second);

#endif
