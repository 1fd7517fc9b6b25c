/* make sweep: its table and its CSV against --metrics and --report of the same runs, and its error messages when some
 * or all runs cannot start. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/base/print.h"
#include "../harness.h"

#define TINY "--layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 --accumulate 4 --data %s"
#define PRETEND " --pretend 0.1,0.01,50"

static const char *data(void)           /* a path relative to sweep's working directory */
{
    return strrchr(token_file(5000, 64), '/') + 1;
}

static Result sweep(const char *program, const char *ranks, const char *more)
{
    return run(BUILD "/cpu/sweep cpu %s '%s' " TINY " %s", program, ranks, data(), more);
}

/* A cell of the CSV that a program's sweep wrote. */
static double cell(const char *program, int row, const char *column)
{
    double values[8];

    assert_true(read_column(in_temporary("build/sweep/%s.csv", program), column, values, 8) > row);
    return values[row];
}

/* Sweeps a program on 1 and 2 ranks, and compares with separate runs. */
static void compare(const char *program, const char *options, const char *words)
{
    Result s = sweep(program, "1 2", options);

    for (int ranks = 1; ranks <= 2; ranks++) {
        double peak = 0, playbook = 0, sent, tokens, mfu[2], took[2];
        run_well("mpiexec -n %d " BUILD "/cpu/%s " TINY " --micro-batch 1 --steps 2 --quiet --metrics m --report r %s",
                 ranks, program, data(), options);
        for (int r = 0; r < ranks; r++) {
            static const char *const with_formula[] = {"parameters", "gradients", "optimizer", "activations"};
            double formulas = 0;
            for (int c = 0; c < 4; c++)
                formulas += json_number("r", "ranks.%d.memory.%s.playbook", r, with_formula[c]);
            if (json_number("r", "ranks.%d.memory.total.measured", r) > peak)
                peak = json_number("r", "ranks.%d.memory.total.measured", r), playbook = formulas;
        }
        read_column("m", "comm_bytes", &sent, 1);
        read_column("m", "tokens", &tokens, 1);
        read_column("m", "mfu", mfu, 2);
        read_column("m", "seconds", took, 2);
        const int row = ranks - 1;
        assert_true(cell(program, row, "ranks") == ranks);
        assert_true(cell(program, row, "tokens") == tokens);
        assert_true(cell(program, row, "peak_bytes") == peak);
        assert_true(cell(program, row, "playbook") == round(playbook));
        assert_true(cell(program, row, "sent_bytes") == sent);  /* rank 0's; in these runs all ranks send the same */
        assert_non_null(strstr(s.out, format_text("%15s%15s", number_text(peak), number_text(round(playbook)))));

        const double rate = cell(program, row, "tokens/s"), waiting = cell(program, row, "waiting");
        const double speed_up = rate / cell(program, 0, "tokens/s");
        assert_true(fabs(rate * cell(program, row, "seconds") / tokens - 1) < 1e-3);
        assert_true(fabs(cell(program, row, "speedup") / speed_up - 1) < 1e-3);
        assert_true(fabs(cell(program, row, "efficiency") / (speed_up / ranks) - 1) < 1e-3);
        assert_true(cell(program, row, "computing") > 0.05 && cell(program, row, "computing") + waiting < 1.001);
        assert_true(ranks > 1 ? waiting > 0 : waiting == 0);
        assert_true(fabs(cell(program, row, "mfu") * cell(program, row, "seconds") / (mfu[1] * took[1]) - 1) < 1e-2);
    }
    expect(s, 0, words);
}

static void programs(void **state)
{
    const char *tensor = "05_tensor_parallel", *pipeline = "06_pipeline_parallel";

    compare(tensor, "--sequence-parallel" PRETEND, "strong scaling|--timeout 60|"
            "SIMULATED: times, and values computed from them, are those of --pretend 0.1,0.01,50; bytes are measured");
    if (run("sh -c 'command -v gnuplot'").status == 0)          /* only the figure needs it */
        expect(run("cat build/sweep/%s.svg", tensor), 0, "simulated|05_tensor_parallel|tokens/s|waiting|peak_bytes");
    compare(pipeline, "--schedule zero-bubble" PRETEND, "strong scaling|      0.083\n");
    assert_true(cell(pipeline, 0, "formula") == 0 && cell(pipeline, 1, "formula") == 1.0 / 3 / 4);
    assert_true(cell(pipeline, 1, "bubble") > 0);
    compare("03_data_parallel", PRETEND, "weak scaling");
}

static void refusals_are_rows(void **state)
{
    const char *why = "    4  --heads 2 is not divisible by 4 ranks; use 1 or 2\n";

    Result r = sweep("05_tensor_parallel", "4 1", "--steps 2");
    assert_true(cell("05_tensor_parallel", 0, "ranks") == 4 && isnan(cell("05_tensor_parallel", 0, "tokens/s")));
    assert_true(cell("05_tensor_parallel", 1, "tokens/s") > 0);                 /* measured, not simulated */
    assert_null(strstr(r.out, "SIMULATED"));
    expect(r, 0, why);
    expect(sweep("05_tensor_parallel", "4", ""), 1, why);
    expect(sweep("05_tensor_parallel", "1", "--steps 1"), 1,
           "    1  --steps: expected at least 2, as the first is not measured");
    expect(sweep("05_tensor_parallel", "1 2x", ""), 2,
           "NP=\"1 2x\": expected at most 64 numbers of ranks from 1 to 1024, such as NP=\"1 2 4 8\", got '2x'");
    /* the simulated hardware is faster than any real one, so real work takes all of a step */
    expect(sweep("05_tensor_parallel", "2", "--pretend 1e6,1e6,0"), 0,
           "WARNING: real work took longer than simulated, by |% of a step on 2 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs), cmocka_unit_test(refusals_are_rows)};

    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
