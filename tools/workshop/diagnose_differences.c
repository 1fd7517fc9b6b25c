#include "diagnose_differences.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

const Layout *layout;
Piece *pieces;
int piece_count;
double *right, *found;
double tolerance = 1e-10;
bool by_norm;
int group_sizes[10];

/* Sizes of 01. */
static int64_t B, T, L, D;      /* sequences per micro-batch, tokens of each, layers, head size */
static int sequences;           /* of the global batch */

/* Adds the parameters with this label, in three pieces those of QKV, unless the table has q, k and v apart. */
static void add_pieces(const char *label)
{
    static const char *const suffix[] = {" (q)", " (k)", " (v)"};
    const size_t length = strlen(label);

    for (const ParamInfo *p = layout->table; p < layout->table + layout->parameters; p++) {
        const bool qkv = !strcmp(label, p->label) && strstr(label, "qkv");
        if (strncmp(label, p->label, length) || (p->label[length] && p->label[length] != ' '))
            continue;
        for (int w = qkv ? 0 : -1; w < (qkv ? 3 : 0); w++) {
            Piece *piece = &pieces[piece_count++];
            *piece = (Piece){.param = p, .which = w, .rows = qkv ? p->rows / 3 : p->rows, .cols = p->cols};
            snprintf(piece->name, sizeof piece->name, "%s%s", p->label, qkv ? suffix[w] : "");
        }
    }
}

static void list_pieces(void)
{
    static const char *const of_block[] = {"down_bias", "down_weight", "up_weight", "up_bias", "ln2_weight", "ln2_bias",
                                           "proj_bias", "proj_weight", "qkv_weight", "qkv_bias", "ln1_weight",
                                           "ln1_bias"};

    static const char *const of_expert[] = {"down_weight", "down_bias", "up_weight", "up_bias"};

    pieces = calloc(3 * layout->parameters, sizeof *pieces);
    add_pieces("head");
    add_pieces("final_weight");
    add_pieces("final_bias");
    for (int64_t l = L - 1; l >= 0; l--) {
        if (options.config.experts)
            add_pieces(format_text("blocks.%lld.router", (long long)l));
        for (int k = 0; k < 4 * options.config.experts; k++)
            add_pieces(format_text("blocks.%lld.experts.%d.%s", (long long)l, k / 4, of_expert[k % 4]));
        for (size_t k = 0; k < sizeof of_block / sizeof *of_block; k++)
            add_pieces(format_text("blocks.%lld.%s", (long long)l, of_block[k]));
    }
    add_pieces("embedding");
}

double at(const double *all, const Piece *p, int64_t row, int64_t col)
{
    const int64_t r = p->which < 0 ? row : row / D * 3 * D + p->which * D + row % D;

    return all[p->param->range.first + r * p->cols + col];
}

Box full_box(const Piece *p)
{
    return (Box){0, p->rows, 0, p->cols};
}

double largest_right(const Piece *p)
{
    double largest = 0;

    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++)
            largest = fmax(largest, fabs(at(right, p, i, j)));
    return largest;
}

double distance(const double *a, const double *b, const Piece *p, Box box)
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

bool alike(const double *a, const double *b, const Piece *p, Box box)
{
    return distance(a, b, p, box) <= match_tolerance();
}

/* ---- What diagnose.c compares ---- */

/* The groups of the program that are smaller than all ranks, by name and size: --groups dp=2,tp=4; or none. */
static struct {
    char name[32];
    int size;
} group[8];
static int groups;

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

void differences_begin(const Layout *of_01, const char *groups_of_run)
{
    const Config *c = &options.config;

    layout = of_01;
    B = options.micro_batch, T = c->seq, L = c->layers, D = c->hidden / c->heads;
    sequences = B * options.accumulate;
    right = malloc(layout->count * sizeof *right), found = malloc(layout->count * sizeof *found);
    read_groups(groups_of_run);
    list_pieces();
}

/* ---- Factors ---- */

/* Adds " (= NAME", or ", or NAME", if the factor is this number. */
static void name_number(char *text, size_t size, double factor, double number, const char *name, const char *more)
{
    if (number != 1 && fabs(factor / number - 1) < 1e-6 + tolerance / 10)      /* rounding mostly cancels in a factor */
        add_text(text, size, "%s%s%s", strstr(text, " (= ") ? ", or " : " (= ", name, more);
}

static bool dp_is_a_group(void)
{
    for (int i = 0; i < groups; i++)
        if (!strcmp(group[i].name, "dp"))
            return true;
    return data_ranks == ranks;
}

void name_factor(char *text, size_t size, double scale, bool common)
{
    const double x = fabs(scale) < 1 ? 1 / scale : scale;
    const char *wrong = x == scale ? "large" : "small";
    const int accumulate = options.accumulate / data_ranks;     /* of one rank */

    if (fabs(scale + 1) < 1e-5 + tolerance / 10) {
        snprintf(text, size, "of the wrong sign");
        return;
    }
    snprintf(text, size, fabs(x) < 1e4 ? "%.4g times too %s" : "%.0f times too %s", x, wrong);
    name_number(text, size, x, ranks, "the number of ranks", "");
    for (int i = 0; i < groups; i++)
        name_number(text, size, x, group[i].size, "the size of ", group[i].name);
    name_number(text, size, x, dp_is_a_group() ? 1 : data_ranks, "dp, the replicas with other sequences", "");
    name_number(text, size, x, accumulate, "accumulate", "");
    name_number(text, size, x, B, "micro_batch", "");
    name_number(text, size, x, T, "T", "");
    name_number(text, size, x, L, "layers", "");
    name_number(text, size, x, sqrt(D), "sqrt(D)", "");
    name_number(text, size, x, options.config.experts ? options.config.experts : 1, "experts", "");
    name_number(text, size, x, options.config.experts ? options.config.top_k : 1, "top-k", "");
    name_number(text, size, x, B * T, "the tokens of a micro-batch", "");
    for (int i = 0; i < groups; i++)
        name_number(text, size, x * x, group[i].size, "the square root of the size of ", group[i].name);
    name_number(text, size, x * x, groups ? 1 : ranks, "the square root of the number of ranks", "");
    name_number(text, size, x, by_norm ? 65536 : 1, "the loss scale", "");
    name_number(text, size, x, x == scale && !common ? 2 : 1, "added twice", "");
    name_number(text, size, x, ranks > 1 ? ranks * accumulate : 1, "the number of ranks x accumulate", "");
    name_number(text, size, x, ranks * ranks, "the number of ranks, squared", "");
    name_number(text, size, x, accumulate * accumulate, "accumulate, squared", "");
    for (int i = 0; i < groups; i++)
        name_number(text, size, x, group[i].size * accumulate, "accumulate x the size of ", group[i].name);
    if (strstr(text, " (= "))
        add_text(text, size, ")");
}

/* ---- Sequences that contribute to a gradient ---- */

static double **by_sequence;      /* gradients of each sequence alone; NULL: not computed yet */

static double **contributions_of_sequences(void)
{
    static const Mistake none;
    double **contribution = calloc(sequences, sizeof *contribution);

    for (only_sequence = 0; only_sequence < sequences; only_sequence++) {
        contribution[only_sequence] = malloc(layout->count * sizeof **contribution);
        compute(&none, contribution[only_sequence]);
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
        const double weight = equal(w[i], 0) ? 0 : w[i];
        for (end = i + 1; end < count && equal(w[end], w[i]); end++)
            ;
        add_text(text, size, "%s%.4g for %d", i ? ", " : "", weight, i);
        if (end > i + 1)
            add_text(text, size, " to %d", end - 1);
    }
}

/* The index of the only weight that is 1, where all others are 0; -1: there is none. */
static int only_one(const double *w, int count)
{
    int one = -1;

    for (int i = 0; i < count; i++)
        if (equal(w[i], 1) && one < 0)
            one = i;
        else if (!equal(w[i], 0))
            return -1;
    return one;
}

/* Whether some contribute several times, in place of others that do not at all. */
static bool replaces(const double *w, int count)
{
    double sum = 0;
    bool zero = false;

    for (int i = 0; i < count; i++) {
        if (!equal(w[i], round(w[i])) || w[i] < -0.5)
            return false;
        sum += w[i], zero |= equal(w[i], 0);
    }
    return zero && equal(sum, count);
}

/* Describes the weights of the sequences: rank by rank, micro-batch by micro-batch, or one by one. */
static void name_sequences(char *text, size_t size, const double *w)
{
    const int of_rank = sequences / data_ranks, of_micro = B, micros = of_rank / of_micro;
    bool by_rank = data_ranks > 1, by_micro = micros > 1;
    const char *what = "sequence", *several = "sequences", *why = "";
    int count = sequences, stride = 1;
    double each[64];
    char list[512];

    for (int i = 0; i < sequences; i++) {
        by_rank &= equal(w[i], w[i / of_rank * of_rank]);
        by_micro &= equal(w[i], w[i % of_rank / of_micro * of_micro]);
    }
    if (by_rank)
        what = "rank", several = "ranks", count = data_ranks, stride = of_rank;
    else if (by_micro)
        what = "micro-batch", several = "micro-batches", count = micros, stride = of_micro;
    for (int i = 0; i < count; i++)
        each[i] = w[i * stride];
    const int only = only_one(each, count);
    if (only < 0) {
        list_weights(list, sizeof list, each, count);
        if (by_rank)
            why = "; some ranks compute what others compute, too";
        else if (by_micro)
            why = "; some stand in for others: does the batch load them twice, or are there too few buffers for what "
                  "is in flight?";
        else
            why = "; the batch has some twice, in place of others (batch_load)";
        snprintf(text, size, "%s contribute to the global batch with different weights instead of 1 each: %s%s",
                 several, list, replaces(each, count) ? why : "");
        return;
    }
    if (by_rank)
        why = ": the all-reduce or reduce-scatter over the ranks is missing";
    else if (by_micro && only == count - 1)
        why = ": earlier micro-batches were overwritten or zeroed";
    snprintf(text, size, "only the contribution of %s %d (of 0 to %d)%s", what, only, count - 1, why);
}

/* ---- One tensor ---- */

bool fits(const Piece *p, Box box, double scale)
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
                add_text(text, size, " (shard of rank %d of %d)", r, *n);
        }
}

const char unexplained[] = "wrong";

/* The smallest rectangle that has all wrong elements. */
static Box wrong_box(const Piece *p)
{
    const double most = match_tolerance() * largest_right(p);
    int64_t top = p->rows, bottom = -1, left = p->cols, end = -1;

    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++)
            if (fabs(at(found, p, i, j) - at(right, p, i, j)) > most) {
                top = i < top ? i : top, bottom = i > bottom ? i : bottom;
                left = j < left ? j : left, end = j > end ? j : end;
            }
    return (Box){top, bottom - top + 1, left, end - left + 1};
}

/* Whether an expert's gradient is the sum over consecutive experts, one of each rank of a group of this size, as an
 * all-reduce over ranks that hold different experts gives. */
static bool is_sum_of_experts(const Piece *p, int group_size)
{
    int layer, expert, start;
    const int64_t count = p->rows * p->cols;
    double error = 0, square = 0;

    if (sscanf(p->name, "blocks.%d.experts.%d.%n", &layer, &expert, &start) != 2)
        return false;
    const int first = expert / group_size * group_size;
    double *sum = calloc(count, sizeof *sum);
    for (int e = first; e < first + group_size; e++) {
        const char *name = format_text("blocks.%d.experts.%d.%s", layer, e, p->name + start);
        for (const Piece *q = pieces; q < pieces + piece_count; q++)
            for (int64_t i = 0; i < count && !strcmp(q->name, name); i++)
                sum[i] += right[q->param->range.first + i];
    }
    for (int64_t i = 0; i < count; i++) {
        const double x = found[p->param->range.first + i];
        error += (x - sum[i]) * (x - sum[i]), square += x * x;
    }
    free(sum);
    return error <= pow(match_tolerance(), 2) * square;
}

void explain_piece(char *text, size_t size, const Piece *p)
{
    char where[128] = "", what[512];

    if (explain_box(text, size, p, full_box(p)))
        return;
    for (const int *n = group_sizes; *n; n++)
        if (*n > 1 && options.config.experts % *n == 0 && is_sum_of_experts(p, *n)) {
            snprintf(text, size, "the sum of the gradients of %d experts: it was added up over ranks that hold "
                     "different experts", *n);
            return;
        }
    const Box box = wrong_box(p);
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
