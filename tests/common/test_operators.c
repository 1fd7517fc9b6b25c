/* Tests operators, with 12's, against plain loops in double, on ragged shapes, and their error for operands that don't
 * fit. Rotary positions and attention are tested by finite differences and against Hugging Face (tests/programs).
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

#include "../../12_llama/llama.h"
#include "../../common/ultrascale.h"
#include "../../common/transformer/cpu/vector_math.h"
#include "../harness.h"
#include "../tensors.h"

/* Relative to the largest value of a tensor. */
#ifdef REAL64
static const double tolerance = 1e-11;
#else
static const double tolerance = 2e-5;
#endif

static const int64_t all_rows[] = {1, 3, 67}, all_widths[] = {1, 2, 17, 48, 130}, all_vocabularies[] = {2, 97};

#define EACH(variable, values) \
    for (size_t i_##variable = 0; i_##variable < sizeof values / sizeof *values; i_##variable++) \
        for (int64_t variable = values[i_##variable], once_##variable = 1; once_##variable; once_##variable = 0)

static int32_t id(Tensor t, int64_t i)
{
    return ((const int32_t *)t.data)[i];
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

static void embedding(void **state)
{
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
        guarded_release();
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
    guarded_release();
}

static void layernorm(void **state)
{
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
    guarded_release();
}

static void linear(void **state)
{
    EACH(R, all_rows) EACH(K, all_widths) EACH(M, all_widths) {
        linear_case(R, K, M, true);
        linear_case(R, K, M, false);
    }
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
    guarded_release();
}

static void gelu(void **state)
{
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
        guarded_release();
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
    guarded_release();
}

static void cross_entropy(void **state)
{
    /* A float near 1e4 is accurate to 5e-4; so is lse, and with it each probability p, but not 1 - p. */
    const double far = sizeof(real) == 4 ? 5e-3 : tolerance;

    EACH(R, all_rows) EACH(V, all_vocabularies) {
        cross_entropy_case(R, V, 0, 1, tolerance);
        cross_entropy_case(R, V, 0, 1e4, far);
        cross_entropy_case(R, V, 1e4, 1, far);
        cross_entropy_case(R, V, -1e4, 1, far);
    }
    EACH(V, all_widths)
        cross_entropy_case(5, V, 0, 3, tolerance);
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
    guarded_release();
}

static void square_sums(void **state)
{
    static const int64_t counts[] = {1, 2, 63, 64, 65, 1000, 100003};

    EACH(count, counts) {
        const Tensor x = filled("x", shape(count));
        long double want = 0;
        for (int64_t i = 0; i < count; i++)
            want += (long double)data(x)[i] * data(x)[i];
        const Tensor sum = guarded(F64, "sum", shape(1));
        square_sum_into(sum, &x, 1);
        assert_true(fabsl(tensor_item(sum) - want) <= 1e-13L * want);
        add_to_hash(sum);
        guarded_release();
    }
}

/* ---- 12's operators ---- */

/* As in layernorm_case, the expected backward uses the full Jacobian of n = x rstd: d n_k / d x_j = (delta_kj -
 * n_k n_j / H) rstd. */
static void rmsnorm(void **state)
{
    const double eps = 1e-6;

    EACH(R, all_rows) EACH(H, all_widths) {
        const Tensor x = filled("x", shape(R, H)), weight = filled("weight", shape(H)), out = empty("out", shape(R, H));
        const Tensor rstd = empty("rstd", shape(R)), d_out = filled("d_out", shape(R, H));
        const Tensor d_x = filled("d_x", shape(R, H)), d_weight = filled("d_weight", shape(H));
        double *want_out = zeros(R * H), *want_rstd = zeros(R), *want_d_x = numbers(d_x), *n = zeros(H);
        double *want_d_weight = numbers(d_weight);

        for (int64_t i = 0; i < R; i++) {
            const real *in = data(x) + i * H, *d_o = data(d_out) + i * H;
            double square = 0;
            for (int64_t j = 0; j < H; j++)
                square += (double)in[j] * in[j] / H;
            want_rstd[i] = 1 / sqrt(square + eps);
            for (int64_t j = 0; j < H; j++) {
                n[j] = in[j] * want_rstd[i];
                want_out[i * H + j] = n[j] * data(weight)[j];
                want_d_weight[j] += d_o[j] * n[j];
            }
            for (int64_t j = 0; j < H; j++)
                for (int64_t k = 0; k < H; k++)
                    want_d_x[i * H + j] += (double)d_o[k] * data(weight)[k] * want_rstd[i]
                                           * ((k == j) - n[k] * n[j] / H);
        }
        rmsnorm_forward(out, rstd, x, weight, eps);
        rmsnorm_backward(d_x, d_weight, d_out, x, rstd, weight);
        assert_close(out, want_out);
        assert_close(rstd, want_rstd);
        assert_close(d_x, want_d_x);
        assert_close(d_weight, want_d_weight);
        guarded_release();
    }
}

static void swiglu(void **state)
{
    static const int64_t powers[] = {1, 100};           /* 100: silu is 0, or its input */

    EACH(R, all_rows) EACH(F, all_widths) EACH(power, powers) {
        const Tensor gate_up = filled("gate_up", shape(R, 2 * F)), out = empty("out", shape(R, F));
        const Tensor d_out = filled("d_out", shape(R, F)), d_gate_up = empty("d_gate_up", shape(R, 2 * F));
        double *want = zeros(R * F), *want_d = zeros(R * 2 * F);

        for (int64_t i = 0; i < R * 2 * F; i++)
            data(gate_up)[i] *= power;
        for (int64_t i = 0; i < R * F; i++) {
            const int64_t at = i / F * 2 * F + i % F;
            const double gate = data(gate_up)[at], up = data(gate_up)[at + F], s = 1 / (1 + exp(-gate));
            want[i] = gate * s * up;
            want_d[at] = data(d_out)[i] * up * (s + gate * s * (1 - s));
            want_d[at + F] = data(d_out)[i] * gate * s;
        }
        swiglu_forward(out, gate_up);
        swiglu_backward(d_gate_up, d_out, gate_up);
        assert_close(out, want);
        assert_close(d_gate_up, want_d);
        guarded_release();
    }
}

/* The element of head a, of all heads of q, k and v, of a token. */
static double of_head(Tensor qkv, int64_t token, int64_t a, int64_t D, int64_t j)
{
    return data(qkv)[token * tensor_width(qkv) + a * D + j];
}

/* B sequences of T tokens; A heads of q, of size D, that share K of k and v. */
static void grouped_attention_case(int64_t B, int64_t T, int64_t A, int64_t K, int64_t D)
{
    const Tensor qkv = filled("qkv", shape(B, T, (A + 2 * K) * D)), out = empty("out", shape(B, T, A * D));
    const Tensor probs = empty("probs", shape(B, A, T, T)), d_out = filled("d_out", shape(B, T, A * D));
    const Tensor d_qkv = empty("d_qkv", shape(B, T, (A + 2 * K) * D)), d_probs = empty("d_probs", shape(B, A, T, T));
    const int64_t width = (A + 2 * K) * D;
    double *want = zeros(B * T * A * D), *want_probs = zeros(B * A * T * T), *want_d = zeros(B * T * width);
    double *d_p = zeros(T);

    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++)
            for (int64_t i = 0; i < T; i++) {
                const int64_t k = A + a / (A / K), v = k + K, query = b * T + i;
                double *p = want_probs + ((b * A + a) * T + i) * T, sum = 0, dot = 0;
                for (int64_t t = 0; t <= i; t++) {
                    double score = 0;
                    for (int64_t j = 0; j < D; j++)
                        score += of_head(qkv, query, a, D, j) * of_head(qkv, b * T + t, k, D, j);
                    sum += p[t] = exp(score / sqrt(D));
                }
                for (int64_t t = 0; t <= i; t++) {
                    p[t] /= sum, d_p[t] = 0;
                    for (int64_t j = 0; j < D; j++) {
                        const double d = data(d_out)[query * A * D + a * D + j];
                        want[query * A * D + a * D + j] += p[t] * of_head(qkv, b * T + t, v, D, j);
                        d_p[t] += d * of_head(qkv, b * T + t, v, D, j);
                        want_d[(b * T + t) * width + v * D + j] += p[t] * d;
                    }
                    dot += p[t] * d_p[t];
                }
                for (int64_t t = 0; t <= i; t++)
                    for (int64_t j = 0; j < D; j++) {
                        const double d_score = p[t] * (d_p[t] - dot) / sqrt(D);
                        want_d[query * width + a * D + j] += d_score * of_head(qkv, b * T + t, k, D, j);
                        want_d[(b * T + t) * width + k * D + j] += d_score * of_head(qkv, query, a, D, j);
                    }
            }
    grouped_attention_forward(out, probs, qkv);
    grouped_attention_backward(d_qkv, d_probs, d_out, qkv, probs);
    assert_close(out, want);
    assert_close(d_qkv, want_d);
    for (int64_t row = 0; row < B * A * T; row++)       /* what lies above the diagonal is nobody's */
        for (int64_t t = row % T + 1; t < T; t++)
            data(probs)[row * T + t] = 0;
    assert_close(probs, want_probs);
    guarded_release();
}

static void grouped_attention(void **state)
{
    static const int64_t lengths[] = {1, 3, 70, 131};

    EACH(T, lengths) {
        grouped_attention_case(2, T, 4, 4, 6);
        grouped_attention_case(1, T, 6, 2, 8);
        grouped_attention_case(3, T, 3, 1, 2);
    }
}

/* ---- exp ---- */

#ifdef REAL64
static const double smallest = DBL_MIN, largest = DBL_MAX, unit = DBL_EPSILON;
#else
static const double smallest = FLT_MIN, largest = FLT_MAX, unit = FLT_EPSILON;
#endif

static void exponential(void **state)
{
    const double low = log(smallest), high = log(largest);
    enum { POINTS = 200000 };

    for (int i = 1; i < POINTS; i++) {          /* the full range of results, and close to 0 */
        const double f = (double)i / POINTS;
        const real x[] = {low + (high - low) * f, pow(1e-30, f), -pow(1e-30, f)};
        for (size_t k = 0; k < 3; k++)
            if (!(fabsl(real_exp(x[k]) / expl(x[k]) - 1) <= 4 * unit))
                fail_msg("exp(%.17g) is %.17g", x[k], real_exp(x[k]));
    }
    assert_true(real_exp(0) == 1 && real_exp(1.2 * low) == 0 && real_exp(-INFINITY) == 0);
    assert_true(isinf(real_exp(1.01 * high)) && isinf(real_exp(INFINITY)) && real_exp(INFINITY) > 0);
    assert_true(isnan(real_exp(NAN)) && isnan(real_exp(-NAN)));
}

/* ---- NaN goes to all results that depend on it, and to no other ---- */

static void nan_stays_nan(void **state)
{
    const int64_t R = 67, H = 48, at[] = {0, 5 * H + 47, 66 * H + 17};

    EACH(place, at) {
        const Tensor x = filled("x", shape(R, H)), weight = filled("weight", shape(H)), out = empty("out", shape(R, H));
        const Tensor stats = empty("stats", shape(R, 2)), d_out = filled("d_out", shape(R, H)),
                     d_x = empty("d_x", shape(R, H));
        const Tensor targets = ids_below("targets", R, H), lse = empty("lse", shape(R)),
                     loss = guarded(F64, "loss", shape(1));

        data(x)[place] = NAN;
        ((int32_t *)targets.data)[place / H] = 3;
        layernorm_forward(out, stats, x, weight, weight);
        rmsnorm_forward(d_x, lse, x, weight, 1e-5);
        for (int64_t i = 0; i < R * H; i++)
            assert_true(!!isnan(data(out)[i]) == (i / H == place / H)
                        && !!isnan(data(d_x)[i]) == (i / H == place / H));
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
        guarded_release();
    }
}

/* ---- Any number of threads gives the same bits ---- */

static void threads_change_no_bit(void **state)
{
    static void (*const tests[])(void **) = {embedding, layernorm, gelu, residual, cross_entropy, square_sums,
                                             rmsnorm, swiglu, grouped_attention};
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
    const char *takes, *operands;       /* sizes like 6x8; #: of I32, %: of F64, b: of BF16; 0: none */
    bool fits;
} Rule;

static const char linear_takes[] = "=out R,M; x R,K; weight M,K; ?bias M",
    rope_takes[] = "+qkv B*T,3*A*2*D; rope T,2*D REAL", probs_takes[] = "=out B*T,A*D; =probs B,A,T,T; qkv B*T,3*A*D";
static const Rule rules[] = {
    {linear_takes, "6x16 6x8 16x8 16", true}, {linear_takes, "b6x16 b6x8 b16x8 b16", true},
    {linear_takes, "2x3x16 6x8 16x8 0", true}, {linear_takes, "6x16 6x8 16x8 b16", false},
    {linear_takes, "0 6x8 16x8 16", false}, {linear_takes, "6x16 6x9 16x8 16", false},
    {linear_takes, "6x16 7x8 16x8 16", false}, {linear_takes, "6x16 6x8 16x8 15", false},
    {linear_takes, "6x16 6x8 8x16 16", false}, {linear_takes, "#6x16 #6x8 #16x8 #16", false},
    {rope_takes, "2x3x24 3x4", true}, {rope_takes, "b6x24 3x4", true}, {rope_takes, "6x24 b3x4", false},
    {rope_takes, "6x20 3x4", false}, {rope_takes, "7x24 3x4", false}, {rope_takes, "6x24 3x5", false},
    {probs_takes, "2x3x8 2x2x3x3 2x3x24", true}, {probs_takes, "2x3x8 2x2x3x4 2x3x24", false},
    {probs_takes, "2x3x8 4x3x3 2x3x24", false}, {probs_takes, "2x3x8 2x2x3x3 2x3x16", false},
    {"+loss 1 F64; ids R I32", "%1 #6", true},
    {"+loss 1 F64; ids R I32", "%2 #6", false}, {"+loss 1 F64; ids R I32", "#1 #6", false},
    {"+loss 1 F64; ids R I32", "%1 6", false}, {"+d M,K G; x R,K", "b4x8 6x8", true},
    {"+d M,K G; x R,K", "#4x8 6x8", false},
    {"=out N; x N", "8 8 8", false}, {"=out N; x N; ?y N", "8 8", true},
    {"=to N STORED; from N ANY", "b6x8 #48", true}, {"=to N STORED; from N ANY", "#6x8 #48", false},
};

static void begin_operator(const void *rule)
{
    const Rule *r = rule;
    Operands o = {0};
    char text[128];

    snprintf(text, sizeof text, "%s", r->operands);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "), o.count++) {
        Tensor *t = &o.t[o.count];
        *t = *word == '0' ? NONE : guarded(*word == '#' ? I32 : *word == '%' ? F64 : *word == 'b' ? BF16 : REAL, "t",
                                           shape(500));
        t->dims = 0;
        for (char *size = word + !!strchr("#%b", *word); size; size = strchr(size, 'x') ? strchr(size, 'x') + 1 : NULL)
            t->shape[t->dims++] = atoi(size);
    }
    op_begin("rule", 0, r->takes, o);
    op_end();
}

static void operands_are_checked(void **state)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        Result r = run_function(begin_operator, &rules[i]);
        const bool said = strstr(r.err, "rule: ") && strstr(r.err, "; but it takes ") && strstr(r.err, rules[i].takes);
        if (r.status != !rules[i].fits || said == rules[i].fits)
            fail_msg("%s, rule \"%s\": status %d and \"%s\"", rules[i].operands, rules[i].takes, r.status, r.err);
        result_free(r);
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
    guarded_release();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding),
        cmocka_unit_test(layernorm),
        cmocka_unit_test(linear),
        cmocka_unit_test(gelu),
        cmocka_unit_test(residual),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(weight_decay_does_not_drift),
        cmocka_unit_test(square_sums),
        cmocka_unit_test(rmsnorm),
        cmocka_unit_test(swiglu),
        cmocka_unit_test(grouped_attention),
        cmocka_unit_test(exponential),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(operands_are_checked),
        cmocka_unit_test(operators_are_counted),
    };

    device_prepare(argv);               /* the kernels that the programs have */
    comm_begin(&argc, &argv);
    threads_set(2, 2);
    device_init(0);
    comm_exit(cmocka_run_group_tests_name("operators", tests, NULL, NULL));
}
