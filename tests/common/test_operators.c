/* Tests every operator against plain loops in double, on ragged shapes, and its error for operands that don't fit.
 *
 * Each tensor lies between guards of NaN, and outputs are NaN before the operator runs. So a read past an end, or an
 * addition to an unwritten output, shows in the result; a write past an end changes a guard.
 */
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../07_context_parallel/blocks.h"
#include "../../10_expert_parallel/experts.h"
#include "../../common/ultrascale.h"
#include "../../common/cpu/vector_math.h"
#include "../harness.h"
#include "../tensors.h"

/* Relative to the largest value of a tensor. */
#ifdef REAL64
static const double tolerance = 1e-11;
#else
static const double tolerance = 2e-5;
#endif

static const int64_t all_rows[] = {1, 3, 67}, all_widths[] = {1, 2, 17, 48, 130}, all_heads[] = {2, 8, 20, 64},
    all_lengths[] = {1, 5, 64, 65, 130}, all_vocabularies[] = {2, 97};

#define EACH(variable, values) \
    for (size_t i_##variable = 0; i_##variable < sizeof values / sizeof *values; i_##variable++) \
        for (int64_t variable = values[i_##variable], once_##variable = 1; once_##variable; once_##variable = 0)

/* ---- Tensors, and arrays of expected values ---- */

enum { MOST = 64 };

static double *arrays[MOST];
static int array_count;

/* Random ids below `limit`, with repeats; every fourth is -1. */
static Tensor ids_below(const char *name, int64_t count, int64_t limit)
{
    const Tensor t = guarded(I32, name, shape(count));

    for (int64_t i = 0; i < count; i++)
        ((int32_t *)t.data)[i] = i % 4 == 1 ? -1 : (int32_t)((uint64_t)fabs(1e6 * random_number()) % limit);
    return t;
}

static int32_t id(Tensor t, int64_t i)
{
    return ((const int32_t *)t.data)[i];
}

/* Arrays of zeros, and of a tensor's elements; release frees them. */
static double *zeros(int64_t count)
{
    assert_true(array_count < MOST);
    return arrays[array_count++] = calloc(count + 1, sizeof(double));
}

static double *numbers(Tensor t)
{
    double *x = zeros(tensor_count(t));

    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = data(t)[i];
    return x;
}

static void release(void)
{
    guarded_release();
    for (int i = 0; i < array_count; i++)
        free(arrays[i]);
    array_count = 0;
}

/* Results of every case, so that runs on more threads can be compared. */
static uint64_t results_hash;

static void add_to_hash(Tensor t)
{
    for (int64_t i = 0; i < tensor_bytes(t); i++)
        results_hash = (results_hash ^ ((const unsigned char *)t.data)[i]) * 1099511628211u;    /* FNV-1a */
}

static void assert_within(Tensor t, const double *expected, double most)
{
    assert_near(t, expected, most);
    add_to_hash(t);
}

static void assert_close(Tensor t, const double *expected)
{
    assert_within(t, expected, tolerance);
}

static void assert_same(Tensor a, Tensor b)
{
    if (memcmp(a.data, b.data, tensor_bytes(a)))
        fail_msg("%s differs from %s in some bit", a.name, b.name);
}

/* ---- The operators against plain loops ---- */

static void plain_memory(void **state)
{
    static const int64_t counts[] = {1, 17, 1000, 600000};        /* the last is larger than a huge page */

    (void)state;
    EACH(count, counts) {
        const Tensor from = filled("from", shape(count)), to = empty("to", shape(count));
        tensor_copy(to, from);
        assert_same(to, from);
        tensor_zero(to);
        for (int64_t i = 0; i < count; i++)
            assert_true(data(to)[i] == 0);
        release();
    }
    const Tensor one = filled("one", shape(1, 1)), big = guarded(F64, "big", shape(1));
    *(double *)big.data = 1 / 3.0;
    assert_true(tensor_item(one) == data(one)[0]);
    assert_true(tensor_item(big) == 1 / 3.0);
    release();
}

static void embedding(void **state)
{
    (void)state;
    EACH(R, all_rows) EACH(H, all_widths) EACH(V, all_vocabularies) {
        const Tensor ids = ids_below("ids", R, V), weight = filled("weight", shape(V, H)),
                     out = empty("out", shape(R, H));
        const Tensor d_out = filled("d_out", shape(R, H)), d_weight = filled("d_weight", shape(V, H));
        double *want = numbers(d_weight);

        embedding_forward(out, ids, weight);
        embedding_backward(d_weight, d_out, ids);
        for (int64_t i = 0; i < R; i++)
            for (int64_t j = 0; j < H; j++) {
                assert_true(data(out)[i * H + j] == (id(ids, i) < 0 ? 0 : data(weight)[id(ids, i) * H + j]));
                if (id(ids, i) >= 0)
                    want[id(ids, i) * H + j] += data(d_out)[i * H + j];
            }
        assert_close(d_weight, want);
        release();
    }
}

/* Checks layernorm on x around `center`. At 1000, a variance computed as mean(x^2) - mean^2 would have no correct digit
 * in float. The bound there is 1e-3: the error of a mean of 130 such numbers, added one by one.
 * The expected backward uses the full Jacobian of n = (x - mean) rstd: d n_k / d x_j = (delta_kj - 1/H - n_k n_j / H)
 * rstd. */
static void layernorm_case(int64_t R, int64_t H, double center)
{
    const Tensor x = filled("x", shape(R, H)), weight = filled("weight", shape(H)), bias = filled("bias", shape(H));
    const Tensor out = empty("out", shape(R, H)), stats = empty("stats", shape(R, 2));
    const Tensor d_out = filled("d_out", shape(R, H)), d_x = filled("d_x", shape(R, H));
    const Tensor d_weight = filled("d_weight", shape(H)), d_bias = filled("d_bias", shape(H));
    double *want_out = zeros(R * H), *want_stats = zeros(R * 2), *want_d_x = numbers(d_x), *n = zeros(H);
    double *want_d_weight = numbers(d_weight), *want_d_bias = numbers(d_bias);
    const double most = center ? fmax(tolerance, sizeof(real) == 4 ? 1e-3 : 0) : tolerance;

    for (int64_t i = 0; i < R * H; i++)
        data(x)[i] += center;
    for (int64_t i = 0; i < R; i++) {
        const real *in = data(x) + i * H, *d_o = data(d_out) + i * H;
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < H; j++)
            mean += (double)in[j] / H;
        for (int64_t j = 0; j < H; j++)
            variance += (in[j] - mean) * (in[j] - mean) / H;
        const double inverse = 1 / sqrt(variance + 1e-5);
        want_stats[2 * i] = mean;
        want_stats[2 * i + 1] = inverse;
        for (int64_t j = 0; j < H; j++) {
            n[j] = (in[j] - mean) * inverse;
            want_out[i * H + j] = n[j] * data(weight)[j] + data(bias)[j];
            want_d_weight[j] += d_o[j] * n[j];
            want_d_bias[j] += d_o[j];
        }
        for (int64_t j = 0; j < H; j++)
            for (int64_t k = 0; k < H; k++)
                want_d_x[i * H + j] +=
                    (double)d_o[k] * data(weight)[k] * inverse * ((k == j) - 1.0 / H - n[k] * n[j] / H);
    }
    layernorm_forward(out, stats, x, weight, bias);
    layernorm_backward(d_x, d_weight, d_bias, d_out, x, stats, weight);
    assert_within(out, want_out, most);
    assert_within(stats, want_stats, most);
    assert_within(d_x, want_d_x, most);
    assert_within(d_weight, want_d_weight, most);
    assert_within(d_bias, want_d_bias, tolerance);
    release();
}

/* A row of equal numbers has a standard deviation of 0, for any mean: the output is the bias. */
static void layernorm_of_equal_numbers(void **state)
{
    static const double values[] = {1.0123, 101.23, -1012.3, 1.0123e6};
    enum { H = 4096 };

    (void)state;
    for (int i = 0; i < 4; i++) {
        const Tensor x = empty("x", shape(1, H)), out = empty("out", shape(1, H)), stats = empty("stats", shape(1, 2));
        const Tensor weight = filled("weight", shape(H)), bias = filled("bias", shape(H));
        double *want = numbers(bias);
        for (int j = 0; j < H; j++)
            data(x)[j] = values[i];
        layernorm_forward(out, stats, x, weight, bias);
        assert_within(out, want, 1e-5);
        release();
    }
}

static void layernorm(void **state)
{
    (void)state;
    EACH(R, all_rows) EACH(H, all_widths)
        layernorm_case(R, H, 0);
    layernorm_case(67, 130, 1000);
}

static void linear_case(int64_t R, int64_t K, int64_t M, bool with_bias)
{
    const Tensor x = filled("x", shape(R, K)), weight = filled("weight", shape(M, K)),
                 out = empty("out", shape(1, R, M));
    const Tensor bias = with_bias ? filled("bias", shape(M)) : NONE,
                 d_bias = with_bias ? filled("d_bias", shape(M)) : NONE;
    const Tensor d_out = filled("d_out", shape(R, M)), d_x = empty("d_x", shape(R, K));
    const Tensor d_weight = filled("d_weight", shape(M, K));
    double *want_out = zeros(R * M), *want_d_x = zeros(R * K), *want_d_weight = numbers(d_weight);
    double *want_d_bias = numbers(d_bias);

    for (int64_t i = 0; i < R; i++)
        for (int64_t m = 0; m < M; m++) {
            const double d = data(d_out)[i * M + m];
            want_out[i * M + m] = with_bias ? data(bias)[m] : 0;
            want_d_bias[with_bias ? m : 0] += d;
            for (int64_t k = 0; k < K; k++) {
                want_out[i * M + m] += (double)data(x)[i * K + k] * data(weight)[m * K + k];
                want_d_x[i * K + k] += d * data(weight)[m * K + k];
                want_d_weight[m * K + k] += d * data(x)[i * K + k];
            }
        }
    linear_forward(out, x, weight, bias);
    linear_backward_input(d_x, d_out, weight);
    linear_backward_weight(d_weight, d_bias, d_out, x);
    assert_close(out, want_out);
    assert_close(d_x, want_d_x);
    assert_close(d_weight, want_d_weight);
    assert_close(d_bias, want_d_bias);
    release();
}

static void linear(void **state)
{
    (void)state;
    EACH(R, all_rows) EACH(K, all_widths) EACH(M, all_widths) {
        linear_case(R, K, M, true);
        linear_case(R, K, M, false);
    }
}

static void rotary_positions(void **state)
{
    static const int64_t firsts[] = {0, 7, 1000}, heads[] = {1, 3};

    (void)state;
    EACH(T, all_lengths) EACH(D, all_heads) EACH(A, heads) EACH(first, firsts) {
        const int64_t B = 2, width = 3 * A * D;
        const Tensor rope = empty("rope", shape(T, D)), qkv = filled("qkv", shape(B, T, width));
        const Tensor before = guarded_copy(qkv);
        double *want = numbers(qkv), *table = zeros(T * D);

        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < D / 2; k++) {
                const double angle = (first + t) / pow(10000, (double)(2 * k) / D);
                table[t * D + k] = cos(angle), table[t * D + D / 2 + k] = sin(angle);
                for (int64_t at = 0; at < B * 3 * A; at++) {
                    const int64_t b = at / (3 * A), vector = at % (3 * A), i = (b * T + t) * width + vector * D + k;
                    const double x = want[i], y = want[i + D / 2];
                    if (vector % 3 == 2)                        /* v is not rotated */
                        continue;
                    want[i] = x * cos(angle) - y * sin(angle);
                    want[i + D / 2] = x * sin(angle) + y * cos(angle);
                }
            }
        rope_table(rope, first);
        rope_forward(qkv, rope);
        assert_close(rope, table);
        assert_close(qkv, want);
        for (int64_t i = 0; i < B * T * width; i++)
            if (i / D % 3 == 2)
                assert_true(data(qkv)[i] == data(before)[i]);
        rope_backward(qkv, rope);
        assert_close(qkv, numbers(before));
        release();
    }
}

/* The plain loops take one query at a time, and only its unmasked keys. Masked probabilities may be 0 or stay NaN;
 * backward must not read them. */
static void attention_case(int64_t B, int64_t T, int64_t A, int64_t D)
{
    const Tensor qkv = filled("qkv", shape(B, T, 3 * A * D)), out = empty("out", shape(B, T, A * D));
    const Tensor probs = empty("probs", shape(B, A, T, T)), d_probs = empty("d_probs", shape(B, A, T, T));
    const Tensor d_out = filled("d_out", shape(B, T, A * D)), d_qkv = empty("d_qkv", shape(B, T, 3 * A * D));
    const double *x = numbers(qkv), *d_o = numbers(d_out), scale = 1 / sqrt(D);
    double *p = zeros(B * A * T * T), *d_p = zeros(T), *want_out = zeros(B * T * A * D),
           *want_d = zeros(B * T * 3 * A * D);

    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++)
            for (int64_t i = 0; i < T; i++) {
                const int64_t row_i = (b * T + i) * A + a;
                double *p_i = p + ((b * A + a) * T + i) * T, sum = 0, dot = 0;
                for (int64_t j = 0; j <= i; j++) {
                    const double *q = x + row_i * 3 * D, *k = x + ((b * T + j) * A + a) * 3 * D + D;
                    double score = 0;
                    for (int64_t c = 0; c < D; c++)
                        score += q[c] * k[c] * scale;
                    sum += p_i[j] = exp(score);
                }
                for (int64_t j = 0; j <= i; j++) {
                    const double *v = x + ((b * T + j) * A + a) * 3 * D + 2 * D;
                    p_i[j] /= sum, d_p[j] = 0;
                    for (int64_t c = 0; c < D; c++) {
                        want_out[row_i * D + c] += p_i[j] * v[c];
                        d_p[j] += d_o[row_i * D + c] * v[c];
                    }
                    dot += p_i[j] * d_p[j];
                }
                for (int64_t j = 0; j <= i; j++) {
                    const int64_t row_j = (b * T + j) * A + a;
                    const double d_score = p_i[j] * (d_p[j] - dot) * scale;
                    for (int64_t c = 0; c < D; c++) {
                        want_d[row_i * 3 * D + c] += d_score * x[row_j * 3 * D + D + c];
                        want_d[row_j * 3 * D + D + c] += d_score * x[row_i * 3 * D + c];
                        want_d[row_j * 3 * D + 2 * D + c] += p_i[j] * d_o[row_i * D + c];
                    }
                }
            }
    attention_forward(out, probs, qkv);
    assert_close(out, want_out);
    for (int64_t i = 0; i < B * A * T * T; i++) {
        const double is = data(probs)[i];
        if (i % T > i / T % T)
            assert_true(is == 0 || isnan(is));
        else if (!(fabs(is - p[i]) <= tolerance))
            fail_msg("T %d, D %d: probability %d is %g, not %g", (int)T, (int)D, (int)i, is, p[i]);
    }
    attention_backward(d_qkv, d_probs, d_out, qkv, probs);
    assert_close(d_qkv, want_d);
    release();
}

static void attention(void **state)
{
    (void)state;
    EACH(T, all_lengths) EACH(D, all_heads) {
        attention_case(1, T, 3, D);
        attention_case(2, T, 1, D);
    }
    attention_case(3, 7, 2, 6);
}

static void gelu_case(Tensor x)
{
    const int64_t R = tensor_rows(x), F = tensor_width(x);
    const Tensor out = empty("out", shape(R, F)), d_out = filled("d_out", shape(R, F)), d_x = empty("d_x", shape(R, F));
    double *want = zeros(R * F), *want_d = zeros(R * F);

    for (int64_t i = 0; i < R * F; i++) {
        const double v = data(x)[i], root = 0.79788456080286535588, t = tanh(root * (v + 0.044715 * v * v * v));
        want[i] = 0.5 * v * (1 + t);
        want_d[i] = data(d_out)[i] * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * root * (1 + 3 * 0.044715 * v * v));
    }
    gelu_forward(out, x);
    gelu_backward(d_x, d_out, x);
    assert_close(out, want);
    assert_close(d_x, want_d);
    release();
}

static void gelu(void **state)
{
    (void)state;
    EACH(R, all_rows) EACH(F, all_widths)
        gelu_case(filled("x", shape(R, F)));
    for (int power = 1; power <= 10000; power *= 10) {                  /* large |x|, where tanh is +-1 */
        const Tensor x = filled("x", shape(67, 17));
        for (int64_t i = 0; i < tensor_count(x); i++)
            data(x)[i] *= power;
        gelu_case(x);
    }
}

static void residual(void **state)
{
    (void)state;
    EACH(R, all_rows) EACH(H, all_widths) {
        const Tensor x = filled("x", shape(R, H)), branch = filled("branch", shape(1, R, H)),
                     bias = filled("bias", shape(H));
        const Tensor out = empty("out", shape(R, H)), d_out = filled("d_out", shape(R, H));
        const Tensor d_bias = filled("d_bias", shape(H));
        double *want = zeros(R * H), *want_d = numbers(d_bias);

        for (int64_t i = 0; i < R * H; i++) {
            want[i] = (double)data(x)[i] + data(branch)[i] + data(bias)[i % H];
            want_d[i % H] += data(d_out)[i];
        }
        residual_forward(out, x, branch, bias);
        residual_backward(d_bias, d_out);
        assert_close(out, want);
        assert_close(d_bias, want_d);
        release();
    }
}

/* Logits have mean `center` and standard deviation `spread`. The loss is added to 0.75. */
static void cross_entropy_case(int64_t R, int64_t V, double center, double spread, double most)
{
    const Tensor logits = filled("logits", shape(R, V)), lse = empty("lse", shape(R)),
                 loss = guarded(F64, "loss", shape(1));
    const Tensor targets = ids_below("targets", R, V), d_logits = empty("d_logits", shape(R, V));
    double *want_lse = zeros(R), *want_d = zeros(R * V), want = 0.75;
    const double scale = 0.3;

    for (int64_t i = 0; i < R * V; i++)
        data(logits)[i] = center + spread * data(logits)[i];
    for (int64_t i = 0; i < R; i++) {
        const real *in = data(logits) + i * V;
        double largest = in[0], sum = 0;
        for (int64_t j = 0; j < V; j++)                 /* no fmax: gcc 12 ends with an internal error on aarch64 */
            largest = in[j] > largest ? in[j] : largest;
        for (int64_t j = 0; j < V; j++)
            sum += exp(in[j] - largest);
        want_lse[i] = largest + log(sum);
        want += scale * (want_lse[i] - (id(targets, i) < 0 ? 0 : in[id(targets, i)]));   /* -1: no target */
        for (int64_t j = 0; j < V; j++)
            want_d[i * V + j] = scale * (exp(in[j] - want_lse[i]) - (j == id(targets, i)));
    }
    *(double *)loss.data = 0.75;
    cross_entropy_forward(loss, lse, logits, targets, scale);
    cross_entropy_backward(d_logits, logits, lse, targets, scale);
    cross_entropy_backward(logits, logits, lse, targets, scale);
    if (!(fabs(tensor_item(loss) - want) <= most * fmax(1, fabs(want))))
        fail_msg("the loss is %.17g, not %.17g", tensor_item(loss), want);
    add_to_hash(loss);
    assert_close(lse, want_lse);
    assert_within(d_logits, want_d, most);
    assert_same(logits, d_logits);                                      /* in place: the same bits */
    release();
}

static void cross_entropy(void **state)
{
    /* A float near 1e4 is accurate to 5e-4. So is lse, and with it the exponent of each probability. */
    const double far = sizeof(real) == 4 ? 1e-3 : tolerance;

    (void)state;
    EACH(R, all_rows) EACH(V, all_vocabularies) {
        cross_entropy_case(R, V, 0, 1, tolerance);
        cross_entropy_case(R, V, 0, 1e4, far);
        cross_entropy_case(R, V, 1e4, 1, far);
        cross_entropy_case(R, V, -1e4, 1, far);
    }
    EACH(V, all_widths)
        cross_entropy_case(5, V, 0, 3, tolerance);
}

/* AdamW of the textbook: moments, bias correction, decoupled decay. Some gradients are so small that eps matters. */
/* d_logits of a softmax, by its full Jacobian: d p_i / d l_j = p_i ((i == j) - p_j). */
static void softmax_backward(double *d_logits, const real *p, const double *d_p, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        d_logits[j] = 0;
        for (int64_t i = 0; i < n; i++)
            d_logits[j] += d_p[i] * p[i] * ((i == j) - p[j]);
    }
}

static void experts_case(int64_t B, int64_t T, int64_t E, int64_t K, int64_t C, int64_t H)
{
    const int64_t N = B * T, S = E * B * C;
    const Tensor probs = filled("probs", shape(B, T, E)), gates = empty("gates", shape(B, T, K));
    const Tensor choice = guarded(I32, "choice", shape(B, T, K)), slot = guarded(I32, "slot", shape(B, T, K));
    const Tensor rows = guarded(I32, "rows", shape(E, B, C)), load = empty("load", shape(B, E));
    const Tensor d_logits = empty("d_logits", shape(B, T, E)), d_gates = filled("d_gates", shape(B, T, K));
    const Tensor loss = guarded(F64, "loss", shape(1)), totals = filled("totals", shape(E, 2));
    const Tensor x = filled("x", shape(N, H)), slots = empty("slots", shape(S, H)), out = empty("out", shape(N, H));
    const Tensor d_x = filled("d_x", shape(N, H)), d_slots = empty("d_slots", shape(S, H));
    const Routing r = {probs, gates, choice, slot, rows, load};
    double *p = zeros(N * E), *gate = zeros(N * K), *count = zeros(B * E), *want_totals = numbers(totals);
    double *want_d_logits = zeros(N * E), *d_p = zeros(E), want_loss = 0.5;
    int32_t *row_of = malloc(S * sizeof *row_of);

    /* a tie in each row; the expected choices come from a sort by selection */
    for (int64_t i = 0; i < N && E > 1; i++)
        data(probs)[i * E + E - 1] = data(probs)[i * E + i % (E - 1)];
    for (int64_t i = 0; i < N; i++) {
        double sum = 0;
        for (int64_t e = 0; e < E; e++)
            sum += p[i * E + e] = exp(data(probs)[i * E + e]);
        for (int64_t e = 0; e < E; e++)
            p[i * E + e] /= sum;
    }
    const Tensor logits = guarded_copy(probs);
    *(double *)loss.data = want_loss;
    route_forward(&r);
    balance_forward(loss, totals, &r, 0.3);
    memset(row_of, 0xff, S * sizeof *row_of);
    for (int64_t i = 0; i < N; i++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) {
            int64_t best = -1;
            for (int64_t e = E - 1; e >= 0; e--) {
                bool taken = false;
                for (int64_t j = 0; j < k; j++)
                    taken |= id(choice, i * K + j) == e;
                if (!taken && (best < 0 || data(logits)[i * E + e] >= data(logits)[i * E + best]))
                    best = e;
            }
            assert_int_equal(id(choice, i * K + k), best);
            sum += gate[i * K + k] = p[i * E + best];
            const int64_t place = count[i / T * E + best]++, at = (best * B + i / T) * C + place;
            assert_int_equal(id(slot, i * K + k), place < C ? at : -1);
            want_totals[2 * best]++;
            want_totals[2 * best + 1] += place >= C;
            if (place < C)
                row_of[at] = i;
        }
        for (int64_t k = 0; k < K && K > 1; k++)
            gate[i * K + k] /= sum;
    }
    for (int64_t i = 0; i < N; i++)
        for (int64_t e = 0; e < E; e++)
            want_loss += 0.3 * count[i / T * E + e] * E / (K * T) * p[i * E + e];
    assert_close(probs, p);
    assert_close(gates, gate);
    assert_close(load, count);
    assert_close(totals, want_totals);
    assert_memory_equal(rows.data, row_of, S * sizeof *row_of);
    assert_true(fabs(tensor_item(loss) / want_loss - 1) < tolerance);

    /* the gates are p / (sum of the chosen p), or p if K is 1 */
    route_backward(d_logits, d_gates, &r, 0.3);
    for (int64_t i = 0; i < N; i++) {
        double sum = 0, dot = 0;
        for (int64_t k = 0; k < K; k++) {
            sum += data(probs)[i * E + id(choice, i * K + k)];
            dot += data(d_gates)[i * K + k] * data(gates)[i * K + k];
        }
        for (int64_t e = 0; e < E; e++)
            d_p[e] = 0.3 * count[i / T * E + e] * E / (K * T);
        for (int64_t k = 0; k < K; k++)
            d_p[id(choice, i * K + k)] += K == 1 ? data(d_gates)[i] : (data(d_gates)[i * K + k] - dot) / sum;
        softmax_backward(want_d_logits + i * E, data(probs) + i * E, d_p, E);
    }
    assert_close(d_logits, want_d_logits);

    double *want_slots = zeros(S * H), *want_out = numbers(x), *want_d_x = numbers(d_x);
    for (int64_t s = 0; s < S; s++)
        for (int64_t h = 0; h < H && row_of[s] >= 0; h++)
            want_slots[s * H + h] = data(x)[row_of[s] * H + h];
    dispatch_forward(slots, x, &r);
    assert_close(slots, want_slots);
    const Tensor outputs = filled("outputs", shape(S, H));
    double *want_d_slots = zeros(S * H), *want_d_gates = zeros(N * K);
    for (int64_t i = 0; i < N * K; i++)
        for (int64_t h = 0, s = id(slot, i); h < H && s >= 0; h++) {
            want_out[i / K * H + h] += data(gates)[i] * data(outputs)[s * H + h];
            want_d_slots[s * H + h] = data(gates)[i] * data(x)[i / K * H + h];
            want_d_gates[i] += data(x)[i / K * H + h] * data(outputs)[s * H + h];
            want_d_x[i / K * H + h] += want_d_slots[s * H + h];
        }
    combine_forward(out, x, outputs, &r);
    assert_close(out, want_out);
    combine_backward(d_slots, d_gates, x, outputs, &r);         /* x serves as d_out */
    assert_close(d_slots, want_d_slots);
    assert_close(d_gates, want_d_gates);
    dispatch_backward(d_x, d_slots, &r);
    assert_close(d_x, want_d_x);
    free(row_of);
    release();
}

/* Many slots, and few: no choice is dropped, most are. */
static void experts(void **state)
{
    static const int64_t sizes[][6] = {             /* B, T, E, K, C, H */
        {1, 1, 1, 1, 1, 2}, {2, 5, 3, 1, 5, 17}, {3, 7, 4, 2, 3, 8}, {2, 33, 8, 2, 33, 48}, {1, 64, 5, 5, 20, 3},
        {2, 65, 40, 3, 2, 130}, {3, 20, 6, 1, 1, 7}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        experts_case(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], sizes[i][4], sizes[i][5]);
}

static void adamw(void **state)
{
    static const int64_t counts[] = {1, 17, 1000};

    (void)state;
    EACH(count, counts) {
        AdamWArguments a = {
            .lr = 0.05, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.3, .gradient_scale = 0.37};
        const Tensor params = filled("params", shape(count)), gradients = filled("gradients", shape(count));
        const Tensor m = empty("m", shape(count)), v = empty("v", shape(count)), before = guarded_copy(gradients);
        double *want = numbers(params), *want_m = zeros(count), *want_v = zeros(count);

        tensor_zero(m);
        tensor_zero(v);
        for (int t = 1; t <= 7; t++) {
            a.correction1 = 1 - pow(a.beta1, t), a.correction2 = 1 - pow(a.beta2, t);
            for (int64_t i = 0; i < count; i++) {
                data(gradients)[i] = i % 5 == 4 ? 1e-8 * random_number() : random_number();
                const double g = a.gradient_scale * data(gradients)[i];
                want_m[i] = a.beta1 * want_m[i] + (1 - a.beta1) * g;
                want_v[i] = a.beta2 * want_v[i] + (1 - a.beta2) * g * g;
                want[i] -= a.lr * a.weight_decay * want[i];
                want[i] -= a.lr * (want_m[i] / a.correction1) / (sqrt(want_v[i] / a.correction2) + a.eps);
            }
            memcpy(before.data, gradients.data, tensor_bytes(before));
            adamw_update(params, NONE, m, v, gradients, a);
            assert_same(gradients, before);
            assert_close(params, want);
            assert_close(m, want_m);
            assert_close(v, want_v);
        }
        release();
    }
}

/* At a learning rate of 1e-5 a step's decay is 1e-6 of a weight. As a factor, 1 - 1e-6 in float would be off by some
 * percent of that, in the same direction for all weights. */
static void weight_decay_does_not_drift(void **state)
{
    enum { COUNT = 1000, STEPS = 2000 };
    const AdamWArguments a = {.lr = 1e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                              .gradient_scale = 1, .correction1 = 1, .correction2 = 1};
    const Tensor params = filled("params", shape(COUNT)), gradients = empty("gradients", shape(COUNT));
    const Tensor m = empty("m", shape(COUNT)), v = empty("v", shape(COUNT));
    double *before = numbers(params), sum = 0, expected = 0;

    (void)state;
    tensor_zero(gradients);
    tensor_zero(m);
    tensor_zero(v);
    for (int t = 0; t < STEPS; t++)
        adamw_update(params, NONE, m, v, gradients, a);
    for (int i = 0; i < COUNT; i++) {
        sum += fabs(before[i]) - fabs(data(params)[i]);
        expected += fabs(before[i]) * (1 - pow(1 - 1e-6, STEPS));
    }
    if (fabs(sum / expected - 1) > 0.002)
        fail_msg("weights decayed by %.8g, not %.8g", sum, expected);
    release();
}

static void square_sums(void **state)
{
    static const int64_t counts[] = {1, 2, 63, 64, 65, 1000, 100003};

    (void)state;
    EACH(count, counts) {
        const Tensor x = filled("x", shape(count));
        long double want = 0;
        for (int64_t i = 0; i < count; i++)
            want += (long double)data(x)[i] * data(x)[i];
        assert_true(fabsl(square_sum(&x, 1) - want) <= 1e-13L * want);
        const Tensor sum = guarded(F64, "sum", shape(1));
        square_sum_into(sum, &x, 1);
        assert_true(tensor_item(sum) == square_sum(&x, 1));
        add_to_hash(sum);
        release();
    }
}

/* ---- exp ---- */

#ifdef REAL64
enum { DIGITS = DBL_MANT_DIG };
static const double smallest = DBL_MIN, largest = DBL_MAX;
#else
enum { DIGITS = FLT_MANT_DIG };
static const double smallest = FLT_MIN, largest = FLT_MAX;
#endif

/* The error of exp(x) in units of the last place, if the result is a normal number. Below, it must be 0; above, Inf. */
static double exp_error(real x)
{
    const long double exact = expl(x);
    const real is = real_exp(x);
    int exponent;

    frexpl(exact, &exponent);
    if (exact > largest)
        return isinf(is) && is > 0 ? 0 : INFINITY;
    if (exact < smallest)                               /* a subnormal result close to the exact one is fine */
        return is == 0 || fabsl(is / exact - 1) < 0.001L ? 0 : INFINITY;
    return (double)fabsl(is - exact) / ldexp(1, exponent - DIGITS);
}

static void exponential(void **state)
{
    const double low = log(smallest), high = log(largest);
    enum { POINTS = 200000 };

    (void)state;
    for (int i = 0; i <= POINTS; i++) {
        const double f = (double)i / POINTS;
        const real x[] = {1.1 * (low + (high - low) * f),               /* the full range of results */
                          pow(1e-30, f), -pow(1e-30, f),                /* close to 0 */
                          low + 0.1 * (f - 0.5), high + 0.1 * (f - 0.5),    /* around the ends of the range */
                          pow(1e36, f) * high, pow(1e36, f) * low};     /* far beyond */
        for (size_t k = 0; k < sizeof x / sizeof *x; k++)
            if (!(exp_error(x[k]) <= 4))
                fail_msg("exp(%.17g) is %.17g, wrong by %g units in the last place", x[k], real_exp(x[k]),
                         exp_error(x[k]));
    }
    assert_true(real_exp(0) == 1);
    assert_true(real_exp(-INFINITY) == 0 && isinf(real_exp(INFINITY)) && real_exp(INFINITY) > 0);
    assert_true(isnan(real_exp(NAN)) && isnan(real_exp(-NAN)));
}

/* ---- NaN goes to all results that depend on it, and to no other ---- */

static void nan_stays_nan(void **state)
{
    const int64_t R = 67, H = 48, at[] = {0, 5 * H + 47, 66 * H + 17};

    (void)state;
    EACH(place, at) {
        const Tensor x = filled("x", shape(R, H)), weight = filled("weight", shape(H)), out = empty("out", shape(R, H));
        const Tensor stats = empty("stats", shape(R, 2)), d_out = filled("d_out", shape(R, H)),
                     d_x = empty("d_x", shape(R, H));
        const Tensor targets = ids_below("targets", R, H), lse = empty("lse", shape(R)),
                     loss = guarded(F64, "loss", shape(1));

        data(x)[place] = NAN;
        ((int32_t *)targets.data)[place / H] = 3;
        layernorm_forward(out, stats, x, weight, weight);
        for (int64_t i = 0; i < R * H; i++)
            assert_true(!!isnan(data(out)[i]) == (i / H == place / H));
        gelu_forward(out, x);
        gelu_backward(d_x, d_out, x);
        for (int64_t i = 0; i < R * H; i++)
            assert_true(!!isnan(data(out)[i]) == (i == place) && !!isnan(data(d_x)[i]) == (i == place));
        *(double *)loss.data = 0;
        cross_entropy_forward(loss, lse, x, targets, 1);
        cross_entropy_backward(d_x, x, lse, targets, 1);
        assert_true(isnan(tensor_item(loss)));
        for (int64_t i = 0; i < R; i++)
            assert_true(!!isnan(data(lse)[i]) == (i == place / H));
        for (int64_t i = 0; i < R * H; i++)
            assert_true(!!isnan(data(d_x)[i]) == (i / H == place / H));
        release();
    }
}

/* A query that is NaN makes only its own row NaN. Scores of a million do not overflow. */
static void attention_of_extremes(void **state)
{
    const int64_t T = 70, A = 2, D = 8;
    const Tensor qkv = filled("qkv", shape(1, T, 3 * A * D)), out = empty("out", shape(1, T, A * D));
    const Tensor probs = empty("probs", shape(1, A, T, T));

    (void)state;
    for (int64_t i = 0; i < T * 3 * A * D; i++)
        data(qkv)[i] *= i / D % 3 == 2 ? 1 : 1000;
    data(qkv)[66 * 3 * A * D] = NAN;                                    /* q of head 0, token 66 */
    attention_forward(out, probs, qkv);
    for (int64_t i = 0; i < T * A * D; i++) {
        assert_true(!!isnan(data(out)[i]) == (i / D == 66 * A));
        assert_true(isnan(data(out)[i]) || fabs(data(out)[i]) < 3);
    }
    release();
}

/* ---- Any number of threads gives the same bits ---- */

static void threads_change_no_bit(void **state)
{
    static void (*const tests[])(void **) = {embedding, layernorm, rotary_positions, gelu, residual, cross_entropy,
                                             experts, adamw, square_sums};
    uint64_t of_one = 0;

    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        random_again();
        results_hash = 0;
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
            tests[i](state);
        of_one = threads == 1 ? results_hash : of_one;
        if (results_hash != of_one)
            fail_msg("some bits differ on %d threads", threads);
    }
    omp_set_num_threads(2);
}

/* ---- Operands that don't fit ---- */

typedef struct {
    const char *name;
    void (*call)(const Tensor *t);
    const char *operands;
} Call;

/* Each operator, with operands that fit, in the operator's order: their names and sizes, #: of I32, %: of F64. R = 6,
 * H = 8, M = 16, V = 11; B = 2, T = 3, A = 2, D = 4. By blocks of keys: B = 2, C = 3 queries, K = 5 keys, A = 4, D = 6,
 * and 7 queries per tile. Of experts: B = 2, T = 3, E = 5, K = 4, C = 7. Then the operator's arguments: t is the list
 * of operands. */
#define Q4 " 2x3x4x6"
#define K4 " 2x5x4x6"
#define S4 " 2x3x4x1"
#define T2 t[0], t[1]
#define T3 T2, t[2]
#define T4 T3, t[3]
#define T5 T4, t[4]
#define CALLS(X) \
    X(tensor_copy, "to 6x8, from 6x8", T2) \
    X(tensor_item, "t 1", t[0]) \
    X(embedding_forward, "out 6x8, #ids 6, weight 11x8", T3) \
    X(embedding_backward, "d_weight 11x8, d_out 6x8, #ids 6", T3) \
    X(layernorm_forward, "out 6x8, stats 6x2, x 6x8, weight 8, bias 8", T5) \
    X(layernorm_backward, "d_x 6x8, d_weight 8, d_bias 8, d_out 6x8, stats 6x2", T4, t[3], t[4], t[1]) \
    X(linear_forward, "out 6x16, x 6x8, weight 16x8, bias 16", T4) \
    X(linear_backward_input, "d_x 6x8, d_out 6x16, weight 16x8", T3) \
    X(linear_backward_weight, "d_weight 16x8, d_bias 16, d_out 6x16, x 6x8", T4) \
    X(rope_table, "rope 3x4", t[0], 0) \
    X(rope_forward, "qkv 6x24, rope 3x4", T2) \
    X(rope_backward, "d_qkv 6x24, rope 3x4", T2) \
    X(attention_forward, "out 2x3x8, probs 2x2x3x3, qkv 2x3x24", T3) \
    X(attention_backward, "d_qkv 2x3x24, d_probs 2x2x3x3, d_out 2x3x8, qkv 2x3x24, probs 2x2x3x3", T5) \
    X(gelu_forward, "out 6x8, x 6x8", T2) \
    X(gelu_backward, "d_x 6x8, d_out 6x8, x 6x8", T3) \
    X(residual_forward, "out 6x8, x 6x8, branch 6x8, bias 8", T4) \
    X(residual_backward, "d_bias 8, d_out 6x8", T2) \
    X(cross_entropy_forward, "%loss 1, lse 6, logits 6x11, #targets 6", T4, 1) \
    X(cross_entropy_backward, "d_logits 6x11, logits 6x11, lse 6, #targets 6", T4, 1) \
    X(cross_entropy_max, "max 6, logits 6x11", T2) \
    X(cross_entropy_sums, "sums 6x2, logits 6x11, max 6, #targets 6", T4) \
    X(cross_entropy_loss, "%loss 1, lse 6, sums 6x2, max 6", T4, 1) \
    X(ids_in_slice, "#out 6, #ids 6", T2, 0, 5) \
    X(route_forward, "probs 2x3x5, gates 2x3x4, #choice 2x3x4, #slot 2x3x4, #rows 5x2x7, load 2x5", \
      &(Routing){T5, t[5]}) \
    X(route_backward, "d_logits 2x3x5, d_gates 2x3x4, probs 2x3x5, gates 2x3x4, #choice 2x3x4, load 2x5", T2, \
      &(Routing){t[2], t[3], t[4], NONE, NONE, t[5]}, 1) \
    X(balance_forward, "%loss 1, totals 5x2, probs 2x3x5, load 2x5", T2, \
      &(Routing){.probs = t[2], .gates = t[2], .rows = t[2], .load = t[3]}, 1) \
    X(dispatch_forward, "slots 70x8, x 6x8, #slot 2x3x4, #rows 5x2x7", T2, &(Routing){.slot = t[2], .rows = t[3]}) \
    X(dispatch_backward, "d_x 6x8, d_slots 70x8, #slot 2x3x4, #rows 5x2x7", T2, \
      &(Routing){.slot = t[2], .rows = t[3]}) \
    X(combine_forward, "out 6x8, x 6x8, slots 70x8, gates 2x3x4, #slot 2x3x4, #rows 5x2x7", T3, \
      &(Routing){.gates = t[3], .slot = t[4], .rows = t[5]}) \
    X(combine_backward, "d_slots 70x8, d_gates 2x3x4, d_out 6x8, slots 70x8, gates 2x3x4, #slot 2x3x4, #rows 5x2x7", \
      T4, &(Routing){.gates = t[4], .slot = t[5], .rows = t[6]}) \
    X(adamw_update, "params 48, m 48, v 48, gradients 48", t[0], NONE, t[1], t[2], t[3], \
      (AdamWArguments){.correction1 = 1, .correction2 = 1}) \
    X(square_sum, "t 6x8", t, 1) \
    X(square_sum_into, "%sum 1, t 6x8", t[0], t + 1, 1) \
    X(clip_scale_into, "%scale 1, %square_sum 1", T2, 1) \
    X(tensor_convert, "to 6x8, from 6x8", T2) \
    X(tensor_scale, "t 6x8", t[0], 2) \
    X(attention_block_forward, "out" Q4 ", lse" S4 ", scores 2x4x7x5, q" Q4 ", k" K4 ", v" K4, T5, t[5], false) \
    X(attention_block_backward, "d_q" Q4 ", d_k" K4 ", d_v" K4 ", scores 2x4x7x5, d_out" Q4 ", q" Q4 \
      ", k" K4 ", v" K4 ", lse" S4 ", delta" S4, T5, t[5], t[6], t[7], t[8], t[9], false)

#define CALLER(OPERATOR, OPERANDS, ...) static void call_##OPERATOR(const Tensor *t) { OPERATOR(__VA_ARGS__); }
CALLS(CALLER)

static void call_adamw_scaled(const Tensor *t)
{
    adamw_update(t[0], NONE, t[1], t[2], t[3],
                 (AdamWArguments){.correction1 = 1, .correction2 = 1, .scale = t[4]});
}

#define ENTRY(OPERATOR, OPERANDS, ...) {#OPERATOR, call_##OPERATOR, OPERANDS},
static const Call calls[] = {
    CALLS(ENTRY)
    {"adamw_update", call_adamw_scaled, "params 48, m 48, v 48, gradients 48, %gradient_scale 1"},
};

/* Creates a call's operands, with room to be larger; ids are -1. Returns their number. */
static int create_operands(const Call *c, Tensor operands[MAX_OPERANDS])
{
    static char text[512];
    int count = 0;

    snprintf(text, sizeof text, "%s", c->operands);
    for (char *name = strtok(text, " ,"), *size; name; name = strtok(NULL, " ,"), count++) {
        const bool other = *name == '#' || *name == '%';
        Tensor *t = &operands[count];
        *t = guarded(*name == '#' ? I32 : *name == '%' ? F64 : REAL, name + other, shape(700));
        if (!strcmp(t->name, "choice"))
            memset(t->data, 0, tensor_bytes(*t));               /* route_backward uses each as an index */
        t->dims = 0;
        for (size = strtok(NULL, ","); size; size = strchr(size, 'x') ? strchr(size, 'x') + 1 : NULL)
            t->shape[t->dims++] = atoi(size);
    }
    return count;
}

typedef struct {
    const Call *call;
    const Tensor *operands;
} WrongCall;

static void call_wrong(const void *argument)
{
    const WrongCall *w = argument;

    w->call->call(w->operands);
}

/* Calls the operator with its operand i wrong. It must end with status 1 and a line that names it and has `what`. */
static void assert_refused(const Call *c, const Tensor *operands, int i, const char *what)
{
    Result r = run_function(call_wrong, &(WrongCall){c, operands});
    const char *is = tensor_describe(operands[i]);
    char name[64];
    const char *from = strncmp(c->name, "tensor_", 7) ? c->name : c->name + 7, *into = strstr(from, "_into");

    snprintf(name, sizeof name, "%.*s: ", into ? (int)(into - from) : 60, from);        /* as messages have it */
    if (r.status != 1 || !strstr(r.err, name) || (operands[i].data && !strstr(r.err, is)) || !strstr(r.err, what))
        fail_msg("%s of a wrong %s ended with status %d and \"%s\"", c->name, is, r.status, r.err);
    result_free(r);
}

/* How many dimensions of all operands have this size. */
static int times(const Tensor *t, int count, int64_t size)
{
    int n = 0;

    for (int i = 0; i < count; i++)
        for (int d = 0; d < t[i].dims; d++)
            n += t[i].shape[d] == size;
    return n;
}

/* Each operand in turn has shape (5, 7); one dimension larger, unless that size is its alone; another type; is NONE. */
static void wrong_operands_are_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        const Call *c = &calls[k];
        Tensor right[MAX_OPERANDS] = {NONE}, wrong[MAX_OPERANDS];
        const int count = create_operands(c, right);
        c->call(right);
        for (int i = 0; i < count; i++) {
            const bool any_shape = !strcmp(right[i].name, "t");
            memcpy(wrong, right, sizeof wrong);
            wrong[i].dims = 2, wrong[i].shape[0] = 5, wrong[i].shape[1] = 7, wrong[i].shape[2] = wrong[i].shape[3] = 0;
            if (!any_shape)
                assert_refused(c, wrong, i, "but it takes");
            for (int d = 0; d < right[i].dims && !any_shape; d++) {
                memcpy(wrong, right, sizeof wrong);
                wrong[i].shape[d]++;
                if (times(right, count, right[i].shape[d]) > 1)
                    assert_refused(c, wrong, i, "but it takes");
            }
            memcpy(wrong, right, sizeof wrong);
            wrong[i].dtype = right[i].dtype == I32 ? REAL : I32;
            assert_refused(c, wrong, i, dtype_name(wrong[i].dtype));
            wrong[i] = NONE;
            if (strcmp(right[i].name, "bias") && strcmp(right[i].name, "d_bias")
                && strcmp(right[i].name, "gradient_scale"))
                assert_refused(c, wrong, i, "none");
        }
        release();
    }
}

/* ---- Statistics of operators ---- */

static void operators_are_counted(void **state)
{
    const OpStats *stats;
    const Tensor x = filled("x", shape(6, 8)), weight = filled("weight", shape(16, 8)),
                 out = empty("out", shape(6, 16));
    const Tensor qkv = filled("qkv", shape(2, 3, 24)), attn_out = empty("attn_out", shape(2, 3, 8));
    const Tensor probs = empty("probs", shape(2, 2, 3, 3));

    (void)state;
    ops_stats_reset();
    linear_forward(out, x, weight, NONE);
    attention_forward(attn_out, probs, qkv);
    linear_forward(out, x, weight, NONE);
    assert_int_equal(ops_stats(&stats), 2);
    assert_string_equal(stats[0].name, "linear_forward");
    assert_int_equal(stats[0].calls, 2);
    assert_true(stats[0].flops == 2 * (2 * 6 * 8 * 16));
    assert_true(stats[0].bytes == 2 * sizeof(real) * (6 * 8 + 16 * 8 + 6 * 16));
    assert_true(stats[0].seconds > 0);
    assert_string_equal(stats[1].name, "attention_forward");
    assert_true(stats[1].flops == 4 * (2 * 2 * 3 * 3 * 4));         /* 2 FLOPs per product, in scores and in probs v */
    ops_stats_reset();
    assert_int_equal(ops_stats(&stats), 0);
    release();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_memory),
        cmocka_unit_test(embedding),
        cmocka_unit_test(layernorm),
        cmocka_unit_test(layernorm_of_equal_numbers),
        cmocka_unit_test(linear),
        cmocka_unit_test(rotary_positions),
        cmocka_unit_test(attention),
        cmocka_unit_test(gelu),
        cmocka_unit_test(residual),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(experts),
        cmocka_unit_test(adamw),
        cmocka_unit_test(weight_decay_does_not_drift),
        cmocka_unit_test(square_sums),
        cmocka_unit_test(exponential),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(attention_of_extremes),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(wrong_operands_are_refused),
        cmocka_unit_test(operators_are_counted),
    };

    comm_begin(&argc, &argv);
    device_init(0, 1, 2);
    comm_exit(cmocka_run_group_tests_name("operators", tests, NULL, NULL));
}
