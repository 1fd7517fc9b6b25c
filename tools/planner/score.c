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

/* The rank of each of n numbers: how many are smaller. Equal numbers have their mean rank. */
static void ranks(double *rank, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        rank[i] = -n / 2.0;
        for (int k = 0; k < n; k++)
            rank[i] += x[k] < x[i] ? 1 : x[k] == x[i] ? 0.5 : 0;
    }
}

static double spearman(const double *x, const double *y, int n)
{
    double a[n], b[n], xx = 0, yy = 0, xy = 0;

    ranks(a, x, n);
    ranks(b, y, n);
    for (int i = 0; i < n; i++)
        xx += a[i] * a[i], yy += b[i] * b[i], xy += a[i] * b[i];
    return xx && yy ? xy / sqrt(xx * yy) : 1;
}

enum { MANY = 8, CHOOSERS = 4 };    /* runs of a set whose ranks say something; the planner, and three rules */
static const char *const chooser[CHOOSERS] = {"planner", "smallest pp, then tp, largest micro-batch, ZeRO-1",
                                              "tp = 8, smallest pp, largest micro-batch, ZeRO-1",
                                              "smallest tp x pp, of it tp first, largest micro-batch, ZeRO-1"};

/* A chooser takes the run with the smallest key: what counts most has the largest factor. */
static double key(const Run *r, int by)
{
    const Grid *g = &r->grid;
    const double rest = -g->micro_batch - 0.1 * g->zero;
    const double keys[CHOOSERS] = {-r->predicted, 1e6 * g->pp + 1e3 * g->tp + rest,
                                   1e6 * fabs(log(g->tp / 8.0)) + 1e3 * g->pp + rest,
                                   1e6 * g->tp * g->pp + 1e3 * g->pp + rest};

    return keys[by];
}

/* By how much a set's chosen run is slower than its fastest. All published runs fit, so rules choose among these. */
static double regret(const Runs *r, int set, int by)
{
    const Run *chosen = NULL;
    double fastest = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->set == set && !x->wrong) {
            chosen = !chosen || key(x, by) < key(chosen, by) ? x : chosen;
            fastest = fmax(fastest, x->measured);
        }
    return 1 - chosen->measured / fastest;
}

/* Which runs: those of a group that count; or of all that count a kind. */
enum { ALL = -1, EASY = -2, MIXTURES = -3 };
static bool in(const Run *x, int group)
{
    return !x->wrong && x->weight
           && (group == x->group || group == ALL || (group == MIXTURES && x->query.model.experts)
               || (group == EASY && x->grid.pp == 1 && x->grid.tp <= 8));
}

/* The median of n errors; NAN: none. */
typedef enum { SIZE, SIGNED, MEMORY } Error;
static double median_error(const Runs *r, int group, Error which, int *n)
{
    double error[r->count];

    *n = 0;
    for (const Run *x = r->all; x < r->all + r->count; x++) {
        const double e = which == MEMORY ? x->predicted_memory / x->memory - 1 : x->predicted / x->measured - 1;
        if (in(x, group) && isfinite(e))
            error[(*n)++] = which == SIGNED ? e : fabs(e);
    }
    qsort(error, *n, sizeof *error, ascending);
    return *n ? 100 * (error[(*n - 1) / 2] + error[*n / 2]) / 2 : NAN;
}

/* The rank correlation within a set; NAN: it has too few runs. */
static double correlation(const Runs *r, int set, int *group)
{
    double measured[r->count], predicted[r->count];
    int n = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->set == set && in(x, ALL)) {
            *group = x->group;
            measured[n] = x->measured, predicted[n++] = x->predicted;
        }
    return n < MANY ? NAN : spearman(measured, predicted, n);
}

/* Errors of the runs of a group; and of its sets mean rank correlation and regret. Returns the number of sets. */
static int print_errors(const Runs *r, int group, const char *name)
{
    double sum = 0, lost = 0;
    int n, of = 0, sets = 0;
    const double error = median_error(r, group, SIZE, &n), bias = median_error(r, group, SIGNED, &n);
    const int runs = n;

    if (!runs)
        return 0;
    const double memory = median_error(r, group, MEMORY, &n);
    printf("%-40s %4d %13.1f%% %+7.1f%%", name, runs, error, bias);
    printf(n ? " %7.1f%%" : "        -", memory);
    for (int s = 0; s < r->sets; s++) {
        const double c = correlation(r, s, &of);
        if (!isnan(c) && (group == of || group == ALL))
            sum += c, lost += 100 * regret(r, s, 0), sets++;
    }
    printf(sets ? " %9.2f %7.1f%% (%d)\n" : "         -        -\n", sum / sets, lost / sets, sets);
    return sets;
}

void runs_print(const Runs *r)
{
    int of;

    printf("%-40s runs   median error   signed   memory  Spearman   regret (sets)\n",
           r->playbook ? "model, nodes" : "source");
    for (int g = 0; g < r->groups; g++) {
        const Run *x = r->all;
        while (x->group != g)
            x++;
        print_errors(r, g, x->name);
    }
    printf("\n");
    const int sets = print_errors(r, ALL, "all that count");
    print_errors(r, MIXTURES, "mixtures of experts");
    print_errors(r, EASY, "pp = 1 and tp <= 8");
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->wrong)
            printf("not predicted: %s, %s: %s\n", x->name, x->query.model.name, x->wrong);
    printf(r->playbook ? "\nregret, mean of %d sets; of how many the choice is within 10%% of the fastest\n" : "", sets);
    for (int c = 0; c < CHOOSERS && r->playbook; c++) {
        double lost = 0;
        int good = 0;
        for (int s = 0; s < r->sets; s++)
            if (!isnan(correlation(r, s, &of))) {
                lost += regret(r, s, c);
                good += regret(r, s, c) <= 0.1;
            }
        printf("  %-62s %5.1f%% %4d\n", chooser[c], 100 * lost / sets, good);
    }
}
