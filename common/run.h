/* Everything around a training step: the start, going on, the end; what a person and a script get to see. */
#ifndef RUN_H
#define RUN_H

#include <stdbool.h>

#include "command_line.h"
#include "optimizer.h"

typedef struct {
    double loss, norm, lr;              /* of the step, on all ranks alike: global batch's mean; before clipping */
    bool skipped;                       /* no update was made, and the norm may be Inf or NaN */
} StepResult;

/* Starts MPI, reads the command line, takes the device, opens data and files, and says what will be trained. The
 * summary is one sentence for --help; `more` are the stage's own options. */
void run_begin(const char *stage, const char *summary, int argc, char **argv, const StageOption *more);

/* So many sequences are in a step of all ranks, if not micro_batch * accumulate. Before run_load. */
void run_global_batch(int64_t sequences);

/* The type of what is multiplied, if not REAL: MFU is a fraction of the device's peak for it. Says so. */
void run_matmuls_in(DType dtype);

/* A number that goes on with the run: a further column of --metrics, and in checkpoints. Before run_load. */
void run_keep(const char *name, double *value);

/* Gives the parameters their initial weights, or --load's, with the optimizer's states; the step to go on from. */
int run_load(AdamW *optimizer);

/* Whether there is a step to do after `step` others. After the last one it saves, and prints the memory table. */
bool run_continues(int step);

/* Between backward and the update: --dump-gradients writes them, at the first step of the run. */
void run_dump_gradients(const AdamW *optimizer);

/* After the step-th step: prints and writes what came of it, compares traffic with the prediction, saves if it is
 * time; ends the run if the loss or the norm is NaN or Inf (a skipped step's norm may be). */
void run_step(int step, StepResult result);

/* text.h's evaluation, for the report. */
void run_held_out(double loss);

/* In a program for one rank: fails if there are more. */
void run_alone(void);

/* After training, on one rank: whether a signal wants the program to end. */
bool run_interrupted(void);

/* Writes --report and --trace; does not return, but ends the program: 0; 1, if memory or traffic was not as predicted;
 * 128 + the signal that stopped it. */
_Noreturn void run_end(void);

/* Ends the program before it trains, when what was asked for has been printed: leaves no files behind. All ranks. */
_Noreturn void run_leave(void);

#endif
