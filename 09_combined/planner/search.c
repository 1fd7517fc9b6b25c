#include "search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "../../common/print.h"

static const double GiB = 1073741824;
enum { MOST_SEQUENCES = 128 };      /* of a micro-batch */

bool fits(const Question *q, const Memory *m)
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

const char *grid_wrong(const Question *q, const Grid *g)
{
    static char text[512];
    const Model *m = &q->model;
    const double ranks = (double)g->dp * g->cp * g->pp * g->tp;

    text[0] = 0;
    if (ranks != q->cluster.gpus)
        snprintf(text, sizeof text, "tp %d x cp %d x pp %d x dp %d are %.0f ranks: expected %d, one for each GPU",
                 g->tp, g->cp, g->pp, g->dp, ranks, q->cluster.gpus);
    else if (m->heads % g->tp || m->kv_heads % g->tp)
        snprintf(text, sizeof text, "tp %d: expected a divisor of the %d heads%s: %s", g->tp, m->kv_heads,
                 m->kv_heads < m->heads ? " of keys" : "", divisors_text(m->kv_heads));
    else if (g->pp > m->layers)
        snprintf(text, sizeof text, "pp %d: expected at most the %d layers", g->pp, m->layers);
    else if (g->cp > 1 && m->seq % (2 * g->cp))
        snprintf(text, sizeof text, "cp %d: expected 2 cp to divide the %d tokens of a sequence", g->cp, m->seq);
    else if ((double)g->dp * g->micro_batch * g->accumulate != q->sequences)
        snprintf(text, sizeof text, "dp %d x micro-batch %d x accumulate %d: expected the batch of %d sequences", g->dp,
                 g->micro_batch, g->accumulate, q->sequences);
    else if ((int64_t)g->micro_batch * m->seq / g->cp % g->tp)
        snprintf(text, sizeof text, "micro-batch %d x %d tokens: expected tp %d to divide them", g->micro_batch,
                 m->seq / g->cp, g->tp);
    else if (g->zero > 1 && g->pp > 1)
        snprintf(text, sizeof text, "zero %d with pp %d: expected zero 0 or 1, as a pipeline's stages would scatter or "
                 "gather for every micro-batch", g->zero, g->pp);
    return text[0] ? text : NULL;
}

Choice choose(const Question *q, const Grid *g)
{
    Choice c = {.grid = *g, .memory = grid_memory(&q->model, g, &q->cluster)};

    c.time = grid_time(&q->model, g, &q->cluster, &q->hardware, &q->constants, NULL);
    c.tokens = grid_tokens(&q->model, g) / c.time.total / q->cluster.gpus;
    c.mfu = c.tokens * model_flops(&q->model) / q->hardware.peak;
    return c;
}

/* Calls `found` for each grid of so many GPUs; how many there are. */
static int each_grid(const Question *q, void (*found)(const Question *q, const Grid *g, void *of), void *of)
{
    const int n = q->cluster.gpus, sequences = q->sequences;
    int count = 0;

    for (int tp = 1; tp <= n && tp <= q->model.kv_heads; tp++)
        for (int cp = 1; n % tp == 0 && cp <= n / tp; cp++)
            for (int pp = 1; n / tp % cp == 0 && pp <= n / tp / cp && pp <= q->model.layers; pp++)
                for (int b = 1; n / tp / cp % pp == 0 && b <= MOST_SEQUENCES; b++) {
                    Grid g = {.tp = tp, .cp = cp, .pp = pp, .dp = n / tp / cp / pp, .micro_batch = b};
                    g.accumulate = (int64_t)g.dp * b <= sequences ? sequences / g.dp / b : 1;
                    const int states = g.dp * g.cp == 1 ? 0 : pp == 1 ? 3 : 1;
                    if (grid_wrong(q, &g))
                        continue;
                    for (g.zero = 0; g.zero <= states; g.zero++)
                        for (int r = KEEP_ALL; r <= RECOMPUTE_BLOCKS; r++) {
                            g.recompute = r;
                            found(q, &g, of);
                            count++;
                        }
                }
    return count;
}

static void take(const Question *q, const Grid *g, void *of)
{
    Choices *c = of;

    if ((c->count & (c->count + 1)) == 0)               /* 0, 1, 3, 7, ...: full */
        c->all = realloc(c->all, (2 * (size_t)c->count + 1) * sizeof *c->all);
    if (!c->all)
        fail("no memory for %d grids", c->count);
    c->all[c->count++] = choose(q, g);
}

static void least_memory(const Question *q, const Grid *g, void *of)
{
    Choice *least = of;
    const Memory m = grid_memory(&q->model, g, &q->cluster);

    if (!least->memory.total || m.total < least->memory.total)
        *least = (Choice){.grid = *g, .memory = m};
}

static void nothing(const Question *q, const Grid *g, void *of)
{
    (void)q, (void)g, (void)of;
}

static double limit;                /* for the comparison */

static int better(const void *a, const void *b)
{
    const Choice *x = a, *y = b;
    const bool x_fits = x->memory.total <= limit, y_fits = y->memory.total <= limit;

    if (x_fits != y_fits)
        return y_fits - x_fits;
    const double p = x_fits ? x->time.total : x->memory.total, r = y_fits ? y->time.total : y->memory.total;
    if (p != r)
        return p < r ? -1 : 1;
    const int64_t s = (int64_t)x->grid.tp * x->grid.cp * x->grid.pp, t = (int64_t)y->grid.tp * y->grid.cp * y->grid.pp;
    return s != t ? (s > t) - (s < t) : (x->memory.total > y->memory.total) - (x->memory.total < y->memory.total);
}

/* No grid: which numbers of GPUs or of sequences would have one? */
static _Noreturn void fail_without_grid(const Question *q)
{
    char possible[256] = "";
    int found = 0;

    for (int more = 1; found < 2 && more <= q->cluster.gpus; more++)
        for (int sign = -1; sign <= 1; sign += 2) {
            Question other = *q;
            other.cluster.gpus += sign * more;
            if (other.cluster.gpus < 1 || (other.cluster.gpus > other.cluster.per_node
                                           && other.cluster.gpus % other.cluster.per_node)
                || !each_grid(&other, nothing, NULL))
                continue;
            const size_t at = strlen(possible);
            snprintf(possible + at, sizeof possible - at, "%s%d", found++ ? " or " : "", other.cluster.gpus);
        }
    const int above = (q->sequences / q->cluster.gpus + 1) * q->cluster.gpus;
    fail("no grid has %d ranks: tp must divide the %d heads, pp is at most the %d layers, 2 cp divides %d tokens, dp "
         "divides %d sequences; possible are --gpus %s, or --batch %lld (%d sequences)", q->cluster.gpus,
         q->model.kv_heads, q->model.layers, q->model.seq, q->sequences, possible, (long long)above * q->model.seq,
         above);
}

/* Nothing fits: what needs least, and on how many GPUs something would. */
static _Noreturn void fail_without_room(const Question *q, const Choice *least)
{
    enum { TIMES_MORE = 256 };
    Question more = *q;
    char possible[256] = "; nor would it on many times as many GPUs";

    for (int times = 2; times <= TIMES_MORE; times *= 2) {
        Choice enough = {0};
        more.cluster.gpus = times * q->cluster.gpus;
        if (more.cluster.gpus > more.cluster.per_node)
            more.cluster.gpus -= more.cluster.gpus % more.cluster.per_node;
        if (each_grid(&more, least_memory, &enough) && fits(&more, &enough.memory)) {
            const Choices c = search(&more);
            snprintf(possible, sizeof possible, "; on --gpus %d this would be the fastest that does: %s",
                     more.cluster.gpus, grid_text(&c.all[0].grid));
            break;
        }
    }
    fail("nothing fits in the %.1f GiB that can be used of a GPU's %.1f: the least is %.1f, with %s%s",
         memory_limit * q->hardware.memory / GiB, q->hardware.memory / GiB, least->memory.total / GiB,
         grid_text(&least->grid), possible);
}

Choices search(const Question *q)
{
    Choices c = {0};

    if (!each_grid(q, take, &c))
        fail_without_grid(q);
    limit = memory_limit * q->hardware.memory;
    qsort(c.all, c.count, sizeof *c.all, better);
    while (c.fitting < c.count && fits(q, &c.all[c.fitting].memory))
        c.fitting++;
    if (!c.fitting)
        fail_without_room(q, &c.all[0]);
    return c;
}

const Choice *fastest_unlike(const Choices *c, bool (*unlike)(const Grid *best, const Grid *g))
{
    for (int i = 1; i < c->fitting; i++)
        if (unlike(&c->all[0].grid, &c->all[i].grid))
            return &c->all[i];
    return NULL;
}

Grid grid_parse(const Question *q, const char *text)
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
            g.recompute = at[10] == 'f' ? RECOMPUTE_BLOCKS : KEEP_ALL;
        else if (i == 7)
            fail_usage("--explain %s: expected such as tp=2,cp=1,pp=4,dp=8,micro-batch=1,accumulate=4,zero=1,"
                       "recompute=none (zero from 0 to 3, recompute none or full), got '%.*s'", text, length, at);
    }
    if (!g.dp)
        g.dp = fmax(1, q->cluster.gpus / ((double)g.tp * g.cp * g.pp));
    if (!g.accumulate)
        g.accumulate = fmax(1, q->sequences / ((double)g.dp * g.micro_batch));
    const char *wrong = grid_wrong(q, &g);
    if (wrong)
        fail_usage("--explain %s: %s", text, wrong);
    return g;
}
