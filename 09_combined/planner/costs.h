/* What a step costs, by formulas alone: bytes of a rank by category, seconds by what they are spent on. No ranks, no
 * device, no tensors. Sizes as in the playbook: s tokens of a sequence, h hidden, f the MLP's width, v the vocabulary;
 * t, c, p, d ranks of tensor, context, pipeline and data parallelism.
 */
#ifndef COSTS_H
#define COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "../../common/memory.h"

typedef struct {
    char name[32];
    int layers, hidden, heads, kv_heads, mlp, vocab, seq;
    bool gated;                     /* an MLP of three matrices (Llama), not two */
    bool tied;                      /* the output projection is the embedding */
    bool ours;                      /* this project's: biases, LayerNorm; planned as 09_combined runs it */
} Model;

typedef struct {
    const char *name;
    double peak;                    /* bf16 FLOP/s of a GPU, dense */
    double memory;                  /* bytes that a program can have of it */
    double bandwidth;               /* bytes/s of that memory; INFINITY: its time isn't counted */
    double nvlink;                  /* bytes/s that a GPU sends within its node */
    double network;                 /* bytes/s that a node sends */
    double latency;                 /* seconds of a message between two GPUs, beside what Constants have */
    const char *source;
} Hardware;

typedef enum { KEEP_ALL, RECOMPUTE_BLOCKS } Recomputation;

/* Who computes what: the grid of ranks, and how a step goes through it. */
typedef struct {
    int dp, cp, pp, tp;
    int micro_batch, accumulate;    /* sequences of a micro-batch; micro-batches of a step, on each replica */
    int zero;                       /* 0 to 3 */
    Recomputation recompute;
} Grid;

typedef struct {
    int gpus, per_node;             /* all; of a node */
    bool published;                 /* time and placement as of the playbook's runs: costs.c says what differs */
    int stored;                     /* bytes of an activation or weight: 2 in bf16, 4 in float */
    int loss_rows;                  /* rows whose logits 09 has at once: 2048 on a GPU, 256 on a CPU */
} Cluster;

/* What only runs can tell; fitted to those that the playbook published (runs.c), or exact for --pretend. */
typedef struct {
    double efficiency;              /* of matmuls: share of the peak */
    double launch;                  /* seconds, of a layer and micro-batch: the host starts its kernels, both ways */
    double hop;                     /* seconds, of a collective for each hop of its ring that leaves NVLink */
    double sync;                    /* seconds, of a layer for each replica that its gradients are summed over */
    double step;                    /* seconds, of a step, whatever is in it */
    double stall;                   /* seconds, of a transfer between stages that went wrong (published runs) */
} Constants;
enum { CONSTANTS = sizeof(Constants) / sizeof(double) };
extern const char *const constant_name[CONSTANTS], *const constant_meaning[CONSTANTS];
extern const Constants published_constants;     /* fitted by plan --runs playbook_runs.csv --fit */
extern const Constants exact_constants;         /* for --pretend, whose machine does just what its numbers say */

typedef struct {
    double bytes[MEM_CATEGORIES], total;
    int stage;                      /* whose rank this is: of the stage that needs most */
} Memory;

typedef struct {                    /* seconds of a step, by what one rank spends them on; they add up to total */
    double compute, launches, tensor, context, bubble, data, optimizer, fixed, total;
} Time;
enum { TIMES = 8 };
extern const char *const time_name[TIMES];

/* What a pipeline stage has, and what a micro-batch of it takes. */
typedef struct {
    int layers, embeddings, heads;  /* blocks; whether it has the embedding, the output projection */
    double params;                  /* elements, of all its t ranks together */
    double kernels, tensor, context, launches, seconds;     /* a micro-batch, forward and backward */
} Stage;

double model_parameters(const Model *m);
double block_parameters(const Model *m);                /* of all ranks together */
double model_flops(const Model *m);                     /* of a token: 6 N + 12 L h s, what MFU counts */
typedef enum { FORWARD, BACKWARD } Pass;
double block_flops(const Model *m, double tokens, Pass pass);   /* of all t ranks; FlashAttention's causal half */
double head_flops(const Model *m, double tokens);

/* Fills stages[pp]: blocks and parameters. 09 gives each L/p blocks; nanotron fills a stage until the cost so far, of
 * blocks and then the head, passes the stage's part of the whole (its build_model). */
void grid_stages(const Model *m, const Grid *g, Stage *stages);

/* Of the rank that needs most. A model that is ours: what 09's predict() says, to the byte; ZeRO-2 and 3, which 09
 * doesn't have, by what 04 shards more. Another: what nanotron's runs took, within a few percent. */
Memory grid_memory(const Model *m, const Grid *g, const Cluster *c);

const char *memory_formula(const Model *m, const Grid *g, int category);        /* in words, for a person */

/* Also fills stages, if they are given, with their times. */
Time grid_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *stages);

/* Memory above this share of the device's doesn't fit. Most published runs above it took 2.5 to 10 times as long as
 * those below, as if PyTorch's allocator returned memory and asked for it again in every step. */
extern const double memory_limit;

double grid_tokens(const Model *m, const Grid *g);      /* of a step */

#endif
