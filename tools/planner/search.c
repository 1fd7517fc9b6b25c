#include "search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "../../common/print.h"
#include "profiles.h"

static const double GiB = 1073741824;
enum { MAX_SEQUENCES = 128 };       /* per micro-batch */

bool fits(const Query *q, const Memory *m)
{
    return m->total <= memory_limit(&q->cluster) * q->hardware.memory;
}

const char *const dimension_name[DIMENSIONS] = {"tp", "cp", "pp", "ep", "dp", "micro-batch", "accumulate", "chunks",
                                                "replicate", "zero", "recompute"};

static int *size_of(Grid *g, Dimension d)
{
    int *const sizes[DIMENSIONS] = {&g->tp, &g->cp, &g->pp, &g->ep, &g->dp, &g->micro_batch, &g->accumulate, &g->chunks,
                                    &g->replicate, &g->zero, &g->recompute};

    return sizes[d];
}

int grid_size(const Grid *g, Dimension d)
{
    Grid copy = *g;

    return *size_of(&copy, d);
}

static const char *const recompute_name[] = {"none", "selective", "full"};

int recompute_named(const char *text, int length)
{
    for (int i = NO_RECOMPUTATION; i <= FULL_RECOMPUTATION; i++)
        if (length == (int)strlen(recompute_name[i]) && !strncmp(text, recompute_name[i], length))
            return i;
    return -1;
}

const char *size_text(Dimension d, int size)
{
    return d == RECOMPUTE ? recompute_name[size] : format_text("%d", size);
}

const char *grid_text(const Grid *g)
{
    static char text[8][160];
    static int next;
    char *t = text[next++ % 8];

    for (int d = 0, at = 0; d < DIMENSIONS; d++)
        if ((d != EP && d != CHUNKS && d != REPLICATE) || grid_size(g, d) > 1)
            at += snprintf(t + at, sizeof text[0] - at, "%s%s=%s", at ? "," : "", dimension_name[d],
                           size_text(d, grid_size(g, d)));
    return t;
}

/* How many chunks have a layer less than the others. Megatron-LM's recipe of DeepSeek-V3 has 61 layers in 64 places:
 * the first and the last chunk have the embedding, the head and the prediction of a second token instead. */
enum { MOST_UNEVEN = 3 };
static int uneven(const Model *m, const Grid *g)
{
    const int chunks = g->pp * g->chunks;

    return (chunks - m->layers % chunks) % chunks;
}

const char *grid_error(const Query *q, const Grid *g)
{
    static char text[512];
    const Model *m = &q->model;
    const Traits *f = &frameworks[q->cluster.framework];
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
    else if (m->experts ? m->experts % g->ep || expert_ranks(g, &q->cluster) % g->ep : g->ep > 1)
        snprintf(text, sizeof text, "ep %d: expected a divisor of the %d experts and of the %d ranks with other tokens",
                 g->ep, m->experts, expert_ranks(g, &q->cluster));
    else if (!(f->stages >> g->zero & 1))
        snprintf(text, sizeof text, "zero %d: expected one of those that %s has: %s", g->zero, f->command,
                 f->stages == 3 ? "0, 1" : f->stages == 13 ? "0, 2, 3" : "0, 1, 2, 3");
    else if (g->zero > 1 && g->pp > 1 && q->cluster.framework != FOR_TORCHTITAN)
        snprintf(text, sizeof text, "zero %d with pp %d: expected zero 0 or 1, as in a pipeline ZeRO-2 and 3 would "
                 "reduce-scatter or all-gather in every micro-batch", g->zero, g->pp);
    else if (g->replicate > 1 && (g->zero < 2 || m->experts || g->dp % g->replicate || g->replicate == g->dp * g->cp))
        snprintf(text, sizeof text, "replicate %d: expected 1, or with zero 2 or 3 a divisor of dp %d that leaves ranks "
                 "to shard over, without experts", g->replicate, g->dp);
    else if (g->recompute == SELECTIVE_RECOMPUTATION && !f->interleaves)
        snprintf(text, sizeof text, "recompute selective: expected none or full, which %s has", f->command);
    else if (g->chunks > 1 && (!f->interleaves || g->pp == 1 || g->accumulate % g->pp
                               || uneven(m, g) > (m->layers % g->pp ? MOST_UNEVEN : 0)))
        snprintf(text, sizeof text, "chunks %d: expected 1, or in a pipeline of %s such that pp x chunks divides the "
                 "%d layers (if pp does not, up to %d more), and pp the micro-batches", g->chunks, f->command,
                 m->layers, MOST_UNEVEN);
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

static bool allowed(const Query *q, const Grid *g)
{
    for (int d = 0; d < DIMENSIONS; d++)
        if (q->limits[d].given && (grid_size(g, d) < q->limits[d].least || grid_size(g, d) > q->limits[d].most))
            return false;
    return true;
}

/* Calls found(q, g, of) for every possible grid; returns their number. */
typedef void Found(const Query *q, const Grid *g, void *of);

/* Those with the ranks and micro-batches of `g`. */
static int each_variant(const Query *q, Grid g, Found *found, void *of)
{
    const Traits *f = &frameworks[q->cluster.framework];
    const int ranks = expert_ranks(&g, &q->cluster), most = (q->model.layers + MOST_UNEVEN) / g.pp;
    const int chunks = f->interleaves && g.pp > 1 ? most : 1;
    /* Copies of sharded states: one, or one per node; where a number is asked for, any. */
    const bool any = q->limits[REPLICATE].given;
    const int nodes = fmax(1, g.tp * g.cp * g.dp / q->cluster.per_node), step = any ? 1 : fmax(1, nodes - 1);
    int count = 0;

    for (g.ep = 1; g.ep <= fmin(fmax(1, q->model.experts), ranks); g.ep++) {
        if (ranks % g.ep || q->model.experts % g.ep)
            continue;
        for (g.zero = 0; g.zero <= (g.dp * g.cp > 1 ? 3 : 0); g.zero++)
            for (g.chunks = 1; g.chunks <= chunks; g.chunks++)
                for (g.recompute = NO_RECOMPUTATION; g.recompute <= FULL_RECOMPUTATION; g.recompute++)
                    for (g.replicate = 1; g.replicate <= (any ? g.dp : nodes); g.replicate += step)
                        if (allowed(q, &g) && !grid_error(q, &g)) {
                            found(q, &g, of);
                            count++;
                        }
    }
    return count;
}

static int each_grid(const Query *q, Found *found, void *of)
{
    const Model *m = &q->model;
    const int n = q->cluster.gpus, sequences = q->sequences;
    int count = 0;

    for (int tp = 1; tp <= n && tp <= m->kv_heads; tp++)
        for (int cp = 1; n % tp == 0 && cp <= n / tp; cp++)
            for (int pp = 1; n / tp % cp == 0 && pp <= n / tp / cp && pp <= m->layers; pp++)
                for (int b = 1; n / tp / cp % pp == 0 && b <= MAX_SEQUENCES; b++) {
                    Grid g = {.tp = tp, .cp = cp, .pp = pp, .dp = n / tp / cp / pp, .ep = 1, .micro_batch = b,
                              .chunks = 1, .replicate = 1};
                    g.accumulate = (int64_t)g.dp * b <= sequences ? sequences / g.dp / b : 1;
                    if (!grid_error(q, &g))
                        count += each_variant(q, g, found, of);
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

/* Why the smallest sizes that the restrictions allow are no grid; "" if it is one. */
static const char *wrong_with_limits(const Query *q)
{
    Grid g = {.tp = 1, .cp = 1, .pp = 1, .ep = 1, .dp = 1, .micro_batch = 1, .accumulate = 1, .chunks = 1,
              .replicate = 1};

    for (int d = 0; d < DIMENSIONS; d++)
        if (q->limits[d].given)
            *size_of(&g, d) = fmax(q->limits[d].least, *size_of(&g, d));
    if (!q->limits[DP].given)
        g.dp = fmax(1, q->cluster.gpus / ((double)g.tp * g.cp * g.pp));
    if (!q->limits[ACCUMULATE].given)
        g.accumulate = fmax(1, q->sequences / ((double)g.dp * g.micro_batch));
    const char *wrong = grid_error(q, &g);
    return wrong ? format_text(" (%s)", wrong) : "";
}

/* No grid is possible: names numbers of GPUs and of sequences that have one. */
static _Noreturn void fail_without_grid(const Query *q)
{
    const int above = (q->sequences / q->cluster.gpus + 1) * q->cluster.gpus;
    Query free = *q;

    memset(free.limits, 0, sizeof free.limits);
    const Candidates c = candidates(&free);
    if (c.count)
        fail("no grid of %d ranks is possible with the restrictions given%s; of %d without them the %s is %s",
             q->cluster.gpus, wrong_with_limits(q), c.count, c.fitting ? "fastest" : "smallest",
             grid_text(&c.all[0].grid));
    while (--free.cluster.gpus > 1 && ((free.cluster.gpus > free.cluster.per_node
           && free.cluster.gpus % free.cluster.per_node) || !each_grid(&free, ignore, NULL)))
        continue;
    fail("--gpus %d: no grid has as many ranks: tp must divide the %d heads, 2 x cp the %d tokens per sequence, dp "
         "the %d sequences, and pp is at most the %d layers; possible are --gpus %d, or --batch %lld (%d sequences)",
         q->cluster.gpus, q->model.kv_heads, q->model.seq, q->sequences, q->model.layers, free.cluster.gpus,
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
    memset(more.limits, 0, sizeof more.limits);
    more.cluster = q->cluster;
    const Candidates free = candidates(&more);
    if (free.fitting)                                   /* so there are restrictions */
        snprintf(possible, sizeof possible, "; without the restrictions given the fastest would be %s",
                 grid_text(&free.all[0].grid));
    const char *odd = q->model.seq % 16 == 0 || q->model.seq < 64 ? ""
                      : format_text("; cp and tp cannot split sequences of %d tokens: try --seq %d", q->model.seq,
                                    (q->model.seq + 512) / 1024 * 1024);
    more.cluster.gradients = 2;
    Candidate bf16 = {0}, shorter = {0};
    each_grid(&more, least_memory, &bf16);
    const char *hint = bf16.memory.total < least->memory.total
                       ? format_text("; with --state-bytes 16 %.1f", bf16.memory.total / GiB) : "";
    more.cluster.gradients = q->cluster.gradients, more.model.seq /= 2;
    each_grid(&more, least_memory, &shorter);
    const double part = memory_limit(&q->cluster), all = q->hardware.memory / GiB;
    fail("no grid fits in %.1f GiB per GPU (%.0f%% of %.1f): the smallest needs %.1f, with %s%s; with --seq %d "
         "%.1f%s%s",
         part * all, 100 * part, all, least->memory.total / GiB, grid_text(&least->grid), hint, more.model.seq,
         shorter.memory.total / GiB, possible, odd);
}

Candidates candidates(const Query *q)
{
    Candidates c = {0};

    each_grid(q, add_candidate, &c);
    limit = memory_limit(&q->cluster) * q->hardware.memory;
    if (c.count)
        qsort(c.all, c.count, sizeof *c.all, better);
    while (c.fitting < c.count && fits(q, &c.all[c.fitting].memory))
        c.fitting++;
    return c;
}

Candidates search(const Query *q)
{
    const Candidates c = candidates(q);

    if (!c.count)
        fail_without_grid(q);
    if (!c.fitting)
        fail_without_room(q, &c.all[0]);
    return c;
}

const Candidate *fastest_other(const Candidates *c, Dimension d)
{
    const Dimension techniques[] = {TP, CP, PP, EP, ZERO, RECOMPUTE};
    const Grid *best = &c->all[0].grid;

    for (int i = 1; i < c->fitting; i++) {
        const Grid *g = &c->all[i].grid;
        bool alike = grid_size(g, d) != grid_size(best, d);
        for (size_t k = 0; k < sizeof techniques / sizeof *techniques; k++)
            alike = alike && (techniques[k] == d || grid_size(g, techniques[k]) == grid_size(best, techniques[k]));
        if (alike)
            return &c->all[i];
    }
    return NULL;
}

char *grid_read(const Query *q, const char *text, Grid *of)
{
    Grid g = {.tp = 1, .cp = 1, .pp = 1, .ep = 1, .micro_batch = 1, .chunks = 1, .replicate = 1};

    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
        int d = 0, end = 0, value = 0;
        const int length = strcspn(at, ",");
        for (; d < DIMENSIONS; d++) {
            const int n = strlen(dimension_name[d]);
            if (strncmp(at, dimension_name[d], n) || at[n] != '=')
                continue;
            value = d == RECOMPUTE ? recompute_named(at + n + 1, length - n - 1) : -1;
            if (d == RECOMPUTE ? value >= 0
                : sscanf(at + n + 1, "%d%n", &value, &end) == 1 && n + 1 + end == length && value >= (d < ZERO)
                && (d != ZERO || value <= 3))
                break;
        }
        if (d == DIMENSIONS)
            return strdup(format_text("expected a list like tp=2,cp=1,pp=4,dp=8,micro-batch=1,accumulate=4,zero=1,"
                       "recompute=none (zero from 0 to 3, recompute none, selective or full), got '%.*s'", length, at));
        *size_of(&g, d) = value;
    }
    if (!g.dp)
        g.dp = fmax(1, q->cluster.gpus / ((double)g.tp * g.cp * g.pp));
    if (!g.accumulate)
        g.accumulate = fmax(1, q->sequences / ((double)g.dp * g.micro_batch));
    *of = g;
    const char *wrong = grid_error(q, &g);
    return wrong ? strdup(wrong) : NULL;
}

Grid grid_parse(const Query *q, const char *text)
{
    Grid g;
    const char *wrong = grid_read(q, text, &g);

    if (wrong)
        fail_usage("--explain %s: %s", text, wrong);
    return g;
}
