/* make sweep's program: its table and its CSV against the --metrics and --report of the same runs, and what it says
 * where a run, or all, cannot be. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/print.h"
#include "../harness.h"

#define SWEEP BUILD "/cpu/sweep cpu "
#define TINY "--layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 --accumulate 4 --data %s"
#define PRETEND "--pretend 0.1,0.01,50"

static const char *data(void)           /* relative to where sweep is started */
{
    return strrchr(token_file(5000, 64), '/') + 1;
}

static Result sweep(const char *stage, const char *ranks, const char *more)
{
    return run(SWEEP "%s '%s' " TINY " %s", stage, ranks, data(), more);
}

static void expect(Result r, int status, const char *words)
{
    if (r.status != status || !strstr(strstr(r.out, words) ? r.out : r.err, words))
        fail_msg("status %d, not %d, or nowhere \"%s\" in\n%s%s", r.status, status, words, r.out, r.err);
}

/* A cell of the CSV that the stage's sweep left. */
static double cell(const char *stage, int row, const char *column)
{
    double values[8];
    char path[128];

    snprintf(path, sizeof path, "build/sweep/%s.csv", stage);
    assert_true(read_column(in_temporary(path), column, values, 8) > row);
    return values[row];
}

/* The row of so many ranks against a run of its own. */
static void compare(const char *stage, int row, int ranks, const char *more, const char *table)
{
    double peak = 0, predicted = 0, playbook = 0, sent[2], tokens[2];
    char path[64], text[64];

    run_well("mpiexec -n %d " BUILD "/cpu/%s " TINY " --micro-batch 1 --steps 2 --quiet --metrics m --report r %s",
             ranks, stage, data(), more);
    const char *report = in_temporary("r");
    for (int r = 0; r < ranks; r++) {
        static const char *const with_formula[] = {"parameters", "gradients", "optimizer", "activations"};
        double formulas = 0;
        for (int c = 0; c < 4; c++) {
            snprintf(path, sizeof path, "ranks.%d.memory.%s.playbook", r, with_formula[c]);
            formulas += json_number(report, path);
        }
        snprintf(path, sizeof path, "ranks.%d.memory.total.measured", r);
        if (json_number(report, path) > peak) {
            peak = json_number(report, path), playbook = formulas;
            snprintf(path, sizeof path, "ranks.%d.memory.total.predicted", r);
            predicted = json_number(report, path);
        }
    }
    assert_int_equal(read_column(in_temporary("m"), "comm_bytes", sent, 2), 2);
    read_column(in_temporary("m"), "tokens", tokens, 2);
    assert_true(cell(stage, row, "ranks") == ranks);
    assert_true(cell(stage, row, "tokens") == tokens[0]);
    assert_true(cell(stage, row, "peak_bytes") == peak);
    assert_true(cell(stage, row, "peak_predicted") == predicted);
    assert_true(cell(stage, row, "peak_playbook") == round(playbook));
    assert_true(cell(stage, row, "sent_bytes") == sent[0]);     /* of rank 0, and here of all */
    assert_true(cell(stage, row, "sent_predicted") == sent[0]);
    snprintf(text, sizeof text, "%s %12s", number_text(peak), number_text(predicted));
    if (!strstr(table, text))
        fail_msg("no \"%s\" in\n%s", text, table);

    const double seconds = cell(stage, row, "pretended_seconds"), rate = tokens[0] / seconds;
    const double speed_up = cell(stage, 0, "pretended_seconds") / seconds * tokens[0] / cell(stage, 0, "tokens");
    assert_true(fabs(cell(stage, row, "pretended_tokens_per_second") / rate - 1) < 1e-3);
    assert_true(fabs(cell(stage, row, "pretended_speedup") / speed_up - 1) < 1e-3);
    assert_true(fabs(cell(stage, row, "pretended_efficiency") / (speed_up / ranks) - 1) < 1e-3);
    const double computing = cell(stage, row, "pretended_computing"), waiting = cell(stage, row, "pretended_waiting");
    assert_true(computing > 0.05 && computing + waiting < 1.001);
    assert_true(cell(stage, row, "pretended_waiting_most") >= waiting);
    assert_true(ranks > 1 ? waiting > 0 : waiting == 0);
    double mfu[2], took[2];                     /* of the run of its own: its second step */
    read_column(in_temporary("m"), "mfu", mfu, 2);
    read_column(in_temporary("m"), "seconds", took, 2);
    assert_true(fabs(cell(stage, row, "pretended_mfu") * seconds / (mfu[1] * took[1]) - 1) < 1e-2);
}

static void tensor_parallel(void **state)
{
    const char *stage = "05_tensor_parallel";

    (void)state;
    Result r = sweep(stage, "2 1,2", "--micro-batch 1 --sequence-parallel " PRETEND);
    expect(r, 0, "strong scaling: a step has the same 64 tokens on any number of ranks");
    expect(r, 0, "PRETENDED: times, and what is made of them, are those of --pretend 0.1,0.01,50; bytes are real");
    expect(r, 0, "against the first row, 1 rank;");
    expect(r, 0, "--timeout 60");
    for (int i = 0; i < 2; i++)
        compare(stage, i, i + 1, "--sequence-parallel " PRETEND, r.out);
    assert_null(strstr(r.out, "bubble"));
    result_free(r);
    r = run("sh -c 'command -v gnuplot'");          /* all else runs without it */
    const bool drawn = r.status == 0;
    result_free(r);
    if (!drawn) {
        print_message("skipped: the figure, which gnuplot draws\n");
        return;
    }
    r = run("cat build/sweep/05_tensor_parallel.svg");
    expect(r, 0, "pretended tokens/s of all ranks");
    expect(r, 0, "05_tensor_parallel");
    result_free(r);
}

/* Idle over computing time by the formula, to the last digit, and what the table has beside it. */
static void pipeline(void **state)
{
    static const struct {
        const char *options, *text;
        double formula;
    } schedules[] = {{"--schedule zero-bubble", " 0.083 ", 1.0 / 3 / 4},
                     {"--schedule interleaved --chunks 2 --layers 4", " 0.125 ", 1.0 / 2 / 4},
                     {"--schedule zb-v --layers 4", " 0.042 ", 1.0 / 6 / 4}};
    const char *stage = "06_pipeline_parallel";
    char options[128];

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(options, sizeof options, "%s " PRETEND, schedules[i].options);
        Result r = sweep(stage, "1 2", options);
        expect(r, 0, "strong scaling");
        expect(r, 0, schedules[i].text);
        compare(stage, 1, 2, options, r.out);
        assert_true(cell(stage, 0, "bubble_formula") == 0);
        assert_true(cell(stage, 1, "bubble_formula") == schedules[i].formula);
        assert_true(cell(stage, 1, "bubble_simulated") == json_number(in_temporary("r"), "ranks.1.bubble_simulated"));
        assert_true(cell(stage, 1, "pretended_bubble") > 0);
        result_free(r);
    }
}

static void batches_that_grow(void **state)
{
    (void)state;
    Result r = sweep("03_data_parallel", "1 2", "--micro-batch 1 " PRETEND);
    expect(r, 0, "weak scaling: a step has 64 tokens for each rank");
    compare("03_data_parallel", 1, 2, PRETEND, r.out);
    result_free(r);
}

static void refusals_are_rows(void **state)
{
    const char *why = "    4  --heads 2 cannot be divided over 4 ranks; 1, 2 could\n";

    (void)state;
    Result r = sweep("05_tensor_parallel", "4 1", "--steps 2");
    expect(r, 0, why);
    assert_true(cell("05_tensor_parallel", 0, "ranks") == 1 && cell("05_tensor_parallel", 1, "ranks") == 4);
    assert_true(cell("05_tensor_parallel", 0, "tokens_per_second") > 0);        /* a real one */
    assert_null(strstr(r.out, "PRETENDED"));
    result_free(r);
    r = sweep("05_tensor_parallel", "4", "");
    expect(r, 1, why);
    result_free(r);
    r = sweep("05_tensor_parallel", "1", "--steps 1");
    expect(r, 1, "    1  steps: 1, but the first is left out, so --steps 2 is the least\n");
    result_free(r);
    r = sweep("09_combined", "1 2", "--tp 2 --steps 2");
    expect(r, 0, "    1  --tp 2 x --cp 1 x --pp 1 are 2 ranks, and 1 were started; start a multiple of 2");
    assert_true(cell("09_combined", 1, "tokens_per_second") > 0);
    result_free(r);
    r = sweep("05_tensor_parallel", "1", "--colour red");
    expect(r, 1, "colour");
    result_free(r);
}

/* No device is so fast: all of a step is real work. */
static void late_work_is_told(void **state)
{
    (void)state;
    Result r = sweep("05_tensor_parallel", "2", "--pretend 1e6,1e6,0");
    expect(r, 0, "WARNING: real work took longer than pretended: ");
    expect(r, 0, "% of a step on 2 ranks.");
    result_free(r);
}

static void what_cannot_be_swept(void **state)
{
    static const struct { const char *stage, *ranks, *words; } table[] = {
        {"05_tensor_parallel", "1 x", "NP=\"1 x\": x is not a number of ranks, from 1 to 1024"},
        {"05_tensor_parallel", "2 0", "NP=\"2 0\": 0 is not"}, {"05_tensor_parallel", "2000", "2000 is not"},
        {"05_tensor_parallel", "2-4", "2-4 is not"}, {"05_tensor_parallel", " ", "NP is empty"},
        {"01_single_gpu", "1", "01_single_gpu is for one rank, as 01, 02 and 08 are; 03 to 07 and 09 can be swept"}};

    (void)state;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        Result r = sweep(table[i].stage, table[i].ranks, "");
        expect(r, 2, table[i].words);
        result_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipeline),
        cmocka_unit_test(batches_that_grow),
        cmocka_unit_test(refusals_are_rows),
        cmocka_unit_test(late_work_is_told),
        cmocka_unit_test(what_cannot_be_swept),
    };

    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
