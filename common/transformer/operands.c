#include "operands.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../base/error.h"
#include "../base/print.h"

/* Whether the product `size`, such as "3*A*D", is n. Binds its letter if one is unknown. If several are unknown,
 * returns `unsure`. */
static bool matches(const char *size, size_t length, int64_t n, int64_t *letters, bool unsure)
{
    int64_t *unknown = NULL, product = 1;
    int unknowns = 0;

    for (const char *c = size; c < size + length; c += strcspn(c, "*") + 1) {
        int64_t *letter = *c >= 'A' && *c <= 'Z' ? &letters[*c - 'A'] : NULL;
        if (letter && *letter < 0)
            unknown = letter, unknowns++;
        else
            product *= letter ? *letter : atoll(c);
    }
    if (unknowns > 1)
        return unsure;
    if (unknown && product && n % product == 0)
        *unknown = n / product, product = n;
    return product == n;
}

static bool shape_fits(Tensor t, const char *shape, size_t length, int64_t *letters, bool unsure)
{
    const char *size[5], *end = shape + length;
    int sizes = 0;

    for (const char *c = shape; c < end && sizes < 5; c += strcspn(c, ", ") + 1)
        size[sizes++] = c;
    size[sizes] = end + 1;
    if (sizes > 2 && sizes != t.dims)
        return false;
    for (int i = 0; i < sizes; i++) {
        const int64_t n = sizes == 1 ? tensor_count(t) : sizes > 2 ? t.shape[i] : i ? tensor_width(t) : tensor_rows(t);
        if (!matches(size[i], size[i + 1] - size[i] - 1, n, letters, unsure))
            return false;
    }
    return true;
}

/* Whether the dtype is what the word of a rule stands for. No word: the dtype of the activations before. */
static bool dtype_fits(DType dtype, const char *word, size_t length, int *activations)
{
    enum { STORED = 1 << REAL | 1 << BF16 | 1 << F16 };
    static const struct { const char *word; unsigned dtypes; } kinds[] = {
        {"", STORED}, {"G", 1 << REAL | 1 << BF16}, {"REAL", 1 << REAL}, {"F64", 1 << F64}, {"I32", 1 << I32},
        {"FP8", 1 << E4M3 | 1 << E5M2}, {"STORED", STORED}, {"ANY", ~0u}};
    size_t k = 0;

    while (strlen(kinds[k].word) != length || strncmp(kinds[k].word, word, length))
        if (++k == sizeof kinds / sizeof *kinds)
            return false;
    if (length == 0 && *activations < 0)
        *activations = dtype;
    return kinds[k].dtypes >> dtype & 1 && (length > 0 || (int)dtype == *activations);
}

static const char *operand_text(Tensor t)
{
    return t.data ? format_text("%s %s", tensor_describe(t), dtype_name(t.dtype)) : "none";
}

static _Noreturn void refuse(const char *name, const char *takes, const Operands *o, const char *why)
{
    const char *given = "";

    for (int i = 0; i < o->count; i++)
        given = format_text("%s%s%s", given, i ? ", " : "", operand_text(o->t[i]));
    fail("%s: %s; but it takes %s%s", name, given, takes, why);
}

void operands_refuse(const char *name, const char *takes, const Operands *o)
{
    refuse(name, takes, o, "");
}

/* Two passes, because the first one finds letters that an earlier operand has in a product only. */
void operands_check(const char *name, const char *takes, const Operands *o)
{
    int64_t letters[26];

    memset(letters, 0xff, sizeof letters);
    for (int pass = 0; pass < 2; pass++) {
        int activations = -1, i = 0;
        for (const char *c = takes, *end; *c; c = *end ? end + 2 : end, i++) {
            const char *shape = c + strcspn(c, " ") + 1;
            const size_t length = strcspn(shape, " ;");
            const char *dtype = shape[length] == ' ' ? shape + length + 1 : shape + length;
            const bool optional = strchr("=+0", *c) ? c[1] == '?' : *c == '?';
            const Tensor t = i < o->count ? o->t[i] : NONE;
            end = c + strcspn(c, ";");
            if (!t.data && !optional)
                refuse(name, takes, o, format_text("; operand %d is none: this rank has no such tensor (Placement), or "
                                                   "has not created it", i + 1));
            if (t.data && (!shape_fits(t, shape, length, letters, pass == 0)
                           || !dtype_fits(t.dtype, dtype, end - dtype, &activations)))
                operands_refuse(name, takes, o);
        }
        if (i < o->count)                       /* the rule says nothing of the last ones */
            operands_refuse(name, takes, o);
    }
}
