/* Pipeline schedules: in which order each rank computes which micro-batch. A schedule is a list of actions, made from
 * counts alone, so it can be simulated, drawn and tested without running. Nothing in this file knows of tensors.
 *
 * Letters: p ranks, r one of them, m micro-batches per step, v_c model chunks per rank. The layers are split into p*v_c
 * pipeline stages, 0 to p*v_c - 1; a model chunk is the layers of one of them. x goes forward through them, d_x back.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "../common/base/tensor.h"

typedef enum { AFAB, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZB_V, DUALPIPE_V } ScheduleKind;
typedef struct {
    ScheduleKind kind;
    int p, m, v_c, layers;
} Pipeline;

/* BACKWARD_INPUT computes the gradients of activations, BACKWARD_WEIGHT those of weights, BACKWARD both. */
typedef enum { FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } ActionKind;
typedef struct {
    ActionKind kind;
    int micro, chunk;
} Action;
typedef struct {                    /* of one rank */
    Action *list;                   /* in the order in which the rank computes */
    int count, capacity;
    int *in_flight;                 /* [v_c]  most_in_flight() of each model chunk */
} Schedule;

/* Where each pipeline stage is. They go round the ranks, model chunk by model chunk. In a V (zb-v, dualpipe-v) the
 * second chunk goes back, so rank r has pipeline stages r and 2p - 1 - r. */
int stage_of(Pipeline pipe, int rank, int chunk);
int rank_of(Pipeline pipe, int stage);
int chunk_of(Pipeline pipe, int stage);

/* The layers of a pipeline stage. The last one also has the output projection, which costs v/(12h + 2s) layers by
 * FLOPs, so it has fewer: the slowest stage sets the pace. */
Range layers_of(Pipeline pipe, int stage);

/* The action of the same micro-batch that must have ended before an action of a pipeline stage begins. */
typedef struct {
    int stage;                      /* -1: the action can begin at once */
    ActionKind kind;                /* BACKWARD_INPUT: or BACKWARD, which computes the same d_x */
} Dependency;
Dependency dependency_of(int stage, ActionKind kind, int stages);

/* The message that an action of rank r receives before it begins, or sends when it has ended: point to point. */
typedef struct {
    int peer;                       /* the other rank; -1: no message, for example where a V turns */
    int tag;                        /* the same on both sides */
} Message;
Message message_in(Pipeline pipe, Action a, int r);
Message message_out(Pipeline pipe, Action a, int r);

/* Sets v_c where the schedule fixes it. Fails if the schedule cannot run with these counts, layers or --recompute. */
void pipeline_check(Pipeline *pipe);

/* The actions of rank r in one step. The caller calls schedule_free. */
Schedule schedule_of(Pipeline pipe, int r);
void schedule_free(Schedule *s);

/* The most micro-batches in flight at once, each from its forward to its last backward action: in one model
 * chunk, or, for chunk -1, in all model chunks of the rank together. */
int most_in_flight(Schedule s, int chunk);

#endif
