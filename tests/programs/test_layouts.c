/* 03 and 04 against 01 (layouts.h), and checkpoints that pass from one parallel configuration to another. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "../layouts.h"

enum { STEPS = LAYOUT_STEPS };

#define SHAPE "--layers 3 --hidden 48 --heads 6 --vocab 97 --seq 16 --lr 1e-3 --warmup 3 --quiet"

/* A covering subset of options, rank counts, recomputation and accumulation: each value, and each pair of values. */
static const LayoutCase cases[] = {
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

static void configurations_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
}

static void all_configurations_agree(void **state)
{
    static const char *const programs[][2] = {
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
                        layout_compare(&(LayoutCase){programs[s][0], programs[s][1], ranks[n], layers,
                                                     ranks[n] == 8 ? 1 : 3, accumulate, recompute[k]});
}

/* The column "playbook" of each program's memory against the formulas: L = 4, s = 32, b = 2, h = 64, a = 4. */
static void playbook_columns(void **state)
{
    const double block = 12 * 64 * 64 + 13 * 64, N = 64 * 97 + 4 * block + 2 * 64, sbh = 32 * 2 * 64;
    const double square = 5.0 * 4 * 32 / 64;                    /* 5 a s / h */
    const struct {
        const char *start, *options;
        int rank;
        const char *category;
        double bytes;
    } cases[] = {
        {"01_single_gpu", "", 0, "activations", 4 * sbh * (34 + square)},
        {"01_single_gpu", "--recompute selective", 0, "activations", 4 * sbh * 34},
        {"01_single_gpu", "--recompute full", 0, "activations", 4 * sbh * 2},
        {"01_single_gpu", "", 0, "optimizer", 8 * N},
        {"02_mixed_precision", "--gradients bf16", 0, "parameters", 2 * N},
        {"02_mixed_precision", "--gradients bf16", 0, "master", 4 * N},
        {"02_mixed_precision", "--gradients bf16", 0, "gradients", 2 * N},
        {"mpiexec -n 2 03_data_parallel", "", 1, "gradients", 4 * N},
        {"mpiexec -n 2 04_zero", "--zero 1", 1, "gradients", 4 * N},
        {"mpiexec -n 2 04_zero", "--zero 1", 1, "optimizer", 8 * N / 2},
        {"mpiexec -n 2 04_zero", "--zero 2", 1, "gradients", 4 * N / 2},
        {"mpiexec -n 2 04_zero", "--zero 3", 1, "parameters", 4 * N / 2},
        {"mpiexec -n 2 05_tensor_parallel", "", 1, "parameters", 4 * N / 2},
        {"mpiexec -n 2 05_tensor_parallel", "", 1, "activations", 4 * sbh * (10 + 24 / 2 + square / 2)},
        {"mpiexec -n 2 05_tensor_parallel", "--sequence-parallel", 1, "activations", 4 * sbh * (34 + square) / 2},
        {"mpiexec -n 2 06_pipeline_parallel", "", 0, "parameters", 4 * (64 * 97 + 2 * block)},
        {"mpiexec -n 2 06_pipeline_parallel", "", 0, "activations", 2 * 2 * sbh * (34 + square)},
        {"mpiexec -n 2 06_pipeline_parallel", "", 1, "activations", 2 * sbh * (34 + square)},
        {"mpiexec -n 2 07_context_parallel", "", 1, "activations", 4 * sbh * 34 / 2},
        {"08_fused_kernels", "", 0, "activations", 4 * sbh * 34},
        {"08_fused_kernels", "--fuse none", 0, "activations", 4 * sbh * (34 + square)},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *program = strrchr(cases[i].start, ' ') ? strrchr(cases[i].start, ' ') + 1 : cases[i].start;
        char path[64];
        run_well("%.*s" BUILD "/cpu/%s --layers 4 --hidden 64 --heads 4 --vocab 97 --seq 32 --micro-batch 2 "
                 "--accumulate 2 --steps 0 --threads 1 --quiet --data %s --report playbook.json %s",
                 (int)(program - cases[i].start), cases[i].start, program, token_file(20000, 97), cases[i].options);
        snprintf(path, sizeof path, "ranks.%d.memory.%s.playbook", cases[i].rank, cases[i].category);
        const double bytes = json_number(in_temporary("playbook.json"), path);
        if (bytes != cases[i].bytes)
            fail_msg("%s %s: the playbook's %s are %.0f bytes, not %.0f", cases[i].start, cases[i].options,
                     cases[i].category, cases[i].bytes, bytes);
    }
}

/* Each parallel configuration resumes from the checkpoint of the previous one. The losses are those of one
 * uninterrupted run. */
static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks, accumulate;
        const char *program;
    } ways[] = {
        {1, 12, "01_single_gpu"}, {4, 3, "04_zero --zero 3"}, {3, 12, "05_tensor_parallel"},
        {3, 12, "06_pipeline_parallel"}, {4, 12, "07_context_parallel"}, {3, 4, "04_zero --zero 1"},
        {2, 12, "07_context_parallel --attention ulysses"}, {2, 12, "05_tensor_parallel --sequence-parallel"},
        {2, 12, "06_pipeline_parallel --schedule zero-bubble"}, {2, 6, "03_data_parallel"}};
    char gradients[256], losses[256];
    double a[STEPS], b[STEPS];

    (void)state;
    layout_reference(&(LayoutCase){.ranks = 1, .layers = 3, .micro_batch = 12, .accumulate = 1}, gradients, losses);
    for (int i = 0; i < 10; i++)
        run_well("mpiexec -n %d " BUILD "/cpu64/%s " SHAPE " --micro-batch 1 --accumulate %d --steps %d --data %s "
                 "--save crossing --metrics crossing.csv %s", ways[i].ranks, ways[i].program, ways[i].accumulate,
                 2 * (i + 1), token_file(20000, 97), i ? "--load crossing" : "");
    assert_int_equal(read_column(in_temporary("crossing.csv"), "loss", a, STEPS), STEPS);
    assert_int_equal(read_column(losses, "loss", b, STEPS), STEPS);
    for (int s = 0; s < STEPS; s++)
        if (!(fabs(a[s] - b[s]) <= 1e-9 * b[s]))
            fail_msg("the loss of step %d is %.17g, but %.17g without interruptions", s + 1, a[s], b[s]);
}

/* The validation loss is 01's, and an evaluation does not change the steps after it. */
static void evaluations_agree(void **state)
{
    static const struct {
        const char *program;
        int accumulate;
    } ways[] = {{BUILD "/cpu64/02_mixed_precision --dtype fp32", 6},
                {"mpiexec -n 2 " BUILD "/cpu64/03_data_parallel", 3},
                {"mpiexec -n 2 " BUILD "/cpu64/04_zero --zero 1", 3},
                {"mpiexec -n 2 " BUILD "/cpu64/04_zero --zero 3", 3},
                {"mpiexec -n 2 " BUILD "/cpu64/05_tensor_parallel", 6},
                {"mpiexec -n 2 " BUILD "/cpu64/05_tensor_parallel --sequence-parallel", 6}};
    double expected[2];

    (void)state;
    for (int i = -1; i < 6; i++) {
        run_well("%s " SHAPE " --micro-batch 4 --accumulate %d --steps 4 --eval-every 2 --threads 1 --check --data %s "
                 "--report r.json --trace t.json", i < 0 ? BUILD "/cpu64/01_single_gpu" : ways[i].program,
                 i < 0 ? 6 : ways[i].accumulate, token_file(20000, 97));
        for (int k = 0; k < 2; k++) {
            const double loss = json_number(in_temporary("r.json"), k ? "held_out.1.loss" : "held_out.0.loss");
            if (i < 0)
                expected[k] = loss;
            else if (!(fabs(loss / expected[k] - 1) <= 1e-9))
                fail_msg("%s: a validation loss of %.17g, but 01 has %.17g", ways[i].program, loss, expected[k]);
        }
    }
    run_well("grep -q '\"reduce_scatter\".*\"cat\":\"tp\"}' t.json");        /* a transfer, and its group */
}

/* On one rank, 03 and 04 give 01's numbers bit for bit. */
static void alone_they_are_01(void **state)
{
    static const char *const programs[] = {"03_data_parallel", "03_data_parallel --sync naive", "04_zero --zero 1",
                                           "04_zero --zero 2", "04_zero --zero 3"};
    char gradients[256], losses[256];
    double a[STEPS], b[STEPS];

    (void)state;
    layout_reference(&(LayoutCase){.ranks = 1, .layers = 3, .micro_batch = 2, .accumulate = 1}, gradients, losses);
    for (int i = 0; i < 5; i++) {
        result_free(run("rm -f g.safetensors m.csv"));
        run_well(BUILD "/cpu64/%s " SHAPE " --micro-batch 1 --accumulate 2 --steps %d --data %s "
                 "--dump-gradients g.safetensors --metrics m.csv", programs[i], STEPS, token_file(20000, 97));
        assert_true(compare_gradients(in_temporary("g.safetensors"), gradients, 6, NULL) == 0);
        assert_int_equal(read_column(in_temporary("m.csv"), "loss", a, STEPS), STEPS);
        assert_int_equal(read_column(losses, "loss", b, STEPS), STEPS);
        assert_memory_equal(a, b, sizeof a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(alone_they_are_01),
        cmocka_unit_test(playbook_columns),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(evaluations_agree),
        cmocka_unit_test(all_configurations_agree),
    };

    return cmocka_run_group_tests_name("layouts", tests, NULL, layout_print_worst);
}
