/* Pipeline schedules: in which order each rank computes which micro-batch. A schedule is a list of calls, made from
 * counts alone, so it can be simulated, drawn and tested without running. Nothing here knows of tensors.
 *
 * Letters: p ranks, r one of them, m micro-batches per step, v chunks of layers on each rank. A chunk is a stage of the
 * pipeline: x goes forward from stage 0 to p*v - 1, its gradient d_x back.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "../common/tensor.h"

typedef enum { AFAB, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZB_V, DUALPIPE_V } ScheduleKind;
typedef struct {
    ScheduleKind kind;
    int p, m, v, layers;
} Pipeline;

/* BACKWARD_INPUT makes the gradients of activations, BACKWARD_WEIGHT those of weights, BACKWARD both. */
typedef enum { FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } ActionKind;
typedef struct {
    ActionKind kind;
    int micro, chunk;
} Action;
typedef struct {                    /* of one rank, in order */
    Action *list;
    int count, capacity;
    int *in_flight;                 /* [v]  micro-batches of each chunk whose activations are needed at once, at most */
} Schedule;

/* Where each stage lies. Stages go round the ranks, chunk by chunk; in a V (zb-v, dualpipe-v) the second chunk goes
 * back, so rank r has stages r and 2p - 1 - r. */
int stage_of(Pipeline pipe, int rank, int chunk);
int rank_of(Pipeline pipe, int stage);
int chunk_of(Pipeline pipe, int stage);

Range layers_of(Pipeline pipe, int stage);

/* What must have ended before an action of a stage begins: an action of the same micro-batch. */
typedef struct {
    int stage;                      /* -1: nothing must */
    ActionKind kind;                /* BACKWARD_INPUT: or BACKWARD, which makes the same d_x */
} Need;
Need need_of(int stage, ActionKind kind, int stages);

/* What an action of rank r receives before it begins (message_in), or sends when it has ended (message_out). */
typedef struct {
    int peer;                       /* the other rank; -1: nothing is sent, as where a V turns */
    int tag;                        /* the same on both sides */
} Message;
Message message_in(Pipeline pipe, Action a, int r);
Message message_out(Pipeline pipe, Action a, int r);

/* Sets v where the schedule leaves no choice. Fails if the counts, the layers or --recompute don't go with it. */
void pipeline_check(Pipeline *pipe);

/* What rank r does in a step. The caller calls schedule_free. */
Schedule schedule_of(Pipeline pipe, int r);
void schedule_free(Schedule *s);

/* The most micro-batches whose activations are needed at once, from forward to the last backward: in this chunk, or,
 * for chunk -1, in all chunks together. */
int most_in_flight(Schedule s, int chunk);

#endif
