/* 01 with a well-known mistake made on purpose: hooks around its operators compute on one rank what a wrong parallel
 * program would compute on many. Include this once, in a float64 build.
 */
#ifndef MISTAKES_H
#define MISTAKES_H

#include <math.h>
#include <string.h>

#include "../../common/ultrascale.h"

typedef enum {
    CAUSAL, NOT_ITSELF, ONE_AHEAD, UNMASKED,
    OWN_TOKENS, OTHERS_UNMASKED, OWN_UNMASKED, NEXT_CHUNK, NOT_OWN_CHUNK,   /* these depend on which rank has which */
    RANKS_COMPARED, RANKS_SKIPPED, RANKS_MASKED,                            /* tokens */
    MIRRORED_KEYS, NEXT_KEYS, PREVIOUS_KEYS
} Mask;
typedef enum { BOTH_WAYS, IN_FORWARD, IN_BACKWARD } Way;
typedef enum { POSITIONS, FROM_ZERO, BY_RANK, SWAPPED } Rope;
typedef enum { HOME, NEXT_RANK, RANK_BEFORE, OWN_QUERIES } KeyGradients;
typedef enum { PROJ_BIAS = 1, DOWN_BIAS = 2 } Biases;
typedef enum { RIGHT_ROWS, IN_EMBEDDING, IN_LOGITS_TOO, REST_LEFT_OUT } SliceRows;
typedef enum { NO_STAGE, FIRST_STAGE, MIDDLE_STAGES, ALL_BUT_LAST, LAST_STAGE } Stages;
typedef enum { IN_ORDER, ZIGZAG, ANY } Split;
typedef enum { INPUTS = 1, TARGETS = 2 } Ids;
typedef enum { D_LN1 = 1, D_LN2 = 2, D_FINAL = 4 } PartialSums;

typedef struct {
    const char *text;           /* completes "matches a run in which" */
    Biases biases;              /* added once per rank */
    bool once_more;             /* and once more after the all-reduce */
    Rope rope;
    Mask mask;
    Way way;                    /* where the mask is wrong: backward recomputes probabilities, with a mask of its own */
    bool unscaled;              /* scores are not divided by sqrt(D) */
    KeyGradients keys;
    Split split;                /* for rope, mask, keys: how tokens may be split over the ranks */
    bool zigzag;                /* how they are split: zig-zag, or in order */
    bool own_rows;              /* gradients of LayerNorms and biases: only the first rank's rows of a micro-batch */
    bool own_tokens;            /* all gradients: only the first rank's tokens */
    bool own_sequences;         /* each rank loads its tokens from different sequences */
    Ids twice;                  /* ids_in_slice is called twice on these */
    bool no_lookup, no_head;    /* one of the two uses of the embedding adds no gradient */
    PartialSums partial_sums;   /* only those of the first rank; gradients after them differ from those of real ranks */
    int stale;                  /* block l computes with the parameters of block l - stale */
    bool empty;                 /* all parameters are 0 */
    SliceRows slices;           /* 08's loss: every slice uses the first slice's rows of `final`; or not all rows */
    Stages skipped;             /* pipeline stages whose blocks compute nothing */
    int targets_of;             /* targets are those of the next (1) or the previous (-1) micro-batch */
    Ids first_id;               /* of these a rank's slice of the vocabulary begins at rank x its size */
} Mistake;

/* In the order in which they are tried: mistakes in attention last, because they are slow to compute. */
static const Mistake mistakes[] = {
    {"every slice of rows computed its embedding gradient from the first slice's rows of `final`",
     .slices = IN_EMBEDDING},
    {"every slice of rows computed its logits and gradients from the first slice's rows of `final`",
     .slices = IN_LOGITS_TOO},
    {"the rows after the last full slice of rows were left out", .slices = REST_LEFT_OUT},
    {"the targets were those of the next micro-batch", .targets_of = 1},
    {"the targets were those of the previous micro-batch", .targets_of = -1},
    {"the blocks before the last pipeline stage were skipped: it did not get their output", .skipped = ALL_BUT_LAST},
    {"the blocks of the first pipeline stage were skipped", .skipped = FIRST_STAGE},
    {"the blocks of the pipeline stages between the first and the last were skipped", .skipped = MIDDLE_STAGES},
    {"the blocks of the last pipeline stage were skipped", .skipped = LAST_STAGE},
    {"all parameters were 0: the loaded weights did not reach the copy that forward reads (a tensor_convert is "
     "missing, or its two arguments are swapped)", .empty = true},
    {"the batch was indexed by the rank among all replicas (dp x cp) instead of the rank in dp: the ranks of a cp "
     "group had chunks of different sequences", .own_sequences = true, .split = ANY},
    {"ids_in_slice was called twice on the targets: targets outside the first vocabulary slice were lost",
     .twice = TARGETS},
    {"ids_in_slice was called twice on the inputs: inputs outside the first vocabulary slice were lost",
     .twice = INPUTS},
    {"the first id of a slice of the vocabulary was the rank times the slice's size, which is wrong where slices are "
     "unequal (layout.first_id)", .first_id = INPUTS | TARGETS},
    {"the first id of a slice of the vocabulary was, for the targets, the rank times the slice's size, which is wrong "
     "where slices are unequal (layout.first_id)", .first_id = TARGETS},
    {"the first id of a slice of the vocabulary was, for the inputs, the rank times the slice's size, which is wrong "
     "where slices are unequal (layout.first_id)", .first_id = INPUTS},
    {"gradients were not all-reduced over cp: only the tokens of its first rank contributed",
     .own_tokens = true, .split = ANY},
    {"proj_bias and down_bias were added on every rank instead of once after the all-reduce",
     .biases = PROJ_BIAS | DOWN_BIAS},
    {"proj_bias was added on every rank instead of once after the all-reduce", .biases = PROJ_BIAS},
    {"down_bias was added on every rank instead of once after the all-reduce", .biases = DOWN_BIAS},
    {"proj_bias was added on every rank, and once more after the all-reduce", .biases = PROJ_BIAS, .once_more = true},
    {"down_bias was added on every rank, and once more after the all-reduce", .biases = DOWN_BIAS, .once_more = true},
    {"every rank counted positions (`first` of rope_table) from 0 instead of from its first token", .rope = FROM_ZERO},
    {"the positions of every chunk (`first` of rope_table) began at 0", .rope = FROM_ZERO, .split = ZIGZAG},
    {"a rank's chunks had consecutive positions (`first` of rope_table), which zig-zag chunks do not have",
     .rope = BY_RANK, .split = ZIGZAG},
    {"the positions of a rank's two chunks (`first` of rope_table) were swapped", .rope = SWAPPED, .split = ZIGZAG},
    {"the mask was off by one: a token did not see itself", .mask = NOT_ITSELF},
    {"the mask was off by one: a token saw the next token", .mask = ONE_AHEAD},
    {"there was no mask: every token saw all others", .mask = UNMASKED},
    {"a token saw only the keys of its own rank", .mask = OWN_TOKENS, .split = ANY},
    {"keys of other chunks were not masked: a token saw later tokens there", .mask = OTHERS_UNMASKED, .split = ANY},
    {"keys of a token's own chunk were not masked: a token saw later tokens there", .mask = OWN_UNMASKED, .split = ANY},
    {"ranks instead of chunks were compared to decide which keys come after a query", .mask = RANKS_COMPARED,
     .split = ZIGZAG},
    {"ranks instead of chunks were compared to decide which keys to skip", .mask = RANKS_SKIPPED, .split = ZIGZAG},
    {"ranks instead of chunks were compared to decide where to mask", .mask = RANKS_MASKED, .split = ZIGZAG},
    {"keys that come round the ring counted as another rank's: of rank + s for rank - s, in step s",
     .mask = MIRRORED_KEYS, .split = ANY},
    {"keys that come round the ring counted as the next rank's", .mask = NEXT_KEYS, .split = ANY},
    {"keys that come round the ring counted as the previous rank's", .mask = PREVIOUS_KEYS, .split = ANY},
    {"the mask was off by one chunk: a token saw all of the next chunk", .mask = NEXT_CHUNK, .split = ANY},
    {"the mask was off by one chunk: a token saw none of its own chunk", .mask = NOT_OWN_CHUNK, .split = ANY},
    {"scores were not divided by sqrt(D)", .unscaled = true},
    {"dK and dV were added at the next rank instead of at the owner of the keys", .keys = NEXT_RANK, .split = ANY},
    {"dK and dV were added at the previous rank instead of at the owner of the keys",
     .keys = RANK_BEFORE, .split = ANY},
    {"dK and dV had only the contribution of the owner's local queries", .keys = OWN_QUERIES, .split = ANY},
    {"the gradients of LayerNorm parameters, proj_bias and down_bias came from the first rank's rows only",
     .own_rows = true},
    {"the tied embedding had only the output projection's gradient, not the lookup's", .no_lookup = true},
    {"the tied embedding had only the lookup's gradient, not the output projection's", .no_head = true},
    {"the ranks' partial sums of d_final were not all-reduced", .partial_sums = D_FINAL},
    {"the ranks' partial sums of d_ln2 were not all-reduced before layernorm_backward read them",
     .partial_sums = D_LN2},
    {"the ranks' partial sums of d_ln1 were not all-reduced before layernorm_backward read them",
     .partial_sums = D_LN1},
    {"a block computed with the parameters of the previous block", .stale = 1},
    {"a block computed with the parameters of the block two before it", .stale = 2},
    {"a block computed with the parameters of the next block", .stale = -1},
    {"a block computed with the parameters of the block two after it", .stale = -2},
};

enum { SLICE = 256 };                           /* rows per slice of 08's loss, on the CPU */

static Mistake mistake;                         /* the current one */
static int ranks = 1, data_ranks = 1;           /* data_ranks: ranks over which the sequences are split */
static int cp_ranks = 1;                        /* ranks over which each sequence is split, in addition to `ranks` */
static int64_t only_sequence = -1, only_token = -1;     /* the only one that adds a gradient; -1: all do */
static int64_t micro_batch;                     /* the current one */

static __typeof__(residual_backward) hooked_residual_backward;
static __typeof__(linear_forward) hooked_linear_forward, hooked_linear_backward_weight, hooked_residual_forward;
static __typeof__(attention_forward) hooked_attention_forward, hooked_embedding_forward, hooked_embedding_backward,
    hooked_linear_backward_input;
static __typeof__(attention_backward) hooked_attention_backward;
static __typeof__(layernorm_backward) hooked_layernorm_backward;
static __typeof__(cross_entropy_forward) hooked_cross_entropy_forward, hooked_cross_entropy_backward;

#define embedding_forward hooked_embedding_forward
#define cross_entropy_forward hooked_cross_entropy_forward
#define residual_forward hooked_residual_forward
#define residual_backward hooked_residual_backward
#define layernorm_backward hooked_layernorm_backward
#define attention_forward hooked_attention_forward
#define attention_backward hooked_attention_backward
#define linear_forward hooked_linear_forward
#define linear_backward_input hooked_linear_backward_input
#define linear_backward_weight hooked_linear_backward_weight
#define embedding_backward hooked_embedding_backward
#define cross_entropy_backward hooked_cross_entropy_backward
#include "single_gpu.h"
#undef residual_forward
#undef residual_backward
#undef layernorm_backward
#undef attention_forward
#undef attention_backward
#undef linear_forward
#undef linear_backward_input
#undef linear_backward_weight
#undef embedding_backward
#undef cross_entropy_backward
#undef cross_entropy_forward
#undef embedding_forward

static double *numbers(Tensor t)
{
    return t.data;
}

static void hooked_residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const bool times = mistake.biases & (strstr(bias.name, "proj") ? PROJ_BIAS : DOWN_BIAS);
    const int64_t width = tensor_width(out);

    residual_forward(out, x, branch, bias);
    for (int64_t i = 0; i < tensor_count(out) && times; i++)
        numbers(out)[i] += (ranks - 1 + mistake.once_more) * numbers(bias)[i % width];
}

/* How tokens are split over the ranks: the rank of a token, its index on that rank, and the inverse. */
static int64_t chunk_tokens(void)
{
    const int64_t chunks = mistake.zigzag ? 2 * ranks : ranks;

    return T < chunks ? 1 : T / chunks;
}

static int rank_of(int64_t token)
{
    const int64_t c = token / chunk_tokens();

    return c < ranks ? c : 2 * ranks - 1 - c;
}

static int64_t index_of(int64_t token)
{
    return token / chunk_tokens() < ranks ? token % chunk_tokens() : chunk_tokens() + token % chunk_tokens();
}

static int64_t token_of(int rank, int64_t index)
{
    return index < chunk_tokens() ? rank * chunk_tokens() + index
                                  : (2 * ranks - 1 - rank) * chunk_tokens() + index - chunk_tokens();
}

/* Whether the mistake lets a row contribute: rows of cp's first rank (own_tokens), or the first 1/ranks of the rows of
 * each cp rank, in the order chunk, sequence, token (own_rows). */
static bool row_counts(int64_t row)
{
    const int64_t b = row / T, t = row % T, c = T / (cp_ranks > 1 ? 2 * cp_ranks : 1);

    if (mistake.own_tokens)
        return rank_of(t) == 0;
    return (t / c / cp_ranks * B + b) * c + t % c < R / cp_ranks / ranks;
}

/* d_out itself, or, if only these rows count, a copy with zeros in the others. Free it with uncount(). */
static Tensor count(Tensor d_out, bool only)
{
    const int64_t width = tensor_width(d_out);

    if (!only)
        return d_out;
    Tensor copy = tensor_create(MEM_WORKSPACE, REAL, "counting", shape(R, width));
    for (int64_t i = 0; i < R * width; i++)
        numbers(copy)[i] = row_counts(i / width) ? numbers(d_out)[i] : 0;
    return copy;
}

static void uncount(Tensor copy, bool only)
{
    if (only)
        tensor_free(&copy, MEM_WORKSPACE);
}

static void hooked_residual_backward(Tensor d_bias, Tensor d_out)
{
    const bool only = mistake.own_rows || mistake.own_tokens;
    Tensor rows = count(d_out, only);

    residual_backward(d_bias, rows);
    uncount(rows, only);
}

static void hooked_layernorm_backward(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                                      Tensor weight)
{
    static Tensor nothing[2], scratch;
    const bool only = mistake.own_rows || mistake.own_tokens;

    if (!only) {
        layernorm_backward(d_x, d_weight, d_bias, d_out, x, stats, weight);
        return;
    }
    for (int i = 0; i < 2 && !nothing[i].data; i++)
        nothing[i] = tensor_create(MEM_WORKSPACE, REAL, "nothing", shape(H));
    if (!scratch.data)
        scratch = tensor_create(MEM_WORKSPACE, REAL, "scratch", shape(R, H));
    layernorm_backward(d_x, nothing[0], nothing[1], d_out, x, stats, weight);
    Tensor rows = count(d_out, only);
    layernorm_backward(scratch, d_weight, d_bias, rows, x, stats, weight);
    uncount(rows, only);
}

static bool sees(int64_t query, int64_t key, Way way)
{
    const int64_t chunk = query / chunk_tokens(), of_key = key / chunk_tokens();
    const bool own_rank = rank_of(key) == rank_of(query);
    const bool within = key % chunk_tokens() <= query % chunk_tokens();     /* compares positions within chunks */

    switch (mistake.way == BOTH_WAYS || mistake.way == way ? mistake.mask : CAUSAL) {
    case CAUSAL:          return key <= query;
    case NOT_ITSELF:      return key < query;
    case ONE_AHEAD:       return key <= query + 1;
    case OWN_TOKENS:      return key <= query && own_rank;
    case OTHERS_UNMASKED: return key <= query || of_key != chunk;
    case OWN_UNMASKED:    return key <= query || of_key == chunk;
    case NEXT_CHUNK:      return key <= query || of_key == chunk + 1;
    case NOT_OWN_CHUNK:   return key <= query && of_key != chunk;
    case RANKS_COMPARED:  return own_rank ? within : rank_of(key) < rank_of(query);
    case RANKS_SKIPPED:   return own_rank ? of_key != chunk || within : rank_of(key) < rank_of(query);
    case RANKS_MASKED:    return own_rank ? of_key <= chunk && within : of_key < chunk;
    case MIRRORED_KEYS:   return token_of((2 * rank_of(query) + ranks - rank_of(key)) % ranks, index_of(key)) <= query;
    case NEXT_KEYS:       return token_of((rank_of(key) + 1) % ranks, index_of(key)) <= query;
    case PREVIOUS_KEYS:   return token_of((rank_of(key) + ranks - 1) % ranks, index_of(key)) <= query;
    case UNMASKED:        return true;
    }
    return false;
}

static bool attention_is_right(void)
{
    return mistake.mask == CAUSAL && !mistake.unscaled && mistake.keys == HOME;
}

static double score_scale(void)
{
    return mistake.unscaled ? 1 : 1 / sqrt(D);
}

/* q (0), k (1) or v (2) of one head of a token, in qkv or its gradient. */
static double *head(Tensor qkv, int64_t b, int64_t t, int64_t a, int which)
{
    return numbers(qkv) + ((b * T + t) * A + a) * 3 * D + which * D;
}

static double dot(const double *x, const double *y)
{
    double sum = 0;

    for (int64_t d = 0; d < D; d++)
        sum += x[d] * y[d];
    return sum;
}

static void hooked_attention_forward(Tensor out, Tensor probs, Tensor qkv)
{
    if (attention_is_right()) {
        attention_forward(out, probs, qkv);
        return;
    }
    tensor_zero(out);
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++)
            for (int64_t q = 0; q < T; q++) {
                double *p = numbers(probs) + ((b * A + a) * T + q) * T, most = -INFINITY, sum = 0;
                for (int64_t k = 0; k < T; k++) {
                    p[k] = dot(head(qkv, b, q, a, 0), head(qkv, b, k, a, 1)) * score_scale();
                    most = sees(q, k, IN_FORWARD) ? fmax(most, p[k]) : most;
                }
                for (int64_t k = 0; k < T; k++) {
                    p[k] = exp(p[k] - most);
                    sum += sees(q, k, IN_FORWARD) ? p[k] : 0;
                }
                for (int64_t k = 0; k < T; k++) {
                    p[k] = sum > 0 ? p[k] / sum : 0;
                    for (int64_t d = 0; d < D && sees(q, k, IN_FORWARD); d++)
                        numbers(out)[((b * T + q) * A + a) * D + d] += p[k] * head(qkv, b, k, a, 2)[d];
                }
            }
}

static void hooked_attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    if (attention_is_right()) {
        attention_backward(d_qkv, d_probs, d_out, qkv, probs);
        return;
    }
    const int shift = mistake.keys == NEXT_RANK ? 1 : mistake.keys == RANK_BEFORE ? ranks - 1 : 0;
    tensor_zero(d_qkv);
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++)
            for (int64_t q = 0; q < T; q++) {
                const double *p = numbers(probs) + ((b * A + a) * T + q) * T;
                const double *d_o = numbers(d_out) + ((b * T + q) * A + a) * D;
                double sum = 0;
                for (int64_t k = 0; k < T; k++)
                    sum += sees(q, k, IN_FORWARD) ? p[k] * dot(d_o, head(qkv, b, k, a, 2)) : 0;
                for (int64_t k = 0; k < T; k++) {
                    if (!sees(q, k, IN_BACKWARD))
                        continue;
                    const double d_s = p[k] * (dot(d_o, head(qkv, b, k, a, 2)) - sum) * score_scale();
                    const int64_t to = shift ? token_of((rank_of(k) + shift) % ranks, index_of(k)) : k;
                    const bool counts = mistake.keys != OWN_QUERIES || rank_of(q) == rank_of(k);
                    for (int64_t d = 0; d < D; d++) {
                        head(d_qkv, b, q, a, 0)[d] += d_s * head(qkv, b, k, a, 1)[d];
                        head(d_qkv, b, to, a, 1)[d] += counts ? d_s * head(qkv, b, q, a, 0)[d] : 0;
                        head(d_qkv, b, to, a, 2)[d] += counts ? p[k] * d_o[d] : 0;
                    }
                }
            }
}

static void hooked_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    const PartialSums sum = strstr(weight.name, "qkv") ? D_LN1 : strstr(weight.name, "up") ? D_LN2
                         : strstr(weight.name, "embedding") ? D_FINAL : 0;

    if (!(mistake.partial_sums & sum)) {
        linear_backward_input(d_x, d_out, weight);
        return;
    }
    /* Only the first rank's columns (full heads of qkv), in a copy: the weight gradient reads d_out later. */
    const int64_t unit = sum == D_LN1 ? 3 * D : 1, width = tensor_width(d_out);
    const int64_t columns = unit * range_split(width / unit, 0, ranks).count;
    Tensor copy = tensor_create(MEM_WORKSPACE, REAL, "first rank's", shape(R, width));
    for (int64_t i = 0; i < R * width; i++)
        numbers(copy)[i] = i % width < columns ? numbers(d_out)[i] : 0;
    linear_backward_input(d_x, copy, weight);
    tensor_free(&copy, MEM_WORKSPACE);
}

static void hooked_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    if (mistake.slices != IN_LOGITS_TOO || weight.data != params.embedding.data) {
        linear_forward(out, x, weight, bias);
        return;
    }
    for (int64_t first = 0; first < R; first += SLICE) {
        const int64_t rows = R - first < SLICE ? R - first : SLICE;
        linear_forward(tensor_range(tensor_view(out, shape(R, V)), first, rows), tensor_range(x, 0, rows), weight,
                       bias);
    }
}

static void hooked_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const bool head = d_weight.data == gradients.embedding.data;

    if (head && mistake.no_head)
        return;
    if (!head || !mistake.slices || mistake.slices == REST_LEFT_OUT) {
        Tensor rows = count(d_out, mistake.own_tokens);
        linear_backward_weight(d_weight, d_bias, rows, x);
        uncount(rows, mistake.own_tokens);
        return;
    }
    for (int64_t first = 0; first < R; first += SLICE) {
        const int64_t rows = R - first < SLICE ? R - first : SLICE;
        linear_backward_weight(d_weight, d_bias, tensor_range(tensor_view(d_out, shape(R, V)), first, rows),
                               tensor_range(x, 0, rows));
    }
}

/* The row of the vocabulary that rank r takes for an id, with the wrong first id of its slice; -1: none. */
static int32_t row_taken(int32_t id, int r)
{
    const Range slice = range_split(V, r, ranks);
    const int64_t local = id - r * slice.count;

    return local >= 0 && local < slice.count ? slice.first + local : -1;
}

/* Ids as rank r takes them, in a tensor to free. */
static Tensor ids_taken(Tensor ids, int r)
{
    Tensor taken = tensor_create(MEM_WORKSPACE, I32, "taken", shape(R));

    for (int64_t i = 0; i < R; i++)
        ((int32_t *)taken.data)[i] = row_taken(((int32_t *)ids.data)[i], r);
    return taken;
}

static void hooked_embedding_forward(Tensor out, Tensor ids, Tensor weight)
{
    if (!(mistake.first_id & INPUTS)) {
        embedding_forward(out, ids, weight);
        return;
    }
    Tensor part = tensor_create(MEM_WORKSPACE, REAL, "part", shape(R, H));
    tensor_zero(out);
    for (int r = 0; r < ranks; r++) {
        Tensor taken = ids_taken(ids, r);
        embedding_forward(part, taken, weight);
        tensor_add(out, part);
        tensor_free(&taken, MEM_WORKSPACE);
    }
    tensor_free(&part, MEM_WORKSPACE);
}

static void hooked_embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids)
{
    if (mistake.no_lookup)
        return;
    Tensor rows = count(d_out, mistake.own_tokens);
    for (int r = 0; r < ranks && mistake.first_id & INPUTS; r++) {
        Tensor taken = ids_taken(ids, r);
        embedding_backward(d_weight, rows, taken);
        tensor_free(&taken, MEM_WORKSPACE);
    }
    if (!(mistake.first_id & INPUTS))
        embedding_backward(d_weight, rows, ids);
    uncount(rows, mistake.own_tokens);
}

static int64_t counted_rows(void)
{
    return mistake.slices == REST_LEFT_OUT ? R / SLICE * SLICE : R;
}

static void hooked_cross_entropy_forward(Tensor sum, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    cross_entropy_forward(sum, tensor_range(tensor_view(lse, shape(R)), 0, counted_rows()),
                          tensor_range(tensor_view(logits, shape(R, V)), 0, counted_rows()),
                          tensor_range(tensor_view(targets, shape(R)), 0, counted_rows()), scale);
    for (int64_t row = 0; row < R && mistake.first_id & TARGETS; row++)         /* the logits of other targets */
        for (int r = -1; r < ranks; r++) {
            const int32_t id = ((int32_t *)targets.data)[row], taken = r < 0 ? id : row_taken(id, r);
            if (taken >= 0)
                numbers(sum)[0] += (r < 0 ? scale : -scale) * numbers(logits)[row * V + taken];
        }
    if (counted_rows() < R)                     /* backward reads all */
        tensor_zero(tensor_range(tensor_view(lse, shape(R)), counted_rows(), R - counted_rows()));
}

static void hooked_cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    cross_entropy_backward(d_logits, logits, lse, targets, scale);
    for (int64_t row = 0; row < R && mistake.first_id & TARGETS; row++)
        for (int r = -1; r < ranks; r++) {
            const int32_t id = ((int32_t *)targets.data)[row], taken = r < 0 ? id : row_taken(id, r);
            if (taken >= 0)
                numbers(d_logits)[row * V + taken] += r < 0 ? scale : -scale;
        }
    for (int64_t row = 0; row < R; row++)
        if (row >= counted_rows() || (only_sequence >= 0 && micro_batch * B + row / T != only_sequence)
            || (only_token >= 0 && row % T != only_token))
            memset(numbers(d_logits) + row * V, 0, V * sizeof(double));
}

static void set_rope(void)
{
    rope_table(rope, 0);
    for (int64_t t = 0; t < T && mistake.rope != POSITIONS; t++)
        rope_table(tensor_range(rope, t, 1),
                   mistake.rope == FROM_ZERO ? t % chunk_tokens()
                   : mistake.rope == SWAPPED
                   ? token_of(rank_of(t), (index_of(t) + chunk_tokens()) % (2 * chunk_tokens())) 
                   : rank_of(t) * 2 * chunk_tokens() + index_of(t));
}

/* Ids after a second call of ids_in_slice on each rank. */
static void take_twice(Tensor ids)
{
    for (int64_t i = 0; i < R; i++) {
        int32_t *id = (int32_t *)ids.data + i;
        for (int r = 1; r < ranks; r++) {
            const Range slice = range_split(V, r, ranks);
            if (*id >= slice.first && *id < slice.first + slice.count) {
                *id = *id - slice.first < slice.first ? -1 : *id - slice.first;
                break;
            }
        }
    }
}

/* Loads a micro-batch. With own_sequences, each rank's tokens come from a different sequence. */
static void load(Batch to)
{
    const int64_t accumulate = options.accumulate / data_ranks, dp = micro_batch / accumulate;

    batch_load(to, first_step, micro_batch * B, 0);
    if (micro_batch + mistake.targets_of >= 0 && mistake.targets_of) {
        Batch other = batch_create();
        batch_load(other, first_step, (micro_batch + mistake.targets_of) * B, 0);
        memcpy(to.targets.data, other.targets.data, R * sizeof(int32_t));
        tensor_free(&other.inputs, MEM_WORKSPACE);
        tensor_free(&other.targets, MEM_WORKSPACE);
    }
    if (mistake.twice & INPUTS)
        take_twice(to.inputs);
    if (mistake.twice & TARGETS)
        take_twice(to.targets);
    if (!mistake.own_sequences)
        return;
    Batch other = batch_create();
    for (int r = 0; r < ranks; r++) {
        batch_load(other, first_step, ((dp * ranks + r) * accumulate + micro_batch % accumulate) * B, 0);
        for (int64_t row = 0; row < R; row++)
            if (rank_of(row % T) == r) {
                ((int32_t *)to.inputs.data)[row] = ((int32_t *)other.inputs.data)[row];
                ((int32_t *)to.targets.data)[row] = ((int32_t *)other.targets.data)[row];
            }
    }
    tensor_free(&other.inputs, MEM_WORKSPACE);
    tensor_free(&other.targets, MEM_WORKSPACE);
}

/* Whether block l belongs to a stage that is skipped. */
static bool is_skipped(int64_t l)
{
    const Range first = range_split(L, 0, ranks), last = range_split(L, ranks - 1, ranks);
    const bool in_first = l < first.count, in_last = l >= last.first;

    return mistake.skipped == FIRST_STAGE     ? in_first
           : mistake.skipped == MIDDLE_STAGES ? !in_first && !in_last
           : mistake.skipped == ALL_BUT_LAST  ? !in_last
           : mistake.skipped == LAST_STAGE    ? in_last
                                              : false;
}

/* A block whose branches add 0 is skipped; its gradients are 0, too. */
static void skip_blocks(const Params *p, bool gradients_of)
{
    for (int64_t l = 0; l < L; l++) {
        const BlockParams *b = &p->blocks[l];
        if (!is_skipped(l))
            continue;
        if (gradients_of)
            tensor_zero(p->units[l + 1]);
        tensor_zero(b->proj_weight), tensor_zero(b->proj_bias);
        tensor_zero(b->down_weight), tensor_zero(b->down_bias);
    }
}

/* Computes one step with the mistake. Writes the gradients to `to`, unless it is NULL, and returns the loss. */
static double compute(const Mistake *m, Batch batch, double *to)
{
    BlockParams *blocks = malloc(L * sizeof *blocks);
    double *weights = malloc(layout.count * sizeof *weights);

    mistake = *m;
    memcpy(weights, params.buffer.data, layout.count * sizeof *weights);
    if (m->empty)
        tensor_zero(params.buffer);
    skip_blocks(&params, false);
    set_rope();
    memcpy(blocks, params.blocks, L * sizeof *blocks);
    for (int64_t l = 0; l < L; l++)
        if (l - m->stale >= 0 && l - m->stale < L)
            params.blocks[l] = blocks[l - m->stale];
    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    const double scale = 1.0 / (B * T * options.accumulate);
    for (micro_batch = 0; micro_batch < options.accumulate; micro_batch++) {
        load(batch);
        forward(&acts, batch, scale);
        if (to)
            backward(&acts, batch, scale);
    }
    skip_blocks(&gradients, true);
    memcpy(params.blocks, blocks, L * sizeof *blocks);
    memcpy(params.buffer.data, weights, layout.count * sizeof *weights);
    free(blocks);
    free(weights);
    if (to)
        memcpy(to, gradients.buffer.data, layout.count * sizeof *to);
    return tensor_item(loss);
}

/* Whether the mistake changes the results of forward. */
static bool in_forward(const Mistake *m)
{
    return m->biases || m->rope != POSITIONS || (m->mask != CAUSAL && m->way != IN_BACKWARD) || m->unscaled || m->stale
           || m->empty || m->own_sequences || m->twice || m->slices >= IN_LOGITS_TOO || m->skipped
           || m->targets_of || m->first_id;
}

/* Whether the mistake makes a difference for this shape and number of ranks. */
static bool possible(const Mistake *m)
{
    const bool by_token = m->rope != POSITIONS || m->mask >= OWN_TOKENS || m->keys != HOME
                          || m->own_tokens || m->own_sequences;

    if ((by_token || m->skipped || m->biases || m->twice || m->own_rows || m->partial_sums) && ranks == 1)
        return false;
    if (by_token && T % (m->zigzag ? 2 * ranks : ranks))
        return false;
    if (m->slices && R <= SLICE)
        return false;
    if (m->first_id && V % ranks == 0)
        return false;
    if (m->skipped && (L < ranks || (m->skipped == MIDDLE_STAGES && ranks < 3)))
        return false;
    return !(m->own_rows && R % (cp_ranks * ranks)) && m->stale < L && -m->stale < L;
}

#endif
