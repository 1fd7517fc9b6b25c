/* The number of query-key pairs that each rank of 07 computes. */
#include "../harness.h"

#define PROGRAM BUILD "/cpu64/07_context_parallel"

static const char *const methods[] = {"ring", "zigzag", "allgather", "ulysses"};

#define RUN "mpiexec -n %d " PROGRAM " --attention %s --hidden 48 --vocab 97 --data %s --quiet --report r.json "

/* Each rank computes only the pairs that the mask leaves. Queries of chunk c attend to C*c keys of earlier chunks and
 * to C(C+1)/2 pairs in their own. A causal sequence has s(s+1)/2. */
static void pairs_are_what_the_mask_leaves(void **state)
{
    static const int all_ranks[] = {3, 4, 1, 2, 8};
    enum { S = 48, LAYERS = 2, MICRO_BATCH = 3, ACCUMULATE = 2, HEADS = 24 };

    for (int m = 0; m < 4; m++)
        for (int i = 0; i < (full_tests() ? 5 : m < 2 ? 2 : 1); i++) {
            const int n = all_ranks[i], C = S / n;
            double all = 0;
            run_well(RUN "--layers %d --heads %d --seq %d --micro-batch %d --accumulate %d --steps 1", n, methods[m],
                     token_file(20000, 97), LAYERS, HEADS, S, MICRO_BATCH, ACCUMULATE);
            for (int r = 0; r < n; r++) {
                const double is = json_number("r.json", "ranks.%d.attention_pairs", r)
                                  / (LAYERS * MICRO_BATCH * ACCUMULATE * HEADS);
                const double want = m == 0 || m == 2 ? C * (C + 1) / 2.0 + C * C * (double)r : S * (S + 1) / 2.0 / n;
                if (is != want)
                    fail_msg("%s, rank %d of %d: %g pairs per head and sequence, not %g", methods[m], r, n, is, want);
                all += is;
            }
            assert_true(all == S * (S + 1) / 2.0);
            if (m == 0)                         /* ring: the first rank and the last have C+1 : (2n-1)C+1 */
                assert_true(json_number("r.json", "ranks.%d.attention_pairs", n - 1) * (C + 1)
                            == json_number("r.json", "ranks.0.attention_pairs") * ((2 * n - 1) * C + 1));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pairs_are_what_the_mask_leaves)};

    return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
