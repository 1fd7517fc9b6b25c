/* Attention by blocks of keys against plain loops and against full attention. 07 against 01 (layouts.h): gradients,
 * losses, memory, traffic, and the number of query-key pairs that each rank computes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../common/ultrascale.h"
#include "../harness.h"
#include "../layouts.h"
#include "../tensors.h"

#define CPU64 BUILD "/cpu64/"
#define PROGRAM CPU64 "07_context_parallel"

static const char *const methods[] = {"ring", "zigzag", "allgather", "ulysses"};

/* ---- Tensors ---- */

static real *data(Tensor t)
{
    return t.data;
}

static Tensor empty(const char *name, Shape s)
{
    return guarded(REAL, name, s);
}

static Tensor filled(const char *name, Shape s)
{
    const Tensor t = empty(name, s);

    for (int64_t i = 0; i < tensor_count(t); i++)
        data(t)[i] = random_number();
    return t;
}

static void assert_near(Tensor is, Tensor want, double most)
{
    double largest = 0;

    assert_int_equal(tensor_count(is), tensor_count(want));
    for (int64_t i = 0; i < tensor_count(is); i++)
        largest = fmax(largest, fabs(data(want)[i]));
    for (int64_t i = 0; i < tensor_count(is); i++)
        if (!(fabs(data(is)[i] - data(want)[i]) <= most * largest))
            fail_msg("%s: element %lld is %.17g, not %.17g", is.name, (long long)i, (double)data(is)[i],
                     (double)data(want)[i]);
}

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
    assert_near(out, want_out, 1e-12);
    assert_near(lse, want_lse, 1e-12);
    memset(scores.data, 0xff, tensor_bytes(scores));            /* backward reads nothing from forward's workspace */
    attention_block_backward(d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta, causal);
    assert_near(d_q, want_d_q, 1e-12);
    assert_near(d_k, want_d_k, 1e-12);
    assert_near(d_v, want_d_v, 1e-12);
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

static void small_operators(void **state)
{
    const Tensor in = filled("in", shape(3, 5, 7)), out = empty("out", shape(5, 3, 7));
    const Tensor back = empty("back", shape(3, 5, 7));
    const Tensor to = filled("to", shape(3, 35)), before = guarded_copy(to), full = empty("full", shape(1003));
    const Tensor o = filled("o", shape(4, 3 * 5)), d_o = filled("d_o", shape(4, 3 * 5));
    const Tensor delta = empty("delta", shape(4, 3));

    (void)state;
    transpose_rows(out, in);
    for (int x = 0; x < 3; x++)
        for (int y = 0; y < 5; y++)
            for (int w = 0; w < 7; w++)
                assert_true(data(out)[(y * 3 + x) * 7 + w] == data(in)[(x * 5 + y) * 7 + w]);
    transpose_rows(back, out);
    assert_memory_equal(back.data, in.data, tensor_bytes(in));
    tensor_add(to, in);
    for (int i = 0; i < 105; i++)
        assert_true(data(to)[i] == data(before)[i] + data(in)[i]);
    tensor_fill(full, -INFINITY);
    for (int i = 0; i < 1003; i++)
        assert_true(isinf(data(full)[i]) && data(full)[i] < 0);
    attention_delta(delta, d_o, o);
    for (int i = 0; i < 12; i++) {
        double sum = 0;
        for (int x = 0; x < 5; x++)
            sum += data(o)[i * 5 + x] * data(d_o)[i * 5 + x];
        assert_true(fabs(data(delta)[i] - sum) < 1e-14);
    }
    guarded_release();
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
    assert_near(out, full, 1e-12);
    tensor_zero(d_split);
    attention_delta(delta, tensor_view(d_full, shape(T, A * D)), out);
    for (int o = 0; o < CHUNKS; o++)
        for (int i = order[o]; i < CHUNKS; i++)
            attention_block_backward(CHUNK(OF(d_split, 0), i), CHUNK(OF(d_split, 1), order[o]),
                                     CHUNK(OF(d_split, 2), order[o]), scores, CHUNK(d_full, i), CHUNK(OF(split, 0), i),
                                     CHUNK(OF(split, 1), order[o]), CHUNK(OF(split, 2), order[o]), CHUNK(lse, i),
                                     CHUNK(delta, i), i == order[o]);
    transpose_rows(d_back, d_split);
    assert_near(d_back, d_qkv, shift ? 1e-11 : 1e-12);
    guarded_release();
}

static void blocks_in_any_order_are_full_attention(void **state)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const int64_t lengths[] = {1, 5, 50, 75};
    static const double shifts[] = {0, 30, -30, 1000, -1000};

    (void)state;
    for (int l = 0; l < 4; l++)
        for (int o = 0; o < 6; o++)
            for (int s = 0; s < 5; s++)
                merged_case(lengths[l], orders[o], shifts[s]);
}

/* ---- Operands of the wrong shape ---- */

static int message_pipe[2];

static void send_message(const char *line, int status)
{
    if (write(message_pipe[1], line, strlen(line)) < 0)
        _exit(99);
    _exit(status);
}

enum { OUT, LSE, SCORES, QUERY, KEY, VALUE, D_QUERY, D_KEY, D_VALUE, DELTA, OPERANDS };

/* Runs forward or backward with the operands t in a child process. It must fail with a line that has `message`. */
static void assert_refused(bool back, bool causal, const Tensor *t, const char *message)
{
    char line[4096];
    int status;

    assert_int_equal(pipe(message_pipe), 0);
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        error_end_with(send_message);
        if (back)
            attention_block_backward(t[D_QUERY], t[D_KEY], t[D_VALUE], t[SCORES], t[OUT], t[QUERY], t[KEY], t[VALUE],
                                     t[LSE], t[DELTA], causal);
        else
            attention_block_forward(t[OUT], t[LSE], t[SCORES], t[QUERY], t[KEY], t[VALUE], causal);
        _exit(0);
    }
    close(message_pipe[1]);
    const ssize_t length = read(message_pipe[0], line, sizeof line - 1);
    close(message_pipe[0]);
    waitpid(child, &status, 0);
    line[length > 0 ? length : 0] = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(line, message) || !strstr(line, "but it takes"))
        fail_msg("a wrong operand (\"%s\") ended with %#x and \"%s\"", message, status, line);
}

static void wrong_operands_are_refused(void **state)
{
    Tensor right[OPERANDS], wrong[OPERANDS];
    char message[128];

    (void)state;
    right[OUT] = filled("out", shape(2, 3, 4, 6)), right[LSE] = filled("lse", shape(2, 3, 4, 1));
    right[SCORES] = filled("scores", shape(2, 4, 3, 5)), right[QUERY] = filled("q", shape(2, 3, 4, 6));
    right[KEY] = filled("k", shape(2, 5, 4, 6)), right[VALUE] = filled("v", shape(2, 5, 4, 6));
    right[D_QUERY] = filled("d_q", shape(2, 3, 4, 6)), right[D_KEY] = filled("d_k", shape(2, 5, 4, 6));
    right[D_VALUE] = filled("d_v", shape(2, 5, 4, 6)), right[DELTA] = filled("delta", shape(2, 3, 4, 1));
    attention_block_forward(right[OUT], right[LSE], right[SCORES], right[QUERY], right[KEY], right[VALUE], false);
    attention_block_backward(right[D_QUERY], right[D_KEY], right[D_VALUE], right[SCORES], right[OUT], right[QUERY],
                             right[KEY], right[VALUE], right[LSE], right[DELTA], false);
    for (int back = 0; back < 2; back++) {
        for (int i = 0; i < (back ? OPERANDS : D_QUERY); i++)
            for (int d = 0; d < 5; d++) {                       /* each dimension one smaller; another dtype */
                memcpy(wrong, right, sizeof wrong);
                if (d < 4 && i == SCORES && d == 2)
                    continue;                                   /* a tile may have any number of queries */
                if (d < 4)
                    wrong[i].shape[d]--;
                else
                    wrong[i].dtype = I32;
                char *is = tensor_describe(wrong[i]);
                snprintf(message, sizeof message, "%s %s", is, dtype_name(wrong[i].dtype));
                free(is);
                assert_refused(back, false, wrong, message);
            }
        assert_refused(back, true, right, "k is (2, 5, 4, 6)");        /* causal: as many keys as queries */
    }
    guarded_release();
}

/* ---- The program against 01 ---- */

/* A covering subset of methods, ranks, recomputation, accumulation and micro-batches, with sequence chunks of more than
 * 64 tokens and of odd length. */
static const LayoutCase cases[] = {
    {"07_context_parallel", "--attention zigzag", 1, 2, 3, 1, "none", true, 24},
    {"07_context_parallel", "--attention zigzag", 2, 3, 3, 1, "full", true, 24},
    {"07_context_parallel", "--attention zigzag", 3, 1, 1, 3, "selective", true, 150},
    {"07_context_parallel", "--attention zigzag", 4, 2, 3, 1, "none", true, 24},
    {"07_context_parallel", "--attention zigzag", 8, 1, 1, 1, "full", true, 16},
    {"07_context_parallel", "--attention ring", 2, 1, 1, 3, "none", true, 150},
    {"07_context_parallel", "--attention ring", 3, 2, 3, 1, "full", true, 24},
    {"07_context_parallel", "--attention ring", 8, 1, 1, 1, "none", true, 16},
    {"07_context_parallel", "--attention allgather", 3, 2, 3, 1, "full", true, 24},
    {"07_context_parallel", "--attention allgather", 4, 1, 1, 1, "none", true, 16},
    {"07_context_parallel", "--attention ulysses", 2, 3, 3, 1, "full", true, 24},
    {"07_context_parallel", "--attention ulysses", 3, 1, 1, 3, "selective", true, 150},
    {"07_context_parallel", "--attention ulysses", 4, 1, 1, 1, "none", true, 16, 48, 8},
};

static void configurations_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
}

static void all_configurations_agree(void **state)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    static const int ranks[] = {1, 2, 3, 4, 8}, lengths[] = {48, 144};

    (void)state;
    if (!full_tests())
        skip();
    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 5; n++)
            for (int k = 0; k < 3; k++)
                for (int accumulate = 1; accumulate <= 2; accumulate++)
                    for (int micro_batch = 1; micro_batch <= 3; micro_batch += 2)
                        for (int s = 0; s < 2; s++) {
                            char option[64];
                            snprintf(option, sizeof option, "--attention %s", methods[m]);
                            layout_compare(&(LayoutCase){"07_context_parallel", option, ranks[n], 2, micro_batch,
                                                         accumulate, recompute[k], true, lengths[s], 48, 24});
                        }
}

/* A value of rank r in the last run's --report r.json. */
static double of_rank(int r, const char *what)
{
    char path[128];

    snprintf(path, sizeof path, "ranks.%d.%s", r, what);
    return json_number(in_temporary("r.json"), path);
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
                const double is = of_rank(r, "attention_pairs") / (LAYERS * MICRO_BATCH * ACCUMULATE * HEADS);
                const double want = m == 0 || m == 2 ? C * (C + 1) / 2.0 + C * C * (double)r : S * (S + 1) / 2.0 / n;
                if (is != want)
                    fail_msg("%s, rank %d of %d: %g pairs per head and sequence, not %g", methods[m], r, n, is, want);
                all += is;
            }
            assert_true(all == S * (S + 1) / 2.0);
            if (m == 0)                         /* ring: the first rank and the last have C+1 : (2n-1)C+1 */
                assert_true(of_rank(n - 1, "attention_pairs") * (C + 1)
                            == of_rank(0, "attention_pairs") * ((2 * n - 1) * C + 1));
        }
}

/* A sequence of twice the length takes twice the memory; n ranks take 1/n each. (The loss has 8 bytes.) */
static void nothing_grows_with_the_square(void **state)
{
    static const char *const what[] = {"activations", "communication", "workspace"};
    double bytes[3][3];                     /* 256 tokens on 1 rank, 256 on 2, 512 on 2 */

    (void)state;
    for (int m = 0; m < 4; m++) {
        for (int i = 0; i < 3; i++) {
            run_well(RUN "--layers 2 --heads 8 --seq %d --micro-batch 1 --accumulate 1 --steps 1", i ? 2 : 1,
                     methods[m], token_file(20000, 97), i < 2 ? 256 : 512);
            for (int w = 0; w < 3; w++) {
                char path[64];
                snprintf(path, sizeof path, "memory.%s.measured", what[w]);
                bytes[i][w] = of_rank(0, path) - (w == 2 ? 8 : 0);
            }
        }
        for (int w = 0; w < 3; w++) {
            const bool gathered = m == 2 && w == 1;             /* all-gather: each rank has the full K and V */
            if (bytes[2][w] != 2 * bytes[1][w] || bytes[1][w] * (gathered ? 1 : 2) > bytes[0][w])
                fail_msg("%s, %s: %.0f bytes for 256 tokens on 1 rank, %.0f on 2, %.0f for 512 on 2", methods[m],
                         what[w], bytes[0][w], bytes[1][w], bytes[2][w]);
        }
    }
}

static void assert_message(const char *options, int ranks, const char *message)
{
    Result r = run("mpiexec -n %d " PROGRAM " --data %s %s", ranks, token_file(20000, 97), options);

    if (r.status != 1 || !strstr(r.err, message))
        fail_msg("%s on %d ranks: status %d and \"%s\", not \"%s\"", options, ranks, r.status, r.err, message);
    result_free(r);
}

static void what_cannot_be_split_is_refused(void **state)
{
    (void)state;
    assert_message("--seq 18 --attention ring", 4,
                   "--seq: expected a multiple of 4 (4 ranks x 1 sequence chunks), got 18; try 20");
    assert_message("--seq 18 --attention allgather", 4,
                   "--seq: expected a multiple of 4 (4 ranks x 1 sequence chunks), got 18; try 20");
    assert_message("--seq 20", 4, "--seq: expected a multiple of 8 (4 ranks x 2 sequence chunks), got 20; try 24");
    assert_message("--seq 2 --hidden 12 --heads 2 --attention ulysses", 3, "--seq: expected a multiple of 3 ");
    assert_message("--seq 24 --hidden 48 --heads 4 --attention ulysses", 3,
                   "--attention ulysses: --heads 4 cannot be divided over 3 ranks; 1, 2, 4 could");
}

#define SHAPE "--layers 3 --hidden 48 --heads 6 --vocab 97 --seq 48 --lr 1e-3 --warmup 3 --quiet"

static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks, micro_batch;
        const char *program;
    } ways[] = {{1, 12, "01_single_gpu"}, {3, 12, "07_context_parallel"}, {2, 6, "04_zero --zero 3"},
                {2, 12, "07_context_parallel --attention ulysses"}, {1, 12, "01_single_gpu"}};
    char gradients[256], losses[256];
    double a[LAYOUT_STEPS], b[LAYOUT_STEPS];

    (void)state;
    if (!full_tests())                          /* test_layouts.c saves and loads with 07 */
        skip();
    layout_reference(&(LayoutCase){.ranks = 1, .layers = 3, .micro_batch = 12, .accumulate = 1, .seq = 48}, gradients,
                     losses);
    for (int i = 0; i < 5; i++)
        run_well("mpiexec -n %d " CPU64 "%s " SHAPE " --micro-batch %d --accumulate 1 --steps %d --data %s "
                 "--save crossing --metrics crossing.csv %s", ways[i].ranks, ways[i].program, ways[i].micro_batch,
                 3 * (i + 1), token_file(20000, 97), i ? "--load crossing" : "");
    assert_int_equal(read_column(in_temporary("crossing.csv"), "loss", a, LAYOUT_STEPS), 15);
    assert_int_equal(read_column(losses, "loss", b, LAYOUT_STEPS), LAYOUT_STEPS);
    for (int s = 0; s < 15; s++)
        if (!(fabs(a[s] - b[s]) <= 1e-9 * b[s]))
            fail_msg("the loss of step %d is %.17g, but %.17g without interruptions", s + 1, a[s], b[s]);
}

/* Each rank evaluates its chunks of the validation sequences. The loss is 01's. */
static void evaluation_is_01s(void **state)
{
    (void)state;
    run_well(CPU64 "01_single_gpu " SHAPE " --data %s --steps 2 --eval-every 2 --micro-batch 8 --accumulate 1 "
             "--report r.json", token_file(20000, 97));
    const double want = json_number(in_temporary("r.json"), "held_out.0.loss");
    for (int m = 0; m < 4; m++) {
        if (m % 2 == 0 && !full_tests())
            continue;
        run_well("mpiexec -n 3 " PROGRAM " " SHAPE " --data %s --steps 2 --eval-every 2 --micro-batch 8 --accumulate 1 "
                 "--attention %s --report r.json", token_file(20000, 97), methods[m]);
        const double is = json_number(in_temporary("r.json"), "held_out.0.loss");
        if (!(fabs(is - want) <= 1e-12 * want))
            fail_msg("%s: a validation loss of %.17g nats, but %.17g in 01", methods[m], is, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks),
        cmocka_unit_test(small_operators),
        cmocka_unit_test(blocks_in_any_order_are_full_attention),
        cmocka_unit_test(wrong_operands_are_refused),
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(pairs_are_what_the_mask_leaves),
        cmocka_unit_test(nothing_grows_with_the_square),
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(evaluation_is_01s),
        cmocka_unit_test(all_configurations_agree),
    };

    device_init(0, 1, 2);
    return cmocka_run_group_tests_name("context", tests, NULL, layout_print_worst);
}
