/* Runs every operator, and 08's fused ones, on random numbers and ragged shapes, and writes their results to a file.
 * Arguments: the file, and the types, as a sum: 1, float; 2, bf16; 4, fp16; 8, fp8; beside 8: 16 and 32, fp8 with a
 * scale per tile of 128, per 32 (0: all that the device computes with). Prints the sum of the types that it used. With
 * a third argument, the file of another build, it compares: the CPU's build tells where the GPU's differs
 * (test_cuda.c).
 *
 * Each tensor lies between guards, in the second round at an odd address, and outputs are NaN before the operator runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../02_mixed_precision/fp8.h"
#include "../../05_tensor_parallel/vocabulary.h"
#include "../../07_context_parallel/key_blocks.h"
#include "../../08_fused_kernels/fused.h"
#include "../../10_expert_parallel/experts.h"
#include "../../12_llama/llama.h"
#include "../../common/ultrascale.h"
#include "../../common/base/formats.h"
#include "../tensors.h"

static int types_used;
static FILE *file, *other;
static int compared, failed;
static char label[160];                 /* operator, type and sizes */

/* ---- Tensors of a case, and its outputs ---- */

enum { MOST = 32 };
static DType type, gradient;            /* of the case's tensors, and of the gradients of parameters */
static struct {
    Tensor t;
    double tolerance;                   /* relative to the largest number */
    bool lower;                         /* t is (..., T, T); elements above the diagonal are written as 0 */
} outputs[MOST];
static int output_count;

static double tolerance_of(DType t)
{
    return t == BF16 || t == F16 ? 1e-2 : 1e-5;
}

/* Makes t an output. */
static Tensor result(Tensor t, double tolerance)
{
    if (output_count == MOST)
        fail("%s has too many outputs", label);
    outputs[output_count].t = t, outputs[output_count].lower = false;
    outputs[output_count++].tolerance = tolerance;
    return t;
}

static Tensor in(const char *name, Shape s)
{
    return random_like(guarded(type, name, s));
}

static Tensor out(const char *name, Shape s)
{
    return result(guarded(type, name, s), tolerance_of(type));
}

/* An input that the operator changes, or adds to. */
static Tensor changed(const char *name, Shape s)
{
    return result(in(name, s), tolerance_of(type));
}

/* A parameter's gradient, which the operator adds to. */
static Tensor added(const char *name, Shape s)
{
    return result(random_like(guarded(gradient, name, s)), fmax(tolerance_of(type), tolerance_of(gradient)));
}

static Tensor real_out(const char *name, Shape s)
{
    return result(guarded(REAL, name, s), 1e-5);
}

/* Computed in float from numbers that were rounded to the case's type, so with its tolerance. */
static Tensor rough_out(const char *name, Shape s)
{
    return result(guarded(REAL, name, s), tolerance_of(type));
}

static Tensor number(const char *name)          /* 0, to which the operator adds */
{
    return result(zeroed(F64, name, shape(1)), 1e-5);
}

/* At an address that is a multiple of 256 bytes, which some kernels need. */
static Tensor aligned(DType dtype, const char *name, Shape s)
{
    const int shifted = guarded_shift;

    guarded_shift = 0;
    const Tensor t = guarded(dtype, name, s);
    guarded_shift = shifted;
    return t;
}

/* ---- The file: per output a line of text, then floats ---- */

/* Compares the other build's numbers, which must be NaN where these are. */
static void compare(const char *line, const float *x, int64_t count, double tolerance)
{
    char of[320] = "";
    float *y = host_alloc(count * sizeof *y, label);
    double most = 0, largest = 0;

    if (!fgets(of, sizeof of, other) || strcmp(of, line) || fread(y, sizeof *y, count, other) != (size_t)count)
        fail("the other file has \"%.*s\" where this one has \"%.*s\"", (int)strcspn(of, "\n"), of,
             (int)strcspn(line, "\n"), line);
    for (int64_t i = 0; i < count; i++) {
        if (isnan(x[i]) != isnan(y[i]))
            most = INFINITY;
        else if (!isnan(x[i]))
            most = fmax(most, fabs((double)y[i] - x[i])), largest = fmax(largest, fabs(x[i]));
    }
    free(y);
    compared++;
    if (!(most <= tolerance * (largest > 0 ? largest : 1)) && failed++ < 40)
        printf("%.*s differs by %.2g, more than %.0e\n", (int)strcspn(line, "|"), line, most / largest, tolerance);
}

static void write_output(int i)
{
    const Tensor t = outputs[i].t;
    const int64_t count = tensor_count(t), width = tensor_width(t);
    real *x = host_alloc(count * sizeof *x, label);
    float *to = host_alloc(count * sizeof *to, label);
    int32_t *ids = host_alloc(count * sizeof *ids, label);
    char line[320];

    if (t.dtype == F64)
        *x = tensor_item(t);
    else if (t.dtype == I32)
        device_download(ids, t.data, tensor_bytes(t));
    else
        tensor_to_host(x, t);
    for (int64_t k = 0; k < count; k++)
        to[k] = outputs[i].lower && k % width > k / width % width ? 0 : t.dtype == I32 ? ids[k] : x[k];
    snprintf(line, sizeof line, "%s: %s|%lld\n", label, t.name, (long long)count);
    fputs(line, file);
    fwrite(to, sizeof *to, count, file);
    if (other)
        compare(line, to, count, outputs[i].tolerance);
    free(x), free(to), free(ids);
}

/* ---- The operators. n: a case's sizes, as the table below lists them ---- */

static void embedding(const int64_t *n)
{
    const int64_t R = n[0], W = n[1], V = 23;
    const Tensor ids = ids_below("ids", R, V);

    embedding_forward(out("out", shape(R, W)), ids, in("weight", shape(V, W)));
    const Tensor d_out = in("d_out", shape(R, W));
    embedding_backward(added("d_weight", shape(V, W)), d_out, ids);
}

static void layernorm(const int64_t *n)
{
    const int64_t R = n[0], W = n[1];
    const Tensor x = in("x", shape(R, W)), w = in("weight", shape(W)), b = in("bias", shape(W));

    if (W <= 2) {               /* of two close numbers, statistics and gradients are differences of large numbers */
        layernorm_forward(out("out", shape(R, W)), guarded(REAL, "stats", shape(R, 2)), x, w, b);
        return;
    }
    const Tensor stats = real_out("stats", shape(R, 2)), d_out = in("d_out", shape(R, W));
    const Tensor d_x = changed("d_x", shape(R, W)), d_w = added("d_weight", shape(W)), d_b = added("d_bias", shape(W));
    layernorm_forward(out("out", shape(R, W)), stats, x, w, b);
    layernorm_backward(d_x, d_w, d_b, d_out, x, stats, w);
}

static void gelu(const int64_t *n)
{
    const Shape s = shape(n[0], n[1]);
    const Tensor x = in("x", s), large = in("large", s), d_out = in("d_out", s);

    gelu_forward(out("out", s), x);
    gelu_backward(out("d_x", s), d_out, x);
    tensor_scale(large, 60);                    /* exp overflows */
    gelu_forward(out("out of large", s), large);
    gelu_backward(out("d_x of large", s), d_out, large);
}

static void residual(const int64_t *n)
{
    const Shape s = shape(n[0], n[1]);
    const Tensor x = in("x", s), branch = in("branch", s), d_out = in("d_out", s);

    residual_forward(out("out", s), x, branch, in("bias", shape(n[1])));
    residual_forward(out("without bias", s), x, branch, NONE);
    residual_backward(added("d_bias", shape(n[1])), d_out);
}

static void cross_entropy(const int64_t *n)
{
    const int64_t R = n[0], W = n[1];
    const Tensor logits = changed("logits", shape(R, W)), extreme = in("extreme", shape(R, W));
    const Tensor lse = real_out("lse", shape(R)), loss = number("loss"), targets = ids_below("ids", R, W);

    cross_entropy_forward(loss, lse, logits, targets, 0.01);
    cross_entropy_forward(loss, lse, logits, targets, 0.01);
    cross_entropy_backward(logits, logits, lse, targets, 0.01);
    tensor_scale(extreme, 3000);
    cross_entropy_forward(number("loss of extremes"), real_out("lse of extremes", shape(R)), extreme, targets, 0.01);
}

static const DType stored[] = {REAL, BF16, F16};

static void scale_and_convert(const int64_t *n)
{
    const Tensor x = changed("x", shape(n[0], n[1]));

    tensor_scale(x, 0.37);
    for (int k = 0; k < 3; k++)
        tensor_convert(result(guarded(stored[k], "converted", shape(n[0], n[1])), tolerance_of(stored[k])), x);
}

static void adamw(const int64_t *n)
{
    static const double clips[] = {0, 0.5, 1e9};
    const Shape s = shape(n[0] * n[1]);
    AdamWArguments a = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .correction1 = 0.19,
                        .correction2 = 0.0975, .gradient_scale = 0.5};
    const Tensor p = changed("params", s), m = result(random_like(guarded(REAL, "m", s)), 1e-5);
    const Tensor v = real_out("v", s), g = random_like(guarded(gradient, "gradients", s));

    tensor_fill(v, 0.3);
    adamw_update(p, NONE, m, v, g, a);
    for (int k = 0; k < 3; k++) {
        const double tolerance = fmax(tolerance_of(type), tolerance_of(stored[k]));
        adamw_update(p, result(guarded(stored[k], "copy", s), tolerance), m, v, g, a);
    }
    for (int k = 0; k < 3; k++) {               /* clipped on the device; an infinite norm or NaN: no update */
        const Tensor sum = number("square_sum"), scale = a.scale = number("clip_scale");
        square_sum_into(sum, (Tensor[]){g, m, v}, 3);
        clip_scale_into(scale, sum, clips[k]);
        adamw_update(p, NONE, m, v, g, a);
        const Tensor infinite = zeroed(F64, "infinite", shape(1));
        device_upload(infinite.data, (double[]){k ? NAN : INFINITY}, sizeof(double));
        a.scale = zeroed(F64, "no update", shape(1));
        clip_scale_into(a.scale, infinite, clips[k]);
        adamw_update(p, NONE, m, v, g, a);
    }
}

static void linear(const int64_t *n)
{
    const int64_t R = n[0], K = n[1], M = n[2];
    const Tensor x = in("x", shape(R, K)), w = in("weight", shape(M, K)), d_out = in("d_out", shape(R, M));
    const Tensor d_w = added("d_weight", shape(M, K)), d_b = added("d_bias", shape(M));

    linear_forward(out("out", shape(R, M)), x, w, NONE);
    linear_forward(out("with bias", shape(R, M)), x, w, in("bias", shape(M)));
    linear_backward_input(out("d_x", shape(R, K)), d_out, w);
    linear_backward_weight(d_w, d_b, d_out, x);
}

static void attention(const int64_t *n)
{
    const int64_t B = n[0], T = n[1], A = n[2], D = n[3];
    const Tensor rope = real_out("rope", shape(T, D)), qkv = changed("qkv", shape(B, T, 3 * A * D));
    const Tensor d_qkv = out("d_qkv", shape(B, T, 3 * A * D)), d_probs = guarded(type, "d_probs", shape(B, A, T, T));

    rope_table(rope, 3);
    rope_forward(qkv, rope);
    const Tensor probs = out("probs", shape(B, A, T, T));
    outputs[output_count - 1].lower = true;
    attention_forward(out("out", shape(B, T, A * D)), probs, qkv);
    attention_backward(d_qkv, d_probs, in("d_out", shape(B, T, A * D)), qkv, probs);
    rope_backward(d_qkv, rope);
}

/* ---- 08's fused operators ---- */

static void flash_attention(const int64_t *n)
{
    const int64_t B = n[0], T = n[1], A = n[2], D = n[3];
    const Tensor qkv = in("qkv", shape(B, T, 3 * A * D)), d_out = in("d_out", shape(B, T, A * D));
    const Tensor o = out("out", shape(B, T, A * D)), lse = rough_out("lse", shape(B, A, T));
    const Tensor parts = aligned(REAL, "parts", shape(flash_parts(type, B, T, T, A, D)));

    flash_attention_forward(o, lse, qkv);
    flash_attention_backward(out("d_qkv", shape(B, T, 3 * A * D)), rough_out("delta", shape(B, A, T)), parts, d_out,
                             qkv, o, lse);
}

static void residual_layernorm(const int64_t *n)
{
    const int64_t R = n[0], W = n[1];
    const Tensor x = in("x", shape(R, W)), branch = in("branch", shape(R, W)), add = in("branch_bias", shape(W));
    const Tensor w = in("weight", shape(W)), b = in("bias", shape(W)), sum = out("sum", shape(R, W));
    const Tensor o = out("out", shape(R, W));

    if (W <= 2) {                               /* as for layernorm */
        residual_layernorm_forward(sum, o, guarded(REAL, "stats", shape(R, 2)), x, branch, add, w, b);
        return;
    }
    const Tensor stats = rough_out("stats", shape(R, 2));               /* with wide rows: of the rounded sum */
    const Tensor d_sum = changed("d_sum", shape(R, W)), d_out = in("d_out", shape(R, W));
    const Tensor d_add = added("d_branch_bias", shape(W)), d_w = added("d_weight", shape(W));
    residual_layernorm_forward(sum, o, stats, x, branch, add, w, b);
    residual_layernorm_backward(d_sum, d_add, d_w, added("d_bias", shape(W)), d_out, sum, stats, w);
}

static void cross_entropy_in_one(const int64_t *n)
{
    const Tensor logits = changed("logits", shape(n[0], n[1]));

    cross_entropy_both(number("loss"), logits, ids_below("ids", n[0], n[1]), 0.01, 0.02);
}

static void linear_gelu(const int64_t *n)
{
    const int64_t R = n[0], K = n[1], M = n[2];
    const Tensor x = in("x", shape(R, K)), w = in("weight", shape(M, K)), down = in("down", shape(K, M));
    const Tensor up = out("up", shape(R, M)), d_out = in("d_out", shape(R, K));

    tensor_scale(w, 1 / sqrt(K));               /* puts most numbers near GELU's bend */
    linear_gelu_forward(out("out", shape(R, M)), up, x, w, in("bias", shape(M)));
    linear_gelu_backward(out("d_up", shape(R, M)), d_out, down, up);
}

static void attention_block(const int64_t *n)
{
    const int64_t B = n[0], C = n[1], K = n[2], A = n[3], D = n[4], Q = n[5], causal = n[6];
    const Shape of_q = shape(B, C, A, D), of_k = shape(B, K, A, D), of_sum = shape(B, C, A, 1);
    const Tensor q = in("q", of_q), k = in("k", of_k), v = in("v", of_k), d_out = in("d_out", of_q);
    const Tensor o = out("out", of_q), lse = out("lse", of_sum), delta = out("delta", of_sum);
    const Tensor scores = guarded(REAL, "scores", shape(2, A, Q, K));
    const Tensor d_q = changed("d_q", of_q), d_k = changed("d_k", of_k), d_v = changed("d_v", of_k);
    const Tensor merged = changed("merged", of_q), merged_lse = changed("merged lse", of_sum);

    attention_block_forward(o, lse, scores, q, k, v, causal);
    attention_delta(tensor_view(delta, shape(B * C, A)), tensor_view(d_out, shape(B * C, A * D)),
                    tensor_view(o, shape(B * C, A * D)));
    attention_block_backward(d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta, causal);
    attention_merge(merged, merged_lse, o, lse);
}

/* Queries attend to a sequence chunk of earlier keys, then to their own chunk, causally. */
static void flash_block(const int64_t *n)
{
    const int64_t B = n[0], C = n[1], K = n[2], A = n[3], D = n[4];
    const Shape of_q = shape(B, C, A, D), of_k[2] = {shape(B, K, A, D), of_q};
    const Tensor q = in("q", of_q), d_out = in("d_out", of_q), o = rough_out("out", of_q);
    const Tensor lse = rough_out("lse", shape(B, C, A, 1)), rounded = guarded(type, "rounded", shape(B * C, A * D));
    const Tensor delta = rough_out("delta", shape(B, C, A, 1));
    const Tensor d_q = result(random_like(guarded(REAL, "d_q", of_q)), tolerance_of(type));
    Tensor key[2], value[2];

    tensor_fill(o, 0), tensor_fill(lse, -INFINITY);
    for (int i = 0; i < 2; i++) {
        key[i] = in("k", of_k[i]), value[i] = in("v", of_k[i]);
        flash_block_forward(o, lse, q, key[i], value[i], i);
    }
    tensor_convert(rounded, tensor_view(o, shape(B * C, A * D)));
    attention_delta(tensor_view(delta, shape(B * C, A)), tensor_view(d_out, shape(B * C, A * D)), rounded);
    for (int i = 0; i < 2; i++) {
        const Tensor d_k = rough_out("d_k", of_k[i]), d_v = rough_out("d_v", of_k[i]);
        const Tensor parts = aligned(REAL, "parts", shape(flash_parts(type, B, C, of_k[i].n[1], A, D)));
        random_like(d_k), random_like(d_v);     /* added to */
        flash_block_backward(d_q, d_k, d_v, parts, d_out, q, key[i], value[i], lse, delta, i);
    }
}

/* ---- Those of 05, 07, 02 and 10 ---- */

static void sliced(const int64_t *n)
{
    const int64_t R = n[0], W = n[1];
    const Tensor logits = in("logits", shape(R, W)), max = real_out("max", shape(R)), add = in("add", shape(R * W));
    const Tensor sums = real_out("sums", shape(R, 2)), x = real_out("x", shape(R * W));
    const Tensor targets = ids_below("ids", R, 3 * W), slice = guarded(I32, "slice", shape(R));

    ids_in_slice(slice, targets, W, W);
    cross_entropy_max(max, logits);
    cross_entropy_sums(sums, logits, max, slice);
    cross_entropy_loss(number("loss"), real_out("lse", shape(R)), sums, max, 0.01);
    transpose_rows(out("transposed", shape(5, R, W)), in("rows", shape(R, 5, W)));
    tensor_fill(x, 0.7);
    tensor_add(x, add);
}

static Tensor with_scale(Tensor t, Tensor scale)
{
    t.scale = scale.data;
    return t;
}

/* Quantizes numbers, zeros, infinite numbers, and numbers so small that their scale is the smallest one, each with a
 * transposed copy; numbers transposed alone; and multiplies. */
static void fp8(const int64_t *n)
{
    const int64_t R = n[0], K = n[1], M = n[2];
    const DType format = n[3] ? E5M2 : E4M3;
    const Tensor x[] = {in("x", shape(R, K)), zeroed(type, "nothing", shape(R, K)), in("infinite", shape(R, K)),
                        in("tiny", shape(R, K))};
    const Tensor scales = aligned(REAL, "scales", shape(2, 4)), alone = guarded(format, "alone", shape(K, R));

    tensor_scale(x[2], INFINITY);
    tensor_scale(x[3], 0x1p-124);
    for (int i = 0; i < 4; i++) {
        const Tensor scale = result(aligned(REAL, "scale", shape(1)), 1e-6);
        const Tensor q = result(guarded(format, "quantized", shape(R, K)), 1e-5);
        const Tensor t = result(guarded(format, "transposed", shape(K, R)), 1e-5);
        quantize(with_scale(q, scale), with_scale(t, scale), x[i]);
    }
    quantize(NONE, with_scale(result(alone, 1e-5), scales), x[0]);
    if (R % 16 || K % 16 || M % 16)
        return;
    const Tensor a = with_scale(aligned(format, "a", shape(R, K)), scales);
    const Tensor b = with_scale(aligned(E4M3, "b", shape(M, K)), tensor_range(scales, 1, 1));
    const Tensor sum = random_like(aligned(type == F16 ? REAL : type, "sum", shape(R, M)));
    quantize(a, NONE, x[0]);
    quantize(b, NONE, in("weight", shape(M, K)));
    linear_fp8(result(aligned(type, "product", shape(R, M)), 1e-2), a, b, in("bias", shape(M)));
    linear_fp8_add(result(sum, 1e-2), a, b);
}

static Tensor tiled(const char *name, int64_t rows, int64_t width, Scaling scaling)
{
    const bool bytes = scaling == PER_1X32;             /* which four by four are compared as integers */
    Tensor t = aligned(E4M3, name, shape(rows, width));

    t.scaling = scaling;
    return with_scale(t, result(aligned(bytes ? I32 : REAL, "scales", shape(rows * width / 128)), bytes ? 0 : 1e-6));
}

/* As fp8, with scales per tile; the weight has a scale per 128 x 128, or per 1 x 32 as the other operand. */
static void fp8_tiles(const int64_t *n)
{
    const int64_t R = n[0], K = n[1], M = n[2];
    const Scaling scaling = n[3], of_weight = scaling == PER_1X32 ? PER_1X32 : PER_128X128;

    if (!(types_used & (scaling == PER_1X32 ? 32 : 16)))
        return;
    const Tensor x[] = {in("x", shape(R, K)), zeroed(type, "nothing", shape(R, K)), in("infinite", shape(R, K)),
                        in("tiny", shape(R, K))};
    const Tensor sum = random_like(aligned(type == F16 ? REAL : type, "sum", shape(R, M)));
    const Tensor a = tiled("a", R, K, scaling), b = tiled("b", M, K, of_weight);

    tensor_scale(x[2], INFINITY);
    tensor_scale(x[3], 0x1p-124);
    for (int i = 0; i < 4; i++) {
        quantize(result(tiled("quantized", R, K, scaling), 1e-5), NONE, x[i]);
        quantize(NONE, result(tiled("transposed", K, R, of_weight), 1e-5), x[i]);
    }
    quantize(a, NONE, x[0]);
    quantize(b, NONE, in("weight", shape(M, K)));
    linear_fp8(result(aligned(type, "product", shape(R, M)), 1e-2), a, b, in("bias", shape(M)));
    linear_fp8_add(result(sum, 1e-2), a, b);
}

/* B sequences of T tokens, E experts, K per token, C slots, rows of width H. */
static void experts(const int64_t *n)
{
    const int64_t B = n[0], T = n[1], E = n[2], K = n[3], C = n[4], H = n[5];
    const Tensor probs = result(random_like(guarded(REAL, "probs", shape(B, T, E))), 1e-5);
    Routing r = {probs, real_out("gates", shape(B, T, K)), result(guarded(I32, "choice", shape(B, T, K)), 0),
                       result(guarded(I32, "slot", shape(B, T, K)), 0), result(guarded(I32, "rows", shape(E, B, C)), 0),
                       real_out("load", shape(B, E))};
    const Tensor totals = result(zeroed(REAL, "totals", shape(E, 2)), 1e-5), x = in("x", shape(B * T, H));
    const Tensor slots = in("slots", shape(E * B * C, H)), o = out("out", shape(B * T, H));
    const Tensor d_slots = out("d_slots", shape(E * B * C, H)), d_x = changed("d_x", shape(B * T, H));
    const Tensor d_gates = rough_out("d_gates", shape(B, T, K)), of_gates = guarded(REAL, "of gates", shape(B, T, K));

    route_forward(&r);
    balance_forward(number("loss"), totals, &r, 0.3);
    dispatch_forward(out("dispatched", shape(E * B * C, H)), x, &r);
    combine_forward(o, x, slots, &r);
    combine_backward(d_slots, d_gates, o, slots, &r);
    dispatch_backward(d_x, d_slots, &r);
    route_backward(real_out("d_logits", shape(B, T, E)), random_like(of_gates), &r);
}

/* ---- 12's ---- */

static void rmsnorm(const int64_t *n)
{
    const int64_t R = n[0], W = n[1];
    const Tensor x = in("x", shape(R, W)), w = in("weight", shape(W)), rstd = real_out("rstd", shape(R));
    const Tensor d_out = in("d_out", shape(R, W)), d_x = changed("d_x", shape(R, W)), d_w = added("d_weight", shape(W));

    rmsnorm_forward(out("out", shape(R, W)), rstd, x, w, 1e-5);
    rmsnorm_backward(d_x, d_w, d_out, x, rstd, w);
}

static void swiglu(const int64_t *n)
{
    const int64_t R = n[0], W = n[1];
    const Tensor x = in("gate_up", shape(R, 2 * W)), large = in("large", shape(R, 2 * W)), d = in("d_out", shape(R, W));

    swiglu_forward(out("out", shape(R, W)), x);
    swiglu_backward(out("d_gate_up", shape(R, 2 * W)), d, x);
    tensor_scale(large, 60);                    /* exp overflows */
    swiglu_forward(out("out of large", shape(R, W)), large);
    swiglu_backward(out("d_gate_up of large", shape(R, 2 * W)), d, large);
}

static void grouped_rope(const int64_t *n)
{
    const int64_t B = n[0], T = n[1], A = n[2], K = n[3], D = n[4];
    const Tensor rope = real_out("rope", shape(T, D)), qkv = changed("qkv", shape(B, T, (A + 2 * K) * D));

    scaled_rope_table(rope, 1000, (RopeScaling){8, 1, 4, 64});
    grouped_rope_forward(qkv, rope, K);
    scaled_rope_table(rope, 500, (RopeScaling){0});
    grouped_rope_backward(qkv, rope, K);
}

static void grouped_attention(const int64_t *n)
{
    const int64_t B = n[0], T = n[1], A = n[2], K = n[3], D = n[4];
    const Shape of_qkv = shape(B, T, (A + 2 * K) * D), of_probs = shape(B, A, T, T);
    const Tensor qkv = in("qkv", of_qkv), probs = out("probs", of_probs), d_out = in("d_out", shape(B, T, A * D));

    outputs[output_count - 1].lower = true;
    grouped_attention_forward(out("out", shape(B, T, A * D)), probs, qkv);
    grouped_attention_backward(out("d_qkv", of_qkv), guarded(type, "d_probs", of_probs), d_out, qkv, probs);
}

/* ---- All cases ---- */

enum { SIZES = 14 };

/* The types in which an operator runs: activations in each type (BOTH_GRADIENTS: and its parameters' gradients in REAL
 * and BF16), or in one only. */
enum Runs { EACH_TYPE, BOTH_GRADIENTS, IN_REAL, IN_FP8, IN_BF16_ONCE };
#define ROWS {{1, 1}, {1, 2}, {5, 2}, {3, 17}, {67, 48}, {320, 130}, {67, 1028}, {3, 2504}, {700, 9}}
#define MATMULS {{1, 1, 1}, {3, 17, 5}, {67, 48, 130}, {128, 256, 64}, {320, 130, 1028}}

/* `run` gets each list of sizes (ROWS: rows and width). It makes operands by in(), out(), added() and changed(), and
 * calls operators. What these write is compared. */
static const struct {
    const char *name;
    void (*run)(const int64_t *n);
    enum Runs runs;
    int64_t sizes[SIZES][7];
} operators[] = {
    {"embedding", embedding, BOTH_GRADIENTS, ROWS},
    {"layernorm", layernorm, BOTH_GRADIENTS, ROWS},
    {"gelu", gelu, EACH_TYPE, ROWS},
    {"residual", residual, BOTH_GRADIENTS, ROWS},
    {"cross_entropy", cross_entropy, EACH_TYPE, ROWS},
    {"scale and convert", scale_and_convert, EACH_TYPE, ROWS},
    {"adamw", adamw, BOTH_GRADIENTS, ROWS},
    {"linear", linear, BOTH_GRADIENTS, MATMULS},
    {"attention", attention, EACH_TYPE,
     {{1, 1, 1, 2}, {2, 5, 3, 8}, {2, 65, 2, 20}, {1, 130, 3, 64}, {1, 600, 2, 16}, {1, 1030, 1, 8}}},
    /* lengths around the edges of tiles of 16, 32, 64 and 128 tokens; heads of a multiple of 16 bytes, or not */
    {"flash_attention", flash_attention, EACH_TYPE,
     {{3, 1, 2, 2}, {2, 17, 3, 8}, {2, 129, 2, 32}, {1, 65, 3, 48}, {1, 300, 2, 64}, {1, 200, 1, 80}, {1, 131, 2, 96},
      {1, 321, 1, 128}, {2, 70, 1, 126}, {1, 97, 2, 34}}},
    /* many heads: a block computes several tiles of keys */
    {"flash_attention", flash_attention, IN_BF16_ONCE, {{3, 300, 43, 8}}},
    {"residual_layernorm", residual_layernorm, BOTH_GRADIENTS, ROWS},
    /* for backward, then forward: the widest row that one block handles, and the first that is sliced or goes alone */
    {"residual_layernorm", residual_layernorm, BOTH_GRADIENTS, {{5, 5120}, {5, 5122}, {3, 12288}, {3, 12296}}},
    {"cross_entropy_both", cross_entropy_in_one, EACH_TYPE, ROWS},
    {"cross_entropy_both", cross_entropy_in_one, EACH_TYPE, {{5, 5120}, {5, 5122}, {3, 12288}, {3, 12296}}},
    {"linear_gelu", linear_gelu, EACH_TYPE, MATMULS},
    {"attention_block", attention_block, IN_REAL,
     {{2, 5, 5, 3, 8, 2, false}, {1, 130, 130, 2, 20, 64, false}, {2, 65, 33, 3, 16, 65, false},
      {2, 5, 5, 3, 8, 2, true}, {1, 130, 130, 2, 20, 64, true}, {2, 65, 65, 3, 16, 65, true}}},
    {"flash_block", flash_block, EACH_TYPE,
     {{2, 1, 3, 2, 8}, {1, 65, 130, 2, 32}, {2, 129, 64, 1, 64}, {1, 300, 33, 1, 128}, {1, 70, 70, 3, 34}}},
    {"in slices", sliced, EACH_TYPE, ROWS},
    {"fp8", fp8, IN_FP8,
     {{16, 16, 16, 0}, {3, 17, 5, 0}, {67, 130, 5, 0}, {64, 128, 272, 0}, {320, 160, 48, 0},
      {16, 16, 16, 1}, {3, 17, 5, 1}, {67, 130, 5, 1}, {64, 128, 272, 1}, {320, 160, 48, 1}}},
    {"fp8_tiles", fp8_tiles, IN_FP8, {{128, 128, 128, PER_1X128}, {256, 640, 384, PER_1X128},
                                      {128, 128, 128, PER_1X32}, {256, 640, 384, PER_1X32}}},
    {"rmsnorm", rmsnorm, BOTH_GRADIENTS, ROWS},
    {"swiglu", swiglu, EACH_TYPE, ROWS},
    {"grouped_rope", grouped_rope, EACH_TYPE, {{1, 1, 1, 1, 2}, {2, 5, 6, 3, 8}, {1, 67, 4, 1, 20}}},
    {"grouped_attention", grouped_attention, IN_REAL,
     {{1, 1, 1, 1, 2}, {2, 5, 6, 3, 8}, {2, 65, 4, 1, 20}, {1, 130, 3, 3, 64}, {1, 600, 4, 2, 16}, {1, 1030, 2, 1, 8}}},
    {"experts", experts, EACH_TYPE,
     {{1, 1, 1, 1, 1, 2}, {2, 5, 3, 3, 5, 17}, {3, 67, 8, 2, 21, 48}, {2, 70, 40, 1, 2, 130}, {1, 33, 70, 4, 3, 1028}}},
};

static void run_operator(int i)
{
    for (const int64_t *n = operators[i].sizes[0]; n < operators[i].sizes[SIZES] && *n; n += 7) {
        snprintf(label, sizeof label, "%s %s %s %lld %lld %lld %lld %lld %lld %lld +%d", operators[i].name,
                 dtype_name(type), dtype_name(gradient), (long long)n[0], (long long)n[1], (long long)n[2],
                 (long long)n[3], (long long)n[4], (long long)n[5], (long long)n[6], guarded_shift);
        random_again();
        operators[i].run(n);
        for (int k = 0; k < output_count; k++)
            write_output(k);
        output_count = 0;
        guarded_release();
    }
}

/* Runs all operators with the types `type` and `gradient`. */
static void run_operators(bool with_fp8)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const enum Runs runs = operators[i].runs;
        if ((gradient == REAL || runs == BOTH_GRADIENTS) && (type == REAL || runs != IN_REAL)
            && (with_fp8 || runs != IN_FP8) && ((type == BF16 && !guarded_shift) || runs != IN_BF16_ONCE))
            run_operator(i);
    }
}

int main(int argc, char **argv)
{
    static const DType types[] = {REAL, BF16, F16, E4M3};

    device_prepare(argv);
    error_set_program("parity");
    if (argc != 3 && argc != 4)
        fail_usage("parity FILE TYPES [OTHER]");
    threads_set(2, 2);
    device_init(0);
    types_used = atoi(argv[2]);
    for (int t = 0; t < 4 && !atoi(argv[2]); t++)
        types_used |= (device_supports(types[t]) != SUPPORT_NONE) << t;
    if (!atoi(argv[2]) && types_used & 8)
        types_used |= 16 * fp8_supports(PER_1X128) + 32 * fp8_supports(PER_1X32);
    file = fopen(argv[1], "w");
    other = argc > 3 ? fopen(argv[3], "r") : NULL;
    if (!file || (argc > 3 && !other))
        fail("%s cannot be %s", argv[file ? 3 : 1], file ? "read" : "written");
    for (guarded_shift = 0; guarded_shift < 2; guarded_shift++)
        for (int t = 0; t < 3; t++)
            for (int g = 0; g < (t == 1 ? 2 : 1) && types_used >> t & 1; g++) {
                type = types[t], gradient = g ? BF16 : REAL;
                run_operators(types_used & 8);
            }
    if (fclose(file))
        fail("%s could not be written", argv[1]);
    if (other && fgetc(other) != EOF)
        fail("%s has more", argv[3]);
    if (other)
        printf("%d outputs compared, %d differ\n", compared, failed);
    else
        printf("%d\n", types_used);
    return failed > 0;
}
