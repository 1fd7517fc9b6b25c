#include "playbook.h"

#include <stdio.h>

#include "memory.h"

void estimate_activations(Recompute recompute, double rows, const char *note)
{
    static const char *const formulas[] = {[RECOMPUTE_NONE] = "L s b h (34 + 5 a s / h)",
                                           [RECOMPUTE_SELECTIVE] = "L s b h 34", [RECOMPUTE_FULL] = "L s b h 2"};
    static char formula[64];
    const double h = options.config.hidden, scores = (double)options.config.heads * options.config.seq;
    const double bytes[] = {[RECOMPUTE_NONE] = 34 * h + 5 * scores, [RECOMPUTE_SELECTIVE] = 34 * h,
                            [RECOMPUTE_FULL] = 2 * h};

    snprintf(formula, sizeof formula, "%s%s", formulas[recompute], note);
    memory_estimate(MEM_ACTIVATIONS, rows * bytes[recompute], formula);
}
