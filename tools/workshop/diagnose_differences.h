/* Explains a wrong gradient by comparing its elements with those of 01: zero, too large by a factor, or computed from
 * some of the sequences or tokens; everywhere or in a rectangle. */
#ifndef DIAGNOSE_DIFFERENCES_H
#define DIAGNOSE_DIFFERENCES_H

#include "diagnose_mistakes.h"

/* A tensor, or q, k or v of a QKV tensor. */
typedef struct {
    char name[64];              /* "blocks.2.qkv_weight (k)" */
    const ParamInfo *param;
    int which;                  /* 0, 1, 2: q, k, v; -1: the full tensor */
    int64_t rows, cols;
} Piece;

extern const Layout *layout;    /* of 01 */
extern Piece *pieces;           /* in the order in which backward completes them */
extern int piece_count;
extern double *right, *found;   /* gradients of 01 and of the program, in the order of the layout */
extern double tolerance;        /* largest difference of a right gradient */
extern bool by_norm;            /* differences are measured by Euclidean norms, not by the largest element */

/* Sizes of groups in which a mistake may have been made: all ranks first, each once, then 0. */
extern int group_sizes[10];

/* Lists the pieces, and allocates `right` and `found`. groups_of_run: with their sizes, "dp=2,tp=4", or "none". */
void differences_begin(const Layout *of_01, const char *groups_of_run);

/* Part of a piece. */
typedef struct {
    int64_t row, rows, col, cols;
} Box;
Box full_box(const Piece *p);
double at(const double *all, const Piece *p, int64_t row, int64_t col);

double largest_right(const Piece *p);           /* the largest element of the right gradient */

/* max |a - b| / max |b|, or with by_norm |a - b| / |b| in the Euclidean norm; Inf if a has a NaN or Inf. */
double distance(const double *a, const double *b, const Piece *p, Box box);
bool alike(const double *a, const double *b, const Piece *p, Box box);      /* whether b explains a */
bool fits(const Piece *p, Box box, double scale);                   /* whether right x scale is what was found */

/* "5 times too large (= accumulate)", with every name that the factor may have. common: the loss has it as well. */
void name_factor(char *text, size_t size, double scale, bool common);

/* Describes how a piece differs from the right one: `unexplained`, if no explanation is found. */
void explain_piece(char *text, size_t size, const Piece *p);
extern const char unexplained[];

#endif
