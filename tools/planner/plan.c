/* plan: the fastest grid of ranks for a model on some number of GPUs. The playbook answers with 4,000 runs; the planner
 * computes memory and time of every grid (search.c) by formulas (costs.c) whose constants are fitted to them (runs.c).
 * This file has the command line only; question.h is the interface.
 *
 *   build/cpu/plan --model 8b --gpus 64
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "config.h"
#include "explain.h"
#include "question.h"
#include "runs.h"

static Question question;
enum { QUESTION = 1000 };           /* the key of the first option */

static error_t parse(int key, char *text, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        fail_usage("\"%s\" is not an option: options begin with --; see --help", state->argv[state->next - 1]);
    if (key < QUESTION || key >= QUESTION + question_option_count)
        return ARGP_ERR_UNKNOWN;
    question_set(&question, question_options[key - QUESTION].name, text);
    return 0;
}

static void plan(void)
{
    if (strstr(question.model, ".json"))
        question.config = model_read(question.model);
    if (strstr(question.hardware, ".json"))
        question.machine = hardware_read(question.hardware, question.dtype,
                                         question.per_node ? question.per_node : NODE);
    const Query q = question_query(&question);

    if (question.explain && strcmp(question.explain, "best")) {
        if (question.csv)
            fail_usage("--csv %s: expected without --explain GRID, which computes one grid only", question.csv);
        const Grid g = grid_parse(&q, question.explain);
        print_query(&q);
        print_formulas(&q, &g);
        print_commands(&q, &g);
        return;
    }
    const Candidates c = search(&q);
    print_query(&q);
    print_table(&q, &c);
    if (question.explain)
        print_formulas(&q, &c.all[0].grid);
    else {
        print_steps(&q, &c);
        print_advice(&q, &c);
        print_commands(&q, &c.all[0].grid);
    }
    if (question.csv)
        write_csv(&q, &c, question.csv);
    free(c.all);
}

static void runs(void)
{
    Runs r = runs_read(question.runs);
    Constants k[PROFILES], others[PROFILES];

    if (question.fit && question.cross_validate)
        fail_usage("--fit and --cross-validate: expected one of them; --cross-validate fits once per group");
    for (int p = 0; p < PROFILES; p++)
        k[p] = profiles[p].constants;
    if (question.fit)
        runs_fit(&r, k, -1);
    runs_predict(&r, k, -1);
    for (int g = 0; question.cross_validate && g < r.groups; g++) {
        runs_fit(&r, others, g);
        runs_predict(&r, others, g);
    }
    if (question.predictions)
        runs_write(&r, question.predictions);
    runs_print(&r);
    if (question.cross_validate)
        printf("\n(each group predicted with constants fitted to the others)\n");
    else
        printf("\nconstants%s:\n", question.fit ? ", fitted to these runs" : "");
    for (int p = 0; p < PROFILES && !question.cross_validate; p++) {
        printf("  %-8s", profiles[p].name);
        for (int c = 0; c < CONSTANTS; c++)
            printf(" %s %.3g%s", constant_name[c], (&k[p].efficiency)[c], c < CONSTANTS - 1 ? "" : "\n");
    }
}

int main(int argc, char **argv)
{
    static const char *const headings[] = {"The model, and sizes to change:", "The hardware and the batch:",
                                           "Restrictions of the grid: a number, or \"<=4\", \">=2\", 2..8:", "Output:",
                                           "Instead of a plan, a comparison with published runs:"};
    struct argp_option list[64] = {0}, *next = list;
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
    argp_parse(&parser, argc, argv, 0, NULL, NULL);
    if (question.runs)
        runs();
    else if (question.predictions || question.fit || question.cross_validate)
        fail_usage("--predictions, --fit, --cross-validate: expected --runs FILE with them");
    else
        plan();
    fail_unprinted();
}
