#include "costs.h"

#include <math.h>
#include <string.h>

#include "../formulas.h"

const double memory_limit = 0.87;

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
const Constants published_constants = {0.461, 4.51e-3, 2.82e-4, 5.1e-5, 0.069, 0.50};
const Constants exact_constants = {.efficiency = 1};

/* What isn't fitted. Of one token and layer, bytes that are written and read, both ways: what backward needs (34h + 6f)
 * is written, read in forward, read in backward, and as much gradient passes by. Of a logit: in bf16, in float, its
 * softmax and its gradient. Of a parameter: AdamW without fusion touches some twenty floats; norm, clipping, the copy
 * in bf16 and zeroing the gradient as much as five more. */
static const double PASSES = 4, LOGIT_BYTES = 20, UPDATE_BYTES = 100;
static const double REAL = 4;                   /* bytes of gradients and of what AdamW keeps */
static const double GAP = 1.0 / 8;              /* of the launches' time the GPU waits, however much it has to do */
static const double RING_STEP = 1.0 / 15;       /* of a layer's launches: attention's for the keys of another rank */
static const int FORWARD_COLLECTIVES = 4, BACKWARD_COLLECTIVES = 6;     /* of a layer: 2 gathers and 2 scatters; 4, 2 */
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

double block_flops(const Model *m, double tokens, Pass pass)
{
    const double attention = (double)m->hidden * m->seq;        /* times 2 tokens: q k and p v, of the causal half */

    return tokens * (pass == FORWARD ? 2 * (block_matrices(m) + attention) : 4 * block_matrices(m) + 5 * attention);
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

/* nanotron's. 2 bytes of weights, 4 of gradients and 2 of those in bf16 that are not yet added, 12 of master weights
 * and moments. A block keeps 34h + 6f bytes of a token. The published pp = 1 runs can be explained only if what is
 * gathered for its two column-parallel products is kept too (4h, not divided by t), the others only if it isn't. */
static Memory published_memory(const Model *m, const Grid *g, const Cluster *c, const Stage *s)
{
    const double h = m->hidden, t = g->tp, tokens = tokens_here(m, g), params = s->params / t;
    const double replicas = (double)g->dp * g->cp, states = g->zero >= 1 ? replicas : 1;
    const double in_flight = fmin(g->pp, g->accumulate);
    const double row = (34 * h + 6.0 * m->mlp) / t + (c->published && g->pp == 1 && g->tp > 1 ? 4 * h : 0);
    const double kept = g->recompute ? in_flight * s->layers * 2 * h / t + row : in_flight * s->layers * row;

    return (Memory){.bytes = {
        [MEM_PARAMETERS] = 2 * params / (g->zero == 3 ? replicas : 1), [MEM_MASTER] = 4 * params / states,
        [MEM_GRADIENTS] = 6 * params / (g->zero >= 2 ? replicas : 1), [MEM_OPTIMIZER] = 8 * params / states,
        [MEM_ACTIVATIONS] = tokens * (kept + s->heads * 6.0 * m->vocab / t),
        [MEM_WORKSPACE] = 0.4 * (1 << 30) + (g->zero == 3 ? 8 * block_parameters(m) / t : 0)}};
}

/* The last of the replicas and of the tensor-parallel ranks has the most, where they don't divide evenly. */
static Place place_of(const Model *m, const Grid *g, const Cluster *c, const Stage *s, int stage)
{
    const int64_t T = m->seq / g->cp, left = g->pp - stage;

    return (Place){
        .B = g->micro_batch, .T = T, .R = g->micro_batch * T / g->tp, .H = m->hidden, .A = m->heads / g->tp,
        .D = m->hidden / m->heads, .F = m->mlp / g->tp, .V = (m->vocab + g->tp - 1) / g->tp,
        .S = g->micro_batch * T < c->loss_rows ? g->micro_batch * T : c->loss_rows, .layers = s->layers,
        .first = stage == 0, .last = stage == g->pp - 1, .in_flight = left < g->accumulate ? left : g->accumulate,
        .tp = g->tp, .cp = g->cp, .replica = g->dp * g->cp - 1, .replicas = g->dp * g->cp, .zero = g->zero >= 1,
        .recompute = g->recompute, .stored = c->stored, .real = REAL, .master = c->stored < REAL};
}

/* 09's; ZeRO-2 and 3 as in 04: a shard of each unit, and room for two blocks, the embedding and the final LayerNorm. */
static Memory our_memory(const Model *m, const Grid *g, const Cluster *c, const Stage *s, int stage)
{
    const Place p = place_of(m, g, c, s, stage);
    const double slots = p.H * p.V + 2 * block_elements(&p) + 2 * p.H;
    Memory memory = {0};

    memory_of_place(&p, memory.bytes);
    if (g->zero >= 2) {
        memory.bytes[MEM_GRADIENTS] = REAL * updated_elements(&p);
        memory.bytes[MEM_COMMUNICATION] += REAL * slots;
    }
    if (g->zero == 3) {
        memory.bytes[MEM_PARAMETERS] = c->stored * updated_elements(&p);
        memory.bytes[MEM_COMMUNICATION] += c->stored * slots;
    }
    return memory;
}

Memory grid_memory(const Model *m, const Grid *g, const Cluster *c)
{
    Stage stages[g->pp];
    Memory most = {0};

    grid_stages(m, g, stages);
    for (int i = 0; i < g->pp; i++) {
        Memory one = m->ours ? our_memory(m, g, c, &stages[i], i) : published_memory(m, g, c, &stages[i]);
        one.stage = i;
        for (int k = 0; k < MEM_CATEGORIES; k++)
            one.total += one.bytes[k];
        if (one.total > most.total)
            most = one;
    }
    return most;
}

const char *memory_formula(const Model *m, const Grid *g, int category)
{
    static const char *const formulas[MEM_CATEGORIES] = {
        "2 x parameters of the stage / tp", "4 x the same", "6 x the same: float, and what is still in bf16",
        "8 x the same", "micro-batches in flight x blocks x tokens x (34h + 6f) / tp, and 6 x tokens x v / tp", "none",
        "what a process has besides"};
    static const char *const sharded[MEM_CATEGORIES] = {
        [MEM_PARAMETERS] = "2 x parameters of the stage / (tp x replicas)", [MEM_MASTER] = "4 x the same / replicas",
        [MEM_GRADIENTS] = "6 x the same / replicas", [MEM_OPTIMIZER] = "8 x the same / replicas"};
    const bool is_sharded = (category == MEM_PARAMETERS && g->zero == 3) || (category == MEM_GRADIENTS && g->zero >= 2)
                            || ((category == MEM_MASTER || category == MEM_OPTIMIZER) && g->zero >= 1);

    if (m->ours)
        return "09_combined/formulas.c";
    if (category == MEM_ACTIVATIONS && g->recompute)
        return "micro-batches in flight x blocks x tokens x 2h / tp, a block's, and 6 x tokens x v / tp";
    return is_sharded ? sharded[category] : formulas[category];
}

/* ---- Time ---- */

static bool congested(const Cluster *c)
{
    return c->published && c->gpus >= CONGESTED * c->per_node;
}

/* What attention doesn't hide of a ring that brings K and V of c ranks, one step ahead, and backward their gradients,
 * one step behind; those of the last step nothing hides. */
static double ring_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, double rate, Pass pass)
{
    const double rows = tokens_here(m, g), elements = 2 * rows * m->hidden * m->kv_heads / m->heads / g->tp;
    const double link = g->tp * g->cp <= c->per_node ? h->nvlink : h->network / c->per_node;
    const double kv = elements * c->stored / link + h->latency, d_kv = elements * REAL / link + h->latency;
    const double attention = (pass == FORWARD ? 2 : 5) * rows * m->hidden * m->seq / rate / g->cp;

    if (g->cp == 1)
        return 0;
    return pass == FORWARD ? (g->cp - 1) * fmax(0, kv - attention)
                           : (g->cp - 1) * fmax(0, kv + d_kv - attention) + d_kv;
}

/* What tensor parallelism's transfers add to a block; 09 computes two products of the weights' gradients while a sum
 * is on its way. */
static double tensor_time(const Model *m, const Grid *g, double transfer, double rate, Pass pass)
{
    const double product = 2 * tokens_here(m, g) * m->hidden / rate;

    if (pass == FORWARD)
        return FORWARD_COLLECTIVES * transfer;
    if (!m->ours)
        return BACKWARD_COLLECTIVES * transfer;
    return (BACKWARD_COLLECTIVES - 2) * transfer + fmax(0, transfer - product * m->mlp)
           + fmax(0, transfer - product * 3 * m->hidden);
}

/* A micro-batch on one stage. Blocks compute at `efficiency` of the peak and move what they keep through memory. The
 * host starts kernels meanwhile: if that takes longer than they do, the GPU waits for it. With tensor parallelism over
 * nodes it cannot run ahead: in the published runs both times add up. */
static void stage_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *s)
{
    const double t = g->tp, rows = tokens_here(m, g), rate = k->efficiency * h->peak * t, again = g->recompute ? 1 : 0;
    const bool scattered = c->published && ((g->pp > 1 && c->gpus > c->per_node) || congested(c));
    const int hops = scattered ? g->tp - 1 : (g->tp - 1) / c->per_node;
    const double collectives = (1 + again) * FORWARD_COLLECTIVES + BACKWARD_COLLECTIVES;
    const double passes = (1 + again) * block_flops(m, rows, FORWARD) + block_flops(m, rows, BACKWARD);
    const double moved = PASSES * (1 + again / 4) * rows * (34.0 * m->hidden + 6.0 * m->mlp) / (t * h->bandwidth);
    const double head = head_flops(m, rows) / rate + LOGIT_BYTES * rows * m->vocab / (t * h->bandwidth);
    const double launch = k->launch * (1 + again / 3) * (1 + RING_STEP * (g->cp - 1));
    const double transfer = rows * m->hidden * c->stored * (t - 1) / t / (t <= c->per_node ? h->nvlink : h->network)
                            + (t - 1) * h->latency;
    const double loss = 2 * ceil(rows / c->loss_rows) * 2 * (t - 1) * h->latency;       /* its max and sums */

    s->kernels = s->layers * (passes / rate + moved + GAP * launch) + s->heads * head;
    s->tensor = s->layers * ((1 + again) * tensor_time(m, g, transfer, rate, FORWARD)
                             + tensor_time(m, g, transfer, rate, BACKWARD))
                + (s->embeddings + s->heads) * 2 * transfer + s->heads * loss;
    s->context = s->layers * ((1 + again) * ring_time(m, g, c, h, rate, FORWARD)
                              + ring_time(m, g, c, h, rate, BACKWARD));
    s->launches = s->layers * (launch + collectives * hops * k->hop);
    s->seconds = hops && !scattered ? s->kernels + s->tensor + s->context + s->launches
                                    : fmax(s->kernels + s->tensor + s->context, s->launches);
}

/* What sums a stage's gradients and hands out its weights: a node's ranks share its network, so what counts is all of a
 * stage's parameters, not a rank's. Seconds that nothing hides. */
static double data_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k,
                        const Stage *s)
{
    const double n = (double)g->dp * g->cp, backward = s->seconds * 2 / 3, table = (double)m->hidden * m->vocab;
    const int of_a_node = g->tp * g->cp * (m->ours ? g->pp : 1);    /* ours: the stages of a replica are neighbours */
    const bool leaves = (double)of_a_node * g->dp > c->per_node;
    const double stages_beside = fmax(1, fmin(g->pp, (double)c->per_node / (g->tp * g->cp)));
    const double rate = leaves ? h->network / (m->ours ? stages_beside : 1) : h->nvlink * fmin(c->per_node, g->tp);
    const double wait = (n - 1) * h->latency, units = s->layers + s->embeddings + 2 * s->heads - (g->pp == 1);
    const double sync = leaves ? k->sync * s->layers * n : 0, part = (n - 1) / n / rate;
    const double scatter = REAL * s->params * part + units * wait, gather = c->stored * s->params * part + units * wait;
    /* ours overlaps as the links allow: the transfers of the unit that comes last, nothing hides */
    const double last = REAL * (s->embeddings ? table : block_parameters(m)) * part + wait;
    const double hidden = leaves || g->tp == 1 ? backward : 0;
    const double replicated = m->ours && g->tp > 1 ? (s->layers + s->heads) * 2 * (g->tp - 1) * h->latency : 0;

    if (n == 1)
        return replicated;
    switch (g->zero) {
    case 0:
        return (m->ours ? fmax(2 * last, 2 * scatter + sync - hidden) : fmax(0, 2 * scatter + sync - backward))
               + replicated;
    case 1:                             /* nanotron's overlaps with nothing */
        return (m->ours ? fmax(last, scatter + sync - hidden) : scatter + sync) + gather + replicated;
    case 2:                             /* a scatter for each micro-batch, behind its backward */
        return g->accumulate * fmax(0, scatter + sync - backward) + gather;
    default:                            /* and two gathers, of the next block while one computes */
        return g->accumulate * fmax(0, scatter + 2 * gather + 1.5 * sync - s->seconds);
    }
}

/* The embedding's gradients of both ends of a pipeline. */
static double tied_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h)
{
    const double here = (double)m->hidden * m->vocab / g->tp / (g->zero ? (double)g->dp * g->cp : 1);
    const double link = c->gpus <= c->per_node ? h->nvlink : h->network / c->per_node;

    return m->tied && g->pp > 1 ? REAL * here / link + 2 * h->latency : 0;
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
    time.data += tied_time(m, g, c, h);
    time.optimizer = UPDATE_BYTES * most / (g->tp * replicas * h->bandwidth);
    time.total = pipeline + time.data + time.optimizer + time.fixed;
    return time;
}
