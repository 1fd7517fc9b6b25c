/* What surrounds every operator: it checks operands, counts calls, FLOPs and bytes, records the trace, and waits under
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

/* Begins an operator: the tensors that it writes, adds to and reads (NONE is skipped), its FLOPs, and whether the
 * operands fit. If they don't, the program ends and shows them and the rule. */
void op_begin(const char *name, Operands writes, Operands updates, Operands reads, double flops, bool fits,
              const char *rule);
void op_end(void);

void op_reads(Tensor t);                        /* before op_begin: adds an operand that is read, for a tensor list */

/* ---- conditions for op_begin's `fits` ---- */

/* (rows, width) REAL; dimensions but the last count as rows. */
static inline bool is_matrix(Tensor t, int64_t rows, int64_t width)
{
    return t.data && t.dtype == REAL && tensor_rows(t) == rows && tensor_width(t) == width;
}

static inline bool is_vector(Tensor t, int64_t count)
{
    return t.data && t.dtype == REAL && tensor_count(t) == count;
}

/* Dtypes of activations and weights; dtypes of parameters' gradients. */
static inline bool is_stored(DType dtype)
{
    return dtype == REAL || dtype == BF16 || dtype == F16;
}

static inline bool is_gradient(DType dtype)
{
    return dtype == REAL || dtype == BF16;
}

/* (rows, width) of the dtype that the operator's first such operand has. */
static inline bool is_matrix_of(DType dtype, Tensor t, int64_t rows, int64_t width)
{
    return is_stored(dtype) && t.data && t.dtype == dtype && tensor_rows(t) == rows && tensor_width(t) == width;
}

static inline bool is_vector_of(DType dtype, Tensor t, int64_t count)
{
    return is_stored(dtype) && t.data && t.dtype == dtype && tensor_count(t) == count;
}

/* (1) F64: the loss, a sum of squares. */
static inline bool is_f64_scalar(Tensor t)
{
    return t.data && t.dtype == F64 && tensor_count(t) == 1;
}

static inline bool are_ids(Tensor t, int64_t count)
{
    return t.data && t.dtype == I32 && tensor_count(t) == count;
}

/* ---- statistics per operator, in order of first use ---- */
typedef struct {
    const char *name;
    int64_t calls;
    double seconds, flops, bytes;               /* bytes: each operand counted once, read or written */
} OpStats;
int ops_stats(const OpStats **stats);           /* returns how many; waits for a GPU to finish the last one */
void ops_stats_reset(void);
void ops_stats_enable(bool yes);                /* whether operators are counted from now on; at first they are */

/* Measures operators' seconds on a GPU from now on, at the cost of two events per call. On the CPU they are always
 * measured. */
void ops_time(void);

/* --pretend: makes every operator take at least its FLOPs / flops_per_second; 0 turns that off. Only matmuls and
 * attention have FLOPs, as in the 6N + 12*L*h*s formula. Attention by blocks of keys is the exception: it counts only
 * the pairs that the mask leaves. Scores that backward computes again are not counted, as in the formula. */
void ops_pretend(double flops_per_second);

#endif
