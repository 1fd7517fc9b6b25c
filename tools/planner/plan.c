/* plan: the fastest grid of ranks for a model on some number of GPUs. The playbook answers with 4,000 runs; the planner
 * computes memory and time of every grid (search.c) by formulas (costs.c) whose constants are fitted to them (runs.c).
 * This file has the command line only; question.h is the interface.
 *
 *   build/cpu/plan --model 8b --gpus 64
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "explain.h"
#include "machines.h"
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
    print_plan(&q, question.explain, question.csv);
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
        compare_runs(&question);
    else if (question.predictions || question.fit || question.cross_validate)
        fail_usage("--predictions, --fit, --cross-validate: expected --runs FILE with them");
    else
        plan();
    fail_unprinted();
}
