/* Explains a wrong gradient by comparing its elements with those of 01: zero, too large by a factor, or computed from
 * some of the sequences or tokens; everywhere or in a rectangle. For diagnose.c; includes mistakes.h.
 */
#ifndef DIFFERENCES_H
#define DIFFERENCES_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mistakes.h"

/* ---- Tensors (q, k and v of QKV separately) in the order in which backward completes them ---- */

typedef struct {
    char name[64];              /* "blocks.2.qkv_weight (k)" */
    const ParamInfo *param;
    int which;                  /* 0, 1, 2: q, k, v; -1: the full tensor */
    int64_t rows, cols;
} Piece;

static Piece *pieces;
static int piece_count;
static double *right, *found;   /* gradients of 01 and of the program, in the order of the layout */
static double tolerance;
static bool by_norm;

static void list_pieces(void)
{
    static const char *const order[] = {"final_weight", "final_bias", "down_bias", "down_weight", "up_weight",
                                        "up_bias", "ln2_weight", "ln2_bias", "proj_bias", "proj_weight", "qkv_weight",
                                        "qkv_bias", "ln1_weight", "ln1_bias", "embedding"};
    const int kinds = sizeof order / sizeof *order;

    pieces = calloc(3 * layout.parameters, sizeof *pieces);
    for (int64_t l = L; l >= -1; l--)                   /* L: before all blocks, -1: after them */
        for (int k = l == L ? 0 : l < 0 ? kinds - 1 : 2; k < (l == L ? 2 : l < 0 ? kinds : kinds - 1); k++)
            for (int i = 0; i < layout.parameters; i++) {
                const ParamInfo *p = &layout.table[i];
                char label[64];
                snprintf(label, sizeof label, l == L || l < 0 ? "%s" : "blocks.%2$lld.%1$s", order[k], (long long)l);
                if (strcmp(label, p->label))
                    continue;
                const bool qkv = strstr(label, "qkv");
                for (int w = qkv ? 0 : -1; w < (qkv ? 3 : 0); w++) {
                    Piece *q = &pieces[piece_count++];
                    *q = (Piece){.param = p, .which = w, .rows = qkv ? p->rows / 3 : p->rows, .cols = p->cols};
                    snprintf(q->name, sizeof q->name, "%s%s", label, qkv ? (const char *[]){" (q)", " (k)", " (v)"}[w]
                             : "");
                }
            }
}

static double at(const double *all, const Piece *p, int64_t row, int64_t col)
{
    const int64_t r = p->which < 0 ? row : row / D * 3 * D + p->which * D + row % D;

    return all[p->param->range.first + r * p->cols + col];
}

typedef struct {
    int64_t row, rows, col, cols;
} Box;

static Box full_box(const Piece *p)
{
    return (Box){0, p->rows, 0, p->cols};
}

/* max |a - b| / max |b|, or with by_norm |a - b| / |b| in the Euclidean norm; Inf if a has a NaN or Inf. */
static double distance(const double *a, const double *b, const Piece *p, Box box)
{
    double error = 0, largest = 0, squares = 0, square = 0;

    for (int64_t i = box.row; i < box.row + box.rows; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++) {
            const double x = at(a, p, i, j), y = at(b, p, i, j);
            if (!isfinite(x))
                return INFINITY;
            error = fmax(error, fabs(x - y)), largest = fmax(largest, fabs(y));
            squares += (x - y) * (x - y), square += y * y;
        }
    return error == 0 ? 0 : by_norm ? sqrt(squares / square) : error / largest;
}

/* Largest difference from an explanation. In float64 more than `tolerance`: a mistake adds rounding of its own. */
static double match_tolerance(void)
{
    return by_norm ? tolerance : 100 * tolerance;
}

static bool alike(const double *a, const double *b, const Piece *p, Box box)
{
    return distance(a, b, p, box) <= match_tolerance();
}

/* ---- Explaining one piece ---- */

/* The groups of the program that are smaller than all ranks, by name and size: --groups dp=2,tp=4; or none. */
static struct {
    char name[32];
    int size;
} group[8];
static int groups;
static int group_sizes[10];     /* of those in which a mistake may have been made: all ranks first, each once, then 0 */

static void read_groups(const char *list)
{
    group_sizes[0] = ranks;
    for (int length; groups < 8 && sscanf(list, "%31[^=]=%d%n", group[groups].name, &group[groups].size, &length) == 2;
         list += length + (list[length] == ',')) {
        const int size = group[groups].size;
        bool known = size < 2 || size == ranks;
        int i = 0;
        for (int k = 0; k < groups; k++)
            known |= !strcmp(group[k].name, group[groups].name) && group[k].size == size;
        if (!strcmp(group[groups].name, "cp") && !known)
            cp_ranks = size;
        while (group_sizes[i] && group_sizes[i] != size && !known)
            i++;
        group_sizes[i] = known ? group_sizes[i] : size;
        groups += !known;
    }
}

/* Adds " (= NAME", or ", or NAME", if the factor is this number. */
static void name_number(char *text, size_t size, double factor, double number, const char *name, const char *more)
{
    const size_t at = strlen(text);

    if (number != 1 && fabs(factor / number - 1) < 1e-6 + tolerance)
        snprintf(text + at, size - at, "%s%s%s", strstr(text, " (= ") ? ", or " : " (= ", name, more);
}

/* "5 times too large (= accumulate)", with every name that the factor may have. common: the loss has it as well. */
static void name_factor(char *text, size_t size, double scale, bool common)
{
    const double x = fabs(scale) < 1 ? 1 / scale : scale;
    const int accumulate = options.accumulate / data_ranks;     /* of one rank */

    if (fabs(scale + 1) < 1e-5 + tolerance) {
        snprintf(text, size, "of the wrong sign");
        return;
    }
    snprintf(text, size, fabs(x) < 1e4 ? "%.4g times too %s" : "%.0f times too %s", x, x == scale ? "large" : "small");
    name_number(text, size, x, ranks, "the number of ranks", "");
    for (int i = 0; i < groups; i++)
        name_number(text, size, x, group[i].size, "the size of ", group[i].name);
    bool dp_is_a_group = data_ranks == ranks;
    for (int i = 0; i < groups; i++)
        dp_is_a_group |= !strcmp(group[i].name, "dp");
    name_number(text, size, x, dp_is_a_group ? 1 : data_ranks, "dp, the replicas with other sequences", "");
    name_number(text, size, x, accumulate, "accumulate", "");
    name_number(text, size, x, B, "micro_batch", "");
    name_number(text, size, x, T, "T", "");
    name_number(text, size, x, L, "layers", "");
    name_number(text, size, x, sqrt(D), "sqrt(D)", "");
    name_number(text, size, x, B * T, "the tokens of a micro-batch", "");
    name_number(text, size, x, by_norm ? 65536 : 1, "the loss scale", "");
    name_number(text, size, x, x == scale && !common ? 2 : 1, "added twice", "");
    name_number(text, size, x, ranks > 1 ? ranks * accumulate : 1, "the number of ranks x accumulate", "");
    for (int i = 0; i < groups; i++)
        name_number(text, size, x, group[i].size * accumulate, "accumulate x the size of ", group[i].name);
    if (strstr(text, " (= "))
        snprintf(text + strlen(text), size - strlen(text), ")");
}

static double **by_sequence;      /* gradients of each sequence alone; NULL: not computed yet */
static int sequences;
static Batch batch;

static double **contributions_of_sequences(void)
{
    static const Mistake none;
    double **contribution = calloc(sequences, sizeof *contribution);

    for (only_sequence = 0; only_sequence < sequences; only_sequence++) {
        contribution[only_sequence] = malloc(layout.count * sizeof **contribution);
        compute(&none, batch, contribution[only_sequence]);
    }
    only_sequence = -1;
    return contribution;
}

/* Whether the weighted sum of the sequences' gradients is what was found. */
static bool adds_up(const double *w, const Piece *p, Box box)
{
    double error = 0, square = 0;

    for (int64_t i = box.row; i < box.row + box.rows; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++) {
            double rest = at(found, p, i, j);
            square += rest * rest;
            for (int a = 0; a < sequences; a++)
                rest -= w[a] * at(by_sequence[a], p, i, j);
            error += rest * rest;
        }
    return error <= 1e-14 * square;
}

/* Solves m w = w, m symmetric and positive definite (LAPACK). */
void dposv_(const char *half, const int *n, const int *columns, double *m, const int *stride, double *w,
            const int *w_stride, int *info);

/* Finds the weights with which the sequences' gradients add up to what was found, by the normal equations. False: there
 * are none. A tensor with too few elements gets the weights that explained another tensor, if they fit. */
static bool weights_of(double *w, const Piece *p, Box box)
{
    static double known[64];
    double *m = calloc((size_t)sequences * sequences, sizeof *m);
    int info = 1;

    memcpy(w, known, sequences * sizeof *w);
    if (box.rows * box.cols >= 2 * sequences) {
        memset(w, 0, sequences * sizeof *w);
        for (int64_t i = box.row; i < box.row + box.rows; i++)
            for (int64_t j = box.col; j < box.col + box.cols; j++)
                for (int a = 0; a < sequences; a++) {
                    w[a] += at(by_sequence[a], p, i, j) * at(found, p, i, j);
                    for (int b = 0; b < sequences; b++)
                        m[a * sequences + b] += at(by_sequence[a], p, i, j) * at(by_sequence[b], p, i, j);
                }
        dposv_("L", &sequences, &(int){1}, m, &sequences, w, &sequences, &info);
    }
    free(m);
    if (info != 0)
        memcpy(w, known, sequences * sizeof *w);
    if (!adds_up(w, p, box))
        return false;
    memcpy(known, w, sequences * sizeof *w);
    return true;
}

static bool equal(double a, double b)
{
    return fabs(a - b) < 1e-5 * (1 + fabs(a));
}

/* "0 for 0 to 5, 1 for 6 to 11" */
static void list_weights(char *text, size_t size, const double *w, int count)
{
    text[0] = 0;
    for (int i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && equal(w[end], w[i]); end++)
            ;
        snprintf(text + strlen(text), size - strlen(text), i + 1 < end ? "%s%.4g for %d to %d" : "%s%.4g for %d",
                 i ? ", " : "", equal(w[i], 0) ? 0 : w[i], i, end - 1);
    }
}

/* Describes the weights of the sequences: rank by rank, micro-batch by micro-batch, or one by one. */
static void name_sequences(char *text, size_t size, const double *w)
{
    const int of_rank = sequences / data_ranks, of_micro = B, micros = of_rank / of_micro;
    bool by_rank = data_ranks > 1, by_micro = micros > 1;
    char list[512];

    for (int i = 0; i < sequences; i++) {
        by_rank &= equal(w[i], w[i / of_rank * of_rank]);
        by_micro &= equal(w[i], w[i % of_rank / of_micro * of_micro]);
    }
    double each[64];
    const int count = by_rank ? data_ranks : by_micro ? micros : sequences;
    const int stride = by_rank ? of_rank : by_micro ? of_micro : 1;
    int last = -1, there = 0;
    for (int i = 0; i < count && i < 64; i++) {
        each[i] = w[i * stride];
        if (!equal(each[i], 0))
            last = i, there++;
    }
    const char *what = by_rank ? "rank" : by_micro ? "micro-batch" : "sequence";
    if (there == 1 && equal(each[last], 1)) {
        snprintf(text, size, "only the contribution of %s %d (of 0 to %d)%s", what, last, count - 1,
                 by_rank ? ": the all-reduce or reduce-scatter over the ranks is missing"
                 : by_micro && last == count - 1 ? ": earlier micro-batches were overwritten or zeroed" : "");
        return;
    }
    list_weights(list, sizeof list, each, count < 64 ? count : 64);
    snprintf(text, size, "%s%s contribute to the global batch with different weights instead of 1 each: %s", what,
             by_micro && !by_rank ? "es" : "s", list);
}

/* Whether the right gradient times scale is what was found. */
static bool fits(const Piece *p, Box box, double scale)
{
    double rest = 0, square = 0;

    for (int64_t i = box.row; i < box.row + box.rows; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++) {
            const double x = at(found, p, i, j), y = at(right, p, i, j);
            rest += pow(x - scale * y, 2), square += x * x;
        }
    return rest <= pow(match_tolerance(), 2) * square;
}

/* Describes how a rectangle of a piece differs from the right one; false: no explanation found. */
static bool explain_box(char *text, size_t size, const Piece *p, Box box)
{
    double scale = 0, square = 0, total = 0, w[64];
    int64_t wrong = 0;

    for (int64_t i = box.row; i < box.row + box.rows; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++) {
            const double x = at(found, p, i, j), y = at(right, p, i, j);
            wrong += !isfinite(x);
            scale += x * y, square += y * y, total += x * x;
        }
    if (wrong) {
        snprintf(text, size, wrong == box.rows * box.cols ? "NaN or Inf throughout" : "NaN or Inf in some elements");
        return true;
    }
    if (total == 0) {
        snprintf(text, size, "zero");
        return true;
    }
    scale /= square;
    if (box.rows * box.cols > 1 && fits(p, box, scale)) {
        name_factor(text, size, scale, false);
        return true;
    }
    if (by_norm || sequences > 64)
        return false;
    if (!by_sequence)
        by_sequence = contributions_of_sequences();
    if (sequences > 1 && weights_of(w, p, box)) {
        name_sequences(text, size, w);
        return true;
    }
    return false;
}

/* "rows 0 to 23 (shard of rank 0 of 4)" */
static void name_range(char *text, size_t size, const char *what, int64_t first, int64_t count, int64_t of)
{
    snprintf(text, size, "%s %lld to %lld", what, (long long)first, (long long)(first + count - 1));
    for (const int *n = group_sizes; *n; n++)
        for (int r = 0; r < *n && *n > 1; r++) {
            const Range shard = range_split(of, r, *n);
            if (shard.first == first && shard.count == count)
                snprintf(text + strlen(text), size - strlen(text), " (shard of rank %d of %d)", r, *n);
        }
}

static const char unexplained[] = "wrong";

static void explain_piece(char *text, size_t size, const Piece *p)
{
    int64_t top = p->rows, bottom = -1, left = p->cols, end = -1;
    double largest = 0;
    char where[128] = "", what[512];

    if (explain_box(text, size, p, full_box(p)))
        return;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++)
            largest = fmax(largest, fabs(at(right, p, i, j)));
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++)
            if (fabs(at(found, p, i, j) - at(right, p, i, j)) > match_tolerance() * largest) {
                top = i < top ? i : top, bottom = i > bottom ? i : bottom;
                left = j < left ? j : left, end = j > end ? j : end;
            }
    const Box box = {top, bottom - top + 1, left, end - left + 1};
    if (box.rows < p->rows && !by_norm)
        name_range(where, sizeof where, "rows", box.row, box.rows, p->rows);
    else if (box.cols < p->cols && !by_norm)
        name_range(where, sizeof where, "columns", box.col, box.cols, p->cols);
    if (where[0] && explain_box(what, sizeof what, p, box))
        snprintf(text, size, "in %s only: %s", where, what);
    else if (where[0] && 4 * box.rows * box.cols <= 3 * p->rows * p->cols)
        snprintf(text, size, "wrong in %s only", where);
    else if (by_norm)
        snprintf(text, size, "differs by %.2g of its norm", distance(found, right, p, full_box(p)));
    else
        snprintf(text, size, "%s", unexplained);
}

#endif
