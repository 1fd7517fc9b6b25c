/* 05 against 01 (layouts.h), its error messages, and checkpoints that pass between programs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/safetensors.h"
#include "../harness.h"
#include "../layouts.h"

#define PROGRAM "05_tensor_parallel"

/* Program, options, ranks, layers, micro-batch, accumulate, recompute, full_batch, seq, hidden, heads, vocab. Neither
 * 7 rows nor a vocabulary of 97 or 101 is a multiple of the ranks. */
static const LayoutCase cases[] = {
    {PROGRAM, "", 1, 3, 3, 2, "none", true, 0, 0, 0, 0},
    {PROGRAM, "", 2, 3, 3, 2, "full", true, 0, 0, 0, 0},
    {PROGRAM, "", 3, 2, 1, 1, "selective", true, 7, 0, 0, 0},
    {PROGRAM, "", 6, 1, 1, 2, "none", true, 0, 0, 0, 0},
    {PROGRAM, "", 4, 3, 1, 1, "full", true, 0, 64, 8, 101},
    {PROGRAM, "", 8, 2, 1, 1, "none", true, 0, 64, 8, 101},
    {PROGRAM, "--sequence-parallel", 1, 2, 2, 1, "full", true, 0, 0, 0, 0},
    {PROGRAM, "--sequence-parallel", 2, 3, 3, 2, "selective", true, 0, 0, 0, 0},
    {PROGRAM, "--sequence-parallel", 3, 2, 3, 1, "full", true, 0, 0, 0, 0},
    {PROGRAM, "--sequence-parallel", 6, 1, 3, 1, "none", true, 0, 0, 0, 0},
    {PROGRAM, "--sequence-parallel", 8, 3, 1, 2, "none", true, 0, 64, 8, 101},
};

static void configurations_agree(void **state)
{
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
    layout_print_worst(state);
}

static void all_configurations_agree(void **state)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    static const char *const sequence[] = {"", "--sequence-parallel"};
    static const int ranks[] = {1, 2, 3, 4, 6, 8};

    if (!full_tests())
        skip();
    for (int n = 0; n < 6; n++)
        for (int k = 0; k < 3; k++)
            for (int s = 0; s < 2; s++)
                for (int accumulate = 1; accumulate <= 2; accumulate++) {
                    const bool by_eight = 8 % ranks[n] == 0;
                    layout_compare(&(LayoutCase){PROGRAM, sequence[s], ranks[n], 3, 3, accumulate, recompute[k], true,
                                                 16, by_eight ? 64 : 48, by_eight ? 8 : 6, 97});
                }
    layout_print_worst(state);
}

/* Each program resumes from the checkpoint of the previous one, on another number of ranks. The losses are those of one
 * uninterrupted run. */
static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks, accumulate;
        const char *program;
    } ways[] = {{4, 12, PROGRAM}, {1, 12, "01_single_gpu"}, {3, 4, "04_zero --zero 3"},
                {2, 12, PROGRAM " --sequence-parallel"}, {8, 12, PROGRAM}};
    char gradients[256], losses[256];
    double a[LAYOUT_STEPS], b[LAYOUT_STEPS];

    (void)state;
    if (!full_tests())                          /* test_layouts.c saves and loads with 05 */
        skip();
    layout_reference(&(LayoutCase){.ranks = 1, .layers = 3, .micro_batch = 12, .accumulate = 1, .hidden = 64,
                                   .heads = 8}, gradients, losses);
    for (int i = 0; i < 5; i++)
        run_well("mpiexec -n %d " BUILD "/cpu64/%s --layers 3 --hidden 64 --heads 8 --vocab 97 --seq 16 --lr 1e-3 "
                 "--warmup 3 --micro-batch 1 --accumulate %d --steps %d --data %s --quiet --save crossing "
                 "--metrics crossing.csv %s", ways[i].ranks, ways[i].program, ways[i].accumulate, 3 * (i + 1),
                 token_file(20000, 97), i ? "--load crossing" : "");
    assert_int_equal(read_column(in_temporary("crossing.csv"), "loss", a, LAYOUT_STEPS), 15);
    assert_int_equal(read_column(losses, "loss", b, LAYOUT_STEPS), LAYOUT_STEPS);
    for (int s = 0; s < 15; s++)
        if (!(fabs(a[s] - b[s]) <= 1e-9 * b[s]))
            fail_msg("the loss of step %d is %.17g, but %.17g without interruptions", s + 1, a[s], b[s]);
}

/* exp of a logit of several hundred is infinite, so each row's largest logit over all slices is subtracted first. */
static void large_logits(void **state)
{
    static const char *const programs[] = {BUILD "/cpu64/01_single_gpu", "mpiexec -n 6 " BUILD "/cpu64/" PROGRAM};
    const char *shape = "--layers 1 --hidden 48 --heads 6 --vocab 97 --seq 16 --lr 1e-3 --micro-batch 2 --accumulate 2 "
                        "--threads 1 --quiet";
    double weights[48], loss[2], norm[2];
    Safetensors file;

    (void)state;
    run_well(BUILD "/cpu64/01_single_gpu %s --data %s --steps 1 --save large", shape, token_file(20000, 97));
    assert_null(safetensors_open(&file, in_temporary("large/model.safetensors")));
    const SafeTensor *t = safetensors_find(&file, "gpt_neox.final_layer_norm.weight");
    assert_null(safetensors_read(&file, t, 0, 48, weights, true));
    for (int i = 0; i < 48; i++)
        weights[i] *= 2000;
    FILE *f = fopen(in_temporary("large/model.safetensors"), "r+b");
    fseek(f, t->first_byte, SEEK_SET);
    fwrite(weights, sizeof *weights, 48, f);
    fclose(f);
    free(safetensors_close(&file, false));
    for (int i = 0; i < 2; i++) {
        run_well("rm -f m.csv");
        run_well("%s %s --data %s --load large --steps 2 --metrics m.csv", programs[i], shape, token_file(20000, 97));
        assert_int_equal(read_column(in_temporary("m.csv"), "loss", &loss[i], 1), 1);
        assert_int_equal(read_column(in_temporary("m.csv"), "grad_norm", &norm[i], 1), 1);
    }
    assert_true(loss[0] > 500);
    assert_true(fabs(loss[1] / loss[0] - 1) <= 1e-9);
    assert_true(fabs(norm[1] / norm[0] - 1) <= 1e-9);
}

static void what_cannot_be_split_is_refused(void **state)
{
    (void)state;
    Result r = run("mpiexec -n 4 " BUILD "/cpu/" PROGRAM " --hidden 48 --heads 6 --quiet");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "--heads 6 cannot be divided over 4 ranks; 1, 2, 3, 6 could"));
    result_free(r);
    r = run("mpiexec -n 2 " BUILD "/cpu/" PROGRAM " --hidden 48 --heads 6 --seq 7 --micro-batch 1 --sequence-parallel "
            "--quiet");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "--micro-batch x --seq = 7 cannot be divided over 2 ranks; 1, 7 could"));
    result_free(r);
    r = run("mpiexec -n 4 " BUILD "/cpu/" PROGRAM " --vocab 3 --data %s --quiet", token_file(2000, 3));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "--vocab 3: expected at least 4, one token per rank"));
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(large_logits),
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(all_configurations_agree),
    };

    return cmocka_run_group_tests_name("05_tensor_parallel", tests, NULL, NULL);
}
