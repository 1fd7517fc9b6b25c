/* 01 with a well-known mistake made on purpose: wrappers of its operators compute on one rank what a wrong
 * parallel program would compute on many. Include this once, in a float64 build.
 */
#ifndef MISTAKES_H
#define MISTAKES_H

#include <math.h>
#include <string.h>

#include "single_gpu.h"

/* The linker replaces 01's calls of these operators by calls of __wrap_...; __real_... are the operators (--wrap). */
__typeof__(residual_forward) __wrap_residual_forward, __real_residual_forward;
__typeof__(residual_backward) __wrap_residual_backward, __real_residual_backward;
__typeof__(layernorm_backward) __wrap_layernorm_backward, __real_layernorm_backward;
__typeof__(linear_backward_input) __wrap_linear_backward_input, __real_linear_backward_input;
__typeof__(linear_backward_weight) __wrap_linear_backward_weight, __real_linear_backward_weight;
__typeof__(embedding_forward) __wrap_embedding_forward, __real_embedding_forward;
__typeof__(embedding_backward) __wrap_embedding_backward, __real_embedding_backward;
__typeof__(cross_entropy_forward) __wrap_cross_entropy_forward, __real_cross_entropy_forward;
__typeof__(cross_entropy_backward) __wrap_cross_entropy_backward, __real_cross_entropy_backward;

typedef enum { PROJ_BIAS = 1, DOWN_BIAS = 2 } Biases;
typedef enum { NO_STAGE, FIRST_STAGE, MIDDLE_STAGES, ALL_BUT_LAST, LAST_STAGE } Stages;
typedef enum { INPUTS = 1, TARGETS = 2 } Ids;
typedef enum { D_LN1 = 1, D_LN2 = 2, D_FINAL = 4 } PartialSums;

typedef struct {
    const char *text;           /* completes "matches a run in which" */
    Biases biases;              /* added once per rank */
    bool once_more;             /* and once more after the all-reduce */
    bool from_zero;             /* each rank counts its tokens' positions from 0 */
    bool by_token;              /* the tokens of a sequence are split over the ranks: tried in order and zig-zag */
    bool zigzag;
    bool own_rows;              /* gradients of LayerNorms and biases: only the first rank's rows of a micro-batch */
    bool own_tokens;            /* all gradients: only the first rank's tokens */
    bool own_sequences;         /* each rank loads its tokens from different sequences */
    Ids twice;                  /* ids_in_slice is called twice on these */
    bool no_lookup, no_head;    /* one of the two uses of the embedding adds no gradient */
    PartialSums partial_sums;   /* only those of the first rank; gradients after them differ from those of real ranks */
    bool empty;                 /* all parameters are 0 */
    Stages skipped;             /* pipeline stages whose blocks compute nothing */
    Ids first_id;               /* of these a rank's slice of the vocabulary begins at rank x its size */
} Mistake;

/* In the order in which they are tried. */
static const Mistake mistakes[] = {
    {"the blocks before the last pipeline stage were skipped: it did not get their output", .skipped = ALL_BUT_LAST},
    {"the blocks of the first pipeline stage were skipped", .skipped = FIRST_STAGE},
    {"the blocks of the pipeline stages between the first and the last were skipped", .skipped = MIDDLE_STAGES},
    {"the blocks of the last pipeline stage were skipped", .skipped = LAST_STAGE},
    {"all parameters were 0: the loaded weights did not reach the copy that forward reads (a tensor_convert is "
     "missing, or its two arguments are swapped)", .empty = true},
    {"the batch was indexed by the rank among all replicas (dp x cp) instead of the rank in dp: the ranks of a cp "
     "group had chunks of different sequences", .own_sequences = true, .by_token = true},
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
     .own_tokens = true, .by_token = true},
    {"proj_bias and down_bias were added on every rank instead of once after the all-reduce",
     .biases = PROJ_BIAS | DOWN_BIAS},
    {"proj_bias was added on every rank instead of once after the all-reduce", .biases = PROJ_BIAS},
    {"down_bias was added on every rank instead of once after the all-reduce", .biases = DOWN_BIAS},
    {"proj_bias was added on every rank, and once more after the all-reduce", .biases = PROJ_BIAS, .once_more = true},
    {"down_bias was added on every rank, and once more after the all-reduce", .biases = DOWN_BIAS, .once_more = true},
    {"every rank counted positions (`first` of rope_table) from 0 instead of from its first token",
     .from_zero = true, .by_token = true},
    {"the gradients of LayerNorm parameters, proj_bias and down_bias came from the first rank's rows only",
     .own_rows = true},
    {"the tied embedding had only the output projection's gradient, not the lookup's", .no_lookup = true},
    {"the tied embedding had only the lookup's gradient, not the output projection's", .no_head = true},
    {"the ranks' partial sums of d_final were not all-reduced", .partial_sums = D_FINAL},
    {"the ranks' partial sums of d_ln2 were not all-reduced before layernorm_backward read them",
     .partial_sums = D_LN2},
    {"the ranks' partial sums of d_ln1 were not all-reduced before layernorm_backward read them",
     .partial_sums = D_LN1},
};

static Mistake mistake;                         /* the current one */
static int ranks = 1, data_ranks = 1;           /* data_ranks: ranks over which the sequences are split */
static int cp_ranks = 1;                        /* ranks over which each sequence is split, in addition to `ranks` */
static int64_t only_sequence = -1;              /* the only one that adds a gradient; -1: all do */
static int64_t micro_batch;                     /* the current one */

static double *numbers(Tensor t)
{
    return t.data;
}

void __wrap_residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const bool times = mistake.biases & (strstr(bias.name, "proj") ? PROJ_BIAS : DOWN_BIAS);
    const int64_t width = tensor_width(out);

    __real_residual_forward(out, x, branch, bias);
    for (int64_t i = 0; i < tensor_count(out) && times; i++)
        numbers(out)[i] += (ranks - 1 + mistake.once_more) * numbers(bias)[i % width];
}

/* How tokens are split over the ranks. */
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

void __wrap_residual_backward(Tensor d_bias, Tensor d_out)
{
    const bool only = mistake.own_rows || mistake.own_tokens;
    Tensor rows = count(d_out, only);

    __real_residual_backward(d_bias, rows);
    uncount(rows, only);
}

void __wrap_layernorm_backward(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats,
                                      Tensor weight)
{
    static Tensor nothing[2], scratch;
    const bool only = mistake.own_rows || mistake.own_tokens;

    if (!only) {
        __real_layernorm_backward(d_x, d_weight, d_bias, d_out, x, stats, weight);
        return;
    }
    for (int i = 0; i < 2 && !nothing[i].data; i++)
        nothing[i] = tensor_create(MEM_WORKSPACE, REAL, "nothing", shape(H));
    if (!scratch.data)
        scratch = tensor_create(MEM_WORKSPACE, REAL, "scratch", shape(R, H));
    __real_layernorm_backward(d_x, nothing[0], nothing[1], d_out, x, stats, weight);
    Tensor rows = count(d_out, only);
    __real_layernorm_backward(scratch, d_weight, d_bias, rows, x, stats, weight);
    uncount(rows, only);
}

void __wrap_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    const PartialSums sum = strstr(weight.name, "qkv") ? D_LN1 : strstr(weight.name, "up") ? D_LN2
                         : strstr(weight.name, "embedding") ? D_FINAL : 0;

    if (!(mistake.partial_sums & sum)) {
        __real_linear_backward_input(d_x, d_out, weight);
        return;
    }
    /* Only the first rank's columns (full heads of qkv), in a copy: the weight gradient reads d_out later. */
    const int64_t unit = sum == D_LN1 ? 3 * D : 1, width = tensor_width(d_out);
    const int64_t columns = unit * range_split(width / unit, 0, ranks).count;
    Tensor copy = tensor_create(MEM_WORKSPACE, REAL, "first rank's", shape(R, width));
    for (int64_t i = 0; i < R * width; i++)
        numbers(copy)[i] = i % width < columns ? numbers(d_out)[i] : 0;
    __real_linear_backward_input(d_x, copy, weight);
    tensor_free(&copy, MEM_WORKSPACE);
}

void __wrap_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    if (mistake.no_head && d_weight.data == gradients.embedding.data)
        return;
    Tensor rows = count(d_out, mistake.own_tokens);
    __real_linear_backward_weight(d_weight, d_bias, rows, x);
    uncount(rows, mistake.own_tokens);
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

void __wrap_embedding_forward(Tensor out, Tensor ids, Tensor weight)
{
    if (!(mistake.first_id & INPUTS)) {
        __real_embedding_forward(out, ids, weight);
        return;
    }
    Tensor part = tensor_create(MEM_WORKSPACE, REAL, "part", shape(R, H));
    tensor_zero(out);
    for (int r = 0; r < ranks; r++) {
        Tensor taken = ids_taken(ids, r);
        __real_embedding_forward(part, taken, weight);
        tensor_add(out, part);
        tensor_free(&taken, MEM_WORKSPACE);
    }
    tensor_free(&part, MEM_WORKSPACE);
}

void __wrap_embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids)
{
    if (mistake.no_lookup)
        return;
    Tensor rows = count(d_out, mistake.own_tokens);
    for (int r = 0; r < ranks && mistake.first_id & INPUTS; r++) {
        Tensor taken = ids_taken(ids, r);
        __real_embedding_backward(d_weight, rows, taken);
        tensor_free(&taken, MEM_WORKSPACE);
    }
    if (!(mistake.first_id & INPUTS))
        __real_embedding_backward(d_weight, rows, ids);
    uncount(rows, mistake.own_tokens);
}

void __wrap_cross_entropy_forward(Tensor sum, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    __real_cross_entropy_forward(sum, lse, logits, targets, scale);
    for (int64_t row = 0; row < R && mistake.first_id & TARGETS; row++)         /* the logits of other targets */
        for (int r = -1; r < ranks; r++) {
            const int32_t id = ((int32_t *)targets.data)[row], taken = r < 0 ? id : row_taken(id, r);
            if (taken >= 0)
                numbers(sum)[0] += (r < 0 ? scale : -scale) * numbers(logits)[row * V + taken];
        }
}

void __wrap_cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    __real_cross_entropy_backward(d_logits, logits, lse, targets, scale);
    for (int64_t row = 0; row < R && mistake.first_id & TARGETS; row++)
        for (int r = -1; r < ranks; r++) {
            const int32_t id = ((int32_t *)targets.data)[row], taken = r < 0 ? id : row_taken(id, r);
            if (taken >= 0)
                numbers(d_logits)[row * V + taken] += r < 0 ? scale : -scale;
        }
    for (int64_t row = 0; row < R; row++)
        if (only_sequence >= 0 && micro_batch * B + row / T != only_sequence)
            memset(numbers(d_logits) + row * V, 0, V * sizeof(double));
}

static void set_rope(void)
{
    rope_table(rope, 0);
    for (int64_t t = 0; t < T && mistake.from_zero; t++)
        rope_table(tensor_range(rope, t, 1), t % chunk_tokens());
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
    double *weights = malloc(layout.count * sizeof *weights);

    mistake = *m;
    memcpy(weights, params.buffer.data, layout.count * sizeof *weights);
    if (m->empty)
        tensor_zero(params.buffer);
    skip_blocks(&params, false);
    set_rope();
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
    memcpy(params.buffer.data, weights, layout.count * sizeof *weights);
    free(weights);
    if (to)
        memcpy(to, gradients.buffer.data, layout.count * sizeof *to);
    return tensor_item(loss);
}

/* Whether the mistake changes the results of forward. */
static bool in_forward(const Mistake *m)
{
    return m->biases || m->from_zero || m->empty || m->own_sequences || m->twice || m->skipped || m->first_id;
}

/* Whether the mistake makes a difference for this shape and number of ranks. */
static bool possible(const Mistake *m)
{
    if ((m->by_token || m->skipped || m->biases || m->twice || m->own_rows || m->partial_sums) && ranks == 1)
        return false;
    if (m->by_token && T % (m->zigzag ? 2 * ranks : ranks))
        return false;
    if (m->first_id && V % ranks == 0)
        return false;
    if (m->skipped && (L < ranks || (m->skipped == MIDDLE_STAGES && ranks < 3)))
        return false;
    return !(m->own_rows && R % (cp_ranks * ranks));
}

#endif
