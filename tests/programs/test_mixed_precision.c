/* 02 in each type: gradients equal float64's within the type's precision, and memory equals the formula to the byte.
 * Without master weights or a loss scale the loss is higher. An overflow skips its step and changes nothing else.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"

#define MIXED BUILD "/cpu/02_mixed_precision"
#define SINGLE BUILD "/cpu/01_single_gpu"
#define SINGLE64 BUILD "/cpu64/01_single_gpu"

#define SHAPE "--layers 3 --hidden 48 --heads 3 --seq 64 --lr 1e-3 --quiet --threads 1"

static const struct {
    const char *options;
    double tolerance;               /* of gradients, by their norm */
    double memory[4];               /* bytes per parameter: weights, master, gradients, AdamW */
} types[] = {
    {"--dtype fp32", 1e-4, {4, 0, 4, 8}},
    {"--dtype bf16", 3e-2, {2, 4, 4, 8}},
    {"--dtype bf16 --gradients bf16", 3e-2, {2, 4, 2, 8}},
    {"--dtype bf16 --master none", 3e-2, {2, 0, 4, 8}},
    {"--dtype fp16", 3e-2, {2, 4, 4, 8}},
    {"--dtype fp16 --master none", 3e-2, {2, 0, 4, 8}},
    {"--dtype fp8", 0.25, {2, 4, 4, 8}},
    {"--dtype fp8 --gradients bf16", 0.25, {2, 4, 2, 8}},
};
enum { TYPES = sizeof types / sizeof *types };

/* Every --recompute gives the same bits, because recomputed activations are rounded in the same way. */
static void gradients_and_memory_of_each_type(void **state)
{
    static const char *const modes[] = {"none", "selective", "full"};
    const int ln = 4, N = 256 * 48 + 3 * (12 * 48 * 48 + 13 * 48) + 2 * 48;
    char worst[128] = "";

    run_well(SINGLE64 " " SHAPE " --micro-batch 4 --accumulate 2 --steps 1 --dump-gradients reference.st");
    for (int i = 0; i < TYPES; i++) {
        for (int m = 0; m < 3; m++) {
            result_free(run("rm -f %s.st r.json", modes[m]));
            run_well(MIXED " " SHAPE
                           " %s --micro-batch 4 --accumulate 2 --steps 1 --recompute %s --dump-gradients %s.st "
                           "--report r.json",
                     types[i].options, modes[m], modes[m]);
            static const char *const categories[] = {"parameters", "master", "gradients", "optimizer"};
            for (int c = 0; c < 4; c++)
                assert_true(json_number("r.json", "ranks.0.memory.%s.measured", categories[c])
                            == types[i].memory[c] * N);
            if (m == 0) {       /* half of 01's activations, except statistics and lse, which stay in fp32 */
                const double R = 256, H = 48, L = 3, width = i ? 2 : 4;
                const double big = R * (4 * H * (L + 1) / 4 + L * (7 * H + 8 * H) + L * 3 * 64 + H + 256);
                const double fine = R * (L * ln + 2 + 1);
                assert_true(json_number("r.json", "ranks.0.memory.activations.measured")
                            == width * big + 4 * fine);
            } else {
                assert_true(compare_gradients(in_temporary("%s.st", modes[m]), "none.st", 3, NULL) == 0);
            }
        }
        const double d = compare_gradients_by_norm("none.st", "reference.st", 3, worst);
        print_message("%s: %.2g from float64's gradients (%s)\n", types[i].options, d, worst);
        if (!(d <= types[i].tolerance))
            fail_msg("%s: %s is %g from float64's, by its norm", types[i].options, worst, d);
        if (i && d < 1e-4)
            fail_msg("%s: gradients are within %g of float64's: nothing was rounded", types[i].options, d);
    }
}

/* With scales per tile, gradients are as near to float64's as with one scale per tensor, in E4M3 alone. */
static void tiles_are_as_near(void **state)
{
    static const char *const programs[] = {MIXED, BUILD "/cpu/08_fused_kernels"};
    static const char *const scalings[] = {"tensor", "tile", "mx"};
    const char *shape = "--layers 3 --hidden 128 --heads 4 --seq 64 --micro-batch 4 --accumulate 2 --steps 1 --quiet";
    char worst[128] = "";

    run_well(SINGLE64 " %s --dump-gradients reference.st", shape);
    for (int p = 0; p < 2; p++)
        for (int s = 0; s < 3; s++) {
            run_well("rm -f a.st b.st");
            run_well("%s %s --dtype fp8 --fp8-scaling %s --dump-gradients a.st", programs[p], shape, scalings[s]);
            run_well("%s %s --dtype fp8 --fp8-scaling %s --recompute full --dump-gradients b.st", programs[p], shape,
                     scalings[s]);
            assert_true(compare_gradients(in_temporary("a.st"), "b.st", 4, NULL) == 0);
            const double d = compare_gradients_by_norm("a.st", "reference.st", 4, worst);
            print_message("%s, --fp8-scaling %s: %.2g from float64's gradients (%s)\n", p ? "08" : "02", scalings[s], d,
                          worst);
            if (!(d <= 0.25 && d > 1e-3))
                fail_msg("--fp8-scaling %s: %s is %g from float64's, by its norm", scalings[s], worst, d);
        }
    /* 64 rows: fp8 needs 128 */
    expect(run(MIXED " --layers 1 --hidden 128 --seq 64 --micro-batch 1 --steps 1 --dtype fp8 --fp8-scaling tile"), 0,
           "fp8 matmuls need multiples of 128: those of 64 rows and --hidden 128 stay in bf16");
}

/* The mean of the last 20 of 300 losses. */
static double loss_after_300(const char *options)
{
    double loss[300], mean = 0;

    run_well(MIXED " --preset tiny --seq 32 --steps 300 --lr 3e-4 --quiet --threads 1 --metrics 300.csv %s", options);
    assert_int_equal(read_column("300.csv", "loss", loss, 300), 300);
    for (int i = 280; i < 300; i++)
        mean += loss[i] / 20;
    return mean;
}

/* A loss scale of 1/1024 has the effect of a batch 1024 times larger, whose mean scales each token's gradient down. */
static void training_in_each_type(void **state)
{
    const double fp32 = loss_after_300("--dtype fp32");
    static const struct { const char *options; double least, most; } cases[] = {
        {"--dtype bf16", -0.01, 0.01},
        {"--dtype fp8", -0.03, 0.03},
        {"--dtype bf16 --master none", 0.015, 1},
        {"--dtype fp16 --loss-scale 0.0009765625 --loss-scale-growth 0", 0.05, 1},
    };

    assert_true(fp32 < 3.3);                             /* it has learned: a uniform distribution has 5.5 */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double d = loss_after_300(cases[i].options) / fp32 - 1;
        print_message("%s: %+.2f%% of fp32's loss\n", cases[i].options, 100 * d);
        if (!(d >= cases[i].least && d <= cases[i].most))
            fail_msg("%s: the loss is %g times fp32's %g, but %g to %g was expected", cases[i].options, 1 + d, fp32,
                     1 + cases[i].least, 1 + cases[i].most);
    }
}

/* verify makes a step overflow: it changes the loss scale alone, so the following steps are as without it. */
static void an_overflow_skips_its_step(void **state)
{
    double scale[60], norm[60];

    expect(run(BUILD "/cpu64/verify 02_mixed_precision " BUILD "/cpu64/02_mixed_precision"), 0,
           "--dtype fp16, overflow: correct");
    /* resumed with --loss-scale-growth 3 after 4 clean steps: the scale doubles at once */
    run_well(MIXED " " SHAPE " --dtype fp16 --steps 4 --loss-scale 8 --save clean");
    run_well(MIXED " " SHAPE " --dtype fp16 --steps 5 --loss-scale-growth 3 --load clean --save clean");
    assert_true(json_number("clean/step-5/trainer.json", "loss_scale") == 16);
    /* doubled after --loss-scale-growth clean steps, counted anew from then and from an overflow; with 0 never */
    for (int g = 0; g < 5; g += 4) {
        run_well("rm -f g.csv");
        Result r = run(MIXED " --layers 1 --hidden 16 --heads 1 --seq 16 --micro-batch 2 --accumulate 1 --threads 1 "
                       "--dtype fp16 --steps 60 --loss-scale 4194304 --loss-scale-growth %d --metrics g.csv", g);
        assert_int_equal(read_column("g.csv", "loss_scale", scale, 60), 60);
        assert_int_equal(read_column("g.csv", "grad_norm", norm, 60), 60);
        int clean = 0, doubled = 0, halved = 0;
        for (int i = 0; i < 60; i++) {
            const double before = i ? scale[i - 1] : 4194304;
            clean = isfinite(norm[i]) ? clean + 1 : 0;
            assert_true(scale[i] == (!clean ? 0.5 : g && clean % g == 0 ? 2 : 1) * before);
            doubled += scale[i] > before, halved += scale[i] < before;
            char line[64];
            snprintf(line, sizeof line, "step %d: Inf or NaN", i + 1);
            assert_true((strstr(r.out, line) != NULL) == !clean);
        }
        assert_true(halved > 1 && (g ? doubled > 2 : doubled == 0));
        expect(r, 0, "");
    }
}

/* 3 steps and 3 more after a checkpoint equal 6, in weights, moments and loss scale. Every type, and 01, can resume
 * from the checkpoint of every other. */
static void checkpoints_cross(void **state)
{
    for (int i = 0; i < TYPES; i++) {
        const bool fp16 = strstr(types[i].options, "fp16");
        const char *scale = fp16 ? "--loss-scale 67108864" : "", *growth = fp16 ? "--loss-scale-growth 2" : "";
        run_well(MIXED " " SHAPE " %s %s %s --seed 7 --steps 6 --save six", types[i].options, scale, growth);
        run_well(MIXED " " SHAPE " %s %s %s --seed 7 --steps 3 --save three%d", types[i].options, scale, growth, i);
        run_well(MIXED " " SHAPE " %s %s --steps 6 --load three%d --save more", types[i].options, growth, i);
        run_well("cmp six/step-6/model.safetensors more/step-6/model.safetensors");
        run_well("cmp six/step-6/optimizer.safetensors more/step-6/optimizer.safetensors");
        if (fp16)
            assert_true(json_number("six/step-6/trainer.json", "loss_scale")
                        == json_number("more/step-6/trainer.json", "loss_scale"));
        run_well("rm -r six more");
    }
    for (int from = 0; from < TYPES; from++) {
        double want, loss;
        run_well(SINGLE " " SHAPE " --steps 4 --load three%d --metrics go.csv", from);
        assert_int_equal(read_column("go.csv", "loss", &want, 1), 1);
        for (int i = 0; i < (full_tests() ? TYPES : 1); i++) {
            const int to = (from + 1 + i) % TYPES;
            run_well("rm go.csv");              /* fp16 has other columns */
            run_well(MIXED " " SHAPE " %s --steps 4 --load three%d --metrics go.csv", types[to].options, from);
            assert_int_equal(read_column("go.csv", "loss", &loss, 1), 1);
            if (!(fabs(loss - want) <= 0.01 * want))
                fail_msg("%s resuming from %s: loss %g, but 01 has %g", types[to].options, types[from].options, loss,
                         want);
        }
        run_well("rm go.csv");
    }
}

#define WIDER "--layers 4 --hidden 64 --heads 4 --vocab 97 --seq 64 --quiet --threads 1 "

/* 09 rounds more often than 02: partial sums over tp are in bf16, and so are the activations and gradients it sends. */
static void bf16_in_09_is_as_near(void **state)
{
    static const struct {
        int ranks;
        const char *grid;
    } grids[] = {{8, "--tp 2 --cp 2 --pp 2 --micro-batch 4 --accumulate 2"}, {2, "--tp 2 --micro-batch 8"},
                 {2, "--cp 2 --micro-batch 8"}, {2, "--pp 2 --micro-batch 2 --accumulate 4"},
                 {2, "--dp 2 --micro-batch 4"}, {8, "--cp 8 --micro-batch 8"}};

    run_well(BUILD "/cpu64/01_single_gpu " WIDER "--data %s --steps 1 --micro-batch 8 --accumulate 1 "
             "--dump-gradients exact.safetensors", token_file(20000, 97));
    run_well(BUILD "/cpu/02_mixed_precision " WIDER "--data %s --steps 1 --micro-batch 8 --accumulate 1 --dtype bf16 "
             "--dump-gradients 02.safetensors", token_file(20000, 97));
    const double of_02 = compare_gradients_by_norm("02.safetensors", "exact.safetensors", 4, NULL);
    for (unsigned i = 0; i < (full_tests() ? sizeof grids / sizeof *grids : 1); i++) {
        run_well("mpiexec -n %d " BUILD "/cpu/09_combined " WIDER "--data %s --steps 1 --accumulate 1 %s --check "
                 "--dump-gradients 09.safetensors", grids[i].ranks, token_file(20000, 97), grids[i].grid);
        const double d = compare_gradients_by_norm("09.safetensors", "exact.safetensors", 4, NULL);
        print_message("%s: %.2e from float64, %.2f times 02's %.2e\n", grids[i].grid, d, d / of_02, of_02);
        if (!(d <= 1.5 * of_02))
            fail_msg("%s: gradients in bf16 are %g from float64's, and 02's %g", grids[i].grid, d, of_02);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_and_memory_of_each_type),
        cmocka_unit_test(tiles_are_as_near),
        cmocka_unit_test(training_in_each_type),
        cmocka_unit_test(an_overflow_skips_its_step),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(bf16_in_09_is_as_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
