/* Explains what is wrong with the gradients of a program. Computes those of 01 for the same step and global batch, in
 * float64, and compares. Where they differ, looks for an explanation that matches to eight digits (a correct program
 * matches to ten, but a mistake adds rounding of its own):
 *
 *   1. well-known mistakes: 01 computes again with the mistake made on purpose, and all tensors must match;
 *   2. one tensor, or the rectangle of it that is wrong (differences.h): zero, too large by a factor, or computed from
 *      some of the sequences or tokens.
 *
 * "make verify" (verify.c) runs this on the gradients that a program dumped, and prints the output. Status 0: the
 * gradients are right; 2: they are not.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/safetensors.h"
#include "differences.h"

/* ---- The verdict ---- */

static bool is_right(const Piece *p)
{
    return distance(found, right, p, full_box(p)) <= tolerance;
}

/* The block number in a tensor's name; -1: it belongs to no block. */
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

/* Explains each wrong tensor; tensors with the same explanation share a line. */
static void print_pieces(void)
{
    enum { MOST = 6, NAMES = 5 };
    char (*text)[720] = calloc(piece_count, sizeof *text);
    int printed = 0, rest = 0, more = 0;

    for (int pass = 0; pass < 2; pass++)                /* matrices first: their weights explain small tensors */
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
        int same = 0, listed = 0;
        bool several = false;                           /* in several blocks: then the block number is left out */
        memcpy(words, text[i], sizeof words);
        for (int k = i; k < piece_count; k++)
            several |= !strcmp(text[k], words) && block_of(pieces[k].name) != block_of(pieces[i].name);
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
        printf("and %d more tensors, each wrong in another way\n", more);
    if (rest && printed)
        printf("the other %d tensors are wrong in no known way\n", rest);
    free(text);
}

/* The factor by which all gradients are wrong; 0: there is none. */
static double common_factor(void)
{
    double product = 0, square = 0;

    for (int64_t i = 0; i < layout.count; i++)
        product += found[i] * right[i], square += right[i] * right[i];
    const double scale = product / square;
    bool same = scale != 0 && isfinite(scale);
    for (int k = 0; k < piece_count && same; k++)
        same = fits(&pieces[k], full_box(&pieces[k]), scale);
    return same ? scale : 0;
}

/* Whether all wrong elements are zero, and some tensor is partly right: the dump has holes. *where: the first. */
static bool has_holes(char *where, size_t size)
{
    bool holes = false;

    for (const Piece *p = pieces; p < pieces + piece_count; p++) {
        double largest = 0;
        int64_t zeros = 0, first = -1, last = -1;
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++)
                largest = fmax(largest, fabs(at(right, p, i, j)));
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++) {
                const bool wrong = !(fabs(at(found, p, i, j) - at(right, p, i, j)) <= tolerance * largest);
                if (wrong && at(found, p, i, j) != 0)
                    return false;
                zeros += wrong;
                if (wrong)
                    first = first < 0 ? i * p->cols + j : first, last = i * p->cols + j;
            }
        if (zeros && zeros < p->rows * p->cols && !holes)
            snprintf(where, size, "%s, elements %lld to %lld of %lld", p->name, (long long)first, (long long)last,
                     (long long)(p->rows * p->cols));
        holes |= zeros && zeros < p->rows * p->cols;
    }
    return holes && !by_norm;
}

/* Whether a mistake gives these gradients: all of them, only the first wrong one, or none. The loss rules out most
 * mistakes, and is quick to compute. */
typedef enum { NOT_THIS, BEGINS, EXPLAINS } Verdict;
static Verdict judge(const Mistake *m, double candidate_loss, bool loss_wrong, const Piece *first)
{
    if (isfinite(candidate_loss) && !by_norm && ((m->kind <= FROM_ZERO) != loss_wrong
        || (loss_wrong && fabs(compute(m, batch, NULL) / candidate_loss - 1) > 1e-9)))
        return NOT_THIS;
    double *made = malloc(layout.count * sizeof *made);
    const double made_loss = compute(m, batch, made);
    bool same = !isfinite(candidate_loss) || fabs(made_loss / candidate_loss - 1) <= 1e-9;
    const bool begins = same && m->kind == PARTIAL_SUMS && alike(found, made, first, full_box(first));

    for (int k = 0; k < piece_count && same; k++)
        same = alike(found, made, &pieces[k], full_box(&pieces[k]));
    free(made);
    return same ? EXPLAINS : begins ? BEGINS : NOT_THIS;
}

/* The well-known mistake behind these gradients, in words; "" if there is none. A mistake that explains only the first
 * wrong tensor is the second choice. 16- and 8-bit types allow only one, whose gradients are exactly 0. */
static Verdict find_mistake(char *text, size_t size, double candidate_loss, bool loss_wrong, const Piece *first)
{
    Verdict best = NOT_THIS;
    const int all = ranks;

    text[0] = 0;
    for (const int *n = group_sizes; *n && best != EXPLAINS; n++)
        for (unsigned i = 0; i < sizeof mistakes / sizeof *mistakes && best != EXPLAINS; i++)
            for (int zigzag = 0; zigzag <= mistakes[i].by_token && best != EXPLAINS; zigzag++) {
                Mistake m = mistakes[i];
                m.zigzag = zigzag;
                ranks = *n;
                const bool worth_it = possible(&m, all) && (!by_norm || m.kind == EMPTY);
                const Verdict v = worth_it ? judge(&m, candidate_loss, loss_wrong, first) : NOT_THIS;
                if (v <= best)
                    continue;
                best = v;
                snprintf(text, size, "%s", m.text);
                if (*n != all)
                    snprintf(text + strlen(text), size - strlen(text), " (ranks: the %d of one group)", *n);
            }
    ranks = all;
    return best;
}

/* Checks the norm that a program printed, whose gradients are right; explains a wrong one. */
static bool check_norm(double norm)
{
    double total = 0;
    char factor[256];

    for (int64_t i = 0; i < layout.count; i++)
        total += right[i] * right[i];
    if (fabs(norm / sqrt(total) - 1) <= (by_norm ? tolerance : 1e-9))
        return true;
    name_factor(factor, sizeof factor, norm / sqrt(total), false);
    printf("the gradients are right, but their norm is %.10g instead of %.10g: it is %s\n", norm, sqrt(total), factor);
    return false;
}

static void read_found(const char *file)
{
    Safetensors s = safetensors_open(file);

    for (int k = 0; k < layout.parameters; k++) {
        const ParamInfo *p = &layout.table[k];
        const SafeTensor *t = safetensors_find(&s, p->name);
        if (!t)
            fail("%s has no %s", file, p->name);
        safetensors_read(&s, t, 0, p->range.count, found + p->range.first);
    }
    safetensors_close(&s);
}

/* Explains a wrong loss: by a factor, if it has a name. */
static void print_loss(double loss, double right_loss)
{
    char words[256];

    name_factor(words, sizeof words, loss / right_loss, true);
    printf("the loss of this step is %.10g, but 01 gives %.10g: ", loss, right_loss);
    if (strstr(words, " (= "))
        printf("%s\n", words);
    else
        printf("forward or the batch is wrong\n");
}

int main(int argc, char **argv)
{
    static const Mistake none;
    static const char *candidate = "", *group_list = "none";
    static double candidate_loss = NAN, candidate_norm = NAN;
    char words[512], where[160] = "";
    int wrong = 0, first_wrong = -1;

    tolerance = 1e-10;
    batch = program_begin("diagnose", "Explains what is wrong with dumped gradients.", argc, argv, (ProgramOption[]){
        {"candidate", OPTION_TEXT, &candidate, "file written by --dump-gradients", "FILE"},
        {"candidate-loss", OPTION_DOUBLE, &candidate_loss, "loss of that step", "X", 0, 1e9},
        {"candidate-norm", OPTION_DOUBLE, &candidate_norm, "gradient norm of that step", "X", 0, 1e30},
        {"ranks", OPTION_INT, &ranks, "ranks of that run", "N", 1, 1000},
        {"data-ranks", OPTION_INT, &data_ranks, "ranks over which the sequences were split", "N", 1, 1000},
        {"groups", OPTION_TEXT, &group_list, "groups of that run, with their sizes: dp=2,tp=4, or none", "LIST"},
        {"tolerance", OPTION_DOUBLE, &tolerance, "largest difference of a right gradient", "X", 0, 1},
        {"by-norm", OPTION_FLAG, &by_norm, "measure it by Euclidean norms instead of the largest element"},
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
        comm_exit(loss_wrong || !norm_right ? 2 : 0);
    }
    const double scale = common_factor();
    const bool holes = !scale && has_holes(where, sizeof where);
    const Verdict known = scale || holes ? NOT_THIS : find_mistake(words, sizeof words, candidate_loss, loss_wrong,
                                                                   &pieces[first_wrong]);
    if (scale) {
        const bool loss_too = loss_known && fabs(candidate_loss / right_loss / scale - 1) <= 1e-9 + tolerance;
        name_factor(words, sizeof words, scale, true);
        printf(loss_too ? "the loss and every gradient are %s\n" : "every gradient is %s\n", words);
    } else if (known == EXPLAINS) {
        printf("the gradients match, to eight digits, a run in which %s\n", words);
    } else if (loss_wrong) {
        print_loss(candidate_loss, right_loss);
    }
    printf("%d of %d gradients are wrong%s; the first, in the order of backward, is %s\n", wrong, piece_count,
           loss_wrong && !scale && known != EXPLAINS ? ", as the wrong loss implies" : "", pieces[first_wrong].name);
    if (known == BEGINS)
        printf("it matches, to eight digits, a run in which %s\n", words);
    if (holes)
        printf("all wrong elements are zero, in shards of tensors: a rank did not compute its shard, or does not own "
               "the shard that it updates (Placement.replica), which then is not dumped, saved or in the norm; the "
               "first are in %s\n", where);
    else if (!scale && known != EXPLAINS)
        print_pieces();
    comm_exit(2);
}
