/* What the ladders of the CPU and of CUDA share, and what is no part of the lesson: options, matrices, checks, the
 * table. Included by each of the two programs once; plain enough for C and for C++.
 */
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

#include "../../common/error.h"

enum { LADDER_MOST = 9, LADDER_TIMES = 200 };

typedef struct {
    int m, n, k;                            /* C (m, n) = A (m, k) B (k, n) */
    int threads;                            /* of the CPU; 0: all */
    int copy;                               /* MB copied to measure the memory's bandwidth; 0: don't */
    double seconds;                         /* to spend on each rung */
    int count;                              /* rungs are 1 ... count */
    bool rung[LADDER_MOST + 1];             /* which of them are wanted */
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
        fail_usage("--%s %s: numbers from %ld to %ld are possible there", option, all, least, most);
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
            fail_usage("--size %s: one number, or three as in 100x37x129 (m x n x k)", text);
        l->k = ladder_number(at + 1, &at, "size", text, 1, MOST);
    }
    if (*at)
        fail_usage("--size %s: one number, or three as in 100x37x129 (m x n x k)", text);
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
            fail_usage("--rungs %s: a list of numbers and ranges, as 1,3-5", text);
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
            fail_usage("--threads %s: one number", text);
        return 0;
    case 'c':
        l->copy = ladder_number(text, &end, "copy", text, 0, 1 << 17);
        if (*end)
            fail_usage("--copy %s: one number", text);
        return 0;
    case 'x':
        l->seconds = strtod(text, &after);
        if (after == text || *after || !(l->seconds >= 0 && l->seconds <= 3600))
            fail_usage("--seconds %s: a number from 0 to 3600", text);
        return 0;
    case ARGP_KEY_ARG:
        fail_usage("\"%s\" is not an option: they all begin with --, as --help shows", text);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* l holds the defaults and the number of rungs. */
static inline void ladder_options(Ladder *l, bool cpu, const char *summary, int argc, char **argv)
{
    struct argp_option list[] = {
        {"size", 's', "N|MxNxK", 0, "C (m, n) = A (m, k) B (k, n); one number for all three", 0},
        {"rungs", 'r', "LIST", 0, "which rungs: 1,3-5 (default: all)", 0},
        {"seconds", 'x', "X", 0, "to spend on timing each rung (default: 1); 0: one run each", 0},
        {"copy", 'c', "MB", 0, "copied to measure the memory's bandwidth: several times the last cache; 0: don't", 0},
        {"threads", 't', "N", 0, "of rung 6 (default: all cores)", 0},
        {NULL, 0, NULL, 0, NULL, 0},
    };
    if (!cpu)
        memset(&list[4], 0, sizeof list[4]);        /* the list ends there */
    const struct argp parser = {list, ladder_option, NULL, summary, NULL, NULL, NULL};
    static char name[] = "ladder";

    error_speaker(name);
    argp_err_exit_status = 2;
    for (int i = 1; i <= l->count; i++)
        l->rung[i] = true;
    argv[0] = name;                         /* argp's own messages begin with it */
    argp_parse(&parser, argc, argv, 0, NULL, l);
}

/* ---- Matrices ---- */

static inline float *ladder_matrix(int64_t rows, int64_t columns)
{
    float *x = (float *)aligned_alloc(64, (rows * columns * sizeof *x + 63) / 64 * 64);

    if (!x)
        fail("no memory for a matrix of %lld x %lld; try a smaller --size", (long long)rows, (long long)columns);
    return x;
}

/* The same numbers from -1 to 1 for the same seed: a linear congruential generator's upper bits (Knuth's constants). */
static inline void ladder_fill(float *x, int64_t count, uint64_t seed)
{
    uint64_t state = seed;

    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
    }
}

/* The Euclidean norms of `count` rows or columns of `length` elements that lie `step` apart, `next` from one to the
 * next. The caller frees them. */
static inline double *ladder_norms(const float *x, int count, int length, int64_t next, int64_t step)
{
    double *norms = (double *)malloc(count * sizeof *norms);

    if (!norms)
        fail("no memory for %d norms", count);
    for (int i = 0; i < count; i++) {
        double square = 0;
        for (int p = 0; p < length; p++)
            square += (double)x[i * next + p * step] * x[i * next + p * step];
        norms[i] = sqrt(square);
    }
    return norms;
}

/* How far a rung's product is from the library's: the largest |c - want| / (|row of A| |column of B|). What it is
 * divided by bounds the sum of |a b| behind that element (Cauchy-Schwarz), and rounding is a part of that sum. NaN if
 * any element is one. `worst`: the index of the element. */
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

/* What sums of k products in another order may differ by. One that lacks a product differs by about 0.75 / k: 200 times
 * as much at k = 1024, and still 8 times as much at k = 8192. */
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

/* number 0: none, a line of the library's. part, times, error: negative where there is nothing to say. */
static inline void ladder_row(const Ladder *l, int number, const char *name, double rate, double part, double times,
                              double error, const char *idea)
{
    char text[4][24] = {"", "-", "-", "-"};

    if (number)
        snprintf(text[0], sizeof text[0], "%d ", number);
    if (part >= 0)
        snprintf(text[1], sizeof text[1], "%.1f%%", 100 * part);
    if (times >= 0)
        snprintf(text[2], sizeof text[2], "%.2f", times);
    if (error >= 0)
        snprintf(text[3], sizeof text[3], "%.0e", error);
    printf("%-2s%-16s %10.*f %12s %9s %9s   %s\n", text[0], name, l->tera ? 2 : 1, rate / (l->tera ? 1e12 : 1e9),
           text[1], text[2], text[3], idea);
    fflush(stdout);
}

/* The roofline (Williams, Waterman, Patterson 2009): a program that does F FLOPs for each byte from memory reaches at
 * most min(rate, F * bandwidth). Where the two meet is the ridge. */
static inline void ladder_roofline(const Ladder *l, const char *what, double rate, double bandwidth, int bytes)
{
    const double all = ((double)l->m * l->k + (double)l->k * l->n) * bytes + 4.0 * l->m * l->n;

    if (bandwidth > 0)
        printf("\nroofline: %s does %.0f GFLOP/s, memory copies at %.1f GB/s, the ridge is at %.1f FLOP a byte\n"
               "this product: %.4g FLOP a byte if A, B, C cross once; %.2g if each multiplication fetches its two\n",
               what, rate / 1e9, bandwidth / 1e9, rate / bandwidth, ladder_flops(l) / all, 1.0 / bytes);
}

#endif
