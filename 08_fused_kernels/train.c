/* 08_fused_kernels: the same computation with fewer trips to memory.
 *
 * The schedule is 02's, but for chains of operators that one kernel does in one pass (fused.h): attention without the
 * matrix of probabilities, residual and LayerNorm, a linear and GELU, the loss and its gradient slice by slice, AdamW
 * and the weights' small copy. (Playbook: "Diving into the GPUs - fusing, threading, mixing".)
 */
#include "../common/ultrascale.h"
#include "fused.h"
#include "graph.h"

/* --fuse: which chains are one operator. */
static struct {
    bool attention, layernorm, gelu, cross_entropy, adamw;
} fuse = {true, true, true, true, true};

/* --dtype: in which type activations, their gradients and weights are stored; --gradients: the weights' gradients;
 * --master: whether there is a copy of the weights in REAL, which AdamW updates. */
static enum { DTYPE_BF16, DTYPE_F16, DTYPE_FP8, DTYPE_FP32 } dtype_option = DTYPE_BF16;
static enum { GRADIENTS_FP32, GRADIENTS_BF16 } gradients_option = GRADIENTS_FP32;
static enum { MASTER_FP32, MASTER_NONE } master_option = MASTER_FP32;
static DType dtype, gradients_dtype;
static bool has_master, fp8;
static enum { GRAPH_OFF, GRAPH_ON } graph_option;

static double loss_scale = 65536;   /* F16: what the loss is multiplied with, so that small gradients don't become 0 */
static double clean_steps;          /* since the scale has changed */
static int growth = 2000;           /* clean steps until the scale is doubled */

static Layout layout;               /* which parameter lies where in a flat buffer */
static Params params, gradients;    /* views of the two buffers */
static Tensor master;               /* the weights in REAL; without a copy, params' own buffer */
static AdamW optimizer;

/* Sizes of what is here; capitals in the comments are these. */
static int64_t B, T, R;             /* sequences of a micro-batch, tokens of each, rows of the residual stream: B*T */
static int64_t L, H, A, D, F, V;    /* layers, hidden, heads of size D, width of the MLP, vocabulary */
static int64_t S;                   /* rows whose logits are there at once */

/* What one block's forward leaves for its backward. Its input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   mean and 1 / deviation */
    Tensor qkv;                     /* (B, T, 3*A*D)    head by head: q, k, v; q and k rotated */
    Tensor probs;                   /* (B, A, T, T)     the term that is quadratic in T */
    Tensor lse;                     /* (B, A, T)        fused, for probs: each row's log sum exp; in d_block: dots */
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
    Tensor logits, lse;             /* (S, V), (B, T)   not fused: S is R; fused: one slice of rows, and no lse */
} Acts;

static Acts acts;
static BlockActs d_block;           /* gradients of a block's activations, each in turn; mid's and branch's is d_x */
static Tensor d_x, d_final;         /* (R, H)  of the residual stream, and of the last LayerNorm's output */
static Tensor rope;                 /* (T, D)  cos and sin of each position */
static Tensor loss;                 /* (1)     of the step, summed over its micro-batches, on the device */
static Tensor squares, clipping;    /* (1)     the sum of the gradients' squares, their scale; with --fuse adamw */
static double *arrived;             /* [2]     squares and loss, on the host, where the device can write by itself */
static Tensor left8, right8;        /* fp8 copies of a matmul's two operands, one byte an element */
static Tensor scales;               /* (2) F32 theirs */

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
    /* Each slice reads and writes the embedding's gradient, 8*V*H bytes for 2*S*V*H FLOPs: S/4 must be several times the
     * device's FLOPs a byte. */
    const int64_t rows = device_is_host() ? 256 : 8192;
    S = fuse.cross_entropy && R > rows ? rows : R;
}

/* What the options come to: which type is stored where, and whether this device can. */
static void dtypes(void)
{
    dtype = dtype_option == DTYPE_F16 ? F16 : dtype_option == DTYPE_FP32 ? REAL : BF16;
    gradients_dtype = gradients_option == GRADIENTS_BF16 ? BF16 : REAL;
    has_master = dtype != REAL && master_option == MASTER_FP32;
    if (dtype != F16)
        loss_scale = 1;
    if (gradients_dtype == BF16 && dtype != BF16)
        fail_usage("--gradients bf16 with --dtype %s, but it goes with bf16 or fp8", dtype == F16 ? "fp16" : "fp32");
    if (device_supports(dtype) == SUPPORT_NONE)
        fail("%s computes no bf16, which needs compute capability 8.0: take --dtype fp16", device_name());
    if (dtype_option == DTYPE_FP8 && device_supports(E4M3) == SUPPORT_NONE)
        fail("%s computes no fp8, which needs compute capability 8.9: take --dtype bf16 or fp16", device_name());
    fp8 = dtype_option == DTYPE_FP8 && R % 16 == 0 && H % 16 == 0;
    const char *unfused = fp8 ? "its linears' products are in fp8" : linear_gelu_unfused(dtype);
    if (fuse.gelu && unfused) {
        fuse.gelu = false;
        print_rank_0("GELU is not fused: %s\n", unfused);
    }
    run_matmuls_in(fp8 ? E4M3 : dtype);
    if (dtype_option == DTYPE_FP8 && !fp8)
        print_rank_0("fp8 matmuls take dimensions in 16s: %lld rows and --hidden %lld stay in bf16\n", (long long)R,
                     (long long)H);
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
    if (fuse.attention && (!first || options.recompute != RECOMPUTE_FULL))
        a.lse = tensor_create(category, REAL, "attention_lse", shape(B, A, T));
    if (!fuse.attention && (!first || options.recompute == RECOMPUTE_NONE))
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
    a.logits = tensor_create(MEM_ACTIVATIONS, dtype, "logits", shape(S, V));
    if (!fuse.cross_entropy)
        a.lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(B, T));
    return a;
}

/* What the memory account must find, to the byte. The playbook's formula is printed beside it. */
static void predict(void)
{
    const double real = dtype_size(REAL), small = dtype_size(dtype), N = model_parameters(options.config);
    const double gradient = dtype_size(gradients_dtype);
    const double lse = fuse.attention ? B * A * T : 0;
    const double block = small * (R * 3 * H + B * T * (4 * A * D + 2 * F)) + real * (R * 4 + lse);   /* linear */
    const double scores = fuse.attention ? 0 : small * B * A * T * T;                           /* quadratic in T */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;

    memory_predict(MEM_PARAMETERS, small * N);
    memory_predict(MEM_MASTER, has_master ? real * N : 0);
    memory_predict(MEM_GRADIENTS, gradient * N);
    memory_predict(MEM_OPTIMIZER, real * 2 * N);
    memory_predict(MEM_ACTIVATIONS, small * (L + 1) * R * H + blocks * block + quadratic * scores
                                        + small * (R * H + S * V) + real * (R * 2 + (fuse.cross_entropy ? 0 : B * T)));
    /* d_block; branch twice, d_x, d_final; rope; the loss; a batch's two ids a token */
    memory_predict(MEM_WORKSPACE, block + scores + small * 4 * R * H + real * T * D + 8 + 2 * 4 * B * T);
    memory_predict(MEM_WORKSPACE, fuse.adamw ? 2 * 8 : 0);                                      /* squares, clipping */
    memory_predict(MEM_WORKSPACE, fp8 ? R * F + F * (R > H ? R : H) + 2 * 4 : 0);               /* the fp8 copies */

    memory_playbook(MEM_PARAMETERS, small * N, dtype == REAL ? "4 N" : "2 N");
    if (has_master)
        memory_playbook(MEM_MASTER, real * N, "4 N");
    memory_playbook(MEM_GRADIENTS, gradient * N, gradients_dtype == BF16 ? "2 N" : "4 N");
    memory_playbook(MEM_OPTIMIZER, real * 2 * N, "8 N");
    const bool again = fuse.attention && options.recompute == RECOMPUTE_NONE;   /* scores: FlashAttention does */
    playbook_activations(again ? RECOMPUTE_SELECTIVE : options.recompute, L * R, "");
    memory_plan();
}

/* The fp8 copy of a matrix in a buffer, beside its scale; or of the matrix transposed. */
static Tensor fp8_copy(Tensor buffer, int scale, DType fp8_dtype, Tensor t, bool transposed)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t);
    const Shape shape = transposed ? shape(width, rows) : shape(rows, width);
    Tensor copy = tensor_view(tensor_range(buffer, 0, rows * width), shape);

    copy.dtype = fp8_dtype, copy.name = t.name, copy.scale = (float *)scales.data + scale;
    quantize(transposed ? NONE : copy, transposed ? copy : NONE, t);
    return copy;
}

/* The blocks' linears, as in ops.h, and with fp8 by copies of both operands: E4M3, which has more precision, for
 * activations and weights, E5M2, which has more range, for gradients. Where backward sums over a matrix's rows, it is
 * transposed on the way. What comes out is BF16, or as gradients are stored; the output projection stays in BF16. */
static void mixed_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    if (!fp8) {
        linear_forward(out, x, weight, bias);
        return;
    }
    Tensor x8 = fp8_copy(left8, 0, E4M3, x, false), weight8 = fp8_copy(right8, 1, E4M3, weight, false);
    linear_fp8(out, x8, weight8, bias);
}

static void mixed_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    if (!fp8) {
        linear_backward_input(d_x, d_out, weight);
        return;
    }
    Tensor d8 = fp8_copy(left8, 0, E5M2, d_out, false), weight8 = fp8_copy(right8, 1, E4M3, weight, true);
    linear_fp8(d_x, d8, weight8, NONE);
}

static void mixed_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    if (!fp8) {
        linear_backward_weight(d_weight, d_bias, d_out, x);
        return;
    }
    Tensor d8 = fp8_copy(left8, 0, E5M2, d_out, true), x8 = fp8_copy(right8, 1, E4M3, x, true);
    linear_fp8_add(d_weight, d8, x8);
    if (d_bias.data)
        residual_backward(d_bias, d_out);
}

/* One transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    mixed_linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    if (fuse.attention)
        flash_attention_forward(a->heads, a->lse, a->qkv);
    else
        attention_forward(a->heads, a->probs, a->qkv);
    mixed_linear_forward(a->branch, a->heads, w->proj_weight, NONE);

    if (fuse.layernorm) {
        residual_layernorm_forward(a->mid, a->ln2, a->ln2_stats, x, a->branch, w->proj_bias, w->ln2_weight,
                                   w->ln2_bias);
    } else {
        residual_forward(a->mid, x, a->branch, w->proj_bias);
        layernorm_forward(a->ln2, a->ln2_stats, a->mid, w->ln2_weight, w->ln2_bias);
    }
    if (fuse.gelu) {
        linear_gelu_forward(a->gelu, a->up, a->ln2, w->up_weight, w->up_bias);
    } else {
        mixed_linear_forward(a->up, a->ln2, w->up_weight, w->up_bias);
        gelu_forward(a->gelu, a->up);
    }
    mixed_linear_forward(a->branch, a->gelu, w->down_weight, NONE);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* The same list in reverse. d_x comes in as the gradient of the block's output and leaves as that of
 * its input x: each half adds its share to the residual's. w parameters, g their gradients, a the
 * activations, d their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    residual_backward(g->down_bias, d_x);
    if (fuse.gelu)
        linear_gelu_backward(d->up, d_x, w->down_weight, a->up);
    else
        mixed_linear_backward_input(d->gelu, d_x, w->down_weight);
    mixed_linear_backward_weight(g->down_weight, NONE, d_x, a->gelu);
    if (!fuse.gelu)
        gelu_backward(d->up, d->gelu, a->up);
    mixed_linear_backward_input(d->ln2, d->up, w->up_weight);
    mixed_linear_backward_weight(g->up_weight, g->up_bias, d->up, a->ln2);
    if (fuse.layernorm) {
        residual_layernorm_backward(d_x, g->proj_bias, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats,
                                    w->ln2_weight);
    } else {
        layernorm_backward(d_x, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats, w->ln2_weight);
        residual_backward(g->proj_bias, d_x);
    }

    mixed_linear_backward_input(d->heads, d_x, w->proj_weight);
    mixed_linear_backward_weight(g->proj_weight, NONE, d_x, a->heads);
    if (fuse.attention)
        flash_attention_backward(d->qkv, d->lse, d->heads, a->qkv, a->heads, a->lse);
    else
        attention_backward(d->qkv, d->probs, d->heads, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    mixed_linear_backward_input(d->ln1, d->qkv, w->qkv_weight);
    mixed_linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, a->ln1);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* The output projection and the loss of S rows at a time, and at once their gradients, as long as their logits are
 * there: of all rows together they never are. gradient_scale 0: no gradients. */
static void loss_by_slices(Acts *a, Batch batch, double scale, double gradient_scale)
{
    for (int64_t first = 0; first < R; first += S) {
        const int64_t rows = R - first < S ? R - first : S;
        Tensor logits = tensor_range(a->logits, 0, rows), final = tensor_range(a->final, first, rows);
        linear_forward(logits, final, params.embedding, NONE);
        cross_entropy_both(loss, logits, tensor_range(tensor_view(batch.targets, shape(R)), first, rows), scale,
                           gradient_scale);
        if (gradient_scale == 0)
            continue;
        linear_backward_input(tensor_range(d_final, first, rows), logits, params.embedding);
        linear_backward_weight(gradients.embedding, NONE, logits, final);
    }
}

/* Tokens in, their share of the step's loss out. gradient_scale: of the backward that follows; 0: none does. */
static void forward(Acts *a, Batch batch, double scale, double gradient_scale)
{
    const Params *w = &params;

    embedding_forward(a->x[0], batch.inputs, w->embedding);
    for (int l = 0; l < L; l++)
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    if (fuse.cross_entropy) {
        loss_by_slices(a, batch, scale, gradient_scale);
        return;
    }
    linear_forward(a->logits, a->final, w->embedding, NONE);           /* tied with the embedding */
    cross_entropy_forward(loss, a->lse, a->logits, batch.targets, scale);
}

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params, *g = &gradients;

    if (!fuse.cross_entropy) {                  /* else forward has done it */
        cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
        linear_backward_input(d_final, a->logits, w->embedding);
        linear_backward_weight(g->embedding, NONE, a->logits, a->final);
    }
    tensor_zero(d_x);
    layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    for (int64_t l = L - 1; l >= 0; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE && !fuse.attention)       /* which always computes them again */
            attention_forward(a->blocks[l].heads, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
    }
    embedding_backward(g->embedding, d_x, batch.inputs);
}

/* Too large a scale shows: some gradient is Inf, or NaN. Too small a one doesn't, so it grows until it is too large. */
static void adapt_loss_scale(int64_t step, bool overflow)
{
    clean_steps = overflow ? 0 : clean_steps + 1;
    if (overflow) {
        loss_scale /= 2;
        print_rank_0("step %lld: Inf or NaN among the gradients, so no update; the loss scale falls to %g\n",
                     (long long)step + 1, loss_scale);
        if (loss_scale < 1e-6)
            fail("gradients are Inf or NaN at step %lld with any loss scale; a smaller --lr may help",
                 (long long)step + 1);
    } else if (growth && clean_steps >= growth) {
        loss_scale *= 2;
        clean_steps = 0;
    }
}

/* AdamW, clipping and the small copy in one pass, without the host: what follows from the norm, the device finds by
 * itself. So the update is queued before the host waits for the two numbers, and the device has work meanwhile. */
static double update_fused(double lr)
{
    gradient_square_sum_into(squares, &optimizer);
    device_download_start(&arrived[0], squares.data, sizeof *arrived);
    device_download_start(&arrived[1], loss.data, sizeof *arrived);
    DeviceEvent both = device_event();
    clip_scale_into(clipping, squares, options.clip);
    adamw_step_scaled(&optimizer, lr, clipping);
    device_event_seconds(&both);                /* until the numbers are there; not until the update is */
    if (!isfinite(arrived[0]))
        optimizer.step--;                       /* nothing was updated */
    return arrived[0];                          /* the sum of the gradients' squares */
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
        if (graph_replay(loss_scale))           /* what follows, in one launch */
            continue;
        trace_begin("forward");
        forward(&acts, batch, scale, scale * loss_scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale * loss_scale);
        trace_end();
        graph_end();
    }
    if (loss_scale != 1)
        tensor_scale(gradients.buffer, 1 / loss_scale);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double lr = learning_rate(step), norm = sqrt(fuse.adamw ? update_fused(lr) : gradient_square_sum(&optimizer));
    double mean = fuse.adamw ? arrived[1] : tensor_item(loss);      /* here: the host need not wait for the update */
    const bool overflow = dtype == F16 && !isfinite(norm);
    if (!overflow && !fuse.adamw)
        adamw_step(&optimizer, lr, clip_scale(norm));
    if (!overflow && has_master && !fuse.adamw)
        tensor_convert(params.buffer, master);
    trace_end();
    if (dtype == F16)
        adapt_loss_scale(step, overflow);
    return (StepResult){.loss = mean, .norm = norm, .lr = lr, .skipped = overflow};
}

static void loss_of(Batch batch)        /* no backward follows */
{
    forward(&acts, batch, 1.0 / (B * T), 0);
}

static Tensor logits_of(Batch batch, int64_t row)   /* for sampling: one token's */
{
    loss_of(batch);
    linear_forward(tensor_range(acts.logits, 0, 1), tensor_range(acts.final, row, 1), params.embedding, NONE);
    return tensor_range(acts.logits, 0, 1);
}

int main(int argc, char **argv)
{
    run_begin("08_fused_kernels", "Trains a transformer with kernels that do several operators' work.", argc, argv,
              (StageOption[]){
            {"fuse", OPTION_SET, &fuse, "chains that are one operator: all, none, or some with commas between them",
             "attention|layernorm|gelu|cross-entropy|adamw"},
            {"dtype", OPTION_CHOICE, &dtype_option,
             "of activations and weights; fp8: of the blocks' matmuls, the rest in bf16", "bf16|fp16|fp8|fp32"},
            {"gradients", OPTION_CHOICE, &gradients_option, "in which weights' gradients are summed", "fp32|bf16"},
            {"master", OPTION_CHOICE, &master_option, "what AdamW updates: an fp32 copy, or the weights themselves",
             "fp32|none"},
            {"loss-scale", OPTION_DOUBLE, &loss_scale,
             "with fp16: the first one; with --load the checkpoint's, if it has one", "X", 1e-6, 1e30},
            {"loss-scale-growth", OPTION_INT, &growth,
             "with fp16: it is doubled after N steps without Inf; 0: it never is", "N", 0, 1e9},
            {"graph", OPTION_CHOICE, &graph_option,
             "on a GPU, forward and backward as a CUDA graph, one launch a micro-batch: for small models", "off|on"},
            TEXT_OPTIONS,
            {0}});
    run_alone();
    if (graph_option)
        graph_enable();
    sizes();
    dtypes();
    predict();

    layout = layout_create(options.config, WHOLE);
    Tensor buffer = tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count));
    master = has_master ? tensor_create(MEM_MASTER, REAL, "master", shape(layout.count)) : buffer;
    Part all = {
        .params = master,
        .copy = fuse.adamw && has_master ? buffer : NONE,
        .gradients = tensor_create(MEM_GRADIENTS, gradients_dtype, "gradients", shape(layout.count)),
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    params = params_view(&layout, buffer);
    gradients = params_view(&layout, all.gradients);
    optimizer = (AdamW){.layout = &layout, .parts = &all, .count = 1};
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, NULL);
    d_x = tensor_create(MEM_WORKSPACE, dtype, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    if (fuse.adamw) {
        squares = tensor_create(MEM_WORKSPACE, F64, "squares", shape(1));
        clipping = tensor_create(MEM_WORKSPACE, F64, "clipping", shape(1));
        arrived = device_host_alloc(2 * sizeof *arrived);
        if (!arrived)
            fail("no memory of the host for copies from the device");
    }
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    if (fp8) {
        left8 = tensor_create(MEM_WORKSPACE, E4M3, "left8", shape(R * F));
        right8 = tensor_create(MEM_WORKSPACE, E4M3, "right8", shape(F * (R > H ? R : H)));
        scales = tensor_create(MEM_WORKSPACE, F32, "scales", shape(2));
    }
    Batch batch = batch_create();

    if (dtype == F16) {
        run_keep("loss_scale", &loss_scale);
        run_keep("clean_steps", &clean_steps);
    }
    int step = run_load(&optimizer);            /* initial weights, or those of --load */
    if (has_master)
        tensor_convert(params.buffer, master);
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    if (options.sample)
        text_sample_from(logits_of, batch);
    run_end();
}
