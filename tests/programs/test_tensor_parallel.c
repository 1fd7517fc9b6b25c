/* 05 against 01 (layouts.h), and logits whose exponentials overflow. */
#include <math.h>

#include "../harness.h"
#include "../layouts.h"

static void configurations_agree(void **state)
{
    (void)state;
    layouts_agree("05_tensor_parallel");
}

/* exp of a logit of several hundred is infinite, so each row's largest logit over all slices is subtracted first.
 * Training with a huge learning rate makes such logits. */
static void large_logits(void **state)
{
    static const char *const programs[] = {BUILD "/cpu64/01_single_gpu",
                                           "mpiexec -n 6 " BUILD "/cpu64/05_tensor_parallel"};
    const char *shape = "--layers 1 --hidden 48 --heads 6 --vocab 97 --seq 16 --micro-batch 2 --accumulate 2 "
                        "--threads 1 --quiet";
    double loss[2], norm[2];

    (void)state;
    run_well("%s %s --data %s --steps 1 --lr 30 --warmup 1 --save large", programs[0], shape, token_file(20000, 97));
    for (int i = 0; i < 2; i++) {
        run_well("rm -f m.csv");
        run_well("%s %s --data %s --load large --steps 2 --metrics m.csv", programs[i], shape, token_file(20000, 97));
        assert_int_equal(read_column("m.csv", "loss", &loss[i], 1), 1);
        assert_int_equal(read_column("m.csv", "grad_norm", &norm[i], 1), 1);
    }
    assert_true(loss[0] > 500);
    assert_true(fabs(loss[1] / loss[0] - 1) <= 1e-9);
    assert_true(fabs(norm[1] / norm[0] - 1) <= 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(large_logits),
    };

    return cmocka_run_group_tests_name("05_tensor_parallel", tests, NULL, NULL);
}
