/* Tests the small formats: each rounds as it is defined. Operators that store them compute in REAL and round once.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../02_mixed_precision/fp8.h"
#include "../../common/ultrascale.h"
#include "../../common/base/formats.h"
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

enum { EMBEDDED, D_EMBEDDING, NORMED, D_X, D_NORM_WEIGHT, D_NORM_BIAS, WIDE, D_ROWS, D_WEIGHT, D_BIAS, ATTENDED, PROBS,
       D_QKV, GELU, D_GELU, D_LOGITS, RESULTS };

/* Most operators of the model run in a small type and in REAL on the same numbers, with gradients in both their types.
 * Sizes need more than one panel of weights, and are no multiple of a vector. */
static void operators_round_once(void **state)
{
    enum { B = 2, T = 70, A = 3, D = 10, H = A * D, R = B * T, M = 1100, V = 53 };
    static const struct { DType dtype, gradients; } cases[] = {{BF16, REAL}, {BF16, BF16}, {F16, REAL}};
    /* for assert_rounded, with gradients in REAL and in BF16. OpenBLAS's kernels may sum the two in different orders.
     * Rounding twice would give an error of 0.5. */
    static const double neighbors[2][RESULTS] = {
        {[D_NORM_WEIGHT] = 1e-3, [D_NORM_BIAS] = 1e-3, [WIDE] = 1, [D_ROWS] = 1, [D_WEIGHT] = 1e-2, [D_BIAS] = 1e-3,
         [ATTENDED] = 1, [PROBS] = 1, [D_QKV] = 1},
        {[WIDE] = 1, [D_ROWS] = 1, [D_WEIGHT] = 1, [ATTENDED] = 1, [PROBS] = 1, [D_QKV] = 1}};

    for (int c = 0; c < 3; c++) {
        const DType as = cases[c].dtype, g = cases[c].gradients;
        const double grow = g == BF16 ? 0 : 1;          /* BF16 gradients start at 0: rounded once */
        const Tensor ids = ids_below("ids", R, V);
        Tensor results[2][RESULTS], loss[2];
        for (int k = 1; k >= 0; k--) {                  /* 1: the small type; 0: REAL */
            const DType t = k ? as : REAL, tg = k ? g : REAL;
            const Tensor x = seeded(t, as, "x", shape(R, H), 1), rows = seeded(t, as, "rows", shape(R, H), 1);
            const Tensor w = seeded(t, as, "w", shape(H), 1), b = seeded(t, as, "b", shape(H), 1);
            const Tensor weight = seeded(t, as, "weight", shape(M, H), 0.2), bias = seeded(t, as, "bias", shape(M), 1);
            const Tensor d_y = seeded(t, as, "d_y", shape(R, H), 1), d_wide = seeded(t, as, "d_wide", shape(R, M), 1);
            const Tensor qkv = seeded(t, as, "qkv", shape(B, T, 3 * H), 1), probs = zeroed(t, "p", shape(B, A, T, T));
            const Tensor d_probs = zeroed(t, "d_probs", shape(B, A, T, T));
            const Tensor stats = zeroed(REAL, "stats", shape(R, 2)), lse = zeroed(REAL, "lse", shape(R));
            Tensor *const r = results[k];
            r[EMBEDDED] = zeroed(t, "embedded", shape(R, H)), r[D_EMBEDDING] = zeroed(tg, "d_embedding", shape(V, H));
            embedding_forward(r[EMBEDDED], ids, seeded(t, as, "embedding", shape(V, H), 1));
            embedding_backward(r[D_EMBEDDING], d_y, ids);
            r[NORMED] = zeroed(t, "normed", shape(R, H)), r[D_X] = seeded(t, as, "d_x", shape(R, H), 1);
            r[D_NORM_WEIGHT] = seeded(tg, BF16, "d_w", shape(H), grow);
            r[D_NORM_BIAS] = seeded(tg, BF16, "d_b", shape(H), grow);
            layernorm_forward(r[NORMED], stats, x, w, b);
            layernorm_backward(r[D_X], r[D_NORM_WEIGHT], r[D_NORM_BIAS], d_y, rows, stats, w);
            r[WIDE] = zeroed(t, "wide", shape(R, M)), r[D_ROWS] = zeroed(t, "d_rows", shape(R, H));
            r[D_WEIGHT] = seeded(tg, BF16, "d_weight", shape(M, H), grow);
            r[D_BIAS] = seeded(tg, BF16, "d_bias", shape(M), grow);
            linear_forward(r[WIDE], rows, weight, bias);
            linear_backward_input(r[D_ROWS], d_wide, weight);
            linear_backward_weight(r[D_WEIGHT], r[D_BIAS], d_wide, rows);
            r[ATTENDED] = zeroed(t, "attended", shape(B, T, H)), r[PROBS] = zeroed(t, "probs", shape(B, A, T, T));
            r[D_QKV] = zeroed(t, "d_qkv", shape(B, T, 3 * H));
            attention_forward(r[ATTENDED], r[PROBS], qkv);
            tensor_convert(probs, results[1][PROBS]);
            attention_backward(r[D_QKV], d_probs, d_y, qkv, probs);
            r[GELU] = zeroed(t, "gelu", shape(R, M)), r[D_LOGITS] = seeded(t, as, "logits", shape(R, V), 2);
            r[D_GELU] = zeroed(t, "d_gelu", shape(R, M));
            gelu_forward(r[GELU], d_wide);
            gelu_backward(r[D_GELU], d_wide, d_wide);
            loss[k] = zeroed(F64, "loss", shape(1));
            cross_entropy_forward(loss[k], lse, r[D_LOGITS], ids, 0.5);
            cross_entropy_backward(r[D_LOGITS], r[D_LOGITS], lse, ids, 0.5);
        }
        for (int i = 0; i < RESULTS; i++)
            assert_rounded(results[1][i], results[0][i], neighbors[g == BF16][i]);
        assert_true(fabs(tensor_item(loss[1]) - tensor_item(loss[0])) <= 1e-12 * tensor_item(loss[0]));
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
            const Tensor sum = zeroed(F64, "sum", shape(1)), sum_small = zeroed(F64, "sum", shape(1));
            square_sum_into(sum, &g, 1);
            square_sum_into(sum_small, &g_small, 1);
            assert_true(fabs(tensor_item(sum_small) / tensor_item(sum) - 1) <= 1e-12);
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
        Tensor scales = zeroed(F32, "scales", shape(2, 4)), out = seeded(cases[c].out, BF16, "out", shape(R, M), 1e-3);
        Tensor x8 = zeroed(cases[c].x, "x8", shape(R, K)), x8t = zeroed(cases[c].x, "x8t", shape(K, R));
        Tensor w8 = zeroed(cases[c].weight, "w8", shape(M, K)), bias = seeded(cases[c].out, BF16, "b", shape(M), 1e-2);
        const double *before = numbers(out);
        double amax = 0;

        x8.scale = x8t.scale = scales.data, w8.scale = (float *)scales.data + 4;
        quantize(x8, x8t, x);
        quantize(w8, NONE, w);
        const double *hx = numbers(x), *h8 = numbers(x8), *h8t = numbers(x8t), *hw8 = numbers(w8), *hb = numbers(bias);
        for (int i = 0; i < R * K; i++)
            amax = fmax(amax, fabs(hx[i]));
        assert_true(fabs(*x8.scale * format_largest(cases[c].x) / amax - 1) < 1e-6);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < K; j++) {
                const double relative = cases[c].x == E4M3 ? 1 / 16. : 1 / 8., got = h8[i * K + j] * *x8.scale;
                assert_true(h8t[j * R + i] == h8[i * K + j]);
                assert_true(fabs(got - hx[i * K + j]) <= relative * fabs(hx[i * K + j]) + amax * 1e-4);
            }
        const OpStats *stats;
        ops_stats_reset();
        if (cases[c].out == BF16)
            linear_fp8(out, x8, w8, bias);
        else
            linear_fp8_add(out, x8, w8);
        assert_int_equal(ops_stats(&stats), 1);
        assert_true(stats->flops == 2.0 * R * K * M);
        const double *ho = numbers(out);
        double largest = 0;
        for (int i = 0; i < R * M; i++)                 /* no fmax: gcc 12 ends with an internal error on aarch64 */
            largest = fabs(ho[i]) > largest ? fabs(ho[i]) : largest;
        for (int i = 0; i < R; i++)
            for (int j = 0; j < M; j++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    sum += h8[i * K + k] * hw8[j * K + k];
                sum = sum * *x8.scale * *w8.scale;
                sum += cases[c].out == BF16 ? hb[j] : before[i * M + j];
                assert_true(fabs(ho[i * M + j] - sum)
                            <= (cases[c].out == BF16 ? 0x1p-8 * fabs(sum) : 0) + 1e-6 * largest);
            }
        guarded_release();
    }
}

/* ---- Scales per tile ---- */

static const char *const scalings[] = {"tensor", "1 x 128", "128 x 128", "1 x 32"};

/* Returns a tensor of fp8 with room for its scales. */
static Tensor scaled(DType dtype, const char *name, int64_t rows, int64_t width, Scaling scaling)
{
    Tensor t = zeroed(dtype, name, shape(rows, width));

    t.scaling = scaling, t.scale = zeroed(F32, "scales", shape(rows * width / 128 + 4)).data;
    return t;
}

/* Where cuBLASLt reads the scale of an element, counted one by one. */
static double scale_read(Tensor t, int64_t row, int64_t column)
{
    const int64_t rows = t.shape[0], tiles = t.shape[1] / 128;
    int64_t at = 0;

    if (t.scaling == PER_1X128)
        return t.scale[column / 128 * rows + row];
    if (t.scaling == PER_128X128) {             /* (rows / 128, tiles, and up to 3 more) */
        for (int64_t r = 128; r <= row; r += 128)
            at += tiles % 4 ? tiles + 4 - tiles % 4 : tiles;
        return t.scale[at + column / 128];
    }
    if (t.scaling == PER_1X32) {                /* (rows / 128, tiles) of (32, 4, 4): row % 32, row / 32, scale */
        const uint8_t (*block)[32][4][4] = (void *)t.scale;
        return ldexp(1, block[row / 128 * tiles + column / 128][row % 32][row % 128 / 32][column % 128 / 32] - 127);
    }
    return *t.scale;
}

static double *dequantized_numbers(Tensor t)
{
    double *x = numbers(t);

    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < t.shape[1]; j++)
            x[i * t.shape[1] + j] *= scale_read(t, i, j);
    return x;
}

/* The largest number of each tile becomes 448, or with a power of two more than 224, and every number is nearly what it
 * was. NaN and Inf spoil their own tile alone. The product is that of the numbers times their scales. */
static void tiles_have_scales(void **state)
{
    enum { R = 256, K = 640, M = 384 };
    static const struct { Scaling x, weight; } pairs[] = {
        {PER_1X128, PER_128X128}, {PER_1X128, PER_1X128}, {PER_1X32, PER_1X32}, {PER_128X128, PER_1X128}};
    static const int sides[][2] = {{0, 0}, {1, 128}, {128, 128}, {1, 32}};

    for (int p = 0; p < 4; p++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const Tensor x = seeded(BF16, BF16, "x", transposed ? shape(K, R) : shape(R, K), 3);
            const Tensor w = seeded(BF16, BF16, "w", shape(M, K), 1e-3), bias = seeded(BF16, BF16, "b", shape(M), 1e-2);
            const Tensor x8 = scaled(E4M3, "x8", R, K, pairs[p].x), w8 = scaled(E4M3, "w8", M, K, pairs[p].weight);
            const Tensor out = zeroed(BF16, "out", shape(R, M)), sum = seeded(REAL, BF16, "sum", shape(R, M), 1);
            const double *before = numbers(x), *sum_before = numbers(sum), *hb = numbers(bias);
            const int *side = sides[pairs[p].x];
            double largest = 0;

            quantize(transposed ? NONE : x8, transposed ? x8 : NONE, x);
            quantize(w8, NONE, w);
            const double *h8 = numbers(x8), *hx = dequantized_numbers(x8), *hw = dequantized_numbers(w8);
            for (int i = 0; i < R; i += side[0])
                for (int j = 0; j < K; j += side[1]) {
                    double most = 0;
                    for (int r = i; r < i + side[0]; r++)
                        for (int c = j; c < j + side[1]; c++) {
                            const double was = before[transposed ? c * R + r : r * K + c], is = hx[r * K + c];
                            assert_true(fabs(is - was) <= fabs(was) / 16 + scale_read(x8, r, c) * 0x1p-10);
                            most = fmax(most, fabs(h8[r * K + c]));
                        }
                    if (pairs[p].x == PER_1X32 ? !(most > 223 && most <= 448) : most != 448)
                        fail_msg("%s: tile %d, %d has at most %g", scalings[pairs[p].x], i, j, most);
                }
            linear_fp8(out, x8, w8, bias);
            linear_fp8_add(sum, x8, w8);
            const double *ho = numbers(out), *hs = numbers(sum);
            for (int i = 0; i < R * M; i++)
                largest = fabs(hs[i]) > largest ? fabs(hs[i]) : largest;
            for (int i = 0; i < R; i++)
                for (int j = 0; j < M; j++) {
                    double y = 0;
                    for (int k = 0; k < K; k++)
                        y += hx[i * K + k] * hw[j * K + k];
                    assert_true(fabs(ho[i * M + j] - (y + hb[j])) <= 0x1p-8 * fabs(y + hb[j]) + 1e-5 * largest);
                    assert_true(fabs(hs[i * M + j] - (y + sum_before[i * M + j])) <= 1e-5 * largest);
                }
            ((uint16_t *)x.data)[0] = 0x7f80;           /* Inf */
            quantize(transposed ? NONE : x8, transposed ? x8 : NONE, x);
            const double *spoiled = dequantized_numbers(x8);
            for (int i = 0; i < R; i++)
                for (int j = 0; j < K; j++)
                    assert_true(i < side[0] && j < side[1] ? i + j > 0 || !isfinite(spoiled[0])
                                                           : spoiled[i * K + j] == hx[i * K + j]);
            guarded_release();
        }
}

/* The relative error of a product after one number of x has grown to `size` times the others, in the rows that do not
 * have it. */
static double error_beside(double size, DType dtype, Scaling x_scaling, Scaling weight_scaling)
{
    enum { R = 128, K = 512, M = 128 };
    const Tensor x = seeded(REAL, REAL, "x", shape(R, K), 1), w = seeded(REAL, REAL, "w", shape(M, K), 1);
    const Tensor x8 = scaled(dtype, "x8", R, K, x_scaling), w8 = scaled(E4M3, "w8", M, K, weight_scaling);
    const Tensor out = zeroed(REAL, "out", shape(R, M)), exact = zeroed(REAL, "exact", shape(R, M));
    double difference = 0, square = 0;

    data(x)[3 * K + 7] = size;
    linear_forward(exact, x, w, NONE);
    quantize(x8, NONE, x);
    quantize(w8, NONE, w);
    tensor_zero(out);
    linear_fp8_add(out, x8, w8);
    const double *ho = numbers(out), *he = numbers(exact);
    for (int i = 0; i < R * M; i++)
        if (i / M != 3) {
            difference += (ho[i] - he[i]) * (ho[i] - he[i]);
            square += he[i] * he[i];
        }
    guarded_release();
    return sqrt(difference / square);
}

/* With one scale per tensor, an outlier pushes all other numbers towards 0; with tiles, only its own tile. */
static void one_outlier(void **state)
{
    double error[4], at_1[4];

    for (int e = 0; e <= 16; e++) {
        const double size = pow(10, e / 2.);
        error[0] = error_beside(size, E4M3, PER_TENSOR, PER_TENSOR);
        error[1] = error_beside(size, E5M2, PER_TENSOR, PER_TENSOR);
        error[2] = error_beside(size, E4M3, PER_1X128, PER_128X128);
        error[3] = error_beside(size, E4M3, PER_1X32, PER_1X32);
        print_message("outlier %g error %.4f E4M3 %.4f E5M2 %.4f tile %.4f mx\n", size, error[0], error[1], error[2],
                      error[3]);
        if (!e)
            memcpy(at_1, error, sizeof error);
        assert_true(error[2] < 0.05 && error[3] < 0.05 && fabs(error[2] / at_1[2] - 1) < 0.01
                    && fabs(error[3] / at_1[3] - 1) < 0.01);
    }
    assert_true(at_1[0] < 0.05 && error[0] > 0.99 && error[1] < 0.1);
}

/* cuBLASLt refuses a product whose scales are not at multiples of 16 bytes, so no build takes them. */
static void quantize_with_scale(const void *at)
{
    Tensor x = seeded(BF16, BF16, "x", shape(16, 16), 1), x8 = zeroed(E4M3, "x8", shape(16, 16));

    x8.scale = (float *)zeroed(F32, "scales", shape(2, 4)).data + *(const int *)at;
    quantize(x8, NONE, x);
}

static void scales_have_their_places(void **state)
{
    for (int at = 1; at < 4; at++) {
        Result r = run_function(quantize_with_scale, &at);
        if (r.status != 1 || !strstr(r.err, "; but it takes scales at multiples of 16 bytes"))
            fail_msg("%d: status %d and \"%s\"", at, r.status, r.err);
        result_free(r);
    }
}

static void misfit(const void *which)
{
    const int i = *(const int *)which;
    const Tensor x = seeded(BF16, BF16, "x", shape(i ? 128 : 64, 128), 1), out = zeroed(BF16, "out", shape(128, 128));
    const Tensor tiles = scaled(E4M3, "tiles", i ? 128 : 64, 128, PER_1X128);
    const Tensor squares = scaled(E4M3, "squares", 128, 128, PER_128X128);

    if (i < 2)
        quantize(tiles, i ? tiles : NONE, x);
    else
        linear_fp8(out, i == 2 ? squares : tiles, i == 2 ? squares : scaled(E4M3, "whole", 128, 128, PER_TENSOR), NONE);
}

/* What cuBLASLt refuses, no build takes. */
static void tiles_that_do_not_fit(void **state)
{
    static const char *const rules[] = {"tiles with multiples of 128", "one output with tiles",
                                        "scales of the same kind", "scales of the same kind"};

    for (int i = 0; i < 4; i++) {
        Result r = run_function(misfit, &i);
        if (r.status != 1 || !strstr(r.err, rules[i]))
            fail_msg("%s: status %d and \"%s\"", rules[i], r.status, r.err);
        result_free(r);
    }
}

int main(void)
{
    device_init(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_is_read),
        cmocka_unit_test(every_pattern_is_rounded_to),
        cmocka_unit_test(operators_round_once),
        cmocka_unit_test(adamw_rounds_weights),
        cmocka_unit_test(fp8_products),
        cmocka_unit_test(scales_have_their_places),
        cmocka_unit_test(tiles_have_scales),
        cmocka_unit_test(one_outlier),
        cmocka_unit_test(tiles_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
