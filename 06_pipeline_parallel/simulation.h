/* A schedule against a clock: simulated from its lists alone, drawn, and measured while it runs. Letters as in
 * schedule.h. */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <stdio.h>

#include "../common/comm.h"
#include "schedule.h"

/* Time slots that a chunk's forward, its input's gradient and its weights' gradients take, and a message between ranks,
 * which takes none of their time. */
typedef struct {
    int forward, input, weight, message;
} Times;
Times times_of(const char *text);           /* "T_F,T_B,T_W,MESSAGE"; NULL: 1, 1, 1 and 0; fails on anything else */

/* All ranks' lists against a clock. */
typedef struct {
    Pipeline pipe;
    Times times;
    Schedule *ranks;                /* [p] */
    int *ended;                     /* when each action has ended: see ended_at() */
    int *done, *clock;              /* [p]  of each rank's list, how many actions have ended, and when the last did */
    int slots;                      /* when all had ended */
    double bubble;                  /* idle time over busy time, from the step's begin to its end */
    double inside;                  /* the same from a rank's first action to its last: of the rank with the most */
} Simulation;

/* Fails on a list whose micro-batches or chunks are not there, or that doesn't have all of a step's actions; and if the
 * schedule waits for itself: then prints to `to`, unless NULL, the chart so far and what each rank waits for, such as
 * "rank 3 waits at its action B0 for B0 of rank 2". */
Simulation simulate(Pipeline pipe, Times times, FILE *to);
void simulation_free(Simulation *s);

/* Draws what has ended, a line for each rank and a column for each slot: digits are forwards of the micro-batch, small
 * letters backwards, capitals the weights' part where it comes later, dots idle time; below them their chunks. */
void simulation_draw(const Simulation *s, FILE *to);

/* What the bubble should be at equal times; *text, unless NULL, is the formula. simulation_print draws, and prints the
 * bubble beside it. */
double bubble_formula(Pipeline pipe, const char **text);
void simulation_print(const Simulation *s);      /* on rank 0 */

/* What it is, measured: a step lasts from when all ranks are ready until all are done, and a rank is idle for what it
 * doesn't compute of it. What is computed lies between measure_begin and measure_end, and is a span of --trace. */
void bubble_step_begin(Comm *pp, int actions);
void measure_begin(ActionKind kind);
void measure_end(void);
void bubble_step_end(Comm *pp);
/* Prints each rank's bubble over all steps but the first, and adds this rank's, and what it has in flight, to
 * --report. */
void bubble_report(Comm *pp, const Simulation *simulated);

#endif
