/* 00: its collectives against the library's on one to eight ranks; mistakes that make verify must find; latency and
 * bandwidth on simulated hardware, which must be those of --pretend. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A case is text of collectives.c, what is put in its place, and what make verify then says. */
static void mistakes_are_found(void **state)
{
    static const struct { const char *from, *to, *words; } table[] = {
        {"shard(c, t, r - k - 1), (r + 1)", "shard(c, t, r - k - 2), (r + 1)",
         "reduce_scatter, ring, of 840 elements on 2 ranks|it has other elements' contributions"},
        {"shard(c, t, r - k), (r + 1) % n", "shard(c, t, r), (r + 1) % n",
         "all_gather, ring, of 840 elements on 3 ranks|that is element |of rank"},
        /* received, but not added; if it were not received, an MPI may report the send that waits for it */
        {"exchange_add(c, t, r + power, NONE, -1)", "receive(c, tensor_range(inbox, 0, tensor_count(t)), r + power)",
         "all_reduce, doubling, of 840 elements on 3 ranks|it lacks the contribution of rank 2"},
        {"far < n; far *= 2)", "far < n - 1; far *= 2)", "barrier, doubling, of 840 elements on 2 ranks|sends 0 bytes"},
        {"shard(c, t, r + k), (r + k)", "shard(c, t, r + k + 1), (r + k)",
         "all_to_all, pairwise, of |that is element |expected element"},
        {"ring_all_reduce(across, shard(node, t, comm_rank(node)))", "ring_all_reduce(across, shard(node, t, 0))",
         "all_reduce, two-level, of 840 elements on 4 ranks"},
    };

    for (size_t i = 0; i < (full_tests() ? sizeof table / sizeof *table : 2); i++) {
        char *directory = strdup(in_temporary("edited%zu", i));
        run_well("sh -c 'mkdir %s && cp " SOURCE "/00_collectives/*.[ch] %s && ln -sfn " SOURCE "/common %s/..'",
                 directory, directory, directory);
        char *path = strdup(in_temporary("edited%zu/collectives.c", i)), *text = read_file(path);
        char *at = strstr(text, table[i].from);
        assert_non_null(at);
        assert_null(strstr(at + 1, table[i].from));
        FILE *f = fopen(path, "w");
        fprintf(f, "%.*s%s%s", (int)(at - text), text, table[i].to, at + strlen(table[i].from));
        fclose(f);
        expect(run("sh -c 'cd " SOURCE " && env -u MAKEFLAGS -u MAKELEVEL make -s verify STAGE=00 EDITED=%s'",
                   directory), FAILS, table[i].words);
        free(text), free(path), free(directory);
    }
}

static double number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);

    if (!at)
        fail_msg("no \"%s\" in %s", words, text);
    return atof(at + strlen(words));
}

/* Other processes may slow down some trials, not the best. */
static void fit_is_what_was_pretended(void **state)
{
    double alpha = 0, beta = 0;

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
    expect(run(BUILD "/cpu/plan --gpus 4 --dtype fp32 --hardware m.json"), 0, "4 GPUs, m.json|The fastest grid");
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
        cmocka_unit_test(collectives_equal_the_library), cmocka_unit_test(mistakes_are_found),
        cmocka_unit_test(fit_is_what_was_pretended),
        cmocka_unit_test(machine_is_written), cmocka_unit_test(wrong_options_are_refused)};

    return cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
}
