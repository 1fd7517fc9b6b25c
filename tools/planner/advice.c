/* What is odd about a question or its answer, and what to ask instead. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/print.h"
#include "explain.h"
#include "profiles.h"

/* Tokens/s on all GPUs of the fastest grid that fits, and that grid in *best unless NULL; 0: none fits. */
static double fastest(const Query *q, Candidate *best)
{
    const Candidates c = candidates(q);
    const double tokens = c.fitting ? c.all[0].tokens * q->cluster.gpus : 0;

    if (tokens && best)
        *best = c.all[0];
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
        const double before = fastest(&fewer, NULL);
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

/* Other numbers of sequences, nearly as many, which dp over all GPUs divides. */
static void advise_batch(const Query *q, double tokens)
{
    const int n = q->cluster.gpus, below = q->sequences / n * n;
    Query other = *q;

    for (int i = 0; i <= 1 && below && below < q->sequences; i++) {
        other.sequences = below + i * n;
        Candidate best;
        const double faster = fastest(&other, &best) / tokens;
        if (faster > 1.02 && q->sequences % best.grid.dp && fabs(other.sequences / (double)q->sequences - 1) < 0.1) {
            printf("- dp %d does not divide %d sequences: with --batch %lld (%d) it is %.1f%% faster:\n  %s.\n",
                   best.grid.dp, q->sequences, (long long)other.sequences * q->model.seq, other.sequences,
                   100 * (faster - 1), grid_text(&best.grid));
            return;
        }
    }
}

/* What the playbook advises on many GPUs: tp 8, a pipeline, and ZeRO (in a pipeline ZeRO-1; see the README). */
static void advise_rule(const Query *q, const Candidate *best)
{
    Query rule = *q;
    Candidate x;

    rule.limits[TP] = (Range){true, 8, 8};
    rule.limits[PP] = (Range){true, 2, 1 << 20};
    if (q->cluster.gpus >= 512 && (best->grid.tp != 8 || best->grid.pp == 1) && fastest(&rule, &x))
        printf("- The playbook's rule for so many GPUs, tp 8 and a pipeline, gives %.0f tokens/s per GPU\n"
               "  (%.1f%% slower): %s.\n", x.tokens, 100 * (best->tokens / x.tokens - 1), grid_text(&x.grid));
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
    const double tokens = best->tokens * q->cluster.gpus;

    advise_links(q, best);
    advise_fewer(q, tokens);
    advise_batch(q, tokens);
    advise_rule(q, best);
    if (best->mfu > q->constants.efficiency)
        printf("- MFU exceeds the efficiency, %.1f%%, because it counts all of attention's square; kernels compute the "
               "causal half.\n", 100 * q->constants.efficiency);
    advise_trust(q);
}
