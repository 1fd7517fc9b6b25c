/* A question to the planner, as names and texts: what a command line (plan.c) or a form of a web page (the book's)
 * gives. A front end sets options, makes a query of them, searches (search.h) and prints (explain.h). */
#ifndef QUESTION_H
#define QUESTION_H

#include <stddef.h>

#include "search.h"

typedef struct {                    /* 0, NULL; gated, tied: -1: as the model, or by default */
    Model sizes;                    /* of these, options set the numbers */
    int gated, tied;
    double capacity, tokens, price;
    int gpus, per_node, batch, state_bytes;
    const char *model, *hardware, *framework, *pretend, *dtype;
    Model config;                   /* of the file that `model` names: the front end reads it (config.c) */
    Hardware machine;               /* likewise, `hardware` */
    Range limits[DIMENSIONS];
    const char *explain, *csv, *runs, *predictions;             /* of plan.c only */
    int fit, cross_validate;
} Question;
extern const Question default_question;

typedef struct {
    const char *name;
    enum { OPTION_NUMBER, OPTION_FACTOR, OPTION_TEXT, OPTION_RANGE, OPTION_FLAG } kind;
    size_t at;                      /* of its member in Question */
    int most;                       /* NUMBER: the largest; FLAG: the value that it sets; FACTOR: 1: no tokens */
    const char *argument, *doc;
    int group;                      /* 1: the model, 2: hardware and batch, 3: restrictions; then plan.c's */
    const char *(*names)(void);     /* the texts possible; question_doc puts them before doc */
} QuestionOption;
extern const QuestionOption question_options[];
extern const int question_option_count;
const char *question_doc(const QuestionOption *o);

/* Sets an option by its name, as on the command line. Fails if there is none, or the value is invalid. The text must
 * stay valid. */
void question_set(Question *q, const char *name, const char *text);

Query question_query(const Question *q);        /* fails if sizes, GPUs and batch contradict each other */

#endif
