/* 04_zero: data parallelism (03) with the training state sharded over the ranks (Rajbhandari et al. 2020).
 *
 * Each unit (the embedding, a block, the final LayerNorm) is split into one shard per rank. --zero 1 shards AdamW's
 * moments, 2 also gradients, 3 also parameters: a unit is all-gathered while the previous one computes. --replicate N
 * makes N copies of the state, each sharded over a group of the ranks (HSDP).
 */
#include "../common/ultrascale.h"

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *dp;                    /* all ranks; each computes its own sequences of the batch */
static Comm *dp_shard;              /* the ranks that share one copy of the training state: all of dp, but for HSDP */
static Comm *replicas;              /* HSDP: the ranks with the same shard, one in each copy */
static int zero = 1, replicate = 1;
static Request *gathering[4], *reducing[4];     /* [slot]: in flight, or NULL */
static Request **summing;                       /* [unit]: HSDP's all-reduce in flight, or NULL */
static int slot_unit[4];                        /* [slot]: the unit whose parameters it holds; -1: none */

/* Local sizes, on this rank. Shapes in comments use these letters. */
static int64_t B, T, R;             /* sequences per micro-batch, tokens of each, rows of the residual stream: B*T */
static int64_t L, H, A, D, F, V;    /* layers, hidden size, heads, head size, MLP width, vocabulary */

/* What one block's forward saves for its backward. The block's input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   stats: mean and rstd */
    Tensor qkv;                     /* (B, T, 3*A*D)    per head: q, k, v; q and k after RoPE */
    Tensor probs;                   /* (B, A, T, T)     attention probabilities: quadratic in T */
    Tensor attn_out;                /* (B, T, A*D)      output of attention, input of the projection */
    Tensor mid;                     /* (R, H)           residual stream between attention and MLP */
    Tensor ln2, ln2_stats;          /* (R, H), (R, 2) */
    Tensor up, gelu;                /* (B, T, F) */
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
    linear_forward(a->up, a->ln2, w->up_weight, w->up_bias);
    gelu_forward(a->gelu, a->up);
    linear_forward(a->branch, a->gelu, w->down_weight, NONE);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* Backpropagates through one block: forward's calls in reverse. On entry d_x is the gradient of the block's output, on
 * return that of its input x; attention and MLP each add their gradients to it. w: parameters, g: their gradients,
 * a: activations, d: their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    residual_backward(g->down_bias, d_x);
    linear_backward_input(d->gelu, d_x, w->down_weight);
    linear_backward_weight(g->down_weight, NONE, d_x, a->gelu);
    gelu_backward(d->up, d->gelu, a->up);
    linear_backward_input(d->ln2, d->up, w->up_weight);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, a->ln2);
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

/* The slot (of four) that holds unit u in full. Blocks alternate between slots 0 and 1, so that one computes while the
 * next is in flight; the embedding (used first and last) has slot 2, the final LayerNorm slot 3. */
static int slot_of(int u)
{
    return u == 0 ? 2 : u == L + 1 ? 3 : u % 2;
}

/* Starts the all-gather of unit u's parameters into its slot, unless they are there. Nothing to do before ZeRO-3. */
static void start_gather(int u)
{
    if (zero < 3 || slot_unit[slot_of(u)] == u)
        return;
    slot_unit[slot_of(u)] = u;
    gathering[slot_of(u)] = comm_start_all_gather(dp_shard, params.units[u], optimizer.shards[u].params);
}

/* Call before unit u computes. Waits for its parameters, and starts the all-gather of the next unit's. */
static void gather_and_prefetch(int u, int next)
{
    start_gather(u);
    comm_wait(&gathering[slot_of(u)]);
    start_gather(next);
}

/* Computes the model on one micro-batch. Adds the losses of its tokens, times scale, to the step's loss. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    gather_and_prefetch(0, 1);
    embedding_forward(a->x[0], batch.inputs, w->embedding);
    for (int l = 0; l < L; l++) {
        gather_and_prefetch(l + 1, l + 2);
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    }
    gather_and_prefetch(L + 1, 0);              /* next: the embedding, which is still in its slot */
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    linear_forward(a->logits, a->final, w->embedding, NONE);           /* tied with the embedding */
    cross_entropy_forward(loss, a->lse, a->logits, batch.targets, scale);
}

/* Call before backward accumulates into unit u. Waits until u's slot is free; from ZeRO-2 on, initializes it. */
static void gradients_begin(int u)
{
    comm_wait(&reducing[slot_of(u)]);    /* the slot's previous unit; with ZeRO-1 only the request is reused */
    if (zero == 1)
        return;
    const Range shard = comm_shard(dp_shard, layout.units[u].count);
    tensor_zero(gradients.units[u]);
    /* this rank's shard of the running sum, zeros elsewhere: reduce-scattering the slots gives the new sum */
    tensor_copy(tensor_range(gradients.units[u], shard.first, shard.count), optimizer.shards[u].gradients);
}

/* HSDP: starts to add up the replicas' sums of this shard of unit u, once its reduce-scatter is complete. */
static void sum_replicas(int u)
{
    if (replicate == 1)
        return;
    comm_wait(&reducing[slot_of(u)]);
    summing[u] = comm_start_all_reduce(replicas, optimizer.shards[u].gradients, SUM);
}

/* Call after the backward of unit u. Starts its reduce-scatter; with ZeRO-1 only after the last micro-batch. After that
 * one HSDP also adds up the replicas' sums of the unit before, whose reduce-scatter was in flight meanwhile. */
static void gradients_end(int u, bool last)
{
    if (zero > 1 || last)
        reducing[slot_of(u)] = comm_start_reduce_scatter(dp_shard, optimizer.shards[u].gradients, gradients.units[u]);
    if (last && u <= L)
        sum_replicas(u + 1);
}

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale, bool last)
{
    const Params *w = &params, *g = &gradients;

    gather_and_prefetch(L + 1, L);
    gradients_begin(0);                         /* the embedding: output projection now, lookup at the end */
    gradients_begin(L + 1);
    cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
    linear_backward_input(d_final, a->logits, w->embedding);
    linear_backward_weight(g->embedding, NONE, a->logits, a->final);
    tensor_zero(d_x);
    layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    gradients_end(L + 1, last);
    for (int64_t l = L - 1; l >= 0; l--) {
        gather_and_prefetch(l + 1, l);
        gradients_begin(l + 1);
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE)
            attention_forward(a->blocks[l].attn_out, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
        gradients_end(l + 1, last);
    }
    embedding_backward(g->embedding, d_x, batch.inputs);
    gradients_end(0, last);
}

static void gradients_wait(void)
{
    sum_replicas(0);
    for (int i = 0; i < 4; i++)
        comm_wait(&reducing[i]);
    for (int u = 0; u < L + 2; u++)
        comm_wait(&summing[u]);
}

/* Call after an update or a load: full units are stale. ZeRO-1 and 2 all-gather them; ZeRO-3 empties the slots. */
static void refresh_params(void)
{
    memset(slot_unit, -1, sizeof slot_unit);
    for (int u = 0; u < L + 2 && zero < 3; u++)
        comm_all_gather(dp_shard, params.units[u], optimizer.shards[u].params);
}

/* One optimizer step: one update from the gradients of the global batch, computed micro-batch by micro-batch. */
static StepResult train_step(int64_t step, Batch batch)
{
    /* The loss is the mean over all tokens of the global batch. So every micro-batch, on any rank, is divided by
     * the same number of tokens. */
    const double scale = 1.0 / (B * T * options.accumulate * comm_size(dp));

    tensor_zero(loss);
    for (int u = 0; u < L + 2; u++)
        tensor_zero(zero == 1 ? gradients.units[u] : optimizer.shards[u].gradients);
    for (int m = 0; m < options.accumulate; m++) {
        batch_load(batch, step, ((int64_t)comm_rank(dp) * options.accumulate + m) * B, 0);
        trace_begin("forward");
        forward(&acts, batch, scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale, m == options.accumulate - 1);
        trace_end();
    }
    gradients_wait();
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(dp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(dp, tensor_item(loss));  /* read here, so that the host does not wait for the update */
    adamw_step(&optimizer, lr, clip_scale(norm));
    refresh_params();
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

static void loss_of(Batch batch)        /* forward for evaluation: no backward follows */
{
    forward(&acts, batch, 1.0 / (B * T));
    memset(slot_unit, -1, sizeof slot_unit);    /* empties the slots: each step all-gathers what predict() counts */
}

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
}

/* Neighbors share a copy of the training state, as they share a node. */
static void groups(void)
{
    const int n = comm_size(world), r = comm_rank(world), shards = n / replicate;

    if (n % replicate)
        fail("--replicate %d: expected a divisor of the %d ranks, since every copy needs as many", replicate, n);
    dp = comm_split(world, 0, "dp");
    dp_shard = replicate == 1 ? dp : comm_split(world, r / shards, "dp_shard");
    replicas = comm_split(world, r % shards, "replicas");
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
        a.up = tensor_create(category, dtype, "up", shape(B, T, F));
        a.gelu = tensor_create(category, dtype, "gelu", shape(B, T, F));
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

/* Creates the unit slots, and returns the slot of every unit. Blocks u and u + 2 share a slot, as slot_of says. */
static Tensor *slots_create(const char *name)
{
    Tensor *units = calloc(L + 2, sizeof(Tensor));

    for (int u = 0; u < L + 2; u++)
        units[u] = u > 2 && u <= L ? units[u - 2]
                                   : tensor_create(MEM_COMMUNICATION, dtype, name, shape(layout.units[u].count));
    return units;
}

/* Predicts the peak of every memory category: tracked peaks must match to the byte. Estimates follow the playbook. */
static void predict(void)
{
    const double stored = dtype_size(dtype), real_size = dtype_size(REAL);      /* bytes per element */
    const int64_t N = model_parameters(options.config);
    const double block = stored * (R * 3 * H + B * T * (4 * A * D + 2 * F)) + real_size * R * 4;     /* linear in T */
    const double scores = stored * B * A * T * T;                                               /* quadratic in T */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;
    const int64_t embedding = H * V, layer = 12 * H * H + 13 * H, final = 2 * H;     /* elements per unit */
    const double own = comm_shard(dp_shard, embedding).count + L * comm_shard(dp_shard, layer).count
                       + comm_shard(dp_shard, final).count;
    const double slots = embedding + (L < 2 ? L : 2) * layer + final, n = comm_size(dp_shard);

    memory_predict(MEM_PARAMETERS, real_size * (zero == 3 ? own : N));
    memory_predict(MEM_GRADIENTS, real_size * (zero >= 2 ? own : N));
    memory_predict(MEM_OPTIMIZER, real_size * 2 * own);
    memory_predict(MEM_COMMUNICATION, real_size * slots * (zero - 1));  /* ZeRO-2: gradients; ZeRO-3: + parameters */
    memory_predict(MEM_ACTIVATIONS, stored * (L + 1) * R * H + blocks * block + quadratic * scores
                                        + stored * (R * H + B * T * V) + real_size * (R * 2 + B * T));
    /* d_block; branch twice, d_x, d_final; rope; loss; the batch's two ids per token */
    memory_predict(MEM_WORKSPACE, block + scores + stored * 4 * R * H + real_size * T * D + 8 + 2 * 4 * B * T);

    memory_estimate(MEM_PARAMETERS, real_size * (zero == 3 ? N / n : N), zero == 3 ? "4 N / n" : "4 N");
    memory_estimate(MEM_GRADIENTS, real_size * (zero >= 2 ? N / n : N), zero >= 2 ? "4 N / n" : "4 N");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * N / n, "8 N / n");
    estimate_activations(options.recompute, L * R, "");

    /* ZeRO-2 and 3 reduce-scatter every micro-batch: no rank stores full gradients. ZeRO-3 all-gathers the blocks for
     * each forward and each backward, except the two that are still in their slots from the previous pass. */
    const int64_t m = options.accumulate, again = zero == 3 && L > 2 ? (2 * m - 1) * (L - 2) : 0;
    for (int u = 0; u < L + 2; u++) {
        const int64_t unit = u == 0 ? embedding : u <= L ? layer : final;
        comm_predict(dp_shard, REDUCE_SCATTER, zero == 1 ? 1 : m, unit);
        comm_predict(dp_shard, ALL_GATHER, 1, unit);
        if (replicate > 1)
            comm_predict(replicas, ALL_REDUCE, 1, comm_shard(dp_shard, unit).count);
    }
    comm_predict(dp_shard, ALL_GATHER, again, layer);
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    sizes();
    run_set_global_batch(B * options.accumulate * comm_size(dp));
    predict();
    comm_connect();
    memory_check_fits();

    layout = layout_create(options.config, replica(comm_rank(replicas)));
    params = zero < 3 ? params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)))
                      : params_view_units(&layout, slots_create("params"));
    gradients = zero < 2 ? params_view(&layout, tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(layout.count)))
                         : params_view_units(&layout, slots_create("gradients"));
    optimizer = (AdamW){.layout = &layout, .shards = calloc(L + 2, sizeof(ParamShard)), .count = L + 2,
                        .full_params = params.buffer};
    summing = calloc(L + 2, sizeof(Request *));
    for (int u = 0; u < L + 2; u++) {           /* this rank's shards: views of full units, or buffers of their own */
        const Range shard = comm_shard(dp_shard, layout.units[u].count);
        optimizer.shards[u] = (ParamShard){
            .first = layout.units[u].first + shard.first,
            .params = zero < 3 ? tensor_range(params.units[u], shard.first, shard.count)
                               : tensor_create(MEM_PARAMETERS, dtype, "params", shape(shard.count)),
            .gradients = zero < 2 ? tensor_range(gradients.units[u], shard.first, shard.count)
                                  : tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(shard.count)),
            .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(shard.count)),
            .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(shard.count))};
    }
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, (BlockActs){0}, false);
    d_x = tensor_create(MEM_WORKSPACE, dtype, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    return batch_create();
}

int main(int argc, char **argv)
{
    run_begin("04_zero", "Trains a transformer with the batch split and the training state sharded.", argc, argv,
              (ProgramOption[]){
        {"zero", OPTION_INT, &zero, "ZeRO stage: shard 1 optimizer states, 2 + gradients, 3 + parameters", "N", 1, 3},
        {"replicate", OPTION_INT, &replicate, "HSDP: copies of the training state, each over ranks / N", "N", 1, 1000},
        TEXT_OPTIONS,
        {0}});
    groups();
    Batch batch = set_up();

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    refresh_params();
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    text_sample(loss_of, acts.final, params.embedding, acts.logits, batch);
    run_end();
}
