/* 01 with a well-known mistake made on purpose: its operators are intercepted, and what a wrong parallel program would
 * compute on many ranks is computed here on one. Include this once, in double.
 */
#ifndef MISTAKES_H
#define MISTAKES_H

#include <math.h>
#include <string.h>

#include "../../common/ultrascale.h"

typedef enum {
    CAUSAL, NOT_ITSELF, ONE_AHEAD, UNMASKED,
    OWN_TOKENS, OTHERS_UNMASKED, OWN_UNMASKED, NEXT_CHUNK, NOT_OWN_CHUNK,   /* these depend on which rank has which */
    RANKS_COMPARED, RANKS_SKIPPED, RANKS_MASKED                             /* tokens */
} Mask;
typedef enum { BOTH_WAYS, IN_FORWARD, IN_BACKWARD } Way;
typedef enum { POSITIONS, FROM_ZERO, BY_RANK } Rope;
typedef enum { HOME, NEXT_RANK, RANK_BEFORE, OWN_QUERIES } KeyGradients;
typedef enum { PROJ_BIAS = 1, DOWN_BIAS = 2 } Biases;
typedef enum { RIGHT_ROWS, IN_EMBEDDING, IN_LOGITS_TOO } SliceRows;
typedef enum { INPUTS = 1, TARGETS = 2 } Ids;
typedef enum { LN1_SHARE = 1, LN2_SHARE = 2, FINAL_SHARE = 4 } Shares;

typedef struct {
    const char *text;           /* completes "... as if" */
    Biases biases;              /* added once a rank */
    bool once_more;             /* and after the sum too */
    Rope rope;
    Mask mask;
    Way way;                    /* of the mask: backward computes probabilities again, and may mask others */
    bool unscaled;              /* scores are not divided by sqrt(D) */
    KeyGradients keys;
    bool zigzag;                /* of rope, mask and keys: which rank has which tokens */
    bool own_rows;              /* LayerNorms and biases see the first rank's rows of a micro-batch only */
    bool own_tokens;            /* all parameters' gradients see the first rank's tokens only */
    bool own_sequences;         /* each rank takes its tokens of other sequences */
    Ids twice;                  /* of these a rank's slice of the vocabulary is taken twice */
    bool no_lookup, no_head;    /* one of the embedding's two uses adds no gradient */
    Shares shares;              /* of the first rank alone: what follows is unlike what ranks would compute */
    int stale;                  /* a block computes with the parameters of the one so many before it */
    bool empty;                 /* all parameters are 0 */
    SliceRows slices;           /* of 08's loss: each one's gradients are made with the first one's rows of `final` */
} Mistake;

/* What is quick to compute comes first: attention is slow here. */
static const Mistake mistakes[] = {
    {"every slice's share of the embedding's gradient were made with the first slice's rows of `final`",
     .slices = IN_EMBEDDING},
    {"every slice's logits and gradients were made with the first slice's rows of `final`", .slices = IN_LOGITS_TOO},
    {"all parameters were 0: what was loaded has not reached what forward reads (a tensor_convert is missing, or its "
     "two arguments are swapped)", .empty = true},
    {"the batch were indexed by a rank's number among all replicas (dp x cp), not by dp's: the ranks of a cp group "
     "have chunks of different sequences", .own_sequences = true, .zigzag = true},
    {"the batch were indexed by a rank's number among all replicas (dp x cp), not by dp's: the ranks of a cp group "
     "have chunks of different sequences", .own_sequences = true},
    {"ids_in_slice had been called twice on the targets: those of other slices than the first are lost",
     .twice = TARGETS},
    {"ids_in_slice had been called twice on the inputs: those of other slices than the first are lost",
     .twice = INPUTS},
    {"gradients were not summed over cp: they are those of its first rank's tokens", .own_tokens = true,
     .zigzag = true},
    {"gradients were not summed over cp: they are those of its first rank's tokens", .own_tokens = true},
    {"proj_bias and down_bias were added on every rank, and not once after the sum over the ranks",
     .biases = PROJ_BIAS | DOWN_BIAS},
    {"proj_bias was added on every rank, and not once after the sum over the ranks", .biases = PROJ_BIAS},
    {"down_bias was added on every rank, and not once after the sum over the ranks", .biases = DOWN_BIAS},
    {"proj_bias was added on every rank, and once more after the sum over the ranks", .biases = PROJ_BIAS,
     .once_more = true},
    {"down_bias was added on every rank, and once more after the sum over the ranks", .biases = DOWN_BIAS,
     .once_more = true},
    {"every rank counted positions (rope_table's first) from 0, not from its first token", .rope = FROM_ZERO},
    {"every chunk's positions (rope_table's first) began at 0", .rope = FROM_ZERO, .zigzag = true},
    {"a rank's chunks had consecutive positions (rope_table's first), which zig-zag chunks don't", .rope = BY_RANK,
     .zigzag = true},
    {"the mask were off by one: a token doesn't see itself", .mask = NOT_ITSELF},
    {"the mask were off by one: a token sees the one after it", .mask = ONE_AHEAD},
    {"there were no mask: every token sees all others", .mask = UNMASKED},
    {"a token saw its own rank's keys only", .mask = OWN_TOKENS},
    {"a token saw its own rank's keys only", .mask = OWN_TOKENS, .zigzag = true},
    {"keys of other chunks were not masked: a token sees those after it too", .mask = OTHERS_UNMASKED},
    {"keys of other chunks were not masked: a token sees those after it too", .mask = OTHERS_UNMASKED, .zigzag = true},
    {"keys of a token's own chunk were not masked: a token sees those after it too", .mask = OWN_UNMASKED},
    {"keys of a token's own chunk were not masked: a token sees those after it too", .mask = OWN_UNMASKED,
     .zigzag = true},
    {"ranks were compared, and not chunks, to tell which keys come after a query", .mask = RANKS_COMPARED,
     .zigzag = true},
    {"ranks were compared, and not chunks, to tell which keys to leave out", .mask = RANKS_SKIPPED, .zigzag = true},
    {"ranks were compared, and not chunks, to tell where to mask", .mask = RANKS_MASKED, .zigzag = true},
    {"the mask were off by one chunk: a token sees all of the chunk after its own", .mask = NEXT_CHUNK},
    {"the mask were off by one chunk: a token sees all of the chunk after its own", .mask = NEXT_CHUNK, .zigzag = true},
    {"the mask were off by one chunk: a token sees none of its own chunk", .mask = NOT_OWN_CHUNK},
    {"the mask were off by one chunk: a token sees none of its own chunk", .mask = NOT_OWN_CHUNK, .zigzag = true},
    {"scores were not divided by sqrt(D)", .unscaled = true},
    {"dK and dV were added at the next rank, not at the keys' owner", .keys = NEXT_RANK},
    {"dK and dV were added at the next rank, not at the keys' owner", .keys = NEXT_RANK, .zigzag = true},
    {"dK and dV were added at the rank before, not at the keys' owner", .keys = RANK_BEFORE},
    {"dK and dV were added at the rank before, not at the keys' owner", .keys = RANK_BEFORE, .zigzag = true},
    {"dK and dV had only the share of the owner's own queries", .keys = OWN_QUERIES},
    {"dK and dV had only the share of the owner's own queries", .keys = OWN_QUERIES, .zigzag = true},
    {"LayerNorms' parameters and the biases after a projection had the gradients of the first rank's rows only",
     .own_rows = true},
    {"the tied embedding had only the output projection's gradient, and not that of the lookup", .no_lookup = true},
    {"the tied embedding had only the lookup's gradient, and not that of the output projection", .no_head = true},
    {"the ranks' shares of the last LayerNorm's gradient were not added up", .shares = FINAL_SHARE},
    {"the ranks' shares of d_ln2 were not added up, before layernorm_backward took it", .shares = LN2_SHARE},
    {"the ranks' shares of d_ln1 were not added up, before layernorm_backward took it", .shares = LN1_SHARE},
    {"a block computed with the parameters of the block before it", .stale = 1},
    {"a block computed with the parameters of the second block before it", .stale = 2},
    {"a block computed with the parameters of the block after it", .stale = -1},
    {"a block computed with the parameters of the second block after it", .stale = -2},
};

enum { SLICE = 256 };                           /* rows of a slice of 08's loss, on the CPU */

static Mistake mistake;                         /* the one being made */
static int ranks = 1, data_ranks = 1;           /* data_ranks: over so many the sequences are divided */
static int cp_ranks = 1;                        /* over so many every sequence is, beside what `ranks` divide */
static int64_t only_sequence = -1, only_token = -1;     /* of the global batch: others add no gradient; -1: all do */
static int64_t micro_batch;                     /* being computed */

static void hooked_residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias);
static void hooked_residual_backward(Tensor d_bias, Tensor d_out);
static void hooked_layernorm_backward(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                                      Tensor weight);
static void hooked_attention_forward(Tensor out, Tensor probs, Tensor qkv);
static void hooked_attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs);
static void hooked_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
static void hooked_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight);
static void hooked_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x);
static void hooked_embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids);
static void hooked_cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale);

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
#include "../single_gpu.h"
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

/* Which rank has a token, and the how-manieth of its tokens it is; and back. */
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

/* The rows that a mistake lets count: those of cp's first rank; or, of the rows of each of its ranks, (chunk, sequence,
 * token), the first `ranks`th. */
static bool row_counts(int64_t row)
{
    const int64_t b = row / T, t = row % T, c = T / (cp_ranks > 1 ? 2 * cp_ranks : 1);

    if (mistake.own_tokens)
        return rank_of(t) == 0;
    return (t / c / cp_ranks * B + b) * c + t % c < R / cp_ranks / ranks;
}

/* Only those rows of a gradient, in a copy if that has to be: free it with uncount(). */
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
    const bool within = key % chunk_tokens() <= query % chunk_tokens();     /* by places in their chunks */

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

/* q (0), k (1) or v (2) of a token's head, in qkv or its gradient. */
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
    const Shares share = strstr(weight.name, "qkv") ? LN1_SHARE : strstr(weight.name, "up") ? LN2_SHARE
                         : strstr(weight.name, "embedding") ? FINAL_SHARE : 0;

    if (!(mistake.shares & share)) {
        linear_backward_input(d_x, d_out, weight);
        return;
    }
    /* The first rank's rows of the weight (of qkv: whole heads), in a copy: d_out is read again for the weight. */
    const int64_t unit = share == LN1_SHARE ? 3 * D : 1, width = tensor_width(d_out);
    const int64_t columns = unit * range_part(width / unit, 0, ranks).count;
    Tensor copy = tensor_create(MEM_WORKSPACE, REAL, "share", shape(R, width));
    for (int64_t i = 0; i < R * width; i++)
        numbers(copy)[i] = i % width < columns ? numbers(d_out)[i] : 0;
    linear_backward_input(d_x, copy, weight);
    tensor_free(&copy, MEM_WORKSPACE);
}

static void hooked_linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    if (mistake.slices < IN_LOGITS_TOO || weight.data != params.embedding.data) {
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
    if (!head || !mistake.slices) {
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

static void hooked_embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids)
{
    if (mistake.no_lookup)
        return;
    Tensor rows = count(d_out, mistake.own_tokens);
    embedding_backward(d_weight, rows, ids);
    uncount(rows, mistake.own_tokens);
}

static void hooked_cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    cross_entropy_backward(d_logits, logits, lse, targets, scale);
    for (int64_t row = 0; row < R; row++)
        if ((only_sequence >= 0 && micro_batch * B + row / T != only_sequence)
            || (only_token >= 0 && row % T != only_token))
            memset(numbers(d_logits) + row * V, 0, V * sizeof(double));
}

static void set_rope(void)
{
    rope_table(rope, 0);
    for (int64_t t = 0; t < T && mistake.rope != POSITIONS; t++)
        rope_table(tensor_range(rope, t, 1),
                   mistake.rope == FROM_ZERO ? t % chunk_tokens() : rank_of(t) * 2 * chunk_tokens() + index_of(t));
}

/* Ids as they are found again after they were made a slice's own twice. */
static void take_twice(Tensor ids)
{
    for (int64_t i = 0; i < R; i++) {
        int32_t *id = (int32_t *)ids.data + i;
        for (int r = 1; r < ranks; r++) {
            const Range slice = range_part(V, r, ranks);
            if (*id >= slice.first && *id < slice.first + slice.count) {
                *id = *id - slice.first < slice.first ? -1 : *id - slice.first;
                break;
            }
        }
    }
}

/* A micro-batch; by a mistake one whose sequences are each made of several, a rank's tokens of another one each. */
static void load(Batch to)
{
    const int64_t accumulate = options.accumulate / data_ranks, dp = micro_batch / accumulate;

    batch_load(to, first_step, micro_batch * B, 0);
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

/* The step's gradients, with the mistake, into `to` (NULL: none); returns its loss. */
static double compute(const Mistake *m, Batch batch, double *to)
{
    BlockParams *blocks = malloc(L * sizeof *blocks);
    double *weights = malloc(layout.count * sizeof *weights);

    mistake = *m;
    memcpy(weights, params.buffer.data, layout.count * sizeof *weights);
    if (m->empty)
        tensor_zero(params.buffer);
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
    memcpy(params.blocks, blocks, L * sizeof *blocks);
    memcpy(params.buffer.data, weights, layout.count * sizeof *weights);
    free(blocks);
    free(weights);
    if (to)
        memcpy(to, gradients.buffer.data, layout.count * sizeof *to);
    return tensor_item(loss);
}

/* Whether it changes what forward computes. */
static bool in_forward(const Mistake *m)
{
    return m->biases || m->rope != POSITIONS || (m->mask != CAUSAL && m->way != IN_BACKWARD) || m->unscaled || m->stale
           || m->empty || m->own_sequences || m->twice || m->slices == IN_LOGITS_TOO;
}

/* Whether the numbers here can tell this mistake from none. */
static bool possible(const Mistake *m)
{
    const bool by_token = m->rope != POSITIONS || m->mask >= OWN_TOKENS || m->keys != HOME
                          || m->own_tokens || m->own_sequences;

    if ((by_token || m->biases || m->twice || m->own_rows || m->shares) && ranks == 1)
        return false;
    if (by_token && T % (m->zigzag ? 2 * ranks : ranks))
        return false;
    if (m->slices && R <= SLICE)
        return false;
    return !(m->own_rows && R % (cp_ranks * ranks)) && m->stale < L && -m->stale < L;
}

#endif
