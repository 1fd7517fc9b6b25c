/* The model: its parameters, and where each one lies. It owns no memory: a Layout numbers the elements that are on this
 * rank, a program allocates the buffers, and views give each parameter its place in them.
 *
 * A GPT-style decoder with N = h*v + L*(12*h^2 + 13*h) + 2*h parameters (the playbook's formula): an embedding (v, h),
 * tied to the output projection; L blocks of LayerNorm, attention with rotary positions, LayerNorm, and an MLP of width
 * 4h; a final LayerNorm. It is Hugging Face's GPTNeoXForCausalLM with use_parallel_residual=false, rotary_pct=1.0,
 * tie_word_embeddings=true, hidden_act="gelu_pytorch_tanh".
 *
 * With Config.experts = e, the MLP of each block is a mixture of e MLPs of width f, the experts. A router (e, h)
 * chooses k of them for each token. Then N = h*v + L*(4*h^2 + 8*h + e*h + e*(2*f*h + f + h)) + 2*h; a token uses k/e of
 * the experts' parameters. */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../base/options.h"
#include "../base/tensor.h"

int64_t model_parameters(Config config);                    /* N, as above */
int64_t model_active_parameters(Config config);             /* those that a token uses: N without experts */
double model_flops_per_token(Config config);                /* forward and backward: 6*N + 12*L*h*s (playbook), N: the
                                                             * active parameters, but for an untied embedding, which
                                                             * multiplies nothing */

/* Which parameters are on this rank. */
typedef struct {
    int slice, slices;              /* slice number, from 0, of `slices` slices of every split matrix. If a matrix has
                                     * fewer groups (KV heads), a slice is one of them; slices / groups neighbors hold
                                     * copies of it, and the first of them owns it. */
    const bool *layer;              /* layers on this rank, by layer number; NULL: all */
    bool embedding, head;           /* the embedding at the input; the final LayerNorm and the output projection */
    int replica;                    /* number among the ranks with the same parameters. Replica 0 owns them: it counts
                                     * them in norms, and saves them. Of replicated parameters slice 0 is the owner, of
                                     * the embedding the rank where `embedding` is true. */
    const bool *expert;             /* experts on this rank, by expert number, each whole; NULL: all */
    int expert_replica;             /* as replica, among the ranks with the same experts */
} Placement;
extern const Placement FULL_MODEL;
Placement replica(int number);      /* FULL_MODEL as replica `number` */

/* One parameter of the full model, and the rectangle of it that is on this rank. */
typedef struct {
    const char *name;               /* Hugging Face's: "gpt_neox.layers.3.attention.dense.weight" */
    const char *label;              /* ours, for messages: "blocks.3.proj_weight", "blocks.3.qkv_weight (k)" */
    size_t view;                    /* the place of its tensor in Params, BlockParams or ExpertParams; or NO_VIEW */
    int64_t rows, cols;             /* of the full parameter; a vector has one column */
    int64_t row_group, col_group;   /* sliced in multiples of so many rows or columns (a head's); both 0: not */
    int spans;                      /* entries that its tensor spans, from this one on, as one matrix; 0 means 1 */
    bool vector;
    int64_t first_row, first_col;   /* the rectangle's, in the full parameter */
    int64_t local_rows, local_cols;
    Range range;                    /* its elements in the layout; count 0: not on this rank */
    double mean, std;               /* mean and standard deviation of the initial weights */
    bool owned, decay;              /* this rank owns it; it is subject to weight decay */
} ParamInfo;
#define NO_VIEW ((size_t)-1)        /* only the tensor of an entry before, which spans it, has its elements */

/* The parameters that a model consists of. An entry has a name, VIEW(the struct, its tensor there), rows, cols (0: it
 * is a vector), its row_group or col_group, and the mean and std of its initial weights; layout_create_of sets the
 * rest. A list ends with an entry without a name, so a block has at most 15 parameters. They lie in the layout in the
 * order of the list; those of a block that are not split must come first. */
#define VIEW(Struct, tensor) #tensor, offsetof(Struct, tensor)
typedef struct {
    const char *layers, *experts;   /* "norm.weight" of block 3 is called LAYERS.3.norm.weight, of its expert 0
                                     * LAYERS.3.EXPERTS.0.norm.weight */
    ParamInfo embedding, block[16], final[4], expert[8];
} ModelTable;

/* All parameters on this rank, as one sequence of elements. Units (the embedding, each block, the final LayerNorm, then
 * the experts of each block, if there are any) are contiguous and in this order. Within a block the replicated
 * parameters come first, then the split ones. */
typedef struct {
    Config config;
    int64_t count;                  /* elements on this rank */
    Range *units;                   /* layers + 2; with experts 2 * layers + 2 */
    ParamInfo *table;               /* in the order of the layout */
    int parameters;                 /* entries of the table */
    int of_block, of_final, of_expert;      /* of these, in each block, the final LayerNorm, each expert */
    int64_t first_id;               /* first token id of this rank's slice of the vocabulary */
} Layout;

Layout layout_create(Config config, Placement at);          /* of `model` */
Layout layout_create_of(const ModelTable *table, Config config, Placement at);

/* What a program with another block brings: it sets `model` before run_begin. */
typedef struct {
    ModelTable (*table)(Config config);
    int64_t (*parameters)(Config config);                   /* N */
    void (*complete)(Config *config);                       /* or NULL: sets what the command line left to a default,
                                                             * and fails (fail_usage) if there is no such model */
    const char *(*words)(Config config);                    /* or NULL: its line at the start of a run */
} Model;
extern const Model *model;                                  /* by default the model above */

/* One expert's parameters, or their gradients. F: Config.expert_width */
typedef struct {
    Tensor up_weight, up_bias;          /* (F, H), (F) */
    Tensor down_weight, down_bias;      /* (H, F), (H) */
} ExpertParams;

/* One block's parameters, or their gradients. With s slices, H/s is this slice's part of H, split by heads, and 4H/s
 * that of 4H, both by range_split. */
typedef struct {
    Tensor ln1_weight, ln1_bias;        /* (H)           replicated, as the next four */
    Tensor proj_bias;                   /* (H) */
    Tensor ln2_weight, ln2_bias;        /* (H) */
    Tensor down_bias;                   /* (H) */
    Tensor qkv_weight, qkv_bias;        /* (3*H/s, H), (3*H/s)   head by head: q, k, v */
    Tensor proj_weight;                 /* (H, H/s) */
    Tensor up_weight, up_bias;          /* (4*H/s, H), (4*H/s) */
    Tensor down_weight;                 /* (H, 4*H/s) */
    Tensor replicated;                  /* (6*H)         the first six as one range of the buffer; with experts
                                         *               the first five and the router, (5*H + e*H) */
    Tensor router;                      /* (e, H)        with e experts, instead of up_*, down_*; replicated */
    ExpertParams *experts;              /* [e], by expert number; NONE: not on this rank */
    Tensor kv_weight;                   /* the rows of k and v in qkv_weight, where a program's table has them apart */
} BlockParams;

typedef struct {                        /* NONE: not on this rank */
    Tensor buffer;                      /* (layout.count), if all lie in one buffer */
    Tensor embedding;                   /* (V, H), V: vocabulary rows of this slice */
    BlockParams *blocks;                /* by the full model's layer number */
    Tensor final_weight, final_bias;    /* (H) */
    Tensor final;                       /* (2*H)         both as one range */
    Tensor head;                        /* (V, H)        the output projection; the embedding, if they are tied */
    Tensor *units;                      /* each unit as one range */
} Params;

Params params_view(const Layout *layout, Tensor buffer);                /* of layout->count elements */
Params params_view_units(const Layout *layout, const Tensor *units);    /* flat tensors, one per unit */

/* Writes the initial weights of the layout's elements from `first` on: Normal(mean, std) of its ParamInfo. That is
 * Normal(0, 0.02) for the model above, with the two projections into the residual stream divided by sqrt(2L); LayerNorm
 * 1 and 0; biases 0. An element depends only on the seed, its parameter, and its place in the full parameter. */
void params_init(const Layout *layout, int64_t first, Tensor params, uint64_t seed);

/* Elements that are consecutive in the layout and in the full parameter. Files are read and written by segments. */
typedef struct {
    const ParamInfo *param;
    int parameter;                      /* its number in the table */
    int64_t in_full;                    /* the segment's first element in the full parameter */
    int64_t in_range;                   /* the same, counted from the first element of the range asked for */
    int64_t count;
} Segment;

/* Steps to the next segment of `range`; *s starts zeroed. Returns false after the last one. */
bool layout_next(const Layout *layout, Range range, Segment *s);

#endif
