/* plan: the fastest grid of ranks for a model on some number of GPUs. The playbook answers with 4,000 runs; the planner
 * computes memory and time of every grid (search.c) by formulas (costs.c) whose constants are fitted to them (runs.c).
 *
 *   build/cpu/plan --model 8b --gpus 64
 */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "explain.h"
#include "machines.h"
#include "runs.h"

/* The command line; 0 and NULL: not given. */
static struct {
    int layers, hidden, heads, kv_heads, mlp, vocab, seq, gated, tied;
    int gpus, per_node, batch;
    const char *model, *hardware, *pretend, *explain, *csv, *dtype, *runs, *predictions;
    bool published, fit, cross_validate;
} given = {.gpus = 64, .per_node = 8, .model = "8b", .hardware = "h100", .dtype = "bf16", .gated = -1, .tied = -1};

enum { NUMBER = 1000, TEXT = 2000, FLAG = 3000 };
static const struct {
    const char *name;
    int *value, most;
} numbers[] = {
    {"layers", &given.layers, 10000}, {"hidden", &given.hidden, 1 << 20}, {"heads", &given.heads, 1 << 16},
    {"kv-heads", &given.kv_heads, 1 << 16}, {"mlp", &given.mlp, 1 << 22}, {"vocab", &given.vocab, 1 << 24},
    {"seq", &given.seq, 1 << 24}, {"gpus", &given.gpus, 1 << 20}, {"per-node", &given.per_node, 1 << 10},
    {"batch", &given.batch, 1 << 30}};
static const struct {
    const char *name, **value;
} texts[] = {{"model", &given.model}, {"hardware", &given.hardware}, {"pretend", &given.pretend},
             {"explain", &given.explain}, {"csv", &given.csv}, {"dtype", &given.dtype}, {"runs", &given.runs},
             {"predictions", &given.predictions}};

static const struct argp_option options[] = {
    {.doc = "The model, and sizes to change:", .group = 1},
    {"model", TEXT + 0, "NAME", 0, NULL, 1},            /* with all names: main */
    {"layers", NUMBER + 0, "N", 0, "transformer blocks", 1},
    {"hidden", NUMBER + 1, "N", 0, "width of the residual stream", 1},
    {"heads", NUMBER + 2, "N", 0, "attention heads", 1},
    {"kv-heads", NUMBER + 3, "N", 0, "heads of keys and values (grouped-query attention)", 1},
    {"mlp", NUMBER + 4, "N", 0, "width of the MLP", 1},
    {"gated", FLAG + 'g', NULL, 0, "an MLP of three matrices: gate, up, down", 1},
    {"not-gated", FLAG + 'G', NULL, 0, "an MLP of two matrices: up, down", 1},
    {"vocab", NUMBER + 5, "N", 0, "tokens in the vocabulary", 1},
    {"tied", FLAG + 't', NULL, 0, "one matrix for embedding and output projection", 1},
    {"untied", FLAG + 'T', NULL, 0, "a matrix each", 1},
    {"seq", NUMBER + 6, "N", 0, "tokens per sequence", 1},
    {.doc = "The hardware and the batch:", .group = 2},
    {"gpus", NUMBER + 7, "N", 0, "GPUs in total (64)", 2},
    {"per-node", NUMBER + 8, "N", 0, "GPUs per node, joined by NVLink (8)", 2},
    {"hardware", TEXT + 1, "NAME", 0, NULL, 2},
    {"pretend", TEXT + 2, "GFLOPS,GB/S,MICROSECONDS", 0, "simulated hardware, as for the programs' --pretend", 2},
    {"batch", NUMBER + 9, "TOKENS", 0, "tokens per step (1,048,576, in full sequences)", 2},
    {"dtype", TEXT + 5, "bf16|fp32", 0, "type of weights and activations (bf16)", 2},
    {"published", FLAG + 'p', NULL, 0, "times as in the playbook's runs, whose pipelines over several nodes were "
     "slower than the formulas alone explain", 2},
    {.doc = "Output:", .group = 3},
    {"explain", TEXT + 3, "GRID", 0, "every formula with its numbers, for GRID: like tp=2,pp=4; or best", 3},
    {"csv", TEXT + 4, "FILE", 0, "write all grids with their bytes and seconds", 3},
    {.doc = "Instead of a plan, a comparison with published runs (like playbook_runs.csv):", .group = 4},
    {"runs", TEXT + 6, "FILE", 0, "print errors of the predictions, and how good the planner's choices are", 4},
    {"predictions", TEXT + 7, "FILE", 0, "write the runs with their predictions", 4},
    {"fit", FLAG + 'f', NULL, 0, "fit the constants to these runs first", 4},
    {"cross-validate", FLAG + 'c', NULL, 0, "predict each group of runs with constants fitted to the others", 4},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state)
{
    if (key >= NUMBER && key < TEXT) {
        char *end;
        errno = 0;
        const long n = strtol(text, &end, 10);
        if (end == text || *end || errno || n < 1 || n > numbers[key - NUMBER].most)
            fail_usage("--%s: expected an integer from 1 to %d, got '%s'", numbers[key - NUMBER].name,
                       numbers[key - NUMBER].most, text);
        *numbers[key - NUMBER].value = n;
        return 0;
    }
    if (key >= TEXT && key < FLAG) {
        if (!*text)
            fail_usage("--%s: expected a value, got ''", texts[key - TEXT].name);
        *texts[key - TEXT].value = text;
        return 0;
    }
    switch (key - FLAG) {
    case 'g': given.gated = 1; return 0;
    case 'G': given.gated = 0; return 0;
    case 't': given.tied = 1; return 0;
    case 'T': given.tied = 0; return 0;
    case 'p': given.published = true; return 0;
    case 'f': given.fit = true; return 0;
    case 'c': given.cross_validate = true; return 0;
    }
    if (key == ARGP_KEY_ARG)
        fail_usage("\"%s\" is not an option: options begin with --; see --help", state->argv[state->next - 1]);
    return ARGP_ERR_UNKNOWN;
}

/* The named model with the sizes given. A model that 09 cannot train is planned as nanotron trains it. */
static Model model(void)
{
    Model m;

    if (!model_find(&m, given.model))
        fail_usage("--model: expected one of %s, got '%s'; for another model, give its sizes: --layers, --hidden, ...",
                   model_names(), given.model);
    const int mlp = m.in_09 && given.hidden ? 4 * given.hidden : m.mlp;
    m.kv_heads = given.kv_heads ? given.kv_heads : given.heads ? given.heads : m.kv_heads;
    m.layers = given.layers ? given.layers : m.layers;
    m.hidden = given.hidden ? given.hidden : m.hidden;
    m.heads = given.heads ? given.heads : m.heads;
    m.mlp = given.mlp ? given.mlp : mlp;
    m.vocab = given.vocab ? given.vocab : m.vocab;
    m.seq = given.seq ? given.seq : m.seq;
    m.gated = given.gated >= 0 ? given.gated : m.gated;
    m.tied = given.tied >= 0 ? given.tied : m.tied;
    m.in_09 = m.in_09 && !m.gated && m.tied && m.mlp == 4 * m.hidden && m.kv_heads == m.heads;
    if (m.hidden % m.heads || m.heads % m.kv_heads)
        fail_usage("--hidden %d, --heads %d, --kv-heads %d: expected each to be a multiple of the next", m.hidden,
                   m.heads, m.kv_heads);
    return m;
}

static Query query(void)
{
    Query q = {.model = model()};
    const int seq = q.model.seq, gpus = given.gpus, node = given.per_node;
    const bool fp32 = !strcmp(given.dtype, "fp32");

    if (!fp32 && strcmp(given.dtype, "bf16"))
        fail_usage("--dtype: expected bf16 or fp32, got '%s'", given.dtype);
    if (gpus > node && gpus % node && !given.pretend)
        fail_usage("--gpus %d: expected up to %d, or a multiple of --per-node %d, such as %d or %d", gpus, node, node,
                   gpus / node * node, (gpus / node + 1) * node);
    if (given.batch % seq)
        fail_usage("--batch %d: expected a multiple of the %d tokens of a sequence, such as %lld", given.batch, seq,
                   (given.batch / seq + 1LL) * seq);
    q.sequences = given.batch ? given.batch / seq : (1 << 20) / seq > 1 ? (1 << 20) / seq : 1;
    q.cluster = (Cluster){.gpus = gpus, .per_node = given.pretend ? gpus : node, .published = given.published,
                          .stored = fp32 ? 4 : 2, .loss_rows = given.pretend ? 256 : 2048};
    q.hardware = given.pretend ? hardware_simulated(given.pretend) : hardware_named(given.hardware);
    q.constants = given.pretend ? exact_constants : published_constants;
    return q;
}

static void plan(void)
{
    const Query q = query();

    if (given.explain && strcmp(given.explain, "best")) {
        if (given.csv)
            fail_usage("--csv %s: expected without --explain GRID, which computes one grid only", given.csv);
        const Grid g = grid_parse(&q, given.explain);
        print_query(&q);
        print_formulas(&q, &g);
        return;
    }
    const Candidates c = search(&q);
    print_query(&q);
    print_table(&q, &c);
    if (given.explain)
        print_formulas(&q, &c.all[0].grid);
    else
        print_steps(&q, &c);
    if (given.csv)
        write_csv(&c, given.csv);
    free(c.all);
}

static void runs(void)
{
    Runs r = runs_read(given.runs);
    const Hardware h = hardware_named("h100");
    double value[CONSTANTS];
    Constants k = published_constants;

    if (given.fit && given.cross_validate)
        fail_usage("--fit and --cross-validate: expected one of them; --cross-validate fits once per group");
    if (given.cross_validate && r.groups < 2)
        fail_usage("--cross-validate: expected runs of at least two groups (model, nodes), got one");
    if (given.fit)
        k = runs_fit(&r, &h, -1);
    runs_predict(&r, &h, &k, -1);
    for (int g = 0; given.cross_validate && g < r.groups; g++) {
        const Constants others = runs_fit(&r, &h, g);
        runs_predict(&r, &h, &others, g);
    }
    if (given.predictions)
        runs_write(&r, given.predictions);
    runs_print(&r);
    printf(given.cross_validate ? "\n(each group predicted with constants fitted to the others)\n"
                                : "\nconstants%s:\n", given.fit ? ", fitted to these runs" : "");
    memcpy(value, &k, sizeof value);
    for (int c = 0; c < CONSTANTS && !given.cross_validate; c++)
        printf("  %-11s %8.3g %s\n", constant_name[c], value[c], constant_meaning[c]);
}

int main(int argc, char **argv)
{
    enum { OPTIONS = sizeof options / sizeof *options };
    struct argp_option list[OPTIONS];
    const struct argp parser = {.options = list, .parser = parse, .doc = "Finds the grid of ranks that trains a model "
                                "fastest and fits in memory.\vFormulas, models, hardware: 09_combined/planner."};
    static char models[600], hardware[400];

    error_set_program("plan");
    argv[0] = "plan";
    argp_err_exit_status = 2;
    memcpy(list, options, sizeof options);
    snprintf(models, sizeof models, "one of %s (8b)", model_names());
    snprintf(hardware, sizeof hardware, "one of %s, or TFLOPS,GIB,GB/S,GB/S,GB/S: per GPU peak, memory, memory "
             "bandwidth and NVLink; network per node (h100)", hardware_names());
    for (int i = 0; i < OPTIONS; i++)
        list[i].doc = list[i].key == TEXT + 0 ? models : list[i].key == TEXT + 1 ? hardware : list[i].doc;
    argp_parse(&parser, argc, argv, 0, NULL, NULL);
    if (given.runs)
        runs();
    else if (given.predictions || given.fit || given.cross_validate)
        fail_usage("--predictions, --fit, --cross-validate: expected --runs FILE with them");
    else
        plan();
    fail_unprinted();
}
