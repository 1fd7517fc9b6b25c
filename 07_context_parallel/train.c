/* 07_context_parallel: 01 with every sequence split over the ranks.
 *
 * Each rank has the full model and 1/n of the tokens of every sequence. Only attention combines tokens: K and V go
 * round (ring, zigzag), an all-gather brings them all, or an all-to-all exchanges tokens for heads (ulysses).
 */
#include "../common/ultrascale.h"
#include "key_blocks.h"

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *cp;                    /* the ranks over which every sequence is split */
static enum { RING, ZIGZAG, ALLGATHER, ULYSSES } method = ZIGZAG;

/* Local sizes, on this rank. Shapes in comments use these letters. */
static int64_t B, T, R;             /* sequences per micro-batch, tokens of each, rows of the residual stream: B*T */
static int64_t L, H, A, D, F, V;    /* layers, hidden size, heads, head size, MLP width, vocabulary */
static int64_t C;                   /* tokens per sequence chunk */
static int local_chunks;            /* sequence chunks per sequence on this rank; rows are (local_chunks, B, C) */
static int chunks;                  /* sequence chunks inside attention: n with ulysses, otherwise local_chunks */
static int64_t chunk_heads;         /* heads of each of these chunks: chunks * B * C * chunk_heads = R * A */
static int64_t Q;                   /* queries per tile: scores exist for one tile at a time */

/* What one block's forward saves for its backward. The block's input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   stats: mean and rstd */
    Tensor qkv;                     /* (B, T, 3*A*D)    per head: q, k, v; q and k after RoPE */
    Tensor lse;                     /* (B, T, A)        log-sum-exp of a query's scores; in d: delta = rowsum(dO*O) */
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
static Tensor rope;                 /* (R, D)  cos and sin of the position of each row's token in its sequence */
static Tensor loss;                 /* (1)     of the step, accumulated over its micro-batches on the device */
static Tensor split, d_split;       /* (3, R, A*D)  q, k, v, each contiguous; their gradients */
static Tensor block_out, block_lse; /* (B, C, chunk_heads, D or 1)  attention of one query chunk to one key chunk */
static Tensor scores;               /* (2, chunk_heads, Q, C)  of one tile; the second half: their gradients */
static Tensor kv_next, d_kv[2];     /* (2, R, A*D)   ring: K, V being received; dK, dV being computed and being sent */
static Tensor kv_all, d_kv_all;     /* (2*n, R, A*D) allgather: K, V of all ranks; dK, dV for all ranks */
static Tensor packed;               /* (3*R*A*D)     ulysses: what the all-to-all sends or receives, rank by rank */

/* The only place where tokens are combined: defined after backward. */
static void context_attention_forward(BlockActs *a);
static void context_attention_backward(BlockActs *a, BlockActs *d);

/* Computes one transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    context_attention_forward(a);
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
    context_attention_backward(a, d);
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
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
    }
    embedding_backward(g->embedding, d_x, batch.inputs);
}

/* ---- Attention over the ranks ---- */

/* Index, in the full sequence, of a rank's i-th sequence chunk. Under the causal mask a late chunk's queries see more
 * keys than an early one's. zigzag gives each rank one chunk from each end, so all ranks have the same load (4 ranks:
 * 0 and 7, 1 and 6, 2 and 5, 3 and 4). */
static int chunk_number(int rank, int i)
{
    return method == ZIGZAG && i ? 2 * comm_size(cp) - 1 - rank : rank + i;
}

/* The i-th sequence chunk of q, k, v, attn_out or their gradients, (B, C, chunk_heads, D); of lse and delta, D = 1. */
static Tensor chunk(Tensor t, int i)
{
    return tensor_range(tensor_view(t, shape(chunks * B, C, chunk_heads, tensor_count(t) / (R * A))), i * B, B);
}

/* Attention of one rank's queries to another rank's keys, chunk by chunk, merged into attn_out and lse. Key chunks
 * after the query chunk are skipped: the causal mask hides them entirely. */
static void attend_kv(BlockActs *a, int query_rank, Tensor kv, int key_rank)
{
    Tensor q = tensor_range(split, 0, 1), k = tensor_range(kv, 0, 1), v = tensor_range(kv, 1, 1);

    for (int i = 0; i < chunks; i++)
        for (int j = 0; j < chunks; j++) {
            const int query = chunk_number(query_rank, i), key = chunk_number(key_rank, j);
            if (key > query)
                continue;
            attention_block_forward(block_out, block_lse, scores, chunk(q, i), chunk(k, j), chunk(v, j), key == query);
            attention_merge(chunk(a->attn_out, i), chunk(a->lse, i), block_out, block_lse);
        }
}

/* Backward of attend_kv: adds to dQ of the queries, and to dK and dV (d_kv) of the keys. */
static void attend_kv_backward(BlockActs *a, BlockActs *d, int query_rank, Tensor d_kv, Tensor kv, int key_rank)
{
    Tensor q = tensor_range(split, 0, 1), k = tensor_range(kv, 0, 1), v = tensor_range(kv, 1, 1);
    Tensor d_q = tensor_range(d_split, 0, 1), d_k = tensor_range(d_kv, 0, 1), d_v = tensor_range(d_kv, 1, 1);

    for (int i = 0; i < chunks; i++)
        for (int j = 0; j < chunks; j++) {
            const int query = chunk_number(query_rank, i), key = chunk_number(key_rank, j);
            if (key > query)
                continue;
            attention_block_backward(chunk(d_q, i), chunk(d_k, j), chunk(d_v, j), scores, chunk(d->attn_out, i),
                                     chunk(q, i), chunk(k, j), chunk(v, j), chunk(a->lse, i), chunk(d->lse, i),
                                     key == query);
        }
}

/* Ring attention (Liu et al. 2023): n steps. In each, this rank attends to the K and V of one rank, while the K and V
 * for its next step are in flight. */
static void ring_forward(BlockActs *a)
{
    const int n = comm_size(cp), r = comm_rank(cp), before = (r + n - 1) % n, after = (r + 1) % n;
    Tensor kv[2] = {tensor_range(split, 1, 2), kv_next};

    for (int step = 0; step < n; step++) {
        Tensor current = kv[step % 2], next = kv[(step + 1) % 2];
        Request *arriving = step < n - 1 ? comm_start_exchange(cp, next, before, current, after) : NULL;
        attend_kv(a, r, current, (r - step + n) % n);
        comm_wait(&arriving);
    }
}

/* K and V go around again, and their gradients follow one step behind. A rank computes its contribution to dK and dV
 * while the sum of the ranks before it is in flight, adds the two, and sends the result on. After n hops, one more than
 * K and V make, the sum is at the owner of the keys. */
static void ring_backward(BlockActs *a, BlockActs *d)
{
    const int n = comm_size(cp), r = comm_rank(cp), before = (r + n - 1) % n, after = (r + 1) % n;
    Tensor kv[2] = {tensor_range(split, 1, 2), kv_next}, d_arrived = tensor_range(d_split, 1, 2);
    Request *d_arriving = NULL;

    for (int step = 0; step < n; step++) {
        Tensor current = kv[step % 2], next = kv[(step + 1) % 2], d_current = d_kv[step % 2];
        Request *arriving = step < n - 1 ? comm_start_exchange(cp, next, before, current, after) : NULL;
        tensor_zero(d_current);
        attend_kv_backward(a, d, r, d_current, current, (r - step + n) % n);
        comm_wait(&arriving);
        comm_wait(&d_arriving);
        if (step > 0)
            tensor_add(d_current, d_arrived);
        d_arriving = comm_start_exchange(cp, d_arrived, before, d_current, after);
    }
    comm_wait(&d_arriving);
}

/* Ulysses (Jacobs et al. 2023): t changes from the local tokens of all heads, (R, A*x), to all tokens of the local
 * heads, (n, R, A/n*x), where each rank's tokens are one sequence chunk. What is sent to one rank must be contiguous,
 * hence the transposition. heads_to_tokens is the inverse. */
static void tokens_to_heads(Tensor t)
{
    const int64_t n = comm_size(cp), width = tensor_count(t) / (R * n);
    Tensor to_send = tensor_range(packed, 0, tensor_count(t));

    transpose_rows(tensor_view(to_send, shape(n, R, width)), tensor_view(t, shape(R, n, width)));
    comm_all_to_all(cp, t, to_send);
}

static void heads_to_tokens(Tensor t)
{
    const int64_t n = comm_size(cp), width = tensor_count(t) / (R * n);
    Tensor received = tensor_range(packed, 0, tensor_count(t));

    comm_all_to_all(cp, received, t);
    transpose_rows(tensor_view(t, shape(R, n, width)), tensor_view(received, shape(n, R, width)));
}

/* From a->qkv to a->attn_out and a->lse. With ulysses, qkv and lse hold all tokens of the local heads, (chunks, B, C,
 * chunk_heads, ...), from here to the backward of attention; attn_out does so only inside attention. */
static void context_attention_forward(BlockActs *a)
{
    const int n = comm_size(cp), r = comm_rank(cp);
    Tensor kv = tensor_range(split, 1, 2);

    if (method == ULYSSES)
        tokens_to_heads(a->qkv);
    /* qkv has q, k, v per token and head; the transfers need all of k and all of v contiguous */
    transpose_rows(tensor_view(split, shape(3, R * A, D)), tensor_view(a->qkv, shape(R * A, 3, D)));
    tensor_zero(a->attn_out);
    tensor_fill(a->lse, -INFINITY);
    if (method == RING || method == ZIGZAG)
        ring_forward(a);
    if (method == ALLGATHER) {
        comm_all_gather(cp, kv_all, kv);
        for (int o = 0; o < n; o++)
            attend_kv(a, r, tensor_range(kv_all, 2 * o, 2), o);
    }
    if (method == ULYSSES) {
        attend_kv(a, 0, kv, 0);                                /* chunk i is rank i's tokens, of queries and of keys */
        heads_to_tokens(a->attn_out);
    }
}

/* From d->attn_out to d->qkv. P = exp(S - lse), dP = dO V^T, dS = P * (dP - delta), delta = rowsum(dO*O): given lse and
 * delta, each key chunk is independent of the others (FlashAttention, Dao et al. 2022, appendix B.2). */
static void context_attention_backward(BlockActs *a, BlockActs *d)
{
    const int n = comm_size(cp), r = comm_rank(cp);
    Tensor kv = tensor_range(split, 1, 2), d_kv_own = tensor_range(d_split, 1, 2);

    transpose_rows(tensor_view(split, shape(3, R * A, D)), tensor_view(a->qkv, shape(R * A, 3, D)));
    attention_delta(d->lse, d->attn_out, a->attn_out);
    tensor_zero(d_split);
    if (method == RING || method == ZIGZAG)
        ring_backward(a, d);
    if (method == ALLGATHER) {
        comm_all_gather(cp, kv_all, kv);
        tensor_zero(d_kv_all);
        for (int o = 0; o < n; o++)
            attend_kv_backward(a, d, r, tensor_range(d_kv_all, 2 * o, 2), tensor_range(kv_all, 2 * o, 2), o);
        comm_reduce_scatter(cp, d_kv_own, d_kv_all);
    }
    if (method == ULYSSES) {
        tokens_to_heads(d->attn_out);
        tokens_to_heads(d->lse);
        attend_kv_backward(a, d, 0, d_kv_own, kv, 0);
    }
    transpose_rows(tensor_view(d->qkv, shape(R * A, 3, D)), tensor_view(d_split, shape(3, R * A, D)));
    if (method == ULYSSES)
        heads_to_tokens(d->qkv);
}

/* Inputs and targets of this rank's i-th sequence chunk, (B, C) each. */
static Batch chunk_of(Batch batch, int i)
{
    return (Batch){tensor_range(batch.inputs, i * B, B), tensor_range(batch.targets, i * B, B)};
}

/* One optimizer step: one update from the gradients of the global batch, computed micro-batch by micro-batch. */
static StepResult train_step(int64_t step, Batch batch)
{
    /* The loss is the mean over all tokens of the global batch. So every micro-batch, on any rank, is divided by
     * the same number of tokens. */
    const double scale = 1.0 / (B * options.config.seq * options.accumulate);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    for (int m = 0; m < options.accumulate; m++) {
        for (int i = 0; i < local_chunks; i++)
            batch_load(chunk_of(batch, i), step, m * B, C * chunk_number(comm_rank(cp), i));
        trace_begin("forward");
        forward(&acts, batch, scale);
        trace_end();
        trace_begin("backward");
        backward(&acts, batch, scale);
        trace_end();
    }
    comm_all_reduce(cp, gradients.buffer, SUM);                         /* so far of the local tokens only */
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(cp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(cp, tensor_item(loss));  /* read here, so that the host does not wait for the update */
    adamw_step(&optimizer, lr, clip_scale(norm));
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

/* text_evaluate() for a batch of sequence chunks: sums the ranks' contributions to the validation loss. */
static void evaluate(Batch batch)
{
    tensor_zero(loss);
    for (int64_t p = 0; p < evaluation_batches(); p++) {
        for (int i = 0; i < local_chunks; i++)
            batch_validation(chunk_of(batch, i), p, evaluation_batches(), C * chunk_number(comm_rank(cp), i));
        forward(&acts, batch, 1.0 / (B * options.config.seq));
    }
    run_report_validation(comm_sum(cp, tensor_item(loss)) / evaluation_batches());
}

static void sizes(void)
{
    const Config *c = &options.config;
    const int n = comm_size(cp);
    local_chunks = method == ZIGZAG && n > 1 ? 2 : 1;               /* with one rank there is no load to balance */
    if (c->seq % (local_chunks * n))
        fail("--seq: expected a multiple of %d (%d ranks x %d sequence chunk%s), got %d; try %d", local_chunks * n, n,
             local_chunks, local_chunks == 1 ? "" : "s", c->seq, (c->seq / (local_chunks * n) + 1) * local_chunks * n);
    C = c->seq / (local_chunks * n);
    B = options.micro_batch, T = local_chunks * C, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
    chunks = method == ULYSSES ? n : local_chunks;
    chunk_heads = method == ULYSSES ? equal_share(A, n, "--attention ulysses: --heads") : A;
    Q = C < attention_block_queries() ? C : attention_block_queries();
}

/* shared: activations that are not saved for backward are in the buffers of `first`, which every block overwrites. */
static BlockActs block_acts_create(Category category, BlockActs first, bool shared)
{
    BlockActs a = first;

    if (!shared || options.recompute != RECOMPUTE_FULL) {
        a.ln1 = tensor_create(category, dtype, "ln1", shape(R, H));
        a.ln1_stats = tensor_create(category, REAL, "ln1_stats", shape(R, 2));
        a.qkv = tensor_create(category, dtype, "qkv", shape(B, T, 3 * A * D));
        a.lse = tensor_create(category, REAL, "lse", shape(B, T, A));
        a.attn_out = tensor_create(category, dtype, "attn_out", shape(B, T, A * D));
        a.mid = tensor_create(category, dtype, "mid", shape(R, H));
        a.ln2 = tensor_create(category, dtype, "ln2", shape(R, H));
        a.ln2_stats = tensor_create(category, REAL, "ln2_stats", shape(R, 2));
        a.up = tensor_create(category, dtype, "up", shape(B, T, F));
        a.gelu = tensor_create(category, dtype, "gelu", shape(B, T, F));
    }
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
    const int64_t n = comm_size(cp);
    const double block = stored * R * (3 * H + 4 * A * D + 2 * F) + real_size * R * (4 + A);    /* linear in T */
    const double attention = B * C * chunk_heads * (D + 1) + 2 * chunk_heads * Q * C; /* block_out, block_lse, scores */
    const int64_t kv = 2 * R * A * D;                                       /* a rank's K and V */
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : L;
    const double buffers[] = {[RING] = 3, [ZIGZAG] = 3, [ALLGATHER] = 2 * n, [ULYSSES] = 1.5};

    memory_predict(MEM_PARAMETERS, stored * N);
    memory_predict(MEM_GRADIENTS, stored * N);
    memory_predict(MEM_OPTIMIZER, real_size * 2 * N);
    memory_predict(MEM_ACTIVATIONS, stored * (L + 1) * R * H + blocks * block
                                        + stored * (R * H + B * T * V) + real_size * (R * 2 + B * T));
    /* d_block; branch twice, d_x, d_final; rope; loss; the batch's two ids per token */
    memory_predict(MEM_WORKSPACE, block + stored * 4 * R * H + real_size * R * D + 8 + 2 * 4 * B * T);
    memory_predict(MEM_WORKSPACE, real_size * attention + stored * 6 * R * A * D);            /* and split, d_split */
    memory_predict(MEM_COMMUNICATION, stored * kv * buffers[method]);

    memory_estimate(MEM_PARAMETERS, stored * N, "4 N");
    memory_estimate(MEM_GRADIENTS, stored * N, "4 N");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * N, "8 N");
    estimate_activations(options.recompute == RECOMPUTE_FULL ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE, L * R, " / n");

    /* Traffic per step. Attention sends per layer and micro-batch: in forward, which full recomputation repeats, and in
     * backward. The gradients are sent once. */
    const int64_t backwards = options.accumulate * L;
    const int64_t forwards = options.recompute == RECOMPUTE_FULL ? 2 * backwards : backwards;
    if (method == RING || method == ZIGZAG)     /* K, V: n - 1 hops, forward and backward; dK, dV: n */
        comm_predict(cp, EXCHANGE, (n - 1) * (forwards + backwards) + n * backwards, kv);
    if (method == ALLGATHER) {                  /* K, V, forward and backward; dK, dV */
        comm_predict(cp, ALL_GATHER, forwards + backwards, n * kv);
        comm_predict(cp, REDUCE_SCATTER, backwards, n * kv);
    }
    if (method == ULYSSES) {                    /* q, k, v; the output; their gradients; delta */
        comm_predict(cp, ALL_TO_ALL, forwards + backwards, 3 * R * A * D);
        comm_predict(cp, ALL_TO_ALL, forwards + backwards, R * A * D);
        comm_predict(cp, ALL_TO_ALL, backwards, R * A);
    }
    comm_predict(cp, ALL_REDUCE, 1, N);
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    sizes();
    predict();
    comm_connect();
    memory_check_fits();

    layout = layout_create(options.config, replica(comm_rank(cp)));    /* only replica 0 adds to the norm */
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
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(R, D));
    for (int i = 0; i < local_chunks; i++)
        for (int b = 0; b < B; b++)
            rope_table(tensor_range(rope, (i * B + b) * C, C), C * chunk_number(comm_rank(cp), i));
    split = tensor_create(MEM_WORKSPACE, dtype, "split", shape(3, R, A * D));
    d_split = tensor_create(MEM_WORKSPACE, dtype, "d_split", shape(3, R, A * D));
    block_out = tensor_create(MEM_WORKSPACE, REAL, "block_out", shape(B, C, chunk_heads, D));
    block_lse = tensor_create(MEM_WORKSPACE, REAL, "block_lse", shape(B, C, chunk_heads, 1));
    scores = tensor_create(MEM_WORKSPACE, REAL, "scores", shape(2, chunk_heads, Q, C));
    if (method == RING || method == ZIGZAG) {
        kv_next = tensor_create(MEM_COMMUNICATION, dtype, "kv_next", shape(2, R, A * D));
        for (int i = 0; i < 2; i++)
            d_kv[i] = tensor_create(MEM_COMMUNICATION, dtype, "d_kv", shape(2, R, A * D));
    } else if (method == ALLGATHER) {
        kv_all = tensor_create(MEM_COMMUNICATION, dtype, "kv_all", shape(2 * comm_size(cp), R, A * D));
        d_kv_all = tensor_create(MEM_COMMUNICATION, dtype, "d_kv_all", shape(2 * comm_size(cp), R, A * D));
    } else {
        packed = tensor_create(MEM_COMMUNICATION, dtype, "packed", shape(3 * R * A * D));
    }
    return (Batch){tensor_create(MEM_WORKSPACE, I32, "inputs", shape(local_chunks * B, C)),
                   tensor_create(MEM_WORKSPACE, I32, "targets", shape(local_chunks * B, C))};
}

int main(int argc, char **argv)
{
    run_begin("07_context_parallel", "Trains a transformer with sequences split over the ranks.", argc, argv,
              (ProgramOption[]){
        {"attention", OPTION_CHOICE, &method, "how queries get other ranks' keys", "ring|zigzag|allgather|ulysses"},
        {0}});
    cp = comm_split(world, 0, "cp");
    Batch batch = set_up();

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step, batch);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            evaluate(batch);
    }
    report_number("attention_pairs", attention_pairs());
    run_end();
}
