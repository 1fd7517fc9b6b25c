/* The playbook's published runs, against the formulas' predictions. */
#ifndef RUNS_H
#define RUNS_H

#include "costs.h"

typedef struct {
    Model model;
    Cluster cluster;
    Grid grid;
    int group;                      /* of the runs of one model on as many nodes, from which a planner chooses */
    double measured, memory;        /* tokens/s per GPU; bytes on the rank that needed most */
    double predicted, predicted_memory;
    char *line;                     /* as in the file */
} Run;

typedef struct {
    Run *all;
    int count, groups;
    char *header;
} Runs;

/* Reads a file in the format of playbook_runs.csv; columns by name, in any order. Fails with the file's name and the
 * line's number. */
Runs runs_read(const char *file);

/* Fills in predicted_memory of all runs, and predicted, with these constants, of the runs of `group`; -1: of all. */
void runs_predict(Runs *r, const Hardware *h, const Constants *k, int group);

/* Fits the constants: the least mean of |log(predicted / measured)|, at most 1/4 per run, as some failed and were ten
 * times slower. By the simplex of Nelder and Mead (1965), in logarithms, from round guesses. Leaves out the group
 * `without`; -1: none. */
Constants runs_fit(const Runs *r, const Hardware *h, int without);

/* Writes the runs with two more columns, predicted_tokens_per_second_per_gpu and predicted_memory (GiB). */
void runs_write(const Runs *r, const char *file);

/* Prints, per group and in total: median errors, rank correlation, and the regret of the planner and of three rules
 * without formulas. Regret: how much slower the chosen grid ran than the fastest of its group. */
void runs_print(const Runs *r);

#endif
