/* Published runs, against the formulas' predictions. */
#ifndef RUNS_H
#define RUNS_H

#include "question.h"

/* Predicts the runs of the question's file, with fitted constants if it asks for them. Prints errors, rank correlation
 * and regret, per group and of all. */
void compare_runs(const Question *q);

#endif
