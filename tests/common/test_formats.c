/* Tests the small formats: each rounds as it is defined. Operators that store them compute in REAL and round once.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../02_mixed_precision/fp8.h"
#include "../../common/ultrascale.h"
#include "../../common/formats.h"
#include "../harness.h"
#include "../tensors.h"

/* ---- The formats, against their definition ---- */

typedef struct {
    const char *name;
    DType dtype;
    int exponent, mantissa;
    int last;                       /* the largest finite number's bits */
    bool infinity;                  /* larger numbers become Inf; if false, the largest finite number */
} Format;

static const Format formats[] = {{"BF16", BF16, 8, 7, 0x7f7f, true},
                                 {"F16", F16, 5, 10, 0x7bff, true},
                                 {"F8_E4M3", E4M3, 4, 3, 0x7e, false},
                                 {"F8_E5M2", E5M2, 5, 2, 0x7b, false}};
enum { FORMATS = sizeof formats / sizeof *formats };

/* The number that `bits` stand for: (-1)^s * 2^(e - bias) * 1.m, or with e = 0, (-1)^s * 2^(1 - bias) * 0.m. */
static double meaning(const Format *f, int bits)
{
    const int bias = (1 << (f->exponent - 1)) - 1, sign = bits >> (f->exponent + f->mantissa);
    const int e = bits >> f->mantissa & ((1 << f->exponent) - 1), m = bits & ((1 << f->mantissa) - 1);
    double x = e ? ldexp(1 + ldexp(m, -f->mantissa), e - bias) : ldexp(ldexp(m, -f->mantissa), 1 - bias);

    if ((bits & ((1 << (f->exponent + f->mantissa)) - 1)) > f->last)
        x = m && (f->dtype != E4M3 || m == 7) ? NAN : INFINITY;
    return sign ? -x : x;
}

static double decoded(const Format *f, int bits)
{
    const uint16_t two = bits;
    const uint8_t one = bits;
    real x;

    formats_read(&x, dtype_size(f->dtype) == 2 ? (const void *)&two : &one, f->dtype, 1);
    return x;
}

static int encoded(const Format *f, real x)
{
    uint16_t two = 0;
    uint8_t one = 0;

    formats_write(dtype_size(f->dtype) == 2 ? (void *)&two : &one, &x, f->dtype, 1);
    return dtype_size(f->dtype) == 2 ? two : one;
}

static void every_pattern_is_read(void **state)
{
    for (const Format *f = formats; f < formats + FORMATS; f++) {
        for (int bits = 0; bits < 1 << (1 + f->exponent + f->mantissa); bits++) {
            const double is = decoded(f, bits), want = meaning(f, bits);
            if (isnan(want) ? !isnan(is) : is != want || signbit(is) != signbit(want))
                fail_msg("%s: %#x is %g, but was read as %g", f->name, bits, want, is);
        }
        assert_true(format_largest(f->dtype) == meaning(f, f->last));
        assert_string_equal(dtype_name(f->dtype), f->name);
    }
}

/* Every number of the format is stored exactly. A number half-way between two goes to the one with even bits; a little
 * beside that, to the nearer one. */
static void every_pattern_is_rounded_to(void **state)
{
    for (const Format *f = formats; f < formats + FORMATS; f++) {
        const int sign = 1 << (f->exponent + f->mantissa);
        for (int bits = 0; bits <= f->last; bits++) {
            const double x = meaning(f, bits);
            const double next = bits < f->last ? meaning(f, bits + 1) : x + (x - meaning(f, bits - 1));
            const real half = (real)((x + next) / 2);           /* exact: a real has at least one bit more */
            const int up = bits < f->last || f->infinity ? bits + 1 : bits, tie = bits % 2 ? up : bits;
            assert_int_equal(encoded(f, (real)x), bits);
            assert_int_equal(encoded(f, (real)-x), bits | sign);
            assert_int_equal(encoded(f, half), tie);
            assert_int_equal(encoded(f, -half), tie | sign);
            assert_int_equal(encoded(f, (real)nextafter(half, INFINITY) > half ? (real)nextafter(half, INFINITY)
                                                                              : nextafterf(half, INFINITY)), up);
            assert_int_equal(encoded(f, (real)nextafter(half, 0) < half ? (real)nextafter(half, 0)
                                                                        : nextafterf(half, 0)), bits);
        }
        const int beyond = f->infinity ? f->last + 1 : f->last;
        assert_int_equal(encoded(f, INFINITY), beyond);
        assert_int_equal(encoded(f, -INFINITY), beyond | sign);
        assert_int_equal(encoded(f, (real)3e38 * 100), beyond);
        assert_true(isnan(decoded(f, encoded(f, NAN))));
        assert_true(isnan(decoded(f, encoded(f, -NAN))));
    }
}

/* ---- Operators ---- */

/* Fails unless each element of `small` is that of `exact`, rounded, within `neighbors` times the distance of adjacent
 * numbers. Matmuls may sum in another order, so a number near a tie may become its neighbor. Sums that cancel differ
 * by the rounding of their terms: by 2e-6 of the largest sum. 0 neighbors: nothing may differ. */
static void assert_rounded(Tensor small, Tensor exact, double neighbors)
{
    const int64_t count = tensor_count(small);
    real *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b);
    void *stored = malloc(tensor_bytes(small));
    real largest = 0;

    assert_int_equal(count, tensor_count(exact));
    tensor_to_host(a, small);
    tensor_to_host(b, exact);
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(b[i]));
    for (int64_t i = 0; i < count; i++) {
        const double apart = ldexp(fabs(b[i]), small.dtype == F16 ? -10 : -7);
        const double allowed = neighbors * apart + (neighbors > 0 ? 2e-6 * largest : 0);
        real want;
        formats_write(stored, &b[i], small.dtype, 1);
        formats_read(&want, stored, small.dtype, 1);
        if (!(fabs(a[i] - want) <= allowed))
            fail_msg("%s, element %lld: %.9g, but %.9g rounds to %.9g", small.name, (long long)i, (double)a[i],
                     (double)b[i], (double)want);
    }
    assert_true(largest > 0);
    free(a);
    free(b);
    free(stored);
}

/* Most operators of the model run in REAL and in a small type on the same numbers, with gradients in both their types.
 * Sizes need more than one panel of weights, and are no multiple of a vector. */
static void operators_round_once(void **state)
{
    enum { B = 2, T = 70, A = 3, D = 10, H = A * D, R = B * T, M = 1100, V = 53 };
    const struct { DType dtype, gradients; } cases[] = {{BF16, REAL}, {BF16, BF16}, {F16, REAL}};

    for (int c = 0; c < 3; c++) {
        const DType dtype = cases[c].dtype, g = cases[c].gradients;
        Tensor x[2], y[2], stats[2], w[2], b[2], wide[2], weight[2], bias[2], qkv[2], probs[2], d_qkv[2], d_probs[2];
        Tensor d_w[2], d_b[2], d_weight[2], d_bias[2], d_y[2], d_wide[2], out[2], embedding[2], d_embedding[2];
        Tensor logits[2], lse[2], loss[2], add[2];
        Tensor ids = zeroed(I32, "ids", shape(R));
        int32_t id[R];
        for (int i = 0; i < R; i++)
            id[i] = i % 7 ? i * i % V : -1;
        device_upload(ids.data, id, sizeof id);
        for (int k = 0; k < 2; k++) {                   /* 0: REAL; 1: the small type */
            const DType t = k ? dtype : REAL, tg = k ? g : REAL;
            const double grow = g == BF16 ? 0 : 1;      /* BF16 gradients start at 0: rounded once */
            x[k] = seeded(t, dtype, "x", shape(R, H), 1), y[k] = zeroed(t, "y", shape(R, H));
            add[k] = seeded(t, dtype, "add", shape(R, H), 1);
            stats[k] = zeroed(REAL, "stats", shape(R, 2));
            w[k] = seeded(t, dtype, "w", shape(H), 1), b[k] = seeded(t, dtype, "b", shape(H), 1);
            wide[k] = zeroed(t, "wide", shape(R, M));
            weight[k] = seeded(t, dtype, "weight", shape(M, H), 0.2), bias[k] = seeded(t, dtype, "bias", shape(M), 1);
            qkv[k] = seeded(t, dtype, "qkv", shape(B, T, 3 * H), 1);
            probs[k] = zeroed(t, "probs", shape(B, A, T, T)), d_probs[k] = zeroed(t, "d_probs", shape(B, A, T, T));
            d_qkv[k] = zeroed(t, "d_qkv", shape(B, T, 3 * H));
            d_w[k] = seeded(tg, BF16, "dw", shape(H), grow), d_b[k] = seeded(tg, BF16, "db", shape(H), grow);
            d_weight[k] = seeded(tg, BF16, "dweight", shape(M, H), grow);
            d_bias[k] = seeded(tg, BF16, "dbias", shape(M), grow);
            d_y[k] = seeded(t, dtype, "d_y", shape(R, H), 1), d_wide[k] = seeded(t, dtype, "d_wide", shape(R, M), 1);
            out[k] = zeroed(t, "out", shape(R, H));
            embedding[k] = seeded(t, dtype, "embedding", shape(V, H), 1);
            d_embedding[k] = zeroed(tg, "d_embedding", shape(V, H));
            logits[k] = seeded(t, dtype, "logits", shape(R, V), 2);
            lse[k] = zeroed(REAL, "lse", shape(R)), loss[k] = zeroed(F64, "loss", shape(1));
        }
        for (int k = 0; k < 2; k++) {
            embedding_forward(out[k], ids, embedding[k]);
            embedding_backward(d_embedding[k], d_y[k], ids);
            layernorm_forward(y[k], stats[k], x[k], w[k], b[k]);
        }
        assert_rounded(out[1], out[0], 0);
        assert_rounded(d_embedding[1], d_embedding[0], 0);
        assert_rounded(y[1], y[0], 0);
        for (int k = 0; k < 2; k++)
            layernorm_backward(x[k], d_w[k], d_b[k], d_y[k], add[k], stats[k], w[k]);
        assert_rounded(x[1], x[0], 0);
        if (g == BF16) {
            assert_rounded(d_w[1], d_w[0], 0);
            assert_rounded(d_b[1], d_b[0], 0);
        }
        for (int k = 0; k < 2; k++) {
            linear_forward(wide[k], add[k], weight[k], bias[k]);
            linear_backward_input(out[k], d_wide[k], weight[k]);
            linear_backward_weight(d_weight[k], d_bias[k], d_wide[k], add[k]);
        }
        assert_rounded(wide[1], wide[0], 1);
        assert_rounded(out[1], out[0], 1);
        /* OpenBLAS's kernels may sum the two in different orders. Rounding twice would give an error of 0.5. */
        assert_rounded(d_weight[1], d_weight[0], g == BF16 ? 1 : 1e-2);
        assert_rounded(d_bias[1], d_bias[0], g == BF16 ? 0 : 1e-3);
        for (int k = 0; k < 2; k++)
            attention_forward(out[k], probs[k], qkv[k]);
        assert_rounded(out[1], out[0], 1);
        assert_rounded(probs[1], probs[0], 1);
        tensor_convert(probs[0], probs[1]);
        for (int k = 0; k < 2; k++) {
            attention_backward(d_qkv[k], d_probs[k], d_y[k], qkv[k], probs[k]);
            cross_entropy_forward(loss[k], lse[k], logits[k], ids, 0.5);
        }
        assert_rounded(d_qkv[1], d_qkv[0], 1);
        assert_true(fabs(tensor_item(loss[1]) - tensor_item(loss[0])) <= 1e-12 * tensor_item(loss[0]));
        for (int k = 0; k < 2; k++) {
            gelu_forward(wide[k], d_wide[k]);
            cross_entropy_backward(logits[k], logits[k], lse[k], ids, 0.5);
        }
        assert_rounded(wide[1], wide[0], 0);
        assert_rounded(logits[1], logits[0], 0);
        guarded_release();
    }
}

/* AdamW on weights and gradients of each type computes in REAL and rounds once. */
static void adamw_rounds_weights(void **state)
{
    enum { N = 9001 };
    const DType types[] = {REAL, BF16, F16}, gradients[] = {REAL, BF16};
    const AdamWArguments a = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                              .correction1 = 0.1, .correction2 = 0.05, .gradient_scale = 0.5};

    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            Tensor w = seeded(REAL, types[i], "w", shape(N), 1), small = seeded(types[i], types[i], "w", shape(N), 1);
            Tensor g = seeded(REAL, gradients[k], "g", shape(N), 1);
            Tensor g_small = seeded(gradients[k], gradients[k], "g", shape(N), 1);
            Tensor m[2], v[2];
            for (int n = 0; n < 2; n++)
                m[n] = zeroed(REAL, "m", shape(N)), v[n] = zeroed(REAL, "v", shape(N));
            adamw_update(w, NONE, m[0], v[0], g, a);
            adamw_update(small, NONE, m[1], v[1], g_small, a);
            assert_rounded(small, w, 0);
            assert_memory_equal(m[0].data, m[1].data, tensor_bytes(m[0]));
            assert_memory_equal(v[0].data, v[1].data, tensor_bytes(v[0]));
            assert_true(fabs(square_sum(&g, 1) - square_sum(&g_small, 1)) <= 1e-12 * square_sum(&g, 1));
            guarded_release();
        }
}

/* A quantized copy maps the tensor's largest magnitude to the format's largest number. The product is that of the
 * copies. */
static void fp8_products(void **state)
{
    enum { R = 48, K = 80, M = 32 };
    const struct { DType x, weight, out; } cases[] = {{E4M3, E4M3, BF16}, {E5M2, E4M3, REAL}, {E4M3, E5M2, REAL}};

    for (int c = 0; c < 3; c++) {
        Tensor x = seeded(BF16, BF16, "x", shape(R, K), 30), w = seeded(BF16, BF16, "w", shape(M, K), 1e-4);
        Tensor scales = zeroed(F32, "scales", shape(2)), out = seeded(cases[c].out, BF16, "out", shape(R, M), 1e-3);
        Tensor x8 = zeroed(cases[c].x, "x8", shape(R, K)), x8t = zeroed(cases[c].x, "x8t", shape(K, R));
        Tensor w8 = zeroed(cases[c].weight, "w8", shape(M, K)), bias = seeded(cases[c].out, BF16, "b", shape(M), 1e-2);
        Tensor before = zeroed(REAL, "before", shape(R, M));
        real hx[R * K], hw[M * K], h8[R * K], h8t[R * K], hw8[M * K], ho[R * M], hb[M], amax = 0;

        x8.scale = x8t.scale = scales.data, w8.scale = (float *)scales.data + 1;
        quantize(x8, x8t, x);
        quantize(w8, NONE, w);
        tensor_to_host(hx, x), tensor_to_host(hw, w), tensor_to_host(h8, x8), tensor_to_host(h8t, x8t);
        tensor_to_host(hw8, w8), tensor_to_host(hb, bias);
        for (int i = 0; i < R * K; i++)
            amax = fmax(amax, fabs(hx[i]));
        assert_true(fabs(*x8.scale * format_largest(cases[c].x) / amax - 1) < 1e-6);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < K; j++) {
                const double relative = cases[c].x == E4M3 ? 1 / 16. : 1 / 8., got = h8[i * K + j] * *x8.scale;
                assert_true(h8t[j * R + i] == h8[i * K + j]);
                assert_true(fabs(got - hx[i * K + j]) <= relative * fabs(hx[i * K + j]) + amax * 1e-4);
            }
        tensor_convert(before, out);
        const OpStats *stats;
        ops_stats_reset();
        if (cases[c].out == BF16)
            linear_fp8(out, x8, w8, bias);
        else
            linear_fp8_add(out, x8, w8);
        assert_int_equal(ops_stats(&stats), 1);
        assert_true(stats->flops == 2.0 * R * K * M);
        tensor_to_host(ho, out);
        double largest = 0;
        for (int i = 0; i < R * M; i++)                 /* no fmax: gcc 12 ends with an internal error on aarch64 */
            largest = fabs(ho[i]) > largest ? fabs(ho[i]) : largest;
        for (int i = 0; i < R; i++)
            for (int j = 0; j < M; j++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    sum += (double)h8[i * K + k] * hw8[j * K + k];
                sum = sum * *x8.scale * *w8.scale;
                sum += cases[c].out == BF16 ? hb[j] : ((real *)before.data)[i * M + j];
                assert_true(fabs(ho[i * M + j] - sum)
                            <= (cases[c].out == BF16 ? 0x1p-8 * fabs(sum) : 0) + 1e-6 * largest);
            }
        guarded_release();
    }
}

int main(void)
{
    device_init(0, 1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_is_read),
        cmocka_unit_test(every_pattern_is_rounded_to),
        cmocka_unit_test(operators_round_once),
        cmocka_unit_test(adamw_rounds_weights),
        cmocka_unit_test(fp8_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
