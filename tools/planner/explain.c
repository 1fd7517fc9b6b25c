#include "explain.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"
#include "machines.h"

static const char *seconds_text(double s)
{
    return s >= 0.1 ? format_text(s >= 10 ? "%.1f s" : "%.2f s", s)
           : s >= 1e-3 ? format_text("%.1f ms", 1e3 * s) : format_text("%.0f us", 1e6 * s);
}

static const char *count_text(double parameters)
{
    return parameters < 1e7 ? number_text(parameters) : format_text("%.2f billion", parameters / 1e9);
}

static void print_query(const Query *q)
{
    const Model *m = &q->model;
    const int gpus = q->cluster.gpus, per_node = q->cluster.per_node, rack = q->hardware.domain;

    printf("%s: %s parameters (%d layers, hidden %d, %d heads", m->name, count_text(model_parameters(m)), m->layers,
           m->hidden, m->heads);
    if (m->kv_heads < m->heads)
        printf(" and %d of keys and values", m->kv_heads);
    if (m->experts)
        printf(", %d experts of width %d", m->experts, m->expert_width);
    else
        printf(", MLP %d", m->mlp);
    if (m->gated)
        printf(" gated");
    printf(", vocabulary %d", m->vocab);
    if (m->tied)
        printf(" tied");
    printf("; as %s runs it)\n", frameworks[q->cluster.framework].command);
    Model llama;
    if (!strstr(m->name, ".json") && model_find(&llama, format_text("llama3-%s", m->name)))
        printf("(%s of the %s; Llama 3's is --model %s)\n", m->name, m->in_09 ? "programs" : "playbook", llama.name);
    if (q->cluster.fp8)
        printf("matmuls of blocks in fp8, with a scale per %s; MFU is of bf16's peak\n",
               q->cluster.fp8 == MXFP8 ? "32 elements (MXFP8)" : "tensor");
    if (m->experts)
        printf("a token takes %d experts, and so uses %s parameters\n", m->top_k, count_text(active_parameters(m)));
    printf("GPUs: %d x %s in nodes of %d%s; tokens per step: %s = %s x %s\n", gpus, q->hardware.name,
           gpus < per_node ? gpus : per_node, per_node < rack ? format_text(" (of racks of %d)", rack) : "",
           number_text((int64_t)q->sequences * m->seq), number_text(q->sequences), number_text(m->seq));
}

/* Of each kind of grid, by the techniques that it has, the fastest. */
static void print_table(const Query *q, const Candidates *c)
{
    bool shown[16] = {false};

    printf("%s grids, of which %s fit", number_text(c->count), number_text(c->fitting));
    if (!isinf(q->hardware.memory))
        printf(" in %.1f GiB per GPU (%.0f%% of its memory)",
               q->cluster.memory / GiB, 100 * q->cluster.memory / q->hardware.memory);
    printf("\n\n");
    printf("                                 GiB of the fullest rank | seconds per step\n"
           "  tp cp pp  ep   dp micro  acc zero recomp states act  sum | compute launch tensor context expert bubble"
           "   data  optim  fixed   total | tok/s/GPU   MFU\n");
    for (int i = 0; i < c->fitting; i++) {
        const Candidate *x = &c->all[i];
        const Grid *g = &x->grid;
        const int kind = (g->tp > 1) | (g->cp > 1) << 1 | (g->pp > 1) << 2 | (g->ep > 1) << 3;
        if (shown[kind])
            continue;
        shown[kind] = true;
        printf("%4d %2d %2d %3d %4d %5d %4d %4d %-6.6s %6.1f %5.1f %4.1f |", g->tp, g->cp, g->pp, g->ep, g->dp,
               g->micro_batch, g->accumulate, g->zero, size_text(RECOMPUTE, g->recompute),
               (x->memory.total - x->memory.bytes[MEM_ACTIVATIONS]) / GiB, x->memory.bytes[MEM_ACTIVATIONS] / GiB,
               x->memory.total / GiB);
        for (int k = 0; k < TIMES; k++)
            printf(" %6.3f", (&x->time.compute)[k]);
        printf(" %7.3f | %9.0f %4.1f%%\n", x->time.total, x->tokens, 100 * x->mfu);
    }
    printf("\n");
}

/* ---- The reasons: the playbook's three steps ---- */

/* "with tp=2,dp=4 it is 4.1% slower: bubble + 0.12 s, data - 0.03 s": the largest loss and the largest gain. */
static void print_other(const Candidate *best, const Candidate *x)
{
    int worst = 0, gain = 0;
    double d[TIMES];

    for (int k = 0; k < TIMES; k++) {
        d[k] = (&x->time.compute)[k] - (&best->time.compute)[k];
        worst = d[k] > d[worst] ? k : worst;
        gain = d[k] < d[gain] ? k : gain;
    }
    const double slower = 100 * (x->time.total / best->time.total - 1);
    printf("with %s it is %.1f%% %s", grid_text(&x->grid, &best->grid), fabs(slower), slower < 0 ? "faster" : "slower");
    if (d[worst] > 0)
        printf(": %s + %s", time_name[worst], seconds_text(d[worst]));
    if (d[gain] < 0)
        printf(", %s - %s", time_name[gain], seconds_text(-d[gain]));
    printf("\n");
}

static void print_alone(const Query *q, const char *what, Grid g)
{
    const Memory m = grid_memory(&q->model, &g, &q->cluster);

    printf("   %-34s %8.1f GiB  %s\n", what, m.total / GiB, m.total <= q->cluster.memory ? "fits" : "doesn't fit");
}

static void print_fit(const Query *q, const Grid *best)
{
    Grid g = {.dp = 1, .cp = 1, .pp = 1, .tp = 1, .ep = 1, .etp = 1, .micro_batch = 1, .accumulate = 1,
              .chunks = 1, .replicate = 1};
    const int n = q->cluster.gpus, stages = strchr(frameworks[q->cluster.framework].stages, '3') ? 3 : 1;

    printf("1. Fit in memory. With one sequence per micro-batch, a GPU needs\n");
    print_alone(q, "alone:", g);
    for (g.dp = n, g.zero = 1; g.zero <= (n > 1 ? stages : 0); g.zero++)
        print_alone(q, format_text("ZeRO-%d over %d replicas:", g.zero, n), g);
    g.zero = n > 1 ? stages : 0, g.recompute = FULL_RECOMPUTATION;
    print_alone(q, "also recomputed:", g);
    g = *best, g.micro_batch = 1;
    print_alone(q, "the best grid (below):", g);
}

static void print_steps(const Query *q, const Candidates *c)
{
    const Candidate *best = &c->all[0];
    const Grid *b = &best->grid;
    const int n = q->cluster.gpus;

    if (q->tokens) {
        const double hours = q->tokens / best->tokens / 3600;
        const char *tokens = q->tokens < 1e12 ? format_text("%.4gB", q->tokens / 1e9)
                             : format_text("%.4gT", q->tokens / 1e12);
        printf("%s tokens take %.4g days and %s GPU-hours", tokens, hours / n / 24, number_text(hours));
        if (q->price)
            printf(", which cost %s at %g each", number_text(hours * q->price), q->price);
        printf(".\n\n");
    }
    print_fit(q, b);
    printf("2. Reach the batch. %d sequences = micro-batch %d x accumulate %d x dp %d", q->sequences, b->micro_batch,
           b->accumulate, b->dp);
    printf(q->sequences < n ? "; fewer than GPUs: at least %d ranks must split each sequence's work\n" : "\n",
           (n + q->sequences - 1) / q->sequences);
    printf("3. Raise throughput. The best grid that fits: %s\n", grid_text(b, NULL));
    if (memcmp(b, &c->fastest.grid, sizeof *b)) {
        const int techniques = technique_count(b);
        printf("   It leaves %.1f GiB and takes %d technique%s; the fastest leaves %.1f and takes %d:\n   ",
               (q->cluster.memory - best->memory.total) / GiB, techniques, techniques == 1 ? "" : "s",
               (q->cluster.memory - c->fastest.memory.total) / GiB, technique_count(&c->fastest.grid));
        print_other(best, &c->fastest);
    }
    for (Dimension d = 0; d < DIMENSIONS; d++) {
        const Candidate *x = fastest_other(c, d);
        if (d == DP || d == ACCUMULATE || !x)
            continue;
        printf("   %-11s %-4s ", dimension_name[d], size_text(d, grid_size(b, d)));
        print_other(best, x);
    }
}

/* ---- What is odd about a question or its answer ---- */

/* Halves the GPUs, in whole nodes, while twice as many bring less than a quarter. */
static void advise_fewer(const Query *q, double tokens)
{
    Query fewer = *q;
    double enough = tokens, before;
    int gpus = q->cluster.gpus;

    for (int n = gpus / 2; n >= 1; n /= 2, enough = before) {
        fewer.cluster.gpus = n -= n > q->cluster.per_node ? n % q->cluster.per_node : 0;
        const Candidates c = candidates(&fewer);
        before = c.fitting ? c.all[0].tokens * n : 0;
        free(c.all);
        if (before < 0.8 * enough)
            break;
        gpus = n;
    }
    if (gpus < q->cluster.gpus)
        printf("- More GPUs than are useful: with this batch %d reach %s tokens/s in all, %d only %s.\n"
               "  A larger --batch would use more of them.\n",
               gpus, number_text(enough), q->cluster.gpus, number_text(tokens));
}

/* How far to trust the numbers: by the errors of runs like these, when the fit leaves their source out (profiles.c). */
static void advise_trust(const Query *q)
{
    const Cluster *c = &q->cluster;
    const bool mixture = q->model.experts > 0;
    const Profile *p = &profiles[profile_for(c->framework, &q->hardware)];
    const char *kind = mixture ? "mixtures" : "dense models", *name = frameworks[c->framework].command;
    const char *in = c->fp8 ? "fp8" : c->stored == 2 ? "bf16" : "fp32";
    const bool like_these = strstr(p->frameworks, format_text(" %s ", frameworks[c->framework].name))
                            && strstr(p->gpus, format_text(" %s ", q->hardware.name));

    if (isinf(q->hardware.memory))                      /* simulated */
        return;
    if (p->evidence[mixture].runs && like_these && c->stored == 2 && (c->fp8 || !p->in_fp8))
        printf("- How far to trust this: the %d published runs of %s in %s on%sare predicted\n"
               "  with constants fitted to other sources. Half of them are off by less than %.1f%%, nine in ten by "
               "less than %.0f%%.\n", p->evidence[mixture].runs, kind, name, p->gpus, p->evidence[mixture].median,
               p->evidence[mixture].most);
    else
        printf("- How far to trust this: the planner knows no published run of %s in %s, in %s on %s.\n"
               "  It takes constants that other runs gave (%s). Measure one grid before you rely on the numbers.\n",
               kind, name, in, q->hardware.name, p->name);
}

/* ---- Every formula ---- */

static void print_memory(const Query *q, const Grid *g)
{
    static const char *const words[MEM_CATEGORIES] = {
        "2 (fp32: 4) x parameters of the pipeline stage / tp; ZeRO-3: / shards",
        "4 (fp32: 0) x the same; ZeRO-1: / shards",
        "6 in nanotron, 4 in Megatron-LM, 2 in others, or as given, x the same; ZeRO-2: / shards",
        "8 x the same; ZeRO-1: / shards",
        "micro-batches in flight x blocks x tokens x what backward needs / tp; logits",
        "none", "0.4 GiB; with ZeRO-3 also 8 x parameters of a block / tp"};
    const Memory m = grid_memory(&q->model, g, &q->cluster);
    const char *ours = q->model.experts ? "11_five_dimensions/formulas.c" : "09_combined/formulas.c";

    printf("memory of the fullest rank, on pipeline stage %d; h %d, f %d, v %d\n", m.stage, q->model.hidden,
           q->model.experts ? q->model.expert_width : q->model.mlp, q->model.vocab);
    for (int k = 0; k < MEM_CATEGORIES; k++)
        printf("  %-14s %20s bytes  %s\n", memory_name[k], number_text(llround(m.bytes[k])),
               q->cluster.framework == FOR_09 ? ours : words[k]);
    printf("  %-14s %20s bytes, %.1f GiB; %.1f fit\n", "total", number_text(llround(m.total)), m.total / GiB,
           q->cluster.memory / GiB);
}

static void print_formulas(const Query *q, const Grid *g)
{
    static const char *const words[TIMES] = {
        "accumulate x the mean of the stages' kernels: FLOPs; 4 to 8 times what backward needs, through memory",
        "what the host's launches take longer than the device's work",
        "transfers of tokens x h, 10 per block (14 if recomputed), that matmuls don't hide",
        "transfers of K and V that attention doesn't hide", "all-to-alls that matmuls don't hide",
        "the rest of the pipeline: fill, drain, unequal stages", "gradients and weights, what compute doesn't hide",
        "100 bytes of memory traffic per parameter that this rank updates", "any step"};
    const Model *m = &q->model;
    const Constants *k = &q->constants;
    const double boost = q->hardware.boost ? q->hardware.boost : 1, peak = boost * q->hardware.peak;
    const double fraction = k->efficiency * (q->cluster.fp8 ? k->fp8 : 1);
    const double fastest = q->cluster.fp8 ? boost * q->hardware.peak8 : peak;
    const double rows = (double)g->micro_batch * m->seq / g->cp, rate = g->tp * k->efficiency * peak;
    const double linear = g->tp * fraction * fastest, attend = g->tp * k->attention * peak;
    Stage stages[g->pp];
    const Time t = grid_time(m, g, &q->cluster, &q->hardware, k, stages);
    const Candidate c = candidate_of(q, g);

    printf("\n%s\n\n", grid_text(g, NULL));
    print_memory(q, g);
    printf("\na micro-batch: %d x %d / cp = %.0f tokens per rank\n", g->micro_batch, m->seq, rows);
    const double matrices = matrix_flops(m, rows, FORWARD) + matrix_flops(m, rows, BACKWARD);
    const double attention = attention_flops(m, rows, FORWARD) + attention_flops(m, rows, BACKWARD);
    printf("  block: 6 x tokens x matrix elements = %.4g FLOPs / (tp %d x %.3f x %.4g FLOP/s) = %s\n"
           "    and 7 x tokens x h s = %.4g / (tp x %.3f x %.4g) = %s\n", matrices, g->tp, fraction, fastest,
           seconds_text(matrices / linear), attention, k->attention, peak, seconds_text(attention / attend));
    printf("  head: 6 x tokens x h v = %.4g FLOPs = %s\n"
           "  launches: %s per block (recomputed %s), and %s per transfer and hop outside NVLink\n"
           "  a step, all ranks: %.4g FLOPs, without recomputation\n", head_flops(m, rows),
           seconds_text(head_flops(m, rows) / rate), seconds_text(k->launch), seconds_text(k->launch * 4 / 3),
           seconds_text(k->hop),
           (double)g->accumulate * g->dp * g->cp * (m->layers * (matrices + attention) + head_flops(m, rows)));
    printf("  stage blocks head    kernels     tensor    context    experts   launches    seconds\n");
    for (int i = 0; i < g->pp; i++)
        printf("  %5d %6d %4d %10s %10s %10s %10s %10s %10s\n", i, stages[i].layers, stages[i].heads,
               seconds_text(stages[i].kernels), seconds_text(stages[i].tensor), seconds_text(stages[i].context),
               seconds_text(stages[i].exchange), seconds_text(stages[i].launches), seconds_text(stages[i].seconds));
    printf("  seconds: the longer of launches and kernels + tensor + context + experts\n"
           "\na step: all pipeline stages once, then %d times the slowest (or, if longer, a round trip through the "
           "stages / micro-batches in flight)\n", g->accumulate - 1);
    for (int i = 0; i < TIMES; i++)
        printf("  %-10s %10s  %s\n", time_name[i], seconds_text((&t.compute)[i]), words[i]);
    printf("  total      %10s  %.0f tokens/s per GPU, MFU %.1f%% (6N + 12 L h s FLOPs per token)\n",
           seconds_text(t.total), c.tokens, 100 * c.mfu);
}

static void write_csv(const Query *q, const Candidates *c, const char *file)
{
    FILE *f = fopen(file, "w");

    if (!f)
        fail("--csv %s: %s", file, strerror(errno));
    fprintf(f, "tp,cp,pp,ep,etp,dp,micro_batch,accumulate,chunks,replicate,zero,recompute,fits");
    for (int k = 0; k < MEM_CATEGORIES; k++)
        fprintf(f, ",%s_bytes", memory_name[k]);
    fprintf(f, ",total_bytes");
    for (int k = 0; k < TIMES; k++)
        fprintf(f, ",%s_seconds", time_name[k]);
    fprintf(f, ",total_seconds,tokens_per_second_per_gpu,mfu\n");
    for (int i = 0; i < c->count; i++) {
        const Candidate full = candidate_of(q, &c->all[i].grid), *x = &full;
        const Grid *g = &x->grid;
        for (int d = 0; d < DIMENSIONS; d++)
            fprintf(f, "%s,", size_text(d, grid_size(g, d)));
        fprintf(f, "%d", i < c->fitting);
        for (int k = 0; k < MEM_CATEGORIES; k++)
            fprintf(f, ",%.0f", x->memory.bytes[k]);
        fprintf(f, ",%.0f", x->memory.total);
        for (int k = 0; k < TIMES; k++)
            fprintf(f, ",%.6g", (&x->time.compute)[k]);
        fprintf(f, ",%.6g,%.6g,%.4g\n", x->time.total, x->tokens, x->mfu);
    }
    if (ferror(f) | fclose(f))
        fail("--csv %s: %s", file, strerror(errno));
}

Candidate print_plan(const Query *q, const char *explain, const char *csv)
{
    if (explain && strcmp(explain, "best")) {
        Grid g;
        const char *wrong = grid_read(q, explain, &g);
        if (csv)
            fail_usage("--csv %s: expected without --explain GRID, which computes one grid only", csv);
        if (wrong)
            fail_usage("--explain %s: %s", explain, wrong);
        print_query(q);
        print_formulas(q, &g);
        print_commands(q, &g);
        return candidate_of(q, &g);
    }
    const Candidates c = search(q);
    const Candidate best = c.all[0];
    print_query(q);
    print_table(q, &c);
    if (explain)
        print_formulas(q, &best.grid);
    else {
        print_steps(q, &c);
        advise_fewer(q, best.tokens * q->cluster.gpus);
        if (!q->cluster.fp8 && best.mfu > q->constants.efficiency)
            printf("- MFU exceeds the efficiency, %.1f%%, because it counts all of attention's square; kernels compute "
                   "the causal half.\n", 100 * q->constants.efficiency);
        advise_trust(q);
        print_commands(q, &best.grid);
    }
    if (csv)
        write_csv(q, &c, csv);
    free(c.all);
    return best;
}
