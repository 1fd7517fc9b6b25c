/* Runs programs, reads their output files, compares gradients. What goes wrong ends by fail() (common/base/error.h). */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int status;                 /* exit status; 128 + signal if a signal ended the program */
    char *out, *err, *command;  /* standard output and error, and what was run; freed with result_free */
    double seconds;
} Result;

/* Runs a command in the temporary directory. Spaces separate its words; '...' encloses a word with spaces. */
Result run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void result_free(Result r);

/* As run, but shows the output and fails unless the status is 0. */
void run_well(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns a directory for this process's files, which is removed at its end. in_temporary returns "DIR/name", in one of
 * eight static buffers. A file below is in this directory too, unless its name begins with a slash. */
const char *temporary(void);
const char *in_temporary(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Appends to a text in an array of `size` bytes, as far as it has room. */
void add_text(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Reads a column of a --metrics file by its name, up to `most` rows. Returns the number of rows read. */
int read_column(const char *file, const char *column, double *values, int most);

/* Names the columns of a --metrics file that measure neither time nor memory nor traffic, until the next call. Returns
 * how many there are. */
int metrics_columns(const char *file, const char *names[16]);

char *read_file(const char *file);      /* returns the text of a file; the caller frees it */

/* Returns the path of a file of the checkpoint that DIR/latest names. If there is none, no such file exists. */
const char *saved(const char *directory, const char *file);

/* Returns a number in a JSON file, by a path like "ranks.0.memory.activations.measured". Fails if it is missing. */
double json_number(const char *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the string `name` of entry i of an array in a JSON file, or NULL past its end. The caller frees it. */
char *json_text(const char *file, const char *array, int i, const char *name);

/* Compares every tensor of two files, but the batch; q, k and v of QKV tensors separately, unless `heads` is 0. Returns
 * the largest max|a - b| / max|b|, with by_norm |a - b| / |b|, which measures rounding; Inf if there is a NaN or Inf,
 * or if a tensor is missing in `a` or has another shape. `worst` (128 characters, or NULL) gets that tensor's name. */
double compare_tensors(const char *a, const char *b, int heads, bool by_norm, char *worst);

/* The mean over all tensors of |a - b| / |b|, as compare_tensors measures it. */
double mean_difference(const char *a, const char *b, int heads);

/* As compare_tensors, for --dump-gradients files; Inf if they have different batches. */
double compare_gradients(const char *a, const char *b, int heads, char *worst);
double compare_gradients_by_norm(const char *a, const char *b, int heads, char *worst);

int64_t random_below(int64_t n);        /* the sequence is the same in every run of the tests */

/* Returns a file *.bin of `count` random uint16 tokens below `vocab`, the same for the same arguments. */
const char *token_file(int64_t count, int vocab);

#endif
