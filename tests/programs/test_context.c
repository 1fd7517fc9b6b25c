/* Attention by blocks of keys against plain loops and against full attention. 07 against 01 (layouts.h): gradients,
 * losses, memory, traffic, and the number of query-key pairs that each rank computes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../07_context_parallel/blocks.h"
#include "../../common/ultrascale.h"
#include "../harness.h"
#include "../layouts.h"
#include "../tensors.h"

#define PROGRAM BUILD "/cpu64/07_context_parallel"

static const char *const methods[] = {"ring", "zigzag", "allgather", "ulysses"};

/* ---- The operators against plain loops ---- */

static void block_case(int64_t B, int64_t C, int64_t K, int64_t A, int64_t D, int64_t Q, bool causal)
{
    const Tensor q = filled("q", shape(B, C, A, D));
    const Tensor k = filled("k", shape(B, K, A, D)), v = filled("v", shape(B, K, A, D));
    const Tensor d_out = filled("d_out", shape(B, C, A, D)), delta = filled("delta", shape(B, C, A, 1));
    const Tensor out = empty("out", shape(B, C, A, D)), lse = empty("lse", shape(B, C, A, 1));
    const Tensor scores = empty("scores", shape(2, A, Q, K));
    const Tensor d_q = filled("d_q", shape(B, C, A, D)), d_k = filled("d_k", shape(B, K, A, D)),
                 d_v = filled("d_v", shape(B, K, A, D));
    const Tensor want_out = guarded_copy(out), want_lse = guarded_copy(lse), want_d_q = guarded_copy(d_q),
                 want_d_k = guarded_copy(d_k), want_d_v = guarded_copy(d_v);
    double *p = malloc(K * sizeof *p);
    int64_t pairs = 0;

    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < C; i++)
            for (int64_t a = 0; a < A; a++) {
                const int64_t at = (b * C + i) * A + a, seen = causal ? i + 1 : K;
                double sum = 0;
                for (int64_t j = 0; j < seen; j++, pairs++) {
                    double s = 0;
                    for (int64_t x = 0; x < D; x++)
                        s += data(q)[at * D + x] * data(k)[((b * K + j) * A + a) * D + x];
                    sum += p[j] = exp(s / sqrt(D));
                }
                data(want_lse)[at] = log(sum);
                for (int64_t x = 0; x < D; x++)
                    data(want_out)[at * D + x] = 0;
                for (int64_t j = 0; j < seen; j++) {
                    const int64_t key = (b * K + j) * A + a;
                    double d_p = 0;
                    for (int64_t x = 0; x < D; x++) {
                        data(want_out)[at * D + x] += p[j] / sum * data(v)[key * D + x];
                        data(want_d_v)[key * D + x] += p[j] / sum * data(d_out)[at * D + x];
                        d_p += data(d_out)[at * D + x] * data(v)[key * D + x];
                    }
                    const double d_s = p[j] / sum * (d_p - data(delta)[at]) / sqrt(D);
                    for (int64_t x = 0; x < D; x++) {
                        data(want_d_q)[at * D + x] += d_s * data(k)[key * D + x];
                        data(want_d_k)[key * D + x] += d_s * data(q)[at * D + x];
                    }
                }
            }
    free(p);
    const double forward = 4.0 * pairs * D, backward = 8.0 * pairs * D;        /* FLOPs */
    const OpStats *stats;
    ops_stats_reset();
    pairs += attention_pairs();
    attention_block_forward(out, lse, scores, q, k, v, causal);
    assert_int_equal(attention_pairs(), pairs);
    assert_near(out, data(want_out), 1e-12);
    assert_near(lse, data(want_lse), 1e-12);
    memset(scores.data, 0xff, tensor_bytes(scores));            /* backward reads nothing from forward's workspace */
    attention_block_backward(d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta, causal);
    assert_near(d_q, data(want_d_q), 1e-12);
    assert_near(d_k, data(want_d_k), 1e-12);
    assert_near(d_v, data(want_d_v), 1e-12);
    assert_int_equal(attention_pairs(), pairs);
    assert_int_equal(ops_stats(&stats), 2);
    assert_true(stats[0].flops == forward && stats[1].flops == backward);
    guarded_release();
}

static void blocks(void **state)
{
    static const int64_t sizes[][6] = {             /* B, C, K, A, D, Q */
        {1, 1, 1, 1, 2, 1}, {2, 5, 5, 3, 4, 5}, {2, 7, 3, 2, 8, 4}, {1, 3, 9, 2, 6, 64}, {1, 64, 64, 2, 8, 64},
        {2, 65, 65, 3, 20, 64}, {2, 130, 70, 2, 6, 64}, {1, 70, 130, 1, 64, 64}, {3, 150, 150, 2, 4, 64}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        block_case(s[0], s[1], s[2], s[3], s[4], s[5], false);
        if (s[1] == s[2])
            block_case(s[0], s[1], s[2], s[3], s[4], s[5], true);
    }
}

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

    (void)state;
    for (int l = 0; l < 3; l++)
        for (int o = 0; o < 6; o++)
            for (int s = 0; s < 3; s++)
                merged_case(lengths[l], orders[o], shifts[s]);
}

/* ---- The program against 01 ---- */

static void configurations_agree(void **state)
{
    (void)state;
    layouts_agree("07_context_parallel");
}

#define RUN "mpiexec -n %d " PROGRAM " --attention %s --hidden 48 --vocab 97 --data %s --quiet --report r.json "

/* Each rank computes only the pairs that the mask leaves. Queries of chunk c attend to C*c keys of earlier chunks and
 * to C(C+1)/2 pairs in their own. A causal sequence has s(s+1)/2. */
static void pairs_are_what_the_mask_leaves(void **state)
{
    static const int all_ranks[] = {3, 4, 1, 2, 8};
    enum { S = 48, LAYERS = 2, MICRO_BATCH = 3, ACCUMULATE = 2, HEADS = 24 };

    (void)state;
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
        cmocka_unit_test(blocks),
        cmocka_unit_test(blocks_in_any_order_are_full_attention),
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(pairs_are_what_the_mask_leaves),
    };

    comm_begin(&argc, &argv);
    device_init(0, 1, 2);
    comm_exit(cmocka_run_group_tests_name("context", tests, NULL, NULL));
}
