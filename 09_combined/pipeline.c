/* pp: the pipeline of 06 with one schedule, 1F1B, and one chunk of layers per rank. */
#include "combined.h"

Acts *acts;
static Tensor recv_x;               /* ((in_flight + 1)*R, H): x as received, one ahead of those in use */

typedef enum { FORWARD, BACKWARD } ActionKind;
typedef struct {
    ActionKind kind;
    int micro;
} Action;

void pipeline_create(void)
{
    BlockActs first = {0};                      /* of the first micro-batch's first block */

    acts = calloc(in_flight, sizeof(Acts));
    for (int i = 0; i < in_flight; i++) {
        acts[i] = acts_create(first, i > 0);
        first = acts[i].blocks[acts[i].begin];
    }
    recv_x = tensor_create(MEM_COMMUNICATION, dtype, "recv_x", shape((in_flight + 1) * R, H));
}

/* The i-th of this pipeline stage's 2 * accumulate actions: warm-up forwards until the first d_x can have arrived, then
 * one forward and one backward in turn, then the backwards that are left. */
static Action action_of(int i)
{
    const int m = options.accumulate, stages_behind = pp_size - 1 - comm_rank(pp);
    const int warmup = stages_behind < m ? stages_behind : m, k = i - warmup;

    if (i < warmup)
        return (Action){FORWARD, i};
    if (i >= 2 * m - warmup)
        return (Action){BACKWARD, i - m};
    return k % 2 ? (Action){BACKWARD, k / 2} : (Action){FORWARD, warmup + k / 2};
}

static Acts *acts_of(Action action)
{
    return &acts[action.micro % in_flight];
}

static Tensor recv_x_of(Action action)
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
static void start_receive(Action action)
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

static void start_send(Action action)
{
    const int stage = comm_rank(pp);
    Acts *a = acts_of(action);

    if (a->end < L && action.kind == FORWARD)
        a->sending[0] = comm_start_send(pp, a->x[a->end], stage + 1, tag_of(action, stage + 1));
    if (a->begin > 0 && action.kind != FORWARD)
        a->sending[1] = comm_start_send(pp, a->d_x, stage - 1, tag_of(action, stage - 1));
}

/* Runs one step. A rank waits only for transfers whose other side has started, or starts one action ahead. So the
 * schedule cannot deadlock when a send lasts until its receive begins (rendezvous). */
void execute(int64_t step, double scale)
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
            micro_batch_load(a->batch, step, action.micro);
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

/* The loss of the micro-batch in acts[0], through all pipeline stages; no backward follows. */
void loss_of(double scale)
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
