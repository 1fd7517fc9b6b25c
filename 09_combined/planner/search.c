#include "search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "../../common/print.h"

static const double GiB = 1073741824;
enum { MAX_SEQUENCES = 128 };       /* per micro-batch */

bool fits(const Query *q, const Memory *m)
{
    return m->total <= memory_limit * q->hardware.memory;
}

const char *grid_text(const Grid *g)
{
    static char text[8][128];
    static int next;
    char *t = text[next++ % 8];

    snprintf(t, sizeof text[0], "tp=%d,cp=%d,pp=%d,dp=%d,micro-batch=%d,accumulate=%d,zero=%d,recompute=%s", g->tp,
             g->cp, g->pp, g->dp, g->micro_batch, g->accumulate, g->zero, g->recompute ? "full" : "none");
    return t;
}

const char *grid_error(const Query *q, const Grid *g)
{
    static char text[512];
    const Model *m = &q->model;
    const double ranks = (double)g->dp * g->cp * g->pp * g->tp;

    text[0] = 0;
    if (ranks != q->cluster.gpus)
        snprintf(text, sizeof text, "tp %d x cp %d x pp %d x dp %d: expected %d ranks, one per GPU, got %.0f", g->tp,
                 g->cp, g->pp, g->dp, q->cluster.gpus, ranks);
    else if (m->heads % g->tp || m->kv_heads % g->tp)
        snprintf(text, sizeof text, "tp %d: expected a divisor of the %d %sheads: %s", g->tp, m->kv_heads,
                 m->kv_heads < m->heads ? "key-value " : "", divisors_text(m->kv_heads));
    else if (g->pp > m->layers)
        snprintf(text, sizeof text, "pp %d: expected at most the %d layers", g->pp, m->layers);
    else if (g->cp > 1 && m->seq % (2 * g->cp))
        snprintf(text, sizeof text, "cp %d: expected 2 x cp to divide the %d tokens per sequence", g->cp, m->seq);
    else if ((double)g->dp * g->micro_batch * g->accumulate != q->sequences)
        snprintf(text, sizeof text, "dp %d x micro-batch %d x accumulate %d: expected the batch of %d sequences, got "
                 "%.0f", g->dp, g->micro_batch, g->accumulate, q->sequences,
                 (double)g->dp * g->micro_batch * g->accumulate);
    else if ((int64_t)g->micro_batch * m->seq / g->cp % g->tp)
        snprintf(text, sizeof text, "micro-batch %d x %d tokens: expected a multiple of tp %d", g->micro_batch,
                 m->seq / g->cp, g->tp);
    else if (g->zero > 1 && g->pp > 1)
        snprintf(text, sizeof text, "zero %d with pp %d: expected zero 0 or 1, as in a pipeline ZeRO-2 and 3 would "
                 "reduce-scatter or all-gather in every micro-batch", g->zero, g->pp);
    return text[0] ? text : NULL;
}

Candidate candidate_of(const Query *q, const Grid *g)
{
    Candidate c = {.grid = *g, .memory = grid_memory(&q->model, g, &q->cluster)};

    c.time = grid_time(&q->model, g, &q->cluster, &q->hardware, &q->constants, NULL);
    c.tokens = grid_tokens(&q->model, g) / c.time.total / q->cluster.gpus;
    c.mfu = c.tokens * model_flops(&q->model) / q->hardware.peak;
    return c;
}

/* Calls found(q, g, of) for every possible grid; returns their number. */
static int each_grid(const Query *q, void (*found)(const Query *q, const Grid *g, void *of), void *of)
{
    const int n = q->cluster.gpus, sequences = q->sequences;
    int count = 0;

    for (int tp = 1; tp <= n && tp <= q->model.kv_heads; tp++)
        for (int cp = 1; n % tp == 0 && cp <= n / tp; cp++)
            for (int pp = 1; n / tp % cp == 0 && pp <= n / tp / cp && pp <= q->model.layers; pp++)
                for (int b = 1; n / tp / cp % pp == 0 && b <= MAX_SEQUENCES; b++) {
                    Grid g = {.tp = tp, .cp = cp, .pp = pp, .dp = n / tp / cp / pp, .micro_batch = b};
                    g.accumulate = (int64_t)g.dp * b <= sequences ? sequences / g.dp / b : 1;
                    const int states = g.dp * g.cp == 1 ? 0 : pp == 1 ? 3 : 1;
                    if (grid_error(q, &g))
                        continue;
                    for (g.zero = 0; g.zero <= states; g.zero++)
                        for (int r = NO_RECOMPUTATION; r <= FULL_RECOMPUTATION; r++) {
                            g.recompute = r;
                            found(q, &g, of);
                            count++;
                        }
                }
    return count;
}

static void add_candidate(const Query *q, const Grid *g, void *of)
{
    Candidates *c = of;

    if ((c->count & (c->count + 1)) == 0)               /* 0, 1, 3, 7, ...: the array is full */
        c->all = realloc(c->all, (2 * (size_t)c->count + 1) * sizeof *c->all);
    if (!c->all)
        fail("no memory for %d grids", c->count);
    c->all[c->count++] = candidate_of(q, g);
}

static void least_memory(const Query *q, const Grid *g, void *of)
{
    Candidate *least = of;
    const Memory m = grid_memory(&q->model, g, &q->cluster);

    if (!least->memory.total || m.total < least->memory.total)
        *least = (Candidate){.grid = *g, .memory = m};
}

static void ignore(const Query *q, const Grid *g, void *of)
{
    (void)q, (void)g, (void)of;
}

static double limit;                /* bytes that fit, for better() */

static int better(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    const bool x_fits = x->memory.total <= limit, y_fits = y->memory.total <= limit;

    if (x_fits != y_fits)
        return y_fits - x_fits;
    const double p = x_fits ? x->time.total : x->memory.total, r = y_fits ? y->time.total : y->memory.total;
    if (p != r)
        return p < r ? -1 : 1;
    const int64_t s = (int64_t)x->grid.tp * x->grid.cp * x->grid.pp, t = (int64_t)y->grid.tp * y->grid.cp * y->grid.pp;
    return s != t ? (s > t) - (s < t) : (x->memory.total > y->memory.total) - (x->memory.total < y->memory.total);
}

/* No grid is possible: names numbers of GPUs and of sequences that have one. */
static _Noreturn void fail_without_grid(const Query *q)
{
    char possible[256] = "";
    int found = 0;

    for (int more = 1; found < 2 && more <= q->cluster.gpus; more++)
        for (int sign = -1; sign <= 1; sign += 2) {
            Query other = *q;
            other.cluster.gpus += sign * more;
            if (other.cluster.gpus < 1 || (other.cluster.gpus > other.cluster.per_node
                                           && other.cluster.gpus % other.cluster.per_node)
                || !each_grid(&other, ignore, NULL))
                continue;
            const size_t at = strlen(possible);
            snprintf(possible + at, sizeof possible - at, "%s%d", found++ ? " or " : "", other.cluster.gpus);
        }
    const int above = (q->sequences / q->cluster.gpus + 1) * q->cluster.gpus;
    fail("--gpus %d: no grid has as many ranks: tp must divide the %d heads, 2 x cp the %d tokens per sequence, dp "
         "the %d sequences, and pp is at most the %d layers; possible are --gpus %s, or --batch %lld (%d sequences)",
         q->cluster.gpus, q->model.kv_heads, q->model.seq, q->sequences, q->model.layers, possible,
         (long long)above * q->model.seq, above);
}

/* No grid fits: names the one that needs least, and on how many GPUs one would fit. */
static _Noreturn void fail_without_room(const Query *q, const Candidate *least)
{
    enum { TIMES_MORE = 256 };
    Query more = *q;
    char possible[256];

    snprintf(possible, sizeof possible, "; nor does one fit on %d times as many GPUs", TIMES_MORE);
    for (int times = 2; times <= TIMES_MORE; times *= 2) {
        Candidate enough = {0};
        more.cluster.gpus = times * q->cluster.gpus;
        if (more.cluster.gpus > more.cluster.per_node)
            more.cluster.gpus -= more.cluster.gpus % more.cluster.per_node;
        if (each_grid(&more, least_memory, &enough) && fits(&more, &enough.memory)) {
            const Candidates c = search(&more);
            snprintf(possible, sizeof possible, "; the fastest on --gpus %d would be %s",
                     more.cluster.gpus, grid_text(&c.all[0].grid));
            break;
        }
    }
    fail("no grid fits in %.1f GiB per GPU (%.0f%% of %.1f): the smallest needs %.1f, with %s%s",
         memory_limit * q->hardware.memory / GiB, 100 * memory_limit, q->hardware.memory / GiB,
         least->memory.total / GiB, grid_text(&least->grid), possible);
}

Candidates search(const Query *q)
{
    Candidates c = {0};

    if (!each_grid(q, add_candidate, &c))
        fail_without_grid(q);
    limit = memory_limit * q->hardware.memory;
    qsort(c.all, c.count, sizeof *c.all, better);
    while (c.fitting < c.count && fits(q, &c.all[c.fitting].memory))
        c.fitting++;
    if (!c.fitting)
        fail_without_room(q, &c.all[0]);
    return c;
}

const Candidate *fastest_other(const Candidates *c, bool (*differs)(const Grid *best, const Grid *g))
{
    for (int i = 1; i < c->fitting; i++)
        if (differs(&c->all[0].grid, &c->all[i].grid))
            return &c->all[i];
    return NULL;
}

Grid grid_parse(const Query *q, const char *text)
{
    Grid g = {.tp = 1, .cp = 1, .pp = 1, .micro_batch = 1};
    const struct {
        const char *name;
        int *value;
    } known[] = {{"tp", &g.tp}, {"cp", &g.cp}, {"pp", &g.pp}, {"dp", &g.dp}, {"micro-batch", &g.micro_batch},
                 {"accumulate", &g.accumulate}, {"zero", &g.zero}};

    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
        int i = 0, end = 0;
        const int length = strcspn(at, ",");
        for (; i < 7; i++) {
            const int n = strlen(known[i].name);
            if (!strncmp(at, known[i].name, n) && at[n] == '=' && sscanf(at + n + 1, "%d%n", known[i].value, &end) == 1
                && n + 1 + end == length && *known[i].value >= (i == 6 ? 0 : 1) && (i < 6 || g.zero <= 3))
                break;
        }
        if (i == 7 && length == 14 && (!strncmp(at, "recompute=none", 14) || !strncmp(at, "recompute=full", 14)))
            g.recompute = at[10] == 'f' ? FULL_RECOMPUTATION : NO_RECOMPUTATION;
        else if (i == 7)
            fail_usage("--explain %s: expected a list like tp=2,cp=1,pp=4,dp=8,micro-batch=1,accumulate=4,zero=1,"
                       "recompute=none (zero from 0 to 3, recompute none or full), got '%.*s'", text, length, at);
    }
    if (!g.dp)
        g.dp = fmax(1, q->cluster.gpus / ((double)g.tp * g.cp * g.pp));
    if (!g.accumulate)
        g.accumulate = fmax(1, q->sequences / ((double)g.dp * g.micro_batch));
    const char *wrong = grid_error(q, &g);
    if (wrong)
        fail_usage("--explain %s: %s", text, wrong);
    return g;
}
