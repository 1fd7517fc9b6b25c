#include "diagnose_mistakes.h"

#include <string.h>

#ifdef LLAMA
#include "../../12_llama/hugging_face.h"
#include "../../12_llama/llama.h"
#define NORM "rmsnorm"
#else
#define NORM "layernorm"
#endif

/* The program's train.c is a part of this file, which needs its static functions and variables. Where the program calls
 * one of these operators, it calls the function mistaken_... below instead, which calls the operator. */
static __typeof__(tensor_zero) mistaken_tensor_zero;
#ifdef LLAMA
static __typeof__(rmsnorm_backward) mistaken_rmsnorm_backward;
static __typeof__(grouped_attention_backward) mistaken_grouped_attention_backward;
#define rmsnorm_backward mistaken_rmsnorm_backward
#define grouped_attention_backward mistaken_grouped_attention_backward
#else
static __typeof__(residual_forward) mistaken_residual_forward;
static __typeof__(residual_backward) mistaken_residual_backward;
static __typeof__(layernorm_backward) mistaken_layernorm_backward;
#define residual_forward mistaken_residual_forward
#define residual_backward mistaken_residual_backward
#define layernorm_backward mistaken_layernorm_backward
#endif
static __typeof__(linear_backward_input) mistaken_linear_backward_input;
static __typeof__(linear_backward_weight) mistaken_linear_backward_weight;
static __typeof__(embedding_backward) mistaken_embedding_backward;
static __typeof__(cross_entropy_backward) mistaken_cross_entropy_backward;
#define tensor_zero mistaken_tensor_zero
#define linear_backward_input mistaken_linear_backward_input
#define linear_backward_weight mistaken_linear_backward_weight
#define embedding_backward mistaken_embedding_backward
#define cross_entropy_backward mistaken_cross_entropy_backward
#include "single_gpu.h"
#undef tensor_zero
#undef residual_forward
#undef residual_backward
#undef layernorm_backward
#undef rmsnorm_backward
#undef grouped_attention_backward
#undef linear_backward_input
#undef linear_backward_weight
#undef embedding_backward
#undef cross_entropy_backward

const Mistake mistakes[] = {
    {"all parameters were 0: the loaded weights did not reach the copy that forward reads (a tensor_convert is "
     "missing, or its two arguments are swapped)", EMPTY},
#ifdef LLAMA
    {"the gradients of RMSNorm weights came from the first rank's rows only", OWN_ROWS},
    {"the gradients of a KV head's copies were not all-reduced (kv): only the heads of q beside its first copy "
     "contributed", COPIES},
#else
    {"the batch was indexed by the rank among all replicas (dp x cp) instead of the rank in dp: the ranks of a cp "
     "group had chunks of different sequences", OWN_SEQUENCES, .by_token = true},
    {"gradients were not all-reduced over cp: only the tokens of its first rank contributed", OWN_TOKENS,
     .by_token = true},
    {"proj_bias and down_bias were added on every rank instead of once after the all-reduce", BIASES,
     PROJ_BIAS | DOWN_BIAS},
    {"proj_bias was added on every rank instead of once after the all-reduce", BIASES, PROJ_BIAS},
    {"down_bias was added on every rank instead of once after the all-reduce", BIASES, DOWN_BIAS},
    {"proj_bias was added on every rank, and once more after the all-reduce", BIASES_AGAIN, PROJ_BIAS},
    {"down_bias was added on every rank, and once more after the all-reduce", BIASES_AGAIN, DOWN_BIAS},
    {"every rank counted positions (`first` of rope_table) from 0 instead of from its first token", FROM_ZERO,
     .by_token = true},
    {"the gradients of LayerNorm parameters, proj_bias and down_bias came from the first rank's rows only", OWN_ROWS},
#endif
    {"the tied embedding had only the output projection's gradient, not the lookup's", ONE_USE, HEAD},
    {"the tied embedding had only the lookup's gradient, not the output projection's", ONE_USE, LOOKUP},
    {"the ranks' partial sums of d_final were not all-reduced", PARTIAL_SUMS, D_FINAL},
    {"the ranks' partial sums of d_ln2 were not all-reduced before " NORM "_backward read them", PARTIAL_SUMS, D_LN2},
    {"the ranks' partial sums of d_ln1 were not all-reduced before " NORM "_backward read them", PARTIAL_SUMS, D_LN1},
    {"backward read the attention probabilities of the last block in every block: they were not recomputed",
     OF_ANOTHER_BLOCK, PROBS_OF_LAST},
    {"backward read the attention probabilities of the first block in every block", OF_ANOTHER_BLOCK, PROBS_OF_FIRST},
    {"backward read the activations of the last block in every block: they were not recomputed (--recompute full)",
     OF_ANOTHER_BLOCK, ALL_OF_LAST},
    {"d_x was not set to zero: each micro-batch began with that of the one before", D_X_KEPT},
#ifndef LLAMA
    {"proj_bias got the gradient of the residual stream as it was before LayerNorm's backward added to it",
     D_X_TOO_EARLY},
#endif
};
const int mistake_count = sizeof mistakes / sizeof *mistakes;

int ranks = 1, data_ranks = 1, cp_ranks = 1;
int64_t only_sequence = -1;
static Mistake mistake;                         /* the current one */
static int64_t micro_batch;                     /* the current one */
static Batch batch;                             /* its tokens */

static bool makes(Kind kind, int what)          /* what: a bit, or 0 */
{
    return mistake.kind == kind && (!what || mistake.what & what);
}

static double *numbers(Tensor t)
{
    return t.data;
}

/* ---- Operators ---- */

static void mistaken_tensor_zero(Tensor t)
{
    if (!makes(D_X_KEPT, 0) || t.data != d_x.data || micro_batch % (options.accumulate / data_ranks) == 0)
        tensor_zero(t);
}

#ifndef LLAMA
static void mistaken_residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const int what = strstr(bias.name, "proj") ? PROJ_BIAS : DOWN_BIAS;
    const int more = makes(BIASES, what) ? ranks - 1 : makes(BIASES_AGAIN, what) ? ranks : 0;
    const int64_t width = tensor_width(out);

    residual_forward(out, x, branch, bias);
    for (int64_t i = 0; i < tensor_count(out) && more; i++)
        numbers(out)[i] += more * numbers(bias)[i % width];
}
#endif

static bool of_expert(Tensor t)
{
    return strstr(t.name, "experts.");
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

/* Whether the mistake lets a row contribute: rows of cp's first rank (OWN_TOKENS), or the first 1/ranks of the rows of
 * each cp rank, in the order chunk, sequence, token (OWN_ROWS). */
static bool row_counts(int64_t row)
{
    const int64_t b = row / T, t = row % T, c = T / (cp_ranks > 1 ? 2 * cp_ranks : 1);

    if (makes(OWN_TOKENS, 0))
        return rank_of(t) == 0;
    return (t / c / cp_ranks * B + b) * c + t % c < R / cp_ranks / ranks;
}

/* A copy of d_out, until the next call: of the columns of each of its `parts` matrices zeros in all but the first, and
 * with `rows` in rows that do not count. */
static Tensor masked(Tensor d_out, bool rows, int parts, int64_t columns)
{
    static Tensor buffer;
    const int64_t width = tensor_width(d_out);

    if (!buffer.data)
        buffer = tensor_create(MEM_WORKSPACE, REAL, "masked", shape(R * (2 * F + 3 * A * D + V)));
    Tensor copy = tensor_view(tensor_range(buffer, 0, R * width), shape(R, width));
    for (int64_t i = 0; i < R * width; i++)
        numbers(copy)[i] = i % (width / parts) < columns && (!rows || row_counts(i / width)) ? numbers(d_out)[i] : 0;
    return copy;
}

/* d_out, or if this mistake is made only the rows that count. */
static Tensor counted(Tensor d_out, Kind kind)
{
    return makes(kind, 0) ? masked(d_out, true, 1, tensor_width(d_out)) : d_out;
}

#ifdef LLAMA
static void mistaken_rmsnorm_backward(Tensor d_x, Tensor d_weight, Tensor d_out, Tensor x, Tensor rstd, Tensor weight)
{
    rmsnorm_backward(d_x, d_weight, d_out, x, rstd, weight);
    for (int64_t i = 0; i < R * H && makes(OWN_ROWS, 0); i++)       /* takes back what other rows have added */
        numbers(d_weight)[i % H] -= row_counts(i / H) ? 0 : numbers(d_out)[i] * numbers(x)[i] * numbers(rstd)[i / H];
}

static struct {
    Tensor d_qkv, d_probs, d_out, qkv, probs;
} attention;                                    /* of the block whose backward runs */

static void mistaken_grouped_attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    attention = (__typeof__(attention)){d_qkv, d_probs, d_out, qkv, probs};
    grouped_attention_backward(d_qkv, d_probs, d_out, qkv, probs);
}

/* The gradient of qkv, until the next call, if only some heads of q add to it: those of the first rank, or with
 * `of_each` those on the rank of each KV head's first copy. */
static Tensor d_qkv_of(bool of_each)
{
    static Tensor d_out, d_qkv;
    const int64_t heads = A / ranks;            /* of a rank */

    if (!d_out.data) {
        d_out = tensor_create(MEM_WORKSPACE, REAL, "d_out of some heads", shape(B, T, A * D));
        d_qkv = tensor_create(MEM_WORKSPACE, REAL, "d_qkv of some heads", shape(B, T, (A + 2 * K) * D));
    }
    for (int64_t i = 0; i < tensor_count(d_out); i++)
        numbers(d_out)[i] = i / D % (of_each ? A / K : A) < heads ? numbers(attention.d_out)[i] : 0;
    grouped_attention_backward(d_qkv, attention.d_probs, d_out, attention.qkv, attention.probs);
    grouped_rope_backward(d_qkv, rope, K);
    for (int64_t i = 0; i < tensor_count(d_qkv) && of_each; i++)        /* q has no copies */
        if (i % ((A + 2 * K) * D) < A * D)
            numbers(d_qkv)[i] = numbers(attention.d_qkv)[i];
    return d_qkv;
}
#else
static void mistaken_residual_backward(Tensor d_bias, Tensor d_out)
{
    residual_backward(d_bias, counted(counted(d_out, OWN_ROWS), OWN_TOKENS));
}

static void mistaken_layernorm_backward(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x,
                                        Tensor stats, Tensor weight)
{
    const bool only = makes(OWN_ROWS, 0) || makes(OWN_TOKENS, 0);

    layernorm_backward(d_x, d_weight, d_bias, d_out, x, stats, weight);
    for (int64_t i = 0; i < R * H && only; i++) {       /* takes back what rows that do not count have added */
        const double *mean = numbers(stats) + i / H * 2, d = row_counts(i / H) ? 0 : numbers(d_out)[i];
        numbers(d_bias)[i % H] -= d;
        numbers(d_weight)[i % H] -= d * (numbers(x)[i] - mean[0]) * mean[1];
    }
}
#endif

/* Which sum of the ranks' partial sums is the gradient of this layer's input; 0: none. */
static int sum_of(Tensor weight)
{
    if (strstr(weight.name, "qkv"))
        return D_LN1;
    if (strstr(weight.name, "up") && !of_expert(weight))
        return D_LN2;
    return strstr(weight.name, "embedding") || strstr(weight.name, "head") ? D_FINAL : 0;
}

static void mistaken_linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int sum = sum_of(weight);

    if (sum && makes(PARTIAL_SUMS, sum)) {      /* only the first rank's columns, in a copy: d_out is read later */
#ifdef LLAMA
        const int64_t parts = sum == D_LN2 ? 2 : 1, unit = 1;           /* gate and up */
#else
        const int64_t parts = 1, unit = sum == D_LN1 ? 3 * D : 1;       /* heads of q, k and v */
#endif
        d_out = masked(d_out, false, parts, unit * range_split(tensor_width(d_out) / parts / unit, 0, ranks).count);
#ifdef LLAMA
        d_out = sum == D_LN1 ? d_qkv_of(false) : d_out;
#endif
    }
    linear_backward_input(d_x, d_out, weight);
}

static void mistaken_linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
#ifdef LLAMA
    if (makes(COPIES, 0) && strstr(d_weight.name, "qkv"))
        d_out = d_qkv_of(true);
#endif
    if (strstr(d_weight.name, "router"))
        d_out = counted(d_out, OWN_ROWS);
    if (!makes(ONE_USE, LOOKUP) || d_weight.data != gradients.embedding.data)
        linear_backward_weight(d_weight, d_bias, counted(d_out, OWN_TOKENS), x);
}

static void mistaken_embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids)
{
    if (!makes(ONE_USE, HEAD))
        embedding_backward(d_weight, counted(d_out, OWN_TOKENS), ids);
}

static void mistaken_cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    cross_entropy_backward(d_logits, logits, lse, targets, scale);
    for (int64_t row = 0; row < R; row++)
        if (only_sequence >= 0 && micro_batch * B + row / T != only_sequence)
            memset(numbers(d_logits) + row * V, 0, V * sizeof(double));
}

/* ---- A step ---- */

/* Loads the current micro-batch. With OWN_SEQUENCES, each rank's tokens come from a different sequence. */
static void load(void)
{
    const int64_t accumulate = options.accumulate / data_ranks, dp = micro_batch / accumulate;

    batch_load(batch, first_step, micro_batch * B, 0);
    if (!makes(OWN_SEQUENCES, 0))
        return;
    Batch other = batch_create();
    for (int r = 0; r < ranks; r++) {
        batch_load(other, first_step, ((dp * ranks + r) * accumulate + micro_batch % accumulate) * B, 0);
        for (int64_t row = 0; row < R; row++)
            if (rank_of(row % T) == r) {
                ((int32_t *)batch.inputs.data)[row] = ((int32_t *)other.inputs.data)[row];
                ((int32_t *)batch.targets.data)[row] = ((int32_t *)other.targets.data)[row];
            }
    }
    tensor_free(&other.inputs, MEM_WORKSPACE);
    tensor_free(&other.targets, MEM_WORKSPACE);
}

/* Backward with the activations that the mistake names. */
static void backward_of_others(double scale)
{
    BlockActs own[L];

    memcpy(own, acts.blocks, sizeof own);
    for (int64_t l = 0; l < L && makes(OF_ANOTHER_BLOCK, ALL_OF_LAST); l++)
        acts.blocks[l] = own[L - 1];
    for (int64_t l = 0; l < L && makes(OF_ANOTHER_BLOCK, PROBS_OF_FIRST | PROBS_OF_LAST); l++)
        acts.blocks[l].probs = own[mistake.what == PROBS_OF_LAST ? L - 1 : 0].probs;
    backward(&acts, batch, scale);
    memcpy(acts.blocks, own, sizeof own);
}

const Layout *mistakes_begin(const char *name, const char *summary, int argc, char **argv, const ProgramOption *more)
{
    ProgramOption all[32] = {
#ifdef LLAMA
        LLAMA_OPTIONS,
#elif defined EXPERTS
        {"experts", OPTION_INT, &options.config.experts, "experts of each block", "N", 1, 1 << 12},
        {"top-k", OPTION_INT, &options.config.top_k, "experts that a token takes", "N", 1, 1 << 12},
        {"expert-width", OPTION_INT, &options.config.expert_width, "MLP width of an expert", "N", 0, 1 << 22},
        {"span", OPTION_INT, &span, "consecutive tokens that share an expert's slots", "N", 0, 1 << 30},
        {"capacity", OPTION_DOUBLE, &capacity, "slots of an expert", "X", 0, 1e6},
        {"balance", OPTION_DOUBLE, &balance, "weight of the load-balancing loss", "X", 0, 1e6},
        {"ep", OPTION_INT, &ep_size, "1: all experts are here", "N", 1, 1 << 12},
#endif
    };
    int count = 0;

    while (all[count].name)
        count++;
    for (; more->name; more++)
        all[count++] = *more;
    batch = program_begin(name, summary, argc, argv, all);
    return &layout;
}

double compute(const Mistake *m, double *to)
{
    double *weights = malloc(layout.count * sizeof *weights);
#ifdef EXPERTS
    const double all_balance = balance;
#endif

    mistake = *m;
    memcpy(weights, params.buffer.data, layout.count * sizeof *weights);
    if (makes(EMPTY, 0))
        tensor_zero(params.buffer);
#ifndef LLAMA
    rope_table(rope, 0);
    for (int64_t t = 0; t < T && makes(FROM_ZERO, 0); t++)
        rope_table(tensor_range(rope, t, 1), t % chunk_tokens());
#endif
    tensor_zero(loss);
    tensor_zero(gradients.buffer);
    const double scale = 1.0 / (B * T * options.accumulate);
    for (micro_batch = 0; micro_batch < options.accumulate; micro_batch++) {
        if (only_sequence >= 0 && only_sequence / B != micro_batch)
            continue;
        load();
#ifdef EXPERTS
        /* its loss is of a whole micro-batch, in which its first sequence stands for all */
        balance = only_sequence < 0 || only_sequence == micro_batch * B ? all_balance : 0;
#endif
        forward(&acts, batch, scale);
        if (to)
            backward_of_others(scale);
    }
#ifndef LLAMA
    for (int64_t l = 0; l < L && makes(D_X_TOO_EARLY, 0); l++)          /* the same d_x as that of down_bias */
        tensor_copy(gradients.blocks[l].proj_bias, gradients.blocks[l].down_bias);
#endif
#ifdef EXPERTS
    balance = all_balance;
#endif
    memcpy(params.buffer.data, weights, layout.count * sizeof *weights);
    free(weights);
    if (to)
        memcpy(to, gradients.buffer.data, layout.count * sizeof *to);
    return tensor_item(loss);
}

bool possible(const Mistake *m, int all)
{
    const bool on_one_rank = m->kind == EMPTY || m->kind >= ONE_USE;

    if (on_one_rank ? ranks != all : ranks == 1)
        return false;
    if (options.config.experts && (m->kind == OWN_TOKENS || m->what & DOWN_BIAS || m->kind == D_X_TOO_EARLY))
        return false;                           /* an expert computes other ranks' tokens, and adds its down_bias */
    if (m->by_token && T % (m->zigzag ? 2 * ranks : ranks))
        return false;
#ifdef LLAMA
    if (m->kind == COPIES)
        return ranks > K && ranks % K == 0 && A % ranks == 0;
    if (m->kind == PARTIAL_SUMS && m->what == D_LN1)
        return A % ranks == 0;
    if (m->kind == ONE_USE)
        return !options.config.untied;
#endif
    return m->kind != OWN_ROWS || R % (cp_ranks * ranks) == 0;
}
