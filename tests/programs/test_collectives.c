/* 00: its collectives against the library's on one to eight ranks; latency and bandwidth on simulated hardware, which
 * must be those of --pretend. (test_workshop plants mistakes in it.) */
#include <stdio.h>

#include "../harness.h"

static void collectives_equal_the_library(void **state)
{
    for (int n = 1; n <= 8; n++)
        for (int checked = 0; checked < 2; checked++)
            if (full_tests() || (checked == n % 2 && (n < 4 || n > 6)))
                expect(run("mpiexec -n %d " BUILD "/%s/00_collectives --verify %s --timeout 20", n,
                           n % 3 ? "cpu64" : "cpu", checked ? "--check" : ""), 0,
                       "13 algorithms equal the library's on eleven sizes; bytes equal the formulas");
    expect(run("mpiexec -n 6 " BUILD "/cpu64/00_collectives --verify --node 3"), 0, "6 ranks: 13 algorithms equal");
}

/* Other processes may slow down some trials, not the best. */
static void fit_is_what_was_pretended(void **state)
{
    double alpha = 0, beta = 0;

    expect(run("mpiexec -n 2 " BUILD "/cpu/00_collectives --op shift --min 4096 --max 4096"), 0,
           "no fit: these sizes do not tell latency from bandwidth");
    for (int trial = 0; trial < 5; trial++) {
        Result r = run("mpiexec -n 4 " BUILD "/cpu/00_collectives --op shift --max 1048576 --pretend 1,1,50");
        assert_int_equal(r.status, 0);
        alpha = number_after(r.out, ": alpha "), beta = number_after(r.out, " us, beta ");
        result_free(r);
        if (alpha > 49 && alpha < 51 && beta > 0.98 && beta < 1.02)
            return;
    }
    fail_msg("pretended 50 us and 1 GB/s; fitted %g us and %g GB/s", alpha, beta);
}

static void machine_is_written(void **state)
{
    run_well("mpiexec -n 4 " BUILD "/cpu/00_collectives --machine m.json --node 2 --max 99999 --pretend 1,1,50");
    assert_true(json_number("m.json", "links.0.ranks") == 2 && json_number("m.json", "links.1.ranks") == 4);
    const double alpha = json_number("m.json", "links.1.alpha_us"), flops = json_number("m.json", "gflops.fp32");
    assert_true(alpha > 45 && alpha < 60);
    assert_true(flops > 0.5 && flops <= 1.01);
    assert_true(json_number("m.json", "between_nodes.ranks") == 2);
    run_well(BUILD "/cpu/00_collectives --machine one.json --max 99999");
    assert_true(json_number("one.json", "memory_gb_per_s") > 0.1 && json_number("one.json", "memory_gb") > 0.1);
    expect(run(BUILD "/cpu/plan --gpus 4 --dtype fp32 --hardware m.json"), 0, "GPUs: 4 x m.json|The best grid");
    expect(run(BUILD "/cpu/plan --gpus 4 --hardware m.json"), 2, "it has no rate of bf16; try --dtype fp32");
    expect(run(BUILD "/cpu/plan --gpus 4 --hardware none.json"), 2, "--hardware none.json: No such file");
}

static void wrong_options_are_refused(void **state)
{
    expect(run(BUILD "/cpu/00_collectives --op shift --algorithm tree"), 2, "--op shift has no such algorithm");
    expect(run(BUILD "/cpu/00_collectives --min 100 --max 50"), 2, "--max: expected at least --min 100, got 50");
    expect(run("mpiexec -n 3 " BUILD "/cpu/00_collectives --node 2"), FAILS, "--node");
    expect(run(BUILD "/cpu/00_collectives --layers 3"), 2, "unrecognized option");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_equal_the_library), cmocka_unit_test(fit_is_what_was_pretended),
        cmocka_unit_test(machine_is_written), cmocka_unit_test(wrong_options_are_refused)};

    return cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
}
