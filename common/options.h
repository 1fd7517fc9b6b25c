/* The command line. Options that every stage has are here; a stage adds its own in a table of the same kind. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "model.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
typedef enum { COMM_AUTO, COMM_MPI, COMM_NCCL } CommChoice;

typedef struct {
    Config config;
    int micro_batch, accumulate;            /* sequences of a micro-batch; micro-batches of a step, on each rank */
    int steps;                              /* to stop after, counted from the model's birth */
    int warmup, decay_steps;                /* of the learning rate; 0 decay_steps: it doesn't decay */
    double lr, min_lr, weight_decay, clip;
    uint64_t seed;
    const char *data;
    Recompute recompute;
    int eval_every;                         /* steps; 0: never */
    const char *save, *load;                /* directories; NULL: don't */
    int save_every;                         /* steps; 0: at the end only */
    const char *metrics, *report, *trace, *dump_gradients;     /* files; NULL: none */
    CommChoice comm;
    bool tf32;                              /* of GPUs: matmuls of F32 in TF32 */
    int threads;                            /* 0: the machine's cores divided over its ranks */
    int timeout;                            /* seconds; 0: wait for ever */
    const char *pretend;                    /* as given: "GFLOPS,GB/S,MICROSECONDS"; NULL: the real machine */
    double pretend_flops, pretend_bandwidth, pretend_latency;   /* FLOP/s, bytes/s, seconds */
    bool check, quiet;

    int sample;                             /* TEXT_OPTIONS: tokens to write at the end */
    double temperature;
    const char *prompt;
} Options;
extern Options options;

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
