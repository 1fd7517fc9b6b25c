#include "costs.h"

#include <math.h>
#include <string.h>

const double memory_limit = 0.87;

const char *const category_name[CATEGORIES] = {"parameters", "master", "gradients", "optimizer", "activations",
                                               "communication", "workspace"};
enum { PARAMETERS, MASTER, GRADIENTS, OPTIMIZER, ACTIVATIONS, COMMUNICATION, WORKSPACE };
const char *const time_name[TIMES] = {"compute", "launches", "tensor", "context", "bubble", "data", "optimizer",
                                      "fixed"};

const char *const constant_name[CONSTANTS] = {"efficiency", "launch", "hop", "sync", "step", "stall"};
const char *const constant_meaning[CONSTANTS] = {
    "of the peak, in matmuls and attention",
    "s for the host to start a layer's kernels, forward and backward, for each micro-batch",
    "s for each collective of a layer and hop of its ring that leaves NVLink",
    "s for each layer and replica, to sum gradients over nodes",
    "s for each step, whatever is in it",
    "s for each transfer between stages on 64 or more nodes, and for a micro-batch where memory is full"};
const Constants published_constants = {0.452, 4.62e-3, 2.85e-4, 5.6e-5, 0.068, 0.50}, exact_constants = {.efficiency = 1};

/* What isn't fitted. Of one token and layer, bytes that are written and read, both ways: what backward needs (34h + 6f)
 * four times: written, read in forward, read in backward, and as much for its gradient but once. Of a logit: in bf16, in
 * float, its softmax and its gradient. Of a parameter: gradient, master weight and moments read for norm, clipping and
 * update, written, and set to zero. */
static const double PASSES = 4, LOGIT_BYTES = 20, UPDATE_BYTES = 48;
static const double REAL = 4;                   /* bytes of gradients and of what AdamW keeps */
static const double GAP = 1.0 / 8;              /* of the launches' time the GPU waits, however much it has to do */
static const double RING_STEP = 1.0 / 15;       /* of a layer's launches: attention's for the keys of another rank */
static const int COLLECTIVES = 10;              /* of a layer: 2 gathers, 2 scatters forward, 4 and 2 backward (05) */
static const int FORWARD_COLLECTIVES = 4;
static const int CONGESTED = 64;                /* nodes: from there on all published pipelines stalled */

/* ---- The model ---- */

static double block_matrices(const Model *m)
{
    const double h = m->hidden, f = m->mlp, kv = h * m->kv_heads / m->heads;

    return 2 * h * h + 2 * h * kv + (m->gated ? 3 : 2) * h * f;
}

double block_parameters(const Model *m)
{
    return block_matrices(m) + (m->ours ? 13 : 2) * (double)m->hidden;      /* biases and LayerNorms; RMSNorms */
}

double model_parameters(const Model *m)
{
    const double h = m->hidden;

    return m->layers * block_parameters(m) + (m->tied ? 1 : 2) * h * m->vocab + (m->ours ? 2 : 1) * h;
}

double model_flops(const Model *m)
{
    return 6 * model_parameters(m) + 12.0 * m->layers * m->hidden * m->seq;
}

double block_flops(const Model *m, double tokens)
{
    return 6 * tokens * (block_matrices(m) + (double)m->hidden * m->seq);
}

double head_flops(const Model *m, double tokens)
{
    return 6 * tokens * m->hidden * m->vocab;
}

double grid_tokens(const Model *m, const Grid *g)
{
    return (double)g->micro_batch * g->accumulate * g->dp * m->seq;
}

void grid_stages(const Model *m, const Grid *g, Stage *stages)
{
    const int p = g->pp, L = m->layers;
    const double block = block_parameters(m), table = (double)m->hidden * m->vocab;
    const double cost = block_matrices(m), all = L * cost + table;
    double so_far = 0;
    int at = 0;

    memset(stages, 0, p * sizeof *stages);
    stages[0].embeddings = 1;
    if (m->ours) {
        for (int i = 0; i < p; i++)
            stages[i].layers = (int64_t)L * (i + 1) / p - (int64_t)L * i / p;
        stages[p - 1].heads = 1;
    }
    for (int i = 0; i <= L && !m->ours; i++) {          /* the head comes after the blocks */
        so_far += i < L ? cost : table;
        at += at < p - 1 && so_far > all * (at + 1) / p;
        if (i < L)
            stages[at].layers++;
        else
            stages[at].heads = 1;
    }
    for (int i = 0; i < p; i++) {
        const int tables = stages[i].embeddings + stages[i].heads;
        stages[i].params = stages[i].layers * block + (p == 1 && m->tied ? 1 : tables) * table
                           + stages[i].heads * (m->ours ? 2.0 : 1.0) * m->hidden;
    }
}

/* ---- Memory ---- */

static double tokens_here(const Model *m, const Grid *g)       /* of a micro-batch; of its rows t ranks have 1/t each */
{
    return (double)g->micro_batch * m->seq / g->cp;
}

/* nanotron's. 2 bytes of weights, 4 of gradients and 2 of those in bf16 that are not yet added, 12 of master weights and
 * moments. A block keeps 34h + 6f bytes of a token; the pp = 1 runs can be explained only if what is gathered for its
 * two column-parallel products is kept too (4h, not divided by t), the others only if it isn't. */
static Memory published_memory(const Model *m, const Grid *g, const Cluster *c, const Stage *s)
{
    const double h = m->hidden, t = g->tp, tokens = tokens_here(m, g), params = s->params / t;
    const double replicas = (double)g->dp * g->cp, states = g->zero >= 1 ? replicas : 1;
    const double in_flight = fmin(g->pp, g->accumulate);
    const double row = (34 * h + 6.0 * m->mlp) / t + (c->published && g->pp == 1 && g->tp > 1 ? 4 * h : 0);
    const double kept = g->recompute ? in_flight * s->layers * 2 * h / t + row : in_flight * s->layers * row;

    return (Memory){.bytes = {
        [PARAMETERS] = 2 * params / (g->zero == 3 ? replicas : 1), [MASTER] = 4 * params / states,
        [GRADIENTS] = 6 * params / (g->zero >= 2 ? replicas : 1), [OPTIMIZER] = 8 * params / states,
        [ACTIVATIONS] = tokens * (kept + s->heads * 6.0 * m->vocab / t),
        [WORKSPACE] = 0.4 * (1 << 30) + (g->zero == 3 ? 8 * block_parameters(m) / t : 0)}};
}

Memory grid_memory(const Model *m, const Grid *g, const Cluster *c)
{
    Stage stages[g->pp];
    Memory most = {0};

    grid_stages(m, g, stages);
    for (int i = 0; i < g->pp; i++) {
        Memory one = published_memory(m, g, c, &stages[i]);
        one.stage = i;
        for (int k = 0; k < CATEGORIES; k++)
            one.total += one.bytes[k];
        if (one.total > most.total)
            most = one;
    }
    return most;
}

const char *memory_formula(const Model *m, const Grid *g, int category)
{
    static const char *const formulas[CATEGORIES] = {
        "2 x parameters of the stage / tp", "4 x the same", "6 x the same: float, and what is still in bf16",
        "8 x the same", "micro-batches in flight x blocks x tokens x (34h + 6f) / tp, and 6 x tokens x v / tp", "none",
        "what a process has besides"};
    static const char *const sharded[CATEGORIES] = {
        [PARAMETERS] = "2 x parameters of the stage / (tp x replicas)", [MASTER] = "4 x the same / replicas",
        [GRADIENTS] = "6 x the same / replicas", [OPTIMIZER] = "8 x the same / replicas"};
    const bool is_sharded = (category == PARAMETERS && g->zero == 3) || (category == GRADIENTS && g->zero >= 2)
                            || ((category == MASTER || category == OPTIMIZER) && g->zero >= 1);

    if (category == ACTIVATIONS && g->recompute)
        return "micro-batches in flight x blocks x tokens x 2h / tp, a block's, and 6 x tokens x v / tp";
    (void)m;
    return is_sharded ? sharded[category] : formulas[category];
}

/* ---- Time ---- */

static bool congested(const Cluster *c)
{
    return c->published && c->gpus >= CONGESTED * c->per_node;
}

/* A micro-batch on one stage, forward and backward. Blocks compute at `efficiency` of the peak and move what they keep
 * through memory; tensor parallelism's transfers are not hidden, context parallelism's hide behind attention. Meanwhile
 * the host starts kernels: if that takes longer, the GPU waits for it. */
static void stage_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *s)
{
    const double t = g->tp, rows = tokens_here(m, g), stored = c->stored;
    const double rate = k->efficiency * h->peak * t, again = g->recompute ? 1.0 / 3 : 0;
    const bool scattered = c->published && ((g->pp > 1 && c->gpus > c->per_node) || congested(c));
    const int hops = scattered ? g->tp - 1 : (g->tp - 1) / c->per_node;
    const int collectives = COLLECTIVES + (g->recompute ? FORWARD_COLLECTIVES : 0);
    const double moved = PASSES * rows * (34.0 * m->hidden + 6.0 * m->mlp) / (t * h->bandwidth);
    const double block = block_flops(m, rows) / rate + moved;
    const double head = head_flops(m, rows) / rate + LOGIT_BYTES * rows * m->vocab / (t * h->bandwidth);
    const double gathered = rows * m->hidden * stored * (t - 1) / t, link = g->tp <= c->per_node ? h->nvlink : h->network;
    const double ring_link = g->tp * g->cp <= c->per_node ? h->nvlink : h->network / c->per_node;
    const double kv = 2 * rows * m->hidden * m->kv_heads / m->heads / t;    /* elements of K and V */
    const double ring = ((2 + 3 * again) * (g->cp - 1) * stored + g->cp * REAL) * kv / ring_link
                        + (3 + 3 * again) * g->cp * h->latency;
    const double attention = 6 * rows * m->hidden * m->seq / rate;
    const double launch = k->launch * (1 + again) * (1 + RING_STEP * (g->cp - 1));

    s->kernels = s->layers * (block * (1 + again) + GAP * launch) + s->heads * head;
    s->tensor = g->tp > 1 ? s->layers * collectives * (gathered / link + (t - 1) * h->latency) : 0;
    s->context = g->cp > 1 ? s->layers * fmax(0, ring - attention) : 0;
    s->launches = s->layers * (launch + collectives * hops * k->hop);
    s->seconds = fmax(s->kernels + s->tensor + s->context, s->launches);
}

/* What sums a stage's gradients and hands out its weights: a node's ranks share its network, so what counts is all of a
 * stage's parameters, not a rank's. Seconds that nothing hides. */
static double data_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k,
                        const Stage *s)
{
    const double n = (double)g->dp * g->cp, backward = s->seconds * 2 / 3, stored = c->stored;
    const int of_a_node = g->tp * g->cp * (m->ours ? g->pp : 1);    /* ours: the stages of a replica are neighbours */
    const bool leaves = (double)of_a_node * g->dp > c->per_node;
    const double stages_beside = m->ours ? fmax(1, fmin(g->pp, (double)c->per_node / (g->tp * g->cp))) : 1;
    const double rate = leaves ? h->network / stages_beside : h->nvlink * c->per_node;
    const double wait = (n - 1) * h->latency * (s->layers + 1), sync = leaves ? k->sync * s->layers * n : 0;
    const double scatter = REAL * s->params / rate + wait, gather = stored * s->params / rate + wait;

    if (n == 1)
        return 0;
    switch (g->zero) {
    case 0:                             /* overlaps with the last backward */
        return fmax(0, 2 * scatter + sync - backward);
    case 1:                             /* nanotron's overlaps with nothing */
        return m->ours ? fmax(0, scatter + sync - backward) + gather : scatter + gather + sync;
    case 2:                             /* a scatter for each micro-batch, behind its backward */
        return g->accumulate * fmax(0, scatter + sync - backward) + gather;
    default:                            /* and two gathers, of the next block while one computes */
        return g->accumulate * fmax(0, scatter + 2 * gather + 1.5 * sync - s->seconds);
    }
}

/* One forward, one backward: the first micro-batch passes through all stages and back, and a further one comes each
 * period: what the slowest stage takes; or, as stage i has p - i micro-batches in flight, a part of their way there and
 * back. */
static double pipeline_time(const Grid *g, const Stage *stages, double transfer)
{
    double sum = 0, period = 0;

    for (int i = g->pp - 1; i >= 0; i--) {
        sum += stages[i].seconds;
        period = fmax(period, fmax(stages[i].seconds, (sum + 2 * (g->pp - 1 - i) * transfer) / (g->pp - i)));
    }
    return sum + 2 * (g->pp - 1) * transfer + (g->accumulate - 1) * period;
}

Time grid_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *given)
{
    Stage own[g->pp], *stages = given ? given : own;
    const double in_node = g->tp * g->cp * g->pp <= c->per_node, replicas = g->zero ? (double)g->dp * g->cp : 1;
    const double full = c->published && grid_memory(m, g, c).total > memory_limit * h->memory;
    const double stored = c->stored;
    const double transfer = tokens_here(m, g) * m->hidden * stored / g->tp
                                / (in_node ? h->nvlink : h->network / c->per_node)
                            + h->latency + (congested(c) ? k->stall : 0);
    double busy = 0, most = 0;
    Time time = {.fixed = k->step};

    grid_stages(m, g, stages);
    for (int i = 0; i < g->pp; i++) {
        Stage *s = &stages[i];
        stage_time(m, g, c, h, k, s);
        s->seconds += full * k->stall;
        const double share = (double)g->accumulate / g->pp;
        time.compute += share * s->kernels;
        time.tensor += share * s->tensor;
        time.context += share * s->context;
        time.launches += share * fmax(0, s->seconds - (s->kernels + s->tensor + s->context));
        busy += share * s->seconds;
        time.data = fmax(time.data, data_time(m, g, c, h, k, s));
        most = fmax(most, s->params);
    }
    const double pipeline = pipeline_time(g, stages, transfer);
    time.bubble = pipeline - busy;
    time.optimizer = UPDATE_BYTES * most / (g->tp * replicas * h->bandwidth);
    time.total = pipeline + time.data + time.optimizer + time.fixed;
    return time;
}
