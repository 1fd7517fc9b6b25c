/* Common code of ladder_cpu.c and ladder_cuda.cu, none of which is part of the lesson: options, matrices, checks, the
 * table. Valid C and C++. */
#ifndef LADDER_H
#define LADDER_H

#include <argp.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "../../common/base/error.h"
#ifdef __cplusplus
}
#endif

enum { LADDER_MOST = 9, LADDER_TIMES = 200 };

typedef struct {
    int m, n, k;                            /* C (m, n) = A (m, k) B (k, n) */
    int threads;                            /* CPU threads; 0: all cores */
    int copy;                               /* MB to copy to measure memory bandwidth; 0: none */
    double seconds;                         /* to spend on timing each rung */
    int count;                              /* rungs are numbered 1 to count */
    bool rung[LADDER_MOST + 1];             /* the rungs to run */
    bool tera;                              /* rates in TFLOP/s, not GFLOP/s */
} Ladder;

/* ---- Options ---- */

static inline long ladder_number(const char *text, const char **end, const char *option, const char *all, long least,
                                 long most)
{
    char *after;

    errno = 0;
    const long x = strtol(text, &after, 10);
    if (after == text || errno || x < least || x > most || *text < '0' || *text > '9')
        fail_usage("--%s: expected integers from %ld to %ld, got '%s'", option, least, most, all);
    *end = after;
    return x;
}

/* "1024", or "100x37x129" for m, n and k. */
static inline void ladder_size(Ladder *l, const char *text)
{
    const char *at;
    enum { MOST = 1 << 17 };

    l->m = l->n = l->k = ladder_number(text, &at, "size", text, 1, MOST);
    if (*at == 'x') {
        l->n = ladder_number(at + 1, &at, "size", text, 1, MOST);
        if (*at != 'x')
            fail_usage("--size: expected one number, or three such as 100x37x129 (m x n x k), got '%s'", text);
        l->k = ladder_number(at + 1, &at, "size", text, 1, MOST);
    }
    if (*at)
        fail_usage("--size: expected one number, or three such as 100x37x129 (m x n x k), got '%s'", text);
}

/* "4", "1,3" or "3-6,1". */
static inline void ladder_rungs(Ladder *l, const char *text)
{
    memset(l->rung, 0, sizeof l->rung);
    for (const char *at = text;; at++) {
        const long first = ladder_number(at, &at, "rungs", text, 1, l->count);
        const long last = *at == '-' ? ladder_number(at + 1, &at, "rungs", text, 1, l->count) : first;
        for (long i = first; i <= last; i++)
            l->rung[i] = true;
        if (last < first || (*at && *at != ','))
            fail_usage("--rungs: expected a list of numbers and ranges such as 1,3-5, got '%s'", text);
        if (!*at)
            break;
    }
}

static inline error_t ladder_option(int key, char *text, struct argp_state *state)
{
    Ladder *l = (Ladder *)state->input;
    const char *end;
    char *after;

    switch (key) {
    case 's':
        ladder_size(l, text);
        return 0;
    case 'r':
        ladder_rungs(l, text);
        return 0;
    case 't':
        l->threads = ladder_number(text, &end, "threads", text, 1, 1024);
        if (*end)
            fail_usage("--threads: expected an integer from 1 to 1024, got '%s'", text);
        return 0;
    case 'c':
        l->copy = ladder_number(text, &end, "copy", text, 0, 1 << 17);
        if (*end)
            fail_usage("--copy: expected an integer from 0 to 131072, got '%s'", text);
        return 0;
    case 'x':
        l->seconds = strtod(text, &after);
        if (after == text || *after || !(l->seconds >= 0 && l->seconds <= 3600))
            fail_usage("--seconds: expected a number from 0 to 3600, got '%s'", text);
        return 0;
    case ARGP_KEY_ARG:
        fail_usage("\"%s\" is not an option: options begin with --; see --help", text);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Parses the command line into l, which holds the defaults and the number of rungs. */
static inline void ladder_options(Ladder *l, bool cpu, const char *summary, int argc, char **argv)
{
    struct argp_option list[] = {
        {"size", 's', "N|MxNxK", 0, "C (m, n) = A (m, k) B (k, n); one number for all three", 0},
        {"rungs", 'r', "LIST", 0, "rungs to run, such as 1,3-5 (default: all)", 0},
        {"seconds", 'x', "X", 0, "time to spend on each rung (default: 1); 0: one run each", 0},
        {"copy", 'c', "MB", 0, "copied to measure memory bandwidth: several times the last-level cache; 0: none", 0},
        {"threads", 't', "N", 0, "threads of rung 6 (default: OMP_NUM_THREADS, or all cores)", 0},
        {NULL, 0, NULL, 0, NULL, 0},
    };
    if (!cpu)
        memset(&list[4], 0, sizeof list[4]);        /* --threads is for the CPU: the list ends before it */
    const struct argp parser = {list, ladder_option, NULL, summary, NULL, NULL, NULL};
    static char name[] = "ladder";

    error_set_program(name);
    argp_err_exit_status = 2;
    for (int i = 1; i <= l->count; i++)
        l->rung[i] = true;
    argv[0] = name;                         /* argp's messages begin with it */
    argp_parse(&parser, argc, argv, 0, NULL, l);
}

/* ---- Matrices ---- */

static inline float *ladder_matrix(int64_t rows, int64_t columns)
{
    float *x = (float *)aligned_alloc(64, (rows * columns * sizeof *x + 63) / 64 * 64);

    if (!x)
        fail("not enough memory for %lld x %lld floats; try a smaller --size", (long long)rows, (long long)columns);
    return x;
}

/* Fills x with numbers from -1 to 1 that seed determines: upper bits of an LCG with Knuth's constants. */
static inline void ladder_fill(float *x, int64_t count, uint64_t seed)
{
    uint64_t state = seed;

    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
    }
}

/* Returns the Euclidean norms of `count` rows or columns of `length` elements. Strides: `step` from element to element,
 * `next` from one row or column to the next. The caller frees the norms. */
static inline double *ladder_norms(const float *x, int count, int length, int64_t next, int64_t step)
{
    double *norms = (double *)malloc(count * sizeof *norms);

    if (!norms)
        fail("not enough memory for %d norms; try a smaller --size", count);
    for (int i = 0; i < count; i++) {
        double square = 0;
        for (int p = 0; p < length; p++)
            square += (double)x[i * next + p * step] * x[i * next + p * step];
        norms[i] = sqrt(square);
    }
    return norms;
}

/* Returns the error of a rung's product against the library's: the largest |c - want| / (|row of A| |column of B|). The
 * denominator bounds the element's sum of |a b| (Cauchy-Schwarz), to which rounding errors are proportional. NaN if any
 * element is NaN. `worst`: the index of that element. */
static inline double ladder_error(const float *c, const float *want, int m, int n, const double *row,
                                  const double *column, int64_t *worst)
{
    double most = -1;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const int64_t at = (int64_t)i * n + j;
            const double error = fabs((double)c[at] - want[at]) / (row[i] * column[j]);
            if (!(error <= most)) {
                most = error;
                *worst = at;
                if (isnan(error))
                    return error;
            }
        }
    return most;
}

/* Returns the largest error that another order of k additions explains. A sum without one of its products has an error
 * of about 0.75 / k: 200 times as much at k = 1024, and still 8 times as much at k = 8192. */
static inline double ladder_allowed(int k)
{
    return FLT_EPSILON * fmax(4, sqrt(k));
}

/* ---- The table ---- */

static int ladder_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline double ladder_median(double *x, int count)
{
    qsort(x, count, sizeof *x, ladder_ascending);
    return count % 2 ? x[count / 2] : (x[count / 2 - 1] + x[count / 2]) / 2;
}

static inline double ladder_flops(const Ladder *l)
{
    return 2.0 * l->m * l->n * l->k;
}

static inline void ladder_head(const Ladder *l, const char *library)
{
    char part[24];

    snprintf(part, sizeof part, "of %s", library);
    printf("%-18s %10s %12s %9s %9s   %s\n", "rung", l->tera ? "TFLOP/s" : "GFLOP/s", part, "x before", "error",
           "the idea");
}

/* Prints a row. number 0: a row of the library, without a number. part, times, error: negative prints "-". */
static inline void ladder_row(const Ladder *l, int number, const char *name, double rate, double part, double times,
                              double error, const char *idea)
{
    char text[4][24] = {"", "-", "-", "-"};
    const int digits = l->tera ? 2 : 1;
    const double unit = l->tera ? 1e12 : 1e9;

    if (number)
        snprintf(text[0], sizeof text[0], "%d ", number);
    if (part >= 0)
        snprintf(text[1], sizeof text[1], "%.1f%%", 100 * part);
    if (times >= 0)
        snprintf(text[2], sizeof text[2], "%.2f", times);
    if (error >= 0)
        snprintf(text[3], sizeof text[3], "%.0e", error);
    printf("%-2s%-16s %10.*f %12s %9s %9s   %s\n", text[0], name, digits, rate / unit, text[1], text[2], text[3], idea);
    fflush(stdout);
}

/* Prints the roofline (Williams, Waterman, Patterson 2009): with x FLOPs per byte from memory, a program reaches at
 * most min(rate, x * bandwidth) FLOP/s. The two are equal at the ridge. */
static inline void ladder_roofline(const Ladder *l, const char *what, double rate, double bandwidth, int bytes)
{
    const double all = ((double)l->m * l->k + (double)l->k * l->n) * bytes + 4.0 * l->m * l->n;

    if (bandwidth > 0)
        printf("\nroofline: %s does %.0f GFLOP/s, memory copies at %.1f GB/s, the ridge is at %.1f FLOPs per byte\n"
               "this product: %.4g FLOPs per byte if A, B and C are moved once; "
               "%.2g if each multiplication loads its two factors\n",
               what, rate / 1e9, bandwidth / 1e9, rate / bandwidth, ladder_flops(l) / all, 1.0 / bytes);
}

#endif
