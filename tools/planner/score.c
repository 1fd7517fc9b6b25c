/* How good the planner's choices among the published runs are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "runs.h"

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, n, sizeof *x, ascending);
    return n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : NAN;
}

/* The rank of each of n numbers: how many are smaller. Equal numbers have their mean rank. */
static void ranks(double *rank, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        rank[i] = 0;
        for (int k = 0; k < n; k++)
            rank[i] += x[k] < x[i] ? 1 : x[k] == x[i] ? 0.5 : 0;
    }
}

static double spearman(const double *x, const double *y, int n)
{
    double *a = malloc(2 * n * sizeof *a), *b = a + n, xx = 0, yy = 0, xy = 0;

    if (!a)
        fail("no memory for the ranks of %d runs", n);
    ranks(a, x, n);
    ranks(b, y, n);
    for (int i = 0; i < n; i++) {
        a[i] -= n / 2.0, b[i] -= n / 2.0;
        xx += a[i] * a[i], yy += b[i] * b[i], xy += a[i] * b[i];
    }
    free(a);
    return xx && yy ? xy / sqrt(xx * yy) : 1;
}

/* A rule chooses the run with the smallest first key; of equals, the smallest second key; and so on. */
enum { KEYS = 4 };
static void pipeline_last(const Run *r, double *key)    /* pp = 1, the smallest tp up to 8, the largest micro-batch */
{
    const double list[KEYS] = {r->grid.pp, r->grid.tp, -r->grid.micro_batch, -r->grid.zero};

    memcpy(key, list, sizeof list);
}

static void full_node(const Run *r, double *key)       /* tp = 8, the smallest pp */
{
    const double list[KEYS] = {fabs(log(r->grid.tp / 8.0)), r->grid.pp, -r->grid.micro_batch, -r->grid.zero};

    memcpy(key, list, sizeof list);
}

static void least_model_parallel(const Run *r, double *key)     /* the smallest tp * pp, tp before pp */
{
    const double list[KEYS] = {r->grid.tp * r->grid.pp, r->grid.pp, -r->grid.micro_batch, -r->grid.zero};

    memcpy(key, list, sizeof list);
}

static void planner(const Run *r, double *key)
{
    const double list[KEYS] = {-r->predicted};

    memcpy(key, list, sizeof list);
}

static const struct {
    const char *what;
    void (*keys)(const Run *r, double *key);
} choosers[] = {
    {"planner", planner},
    {"smallest pp, then tp, largest micro-batch, ZeRO-1", pipeline_last},
    {"tp = 8, smallest pp, largest micro-batch, ZeRO-1", full_node},
    {"smallest tp x pp, of it tp first, largest micro-batch, ZeRO-1", least_model_parallel},
};
enum { CHOOSERS = sizeof choosers / sizeof *choosers };

/* By how much a group's chosen run is slower than its fastest. All published runs fit, so rules choose among these. */
static double regret(const Runs *r, int group, int chooser)
{
    double first[KEYS] = {INFINITY}, fastest = 0, chosen = 0;

    for (int i = 0; i < r->count; i++) {
        double key[KEYS];
        int k = 0;
        if (r->all[i].group != group)
            continue;
        choosers[chooser].keys(&r->all[i], key);
        while (k < KEYS - 1 && key[k] == first[k])
            k++;
        if (key[k] < first[k]) {
            memcpy(first, key, sizeof key);
            chosen = r->all[i].measured;
        }
        fastest = fmax(fastest, r->all[i].measured);
    }
    return 1 - chosen / fastest;
}

/* Median error over the runs of a group; -1: of all. `easy`: only runs without a pipeline and with tp inside a node. */
static double median_error(const Runs *r, int group, bool memory, bool easy)
{
    double *error = malloc(r->count * sizeof *error);
    int n = 0;

    if (!error)
        fail("no memory for the errors of %d runs", r->count);
    for (int i = 0; i < r->count; i++) {
        const Run *one = &r->all[i];
        if ((group < 0 || one->group == group) && (!easy || (one->grid.pp == 1 && one->grid.tp <= 8)))
            error[n++] = memory ? fabs(one->predicted_memory / one->memory - 1)
                                : fabs(one->predicted / one->measured - 1);
    }
    const double m = median(error, n);
    free(error);
    return m;
}

void runs_print(const Runs *r)
{
    enum { SMALL = 32 };                        /* nodes; on more, the published runs contradict each other */
    double *x = malloc(2 * r->count * sizeof *x), *y = x + r->count;
    double regrets[CHOOSERS] = {0}, correlation = 0;
    int good[CHOOSERS] = {0}, small_groups = 0;

    if (!x)
        fail("no memory for %d runs", r->count);
    printf("model nodes runs   error of tokens/s  rank correlation   regret: planner and three rules   error of memory"
           "\n");
    for (int g = 0; g < r->groups; g++) {
        const Run *of = r->all;
        int n = 0;
        for (int i = 0; i < r->count; i++)
            if (r->all[i].group == g) {
                of = &r->all[i];
                x[n] = of->measured, y[n++] = of->predicted;
            }
        const int nodes = of->cluster.gpus / of->cluster.per_node;
        const double s = spearman(x, y, n);
        correlation += s / r->groups;
        small_groups += nodes <= SMALL;
        printf("%-5s %5d %4d %17.1f%% %17.2f   ", of->model.name, nodes, n, 100 * median_error(r, g, false, false), s);
        for (int c = 0; c < CHOOSERS; c++) {
            const double lost = regret(r, g, c);
            regrets[c] += lost / r->groups;
            good[c] += nodes <= SMALL && lost <= 0.1;
            printf("%7.1f%%", 100 * lost);
        }
        printf("%18.1f%%\n", 100 * median_error(r, g, true, false));
    }
    printf("\n%d runs in %d groups\n", r->count, r->groups);
    printf("median error of tokens/s         %5.1f%%\n", 100 * median_error(r, -1, false, false));
    printf("  where pp = 1 and tp <= 8       %5.1f%%\n", 100 * median_error(r, -1, false, true));
    printf("median error of memory           %5.1f%%\n", 100 * median_error(r, -1, true, false));
    printf("mean rank correlation (Spearman) %6.2f\n", correlation);
    printf("mean regret; how many of the %d groups up to %d nodes have a choice within 10%% of the fastest\n",
           small_groups, SMALL);
    for (int c = 0; c < CHOOSERS; c++)
        printf("  %-62s %5.1f%% %4d (%.0f%%)\n", choosers[c].what, 100 * regrets[c], good[c],
               small_groups ? 100.0 * good[c] / small_groups : NAN);
    free(x);
}
