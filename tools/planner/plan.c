/* plan: the fastest grid of ranks for a model on some number of GPUs. The playbook answers with 4,000 runs; the planner
 * computes memory and time of every grid (search.c) by formulas (costs.c) whose constants are fitted to them (runs.c).
 * This file has the command line only; question.h is the interface.
 *
 *   build/cpu/plan --model 8b --gpus 64
 */
#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "explain.h"
#include "machines.h"
#include "question.h"
#include "runs.h"

static Question question;
static const char *explain, *csv, *runs_file, *predictions;
static bool fit, cross_validate;

enum { QUESTION = 1000, EXPLAIN = 'e', CSV = 'o', RUNS = 'r', PREDICTIONS = 'p', FIT = 'f', CROSS = 'c' };
static const struct argp_option more[] = {
    {.doc = "Output:", .group = 4},
    {"explain", 256 + EXPLAIN, "GRID", 0, "every formula with its numbers, for GRID: like tp=2,pp=4; or best", 4},
    {"csv", 256 + CSV, "FILE", 0, "write all grids with their bytes and seconds", 4},
    {.doc = "Instead of a plan, a comparison with published runs:", .group = 5},
    {"runs", 256 + RUNS, "FILE", 0, "print errors of the predictions, and how good the planner's choices are; with the "
     "columns of playbook_runs.csv or of published_runs.csv", 5},
    {"published", 0, NULL, OPTION_ALIAS, NULL, 5},
    {"predictions", 256 + PREDICTIONS, "FILE", 0, "write the runs with their predictions", 5},
    {"fit", 256 + FIT, NULL, 0, "fit the constants to these runs first", 5},
    {"cross-validate", 256 + CROSS, NULL, 0, "predict each group of runs with constants fitted to the others", 5},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state)
{
    if (key >= QUESTION && key < QUESTION + question_option_count) {
        question_set(&question, question_options[key - QUESTION].name, text);
        return 0;
    }
    switch (key - 256) {
    case EXPLAIN: explain = text; return 0;
    case CSV: csv = text; return 0;
    case RUNS: runs_file = text; return 0;
    case PREDICTIONS: predictions = text; return 0;
    case FIT: fit = true; return 0;
    case CROSS: cross_validate = true; return 0;
    }
    if (key == ARGP_KEY_ARG)
        fail_usage("\"%s\" is not an option: options begin with --; see --help", state->argv[state->next - 1]);
    return ARGP_ERR_UNKNOWN;
}

static void plan(void)
{
    const Query q = question_query(&question);

    if (explain && strcmp(explain, "best")) {
        if (csv)
            fail_usage("--csv %s: expected without --explain GRID, which computes one grid only", csv);
        const Grid g = grid_parse(&q, explain);
        print_query(&q);
        print_formulas(&q, &g);
        print_commands(&q, &g);
        return;
    }
    const Candidates c = search(&q);
    print_query(&q);
    print_table(&q, &c);
    if (explain)
        print_formulas(&q, &c.all[0].grid);
    else {
        print_steps(&q, &c);
        print_advice(&q, &c);
        print_commands(&q, &c.all[0].grid);
    }
    if (csv)
        write_csv(&c, csv);
    free(c.all);
}

static void runs(void)
{
    Runs r = runs_read(runs_file);
    Constants k[PROFILES], others[PROFILES];

    if (fit && cross_validate)
        fail_usage("--fit and --cross-validate: expected one of them; --cross-validate fits once per group");
    if (cross_validate && r.groups < 2)
        fail_usage("--cross-validate: expected runs of at least two groups (model, nodes; source), got one");
    for (int p = 0; p < PROFILES; p++)
        k[p] = profiles[p].constants;
    if (fit)
        runs_fit(&r, k, -1);
    runs_predict(&r, k, -1);
    for (int g = 0; cross_validate && g < r.groups; g++) {
        runs_fit(&r, others, g);
        runs_predict(&r, others, g);
    }
    if (predictions)
        runs_write(&r, predictions);
    runs_print(&r);
    if (cross_validate) {
        printf("\n(each group predicted with constants fitted to the others)\n");
        return;
    }
    printf("\nconstants%s:", fit ? ", fitted to these runs" : "");
    for (int p = 0; p < PROFILES; p++) {
        printf("\n  %-8s", profiles[p].name);
        for (int c = 0; c < CONSTANTS; c++)
            printf(" %s %.3g", constant_name[c], (&k[p].efficiency)[c]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    enum { OPTIONS = 64 };
    static const char *const headings[] = {"The model, and sizes to change:", "The hardware and the batch:",
                                           "Restrictions of the grid: a number, or \"<=4\", \">=2\", 2..8:"};
    struct argp_option list[OPTIONS] = {0}, *next = list;
    const struct argp parser = {.options = list, .parser = parse, .doc = "Finds the grid of ranks that trains a model "
                                "fastest and fits in memory.\vFormulas, models, hardware: tools/planner."};

    error_set_program("plan");
    argv[0] = "plan";
    argp_err_exit_status = 2;
    question = default_question;
    for (int i = 0; i < question_option_count; i++) {
        const QuestionOption *o = &question_options[i];
        if (!i || o->group != o[-1].group)
            *next++ = (struct argp_option){.doc = headings[o->group - 1], .group = o->group};
        *next++ = (struct argp_option){o->name, QUESTION + i, o->argument, 0, question_doc(o), o->group};
    }
    memcpy(next, more, sizeof more);
    argp_parse(&parser, argc, argv, 0, NULL, NULL);
    if (runs_file)
        runs();
    else if (predictions || fit || cross_validate)
        fail_usage("--predictions, --fit, --cross-validate: expected --runs FILE with them");
    else
        plan();
    fail_unprinted();
}
