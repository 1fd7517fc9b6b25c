/* What the benchmarks share: medians. */
#ifndef BENCH_H
#define BENCH_H

#include <stdlib.h>

#include "../../tools/workshop/process.h"

static inline int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline double median(double *x, int n)           /* sorts x */
{
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* The median of a column of m.csv without the first step, which warms up. */
static inline double median_of(const char *column)
{
    enum { STEPS = 64 };
    double x[STEPS];
    const int rows = read_column("m.csv", column, x, STEPS);

    return median(x + 1, rows - 1);
}

#endif
