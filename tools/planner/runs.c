#include "runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"
#include "machines.h"

/* ---- The file ---- */

enum { COLUMNS = 64 };
typedef struct {
    const char *file;
    char *name[COLUMNS + 1], *value[COLUMNS + 1];       /* NULL after the last */
    int row;
} Row;

/* Splits a line at commas that are not between quotes, and takes the quotes away. */
static void split(char *line, char *part[COLUMNS + 1])
{
    int n = 0;

    for (bool more = true; more && n < COLUMNS; n++) {
        const bool quoted = *line == '"';
        part[n] = line += quoted;
        line += strcspn(line, quoted ? "\"" : ",");
        more = line[quoted && *line] == ',';
        *line = 0;
        line += 1 + quoted;
    }
    part[n] = NULL;
}

static const char *text_of(const Row *r, const char *name)      /* "": no such column */
{
    for (int i = 0; r->name[i] && r->value[i]; i++)
        if (!strcmp(r->name[i], name))
            return r->value[i];
    return "";
}

static double number(const Row *r, const char *name, double least, double otherwise)    /* if empty; NAN: required */
{
    const char *text = text_of(r, name);
    char *end;
    const double x = strtod(text, &end);
    const bool whole = !strstr(name, "per_gpu") && strcmp(name, "memory");

    if (!*text && !isnan(otherwise))
        return otherwise;
    if (end == text || *end || !(x >= least) || !isfinite(x) || (whole && x != floor(x)))
        fail("%s, line %d: column %s: expected %s of at least %g, got '%s'", r->file, r->row, name,
             whole ? "an integer" : "a number", least, text);
    return x;
}

static Run playbook_run(const Row *row)
{
    Run r = {.profile = NANOTRON, .weight = 1};
    const char *name = text_of(row, "model");
    Grid *g = &r.grid;

    if (!model_find(&r.query.model, name))
        fail("%s, line %d: model: expected one of %s, got '%s'", row->file, row->row, model_names(), name);
    const int gpus = 8 * number(row, "nodes", 1, NAN);
    r.query.cluster = (Cluster){.gpus = gpus, .per_node = 8, .framework = FOR_NANOTRON, .published = true, .stored = 2,
                                .gradients = 6, .loss_rows = GPU_LOSS_ROWS};
    r.query.hardware = *hardware_find("h100");
    *g = (Grid){.micro_batch = number(row, "micro_batch", 1, NAN), .accumulate = number(row, "accumulate", 1, NAN),
                .dp = number(row, "dp", 1, NAN), .pp = number(row, "pp", 1, NAN), .tp = number(row, "tp", 1, NAN),
                .cp = 1, .ep = 1, .etp = 1, .chunks = 1, .replicate = 1, .zero = number(row, "zero", 0, NAN)};
    if ((double)g->dp * g->pp * g->tp != gpus)
        fail("%s, line %d: dp %d x pp %d x tp %d: expected %d ranks, 8 per node, got %.0f", row->file, row->row, g->dp,
             g->pp, g->tp, gpus, (double)g->dp * g->pp * g->tp);
    r.measured = number(row, "tokens_per_second_per_gpu", 0, NAN);
    r.memory = GiB * number(row, "memory", 0, NAN);
    r.name = strdup(format_text("%-5s %5d", r.query.model.name, gpus / 8));
    return r;
}

/* Of published runs: what a source used; all others: Megatron-LM. DeepSpeed's did not interleave. */
static const struct {
    const char *source;
    Framework framework;
    bool deepspeed;
} known[] = {
    {"llm-foundry", FOR_FSDP_2023, false}, {"fsdp", FOR_TORCHTITAN, false}, {"torchtitan", FOR_TORCHTITAN, false},
    {"nanotron", FOR_NANOTRON, false}, {"Narayanan", FOR_MEGATRON_2022, false},
    {"Korthikanti", FOR_MEGATRON_2022, false}, {"DeepSpeed", FOR_MEGATRON_2022, true},
    {"vTrain", FOR_MEGATRON_2022, true}, {"BLOOM", FOR_MEGATRON_2022, true}, {"NeoX", FOR_MEGATRON_2022, true},
    {"", FOR_MEGATRON, false},
};

static Run published_run(const Row *row)
{
    Run r = {.name = strdup(text_of(row, "source"))};
    const int hidden = number(row, "hidden", 1, NAN), heads = number(row, "heads", 1, NAN);
    const int experts = number(row, "experts", 0, 0), width = number(row, "expert_width", 0, 0);
    const int mlp = number(row, "mlp", 1, width ? width : NAN);
    const int gpus = number(row, "gpus", 1, NAN);
    const char *layout = text_of(row, "layout"), *gpu = text_of(row, "gpu");
    const char *counted = text_of(row, "in_statistics"), *network = strchr(gpu, ',');
    double gigabits;

    r.query.model = (Model){.layers = number(row, "layers", 1, NAN), .hidden = hidden, .heads = heads,
        .kv_heads = number(row, "kv_heads", 1, heads), .mlp = mlp, .vocab = number(row, "vocab", 1, 32000),
        .seq = number(row, "seq", 1, NAN), .experts = experts, .top_k = number(row, "top_k", 0, experts ? 2 : 0),
        .expert_width = experts && !width ? mlp : width, .gated = mlp != 4 * hidden || experts,
        .capacity = 1};
    snprintf(r.query.model.name, sizeof r.query.model.name, "%s", text_of(row, "model"));
    const char *name = strstr(gpu, "HBM2e") ? "h100-96gb" : format_text("%.*s", (int)strcspn(gpu, ", "), gpu);
    const Hardware *hardware = hardware_find(name);
    if (!hardware) {
        r.wrong = strdup(format_text("gpu: expected one of %s, got '%s'", hardware_names(), gpu));
        return r;
    }
    r.query.hardware = *hardware;
    if (network && sscanf(network, ", %lf Gb/s per node", &gigabits) == 1)
        r.query.hardware.network = gigabits / 8 * 1e9;
    int of = 0;

    while (!strcasestr(r.name, known[of].source))
        of++;
    const Framework f = known[of].framework;
    r.query.cluster = (Cluster){.gpus = gpus, .per_node = 8, .framework = f, .stored = 2,
                                .gradients = frameworks[f].gradients, .loss_rows = GPU_LOSS_ROWS};
    r.query.sequences = number(row, "sequences_per_step", 1, NAN);
    r.profile = profile_for(f, &r.query.hardware);
    r.measured = number(row, "published_tokens_per_second_per_gpu", 0, 0);
    r.weight = r.measured && strcmp(counted, "no");
    const char *wrong = grid_read(&r.query, layout, &r.grid);
    if (wrong && r.grid.zero == 1 && !(frameworks[f].stages & 1 << 1)) {        /* of FSDP: what comes nearest */
        r.grid.zero = 2;
        wrong = grid_error(&r.query, &r.grid);
    }
    r.wrong = wrong ? strdup(wrong) : NULL;
    r.chunks = known[of].deepspeed || strstr(layout, "chunks=") ? r.grid.chunks : r.query.model.layers;
    return r;
}

Runs runs_read(const char *file)
{
    FILE *f = fopen(file, "r");
    Runs r = {0};
    Row row = {.file = file};
    char *line = NULL;
    size_t size = 0;

    if (!f)
        fail("%s: %s", file, strerror(errno));
    while (getline(&line, &size, f) >= 0) {
        row.row++;
        line[strcspn(line, "\r\n")] = 0;
        if (!line[0] || line[0] == '#')
            continue;
        if (!r.header) {
            r.header = strdup(line);
            split(strdup(line), row.name);
            r.playbook = !strstr(line, "layout");
            continue;
        }
        r.all = realloc(r.all, (r.count + 1) * sizeof *r.all);
        if (!r.all)
            fail("no memory for %d runs", r.count + 1);
        Run *one = &r.all[r.count];
        char *text = strdup(line);
        split(line, row.value);
        *one = r.playbook ? playbook_run(&row) : published_run(&row);
        one->line = text, one->group = r.groups, one->set = r.sets;
        for (const Run *x = r.all; x < one; x++) {
            const bool same = !strcmp(x->name, one->name);
            one->group = same ? x->group : one->group;
            if (same && x->query.cluster.gpus == one->query.cluster.gpus
                && !strcmp(x->query.model.name, one->query.model.name))
                one->set = x->set;
        }
        r.groups += one->group == r.groups, r.sets += one->set == r.sets;
        r.count++;
    }
    if (ferror(f))
        fail("%s: %s", file, strerror(errno));
    fclose(f);
    free(line);
    if (!r.count)
        fail("%s: expected a line of column names, then a line per run; got none", file);
    for (int i = 0; i < r.count && !r.playbook; i++) {          /* each source counts as much */
        int rows = 0;
        for (int k = 0; k < r.count; k++)
            rows += r.all[k].group == r.all[i].group;
        r.all[i].weight /= rows;
    }
    return r;
}

void runs_write(const Runs *r, const char *file)
{
    FILE *f = fopen(file, "w");

    if (!f)
        fail("--predictions %s: %s", file, strerror(errno));
    fprintf(f, "%s,predicted_tokens_per_second_per_gpu,predicted_memory\n", r->header);
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->wrong)
            fprintf(f, "%s,,\n", x->line);
        else
            fprintf(f, "%s,%.6g,%.4g\n", x->line, x->predicted, x->predicted_memory / GiB);
    if (ferror(f) | fclose(f))
        fail("--predictions %s: %s", file, strerror(errno));
}

/* ---- Predictions, and the fit of the constants ---- */

/* How many chunks an interleaved pipeline had is rarely published: the fastest. */
static Candidate predicted(const Run *r, const Constants k[PROFILES])
{
    Query q = r->query;
    Grid g = r->grid;
    q.constants = constants_for(q.cluster.framework, &q.hardware, k);
    Candidate best = candidate_of(&q, &g);

    for (g.chunks++; g.chunks <= r->chunks; g.chunks++)
        if (!grid_error(&q, &g)) {
            const Candidate c = candidate_of(&q, &g);
            best = c.tokens > best.tokens ? c : best;
        }
    return best;
}

void runs_predict(Runs *r, const Constants k[PROFILES], int group)
{
    for (Run *x = r->all; x < r->all + r->count; x++) {
        if (x->wrong || (group >= 0 && x->group != group))
            continue;
        const Candidate c = predicted(x, k);
        x->predicted = c.tokens, x->predicted_memory = c.memory.total;
    }
}

static const double MAX_LOSS = 0.25;    /* per run */

/* The mean loss of a profile's runs, but for those of the group `without`; NAN: it has none. */
static double loss(const Runs *r, int profile, const Constants k[PROFILES], int without)
{
    double sum = 0, counted = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->profile == profile && x->group != without && !x->wrong && x->weight) {
            sum += x->weight * fmin(MAX_LOSS, fabs(log(predicted(x, k).tokens / x->measured)));
            counted += x->weight;
        }
    return counted ? sum / counted : NAN;
}

/* Multiplies one constant after the other by a factor, or divides it, while that helps; then with smaller factors. */
static void fit(const Runs *r, int profile, Constants k[PROFILES], int without)
{
    const double *start = &profiles[profile].start.efficiency;
    double *const x = &k[profile].efficiency, least;

    if (isnan(loss(r, profile, k, without)))
        return;
    for (int c = 0; c < CONSTANTS; c++)
        x[c] = start[c] ? start[c] : x[c];
    least = loss(r, profile, k, without);
    for (int halved = 0; halved < 8; halved++)
        for (int tried = 0, c = 0; tried < 2 * CONSTANTS; tried++, c = (c + 1) % CONSTANTS) {
            const double before = x[c];
            if (!start[c])
                continue;
            x[c] *= exp((tried < CONSTANTS ? 0.3 : -0.3) / (1 << halved));
            const double now = loss(r, profile, k, without);
            if (now < least)
                least = now, tried = -1, c = CONSTANTS - 1;
            else
                x[c] = before;
        }
}

/* Kernels written for Ampere, on Hopper: as fast per multiprocessor and clock, as a fraction of a higher peak. */
static const double HOPPER_ATTENTION = 312 * 132 * 1.755 / (108 * 1.41 * 989.4);

void runs_fit(const Runs *r, Constants k[PROFILES], int without)
{
    for (int p = 0; p < PROFILES; p++)
        k[p] = profiles[p].constants;
    for (int p = 0; p < PROFILES; p++) {
        if (p == HOPPER)
            k[p].attention = k[AMPERE].attention * HOPPER_ATTENTION;
        fit(r, p, k, without);
    }
}

/* ---- How good the predictions and the choices among these runs are ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The rank of each of n numbers: how many are smaller. Equal numbers have their mean rank. */
static void ranks(double *rank, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        rank[i] = -n / 2.0;
        for (int k = 0; k < n; k++)
            rank[i] += x[k] < x[i] ? 1 : x[k] == x[i] ? 0.5 : 0;
    }
}

static double spearman(const double *x, const double *y, int n)
{
    double a[n], b[n], xx = 0, yy = 0, xy = 0;

    ranks(a, x, n);
    ranks(b, y, n);
    for (int i = 0; i < n; i++)
        xx += a[i] * a[i], yy += b[i] * b[i], xy += a[i] * b[i];
    return xx && yy ? xy / sqrt(xx * yy) : 1;
}

enum { MANY = 8 };                  /* runs of a set whose ranks say something */

/* By how much the run of a set that is predicted to be fastest is slower than the fastest. */
static double regret(const Runs *r, int set)
{
    double fastest = 0, predicted = 0, chosen = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->set == set && !x->wrong) {
            chosen = x->predicted > predicted ? x->measured : chosen;
            predicted = fmax(predicted, x->predicted);
            fastest = fmax(fastest, x->measured);
        }
    return 1 - chosen / fastest;
}

/* Which runs: those of a group that count; or of all that count a kind. */
enum { ALL = -1, EASY = -2, MIXTURES = -3 };
static bool in(const Run *x, int group)
{
    return !x->wrong && x->weight
           && (group == x->group || group == ALL || (group == MIXTURES && x->query.model.experts)
               || (group == EASY && x->grid.pp == 1 && x->grid.tp <= 8));
}

/* The median of n errors; NAN: none. */
typedef enum { SIZE, SIGNED, MEMORY } Error;
static double median_error(const Runs *r, int group, Error which, int *n)
{
    double error[r->count];

    *n = 0;
    for (const Run *x = r->all; x < r->all + r->count; x++) {
        const double e = which == MEMORY ? x->predicted_memory / x->memory - 1 : x->predicted / x->measured - 1;
        if (in(x, group) && isfinite(e))
            error[(*n)++] = which == SIGNED ? e : fabs(e);
    }
    qsort(error, *n, sizeof *error, ascending);
    return *n ? 100 * (error[(*n - 1) / 2] + error[*n / 2]) / 2 : NAN;
}

/* The rank correlation within a set; NAN: it has too few runs. */
static double correlation(const Runs *r, int set, int *group)
{
    double measured[r->count], predicted[r->count];
    int n = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->set == set && in(x, ALL)) {
            *group = x->group;
            measured[n] = x->measured, predicted[n++] = x->predicted;
        }
    return n < MANY ? NAN : spearman(measured, predicted, n);
}

/* Errors of the runs of a group; and of its sets mean rank correlation and regret. */
static void print_errors(const Runs *r, int group, const char *name)
{
    double sum = 0, lost = 0;
    int n, of = 0, sets = 0;
    const double error = median_error(r, group, SIZE, &n), bias = median_error(r, group, SIGNED, &n);
    const int runs = n;

    if (!runs)
        return;
    const double memory = median_error(r, group, MEMORY, &n);
    printf("%-40s %4d %13.1f%% %+7.1f%%", name, runs, error, bias);
    printf(n ? " %7.1f%%" : "        -", memory);
    for (int s = 0; s < r->sets; s++) {
        const double c = correlation(r, s, &of);
        if (!isnan(c) && (group == of || group == ALL))
            sum += c, lost += 100 * regret(r, s), sets++;
    }
    printf(sets ? " %9.2f %7.1f%% (%d)\n" : "         -        -\n", sum / sets, lost / sets, sets);
}

void runs_print(const Runs *r)
{
    printf("%-40s runs   median error   signed   memory  Spearman   regret (sets)\n",
           r->playbook ? "model, nodes" : "source");
    for (int g = 0; g < r->groups; g++) {
        const Run *x = r->all;
        while (x->group != g)
            x++;
        print_errors(r, g, x->name);
    }
    printf("\n");
    print_errors(r, ALL, "all that count");
    print_errors(r, MIXTURES, "mixtures of experts");
    print_errors(r, EASY, "pp = 1 and tp <= 8");
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->wrong)
            printf("not predicted: %s, %s: %s\n", x->name, x->query.model.name, x->wrong);
}
