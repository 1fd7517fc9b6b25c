/* The cost of a step by formulas alone: bytes per rank and memory category, seconds by cause. No ranks, no device, no
 * tensors. Letters: s tokens per sequence, h hidden size, f MLP width, v vocabulary; t, p TP and PP degree; m
 * micro-batches per step and rank; n replicas, dp x cp.
 */
#ifndef COSTS_H
#define COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "../../common/base/memory.h"

#define GiB 1073741824.0

typedef struct {
    char name[32];
    int layers, hidden, heads, kv_heads, mlp, vocab, seq;
    int experts, top_k, expert_width;   /* MLPs in each block, of which a token takes top_k; 0: one, of width mlp */
    int shared, dense;              /* of mixtures: experts that all tokens take; first blocks with one MLP only */
    int head_dim, value_dim;        /* of queries and keys; of values. 0: hidden / heads; as head_dim */
    int q_rank, kv_rank, rope_dim;  /* multi-head latent attention (DeepSeek): q_rank > 0 */
    bool gated;                     /* an MLP of three matrices (Llama), not two */
    bool tied;                      /* embedding and output projection are one matrix */
    bool in_09;                     /* 09 can train it (biases, LayerNorm, MLP of 4h), or 11, a mixture */
    double capacity;                /* of mixtures: slots per expert, over an even share of the tokens */
} Model;

/* Latent attention of DeepSeek's models, whose MLPs are gated. */
#define LATENT .head_dim = 192, .value_dim = 128, .q_rank = 1536, .kv_rank = 512, .rope_dim = 64, .gated = true

typedef struct {
    const char *name;
    double peak, peak8;             /* FLOP/s per GPU, dense: in bf16; in fp8, 0: it has none */
    double memory;                  /* bytes per GPU that a program can allocate */
    double bandwidth;               /* bytes/s of that memory; INFINITY: memory traffic takes no time */
    double nvlink;                  /* bytes/s that a GPU sends inside its node */
    double network;                 /* bytes/s that a node sends to others; of racks: that `domain` GPUs send */
    int domain;                     /* GPUs of a rack that NVLink joins; 0: nodes, whose GPUs a Cluster counts */
    double latency;                 /* seconds per transfer between two GPUs, beside those in Constants */
    double boost;                   /* of its matmuls' rate, over others with this peak, by its power limit; 0: none */
    bool measured, gpu;             /* by 00_collectives: rates that are reached; whether it is a GPU */
} Hardware;

enum { NO_RECOMPUTATION, SELECTIVE_RECOMPUTATION, FULL_RECOMPUTATION };

/* Whose way of running a step is planned: memory, kernels, what overlaps. In the order of the commands. */
typedef enum { FOR_09, FOR_MEGATRON, FOR_NANOTRON, FOR_TORCHTITAN, FOR_FSDP_2023, FOR_MEGATRON_2025,
               FOR_MEGATRON_2022, FRAMEWORKS } Framework;

/* A parallel configuration: the grid of ranks, and how a step is split into micro-batches. Its sizes are in the order
 * of search.h's Dimension. */
typedef struct {
    int tp, cp, pp;
    int ep;                         /* ranks that split the experts, of expert_ranks(); 1: no mixture */
    int etp;                        /* of Megatron-LM: ranks that split each expert; else 1 */
    int dp;
    int micro_batch, accumulate;    /* sequences per micro-batch; micro-batches per step and rank of dp */
    int chunks;                     /* of layers per pipeline stage; more than 1: an interleaved schedule */
    int replicate;                  /* copies of what ZeRO shards (HSDP): dp x cp / replicate ranks have one; or 1 */
    int zero;                       /* ZeRO stage, 0 to 3 */
    int recompute;
} Grid;

/* What the matmuls of blocks multiply: bf16 or fp32; fp8 with a scale per tensor, or per 32 elements (Blackwell). */
typedef enum { NO_FP8, FP8, MXFP8 } Recipe;

typedef struct {
    int gpus, per_node;             /* in total; per node */
    Framework framework;
    bool published;                 /* times and rank order of the playbook's runs; costs.c names the differences */
    int stored;                     /* bytes per activation or weight: 2 in bf16, 4 in fp32 */
    Recipe fp8;                     /* of the blocks' matmuls */
    int gradients;                  /* bytes per gradient: 6 in nanotron; 09 and models as it runs them: 4 */
    bool hides_exchange;            /* Megatron-LM's --overlap-moe-expert-parallel-comm; published runs lack it */
    int loss_rows;                  /* rows whose logits exist at once, of 09 and 11 */
    double memory;                  /* bytes per GPU that a grid may use */
} Cluster;
enum { CPU_LOSS_ROWS = 256, GPU_LOSS_ROWS = 8192 };
enum { NODE = 8, TRAY = 4 };        /* GPUs per host: usually; in a rack */

/* What only measurements can give: fitted to published runs (profiles.c, runs.c), or exact for --pretend. */
typedef struct {
    double efficiency;              /* of matmuls: fraction of the peak */
    double fp8;                     /* what matmuls in fp8 reach of their peak, over what those in bf16 reach */
    double attention;               /* of attention, whose kernels are slower */
    double launch;                  /* seconds per layer and micro-batch: the host starts its kernels, both ways */
    double routing;                 /* seconds per layer of experts and micro-batch in which the GPU waits for the host:
                                     * it must know how many tokens each expert has; not in a graph of the whole step */
    double hop;                     /* seconds per collective and hop of its ring outside NVLink */
    double sync;                    /* seconds per layer and replica over which its gradients are summed */
    double step;                    /* seconds per step, for any computation */
    double links;                   /* fraction of NVLink's and the network's datasheet rates that transfers reach */
    double stall;                   /* seconds per stalled transfer between pipeline stages (published runs only) */
} Constants;
enum { CONSTANTS = sizeof(Constants) / sizeof(double) };
extern const char *const constant_name[CONSTANTS];

typedef struct {
    double bytes[MEM_CATEGORIES], total;
    int stage;                      /* the pipeline stage that needs most, whose rank this is */
} Memory;

typedef struct {                    /* seconds per step of one rank, by cause; they add up to total */
    double compute, launches, tensor, context, experts, bubble, data, optimizer, fixed, total;
} Time;
enum { TIMES = 9 };
extern const char *const time_name[TIMES];

/* One pipeline stage: its layers, and seconds per micro-batch, forward and backward. */
typedef struct {
    int layers, dense;              /* blocks; of these, with one MLP in a model of experts */
    int embeddings, heads;          /* 1 if it has the embedding, the output projection, else 0 */
    double params, experts;         /* elements, on all its t x ep ranks together; of these, of experts */
    double kernels, tensor, context, exchange, launches, seconds;
} Stage;

double model_parameters(const Model *m);
double active_parameters(const Model *m);               /* that a token uses: of the experts, top_k */
double model_flops(const Model *m);                     /* per token: 6 N + 12 L h s, N active: what MFU counts */
typedef enum { FORWARD, BACKWARD } Pass;
double matrix_flops(const Model *m, double tokens, Pass pass);  /* of a block, of all t ranks */
double attention_flops(const Model *m, double tokens, Pass pass);       /* likewise; the causal half only */
double head_flops(const Model *m, double tokens);

/* Fills in stages[pp]: blocks and parameters. nanotron (build_model) adds blocks to stage i until the cost so far, of
 * blocks and then the head, passes (i+1)/p of the total. The others give each pipeline stage L/p blocks; where p does
 * not divide L, the last ones, with the head, get fewer. */
void grid_stages(const Model *m, const Grid *g, const Cluster *c, Stage *stages);

/* Memory of the rank that needs most. For 09: what its predict() gives, to the byte. nanotron: what its runs took,
 * within a few percent. Others: by formula. */
Memory grid_memory(const Model *m, const Grid *g, const Cluster *c);

/* Seconds of a step. Also fills in stages[pp], unless NULL. */
Time grid_time(const Model *m, const Grid *g, const Cluster *c, const Hardware *h, const Constants *k, Stage *stages);

bool is_megatron(const Cluster *c);                     /* Megatron-LM of today or of 2025 */

/* Megatron-LM's all-to-alls of a micro-batch run behind another's matmuls, forward behind backward: with interleaved
 * pipeline stages or none, without full recomputation. */
bool hides_exchange(const Grid *g, const Cluster *c);

/* Whether Megatron-LM's all-to-alls are DeepEP's, which send a token to a node once, or inside a node to a rank once,
 * however many of its experts are there. If etp splits experts inside a node, they are NCCL's. */
bool has_deep_ep(const Grid *g, const Cluster *c);

/* Ranks among which all experts of a block are shared out: dp x cp; where ep folds over tp too (11, Megatron-LM,
 * torchtitan), tp x cp x dp / etp. */
int expert_ranks(const Grid *g, const Cluster *c);
int64_t grid_span(const Model *m, const Grid *g);       /* of 11: the longest that can be on one rank, in tokens */

/* ---- Profiles: what a framework does, and what its kernels reach on a generation of GPUs (profiles.c) ---- */

typedef struct {
    const char *name;               /* of --for */
    const char *command;            /* whose command is printed; also in messages */
    int gradients;                  /* bytes per parameter */
    double memory_limit;            /* fraction of a GPU's memory that a grid may use */
    const char *stages;             /* of ZeRO that it has: "0, 1" */
    double attention[2];            /* of Ampere and Hopper: fraction of the peak, by a publication; 0: as fitted */
    bool interleaves;               /* pipeline stages in chunks */
    bool fp8;                       /* matmuls of blocks in fp8 */
} Traits;
extern const Traits frameworks[FRAMEWORKS];
const char *framework_names(void);                      /* "09|megatron|..." */
Framework framework_named(const char *name);            /* FRAMEWORKS: none */

/* Constants of frameworks on a generation of GPUs, at most six of them fitted to published runs. */
typedef struct {
    const char *name;
    const char *frameworks, *gpus;  /* whose runs these are; between blanks */
    bool in_fp8;                    /* all of them */
    Constants constants, start;     /* start: where a fit begins; 0: not fitted */
    struct {
        int runs;
        double median, most;        /* errors in percent, if the fit leaves their source out; of nine in ten at most */
    } evidence[2];                  /* of dense models; of mixtures */
} Profile;
enum { NANOTRON, UNFUSED, AMPERE, HOPPER, MEGATRON_HOPPER, BLACKWELL_2025, MEGATRON_BLACKWELL, PROFILES };
extern const Profile profiles[PROFILES];
extern const double BLACKWELL;                          /* FLOP/s in bf16: no GPU of an older generation has as many */
int profile_for(Framework f, const Hardware *h);        /* its index */
/* Its constants: of these profiles (NULL: of the table), with the attention of the framework. */
Constants constants_for(Framework f, const Hardware *h, const Constants of[PROFILES]);

#endif
