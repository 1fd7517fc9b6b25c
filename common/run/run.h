/* A run's life around the training step: starting, resuming, ending; what the user and scripts see. */
#ifndef RUN_H
#define RUN_H

#include <stdbool.h>

#include "command_line.h"
#include "../transformer/optimizer.h"

typedef struct {
    double loss, norm, lr;              /* the same on all ranks: global batch's mean loss; norm before clipping */
    bool skipped;                       /* no update was made, and the norm may be Inf or NaN */
} StepResult;

/* Starts MPI, parses the command line, takes the device, opens data and files, and prints what will be trained.
 * `summary` is one sentence for --help; `more` are the program's own options. */
void run_begin(const char *program, const char *summary, int argc, char **argv, const ProgramOption *more);

/* Sets the sequences per step over all ranks, where that is not micro_batch * accumulate. Call it before run_load. */
void run_set_global_batch(int64_t sequences);

/* Sets the dtype of matmuls' inputs, where that is not REAL, and prints it. MFU is relative to the device's peak for
 * it. */
void run_set_matmul_dtype(DType dtype);

/* Registers a number as part of the run's state: a column of --metrics, saved and restored by checkpoints. Call it
 * before run_load. */
void run_register_state(const char *name, double *value);

/* Gives the parameters their initial weights, or --load's together with the optimizer's states. Returns the number of
 * steps already done. */
int run_load(AdamW *optimizer);

/* Returns whether another step follows the first `step` steps. If none does, saves, and prints the memory and traffic
 * tables. */
bool run_continues(int step);

/* Writes --dump-gradients in the run's first step. Call it between backward and the update. */
void run_dump_gradients(const AdamW *optimizer);

/* Call after each step; `step` counts it. Prints and records the results, compares traffic with the prediction, and
 * saves if that is due. Fails if the loss or the norm is NaN or Inf (a skipped step's norm may be), or the norm so
 * large that AdamW's moments could be Inf. */
void run_step(int step, StepResult result);

/* Prints and reports an evaluation's loss (evaluation.h). */
void run_report_validation(double loss);

/* Fails if there is more than one rank: for programs that use one. */
void run_on_one_rank(void);

/* Writes --report and --trace, and ends the program with status 0; 1 if memory or traffic differed from the prediction;
 * 128 + N if signal N stopped it. */
_Noreturn void run_end(void);

#endif
