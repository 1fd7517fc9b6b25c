/* The command line. Options that every program has are in command_line.c; a program adds its own in a table of the same
 * kind.
 */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include "options.h"

typedef enum { OPTION_FLAG, OPTION_INT, OPTION_DOUBLE, OPTION_SEED, OPTION_TEXT, OPTION_CHOICE, OPTION_SET } OptionKind;
typedef struct {
    const char *name;                       /* without the dashes */
    OptionKind kind;
    void *value;                            /* bool, int, double, uint64_t, const char *, int (an enum, from 0), and
                                             * of a SET a bool for each word; one types words with commas, all, none */
    const char *help;
    const char *argument;                   /* what --help calls it; of a CHOICE or SET, the words: "ring|zigzag" */
    double min, max;                        /* of a number, inclusive */
} StageOption;

/* For the table of a stage that can sample (text.h). */
#define TEXT_OPTIONS \
    {"sample", OPTION_INT, &options.sample, "write so many tokens at the end", "N", 0, 1e6}, \
    {"temperature", OPTION_DOUBLE, &options.temperature, "of sampling; 0 takes the likeliest", "X", 0, 100}, \
    {"prompt", OPTION_TEXT, &options.prompt, "what the sample continues: its bytes are the tokens", "TEXT"}

/* Fills `options` and the stage's own variables; `more` ends with {0}. --help prints and ends the program. What cannot
 * be right, alone or together, ends it with status 2 and the values. */
void options_parse(const char *stage, const char *summary, int argc, char **argv, const StageOption *more);

#endif
