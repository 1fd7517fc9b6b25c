/* Every layout computes what one rank computes: against 01 with the same global batch, in float64, gradients of step 1
 * per tensor (q, k and v apart) within 1e-10, 20 losses within 1e-9; and on every rank memory and traffic are what
 * predict() said. All runs with --check, which also compares replicas bit for bit after every step.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { STEPS = 20, HEADS = 6 };

/* 6 heads of 8, a prime vocabulary, numbers of layers and parameters that ranks don't divide. */
#define SHAPE "--hidden 48 --heads 6 --vocab 97 --seq 16 --lr 1e-3 --warmup 3"

typedef struct {
    const char *stage, *options;
    int ranks, layers, micro_batch, accumulate;
    const char *recompute;
} Case;

static double worst_gradient, worst_loss;

static void reference(int layers, int sequences, char *gradients, char *losses)
{
    char name[64];

    snprintf(name, sizeof name, "reference_%d_%d.safetensors", layers, sequences);
    strcpy(gradients, in_temporary(name));
    snprintf(name, sizeof name, "reference_%d_%d.csv", layers, sequences);
    strcpy(losses, in_temporary(name));
    Result there = run("test -e %s", losses);
    if (there.status)
        run_well(BUILD "/cpu64/01_single_gpu " SHAPE " --layers %d --micro-batch 1 --accumulate %d --steps %d --data %s "
                 "--quiet --dump-gradients %s --metrics %s", layers, sequences, STEPS, token_file(20000, 97), gradients,
                 losses);
    result_free(there);
}

/* Of every rank: each category's bytes, each operation's calls and bytes. */
static void check_report(const Case *c)
{
    static const char *const categories[] = {"parameters", "master", "gradients", "optimizer", "activations",
                                             "communication", "workspace"};
    char path[128];

    for (int r = 0; r < c->ranks; r++) {
        for (int k = 0; k < 7; k++) {
            snprintf(path, sizeof path, "ranks.%d.memory.%s.measured", r, categories[k]);
            const double measured = json_number(in_temporary("r.json"), path);
            snprintf(path, sizeof path, "ranks.%d.memory.%s.predicted", r, categories[k]);
            if (measured != json_number(in_temporary("r.json"), path))
                fail_msg("%s %s, rank %d: %s %.0f bytes, predicted %.0f", c->stage, c->options, r, categories[k],
                         measured, json_number(in_temporary("r.json"), path));
        }
        snprintf(path, sizeof path, "ranks.%d.comm", r);
        char *op;
        for (int k = 0; (op = json_text(in_temporary("r.json"), path, k, "op")); k++) {
            char field[160];
            double value[4];
            static const char *const names[] = {"calls", "predicted_calls", "bytes", "predicted"};
            for (int i = 0; i < 4; i++) {
                snprintf(field, sizeof field, "%s.%d.%s", path, k, names[i]);
                value[i] = json_number(in_temporary("r.json"), field);
            }
            if (value[0] != value[1] || value[2] != value[3])
                fail_msg("%s %s, rank %d: %s, %.0f calls and %.0f bytes, predicted %.0f and %.0f", c->stage, c->options,
                         r, op, value[0], value[2], value[1], value[3]);
            free(op);
        }
    }
}

static void compare(const Case *c)
{
    char gradients[256], losses[256], worst[128] = "", name[512];
    double a[STEPS], b[STEPS];

    snprintf(name, sizeof name, "%d x %s %s --layers %d --micro-batch %d --accumulate %d --recompute %s", c->ranks,
             c->stage, c->options, c->layers, c->micro_batch, c->accumulate, c->recompute);
    reference(c->layers, c->micro_batch * c->accumulate * c->ranks, gradients, losses);
    run_well("mpiexec -n %d " BUILD "/cpu64/%s " SHAPE " %s --layers %d --micro-batch %d --accumulate %d --recompute %s "
             "--steps %d --data %s --quiet --check --dump-gradients g.safetensors --metrics m.csv --report r.json",
             c->ranks, c->stage, c->options, c->layers, c->micro_batch, c->accumulate, c->recompute, STEPS,
             token_file(20000, 97));
    const double d = compare_gradients(in_temporary("g.safetensors"), gradients, HEADS, worst);
    if (!(d <= 1e-10))
        fail_msg("%s: the gradient of %s differs by %g", name, worst, d);
    worst_gradient = fmax(worst_gradient, d);
    assert_int_equal(read_column(in_temporary("m.csv"), "loss", a, STEPS), STEPS);
    assert_int_equal(read_column(losses, "loss", b, STEPS), STEPS);
    for (int s = 0; s < STEPS; s++) {
        if (!(fabs(a[s] - b[s]) <= 1e-9 * b[s]))
            fail_msg("%s: the loss of step %d is %.17g, but %.17g in 01", name, s + 1, a[s], b[s]);
        worst_loss = fmax(worst_loss, fabs(a[s] - b[s]) / b[s]);
    }
    check_report(c);
}

/* A covering subset: every option, rank count, recomputation and accumulation somewhere, pairs covered. */
static const Case cases[] = {
    {"03_data_parallel", "--sync naive", 2, 3, 3, 2, "none"},
    {"03_data_parallel", "--sync overlap", 3, 3, 1, 1, "selective"},
    {"03_data_parallel", "--sync bucket --bucket-mb 0.05", 4, 2, 1, 3, "full"},
    {"03_data_parallel", "--sync bucket", 8, 1, 1, 1, "none"},
    {"03_data_parallel", "--sync naive", 1, 3, 3, 1, "full"},
    {"04_zero", "--zero 1", 2, 3, 3, 1, "full"},
    {"04_zero", "--zero 1", 8, 2, 1, 2, "none"},
    {"04_zero", "--zero 2", 3, 1, 1, 2, "selective"},
    {"04_zero", "--zero 2", 4, 3, 1, 1, "full"},
    {"04_zero", "--zero 3", 1, 2, 3, 2, "selective"},
    {"04_zero", "--zero 3", 3, 5, 1, 3, "full"},
    {"04_zero", "--zero 3", 8, 3, 1, 1, "none"},
};

static void layouts_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        compare(&cases[i]);
}

static void all_layouts_agree(void **state)
{
    static const char *const stages[][2] = {
        {"03_data_parallel", "--sync naive"}, {"03_data_parallel", "--sync overlap"},
        {"03_data_parallel", "--sync bucket --bucket-mb 0.05"}, {"04_zero", "--zero 1"}, {"04_zero", "--zero 2"},
        {"04_zero", "--zero 3"}};
    static const char *const recompute[] = {"none", "selective", "full"};
    static const int ranks[] = {1, 2, 3, 4, 8};

    (void)state;
    if (!full_tests())
        skip();
    for (int s = 0; s < 6; s++)
        for (int n = 0; n < 5; n++)
            for (int k = 0; k < 3; k++)
                for (int accumulate = 1; accumulate <= 2; accumulate++)
                    for (int layers = 1; layers <= 3; layers++)
                        compare(&(Case){stages[s][0], stages[s][1], ranks[n], layers, ranks[n] == 8 ? 1 : 3, accumulate,
                                        recompute[k]});
}

/* Saved with one layout, continued with another: the losses of a run that was never interrupted. */
static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks, accumulate;
        const char *program;
    } ways[] = {
        {1, 12, "01_single_gpu"}, {4, 3, "04_zero --zero 3"}, {3, 4, "04_zero --zero 1"}, {2, 6, "03_data_parallel"},
        {1, 12, "01_single_gpu"}, {2, 6, "04_zero --zero 2"}};
    char gradients[256], losses[256];
    double a[STEPS], b[STEPS];

    (void)state;
    reference(3, 12, gradients, losses);
    for (int i = 0; i < 6; i++)
        run_well("mpiexec -n %d " BUILD "/cpu64/%s " SHAPE " --layers 3 --micro-batch 1 --accumulate %d --steps %d --data %s "
                 "--quiet --save crossing --metrics crossing.csv %s", ways[i].ranks, ways[i].program, ways[i].accumulate,
                 3 * (i + 1), token_file(20000, 97), i ? "--load crossing" : "");
    assert_int_equal(read_column(in_temporary("crossing.csv"), "loss", a, STEPS), 18);
    assert_int_equal(read_column(losses, "loss", b, STEPS), STEPS);
    for (int s = 0; s < 18; s++)
        if (!(fabs(a[s] - b[s]) <= 1e-9 * b[s]))
            fail_msg("the loss of step %d is %.17g, but %.17g without interruptions", s + 1, a[s], b[s]);
}

/* One rank of 03 and 04 is 01, bit for bit. */
static void alone_they_are_01(void **state)
{
    static const char *const programs[] = {"03_data_parallel", "03_data_parallel --sync naive", "04_zero --zero 1",
                                           "04_zero --zero 2", "04_zero --zero 3"};
    char gradients[256], losses[256];
    double a[STEPS], b[STEPS];

    (void)state;
    reference(3, 2, gradients, losses);
    for (int i = 0; i < 5; i++) {
        run_well(BUILD "/cpu64/%s " SHAPE " --layers 3 --micro-batch 1 --accumulate 2 --steps %d --data %s --quiet "
                 "--dump-gradients g.safetensors --metrics m.csv", programs[i], STEPS, token_file(20000, 97));
        assert_true(compare_gradients(in_temporary("g.safetensors"), gradients, HEADS, NULL) == 0);
        assert_int_equal(read_column(in_temporary("m.csv"), "loss", a, STEPS), STEPS);
        assert_int_equal(read_column(losses, "loss", b, STEPS), STEPS);
        assert_memory_equal(a, b, sizeof a);
    }
}

static int print_worst(void **state)
{
    (void)state;
    print_message("worst difference: gradients %.1e, losses %.1e\n", worst_gradient, worst_loss);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(alone_they_are_01),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(all_layouts_agree),
    };

    return cmocka_run_group_tests_name("layouts", tests, NULL, print_worst);
}
