/* What the benchmarks share: medians, and the table of operators. */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Prints the operators of the run that wrote r.json whose names begin with `name`, but those below `least` of the time.
 * With a bandwidth, in bytes/s, it prints their floor too, for r.json's peak rate; an operand that is read and written
 * counts once there. */
static inline void print_operators(const char *name, double least, double bandwidth)
{
    static const char *const field[] = {"seconds", "flops", "bytes", "calls"};
    const double peak = json_number("r.json", "peak_flops"), steps = json_number("r.json", "ranks.0.time.steps");
    double total = 0, value[4];
    char *op;

    printf("%.0f steps of %.1f ms\n", steps, 1e3 * json_number("r.json", "ranks.0.time.seconds") / steps);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; (op = json_text("r.json", "ranks.0.operators", i, "op")); i++, free(op)) {
            for (int k = 0; k < 4; k++)
                value[k] = json_number("r.json", "ranks.0.operators.%d.%s", i, field[k]);
            if (pass == 0)
                total += value[0];
            if (pass == 0 || value[0] <= least * total || strncmp(op, name, strlen(name)))
                continue;
            const double by_flops = value[1] / peak, by_bytes = bandwidth > 0 ? value[2] / bandwidth : 0;
            printf("    %-28s %5.1f%%  %9.3f ms per step  %9.1f us per call  %9.1f GFLOP/s  %8.1f GB/s", op,
                   100 * value[0] / total, 1e3 * value[0] / steps, 1e6 * value[0] / value[3], value[1] / value[0] / 1e9,
                   value[2] / value[0] / 1e9);
            if (bandwidth > 0)
                printf("  floor %3.0f%%", 100 * (by_flops > by_bytes ? by_flops : by_bytes) / value[0]);
            printf("\n");
        }
}

#endif
