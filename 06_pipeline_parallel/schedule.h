/* Pipeline schedules: in which order each rank computes which micro-batch. A schedule is a list of calls, made from
 * counts alone, so it can be simulated, drawn and tested without running. Nothing here knows of tensors.
 *
 * Letters: p ranks, r one of them, m micro-batches per step, v chunks of layers on each rank. A chunk is a stage of the
 * pipeline: x goes forward from stage 0 to p*v - 1, its gradient d_x back.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stdio.h>

#include "../common/comm.h"

typedef enum { AFAB, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE } ScheduleKind;

/* BACKWARD_INPUT makes the gradients of activations, BACKWARD_WEIGHT those of weights, BACKWARD both. */
typedef enum { FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } ActionKind;
extern const char *const action_name[];         /* by kind: "backward_input" */
typedef struct {
    ActionKind kind;
    int micro, chunk;
} Action;
typedef struct {                    /* of one rank, in order */
    Action *list;
    int count, capacity;
} Schedule;

/* Where each stage is: they go round the ranks, chunk by chunk. */
static inline int stage_of(int rank, int chunk, int p) { return chunk * p + rank; }
static inline int rank_of(int stage, int p) { return stage % p; }
static inline int chunk_of(int stage, int p) { return stage / p; }

/* What an action of rank r receives before it begins (message_in), or sends when it has ended (message_out). */
typedef struct {
    int peer;                       /* the other rank; -1: no message */
    int tag;                        /* the same on both sides */
} Message;
Message message_in(Action a, int r, int p, int v);
Message message_out(Action a, int r, int p, int v);

/* Fails if the counts don't go with this kind of schedule, or with so many layers. */
void schedule_check(ScheduleKind kind, int p, int m, int v, int layers);

/* What rank r does in a step. The caller frees the list. */
Schedule schedule_of(ScheduleKind kind, int r, int p, int m, int v);

/* The most micro-batches of a chunk whose activations are needed at once: from forward to the last backward. */
int most_in_flight(Schedule s, int chunk);

/* All ranks' lists against a clock. Time is in slots: forward, the input's gradient and the weights' gradients take one
 * each, and sends none. */
typedef struct {
    int p, m, v;
    Schedule *ranks;                /* [p] */
    int *ended;                     /* when each action has ended: see ended_at() */
    int *done, *clock;              /* [p]  of each rank's list, how many actions have ended, and when the last did */
    int slots;                      /* when all had ended */
    double bubble;                  /* idle time over busy time */
} Simulation;

/* Fails on a list whose micro-batches or chunks are not there, or that doesn't have all of a step's actions; and if the
 * schedule waits for itself: then prints to `to`, unless NULL, the chart so far and what each rank waits for, such as
 * "rank 3 waits at its action B0 for B0 of rank 2". */
Simulation simulate(ScheduleKind kind, int p, int m, int v, FILE *to);
void simulation_free(Simulation *s);

/* Draws what has ended, a line for each rank and a column for each slot: digits are forwards of the micro-batch, small
 * letters backwards, capitals the weights' part where it comes later, dots idle time; below them their chunks. */
void simulation_draw(const Simulation *s, FILE *to);

/* What the bubble should be. simulation_print draws, and prints the bubble beside it. */
double bubble_formula(ScheduleKind kind, int p, int m, int v);
void simulation_print(const Simulation *s, ScheduleKind kind);

/* What it is, measured: a step lasts from when all ranks are ready until all are done, and a rank is idle for what it
 * doesn't compute of it. Each action has a moment before it and one after it. */
void bubble_step_begin(Comm *pp, int actions);
void bubble_moment(void);
void bubble_step_end(Comm *pp);
/* Prints each rank's bubble over all steps but the first, and adds this rank's to --report. Nothing after one step. */
void bubble_report(Comm *pp, double simulated);

#endif
