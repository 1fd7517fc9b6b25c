/* The command line. command_line.c has the options that all programs share; a program adds a table of its own. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include "../base/options.h"

typedef enum { OPTION_FLAG, OPTION_INT, OPTION_DOUBLE, OPTION_SEED, OPTION_TEXT, OPTION_CHOICE,
               OPTION_MAYBE } OptionKind;
typedef struct {
    const char *name;                       /* without the dashes */
    OptionKind kind;
    void *value;                            /* to a bool, int, double, uint64_t, const char *, int (an enum, from 0), or
                                             * const char *: "" if the option is given without a text */
    const char *help;
    const char *argument;                   /* what --help calls it; for a CHOICE the words: "ring|zigzag" */
    double min, max;                        /* of a number, inclusive */
} ProgramOption;

/* Options of a program that can sample (evaluation.h). */
#define TEXT_OPTIONS \
    {"sample", OPTION_INT, &options.sample, "tokens to generate after training", "N", 0, 1e6}, \
    {"temperature", OPTION_DOUBLE, &options.temperature, "sampling temperature; 0: most likely token", "X", 0, 100}, \
    {"prompt", OPTION_TEXT, &options.prompt, "what the sample continues: a text, a token per byte; or with --vocab " \
     "above 256 ids, as tools/data/tokens.py prompt prints them", "TEXT"}

extern bool options_train;                  /* set to false: the program trains no model, and has no options for it */

/* Fills in `options` and the program's own variables. `more` is the program's table and ends with {0}. --help prints
 * the options and ends the program. A value or combination that is invalid ends it with status 2 and one line that
 * shows the value and what is expected. */
void options_parse(const char *summary, int argc, char **argv, const ProgramOption *more);

/* Writes the tokens of --prompt to `ids`, unless it is NULL, and returns their number, at least 1. Fails (fail_usage)
 * if one is not below --vocab. */
int64_t prompt_ids(int32_t *ids);

#endif
