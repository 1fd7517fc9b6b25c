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

/* By how much a set's chosen run is slower than its fastest. All published runs fit, so rules choose among these. */
static double regret(const Runs *r, int set, int chooser)
{
    double first[KEYS] = {INFINITY}, fastest = 0, chosen = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++) {
        double key[KEYS];
        int k = 0;
        if (x->set != set || x->wrong)
            continue;
        choosers[chooser].keys(x, key);
        while (k < KEYS - 1 && key[k] == first[k])
            k++;
        if (key[k] < first[k]) {
            memcpy(first, key, sizeof key);
            chosen = x->measured;
        }
        fastest = fmax(fastest, x->measured);
    }
    return 1 - chosen / fastest;
}

typedef enum { SIZE, SIGNED, MEMORY } Error;

static bool any_run(const Run *r)
{
    (void)r;
    return true;
}

static bool easy_run(const Run *r)                      /* without a pipeline and with tp inside a node */
{
    return r->grid.pp == 1 && r->grid.tp <= 8;
}

static bool mixture(const Run *r)
{
    return r->query.model.experts > 0;
}

/* Median error over the runs of a group that count and are `of` a kind; group -1: of all. */
static double median_error(const Runs *r, int group, Error which, bool (*of)(const Run *r))
{
    double *error = malloc(r->count * sizeof *error);
    int n = 0;

    if (!error)
        fail("no memory for the errors of %d runs", r->count);
    for (const Run *x = r->all; x < r->all + r->count; x++) {
        const double e = which == MEMORY ? x->predicted_memory / x->memory - 1 : x->predicted / x->measured - 1;
        if ((group < 0 || x->group == group) && !x->wrong && x->weight && of(x) && isfinite(e))
            error[n++] = which == SIGNED ? e : fabs(e);
    }
    const double m = median(error, n);
    free(error);
    return m;
}

/* Rank correlation within a set; *of is one of its n runs. */
static double correlation(const Runs *r, int set, const Run **of, int *n)
{
    double *x = malloc(2 * r->count * sizeof *x), *y = x + r->count;

    if (!x)
        fail("no memory for %d runs", r->count);
    *n = 0;
    for (const Run *one = r->all; one < r->all + r->count; one++)
        if (one->set == set && !one->wrong) {
            *of = one;
            x[*n] = one->measured, y[(*n)++] = one->predicted;
        }
    const double s = spearman(x, y, *n);
    free(x);
    return s;
}

static void print_published(const Runs *r)
{
    enum { MANY = 5 };                          /* runs of a set whose ranks say something */
    double sum = 0, lost = 0;
    int sets = 0;

    printf("%-40s runs   median error   signed\n", "source");
    for (int g = 0; g < r->groups; g++) {
        int n = 0;
        const Run *of = NULL;
        for (const Run *x = r->all; x < r->all + r->count; x++)
            if (x->group == g && !x->wrong && x->weight)
                of = x, n++;
        if (n)
            printf("%-40s %4d %13.1f%% %+7.1f%%\n", of->name, n, 100 * median_error(r, g, SIZE, any_run),
                   100 * median_error(r, g, SIGNED, any_run));
    }
    const double all = 100 * median_error(r, -1, SIZE, any_run), mixtures = 100 * median_error(r, -1, SIZE, mixture);
    if (isfinite(all))
        printf("\n%-45s %13.1f%% %+7.1f%%\n", "all that count", all, 100 * median_error(r, -1, SIGNED, any_run));
    if (isfinite(mixtures))
        printf("%-45s %13.1f%%\n", "of these, mixtures of experts", mixtures);
    printf("\n");
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->wrong)
            printf("not predicted: %s, %s: %s\n", x->name, x->query.model.name, x->wrong);
    for (int s = 0; s < r->sets; s++) {
        const Run *of;
        int n;
        const double c = correlation(r, s, &of, &n);
        if (n < MANY)
            continue;
        printf("ranks of %2d runs of %-22s on %4d GPUs: Spearman %.2f, regret %.1f%%\n", n, of->query.model.name,
               of->query.cluster.gpus, c, 100 * regret(r, s, 0));
        sum += c, lost += regret(r, s, 0), sets++;
    }
    if (sets)
        printf("mean of %d sets: Spearman %.2f, regret %.1f%%\n", sets, sum / sets, 100 * lost / sets);
}

static void print_playbook(const Runs *r)
{
    enum { SMALL = 32 };                        /* nodes; on more, the published runs contradict each other */
    double regrets[CHOOSERS] = {0}, sum = 0;
    int good[CHOOSERS] = {0}, small = 0;

    printf("model nodes runs   error of tokens/s  rank correlation   regret: planner and three rules   error of memory"
           "\n");
    for (int g = 0; g < r->groups; g++) {       /* which are sets, too */
        const Run *of;
        int n;
        const double s = correlation(r, g, &of, &n);
        const bool is_small = of->query.cluster.gpus <= SMALL * of->query.cluster.per_node;
        sum += s;
        small += is_small;
        printf("%s %4d %17.1f%% %17.2f   ", of->name, n, 100 * median_error(r, g, SIZE, any_run), s);
        for (int c = 0; c < CHOOSERS; c++) {
            const double lost = regret(r, g, c);
            regrets[c] += lost / r->groups;
            good[c] += is_small && lost <= 0.1;
            printf("%7.1f%%", 100 * lost);
        }
        printf("%18.1f%%\n", 100 * median_error(r, g, MEMORY, any_run));
    }
    printf("\n%d runs in %d groups\n", r->count, r->groups);
    printf("median error of tokens/s         %5.1f%%\n", 100 * median_error(r, -1, SIZE, any_run));
    printf("  where pp = 1 and tp <= 8       %5.1f%%\n", 100 * median_error(r, -1, SIZE, easy_run));
    printf("median error of memory           %5.1f%%\n", 100 * median_error(r, -1, MEMORY, any_run));
    printf("mean rank correlation (Spearman) %6.2f\n", sum / r->groups);
    printf("mean regret; how many of the %d groups up to %d nodes have a choice within 10%% of the fastest\n", small,
           SMALL);
    for (int c = 0; c < CHOOSERS; c++)
        printf("  %-62s %5.1f%% %4d (%.0f%%)\n", choosers[c].what, 100 * regrets[c], good[c],
               small ? 100.0 * good[c] / small : NAN);
}

void runs_print(const Runs *r)
{
    if (r->playbook)
        print_playbook(r);
    else
        print_published(r);
}
