/* 01_single_gpu: trains a GPT-style transformer on one device. Every other program starts from this one.
 *
 * Read from top to bottom. block_forward is the transformer block: a list of operators (common/transformer/ops.h). Its
 * backward, the model and the training step follow; then what they need, sizes and memory; main is at the end.
 */
#include "../common/ultrascale.h"

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */

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

/* Computes the model on one micro-batch. Adds the losses of its tokens, times scale, to the step's loss. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    embedding_forward(a->x[0], batch.inputs, w->embedding);
    for (int l = 0; l < L; l++)
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
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
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(gradient_square_sum(&optimizer)), lr = learning_rate(step);
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
    const int64_t N = model_parameters(options.config);
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

    memory_estimate(MEM_PARAMETERS, stored * N, "4 N");
    memory_estimate(MEM_GRADIENTS, stored * N, "4 N");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * N, "8 N");
    estimate_activations(options.recompute, L * R, "");
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    sizes();
    predict();
    memory_check_fits();

    layout = layout_create(options.config, FULL_MODEL);
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
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    return batch_create();
}

int main(int argc, char **argv)
{
    run_begin("01_single_gpu", "Trains a transformer on one device.", argc, argv,
              (ProgramOption[]){
        TEXT_OPTIONS,
        {0}});
    run_on_one_rank();
    Batch batch = set_up();

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    text_sample(loss_of, acts.final, params.embedding, acts.logits, batch);
    run_end();
}
