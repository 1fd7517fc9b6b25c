/* The rule that an operator's operands must meet. It is the check, and what the program prints if they do not fit:
 *
 *     "=out R,M; x R,K; weight M,K; ?bias M"
 *
 * Operands are separated by "; ", and stand in the order of the call. Before a name, "=" means that the operator writes
 * it, "+" that it adds to it, "0" that it zeroes it; without one of them it reads it. Then "?" means that it may be
 * NONE: "+?d_bias M".
 * The shape follows the name. With one size this is the number of elements; with two, rows and width (tensor.h); with
 * more, every dimension. A letter stands for the same number everywhere; "3*A*D" is a product.
 * Last comes the dtype: G (gradients: REAL or BF16), REAL, F64, I32, FP8 (E4M3 or E5M2), STORED (REAL, BF16 or F16) or
 * ANY. Without a word it is REAL, BF16 or F16, the same for all such operands of a call.
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
