/* 06_pipeline_parallel: 01 with its layers divided over the ranks.
 *
 * forward and backward work on one micro-batch and one chunk of layers. A schedule is a list of such
 * calls, made from counts alone; execute() goes through it, receiving before each call and sending
 * after it.
 */
#include <stdio.h>
#include <string.h>

#include "../common/ultrascale.h"

static Layout layout;               /* which parameter lies where in a flat buffer */
static Params params, gradients;    /* views of the two buffers */
static AdamW optimizer;
static Comm *pp, *tied;             /* all ranks; the first and the last, which share the embedding */
typedef enum { AFAB, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE } ScheduleKind;
static ScheduleKind schedule_kind = ONE_F_ONE_B;
static int chunks = 1;              /* of layers, on each rank */
static bool print_schedule;
static double idle, busy;           /* seconds of this rank in all steps but the first */

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
    int begin, end;                 /* the chunk's layers; x and blocks are indexed by the whole model's */
    BlockActs *d;                   /* L, gradients; a block's own only where weights' gradients wait (zero-bubble) */
    Tensor d_x;                     /* (R, H)  of the residual stream */
    Batch batch;
    Request *receiving[2], *sending[2];     /* x forward, d_x back */
} Acts;

static Acts **acts;                 /* [chunk][micro-batch % in_flight] */
static int *in_flight;              /* [chunk]  micro-batches whose activations are kept at once */
static Tensor **inbox;              /* [chunk][in_flight + 1]  x as it arrives, one ahead of what is in flight */
static BlockActs d_block;           /* gradients of one block's activations, for every block in turn */
static Tensor d_final;              /* (R, H)  of the last LayerNorm's output */
static Tensor rope;                 /* (T, D)  cos and sin of each position */
static Tensor loss;                 /* (1)     of the step, summed over its micro-batches, on the device */

static void sizes(void)
{
    const Config *c = &options.config;
    B = options.micro_batch, T = c->seq, R = B * T;
    L = c->layers, H = c->hidden, A = c->heads, D = H / A, F = 4 * H, V = c->vocab;
}

/* ---- Schedules: lists of calls, made from rank and counts alone ---- */

typedef enum { FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } ActionKind;
typedef struct {
    ActionKind kind;
    int micro, chunk;
} Action;
typedef struct {
    Action *list;
    int count, most;
} Schedule;

static void then(Schedule *s, ActionKind kind, int micro, int chunk)
{
    if (s->count == s->most)
        fail("this schedule has more than %d actions: a micro-batch has at most three in each chunk", s->most);
    s->list[s->count++] = (Action){kind, micro, chunk};
}

/* All forward, all backward (GPipe, Huang et al. 2019). */
static void afab(Schedule *s, int m)
{
    for (int i = 0; i < m; i++)
        then(s, FORWARD, i, 0);
    for (int i = 0; i < m; i++)
        then(s, BACKWARD, i, 0);
}

/* One forward, one backward (PipeDream-Flush, Narayanan et al. 2021a): each backward as soon as it can be. */
static void one_f_one_b(Schedule *s, int r, int p, int m)
{
    const int warmup = p - r - 1 < m ? p - r - 1 : m;

    for (int i = 0; i < warmup; i++)
        then(s, FORWARD, i, 0);
    for (int i = 0; i < m; i++) {
        if (warmup + i < m)
            then(s, FORWARD, warmup + i, 0);
        then(s, BACKWARD, i, 0);
    }
}

/* Rounds of p micro-batches through chunk 0, then the same p through chunk 1, ... (Narayanan et al. 2021b). */
static void interleaved(Schedule *s, int r, int p, int m, int v)
{
    const int total = m * v, most = 2 * (p - r - 1) + (v - 1) * p, warmup = most < total ? most : total;

    for (int f = 0, b = 0; b < total;) {
        if (f < total) {
            then(s, FORWARD, f / (p * v) * p + f % p, f / p % v);
            f++;
        }
        if (f > warmup || f == total) {
            then(s, BACKWARD, b / (p * v) * p + b % p, v - 1 - b / p % v);
            b++;
        }
    }
}

/* 1F1B whose weights' gradients come r micro-batches later, where 1F1B would wait (ZB-H1, Qi et al. 2023). */
static void zero_bubble(Schedule *s, int r, int p, int m)
{
    const int warmup = p - r - 1 < m ? p - r - 1 : m;
    int w = 0;

    for (int i = 0; i < warmup; i++)
        then(s, FORWARD, i, 0);
    for (int i = 0; i < m; i++) {
        if (warmup + i < m)
            then(s, FORWARD, warmup + i, 0);
        then(s, BACKWARD_INPUT, i, 0);
        if (i >= r)
            then(s, BACKWARD_WEIGHT, w++, 0);
    }
    while (w < m)
        then(s, BACKWARD_WEIGHT, w++, 0);
}

/* What rank r of p does in a step of m micro-batches, with v chunks of layers on each rank. */
static Schedule schedule_of(ScheduleKind kind, int r, int p, int m, int v)
{
    const size_t most = 3 * (size_t)m * v;
    Schedule s = {.list = most < INT32_MAX ? calloc(most, sizeof(Action)) : NULL, .most = most};

    if (!s.list)
        fail("no room for a schedule of %d micro-batches in %d chunks", m, v);
    switch (kind) {
    case AFAB:        afab(&s, m); break;
    case ONE_F_ONE_B: one_f_one_b(&s, r, p, m); break;
    case INTERLEAVED: interleaved(&s, r, p, m, v); break;
    case ZERO_BUBBLE: zero_bubble(&s, r, p, m); break;
    }
    return s;
}

/* All ranks' lists against a clock on which forward, the input's gradient and the weights' take one unit each, and
 * messages none. Returns the bubble: idle time over busy time. Draws a line a rank: digits are forwards of the
 * micro-batch, small letters backwards, capitals the weights' part where it comes later; below them their chunks. */
static double simulate(ScheduleKind kind, int p, int m, int v, bool draw)
{
    const int stages = p * v;
    const size_t width = draw ? 3 * (size_t)v * m * p : 1;          /* the longest: one rank after the other */
    int *end = calloc(2 * (size_t)stages * m, sizeof(int));         /* of F and B: when it ended, + 1 */
    int *clock = calloc(p, sizeof(int)), *next = calloc(p, sizeof(int)), last = 0;
    char *chart = malloc(2 * p * width);
    Schedule *s = calloc(p, sizeof(Schedule));

    if (!end || !clock || !next || !chart || !s)
        fail("no memory to simulate %d ranks and %d micro-batches", p, m);
    memset(chart, '.', 2 * p * width);
    for (int r = 0; r < p; r++)
        s[r] = schedule_of(kind, r, p, m, v);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++)
            while (next[r] < s[r].count) {
                const Action a = s[r].list[next[r]];
                const int stage = a.chunk * p + r;
                if (a.micro < 0 || a.micro >= m || a.chunk < 0 || a.chunk >= v)
                    fail("rank %d's action %d is of micro-batch %d in chunk %d: there are %d in %d", r, next[r],
                         a.micro, a.chunk, m, v);
                int *f = &end[(size_t)stage * m + a.micro], *b = f + (size_t)stages * m, began = 1;
                const int needed = a.kind == BACKWARD_WEIGHT ? *b
                                 : a.kind == FORWARD ? (stage > 0 ? f[-m] : began)
                                 : stage < stages - 1 ? b[m] : *f;
                if (!needed)
                    break;                                          /* another rank's turn */
                clock[r] = needed - 1 > clock[r] ? needed - 1 : clock[r];
                for (int k = 0; k < (a.kind == BACKWARD ? 2 : 1); k++, clock[r]++) {
                    if (!draw)
                        continue;
                    char *at = chart + 2 * r * width + clock[r];
                    at[0] = (a.kind == FORWARD ? '0' : a.kind == BACKWARD_WEIGHT ? 'A' : 'a') + a.micro % 10;
                    at[width] = '0' + a.chunk % 10;
                }
                if (a.kind != BACKWARD_WEIGHT)
                    *(a.kind == FORWARD ? f : b) = clock[r] + 1;
                last = clock[r] > last ? clock[r] : last;
                next[r]++;
                moved = true;
            }
    }
    for (int r = 0; r < p; r++) {
        if (next[r] < s[r].count)
            fail("this schedule waits for itself: rank %d cannot begin its action %d", r, next[r]);
        int units = 0;
        for (int i = 0; i < s[r].count; i++)
            units += s[r].list[i].kind == BACKWARD ? 2 : 1;
        if (units != 3 * m * v)
            fail("rank %d computes %d of a step's %d forwards, input gradients and weights' gradients", r, units,
                 3 * m * v);
        if (draw)
            printf("rank %-3d %.*s\n", r, last, chart + 2 * r * width);
        if (draw && v > 1)
            printf("  chunk  %.*s\n", last, chart + (2 * r + 1) * width);
        free(s[r].list);
    }
    free(end), free(clock), free(next), free(chart), free(s);
    return (last - 3.0 * m * v) / (3.0 * m * v);
}

/* The most micro-batches of a chunk whose activations are needed at once: from forward to the last backward. */
static int most_in_flight(Schedule s, int chunk)
{
    int now = 0, most = 0;

    for (const Action *a = s.list; a < s.list + s.count; a++)
        if (a->chunk == chunk && a->kind != BACKWARD_INPUT) {
            now += a->kind == FORWARD ? 1 : -1;
            most = now > most ? now : most;
        }
    return most;
}

/* Stage q of p * chunks has the layers from layers_before(q) to layers_before(q + 1); rank q % p has it. */
static int layers_before(int q)
{
    return range_part(L, q, comm_size(pp) * chunks).first;
}

/* Recomputation is sharing: what a block doesn't keep, all blocks write to the first one's buffer. */
static BlockActs block_acts_create(Category category, const BlockActs *first)
{
    BlockActs a = first ? *first : (BlockActs){0};

    if (!first || options.recompute != RECOMPUTE_FULL) {
        a.ln1 = tensor_create(category, REAL, "ln1", shape(R, H));
        a.ln1_stats = tensor_create(category, REAL, "ln1_stats", shape(R, 2));
        a.qkv = tensor_create(category, REAL, "qkv", shape(B, T, 3 * A * D));
        a.heads = tensor_create(category, REAL, "heads", shape(B, T, A * D));
        a.mid = tensor_create(category, REAL, "mid", shape(R, H));
        a.ln2 = tensor_create(category, REAL, "ln2", shape(R, H));
        a.ln2_stats = tensor_create(category, REAL, "ln2_stats", shape(R, 2));
        a.up = tensor_create(category, REAL, "up", shape(B, T, F));
        a.gelu = tensor_create(category, REAL, "gelu", shape(B, T, F));
    }
    if (!first || options.recompute == RECOMPUTE_NONE)
        a.probs = tensor_create(category, REAL, "probs", shape(B, A, T, T));
    if (!first)
        a.branch = tensor_create(MEM_WORKSPACE, REAL, "branch", shape(R, H));
    return a;
}

/* For one micro-batch in flight through the layers from begin to end. Its x[begin] is where it arrived. */
static Acts acts_create(int begin, int end, const BlockActs *first)
{
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs)), .begin = begin, .end = end};

    a.d = calloc(L, sizeof(BlockActs));
    a.d_x = tensor_create(MEM_ACTIVATIONS, REAL, "d_x", shape(R, H));
    a.batch = batch_create();
    for (int l = begin + 1; l <= end; l++)
        a.x[l] = tensor_create(MEM_ACTIVATIONS, REAL, "x", shape(R, H));
    for (int l = begin; l < end; l++) {
        a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, l > begin && !first ? &a.blocks[begin] : first);
        a.d[l] = d_block;
        if (schedule_kind == ZERO_BUBBLE) {             /* what block_backward_weight will read */
            a.d[l].branch = tensor_create(MEM_ACTIVATIONS, REAL, "d_branch", shape(R, H));
            a.d[l].mid = tensor_create(MEM_ACTIVATIONS, REAL, "d_mid", shape(R, H));
            a.d[l].up = tensor_create(MEM_ACTIVATIONS, REAL, "d_up", shape(B, T, F));
            a.d[l].qkv = tensor_create(MEM_ACTIVATIONS, REAL, "d_qkv", shape(B, T, 3 * A * D));
        }
    }
    if (end < L)
        return a;
    a.final = tensor_create(MEM_ACTIVATIONS, REAL, "final", shape(R, H));
    a.final_stats = tensor_create(MEM_ACTIVATIONS, REAL, "final_stats", shape(R, 2));
    a.logits = tensor_create(MEM_ACTIVATIONS, REAL, "logits", shape(B, T, V));
    a.lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(B, T));
    return a;
}

/* What the memory account must find, to the byte. The playbook's formula is printed beside it. */
static void predict(void)
{
    const int p = comm_size(pp), r = comm_rank(pp), m = options.accumulate;
    const double real = dtype_size(REAL);
    const double block = R * (3 * H + 4) + B * T * (4 * A * D + 2 * F);     /* linear in T */
    const double scores = B * A * T * T;                                    /* quadratic */
    const double delayed = schedule_kind == ZERO_BUBBLE ? 2 * R * H + B * T * (F + 3 * A * D) : 0;
    double N = r == 0 || r == p - 1 ? H * V : 0;                            /* the embedding, as input or output */
    double kept = 0, alive = 0, arriving = 0;   /* blocks x micro-batches in flight; the latter; receive buffers */

    for (int c = 0; c < chunks; c++) {
        const int q = c * p + r, layers = layers_before(q + 1) - layers_before(q);
        N += layers * (12 * H * H + 13 * H);
        kept += in_flight[c] * layers;
        alive += in_flight[c];
        arriving += in_flight[c] + 1;
        comm_predict(pp, SEND, m * ((q < p * chunks - 1) + (q > 0)), R * H);
    }
    N += r == p - 1 ? 2 * H : 0;
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : kept;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? kept : 1;
    const double head = r == p - 1 ? in_flight[chunks - 1] * (R * (H + 2) + B * T * (V + 1)) : 0;

    memory_predict(MEM_PARAMETERS, real * N);
    memory_predict(MEM_GRADIENTS, real * N);
    memory_predict(MEM_OPTIMIZER, real * 2 * N);
    memory_predict(MEM_ACTIVATIONS, real * ((kept + alive) * R * H + blocks * block + quadratic * scores
                                            + kept * delayed + head));
    memory_predict(MEM_COMMUNICATION, real * arriving * R * H);
    /* d_block; branch twice, d_final; rope; the loss; the batches' two ids a token */
    memory_predict(MEM_WORKSPACE, real * (block + scores + 3 * R * H + T * D) + 8 + alive * 2 * 4 * B * T);
    if (tied)
        comm_predict(tied, ALL_REDUCE, 1, H * V);

    memory_playbook(MEM_PARAMETERS, real * N, "4 N, N: here");
    memory_playbook(MEM_GRADIENTS, real * N, "4 N");
    memory_playbook(MEM_OPTIMIZER, real * 2 * N, "8 N");
    switch (options.recompute) {
    case RECOMPUTE_NONE:
        memory_playbook(MEM_ACTIVATIONS, kept * R * (34.0 * H + 5.0 * A * T), "L s b h (34 + 5 a s / h), L: in flight");
        break;
    case RECOMPUTE_SELECTIVE:
        memory_playbook(MEM_ACTIVATIONS, kept * R * 34.0 * H, "L s b h 34, L: in flight");
        break;
    case RECOMPUTE_FULL:
        memory_playbook(MEM_ACTIVATIONS, kept * R * 2.0 * H, "L s b h 2, L: in flight");
        break;
    }
    memory_plan();
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
 * activations, d their gradients. The linears' parameters are left to block_backward_weight. */
static void block_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x, Tensor x)
{
    tensor_copy(d->branch, d_x);                /* for block_backward_weight: d_x itself goes on changing */
    residual_backward(g->down_bias, d_x);
    linear_backward_input(d->gelu, d_x, w->down_weight);
    gelu_backward(d->up, d->gelu, a->up);
    linear_backward_input(d->ln2, d->up, w->up_weight);
    layernorm_backward(d_x, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats, w->ln2_weight);

    tensor_copy(d->mid, d_x);                   /* likewise */
    residual_backward(g->proj_bias, d_x);
    linear_backward_input(d->heads, d_x, w->proj_weight);
    attention_backward(d->qkv, d->probs, d->heads, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    linear_backward_input(d->ln1, d->qkv, w->qkv_weight);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* The rest of it, which no other rank waits for. */
static void block_backward_weight(const BlockParams *g, BlockActs *a, BlockActs *d)
{
    linear_backward_weight(g->down_weight, NONE, d->branch, a->gelu);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, a->ln2);
    linear_backward_weight(g->proj_weight, NONE, d->mid, a->heads);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, a->ln1);
}

/* One chunk's layers: from tokens or the x that arrived, to the x to send or the share of the step's loss. */
static void forward(Acts *a, Batch batch, double scale)
{
    const Params *w = &params;

    if (a->begin == 0)
        embedding_forward(a->x[0], batch.inputs, w->embedding);
    for (int l = a->begin; l < a->end; l++)
        block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
    if (a->end < L)
        return;
    layernorm_forward(a->final, a->final_stats, a->x[L], w->final_weight, w->final_bias);
    linear_forward(a->logits, a->final, w->embedding, NONE);           /* tied with the embedding */
    cross_entropy_forward(loss, a->lse, a->logits, batch.targets, scale);
}

/* Adds this micro-batch's gradients to the step's, of the chunk's layers; those of linears now, or later by
 * backward_weight. */
static void backward(Acts *a, Batch batch, double scale, bool weights)
{
    const Params *w = &params, *g = &gradients;

    if (a->end == L) {
        cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
        linear_backward_input(d_final, a->logits, w->embedding);
        if (weights)
            linear_backward_weight(g->embedding, NONE, a->logits, a->final);
        tensor_zero(a->d_x);
        layernorm_backward(a->d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    }
    for (int l = a->end - 1; l >= a->begin; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE)
            attention_forward(a->blocks[l].heads, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &a->d[l], a->d_x, a->x[l]);
        if (weights)
            block_backward_weight(&g->blocks[l], &a->blocks[l], &a->d[l]);
    }
    if (a->begin == 0)
        embedding_backward(g->embedding, a->d_x, batch.inputs);
}

static void backward_weight(Acts *a)
{
    const Params *g = &gradients;

    if (a->end == L)
        linear_backward_weight(g->embedding, NONE, a->logits, a->final);
    for (int l = a->end - 1; l >= a->begin; l--)
        block_backward_weight(&g->blocks[l], &a->blocks[l], &a->d[l]);
}

static Acts *acts_of(Action action)
{
    return &acts[action.chunk][action.micro % in_flight[action.chunk]];
}

static Tensor inbox_of(Action action)
{
    return inbox[action.chunk][action.micro % (in_flight[action.chunk] + 1)];
}

/* A message is known by what it carries: x (back 0) or d_x (1) of this micro-batch, into this stage. Long before a tag
 * repeats, the message that had the same one has arrived. */
static int tag(int micro, int stage, int back)
{
    return (micro % 1024 * comm_size(pp) * chunks + stage) * 2 + back;
}

/* Starts to receive what an action needs, one action ahead, so that it arrives during the one before. */
static void receive(Action action)
{
    const int p = comm_size(pp), r = comm_rank(pp), stage = action.chunk * p + r;
    Acts *a = acts_of(action);

    if (action.kind == FORWARD && stage > 0)
        a->receiving[0] = comm_start_recv(pp, inbox_of(action), (r + p - 1) % p, tag(action.micro, stage, 0));
    if ((action.kind == BACKWARD || action.kind == BACKWARD_INPUT) && stage < p * chunks - 1) {
        comm_wait(&a->sending[1]);              /* of the micro-batch that was here before */
        a->receiving[1] = comm_start_recv(pp, a->d_x, (r + 1) % p, tag(action.micro, stage, 1));
    }
}

static void compute(Action action, Acts *a, double scale)
{
    static const char *const names[] = {"forward", "backward", "backward_input", "backward_weight"};

    trace_begin(names[action.kind]);
    if (action.kind == FORWARD)
        forward(a, a->batch, scale);
    else if (action.kind == BACKWARD_WEIGHT)
        backward_weight(a);
    else
        backward(a, a->batch, scale, action.kind == BACKWARD);
    trace_end();
}

/* A step lasts from when all ranks are ready until all are done: what this one doesn't compute of it, it is idle. */
static void measure(DeviceEvent *moment, int actions, double began)
{
    static bool warm;
    double sum = 0;

    for (int i = 0; i < actions; i++)
        sum += -device_event_seconds(&moment[2 * i]) + device_event_seconds(&moment[2 * i + 1]);
    comm_barrier(pp);
    idle += warm ? clock_seconds() - began - sum : 0;
    busy += warm ? sum : 0;
    warm = true;
}

/* Any schedule. Sends and receives are only started here; what is waited for is always something that another rank
 * has started, or starts one action ahead: so it cannot matter whether a send ends before its receive begins. */
static void execute(Schedule s, int64_t step, double scale)
{
    const int p = comm_size(pp), r = comm_rank(pp);
    DeviceEvent *moment = calloc(2 * (size_t)s.count, sizeof *moment);     /* begin and end of each action */

    if (!moment)
        fail("no memory to time %d actions", s.count);
    comm_barrier(pp);
    const double began = clock_seconds();
    receive(s.list[0]);
    for (int i = 0; i < s.count; i++) {
        const Action action = s.list[i];
        const bool back = action.kind == BACKWARD || action.kind == BACKWARD_INPUT;
        const int stage = action.chunk * p + r;
        Acts *a = acts_of(action);

        if (i + 1 < s.count)
            receive(s.list[i + 1]);
        if (action.kind == FORWARD) {
            comm_wait(&a->receiving[0]);
            a->x[a->begin] = inbox_of(action);
            batch_load(a->batch, step, action.micro * B, 0);
        } else if (back) {
            comm_wait(&a->receiving[1]);
            comm_wait(&a->sending[0]);          /* x[end] may be written again, now or by the next forward here */
            comm_wait(&a->sending[1]);          /* of the micro-batch that was here before */
        }
        moment[2 * i] = device_event();
        compute(action, a, scale);
        moment[2 * i + 1] = device_event();
        if (action.kind == FORWARD && a->end < L)
            a->sending[0] = comm_start_send(pp, a->x[a->end], (r + 1) % p, tag(action.micro, stage + 1, 0));
        if (back && a->begin > 0)
            a->sending[1] = comm_start_send(pp, a->d_x, (r + p - 1) % p, tag(action.micro, stage - 1, 1));
    }
    for (int c = 0; c < chunks; c++)
        for (int i = 0; i < in_flight[c]; i++)
            for (int k = 0; k < 2; k++)
                comm_wait(&acts[c][i].sending[k]);
    measure(moment, s.count, began);
    free(moment);
}

/* One optimizer step over the global batch: micro_batch * accumulate sequences. */
static StepResult train_step(int64_t step, Schedule schedule)
{
    /* The loss is the mean over the global batch's tokens, so every micro-batch, whatever its size
     * and wherever it is computed, is divided by the same count. */
    const double scale = 1.0 / (B * T * options.accumulate);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    execute(schedule, step, scale);
    if (tied)                                   /* each end has seen only its own use of the embedding */
        comm_all_reduce(tied, gradients.embedding, SUM);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(pp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(pp, tensor_item(loss));  /* here, so that the host need not wait for the update */
    adamw_step(&optimizer, lr, clip_scale(norm));
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

static void loss_of(Batch batch)      /* for evaluation: one micro-batch through all stages */
{
    const int p = comm_size(pp), r = comm_rank(pp);

    for (int c = 0; c < chunks; c++) {
        const Action action = {FORWARD, 0, c};
        Acts *a = acts_of(action);
        receive(action);
        comm_wait(&a->receiving[0]);
        a->x[a->begin] = inbox_of(action);
        forward(a, batch, 1.0 / (B * T));
        if (a->end < L)
            a->sending[0] = comm_start_send(pp, a->x[a->end], (r + 1) % p, tag(0, c * p + r + 1, 0));
        comm_wait(&a->sending[0]);
    }
    comm_broadcast(pp, loss, p - 1);
}

int main(int argc, char **argv)
{
    run_begin("06_pipeline_parallel", "Trains a transformer with its layers divided over the ranks.", argc, argv,
              (StageOption[]){
        {"schedule", OPTION_CHOICE, &schedule_kind, "order of forwards and backwards",
         "afab|1f1b|interleaved|zero-bubble"},
        {"chunks", OPTION_INT, &chunks, "of layers, on each rank, with --schedule interleaved", "V", 1, 1000},
        {"print-schedule", OPTION_FLAG, &print_schedule, "draw the schedule and stop"},
        {0}});
    pp = comm_split(world, 0, "pp");
    const int p = comm_size(pp), r = comm_rank(pp), m = options.accumulate;
    sizes();
    if (schedule_kind != INTERLEAVED && chunks > 1)
        fail_usage("--chunks %d, but only --schedule interleaved has more than 1", chunks);
    if (schedule_kind == ZERO_BUBBLE && options.recompute == RECOMPUTE_FULL)
        fail_usage("--recompute full with --schedule zero-bubble: the weights' gradients come later, and need what "
                   "full recomputation has overwritten by then; --recompute selective works");
    if (schedule_kind == INTERLEAVED && m % p)
        fail("--accumulate %d is not a multiple of the %d ranks, in whose number --schedule interleaved takes "
             "micro-batches", m, p);
    if (p == 1)
        chunks = 1;                             /* nobody to hand chunks to */
    if (schedule_kind == INTERLEAVED && chunks == 1 && p > 1)
        print_rank_0(
            "interleaved with 1 chunk is 1f1b with more micro-batches in flight; --chunks 2 halves the bubble\n");
    if (L < (int64_t)p * chunks)
        fail("--layers %d, but %d ranks x %d chunks need at least %lld", (int)L, p, chunks, (long long)p * chunks);
    const double bubble = simulate(schedule_kind, p, m, chunks, print_schedule && r == 0);
    const int too_few = schedule_kind == ZERO_BUBBLE && m < p ? p - m : 0;      /* W to fill the bubble with */
    const double formula = (p - 1.0 + too_few) / (schedule_kind == ZERO_BUBBLE ? 3 : chunks) / m;
    if (print_schedule) {
        if (r == 0)
            printf("bubble %.4f of the time that is computed; (p-1%s)/(%s m) = %.4f\n", bubble, too_few ? " + p-m" : "",
                   schedule_kind == ZERO_BUBBLE ? "3" : "v", formula);
        fail_unprinted();
        comm_agree();
        error_cleanup_now();
        comm_exit(0);
    }
    const Schedule schedule = schedule_of(schedule_kind, r, p, m, chunks);
    in_flight = calloc(chunks, sizeof(int));
    for (int c = 0; c < chunks; c++)
        in_flight[c] = most_in_flight(schedule, c);
    tied = comm_split(world, p > 1 && (r == 0 || r == p - 1) ? 0 : -1, "tied");
    predict();

    bool *here = calloc(L, sizeof(bool));
    for (int c = 0; c < chunks; c++)
        for (int l = layers_before(c * p + r); l < layers_before(c * p + r + 1); l++)
            here[l] = true;
    layout = layout_create(options.config,
                           (Shard){.slices = 1, .layer = here, .embedding = r == 0, .head = r == p - 1});
    Part all = {
        .params = tensor_create(MEM_PARAMETERS, REAL, "params", shape(layout.count)),
        .gradients = tensor_create(MEM_GRADIENTS, REAL, "gradients", shape(layout.count)),
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    params = params_view(&layout, all.params);
    gradients = params_view(&layout, all.gradients);
    optimizer = (AdamW){.layout = &layout, .parts = &all, .count = 1};
    d_block = block_acts_create(MEM_WORKSPACE, NULL);
    acts = calloc(chunks, sizeof(Acts *));
    inbox = calloc(chunks, sizeof(Tensor *));
    for (int c = 0; c < chunks; c++) {
        const int begin = layers_before(c * p + r), end = layers_before(c * p + r + 1);
        acts[c] = calloc(in_flight[c], sizeof(Acts));
        for (int i = 0; i < in_flight[c]; i++)
            acts[c][i] = acts_create(begin, end, c || i ? &acts[0][0].blocks[acts[0][0].begin] : NULL);
        inbox[c] = calloc(in_flight[c] + 1, sizeof(Tensor));
        for (int i = 0; i <= in_flight[c]; i++)
            inbox[c][i] = tensor_create(MEM_COMMUNICATION, REAL, "inbox", shape(R, H));
    }
    d_final = tensor_create(MEM_WORKSPACE, REAL, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);

    int step = run_load(&optimizer);            /* initial weights, or those of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step, schedule);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, acts[0][0].batch);
    }
    run_report("in_flight", in_flight[0]);      /* of its first chunk */
    run_report("bubble_simulated", bubble);
    run_report("bubble_formula", formula);
    if (busy > 0) {                             /* from the second step on */
        const double mine = idle / busy;
        double all[p];
        run_report("bubble", mine);
        comm_gather_host(pp, all, &mine, sizeof mine);
        print_rank_0("bubble  idle over busy time, rank by rank:");
        for (int i = 0; i < p; i++)
            print_rank_0(" %.3f", all[i]);
        print_rank_0("; simulated, all calls alike, %.3f\n", bubble);
    }
    run_end();
}
