#include "runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "machines.h"

static const double GiB = 1073741824;

/* ---- The file ---- */

enum { MAX_STAGES = 4096 };
enum { MODEL, NODES, MICRO_BATCH, ACCUMULATE, DP, PP, TP, ZERO, TOKENS, MEMORY, COLUMNS };
static const char *const column_name[COLUMNS] = {
    "model", "nodes", "micro_batch", "accumulate", "dp", "pp", "tp", "zero", "tokens_per_second_per_gpu", "memory"};

/* The i-th field of a line, until the next comma. */
static const char *field(const char *line, int i, int *length)
{
    for (; i > 0 && *line; line++)
        i -= *line == ',';
    *length = strcspn(line, ",");
    return line;
}

static double number(const char *file, int row, const char *line, int at, int column, double least)
{
    int length;
    const char *text = field(line, at, &length);
    char *end;
    const double x = strtod(text, &end);

    if (!length || end != text + length || !(x >= least) || !isfinite(x) || (column < TOKENS && x != floor(x)))
        fail("%s, line %d: %s: expected %s of at least %g, got '%.*s'", file, row, column_name[column],
             column < TOKENS ? "an integer" : "a number", least, length, text);
    return x;
}

static Run run_of(const char *file, int row, const char *line, const int *at)
{
    Run r = {.line = strdup(line)};
    int length;
    const char *text = field(line, at[MODEL], &length);
    char name[32];

    snprintf(name, sizeof name, "%.*s", length, text);
    if (!model_find(&r.model, name))
        fail("%s, line %d: model: expected one of %s, got '%s'", file, row, model_names(), name);
    r.cluster = (Cluster){.gpus = 8 * number(file, row, line, at[NODES], NODES, 1), .per_node = 8, .published = true,
                          .stored = 2, .gradients = 6, .loss_rows = 2048};
    r.grid = (Grid){.micro_batch = number(file, row, line, at[MICRO_BATCH], MICRO_BATCH, 1),
                    .accumulate = number(file, row, line, at[ACCUMULATE], ACCUMULATE, 1),
                    .dp = number(file, row, line, at[DP], DP, 1), .pp = number(file, row, line, at[PP], PP, 1),
                    .tp = number(file, row, line, at[TP], TP, 1), .cp = 1, .ep = 1,
                    .zero = number(file, row, line, at[ZERO], ZERO, 0)};
    if ((double)r.grid.dp * r.grid.pp * r.grid.tp != r.cluster.gpus)
        fail("%s, line %d: dp %d x pp %d x tp %d: expected %d ranks, 8 per node, got %.0f", file, row, r.grid.dp,
             r.grid.pp, r.grid.tp, r.cluster.gpus, (double)r.grid.dp * r.grid.pp * r.grid.tp);
    if (r.grid.zero > 3 || r.grid.pp > MAX_STAGES)
        fail("%s, line %d: zero %d, pp %d: expected zero from 0 to 3, pp from 1 to %d", file, row, r.grid.zero,
             r.grid.pp, MAX_STAGES);
    r.measured = number(file, row, line, at[TOKENS], TOKENS, 0);
    r.memory = GiB * number(file, row, line, at[MEMORY], MEMORY, 0);
    return r;
}

Runs runs_read(const char *file)
{
    FILE *f = fopen(file, "r");
    Runs r = {0};
    char *line = NULL;
    size_t size = 0;
    int row = 0, at[COLUMNS];

    if (!f)
        fail("--runs %s: %s", file, strerror(errno));
    while (getline(&line, &size, f) >= 0) {
        row++;
        line[strcspn(line, "\r\n")] = 0;
        if (!line[0] || line[0] == '#')
            continue;
        if (!r.header) {
            r.header = strdup(line);
            for (int c = 0; c < COLUMNS; c++) {
                int length;
                const char *text;
                for (at[c] = 0; *(text = field(line, at[c], &length)); at[c]++)
                    if (length == (int)strlen(column_name[c]) && !strncmp(text, column_name[c], length))
                        break;
                if (!*text)
                    fail("%s, line %d: expected a column %s, got '%s'", file, row, column_name[c], line);
            }
            continue;
        }
        r.all = realloc(r.all, (r.count + 1) * sizeof *r.all);
        if (!r.all)
            fail("no memory for %d runs", r.count + 1);
        r.all[r.count] = run_of(file, row, line, at);
        r.all[r.count].group = r.groups;
        for (int i = 0; i < r.count; i++)
            if (!strcmp(r.all[i].model.name, r.all[r.count].model.name)
                && r.all[i].cluster.gpus == r.all[r.count].cluster.gpus)
                r.all[r.count].group = r.all[i].group;
        r.groups += r.all[r.count].group == r.groups;
        r.count++;
    }
    if (ferror(f))
        fail("--runs %s: %s", file, strerror(errno));
    fclose(f);
    free(line);
    if (!r.count)
        fail("--runs %s: expected a line of column names, then a line per run; got none", file);
    return r;
}

void runs_write(const Runs *r, const char *file)
{
    FILE *f = fopen(file, "w");

    if (!f)
        fail("--predictions %s: %s", file, strerror(errno));
    fprintf(f, "%s,predicted_tokens_per_second_per_gpu,predicted_memory\n", r->header);
    for (int i = 0; i < r->count; i++)
        fprintf(f, "%s,%.6g,%.4g\n", r->all[i].line, r->all[i].predicted, r->all[i].predicted_memory / GiB);
    if (ferror(f) | fclose(f))
        fail("--predictions %s: %s", file, strerror(errno));
}

/* ---- Predictions, and the fit of the constants ---- */

static double predicted(const Run *r, const Hardware *h, const Constants *k)
{
    return grid_tokens(&r->model, &r->grid) / grid_time(&r->model, &r->grid, &r->cluster, h, k, NULL).total
           / r->cluster.gpus;
}

void runs_predict(Runs *r, const Hardware *h, const Constants *k, int group)
{
    for (int i = 0; i < r->count; i++) {
        Run *one = &r->all[i];
        if (group < 0 || one->group == group)
            one->predicted = predicted(one, h, k);
        one->predicted_memory = grid_memory(&one->model, &one->grid, &one->cluster).total;
    }
}

static const double MAX_LOSS = 0.25;    /* per run */

typedef struct {                        /* a corner of the simplex: logarithms of the constants, and their loss */
    double x[CONSTANTS], loss;
} Point;

static Constants constants_of(const Point *p)
{
    double value[CONSTANTS];
    Constants k;

    for (int c = 0; c < CONSTANTS; c++)
        value[c] = exp(p->x[c]);
    memcpy(&k, value, sizeof k);
    return k;
}

static void compute_loss(Point *p, const Runs *r, const Hardware *h, int without)
{
    const Constants k = constants_of(p);
    double sum = 0;
    int counted = 0;

    for (int i = 0; i < r->count; i++)
        if (r->all[i].group != without) {
            sum += fmin(MAX_LOSS, fabs(log(predicted(&r->all[i], h, &k) / r->all[i].measured)));
            counted++;
        }
    p->loss = sum / counted;
}

static int by_loss(const void *a, const void *b)
{
    const double x = ((const Point *)a)->loss, y = ((const Point *)b)->loss;

    return (x > y) - (x < y);
}

/* The worst point (points[CONSTANTS]) reflected at the center of the others, `factor` times as far from it. */
static Point reflect(const Point *points, double factor, const Runs *r, const Hardware *h, int without)
{
    Point p;

    for (int c = 0; c < CONSTANTS; c++) {
        double center = 0;
        for (int i = 0; i < CONSTANTS; i++)
            center += points[i].x[c] / CONSTANTS;
        p.x[c] = center + factor * (center - points[CONSTANTS].x[c]);
    }
    compute_loss(&p, r, h, without);
    return p;
}

Constants runs_fit(const Runs *r, const Hardware *h, int without)
{
    const Constants start = {0.5, 5e-3, 3e-4, 5e-5, 0.1, 1};
    enum { ROUNDS = 200, RESTARTS = 2 };
    Point points[CONSTANTS + 1], *const best = &points[0], *const worst = &points[CONSTANTS];
    double value[CONSTANTS];

    memcpy(value, &start, sizeof value);
    for (int c = 0; c < CONSTANTS; c++)
        best->x[c] = log(value[c]);
    for (int restart = 0; restart < RESTARTS; restart++) {
        for (int i = 0; i <= CONSTANTS; i++) {          /* a simplex: the best, and one step from it along each axis */
            points[i] = *best;
            if (i)
                points[i].x[i - 1] += restart ? -0.15 : 0.3;
            compute_loss(&points[i], r, h, without);
        }
        for (int round = 0; round < ROUNDS; round++) {
            qsort(points, CONSTANTS + 1, sizeof *points, by_loss);
            Point p = reflect(points, 1, r, h, without);
            if (p.loss < best->loss) {
                const Point expanded = reflect(points, 2, r, h, without);
                *worst = expanded.loss < p.loss ? expanded : p;
                continue;
            }
            if (p.loss < points[CONSTANTS - 1].loss) {
                *worst = p;
                continue;
            }
            const double bound = fmin(p.loss, worst->loss);
            p = reflect(points, p.loss < worst->loss ? 0.5 : -0.5, r, h, without);      /* contract */
            if (p.loss < bound) {
                *worst = p;
                continue;
            }
            for (int i = 1; i <= CONSTANTS; i++) {      /* shrink: all halfway to the best */
                for (int c = 0; c < CONSTANTS; c++)
                    points[i].x[c] = (points[i].x[c] + best->x[c]) / 2;
                compute_loss(&points[i], r, h, without);
            }
        }
        qsort(points, CONSTANTS + 1, sizeof *points, by_loss);
    }
    return constants_of(best);
}
