/* 05_tensor_parallel: 01 with every matrix cut over the ranks.
 *
 * Each rank has some of the heads, of the MLP's width and of the vocabulary. Inside such a region
 * nothing is sent; f leads into it, g out of it. With --sequence-parallel each rank also keeps only
 * its share of the residual stream's rows.
 */
#include "../common/ultrascale.h"

static Layout layout;               /* which parameter lies where in a flat buffer */
static Params params, gradients;    /* views of the two buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *tp;                    /* the ranks that share every matrix */
static bool sequence_parallel;      /* R is this rank's part of B*T rows */

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
static Tensor whole, partial;       /* (B*T, H)  with --sequence-parallel: all rows, before and after a region */
static Tensor max, sums;            /* (B, T), (B, T, 2)  cross-entropy over all slices of the vocabulary */

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
    A = equal_share(A, comm_size(tp), "--heads"), F /= comm_size(tp), V = comm_part(tp, V).count;
    if (sequence_parallel)
        R = equal_share(R, comm_size(tp), "--sequence-parallel: --micro-batch x --seq =");
    if (c->vocab < comm_size(tp))
        fail("--vocab %d cannot be divided over %d ranks: each needs a token or more", c->vocab, comm_size(tp));
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
    const double real = dtype_size(REAL), t = comm_size(tp), all = real * model_parameters(options.config);
    const double N = H * V + L * ((12 * H * H + 7 * H) / t + 6 * H) + 2 * H;    /* LayerNorms, biases after g: whole */
    const double block = R * (3 * H + 4) + B * T * (4 * A * D + 2 * F);     /* linear in T */
    const double scores = B * A * T * T;                                    /* quadratic */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;

    memory_predict(MEM_PARAMETERS, real * N);
    memory_predict(MEM_GRADIENTS, real * N);
    memory_predict(MEM_OPTIMIZER, real * 2 * N);
    memory_predict(MEM_ACTIVATIONS, real * ((L + 1) * R * H + blocks * block + quadratic * scores
                                            + R * (H + 2) + B * T * (V + 1)));
    /* d_block; branch twice, d_x, d_final; rope; the loss; a batch's two ids a token */
    memory_predict(MEM_WORKSPACE, real * (block + scores + 4 * R * H + T * D) + 8 + 2 * 4 * B * T);
    memory_predict(MEM_WORKSPACE, real * 3 * B * T);                        /* max, sums */
    memory_predict(MEM_COMMUNICATION, sequence_parallel ? real * 2 * B * T * H : 0);

    memory_playbook(MEM_PARAMETERS, all / t, "4 N / t");
    memory_playbook(MEM_GRADIENTS, all / t, "4 N / t");
    memory_playbook(MEM_OPTIMIZER, 2 * all / t, "8 N / t");
    const bool none = options.recompute == RECOMPUTE_NONE;
    if (sequence_parallel || options.recompute == RECOMPUTE_FULL)
        playbook_activations(options.recompute, L * R, sequence_parallel ? " / t" : "");
    else
        memory_playbook(MEM_ACTIVATIONS, L * (B * T * H * (10 + 24 / t)) + (none ? L * 5 * scores : 0),
                        none ? "L s b h (10 + 24 / t + 5 a s / (h t))" : "L s b h (10 + 24 / t)");

    /* What is sent in a step: f and g are crossed twice a block each way, and at the model's ends. */
    const int64_t m = options.accumulate, rows = B * T * H, crossings = 2 * L + 1;
    const int64_t again = options.recompute == RECOMPUTE_FULL ? 2 * L : 0;
    if (sequence_parallel) {
        comm_predict(tp, ALL_GATHER, m * (crossings + again + 2 * crossings), rows);  /* f; backward: f's input, g */
        comm_predict(tp, REDUCE_SCATTER, m * (crossings + again + crossings), rows);   /* g; f's backward */
        comm_predict(tp, ALL_REDUCE, L, 6 * H);                                     /* uncut parameters' gradients */
        comm_predict(tp, ALL_REDUCE, 1, 2 * H);
    } else {
        comm_predict(tp, ALL_REDUCE, m * (crossings + again + crossings), rows);
    }
    comm_predict(tp, ALL_REDUCE, m, B * T);                                         /* cross-entropy: max, sums */
    comm_predict(tp, ALL_REDUCE, m, 2 * B * T);
    memory_plan();
}

/* f, into a region: every rank reads all rows. Backward, the ranks' shares of the gradient add up. */
static Tensor f_forward(Tensor x)
{
    if (sequence_parallel)
        comm_all_gather(tp, whole, x);
    return sequence_parallel ? whole : x;
}

static Request *f_backward(Tensor d_x)          /* only starts: there is something to compute meanwhile */
{
    return sequence_parallel ? comm_start_reduce_scatter(tp, d_x, partial) : comm_start_all_reduce(tp, d_x, SUM);
}

/* g, out of a region: the ranks' shares of the output add up. Each of f and g is the other, backward. */
static void g_forward(Tensor out)
{
    Request *sum = f_backward(out);
    comm_wait(&sum);
}

static Tensor g_backward(Tensor d_out)
{
    return f_forward(d_out);
}

/* Where a region writes its share of t: to t itself, or, if t has only our rows, beside it. */
static Tensor share(Tensor t)
{
    return sequence_parallel ? partial : t;
}

/* One transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    linear_forward(a->qkv, f_forward(a->ln1), w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    attention_forward(a->heads, a->probs, a->qkv);
    linear_forward(share(a->branch), a->heads, w->proj_weight, NONE);
    g_forward(a->branch);
    residual_forward(a->mid, x, a->branch, w->proj_bias);

    layernorm_forward(a->ln2, a->ln2_stats, a->mid, w->ln2_weight, w->ln2_bias);
    linear_forward(a->up, f_forward(a->ln2), w->up_weight, w->up_bias);
    gelu_forward(a->gelu, a->up);
    linear_forward(share(a->branch), a->gelu, w->down_weight, NONE);
    g_forward(a->branch);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* The same list in reverse. d_x comes in as the gradient of the block's output and leaves as that of
 * its input x: each half adds its share to the residual's. w parameters, g their gradients, a the
 * activations, d their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    residual_backward(g->down_bias, d_x);
    Tensor d_out = g_backward(d_x);
    linear_backward_input(d->gelu, d_out, w->down_weight);
    linear_backward_weight(g->down_weight, NONE, d_out, a->gelu);
    gelu_backward(d->up, d->gelu, a->up);
    linear_backward_input(share(d->ln2), d->up, w->up_weight);
    Tensor in = f_forward(a->ln2);              /* before the sum starts: a gather would wait behind it */
    Request *sum = f_backward(d->ln2);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, in);
    comm_wait(&sum);
    layernorm_backward(d_x, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats, w->ln2_weight);

    residual_backward(g->proj_bias, d_x);
    d_out = g_backward(d_x);
    linear_backward_input(d->heads, d_out, w->proj_weight);
    linear_backward_weight(g->proj_weight, NONE, d_out, a->heads);
    attention_backward(d->qkv, d->probs, d->heads, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    linear_backward_input(share(d->ln1), d->qkv, w->qkv_weight);
    in = f_forward(a->ln1);
    sum = f_backward(d->ln1);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, in);
    comm_wait(&sum);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Tokens in, their share of the step's loss out. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    ids_in_slice(batch.inputs, batch.inputs, layout.first_id, V);       /* -1: another rank's */
    ids_in_slice(batch.targets, batch.targets, layout.first_id, V);
    embedding_forward(share(a->x[0]), batch.inputs, w->embedding);
    g_forward(a->x[0]);
    for (int l = 0; l < L; l++)
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    linear_forward(a->logits, f_forward(a->final), w->embedding, NONE);        /* tied with the embedding */
    cross_entropy_max(max, a->logits);
    comm_all_reduce(tp, max, MAX);
    cross_entropy_sums(sums, a->logits, max, batch.targets);           /* of the exponentials; the target's logit */
    comm_all_reduce(tp, sums, SUM);
    cross_entropy_loss(loss, a->lse, sums, max, scale);
}

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params, *g = &gradients;

    cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
    linear_backward_input(share(d_final), a->logits, w->embedding);
    Tensor in = f_forward(a->final);
    Request *sum = f_backward(d_final);
    linear_backward_weight(g->embedding, NONE, a->logits, in);
    comm_wait(&sum);
    tensor_zero(d_x);
    layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    for (int64_t l = L - 1; l >= 0; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE)
            attention_forward(a->blocks[l].heads, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
    }
    embedding_backward(g->embedding, g_backward(d_x), batch.inputs);
}

/* One optimizer step over the global batch: micro_batch * accumulate sequences. */
static StepResult train_step(int64_t step, Batch batch)
{
    /* The loss is the mean over the global batch's tokens, so every micro-batch, whatever its size
     * and wherever it is computed, is divided by the same count. */
    const double scale = 1.0 / (B * T * options.accumulate);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    for (int m = 0; m < options.accumulate; m++) {
        batch_load(batch, step, m * B, 0);      /* B of the step's sequences, from this one on; all their tokens */
        trace_begin("forward");
        forward(&acts, batch, scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale);
        trace_end();
    }
    for (int l = 0; l < L && sequence_parallel; l++)                    /* from our rows only, so far */
        comm_all_reduce(tp, gradients.blocks[l].uncut, SUM);
    if (sequence_parallel)
        comm_all_reduce(tp, gradients.final, SUM);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(tp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = tensor_item(loss);            /* here, so that the host need not wait for the update */
    adamw_step(&optimizer, lr, clip_scale(norm));
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

static void loss_of(Batch batch)        /* no backward follows */
{
    forward(&acts, batch, 1.0 / (B * T));
}

int main(int argc, char **argv)
{
    run_begin("05_tensor_parallel", "Trains a transformer with every matrix cut over the ranks.", argc, argv,
              (StageOption[]){
        {"sequence-parallel", OPTION_FLAG, &sequence_parallel, "cut the residual stream's rows too"}, {0}});
    tp = comm_split(world, 0, "tp");
    sizes();
    predict();

    layout = layout_create(options.config, (Shard){comm_rank(tp), comm_size(tp), .embedding = true, .head = true});
    Part all = {
        .params = tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)),
        .gradients = tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(layout.count)),
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    params = params_view(&layout, all.params);
    gradients = params_view(&layout, all.gradients);
    optimizer = (AdamW){.layout = &layout, .parts = &all, .count = 1};
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, NULL);
    d_x = tensor_create(MEM_WORKSPACE, dtype, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    if (sequence_parallel) {
        whole = tensor_create(MEM_COMMUNICATION, dtype, "whole", shape(B * T, H));
        partial = tensor_create(MEM_COMMUNICATION, dtype, "partial", shape(B * T, H));
    }
    max = tensor_create(MEM_WORKSPACE, REAL, "max", shape(B, T));
    sums = tensor_create(MEM_WORKSPACE, REAL, "sums", shape(B, T, 2));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    Batch batch = batch_create();

    int step = run_load(&optimizer);            /* initial weights, or those of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    run_end();
}
