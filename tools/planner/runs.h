/* Published runs, against the formulas' predictions. */
#ifndef RUNS_H
#define RUNS_H

#include "search.h"

typedef struct {
    Query query;                    /* one grid's */
    Grid grid;
    int chunks;                     /* the grid's; more: as many as it may have had, as their number is not published */
    int profile;                    /* of its constants */
    int group;                      /* what cross-validation leaves out at once: the source; a model on so many nodes */
    int set;                        /* runs from which a planner chooses: of one group, model and number of GPUs */
    double weight;                  /* in a fit; 0: none, and not counted either */
    double measured, memory;        /* tokens/s per GPU; bytes on the rank that needed most, or 0: not published */
    double predicted, predicted_memory;
    double slowest;                 /* predicted with the grid's chunks, while `predicted` has the fastest number */
    bool planned;                   /* predicted as a plan is: without stalls and slow rings */
    char *name, *line, *wrong;      /* of the group; as in the file; why it is not predicted, or NULL */
} Run;

typedef struct {
    Run *all;
    int count, groups, sets;
    bool playbook;                  /* columns as in playbook_runs.csv; else as in published_runs.csv */
    char *header;
} Runs;

/* Reads a file whose columns have the names of playbook_runs.csv or, with a column `layout`, of published_runs.csv.
 * They may be in any order; others are ignored. Fails with the file's name and the line's number. */
Runs runs_read(const char *file);

/* Fills in predicted_memory of all runs, and predicted, with these constants, of the runs of `group`; -1: of all. */
void runs_predict(Runs *r, const Constants k[PROFILES], int group);

/* Fits the constants to the runs that are not of the group `without` (-1: to all): the least mean of
 * |log(predicted / measured)|, at most 1/4 per run, as some failed. A profile that no run has keeps its constants. */
void runs_fit(const Runs *r, Constants k[PROFILES], int without);

void runs_write(const Runs *r, const char *file);       /* with predicted tokens/s per GPU and GiB */
void runs_print(const Runs *r);                         /* errors, rank correlation and regret, per group and of all */

#endif
