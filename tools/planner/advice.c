/* What is odd about a question or its answer, and what to ask instead. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/print.h"
#include "explain.h"
#include "profiles.h"

static double fastest(const Query *q)                  /* tokens/s on all GPUs; 0: no grid fits */
{
    const Candidates c = candidates(q);
    const double tokens = c.fitting ? c.all[0].tokens * q->cluster.gpus : 0;

    free(c.all);
    return tokens;
}

/* Halves the GPUs, in whole nodes, while twice as many bring less than a quarter. */
static void advise_fewer(const Query *q, double tokens)
{
    Query fewer = *q;
    double enough = tokens;
    int gpus = q->cluster.gpus;

    for (int n = gpus / 2; n >= 1; n /= 2) {
        fewer.cluster.gpus = n -= n > q->cluster.per_node ? n % q->cluster.per_node : 0;
        const double before = fastest(&fewer);
        if (before < 0.8 * enough)
            break;
        enough = before, gpus = n;
    }
    if (gpus < q->cluster.gpus)
        printf("- More GPUs than are useful: with this batch %d reach %s tokens/s in all, %d only %s.\n"
               "  A larger --batch would use more of them.\n",
               gpus, number_text(enough), q->cluster.gpus, number_text(tokens));
}

/* The share of the step that the same grid would save if links took no time. */
static void advise_links(const Query *q, const Candidate *best)
{
    Hardware instant = q->hardware;
    Constants k = q->constants;

    instant.nvlink = instant.network = INFINITY, instant.latency = 0, k.hop = k.sync = 0;
    const Time time = grid_time(&q->model, &best->grid, &q->cluster, &instant, &k, NULL);
    const double share = 1 - time.total / best->time.total;
    if (share > 0.5)
        printf("- Not practical: %.0f%% of the step is communication that nothing hides.\n", 100 * share);
}

/* How far to trust the numbers: by the errors of sources whose runs the fit left out (profiles.c). */
static void advise_trust(const Query *q)
{
    const Traits *f = &frameworks[q->cluster.framework];
    const Profile *p = &profiles[profile_for(q->cluster.framework, &q->hardware)];
    const char *gpu = q->hardware.name;

    if (!isinf(q->hardware.memory) && (q->model.experts || !strstr(f->measured, format_text("%.4s", gpu))))
        printf("- No run of %s%s on %s was fitted to: the order of grids is reliable, absolute numbers within 25%%\n"
               "  (of sources that the fit left out, the worst was off by %.0f%%).\n", f->command,
               q->model.experts ? " with experts" : "", gpu, 100 * p->error);
}

void print_advice(const Query *q, const Candidates *c)
{
    const Candidate *best = &c->all[0];

    advise_links(q, best);
    advise_fewer(q, best->tokens * q->cluster.gpus);
    if (best->mfu > q->constants.efficiency)
        printf("- MFU exceeds the efficiency, %.1f%%, because it counts all of attention's square; kernels compute the "
               "causal half.\n", 100 * q->constants.efficiency);
    advise_trust(q);
}
