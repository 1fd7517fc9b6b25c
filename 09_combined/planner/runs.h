/* The runs that the playbook published, and how near the formulas come to them. */
#ifndef RUNS_H
#define RUNS_H

#include "costs.h"

typedef struct {
    Model model;
    Cluster cluster;
    Grid grid;
    int group;                      /* the runs of one model on as many nodes: among them a planner has to choose */
    double measured, memory;        /* tokens/s of a GPU; bytes of the rank that took most */
    double predicted, predicted_memory;
    char *line;                     /* as it is in the file */
} Run;

typedef struct {
    Run *all;
    int count, groups;
    char *header;
} Runs;

/* Reads a file in playbook_runs.csv's form; columns by their names, in any order. What can't be read fails with the
 * file's name and the line's number. */
Runs runs_read(const char *file);

/* Fills predicted and predicted_memory, with the constants; the times of the runs of `group` alone, or of all: -1. */
void runs_predict(Runs *r, const Hardware *h, const Constants *k, int group);

/* The constants with the least mean |log(predicted / measured)|, no run counting for more than a quarter (some failed
 * and were slower by ten times); by Nelder and Mead (1965), in logarithms, from round guesses. Leaves one group out;
 * -1: none. */
Constants runs_fit(const Runs *r, const Hardware *h, int without);

/* The file, with the columns predicted_tokens_per_second_per_gpu and predicted_memory (GiB). */
void runs_write(const Runs *r, const char *file);

/* A table by group and in all: median errors, rank correlation, regret (by how much the layout chosen is slower than
 * the fastest measured one of its group) of the planner and of three rules that need no formulas. */
void runs_print(const Runs *r);

#endif
