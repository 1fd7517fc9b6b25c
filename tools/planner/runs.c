#include "runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"
#include "machines.h"

typedef struct {
    Query query;                    /* one grid's */
    Grid grid;
    int chunks;                     /* the grid's; more: as many as it may have had, as their number is not published */
    int profile;                    /* of its constants */
    int group;                      /* what cross-validation leaves out at once: the source; a model on so many nodes */
    int set;                        /* runs from which a planner chooses: of one group, model and number of GPUs */
    double weight;                  /* in a fit; 0: none, and not counted either */
    double measured, memory;        /* tokens/s per GPU; bytes on the rank that needed most, or 0: not published */
    double predicted, predicted_memory;
    double slowest;                 /* predicted with the grid's chunks, while `predicted` has the fastest number */
    bool planned;                   /* predicted as a plan is: without stalls and slow rings */
    char *name, *line, *wrong;      /* of the group; as in the file; why it is not predicted, or NULL */
} Run;

typedef struct {
    Run *all;
    int count, groups, sets;
    bool playbook;                  /* columns as in playbook_runs.csv; else as in published_runs.csv */
    char *header;
} Runs;

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
    const bool whole = !strstr(name, "per_gpu") && strcmp(name, "memory") && strcmp(name, "network_gb_per_s");

    if (!*text && !isnan(otherwise))
        return otherwise;
    if (end == text || *end || !(x >= least) || !isfinite(x) || (whole && x != floor(x)))
        fail("%s, line %d: column %s: expected %s of at least %g, got '%s'", r->file, r->row, name,
             whole ? "an integer" : "a number", least, text);
    return x;
}

static Run playbook_run(const Row *row)
{
    Run r = {.profile = NANOTRON, .weight = 1, .chunks = 1};
    Question q = default_question;
    Grid *g = &r.grid;

    q.model = text_of(row, "model"), q.framework = "nanotron";
    if (!model_find(&r.query.model, q.model))
        fail("%s, line %d: model: expected one of %s, got '%s'", row->file, row->row, model_names(), q.model);
    q.gpus = 8 * number(row, "nodes", 1, NAN);
    const int dp = number(row, "dp", 1, NAN), pp = number(row, "pp", 1, NAN), tp = number(row, "tp", 1, NAN);
    *g = (Grid){.tp = tp, .pp = pp, .dp = dp, .cp = 1, .ep = 1, .etp = 1, .chunks = 1, .replicate = 1,
                .micro_batch = number(row, "micro_batch", 1, NAN), .accumulate = number(row, "accumulate", 1, NAN),
                .zero = number(row, "zero", 0, NAN)};
    if ((double)g->dp * g->pp * g->tp != q.gpus)
        fail("%s, line %d: dp %d x pp %d x tp %d: expected %d ranks, 8 per node, got %.0f", row->file, row->row, g->dp,
             g->pp, g->tp, q.gpus, (double)g->dp * g->pp * g->tp);
    q.batch = fmin(1 << 30, (double)g->dp * g->micro_batch * g->accumulate * r.query.model.seq);
    r.query = question_query(&q);
    r.query.cluster.published = true;
    r.measured = number(row, "tokens_per_second_per_gpu", 0, NAN);
    r.memory = GiB * number(row, "memory", 0, NAN);
    r.name = strdup(format_text("%-5s %5d", r.query.model.name, q.gpus / 8));
    return r;
}

/* "yes" or "no". */
static int yes(const Row *r, const char *name)
{
    const char *text = text_of(r, name);

    if (strcmp(text, "yes") && strcmp(text, "no"))
        fail("%s, line %d: column %s: expected yes or no, got '%s'", r->file, r->row, name, text);
    return !strcmp(text, "yes");
}

/* The question whose sizes and hardware a row names. Without layers: the sizes of one of the planner's models. */
static Question question_of(const Row *row)
{
    Question q = default_question;

    q.model = text_of(row, "model"), q.framework = text_of(row, "framework"), q.hardware = text_of(row, "gpu");
    q.dtype = *text_of(row, "dtype") ? text_of(row, "dtype") : q.dtype;
    q.gpus = number(row, "gpus", 1, NAN), q.state_bytes = number(row, "state_bytes", 16, 0);
    q.per_node = number(row, "per_node", 1, q.per_node);
    q.sizes.seq = number(row, "seq", 1, NAN);
    q.batch = q.sizes.seq * number(row, "sequences_per_step", 1, NAN);
    if (!*text_of(row, "layers"))
        return q;
    q.model = "8b", q.gated = yes(row, "gated"), q.tied = yes(row, "tied");
    q.sizes.layers = number(row, "layers", 1, NAN), q.sizes.hidden = number(row, "hidden", 1, NAN);
    q.sizes.heads = number(row, "heads", 1, NAN), q.sizes.kv_heads = number(row, "kv_heads", 1, q.sizes.heads);
    q.sizes.head_dim = number(row, "head_dim", 1, 0), q.sizes.vocab = number(row, "vocab", 1, NAN);
    q.sizes.mlp = number(row, "mlp", 1, NAN), q.sizes.experts = number(row, "experts", 0, 0);
    q.sizes.top_k = number(row, "top_k", 0, 0), q.sizes.expert_width = number(row, "expert_width", 0, 0);
    q.capacity = 1;
    return q;
}

static Run published_run(const Row *row)
{
    Run r = {.name = strdup(text_of(row, "source"))};
    const char *layout = text_of(row, "layout"), *gpu = text_of(row, "gpu");
    const double network = number(row, "network_gb_per_s", 0, 0);

    if (!hardware_find(gpu)) {
        r.wrong = strdup(format_text("gpu: expected one of %s, got '%s'", hardware_names(), gpu));
        return r;
    }
    const Question question = question_of(row);
    r.query = question_query(&question);
    snprintf(r.query.model.name, sizeof r.query.model.name, "%s", text_of(row, "model"));
    r.query.hardware.network = network ? 1e9 * network : r.query.hardware.network;
    r.query.cluster.hides_exchange = !strcmp(text_of(row, "hides_exchange"), "yes");
    r.profile = profile_for(r.query.cluster.framework, &r.query.hardware);
    r.measured = number(row, "published_tokens_per_second_per_gpu", 0, 0);
    r.weight = r.measured && strcmp(text_of(row, "counted"), "no");
    const char *wrong = grid_read(&r.query, layout, &r.grid);
    if (wrong && r.grid.zero == 1 && !strchr(frameworks[r.query.cluster.framework].stages, '1')) {
        r.grid.zero = 2;                                /* of FSDP: what comes nearest */
        wrong = grid_error(&r.query, &r.grid);
    }
    r.wrong = wrong ? strdup(wrong) : NULL;
    r.chunks = strstr(layout, "chunks=") || r.grid.pp == 1 ? r.grid.chunks : r.query.model.layers;
    return r;
}

/* Reads a file whose columns have the names of playbook_runs.csv or, with a column `layout`, of published_runs.csv.
 * They may be in any order; others are ignored. Fails with the file's name and the line's number. */
static Runs runs_read(const char *file)
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

static void runs_write(const Runs *r, const char *file)      /* with predicted tokens/s per GPU and GiB */
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

/* The fastest of the run's grids with up to so many chunks of layers per pipeline stage. */
static Candidate predicted(const Run *r, const Constants k[PROFILES], int chunks)
{
    Query q = r->query;
    Grid g = r->grid;
    q.constants = constants_for(q.cluster.framework, &q.hardware, k);
    Candidate best = candidate_of(&q, &g);

    for (g.chunks++; g.chunks <= chunks; g.chunks++)
        if (!grid_error(&q, &g)) {
            const Candidate c = candidate_of(&q, &g);
            best = c.tokens > best.tokens ? c : best;
        }
    return best;
}

/* Fills in predicted_memory of all runs, and predicted, with these constants, of the runs of `group`; -1: of all. */
static void runs_predict(Runs *r, const Constants k[PROFILES], int group)
{
    for (Run *x = r->all; x < r->all + r->count; x++) {
        if (x->wrong || (group >= 0 && x->group != group))
            continue;
        const Candidate c = predicted(x, k, x->chunks);
        x->predicted = c.tokens, x->predicted_memory = c.memory.total;
        x->slowest = predicted(x, k, x->grid.chunks).tokens;
        Run plain = *x;
        plain.query.cluster.published = false;
        x->planned = fabs(predicted(&plain, k, x->chunks).tokens / x->predicted - 1) < 1e-3;
    }
}

/* Whether a run judges predictions: an interval does not. */
static bool counts(const Run *x)
{
    return !x->wrong && x->weight && x->chunks == x->grid.chunks;
}

static const double MAX_LOSS = 0.25;    /* per run */

/* The mean loss of a profile's runs, but for those of the group `without`; NAN: it has none. */
static double loss(const Runs *r, int profile, const Constants k[PROFILES], int without)
{
    double sum = 0, counted = 0;

    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->profile == profile && x->group != without && counts(x)) {
            sum += x->weight * fmin(MAX_LOSS, fabs(log(predicted(x, k, x->chunks).tokens / x->measured)));
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
            const double now = x[c] <= 1 ? loss(r, profile, k, without) : INFINITY;
            if (now < least)
                least = now, tried = -1, c = CONSTANTS - 1;
            else
                x[c] = before;
        }
}

/* Kernels written for Ampere, on Hopper: as fast per multiprocessor and clock, as a fraction of a higher peak. */
static const double HOPPER_ATTENTION = 312 * 132 * 1.755 / (108 * 1.41 * 989.4);

/* Fits the constants to the runs that are not of the group `without` (-1: to all): the least mean of
 * |log(predicted / measured)|, at most 1/4 per run, as some failed. A profile that no run has keeps its constants. */
static void runs_fit(const Runs *r, Constants k[PROFILES], int without)
{
    for (int p = 0; p < PROFILES; p++) {
        k[p] = profiles[p].constants;
        if (p == HOPPER)
            k[p].attention = k[AMPERE].attention * HOPPER_ATTENTION;
        if (p > MEGATRON_HOPPER)
            k[p].fp8 = k[MEGATRON_HOPPER].fp8, k[p].routing = k[MEGATRON_HOPPER].routing;
        fit(r, p, k, without);
    }
}

/* ---- How good the predictions and the choices among these runs are ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Which runs: those of a group that count; or of all that count a kind, the last of which are of a profile, dense or
 * mixtures. */
enum { ALL = -1, EASY = -2, MIXTURES = -3, DENSE = -4, IN_FP8 = -5, PLANNED = -6, OF_PROFILE = -100 };
static bool in(const Run *x, int group)
{
    const bool mixture = x->query.model.experts > 0;

    if (!counts(x))
        return false;
    switch (group) {
    case ALL: return true;
    case EASY: return x->grid.pp == 1 && x->grid.tp <= 8;
    case MIXTURES: return mixture;
    case DENSE: return !mixture;
    case IN_FP8: return x->query.cluster.fp8 != NO_FP8;
    case PLANNED: return x->planned;
    default: return group == x->group || (group == OF_PROFILE + 2 * x->profile + mixture && x->planned);
    }
}

/* Below which errors this fraction of them is; NAN: there is none. Sorts them. */
static double quantile(double *error, int n, double part)
{
    qsort(error, n, sizeof *error, ascending);
    if (!n)
        return NAN;
    return part == 0.5 ? 50 * (error[(n - 1) / 2] + error[n / 2]) : 100 * error[(int)(part * (n - 1) + 0.5)];
}

typedef enum { SIZE, SIGNED, MEMORY } Error;
static double error_of(const Run *x, Error which)
{
    const double e = which == MEMORY ? x->predicted_memory / x->memory - 1 : x->predicted / x->measured - 1;

    return which == SIGNED ? e : fabs(e);
}

static double error_quantile(const Runs *r, int group, int kind, Error which, double part, int *n)
{
    double error[r->count];

    *n = 0;
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (in(x, group) && in(x, kind) && isfinite(error_of(x, which)))
            error[(*n)++] = error_of(x, which);
    return quantile(error, *n, part);
}

/* Of each source's median error, for its runs of a kind: the median, or the worst (part 1). */
static double of_sources(const Runs *r, int kind, double part)
{
    double median[r->groups];
    int n, sources = 0;

    for (int g = 0; g < r->groups; g++) {
        median[sources] = error_quantile(r, g, kind, SIZE, 0.5, &n) / 100;
        sources += n > 0;
    }
    return quantile(median, sources, part);
}

enum { MANY = 8 };                  /* runs of a set whose ranks say something */

/* Of the runs of a group in a set: the rank correlation (Spearman's), and by how much the one that is predicted to be
 * fastest is slower than the fastest. False: they are too few. */
static bool judge(const Runs *r, int group, int set, double *correlation, double *regret)
{
    const Run *fastest = r->all, *chosen = r->all;
    double xx = 0, yy = 0, xy = 0;
    int n = 0;

    for (const Run *a = r->all; a < r->all + r->count; a++) {
        double x = 0, y = 0;            /* twice the ranks, less their mean: how many are smaller, less the larger */
        if (a->set != set || !in(a, group))
            continue;
        for (const Run *b = r->all; b < r->all + r->count; b++)
            if (b->set == set && in(b, group)) {
                x += (b->measured < a->measured) - (b->measured > a->measured);
                y += (b->predicted < a->predicted) - (b->predicted > a->predicted);
            }
        xx += x * x, yy += y * y, xy += x * y;
        fastest = !n || a->measured > fastest->measured ? a : fastest;
        chosen = !n || a->predicted > chosen->predicted ? a : chosen;
        n++;
    }
    *correlation = xx && yy ? xy / sqrt(xx * yy) : 1;
    *regret = 1 - chosen->measured / fastest->measured;
    return n >= MANY;
}

/* Errors of the runs of a group; and of its sets mean rank correlation and regret. */
static void print_errors(const Runs *r, int group, const char *name)
{
    double correlation, regret, correlations = 0, regrets = 0;
    int n, sets = 0;
    const double error = error_quantile(r, group, ALL, SIZE, 0.5, &n);
    const double bias = error_quantile(r, group, ALL, SIGNED, 0.5, &n);
    const int runs = n;

    if (!runs)
        return;
    const double memory = error_quantile(r, group, ALL, MEMORY, 0.5, &n);
    printf("%-40s %4d %13.1f%% %+7.1f%%", name, runs, error, bias);
    printf(n ? " %7.1f%%" : "        -", memory);
    for (int s = 0; s < r->sets && group >= ALL; s++)           /* not of a kind */
        if (judge(r, group, s, &correlation, &regret))
            correlations += correlation, regrets += 100 * regret, sets++;
    printf(sets ? " %9.2f %7.1f%% (%d)\n" : "         -        -\n", correlations / sets, regrets / sets, sets);
}

/* Runs that differ in fp8 only: how far the predicted gain of fp8 is from the published one. */
static void print_pairs(const Runs *r)
{
    double error[r->count];
    int n = 0;

    for (const Run *a = r->all; a < r->all + r->count; a++)
        for (const Run *b = r->all; b < r->all + r->count; b++)
            if (in(a, ALL) && in(b, IN_FP8) && !a->query.cluster.fp8 && !memcmp(&a->grid, &b->grid, sizeof a->grid)
                && !strcmp(a->query.model.name, b->query.model.name) && a->query.sequences == b->query.sequences
                && a->query.cluster.gpus == b->query.cluster.gpus && a->query.hardware.peak == b->query.hardware.peak
                && a->query.cluster.framework == b->query.cluster.framework)
                error[n++] = fabs(b->predicted / a->predicted / (b->measured / a->measured) - 1);
    if (n)
        printf("pairs of bf16 and fp8: %d; the gain is off by %.1f%% (median), %.1f%% at most\n", n,
               quantile(error, n, 0.5), quantile(error, n, 1));
}

static void runs_print(const Runs *r)
{
    static const struct {
        int group;
        const char *name;
    } kinds[] = {{ALL, "all that count"}, {DENSE, "dense models"}, {MIXTURES, "mixtures of experts"},
                 {IN_FP8, "in fp8"}, {EASY, "pp = 1 and tp <= 8"}, {PLANNED, "without stalls and slow rings"}};
    int n, shown = 0;

    printf("%-40s runs   median error   signed   memory  Spearman   regret (sets)\n",
           r->playbook ? "model, nodes" : "source");
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->group == shown)
            print_errors(r, shown++, x->name);
    printf("\n");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].group != PLANNED || r->playbook)
            print_errors(r, kinds[i].group, kinds[i].name);
    for (int kind = DENSE; kind <= MIXTURES; kind++)
        if (!isnan(of_sources(r, kind, 0.5)))
            printf("medians of the sources, %s: %.1f%%, the worst %.1f%%\n", kind == DENSE ? "dense" : "mixtures",
                   of_sources(r, kind, 0.5), of_sources(r, kind, 1));
    print_pairs(r);
    printf("\nby constants                             runs   median error   of nine in ten at most\n");
    for (int p = 0; p < 2 * PROFILES; p++) {
        const double error = error_quantile(r, OF_PROFILE + p, ALL, SIZE, 0.5, &n);
        if (n)
            printf("%-40s %4d %13.1f%% %23.1f%%\n", format_text("%s, %s", profiles[p / 2].name, p % 2 ? "mixtures"
                   : "dense"), n, error, error_quantile(r, OF_PROFILE + p, ALL, SIZE, 0.9, &n));
    }
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (!x->wrong && x->chunks > x->grid.chunks)
            printf("chunks unknown: %s, %s: %.4g, predicted %.4g to %.4g\n", x->name, x->query.model.name, x->measured,
                   x->slowest, x->predicted);
    for (const Run *x = r->all; x < r->all + r->count; x++)
        if (x->wrong)
            printf("not predicted: %s, %s: %s\n", x->name, x->query.model.name, x->wrong);
}

void compare_runs(const Question *q)
{
    Runs r = runs_read(q->runs);
    Constants k[PROFILES], others[PROFILES];

    if (q->fit && q->cross_validate)
        fail_usage("--fit and --cross-validate: expected one of them; --cross-validate fits once per group");
    for (int p = 0; p < PROFILES; p++)
        k[p] = profiles[p].constants;
    if (q->fit)
        runs_fit(&r, k, -1);
    runs_predict(&r, k, -1);
    for (int g = 0; q->cross_validate && g < r.groups; g++) {
        runs_fit(&r, others, g);
        runs_predict(&r, others, g);
    }
    if (q->predictions)
        runs_write(&r, q->predictions);
    runs_print(&r);
    if (q->cross_validate)
        printf("\n(each group predicted with constants fitted to the others)\n");
    else
        printf("\nconstants%s:\n", q->fit ? ", fitted to these runs" : "");
    for (int p = 0; p < PROFILES && !q->cross_validate; p++) {
        printf("  %-8s", profiles[p].name);
        for (int c = 0; c < CONSTANTS; c++)
            printf(" %s %.3g%s", constant_name[c], (&k[p].efficiency)[c], c < CONSTANTS - 1 ? "" : "\n");
    }
}
