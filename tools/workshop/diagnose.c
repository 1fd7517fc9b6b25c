/* Explains what is wrong with the gradients of a program. Computes those of 01 (compiled with LLAMA or EXPERTS: of 12
 * or 10 on one rank) for the same step and global batch, in float64, and compares. Where they differ, looks for an
 * explanation that matches to eight digits (a correct program matches to ten, but a mistake adds rounding of its own):
 *
 *   1. well-known mistakes: 01 computes again with the mistake made on purpose (diagnose_mistakes.c), and all tensors
 *      must match;
 *   2. one tensor, or the rectangle of it that is wrong: zero, too large by a factor, or computed from some of the
 *      sequences or tokens (diagnose_differences.c).
 *
 * "make verify" (verify.c) runs this on the gradients that a program dumped, and prints the output. Status 0: the
 * gradients are right; 2: they are not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/run/safetensors.h"
#include "diagnose_differences.h"
#include "process.h"

/* Of the program's step; NaN: unknown. */
static double candidate_loss = NAN, candidate_norm = NAN;
static double right_loss;
static bool brief;              /* only a factor that all gradients have, and the first wrong one */

static bool loss_is_wrong(void)
{
    return isfinite(candidate_loss) && fabs(candidate_loss / right_loss - 1) > (by_norm ? tolerance : 1e-9);
}

/* ---- One tensor after the other ---- */

static bool is_right(const Piece *p)
{
    return distance(found, right, p, full_box(p)) <= tolerance;
}

/* The block number in a tensor's name; -1: it belongs to no block. */
static int block_of(const char *name)
{
    return strncmp(name, "blocks.", 7) ? -1 : atoi(name + 7);
}

/* "blocks.*.down_bias" for blocks.3.down_bias, "blocks.*.experts.*.down_bias" for blocks.3.experts.1.down_bias */
static void family(char *text, size_t size, const char *name)
{
    const char *rest = block_of(name) < 0 ? NULL : strchr(name + 7, '.');

    if (rest && !strncmp(rest, ".experts.", 9))
        snprintf(text, size, "blocks.*.experts.*%s", strchr(rest + strlen(".experts."), '.'));
    else if (rest)
        snprintf(text, size, "blocks.*%s", rest);
    else
        snprintf(text, size, "%s", name);
}

typedef char Explanation[720];

/* An explanation for each wrong tensor; the others have "". */
static Explanation *explanations(void)
{
    Explanation *text = calloc(piece_count, sizeof *text);

    for (int pass = 0; pass < 2; pass++)                /* matrices first: their weights explain small tensors */
        for (int i = 0; i < piece_count; i++)
            if (!is_right(&pieces[i]) && (pieces[i].cols > 1) == (pass == 0))
                explain_piece(text[i], sizeof text[i], &pieces[i]);
    return text;
}

/* Whether tensors of several blocks have this explanation, from the first that has it on. */
static bool in_several_blocks(Explanation *text, int first)
{
    bool several = false;

    for (int k = first; k < piece_count; k++)
        several |= !strcmp(text[k], text[first]) && block_of(pieces[k].name) != block_of(pieces[first].name);
    return several;
}

/* Prints the explanation of a tensor once, for all tensors that have it, and removes it from them. If they are of
 * several blocks, their names lack the block number. */
static void print_explanation(Explanation *text, int first)
{
    enum { NAMES = 5 };
    const bool several = in_several_blocks(text, first);
    char names[NAMES * 64] = "", name[64];
    Explanation words;
    int same = 0, listed = 0;

    memcpy(words, text[first], sizeof words);
    for (int k = first; k < piece_count; k++) {
        if (strcmp(text[k], words))
            continue;
        if (several)
            family(name, sizeof name, pieces[k].name);
        else
            snprintf(name, sizeof name, "%s", pieces[k].name);
        if (!strstr(names, name) && listed++ < NAMES)
            add_text(names, sizeof names, "%s%s", same ? ", " : "", name);
        text[k][0] = 0;
        same++;
    }
    if (same == 1)
        printf("%s: %s\n", pieces[first].name, words);
    else
        printf("%s%s (%d tensors): %s\n", names, listed > NAMES ? " and others" : "", same, words);
}

/* Explains each wrong tensor; tensors with the same explanation share a line. */
static void print_pieces(void)
{
    enum { MOST = 6 };
    Explanation *text = explanations();
    int printed = 0, rest = 0, more = 0;

    for (int i = 0; i < piece_count; i++)
        if (!strcmp(text[i], unexplained)) {
            rest++;
        } else if (text[i][0] && printed == MOST) {
            more++;
        } else if (text[i][0]) {
            print_explanation(text, i);
            printed++;
        }
    if (more)
        printf(more == 1 ? "and %d more tensor, wrong in another way\n"
               : "and %d more tensors, each wrong in another way\n", more);
    if (rest && printed)
        printf(rest == 1 ? "the other %d tensor is wrong in no known way\n"
               : "the other %d tensors are wrong in no known way\n", rest);
    free(text);
}

/* ---- All tensors at once ---- */

/* The factor by which all gradients are wrong; 0: there is none. */
static double common_factor(void)
{
    double product = 0, square = 0;

    for (int64_t i = 0; i < layout->count; i++)
        product += found[i] * right[i], square += right[i] * right[i];
    const double scale = product / square;
    bool same = scale != 0 && isfinite(scale);
    for (int k = 0; k < piece_count && same; k++)
        same = fits(&pieces[k], full_box(&pieces[k]), scale);
    return same ? scale : 0;
}

/* Counts the wrong elements of a piece, the first and the last of which it names; -1: one of them is not zero. */
static int64_t count_zeros(const Piece *p, int64_t *first, int64_t *last)
{
    const double most = tolerance * largest_right(p);
    int64_t zeros = 0;

    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j++) {
            const double x = at(found, p, i, j);
            if (fabs(x - at(right, p, i, j)) <= most)
                continue;
            if (x != 0)
                return -1;
            *last = i * p->cols + j;
            *first = zeros++ ? *first : *last;
        }
    return zeros;
}

/* Whether all wrong elements are zero, and some tensor is partly right: the dump has holes. *where: the first. */
static bool has_holes(char *where, size_t size)
{
    bool holes = false;

    for (const Piece *p = pieces; p < pieces + piece_count; p++) {
        int64_t first = 0, last = 0;
        const int64_t elements = p->rows * p->cols, zeros = count_zeros(p, &first, &last);
        if (zeros < 0)
            return false;
        if (zeros == 0 || zeros == elements)
            continue;
        if (!holes)
            snprintf(where, size, "%s, elements %lld to %lld of %lld", p->name, (long long)first, (long long)last,
                     (long long)elements);
        holes = true;
    }
    return holes && !by_norm;
}

/* Whether a mistake gives these gradients: all of them, only the first wrong one, or none. The loss rules out most
 * mistakes, and is quick to compute. */
typedef enum { NOT_THIS, BEGINS, EXPLAINS } Verdict;
static Verdict judge(const Mistake *m, const Piece *first)
{
    if (isfinite(candidate_loss) && !by_norm && ((m->kind <= FROM_ZERO) != loss_is_wrong()
        || (loss_is_wrong() && fabs(compute(m, NULL) / candidate_loss - 1) > 1e-9)))
        return NOT_THIS;
    double *made = malloc(layout->count * sizeof *made);
    const double made_loss = compute(m, made);
    bool same = !isfinite(candidate_loss) || fabs(made_loss / candidate_loss - 1) <= 1e-9;
    const bool one_tensor = m->kind == PARTIAL_SUMS || m->kind == OWN_ROWS || m->kind == COPIES;
    const bool begins = same && one_tensor && alike(found, made, first, full_box(first));

    for (int k = 0; k < piece_count && same; k++)
        same = alike(found, made, &pieces[k], full_box(&pieces[k]));
    free(made);
    return same ? EXPLAINS : begins ? BEGINS : NOT_THIS;
}

/* The well-known mistake behind these gradients, in words; "" if there is none. A mistake that explains only the first
 * wrong tensor is the second choice. 16- and 8-bit types allow only one, whose gradients are exactly 0. */
static Verdict find_mistake(char *text, size_t size, const Piece *first)
{
    Verdict best = NOT_THIS;
    const int all = ranks;

    text[0] = 0;
    for (const int *n = group_sizes; *n && best != EXPLAINS; n++)
        for (int i = 0; i < mistake_count && best != EXPLAINS; i++)
            for (int zigzag = 0; zigzag <= mistakes[i].by_token && best != EXPLAINS; zigzag++) {
                Mistake m = mistakes[i];
                m.zigzag = zigzag;
                ranks = *n;
                const bool worth_it = possible(&m, all) && (!by_norm || m.kind == EMPTY);
                const Verdict v = worth_it ? judge(&m, first) : NOT_THIS;
                if (v <= best)
                    continue;
                best = v;
                snprintf(text, size, "%s", m.text);
                if (*n != all)
                    add_text(text, size, " (ranks: the %d of one group)", *n);
            }
    ranks = all;
    return best;
}

/* ---- The verdict ---- */

/* Explains a wrong loss: by a factor, if it has a name. Right gradients show that forward and the batch are right. */
static void print_loss(bool gradients_are_right)
{
    char words[256];

    name_factor(words, sizeof words, candidate_loss / right_loss, true);
    printf("%sthe loss of this step is %.10g, but " REFERENCE " gives %.10g: ",
           gradients_are_right ? "every gradient is right, but " : "", candidate_loss, right_loss);
    if (strstr(words, " (= "))
        printf("%s\n", words);
    else if (gradients_are_right)
        printf("only the number that is reported is wrong: does it add up all micro-batches, tokens and ranks, each "
               "once?\n");
    else
        printf("forward or the batch is wrong\n");
}

/* The parameters of which a program may have replicas on other ranks than of the rest. */
typedef enum { OF_EXPERTS, REPLICATED, VOCABULARY, FAMILIES } Family;
static bool belongs(const Piece *p, Family family)
{
    const bool expert = strstr(p->name, "experts."), block = block_of(p->name) >= 0;

    return family == OF_EXPERTS ? expert
           : family == REPLICATED ? !expert && (strstr(p->name, "ln") || strstr(p->name, "proj_bias")
                                                || strstr(p->name, "down_bias") || strstr(p->name, "final")
                                                || strstr(p->name, "router")) : !block && !strstr(p->name, "final");
}

/* Appends which parameters' squares count several times in the norm, or not at all, if that explains it. */
static void name_family(char *text, size_t size, double total)
{
    static const char *const names[] = {"experts", "norms and other parameters that tensor parallelism does not split",
                                        "the embedding and the head"};

    for (Family f = 0; f < FAMILIES; f++) {
        double squares = 0;
        for (const Piece *p = pieces; p < pieces + piece_count; p++)
            for (int64_t i = 0; i < p->rows * p->cols && belongs(p, f); i++)
                squares += pow(at(right, p, i / p->cols, i % p->cols), 2);
        const double more = (candidate_norm * candidate_norm - total) / squares, times = round(more) + 1;
        if (squares && times >= 0 && times != 1 && fabs(more + 1 - times) < 1e-6)
            add_text(text, size, ": the squares of %s count %.0f times; exactly one of a parameter's replicas may own "
                     "it (Placement)", names[f], times);
    }
}

/* Explains a wrong norm of right gradients. False: it is wrong. */
static bool check_norm(void)
{
    double total = 0;
    char factor[512];

    for (int64_t i = 0; i < layout->count; i++)
        total += right[i] * right[i];
    if (fabs(candidate_norm / sqrt(total) - 1) <= (by_norm ? tolerance : 1e-9))
        return true;
    name_factor(factor, sizeof factor, candidate_norm / sqrt(total), false);
    name_family(factor, sizeof factor, total);
    printf("the gradients are right, but their norm is %.10g instead of %.10g: it is %s%s\n", candidate_norm,
           sqrt(total), factor, strstr(factor, "too large") && strstr(factor, "square root") ? "; each square counts "
           "once per replica: exactly one of them may own a parameter (Placement.replica)" : "");
    return false;
}

/* The gradients are right: explains a wrong loss, a wrong norm. False: one of them is wrong. */
static bool check_loss_and_norm(void)
{
    if (loss_is_wrong())
        print_loss(true);
    const bool norm_is_right = !isfinite(candidate_norm) || check_norm();
    return !loss_is_wrong() && norm_is_right;
}

/* implied: a wrong loss explains that they are wrong. */
static void print_count(int wrong, const Piece *first, bool implied)
{
    printf("%d of %d gradients %s wrong%s; the first, in the order of backward, is %s\n", wrong, piece_count,
           wrong == 1 ? "is" : "are", implied ? ", as the wrong loss implies" : "", first->name);
}

static void print_common_factor(double scale)
{
    const bool loss_too = fabs(candidate_loss / right_loss / scale - 1) <= 1e-9 + tolerance;    /* false for NaN */
    char words[512];

    name_factor(words, sizeof words, scale, true);
    printf(loss_too ? "the loss and every gradient are %s\n" : "every gradient is %s\n", words);
}

/* Says what is wrong: what explains all gradients, or else what explains each. */
static void explain(int wrong, const Piece *first)
{
    const double scale = common_factor();
    char words[512], where[160] = "";

    if (scale) {
        print_common_factor(scale);
        print_count(wrong, first, false);
        return;
    }
    if (brief) {
        print_count(wrong, first, false);
        return;
    }
    const bool holes = has_holes(where, sizeof where);
    const Verdict known = holes ? NOT_THIS : find_mistake(words, sizeof words, first);
    if (known == EXPLAINS) {
        printf("the gradients match, to eight digits, a run in which %s\n", words);
        print_count(wrong, first, false);
        return;
    }
    if (loss_is_wrong())
        print_loss(false);
    print_count(wrong, first, loss_is_wrong());
    if (known == BEGINS)
        printf("it matches, to eight digits, a run in which %s\n", words);
    if (holes)
        printf("all wrong elements are zero, in shards of tensors: a rank did not compute its shard, or does not own "
               "the shard that it updates (Placement.replica), which then is not dumped, saved or in the norm; the "
               "first are in %s\n", where);
    else
        print_pieces();
}

static void read_found(const char *file)
{
    Safetensors s = safetensors_open(file);

    for (int k = 0; k < layout->parameters; k++) {
        const ParamInfo *p = &layout->table[k];
        const SafeTensor *t = safetensors_find(&s, p->name);
        if (!t)
            fail("%s has no %s", file, p->name);
        safetensors_read(&s, t, 0, p->range.count, found + p->range.first);
    }
    safetensors_close(&s);
}

int main(int argc, char **argv)
{
    static const Mistake none;
    static const char *candidate = "", *group_list = "none";
    const Piece *first = NULL;
    int wrong = 0;

    const Layout *of_01 = mistakes_begin("diagnose", "Explains what is wrong with dumped gradients.", argc, argv,
                                         (ProgramOption[]){
        {"candidate", OPTION_TEXT, &candidate, "file written by --dump-gradients", "FILE"},
        {"candidate-loss", OPTION_DOUBLE, &candidate_loss, "loss of that step", "X", 0, 1e9},
        {"candidate-norm", OPTION_DOUBLE, &candidate_norm, "gradient norm of that step", "X", 0, 1e30},
        {"ranks", OPTION_INT, &ranks, "ranks of that run", "N", 1, 1000},
        {"data-ranks", OPTION_INT, &data_ranks, "ranks over which the sequences were split", "N", 1, 1000},
        {"groups", OPTION_TEXT, &group_list, "groups of that run, with their sizes: dp=2,tp=4, or none", "LIST"},
        {"tolerance", OPTION_DOUBLE, &tolerance, "largest difference of a right gradient", "X", 0, 1},
        {"brief", OPTION_FLAG, &brief, "only a factor that all gradients have, and the first wrong one"},
        {"by-norm", OPTION_FLAG, &by_norm, "measure it by Euclidean norms instead of the largest element"},
        {0}});
    differences_begin(of_01, group_list);
    read_found(candidate);
    right_loss = compute(&none, right);
    for (int i = piece_count - 1; i >= 0; i--)
        if (!is_right(&pieces[i])) {
            first = &pieces[i];
            wrong++;
        }
    if (!wrong)
        comm_exit(check_loss_and_norm() ? 0 : 2);
    explain(wrong, first);
    comm_exit(2);
}
