/* A schedule against a clock: simulated from its lists alone, drawn, and measured while it runs. Letters as in
 * schedule.h.
 */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <stdio.h>

#include "../common/comm/comm.h"
#include "schedule.h"

/* Time slots of one model chunk's forward (T_F), input gradient (T_B) and weight gradients (T_W), and of a transfer
 * between ranks. A rank can compute while a transfer is in flight. */
typedef struct {
    int forward, input, weight, transfer;
} Times;
Times times_of(const char *text);           /* "T_F,T_B,T_W,TRANSFER"; NULL: 1, 1, 1 and 0; fails on anything else */

/* One step of all ranks. */
typedef struct {
    Pipeline pipe;
    Times times;
    Schedule *ranks;                /* [p] */
    int *ended;                     /* the time slot in which each action has ended: see ended_at() */
    int *done, *clock;              /* [p]  of each rank: actions that have ended, and when the last of them did */
    int slots;                      /* length of the step */
    double bubble;                  /* idle time over busy time, from the step's start to its end */
    double inside;                  /* the same from a rank's first action to its last: of the rank with the most */
} Simulation;

/* Fails if a list has actions of micro-batches or chunks that don't exist, repeats one, or lacks some of a step's, and
 * if the schedule deadlocks: then it names the cycle of ranks that wait for each other. Of a list that lacks actions,
 * and of a deadlock, it first prints to `to`, unless NULL, the chart so far; of a deadlock also what each rank waits
 * for, such as "rank 3 waits at its action B0 for B0 of rank 2". simulate_lists takes the lists, [p], which
 * simulation_free frees. */
Simulation simulate(Pipeline pipe, Times times, FILE *to);
Simulation simulate_lists(Pipeline pipe, Schedule *ranks, Times times, FILE *to);
void simulation_free(Simulation *s);

/* Draws the actions that have ended: a row per rank, a column per time slot. Digits are the micro-batches' forwards,
 * small letters backwards, capitals the weight-gradient passes that come apart, dots idle time; below, the chunks. */
void simulation_draw(const Simulation *s, FILE *to);

/* The bubble at T_F = T_B = T_W without transfer time; *text, unless NULL, becomes the formula. */
double bubble_formula(Pipeline pipe, const char **text);
/* On rank 0: the chart, the simulated bubble beside the formula, and each rank's most in flight. */
void simulation_print(const Simulation *s);

/* The measured bubble. A step lasts from when all ranks are ready until all are done; a rank is idle whenever it is not
 * between measure_begin and measure_end. Each such pair is one action, and a span of --trace. */
void bubble_step_begin(Comm *pp, int actions);
void measure_begin(ActionKind kind);
void measure_end(void);
void bubble_step_end(Comm *pp);
/* Prints every rank's bubble over all steps but the first. Adds this rank's, and its most in flight, to --report. */
void bubble_report(Comm *pp, const Simulation *simulated);

#endif
