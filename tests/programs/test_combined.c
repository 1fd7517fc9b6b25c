/* 09 against 01 (layouts.h) and against the program of each direction; its checkpoints, precision, error messages. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "../layouts.h"

#define FP32 "--dtype fp32 "
#define SHAPE "--layers 5 --hidden 48 --heads 6 --vocab 97 --seq 48 --lr 1e-3 --warmup 3 --quiet"

/* A covering subset: 2 x 2 x 2 without each direction in turn; both --zero; both --recompute; fewer micro-batches than
 * pipeline stages; rows that are no multiple of the ranks, or of the 256 rows in a slice of the loss. */
static const LayoutCase cases[] = {
    {"09_combined", FP32 "--tp 2 --cp 2 --pp 2", 8, 3, 1, 2, "none", .seq = 24, .dp = 1},
    {"09_combined", FP32 "--tp 2 --cp 2", 8, 2, 3, 1, "full", .seq = 24, .dp = 2},
    {"09_combined", FP32 "--tp 2 --pp 2 --zero 0", 8, 3, 1, 3, "none", .dp = 2},
    {"09_combined", FP32 "--cp 2 --pp 2 --dp 2", 8, 3, 3, 1, "none", .dp = 2},
    {"09_combined", FP32 "--pp 3 --cp 2", 6, 5, 1, 4, "full", .seq = 24, .dp = 1},
    {"09_combined", FP32 "--tp 3", 6, 1, 2, 1, "none", .seq = 150, .dp = 2},
    {"09_combined", FP32 "--cp 8 --zero 0", 8, 1, 1, 2, "none", .seq = 32, .dp = 1},
    {"09_combined", FP32 "--pp 8", 8, 9, 1, 3, "full", .dp = 1},
    {"09_combined", FP32, 1, 2, 3, 2, "full", .dp = 1},
};

static void configurations_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
}

/* Every factorization of 1 to 8 ranks into four directions; the other options alternate. */
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
                        /* heads and tokens for tp, layers for pp, an even number of tokens per rank of cp */
                        layout_compare(&(LayoutCase){"09_combined", options, n, p + 1, 1 + k, grids % 3 + 1 + k,
                                                     (grids / 2 + k) % 2 ? "full" : "none", .dp = n / (t * c * p),
                                                     .seq = 2 * c * t * (t < 4 ? 3 : 1), .heads = t, .hidden = 8 * t});
                    }
                    grids++;
                }
    print_message("%d grids\n", grids);
    assert_int_equal(grids, 63);
}

/* One direction alone gives the gradients of that direction's own program, up to the order of additions. */
static void one_direction_is_its_program(void **state)
{
    static const char *const pairs[][2] = {
        {"--tp 3 --micro-batch 2 --accumulate 2",
         "05_tensor_parallel --sequence-parallel --micro-batch 2 --accumulate 2"},
        {"--pp 3 --micro-batch 1 --accumulate 4", "06_pipeline_parallel --micro-batch 1 --accumulate 4"},
        {"--cp 3 --micro-batch 2 --accumulate 2", "07_context_parallel --micro-batch 2 --accumulate 2"},
        {"--dp 3 --micro-batch 1 --accumulate 2", "04_zero --zero 1 --micro-batch 1 --accumulate 2"}};
    char worst[128];

    (void)state;
    if (!full_tests())                          /* configurations_agree has compared both with 01 */
        skip();
    for (int i = 0; i < 4; i++) {
        run_well("mpiexec -n 3 " BUILD "/cpu64/09_combined " SHAPE " --dtype fp32 %s --steps 1 --data %s "
                 "--dump-gradients 09.safetensors", pairs[i][0], token_file(20000, 97));
        run_well("mpiexec -n 3 " BUILD "/cpu64/%s " SHAPE " --steps 1 --data %s --dump-gradients own.safetensors",
                 pairs[i][1], token_file(20000, 97));
        const double d = compare_gradients(in_temporary("09.safetensors"), in_temporary("own.safetensors"), 6, worst);
        if (!(d <= 1e-13))
            fail_msg("%s and %s: the gradient of %s differs by %g", pairs[i][0], pairs[i][1], worst, d);
    }
}

/* Checkpoints go from one grid to another and through other programs; the losses are those of one uninterrupted run. */
static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks;
        const char *program;
    } ways[] = {{1, "01_single_gpu --micro-batch 12 --accumulate 1"},
                {8, "09_combined --dtype fp32 --tp 2 --cp 2 --pp 2 --micro-batch 3 --accumulate 4"},
                {3, "05_tensor_parallel --micro-batch 12 --accumulate 1"},
                {8, "09_combined --dtype fp32 --pp 4 --dp 2 --micro-batch 2 --accumulate 3"},
                {2, "04_zero --zero 3 --micro-batch 6 --accumulate 1"},
                {1, "01_single_gpu --micro-batch 12 --accumulate 1"}};
    enum { WAYS = sizeof ways / sizeof *ways, LOSSES = 2 * WAYS };
    char gradients[256], losses[256];
    double a[LOSSES], b[LAYOUT_STEPS];

    (void)state;
    layout_reference(&(LayoutCase){.layers = 5, .micro_batch = 12, .accumulate = 1, .seq = 48, .dp = 1}, gradients,
                     losses);
    for (int i = 0; i < WAYS; i++)
        run_well("mpiexec -n %d " BUILD "/cpu64/%s " SHAPE " --steps %d --data %s --save crossing --metrics "
                 "crossing.csv %s", ways[i].ranks, ways[i].program, 2 * (i + 1), token_file(20000, 97),
                 i ? "--load crossing" : "");
    assert_int_equal(read_column(in_temporary("crossing.csv"), "loss", a, LOSSES), LOSSES);
    assert_int_equal(read_column(losses, "loss", b, LAYOUT_STEPS), LAYOUT_STEPS);
    for (int s = 0; s < LOSSES; s++)
        if (!(fabs(a[s] - b[s]) <= 1e-10 * b[s]))
            fail_msg("the loss of step %d is %.17g, but %.17g without interruptions", s + 1, a[s], b[s]);
}

/* Each rank evaluates its sequence chunks of the validation tokens, one pipeline stage after another. The loss is
 * 01's. */
static void evaluation_is_01s(void **state)
{
    static const char *const grids[] = {"--tp 2 --cp 2 --pp 2", "--pp 3 --dp 2", "--cp 3 --tp 2"};

    (void)state;
    run_well(BUILD "/cpu64/01_single_gpu " SHAPE " --data %s --steps 2 --eval-every 1 --micro-batch 8 --accumulate 1 "
             "--report r.json", token_file(20000, 97));
    for (int i = 0; i < (full_tests() ? 3 : 1); i++) {
        run_well("mpiexec -n %d " BUILD "/cpu64/09_combined " SHAPE " --dtype fp32 --data %s --steps 2 --eval-every 1 "
                 "--micro-batch %d --accumulate 2 %s --check --report 09.json", i ? 6 : 8, token_file(20000, 97),
                 i == 1 ? 2 : 4, grids[i]);
        for (int k = 0; k < 2; k++) {
            char path[64];
            snprintf(path, sizeof path, "held_out.%d.loss", k);
            const double want = json_number(in_temporary("r.json"), path);
            const double is = json_number(in_temporary("09.json"), path);
            if (!(fabs(is - want) <= 1e-10 * want))
                fail_msg("%s: a validation loss of %.17g, but %.17g in 01", grids[i], is, want);
        }
    }
}

/* ---- bf16 ---- */

#define MODEL "--layers 4 --hidden 64 --heads 4 --vocab 97 --seq 64 --quiet --threads 1 "

/* The largest relative difference of any tensor, by norm, of a dump's gradients from float64's. */
static double distance(const char *dump)
{
    return compare_gradients_by_norm(in_temporary(dump), in_temporary("exact.safetensors"), 4, NULL);
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

    (void)state;
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

/* The mean of the last 20 of 300 losses on this repository's text. */
static double loss_after_300(const char *command)
{
    double loss[300], mean = 0;

    run_well("%s --preset tiny --seq 32 --steps 300 --lr 3e-4 --quiet --threads 1 --metrics 300.csv", command);
    assert_int_equal(read_column(in_temporary("300.csv"), "loss", loss, 300), 300);
    for (int i = 280; i < 300; i++)
        mean += loss[i] / 20;
    return mean;
}

static void bf16_trains_as_02_does(void **state)
{
    (void)state;
    if (!full_tests())
        skip();
    const double of_02 = loss_after_300(BUILD "/cpu/02_mixed_precision --micro-batch 8 --accumulate 1");
    const double of_09 = loss_after_300("mpiexec -n 8 " BUILD "/cpu/09_combined --tp 2 --cp 2 --pp 2 --micro-batch 4 "
                                        "--accumulate 2");
    print_message("after 300 steps: %.4f, %+.3f%% of 02's loss\n", of_09, 100 * (of_09 / of_02 - 1));
    assert_true(fabs(of_09 / of_02 - 1) <= 0.01);
}

/* ---- Refused options ---- */

static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        int status;
        const char *options, *message;
    } cases[] = {
        {2, "--tp 3", "--tp 3 x --cp 1 x --pp 1: expected a divisor of 4, the number of ranks, got 3; start a multiple "
                      "of 3, or choose factors of 4"},
        {2, "--tp 2 --dp 4", "--tp 2 x --cp 1 x --pp 1 x --dp 4: expected 4, the number of ranks, got 8; start 8, or "
                             "choose factors of 4"},
        {2, "--tp 65536 --cp 65536 --pp 65536", "expected a divisor of 4, the number of ranks, got 281474976710656"},
        {2, "--tp 65536 --cp 65536 --pp 65536 --dp 65536", "got 18446744073709551616; start"},
        {2, "--zero 2", "--zero: expected an integer from 0 to 1, got '2'"},
        {1, "--tp 4 --heads 6", "--tp: --heads 6 cannot be divided over 4 ranks; 1, 2, 3, 6 could"},
        {1, "--tp 4 --heads 4 --seq 5 --micro-batch 1",
         "--tp: --micro-batch x --seq / --cp = 5 cannot be divided over 4 ranks; 1, 5 could"},
        {1, "--cp 4 --seq 20",
         "--seq: expected a multiple of 8 (4 ranks of --cp x 2 sequence chunks), got 20; try 24"},
        {1, "--pp 4 --layers 3", "--layers: expected at least 4, one per pipeline stage (--pp), got 3"},
        {1, "--tp 4 --heads 4 --vocab 3 --data three.bin",
         "--vocab: expected at least 4, one token per rank of --tp, got 3"},
    };

    (void)state;
    run_well("cp %s three.bin", token_file(20000, 3));
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        Result r = run("mpiexec -n 4 " BUILD "/cpu64/09_combined --data %s --hidden 48 %s", token_file(20000, 97),
                       cases[i].options);
        if (r.status != cases[i].status || !strstr(r.err, cases[i].message))
            fail_msg("%s: status %d and \"%s\", not \"%s\"", cases[i].options, r.status, r.err, cases[i].message);
        result_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(one_direction_is_its_program),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(evaluation_is_01s),
        cmocka_unit_test(bf16_is_as_near_as_02s),
        cmocka_unit_test(bf16_trains_as_02_does),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(all_grids_agree),
    };

    return cmocka_run_group_tests_name("combined", tests, NULL, layout_print_worst);
}
