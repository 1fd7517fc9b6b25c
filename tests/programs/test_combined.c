/* 09 in bf16 against 02. */
#include <stdio.h>

#include "../harness.h"

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
        cmocka_unit_test(bf16_is_as_near_as_02s),
    };

    return cmocka_run_group_tests_name("combined", tests, NULL, NULL);
}
