/* 09 against 01 (equivalence.h), and in bf16 against 02. */
#include <stdio.h>

#include "../harness.h"
#include "../equivalence.h"

static void configurations_agree(void **state)
{
    agrees_with_01("09_combined");
}

/* Every factorization of 1 to 8 ranks into four dimensions; the other options alternate. */
static void all_grids_agree(void **state)
{
    int grids = 0;

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
                        snprintf(options, sizeof options, "--dtype fp32 --tp %d --cp %d --pp %d --zero %d", t, c, p,
                                 (grids + k) % 2);
                        /* heads and tokens for tp, layers for pp, an even number of tokens per rank of cp */
                        compare_with_01(&(Configuration){"09_combined", options, n, p + 1, 1 + k, grids % 3 + 1 + k,
                                                     (grids / 2 + k) % 2 ? "full" : "none", .dp = n / (t * c * p),
                                                     .seq = 2 * c * t * (t < 4 ? 3 : 1), .heads = t, .hidden = 8 * t});
                    }
                    grids++;
                }
    print_message("%d grids\n", grids);
    assert_int_equal(grids, 63);
}

/* ---- bf16 ---- */

#define MODEL "--layers 4 --hidden 64 --heads 4 --vocab 97 --seq 64 --quiet --threads 1 "

/* The largest relative difference of any tensor, by norm, of a dump's gradients from those in float64. */
static double distance(const char *dump)
{
    return compare_gradients_by_norm(dump, "exact.safetensors", 4, NULL);
}

/* 09 rounds more often than 02: partial sums over tp are in bf16, and so are the activations and gradients it sends. */
static void bf16_is_as_near_as_02s(void **state)
{
    static const struct {
        int ranks;
        const char *grid;
    } grids[] = {{8, "--tp 2 --cp 2 --pp 2 --micro-batch 4 --accumulate 2"}, {2, "--tp 2 --micro-batch 8"},
                 {2, "--cp 2 --micro-batch 8"}, {2, "--pp 2 --micro-batch 2 --accumulate 4"},
                 {2, "--dp 2 --micro-batch 4"}, {8, "--cp 8 --micro-batch 8"}};

    run_well(BUILD "/cpu64/01_single_gpu " MODEL "--data %s --steps 1 --micro-batch 8 --accumulate 1 "
             "--dump-gradients exact.safetensors", token_file(20000, 97));
    run_well(BUILD "/cpu/02_mixed_precision " MODEL "--data %s --steps 1 --micro-batch 8 --accumulate 1 --dtype bf16 "
             "--dump-gradients 02.safetensors", token_file(20000, 97));
    const double of_02 = distance("02.safetensors");
    for (unsigned i = 0; i < (full_tests() ? sizeof grids / sizeof *grids : 1); i++) {
        run_well("mpiexec -n %d " BUILD "/cpu/09_combined " MODEL "--data %s --steps 1 --accumulate 1 %s --check "
                 "--dump-gradients 09.safetensors", grids[i].ranks, token_file(20000, 97), grids[i].grid);
        const double d = distance("09.safetensors");
        print_message("%s: %.2e from float64, %.2f times 02's %.2e\n", grids[i].grid, d, d / of_02, of_02);
        if (!(d <= 1.5 * of_02))
            fail_msg("%s: gradients in bf16 are %g from float64's, and 02's %g", grids[i].grid, d, of_02);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(bf16_is_as_near_as_02s),
        cmocka_unit_test(all_grids_agree),
    };

    return cmocka_run_group_tests_name("combined", tests, NULL, NULL);
}
