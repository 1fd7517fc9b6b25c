/* 05_tensor_parallel: 01 with every matrix sharded over the ranks (Megatron-LM, Shoeybi et al. 2019).
 *
 * Each rank computes some heads, a slice of the MLP's width and a slice of the vocabulary: regions with no transfers. f
 * enters a region, g leaves it. --sequence-parallel (Korthikanti et al. 2022) shards rows between regions.
 */
#include "../common/ultrascale.h"
#include "vocabulary.h"

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *tp;                    /* all ranks: every matrix is sharded over them */
static bool sequence_parallel;      /* shards the rows of the residual stream: R = B*T / ranks */
static bool overlap;                /* multiplies the rows that are here while others are in flight */
static int pieces;                  /* of a product behind f or before g: with overlap one per rank, else 1 */

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
static Tensor full_rows, partial_sums;      /* (B*T, H)  sequence parallel: a region's full input, partial output */
static Tensor max, sums;            /* (B, T), (B, T, 2)  of cross-entropy, over the full vocabulary */

/* f enters a region: every rank reads all rows of x. f_start only starts to gather them: the caller computes meanwhile,
 * and waits before it reads all_rows(x). */
static Request *f_start(Tensor x)
{
    return sequence_parallel ? comm_start_all_gather(tp, full_rows, x) : NULL;
}

static Tensor all_rows(Tensor x)
{
    return sequence_parallel ? full_rows : x;
}

static Tensor f_forward(Tensor x)
{
    comm_complete(f_start(x));
    return all_rows(x);
}

static Request *f_backward(Tensor d_x)          /* starts to add up the ranks' partial gradients */
{
    return sequence_parallel ? comm_start_reduce_scatter(tp, d_x, partial_sums) : comm_start_all_reduce(tp, d_x, SUM);
}

/* g leaves a region: adds up the ranks' partial outputs. f and g are conjugate: each is the backward of the other. */
static void g_forward(Tensor out)
{
    comm_complete(f_backward(out));
}

static Tensor g_backward(Tensor d_out)
{
    return f_forward(d_out);
}

/* Where a region writes its partial sum of out: out itself, or `partial_sums` if out holds only the local rows. */
static Tensor partial_out(Tensor out)
{
    return sequence_parallel ? partial_sums : out;
}

/* Products with f before them, with g behind them, and with g's backward before them: defined after backward. */
static void f_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
static void linear_g_forward(Tensor out, Tensor in, Tensor weight);
static Tensor g_linear_backward(Tensor d_in, Tensor d_out, Tensor weight);

/* Computes one transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    f_linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    attention_forward(a->attn_out, a->probs, a->qkv);
    linear_g_forward(a->branch, a->attn_out, w->proj_weight);
    residual_forward(a->mid, x, a->branch, w->proj_bias);

    layernorm_forward(a->ln2, a->ln2_stats, a->mid, w->ln2_weight, w->ln2_bias);
    f_linear_forward(a->up, a->ln2, w->up_weight, w->up_bias);
    gelu_forward(a->gelu, a->up);
    linear_g_forward(a->branch, a->gelu, w->down_weight);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* Backpropagates through one block: forward's calls in reverse. On entry d_x is the gradient of the block's output, on
 * return that of its input x; attention and MLP each add their gradients to it. w: parameters, g: their gradients,
 * a: activations, d: their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    residual_backward(g->down_bias, d_x);
    Tensor d_out = g_linear_backward(d->gelu, d_x, w->down_weight);
    linear_backward_weight(g->down_weight, NONE, d_out, a->gelu);
    gelu_backward(d->up, d->gelu, a->up);
    Request *rows = f_start(a->ln2);            /* the weights' gradients read all of them */
    linear_backward_input(partial_out(d->ln2), d->up, w->up_weight);
    comm_wait(&rows);
    Request *sum = f_backward(d->ln2);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, all_rows(a->ln2));
    comm_wait(&sum);
    layernorm_backward(d_x, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats, w->ln2_weight);

    residual_backward(g->proj_bias, d_x);
    d_out = g_linear_backward(d->attn_out, d_x, w->proj_weight);
    linear_backward_weight(g->proj_weight, NONE, d_out, a->attn_out);
    attention_backward(d->qkv, d->probs, d->attn_out, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    rows = f_start(a->ln1);
    linear_backward_input(partial_out(d->ln1), d->qkv, w->qkv_weight);
    comm_wait(&rows);
    sum = f_backward(d->ln1);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, all_rows(a->ln1));
    comm_wait(&sum);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Computes the model on one micro-batch. Adds the losses of its tokens, times scale, to the step's loss. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    ids_in_slice(batch.inputs, batch.inputs, layout.first_id, V);       /* -1: in another slice */
    ids_in_slice(batch.targets, batch.targets, layout.first_id, V);
    embedding_forward(partial_out(a->x[0]), batch.inputs, w->embedding);
    g_forward(a->x[0]);
    for (int l = 0; l < L; l++)
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    f_linear_forward(a->logits, a->final, w->embedding, NONE);    /* tied with the embedding */
    cross_entropy_max(max, a->logits);
    comm_all_reduce(tp, max, MAX);
    cross_entropy_sums(sums, a->logits, max, batch.targets);           /* of exponentials; logit of the target */
    comm_all_reduce(tp, sums, SUM);
    cross_entropy_loss(loss, a->lse, sums, max, scale);
}

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params, *g = &gradients;

    cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
    Request *rows = f_start(a->final);
    linear_backward_input(partial_out(d_final), a->logits, w->embedding);
    comm_wait(&rows);
    Request *sum = f_backward(d_final);
    linear_backward_weight(g->embedding, NONE, a->logits, all_rows(a->final));
    comm_wait(&sum);
    tensor_zero(d_x);
    layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    for (int64_t l = L - 1; l >= 0; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE)
            attention_forward(a->blocks[l].attn_out, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
    }
    embedding_backward(g->embedding, g_backward(d_x), batch.inputs);
}

/* Piece k of t, which has all rows. With --overlap: the rows of the rank k places before in a ring. */
static Tensor piece(Tensor t, int k)
{
    const int n = comm_size(tp), rank = (comm_rank(tp) + n - k) % n;

    return overlap ? tensor_range(tensor_view(t, shape(B * T, tensor_width(t))), R * rank, R) : t;
}

/* Starts to send `leaving` to the next rank in the ring, and to receive `arriving` from the one before. */
static Request *pass_on(Tensor leaving, Tensor arriving)
{
    const int n = comm_size(tp), r = comm_rank(tp);

    return comm_start_exchange(tp, arriving, (r + n - 1) % n, leaving, (r + 1) % n);
}

/* Brings piece k of all rows of x. With --overlap it is here already, and this starts to bring the next one. */
static Request *f_piece(Tensor x, int k)
{
    if (!overlap)
        f_forward(x);
    else if (k == 0)
        tensor_copy(piece(full_rows, 0), x);
    return k + 1 < pieces ? pass_on(piece(full_rows, k), piece(full_rows, k + 1)) : NULL;
}

/* f, then out = x weight^T + bias. */
static void f_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    for (int k = 0; k < pieces; k++) {
        Request *next = f_piece(x, k);
        linear_forward(piece(out, k), piece(all_rows(x), k), weight, bias);
        comm_wait(&next);
    }
}

/* g's backward, then d_in = d_out weight. Returns all rows of d_out. */
static Tensor g_linear_backward(Tensor d_in, Tensor d_out, Tensor weight)
{
    for (int k = 0; k < pieces; k++) {
        Request *next = f_piece(d_out, k);
        linear_backward_input(piece(d_in, k), piece(all_rows(d_out), k), weight);
        comm_wait(&next);
    }
    return all_rows(d_out);
}

/* out = in weight^T, then g. With --overlap partial sums go round the ring: while the sum of the ranks before arrives,
 * this rank multiplies the same rows; then it adds its product and passes the sum on. Its own rows come last. */
static void linear_g_forward(Tensor out, Tensor in, Tensor weight)
{
    Request *hop = NULL;

    if (!overlap) {
        linear_forward(partial_out(out), in, weight, NONE);
        g_forward(out);
        return;
    }
    for (int k = 1; k <= pieces; k++) {
        Tensor sum = k < pieces ? piece(partial_sums, k % 2) : out;
        linear_forward(sum, piece(in, k), weight, NONE);
        comm_wait(&hop);
        if (k > 1)
            tensor_add(sum, piece(full_rows, 0));
        if (k < pieces)
            hop = pass_on(sum, piece(full_rows, 0));
    }
}

/* One optimizer step: one update from the gradients of the global batch, computed micro-batch by micro-batch. */
static StepResult train_step(int64_t step, Batch batch)
{
    /* The loss is the mean over all tokens of the global batch. So every micro-batch, on any rank, is divided by
     * the same number of tokens. */
    const double scale = 1.0 / (B * T * options.accumulate);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    for (int m = 0; m < options.accumulate; m++) {
        batch_load(batch, step, m * B, 0);      /* sequences m*B to m*B + B - 1 of this step */
        trace_begin("forward");
        forward(&acts, batch, scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale);
        trace_end();
    }
    for (int l = 0; l <= L && sequence_parallel; l++)                   /* so far: from local rows only */
        comm_all_reduce(tp, l < L ? gradients.blocks[l].replicated : gradients.final, SUM);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(tp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = tensor_item(loss);            /* read here, so that the host does not wait for the update */
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
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
    A = equal_share(A, comm_size(tp), "--heads"), F /= comm_size(tp), V = comm_shard(tp, V).count;
    if (overlap && !sequence_parallel)
        fail("--overlap: expected --sequence-parallel as well, because otherwise ranks exchange no rows, only sums");
    pieces = overlap ? comm_size(tp) : 1;
    if (sequence_parallel)
        R = equal_share(R, comm_size(tp), "--sequence-parallel: --micro-batch x --seq =");
    if (c->vocab < comm_size(tp))
        fail("--vocab %d: expected at least %d, one token per rank", c->vocab, comm_size(tp));
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

/* Predicts the peak of every memory category: tracked peaks must match to the byte. Estimates follow the playbook. */
static void predict(void)
{
    const double stored = dtype_size(dtype), real_size = dtype_size(REAL);      /* bytes per element */
    const double t = comm_size(tp), full = stored * model_parameters(options.config);
    const double N = H * V + L * ((12 * H * H + 7 * H) / t + 6 * H) + 2 * H;    /* local; replicated: L*6H + 2H */
    const double block = stored * (R * 3 * H + B * T * (4 * A * D + 2 * F)) + real_size * R * 4;     /* linear in T */
    const double scores = stored * B * A * T * T;                                               /* quadratic in T */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;

    memory_predict(MEM_PARAMETERS, stored * N);
    memory_predict(MEM_GRADIENTS, stored * N);
    memory_predict(MEM_OPTIMIZER, real_size * 2 * N);
    memory_predict(MEM_ACTIVATIONS, stored * (L + 1) * R * H + blocks * block + quadratic * scores
                                        + stored * (R * H + B * T * V) + real_size * (R * 2 + B * T));
    /* d_block; branch twice, d_x, d_final; rope; loss; the batch's two ids per token */
    memory_predict(MEM_WORKSPACE, block + scores + stored * 4 * R * H + real_size * T * D + 8 + 2 * 4 * B * T);
    memory_predict(MEM_WORKSPACE, real_size * 3 * B * T);                        /* max, sums */
    memory_predict(MEM_COMMUNICATION, sequence_parallel ? real_size * 2 * B * T * H : 0);

    memory_estimate(MEM_PARAMETERS, full / t, "4 N / t");
    memory_estimate(MEM_GRADIENTS, full / t, "4 N / t");
    memory_estimate(MEM_OPTIMIZER, 2 * full / t, "8 N / t");
    const bool none = options.recompute == RECOMPUTE_NONE;
    if (sequence_parallel || options.recompute == RECOMPUTE_FULL)
        estimate_activations(options.recompute, L * R, sequence_parallel ? " / t" : "");
    else
        memory_estimate(MEM_ACTIVATIONS, L * B * T * (H * (10 + 24 / t) + (none ? 5 * A * T : 0)),
                        none ? "L s b h (10 + 24 / t + 5 a s / (h t))" : "L s b h (10 + 24 / t)");

    /* Traffic per step: a pass crosses f and g twice per block, f also before the logits, g after the embedding. */
    const int64_t m = options.accumulate, rows = B * T * H, crossings = 2 * L + 1;
    const int64_t again = options.recompute == RECOMPUTE_FULL ? 2 * L : 0;
    const int64_t f_rings = overlap ? crossings + again + 2 * L : 0, g_rings = overlap ? 2 * L + again : 0;
    comm_predict(tp, sequence_parallel ? REDUCE_SCATTER : ALL_REDUCE, m * (2 * crossings + again - g_rings), rows);
    if (sequence_parallel) {
        comm_predict(tp, ALL_GATHER, m * (3 * crossings + again - f_rings), rows);    /* f; backward: f's input, g */
        if (overlap)
            comm_predict(tp, EXCHANGE, m * (f_rings + g_rings) * (pieces - 1), R * H);
        comm_predict(tp, ALL_REDUCE, L, 6 * H);                               /* replicated parameters' gradients */
        comm_predict(tp, ALL_REDUCE, 1, 2 * H);
    }
    comm_predict(tp, ALL_REDUCE, m, B * T);                                         /* cross-entropy: max, sums */
    comm_predict(tp, ALL_REDUCE, m, 2 * B * T);
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    sizes();
    predict();
    comm_connect();
    memory_check_fits();

    layout = layout_create(options.config, (Placement){comm_rank(tp), comm_size(tp), .embedding = true, .head = true});
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
    if (sequence_parallel) {
        full_rows = tensor_create(MEM_COMMUNICATION, dtype, "full_rows", shape(B * T, H));
        partial_sums = tensor_create(MEM_COMMUNICATION, dtype, "partial_sums", shape(B * T, H));
    }
    max = tensor_create(MEM_WORKSPACE, REAL, "max", shape(B, T));
    sums = tensor_create(MEM_WORKSPACE, REAL, "sums", shape(B, T, 2));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    return batch_create();
}

int main(int argc, char **argv)
{
    run_begin("05_tensor_parallel", "Trains a transformer with every matrix sharded over the ranks.", argc, argv,
              (ProgramOption[]){
        {"sequence-parallel", OPTION_FLAG, &sequence_parallel, "also shard the rows of the residual stream"},
        {"overlap", OPTION_FLAG, &overlap, "with --sequence-parallel: multiply what is here while more arrives"},
        {0}});
    tp = comm_split(world, 0, "tp");
    Batch batch = set_up();

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    run_end();
}
