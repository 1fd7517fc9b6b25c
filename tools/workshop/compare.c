/* make compare: compares two --dump-gradients files, tensor by tensor, by max |a - b| / max |b|, the worst first. With
 * HEADS, compares q, k and v separately: gradients of k are small beside those of v, and would hide behind them.
 *
 *   compare A B [TOLERANCE [HEADS]]       status 0: all tensors agree; 1: some differ, or the models do; 2: error
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/error.h"
#include "../../common/safetensors.h"
#include "process.h"

typedef struct {
    char name[160];
    double difference;
} Row;

static Row *rows;
static int count;
static bool unlike;             /* names, shapes or batches differ */

static void trouble(int status)         /* a file that cannot be read: not 1, which says that they differ */
{
    (void)status;
    exit(2);
}

/* Reads a tensor, converted to double; I64 as it is. */
static void *read_all(const Safetensors *s, const SafeTensor *t, int64_t elements)
{
    void *to = host_alloc(elements * sizeof(double), "a tensor");

    safetensors_read(s, t, 0, elements, to, true);
    return to;
}

static void print_shape(const SafeTensor *t, const char *path)
{
    printf(" (");
    for (int i = 0; i < t->dims; i++)
        printf("%s%lld", i ? ", " : "", (long long)t->shape[i]);
    printf(") in %s", path);
}

static void compare_tensor(const Safetensors *a, const Safetensors *b, const SafeTensor *x, const SafeTensor *y,
                           int heads)
{
    const int64_t height = x->dims ? x->shape[0] : 1;
    int64_t width = 1;

    for (int i = 1; i < x->dims; i++)
        width *= x->shape[i];
    double *p = read_all(a, x, height * width), *q = read_all(b, y, height * width);
    const bool qkv = heads && strstr(x->name, "query_key_value") && height % (3 * heads) == 0;
    if (!strcmp(x->dtype, "I64") && memcmp(p, q, height * width * sizeof(int64_t))) {
        printf("%s differs: the gradients are of different sequences\n", x->name);
        unlike = true;
    }
    for (int k = 0; k < (qkv ? 3 : 1) && strcmp(x->dtype, "I64"); k++) {
        Row *r = &rows[count++];
        snprintf(r->name, sizeof r->name, "%s%s", x->name, qkv ? (const char *[]){" (q)", " (k)", " (v)"}[k] : "");
        r->difference = matrix_difference(p, q, height, width, qkv ? height / (3 * heads) : 0, k, false);
    }
    free(p);
    free(q);
}

static int farther(const void *a, const void *b)
{
    const double x = ((const Row *)a)->difference, y = ((const Row *)b)->difference;

    return (x < y) - (x > y);
}

/* A number on the command line; `otherwise` if it is missing or empty. */
static double argument(int argc, char **argv, int i, const char *name, double otherwise)
{
    char *end;
    const double x = argc > i ? strtod(argv[i], &end) : 0;

    if (argc <= i || !*argv[i])
        return otherwise;
    if (*end || !(x >= 0)) {
        fprintf(stderr, "compare: %s: expected a number, 0 or larger, got '%s'\n", name, argv[i]);
        exit(2);
    }
    return x;
}

int main(int argc, char **argv)
{
    enum { SHOWN = 8 };
    bool doubles = true;
    int beyond = 0;

    if (argc < 3 || !*argv[1] || !*argv[2]) {
        fprintf(stderr, "compare: expected two files: make compare A=one.safetensors B=two.safetensors\n");
        return 2;
    }
    const int heads = argument(argc, argv, 4, "HEADS", 0);
    error_set_program("compare");
    error_set_rank(0, trouble);
    Safetensors a = safetensors_open(argv[1]), b = safetensors_open(argv[2]);
    rows = calloc(3 * (a.count + 1), sizeof *rows);
    for (int i = 0; i < a.count; i++) {
        const SafeTensor *x = &a.tensors[i], *y = safetensors_find(&b, x->name);
        doubles &= strcmp(x->dtype, "F32") && (!y || strcmp(y->dtype, "F32"));
        if (y && x->dims == y->dims && !memcmp(x->shape, y->shape, x->dims * sizeof *x->shape)) {
            compare_tensor(&a, &b, x, y, heads);
            continue;
        }
        unlike = true;
        printf("%s has shape", x->name);
        print_shape(x, argv[1]);
        if (y)
            printf(", but"), print_shape(y, argv[2]);
        printf(y ? "\n" : ", but is not in %s\n", argv[2]);
    }
    for (int i = 0; i < b.count; i++)
        if (!safetensors_find(&a, b.tensors[i].name)) {
            printf("%s is in %s but not in %s\n", b.tensors[i].name, argv[2], argv[1]);
            unlike = true;
        }
    const double tolerance = argument(argc, argv, 3, "TOLERANCE", doubles ? 1e-10 : 1e-4);
    qsort(rows, count, sizeof *rows, farther);
    for (int i = 0; i < count; i++)
        beyond += !(rows[i].difference <= tolerance);
    printf("max |a - b| / max |b|, the worst first:\n");
    for (int i = 0; i < count && i < SHOWN; i++)
        printf("  %-8.2g %s\n", rows[i].difference, rows[i].name);
    printf("%d of %d tensors differ by more than %g%s\n", beyond, count, tolerance,
           heads ? "" : " (HEADS=n compares q, k and v separately)");
    return beyond || unlike;
}
