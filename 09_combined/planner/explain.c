#include "explain.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "../../common/print.h"

static const double GiB = 1073741824;

static const double *seconds(const Time *t)             /* in time_name's order */
{
    return &t->compute;
}

static const char *seconds_text(double s)
{
    static char text[8][32];
    static int next;
    char *t = text[next++ % 8];

    snprintf(t, sizeof text[0], s >= 10 ? "%.1f s" : s >= 0.1 ? "%.2f s" : s >= 1e-3 ? "%.1f ms" : "%.0f us",
             s >= 0.1 ? s : s >= 1e-3 ? 1e3 * s : 1e6 * s);
    return t;
}

void print_query(const Query *q)
{
    const Model *m = &q->model;
    const int gpus = q->cluster.gpus, per_node = q->cluster.per_node;

    printf("%s: %.2f billion parameters (%d layers, hidden %d, %d heads, MLP %d%s, vocabulary %d%s%s)\n", m->name,
           model_parameters(m) / 1e9, m->layers, m->hidden, m->heads, m->mlp, m->gated ? " gated" : "", m->vocab,
           m->tied ? " tied" : "", m->in_09 ? "; as 09_combined runs it" : "");
    printf("%d GPUs, %s, on %d node%s of %d; %s tokens per step: %s sequences of %s\n", gpus, q->hardware.name,
           gpus > per_node ? gpus / per_node : 1, gpus > per_node ? "s" : "", gpus < per_node ? gpus : per_node,
           number_text((int64_t)q->sequences * m->seq), number_text(q->sequences), number_text(m->seq));
}

void print_table(const Query *q, const Candidates *c)
{
    enum { BEST = 10 };

    printf("%s grids, of which %s fit", number_text(c->count), number_text(c->fitting));
    if (!isinf(q->hardware.memory))
        printf(" in %.1f GiB per GPU (%.0f%% of its memory: runs that used more were slow)",
               memory_limit * q->hardware.memory / GiB, 100 * memory_limit);
    printf("\n\n");
    printf("                                       GiB per GPU of the fullest rank          | seconds per step\n");
    printf("  tp cp pp   dp micro acc zero recomp  param master  grad optim   act other  sum | compute launch tensor"
           " context bubble   data  optim  fixed   total | tok/s/GPU   MFU\n");
    for (int i = 0; i < c->fitting && i < BEST; i++) {
        const Candidate *x = &c->all[i];
        const Grid *g = &x->grid;
        const double *b = x->memory.bytes, *s = seconds(&x->time);
        printf("%4d %2d %2d %4d %5d %3d %4d %-6s", g->tp, g->cp, g->pp, g->dp, g->micro_batch, g->accumulate, g->zero,
               g->recompute ? "full" : "none");
        printf(" %6.1f %6.1f %5.1f %5.1f %5.1f %5.1f %4.1f |", b[MEM_PARAMETERS] / GiB, b[MEM_MASTER] / GiB,
               b[MEM_GRADIENTS] / GiB, b[MEM_OPTIMIZER] / GiB, b[MEM_ACTIVATIONS] / GiB,
               (b[MEM_COMMUNICATION] + b[MEM_WORKSPACE]) / GiB, x->memory.total / GiB);
        for (int k = 0; k < TIMES; k++)
            printf(" %6.3f", s[k]);
        printf(" %7.3f | %9.0f %4.1f%%\n", x->time.total, x->tokens, 100 * x->mfu);
    }
    printf("\n");
}

/* ---- The reasons: the playbook's three steps ---- */

/* Whether two grids agree in all techniques but one: 0 tp, 1 cp, 2 pp, 3 zero, 4 micro-batch, 5 recompute. */
static bool alike(const Grid *a, const Grid *b, int but)
{
    return (but == 0 || a->tp == b->tp) && (but == 1 || a->cp == b->cp) && (but == 2 || a->pp == b->pp)
           && (but == 3 || a->zero == b->zero) && (but == 5 || a->recompute == b->recompute);
}

static bool other_tp(const Grid *best, const Grid *g) { return g->tp != best->tp && alike(best, g, 0); }
static bool other_cp(const Grid *best, const Grid *g) { return g->cp != best->cp && alike(best, g, 1); }
static bool other_pp(const Grid *best, const Grid *g) { return g->pp != best->pp && alike(best, g, 2); }
static bool other_zero(const Grid *best, const Grid *g) { return g->zero != best->zero && alike(best, g, 3); }
static bool other_micro_batch(const Grid *best, const Grid *g)
{
    return g->micro_batch != best->micro_batch && alike(best, g, 4);
}
static bool other_recompute(const Grid *best, const Grid *g)
{
    return g->recompute != best->recompute && alike(best, g, 5);
}

static bool any(const Grid *best, const Grid *g) { (void)best, (void)g; return true; }

/* "4.1% slower: bubble + 0.12 s, data - 0.03 s": the largest loss and the largest gain. */
static void print_difference(const Candidate *best, const Candidate *x)
{
    int worst = 0, gain = 0;
    double d[TIMES];

    for (int k = 0; k < TIMES; k++) {
        d[k] = seconds(&x->time)[k] - seconds(&best->time)[k];
        worst = d[k] > d[worst] ? k : worst;
        gain = d[k] < d[gain] ? k : gain;
    }
    printf("%.1f%% slower", 100 * (x->time.total / best->time.total - 1));
    if (d[worst] > 0)
        printf(": %s + %s", time_name[worst], seconds_text(d[worst]));
    if (d[gain] < 0)
        printf(", %s - %s", time_name[gain], seconds_text(-d[gain]));
}

/* What differs between two grids: "tp=4, dp=8". */
static const char *changed_text(const Grid *from, const Grid *to)
{
    static char text[128];
    int at = 0;
    const struct {
        const char *name;
        int from, to;
    } all[] = {{"tp", from->tp, to->tp}, {"cp", from->cp, to->cp}, {"pp", from->pp, to->pp}, {"dp", from->dp, to->dp},
               {"micro-batch", from->micro_batch, to->micro_batch}, {"accumulate", from->accumulate, to->accumulate},
               {"zero", from->zero, to->zero}};

    text[0] = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].from != all[i].to)
            at += snprintf(text + at, sizeof text - at, "%s%s=%d", at ? ", " : "", all[i].name, all[i].to);
    if (from->recompute != to->recompute)
        snprintf(text + at, sizeof text - at, "%srecompute=%s", at ? ", " : "", to->recompute ? "full" : "none");
    return text;
}

static void print_alone(const Query *q, const char *what, Grid g)
{
    const Memory m = grid_memory(&q->model, &g, &q->cluster);

    printf("   %-34s %8.1f GiB  %s\n", what, m.total / GiB, fits(q, &m) ? "fits" : "doesn't fit");
}

void print_steps(const Query *q, const Candidates *c)
{
    const Candidate *best = &c->all[0];
    const Grid *b = &best->grid;
    const int n = q->cluster.gpus;
    const struct {
        const char *what;
        int value;
        bool (*differs)(const Grid *best, const Grid *g);
    } why[] = {{"tp", b->tp, other_tp}, {"cp", b->cp, other_cp}, {"pp", b->pp, other_pp}, {"zero", b->zero, other_zero},
               {"micro-batch", b->micro_batch, other_micro_batch}, {"recompute", b->recompute, other_recompute}};

    printf("1. Fit in memory. With one sequence per micro-batch, a GPU needs\n");
    const Grid one = {.dp = 1, .cp = 1, .pp = 1, .tp = 1, .micro_batch = 1, .accumulate = 1};
    Grid g = one;
    print_alone(q, "alone:", g);
    g.recompute = FULL_RECOMPUTATION;
    print_alone(q, "alone, with recomputation:", g);
    for (int zero = 1; zero <= 3 && n > 1; zero++) {
        char text[64];
        snprintf(text, sizeof text, "ZeRO-%d over %d replicas:", zero, n);
        g = one, g.dp = n, g.zero = zero;
        print_alone(q, text, g);
    }
    if (n > 1) {
        g = *b, g.micro_batch = 1;
        print_alone(q, "the best grid (below):", g);
    }
    printf("2. Reach the batch. %d sequences = %d per micro-batch x %d micro-batch%s x %d replica%s", q->sequences,
           b->micro_batch, b->accumulate, b->accumulate > 1 ? "es" : "", b->dp, b->dp > 1 ? "s" : "");
    printf(q->sequences < n ? "; fewer than GPUs: at least %d ranks must split each sequence's work\n" : "\n",
           (n + q->sequences - 1) / q->sequences);
    printf("3. Raise throughput. The fastest grid that fits: %s\n", grid_text(b));
    for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
        const Candidate *x = fastest_other(c, why[i].differs);
        printf("   %-11s %-4s ", why[i].what, i < 5 ? number_text(why[i].value) : b->recompute ? "full" : "none");
        if (x) {
            printf("with %s it is ", changed_text(b, &x->grid));
            print_difference(best, x);
        } else
            printf("no other value fits or is possible");
        g = *b;
        int *const ranks = i == 0 ? &g.tp : i == 1 ? &g.cp : i == 2 ? &g.pp : NULL;
        if (ranks && *ranks % 2 == 0) {                 /* half as many ranks, twice the replicas */
            *ranks /= 2, g.dp *= 2, g.micro_batch = 1, g.accumulate = q->sequences / g.dp;
            const Memory m = grid_memory(&q->model, &g, &q->cluster);
            if (!grid_error(q, &g) && !fits(q, &m))
                printf("; with %s=%d, even micro-batch=1 needs %.1f GiB", why[i].what, *ranks, m.total / GiB);
        }
        printf("\n");
    }
    const Candidate *second = fastest_other(c, any);
    if (second) {
        printf("   second best:     with %s it is ", changed_text(b, &second->grid));
        print_difference(best, second);
        printf("\n");
    }
}

/* ---- Every formula ---- */

static void print_memory(const Query *q, const Grid *g)
{
    const Memory m = grid_memory(&q->model, g, &q->cluster);

    printf("memory of the fullest rank, on pipeline stage %d; h %d, f %d, v %d\n", m.stage, q->model.hidden,
           q->model.mlp, q->model.vocab);
    for (int k = 0; k < MEM_CATEGORIES; k++)
        printf("  %-14s %20s bytes  %s\n", memory_name[k], number_text(llround(m.bytes[k])),
               memory_formula(&q->model, g, k));
    printf("  %-14s %20s bytes, %.1f GiB; %.1f fit\n", "total", number_text(llround(m.total)), m.total / GiB,
           memory_limit * q->hardware.memory / GiB);
}

void print_formulas(const Query *q, const Grid *g)
{
    const Model *m = &q->model;
    const Constants *k = &q->constants;
    const Hardware *h = &q->hardware;
    const double rows = (double)g->micro_batch * m->seq / g->cp;
    Stage stages[g->pp];
    const Time t = grid_time(m, g, &q->cluster, h, k, stages);
    const Candidate c = candidate_of(q, g);

    printf("\n%s\n\n", grid_text(g));
    print_memory(q, g);
    printf("\na micro-batch: %d x %d / cp = %.0f tokens per rank\n", g->micro_batch, m->seq, rows);
    const double block = block_flops(m, rows, FORWARD) + block_flops(m, rows, BACKWARD);
    printf("  block: tokens x (6 x matrix elements + 7 h s) = %.4g FLOPs / (tp %d x %.3f x %.4g FLOP/s) = %s\n",
           block, g->tp, k->efficiency, h->peak, seconds_text(block / (g->tp * k->efficiency * h->peak)));
    printf("  head: 6 x tokens x h v = %.4g FLOPs = %s\n", head_flops(m, rows),
           seconds_text(head_flops(m, rows) / (g->tp * k->efficiency * h->peak)));
    printf("  stage blocks head    kernels     tensor    context   launches    seconds\n");
    for (int i = 0; i < g->pp; i++)
        printf("  %5d %6d %4d %10s %10s %10s %10s %10s\n", i, stages[i].layers, stages[i].heads,
               seconds_text(stages[i].kernels), seconds_text(stages[i].tensor), seconds_text(stages[i].context),
               seconds_text(stages[i].launches), seconds_text(stages[i].seconds));
    printf("  kernels: FLOPs of blocks and head; per block 4 x tokens x (34h + 6f) / tp bytes of memory traffic and "
           "1/8 of its launches\n  tensor: 10 transfers of tokens x h per block (14 with recomputation), %s\n"
           "  context: transfers of K and V that attention doesn't hide\n  launches: %s per block (%s with "
           "recomputation); %s per transfer and hop outside NVLink\n"
           "  seconds: the longer of kernels + tensor + context and launches\n",
           m->in_09 ? "two hidden behind matmuls" : "none hidden", seconds_text(k->launch),
           seconds_text(k->launch * 4 / 3), seconds_text(k->hop));
    printf("\na step: all pipeline stages once, then %d times the slowest (or, if longer, a round trip through the "
           "stages / micro-batches in flight)\n", g->accumulate - 1);
    printf("  compute    %10s  accumulate x the mean of the stages' kernels\n", seconds_text(t.compute));
    printf("  launches   %10s  what launches take longer than kernels + tensor + context\n", seconds_text(t.launches));
    printf("  tensor     %10s\n  context    %10s\n", seconds_text(t.tensor), seconds_text(t.context));
    printf("  bubble     %10s  the rest of the pipeline: fill, drain, unequal pipeline stages; (p - 1) / m = %.3f\n",
           seconds_text(t.bubble), (g->pp - 1.0) / g->accumulate);
    printf("  data       %10s  ZeRO-%d over dp x cp = %d replicas: the stage's gradients (4 bytes) and weights (%d), "
           "%s; %s per layer and replica over nodes\n", seconds_text(t.data), g->zero, g->dp * g->cp, q->cluster.stored,
           g->zero == 0 ? "what the last backward doesn't hide"
           : g->zero > 1 ? "what forward and backward don't hide"
           : m->in_09 ? "the reduce-scatter behind the last backward" : "not hidden", seconds_text(k->sync));
    printf("  optimizer  %10s  100 bytes of memory traffic per parameter that this rank updates\n",
           seconds_text(t.optimizer));
    printf("  fixed      %10s\n", seconds_text(t.fixed));
    printf("  total      %10s  %.0f tokens/s per GPU, MFU %.1f%% (6N + 12 L h s FLOPs per token)\n",
           seconds_text(t.total), c.tokens, 100 * c.mfu);
}

void write_csv(const Candidates *c, const char *file)
{
    FILE *f = fopen(file, "w");

    if (!f)
        fail("--csv %s: %s", file, strerror(errno));
    fprintf(f, "tp,cp,pp,dp,micro_batch,accumulate,zero,recompute,fits");
    for (int k = 0; k < MEM_CATEGORIES; k++)
        fprintf(f, ",%s_bytes", memory_name[k]);
    fprintf(f, ",total_bytes");
    for (int k = 0; k < TIMES; k++)
        fprintf(f, ",%s_seconds", time_name[k]);
    fprintf(f, ",total_seconds,tokens_per_second_per_gpu,mfu\n");
    for (int i = 0; i < c->count; i++) {
        const Candidate *x = &c->all[i];
        const Grid *g = &x->grid;
        fprintf(f, "%d,%d,%d,%d,%d,%d,%d,%s,%d", g->tp, g->cp, g->pp, g->dp, g->micro_batch, g->accumulate, g->zero,
                g->recompute ? "full" : "none", i < c->fitting);
        for (int k = 0; k < MEM_CATEGORIES; k++)
            fprintf(f, ",%.0f", x->memory.bytes[k]);
        fprintf(f, ",%.0f", x->memory.total);
        for (int k = 0; k < TIMES; k++)
            fprintf(f, ",%.6g", seconds(&x->time)[k]);
        fprintf(f, ",%.6g,%.6g,%.4g\n", x->time.total, x->tokens, x->mfu);
    }
    if (ferror(f) | fclose(f))
        fail("--csv %s: %s", file, strerror(errno));
}
