/* What is wrong with a program's gradients. Computes 01's of the same step and the same global batch, in float64, and
 * compares; where they differ, looks for what explains the numbers to eight digits (a mistake adds rounding of its own
 * to that of a right program, which agrees to ten):
 *
 *   1. well-known mistakes: 01 computes once more with the mistake made on purpose, and all tensors must agree with it;
 *   2. a whole tensor, or the rectangle of it that is wrong: zero, so many times too large, transposed, or made from
 *      some of the sequences or tokens only.
 *
 * "make verify" (verify.c) starts it with the gradients that a program dumped, and prints what it says. Status 0: the
 * gradients are right; 2: they are not.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/safetensors.h"
#include "mistakes.h"

/* ---- Tensors, of QKV's q, k and v apart, in the order in which backward completes them ---- */

typedef struct {
    char name[64];              /* "blocks.2.qkv_weight (k)" */
    const ParamInfo *param;
    int which;                  /* of q, k, v; -1: the whole tensor */
    int64_t rows, cols;
} Piece;

static Piece *pieces;
static int piece_count;
static double *right, *found;   /* 01's gradients and the program's, by the layout */
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

static Box whole_of(const Piece *p)
{
    return (Box){0, p->rows, 0, p->cols};
}

/* max |a - b| / max |b|, or the same in the Euclidean norm. */
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

/* How far off an explanation may be: in float64 more than what is right, as a mistake adds rounding of its own. */
static double room(void)
{
    return by_norm ? tolerance : 100 * tolerance;
}

static bool alike(const double *a, const double *b, const Piece *p, Box box)
{
    return distance(a, b, p, box) <= room();
}

/* ---- What the numbers of one piece tell ---- */

/* The program's groups that are not all ranks, by name and size: --groups dp=2,tp=4; or none. */
static struct {
    char name[32];
    int size;
} group[8];
static int groups;

static void read_groups(const char *list)
{
    for (int length; groups < 8 && sscanf(list, "%31[^=]=%d%n", group[groups].name, &group[groups].size, &length) == 2;
         list += length + (list[length] == ',')) {
        bool known = group[groups].size < 2 || group[groups].size == ranks;
        for (int i = 0; i < groups; i++)
            known |= !strcmp(group[i].name, group[groups].name) && group[i].size == group[groups].size;
        if (!strcmp(group[groups].name, "cp") && !known)
            cp_ranks = group[groups].size;
        groups += !known;
    }
}

/* A mistake may be one of all ranks or of a group: the sizes, each once, ended by 0. */
static const int *sizes_of_groups(void)
{
    static int size[10];
    int count = 1;

    size[0] = ranks;
    for (int i = 0; i < groups; i++) {
        bool known = false;
        for (int k = 0; k < count; k++)
            known |= size[k] == group[i].size;
        if (!known)
            size[count++] = group[i].size;
    }
    size[count] = 0;
    return size;
}

/* Adds " (= NAME", or ", or NAME", if the factor is this number. */
static void name_number(char *text, size_t size, double factor, double number, const char *name, const char *more)
{
    const size_t at = strlen(text);

    if (number != 1 && fabs(factor / number - 1) < 1e-6 + tolerance)
        snprintf(text + at, size - at, "%s%s%s", strstr(text, " (= ") ? ", or " : " (= ", name, more);
}

/* "5 times too large (= accumulate)": all that a factor may be. common: of the loss and all gradients. */
static void name_factor(char *text, size_t size, double scale, bool common)
{
    const double x = fabs(scale) < 1 ? 1 / scale : scale;
    const int accumulate = options.accumulate / data_ranks;     /* one rank's */

    if (fabs(scale + 1) < 1e-5 + tolerance) {
        snprintf(text, size, "of the wrong sign");
        return;
    }
    snprintf(text, size, fabs(x) < 1e4 ? "%.4g times too %s" : "%.0f times too %s", x, x == scale ? "large" : "small");
    name_number(text, size, x, ranks, "the number of ranks", "");
    for (int i = 0; i < groups; i++)
        name_number(text, size, x, group[i].size, "the size of ", group[i].name);
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

static double **sequence_share, **token_share;  /* each one's gradients alone; NULL: not computed yet */
static int sequences;
static Batch batch;

static double **shares_of(int count, int64_t *only)
{
    static const Mistake none;
    double **share = calloc(count, sizeof *share);

    for (int i = 0; i < count; i++) {
        *only = i;
        share[i] = malloc(layout.count * sizeof **share);
        compute(&none, batch, share[i]);
    }
    *only = -1;
    return share;
}

/* Whether the shares, so weighted, add up to what was found. */
static bool adds_up(const double *w, double **share, int count, const Piece *p, Box box)
{
    double error = 0, square = 0;

    for (int64_t i = box.row; i < box.row + box.rows; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++) {
            double rest = at(found, p, i, j);
            square += rest * rest;
            for (int a = 0; a < count; a++)
                rest -= w[a] * at(share[a], p, i, j);
            error += rest * rest;
        }
    return error <= 1e-14 * square;
}

/* Solves for the weights with which the shares add up to what was found, by the normal equations (Cholesky). False: no
 * weights do. A small tensor has too few numbers for it: there, weights that explained another one are tried. */
static bool weights_of(double *w, double **share, int count, const Piece *p, Box box)
{
    static double solution[8][64];
    static double **of[8];
    static int solutions;
    double *m = calloc((size_t)count * count, sizeof *m);
    bool solved = box.rows * box.cols >= 2 * count;

    for (int k = 0; k < solutions; k++)
        if (of[k] == share && adds_up(solution[k], share, count, p, box)) {
            memcpy(w, solution[k], count * sizeof *w);
            free(m);
            return true;
        }
    memset(w, 0, count * sizeof *w);
    for (int64_t i = box.row; i < box.row + box.rows && solved; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++)
            for (int a = 0; a < count; a++) {
                w[a] += at(share[a], p, i, j) * at(found, p, i, j);
                for (int b = 0; b <= a; b++)
                    m[a * count + b] += at(share[a], p, i, j) * at(share[b], p, i, j);
            }
    for (int a = 0; a < count && solved; a++)
        for (int b = 0; b <= a && solved; b++) {
            double sum = m[a * count + b];
            for (int k = 0; k < b; k++)
                sum -= m[a * count + k] * m[b * count + k];
            if (a == b)
                solved = sum > 1e-12 * m[a * count + a];
            m[a * count + b] = a == b ? sqrt(sum) : sum / m[b * count + b];
        }
    for (int a = 0; a < count && solved; a++) {
        for (int k = 0; k < a; k++)
            w[a] -= m[a * count + k] * w[k];
        w[a] /= m[a * count + a];
    }
    for (int a = count - 1; a >= 0 && solved; a--) {
        for (int k = a + 1; k < count; k++)
            w[a] -= m[k * count + a] * w[k];
        w[a] /= m[a * count + a];
    }
    free(m);
    solved = solved && adds_up(w, share, count, p, box);
    if (solved && solutions < 8) {
        memcpy(solution[solutions], w, count * sizeof *w);
        of[solutions++] = share;
    }
    return solved;
}

static bool equal(double a, double b)
{
    return fabs(a - b) < 1e-5 * (1 + fabs(a));
}

/* "0 of 0 to 5, 1 of 6 to 11" */
static void list_weights(char *text, size_t size, const double *w, int count)
{
    text[0] = 0;
    for (int i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && equal(w[end], w[i]); end++)
            ;
        snprintf(text + strlen(text), size - strlen(text), i + 1 < end ? "%s%.4g of %d to %d" : "%s%.4g of %d",
                 i ? ", " : "", equal(w[i], 0) ? 0 : w[i], i, end - 1);
    }
}

/* In words, whose sequences counted how often: rank by rank, micro-batch by micro-batch, or one by one. */
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
        snprintf(text, size, "only the share of %s %d (of 0 to %d)%s", what, last, count - 1,
                 by_rank ? ": a sum over the ranks is missing"
                 : by_micro && last == count - 1 ? ": those before it were overwritten, or zeroed" : "");
        return;
    }
    list_weights(list, sizeof list, each, count < 64 ? count : 64);
    snprintf(text, size, "%ss of the global batch counted differently, not once each: %s", what, list);
}

/* What one rectangle of a piece is instead of what it should be; false: no idea. */
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
    double rest = 0;
    for (int64_t i = box.row; i < box.row + box.rows; i++)
        for (int64_t j = box.col; j < box.col + box.cols; j++)
            rest += pow(at(found, p, i, j) - scale * at(right, p, i, j), 2);
    if (rest <= pow(room(), 2) * total && box.rows * box.cols > 1) {
        name_factor(text, size, scale, false);
        return true;
    }
    if (p->rows == p->cols && box.rows == p->rows && box.cols == p->cols) {
        rest = 0;
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++)
                rest += pow(at(found, p, i, j) - at(right, p, j, i), 2);
        if (rest <= pow(room(), 2) * total) {
            snprintf(text, size, "transposed");
            return true;
        }
    }
    if (by_norm || sequences > 64)
        return false;
    if (!sequence_share)
        sequence_share = shares_of(sequences, &only_sequence);
    if (sequences > 1 && weights_of(w, sequence_share, sequences, p, box)) {
        name_sequences(text, size, w);
        return true;
    }
    if (T > 64)
        return false;
    if (!token_share)
        token_share = shares_of(T, &only_token);
    if (weights_of(w, token_share, T, p, box)) {
        const int at_most = size - 64;
        char list[512];
        list_weights(list, sizeof list, w, T);
        snprintf(text, size, "the losses of a sequence's tokens counted differently: %.*s", at_most, list);
        return true;
    }
    return false;
}

/* "rows 0 to 23 (rank 0's of 4)" */
static void name_range(char *text, size_t size, const char *what, int64_t first, int64_t count, int64_t of)
{
    snprintf(text, size, "%s %lld to %lld", what, (long long)first, (long long)(first + count - 1));
    for (const int *n = sizes_of_groups(); *n; n++)
        for (int r = 0; r < *n && *n > 1; r++) {
            const Range part = range_part(of, r, *n);
            if (part.first == first && part.count == count)
                snprintf(text + strlen(text), size - strlen(text), " (rank %d's of %d)", r, *n);
        }
}

static const char unexplained[] = "wrong";

static void explain_piece(char *text, size_t size, const Piece *p)
{
    int64_t top = p->rows, bottom = -1, left = p->cols, end = -1;
    double largest = 0;
    char where[128] = "", what[512];

    if (explain_box(text, size, p, whole_of(p)))
        return;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++)
            largest = fmax(largest, fabs(at(right, p, i, j)));
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++)
            if (fabs(at(found, p, i, j) - at(right, p, i, j)) > room() * largest) {
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
        snprintf(text, size, "%.2g away, by its norm", distance(found, right, p, whole_of(p)));
    else
        snprintf(text, size, "%s", unexplained);
}

/* ---- The verdict ---- */

static bool is_right(const Piece *p)
{
    return distance(found, right, p, whole_of(p)) <= tolerance;
}

/* The block's number in a name; -1: it is of none. */
static int block_of(const char *name)
{
    return strncmp(name, "blocks.", 7) ? -1 : atoi(name + 7);
}

/* "blocks.*.down_bias" for blocks.3.down_bias */
static void family(char *text, size_t size, const char *name)
{
    const char *rest = block_of(name) < 0 ? NULL : strchr(name + 7, '.');

    snprintf(text, size, "%s%s", rest ? "blocks.*" : name, rest ? rest : "");
}

/* What is wrong with each tensor, those together of which the same is true. */
static void print_pieces(void)
{
    enum { MOST = 6, NAMES = 5 };
    char (*text)[720] = calloc(piece_count, sizeof *text);
    int printed = 0, rest = 0, more = 0;

    for (int pass = 0; pass < 2; pass++)                /* large ones first: they explain small ones */
        for (int i = 0; i < piece_count; i++)
            if (!is_right(&pieces[i]) && (pieces[i].cols > 1) == (pass == 0))
                explain_piece(text[i], sizeof text[i], &pieces[i]);
    for (int i = 0; i < piece_count; i++) {
        if (!text[i][0])
            continue;
        if (!strcmp(text[i], unexplained)) {
            rest++;
            continue;
        }
        if (printed == MOST) {
            more++;
            continue;
        }
        char names[NAMES * 64] = "", words[720];
        int same = 0, listed = 0, block = -1;
        bool several = false;                           /* blocks: or else which one it is tells something */
        memcpy(words, text[i], sizeof words);
        for (int k = i; k < piece_count; k++)
            if (!strcmp(text[k], words) && block_of(pieces[k].name) >= 0) {
                several |= block >= 0 && block_of(pieces[k].name) != block;
                block = block_of(pieces[k].name);
            }
        for (int k = i; k < piece_count; k++) {
            char f[64];
            if (strcmp(text[k], words))
                continue;
            if (several)
                family(f, sizeof f, pieces[k].name);
            else
                snprintf(f, sizeof f, "%s", pieces[k].name);
            if (!strstr(names, f) && listed++ < NAMES)
                snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", same ? ", " : "", f);
            text[k][0] = 0;
            same++;
        }
        if (same == 1)
            printf("%s: %s\n", pieces[i].name, words);
        else
            printf("%s%s (%d tensors): %s\n", names, listed > NAMES ? " and others" : "", same, words);
        printed++;
    }
    if (more)
        printf("and %d more, in ways of their own\n", more);
    if (rest && printed)
        printf("the other %d are wrong, in no way that has a name here\n", rest);
    free(text);
}

/* Whether all gradients are wrong by one factor, and the loss too: 0 if not. */
static double common_factor(void)
{
    double product = 0, square = 0;

    for (int64_t i = 0; i < layout.count; i++)
        product += found[i] * right[i], square += right[i] * right[i];
    const double scale = product / square;
    double *scaled = malloc(layout.count * sizeof *scaled);
    for (int64_t i = 0; i < layout.count; i++)
        scaled[i] = scale * right[i];
    bool same = scale != 0 && isfinite(scale);
    for (int k = 0; k < piece_count && same; k++)
        same = distance(found, scaled, &pieces[k], whole_of(&pieces[k])) <= room();
    free(scaled);
    return same ? scale : 0;
}

/* Whether all that is wrong is zero, and some of a tensor is right: what is dumped has holes. */
static bool has_holes(void)
{
    bool holes = false;

    for (const Piece *p = pieces; p < pieces + piece_count; p++) {
        double largest = 0;
        int64_t zeros = 0;
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++)
                largest = fmax(largest, fabs(at(right, p, i, j)));
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++) {
                const bool wrong = !(fabs(at(found, p, i, j) - at(right, p, i, j)) <= tolerance * largest);
                if (wrong && at(found, p, i, j) != 0)
                    return false;
                zeros += wrong;
            }
        holes |= zeros && zeros < p->rows * p->cols;
    }
    return holes && !by_norm;
}

/* Whether a mistake gives these gradients: all of them, the first wrong one only, or not even that. The loss tells most
 * of them apart, and is quick. */
typedef enum { NOT_THIS, BEGINS, EXPLAINS } Verdict;
static Verdict judge(const Mistake *m, double candidate_loss, bool loss_wrong, const Piece *first)
{
    if (isfinite(candidate_loss) && !by_norm && (in_forward(m) != loss_wrong
        || (loss_wrong && fabs(compute(m, batch, NULL) / candidate_loss - 1) > 1e-9)))
        return NOT_THIS;
    double *made = malloc(layout.count * sizeof *made);
    const double made_loss = compute(m, batch, made);
    bool same = !isfinite(candidate_loss) || fabs(made_loss / candidate_loss - 1) <= 1e-9;
    const bool begins = same && m->shares && alike(found, made, first, whole_of(first));

    for (int k = 0; k < piece_count && same; k++)
        same = alike(found, made, &pieces[k], whole_of(&pieces[k]));
    free(made);
    return same ? EXPLAINS : begins ? BEGINS : NOT_THIS;
}

/* The well-known mistake behind these gradients, in words; "" if there is none. One that only explains how it begins is
 * the second choice. Rounded numbers tell one mistake only, whose gradients are exactly 0. */
static Verdict find_mistake(char *text, size_t size, double candidate_loss, bool loss_wrong, const Piece *first)
{
    static const char *const ways[] = {"", ", in forward only", ", in backward only"};
    Verdict best = NOT_THIS;
    const int all = ranks;

    text[0] = 0;
    for (const int *n = sizes_of_groups(); *n && best != EXPLAINS; n++)
        for (unsigned i = 0; i < sizeof mistakes / sizeof *mistakes && best != EXPLAINS; i++)
            for (Way way = BOTH_WAYS; way <= IN_BACKWARD && best != EXPLAINS; way++) {
                Mistake m = mistakes[i];
                if (way != BOTH_WAYS && m.mask == CAUSAL)
                    continue;
                m.way = way;
                ranks = *n;
                const bool worth_it = possible(&m) && (!by_norm || m.empty);
                const Verdict v = worth_it ? judge(&m, candidate_loss, loss_wrong, first) : NOT_THIS;
                if (v <= best)
                    continue;
                best = v;
                snprintf(text, size, "%s%s", m.text, ways[way]);
                if (*n != all)
                    snprintf(text + strlen(text), size - strlen(text), " (ranks: the %d of a group)", *n);
            }
    ranks = all;
    return best;
}

/* What a wrong norm is the norm of, if n ranks share the work; NULL: no idea. */
static const char *name_norm(double norm, double total, int n)
{
    double parts = 0, slices = 0, uncut = 0, layers = 0;
    const Layout first = layout_create(options.config, (Shard){.slices = n, .embedding = true, .head = true});

    for (int u = 0; u < L + 2; u++) {
        const Range part = range_part(layout.units[u].count, 0, n);
        for (int64_t i = 0; i < layout.units[u].count; i++) {
            const double square = right[layout.units[u].first + i] * right[layout.units[u].first + i];
            parts += i < part.count ? square : 0;
            layers += u <= range_part(L, 0, n).count ? square : 0;
        }
    }
    for (int k = 0; k < layout.parameters; k++) {
        const ParamInfo *p = &layout.table[k], *s = &first.table[k];
        const bool whole = s->here_rows == p->rows && s->here_cols == p->cols;
        for (int64_t i = 0; i < p->range.count; i++) {
            const double square = right[p->range.first + i] * right[p->range.first + i];
            slices += i / p->cols < s->here_rows && i % p->cols < s->here_cols ? square : 0;
            uncut += whole ? square : 0;
        }
    }
    const struct {
        const char *text;
        double square;
    } known[] = {{"of the part of each unit that rank 0 updates", parts},
                 {"of rank 0's slice of each matrix", slices},
                 {"of rank 0's layers", layers},
                 {"with every rank's copy counted", n * total},
                 {"with the parameters that are not cut counted on every rank", total + (n - 1) * uncut}};
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (n > 1 && fabs(norm * norm / known[i].square - 1) < 1e-8)
            return known[i].text;
    return NULL;
}

/* The norm that a program printed, if its gradients are right. */
static bool check_norm(double norm)
{
    double total = 0;
    const char *what = NULL;

    for (int64_t i = 0; i < layout.count; i++)
        total += right[i] * right[i];
    if (fabs(norm / sqrt(total) - 1) <= (by_norm ? tolerance : 1e-9))
        return true;
    for (const int *n = sizes_of_groups(); *n && !what; n++)
        what = name_norm(norm, total, *n);
    printf("the gradients are right, but their norm is %.10g, and should be %.10g%s%s\n", norm, sqrt(total),
           what ? ": it is the norm " : "", what ? what : "");
    return false;
}

/* Of right ones, and of types of two bytes or one: how far rounding takes a tensor. */
static void print_farthest(void)
{
    const Piece *most = pieces;

    for (const Piece *p = pieces; p < pieces + piece_count; p++)
        if (distance(found, right, p, whole_of(p)) > distance(found, right, most, whole_of(most)))
            most = p;
    if (by_norm)
        printf("%s is %.2g away, by its norm, and no other farther\n", most->name,
               distance(found, right, most, whole_of(most)));
}

static void read_found(const char *file)
{
    Safetensors s;
    char *wrong = safetensors_open(&s, file);

    if (wrong)
        fail("%s", wrong);
    for (int k = 0; k < layout.parameters; k++) {
        const ParamInfo *p = &layout.table[k];
        const SafeTensor *t = safetensors_find(&s, p->name);
        if (!t)
            fail("%s has no %s", file, p->name);
        if ((wrong = safetensors_read(&s, t, 0, p->range.count, found + p->range.first, true)))
            fail("%s", wrong);
    }
    free(safetensors_close(&s, false));
}

/* A wrong loss: by which factor, if that has a name. */
static void print_loss(double loss, double right_loss)
{
    char words[256];

    name_factor(words, sizeof words, loss / right_loss, true);
    printf("the loss of this step is %.10g, and 01's %.10g: ", loss, right_loss);
    if (strstr(words, " (= "))
        printf("%s\n", words);
    else
        printf("forward is wrong, or the batch\n");
}

int main(int argc, char **argv)
{
    static const Mistake none;
    static const char *candidate = "", *group_list = "none";
    static double candidate_loss = NAN, candidate_norm = NAN;
    char words[512];
    int wrong = 0, first_wrong = -1;

    tolerance = 1e-10;
    batch = set_up("diagnose", "Says what is wrong with gradients that a program dumped.", argc, argv, (StageOption[]){
        {"candidate", OPTION_TEXT, &candidate, "what --dump-gradients wrote", "FILE"},
        {"candidate-loss", OPTION_DOUBLE, &candidate_loss, "that step's loss", "X", 0, 1e9},
        {"candidate-norm", OPTION_DOUBLE, &candidate_norm, "that step's norm", "X", 0, 1e30},
        {"ranks", OPTION_INT, &ranks, "that it was computed on", "N", 1, 1000},
        {"data-ranks", OPTION_INT, &data_ranks, "over which sequences were divided", "N", 1, 1000},
        {"groups", OPTION_TEXT, &group_list, "of these ranks, with their sizes: dp=2,tp=4, or none", "LIST"},
        {"tolerance", OPTION_DOUBLE, &tolerance, "how far a right one may be off", "X", 0, 1},
        {"by-norm", OPTION_FLAG, &by_norm, "measure that by Euclidean norms, not by the largest element"},
        {0}});
    read_groups(group_list);
    right = malloc(layout.count * sizeof *right), found = malloc(layout.count * sizeof *found);
    sequences = B * options.accumulate;
    list_pieces();
    read_found(candidate);
    const double right_loss = compute(&none, batch, right);
    for (int i = 0; i < piece_count; i++)
        if (!is_right(&pieces[i])) {
            first_wrong = wrong ? first_wrong : i;
            wrong++;
        }
    const bool loss_known = isfinite(candidate_loss);
    const bool loss_wrong = loss_known && fabs(candidate_loss / right_loss - 1) > (by_norm ? tolerance : 1e-9);
    if (!wrong) {
        if (loss_wrong)
            print_loss(candidate_loss, right_loss);
        const bool norm_right = !isfinite(candidate_norm) || check_norm(candidate_norm);
        if (loss_wrong || !norm_right)
            comm_exit(2);
        print_farthest();
        comm_exit(0);
    }
    const double scale = common_factor();
    const bool holes = !scale && has_holes();
    const Verdict known = scale || holes ? NOT_THIS : find_mistake(words, sizeof words, candidate_loss, loss_wrong,
                                                                   &pieces[first_wrong]);
    if (scale) {
        const bool loss_too = loss_known && fabs(candidate_loss / right_loss / scale - 1) <= 1e-9 + tolerance;
        name_factor(words, sizeof words, scale, true);
        printf(loss_too ? "the loss and every gradient are %s\n" : "every gradient is %s\n", words);
    } else if (known == EXPLAINS) {
        printf("the gradients are, to eight digits, what they would be as if %s\n", words);
    } else if (loss_wrong) {
        print_loss(candidate_loss, right_loss);
    }
    printf("%d of %d gradients are wrong%s; the first, in the order of backward, is %s\n", wrong, piece_count,
           loss_wrong && !scale && known != EXPLAINS ? ", as they must be then" : "", pieces[first_wrong].name);
    if (known == BEGINS)
        printf("it is, to eight digits, what it would be as if %s\n", words);
    if (holes)
        printf("wherever one is wrong it is zero, in parts of tensors: a rank has not computed its part, or does not "
               "own what it updates (Shard.replica), which then is not dumped, saved or counted in the norm\n");
    else if (!scale && known != EXPLAINS)
        print_pieces();
    comm_exit(2);
}
