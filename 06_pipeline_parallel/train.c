/* 06_pipeline_parallel: 01 with its layers split over the ranks.
 *
 * forward and backward compute one micro-batch in one model chunk, the layers of one pipeline stage. A schedule
 * (schedule.h) is a list of such calls. execute() goes through the list, receiving before each call and sending after.
 */
#include "../common/ultrascale.h"
#include "simulation.h"

static Layout layout;               /* the place of each parameter in a flat buffer */
static Params params, gradients;    /* one tensor per parameter: views of flat buffers */
static AdamW optimizer;
static const DType dtype = REAL;    /* of weights, activations and their gradients */
static Comm *pp, *embedding_group;  /* all ranks; first and last pipeline stage: they share the embedding */
static Comm *pp_dir[2];             /* all ranks, for x and for d_x: in a group, receives follow the order of sends */
static Pipeline pipeline = {.kind = ONE_F_ONE_B, .v_c = 1};
static bool print_schedule;
static const char *times;           /* --times */
static Simulation simulation;       /* of a step, by all ranks */

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
    int begin, end;                 /* the chunk's layers; x and blocks are indexed by the full model's layers */
    Tensor d_x;                     /* (R, H)  gradient of the residual stream */
    Batch batch;
    Request *receiving[2], *sending[2];     /* x, d_x */
} Acts;

static Acts **acts;                 /* [chunk][micro-batch % schedule.in_flight[chunk]] */
static Schedule schedule;           /* this rank's actions of a step */
static Tensor *recv_x;              /* [chunk] of ((in_flight + 1)*R, H): x as received, one ahead of those in use */
static BlockActs d_block;           /* gradients of the current block's activations */
static Tensor d_final;              /* (R, H)  of the last LayerNorm's output */
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
    tensor_copy(d->branch, d_x);                /* for block_backward_weight, as d_x changes below */
    residual_backward(g->down_bias, d_x);
    linear_backward_input(d->gelu, d_x, w->down_weight);
    gelu_backward(d->up, d->gelu, a->up);
    linear_backward_input(d->ln2, d->up, w->up_weight);
    layernorm_backward(d_x, g->ln2_weight, g->ln2_bias, d->ln2, a->mid, a->ln2_stats, w->ln2_weight);

    tensor_copy(d->mid, d_x);                   /* likewise for proj_weight */
    residual_backward(g->proj_bias, d_x);
    linear_backward_input(d->attn_out, d_x, w->proj_weight);
    attention_backward(d->qkv, d->probs, d->attn_out, a->qkv, a->probs);
    rope_backward(d->qkv, rope);
    linear_backward_input(d->ln1, d->qkv, w->qkv_weight);
    layernorm_backward(d_x, g->ln1_weight, g->ln1_bias, d->ln1, x, a->ln1_stats, w->ln1_weight);
}

/* Adds the weight gradients of the linear layers. No other rank waits for them. */
static void block_backward_weight(const BlockParams *g, BlockActs *a, BlockActs *d)
{
    linear_backward_weight(g->down_weight, NONE, d->branch, a->gelu);
    linear_backward_weight(g->up_weight, g->up_bias, d->up, a->ln2);
    linear_backward_weight(g->proj_weight, NONE, d->mid, a->attn_out);
    linear_backward_weight(g->qkv_weight, g->qkv_bias, d->qkv, a->ln1);
}

/* Saves what a later block_backward_weight reads, in buffers of activations that nothing reads any more. */
static void save_for_backward_weight(Acts *a, int l)
{
    tensor_copy(a->x[l + 1], d_block.branch);
    tensor_copy(a->blocks[l].mid, d_block.mid);
    tensor_copy(a->blocks[l].up, d_block.up);
    tensor_copy(a->blocks[l].qkv, d_block.qkv);
}

/* One chunk's layers: from tokens or the received x, to the x to send or the micro-batch's term of the step's loss. */
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

/* Adds this micro-batch's gradients to the step's. */
static void backward(Acts *a, Batch batch, double scale, bool weights)
{
    const Params *w = &params, *g = &gradients;
    Tensor d_x = a->d_x;

    if (a->end == L) {
        cross_entropy_backward(a->logits, a->logits, a->lse, batch.targets, scale);    /* in place */
        linear_backward_input(d_final, a->logits, w->embedding);
        if (weights)
            linear_backward_weight(g->embedding, NONE, a->logits, a->final);
        tensor_zero(d_x);
        layernorm_backward(d_x, g->final_weight, g->final_bias, d_final, a->x[L], a->final_stats, w->final_weight);
    }
    for (int l = a->end - 1; l >= a->begin; l--) {
        if (options.recompute == RECOMPUTE_FULL)
            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);
        if (options.recompute == RECOMPUTE_SELECTIVE)
            attention_forward(a->blocks[l].attn_out, a->blocks[l].probs, a->blocks[l].qkv);
        block_backward(&w->blocks[l], &g->blocks[l], &a->blocks[l], &d_block, d_x, a->x[l]);
        if (weights)
            block_backward_weight(&g->blocks[l], &a->blocks[l], &d_block);
        else
            save_for_backward_weight(a, l);
    }
    if (a->begin == 0)
        embedding_backward(g->embedding, d_x, batch.inputs);
}

/* Adds the weight gradients that backward without `weights` has left out. */
static void backward_weight(Acts *a)
{
    if (a->end == L)
        linear_backward_weight(gradients.embedding, NONE, a->logits, a->final);
    for (int l = a->end - 1; l >= a->begin; l--) {
        BlockActs d = a->blocks[l];             /* as save_for_backward_weight left it */
        d.branch = a->x[l + 1];
        block_backward_weight(&gradients.blocks[l], &a->blocks[l], &d);
    }
}

static Acts *acts_of(Action action)
{
    return &acts[action.chunk][action.micro % schedule.in_flight[action.chunk]];
}

static Tensor recv_x_of(Action action)
{
    return tensor_range(recv_x[action.chunk], action.micro % (schedule.in_flight[action.chunk] + 1) * R, R);
}

/* Where a V turns, two consecutive stages, chunks 0 and 1, are on this rank: x and d_x are copied, not sent. */
static void copy_at_turn(Action action)
{
    Acts *a = acts_of(action), *before = acts_of((Action){action.kind, action.micro, 0});

    if (before->end != a->begin || action.kind == BACKWARD_WEIGHT)
        return;
    if (action.kind == FORWARD) {
        tensor_copy(a->x[a->begin], before->x[before->end]);
    } else {
        comm_wait(&before->sending[1]);         /* of the micro-batch that last used this buffer */
        tensor_copy(before->d_x, a->d_x);
    }
}

/* Starts to receive x or d_x for an action. Call it one action ahead: the previous action then hides the transfer. */
static void start_receive(Action action)
{
    const Message in = message_in(pipeline, action, comm_rank(pp));
    Acts *a = acts_of(action);

    if (in.peer >= 0 && action.kind == FORWARD)
        a->receiving[0] = comm_start_recv(pp_dir[0], recv_x_of(action), in.peer, in.tag);
    if (in.peer >= 0 && action.kind != FORWARD) {
        comm_wait(&a->sending[1]);              /* of the micro-batch that last used this buffer */
        a->receiving[1] = comm_start_recv(pp_dir[1], a->d_x, in.peer, in.tag);
    }
}

static void start_send(Action action)
{
    const Message out = message_out(pipeline, action, comm_rank(pp));
    const bool back = action.kind != FORWARD;
    Acts *a = acts_of(action);

    if (out.peer >= 0)
        a->sending[back] = comm_start_send(pp_dir[back], back ? a->d_x : a->x[a->end], out.peer, out.tag);
}

/* Runs one step of any schedule. A rank waits only for transfers that the other rank has begun, or begins one action
 * before it uses them. So no schedule deadlocks because a send lasts until its receive begins (rendezvous). */
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
            a->x[a->begin] = recv_x_of(action);
            copy_at_turn(action);
            batch_load(a->batch, step, action.micro * B, 0);
        } else if (action.kind != BACKWARD_WEIGHT) {
            comm_wait(&a->receiving[1]);
            comm_wait(&a->sending[0]);          /* this action or the next forward may overwrite x[end] */
            comm_wait(&a->sending[1]);          /* of the micro-batch that last used this buffer */
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
            copy_at_turn(action);
        start_send(action);
    }
    for (int c = 0; c < pipeline.v_c; c++)
        for (int i = 0; i < schedule.in_flight[c]; i++)
            comm_wait(&acts[c][i].sending[1]);  /* sending[0] was waited for before the backward */
    bubble_step_end(pp);
}

/* One optimizer step: one update from the gradients of the global batch, computed micro-batch by micro-batch. */
static StepResult train_step(int64_t step)
{
    /* The loss is the mean over all tokens of the global batch. So every micro-batch, on any rank, is divided by
     * the same number of tokens. */
    const double scale = 1.0 / (B * T * options.accumulate);

    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    execute(step, scale);
    if (embedding_group)                        /* each end has only the gradient of its own use */
        comm_all_reduce(embedding_group, gradients.embedding, SUM);
    run_dump_gradients(&optimizer);

    trace_begin("optimizer");
    double norm = sqrt(comm_sum(pp, gradient_square_sum(&optimizer))), lr = learning_rate(step);
    double mean = comm_sum(pp, tensor_item(loss));  /* read here, so that the host does not wait for the update */
    adamw_step(&optimizer, lr, clip_scale(norm));
    trace_end();
    return (StepResult){.loss = mean, .norm = norm, .lr = lr};
}

static void loss_of(Batch batch)        /* forward for evaluation: no backward follows */
{
    for (int c = 0; c < pipeline.v_c; c++) {
        const Action action = {FORWARD, 0, c};
        Acts *a = acts_of(action);
        start_receive(action);
        comm_wait(&a->receiving[0]);
        a->x[a->begin] = recv_x_of(action);
        copy_at_turn(action);
        forward(a, batch, 1.0 / (B * T));
        start_send(action);
        comm_wait(&a->sending[0]);
    }
    comm_broadcast(pp, loss, rank_of(pipeline, pipeline.p * pipeline.v_c - 1));
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

/* For one micro-batch in flight through a pipeline stage's layers. Its x[begin] is a view of recv_x. */
static Acts acts_create(int stage, BlockActs first, bool shared)
{
    const Range layers = layers_of(pipeline, stage);
    const int begin = layers.first, end = layers.first + layers.count;
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs)), .begin = begin, .end = end};

    a.d_x = tensor_create(MEM_ACTIVATIONS, dtype, "d_x", shape(R, H));
    a.batch = batch_create();
    for (int l = begin + 1; l <= end; l++)
        a.x[l] = tensor_create(MEM_ACTIVATIONS, dtype, "x", shape(R, H));
    for (int l = begin; l < end; l++)
        first = a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, first, shared || l > begin);
    if (end < L)
        return a;
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
    const int r = comm_rank(pp), last = rank_of(pipeline, pipeline.p * pipeline.v_c - 1);
    double N = (r == 0 || r == last ? H * V : 0) + (r == last ? 2 * H : 0);     /* at the model's ends */
    const double block = stored * (R * 3 * H + B * T * (4 * A * D + 2 * F)) + real_size * R * 4;     /* linear in T */
    const double scores = stored * B * A * T * T;                                               /* quadratic in T */
    double micros = 0, live = 0;                /* sums over chunks: micro-batches in flight, their blocks */

    for (int c = 0; c < pipeline.v_c; c++) {
        const int layers = layers_of(pipeline, stage_of(pipeline, r, c)).count;
        N += layers * (12 * H * H + 13 * H);
        micros += schedule.in_flight[c];
        live += schedule.in_flight[c] * layers;
        for (int k = FORWARD; k <= BACKWARD; k++) {
            const int to = message_out(pipeline, (Action){k, 0, c}, r).peer;           /* -1: none */
            comm_sends_to(pp_dir[k], to);
            comm_predict(pp_dir[k], SEND, to >= 0 ? pipeline.m : 0, R * H);
        }
    }
    const double blocks = options.recompute == RECOMPUTE_FULL ? 1 : live;
    const double quadratic = options.recompute == RECOMPUTE_NONE ? live : 1;
    const double logits = r == last ? schedule.in_flight[pipeline.v_c - 1] : 0;         /* of micro-batches */

    memory_predict(MEM_PARAMETERS, stored * N);
    memory_predict(MEM_GRADIENTS, stored * N);
    memory_predict(MEM_OPTIMIZER, real_size * 2 * N);
    memory_predict(MEM_ACTIVATIONS, stored * (live + micros) * R * H + blocks * block + quadratic * scores
                                        + logits * (stored * (R * H + B * T * V) + real_size * (R * 2 + B * T)));
    memory_predict(MEM_COMMUNICATION, stored * (micros + pipeline.v_c) * R * H);
    /* d_block; branch twice, d_final; rope; the loss; two ids per token of each batch */
    memory_predict(MEM_WORKSPACE, block + scores + stored * 3 * R * H + real_size * T * D + 8 + micros * 2 * 4 * B * T);
    if (embedding_group)
        comm_predict(embedding_group, ALL_REDUCE, 1, H * V);
    comm_predict(pp, BROADCAST, 0, 0);          /* between steps: loss_of broadcasts the loss */

    memory_estimate(MEM_PARAMETERS, stored * N, "4 N");
    memory_estimate(MEM_GRADIENTS, stored * N, "4 N");
    memory_estimate(MEM_OPTIMIZER, real_size * 2 * N, "8 N");
    estimate_activations(options.recompute, live * R, ", L: in flight");
}

/* Creates what a step needs: parameters, optimizer states, activations, buffers. Returns room for a micro-batch. */
static Batch set_up(void)
{
    const int r = comm_rank(pp);
    BlockActs first = {0};                      /* of the first micro-batch's first block */

    sizes();
    pipeline.p = comm_size(pp), pipeline.m = options.accumulate, pipeline.layers = L;
    pipeline_check(&pipeline);
    simulation = simulate(pipeline, times_of(times), r == 0 ? stderr : NULL);
    if (print_schedule)
        simulation_print(&simulation), comm_exit(0);
    schedule = simulation.ranks[r];
    const int last = rank_of(pipeline, pipeline.p * pipeline.v_c - 1);
    embedding_group = comm_split(world, last > 0 && (r == 0 || r == last) ? 0 : -1, "embedding");
    predict();
    comm_connect();
    memory_check_fits();

    bool *local = calloc(L, sizeof(bool));
    acts = calloc(pipeline.v_c, sizeof(Acts *)), recv_x = calloc(pipeline.v_c, sizeof(Tensor));
    for (int c = 0; c < pipeline.v_c; c++) {
        acts[c] = calloc(schedule.in_flight[c], sizeof(Acts));
        for (int i = 0; i < schedule.in_flight[c]; i++) {
            acts[c][i] = acts_create(stage_of(pipeline, r, c), first, c || i);
            first = acts[c][i].blocks[acts[c][i].begin];
        }
        recv_x[c] = tensor_create(MEM_COMMUNICATION, dtype, "recv_x", shape((schedule.in_flight[c] + 1) * R, H));
        for (int l = acts[c][0].begin; l < acts[c][0].end; l++)
            local[l] = true;
    }
    layout = layout_create(options.config, (Placement){0, 1, .layer = local, .embedding = r == 0, .head = r == last});
    params = params_view(&layout, tensor_create(MEM_PARAMETERS, dtype, "params", shape(layout.count)));
    gradients = params_view(&layout, tensor_create(MEM_GRADIENTS, dtype, "gradients", shape(layout.count)));
    optimizer = (AdamW){.layout = &layout, .shards = calloc(1, sizeof(ParamShard)), .count = 1};
    optimizer.shards[0] = (ParamShard){
        .params = params.buffer,
        .gradients = gradients.buffer,
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    d_block = block_acts_create(MEM_WORKSPACE, (BlockActs){0}, false);
    d_final = tensor_create(MEM_WORKSPACE, dtype, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    return acts[0][0].batch;
}

int main(int argc, char **argv)
{
    run_begin("06_pipeline_parallel", "Trains a transformer with its layers split over the ranks.", argc, argv,
              (ProgramOption[]){
        {"schedule", OPTION_CHOICE, &pipeline.kind, "order of forward and backward passes",
         "afab|1f1b|interleaved|zero-bubble|zb-v|dualpipe-v"},
        {"chunks", OPTION_INT, &pipeline.v_c, "model chunks per rank, with --schedule interleaved", "N", 1, 1000},
        {"print-schedule", OPTION_FLAG, &print_schedule, "draw the schedule and exit"},
        {"times", OPTION_TEXT, &times, "time slots of each action in the simulation (1,1,1,0)", "T_F,T_B,T_W,TRANSFER"},
        {0}});
    pp = pp_dir[0] = comm_split(world, 0, "pp"), pp_dir[1] = comm_split(world, 0, "back");
    Batch batch = set_up();

    int step = run_load(&optimizer);            /* initial weights, or the checkpoint of --load */
    while (run_continues(step)) {
        StepResult result = train_step(step);
        run_step(++step, result);
        if (options.eval_every && step % options.eval_every == 0)
            text_evaluate(loss_of, loss, batch);
    }
    bubble_report(pp, &simulation);
    run_end();
}
