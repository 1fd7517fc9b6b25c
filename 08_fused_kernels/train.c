/* 08_fused_kernels: the computation of 02 with fewer trips to memory.
 *
 * Chains of operators become one operator (fused.h): attention; residual, LayerNorm; linear, GELU; loss; AdamW.
 */
#include "../common/ultrascale.h"
#include "../02_mixed_precision/fp8.h"
#include "fused.h"

/* --dtype sets the type of weights, activations and activation gradients, --gradients that of weight gradients, and
 * --master whether AdamW updates a master copy of the weights in REAL. */
static enum { DTYPE_BF16, DTYPE_F16, DTYPE_FP8, DTYPE_FP32 } dtype_option = DTYPE_BF16;
static enum { GRADIENTS_FP32, GRADIENTS_BF16 } gradients_option = GRADIENTS_FP32;
static enum { MASTER_FP32, MASTER_NONE } master_option = MASTER_FP32;
static DType dtype, gradients_dtype;
static bool has_master, fp8;
static const char *fuse_option = "all";
static Fusions fuse;                /* the chains that run as one operator */

/* --fp8-scaling: the format of each kind of operand, and what shares a scale. */
static enum { SCALING_TENSOR, SCALING_TILE, SCALING_MX } fp8_scaling = SCALING_TENSOR;
typedef enum { ACTIVATION, WEIGHT, GRADIENT } Operand;
static const struct { DType dtype; Scaling scaling; } fp8_formats[][3] = {
    [SCALING_TENSOR] = {{E4M3, PER_TENSOR}, {E4M3, PER_TENSOR}, {E5M2, PER_TENSOR}},
    [SCALING_TILE] = {{E4M3, PER_1X128}, {E4M3, PER_128X128}, {E4M3, PER_1X128}},       /* DeepSeek-V3 */
    [SCALING_MX] = {{E4M3, PER_1X32}, {E4M3, PER_1X32}, {E4M3, PER_1X32}}};             /* MXFP8 */

static double loss_scale = 65536;   /* F16: factor on the loss, so that small gradients do not underflow to 0 */
static double clean_steps;          /* steps without overflow since the loss scale last changed */
static int growth_interval = 2000;  /* clean steps until the loss scale doubles; 0: never */

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static Tensor master;               /* master copy of the weights, REAL; without one, the buffer of params */
static AdamW optimizer;

/* Local sizes, on this rank. Shapes in comments use these letters. */
static int64_t B, T, R;             /* sequences per micro-batch, tokens of each, rows of the residual stream: B*T */
static int64_t L, H, A, D, F, V;    /* layers, hidden size, heads, head size, MLP width, vocabulary */
static int64_t S;                   /* rows per slice of the loss: those whose logits exist at once */

/* What one block's forward saves for its backward. The block's input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   stats: mean and rstd */
    Tensor qkv;                     /* (B, T, 3*A*D)    per head: q, k, v; q and k after RoPE */
    Tensor probs;                   /* (B, A, T, T)     attention probabilities: quadratic in T */
    Tensor lse;                     /* (B, A, T)        fused: log sum exp per query; in d_block: delta */
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
    Tensor logits, lse;             /* (S, V), (B, T)   fused: one slice of rows, and no lse; otherwise S = R */
} Acts;

static Acts acts;
static BlockActs d_block;           /* gradients of the current block's activations */
static Tensor d_q_parts;            /* with --fuse attention, on a GPU: thread blocks' sums of d_q (flash_parts) */
static Tensor d_x, d_final;         /* (R, H)  gradients of the residual stream, wherever backward is, and of final */
static Tensor rope;                 /* (T, D)  cos and sin of each position */
static Tensor loss;                 /* (1)     of the step, accumulated over its micro-batches on the device */
static Tensor squares, clipping;    /* (1)     with --fuse adamw: sum of the gradients' squares, gradient scale */
static double *arrived;             /* [2]     host copies of squares and loss, in memory that the device writes to */
static Tensor left8, right8;        /* fp8 copies of a matmul's two operands, one byte per element */
static Tensor scales;               /* (2, *)  F32, a row each: its scales, or one and room up to 16 bytes (fp8.h) */

/* linear_* of ops.h, but with both operands in fp8 if that is the --dtype: defined after backward. */
static void mixed_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
static void mixed_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight);
static void mixed_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x);

/* Computes one transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    mixed_linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    if (fuse.attention)
        flash_attention_forward(a->attn_out, a->lse, a->qkv);
    else
        attention_forward(a->attn_out, a->probs, a->qkv);
    mixed_linear_forward(a->branch, a->attn_out, w->proj_weight, NONE);

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

/* Backpropagates through one block: forward's calls in reverse. On entry d_x is the gradient of the block's output, on
 * return that of its input x; attention and MLP each add their gradients to it. w: parameters, g: their gradients,
 * a: activations, d: their gradients. */
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

    mixed_linear_backward_input(d->attn_out, d_x, w->proj_weight);
    mixed_linear_backward_weight(g->proj_weight, NONE, d_x, a->attn_out);
    if (fuse.attention)
        flash_attention_backward(d->qkv, d->lse, d_q_parts, d->attn_out, a->qkv, a->attn_out, a->lse);
    else
        attention_backward(d->qkv, d->probs, d->attn_out, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    mixed_linear_backward_input(d->ln1, d->qkv, w->qkv_weight);
    mixed_linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, a->ln1);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Computes output projection, loss and gradients of S rows at a time, before the next slice overwrites their logits:
 * the logits of all rows never exist together. gradient_scale: that of the backward to follow; 0: no gradients. */
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

/* Computes the model on one micro-batch. Adds the losses of its tokens, times scale, to the step's loss. */
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

    if (!fuse.cross_entropy) {                  /* otherwise loss_by_slices has done it */
        cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
        linear_backward_input(d_final, a->logits, w->embedding);
        linear_backward_weight(g->embedding, NONE, a->logits, a->final);
    }
    tensor_zero(d_x);
    layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    for (int64_t l = L - 1; l >= 0; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE && !fuse.attention)       /* FlashAttention does so itself */
            attention_forward(a->blocks[l].attn_out, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
    }
    embedding_backward(g->embedding, d_x, batch.inputs);
}

/* Returns the matrix t, or t transposed, quantized to fp8 in `buffer`; its scales begin row `row` of scales. */
static Tensor fp8_copy(Tensor buffer, int row, Operand kind, Tensor t, bool transposed)
{
    const int64_t rows = tensor_rows(t), width = tensor_width(t);
    const Shape shape = transposed ? shape(width, rows) : shape(rows, width);
    Tensor copy = tensor_view(tensor_range(buffer, 0, rows * width), shape);

    copy.dtype = fp8_formats[fp8_scaling][kind].dtype, copy.name = t.name;
    copy.scaling = fp8_formats[fp8_scaling][kind].scaling;
    copy.scale = (float *)scales.data + row * tensor_width(scales);
    quantize(transposed ? NONE : copy, transposed ? copy : NONE, t);
    return copy;
}

/* linear_* of ops.h for the blocks. With fp8, both operands are quantized: activations and weights to E4M3 (more
 * precision), gradients to E5M2 (more range) unless they have tiles. linear_fp8 sums over the last dimension of both
 * operands, and tiles lie along it, so backward transposes what it sums over rows. Results are BF16, weight gradients
 * gradients_dtype. The logits stay in BF16. */
static void mixed_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    if (!fp8) {
        linear_forward(out, x, weight, bias);
        return;
    }
    Tensor x8 = fp8_copy(left8, 0, ACTIVATION, x, false), weight8 = fp8_copy(right8, 1, WEIGHT, weight, false);
    linear_fp8(out, x8, weight8, bias);
}

static void mixed_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    if (!fp8) {
        linear_backward_input(d_x, d_out, weight);
        return;
    }
    Tensor d8 = fp8_copy(left8, 0, GRADIENT, d_out, false), weight8 = fp8_copy(right8, 1, WEIGHT, weight, true);
    linear_fp8(d_x, d8, weight8, NONE);
}

static void mixed_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    if (!fp8) {
        linear_backward_weight(d_weight, d_bias, d_out, x);
        return;
    }
    Tensor d8 = fp8_copy(left8, 0, GRADIENT, d_out, true), x8 = fp8_copy(right8, 1, ACTIVATION, x, true);
    linear_fp8_add(d_weight, d8, x8);
    if (d_bias.data)
        residual_backward(d_bias, d_out);
}

/* Halves the loss scale if gradients overflowed. A scale that is too small does not show, so it regularly doubles. */
static void adapt_loss_scale(int64_t step, bool overflow)
{
    clean_steps = overflow ? 0 : clean_steps + 1;
    if (overflow) {
        loss_scale /= 2;
        print_rank_0("step %lld: Inf or NaN in the gradients: update skipped, loss scale halved to %g\n",
                     (long long)step + 1, loss_scale);
        if (loss_scale < 1e-6)
            fail("step %lld: gradients are Inf or NaN at any loss scale; try a smaller --lr",
                 (long long)step + 1);
    } else if (growth_interval && clean_steps >= growth_interval) {
        loss_scale *= 2;
        clean_steps = 0;
    }
}

/* Clips, updates and writes the rounded copy in one pass. The device derives the gradient scale from the norm, without
 * the host. So the update is queued before the host waits for squares and loss, and the device has work meanwhile.
 * Returns the sum of the gradients' squares. */
static double update_fused(double lr)
{
    gradient_square_sum_into(squares, &optimizer);
    download_start(&arrived[0], squares);
    download_start(&arrived[1], loss);
    DeviceEvent both = device_event();
    clip_scale_into(clipping, squares, options.clip);
    adamw_step_scaled(&optimizer, lr, clipping);
    device_event_seconds(&both);                /* waits for the two copies, not for the update */
    if (!isfinite(arrived[0]))
        optimizer.step--;                       /* the device skipped the update */
    return arrived[0];
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
        forward(&acts, batch, scale, scale * loss_scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale * loss_scale);
        trace_end();
    }
    if (loss_scale != 1)
        tensor_scale(gradients.buffer, 1 / loss_scale);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double lr = learning_rate(step), norm = sqrt(fuse.adamw ? update_fused(lr) : gradient_square_sum(&optimizer));
    double mean = fuse.adamw ? arrived[1] : tensor_item(loss);      /* before the update: no need to wait for it */
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

static void loss_of(Batch batch)        /* forward for evaluation: no backward follows */
{
    forward(&acts, batch, 1.0 / (B * T), 0);
}

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
    /* a slice reads and writes the embedding's gradient: S/4 FLOPs per byte, well above the device's ridge */
    const int64_t rows = device_is_host() ? 256 : 8192;
    S = fuse.cross_entropy && R > rows ? rows : R;
}

/* Derives the storage types from the options; fails if the device does not support them. */
static void dtypes(void)
{
    const char *const scaling = (const char *[]){"tensor", "tile", "mx"}[fp8_scaling];
    const int multiple = fp8_scaling == SCALING_TENSOR ? 16 : 128;

    dtype = dtype_option == DTYPE_F16 ? F16 : dtype_option == DTYPE_FP32 ? REAL : BF16;
    gradients_dtype = gradients_option == GRADIENTS_BF16 ? BF16 : REAL;
    has_master = dtype != REAL && master_option == MASTER_FP32;
    if (dtype != F16 && (loss_scale != 65536 || growth_interval != 2000))
        fail_usage("--loss-scale %g, --loss-scale-growth %d: expected --dtype fp16, since other types need none",
                   loss_scale, growth_interval);
    if (dtype != F16)
        loss_scale = 1;
    if (gradients_dtype == BF16 && dtype != BF16)
        fail_usage("--gradients bf16 with --dtype %s: expected bf16 or fp8", dtype == F16 ? "fp16" : "fp32");
    if (fp8_scaling != SCALING_TENSOR && dtype_option != DTYPE_FP8)
        fail_usage("--fp8-scaling %s: expected --dtype fp8, since other types need no scales", scaling);
    if (device_supports(dtype) == SUPPORT_NONE)
        fail("%s does not support bf16, which needs compute capability 8.0: use --dtype fp16", device_name());
    if (dtype_option == DTYPE_FP8 && device_supports(E4M3) == SUPPORT_NONE)
        fail("%s does not support fp8, which needs compute capability 8.9: use --dtype bf16 or fp16", device_name());
    if (dtype_option == DTYPE_FP8 && !fp8_supports(fp8_formats[fp8_scaling][WEIGHT].scaling))
        fail("%s does not support --fp8-scaling %s, which needs compute capability %s and CUDA 12.9: use tensor",
             device_name(), scaling, fp8_scaling == SCALING_TILE ? "9.0" : "10.0");
    fp8 = dtype_option == DTYPE_FP8 && R % multiple == 0 && H % multiple == 0;
    const char *unfused = fp8 ? "with --dtype fp8 the products of linears are in fp8" : linear_gelu_unfused(dtype);
    if (fuse.gelu && unfused) {
        fuse.gelu = false;
        print_rank_0("GELU is not fused: %s\n", unfused);
    }
    run_set_matmul_dtype(fp8 ? E4M3 : dtype);
    if (dtype_option == DTYPE_FP8 && !fp8)
        print_rank_0("fp8 matmuls need multiples of %d: those of %lld rows and --hidden %lld stay in bf16\n", multiple,
                     (long long)R, (long long)H);
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
    if (fuse.attention && (!shared || options.recompute != RECOMPUTE_FULL))
        a.lse = tensor_create(category, REAL, "attention_lse", shape(B, A, T));
    if (!fuse.attention && (!shared || options.recompute == RECOMPUTE_NONE))
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
    a.logits = tensor_create(MEM_ACTIVATIONS, dtype, "logits", shape(S, V));
    if (!fuse.cross_entropy)
        a.lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(B, T));
    return a;
}

/* Predicts the peak of every memory category: tracked peaks must match to the byte. Estimates follow the playbook. */
static void predict(void)
{
    const double stored = dtype_size(dtype), real_size = dtype_size(REAL);      /* bytes per element */
    const int64_t N = model_parameters(options.config);
    const double gradient = dtype_size(gradients_dtype);
    const double block = stored * R * (3 * H + 4 * A * D + 2 * F) + real_size * R * (fuse.attention ? 4 + A : 4);
    const double scores = fuse.attention ? 0 : stored * B * A * T * T;                           /* quadratic in T */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? L : 1;

    memory_predict(MEM_PARAMETERS, stored * N);
    memory_predict(MEM_MASTER, has_master ? real_size * N : 0);
    memory_predict(MEM_GRADIENTS, gradient * N);
    memory_predict(MEM_OPTIMIZER, real_size * 2 * N);
    memory_predict(MEM_ACTIVATIONS, stored * (L + 1) * R * H + blocks * block + quadratic * scores
                                        + stored * (R * H + S * V) + real_size * R * (fuse.cross_entropy ? 2 : 3));
    /* d_block; branch twice, d_x, d_final; rope; loss; the batch's two ids per token */
    memory_predict(MEM_WORKSPACE, block + scores + stored * 4 * R * H + real_size * T * D + 8 + 2 * 4 * B * T);
    memory_predict(MEM_WORKSPACE, fuse.attention ? real_size * flash_parts(dtype, B, T, T, A, D) : 0);
    memory_predict(MEM_WORKSPACE, fuse.adamw ? 2 * 8 : 0);                                      /* squares, clipping */
    const int64_t most = F * (R > H ? R : H), tiles = fp8_scaling == SCALING_TENSOR ? 4 : most / 128;
    memory_predict(MEM_WORKSPACE, fp8 ? R * F + most + 2 * 4 * tiles : 0);                      /* the fp8 copies */

    memory_estimate(MEM_PARAMETERS, stored * N, dtype == REAL ? "4 N" : "2 N");
    if (has_master)
        memory_estimate(MEM_MASTER, real_size * N, "4 N");
    memory_estimate(MEM_GRADIENTS, gradient * N, gradients_dtype == BF16 ? "2 N" : "4 N");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * N, "8 N");
    const bool again = fuse.attention && options.recompute == RECOMPUTE_NONE;   /* FlashAttention recomputes */
    estimate_activations(again ? RECOMPUTE_SELECTIVE : options.recompute, L * R, "");
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    sizes();
    dtypes();
    predict();
    memory_check_fits();

    layout = layout_create(options.config, FULL_MODEL);
    params = params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)));
    master = has_master ? tensor_create(MEM_MASTER, REAL, "master", shape(layout.count)) : params.buffer;
    gradients = params_view(&layout, tensor_create(MEM_GRADIENTS, gradients_dtype, "gradients", shape(layout.count)));
    optimizer = (AdamW){.layout = &layout, .shards = calloc(1, sizeof(ParamShard)), .count = 1};
    optimizer.shards[0] = (ParamShard){
        .params = master,
        .copy = fuse.adamw && has_master ? params.buffer : NONE,
        .gradients = gradients.buffer,
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, (BlockActs){0}, false);
    d_x = tensor_create(MEM_WORKSPACE, dtype, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    if (fuse.attention)
        d_q_parts = tensor_create(MEM_WORKSPACE, REAL, "d_q_parts", shape(flash_parts(dtype, B, T, T, A, D)));
    if (fuse.adamw) {
        squares = tensor_create(MEM_WORKSPACE, F64, "squares", shape(1));
        clipping = tensor_create(MEM_WORKSPACE, F64, "clipping", shape(1));
        arrived = device_pinned(2 * sizeof *arrived);
    }
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    if (fp8) {
        const int64_t most = F * (R > H ? R : H);
        left8 = tensor_create(MEM_WORKSPACE, E4M3, "left8", shape(R * F));
        right8 = tensor_create(MEM_WORKSPACE, E4M3, "right8", shape(most));
        scales = tensor_create(MEM_WORKSPACE, F32, "scales", shape(2, fp8_scaling == SCALING_TENSOR ? 4 : most / 128));
    }
    return batch_create();
}

int main(int argc, char **argv)
{
    run_begin("08_fused_kernels", "Trains a transformer with fused kernels: fewer trips to memory.", argc, argv,
              (ProgramOption[]){
        {"fuse", OPTION_TEXT, &fuse_option, "chains that run as one operator: all, none, or a list a,b (all)",
         "attention|layernorm|gelu|cross-entropy|adamw"},
        {"dtype", OPTION_CHOICE, &dtype_option,
         "weights and activations; fp8: only the blocks' matmuls, the rest bf16", "bf16|fp16|fp8|fp32"},
        {"gradients", OPTION_CHOICE, &gradients_option, "type in which weight gradients accumulate", "fp32|bf16"},
        {"master", OPTION_CHOICE, &master_option, "what AdamW updates: fp32 master weights, or the stored weights",
         "fp32|none"},
        {"fp8-scaling", OPTION_CHOICE, &fp8_scaling,
         "with fp8: a scale per tensor; per 1 x 128 (weights: 128 x 128); or per 1 x 32, a power of two",
         "tensor|tile|mx"},
        {"loss-scale", OPTION_DOUBLE, &loss_scale,
         "with fp16: initial loss scale, unless --load restores one", "X", 1e-6, 1e30},
        {"loss-scale-growth", OPTION_INT, &growth_interval,
         "with fp16: double it after N steps without Inf or NaN; 0: never", "N", 0, 1e9},
        TEXT_OPTIONS,
        {0}});
    run_on_one_rank();
    fuse = fusions_of(fuse_option);
    Batch batch = set_up();

    if (dtype == F16) {
        run_register_state("loss_scale", &loss_scale);
        run_register_state("clean_steps", &clean_steps);
    }
    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    if (has_master)
        tensor_convert(params.buffer, master);
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    text_sample(loss_of, acts.final, params.embedding, acts.logits, batch);
    run_end();
}
