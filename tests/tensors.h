/* Tensors for tests of operators. Each lies between guards, which no operator may write. */
#ifndef TENSORS_H
#define TENSORS_H

#include "../common/ultrascale.h"

/* Creates a tensor whose bits are all 1 (NaN, or the id -1), guarded_shift elements from an aligned address. */
extern int guarded_shift;
Tensor guarded(DType dtype, const char *name, Shape s);

/* The same, of zeros, or of random numbers times `scale`, the same for the same name. They are rounded to `as` first,
 * so that tensors of REAL and of a small type get the same numbers. */
Tensor zeroed(DType dtype, const char *name, Shape s);
Tensor seeded(DType dtype, DType as, const char *name, Shape s, double scale);

Tensor empty(const char *name, Shape s);                /* guarded, of REAL */
Tensor filled(const char *name, Shape s);               /* with random_number() */
Tensor random_like(Tensor t);                           /* fills t with random_number(), and returns it */
Tensor ids_below(const char *name, int64_t count, int64_t limit);       /* random, with repeats; every fourth is -1 */
real *data(Tensor t);                                   /* its elements, if it is of REAL */

/* Arrays of zeros, and of a tensor's elements. */
double *zeros(int64_t count);
double *numbers(Tensor t);

/* Fails the test unless all |t - expected| <= most * max |expected|. */
void assert_near(Tensor t, const double *expected, double most);

/* Call it after each case: fails the test if a guard changed, and frees all tensors and arrays. */
void guarded_release(void);

/* A random number of a triangular distribution, mean 0, variance 1. The sequence is the same in every run, and starts
 * over after random_again. */
double random_number(void);
void random_again(void);

#endif
