/* 04_zero: 03 without keeping on every rank what one rank can keep for all.
 *
 * Each unit of the model (the embedding, each block, the final LayerNorm) is cut into one part a rank. A
 * rank updates its own parts only, so m and v of the others need not be here: ZeRO-1. Nor need their
 * gradients, once summed: ZeRO-2. Nor their parameters, while another unit computes: ZeRO-3.
 */
#include "../common/ultrascale.h"

static Layout layout;               /* which parameter lies where in a flat buffer */
static Params params, gradients;    /* views of full units, in a buffer of all or in slots */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *dp;                    /* the ranks that divide the batch */
static int zero = 1;
static Request *gather_request[4], *scatter_request[4];     /* in flight, into or out of each slot */
static int slot_unit[4];                        /* the unit whose parameters a slot has, -1: none */

/* Sizes of what is here; capitals in the comments are these. */
static int64_t B, T, R;             /* sequences of a micro-batch, tokens of each, rows of the residual stream: B*T */
static int64_t L, H, A, D, F, V;    /* layers, hidden, heads of size D, width of the MLP, vocabulary */

/* What one block's forward leaves for its backward. Its input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   mean and 1 / deviation */
    Tensor qkv;                     /* (B, T, 3*A*D)    head by head: q, k, v; q and k rotated */
    Tensor probs;                   /* (B, A, T, T)     the term that is quadratic in T */
    Tensor heads;                   /* (B, T, A*D)      attention's output, before the projection */
    Tensor mid;                     /* (R, H)           the residual stream between the two halves */
    Tensor ln2, ln2_stats;          /* (R, H), (R, 2) */
    Tensor up, gelu;                /* (B, T, F) */
    Tensor branch;                  /* (R, H)           what a half adds to the residual stream; not kept */
} BlockActs;

typedef struct {
    Tensor *x;                      /* L + 1 of (R, H): the residual stream into each block, and out */
    BlockActs *blocks;              /* L */
    Tensor final, final_stats;      /* (R, H), (R, 2) */
    Tensor logits, lse;             /* (B, T, V), (B, T) */
} Acts;

static Acts acts;
static BlockActs d_block;           /* gradients of a block's activations, each in turn; mid's and branch's is d_x */
static Tensor d_x, d_final;         /* (R, H)  of the residual stream, and of the last LayerNorm's output */
static Tensor rope;                 /* (T, D)  cos and sin of each position */
static Tensor loss;                 /* (1)     of the step, summed over its micro-batches, on the device */

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
}

/* Recomputation is sharing: what a block doesn't keep, all blocks write to the first one's buffer. */
static BlockActs block_acts_create(Category category, const BlockActs *first)
{
    BlockActs a = first ? *first : (BlockActs){0};

    if (!first || options.recompute != RECOMPUTE_FULL) {
        a.ln1 = tensor_create(category, dtype, "ln1", shape(R, H));
        a.ln1_stats = tensor_create(category, REAL, "ln1_stats", shape(R, 2));
        a.qkv = tensor_create(category, dtype, "qkv", shape(B, T, 3 * A * D));
        a.heads = tensor_create(category, dtype, "heads", shape(B, T, A * D));
        a.mid = tensor_create(category, dtype, "mid", shape(R, H));
        a.ln2 = tensor_create(category, dtype, "ln2", shape(R, H));
        a.ln2_stats = tensor_create(category, REAL, "ln2_stats", shape(R, 2));
        a.up = tensor_create(category, dtype, "up", shape(B, T, F));
        a.gelu = tensor_create(category, dtype, "gelu", shape(B, T, F));
    }
    if (!first || options.recompute == RECOMPUTE_NONE)
        a.probs = tensor_create(category, dtype, "probs", shape(B, A, T, T));
    if (!first)
        a.branch = tensor_create(MEM_WORKSPACE, dtype, "branch", shape(R, H));
    return a;
}

static Acts acts_create(void)
{
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs))};

    for (int l = 0; l <= L; l++)
        a.x[l] = tensor_create(MEM_ACTIVATIONS, dtype, "x", shape(R, H));
    for (int l = 0; l < L; l++)
        a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, l ? &a.blocks[0] : NULL);
    a.final = tensor_create(MEM_ACTIVATIONS, dtype, "final", shape(R, H));
    a.final_stats = tensor_create(MEM_ACTIVATIONS, REAL, "final_stats", shape(R, 2));
    a.logits = tensor_create(MEM_ACTIVATIONS, dtype, "logits", shape(B, T, V));
    a.lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(B, T));
    return a;
}

/* What the memory account must find, to the byte. The playbook's formula is printed beside it. */
static void predict(void)
{
    const double real = dtype_size(REAL), N = model_parameters(options.config);
    const double block = R * (3 * H + 4) + B * T * (4 * A * D + 2 * F);     /* linear in T */
    const double scores = B * A * T * T;                                    /* quadratic */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;
    const int64_t embedding = H * V, one = 12 * H * H + 13 * H, final = 2 * H;     /* elements of the units */
    const double own = comm_part(dp, embedding).count + L * comm_part(dp, one).count + comm_part(dp, final).count;
    const double shared = embedding + (L < 2 ? L : 2) * one + final, n = comm_size(dp);

    memory_predict(MEM_PARAMETERS, real * (zero == 3 ? own : N));
    memory_predict(MEM_GRADIENTS, real * (zero >= 2 ? own : N));
    memory_predict(MEM_OPTIMIZER, real * 2 * own);
    memory_predict(MEM_COMMUNICATION, real * shared * (zero - 1));              /* for gradients; for parameters too */
    memory_predict(MEM_ACTIVATIONS, real * ((L + 1) * R * H + blocks * block + quadratic * scores
                                            + R * (H + 2) + B * T * (V + 1)));
    /* d_block; branch twice, d_x, d_final; rope; the loss; a batch's two ids a token */
    memory_predict(MEM_WORKSPACE, real * (block + scores + 4 * R * H + T * D) + 8 + 2 * 4 * B * T);

    memory_playbook(MEM_PARAMETERS, real * (zero == 3 ? N / n : N), zero == 3 ? "4 N / n" : "4 N");
    memory_playbook(MEM_GRADIENTS, real * (zero >= 2 ? N / n : N), zero >= 2 ? "4 N / n" : "4 N");
    memory_playbook(MEM_OPTIMIZER, real * 2 * N / n, "8 N / n");
    playbook_activations(options.recompute, L * R, "");

    /* ZeRO-2 cannot wait for the last micro-batch: it has nowhere to keep the sum. ZeRO-3 gathers blocks for
     * each forward and each backward, but for the two that are still there from the pass before. */
    const int64_t m = options.accumulate, scatters = zero == 1 ? 1 : m;
    const int64_t again = zero == 3 && L > 2 ? (2 * m - 1) * (L - 2) : 0;
    comm_predict(dp, REDUCE_SCATTER, scatters, embedding);
    comm_predict(dp, REDUCE_SCATTER, scatters * L, one);
    comm_predict(dp, REDUCE_SCATTER, scatters, final);
    comm_predict(dp, ALL_GATHER, 1, embedding);
    comm_predict(dp, ALL_GATHER, L + again, one);
    comm_predict(dp, ALL_GATHER, 1, final);
    memory_plan();
}

/* Units that are not kept full share four slots. Blocks take turns in two of them, so that one computes while
 * the next is in flight; the embedding, used at both ends, and the final LayerNorm have their own. */
static int slot_of(int u)
{
    return u == 0 ? 2 : u == L + 1 ? 3 : u % 2;
}

/* Each unit's slot: blocks share two, as slot_of says. */
static Tensor *slots_create(const char *name)
{
    Tensor *units = calloc(L + 2, sizeof(Tensor));

    for (int u = 0; u < L + 2; u++)
        units[u] = u > 2 && u <= L ? units[u - 2]
                                   : tensor_create(MEM_COMMUNICATION, dtype, name, shape(layout.units[u].count));
    return units;
}

/* ZeRO-3: starts to all-gather a unit's parameters into its slot, unless they are still there. */
static void start_gather(int u)
{
    if (zero < 3 || slot_unit[slot_of(u)] == u)
        return;
    slot_unit[slot_of(u)] = u;
    gather_request[slot_of(u)] = comm_start_all_gather(dp, params.units[u], optimizer.parts[u].params);
}

/* Before unit u computes; the next one is in flight meanwhile. */
static void gather_and_prefetch(int u, int next)
{
    start_gather(u);
    comm_wait(&gather_request[slot_of(u)]);
    start_gather(next);
}

/* After each rank has changed its parts: full units are out of date. */
static void refresh_params(void)
{
    for (int i = 0; i < 4; i++)
        slot_unit[i] = -1;
    for (int u = 0; u < L + 2 && zero < 3; u++)
        comm_all_gather(dp, params.units[u], optimizer.parts[u].params);
}

/* Before backward adds to a unit's gradients. */
static void gradients_begin(int u)
{
    comm_wait(&scatter_request[slot_of(u)]);    /* of the unit that was in this slot */
    if (zero == 1)
        return;
    const Range part = comm_part(dp, layout.units[u].count);
    tensor_zero(gradients.units[u]);
    /* our part's sum so far, zeros in the others' parts: what the ranks' buffers add up to is then the new sum */
    tensor_copy(tensor_range(gradients.units[u], part.first, part.count), optimizer.parts[u].gradients);
}

/* After it: each rank gets its part of the sum over the ranks. With ZeRO-1 only the last micro-batch completes any. */
static void gradients_end(int u, bool last)
{
    if (zero > 1 || last)
        scatter_request[slot_of(u)] = comm_start_reduce_scatter(dp, optimizer.parts[u].gradients, gradients.units[u]);
}

static void gradients_wait(void)
{
    for (int i = 0; i < 4; i++)
        comm_wait(&scatter_request[i]);
}

/* One transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    attention_forward(a->heads, a->probs, a->qkv);
    linear_forward(a->branch, a->heads, w->proj_weight, NONE);
    residual_forward(a->mid, x, a->branch, w->proj_bias);

    layernorm_forward(a->ln2, a->ln2_stats, a->mid, w->ln2_weight, w->ln2_bias);
    linear_forward(a->up, a->ln2, w->up_weight, w->up_bias);
    gelu_forward(a->gelu, a->up);
    linear_forward(a->branch, a->gelu, w->down_weight, NONE);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* The same list in reverse. d_x comes in as the gradient of the block's output and leaves as that of
 * its input x: each half adds its share to the residual's. w parameters, g their gradients, a the
 * activations, d their gradients. */
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
    linear_backward_input(d->heads, d_x, w->proj_weight);
    linear_backward_weight(g->proj_weight, NONE, d_x, a->heads);
    attention_backward(d->qkv, d->probs, d->heads, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    linear_backward_input(d->ln1, d->qkv, w->qkv_weight);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, a->ln1);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Tokens in, their share of the step's loss out. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    gather_and_prefetch(0, 1);
    embedding_forward(a->x[0], batch.inputs, w->embedding);
    for (int l = 0; l < L; l++) {
        gather_and_prefetch(l + 1, l + 2);
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    }
    gather_and_prefetch(L + 1, 0);              /* 0, the embedding, is still there */
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    linear_forward(a->logits, a->final, w->embedding, NONE);           /* tied with the embedding */
    cross_entropy_forward(loss, a->lse, a->logits, batch.targets, scale);
}

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale, bool last)
{
    const Params *w = &params, *g = &gradients;

    gather_and_prefetch(L + 1, L);
    gradients_begin(0);                         /* the embedding's: a share now, one at the end from the lookup */
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
            attention_forward(a->blocks[l].heads, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
        gradients_end(l + 1, last);
    }
    embedding_backward(g->embedding, d_x, batch.inputs);
    gradients_end(0, last);
}

/* One optimizer step over the global batch: micro_batch * accumulate sequences on each rank. */
static StepResult train_step(int64_t step, Batch batch)
{
    /* The loss is the mean over the global batch's tokens, so every micro-batch, whatever its size
     * and wherever it is computed, is divided by the same count. */
    const double scale = 1.0 / (B * T * options.accumulate * comm_size(dp));

    tensor_zero(loss);
    for (int u = 0; u < L + 2; u++)
        tensor_zero(zero == 1 ? gradients.units[u] : optimizer.parts[u].gradients);
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
    double mean = comm_sum(dp, tensor_item(loss));  /* here, so that the host need not wait for the update */
    adamw_step(&optimizer, lr, clip_scale(norm));
    refresh_params();
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

static void loss_of(Batch batch)        /* no backward follows */
{
    forward(&acts, batch, 1.0 / (B * T));
    for (int i = 0; i < 4; i++)             /* forgotten, so that every step gathers what predict() says */
        slot_unit[i] = -1;
}

int main(int argc, char **argv)
{
    run_begin("04_zero", "Trains a transformer with the batch, and what is kept, divided over the ranks.", argc, argv,
              (StageOption[]){
        {"zero", OPTION_INT, &zero, "keep in parts: 1 optimizer states, 2 gradients too, 3 parameters too", "N", 1, 3},
        {0}});
    dp = comm_split(world, 0, "dp");
    sizes();
    run_global_batch(B * options.accumulate * comm_size(dp));
    predict();

    layout = layout_create(options.config, WHOLE);
    params = zero < 3 ? params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)))
                      : params_view_units(&layout, slots_create("params"));
    gradients = zero < 2 ? params_view(&layout, tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(layout.count)))
                         : params_view_units(&layout, slots_create("gradients"));
    Part parts[L + 2];
    for (int u = 0; u < L + 2; u++) {           /* of full units, or alone */
        const Range part = comm_part(dp, layout.units[u].count);
        parts[u] = (Part){
            .first = layout.units[u].first + part.first,
            .params = zero < 3 ? tensor_range(params.units[u], part.first, part.count)
                               : tensor_create(MEM_PARAMETERS, dtype, "params", shape(part.count)),
            .gradients = zero < 2 ? tensor_range(gradients.units[u], part.first, part.count)
                                  : tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(part.count)),
            .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(part.count)),
            .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(part.count))};
    }
    optimizer = (AdamW){.layout = &layout, .parts = parts, .count = L + 2, .gathered = params.buffer};
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, NULL);
    d_x = tensor_create(MEM_WORKSPACE, dtype, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    Batch batch = batch_create();

    int step = run_load(&optimizer);            /* initial weights, or those of --load */
    refresh_params();
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    run_end();
}
