/* 09_combined: the techniques multiplied, on one grid of ranks.
 *
 * In 03 to 07 one technique has all ranks for itself. Here a rank has a place in four directions: which slice of every
 * matrix it has (tp), which tokens of every sequence (cp), which layers (pp), and which sequences of the batch (dp).
 * Within a direction nothing is new. New is what several have to do with each other: what is sharded twice, which group
 * a sum goes over, and who counts. Numbers are stored as in 02, kernels are fused as in 08.
 */
#include "../08_fused_kernels/fused.h"
#include "../common/ultrascale.h"
#include "formulas.h"

/* The grid: rank = ((dp * pp_size + pp) * cp_size + cp) * tp_size + tp. Neighbours in the list of ranks share a machine
 * and its fast links, so the direction that can hide least comes first. tp waits for 10 transfers in every block; cp's
 * ring passes while attention computes; pp sends one tensor a micro-batch; dp reduces once a step. */
static int tp_size = 1, cp_size = 1, pp_size = 1, dp_size;  /* dp_size 0: what the others leave of the ranks */
static int dp_rank;
static Comm *tp, *cp, *pp;          /* the ranks that differ from this one in one direction only */
static Comm *replicas;              /* in dp and cp: all that have the same parameters, and see other tokens */
static Comm *tied;                  /* the first and the last stage, which share the embedding; NULL: not here */
static int zero = 1;                /* 1: each of the replicas updates its part of the parameters, 0: all of them all */

static enum { DTYPE_BF16, DTYPE_FP32 } dtype_option = DTYPE_BF16;
static DType dtype;                 /* of activations, their gradients and weights; the weights' gradients are REAL */
static bool has_master;             /* there is a copy of the weights in REAL, which AdamW updates */
static bool gelu_is_fused;          /* not every device can */

static Layout layout;               /* which parameter lies where in a flat buffer */
static Params params, gradients;    /* views of the two buffers */
static Part *parts;                 /* L + 2: what of each unit this rank updates; empty where a unit isn't here */
static AdamW optimizer;
static Request **reducing;          /* L + 2: the replicas' sum of a unit's gradients, in flight */

/* Sizes of what is here; capitals in the comments are these. */
static int64_t B, T, R;             /* sequences of a micro-batch, tokens of each that are here; this rank's rows of the
                                     * residual stream, B*T / tp_size */
static int64_t L, H, A, D, F, V;    /* layers of the model, hidden; this slice's heads of size D, of the MLP's width, of
                                     * the vocabulary */
static int begin, end;              /* this stage's layers */
static int64_t C;                   /* tokens of a chunk; rows go chunk by chunk: (held, B, C) */
static int held;                    /* chunks of each sequence that are here */
static int64_t S;                   /* rows whose logits are there at once */
static int in_flight;               /* micro-batches whose activations are kept at once */

/* What one block's forward leaves for its backward. Its input is in Acts.x. */
typedef struct {
    Tensor ln1, ln1_stats;          /* (R, H), (R, 2)   mean and 1 / deviation */
    Tensor qkv;                     /* (B, T, 3*A*D)    head by head: q, k, v; q and k rotated */
    Tensor lse;                     /* (B*T*A)          log of each softmax's sum; in d, rowsum(dO*O) */
    Tensor heads;                   /* (B, T, A*D)      attention's output, before the projection */
    Tensor mid;                     /* (R, H)           the residual stream between the two halves */
    Tensor ln2, ln2_stats;          /* (R, H), (R, 2) */
    Tensor up, gelu;                /* (B, T, F) */
    Tensor branch;                  /* (R, H)           what a half adds to the residual stream; not kept */
} BlockActs;

typedef struct {                    /* of a micro-batch in flight */
    Tensor *x;                      /* [l], (R, H)  residual stream into each block, and out; x[begin] is an inbox */
    BlockActs *blocks;              /* [l] */
    Tensor d_x;                     /* (R, H)  gradient of the residual stream */
    Batch batch;                    /* (held * B, C) */
    Request *receiving[2], *sending[2];     /* x forward, d_x back */
} Acts;

static Acts *acts;                  /* [micro-batch % in_flight] */
static Tensor *inbox;               /* [micro-batch % (in_flight + 1)]  x as it arrives, one ahead */
static BlockActs d_block;           /* gradients of a block's activations, each in turn; mid's and branch's is d_x */
static Tensor final, final_stats, d_final;      /* (R, H), (R, 2), (R, H)  the last stage's, of one micro-batch */
static Tensor logits, lse, max, sums;           /* (S, V), (S), (S), (S, 2)  of one slice of rows */
static Tensor rope;                 /* (B*T, D)  cos and sin of each row's position in its sequence */
static Tensor loss;                 /* (1)     of the step, summed over its micro-batches, on the device */
static Tensor whole, partial;       /* (B*T, H)  all rows of the tp group, before and after a region */
static Tensor split, d_split;       /* (3, B*T, A*D)  all of q, all of k, all of v; sums of their gradients, REAL */
static Tensor merged;               /* (B*T, A*D)  REAL: heads, as they become */
static Tensor kv_next;              /* (2, B*T, A*D)  K, V as they arrive */
static Tensor d_arrived, d_leaving; /* (2, B*T, A*D)  dK, dV of the ranks before this one; with its own added */

static void grid(void)
{
    const int n = comm_size(world), w = comm_rank(world);
    const int64_t model = (int64_t)tp_size * cp_size * pp_size, ranks = dp_size ? dp_size * model : model;

    if (n % ranks || (dp_size && ranks != n))
        fail_usage("--tp %d x --cp %d x --pp %d%s are %lld ranks, and %d were started; start %s%lld, or choose factors "
                   "of %d", tp_size, cp_size, pp_size, dp_size ? " x --dp" : "", (long long)ranks, n,
                   dp_size ? "" : "a multiple of ", (long long)ranks, n);
    dp_size = n / model, dp_rank = w / model;
    const int t = w % tp_size, c = w / tp_size % cp_size, p = w / tp_size / cp_size % pp_size;
    const bool an_end = pp_size > 1 && (p == 0 || p == pp_size - 1);
    tp = comm_split(world, (dp_rank * pp_size + p) * cp_size + c, "tp");
    cp = comm_split(world, (dp_rank * pp_size + p) * tp_size + t, "cp");
    pp = comm_split(world, (dp_rank * cp_size + c) * tp_size + t, "pp");
    replicas = comm_split(world, p * tp_size + t, "replicas");
    tied = comm_split(world, an_end ? (dp_rank * cp_size + c) * tp_size + t : -1, "tied");
}

static void sizes(void)
{
    const Config *c = &options.config;
    const Range layers = comm_part(pp, c->layers);
    const int p = comm_rank(pp), m = options.accumulate;

    if (c->layers < pp_size)
        fail("--layers %d cannot be divided over --pp %d stages: each needs one or more", c->layers, pp_size);
    if (c->vocab < tp_size)
        fail("--vocab %d cannot be divided over --tp %d ranks: each needs a token or more", c->vocab, tp_size);
    held = cp_size > 1 ? 2 : 1;                             /* one rank has nothing to balance */
    if (c->seq % (held * cp_size))
        fail("--seq %d cannot be cut into %d chunks, %d for each of --cp %d; %d can", c->seq, held * cp_size, held,
             cp_size, (c->seq / (held * cp_size) + 1) * held * cp_size);
    C = c->seq / (held * cp_size);
    B = options.micro_batch, T = held * C;
    R = equal_share(B * T, tp_size, "--tp: --micro-batch x --seq / --cp =");
    begin = layers.first, end = layers.first + layers.count;
    L = c->layers, H = c->hidden, A = equal_share(c->heads, tp_size, "--tp: --heads"), D = H / c->heads;
    F = 4 * H / tp_size, V = comm_part(tp, c->vocab).count;
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
        fail("%s computes no bf16, which needs compute capability 8.0", device_name());
    run_matmuls_in(dtype);
}

/* Which elements of a unit this rank updates. */
static Range own_part(int64_t unit_count)
{
    return zero ? comm_part(replicas, unit_count) : (Range){0, unit_count};
}

/* Recomputation is sharing: what a block doesn't keep, all blocks write to the first one's buffer. */
static BlockActs block_acts_create(Category category, const BlockActs *first)
{
    BlockActs a = first ? *first : (BlockActs){0};

    if (!first || options.recompute != RECOMPUTE_FULL) {
        a.ln1 = tensor_create(category, dtype, "ln1", shape(R, H));
        a.ln1_stats = tensor_create(category, REAL, "ln1_stats", shape(R, 2));
        a.qkv = tensor_create(category, dtype, "qkv", shape(B, T, 3 * A * D));
        a.lse = tensor_create(category, REAL, "attention_lse", shape(B * T * A));
        a.heads = tensor_create(category, dtype, "heads", shape(B, T, A * D));
        a.mid = tensor_create(category, dtype, "mid", shape(R, H));
        a.ln2 = tensor_create(category, dtype, "ln2", shape(R, H));
        a.ln2_stats = tensor_create(category, REAL, "ln2_stats", shape(R, 2));
        a.up = tensor_create(category, dtype, "up", shape(B, T, F));
        a.gelu = tensor_create(category, dtype, "gelu", shape(B, T, F));
    }
    if (!first)
        a.branch = tensor_create(MEM_WORKSPACE, dtype, "branch", shape(R, H));
    return a;
}

static Acts acts_create(const BlockActs *first)
{
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs))};

    a.d_x = tensor_create(MEM_ACTIVATIONS, dtype, "d_x", shape(R, H));
    a.batch = (Batch){tensor_create(MEM_WORKSPACE, I32, "inputs", shape(held * B, C)),
                      tensor_create(MEM_WORKSPACE, I32, "targets", shape(held * B, C))};
    for (int l = begin; l < end; l++) {
        a.x[l + 1] = tensor_create(MEM_ACTIVATIONS, dtype, "x", shape(R, H));
        a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, l > begin && !first ? &a.blocks[begin] : first);
    }
    return a;
}

/* What the memory account must find, to the byte. The playbook's formula is printed beside it. */
static void predict(void)
{
    const double real = dtype_size(REAL), small = dtype_size(dtype);
    const bool full = options.recompute == RECOMPUTE_FULL;
    const Place here = {.B = B, .T = T, .R = R, .H = H, .A = A, .D = D, .F = F, .V = V, .S = S, .layers = end - begin,
                        .first = begin == 0, .last = end == L, .in_flight = in_flight, .tp = tp_size, .cp = cp_size,
                        .replica = comm_rank(replicas), .replicas = comm_size(replicas), .zero = zero,
                        .recompute = full, .stored = small, .real = real, .master = has_master};
    const double N = local_elements(&here), own = updated_elements(&here), kept = (double)in_flight * (end - begin) * R;
    double bytes[MEM_CATEGORIES];

    memory_of_place(&here, bytes);
    for (int c = 0; c < MEM_CATEGORIES; c++)
        memory_predict(c, bytes[c]);

    memory_playbook(MEM_PARAMETERS, small * N, dtype == REAL ? "4 N, N: here" : "2 N, N: here");
    if (has_master)
        memory_playbook(MEM_MASTER, real * own, zero ? "4 N / (d c)" : "4 N");
    memory_playbook(MEM_GRADIENTS, real * N, "4 N");
    memory_playbook(MEM_OPTIMIZER, real * 2 * own, zero ? "8 N / (d c)" : "8 N");
    memory_playbook(MEM_ACTIVATIONS, kept * H * (full ? 2 : 34),
                    full ? "L s b h 2 / (t c), L: in flight" : "L s b h 34 / (t c), L: in flight");

    /* What is sent in a step, by this rank's place on the grid. */
    const int64_t m = options.accumulate, again = full, layers = here.layers, first = here.first, last = here.last;
    const int64_t rows = B * T * H, kv = 2 * B * T * A * D, one = block_elements(&here);
    if (tp_size > 1) {                          /* f and g twice a block; f's input and g's gradient again, backward */
        comm_predict_as(tp, ALL_GATHER, dtype, m * (layers * (2 + 2 * again + 4) + first + last), rows);
        comm_predict_as(tp, REDUCE_SCATTER, dtype, m * (layers * (2 + 2 * again + 2) + first + last), rows);
        comm_predict(tp, ALL_REDUCE, layers, 6 * H);                    /* uncut parameters' gradients */
        comm_predict(tp, ALL_REDUCE, last, 2 * H);
    }
    for (int64_t row = 0; row < B * T && last; row += S) {              /* the loss, slice by slice: max, sums */
        comm_predict(tp, ALL_REDUCE, m, B * T - row < S ? B * T - row : S);
        comm_predict(tp, ALL_REDUCE, m, 2 * (B * T - row < S ? B * T - row : S));
    }
    if (cp_size > 1) {                          /* K, V both ways; dK, dV one hop more, to get home */
        comm_predict_as(cp, SHIFT, dtype, m * layers * ((2 + again) * (cp_size - 1) + cp_size), kv);
    }
    comm_predict_as(pp, SEND, dtype, m * (!first + !last), R * H);
    const struct { int64_t count, units; } units[] = {{H * V, first || last}, {one, layers}, {2 * H, last}};
    for (int i = 0; i < 3; i++) {
        comm_predict(replicas, zero ? REDUCE_SCATTER : ALL_REDUCE, units[i].units, units[i].count);
        comm_predict_as(replicas, ALL_GATHER, dtype, zero ? units[i].units : 0, units[i].count);
    }
    if (tied)
        comm_predict(tied, ALL_REDUCE, 1, own_part(H * V).count);
    memory_plan();
}

/* ---- tp: into and out of the regions where every rank has a slice of the matrices (05) ---- */

/* f, into a region: every rank reads all rows. Backward, the ranks' shares of the gradient add up. */
static Tensor f_forward(Tensor x)
{
    if (tp_size > 1)
        comm_all_gather(tp, whole, x);
    return tp_size > 1 ? whole : x;
}

static Request *f_backward(Tensor d_x)          /* only starts: there is something to compute meanwhile */
{
    return tp_size > 1 ? comm_start_reduce_scatter(tp, d_x, partial) : NULL;
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

/* Where a region writes its share of t: beside it, as t has only our rows. */
static Tensor share(Tensor t)
{
    return tp_size > 1 ? partial : t;
}

/* ---- cp: attention, the one place where tokens meet (07) ---- */

/* Which chunk of the sequence is a rank's i-th: one from either end, which adds up to the same work for all. */
static int chunk_number(int rank, int i)
{
    return i ? 2 * cp_size - 1 - rank : rank;
}

/* The i-th chunk of q, k, v, heads or their gradients: (B, C, A, D); of lse: the same with D = 1. */
static Tensor chunk(Tensor t, int i)
{
    return tensor_range(tensor_view(t, shape(held * B, C, A, tensor_count(t) / (B * T * A))), i * B, B);
}

/* What the keys of one rank give to this one's queries, chunk by chunk, merged into what others gave before. Keys that
 * come after all the queries are skipped: the mask would leave nothing of them. */
static void attend(BlockActs *a, Tensor kv, int keys_of)
{
    Tensor q = tensor_range(split, 0, 1), k = tensor_range(kv, 0, 1), v = tensor_range(kv, 1, 1);

    for (int i = 0; i < held; i++)
        for (int j = 0; j < held; j++) {
            const int query = chunk_number(comm_rank(cp), i), key = chunk_number(keys_of, j);
            if (key <= query)
                flash_block_forward(chunk(merged, i), chunk(a->lse, i), chunk(q, i), chunk(k, j), chunk(v, j),
                                    key == query);
        }
}

/* The same chunks backward: adds to dQ, dK and dV in d_split, of which the last two are of those keys. */
static void attend_backward(BlockActs *a, BlockActs *d, Tensor kv, int keys_of)
{
    Tensor q = tensor_range(split, 0, 1), k = tensor_range(kv, 0, 1), v = tensor_range(kv, 1, 1);
    Tensor d_q = tensor_range(d_split, 0, 1), d_k = tensor_range(d_split, 1, 1), d_v = tensor_range(d_split, 2, 1);

    for (int i = 0; i < held; i++)
        for (int j = 0; j < held; j++) {
            const int query = chunk_number(comm_rank(cp), i), key = chunk_number(keys_of, j);
            if (key <= query)
                flash_block_backward(chunk(d_q, i), chunk(d_k, j), chunk(d_v, j), chunk(d->heads, i), chunk(q, i),
                                     chunk(k, j), chunk(v, j), chunk(a->lse, i), chunk(d->lse, i), key == query);
        }
}

/* n steps; in each, K and V of one rank are here, and those of the rank before it arrive while we compute. */
static void ring_forward(BlockActs *a)
{
    const int n = cp_size, r = comm_rank(cp);
    Tensor kv[2] = {tensor_range(split, 1, 2), kv_next};

    for (int step = 0; step < n; step++) {
        Tensor here = kv[step % 2], next = kv[(step + 1) % 2];
        Request *arriving = step < n - 1 ? comm_start_shift(cp, next, here) : NULL;
        attend(a, here, (r - step + n) % n);
        comm_wait(&arriving);
    }
}

/* K and V go around again, and their gradients one step behind them. A rank computes its share apart while the shares
 * of the ranks before it arrive, adds them, and sends the sum on: after n hops it is at their owner. What is in flight is
 * stored as activations are: rounded once a hop, which costs no accuracy beside the rounding of dQ, dK and dV. */
static void ring_backward(BlockActs *a, BlockActs *d)
{
    const int n = cp_size, r = comm_rank(cp);
    Tensor kv[2] = {tensor_range(split, 1, 2), kv_next}, d_kv = tensor_range(d_split, 1, 2);
    Request *d_arriving = NULL;

    for (int step = 0; step < n; step++) {
        Tensor here = kv[step % 2], next = kv[(step + 1) % 2];
        Request *arriving = step < n - 1 ? comm_start_shift(cp, next, here) : NULL;
        tensor_zero(d_kv);
        attend_backward(a, d, here, (r - step + n) % n);
        comm_wait(&arriving);
        comm_wait(&d_arriving);
        if (step > 0)
            tensor_add(d_kv, d_arrived);
        tensor_convert(d_leaving, d_kv);
        d_arriving = comm_start_shift(cp, d_arrived, d_leaving);
    }
    comm_wait(&d_arriving);
}

/* From a->qkv to a->heads and a->lse. */
static void context_attention_forward(BlockActs *a)
{
    if (cp_size == 1) {
        flash_attention_forward(a->heads, tensor_view(a->lse, shape(B, A, T)), a->qkv);
        return;
    }
    /* qkv has q, k, v of each head of each token; what travels has to be all of k and all of v */
    transpose_rows(tensor_view(split, shape(3, B * T * A, D)), tensor_view(a->qkv, shape(B * T * A, 3, D)));
    tensor_zero(merged);
    tensor_fill(a->lse, -INFINITY);
    ring_forward(a);
    tensor_convert(a->heads, merged);
}

/* From d->heads to d->qkv. */
static void context_attention_backward(BlockActs *a, BlockActs *d)
{
    if (cp_size == 1) {
        flash_attention_backward(d->qkv, tensor_view(d->lse, shape(B, A, T)), d->heads, a->qkv, a->heads,
                                 tensor_view(a->lse, shape(B, A, T)));
        return;
    }
    transpose_rows(tensor_view(split, shape(3, B * T * A, D)), tensor_view(a->qkv, shape(B * T * A, 3, D)));
    attention_dots(tensor_view(d->lse, shape(B * T, A)), d->heads, a->heads);
    tensor_zero(tensor_range(d_split, 0, 1));
    ring_backward(a, d);
    tensor_convert(tensor_range(split, 0, 1), tensor_range(d_split, 0, 1));     /* nobody needs q, k, v any more */
    tensor_copy(tensor_range(split, 1, 2), d_arrived);
    transpose_rows(tensor_view(d->qkv, shape(B * T * A, 3, D)), tensor_view(split, shape(3, B * T * A, D)));
}

/* ---- A block, as in 05, with 08's kernels ---- */

/* One transformer block: from the residual stream x to out, both (R, H). */
static void block_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    layernorm_forward(a->ln1, a->ln1_stats, x, w->ln1_weight, w->ln1_bias);
    linear_forward(a->qkv, f_forward(a->ln1), w->qkv_weight, w->qkv_bias);
    rope_forward(a->qkv, rope);
    context_attention_forward(a);
    linear_forward(share(a->branch), a->heads, w->proj_weight, NONE);
    g_forward(a->branch);

    residual_layernorm_forward(a->mid, a->ln2, a->ln2_stats, x, a->branch, w->proj_bias, w->ln2_weight, w->ln2_bias);
    Tensor in = f_forward(a->ln2);
    if (gelu_is_fused) {
        linear_gelu_forward(a->gelu, a->up, in, w->up_weight, w->up_bias);
    } else {
        linear_forward(a->up, in, w->up_weight, w->up_bias);
        gelu_forward(a->gelu, a->up);
    }
    linear_forward(share(a->branch), a->gelu, w->down_weight, NONE);
    g_forward(a->branch);
    residual_forward(out, a->mid, a->branch, w->down_bias);
}

/* The same list in reverse. d_x comes in as the gradient of the block's output and leaves as that of its input x: each
 * half adds its share to the residual's. w parameters, g their gradients, a the activations, d their gradients. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    Request *sum;

    residual_backward(g->down_bias, d_x);
    Tensor d_out = g_backward(d_x);
    linear_backward_weight(g->down_weight, NONE, d_out, a->gelu);
    if (gelu_is_fused) {
        linear_gelu_backward(d->up, d_out, w->down_weight, a->up);
    } else {
        linear_backward_input(d->gelu, d_out, w->down_weight);
        gelu_backward(d->up, d->gelu, a->up);
    }
    linear_backward_input(share(d->ln2), d->up, w->up_weight);
    Tensor in = f_forward(a->ln2);              /* before the sum starts: a gather would wait behind it */
    sum = f_backward(d->ln2);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, in);
    comm_wait(&sum);
    residual_layernorm_backward(d_x, g->proj_bias, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats,
                                w->ln2_weight);

    d_out = g_backward(d_x);
    linear_backward_input(d->heads, d_out, w->proj_weight);
    linear_backward_weight(g->proj_weight, NONE, d_out, a->heads);
    context_attention_backward(a, d);
    rope_backward(d->qkv, rope);
    linear_backward_input(share(d->ln1), d->qkv, w->qkv_weight);
    in = f_forward(a->ln1);
    sum = f_backward(d->ln1);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, in);
    comm_wait(&sum);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* The output projection and the loss of S rows at a time, over all slices of the vocabulary, and at once their
 * gradients: of all rows together the logits never are there (08). gradient_scale 0: no gradients. */
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
        linear_backward_input(tensor_range(share(d_final), first, rows), z, params.embedding);
        linear_backward_weight(gradients.embedding, NONE, z, tensor_range(in, first, rows));
    }
    Request *sum = gradient_scale == 0 ? NULL : f_backward(d_final);
    comm_wait(&sum);
}

/* This stage's layers: from tokens or the x that arrived, to the x to send or the share of the step's loss. */
static void forward(Acts *a, double scale, double gradient_scale)
{
    const Params *w = &params;

    if (begin == 0) {
        ids_in_slice(a->batch.inputs, a->batch.inputs, layout.first_id, V);     /* -1: another rank's */
        embedding_forward(share(a->x[0]), a->batch.inputs, w->embedding);
        g_forward(a->x[0]);
    }
    for (int l = begin; l < end; l++)
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    if (end < L)
        return;
    ids_in_slice(a->batch.targets, a->batch.targets, layout.first_id, V);
    layernorm_forward(final, final_stats, a->x[L], w->final_weight, w->final_bias);
    head(a->batch, scale, gradient_scale);
}

/* Behind the last backward through a unit: what of its gradient this rank has not seen starts to come. Rows of other tp
 * ranks, for what isn't cut: a few numbers, so wait. Then other tokens and sequences, of cp and dp as one group: large,
 * and on its way while the units before this one still compute (03). */
static void reduce_begin(int u)
{
    Tensor unit = tensor_range(gradients.buffer, layout.units[u].first, layout.units[u].count);

    if (tp_size > 1 && u > 0)
        comm_all_reduce(tp, u <= L ? gradients.blocks[u - 1].uncut : gradients.final, SUM);
    reducing[u] = zero ? comm_start_reduce_scatter(replicas, parts[u].gradients, unit)
                       : comm_start_all_reduce(replicas, unit, SUM);
}

/* At last the embedding's other use, at the other end of the pipeline. Of two numbers the sum is the same in either
 * order, so both ends' copies stay equal to the last bit. */
static void reduce_end(void)
{
    for (int u = 0; u < L + 2; u++)
        comm_wait(&reducing[u]);
    if (tied)
        comm_all_reduce(tied, parts[0].gradients, SUM);
}

/* Adds this micro-batch's gradients to the step's, of this stage's layers. */
static void backward(Acts *a, bool last)
{
    const Params *w = &params, *g = &gradients;

    if (end == L) {                             /* where each forward's backward follows at once: d_final is head's */
        tensor_zero(a->d_x);
        layernorm_backward(a->d_x, g->final_weight, g->final_bias, d_final, a->x[L], final_stats, w->final_weight);
        if (last)
            reduce_begin(L + 1);
        if (last && begin > 0)
            reduce_begin(0);                    /* head has added to it for the last time */
    }
    for (int l = end - 1; l >= begin; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, a->d_x, a->x[l]);
        if (last)
            reduce_begin(l + 1);
    }
    if (begin == 0) {
        embedding_backward(g->embedding, g_backward(a->d_x), a->batch.inputs);
        if (last)
            reduce_begin(0);
    }
}

/* ---- pp: one forward, one backward (06) ---- */

typedef struct {
    bool back;
    int micro;
} Action;

/* The i-th of this stage's 2 * accumulate calls: forwards until the first d_x can be there, then a forward and a
 * backward in turn, then the backwards that are left. */
static Action action_of(int i)
{
    const int m = options.accumulate, stages_behind = pp_size - 1 - comm_rank(pp);
    const int warmup = stages_behind < m ? stages_behind : m, k = i - warmup;

    if (i < warmup)
        return (Action){false, i};
    if (i >= 2 * m - warmup)
        return (Action){true, i - m};
    return k % 2 ? (Action){true, k / 2} : (Action){false, warmup + k / 2};
}

static Tensor inbox_of(Action action)
{
    return inbox[action.micro % (in_flight + 1)];
}

/* A message is known by what it carries: x (back 0) or d_x (1) of this micro-batch, into this stage. Long before a tag
 * repeats, the message that had the same one has arrived. */
static int tag(int micro, int stage, int back)
{
    return (micro % 1024 * pp_size + stage) * 2 + back;
}

/* Starts to receive what an action needs, one action ahead, so that it arrives during the one before. */
static void receive(Action action)
{
    const int stage = comm_rank(pp);
    Acts *a = &acts[action.micro % in_flight];

    if (!action.back && begin > 0)
        a->receiving[0] = comm_start_recv(pp, inbox_of(action), stage - 1, tag(action.micro, stage, 0));
    if (action.back && end < L) {
        comm_wait(&a->sending[1]);              /* of the micro-batch that was here before */
        a->receiving[1] = comm_start_recv(pp, a->d_x, stage + 1, tag(action.micro, stage, 1));
    }
}

/* Ids and targets of our i-th chunk of each sequence. */
static Batch chunk_of(Batch batch, int i)
{
    return (Batch){tensor_range(batch.inputs, i * B, B), tensor_range(batch.targets, i * B, B)};
}

/* Sends and receives are only started here; what is waited for is always something that another rank has started, or
 * starts one action ahead. */
static void execute(int64_t step, double scale)
{
    const int m = options.accumulate, stage = comm_rank(pp);

    receive(action_of(0));
    for (int i = 0; i < 2 * m; i++) {
        const Action action = action_of(i);
        Acts *a = &acts[action.micro % in_flight];

        if (i + 1 < 2 * m)
            receive(action_of(i + 1));
        if (!action.back) {
            for (int k = 0; k < held; k++)
                batch_load(chunk_of(a->batch, k), step, ((int64_t)dp_rank * m + action.micro) * B,
                           C * chunk_number(comm_rank(cp), k));
            comm_wait(&a->receiving[0]);
            a->x[begin] = inbox_of(action);
            trace_begin("forward");
            forward(a, scale, scale);
            trace_end();
            if (end < L)
                a->sending[0] = comm_start_send(pp, a->x[end], stage + 1, tag(action.micro, stage + 1, 0));
        } else {
            comm_wait(&a->receiving[1]);
            comm_wait(&a->sending[0]);          /* x[end] may be written again, now or by the next forward here */
            comm_wait(&a->sending[1]);          /* of the micro-batch that was here before */
            trace_begin("backward");
            backward(a, action.micro == m - 1);
            trace_end();
            if (begin > 0)
                a->sending[1] = comm_start_send(pp, a->d_x, stage - 1, tag(action.micro, stage - 1, 1));
        }
    }
    for (int i = 0; i < in_flight; i++)
        for (int k = 0; k < 2; k++)
            comm_wait(&acts[i].sending[k]);
}

/* ---- A step ---- */

static void gather_params(void)
{
    for (int u = 0; u < L + 2 && zero; u++)
        if (layout.units[u].count) {
            Tensor unit = tensor_range(params.buffer, layout.units[u].first, layout.units[u].count);
            const Range own = own_part(tensor_count(unit));
            comm_all_gather(replicas, unit, tensor_range(unit, own.first, own.count));
        }
}

/* One optimizer step over the global batch: micro_batch * accumulate * dp_size sequences. */
static StepResult train_step(int64_t step)
{
    /* The loss is the mean over the global batch's tokens, so every micro-batch, whatever its size
     * and wherever it is computed, is divided by the same count. */
    const double scale = 1.0 / ((double)B * options.config.seq * options.accumulate * dp_size);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    execute(step, scale);
    reduce_end();
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(world, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(world, comm_rank(tp) ? 0 : tensor_item(loss));      /* all of a tp group have the same */
    adamw_step(&optimizer, lr, clip_scale(norm));
    gather_params();
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

/* text_evaluate() for a pipeline of chunks: one micro-batch after the other through all stages, each rank's share of
 * the same loss; the same on all of dp. */
static void evaluate(void)
{
    const int stage = comm_rank(pp);
    const Action action = {false, 0};
    Acts *a = &acts[0];

    tensor_zero(loss);
    for (int64_t i = 0; i < text_pieces(); i++) {
        for (int k = 0; k < held; k++)
            batch_held_out(chunk_of(a->batch, k), i, text_pieces(), C * chunk_number(comm_rank(cp), k));
        receive(action);
        comm_wait(&a->receiving[0]);
        a->x[begin] = inbox_of(action);
        forward(a, 1.0 / ((double)B * options.config.seq * dp_size), 0);
        if (end < L)
            a->sending[0] = comm_start_send(pp, a->x[end], stage + 1, tag(0, stage + 1, 0));
        comm_wait(&a->sending[0]);
    }
    run_held_out(comm_sum(world, comm_rank(tp) ? 0 : tensor_item(loss)) / text_pieces());
}

/* Makes the buffers of parameters and what goes with them, and says what of each unit this rank updates. */
static void parameters_create(void)
{
    bool *here = calloc(L, sizeof(bool));
    int64_t own = 0, at = 0;

    for (int l = begin; l < end; l++)
        here[l] = true;
    layout = layout_create(options.config, (Shard){
        .slice = comm_rank(tp), .slices = tp_size, .layer = here, .embedding = begin == 0, .head = end == L,
        .replica = zero ? 0 : comm_rank(replicas)});        /* with ZeRO each owns what it updates */
    for (int u = 0; u < L + 2; u++)
        own += own_part(layout.units[u].count).count;
    params = params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)));
    gradients = params_view(&layout, tensor_create(MEM_GRADIENTS, REAL, "gradients", shape(layout.count)));
    Tensor master = has_master ? tensor_create(MEM_MASTER, REAL, "master", shape(own)) : NONE;
    Tensor m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(own));
    Tensor v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(own));
    parts = calloc(L + 2, sizeof(Part));
    reducing = calloc(L + 2, sizeof(Request *));
    for (int u = 0; u < L + 2; u++) {
        const Range p = own_part(layout.units[u].count);
        const int64_t first = layout.units[u].first + p.first;
        Tensor stored = tensor_range(params.buffer, first, p.count);
        parts[u] = (Part){.first = first,
                          .params = has_master ? tensor_range(master, at, p.count) : stored,
                          .copy = has_master ? stored : NONE,
                          .gradients = tensor_range(gradients.buffer, first, p.count),
                          .m = tensor_range(m, at, p.count),
                          .v = tensor_range(v, at, p.count)};
        at += p.count;
    }
    optimizer = (AdamW){.layout = &layout, .parts = parts, .count = L + 2, .gathered = zero ? params.buffer : NONE};
}

static void buffers_create(void)
{
    d_block = block_acts_create(MEM_WORKSPACE, NULL);
    acts = calloc(in_flight, sizeof(Acts));
    for (int i = 0; i < in_flight; i++)
        acts[i] = acts_create(i ? &acts[0].blocks[begin] : NULL);
    inbox = calloc(in_flight + 1, sizeof(Tensor));
    for (int i = 0; i <= in_flight; i++)
        inbox[i] = tensor_create(MEM_COMMUNICATION, dtype, "inbox", shape(R, H));
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
        whole = tensor_create(MEM_COMMUNICATION, dtype, "whole", shape(B * T, H));
        partial = tensor_create(MEM_COMMUNICATION, dtype, "partial", shape(B * T, H));
    }
    if (cp_size > 1) {
        split = tensor_create(MEM_WORKSPACE, dtype, "split", shape(3, B * T, A * D));
        d_split = tensor_create(MEM_WORKSPACE, REAL, "d_split", shape(3, B * T, A * D));
        merged = tensor_create(MEM_WORKSPACE, REAL, "merged", shape(B * T, A * D));
        kv_next = tensor_create(MEM_COMMUNICATION, dtype, "kv_next", shape(2, B * T, A * D));
        d_arrived = tensor_create(MEM_COMMUNICATION, dtype, "d_arrived", shape(2, B * T, A * D));
        d_leaving = tensor_create(MEM_COMMUNICATION, dtype, "d_leaving", shape(2, B * T, A * D));
    }
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(B * T, D));
    for (int i = 0; i < held; i++)
        for (int b = 0; b < B; b++)
            rope_table(tensor_range(rope, (i * B + b) * C, C), C * chunk_number(comm_rank(cp), i));
}

int main(int argc, char **argv)
{
    run_begin("09_combined", "Trains a transformer on a grid of ranks.", argc, argv,
              (StageOption[]){
        {"tp", OPTION_INT, &tp_size, "ranks that share every matrix", "N", 1, 65536},
        {"cp", OPTION_INT, &cp_size, "ranks that share every sequence", "N", 1, 65536},
        {"pp", OPTION_INT, &pp_size, "stages of layers", "N", 1, 65536},
        {"dp", OPTION_INT, &dp_size, "ranks that share the batch; 0: all that the others leave", "N", 0, 65536},
        {"zero", OPTION_INT, &zero, "1: each replica updates and keeps the states of a part", "N", 0, 1},
        {"dtype", OPTION_CHOICE, &dtype_option, "of activations and weights", "bf16|fp32"},
        {0}});
    grid();
    sizes();
    run_global_batch(B * options.accumulate * dp_size);
    dtypes();
    predict();
    parameters_create();
    buffers_create();

    int step = run_load(&optimizer);            /* initial weights, or those of --load */
    for (int u = 0; u < L + 2 && has_master; u++)
        if (tensor_count(parts[u].copy))
            tensor_convert(parts[u].copy, parts[u].params);
    gather_params();
    while (run_continues(step)) {
        StepResult result = train_step(step);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            evaluate();
    }
    report_number("in_flight", in_flight);
    run_end();
}
