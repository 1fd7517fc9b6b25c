/* 11 against 10 on one rank (equivalence.h), and with experts that are copies of an MLP against 09. */
#include <math.h>
#include <stdio.h>

#include "../harness.h"
#include "../equivalence.h"

#define DATA token_file(2880, 97)
#define MODEL "--layers 3 --hidden 48 --heads 6 --vocab 97 --seq 24 --lr 1e-3 --warmup 2 --threads 1 --quiet --data %s "

static void configurations_agree(void **state)
{
    agrees_with_01("11_five_dimensions");
}

/* Every way to split 1 to 8 ranks into tp, cp, pp and dp, with one of the largest three ep; the other options
 * alternate. */
static void all_grids_agree(void **state)
{
    int grids = 0;

    if (!full_tests())
        skip();
    for (int n = 1; n <= 8; n++)
        for (int t = 1; t <= n; t++)
            for (int c = 1; c <= n / t; c++)
                for (int p = 1; p <= n / t / c; p++) {
                    char options[128], model[128];
                    int ep = n / p;
                    if (n % (t * c * p))
                        continue;
                    for (int smaller = grids % 3; smaller && ep > 1; smaller--)
                        do
                            ep--;
                        while (n / p % ep);
                    snprintf(options, sizeof options, "--dtype fp32 --tp %d --cp %d --pp %d --ep %d --zero %d", t, c, p,
                             ep, grids % 2);
                    snprintf(model, sizeof model, "--experts %d --top-k %d --balance 0.1 --capacity 0.8 --span %d",
                             2 * ep, 1 + grids / 2 % 2, 2 * (grids % 3 + 1));
                    compare_with_01(&(Configuration){
                        "11_five_dimensions", options, n, p + 1, 1, grids / 3 % 3 + 1, grids / 4 % 2 ? "full" : "none",
                        .dp = n / (t * c * p), .seq = 24 * c * t, .heads = t, .hidden = 8 * t, .model = model});
                    grids++;
                }
    print_message("%d grids\n", grids);
    assert_int_equal(grids, 63);
}

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
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(upcycled_models_are_dense),
        cmocka_unit_test(all_grids_agree),
    };

    return cmocka_run_group_tests_name("five_dimensions", tests, NULL, NULL);
}
