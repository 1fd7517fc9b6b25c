/* The rule that an operator's operands must meet. It is the check, and what the program prints if they do not fit:
 *
 *     "=out R,M; x R,K; weight M,K; ?bias M"
 *
 * An operand per ";", in the order of the call. Before its name, "=": the operator writes it; "+": adds to it; "0":
 * zeroes it; none: reads it. "?": it may be NONE.
 * Then the shape. One size is the count, two are rows and width (tensor.h), more are all dimensions. A letter stands
 * for the same number everywhere; "3*A*D" is a product.
 * Then the dtype. None: that of activations, the same for all. Otherwise G (gradients: REAL or BF16), REAL, F64, I32,
 * FP8 (E4M3 or E5M2), STORED (REAL, BF16 or F16) or ANY.
 */
#ifndef OPERANDS_H
#define OPERANDS_H

#include "../base/tensor.h"

enum { MAX_OPERANDS = 10 };

typedef struct {
    int count;
    Tensor t[MAX_OPERANDS];
} Operands;

#define OPERANDS(...) (Operands){sizeof((Tensor[]){__VA_ARGS__}) / sizeof(Tensor), {__VA_ARGS__}}

/* Fails unless the operands of operator `name` are what the rule `takes` says. */
void operands_check(const char *name, const char *takes, const Operands *operands);

/* Fails: "linear_forward: out (64, 128) F32, ...; but it takes ...". */
_Noreturn void operands_refuse(const char *name, const char *takes, const Operands *operands);

#endif
