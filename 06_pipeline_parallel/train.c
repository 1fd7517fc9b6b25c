/* 06_pipeline_parallel: 01 with its layers divided over the ranks.
 *
 * forward and backward work on one micro-batch and one chunk of layers. A schedule (schedule.h) is a
 * list of such calls; execute() goes through it, receiving before each call and sending after it.
 */
#include "../common/ultrascale.h"
#include "simulation.h"

static Layout layout;               /* which parameter lies where in a flat buffer */
static Params params, gradients;    /* views of the two buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *pp, *tied;             /* all ranks; those of the model's two ends, which share the embedding */
static Comm *ways[2];               /* all ranks, for x and for d_x: a V sends a rank both, each in its own order */
static Pipeline pipeline = {.kind = ONE_F_ONE_B, .v = 1};
static bool print_schedule;
static const char *times;           /* --times */

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
    Tensor d_x;                     /* (R, H)  of the residual stream */
    Batch batch;
    Request *receiving[2], *sending[2];     /* x forward, d_x back */
} Acts;

static Acts **acts;                 /* [chunk][micro-batch % schedule.in_flight[chunk]] */
static Schedule schedule;           /* what this rank does in a step */
static Tensor *inbox;               /* [chunk] of ((in_flight + 1)*R, H): x as it arrives, one ahead of what is used */
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

/* For one micro-batch in flight through a stage's layers. Its x[begin] is where it arrived. */
static Acts acts_create(int stage, const BlockActs *first)
{
    const Range part = layers_of(pipeline, stage);
    const int begin = part.first, end = begin + part.count;
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs)), .begin = begin, .end = end};

    a.d_x = tensor_create(MEM_ACTIVATIONS, dtype, "d_x", shape(R, H));
    a.batch = batch_create();
    for (int l = begin + 1; l <= end; l++)
        a.x[l] = tensor_create(MEM_ACTIVATIONS, dtype, "x", shape(R, H));
    for (int l = begin; l < end; l++)
        a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, l > begin && !first ? &a.blocks[begin] : first);
    if (end < L)
        return a;
    a.final = tensor_create(MEM_ACTIVATIONS, dtype, "final", shape(R, H));
    a.final_stats = tensor_create(MEM_ACTIVATIONS, REAL, "final_stats", shape(R, 2));
    a.logits = tensor_create(MEM_ACTIVATIONS, dtype, "logits", shape(B, T, V));
    a.lse = tensor_create(MEM_ACTIVATIONS, REAL, "lse", shape(B, T));
    return a;
}

/* What the memory account must find, to the byte. The playbook's formula is printed beside it. */
static void predict(void)
{
    const int r = comm_rank(pp), last = rank_of(pipeline, pipeline.p * pipeline.v - 1);
    const double real = dtype_size(REAL);
    const double block = R * (3 * H + 4) + B * T * (4 * A * D + 2 * F);     /* linear in T */
    const double scores = B * A * T * T;                                    /* quadratic */
    double N = (r == 0 || r == last ? H * V : 0) + (r == last ? 2 * H : 0);     /* at the model's ends */
    double kept = 0, alive = 0, arriving = 0;   /* blocks x micro-batches in flight; the latter; receive buffers */

    for (int c = 0; c < pipeline.v; c++) {
        const int layers = layers_of(pipeline, stage_of(pipeline, r, c)).count;
        N += layers * (12 * H * H + 13 * H);
        kept += schedule.in_flight[c] * layers;
        alive += schedule.in_flight[c];
        arriving += schedule.in_flight[c] + 1;
        for (int k = FORWARD; k <= BACKWARD; k++)
            comm_predict(ways[k], SEND, pipeline.m * (message_out(pipeline, (Action){k, 0, c}, r).peer >= 0), R * H);
    }
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : kept;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? kept : 1;
    const double head = r == last ? schedule.in_flight[pipeline.v - 1] * (R * (H + 2) + B * T * (V + 1)) : 0;

    memory_predict(MEM_PARAMETERS, real * N);
    memory_predict(MEM_GRADIENTS, real * N);
    memory_predict(MEM_OPTIMIZER, real * 2 * N);
    memory_predict(MEM_ACTIVATIONS, real * ((kept + alive) * R * H + blocks * block + quadratic * scores + head));
    memory_predict(MEM_COMMUNICATION, real * arriving * R * H);
    /* d_block; branch twice, d_final; rope; the loss; the batches' two ids a token */
    memory_predict(MEM_WORKSPACE, real * (block + scores + 3 * R * H + T * D) + 8 + alive * 2 * 4 * B * T);
    if (tied)
        comm_predict(tied, ALL_REDUCE, 1, H * V);
    comm_predict(pp, BROADCAST, 0, 1);          /* none in a step: evaluation's loss */

    memory_playbook(MEM_PARAMETERS, real * N, "4 N, N: here");
    memory_playbook(MEM_GRADIENTS, real * N, "4 N");
    memory_playbook(MEM_OPTIMIZER, real * 2 * N, "8 N");
    playbook_activations(options.recompute, kept * R, ", L: in flight");
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

/* For a block_backward_weight that comes later: what it will read takes the place of what nobody reads any more. */
static void put_off(Acts *a, int l)
{
    tensor_copy(a->x[l + 1], d_block.branch);
    tensor_copy(a->blocks[l].mid, d_block.mid);
    tensor_copy(a->blocks[l].up, d_block.up);
    tensor_copy(a->blocks[l].qkv, d_block.qkv);
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
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, a->d_x, a->x[l]);
        if (weights)
            block_backward_weight(&g->blocks[l], &a->blocks[l], &d_block);
        else
            put_off(a, l);
    }
    if (a->begin == 0)
        embedding_backward(g->embedding, a->d_x, batch.inputs);
}

static void backward_weight(Acts *a)
{
    const Params *g = &gradients;

    if (a->end == L)
        linear_backward_weight(g->embedding, NONE, a->logits, a->final);
    for (int l = a->end - 1; l >= a->begin; l--) {
        BlockActs d = a->blocks[l];             /* as put_off left it */
        d.branch = a->x[l + 1];
        block_backward_weight(&g->blocks[l], &a->blocks[l], &d);
    }
}

static Acts *acts_of(Action action)
{
    return &acts[action.chunk][action.micro % schedule.in_flight[action.chunk]];
}

static Tensor inbox_of(Action action)
{
    return tensor_range(inbox[action.chunk], action.micro % (schedule.in_flight[action.chunk] + 1) * R, R);
}

/* Where a V turns, the stage before is on this rank too: nothing is sent, but copied. */
static void hand_over(Action action)
{
    Acts *a = acts_of(action), *before = acts_of((Action){action.kind, action.micro, 0});

    if (before->end != a->begin || action.kind == BACKWARD_WEIGHT)
        return;
    if (action.kind == FORWARD) {
        tensor_copy(a->x[a->begin], before->x[before->end]);
    } else {
        comm_wait(&before->sending[1]);         /* of the micro-batch that was there before */
        tensor_copy(before->d_x, a->d_x);
    }
}

/* Starts to receive what an action needs, one action ahead, so that it arrives during the one before. */
static void start_receive(Action action)
{
    const Message in = message_in(pipeline, action, comm_rank(pp));
    Acts *a = acts_of(action);

    if (in.peer >= 0 && action.kind == FORWARD)
        a->receiving[0] = comm_start_recv(ways[0], inbox_of(action), in.peer, in.tag);
    if (in.peer >= 0 && action.kind != FORWARD) {
        comm_wait(&a->sending[1]);              /* of the micro-batch that was here before */
        a->receiving[1] = comm_start_recv(ways[1], a->d_x, in.peer, in.tag);
    }
}

static void start_send(Action action)
{
    const Message out = message_out(pipeline, action, comm_rank(pp));
    const bool back = action.kind != FORWARD;
    Acts *a = acts_of(action);

    if (out.peer >= 0)
        a->sending[back] = comm_start_send(ways[back], back ? a->d_x : a->x[a->end], out.peer, out.tag);
}

/* Any schedule. Sends and receives are only started here; what is waited for is always something that another rank
 * has started, or starts one action ahead: so it cannot matter whether a send ends before its receive begins. */
static void execute(int64_t step, double scale)
{
    bubble_step_begin(pp, schedule.count);
    start_receive(schedule.list[0]);
    for (int i = 0; i < schedule.count; i++) {
        const Action action = schedule.list[i];
        Acts *a = acts_of(action);

        if (i + 1 < schedule.count)
            start_receive(schedule.list[i + 1]);
        if (action.kind == FORWARD) {
            comm_wait(&a->receiving[0]);
            a->x[a->begin] = inbox_of(action);
            hand_over(action);
            batch_load(a->batch, step, action.micro * B, 0);
        } else if (action.kind != BACKWARD_WEIGHT) {
            comm_wait(&a->receiving[1]);
            comm_wait(&a->sending[0]);          /* x[end] may be written again, now or by the next forward here */
            comm_wait(&a->sending[1]);          /* of the micro-batch that was here before */
        }
        measure_begin(action.kind);
        if (action.kind == FORWARD)
            forward(a, a->batch, scale);
        else if (action.kind == BACKWARD_WEIGHT)
            backward_weight(a);
        else
            backward(a, a->batch, scale, action.kind == BACKWARD);
        measure_end();
        if (action.kind != FORWARD)
            hand_over(action);
        start_send(action);
    }
    for (int c = 0; c < pipeline.v; c++)
        for (int i = 0; i < schedule.in_flight[c]; i++)
            comm_wait(&acts[c][i].sending[1]);  /* x has left before its backward */
    bubble_step_end(pp);
}

/* One optimizer step over the global batch: micro_batch * accumulate sequences. */
static StepResult train_step(int64_t step)
{
    /* The loss is the mean over the global batch's tokens, so every micro-batch, whatever its size
     * and wherever it is computed, is divided by the same count. */
    const double scale = 1.0 / (B * T * options.accumulate);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    execute(step, scale);
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

static void loss_of(Batch batch)        /* no backward follows: one micro-batch through all stages */
{
    for (int c = 0; c < pipeline.v; c++) {
        const Action action = {FORWARD, 0, c};
        Acts *a = acts_of(action);
        start_receive(action);
        comm_wait(&a->receiving[0]);
        a->x[a->begin] = inbox_of(action);
        hand_over(action);
        forward(a, batch, 1.0 / (B * T));
        start_send(action);
        comm_wait(&a->sending[0]);
    }
    comm_broadcast(pp, loss, rank_of(pipeline, pipeline.p * pipeline.v - 1));
}

int main(int argc, char **argv)
{
    run_begin("06_pipeline_parallel", "Trains a transformer with its layers divided over the ranks.", argc, argv,
              (StageOption[]){
        {"schedule", OPTION_CHOICE, &pipeline.kind, "order of forwards and backwards",
         "afab|1f1b|interleaved|zero-bubble|zb-v|dualpipe-v"},
        {"chunks", OPTION_INT, &pipeline.v, "of layers, on each rank, with --schedule interleaved", "V", 1, 1000},
        {"print-schedule", OPTION_FLAG, &print_schedule, "draw the schedule and stop"},
        {"times", OPTION_TEXT, &times, "time slots in the simulation (1,1,1,0)", "T_F,T_B,T_W,MESSAGE"},
        {0}});
    pp = ways[0] = comm_split(world, 0, "pp"), ways[1] = comm_split(world, 0, "back");
    const int r = comm_rank(pp);
    sizes();
    pipeline.p = comm_size(pp), pipeline.m = options.accumulate, pipeline.layers = L;
    pipeline_check(&pipeline);
    Simulation simulation = simulate(pipeline, times_of(times), r == 0 ? stderr : NULL);
    if (print_schedule)
        simulation_print(&simulation), run_leave();
    schedule = simulation.ranks[r];
    const int last = rank_of(pipeline, pipeline.p * pipeline.v - 1);
    bool *here = calloc(L, sizeof(bool));
    for (int c = 0; c < pipeline.v; c++) {
        const Range part = layers_of(pipeline, stage_of(pipeline, r, c));
        for (int l = part.first; l < part.first + part.count; l++)
            here[l] = true;
    }
    tied = comm_split(world, last > 0 && (r == 0 || r == last) ? 0 : -1, "tied");
    predict();

    layout = layout_create(options.config,
                           (Shard){.slices = 1, .layer = here, .embedding = r == 0, .head = r == last});
    Part all = {
        .params = tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)),
        .gradients = tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(layout.count)),
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    params = params_view(&layout, all.params);
    gradients = params_view(&layout, all.gradients);
    optimizer = (AdamW){.layout = &layout, .parts = &all, .count = 1};
    d_block = block_acts_create(MEM_WORKSPACE, NULL);
    acts = calloc(pipeline.v, sizeof(Acts *));
    inbox = calloc(pipeline.v, sizeof(Tensor));
    for (int c = 0; c < pipeline.v; c++) {
        acts[c] = calloc(schedule.in_flight[c], sizeof(Acts));
        for (int i = 0; i < schedule.in_flight[c]; i++)
            acts[c][i] = acts_create(stage_of(pipeline, r, c), c || i ? &acts[0][0].blocks[acts[0][0].begin] : NULL);
        inbox[c] = tensor_create(MEM_COMMUNICATION, dtype, "inbox", shape((schedule.in_flight[c] + 1) * R, H));
    }
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);

    int step = run_load(&optimizer);            /* initial weights, or those of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, acts[0][0].batch);
    }
    bubble_report(pp, &simulation);
    run_end();
}
