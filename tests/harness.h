/* What tests of whole programs need: starting one, reading what it left, comparing gradients. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct {
    int status;                 /* exit status; 128 + signal if one ended it */
    char *out, *err;            /* all that it printed; freed with result_free */
    double seconds;
} Result;

/* Runs a command of words separated by spaces, '...' around a word that has some, with the temporary directory
 * (temporary()) as its working directory. */
Result run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void result_free(Result r);

/* run(), which must succeed: otherwise the test fails and shows what the command printed. */
void run_well(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A directory for this process's files, removed at the end; and "DIR/name", in one of a few static buffers. */
const char *temporary(void);
const char *in_temporary(const char *name);

bool full_tests(void);          /* make test-full: all cases */

/* A column of a --metrics file by its name; the number of rows is returned, at most `most`. */
int read_column(const char *file, const char *column, double *values, int most);

char *read_file(const char *file);      /* all of a text; the caller frees it */

/* A number in a JSON file: "ranks.0.memory.activations.measured". Fails the test if it isn't there. */
double json_number(const char *file, const char *path);

/* The text `name` of entry i of an array in a JSON file; NULL if the array is shorter. The caller frees it. */
char *json_text(const char *file, const char *array, int i, const char *name);

/* Compares every tensor of two --dump-gradients files, q, k and v of QKV tensors apart (`heads` heads): the largest
 * max|a - b| / max|b| of any. A NaN or Inf, a missing tensor or another shape fails the test; `worst` (of 128
 * characters, or NULL) gets the tensor's name. Batches must be equal. */
double compare_gradients(const char *a, const char *b, int heads, char *worst);

/* The same, but the largest |a - b| / |b| of any, in the Euclidean norm: what rounding leaves of a tensor. */
double compare_gradients_by_norm(const char *a, const char *b, int heads, char *worst);

/* max |a - b| / max |b| of two matrices, or by_norm |a - b| / |b|; Inf if either has a NaN or Inf. With `head`, the
 * rows of a head's q, k or v, only the of_three-th of these three counts. */
double matrix_difference(const double *a, const double *b, int64_t rows, int64_t cols, int64_t head, int of_three,
                         bool by_norm);

/* A file of `count` random uint16 tokens below `vocab`, the same for the same arguments; named *.bin. */
const char *token_file(int64_t count, int vocab);

#endif
