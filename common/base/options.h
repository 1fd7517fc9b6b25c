/* The command line's choices. Any file may read them; command_line.c fills them in. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Llama 3's change of the rotary frequencies; factor 0: none. */
typedef struct {
    double factor, low_freq_factor, high_freq_factor;
    int original_seq;
} RopeScaling;

typedef struct {
    int layers, hidden, heads, vocab, seq;  /* L, h, a, v, s */
    int experts;                            /* MLPs in each block, of which a token takes top_k; 0: one, of width 4h */
    int top_k, expert_width;
    int kv_heads, mlp;                      /* of models that have them: heads of k and v, width of the MLP */
    bool untied;                            /* the output projection is not the embedding */
    double norm_eps, rope_theta;            /* 0 theta: --load's, or 10000 */
    RopeScaling rope_scaling;
} Config;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
typedef enum { COMM_AUTO, COMM_MPI, COMM_NCCL } CommChoice;
typedef enum { TF32_AUTO, TF32_ON, TF32_OFF } Tf32Choice;

typedef struct {
    Config config;
    int micro_batch, accumulate;            /* sequences per micro-batch; micro-batches per step and rank */
    int steps;                              /* step to stop after, counted from the start of training */
    int warmup, decay_steps;                /* steps, of the learning rate; 0 decay_steps: no decay */
    double lr, min_lr, weight_decay, clip;
    uint64_t seed;
    const char *data;                       /* NULL: the project's own text, until data_open has found it */
    Recompute recompute;
    int eval_every;                         /* steps; 0: never */
    const char *save, *load;                /* directories; NULL: none */
    int save_every;                         /* steps; 0: at the end only */
    int keep;                               /* checkpoints, the last ones */
    const char *metrics, *report, *trace, *dump_gradients;     /* files; NULL: none */
    const char *timeline;                   /* "", a step, 30ms, or FILE.svg; NULL: none */
    CommChoice comm;
    Tf32Choice tf32;                        /* on a GPU: whether F32 matmuls round their inputs to TF32 */
    int threads;                            /* per rank; 0: OMP_NUM_THREADS, or the machine's cores per rank */
    int timeout;                            /* seconds; 0: no deadline */
    const char *pretend;                    /* as given: "GFLOPS,GB/S,MICROSECONDS"; NULL: the real machine */
    double pretend_flops, pretend_bandwidth, pretend_latency;   /* FLOP/s, bytes/s, seconds */
    bool check, quiet;

    int sample;                             /* TEXT_OPTIONS: tokens to generate after training */
    double temperature;
    const char *prompt;                     /* command_line.h's prompt_ids reads it */
} Options;
extern Options options;

/* ---- sizes of known models, by name: --preset ---- */
typedef struct {
    const char *name;
    Config config;
    int micro_batch, accumulate;
} Preset;

extern const Preset *presets;                   /* ends with {0}; a program with another model sets its own */
const Preset *preset_named(const char *name);   /* NULL: no such preset */
const char *preset_names(void);                 /* "tiny|small|..." */

#endif
