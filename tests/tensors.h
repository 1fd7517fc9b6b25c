/* Tensors for tests of operators. Each lies between guards that nobody may write to. */
#ifndef TENSORS_H
#define TENSORS_H

#include "../common/ultrascale.h"

/* Of which all bits are 1: NaN, or the id -1. */
Tensor guarded(DType dtype, const char *name, Shape s);
Tensor guarded_copy(Tensor t);

/* After each case: fails the test if something was written beside one of them, and frees all. */
void guarded_release(void);

/* Random: mean 0, variance 1, a triangle; the same sequence in every run, and again after random_again. */
double random_number(void);
void random_again(void);

#endif
