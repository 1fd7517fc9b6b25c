/* pp: the pipeline of 06 with one schedule, 1F1B, and one chunk of layers per rank. Here are the order of actions,
 * their transfers, and the activations of the micro-batches in flight; execute() in train.c goes through the actions.
 */
#include "combined.h"

Acts *acts;
static Tensor recv_x;               /* ((in_flight + 1)*R, H): x as received, one ahead of those in use */

/* The i-th of this pipeline stage's 2 * accumulate actions: warm-up forwards until the first d_x can have arrived, then
 * one forward and one backward in turn, then the backwards that are left. */
Action action_of(int i)
{
    const int m = options.accumulate, stages_behind = pp_size - 1 - comm_rank(pp);
    const int warmup = stages_behind < m ? stages_behind : m, k = i - warmup;

    if (i < warmup)
        return (Action){FORWARD, i};
    if (i >= 2 * m - warmup)
        return (Action){BACKWARD, i - m};
    return k % 2 ? (Action){BACKWARD, k / 2} : (Action){FORWARD, warmup + k / 2};
}

Acts *acts_of(Action action)
{
    return &acts[action.micro % in_flight];
}

Tensor recv_x_of(Action action)
{
    return tensor_range(recv_x, action.micro % (in_flight + 1) * R, R);
}

/* A tag names the tensor that is sent: x or d_x of this micro-batch, into this pipeline stage. Tags repeat after 1024
 * micro-batches, long after the earlier transfer with the same tag has arrived. */
static int tag_of(Action action, int into)
{
    return (action.micro % 1024 * pp_size + into) * 2 + (action.kind != FORWARD);
}

/* Starts to receive x or d_x for an action. Call it one action ahead: then the transfer overlaps with that action. */
void start_receive(Action action)
{
    const int stage = comm_rank(pp);
    Acts *a = acts_of(action);

    if (a->begin > 0 && action.kind == FORWARD)
        a->receiving[0] = comm_start_recv(pp, recv_x_of(action), stage - 1, tag_of(action, stage));
    if (a->end < L && action.kind != FORWARD) {
        comm_wait(&a->sending[1]);              /* of the micro-batch that last used this buffer */
        a->receiving[1] = comm_start_recv(pp, a->d_x, stage + 1, tag_of(action, stage));
    }
}

void start_send(Action action)
{
    const int stage = comm_rank(pp);
    Acts *a = acts_of(action);

    if (a->end < L && action.kind == FORWARD)
        a->sending[0] = comm_start_send(pp, a->x[a->end], stage + 1, tag_of(action, stage + 1));
    if (a->begin > 0 && action.kind != FORWARD)
        a->sending[1] = comm_start_send(pp, a->d_x, stage - 1, tag_of(action, stage - 1));
}

/* For one micro-batch in flight through this pipeline stage's layers. */
static Acts acts_create(Range layers, BlockActs first, bool shared)
{
    const int begin = layers.first, end = layers.first + layers.count;
    Acts a = {.x = calloc(L + 1, sizeof(Tensor)), .blocks = calloc(L, sizeof(BlockActs)), .begin = begin, .end = end};

    a.d_x = tensor_create(MEM_ACTIVATIONS, dtype, "d_x", shape(R, H));
    a.batch = (Batch){tensor_create(MEM_WORKSPACE, I32, "inputs", shape(local_chunks * B, C)),
                      tensor_create(MEM_WORKSPACE, I32, "targets", shape(local_chunks * B, C))};
    for (int l = begin; l < end; l++) {
        a.x[l + 1] = tensor_create(MEM_ACTIVATIONS, dtype, "x", shape(R, H));
        first = a.blocks[l] = block_acts_create(MEM_ACTIVATIONS, first, shared || l > begin);
    }
    return a;
}

void pipeline_create(Range layers)
{
    BlockActs first = {0};                      /* of the first micro-batch's first block */

    acts = calloc(in_flight, sizeof(Acts));
    for (int i = 0; i < in_flight; i++) {
        acts[i] = acts_create(layers, first, i > 0);
        first = acts[i].blocks[acts[i].begin];
    }
    recv_x = tensor_create(MEM_COMMUNICATION, dtype, "recv_x", shape((in_flight + 1) * R, H));
}
