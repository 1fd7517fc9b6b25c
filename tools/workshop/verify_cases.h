/* What make verify runs: the parallel configurations of each program, each with its own shape, and how ARGS changes
 * them. */
#ifndef VERIFY_CASES_H
#define VERIFY_CASES_H

#include <stdbool.h>

/* What a case tries beside gradients, norms and losses. FAR: the first step from weights so large that softmax and loss
 * need their maxima subtracted. OVERFLOWS: the loss scale makes steps 4 and 7 overflow. SANITIZED: the program is the
 * one that AddressSanitizer watches. LONG: kernels that work through sequences tile by tile have several tiles.
 * INFINITE: some weights are Inf, so the run must fail. REFUSED: the program must refuse its options. FULL: only make
 * verify FULL=1 runs it. */
typedef enum { FAR = 1, OVERFLOWS = 2, FULL = 4, SANITIZED = 8, LONG = 16, INFINITE = 32, REFUSED = 64 } Kind;

typedef struct {
    const char *stage, *options;
    int ranks;
    double tolerance;           /* of the Euclidean norm, for 16- and 8-bit types; 0: ten digits */
    Kind kind;
} Case;

extern const Case cases[];
extern const int case_count;

extern const char *stage, *given_options;       /* the program's name; ARGS */
extern bool own;                /* the user's own program: it may use any technique */
extern const double CLIP;       /* below the gradient norm of every configuration */

typedef struct {
    int ranks, layers, heads, seq, micro_batch, accumulate;
    int kv_heads, mlp, tied;            /* 12's; else 0 */
    int top_k;                          /* of mixtures */
    double capacity;
    char model[512], schedule[128];     /* options for all runs; for runs of the program only */
} Shape;

Shape shape_for(const Case *c);
int data_ranks(const Case *c);                  /* ranks, or groups of ranks, that have sequences of their own */
bool fits(const Case *c, int ranks);            /* whether they fill its grid, and a pipeline stage's fill ep groups */

bool starts_with(const char *text, const char *with);
bool stage_is(const char *name);
bool has_experts(void);                         /* 10 and 11 are compared with 10 on one rank */
bool has_llama(void);                           /* 12 is compared with 12 on one rank; all others with 01 */
bool has_grid(void);

const char *given(const char *name);            /* the text after an option in ARGS; NULL: the option is not given */
int option(const Case *c, const char *name, int otherwise);     /* a number in ARGS, or in the options of the case */
double tolerance_of(const char *dtype);

#endif
