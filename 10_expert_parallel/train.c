/* 10_expert_parallel: 01 with a mixture of experts for each MLP, split over the ranks (GShard, Lepikhin et al. 2020).
 *
 * A router chooses k of e experts for each token. The ranks split the batch. Each rank of an ep group holds e/ep of the
 * experts: an all-to-all takes the tokens of all its ranks to the experts that they chose, another takes the outputs
 * back. An expert has C slots per span of tokens, filled or not, so memory and traffic do not depend on what the router
 * chooses. Each expert's gradients are summed over edp, the ranks that hold it; all others over dp, all ranks.
 */
#include "../common/ultrascale.h"
#include "experts.h"

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *dp;                    /* all ranks; each computes its own sequences of the batch */
static Comm *ep, *edp;              /* ranks that hold all experts together; ranks that hold the same experts */
static int ep_size = 1, span;
static double capacity = 1.25, balance = 0.01;

/* Local sizes, on this rank. Shapes in comments use these letters. */
static int64_t B, T, R;             /* sequences per micro-batch, tokens of each, rows of the residual stream: B*T */
static int64_t L, H, A, D, F, V;    /* layers, hidden size, heads, head size, MLP width, vocabulary */
static int64_t E, K;                /* experts on this rank, each of width F; experts that a token takes */
static int64_t G, C, P;             /* tokens per span; slots per expert and span; per local expert: ep_size*(R/G)*C */

/* What one block's forward saves for its backward. The block's input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   stats: mean and rstd */
    Tensor qkv;                     /* (B, T, 3*A*D)    per head: q, k, v; q and k after RoPE */
    Tensor probs;                   /* (B, A, T, T)     attention probabilities: quadratic in T */
    Tensor attn_out;                /* (B, T, A*D)      output of attention, input of the projection */
    Tensor mid;                     /* (R, H)           residual stream between attention and MLP */
    Tensor ln2, ln2_stats;          /* (R, H), (R, 2) */
    Routing routing;                /* of the local tokens, to all experts */
    Tensor in;                      /* (E, P, H)        slots of the local experts: rows of tokens of all ranks of ep */
    Tensor up, gelu;                /* (E, P, F) */
    Tensor returned;                /* (E, P, H)        as (e, R/G*C, H): outputs of all experts for the local tokens */
    Tensor branch;                  /* (R, H)           what attention, then the MLP, adds to the stream; not saved */
} BlockActs;

typedef struct {
    Tensor *x;                      /* [L + 1] of (R, H): residual stream into each block, and out of the last */
    BlockActs *blocks;              /* [L] */
    Tensor final, final_stats;      /* (R, H), (R, 2) */
    Tensor logits, lse;             /* (B, T, V), (B, T) */
} Acts;

static Acts acts;
static BlockActs d_block;           /* gradients of the current block's activations */
static Tensor d_x, d_final;         /* (R, H)  gradients of the residual stream, wherever backward is, and of final */
static Tensor rope;                 /* (T, D)  cos and sin of each position */
static Tensor loss;                 /* (1)     of the step, accumulated over its micro-batches on the device */
static Tensor balance_loss;         /* (1)     the same */
static Tensor totals;               /* (L, e, 2)  of the step: choices of each expert, and how many were dropped */
static Tensor d_gates, d_logits;    /* (R/G, G, K), (R/G, G, e) */
static Tensor slots;                /* (E, P, H)  rows or outputs that leave; outputs' gradients that arrive */
static double balance_of_step, dropped, busiest, idlest;       /* columns of --metrics */

/* The mixture of experts, in place of the MLP: defined after backward. */
static void experts_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x);
static void experts_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x);

/* Computes one transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    attention_forward(a->attn_out, a->probs, a->qkv);
    linear_forward(a->branch, a->attn_out, w->proj_weight, NONE);
    residual_forward(a->mid, x, a->branch, w->proj_bias);

    layernorm_forward(a->ln2, a->ln2_stats, a->mid, w->ln2_weight, w->ln2_bias);
    experts_forward(w, a, out, a->mid);
}

/* Backpropagates through one block: forward's calls in reverse. On entry d_x is the gradient of the block's output, on
 * return that of its input x; attention and MLP each add their gradients to it. w: parameters, g: their gradients,
 * a: activations, d: their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    experts_backward(w, g, a, d, d_x);
    layernorm_backward(d_x, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats, w->ln2_weight);

    residual_backward(g->proj_bias, d_x);
    linear_backward_input(d->attn_out, d_x, w->proj_weight);
    linear_backward_weight(g->proj_weight, NONE, d_x, a->attn_out);
    attention_backward(d->qkv, d->probs, d->attn_out, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    linear_backward_input(d->ln1, d->qkv, w->qkv_weight);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, a->ln1);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Computes the model on one micro-batch. Adds the losses of its tokens, times scale, to the step's loss. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    embedding_forward(a->x[0], batch.inputs, w->embedding);
    for (int l = 0; l < L; l++) {
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        balance_forward(balance_loss, tensor_range(totals, l, 1), &a->blocks[l].routing, balance * scale);
    }
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    linear_forward(a->logits, a->final, w->embedding, NONE);           /* tied with the embedding */
    cross_entropy_forward(loss, a->lse, a->logits, batch.targets, scale);
}

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params, *g = &gradients;

    cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
    linear_backward_input(d_final, a->logits, w->embedding);
    linear_backward_weight(g->embedding, NONE, a->logits, a->final);
    tensor_zero(d_x);
    layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    for (int64_t l = L - 1; l >= 0; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE)
            attention_forward(a->blocks[l].attn_out, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
    }
    embedding_backward(g->embedding, d_x, batch.inputs);
}

/* ---- The mixture of experts ---- */

/* Starts to exchange the slots of local expert j. Slots lie in the order of experts, and expert j * ep_size + r is
 * local expert j of rank r. So from row j * P on there is a block of R/G * C rows for each rank. On the receiving rank
 * the blocks lie in the order of ranks. A second exchange returns each block to its place. */
static Request *exchange(Tensor out, Tensor in, int64_t j)
{
    return comm_start_all_to_all(ep, tensor_range(out, j, 1), tensor_range(in, j, 1));
}

/* out = x + the sum of gate * expert(ln2) over each token's experts. Slots of later experts arrive, and outputs of
 * earlier ones return, while an expert computes. */
static void experts_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    const Routing *r = &a->routing;
    Request *arriving[E], *returning[E];

    linear_forward(r->probs, a->ln2, w->router, NONE);      /* logits, which route_forward replaces */
    route_forward(r);
    dispatch_forward(slots, a->ln2, r);
    for (int64_t j = 0; j < E; j++)
        arriving[j] = exchange(a->in, slots, j);
    for (int64_t j = 0; j < E; j++) {
        const ExpertParams *e = &w->experts[j * ep_size + comm_rank(ep)];
        Tensor in = tensor_range(a->in, j, 1), up = tensor_range(a->up, j, 1), gelu = tensor_range(a->gelu, j, 1);
        comm_wait(&arriving[j]);
        linear_forward(up, in, e->up_weight, e->up_bias);
        gelu_forward(gelu, up);
        linear_forward(tensor_range(slots, j, 1), gelu, e->down_weight, e->down_bias);  /* over rows already sent */
        returning[j] = exchange(a->returned, slots, j);
    }
    for (int64_t j = 0; j < E; j++)
        comm_wait(&returning[j]);
    combine_forward(out, x, a->returned, r);
}

/* Computes d->ln2 from d_x, which stays as it is, as the residual stream's gradient. Gradients of outputs, d->returned,
 * arrive in slots; gradients of rows, d->in, return into d->returned. */
static void experts_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x)
{
    const Routing *r = &a->routing;
    Request *arriving[E], *returning[E];

    combine_backward(d->returned, d_gates, d_x, a->returned, r);
    for (int64_t j = 0; j < E; j++)
        arriving[j] = exchange(slots, d->returned, j);
    route_backward(d_logits, d_gates, r);
    linear_backward_input(d->ln2, d_logits, w->router);
    linear_backward_weight(g->router, NONE, d_logits, a->ln2);
    for (int64_t j = 0; j < E; j++) {
        const ExpertParams *e = &w->experts[j * ep_size + comm_rank(ep)];
        const ExpertParams *d_e = &g->experts[j * ep_size + comm_rank(ep)];
        Tensor d_out = tensor_range(slots, j, 1), d_gelu = tensor_range(d->gelu, j, 1);
        Tensor d_up = tensor_range(d->up, j, 1), d_in = tensor_range(d->in, j, 1);
        comm_wait(&arriving[j]);
        linear_backward_input(d_gelu, d_out, e->down_weight);
        gelu_backward(d_up, d_gelu, tensor_range(a->up, j, 1));
        linear_backward_input(d_in, d_up, e->up_weight);
        returning[j] = exchange(d->returned, d->in, j);
        linear_backward_weight(d_e->down_weight, d_e->down_bias, d_out, tensor_range(a->gelu, j, 1));
        linear_backward_weight(d_e->up_weight, d_e->up_bias, d_up, tensor_range(a->in, j, 1));
    }
    for (int64_t j = 0; j < E; j++)
        comm_wait(&returning[j]);
    dispatch_backward(d->ln2, d->returned, r);
}

/* The step's loads, over all ranks: what fraction of choices was dropped; the largest and the smallest load of an
 * expert, as a multiple of the even share. */
static void count_loads(void)
{
    const int64_t n = L * options.config.experts;
    real (*total)[2] = calloc(n, sizeof *total);
    double choices = 0, lost = 0, most = 0, least = INFINITY;

    comm_all_reduce(dp, totals, SUM);
    tensor_to_host(*total, totals);
    for (int64_t i = 0; i < n; i++) {
        choices += total[i][0], lost += total[i][1];
        most = fmax(most, total[i][0]), least = fmin(least, total[i][0]);
    }
    dropped = lost / choices, busiest = most * n / choices, idlest = least * n / choices;
    free(total);
}

/* One optimizer step: one update from the gradients of the global batch, computed micro-batch by micro-batch. */
static StepResult train_step(int64_t step, Batch batch)
{
    /* The loss is the mean over all tokens of the global batch. So every micro-batch, on any rank, is divided by
     * the same number of tokens. */
    const double scale = 1.0 / (B * T * options.accumulate * comm_size(dp));

    tensor_zero(loss);
    tensor_zero(balance_loss);
    tensor_zero(totals);
    tensor_zero(gradients.buffer);
    for (int m = 0; m < options.accumulate; m++) {
        batch_load(batch, step, ((int64_t)comm_rank(dp) * options.accumulate + m) * B, 0);
        trace_begin("forward");
        forward(&acts, batch, scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale);
        trace_end();
    }
    /* units: the embedding, L blocks, the final LayerNorm, then the experts, which not all ranks hold */
    const int64_t others = layout.units[L + 2].first;
    comm_all_reduce(dp, tensor_range(gradients.buffer, 0, others), SUM);
    comm_all_reduce(edp, tensor_range(gradients.buffer, others, layout.count - others), SUM);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(dp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(dp, tensor_item(loss));  /* read here, so that the host does not wait for the update */
    balance_of_step = comm_sum(dp, tensor_item(balance_loss));
    count_loads();
    adamw_step(&optimizer, lr, clip_scale(norm));
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

static void loss_of(Batch batch)        /* forward for evaluation: no backward follows */
{
    forward(&acts, batch, 1.0 / (B * T));
}

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = c->expert_width, V = c->vocab;
    E = equal_share(c->experts, ep_size, "--experts"), K = c->top_k;
    G = span ? span : T;
    if (T % G)
        fail("--span: expected a divisor of --seq %lld, got %d", (long long)T, span);
    /* the even share times --capacity, rounded up, but not for a rounding error; G slots have room for every token */
    C = ceil(capacity * K * G / c->experts - 1e-9);
    C = capacity == 0 || C > G ? G : C;
    P = ep_size * (R / G) * C;
}

static Routing routing_create(void)
{
    const int64_t e = options.config.experts;

    return (Routing){.probs = tensor_create(MEM_ACTIVATIONS, REAL, "router_probs", shape(R / G, G, e)),
                     .gates = tensor_create(MEM_ACTIVATIONS, REAL, "gates", shape(R / G, G, K)),
                     .choice = tensor_create(MEM_ACTIVATIONS, I32, "choice", shape(R / G, G, K)),
                     .slot = tensor_create(MEM_ACTIVATIONS, I32, "slot", shape(R / G, G, K)),
                     .rows = tensor_create(MEM_ACTIVATIONS, I32, "rows", shape(e, R / G, C)),
                     .load = tensor_create(MEM_ACTIVATIONS, REAL, "load", shape(R / G, e))};
}

/* shared: activations that are not saved for backward are in the buffers of `first`, which every block overwrites. */
static BlockActs block_acts_create(Category category, BlockActs first, bool shared)
{
    BlockActs a = first;

    if (!shared || options.recompute != RECOMPUTE_FULL) {
        a.ln1 = tensor_create(category, dtype, "ln1", shape(R, H));
        a.ln1_stats = tensor_create(category, REAL, "ln1_stats", shape(R, 2));
        a.qkv = tensor_create(category, dtype, "qkv", shape(B, T, 3 * A * D));
        a.attn_out = tensor_create(category, dtype, "attn_out", shape(B, T, A * D));
        a.mid = tensor_create(category, dtype, "mid", shape(R, H));
        a.ln2 = tensor_create(category, dtype, "ln2", shape(R, H));
        a.ln2_stats = tensor_create(category, REAL, "ln2_stats", shape(R, 2));
        a.routing = category == MEM_ACTIVATIONS ? routing_create() : (Routing){0};
        a.in = tensor_create(category, dtype, "in", shape(E, P, H));
        a.up = tensor_create(category, dtype, "up", shape(E, P, F));
        a.gelu = tensor_create(category, dtype, "gelu", shape(E, P, F));
        a.returned = tensor_create(category, dtype, "returned", shape(E, P, H));
    }
    if (!shared || options.recompute == RECOMPUTE_NONE)
        a.probs = tensor_create(category, dtype, "probs", shape(B, A, T, T));
    if (!shared)
        a.branch = tensor_create(MEM_WORKSPACE, dtype, "branch", shape(R, H));
    return a;
}

static Acts acts_create(void)
{
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs))};

    for (int l = 0; l <= L; l++)
        a.x[l] = tensor_create(MEM_ACTIVATIONS, dtype, "x", shape(R, H));
    for (int l = 0; l < L; l++)
        a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, a.blocks[0], l > 0);
    a.final = tensor_create(MEM_ACTIVATIONS, dtype, "final", shape(R, H));
    a.final_stats = tensor_create(MEM_ACTIVATIONS, REAL, "final_stats", shape(R, 2));
    a.logits = tensor_create(MEM_ACTIVATIONS, dtype, "logits", shape(B, T, V));
    a.lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(B, T));
    return a;
}

/* Predicts the peak of every memory category: tracked peaks must match to the byte. Estimates follow the playbook. */
static void predict(void)
{
    const double stored = dtype_size(dtype), real_size = dtype_size(REAL);      /* bytes per element */
    const double e = options.config.experts;
    const int64_t others = H * V + L * (4 * H * H + 8 * H + e * H) + 2 * H, experts = L * E * (2 * F * H + F + H);
    const double N = others + experts;                                      /* on this rank */
    const double block = stored * (R * (3 * H + 4 * A * D) + E * P * (2 * H + 2 * F)) + real_size * R * 4;
    const double routing = real_size * (R * (e + K) + R / G * e) + 4 * (2 * R * K + E * P);
    const double scores = stored * B * A * T * T;                                               /* quadratic in T */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;

    memory_predict(MEM_PARAMETERS, stored * N);
    memory_predict(MEM_GRADIENTS, stored * N);
    memory_predict(MEM_OPTIMIZER, real_size * 2 * N);
    memory_predict(MEM_ACTIVATIONS, stored * (L + 1) * R * H + blocks * (block + routing) + quadratic * scores
                                        + stored * (R * H + B * T * V) + real_size * (R * 2 + B * T));
    /* d_block; branch twice, d_x, d_final; rope; d_gates, d_logits; totals; two losses; two ids per token */
    memory_predict(MEM_WORKSPACE, block + scores + stored * 4 * R * H + real_size * (T * D + R * (K + e) + L * e * 2)
                                  + 2 * 8 + 2 * 4 * B * T);
    memory_predict(MEM_COMMUNICATION, stored * E * P * H);               /* slots */

    memory_estimate(MEM_PARAMETERS, stored * N, "4 N, N: parameters on this rank");
    memory_estimate(MEM_GRADIENTS, stored * N, "4 N");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * N, "8 N");

    /* Per layer and micro-batch, an all-to-all per local expert takes rows there, another takes them back: in forward,
     * in backward, and when forward is recomputed. Gradients and totals are summed once per step. */
    const int64_t passes = options.recompute == RECOMPUTE_FULL ? 3 : 2;
    comm_predict(ep, ALL_TO_ALL, options.accumulate * L * passes * 2 * E, P * H);
    comm_predict(dp, ALL_REDUCE, 1, others);
    comm_predict(edp, ALL_REDUCE, 1, experts);
    comm_predict(dp, ALL_REDUCE, 1, L * e * 2);
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    sizes();
    run_set_global_batch(B * options.accumulate * comm_size(dp));
    predict();
    comm_connect();
    memory_check_fits();

    /* only replica 0 adds to the norm; an expert's replicas are the ranks of edp */
    Placement at = replica(comm_rank(dp));
    bool local_expert[options.config.experts];
    for (int i = 0; i < options.config.experts; i++)
        local_expert[i] = i % ep_size == comm_rank(ep);
    at.expert = local_expert, at.expert_replica = comm_rank(edp);
    layout = layout_create(options.config, at);
    params = params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)));
    gradients = params_view(&layout, tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(layout.count)));
    optimizer = (AdamW){.layout = &layout, .shards = calloc(1, sizeof(ParamShard)), .count = 1};
    optimizer.shards[0] = (ParamShard){
        .params = params.buffer,
        .gradients = gradients.buffer,
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, (BlockActs){0}, false);
    d_x = tensor_create(MEM_WORKSPACE, dtype, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    balance_loss = tensor_create(MEM_WORKSPACE, F64, "balance_loss", shape(1));
    totals = tensor_create(MEM_WORKSPACE, REAL, "totals", shape(L, options.config.experts, 2));
    d_gates = tensor_create(MEM_WORKSPACE, REAL, "d_gates", shape(R / G, G, K));
    d_logits = tensor_create(MEM_WORKSPACE, REAL, "d_logits", shape(R / G, G, options.config.experts));
    slots = tensor_create(MEM_COMMUNICATION, dtype, "slots", shape(E, P, H));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    return batch_create();
}

int main(int argc, char **argv)
{
    Config *c = &options.config;
    c->experts = 8, c->top_k = 2;
    run_begin("10_expert_parallel", "Trains a mixture of experts that are split over the ranks.", argc, argv,
              (ProgramOption[]){
        {"experts", OPTION_INT, &c->experts, "experts of each block", "N", 1, 1 << 12},
        {"top-k", OPTION_INT, &c->top_k, "experts that a token takes", "N", 1, 1 << 12},
        {"expert-width", OPTION_INT, &c->expert_width,
         "MLP width of an expert; 0: 4 x hidden / top-k, so that a token costs what it costs in 01", "N", 0, 1 << 22},
        {"span", OPTION_INT, &span, "consecutive tokens that share an expert's slots; 0: a sequence", "N", 0, 1 << 30},
        {"capacity", OPTION_DOUBLE, &capacity,
         "slots of an expert, as a multiple of its even share; 0: as many as a span has tokens", "X", 0, 1e6},
        {"balance", OPTION_DOUBLE, &balance, "weight of the load-balancing loss", "X", 0, 1e6},
        {"ep", OPTION_INT, &ep_size, "ranks that the experts are split over", "N", 1, 1 << 12},
        {0}});
    dp = comm_split(world, 0, "dp");
    equal_share(comm_size(dp), ep_size, "--ep: the number of ranks =");
    ep = comm_split(world, comm_rank(dp) / ep_size, "ep");             /* neighbors, which share a machine */
    edp = comm_split(world, comm_rank(dp) % ep_size, "edp");
    Batch batch = set_up();
    run_register_state("balance_loss", &balance_of_step);
    run_register_state("dropped", &dropped);
    run_register_state("busiest", &busiest);
    run_register_state("idlest", &idlest);

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    run_end();
}
