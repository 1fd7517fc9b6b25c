/* The model: which parameters there are, and what lies where. It owns no memory: a Layout numbers the elements that
 * are here, a stage makes the buffers, and views give each parameter its place in them.
 *
 * A GPT-style decoder of N = h*v + L*(12*h^2 + 13*h) + 2*h parameters (the playbook's formula): an embedding (v, h),
 * tied with the output projection; L blocks of LayerNorm, attention with rotary positions, LayerNorm, MLP of width
 * 4h; a final LayerNorm. Hugging Face's GPTNeoXForCausalLM with use_parallel_residual=false, rotary_pct=1.0,
 * tie_word_embeddings=true, hidden_act="gelu_pytorch_tanh".
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "tensor.h"

int64_t model_parameters(Config config);                    /* N: h*v + L*(12*h^2 + 13*h) + 2*h */
double model_flops_per_token(Config config);                /* of forward and backward: 6*N + 12*L*h*s */

/* Which part of the model is here. */
typedef struct {
    int slice, slices;              /* which slice of every matrix is here, from 0, of how many */
    const bool *layer;              /* by layer; NULL: all */
    bool embedding, head;           /* the embedding at the start; the final LayerNorm and the output projection */
    int replica;                    /* of ranks with the same part; number 0 owns it: counts it in norms, saves it */
} Shard;
extern const Shard WHOLE;
Shard replica(int number);          /* the whole model, with this number */

/* One parameter of the whole model, and the rectangle of it that is here. */
typedef struct {
    const char *name;               /* Hugging Face's: "gpt_neox.layers.3.attention.dense.weight" */
    const char *label;              /* ours, for messages: "blocks.3.proj_weight" */
    int64_t rows, cols;             /* of the whole; a vector has one column */
    bool vector;
    int64_t first_row, first_col, here_rows, here_cols;
    Range range;                    /* its elements in the layout; count 0: not here */
    double mean, deviation;         /* of the initial weights */
    bool owned, decay;              /* owned by this rank; subject to weight decay */
} ParamInfo;

/* Everything that is here, one element after the other. Units (the embedding, each block, the final LayerNorm) are
 * contiguous and in this order; within a block the parameters that no cut divides come first. */
typedef struct {
    Config config;
    int64_t count;                  /* elements that are here */
    Range *units;                   /* layers + 2 */
    ParamInfo *table;               /* in the order of the layout */
    int parameters;                 /* entries of the table */
    int64_t first_id;               /* of the vocabulary's slice */
} Layout;

Layout layout_create(Config config, Shard shard);

/* One block's parameters; the same struct holds their gradients. With `slices` s, H/s stands for this slice's part
 * by whole heads, and 4H/s, by range_part. */
typedef struct {
    Tensor ln1_weight, ln1_bias;        /* (H)           uncut, as the next four */
    Tensor proj_bias;                   /* (H) */
    Tensor ln2_weight, ln2_bias;        /* (H) */
    Tensor down_bias;                   /* (H) */
    Tensor qkv_weight, qkv_bias;        /* (3*H/s, H), (3*H/s)   head by head: q, k, v */
    Tensor proj_weight;                 /* (H, H/s) */
    Tensor up_weight, up_bias;          /* (4*H/s, H), (4*H/s) */
    Tensor down_weight;                 /* (H, 4*H/s) */
    Tensor uncut;                       /* (6*H)         the first six as one range of the buffer */
} BlockParams;

typedef struct {                        /* where a parameter isn't here, NONE */
    Tensor buffer;                      /* (layout.count), if it is one buffer */
    Tensor embedding;                   /* (V, H), or this slice's rows */
    BlockParams *blocks;                /* by the whole model's layer number */
    Tensor final_weight, final_bias;    /* (H) */
    Tensor final;                       /* (2*H)         both as one range */
    Tensor *units;                      /* layers + 2: each unit as one range */
} Params;

Params params_view(const Layout *layout, Tensor buffer);                /* of layout->count elements */
Params params_view_units(const Layout *layout, const Tensor *units);    /* a flat tensor for each of layers + 2 units */

/* Writes initial weights to `params`, the layout's elements from `first` on: Normal(0, 0.02), the two projections
 * back into the residual stream divided by sqrt(2L), LayerNorm 1 and 0, biases 0. Each element depends on the seed,
 * its parameter and its place in the whole model only. */
void params_init(const Layout *layout, int64_t first, Tensor params, uint64_t seed);

/* Some consecutive elements of the layout, as stretches that are consecutive in the whole parameter too: what
 * reading and writing files goes through. */
typedef struct {
    const ParamInfo *param;
    int parameter;                      /* its number in the table */
    int64_t in_whole;                   /* element of the whole parameter that the stretch starts with */
    int64_t in_range;                   /* the same counted from the first element asked for */
    int64_t count;
} Stretch;

/* Starts with *s zeroed; false: no more. */
bool layout_next(const Layout *layout, Range range, Stretch *s);

#endif
