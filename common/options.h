/* What the command line chose. Every unit may read it; command_line.h fills it in. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int layers, hidden, heads, vocab, seq;
} Config;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
typedef enum { COMM_AUTO, COMM_MPI, COMM_NCCL } CommChoice;
typedef enum { TF32_AUTO, TF32_ON, TF32_OFF } Tf32Choice;
typedef enum { AUTOTUNE_OFF, AUTOTUNE_ON } AutotuneChoice;

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
    Tf32Choice tf32;                        /* of GPUs: whether matmuls of F32 are in TF32 */
    AutotuneChoice autotune;                /* of GPUs: whether each matmul takes the fastest way, or the same always */
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

#endif
