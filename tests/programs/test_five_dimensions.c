/* 11 with experts that are copies of an MLP against 09. */
#include <math.h>
#include <stdio.h>

#include "../harness.h"

#define DATA token_file(2880, 97)
#define MODEL "--layers 3 --hidden 48 --heads 6 --vocab 97 --seq 24 --lr 1e-3 --warmup 2 --threads 1 --quiet --data %s "

/* The losses and norms of a run's two steps behind those of `dense`. */
static void two_steps(const char *command, double losses[2], double norms[2])
{
    run_well("rm -f two.csv");
    run_well("mpiexec -n 4 " BUILD "/cpu64/%s " MODEL "--dtype fp32 --tp 2 --cp 2 --micro-batch 2 --accumulate 2 "
             "--load dense --steps 4 --metrics two.csv", command, DATA);
    assert_int_equal(read_column("two.csv", "loss", losses, 2), 2);
    assert_int_equal(read_column("two.csv", "grad_norm", norms, 2), 2);
}

/* Copies of a dense MLP, with a slot for each choice. One expert, which every token takes, is the MLP: its gate is 1.
 * Several give the same first loss; then each gets the gradients of other tokens. */
static void upcycled_models_are_dense(void **state)
{
    static const char *const copies[] = {"--experts 1 --top-k 1", "--experts 4 --top-k 2 --ep 4"};
    double losses[2], norms[2], want[2], want_norms[2];
    char command[256];

    run_well("rm -rf dense");
    run_well(BUILD "/cpu64/01_single_gpu " MODEL "--micro-batch 2 --accumulate 2 --steps 2 --save dense", DATA);
    two_steps("09_combined", want, want_norms);
    for (int k = 0; k < 2; k++) {
        snprintf(command, sizeof command, "11_five_dimensions %s --expert-width 192 --capacity 0 --balance 0 --span 6",
                 copies[k]);
        two_steps(command, losses, norms);
        for (int s = 0; s < (k ? 1 : 2); s++) {
            if (fabs(losses[s] - want[s]) > 1e-10)
                fail_msg("%s: step %d has the loss %.15g, 09 has %.15g", copies[k], s + 3, losses[s], want[s]);
            if (!k && fabs(norms[s] - want_norms[s]) > 1e-10)
                fail_msg("%s: step %d has the norm %.15g, 09 has %.15g", copies[k], s + 3, norms[s], want_norms[s]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(upcycled_models_are_dense),
    };

    return cmocka_run_group_tests_name("five_dimensions", tests, NULL, NULL);
}
