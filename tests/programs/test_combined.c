/* 09 against 01 (layouts.h) and against the programs of its directions, its checkpoints, its precision, and what it
 * refuses. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "../layouts.h"

#define FP32 "--dtype fp32 "

/* A covering subset: each direction left out of 2 x 2 x 2 in turn, fewer micro-batches than stages, rows that neither
 * the ranks nor the loss's slices of 256 divide, both --zero, both recomputations. */
static const LayoutCase cases[] = {
    {"09_combined", FP32 "--tp 2 --cp 2 --pp 2", 8, 3, 1, 2, "none", .seq = 24, .dp = 1},
    {"09_combined", FP32 "--tp 2 --cp 2", 8, 2, 3, 1, "full", .seq = 24, .dp = 2},
    {"09_combined", FP32 "--tp 2 --pp 2 --zero 0", 8, 3, 1, 3, "none", .dp = 2},
    {"09_combined", FP32 "--cp 2 --pp 2 --dp 2", 8, 3, 3, 1, "none", .dp = 2},
    {"09_combined", FP32 "--pp 3 --cp 2", 6, 5, 1, 4, "full", .seq = 24, .dp = 1},
    {"09_combined", FP32 "--tp 3", 6, 1, 2, 1, "none", .seq = 150, .dp = 2},
    {"09_combined", FP32 "--cp 8 --zero 0", 8, 1, 1, 2, "none", .seq = 32, .dp = 1},
    {"09_combined", FP32 "--pp 8", 8, 9, 1, 3, "full", .dp = 1},
    {"09_combined", FP32, 3, 2, 1, 2, "none", .seq = 270, .dp = 3},
    {"09_combined", FP32, 1, 2, 3, 2, "full", .dp = 1},
};

static void layouts_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
}

/* Every factorisation of 1 to 8 ranks into four directions, with what else there is to choose in turn. */
static void all_grids_agree(void **state)
{
    int grids = 0;

    (void)state;
    if (!full_tests())
        skip();
    for (int n = 1; n <= 8; n++)
        for (int t = 1; t <= n; t++)
            for (int c = 1; c <= n / t; c++)
                for (int p = 1; p <= n / t / c; p++) {
                    char options[128];
                    if (n % (t * c * p))
                        continue;
                    for (int k = 0; k < 2; k++) {
                        snprintf(options, sizeof options, FP32 "--tp %d --cp %d --pp %d --zero %d", t, c, p,
                                 (grids + k) % 2);
                        /* heads for tp, layers for pp, tokens for tp and for cp's chunks */
                        layout_compare(&(LayoutCase){"09_combined", options, n, p + 1, t == 5 || t == 7 ? t : 1 + k,
                                                     grids % 3 + 1 + k, (grids / 2 + k) % 2 ? "full" : "none",
                                                     .seq = 2 * c * (t % 2 ? 7 : 8), .heads = t, .hidden = 8 * t,
                                                     .dp = n / (t * c * p)});
                    }
                    grids++;
                }
    print_message("%d grids\n", grids);
    assert_int_equal(grids, 63);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(all_grids_agree),
    };

    return cmocka_run_group_tests_name("09", tests, NULL, layout_print_worst);
}
