#include "costs.h"

#include <math.h>
#include <string.h>

#include "../../common/print.h"
#include "../../common/tensor.h"
#include "../../09_combined/formulas.h"

const double memory_limit = 0.87;

const char *const time_name[TIMES] = {"compute", "launches", "tensor", "context", "experts", "bubble", "data",
                                      "optimizer", "fixed"};

const char *const constant_name[CONSTANTS] = {"efficiency", "launch", "hop", "sync", "step", "stall"};
const char *const constant_meaning[CONSTANTS] = {
    "fraction of the peak, in matmuls and attention",
    "s per layer and micro-batch: the host starts the kernels, forward and backward",
    "s per collective of a layer and hop of its ring outside NVLink",
    "s per layer and replica, when gradients are summed over nodes",
    "s per step, for any computation",
    "s per transfer between pipeline stages on 64 or more nodes, and per micro-batch where memory is full"};
const Constants published_constants = {0.461, 4.51e-3, 2.82e-4, 5.1e-5, 0.069, 0.50};
const Constants exact_constants = {.efficiency = 1};

/* Constants that are not fitted: bytes of memory traffic. Per token and layer, forward and backward, PASSES times what
 * is saved for backward (34h + 6f): written, read in forward, read in backward, and as many bytes of gradients. Per
 * logit: bf16, fp32, softmax and gradient. Per parameter: AdamW without fusion moves about 20 floats; norm, clipping,
 * the bf16 copy and zeroing the gradient move 5 more. */
static const double PASSES = 4, LOGIT_BYTES = 20, UPDATE_BYTES = 100;
static const double FLOAT = 4;                  /* bytes per gradient and optimizer state */
static const double GAP = 1.0 / 8;              /* of the launch time, in which the GPU is idle in any case */
static const double RING_STEP = 1.0 / 15;       /* of a layer's launch time: attention to another rank's keys */
static const int FORWARD_COLLECTIVES = 4, BACKWARD_COLLECTIVES = 6;     /* all-gathers: 2, 4; reduce-scatters: 2, 2 */
/* Of ZeRO-2's and 3's transfers at least this fraction is exposed: fitted to published runs of FSDP on 16 to 512 GPUs
 * (fsdp_runs.csv), which lose 0 to 9% although by their bytes nearly all transfers would hide. */
static const double EXPOSED = 0.15;
static const int CONGESTED = 64;                /* nodes from which on all published pipelines but one stalled */

/* ---- The model ---- */

/* Elements of a block's matrices, with this many of its experts. */
static double block_matrices(const Model *m, double experts)
{
    const double h = m->hidden, kv = h * m->kv_heads / m->heads, matrices = m->gated ? 3 : 2;
    const double mlp = m->experts ? h * m->experts + experts * matrices * h * m->expert_width : matrices * h * m->mlp;

    return 2 * h * h + 2 * h * kv + mlp;
}

static double expert_parameters(const Model *m)         /* of one block */
{
    return m->experts * (m->gated ? 3.0 : 2.0) * m->hidden * m->expert_width;
}

double block_parameters(const Model *m)
{
    return block_matrices(m, m->experts) + (m->in_09 ? 13 : 2) * (double)m->hidden;     /* biases and norms */
}

double model_parameters(const Model *m)
{
    const double h = m->hidden;

    return m->layers * block_parameters(m) + (m->tied ? 1 : 2) * h * m->vocab + (m->in_09 ? 2 : 1) * h;
}

double active_parameters(const Model *m)
{
    return model_parameters(m) - m->layers * (block_matrices(m, m->experts) - block_matrices(m, m->top_k));
}

double model_flops(const Model *m)
{
    return 6 * active_parameters(m) + 12.0 * m->layers * m->hidden * m->seq;
}

double block_flops(const Model *m, double tokens, Pass pass)
{
    const double attention = (double)m->hidden * m->seq;        /* x 2 x tokens FLOPs: QK and PV, the causal half */
    const double matrices = block_matrices(m, m->capacity * m->top_k);          /* all slots, empty ones too */

    return tokens * (pass == FORWARD ? 2 * (matrices + attention) : 4 * matrices + 5 * attention);
}

/* The MLP width whose 6 bytes per token are saved for backward: f; in a mixture, per slot, an expert's width, its input
 * and its output. */
static double saved_width(const Model *m)
{
    return m->experts ? m->capacity * m->top_k * (m->expert_width + 2 / 3.0 * m->hidden) : m->mlp;
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
    const double block = block_parameters(m), embedding = (double)m->hidden * m->vocab;
    const double cost = block_matrices(m, m->top_k), all = L * cost + embedding;
    double so_far = 0;
    int at = 0;

    memset(stages, 0, p * sizeof *stages);
    stages[0].embeddings = 1;
    if (m->in_09) {
        for (int i = 0; i < p; i++)
            stages[i].layers = range_split_last(L, m->vocab / (12.0 * m->hidden + 2.0 * m->seq), i, p).count;
        stages[p - 1].heads = 1;
    }
    for (int i = 0; i <= L && !m->in_09; i++) {          /* the head comes after the blocks */
        so_far += i < L ? cost : embedding;
        at += at < p - 1 && so_far > all * (at + 1) / p;
        if (i < L)
            stages[at].layers++;
        else
            stages[at].heads = 1;
    }
    for (int i = 0; i < p; i++) {
        const int matrices = stages[i].embeddings + stages[i].heads;
        stages[i].params = stages[i].layers * block + (p == 1 && m->tied ? 1 : matrices) * embedding
                           + stages[i].heads * (m->in_09 ? 2.0 : 1.0) * m->hidden;
        stages[i].experts = stages[i].layers * expert_parameters(m);
    }
}

/* ---- Memory ---- */

static double local_tokens(const Model *m, const Grid *g)       /* per micro-batch; between TP regions 1/t of these */
{
    return (double)g->micro_batch * m->seq / g->cp;
}

/* nanotron's. Per parameter: 2 bytes of weights, 6 of gradients (4 in fp32, 2 in bf16 not yet added), 12 of master
 * weights and moments. A block saves 34h + 6f bytes per token for backward. The published runs with pp = 1 fit only if
 * the gathered inputs of the two column-parallel matmuls are saved too (4h, not divided by t), others only if not.
 * Experts are on 1/ep of the ranks, and have 1/ep of the replicas. */
static Memory published_memory(const Model *m, const Grid *g, const Cluster *c, const Stage *s)
{
    const double h = m->hidden, t = g->tp, tokens = local_tokens(m, g), in_flight = fmin(g->pp, g->accumulate);
    const double block = (34 * h + 6 * saved_width(m)) / t + (c->published && g->pp == 1 && g->tp > 1 ? 4 * h : 0);
    const double saved = g->recompute ? in_flight * s->layers * 2 * h / t + block : in_flight * s->layers * block;
    const double width = c->stored / 2.0;               /* of activations, over that of bf16 */
    const double gathered = block_parameters(m) - expert_parameters(m) * (1 - 1.0 / g->ep);
    Memory memory = {.bytes = {
        [MEM_ACTIVATIONS] = width * tokens * (saved + s->heads * 6.0 * m->vocab / t),
        [MEM_WORKSPACE] = 0.4 * (1 << 30) + (g->zero == 3 ? 8 * gathered / t : 0)}};

    for (int experts = 0; experts <= 1; experts++) {
        const double params = experts ? s->experts / t / g->ep : (s->params - s->experts) / t;
        const double replicas = (double)g->dp * g->cp / (experts ? g->ep : 1), states = g->zero >= 1 ? replicas : 1;
        memory.bytes[MEM_PARAMETERS] += c->stored * params / (g->zero == 3 ? replicas : 1);
        memory.bytes[MEM_MASTER] += (c->stored < FLOAT) * 4 * params / states;
        memory.bytes[MEM_GRADIENTS] += c->gradients * params / (g->zero >= 2 ? replicas : 1);
        memory.bytes[MEM_OPTIMIZER] += 8 * params / states;
    }
    return memory;
}

/* The last replica and the last tensor-parallel rank: where a split is uneven, theirs is the largest shard. */
static RankShape rank_shape(const Model *m, const Grid *g, const Cluster *c, const Stage *s, int stage)
{
    const int64_t T = m->seq / g->cp, left = g->pp - stage;

    return (RankShape){
        .B = g->micro_batch, .T = T, .R = g->micro_batch * T / g->tp, .H = m->hidden, .A = m->heads / g->tp,
        .D = m->hidden / m->heads, .F = m->mlp / g->tp, .V = (m->vocab + g->tp - 1) / g->tp,
        .S = g->micro_batch * T < c->loss_rows ? g->micro_batch * T : c->loss_rows, .layers = s->layers,
        .first = stage == 0, .last = stage == g->pp - 1, .in_flight = left < g->accumulate ? left : g->accumulate,
        .tp = g->tp, .cp = g->cp, .replica = g->dp * g->cp - 1, .replicas = g->dp * g->cp, .zero = g->zero >= 1,
        .recompute = g->recompute, .stored = c->stored, .real = FLOAT, .master = c->stored < FLOAT};
}

Memory grid_memory(const Model *m, const Grid *g, const Cluster *c)
{
    Stage stages[g->pp];
    Memory most = {0};

    grid_stages(m, g, stages);
    for (int i = 0; i < g->pp; i++) {
        Memory one = m->in_09 ? (Memory){0} : published_memory(m, g, c, &stages[i]);
        const RankShape shape = rank_shape(m, g, c, &stages[i], i);
        if (m->in_09)
            rank_memory(&shape, one.bytes);
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
    static const char *const words[MEM_CATEGORIES] = {
        "2 (fp32: 4) x parameters of the pipeline stage / tp", "4 (fp32: 0) x the same",
        "6 in nanotron, or as given, x the same", "8 x the same",
        "micro-batches in flight x blocks x tokens x (34h + 6f) / tp, and 6 x tokens x v / tp", "none",
        "0.4 GiB per process; with ZeRO-3 also 8 x parameters of a block / tp"};
    const bool is_sharded = (category == MEM_PARAMETERS && g->zero == 3) || (category == MEM_GRADIENTS && g->zero >= 2)
                            || ((category == MEM_MASTER || category == MEM_OPTIMIZER) && g->zero >= 1);

    if (m->in_09)
        return "09_combined/formulas.c";
    if (m->experts && category != MEM_WORKSPACE)
        return category == MEM_ACTIVATIONS ? "as without experts, with f the width of all slots, and 4h per slot"
                                           : "as without experts; those on 1 / ep of the ranks and of the replicas";
    if (category == MEM_ACTIVATIONS && g->recompute)
        return "micro-batches in flight x blocks x tokens x 2h / tp, one full block, and 6 x tokens x v / tp";
    return is_sharded ? format_text("%s / replicas", words[category]) : words[category];
}

/* ---- Time ---- */

static bool congested(const Cluster *c)
{
    return c->published && c->gpus >= CONGESTED * c->per_node;
}

/* Seconds per block in which the ring of K and V, and in backward of their gradients, is not hidden behind attention. K
 * and V arrive one step ahead. Gradients follow one step behind, and nothing hides their last hop. */
static double ring_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, double rate, Pass pass)
{
    const double rows = local_tokens(m, g), elements = 2 * rows * m->hidden * m->kv_heads / m->heads / g->tp;
    const double link = g->tp * g->cp <= c->per_node ? h->nvlink : h->network / c->per_node;
    const double kv = elements * c->stored / link + h->latency, d_kv = elements * FLOAT / link + h->latency;
    const double attention = (pass == FORWARD ? 2 : 5) * rows * m->hidden * m->seq / rate / g->cp;

    if (g->cp == 1)
        return 0;
    return pass == FORWARD ? (g->cp - 1) * fmax(0, kv - attention)
                           : (g->cp - 1) * fmax(0, kv + d_kv - attention) + d_kv;
}

/* Seconds per block in which all-to-alls are not hidden behind experts (10's README): the first dispatch and the last
 * return; in backward weight gradients hide the return. If links are slower than experts, all but those behind an
 * expert. */
static double exchange_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, double rate, Pass pass)
{
    const double E = (double)m->experts / g->ep, slots = m->capacity * m->top_k * local_tokens(m, g);
    const int per_group = c->per_node / g->tp, inside = per_group < 1 ? 1 : per_group < g->ep ? per_group : g->ep;
    const double leaving = (g->ep - (g->ep > inside ? inside : 1.0)) / g->ep;     /* the node; the rank */
    const double link = g->ep > inside ? h->network / c->per_node : h->nvlink;
    const double transfer = slots / E * m->hidden * c->stored / g->tp * leaving / link + h->latency;
    const double expert = (pass == FORWARD ? 2 : 4) * slots / m->experts * g->ep * (m->gated ? 3.0 : 2.0) * m->hidden
                          * m->expert_width / rate;

    if (g->ep == 1)
        return 0;
    return pass == FORWARD ? fmax(2 * transfer, 2 * E * transfer - (E - 1) * expert)
                           : fmax(transfer, 2 * E * transfer - (E - 0.5) * expert);
}

/* Seconds per block of tensor parallelism's transfers that are not hidden. In 09 two reduce-scatters are hidden behind
 * matmuls of weight gradients. */
static double tensor_time(const Model *m, const Grid *g, double transfer, double rate, Pass pass)
{
    const double column = 2 * local_tokens(m, g) * m->hidden / rate;     /* a matmul's seconds per output column */

    if (pass == FORWARD)
        return FORWARD_COLLECTIVES * transfer;
    if (!m->in_09)
        return BACKWARD_COLLECTIVES * transfer;
    return (BACKWARD_COLLECTIVES - 2) * transfer + fmax(0, transfer - column * m->mlp)
           + fmax(0, transfer - column * 3 * m->hidden);
}

/* Fills in a pipeline stage's seconds per micro-batch. Blocks compute at `efficiency` of the peak, and move their
 * activations through memory. The host starts kernels meanwhile; if that takes longer, the GPU waits. With tensor
 * parallelism over nodes the host cannot run ahead: in the published runs both times add up. */
static void stage_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *s)
{
    const double t = g->tp, rows = local_tokens(m, g), rate = k->efficiency * h->peak * t, again = g->recompute ? 1 : 0;
    const bool scattered = c->published && ((g->pp > 1 && c->gpus > c->per_node) || congested(c));
    const int hops = scattered ? g->tp - 1 : (g->tp - 1) / c->per_node;
    const double collectives = (1 + again) * FORWARD_COLLECTIVES + BACKWARD_COLLECTIVES;
    const double passes = (1 + again) * block_flops(m, rows, FORWARD) + block_flops(m, rows, BACKWARD);
    const double moved = PASSES * (1 + again / 4) * rows * (34.0 * m->hidden + 6 * saved_width(m))
                         / (t * h->bandwidth);
    const double head = head_flops(m, rows) / rate + LOGIT_BYTES * rows * m->vocab / (t * h->bandwidth);
    const double launch = k->launch * (1 + again / 3) * (1 + RING_STEP * (g->cp - 1));
    const double transfer = rows * m->hidden * c->stored * (t - 1) / t / (t <= c->per_node ? h->nvlink : h->network)
                            + (t - 1) * h->latency;
    const double loss = 2 * ceil(rows / c->loss_rows) * 2 * (t - 1) * h->latency;       /* all-reduce max and sums */

    s->kernels = s->layers * (passes / rate + moved + GAP * launch) + s->heads * head;
    s->tensor = s->layers * ((1 + again) * tensor_time(m, g, transfer, rate, FORWARD)
                             + tensor_time(m, g, transfer, rate, BACKWARD))
                + (s->embeddings + s->heads) * 2 * transfer + s->heads * loss;
    s->context = s->layers * ((1 + again) * ring_time(m, g, c, h, rate, FORWARD)
                              + ring_time(m, g, c, h, rate, BACKWARD));
    s->exchange = s->layers * ((1 + again) * exchange_time(m, g, c, h, rate, FORWARD)
                               + exchange_time(m, g, c, h, rate, BACKWARD));
    s->launches = s->layers * (launch + collectives * hops * k->hop);
    const double device = s->kernels + s->tensor + s->context + s->exchange;
    s->seconds = hops && !scattered ? device + s->launches : fmax(device, s->launches);
}

static double exposed(double transfers, double compute)     /* of ZeRO-2 and 3 */
{
    return fmax(transfers - compute, EXPOSED * transfers);
}

/* Seconds per step, not hidden, of reducing a pipeline stage's gradients and gathering its weights. A node's ranks use
 * one network, so all parameters of the stage count, not one rank's; of the experts those that are on one node. */
static double data_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k,
                        const Stage *s)
{
    const double n = (double)g->dp * g->cp, backward = s->seconds * 2 / 3, embedding = (double)m->hidden * m->vocab;
    const int stride = g->tp * g->cp * (m->in_09 ? g->pp : 1);          /* in 09 pipeline stages are neighbors */
    const bool leaves = (double)stride * g->dp > c->per_node;           /* the node */
    const double stages_beside = fmax(1, fmin(g->pp, (double)c->per_node / (g->tp * g->cp)));
    const double rate = leaves ? h->network / (m->in_09 ? stages_beside : 1) : h->nvlink * fmin(c->per_node, g->tp);
    const double wait = (n - 1) * h->latency, units = s->layers + s->embeddings + 2 * s->heads - (g->pp == 1);
    const double sync = leaves ? k->sync * s->layers * n : 0, per_byte = (n - 1) / n / rate;
    const double experts = s->experts * fmin(1, (double)c->per_node / g->tp / g->ep) * (1 - g->ep / n) / rate;
    const double per_stage = (s->params - s->experts) * per_byte + experts, real = c->gradients == 2 ? 2 : FLOAT;
    const double reduce_scatter = real * per_stage + units * wait, all_gather = c->stored * per_stage + units * wait;
    /* 09 overlaps as far as links allow; nothing hides the transfer of the last unit */
    const double last = FLOAT * (s->embeddings ? embedding : block_parameters(m)) * per_byte + wait;
    const double hidden = leaves || g->tp == 1 ? backward : 0;              /* and behind a forward half as much */
    const double first = c->stored / FLOAT * last;
    const double replicated = m->in_09 && g->tp > 1 ? (s->layers + s->heads) * 2 * (g->tp - 1) * h->latency : 0;

    if (n == 1)
        return replicated;
    switch (g->zero) {
    case 0:
        return (m->in_09 ? fmax(2 * last, 2 * reduce_scatter + sync - hidden)
                        : fmax(0, 2 * reduce_scatter + sync - backward))
               + replicated;
    case 1:                             /* nanotron overlaps nothing */
        return (m->in_09 ? fmax(last, reduce_scatter + sync - hidden) + fmax(first, all_gather - hidden / 2)
                        : reduce_scatter + sync + all_gather)
               + replicated;
    case 2:                             /* a reduce-scatter per micro-batch, behind its backward */
        return g->accumulate * exposed(reduce_scatter + sync, backward) + all_gather;
    default:                            /* and two all-gathers, of the next block while one computes */
        return g->accumulate * exposed(reduce_scatter + 2 * all_gather + 1.5 * sync, s->seconds);
    }
}

/* Seconds per step in which both ends of the pipeline add their gradients of the tied embedding. */
static double tied_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h)
{
    const double local = (double)m->hidden * m->vocab / g->tp / (g->zero ? (double)g->dp * g->cp : 1);
    const double link = c->gpus <= c->per_node ? h->nvlink : h->network / c->per_node;

    return m->tied && g->pp > 1 ? FLOAT * local / link + 2 * h->latency : 0;
}

/* Seconds per step of 1F1B. The first micro-batch passes through all pipeline stages and back; then one ends per
 * period: the slowest stage's time; or, if longer, a round trip from stage i to the end and back, divided by the
 * p - i micro-batches that stage i has in flight. */
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
    /* In 09 neighbors in a pipeline are tp x cp ranks apart, in nanotron tp x cp x dp. */
    const bool in_node = (m->in_09 ? g->tp * g->cp * g->pp : c->gpus) <= c->per_node;
    const double replicas = g->zero ? (double)g->dp * g->cp : 1;
    const double full = c->published && grid_memory(m, g, c).total > memory_limit * h->memory;
    const double stored = c->stored;
    const double transfer = local_tokens(m, g) * m->hidden * stored / g->tp
                                / (in_node ? h->nvlink : h->network / c->per_node)
                            + h->latency + (congested(c) ? k->stall : 0);
    double busy = 0, most = 0;
    Time time = {.fixed = k->step};

    grid_stages(m, g, stages);
    for (int i = 0; i < g->pp; i++) {
        Stage *s = &stages[i];
        stage_time(m, g, c, h, k, s);
        s->seconds += full * k->stall;
        const double mean = (double)g->accumulate / g->pp;
        time.compute += mean * s->kernels;
        time.tensor += mean * s->tensor;
        time.context += mean * s->context;
        time.experts += mean * s->exchange;
        time.launches += mean * fmax(0, s->seconds - (s->kernels + s->tensor + s->context + s->exchange));
        busy += mean * s->seconds;
        time.data = fmax(time.data, data_time(m, g, c, h, k, s));
        most = fmax(most, s->params - s->experts * (1 - (g->zero ? 1 : 1.0 / g->ep)));
    }
    const double pipeline = pipeline_time(g, stages, transfer);
    time.bubble = pipeline - busy;
    time.data += tied_time(m, g, c, h);
    time.optimizer = UPDATE_BYTES * most / (g->tp * replicas * h->bandwidth);
    time.total = pipeline + time.data + time.optimizer + time.fixed;
    return time;
}
