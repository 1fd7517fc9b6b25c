#include "question.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"
#include "machines.h"

const Question default_question = {.gpus = 64, .model = "8b", .hardware = "h100", .framework = "",
                                   .dtype = "bf16", .gated = -1, .tied = -1,};

static const char *dtype_names(void)
{
    return "bf16|fp32|fp8|mxfp8";
}

#define AT(member) offsetof(Question, member)
const QuestionOption question_options[] = {
    {"model", OPTION_TEXT, AT(model), 0, "NAME", " (8b), or a config.json of Hugging Face", 1, model_names},
    {"layers", OPTION_NUMBER, AT(sizes.layers), 10000, "N", "transformer blocks", 1},
    {"hidden", OPTION_NUMBER, AT(sizes.hidden), 1 << 20, "N", "width of the residual stream", 1},
    {"heads", OPTION_NUMBER, AT(sizes.heads), 1 << 16, "N", "attention heads", 1},
    {"kv-heads", OPTION_NUMBER, AT(sizes.kv_heads), 1 << 16, "N", "heads of keys and values (grouped queries)", 1},
    {"head-dim", OPTION_NUMBER, AT(sizes.head_dim), 1 << 16, "N", "width of a head (hidden / heads)", 1},
    {"mlp", OPTION_NUMBER, AT(sizes.mlp), 1 << 22, "N", "width of the MLP", 1},
    {"gated", OPTION_FLAG, AT(gated), 1, NULL, "an MLP of three matrices: gate, up, down", 1},
    {"not-gated", OPTION_FLAG, AT(gated), 0, NULL, "an MLP of two matrices: up, down", 1},
    {"vocab", OPTION_NUMBER, AT(sizes.vocab), 1 << 24, "N", "tokens in the vocabulary", 1},
    {"tied", OPTION_FLAG, AT(tied), 1, NULL, "one matrix for embedding and output projection", 1},
    {"untied", OPTION_FLAG, AT(tied), 0, NULL, "a matrix each", 1},
    {"seq", OPTION_NUMBER, AT(sizes.seq), 1 << 24, "N", "tokens per sequence, such as 8192 or 128K", 1},
    {"experts", OPTION_NUMBER, AT(sizes.experts), 1 << 16, "N", "a mixture: MLPs in each block", 1},
    {"top-k", OPTION_NUMBER, AT(sizes.top_k), 1 << 16, "N", "experts that a token takes (2)", 1},
    {"expert-width", OPTION_NUMBER, AT(sizes.expert_width), 1 << 22, "N", "width of an expert (the MLP's)", 1},
    {"capacity", OPTION_FACTOR, AT(capacity), 1, "X", "slots per expert, over an even share of the tokens (1.25 in 11, "
     "else 1)", 1},
    {"for", OPTION_TEXT, AT(framework), 0, "NAME", ": whose kernels, overlap and memory (09, or 11, for a model that "
     "it can train, else megatron)", 2, framework_names},
    {"gpus", OPTION_NUMBER, AT(gpus), 1 << 20, "N", "GPUs in total (64)", 2},
    {"per-node", OPTION_NUMBER, AT(per_node), 1 << 10, "N", "GPUs per node, joined by NVLink (8; of a rack of 72, "
     "as many as divide --gpus)", 2},
    {"hardware", OPTION_TEXT, AT(hardware), 0, "NAME", ", or TFLOPS,GIB,GB/S,GB/S,GB/S: per GPU peak, memory, its "
     "bandwidth and NVLink, and network per node; or FILE.json, measured by 00_collectives --machine (h100)", 2,
     hardware_names},
    {"pretend", OPTION_TEXT, AT(pretend), 0, "SPEEDS", "simulated hardware: GFLOPS,GB/S,MICROSECONDS, as for the "
     "programs' --pretend", 2},
    {"batch", OPTION_NUMBER, AT(batch), 1 << 30, "TOKENS", "tokens per step (1M), rounded down to whole "
     "sequences", 2},
    {"dtype", OPTION_TEXT, AT(dtype), 0, "NAME", ": type of weights and activations (bf16); fp8 and, on Blackwell, "
     "mxfp8: of what the blocks' matmuls multiply", 2, dtype_names},
    {"state-bytes", OPTION_NUMBER, AT(state_bytes), 20, "16|18|20", "bytes per parameter: 16 with bf16 gradients "
     "(DeepSpeed) or all in fp32 (torchtitan), 18 with fp32 gradients (Megatron-LM, 09), 20 with both (nanotron)", 2},
    {"tokens", OPTION_FACTOR, AT(tokens), 0, "TOKENS", "of the whole training, such as 300B or 15T: prints days and "
     "GPU-hours", 2},
    {"price", OPTION_FACTOR, AT(price), 1, "X", "of a GPU-hour: with --tokens, prints what the training costs", 2},
    {"tp", OPTION_RANGE, AT(limits[TP]), 0, "N", "tensor parallelism", 3},
    {"pp", OPTION_RANGE, AT(limits[PP]), 0, "N", "pipeline parallelism", 3},
    {"cp", OPTION_RANGE, AT(limits[CP]), 0, "N", "context parallelism", 3},
    {"dp", OPTION_RANGE, AT(limits[DP]), 0, "N", "data parallelism", 3},
    {"ep", OPTION_RANGE, AT(limits[EP]), 0, "N", "expert parallelism, over tp x cp x dp (nanotron: cp x dp)", 3},
    {"etp", OPTION_RANGE, AT(limits[ETP]), 0, "N", "of Megatron-LM: ranks that split each expert (1)", 3},
    {"zero", OPTION_RANGE, AT(limits[ZERO]), 0, "N", "ZeRO stage, 0 to 3", 3},
    {"micro-batch", OPTION_RANGE, AT(limits[MICRO_BATCH]), 0, "N", "sequences per micro-batch", 3},
    {"replicate", OPTION_RANGE, AT(limits[REPLICATE]), 0, "N", "copies of what ZeRO-2 and 3 shard (HSDP)", 3},
    {"chunks", OPTION_RANGE, AT(limits[CHUNKS]), 0, "N", "chunks of layers per pipeline stage, interleaved", 3},
    {"recompute", OPTION_RANGE, AT(limits[RECOMPUTE]), 0, "none|selective|full", "whether blocks are recomputed", 3},
    {"explain", OPTION_TEXT, AT(explain), 0, "GRID", "every formula with its numbers, for tp=2,pp=4 or so, or best", 4},
    {"csv", OPTION_TEXT, AT(csv), 0, "FILE", "write all grids with their bytes and seconds", 4},
    {"runs", OPTION_TEXT, AT(runs), 0, "FILE", "print errors of predictions, and how good the choices are; with "
     "the columns of playbook_runs.csv or of published_runs.csv", 5},
    {"published", OPTION_TEXT, AT(runs), 0, "FILE", "likewise", 5},
    {"predictions", OPTION_TEXT, AT(predictions), 0, "FILE", "write the runs with their predictions", 5},
    {"fit", OPTION_FLAG, AT(fit), 1, NULL, "fit the constants to these runs first", 5},
    {"cross-validate", OPTION_FLAG, AT(cross_validate), 1, NULL, "predict each group of runs with constants fitted to "
     "the others", 5},
};
const int question_option_count = sizeof question_options / sizeof *question_options;

const char *question_doc(const QuestionOption *o)
{
    return o->names ? format_text("one of %s%s", o->names(), o->doc) : o->doc;
}

/* Reads "4096", "8K" or "1.5M". */
static int number_of(const QuestionOption *o, const char *text)
{
    char *end;
    const double x = strtod(text, &end);
    const int scale = *end == 'K' || *end == 'k' ? 1 << 10 : *end == 'M' ? 1 << 20 : 1;
    const double n = x * scale;

    if (end == text || strlen(end) > (scale > 1) || !(n >= 1 && n <= o->most) || n != floor(n)
        || strspn(text, "0123456789.KkM") != strlen(text))
        fail_usage("--%s: expected an integer from 1 to %d, got '%s'", o->name, o->most, text);
    return n;
}

/* Reads "1.25", "300B" or "15T". */
static double factor_of(const QuestionOption *o, const char *text)
{
    char *end;
    const double x = strtod(text, &end) * (*end == 'T' ? 1e12 : *end == 'B' ? 1e9 : *end == 'M' ? 1e6 : 1);

    if (end == text || strlen(end) > (strchr("TBM", *end) != NULL) || !(x > 0 && x < 1e18))
        fail_usage("--%s: expected a number above 0, such as %s, got '%s'", o->name, o->most ? "1.25" : "300B or 15T",
                   text);
    return x;
}

static Range range_of(const QuestionOption *o, const char *text)
{
    Range r = {.given = true};
    char rest;

    if (o->at == AT(limits[RECOMPUTE])) {
        r.least = r.most = recompute_named(text);
        if (r.least < 0)
            fail_usage("--recompute: expected none, selective or full, got '%s'", text);
    }
    else if (sscanf(text, "<=%d%c", &r.most, &rest) == 1)
        r.least = 0;
    else if (sscanf(text, ">=%d%c", &r.least, &rest) == 1)
        r.most = 1 << 30;
    else if (sscanf(text, "%d%c", &r.least, &rest) == 1)
        r.most = r.least;
    else if (sscanf(text, "%d..%d%c", &r.least, &r.most, &rest) != 2)
        r.most = -1;
    if (r.most < r.least || (r.most < 1 && o->at < AT(limits[ZERO])))
        fail_usage("--%s: expected a number or a bound, like 4, \"<=4\", \">=2\" or 2..8, got '%s'", o->name, text);
    return r;
}

void question_set(Question *q, const char *name, const char *text)
{
    const QuestionOption *o = question_options;

    while (o < question_options + question_option_count && strcmp(o->name, name))
        o++;
    if (o == question_options + question_option_count)
        fail_usage("--%s is not an option of the planner", name);
    void *value = (char *)q + o->at;
    if (o->kind != OPTION_FLAG && !*text)
        fail_usage("--%s: expected a value, got ''", name);
    switch (o->kind) {
    case OPTION_NUMBER: *(int *)value = number_of(o, text); break;
    case OPTION_TEXT: *(const char **)value = text; break;
    case OPTION_RANGE: *(Range *)value = range_of(o, text); break;
    case OPTION_FACTOR: *(double *)value = factor_of(o, text); break;
    case OPTION_FLAG: *(int *)value = o->most; break;
    }
}

/* The named model with the sizes given. */
static Model model(const Question *q)
{
    Model m = q->config;

    if (!m.layers && !model_find(&m, q->model))
        fail_usage("--model: expected one of %s or a config.json, got '%s'; for another model, give its sizes: "
                   "--layers, ...", model_names(), q->model);
    const Model named = m, *given = &q->sizes;
    for (const QuestionOption *o = question_options; o->group == 1; o++) {
        const size_t at = o->at - AT(sizes);
        const int *size = (const int *)((const char *)given + at);
        if (o->kind == OPTION_NUMBER && *size)
            *(int *)((char *)&m + at) = *size;
    }
    m.kv_heads = given->heads && !given->kv_heads ? m.heads : m.kv_heads;
    m.mlp = named.in_09 && given->hidden && !given->mlp ? 4 * m.hidden : m.mlp;
    m.gated = q->gated >= 0 ? q->gated : m.gated;
    m.tied = q->tied >= 0 ? q->tied : m.tied;
    if (m.dense >= m.layers)                            /* no block has the experts */
        m.experts = m.shared = m.dense = 0;
    m.top_k = m.experts ? m.top_k ? m.top_k : 2 : 0;
    m.expert_width = m.experts ? m.expert_width ? m.expert_width : m.mlp : 0;
    if (given->hidden || given->heads)
        m.head_dim = given->head_dim, m.value_dim = m.q_rank = 0;
    m.in_09 = !m.gated && m.tied && (m.experts || m.mlp == 4 * m.hidden) && m.kv_heads == m.heads && !m.shared
              && !m.dense && (!m.head_dim || m.head_dim * m.heads == m.hidden);
    m.capacity = q->capacity ? q->capacity : m.in_09 ? 1.25 : 1;
    if (m.layers != named.layers || m.hidden != named.hidden || m.mlp != named.mlp || m.experts != named.experts)
        snprintf(m.name, sizeof m.name, "own sizes");
    if ((!m.head_dim && m.hidden % m.heads) || m.heads % m.kv_heads)
        fail_usage("--hidden %d, --heads %d, --kv-heads %d: expected each to be a multiple of the next", m.hidden,
                   m.heads, m.kv_heads);
    if (m.top_k > m.experts || (!m.experts && (given->top_k || given->expert_width)))
        fail_usage("--top-k %d, --expert-width %d: expected --experts of at least top-k, got %d", given->top_k,
                   given->expert_width, m.experts);
    return m;
}

Query question_query(const Question *given)
{
    Query q = {.model = model(given), .tokens = given->tokens, .price = given->price};
    const int seq = q.model.seq, gpus = given->gpus, bytes = given->state_bytes;
    const bool fp32 = !strcmp(given->dtype, "fp32");
    const Recipe fp8 = !strcmp(given->dtype, "fp8") ? FP8 : !strcmp(given->dtype, "mxfp8") ? MXFP8 : NO_FP8;

    if (!fp32 && !fp8 && strcmp(given->dtype, "bf16"))
        fail_usage("--dtype: expected one of %s, got '%s'", dtype_names(), given->dtype);
    const Framework f = *given->framework ? framework_named(given->framework) : q.model.in_09 ? FOR_09 : FOR_MEGATRON;
    if (f == FRAMEWORKS || (f == FOR_09 && !q.model.in_09))
        fail_usage("--for: expected one of %s%s, got '%s'", framework_names(), f == FOR_09
                   ? " but 09, which has no gated MLP, untied embedding or grouped queries" : "", given->framework);
    if (bytes && (bytes < 16 || bytes % 2 || fp32 || (f == FOR_09 && bytes != 18)))
        fail_usage("--state-bytes: expected 16, 18 or 20 without --dtype fp32, 18 for a model that 09 runs, got %d",
                   bytes);
    q.hardware = given->pretend ? hardware_simulated(given->pretend)
                 : given->machine.peak ? given->machine : hardware_named(given->hardware);
    const int rack = q.hardware.domain, most = given->per_node ? given->per_node : rack ? rack : NODE;
    int node = most;
    while (rack && !given->per_node && gpus > rack && gpus % node && node > TRAY)
        node -= TRAY;                       /* a job takes whole trays, and as many GPUs of each rack */
    if (gpus > most && gpus % node && !given->pretend)
        fail_usage("--gpus %d: expected up to %d, or a multiple of --per-node %d, such as %d or %d", gpus, most, node,
                   gpus / node * node, (gpus / node + 1) * node);
    q.hardware.network *= rack ? (double)node / rack : 1;
    if (q.price && !q.tokens)
        fail_usage("--price %g: expected the tokens of the training with it, such as --tokens 15T", q.price);
    if (given->batch && given->batch < seq)
        fail_usage("--batch %d: expected at least the %d tokens of a sequence", given->batch, seq);
    q.sequences = given->batch ? given->batch / seq : (1 << 20) / seq > 1 ? (1 << 20) / seq : 1;
    if (fp8 && !frameworks[f].fp8)
        fail_usage("--dtype %s: expected bf16 or fp32, as %s has no fp8; --for megatron and torchtitan have it",
                   given->dtype, frameworks[f].command);
    if (fp8 && (!q.hardware.peak8 || (fp8 == MXFP8 && q.hardware.peak < BLACKWELL)))
        fail_usage("--dtype %s: expected %s, which %s has", given->dtype, q.hardware.peak8 ? "bf16, fp32 or fp8"
                   : "bf16 or fp32", q.hardware.name);
    const bool cpu = given->pretend || (q.hardware.measured && !q.hardware.gpu);
    q.cluster = (Cluster){.gpus = gpus, .per_node = given->pretend ? gpus : node, .framework = f,
                          .hides_exchange = f == FOR_MEGATRON, .stored = fp32 ? 4 : 2, .fp8 = fp8,
                          .gradients = fp32 ? 4 : bytes ? bytes - 14 : frameworks[f].gradients,
                          .loss_rows = cpu ? CPU_LOSS_ROWS : GPU_LOSS_ROWS,
                          .memory = frameworks[f].memory_limit * q.hardware.memory};
    q.constants = constants_for(f, &q.hardware, NULL);
    memcpy(q.limits, given->limits, sizeof q.limits);
    return q;
}
