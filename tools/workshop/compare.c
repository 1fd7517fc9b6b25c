/* make compare: compares two --dump-gradients files tensor by tensor, by max |a - b| / max |b|, and prints the largest
 * difference. With HEADS, compares q, k and v separately: gradients of k are small beside those of v, and would hide
 * behind them.
 *
 *   compare A B [TOLERANCE [HEADS]]       status 0: all tensors agree; 1: some differ, or the models do; 2: error
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/run/safetensors.h"
#include "process.h"

static void trouble(int status)         /* a file that cannot be read: not 1, which says that they differ */
{
    (void)status;
    exit(2);
}

static bool has_floats(const char *path)
{
    Safetensors s = safetensors_open(path);
    bool floats = false;

    for (int i = 0; i < s.count; i++)
        floats |= !strcmp(s.tensors[i].dtype, "F32");
    safetensors_close(&s);
    return floats;
}

/* A number on the command line; `otherwise` if it is missing or empty. */
static double argument(int argc, char **argv, int i, const char *name, double otherwise)
{
    char *end;
    const double x = argc > i ? strtod(argv[i], &end) : 0;

    if (argc <= i || !*argv[i])
        return otherwise;
    if (*end || !(x >= 0))
        fail_usage("%s: expected a number, 0 or larger, got '%s'", name, argv[i]);
    return x;
}

int main(int argc, char **argv)
{
    char worst[128] = "", alone[128] = "", *a, *b;

    error_set_program("compare");
    error_set_rank(0, trouble);
    if (argc < 3 || !*argv[1] || !*argv[2])
        fail_usage("expected two files: make compare A=one.safetensors B=two.safetensors");
    a = realpath(argv[1], NULL), b = realpath(argv[2], NULL);           /* relative paths are not temporary files */
    if (!a || !b)
        fail("there is no file %s", argv[a ? 2 : 1]);
    const double tolerance = argument(argc, argv, 3, "TOLERANCE", has_floats(a) || has_floats(b) ? 1e-4 : 1e-10);
    const int heads = argument(argc, argv, 4, "HEADS", 0);
    const double most = compare_gradients(a, b, heads, worst);
    const bool in_a_only = isinf(compare_gradients(b, a, heads, alone));
    if (isinf(most) || in_a_only) {
        printf("%s is in one file only, has another shape or other tokens, or has a NaN or Inf\n",
               in_a_only ? alone : worst);
        return 1;
    }
    printf("max |a - b| / max |b| is at most %.2g", most);
    if (*worst)
        printf(", in %s", worst);
    printf(": the files %s to %g", most <= tolerance ? "agree" : "do not agree", tolerance);
    if (!heads)
        printf(" (HEADS=n compares q, k and v separately)");
    printf("\n");
    return most > tolerance;
}
