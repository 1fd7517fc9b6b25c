/* 09_combined: the techniques of 02 to 08 combined, on one grid of ranks.
 *
 * In 03 to 07 one technique has all ranks for itself. Here each rank has a coordinate in four dimensions: which slice
 * of every matrix it holds (tp), which tokens of every sequence (cp), which layers (pp), which sequences of the batch
 * (dp). Each dimension alone works as in its own program. What is new is how they interact: what two of them shard
 * together, over which group gradients, norm and loss are summed, and which rank counts what. Types are those of 02.
 */
#include "../05_tensor_parallel/vocabulary.h"
#include "../08_fused_kernels/fused.h"
#include "combined.h"
#include "formulas.h"

/* The grid: rank = ((dp * pp_size + pp) * cp_size + cp) * tp_size + tp. Neighboring ranks share a machine and its fast
 * links, so the dimension that can hide least of its traffic is innermost. tp waits for three in five of its transfers;
 * cp's ring is in flight while attention computes; pp sends x and d_x per micro-batch; dp reduces once per step. */
static int tp_size = 1, dp_size, dp_rank;       /* dp_size 0: all ranks that the other three leave */
int cp_size = 1, pp_size = 1;
static Comm *tp;
Comm *cp, *pp;
static Comm *replicas;              /* dp x cp: the ranks with the same parameters, which see other tokens */
static Comm *embedding_group;       /* both ends of a pipeline, which hold the tied embedding; NULL on other stages */
static int zero = 1;                /* 1: each replica updates its shard of the parameters (ZeRO-1), 0: all of them */

static enum { DTYPE_BF16, DTYPE_FP32 } dtype_option = DTYPE_BF16;
DType dtype;
static bool has_master;             /* AdamW updates master weights in REAL, of which params is a rounded copy */
static bool gelu_is_fused;          /* whether the device has a matmul with GELU in its epilogue (08) */

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static ParamShard *shards;          /* L + 2: this rank's shard of each unit; empty if another pipeline stage has it */
static AdamW optimizer;
static Request **unit_request;      /* L + 2: in flight over the replicas: a unit's gradients, or updated parameters */

int64_t B, T, R, L, H, A, D, F, V, C;           /* local sizes: combined.h */
int local_chunks, in_flight;
static int begin, end;              /* the local layers: begin to end - 1 of this pipeline stage */
static int64_t S;                   /* rows per slice of the loss: those whose logits exist at once */

static BlockActs d_block;           /* gradients of the current block's activations */
static Tensor final, final_stats, d_final;      /* (R, H), (R, 2), (R, H)  on the last pipeline stage */
static Tensor logits, lse, max, sums;           /* (S, V), (S), (S), (S, 2)  of one slice of rows */
static Tensor rope;                 /* (B*T, D)  cos and sin of each local token's position in its sequence */
static Tensor loss;                 /* (1)     of the step, accumulated over its micro-batches on the device */
static Tensor full_rows, partial_sums;          /* (B*T, H)  a TP region's full input; its partial output */

/* ---- tp: into and out of the regions in which matrices are split over the ranks (05) ---- */

/* f enters a region: every rank reads all rows of x. f_start only starts to gather them: the caller computes meanwhile,
 * and waits before it reads all_rows(x). */
static Request *f_start(Tensor x)
{
    return tp_size > 1 ? comm_start_all_gather(tp, full_rows, x) : NULL;
}

static Tensor all_rows(Tensor x)
{
    return tp_size > 1 ? full_rows : x;
}

static Tensor f_forward(Tensor x)
{
    comm_complete(f_start(x));
    return all_rows(x);
}

static Request *f_backward(Tensor d_x)          /* starts to add up the ranks' partial gradients */
{
    return tp_size > 1 ? comm_start_reduce_scatter(tp, d_x, partial_sums) : NULL;
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

/* Where a region writes its partial sum of out: `partial_sums`, as out holds only local rows; out itself if tp is 1. */
static Tensor partial_out(Tensor out)
{
    return tp_size > 1 ? partial_sums : out;
}

/* ---- A block of 05, with the kernels of 08 ---- */

/* Computes one transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    linear_forward(a->qkv, f_forward(a->ln1), w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    context_attention_forward(a);
    linear_forward(partial_out(a->branch), a->attn_out, w->proj_weight, NONE);
    g_forward(a->branch);

    residual_layernorm_forward(a->mid, a->ln2, a->ln2_stats, x, a->branch, w->proj_bias, w->ln2_weight, w->ln2_bias);
    Tensor in = f_forward(a->ln2);
    if (gelu_is_fused) {
        linear_gelu_forward(a->gelu, a->up, in, w->up_weight, w->up_bias);
    } else {
        linear_forward(a->up, in, w->up_weight, w->up_bias);
        gelu_forward(a->gelu, a->up);
    }
    linear_forward(partial_out(a->branch), a->gelu, w->down_weight, NONE);
    g_forward(a->branch);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* Backpropagates through one block: forward's calls in reverse. On entry d_x is the gradient of the block's output, on
 * return that of its input x; attention and MLP each add their gradients to it. w: parameters, g: their gradients,
 * a: activations, d: their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    residual_backward(g->down_bias, d_x);
    Tensor d_out = g_backward(d_x);
    linear_backward_weight(g->down_weight, NONE, d_out, a->gelu);
    if (gelu_is_fused) {
        linear_gelu_backward(d->up, d_out, w->down_weight, a->up);
    } else {
        linear_backward_input(d->gelu, d_out, w->down_weight);
        gelu_backward(d->up, d->gelu, a->up);
    }
    Request *rows = f_start(a->ln2);            /* the weights' gradients read all of them */
    linear_backward_input(partial_out(d->ln2), d->up, w->up_weight);
    comm_wait(&rows);
    Request *sum = f_backward(d->ln2);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, all_rows(a->ln2));
    comm_wait(&sum);
    residual_layernorm_backward(d_x, g->proj_bias, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats,
                                w->ln2_weight);

    d_out = g_backward(d_x);
    linear_backward_input(d->attn_out, d_out, w->proj_weight);
    linear_backward_weight(g->proj_weight, NONE, d_out, a->attn_out);
    context_attention_backward(a, d);
    rope_backward(d->qkv, rope);
    rows = f_start(a->ln1);
    linear_backward_input(partial_out(d->ln1), d->qkv, w->qkv_weight);
    comm_wait(&rows);
    sum = f_backward(d->ln1);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, all_rows(a->ln1));
    comm_wait(&sum);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Output projection, loss and gradients of S rows at a time, over all slices of the vocabulary. The next rows overwrite
 * the logits, so those of all rows never exist together (08). gradient_scale 0: no gradients. */
static void head(Batch batch, double scale, double gradient_scale)
{
    Tensor in = f_forward(final), targets = tensor_view(batch.targets, shape(B * T));

    for (int64_t first = 0; first < B * T; first += S) {
        const int64_t rows = B * T - first < S ? B * T - first : S;
        Tensor z = tensor_range(logits, 0, rows), ids = tensor_range(targets, first, rows);
        Tensor top = tensor_range(max, 0, rows), log_sum = tensor_range(lse, 0, rows), s = tensor_range(sums, 0, rows);
        linear_forward(z, tensor_range(in, first, rows), params.embedding, NONE);      /* tied with the embedding */
        cross_entropy_max(top, z);
        comm_all_reduce(tp, top, MAX);
        cross_entropy_sums(s, z, top, ids);
        comm_all_reduce(tp, s, SUM);
        cross_entropy_loss(loss, log_sum, s, top, scale);
        if (gradient_scale == 0)
            continue;
        cross_entropy_backward(z, z, log_sum, ids, gradient_scale);
        linear_backward_input(tensor_range(partial_out(d_final), first, rows), z, params.embedding);
        linear_backward_weight(gradients.embedding, NONE, z, tensor_range(in, first, rows));
    }
    if (gradient_scale != 0)
        comm_complete(f_backward(d_final));
}

/* Forward of the local layers: from tokens, or the x received, to the x to send, or the loss of the local tokens. */
static void forward(Acts *a, double scale, double gradient_scale)
{
    const Params *w = &params;

    comm_wait(&unit_request[0]);                /* the embedding, at both ends of the pipeline */
    if (a->begin == 0) {
        ids_in_slice(a->batch.inputs, a->batch.inputs, layout.first_id, V);     /* -1: in another slice */
        embedding_forward(partial_out(a->x[0]), a->batch.inputs, w->embedding);
        g_forward(a->x[0]);
    }
    for (int l = a->begin; l < a->end; l++) {
        comm_wait(&unit_request[l + 1]);
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    }
    if (a->end < L)
        return;
    comm_wait(&unit_request[L + 1]);
    ids_in_slice(a->batch.targets, a->batch.targets, layout.first_id, V);
    layernorm_forward(final, final_stats, a->x[L], w->final_weight, w->final_bias);
    head(a->batch, scale, gradient_scale);
}

/* Call after the step's last backward through unit u. Reduces the unit's gradients twice. First over tp: the replicated
 * parameters, whose gradients come from local rows; they are small, so this waits. Then over the replicas (dp and cp as
 * one group): all parameters; this only starts, and is in flight during the backward of the units before u (03). */
static void reduce_begin(int u)
{
    Tensor unit = tensor_range(gradients.buffer, layout.units[u].first, layout.units[u].count);

    if (tp_size > 1 && u > 0)
        comm_all_reduce(tp, u <= L ? gradients.blocks[u - 1].replicated : gradients.final, SUM);
    unit_request[u] = zero ? comm_start_reduce_scatter(replicas, shards[u].gradients, unit)
                           : comm_start_all_reduce(replicas, unit, SUM);
}

/* Waits for all reductions. Then adds the gradients of the tied embedding's two uses, at the two ends of the pipeline.
 * A sum of two numbers is the same in either order, so both copies of the embedding stay equal bit for bit. */
static void reduce_end(void)
{
    for (int u = 0; u < L + 2; u++)
        comm_wait(&unit_request[u]);
    if (embedding_group)
        comm_all_reduce(embedding_group, shards[0].gradients, SUM);
}

/* Accumulates this micro-batch's gradients of the local layers. last: it is the step's last micro-batch. */
static void backward(Acts *a, bool last)
{
    const Params *w = &params, *g = &gradients;

    if (a->end == L) {                             /* each backward follows its forward at once: head() left d_final */
        tensor_zero(a->d_x);
        layernorm_backward(a->d_x, g->final_weight, g->final_bias, d_final, a->x[L], final_stats, w->final_weight);
        if (last)
            reduce_begin(L + 1);
        if (last && a->begin > 0)
            reduce_begin(0);                    /* head() will not add to it again */
    }
    for (int l = a->end - 1; l >= a->begin; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, a->d_x, a->x[l]);
        if (last)
            reduce_begin(l + 1);
    }
    if (a->begin == 0) {
        embedding_backward(g->embedding, g_backward(a->d_x), a->batch.inputs);
        if (last)
            reduce_begin(0);
    }
}

/* ZeRO-1: starts to all-gather the replicas' updated shards of each local unit. A unit's all-gather is in flight during
 * the forwards of the units before it. */
static void gather_begin(void)
{
    for (int u = 0; u < L + 2 && zero; u++)
        if (layout.units[u].count) {
            Tensor unit = tensor_range(params.buffer, layout.units[u].first, layout.units[u].count);
            unit_request[u] = comm_start_all_gather(replicas, unit, has_master ? shards[u].copy : shards[u].params);
        }
}

/* Runs one step. A rank waits only for transfers whose other side has started, or starts one action ahead. So the
 * schedule cannot deadlock when a send lasts until its receive begins (rendezvous). */
static void execute(int64_t step, double scale)
{
    const int m = options.accumulate;

    start_receive(action_of(0));
    for (int i = 0; i < 2 * m; i++) {
        const Action action = action_of(i);
        Acts *a = acts_of(action);

        if (i + 1 < 2 * m)
            start_receive(action_of(i + 1));
        if (action.kind == FORWARD) {
            comm_wait(&a->receiving[0]);
            a->x[a->begin] = recv_x_of(action);
            const int64_t first = ((int64_t)dp_rank * options.accumulate + action.micro) * B;     /* of its sequences */
            for (int c = 0; c < local_chunks; c++)
                batch_load(chunk_of(a->batch, c), step, first, C * chunk_number(comm_rank(cp), c));
        } else {
            comm_wait(&a->receiving[1]);
            comm_wait(&a->sending[0]);          /* x[end] may be overwritten, by this action or the next forward */
            comm_wait(&a->sending[1]);          /* of the micro-batch that last used this buffer */
        }
        trace_begin(action.kind == FORWARD ? "forward" : "backward");
        if (action.kind == FORWARD)
            forward(a, scale, scale);
        else
            backward(a, action.micro == m - 1);
        trace_end();
        start_send(action);
    }
    for (int i = 0; i < in_flight; i++)
        comm_wait(&acts[i].sending[1]);         /* sending[0] was waited for before the backward */
}

/* One optimizer step: one update from the gradients of the global batch, computed micro-batch by micro-batch. */
static StepResult train_step(int64_t step)
{
    /* The loss is the mean over all tokens of the global batch. So every micro-batch, on any rank, is divided by
     * the same number of tokens. */
    const double scale = 1.0 / ((double)B * options.config.seq * options.accumulate * dp_size);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    gather_begin();
    execute(step, scale);
    reduce_end();
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(world, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(world, comm_rank(tp) ? 0 : tensor_item(loss));      /* the ranks of tp have the same loss */
    adamw_step(&optimizer, lr, clip_scale(norm));
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

/* The loss of the micro-batch in acts[0], through all pipeline stages; no backward follows. */
static void loss_of(double scale)
{
    const Action action = {FORWARD, 0};
    Acts *a = acts_of(action);

    start_receive(action);
    comm_wait(&a->receiving[0]);
    a->x[a->begin] = recv_x_of(action);
    forward(a, scale, 0);
    start_send(action);
    comm_wait(&a->sending[0]);
}

/* text_evaluate() for a pipeline and sequence chunks. Each rank adds the loss of its tokens; all dp_size replicas
 * evaluate the same pieces. */
static void evaluate(void)
{
    tensor_zero(loss);
    gather_begin();
    for (int64_t p = 0; p < evaluation_batches(); p++) {
        for (int i = 0; i < local_chunks; i++)
            batch_validation(chunk_of(acts[0].batch, i), p, evaluation_batches(), C * chunk_number(comm_rank(cp), i));
        loss_of(1.0 / ((double)B * options.config.seq * dp_size));
    }
    run_report_validation(comm_sum(world, comm_rank(tp) ? 0 : tensor_item(loss)) / evaluation_batches());
}

static void grid(void)
{
    const int n = comm_size(world), w = comm_rank(world);
    const double one_dp = (double)tp_size * cp_size * pp_size;

    dp_size = dp_size ? dp_size : fmax(1, floor(n / one_dp));
    if (one_dp * dp_size != n)
        fail_usage("--tp %d x --cp %d x --pp %d x --dp %d: expected %.0f ranks, got %d; start %.0f, or choose factors "
                   "of %d", tp_size, cp_size, pp_size, dp_size, one_dp * dp_size, n, one_dp * dp_size, n);
    dp_rank = w / one_dp;
    const int t = w % tp_size, c = w / tp_size % cp_size, p = w / tp_size / cp_size % pp_size;
    const bool has_embedding = p == 0 || p == pp_size - 1;
    tp = comm_split(world, (dp_rank * pp_size + p) * cp_size + c, "tp");
    cp = comm_split(world, (dp_rank * pp_size + p) * tp_size + t, "cp");
    pp = comm_split(world, (dp_rank * cp_size + c) * tp_size + t, "pp");
    replicas = comm_split(world, p * tp_size + t, "replicas");
    embedding_group = comm_split(world, pp_size > 1 && has_embedding ? (dp_rank * cp_size + c) * tp_size + t : -1,
                                 "embedding");
}

static void sizes(void)
{
    const Config *c = &options.config;
    const double output = c->vocab / (12.0 * c->hidden + 2.0 * c->seq);     /* projection: its cost in layers (06) */
    const Range layers = range_split_last(c->layers, output, comm_rank(pp), pp_size);
    const int p = comm_rank(pp), m = options.accumulate;

    if (c->layers < pp_size)
        fail("--layers: expected at least %d, one per pipeline stage (--pp), got %d", pp_size, c->layers);
    if (c->vocab < tp_size)
        fail("--vocab: expected at least %d, one token per rank of --tp, got %d", tp_size, c->vocab);
    local_chunks = cp_size > 1 ? 2 : 1;                     /* zig-zag; one rank has nothing to balance */
    if (c->seq % (local_chunks * cp_size))
        fail("--seq: expected a multiple of %d (%d ranks of --cp x %d sequence chunks), got %d; try %d",
             local_chunks * cp_size, cp_size, local_chunks, c->seq,
             (c->seq / (local_chunks * cp_size) + 1) * local_chunks * cp_size);
    C = c->seq / (local_chunks * cp_size);
    B = options.micro_batch, T = local_chunks * C;
    R = equal_share(B * T, tp_size, "--tp: --micro-batch x --seq / --cp =");
    begin = layers.first, end = layers.first + layers.count;
    L = c->layers, H = c->hidden, A = equal_share(c->heads, tp_size, "--tp: --heads"), D = H / c->heads;
    F = 4 * H / tp_size, V = comm_shard(tp, c->vocab).count;
    in_flight = pp_size - p < m ? pp_size - p : m;
    const int64_t rows = device_is_host() ? 256 : 8192;     /* as in 08 */
    S = B * T < rows ? B * T : rows;
}

static void dtypes(void)
{
    dtype = dtype_option == DTYPE_BF16 ? BF16 : REAL;
    has_master = dtype != REAL;
    gelu_is_fused = !linear_gelu_unfused(dtype);
    if (device_supports(dtype) == SUPPORT_NONE)
        fail("%s does not support bf16, which needs compute capability 8.0: use --dtype fp32", device_name());
    run_set_matmul_dtype(dtype);
}

/* The elements of a unit that this rank updates: its shard with ZeRO-1, else all. */
static Range own_shard(int64_t unit_count)
{
    return zero ? comm_shard(replicas, unit_count) : (Range){0, unit_count};
}

/* Predicts the peak of every memory category: tracked peaks must match to the byte. Estimates follow the playbook. */
static void predict(void)
{
    const double real_size = dtype_size(REAL), stored = dtype_size(dtype);
    const bool full = options.recompute == RECOMPUTE_FULL;
    const RankShape local = {
        .B = B, .T = T, .R = R, .H = H, .A = A, .D = D, .F = F, .V = V, .S = S, .layers = end - begin,
        .first = begin == 0, .last = end == L, .in_flight = in_flight, .tp = tp_size, .cp = cp_size,
        .replica = comm_rank(replicas), .replicas = comm_size(replicas), .zero = zero,
        .recompute = full, .stored = stored, .real = real_size, .master = has_master};
    const double P = local_elements(&local), updated = updated_elements(&local);
    const double saved_rows = (double)in_flight * (end - begin) * R;
    double bytes[MEM_CATEGORIES];

    rank_memory(&local, bytes);
    for (int c = 0; c < MEM_CATEGORIES; c++)
        memory_predict(c, bytes[c]);
    memory_predict(MEM_WORKSPACE, real_size * flash_parts(dtype, B, C, C, A, D));       /* d_q_parts */

    memory_estimate(MEM_PARAMETERS, stored * P, dtype == REAL ? "4 P, P: parameters on this rank"
                                                              : "2 P, P: parameters on this rank");
    if (has_master)
        memory_estimate(MEM_MASTER, real_size * updated, zero ? "4 P / (dp cp)" : "4 P");
    memory_estimate(MEM_GRADIENTS, real_size * P, "4 P");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * updated, zero ? "8 P / (dp cp)" : "8 P");
    memory_estimate(MEM_ACTIVATIONS, saved_rows * H * (full ? 2 : 34),
                    full ? "2 s b h / (tp cp) per layer and micro-batch in flight"
                         : "34 s b h / (tp cp) per layer and micro-batch in flight");

    /* What this rank sends per step. */
    const int64_t m = options.accumulate, again = full, layers = local.layers, first = local.first, last = local.last;
    const int64_t rows = B * T * H, kv = 2 * B * T * A * D, block = block_elements(&local);
    if (tp_size > 1) {                          /* per block: f, g twice each way; f's inputs again in backward */
        comm_predict_as(tp, ALL_GATHER, dtype, m * (layers * (2 + 2 * again + 4) + first + last), rows);
        comm_predict_as(tp, REDUCE_SCATTER, dtype, m * (layers * (2 + 2 * again + 2) + first + last), rows);
        comm_predict(tp, ALL_REDUCE, layers, 6 * H);                    /* replicated parameters' gradients */
        comm_predict(tp, ALL_REDUCE, last, 2 * H);
    }
    for (int64_t row = 0; row < B * T && last; row += S) {              /* the loss, S rows at a time: max, sums */
        comm_predict(tp, ALL_REDUCE, m, B * T - row < S ? B * T - row : S);
        comm_predict(tp, ALL_REDUCE, m, 2 * (B * T - row < S ? B * T - row : S));
    }
    if (cp_size > 1)                            /* K, V each way; dK, dV one hop more, to their owner */
        comm_predict_as(cp, EXCHANGE, dtype, m * layers * ((2 + again) * (cp_size - 1) + cp_size), kv);
    comm_sends_to(pp, last ? -1 : comm_rank(pp) + 1), comm_sends_to(pp, comm_rank(pp) - 1);     /* x, d_x */
    comm_predict_as(pp, SEND, dtype, m * (!first + !last), R * H);
    const struct { int64_t count, units; } units[] = {{H * V, first || last}, {block, layers}, {2 * H, last}};
    for (int i = 0; i < 3; i++) {
        comm_predict(replicas, zero ? REDUCE_SCATTER : ALL_REDUCE, units[i].units, units[i].count);
        comm_predict_as(replicas, ALL_GATHER, dtype, zero ? units[i].units : 0, units[i].count);
    }
    if (embedding_group)
        comm_predict(embedding_group, ALL_REDUCE, 1, own_shard(H * V).count);
}

/* Creates parameters, gradients and optimizer states, and this rank's shard of each local unit. */
static void parameters_create(void)
{
    bool *local = calloc(L, sizeof(bool));
    int64_t own = 0, at = 0;

    for (int l = begin; l < end; l++)
        local[l] = true;
    layout = layout_create(options.config, (Placement){
        .slice = comm_rank(tp), .slices = tp_size, .layer = local, .embedding = begin == 0, .head = end == L,
        .replica = zero ? 0 : comm_rank(replicas)});        /* ZeRO-1: each owns what it updates */
    for (int u = 0; u < L + 2; u++)
        own += own_shard(layout.units[u].count).count;
    params = params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)));
    gradients = params_view(&layout, tensor_create(MEM_GRADIENTS, REAL, "gradients", shape(layout.count)));
    Tensor master = has_master ? tensor_create(MEM_MASTER, REAL, "master", shape(own)) : NONE;
    Tensor m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(own));
    Tensor v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(own));
    shards = calloc(L + 2, sizeof(ParamShard)), unit_request = calloc(L + 2, sizeof(Request *));
    for (int u = 0; u < L + 2; u++) {
        const Range shard = own_shard(layout.units[u].count);
        const int64_t first = layout.units[u].first + shard.first;
        Tensor stored = tensor_range(params.buffer, first, shard.count);
        shards[u] = (ParamShard){.first = first,
                                 .params = has_master ? tensor_range(master, at, shard.count) : stored,
                                 .copy = has_master ? stored : NONE,
                                 .gradients = tensor_range(gradients.buffer, first, shard.count),
                                 .m = tensor_range(m, at, shard.count),
                                 .v = tensor_range(v, at, shard.count)};
        at += shard.count;
    }
    optimizer = (AdamW){.layout = &layout, .shards = shards, .count = L + 2};
}

/* Creates what a step needs. */
static void set_up(void)
{
    sizes();
    run_set_global_batch(B * options.accumulate * dp_size);
    dtypes();
    predict();
    comm_connect();
    memory_check_fits();

    parameters_create();
    d_block = block_acts_create(MEM_WORKSPACE, (BlockActs){0}, false);
    pipeline_create((Range){begin, end - begin});
    ring_create();
    if (end == L) {
        final = tensor_create(MEM_ACTIVATIONS, dtype, "final", shape(R, H));
        final_stats = tensor_create(MEM_ACTIVATIONS, REAL, "final_stats", shape(R, 2));
        logits = tensor_create(MEM_ACTIVATIONS, dtype, "logits", shape(S, V));
        lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(S));
        max = tensor_create(MEM_WORKSPACE, REAL, "max", shape(S));
        sums = tensor_create(MEM_WORKSPACE, REAL, "sums", shape(S, 2));
        d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    }
    if (tp_size > 1) {
        full_rows = tensor_create(MEM_COMMUNICATION, dtype, "full_rows", shape(B * T, H));
        partial_sums = tensor_create(MEM_COMMUNICATION, dtype, "partial_sums", shape(B * T, H));
    }
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(B * T, D));
    for (int i = 0; i < local_chunks; i++)
        for (int b = 0; b < B; b++)
            rope_table(tensor_range(rope, (i * B + b) * C, C), C * chunk_number(comm_rank(cp), i));
}

int main(int argc, char **argv)
{
    run_begin("09_combined", "Trains a transformer on a grid of ranks: tp x cp x pp x dp.", argc, argv,
              (ProgramOption[]){
        {"tp", OPTION_INT, &tp_size, "tensor-parallel ranks: each has a slice of every matrix", "N", 1, 65536},
        {"cp", OPTION_INT, &cp_size, "context-parallel ranks: each has some tokens of every sequence", "N", 1, 65536},
        {"pp", OPTION_INT, &pp_size, "pipeline stages: each has some of the layers", "N", 1, 65536},
        {"dp", OPTION_INT, &dp_size, "data-parallel ranks: each has some sequences; 0: all that remain", "N", 0, 65536},
        {"zero", OPTION_INT, &zero, "ZeRO stage: 1 shards the optimizer states over the replicas", "N", 0, 1},
        {"dtype", OPTION_CHOICE, &dtype_option, "type of activations and weights", "bf16|fp32"},
        {0}});
    grid();
    set_up();

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    for (int u = 0; u < L + 2 && has_master; u++)
        if (tensor_count(shards[u].copy))
            tensor_convert(shards[u].copy, shards[u].params);
    while (run_continues(step)) {
        StepResult result = train_step(step);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            evaluate();
    }
    report_number("in_flight", in_flight);
    run_end();
}
