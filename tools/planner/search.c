#include "search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"

enum { MAX_SEQUENCES = 128 };       /* per micro-batch */
static const double CLOSE = 1.03, ROOM = 0.95;          /* of search() */
enum { FAR = 4096 };                /* how far possible numbers of GPUs and sequences are looked for */

const char *const dimension_name[DIMENSIONS] = {"tp", "cp", "pp", "ep", "etp", "dp", "micro-batch", "accumulate",
                                                "chunks", "replicate", "zero", "recompute"};

_Static_assert(sizeof(Grid) == DIMENSIONS * sizeof(int), "a Dimension per size of a Grid");

int grid_size(const Grid *g, Dimension d)
{
    return ((const int *)g)[d];
}

static const char *const recompute_name[] = {"none", "selective", "full"};

int recompute_named(const char *text)
{
    int i = FULL_RECOMPUTATION;

    while (i >= 0 && strcmp(text, recompute_name[i]))
        i--;
    return i;
}

const char *size_text(Dimension d, int size)
{
    return d == RECOMPUTE ? recompute_name[size] : format_text("%d", size);
}

const char *grid_text(const Grid *g, const Grid *but)
{
    const char *text = "";

    for (int d = 0; d < DIMENSIONS; d++)
        if (but ? grid_size(g, d) != grid_size(but, d)
            : (d != EP && d != ETP && d != CHUNKS && d != REPLICATE) || grid_size(g, d) > 1)
            text = format_text("%s%s%s=%s", text, *text ? "," : "", dimension_name[d], size_text(d, grid_size(g, d)));
    return text;
}

/* How many chunks have a layer less than the others. Megatron-LM's recipe of DeepSeek-V3 has 61 layers in 64 places:
 * the first and the last chunk have the embedding, the head and the prediction of a second token instead. */
enum { MOST_UNEVEN = 3 };

static bool can_interleave(const Query *q, const Grid *g)
{
    const int layers = q->model.layers, chunks = g->pp * g->chunks, uneven = (chunks - layers % chunks) % chunks;

    return g->chunks == 1 || (frameworks[q->cluster.framework].interleaves && g->pp > 1 && g->accumulate % g->pp == 0
                              && uneven <= (layers % g->pp ? MOST_UNEVEN : 0));
}

const char *grid_error(const Query *q, const Grid *g)
{
    const Model *m = &q->model;
    const Traits *f = &frameworks[q->cluster.framework];
    const double ranks = (double)g->dp * g->cp * g->pp * g->tp, batch = (double)g->dp * g->micro_batch * g->accumulate;

    if (ranks != q->cluster.gpus)
        return format_text("tp %d x cp %d x pp %d x dp %d: expected %d ranks, one per GPU, got %.0f", g->tp, g->cp,
                           g->pp, g->dp, q->cluster.gpus, ranks);
    const bool shares = is_megatron(&q->cluster);   /* a head of keys, and an expert */
    if (m->heads % g->tp || (m->kv_heads % g->tp && (!shares || g->tp % m->kv_heads)))
        return format_text("tp %d: expected a divisor of the %d %sheads: %s%s", g->tp, m->kv_heads,
                           m->kv_heads < m->heads ? "key-value " : "", divisors_text(m->kv_heads),
                           shares ? format_text(", or a multiple that divides the %d heads", m->heads) : "");
    if (g->pp > m->layers)
        return format_text("pp %d: expected at most the %d layers", g->pp, m->layers);
    if (g->cp > 1 && m->seq % (2 * g->cp))
        return format_text("cp %d: expected 2 x cp to divide the %d tokens per sequence", g->cp, m->seq);
    if (batch != q->sequences)
        return format_text("dp %d x micro-batch %d x accumulate %d: expected the batch of %d sequences, got %.0f",
                           g->dp, g->micro_batch, g->accumulate, q->sequences, batch);
    if ((int64_t)g->micro_batch * m->seq / g->cp % g->tp)
        return format_text("micro-batch %d x %d tokens: expected a multiple of tp %d", g->micro_batch, m->seq / g->cp,
                           g->tp);
    if (!m->experts && g->ep > 1)
        return format_text("ep %d: expected 1, as the model has no experts", g->ep);
    if (g->etp > 1 && (!shares || !m->experts || m->in_09 || m->expert_width % g->etp
                       || g->tp * g->cp * g->dp % g->etp || q->cluster.per_node % g->etp))
        return format_text("etp %d: expected 1, or for a mixture without biases in Megatron-LM a divisor of the "
                           "experts' width %d, of tp x cp x dp and of the %d GPUs per node", g->etp, m->expert_width,
                           q->cluster.per_node);
    if (m->experts && (m->experts % g->ep || expert_ranks(g, &q->cluster) % g->ep))
        return format_text("ep %d: expected a divisor of the %d experts and of the %d ranks with other tokens", g->ep,
                           m->experts, expert_ranks(g, &q->cluster));
    if (g->zero > 3 || !strchr(f->stages, '0' + g->zero))
        return format_text("zero %d: expected one of those that %s has: %s", g->zero, f->command, f->stages);
    if (g->zero > 1 && g->pp > 1 && q->cluster.framework != FOR_TORCHTITAN)
        return format_text("zero %d with pp %d: expected zero 0 or 1, as in a pipeline ZeRO-2 and 3 would "
                           "reduce-scatter or all-gather in every micro-batch", g->zero, g->pp);
    if (g->replicate > 1 && (g->zero < 2 || m->experts || g->dp % g->replicate || g->replicate == g->dp * g->cp))
        return format_text("replicate %d: expected 1, or with zero 2 or 3 a divisor of dp %d that leaves ranks to "
                           "shard over, without experts", g->replicate, g->dp);
    if (g->recompute == SELECTIVE_RECOMPUTATION && !f->interleaves)
        return format_text("recompute selective: expected none or full, which %s has", f->command);
    if (!can_interleave(q, g))
        return format_text("chunks %d: expected 1, or in a pipeline of %s such that pp x chunks divides the %d layers "
                           "(if pp does not, up to %d more), and pp the micro-batches", g->chunks, f->command,
                           m->layers, MOST_UNEVEN);
    return NULL;
}

Candidate candidate_of(const Query *q, const Grid *g)
{
    Candidate c = {.grid = *g, .memory = grid_memory(&q->model, g, &q->cluster)};

    c.time = grid_time(&q->model, g, &q->cluster, &q->hardware, &q->constants, NULL);
    c.tokens = (double)q->sequences * q->model.seq / c.time.total / q->cluster.gpus;
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

/* On a terminal a search of seconds shows that it goes on. The next such text takes the place of this one. */
enum { SHOWN_EVERY = 1 << 17 };
static void show_progress(const char *text)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s", text), fflush(stderr);
}

static void add_candidate(const Query *q, const Grid *g, Candidates *c)
{
    if ((c->count & (c->count + 1)) == 0)               /* 0, 1, 3, 7, ...: the array is full */
        c->all = realloc(c->all, (2 * (size_t)c->count + 1) * sizeof *c->all);
    if (!c->all)
        fail("no memory for %d grids", c->count);
    if (c->count && c->count % SHOWN_EVERY == 0)
        show_progress(format_text("%s grids", number_text(c->count)));
    const Memory memory = grid_memory(&q->model, g, &q->cluster);
    const bool fits = memory.total <= q->cluster.memory;
    c->fitting += fits;
    c->all[c->count++] = fits ? candidate_of(q, g) : (Candidate){.grid = *g, .memory = memory};
}

/* Every possible grid with the ranks and micro-batches of `g`. */
static void add_variants(const Query *q, Grid g, Candidates *c)
{
    const bool interleaves = frameworks[q->cluster.framework].interleaves && g.pp > 1;
    const int ranks = expert_ranks(&g, &q->cluster), chunks = interleaves ? (q->model.layers + MOST_UNEVEN) / g.pp : 1;
    /* Copies of sharded states: one, or one per node; where a number is asked for, any. */
    const bool any = q->limits[REPLICATE].given;
    const int nodes = fmax(1, g.tp * g.cp * g.dp / q->cluster.per_node), step = any ? 1 : fmax(1, nodes - 1);
    const int splits = q->limits[ETP].given ? q->cluster.per_node : 1;

    for (g.etp = 1; g.etp <= splits; g.etp++)
        for (g.ep = 1; g.ep <= fmin(fmax(1, q->model.experts), ranks); g.ep++)
            for (g.zero = 0; g.zero <= (g.dp * g.cp > 1 ? 3 : 0); g.zero++) {
                Grid v = g;
                if (ranks % g.ep || grid_error(q, &g))  /* no matter which other sizes follow */
                    continue;
                for (v.chunks = 1; v.chunks <= chunks; v.chunks++)
                    for (v.recompute = NO_RECOMPUTATION; v.recompute <= FULL_RECOMPUTATION && can_interleave(q, &v);
                         v.recompute++)
                        for (v.replicate = 1; v.replicate <= (v.zero < 2 ? 1 : any ? g.dp : nodes);
                             v.replicate += step)
                            if (allowed(q, &v) && !grid_error(q, &v))
                                add_candidate(q, &v, c);
            }
}

/* Sizes that are 0 follow from the others, from GPUs and batch; without them they are 1. */
static void fill_grid(const Query *q, Grid *g)
{
    if (!g->dp)
        g->dp = fmax(1, q->cluster.gpus / ((double)g->tp * g->cp * g->pp));
    if (!g->accumulate)
        g->accumulate = fmax(1, q->sequences / ((double)g->dp * g->micro_batch));
}

static const Grid smallest = {.tp = 1, .cp = 1, .pp = 1, .ep = 1, .etp = 1, .micro_batch = 1, .chunks = 1,
                              .replicate = 1};

/* The number of GPUs, or of sequences per step, nearest to the query's on one side (step 1 or -1) of which a grid is
 * possible; 0: none is near. */
static int possible_number(const Query *q, bool sequences, int step)
{
    Query other = *q;
    int *n = sequences ? &other.sequences : &other.cluster.gpus, count = 0;
    const int start = *n, node = q->cluster.per_node, unit = q->hardware.domain ? TRAY : node;

    other.limits[MICRO_BATCH] = (Range){true, 1, 1};    /* if others are possible, this is */
    for (*n += step; *n > 0 && !count && abs(*n - start) < FAR; *n += step)
        if (sequences || *n <= node || *n % unit == 0) {
            const Candidates c = candidates(&other);
            count = c.count;
            free(c.all);
        }
    return count ? *n - step : 0;
}

/* "--gpus 9728 or 10240, or --batch 1024000 (250 sequences)": the nearest of which a grid is possible. */
static const char *possible_numbers(const Query *q)
{
    const int fewer = possible_number(q, false, -1), more = possible_number(q, false, 1);
    const int under = possible_number(q, true, -1), over = possible_number(q, true, 1);
    const int batch = under && (!over || q->sequences - under <= over - q->sequences) ? under : over;
    const char *gpus = fewer && more ? format_text("--gpus %d or %d, or ", fewer, more)
                       : fewer || more ? format_text("--gpus %d, or ", fewer + more) : "another --gpus or ";

    return batch ? format_text("%s--batch %lld (%s sequences)", gpus, (long long)batch * q->model.seq,
                               number_text(batch)) : format_text("%sanother --batch", gpus);
}

/* No grid is possible: says why the smallest sizes that the restrictions allow are none. */
static _Noreturn void fail_without_grid(const Query *q)
{
    Query free = *q;
    Grid g = smallest;

    memset(free.limits, 0, sizeof free.limits);
    const Candidates c = candidates(&free);
    for (int d = 0; d < DIMENSIONS; d++)
        if (q->limits[d].given)
            ((int *)&g)[d] = fmax(q->limits[d].least, grid_size(&g, d));
    fill_grid(q, &g);
    const char *others = c.count ? "" : possible_numbers(&free);
    const char *wrong = grid_error(q, &g);
    const char *reason = wrong ? format_text(" (%s)", wrong) : "";
    if (!c.count)
        fail("no grid of %d ranks is possible%s; try %s", q->cluster.gpus, reason, others);
    fail("no grid of %d ranks is possible with the restrictions given%s; of %d without them the %s is %s",
         q->cluster.gpus, reason, c.count, c.fitting ? "fastest" : "smallest", grid_text(&c.all[0].grid, NULL));
}

static double least_bytes(Query q)
{
    q.cluster.memory = 0;               /* nothing fits, so the smallest is the first */
    const Candidates c = candidates(&q);
    const double least = c.count ? c.all[0].memory.total : INFINITY;

    free(c.all);
    return least;
}

/* What would fit: the fastest grid without the restrictions, or on 2, 4, 8, ... times as many GPUs. */
static const char *room_elsewhere(const Query *q)
{
    const int node = q->cluster.per_node;
    Query other = *q;

    memset(other.limits, 0, sizeof other.limits);
    Candidates c = candidates(&other);
    for (int times = 2; times <= 256 && !c.fitting; times *= 2) {
        other = *q;
        other.cluster.gpus *= times;
        other.cluster.gpus -= other.cluster.gpus > node ? other.cluster.gpus % node : 0;
        free(c.all);
        c = candidates(&other);
    }
    if (!c.fitting)
        return "nor does one fit on 256 times as many GPUs";
    const char *fastest = grid_text(&c.all[0].grid, NULL);
    if (other.cluster.gpus == q->cluster.gpus)
        return format_text("the fastest without the restrictions given would be %s", fastest);
    return format_text("the fastest on --gpus %d would be %s", other.cluster.gpus, fastest);
}

/* What techniques that the planner does not have would need, about: of a grid's bytes, a fraction of each state. LoRA's
 * adapters have less than 1% of the weights. */
static const char *unplanned(const Cluster *c, const Memory *m)
{
    const double weights = m->bytes[MEM_PARAMETERS], moments = m->bytes[MEM_OPTIMIZER];
    const double gradients = m->bytes[MEM_GRADIENTS], in_bf16 = gradients * 2 / c->gradients;
    const double frozen = m->total - m->bytes[MEM_MASTER] - gradients - moments;

    return format_text("not planned here: about %.0f with all states in bf16, %.0f with 8-bit Adam, %.0f with the "
                       "optimizer's states on the CPU, %.0f with LoRA",
                       (frozen + weights * (2.0 / c->stored - 1) + in_bf16 + moments / 2) / GiB,
                       (m->total - moments * 6 / 8) / GiB, (frozen + in_bf16) / GiB, frozen / GiB);
}

/* No grid fits: names the one that needs least, and what would need less. */
static _Noreturn void fail_without_room(const Query *q, const Candidate *least)
{
    const int seq = q->model.seq;
    const double limit = q->cluster.memory, all = q->hardware.memory;
    Query bf16 = *q, shorter = *q;

    bf16.cluster.gradients = 2;
    /* cp and tp cannot split an odd length. */
    shorter.model.seq = seq % 16 && seq > 512 ? (seq + 512) / 1024 * 1024 : seq / 2;
    const double fewer = least_bytes(bf16), less = least_bytes(shorter);
    const char *elsewhere = room_elsewhere(q);
    const char *in_bf16 = fewer < least->memory.total ? format_text("; with --state-bytes 16 %.1f", fewer / GiB) : "";
    fail("no grid fits in %.1f GiB per GPU (%.0f%% of %.1f): the smallest needs %.1f, with %s%s; with --seq %d "
         "%.1f; %s; %s", limit / GiB, 100 * limit / all, all / GiB, least->memory.total / GiB,
         grid_text(&least->grid, NULL), in_bf16, shorter.model.seq, less / GiB, elsewhere,
         unplanned(&q->cluster, &least->memory));
}

/* The order of candidates: those that fit have a time. */
static int better(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    const bool x_fits = x->time.total > 0, y_fits = y->time.total > 0;

    if (x_fits != y_fits)
        return y_fits - x_fits;
    const double p = x_fits ? x->time.total : x->memory.total, r = y_fits ? y->time.total : y->memory.total;
    if (p != r)
        return p < r ? -1 : 1;
    const int64_t s = (int64_t)x->grid.tp * x->grid.cp * x->grid.pp, t = (int64_t)y->grid.tp * y->grid.cp * y->grid.pp;
    return s != t ? (s > t) - (s < t) : (x->memory.total > y->memory.total) - (x->memory.total < y->memory.total);
}

Candidates candidates(const Query *q)
{
    const int n = q->cluster.gpus;
    const int most = q->limits[MICRO_BATCH].given ? fmin(q->limits[MICRO_BATCH].most, MAX_SEQUENCES) : MAX_SEQUENCES;
    Candidates c = {0};

    for (int tp = 1; tp <= n && tp <= q->model.heads; tp++)
        for (int cp = 1; n % tp == 0 && cp <= n / tp; cp++)
            for (int pp = 1; n / tp % cp == 0 && pp <= n / tp / cp && pp <= q->model.layers; pp++)
                for (int b = 1; n / tp / cp % pp == 0 && b <= most; b++) {
                    Grid g = smallest;
                    g.tp = tp, g.cp = cp, g.pp = pp, g.micro_batch = b;
                    fill_grid(q, &g);
                    if (!grid_error(q, &g))
                        add_variants(q, g, &c);
                }
    if (c.count > SHOWN_EVERY)
        show_progress("");
    if (c.count)
        qsort(c.all, c.count, sizeof *c.all, better);
    return c;
}

int technique_count(const Grid *g)
{
    return (g->tp > 1) + (g->cp > 1) + (g->pp > 1) + (g->ep > 1) + (g->etp > 1) + (g->chunks > 1) + (g->replicate > 1)
           + (g->zero > 1) + (g->recompute != NO_RECOMPUTATION);
}

Candidates search(const Query *q)
{
    const double spare = ROOM * q->cluster.memory;
    Candidates c = candidates(q);
    int best = 0;

    if (!c.count)
        fail_without_grid(q);
    if (!c.fitting)
        fail_without_room(q, &c.all[0]);
    c.fastest = c.all[0];
    for (int i = 1; i < c.fitting && c.all[i].time.total <= CLOSE * c.fastest.time.total; i++) {
        const Candidate *x = &c.all[i], *y = &c.all[best];
        const bool room = x->memory.total <= spare, enough = y->memory.total <= spare;
        best = room > enough || (room == enough && technique_count(&x->grid) < technique_count(&y->grid)) ? i : best;
    }
    const Candidate chosen = c.all[best];
    memmove(&c.all[1], c.all, best * sizeof *c.all);
    c.all[0] = chosen;
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

const char *grid_read(const Query *q, const char *text, Grid *of)
{
    char copy[256], end;
    Grid g = smallest;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *item = strtok(copy, ","); item; item = strtok(NULL, ",")) {
        const char *number = item + strcspn(item, "=");
        int d = 0, value = -1;
        while (d < DIMENSIONS && strncmp(format_text("%s=", dimension_name[d]), item, number - item + 1))
            d++;
        if (d == RECOMPUTE)
            value = recompute_named(number + 1);
        else if (sscanf(number, "=%d%c", &value, &end) != 1 || (d == ZERO && value > 3))
            value = -1;
        if (d == DIMENSIONS || value < (d < ZERO))
            return format_text("expected a list like tp=2,cp=1,pp=4,dp=8,micro-batch=1,accumulate=4,zero=1,"
                               "recompute=none (zero from 0 to 3, recompute none, selective or full), got '%s'", item);
        ((int *)&g)[d] = value;
    }
    fill_grid(q, &g);
    *of = g;
    return grid_error(q, &g);
}
