/* The matmul ladder: every rung gives the exact product on ragged sizes, and the program prints what it measured. */
#define main ladder_main
#include "../../08_fused_kernels/ladder/ladder_cpu.c"
#undef main

#include "../harness.h"                    /* after: cmocka has a fail() of its own */

/* Fills x with small integers. Their sums of products are exact in float, so every rung must give the same bits. */
static void fill_integers(float *x, int count, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;           /* Numerical Recipes' generator */
        x[i] = (int)(seed >> 24) % 17 - 8;
    }
}

static void every_rung_is_exact(void **state)
{
    /* sizes below, at and above those of a kernel, a tile and a panel */
    static const int sizes[][3] = {{1, 1, 1},    {7, 7, 7},     {64, 64, 64}, {65, 65, 65},   {100, 37, 129},
                                   {37, 129, 100}, {1, 300, 5}, {300, 1, 5},  {12, 32, 256},  {13, 33, 257},
                                   {193, 40, 300}, {24, 1025, 40}, {400, 70, 1}};

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        float *a = ladder_matrix(m, k), *b = ladder_matrix(k, n), *c = ladder_matrix(m, n), *want = ladder_matrix(m, n);
        fill_integers(a, m * k, 1);
        fill_integers(b, k * n, 2);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                long sum = 0;
                for (int p = 0; p < k; p++)
                    sum += (long)a[i * k + p] * (long)b[p * n + j];
                want[i * n + j] = sum;
            }
        for (int r = 1; r <= RUNGS; r++)
            for (int of = 1; of <= (rungs[r].threaded ? 5 : 1); of += 2) {     /* also more threads than rows */
                memset(c, 0xff, m * n * sizeof *c);
                omp_set_num_threads(of);
                rungs[r].product(m, n, k, a, b, c);
                for (int i = 0; i < m * n; i++)
                    if (c[i] != want[i])
                        fail_msg("rung %d (%s) on %d threads, %d x %d x %d: element (%d, %d) is %g, not %g", r,
                                 rungs[r].name, of, m, n, k, i / n, i % n, c[i], want[i]);
            }
        free(a), free(b), free(c), free(want);
    }
}

static void the_program_prints_its_table(void **state)
{
    Result r = run(BUILD "/cpu/ladder --size 100x37x129 --threads 2 --seconds 0 --copy 1");
    for (int i = 1; i <= RUNGS; i++) {
        char line[40];
        snprintf(line, sizeof line, "\n%d %-16s ", i, rungs[i].name);
        const char *found = strstr(r.out, line);
        assert_non_null(found);
        assert_in_range(strspn(found + strlen(line), " 0123456789"), 1, 10);        /* a rate */
    }
    expect(r, 0, "C (100, 37) = A (100, 129) B (129, 37)|the ridge is at");

    r = run(BUILD "/cpu/ladder --size 40 --rungs 2,4-5 --seconds 0 --copy 0");
    assert_true(!strstr(r.out, "\n1 naive") && !strstr(r.out, "\n3 tiles") && !strstr(r.out, "ridge"));
    expect(r, 0, "\n2 loop order|\n5 packing");
    expect(run(BUILD "/cpu/ladder --help"), 0, "--rungs");
}

static void wrong_options_are_refused(void **state)
{
    static const char *const wrong[] = {"--size 10x10", "--rungs 3-2", "--threads 0", "--seconds nan", "--nothing"};

    for (int i = 0; i < 5; i++)
        expect(run(BUILD "/cpu/ladder %s", wrong[i]), 2, "ladder: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rung_is_exact),
        cmocka_unit_test(the_program_prints_its_table),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
