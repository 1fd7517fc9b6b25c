/* make sweep: its table and its CSV against --metrics and --report of the same runs, and its error messages when some
 * or all runs cannot start. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/print.h"
#include "../harness.h"

#define SWEEP BUILD "/cpu/sweep cpu "
#define TINY "--layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 --accumulate 4 --data %s"
#define PRETEND "--pretend 0.1,0.01,50"

static const char *data(void)           /* a path relative to sweep's working directory */
{
    return strrchr(token_file(5000, 64), '/') + 1;
}

static Result sweep(const char *program, const char *ranks, const char *more)
{
    return run(SWEEP "%s '%s' " TINY " %s", program, ranks, data(), more);
}

/* A cell of the CSV that a program's sweep wrote. */
static double cell(const char *program, int row, const char *column)
{
    double values[8];

    assert_true(read_column(in_temporary("build/sweep/%s.csv", program), column, values, 8) > row);
    return values[row];
}

/* Compares a row, of a run on this many ranks, with a separate run. */
static void compare(const char *program, int row, int ranks, const char *more, const char *table)
{
    double peak = 0, predicted = 0, playbook = 0, sent[2], tokens[2];
    char text[64];

    run_well("mpiexec -n %d " BUILD "/cpu/%s " TINY " --micro-batch 1 --steps 2 --quiet --metrics m --report r %s",
             ranks, program, data(), more);
    for (int r = 0; r < ranks; r++) {
        static const char *const with_formula[] = {"parameters", "gradients", "optimizer", "activations"};
        double formulas = 0;
        for (int c = 0; c < 4; c++)
            formulas += json_number("r", "ranks.%d.memory.%s.playbook", r, with_formula[c]);
        if (json_number("r", "ranks.%d.memory.total.measured", r) > peak) {
            peak = json_number("r", "ranks.%d.memory.total.measured", r), playbook = formulas;
            predicted = json_number("r", "ranks.%d.memory.total.predicted", r);
        }
    }
    assert_int_equal(read_column("m", "comm_bytes", sent, 2), 2);
    read_column("m", "tokens", tokens, 2);
    assert_true(cell(program, row, "ranks") == ranks);
    assert_true(cell(program, row, "tokens") == tokens[0]);
    assert_true(cell(program, row, "peak_bytes") == peak);
    assert_true(cell(program, row, "peak_predicted") == predicted);
    assert_true(cell(program, row, "peak_playbook") == round(playbook));
    assert_true(cell(program, row, "sent_bytes") == sent[0]);   /* rank 0's; in these runs all ranks send the same */
    assert_true(cell(program, row, "sent_predicted") == sent[0]);
    snprintf(text, sizeof text, "%s %12s", number_text(peak), number_text(predicted));
    if (!strstr(table, text))
        fail_msg("no \"%s\" in\n%s", text, table);

    const double seconds = cell(program, row, "pretended_seconds"), rate = tokens[0] / seconds;
    const double speed_up = cell(program, 0, "pretended_seconds") / seconds * tokens[0] / cell(program, 0, "tokens");
    assert_true(fabs(cell(program, row, "pretended_tokens_per_second") / rate - 1) < 1e-3);
    assert_true(fabs(cell(program, row, "pretended_speedup") / speed_up - 1) < 1e-3);
    assert_true(fabs(cell(program, row, "pretended_efficiency") / (speed_up / ranks) - 1) < 1e-3);
    const double computing = cell(program, row, "pretended_computing");
    const double waiting = cell(program, row, "pretended_waiting");
    assert_true(computing > 0.05 && computing + waiting < 1.001);
    assert_true(cell(program, row, "pretended_waiting_most") >= waiting);
    assert_true(ranks > 1 ? waiting > 0 : waiting == 0);
    double mfu[2], took[2];                     /* the separate run: its second step is compared */
    read_column("m", "mfu", mfu, 2);
    read_column("m", "seconds", took, 2);
    assert_true(fabs(cell(program, row, "pretended_mfu") * seconds / (mfu[1] * took[1]) - 1) < 1e-2);
}

static void tensor_parallel(void **state)
{
    const char *program = "05_tensor_parallel";

    (void)state;
    Result r = sweep(program, "2 1,2", "--micro-batch 1 --sequence-parallel " PRETEND);
    for (int i = 0; i < 2; i++)
        compare(program, i, i + 1, "--sequence-parallel " PRETEND, r.out);
    assert_null(strstr(r.out, "bubble"));
    expect(r, 0, "strong scaling: a step has the same 64 tokens on any number of ranks|"
           "SIMULATED: times, and values computed from them, are those of --pretend 0.1,0.01,50; bytes are measured|"
           "relative to the first row, 1 rank;|--timeout 60");
    r = run("sh -c 'command -v gnuplot'");          /* only the figure needs it */
    if (r.status == 0)
        expect(run("cat build/sweep/05_tensor_parallel.svg"), 0, "simulated tokens/s of all ranks|05_tensor_parallel");
    else
        print_message("skipped: the figure, because gnuplot is missing\n");
    result_free(r);
}

/* The bubble's formula in the CSV, to the last digit, and in the table. */
static void pipeline(void **state)
{
    static const struct {
        const char *options, *text;
        double formula;
    } schedules[] = {{"--schedule zero-bubble", "strong scaling| 0.083 ", 1.0 / 3 / 4},
                     {"--schedule interleaved --chunks 2 --layers 4", "strong scaling| 0.125 ", 1.0 / 2 / 4},
                     {"--schedule zb-v --layers 4", "strong scaling| 0.042 ", 1.0 / 6 / 4}};
    const char *program = "06_pipeline_parallel";
    char options[128];

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(options, sizeof options, "%s " PRETEND, schedules[i].options);
        Result r = sweep(program, "1 2", options);
        compare(program, 1, 2, options, r.out);
        assert_true(cell(program, 0, "bubble_formula") == 0);
        assert_true(cell(program, 1, "bubble_formula") == schedules[i].formula);
        assert_true(cell(program, 1, "bubble_simulated") == json_number("r", "ranks.1.bubble_simulated"));
        assert_true(cell(program, 1, "pretended_bubble") > 0);
        expect(r, 0, schedules[i].text);
    }
}

static void batches_that_grow(void **state)
{
    (void)state;
    Result r = sweep("03_data_parallel", "1 2", "--micro-batch 1 " PRETEND);
    compare("03_data_parallel", 1, 2, PRETEND, r.out);
    expect(r, 0, "weak scaling: a step has 64 tokens per rank");
}

static void refusals_are_rows(void **state)
{
    const char *why = "    4  --heads 2 cannot be divided over 4 ranks; 1, 2 could\n";

    (void)state;
    Result r = sweep("05_tensor_parallel", "4 1", "--steps 2");
    assert_true(cell("05_tensor_parallel", 0, "ranks") == 1 && cell("05_tensor_parallel", 1, "ranks") == 4);
    assert_true(cell("05_tensor_parallel", 0, "tokens_per_second") > 0);        /* measured, not simulated */
    assert_null(strstr(r.out, "SIMULATED"));
    expect(r, 0, why);
    expect(sweep("05_tensor_parallel", "4", ""), 1, why);
    expect(sweep("05_tensor_parallel", "1", "--steps 1"), 1,
           "    1  --steps: expected at least 2, as the first is not measured, got 1\n");
    expect(sweep("09_combined", "1 2", "--tp 2 --steps 2"), 0,
           "    1  --tp 2 x --cp 1 x --pp 1 x --dp 0: expected 1, the number of ranks (--dp 0: a divisor), got 2;");
    assert_true(cell("09_combined", 1, "tokens_per_second") > 0);
    expect(sweep("05_tensor_parallel", "1", "--colour red"), 1, "colour");
}

/* The simulated hardware is faster than any real one, so real work takes all of a step. */
static void late_work_is_reported(void **state)
{
    (void)state;
    expect(sweep("05_tensor_parallel", "2", "--pretend 1e6,1e6,0"), 0,
           "WARNING: real work took longer than simulated: |% of a step on 2 ranks.");
}

static void what_cannot_be_swept(void **state)
{
    static const struct { const char *program, *ranks, *words; } table[] = {
        {"05_tensor_parallel", "1 x",
         "NP=\"1 x\": expected numbers of ranks from 1 to 1024, such as NP=\"1 2 4 8\", got 'x'"},
        {"05_tensor_parallel", "2 0", "got '0'"}, {"05_tensor_parallel", "2000", "got '2000'"},
        {"05_tensor_parallel", "2-4", "got '2-4'"}, {"05_tensor_parallel", " ", "got nothing"},
        {"01_single_gpu", "1", "01_single_gpu runs on one rank, like 01, 02 and 08; 03 to 07, 09 and 10 can be swept"}};

    (void)state;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        expect(sweep(table[i].program, table[i].ranks, ""), 2, table[i].words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipeline),
        cmocka_unit_test(batches_that_grow),
        cmocka_unit_test(refusals_are_rows),
        cmocka_unit_test(late_work_is_reported),
        cmocka_unit_test(what_cannot_be_swept),
    };

    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
