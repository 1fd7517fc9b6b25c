/* What the book's pages compute: 06's schedules and the planner, with their own code, compiled by Emscripten. Each call
 * is a run of its own, with name=value arguments. Output and messages are those of the programs.
 *
 *   book schedule kind=zb-v ranks=4 micro-batches=8 chunks=1 times=1,1,1,0
 *   book plan model=8b gpus=64 batch=1M explain=tp=8,pp=2
 *   book options                  the planner's options: name, group, kind, argument, meaning
 */
#include <stdio.h>
#include <string.h>

#include "../../planner/explain.h"
#include "../../planner/question.h"
#include "../../../common/base/error.h"

void schedule(int count, char **name, char **value);          /* book_schedule.c: 06 and the planner share names */

static void plan(int count, char **name, char **value)
{
    Question question = default_question;
    const char *explain = NULL;

    for (int i = 0; i < count; i++)
        if (strcmp(name[i], "explain"))
            question_set(&question, name[i], value[i]);
        else
            explain = value[i];
    const Query q = question_query(&question);
    print_query(&q);
    if (explain) {
        const Grid g = grid_parse(&q, explain);
        print_formulas(&q, &g);
        print_commands(&q, &g);
        return;
    }
    const Candidates c = search(&q);
    print_table(&q, &c);
    print_steps(&q, &c);
    print_advice(&q, &c);
    print_commands(&q, &c.all[0].grid);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    char *value[argc];

    error_set_program("book");
    for (int i = 2; i < argc; i++) {
        if (!(value[i] = strchr(argv[i], '=')))
            fail_usage("expected name=value, got '%s'", argv[i]);
        *value[i]++ = 0;
    }
    if (!strcmp(what, "schedule"))
        schedule(argc - 2, argv + 2, value + 2);
    else if (!strcmp(what, "plan"))
        plan(argc - 2, argv + 2, value + 2);
    else if (!strcmp(what, "options"))
        for (const QuestionOption *o = question_options; o < question_options + question_option_count; o++)
            printf("%s\t%d\t%d\t%s\t%s\n", o->name, o->group, o->kind, o->argument ? o->argument : "", question_doc(o));
    else
        fail_usage("expected schedule, plan or options, got '%s'", what);
    fail_unprinted();
}
