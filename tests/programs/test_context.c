/* Attention by blocks of keys against full attention; the number of query-key pairs that each rank of 07 computes. */
#include <math.h>

#include "../../07_context_parallel/key_blocks.h"
#include "../../common/ultrascale.h"
#include "../harness.h"
#include "../tensors.h"

#define PROGRAM BUILD "/cpu64/07_context_parallel"

static const char *const methods[] = {"ring", "zigzag", "allgather", "ulysses"};

/* ---- The operators ---- */

/* Attends from each chunk of queries to the chunks of keys up to its own, in the order `order`, forward and backward.
 * Results must be 01's full attention. A column of q and k adds `shift` to all scores of one chunk of keys: a merge
 * without rescaling would overflow or vanish. */
static void merged_case(int64_t C, const int *order, double shift)
{
    enum { CHUNKS = 3, A = 2, D = 8 };
    const int64_t T = CHUNKS * C, Q = C < 64 ? C : 64;
    const Tensor qkv = filled("qkv", shape(1, T, 3 * A * D)), probs = empty("probs", shape(1, A, T, T));
    const Tensor full = empty("full", shape(1, T, A * D)), d_full = filled("d_full", shape(1, T, A * D));
    const Tensor d_qkv = empty("d_qkv", shape(1, T, 3 * A * D)), d_probs = empty("d_probs", shape(1, A, T, T));
    const Tensor split = empty("split", shape(3, T * A, D)), d_split = empty("d_split", shape(3, T * A, D));
    const Tensor out = empty("out", shape(T, A * D)), lse = empty("lse", shape(T, A));
    const Tensor delta = empty("delta", shape(T, A));
    const Tensor block_out = empty("block_out", shape(1, C, A, D)), block_lse = empty("block_lse", shape(1, C, A, 1));
    const Tensor scores = empty("scores", shape(2, A, Q, C)), d_back = empty("d_back", shape(T * A, 3, D));

    for (int64_t t = 0; t < T; t++)
        for (int64_t a = 0; a < A; a++) {
            data(qkv)[(t * A + a) * 3 * D] = sqrt(D);
            data(qkv)[(t * A + a) * 3 * D + D] = t / C == 1 ? shift : 0;
        }
    attention_forward(full, probs, qkv);
    attention_backward(d_qkv, d_probs, d_full, qkv, probs);

#define CHUNK(t, i) tensor_range(tensor_view(t, shape(CHUNKS, C, A, tensor_count(t) / (T * A))), i, 1)
#define OF(t, x) tensor_range(t, x, 1)
    transpose_rows(split, tensor_view(qkv, shape(T * A, 3, D)));
    tensor_zero(out);
    tensor_fill(lse, -INFINITY);
    for (int i = 0; i < CHUNKS; i++)
        for (int o = 0; o < CHUNKS; o++) {
            const int j = order[o];
            if (j > i)
                continue;
            attention_block_forward(block_out, block_lse, scores, CHUNK(OF(split, 0), i), CHUNK(OF(split, 1), j),
                                    CHUNK(OF(split, 2), j), i == j);
            attention_merge(CHUNK(out, i), CHUNK(lse, i), block_out, block_lse);
        }
    assert_near(out, data(full), 1e-12);
    tensor_zero(d_split);
    attention_delta(delta, tensor_view(d_full, shape(T, A * D)), out);
    for (int o = 0; o < CHUNKS; o++)
        for (int i = order[o]; i < CHUNKS; i++)
            attention_block_backward(CHUNK(OF(d_split, 0), i), CHUNK(OF(d_split, 1), order[o]),
                                     CHUNK(OF(d_split, 2), order[o]), scores, CHUNK(d_full, i), CHUNK(OF(split, 0), i),
                                     CHUNK(OF(split, 1), order[o]), CHUNK(OF(split, 2), order[o]), CHUNK(lse, i),
                                     CHUNK(delta, i), i == order[o]);
    transpose_rows(d_back, d_split);
    assert_near(d_back, data(d_qkv), shift ? 1e-11 : 1e-12);
    guarded_release();
}

static void blocks_in_any_order_are_full_attention(void **state)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const int64_t lengths[] = {1, 5, 75};
    static const double shifts[] = {0, 1000, -1000};

    for (int l = 0; l < 3; l++)
        for (int o = 0; o < 6; o++)
            for (int s = 0; s < 3; s++)
                merged_case(lengths[l], orders[o], shifts[s]);
}

/* ---- The program ---- */

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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_in_any_order_are_full_attention),
        cmocka_unit_test(pairs_are_what_the_mask_leaves),
    };

    comm_begin(&argc, &argv);
    device_init(0, 1, 2);
    comm_exit(cmocka_run_group_tests_name("context", tests, NULL, NULL));
}
