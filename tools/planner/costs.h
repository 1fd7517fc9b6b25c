/* The cost of a step by formulas alone: bytes per rank and memory category, seconds by cause. No ranks, no device, no
 * tensors. Letters: s tokens per sequence, h hidden size, f MLP width, v vocabulary; t, p TP and PP degree; m
 * micro-batches per step and rank; n replicas, dp x cp.
 */
#ifndef COSTS_H
#define COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "../../common/memory.h"

typedef struct {
    char name[32];
    int layers, hidden, heads, kv_heads, mlp, vocab, seq;
    int experts, top_k, expert_width;   /* MLPs in each block, of which a token takes top_k; 0: one, of width mlp */
    bool gated;                     /* an MLP of three matrices (Llama), not two */
    bool tied;                      /* embedding and output projection are one matrix */
    bool in_09;                     /* 09_combined can train it (biases, LayerNorm, MLP of 4h): planned as 09 runs it */
    double capacity;                /* of mixtures: slots per expert, over an even share of the tokens */
} Model;

typedef struct {
    const char *name;
    double peak;                    /* bf16 FLOP/s per GPU, dense */
    double memory;                  /* bytes per GPU that a program can allocate */
    double bandwidth;               /* bytes/s of that memory; INFINITY: memory traffic takes no time */
    double nvlink;                  /* bytes/s that a GPU sends inside its node */
    double network;                 /* bytes/s that a node sends to others */
    double latency;                 /* seconds per transfer between two GPUs, beside those in Constants */
    const char *source;
} Hardware;

enum { NO_RECOMPUTATION, FULL_RECOMPUTATION };

/* A parallel configuration: the grid of ranks, and how a step is split into micro-batches. */
typedef struct {
    int dp, cp, pp, tp;
    int ep;                         /* ranks of dp x cp that split the experts; 1: no mixture */
    int micro_batch, accumulate;    /* sequences per micro-batch; micro-batches per step and rank of dp */
    int zero;                       /* ZeRO stage, 0 to 3 */
    int recompute;
} Grid;

typedef struct {
    int gpus, per_node;             /* in total; per node */
    bool published;                 /* times and rank order of the playbook's runs; costs.c names the differences */
    int stored;                     /* bytes per activation or weight: 2 in bf16, 4 in fp32 */
    int gradients;                  /* bytes per gradient: 6 in nanotron; 09 and models as it runs them: 4 */
    int loss_rows;                  /* rows whose logits exist at once: 2048 on a GPU, 256 on a CPU */
} Cluster;

/* What only measurements can give: fitted to the playbook's published runs (runs.c), or exact for --pretend. */
typedef struct {
    double efficiency;              /* of matmuls and attention: fraction of the peak */
    double launch;                  /* seconds per layer and micro-batch: the host starts its kernels, both ways */
    double hop;                     /* seconds per collective and hop of its ring outside NVLink */
    double sync;                    /* seconds per layer and replica over which its gradients are summed */
    double step;                    /* seconds per step, for any computation */
    double stall;                   /* seconds per stalled transfer between pipeline stages (published runs only) */
} Constants;
enum { CONSTANTS = sizeof(Constants) / sizeof(double) };
extern const char *const constant_name[CONSTANTS], *const constant_meaning[CONSTANTS];
extern const Constants published_constants;     /* as fitted by plan --runs playbook_runs.csv --fit */
extern const Constants exact_constants;         /* for --pretend: simulated hardware reaches its numbers exactly */

typedef struct {
    double bytes[MEM_CATEGORIES], total;
    int stage;                      /* the pipeline stage that needs most, whose rank this is */
} Memory;

typedef struct {                    /* seconds per step of one rank, by cause; they add up to total */
    double compute, launches, tensor, context, experts, bubble, data, optimizer, fixed, total;
} Time;
enum { TIME_EXPERTS = 4, TIMES = 9 };
extern const char *const time_name[TIMES];

/* One pipeline stage: its layers, and seconds per micro-batch, forward and backward. */
typedef struct {
    int layers, embeddings, heads;  /* blocks; 1 if it has the embedding, the output projection, else 0 */
    double params, experts;         /* elements, on all its t x ep ranks together; of these, of experts */
    double kernels, tensor, context, exchange, launches, seconds;
} Stage;

double model_parameters(const Model *m);
double active_parameters(const Model *m);               /* that a token uses: of the experts, top_k */
double block_parameters(const Model *m);                /* of a full block */
double model_flops(const Model *m);                     /* per token: 6 N + 12 L h s, N active: what MFU counts */
typedef enum { FORWARD, BACKWARD } Pass;
double block_flops(const Model *m, double tokens, Pass pass);   /* of all t ranks; attention: the causal half only */
double head_flops(const Model *m, double tokens);

/* Fills in stages[pp]: blocks and parameters. 09 gives each pipeline stage L/p blocks. nanotron (build_model) adds
 * blocks to stage i until the cost so far, of blocks and then the head, passes (i+1)/p of the total. */
void grid_stages(const Model *m, const Grid *g, Stage *stages);

/* Memory of the rank that needs most. A model in 09: what 09's predict() gives, to the byte. Other models: what runs of
 * nanotron took, within a few percent. */
Memory grid_memory(const Model *m, const Grid *g, const Cluster *c);

const char *memory_formula(const Model *m, const Grid *g, int category);        /* in words */

/* Seconds of a step. Also fills in stages[pp], unless NULL. */
Time grid_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *stages);

/* The fraction of a GPU's memory that a grid may use. Most published runs above it took 2.5 to 10 times as long as
 * predicted, as if PyTorch's allocator returned memory and asked for it again in every step. */
extern const double memory_limit;

double grid_tokens(const Model *m, const Grid *g);      /* per step */

#endif
