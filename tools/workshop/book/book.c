/* What the book's pages compute, with the project's own code, compiled by Emscripten. Each call is a run of its own,
 * with name=value arguments. Output and messages are those of the programs.
 *
 *   book schedule kind=zb-v ranks=4 micro-batches=8 chunks=1 times=1,1,1,0
 *   book schedule ranks=2 micro-batches=2 bubble=50 text="F0 F1 B0 B1
 *   F0 B0 F1 B1"                      a puzzle: typed lists, and a goal
 *   book collective algorithm=ring_all_reduce ranks=4
 *   book attention ranks=4 text=...
 *   book routing top=1 text=...
 *   book plan model=8b gpus=64 batch=1M explain=tp=8,pp=2
 *   book options                      the planner's options: name, group, kind, argument, meaning
 */
#include "book.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../planner/explain.h"
#include "../../planner/question.h"
#include "../../../common/base/error.h"
#include "../../../common/base/print.h"

const char *given_text(Given g, const char *name, const char *otherwise)
{
    for (int i = 0; i < g.count; i++)
        if (!strcmp(g.name[i], name))
            return g.value[i];
    return otherwise;
}

int given_number(Given g, const char *name, int otherwise, int least, int most)
{
    const char *text = given_text(g, name, NULL);
    char *end = NULL;
    const long number = text ? strtol(text, &end, 10) : otherwise;

    if (text && (*end || end == text || number < least || number > most))
        fail("%s: expected an integer from %d to %d, got '%s'", name, least, most, text);
    return number;
}

void goal(Given g, const char *name, const char *what, double value)
{
    const char *most = given_text(g, name, NULL);

    if (most)
        printf("goal: %s %.4g (at most %s): %s\n", what, value, most,
               value <= atof(most) + 1e-3 ? "reached" : "not yet");
}

const char *next_word(const char **text)
{
    static char word[32];

    *text += strspn(*text, " \t\r");
    const int length = strcspn(*text, " \t\r\n");
    if (!length) {
        *text += **text == '\n';
        return NULL;
    }
    snprintf(word, sizeof word, "%.*s", length, *text);
    *text += length;
    return word;
}

static void plan(Given given)
{
    Question question = default_question;
    const char *explain = NULL;

    for (int i = 0; i < given.count; i++)
        if (!strcmp(given.name[i], "explain"))
            explain = given.value[i];
        else if (strcmp(given.name[i], "memory") && strcmp(given.name[i], "seconds"))       /* goals */
            question_set(&question, given.name[i], given.value[i]);
    const Query q = question_query(&question);
    const Candidate c = print_plan(&q, explain, NULL);
    if (explain) {
        goal(given, "memory", "GiB on the fullest rank:", c.memory.total / GiB);
        goal(given, "seconds", "seconds per step:", c.time.total);
    }
}

static void print_options(Given g)
{
    (void)g;
    for (const QuestionOption *o = question_options; o < question_options + question_option_count; o++)
        printf("%s\t%d\t%d\t%s\t%s\n", o->name, o->group, o->kind, o->argument ? o->argument : "", question_doc(o));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *word;
        void (*run)(Given);
    } commands[] = {{"schedule", schedule}, {"collective", collective}, {"attention", attention}, {"routing", routing},
                    {"plan", plan}, {"options", print_options}, {0}};
    const char *word = argc > 1 ? argv[1] : "";
    char *value[argc + 1];

    error_set_program("book");
    for (int i = 2; i < argc; i++) {
        if (!(value[i] = strchr(argv[i], '=')))
            fail_usage("expected name=value, got '%s'", argv[i]);
        *value[i]++ = 0;
    }
    for (int i = 0; commands[i].word; i++)
        if (!strcmp(word, commands[i].word)) {
            commands[i].run((Given){argc > 2 ? argc - 2 : 0, argv + 2, value + 2});
            fail_unprinted();
            return 0;
        }
    fail_usage("expected schedule, collective, attention, routing, plan or options, got '%s'", word);
}
