#include "costs.h"

#include <math.h>
#include <string.h>

#include "../../common/base/tensor.h"
#include "../../11_five_dimensions/formulas.h"

const char *const time_name[TIMES] = {"compute", "launches", "tensor", "context", "experts", "bubble", "data",
                                      "optimizer", "fixed"};

const char *const constant_name[CONSTANTS] = {"efficiency", "fp8", "attention", "launch", "routing", "hop", "sync",
                                              "step", "links", "stall"};
/* Bytes of memory traffic, counted. Per byte that a block saves for backward: written, read in forward, read in
 * backward, and as much of gradients (4 fit nanotron's runs better); recomputed, it is written and read once more. Per
 * logit: bf16, fp32, softmax and gradient. Per parameter: AdamW without fusion moves about 20 floats; norm, clipping,
 * the bf16 copy and zeroing the gradient 5 more; a fused one reads 4 floats, writes 3, and moves 14 bytes for the rest.
 * Per element quantized: read for its scale (unless the recipe knows it) and again, written in rows and in columns. Per
 * parameter of an expert: read in bf16 in both passes; its gradient is read and written in fp32. */
static const double USES = 6, REPEATED_USES = 2, NANOTRON_USES = 4, LOGIT_BYTES = 20, UPDATE_BYTES = 100,
                    FUSED_UPDATE = 42, CAST_BYTES = 5, EXPERT_BYTES = 12;
static const double FLOAT = 4;                  /* bytes per gradient and optimizer state */
/* Of the launch time, in which the GPU is idle in any case: without it the playbook's regret is 8.2%, not 6.4%. */
static const double GAP = 1.0 / 8;
/* Of attention or the MLP, with tensor parallelism; all-gathers: 1, 2; reduce-scatters: 1, 1. */
static const int FORWARD_COLLECTIVES = 2, BACKWARD_COLLECTIVES = 3;
/* Of ZeRO-2's and 3's transfers at least this fraction is exposed: fitted to published runs of FSDP on 16 to 512 GPUs
 * (fsdp_runs.csv), which lose 0 to 9% although by their bytes nearly all transfers would hide. Taken for all-to-alls
 * behind another micro-batch and transfers of interleaved pipelines, too: published_runs.csv has runs with both. */
static const double EXPOSED = 0.15;
static const double BUFFERS = 0.4 * GiB;        /* of libraries: fits the memory of the playbook's runs best */
static const int CONGESTED = 64;                /* nodes from which on all published pipelines but one stalled */

/* ---- The model ---- */

static double query_width(const Model *m)               /* of all heads; a key has the same width */
{
    return m->head_dim ? (double)m->heads * m->head_dim : m->hidden;
}

static double value_width(const Model *m)
{
    return m->value_dim ? (double)m->heads * m->value_dim : query_width(m);
}

/* Elements of attention's matrices. Latent attention: q and k, v pass through a lower rank. */
static double attention_matrices(const Model *m)
{
    const double h = m->hidden, q = query_width(m), v = value_width(m), rope = (double)m->heads * m->rope_dim;

    return m->q_rank ? m->q_rank * (h + q) + m->kv_rank * (h + q - rope + v) + h * m->rope_dim + h * v
                     : h * (q + v) * (1 + (double)m->kv_heads / m->heads);
}

static double mlp_elements(const Model *m, double width)
{
    return (m->gated ? 3.0 : 2.0) * m->hidden * width;
}

/* Elements of one block's matrices, with this many of its experts; then the mean over all blocks. */
static double layer_matrices(const Model *m, bool dense, double experts)
{
    return attention_matrices(m) + (dense || !m->experts ? mlp_elements(m, m->mlp) : m->hidden * (double)m->experts
                                    + mlp_elements(m, (experts + m->shared) * m->expert_width));
}

static double block_matrices(const Model *m, double experts)
{
    return (m->dense * layer_matrices(m, true, experts) + (m->layers - m->dense) * layer_matrices(m, false, experts))
           / m->layers;
}

static double expert_parameters(const Model *m)         /* of one block that has experts */
{
    return mlp_elements(m, (double)m->experts * m->expert_width);
}

static double small_parameters(const Model *m)          /* of a block: norms, and biases if there are any */
{
    const double h = m->hidden, biases = m->experts ? 4 * h + m->experts * (m->expert_width + h) : 9 * h;

    return m->in_09 ? 4 * h + biases : 2 * h;
}

bool is_megatron(const Cluster *c)                  /* of today, or a year ago */
{
    return c->framework == FOR_MEGATRON || c->framework == FOR_MEGATRON_2025;
}

static bool folds_experts(const Cluster *c)
{
    return c->framework == FOR_09 || is_megatron(c) || c->framework == FOR_TORCHTITAN;
}

/* Ranks over which an expert's matrices are split: etp where ep folds over tp, cp and dp. */
static int expert_tp(const Grid *g, const Cluster *c)
{
    return folds_experts(c) ? g->etp : g->tp;
}

int expert_ranks(const Grid *g, const Cluster *c)
{
    return g->dp * g->cp * g->tp / expert_tp(g, c);
}

static double block_parameters(const Model *m)          /* of a full block */
{
    return block_matrices(m, m->experts) + small_parameters(m);
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
    return 6 * (active_parameters(m) + m->layers * attention_flops(m, 1, FORWARD));
}

double matrix_flops(const Model *m, double tokens, Pass pass)
{
    return (pass == FORWARD ? 2 : 4) * tokens * block_matrices(m, m->capacity * m->top_k);      /* empty slots too */
}

double attention_flops(const Model *m, double tokens, Pass pass)        /* QK and PV; backward: five such products */
{
    return (pass == FORWARD ? 2 : 5) * tokens * (query_width(m) + value_width(m)) / 2 * m->seq;
}

double head_flops(const Model *m, double tokens)
{
    return 6 * tokens * m->hidden * m->vocab;
}

void grid_stages(const Model *m, const Grid *g, const Cluster *c, Stage *stages)
{
    const int p = g->pp, L = m->layers;
    const double embedding = (double)m->hidden * m->vocab, cost = block_matrices(m, m->top_k);
    const double all = L * cost + embedding;
    const double head = c->framework == FOR_09 ? m->vocab / (12.0 * m->hidden + 2.0 * m->seq)
                        : L % p || c->framework == FOR_TORCHTITAN ? embedding / cost : 0;       /* in blocks */
    const bool by_cost = c->framework == FOR_NANOTRON;
    double so_far = 0;
    int at = by_cost ? 0 : p - 1, first = 0;

    memset(stages, 0, p * sizeof *stages);
    for (int i = 0; i < p && !by_cost; i++)
        stages[i].layers = range_split_last(L, head, i, p).count;
    for (int i = 0; i <= L && by_cost; i++) {           /* the head comes after the blocks */
        so_far += i < L ? cost : embedding;
        at += at < p - 1 && so_far > all * (at + 1) / p;
        stages[at].layers += i < L;
    }
    stages[0].embeddings = stages[at].heads = 1;
    for (int i = 0; i < p; first += stages[i++].layers) {
        Stage *s = &stages[i];
        const int matrices = s->embeddings + s->heads;
        s->dense = fmin(s->layers, fmax(0, m->dense - first));
        s->experts = (s->layers - s->dense) * expert_parameters(m);
        s->params = (p == 1 && m->tied ? 1 : matrices) * embedding + s->heads * (m->in_09 ? 2.0 : 1.0) * m->hidden
                    + s->layers * small_parameters(m) + s->dense * layer_matrices(m, true, 0)
                    + (s->layers - s->dense) * layer_matrices(m, false, m->experts);
    }
}

/* ---- Memory ---- */

static double local_tokens(const Model *m, const Grid *g)       /* per micro-batch; between TP regions 1/t of these */
{
    return (double)g->micro_batch * m->seq / g->cp;
}

int64_t grid_span(const Model *m, const Grid *g)
{
    const int64_t chunk = m->seq / (g->cp > 1 ? 2 * g->cp : 1), rows = local_tokens(m, g) / g->tp;
    int64_t G = chunk;

    while (chunk % G || rows % G)
        G--;
    return G;
}

/* Heads of keys and values on all t ranks together: each has one at least, even if there are fewer (Megatron-LM). */
static double key_heads(const Model *m, const Grid *g)
{
    return fmax(m->kv_heads, g->tp);
}

/* Bytes that a block saves for backward, per token. nanotron: 34h + 6f. The others fuse norms, activations and
 * attention: in bf16 the inputs of two norms and of the matmuls behind them; q, k, v and attention's output; of the MLP
 * gate, up and down's input; a slot of an expert also has an input of its own, on each of its etp ranks (they weigh the
 * slots before its last matmul). Recomputed selectively: without the outputs of norms and activations, and of latent
 * attention without q, k and v, only their lower rank. Recomputed: the block's input.
 *
 * In fp8 Megatron-LM saves one of the two bytes of matmuls' inputs. But attention saves its output in bf16, and the
 * next matmul has it in fp8. Weights take two bytes, too: in rows and in columns. */
static double saved_bytes(const Model *m, const Grid *g, const Cluster *c, int recompute, bool fp8)
{
    const double h = m->hidden, slots = m->experts ? m->capacity * m->top_k : 0, inner = recompute ? 2 : 3;
    const double width = m->experts ? (slots + m->shared) * m->expert_width : m->mlp;
    const double q = query_width(m), v = value_width(m), keys = m->q_rank ? 1 : key_heads(m, g) / m->heads;
    const double qkv = m->q_rank && recompute ? m->q_rank + m->kv_rank + m->rope_dim : q + keys * (q + v);

    if (recompute == FULL_RECOMPUTATION)
        return 2 * h;
    if (c->framework == FOR_NANOTRON)
        return 34 * h + 6 * width + 4 * slots * h;
    const double scores = c->framework == FOR_MEGATRON_2022 && !recompute ? 2 * h + 5.0 * m->heads * m->seq : 0;
    const double less = fp8 && is_megatron(c) ? g->etp * slots * h - v + (recompute ? 0 : 2 * h + width) : 0;
    return scores + (recompute ? 4 : 8) * h + 2 * (qkv + v) + 2 * g->etp * slots * h
           + 2 * width * (m->gated ? inner : inner - 1) - less;
}

/* Elements per token that a block quantizes for its matmuls in fp8: their inputs, and gradients of their outputs. */
static double quantized(const Model *m)
{
    const double h = m->hidden, q = query_width(m), v = value_width(m), slots = m->capacity * m->top_k + m->shared;

    return 2 * h + v + q + (m->q_rank ? 1 : (double)m->kv_heads / m->heads) * (q + v)
           + (m->experts ? slots : 1) * (2 * h + (m->gated ? 3.0 : 2.0) * (m->experts ? m->expert_width : m->mlp));
}

/* Micro-batches whose activations pipeline stage i keeps. nanotron's formula takes the first stage's for all. */
static double in_flight(const Grid *g, const Cluster *c, int i)
{
    const double p = g->pp, v = g->chunks, left = c->framework == FOR_NANOTRON ? p : p - i;

    return fmin(g->accumulate, v > 1 ? (p * (v - 1) + 2 * left - 1) / v : left);
}

static double shards(const Grid *g)                     /* ranks over which ZeRO shards */
{
    return (double)g->dp * g->cp / g->replicate;
}

/* Per parameter: 2 bytes of weights, 12 of master weights and moments, and gradients: in nanotron 6 (4 in fp32, 2 in
 * bf16 not yet added). The published runs with pp = 1 fit only if the gathered inputs of the two column-parallel
 * matmuls are saved too (4h, not divided by t), others only if not. Of the ranks that see other tokens 1/ep have the
 * same experts. torchtitan computes the loss in eight chunks. */
static Memory memory_by_formula(const Model *m, const Grid *g, const Cluster *c, const Stage *s, int i)
{
    const double h = m->hidden, t = g->tp, tokens = local_tokens(m, g), kept = in_flight(g, c, i) * s->layers;
    const double gathers = c->published && g->pp == 1 && g->tp > 1 ? 4 * h : 0;
    const double block = saved_bytes(m, g, c, NO_RECOMPUTATION, false) / t + gathers;
    const double saved = kept * (saved_bytes(m, g, c, g->recompute, c->fp8) / t + (g->recompute ? 0 : gathers))
                         + (g->recompute == FULL_RECOMPUTATION ? block : 0);
    const double width = c->stored / 2.0;               /* of activations, over that of bf16 */
    const double logits = s->heads * 6.0 * m->vocab / t / (c->framework == FOR_TORCHTITAN ? 8 : 1);
    const double whole = expert_tp(g, c), experts_here = expert_parameters(m) / whole / g->ep;
    const double gathered = g->zero == 3 ? (block_parameters(m) - expert_parameters(m)) / t + experts_here : 0;
    Memory memory = {.bytes = {
        [MEM_ACTIVATIONS] = width * tokens * (saved + logits),
        [MEM_WORKSPACE] = BUFFERS + 8 * gathered}};

    for (int experts = 0; experts <= 1; experts++) {
        const double params = experts ? s->experts / whole / g->ep : (s->params - s->experts) / t;
        const double replicas = experts ? (double)expert_ranks(g, c) / g->ep : shards(g);
        const double states = g->zero >= 1 ? replicas : 1;
        memory.bytes[MEM_PARAMETERS] += c->stored * params / (g->zero == 3 ? replicas : 1);
        memory.bytes[MEM_MASTER] += (c->stored < FLOAT) * 4 * params / states;
        memory.bytes[MEM_GRADIENTS] += c->gradients * params / (g->zero >= 2 ? replicas : 1);
        memory.bytes[MEM_OPTIMIZER] += 8 * params / states;
    }
    return memory;
}

/* Of 09, or for a mixture 11: the last replica and the last tensor-parallel rank, as where a split is uneven, theirs is
 * the largest shard; with the longest span that can be on one rank, as 11 chooses it. */
static Memory memory_of_programs(const Model *m, const Grid *g, const Cluster *c, const Stage *s, int stage)
{
    const int64_t T = m->seq / g->cp, n = expert_ranks(g, c) / g->ep;
    const RankShape r = {
        .B = g->micro_batch, .T = T, .R = g->micro_batch * T / g->tp, .H = m->hidden, .A = m->heads / g->tp,
        .D = m->hidden / m->heads, .F = m->experts ? m->expert_width : m->mlp / g->tp,
        .V = (m->vocab + g->tp - 1) / g->tp, .S = fmin(g->micro_batch * T, c->loss_rows), .layers = s->layers,
        .first = stage == 0, .last = stage == g->pp - 1, .in_flight = in_flight(g, c, stage),
        .tp = g->tp, .cp = g->cp, .replica = g->dp * g->cp - 1, .replicas = g->dp * g->cp, .zero = g->zero >= 1,
        .recompute = g->recompute > 0, .stored = c->stored, .real = FLOAT, .master = c->stored < FLOAT};
    Memory memory = {0};

    if (m->experts) {
        const int64_t G = grid_span(m, g), Q = fmin(G, ceil(m->capacity * m->top_k * G / m->experts - 1e-9));
        mixture_memory(&(MixtureShape){.rank = r, .e = m->experts, .E = m->experts / g->ep, .K = m->top_k, .G = G,
                                       .Q = Q, .P = g->ep * (r.R / G) * Q, .all_layers = m->layers,
                                       .expert_replica = n - 1, .expert_replicas = n}, memory.bytes);
    }
    else
        rank_memory(&r, memory.bytes);
    /* On a GPU, dQ's sums over groups of 128 keys, in fp32: at most 1 GiB (08's flash_parts, which knows the GPU, may
     * choose fewer groups). */
    const int64_t chunk = g->cp > 1 ? T / 2 : T, groups = (chunk + 127) / 128, part = r.B * chunk * r.A * r.D;
    if (c->loss_rows != CPU_LOSS_ROWS)
        memory.bytes[MEM_WORKSPACE] += FLOAT * fmax(part, fmin(part * groups, 1 << 28));
    return memory;
}

Memory grid_memory(const Model *m, const Grid *g, const Cluster *c)
{
    Stage stages[g->pp];
    Memory most = {0};

    grid_stages(m, g, c, stages);
    for (int i = 0; i < g->pp; i++) {
        Memory one = c->framework == FOR_09 ? memory_of_programs(m, g, c, &stages[i], i)
                                            : memory_by_formula(m, g, c, &stages[i], i);
        one.stage = i;
        for (int k = 0; k < MEM_CATEGORIES; k++)
            one.total += one.bytes[k];
        if (one.total > most.total)
            most = one;
    }
    return most;
}

/* ---- Time ---- */

/* Seconds per block in which the ring of K and V, and in backward of their gradients, is not hidden behind attention. K
 * and V arrive one step ahead. Gradients follow one step behind, and nothing hides their last hop. */
static double ring_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, double rate, Pass pass)
{
    const double rows = local_tokens(m, g), elements = 2 * rows * query_width(m) * key_heads(m, g) / m->heads / g->tp;
    const double link = g->tp * g->cp <= c->per_node ? h->nvlink : h->network / c->per_node;
    const double kv = elements * c->stored / link + h->latency, d_kv = elements * FLOAT / link + h->latency;
    const double attention = attention_flops(m, rows, pass) / rate / g->cp;

    if (g->cp == 1)
        return 0;
    return pass == FORWARD ? (g->cp - 1) * fmax(0, kv - attention)
                           : (g->cp - 1) * fmax(0, kv + d_kv - attention) + d_kv;
}

/* Seconds per block and pass of the all-to-alls of the slots, there and back. 11 hides those of one local expert behind
 * the matmuls of another, but for the first and last in forward and the first in backward. NVLink distributes what
 * DeepEP sent to a node meanwhile. `rate`: of a GPU's matmuls. */
static double exchange_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, double rate, Pass pass)
{
    const double slots = m->capacity * m->top_k * local_tokens(m, g) / g->tp, E = (double)m->experts / g->ep;
    const int per_group = c->per_node / expert_tp(g, c), inside = per_group < 1 ? 1 : fmin(per_group, g->ep);
    const double leaving = (g->ep - (g->ep > inside ? inside : 1.0)) / g->ep;     /* the node; the rank */
    const double link = g->ep > inside ? h->network / c->per_node : h->nvlink, nodes = (double)g->ep / inside;
    const double places = nodes > 1 ? nodes : g->ep;
    const bool deep = is_megatron(c) && has_deep_ep(g, c);
    const double once = deep ? places * (1 - pow(1 - 1 / places, m->top_k)) / m->top_k : 1;
    const double one = slots / E * m->hidden * c->stored * leaving * once / link + h->latency;
    const double matmuls = (pass == FORWARD ? 2 : 4) * slots / E * mlp_elements(m, m->expert_width) / rate;

    if (g->ep == 1 || c->framework != FOR_09)
        return g->ep == 1 ? 0 : 2 * E * one;
    return fmax((pass == FORWARD ? 2 : 1) * one, 2 * E * one - (E - 1) * matmuls);
}

/* Seconds per block of tensor parallelism's transfers that are not hidden, in attention and, unless its experts are
 * whole, the MLP. In fp8 an all-gather takes half as long. In backward of attention and of the MLP, 09 and Megatron-LM
 * hide an all-gather behind the matmul of input gradients, and a reduce-scatter behind that of weight gradients. But in
 * a node (--tp-comm-overlap) Megatron-LM splits each matmul in t parts, and transfers one while it multiplies the next.
 * With more ranks than heads of keys and values it splits attention's first matmul over all of them, too; then it
 * all-gathers q, k and v. */
static double tensor_time(const Model *m, const Grid *g, const Cluster *c, double transfer, double rate, Pass pass,
                          bool mlp)
{
    const double column = 2 * local_tokens(m, g) * m->hidden / rate;     /* a matmul's seconds per output column */
    const double gather = c->fp8 ? transfer / 2 : transfer;
    const double one = pass == FORWARD ? gather + transfer : 2 * gather + transfer;
    const double matmuls = (pass == FORWARD ? 1 : 2) * column / m->hidden;
    const double qkv = g->tp > m->kv_heads ? query_width(m) * (1 + 2.0 * m->kv_heads / m->heads) / m->hidden : 0;
    const int hidden = pass == FORWARD ? 0 : 2 * (c->framework == FOR_09 || is_megatron(c));

    if (is_megatron(c) && g->tp <= c->per_node)
        return qkv * transfer + fmax(one / g->tp, one - matmuls * attention_matrices(m))
               + mlp * fmax(one / g->tp, one - matmuls * mlp_elements(m, m->mlp));
    return qkv * transfer + (1 + mlp) * (one - hidden * transfer)
           + hidden * (mlp * fmax(0, transfer - column * m->mlp) + fmax(0, transfer - column * 3 * m->hidden));
}

/* Of a forward pass's matmuls, how many backward repeats. Selectively: in torchtitan every second one, in others those
 * that expand latent attention's lower rank to all heads. */
static double repeated(const Model *m, const Grid *g, const Cluster *c)
{
    const double q = query_width(m), expanded = q - (double)m->heads * m->rope_dim + value_width(m);

    if (g->recompute != SELECTIVE_RECOMPUTATION)
        return g->recompute == FULL_RECOMPUTATION;
    if (c->framework == FOR_TORCHTITAN)
        return 0.5;
    return m->q_rank ? (m->q_rank * q + m->kv_rank * expanded) / block_matrices(m, m->capacity * m->top_k) : 0;
}

static double exposed(double transfers, double compute)
{
    return fmax(transfers - compute, EXPOSED * transfers);
}

bool has_deep_ep(const Grid *g, const Cluster *c)
{
    return g->ep > 1 && (g->etp == 1 || g->ep * g->etp > c->per_node);
}

bool hides_exchange(const Grid *g, const Cluster *c)
{
    return c->hides_exchange && g->ep > 1 && (g->pp == 1 || g->chunks > 1) && g->recompute != FULL_RECOMPUTATION;
}

/* Fills in a pipeline stage's seconds per micro-batch. Blocks compute at `efficiency` of the peak, and move their
 * activations through memory. The host starts kernels meanwhile; if that takes longer, the GPU waits. With tensor
 * parallelism over nodes the host cannot run ahead: in the published runs both times add up. */
static void stage_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *s)
{
    const double t = g->tp, rows = local_tokens(m, g), rate = k->efficiency * h->peak * t;
    const double linear = c->fp8 ? k->fp8 * k->efficiency * h->peak8 * t : rate;
    const double full = c->framework == FOR_MEGATRON_2022 ? 2 : 1;
    const double attend = k->attention / full * h->peak * t, again = g->recompute == FULL_RECOMPUTATION;
    const bool scattered = c->published && c->gpus >= c->per_node * (g->pp > 1 ? 2 : CONGESTED);
    const int hops = scattered ? g->tp - 1 : (g->tp - 1) / c->per_node;
    const double collectives = 2 * ((1 + again) * FORWARD_COLLECTIVES + BACKWARD_COLLECTIVES);
    const double matrices = (1 + repeated(m, g, c)) * matrix_flops(m, rows, FORWARD) + matrix_flops(m, rows, BACKWARD);
    /* Experts with few tokens wait for their weights. */
    const double weights = EXPERT_BYTES * expert_parameters(m) / (expert_tp(g, c) * g->ep * h->bandwidth);
    const double share = 1 - block_matrices(m, 0) / block_matrices(m, m->capacity * m->top_k);     /* of their FLOPs */
    const double wait = fmax(0, weights - matrices * share / linear);
    const double passes = wait + matrices / linear
                          + ((1 + again) * attention_flops(m, rows, FORWARD) + attention_flops(m, rows, BACKWARD))
                            / attend;
    const double outputs = m->experts ? 2 * g->etp * m->capacity * m->top_k * m->hidden : 0;    /* not saved */
    const double uses = (c->framework == FOR_NANOTRON ? NANOTRON_USES : USES) + (g->recompute ? REPEATED_USES : 0);
    const double casts = c->fp8 ? CAST_BYTES * quantized(m) : 0;
    const double saved = saved_bytes(m, g, c, NO_RECOMPUTATION, false) + outputs;
    const double moved = (uses * saved + casts) * rows / (t * h->bandwidth);
    const double head = head_flops(m, rows) / rate + LOGIT_BYTES * rows * m->vocab / (t * h->bandwidth);
    const int mixtures = m->experts ? s->layers - s->dense : 0;
    const double launch = s->layers * k->launch * (1 + again / 3);         /* again: a third of the kernels */
    const double transfer = rows * m->hidden * c->stored * (t - 1) / t / (t <= c->per_node ? h->nvlink : h->network)
                            + (t - 1) * h->latency;
    /* Over etp: an all-gather of slots after an all-to-all, a reduce-scatter before the other; DeepEP needs neither. */
    const double slots = has_deep_ep(g, c) ? 0 : 2 * m->capacity * m->top_k * rows / t;
    const double whole = (g->etp - 1) * (slots * m->hidden * c->stored / h->nvlink + 2 * h->latency);
    const double loss = 2 * ceil(rows / c->loss_rows) * 2 * (t - 1) * h->latency;       /* all-reduce max and sums */
    /* Today's recipes in MXFP8 run a whole step as one graph, in which no host waits for the router. */
    const double routing = c->fp8 == MXFP8 && c->framework == FOR_MEGATRON ? 0 : k->routing;

    s->kernels = s->layers * (passes + moved) + GAP * launch + mixtures * routing + s->heads * head;
    s->tensor = (s->embeddings + s->heads) * 2 * transfer + s->heads * loss;
    for (Pass pass = FORWARD; pass <= BACKWARD; pass++) {
        const double times = pass == FORWARD ? 1 + again : 1;
        const int mlps = m->experts && folds_experts(c) ? s->dense : s->layers;         /* that tp splits */
        s->tensor += times * (mlps * tensor_time(m, g, c, transfer, linear, pass, true)
                              + (s->layers - mlps) * (whole + tensor_time(m, g, c, transfer, linear, pass, false)));
        s->context += times * s->layers * ring_time(m, g, c, h, attend, pass);
        s->exchange += times * (s->layers - s->dense) * exchange_time(m, g, c, h, rate / t, pass);
    }
    if (hides_exchange(g, c))
        s->exchange = exposed(s->exchange, s->kernels);
    s->launches = launch + s->layers * collectives * hops * k->hop;
    const double device = s->kernels + s->tensor + s->context + s->exchange;
    s->seconds = hops && !scattered ? device + s->launches : fmax(device, s->launches);
}

/* Seconds per step, not hidden, of reducing a pipeline stage's gradients and gathering its weights. A node's ranks use
 * one network, so all parameters of the stage count, not one rank's; of the experts those that are on one node. */
static double data_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k,
                        const Stage *s)
{
    const double n = shards(g), copies = g->replicate, backward = s->seconds * 2 / 3;
    const bool ours = c->framework == FOR_09, overlaps = ours || is_megatron(c);
    const int stride = g->tp * g->cp * (ours ? g->pp : 1);              /* in 09 pipeline stages are neighbors */
    const double group = stride * g->dp / copies;
    const bool leaves = group > c->per_node;                            /* the node */
    const double stages_beside = fmax(1, fmin(g->pp, (double)c->per_node / (g->tp * g->cp)));
    /* A node's adapters of which transfers use one: ZeRO-3 of 2021 had one ring over all ranks. */
    const double adapters = c->framework == FOR_MEGATRON_2022 && g->zero == 3 ? 1.0 / c->per_node : 1;
    const double rate = leaves ? h->network * adapters / (ours ? stages_beside : 1)
                               : h->nvlink * fmin(c->per_node, g->tp);
    const double wait = (n - 1) * h->latency, units = s->layers + s->embeddings + 2 * s->heads - (g->pp == 1);
    const double steps = g->zero || c->framework == FOR_NANOTRON ? n : log2(n);      /* rings; all-reduces: trees */
    const double sync = leaves ? k->sync * s->layers * steps : 0, per_byte = (n - 1) / n / rate;
    const double experts = s->experts * fmin(1, (double)c->per_node / expert_tp(g, c) / g->ep)
                           * (1 - (double)g->ep / expert_ranks(g, c)) / rate;
    const double per_stage = (s->params - s->experts) * per_byte + experts;
    const bool sharded = c->framework == FOR_TORCHTITAN || c->framework == FOR_FSDP_2023;   /* FSDP */
    const double real = c->gradients == 2 && !sharded ? 2 : FLOAT;
    /* HSDP: copies all-reduce their shards of the gradients, in a node if it holds all copies. */
    const double between = group * copies > c->per_node ? fmin(1, c->per_node / group) / h->network : 1 / n / rate;
    const double across = (copies > 1) * (2 * real * (s->params - s->experts) * (copies - 1) / copies * between
                                          + 2 * (copies - 1) * units * h->latency + k->sync * s->layers * log2(copies));
    const double reduce_scatter = real * per_stage + units * wait + across;
    const double all_gather = (c->fp8 ? 1 : c->stored) * per_stage + units * wait;
    /* In an interleaved pipeline a chunk's transfers are behind other chunks of p micro-batches. */
    const double window = fmax(1, g->pp * (g->chunks - 1.0) / g->chunks);
    /* These overlap as far as links allow; nothing hides the transfer of the last unit */
    const double last = FLOAT * (s->embeddings ? (double)m->hidden * m->vocab : block_parameters(m)) * per_byte + wait;
    /* On the link that tp or ep uses all the time nothing is hidden. Behind a forward: half. */
    const double hidden = leaves || (g->tp == 1 && g->ep == 1) ? window * backward : 0;
    const double first = c->stored / FLOAT * last;
    const double replicated = ours && g->tp > 1 ? (s->layers + s->heads) * 2 * (g->tp - 1) * h->latency : 0;

    if (n == 1)
        return replicated;
    switch (g->zero) {
    case 0:
        return replicated + (ours ? fmax(2 * last, 2 * reduce_scatter + sync - hidden)
                                  : fmax(0, 2 * reduce_scatter + sync - backward));
    case 1:                             /* nanotron and DeepSpeed overlap nothing */
        return replicated + (overlaps ? fmax(last, reduce_scatter + sync - hidden)
                                        + fmax(first, all_gather - hidden / 2)
                                      : reduce_scatter + sync + all_gather);
    case 2:                             /* a reduce-scatter per micro-batch, behind its backward */
        return g->accumulate * exposed(reduce_scatter + sync, backward) + all_gather;
    default:                            /* and two all-gathers, of the next block while one computes */
        return g->accumulate * exposed(reduce_scatter + 2 * all_gather + 1.5 * sync, s->seconds);
    }
}

/* Seconds per step of 1F1B. The first micro-batch passes through all pipeline stages and back; then one ends per
 * period: the slowest stage's time; or, if longer, a round trip from stage i to the end and back, divided by the
 * p - i micro-batches that stage i has in flight. Interleaved in v chunks, filling and draining take 1/v of the stages'
 * time, but v times as many transfers are hidden only as far as ZeRO-3's. */
static double pipeline_time(const Grid *g, const Stage *stages, double transfer)
{
    double sum = 0, period = 0, slowest = 0;

    for (int i = g->pp - 1; i >= 0; i--) {
        sum += stages[i].seconds;
        slowest = fmax(slowest, stages[i].seconds);
        period = fmax(period, (sum + 2 * (g->pp - 1 - i) * transfer) / (g->pp - i));
    }
    const double filling = (sum - slowest) / g->chunks + 2 * (g->pp - 1) * transfer;

    if (g->chunks > 1)
        period = slowest + EXPOSED * 2 * g->chunks * transfer;
    return slowest + filling + (g->accumulate - 1) * fmax(slowest, period);
}

Time grid_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *sheet, const Constants *k, Stage *given)
{
    Hardware reached = *sheet, *h = &reached;
    const double boost = h->boost ? h->boost : 1;
    reached.nvlink *= k->links, reached.network *= k->links, reached.peak *= boost, reached.peak8 *= boost;
    Stage own[g->pp], *stages = given ? given : own;
    /* In 09 neighbors in a pipeline are tp x cp ranks apart, in nanotron tp x cp x dp. */
    const bool in_node = (c->framework == FOR_09 ? g->tp * g->cp * g->pp : c->gpus) <= c->per_node;
    const double full = c->published && grid_memory(m, g, c).total > c->memory;
    const double transfer = local_tokens(m, g) * m->hidden * c->stored / g->tp
                                / (in_node ? h->nvlink : h->network / c->per_node)
                            + h->latency + (c->published && c->gpus >= CONGESTED * c->per_node ? k->stall : 0);
    double busy = 0, most = 0;
    Time time = {.fixed = k->step};

    grid_stages(m, g, c, stages);
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
        most = fmax(most, s->params - s->experts * (1 - (g->zero ? 1 : (double)g->tp / expert_tp(g, c) / g->ep)));
    }
    const double pipeline = pipeline_time(g, stages, transfer);
    time.bubble = pipeline - busy;
    /* Both ends of the pipeline add their gradients of the tied embedding. */
    const double embedding = (double)m->hidden * m->vocab / g->tp / (g->zero ? shards(g) : 1);
    const double link = c->gpus <= c->per_node ? h->nvlink : h->network / c->per_node;
    time.data += m->tied && g->pp > 1 ? FLOAT * embedding / link + 2 * h->latency : 0;
    const double update = c->framework == FOR_09 || c->framework == FOR_NANOTRON ? UPDATE_BYTES : FUSED_UPDATE;
    time.optimizer = update * most / (g->tp * (g->zero ? shards(g) : 1) * h->bandwidth);
    time.total = pipeline + time.data + time.optimizer + time.fixed;
    return time;
}
