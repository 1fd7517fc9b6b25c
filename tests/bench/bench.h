/* What the benchmarks share: medians, and the table of operators. */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>
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

/* Prints the operators of the run that wrote r.json, but those below `least` of the time. */
static inline void print_operators(int steps, double least)
{
    static const char *const field[] = {"seconds", "flops", "bytes"};
    double total = 0, value[3];
    char *op;

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; (op = json_text("r.json", "ranks.0.operators", i, "op")); i++, free(op)) {
            for (int k = 0; k < 3; k++)
                value[k] = json_number("r.json", "ranks.0.operators.%d.%s", i, field[k]);
            if (pass == 0)
                total += value[0];
            else if (value[0] > least * total)
                printf("    %-24s %5.1f%%  %9.3f ms per step  %9.1f GFLOP/s  %8.1f GB/s\n", op,
                       100 * value[0] / total, 1e3 * value[0] / steps, value[1] / value[0] / 1e9,
                       value[2] / value[0] / 1e9);
        }
}

#endif
