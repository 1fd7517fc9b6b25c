/* Runs every operator, and 08's fused ones, on random numbers and ragged shapes, and writes their results to a file.
 * Arguments: the file, and the types, as a sum: 1, float; 2, bf16; 4, fp16; 8, fp8 (0: all that the device computes
 * with). Prints the sum of the types that it used. With a third argument, the file of another build, it compares: the
 * CPU's build tells where the GPU's differs (test_cuda.c).
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
#include "../../common/ultrascale.h"
#include "../../common/formats.h"
#include "../tensors.h"

static FILE *file, *other;
static int compared, failed;
static char label[160];                 /* operator, type and sizes */

static Tensor random_tensor(DType dtype, const char *name, Shape s)
{
    return random_like(guarded(dtype, name, s));
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

static void *on_host(int64_t bytes)
{
    return host_alloc(bytes, label);
}

/* ---- Output: per tensor a line of text, then floats. Tolerances are relative to its largest number. ---- */

/* Compares the other build's numbers, which must be NaN where these are. */
static void compare(const char *line, const float *x, int64_t count, double tolerance)
{
    char of[320] = "";
    float *y = on_host(count * sizeof *y);
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

static void write_numbers(const char *name, const float *x, int64_t count, double tolerance)
{
    char line[320];

    snprintf(line, sizeof line, "%s: %s|%lld\n", label, name, (long long)count);
    fputs(line, file);
    fwrite(x, sizeof *x, count, file);
    if (other)
        compare(line, x, count, tolerance);
}

/* lower: t is (..., T, T); elements above the diagonal are written as 0. */
static void write_tensor(Tensor t, double tolerance, bool lower)
{
    const int64_t count = tensor_count(t), width = tensor_width(t);
    real *x = on_host(count * sizeof *x);
    float *to = on_host(count * sizeof *to);

    tensor_to_host(x, t);
    for (int64_t i = 0; i < count; i++)
        to[i] = lower && i % width > i / width % width ? 0 : x[i];
    write_numbers(t.name, to, count, tolerance);
    free(x);
    free(to);
}

static void out(Tensor t)
{
    write_tensor(t, t.dtype == BF16 || t.dtype == F16 ? 1e-2 : 1e-5, false);
}

/* A float tensor computed from numbers of half width has their tolerance. */
static void out_of(DType dtype, Tensor t)
{
    write_tensor(t, dtype == REAL && t.dtype == REAL ? 1e-5 : 1e-2, false);
}

static void out_ids(Tensor t)
{
    const int64_t count = tensor_count(t);
    int32_t *ids = on_host(tensor_bytes(t));
    float *to = on_host(count * sizeof *to);

    device_download(ids, t.data, tensor_bytes(t));
    for (int64_t i = 0; i < count; i++)
        to[i] = ids[i];
    write_numbers(t.name, to, count, 0);
    free(ids);
    free(to);
}

static void out_number(const char *name, double x)
{
    write_numbers(name, &(float){x}, 1, 1e-5);
}

static void begin(const char *name, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    random_again();
    snprintf(label, sizeof label, "%s %s %lld %lld %lld %lld +%d", name, dtype_name(dtype), (long long)a, (long long)b,
             (long long)c, (long long)d, guarded_shift);
}

/* ---- The operators ---- */

static void rows_and_widths(DType dtype, DType gradient, int64_t R, int64_t W)
{
    const int64_t V = 23;

    begin("embedding", dtype, R, W, V, gradient);
    Tensor ids = ids_below("ids", R, V), w = random_tensor(dtype, "weight", shape(V, W));
    Tensor o = guarded(dtype, "out", shape(R, W));
    embedding_forward(o, ids, w);
    out(o);
    Tensor d_w = random_tensor(gradient, "d_weight", shape(V, W));
    embedding_backward(d_w, random_tensor(dtype, "d_out", shape(R, W)), ids);
    /* ids repeat, and the CPU rounds to bf16 after each addition */
    write_tensor(d_w, gradient == BF16 ? 1e-2 : dtype == REAL ? 1e-5 : 1e-2, false);
    guarded_release();

    begin("layernorm", dtype, R, W, 0, gradient);
    Tensor x = random_tensor(dtype, "x", shape(R, W)), stats = guarded(REAL, "stats", shape(R, 2));
    Tensor b = random_tensor(dtype, "bias", shape(W));
    w = random_tensor(dtype, "weight", shape(W)), o = guarded(dtype, "out", shape(R, W));
    layernorm_forward(o, stats, x, w, b);
    out(o);
    /* With rows of two close numbers, gradients are differences of large numbers. */
    if (W > 2) {
        out(stats);
        Tensor d_x = random_tensor(dtype, "d_x", shape(R, W)), d_out = random_tensor(dtype, "d_out", shape(R, W));
        Tensor d_b = random_tensor(gradient, "d_bias", shape(W));
        d_w = random_tensor(gradient, "d_weight", shape(W));
        layernorm_backward(d_x, d_w, d_b, d_out, x, stats, w);
        out(d_x), out_of(dtype, d_w), out_of(dtype, d_b);
    }
    guarded_release();

    begin("gelu", dtype, R, W, 0, 0);
    x = random_tensor(dtype, "x", shape(R, W)), o = guarded(dtype, "out", shape(R, W));
    gelu_forward(o, x);
    out(o);
    Tensor d_x = guarded(dtype, "d_x", shape(R, W));
    gelu_backward(d_x, random_tensor(dtype, "d_out", shape(R, W)), x);
    out(d_x);
    tensor_scale(x, 60);                /* exp overflows */
    gelu_forward(o, x);
    gelu_backward(d_x, random_tensor(dtype, "d_out", shape(R, W)), x);
    out(o), out(d_x);
    guarded_release();

    begin("residual", dtype, R, W, 0, gradient);
    o = guarded(dtype, "out", shape(R, W));
    residual_forward(o, random_tensor(dtype, "x", shape(R, W)), random_tensor(dtype, "branch", shape(R, W)),
                     random_tensor(dtype, "bias", shape(W)));
    out(o);
    Tensor d_b = random_tensor(gradient, "d_bias", shape(W));
    residual_backward(d_b, random_tensor(dtype, "d_out", shape(R, W)));
    out_of(dtype, d_b);
    guarded_release();

    begin("cross_entropy", dtype, R, W, 0, 0);
    Tensor logits = random_tensor(dtype, "logits", shape(R, W)), lse = guarded(REAL, "lse", shape(R));
    Tensor targets = ids_below("ids", R, W), loss = zeroed(F64, "loss", shape(1));
    cross_entropy_forward(loss, lse, logits, targets, 0.01);
    cross_entropy_forward(loss, lse, logits, targets, 0.01);
    out(lse);
    out_number("loss", tensor_item(loss));
    cross_entropy_backward(logits, logits, lse, targets, 0.01);
    out(logits);
    tensor_scale(random_like(logits), 3000);
    cross_entropy_forward(loss, lse, logits, targets, 0.01);
    out(lse);
    out_number("loss of extremes", tensor_item(loss));
    guarded_release();

    begin("scale and convert", dtype, R, W, 0, 0);
    x = random_tensor(dtype, "x", shape(R, W));
    tensor_scale(x, 0.37);
    out(x);
    static const DType others[] = {REAL, BF16, F16};
    for (int k = 0; k < 3; k++) {
        Tensor c = guarded(others[k], "converted", shape(R, W));
        tensor_convert(c, x);
        out(c);
    }
    guarded_release();

    static const AdamWArguments arguments = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                                             .correction1 = 0.19, .correction2 = 0.0975, .gradient_scale = 0.5};
    begin("adamw", dtype, R, W, 0, gradient);
    Tensor p = random_tensor(dtype, "params", shape(R * W)), m = random_tensor(REAL, "m", shape(R * W));
    Tensor v = zeroed(REAL, "v", shape(R * W)), g = random_tensor(gradient, "gradients", shape(R * W));
    tensor_fill(v, 0.3);
    adamw_update(p, NONE, m, v, g, arguments);
    out(p), out(m), out(v);
    out_number("square_sum", square_sum((Tensor[]){g, random_tensor(REAL, "more", shape(R)), v}, 3));
    for (int k = 0; k < 3; k++) {
        Tensor copy = guarded(others[k], "copy", shape(R * W));
        adamw_update(p, copy, m, v, g, arguments);
        out_of(dtype, copy);
    }
    out(p);
    static const double clips[] = {0, 0.5, 1e9};
    for (int k = 0; k < 3; k++) {
        Tensor sum = zeroed(F64, "sum", shape(1)), scale = zeroed(F64, "scale", shape(1));
        AdamWArguments scaled = arguments;
        scaled.scale = scale;
        square_sum_into(sum, (Tensor[]){g, v}, 2);
        out_number("square_sum", tensor_item(sum));
        clip_scale_into(scale, sum, clips[k]);
        out_number("clip_scale", tensor_item(scale));
        adamw_update(p, NONE, m, v, g, scaled);
        out(p), out(m), out(v);
        device_upload(sum.data, (double[]){k ? NAN : INFINITY}, sizeof(double));
        clip_scale_into(scale, sum, clips[k]);
        adamw_update(p, NONE, m, v, g, scaled);
    }
    out(p), out(m), out(v);
    guarded_release();
}

static void linears(DType dtype, DType gradient, int64_t R, int64_t K, int64_t M)
{
    begin("linear", dtype, R, K, M, gradient);
    Tensor x = random_tensor(dtype, "x", shape(R, K)), w = random_tensor(dtype, "weight", shape(M, K));
    Tensor o = guarded(dtype, "out", shape(R, M)), with = guarded(dtype, "with bias", shape(R, M));
    linear_forward(o, x, w, NONE);
    linear_forward(with, x, w, random_tensor(dtype, "bias", shape(M)));
    out(o), out(with);
    Tensor d_x = guarded(dtype, "d_x", shape(R, K)), d_out = random_tensor(dtype, "d_out", shape(R, M));
    Tensor d_w = random_tensor(gradient, "d_weight", shape(M, K)), d_b = random_tensor(gradient, "d_bias", shape(M));
    linear_backward_input(d_x, d_out, w);
    linear_backward_weight(d_w, d_b, d_out, x);
    out(d_x), out_of(dtype, d_w), out_of(dtype, d_b);
    guarded_release();
}

static void attention(DType dtype, int64_t B, int64_t T, int64_t A, int64_t D)
{
    begin("attention", dtype, B, T, A, D);
    Tensor rope = guarded(REAL, "rope", shape(T, D)), qkv = random_tensor(dtype, "qkv", shape(B, T, 3 * A * D));
    rope_table(rope, 3);
    rope_forward(qkv, rope);
    out(rope), out(qkv);
    Tensor o = guarded(dtype, "out", shape(B, T, A * D)), probs = guarded(dtype, "probs", shape(B, A, T, T));
    attention_forward(o, probs, qkv);
    out(o);
    write_tensor(probs, dtype == REAL ? 1e-5 : 1e-2, true);
    Tensor d_qkv = guarded(dtype, "d_qkv", shape(B, T, 3 * A * D));
    Tensor d_probs = guarded(dtype, "d_probs", shape(B, A, T, T));
    attention_backward(d_qkv, d_probs, random_tensor(dtype, "d_out", shape(B, T, A * D)), qkv, probs);
    rope_backward(d_qkv, rope);
    out(d_qkv);
    guarded_release();
}

/* ---- 08's fused operators ---- */

static void flash_attention(DType dtype, int64_t B, int64_t T, int64_t A, int64_t D)
{
    begin("flash_attention", dtype, B, T, A, D);
    Tensor qkv = random_tensor(dtype, "qkv", shape(B, T, 3 * A * D)), o = guarded(dtype, "out", shape(B, T, A * D));
    Tensor lse = guarded(REAL, "lse", shape(B, A, T)), delta = guarded(REAL, "delta", shape(B, A, T));
    flash_attention_forward(o, lse, qkv);
    out(o), out_of(dtype, lse);
    Tensor d_qkv = guarded(dtype, "d_qkv", shape(B, T, 3 * A * D));
    Tensor d_out = random_tensor(dtype, "d_out", shape(B, T, A * D));
    Tensor parts = aligned(REAL, "parts", shape(flash_parts(dtype, B, T, T, A, D)));
    flash_attention_backward(d_qkv, delta, parts, d_out, qkv, o, lse);
    out(d_qkv), out_of(dtype, delta);
    guarded_release();
}

static void fused_rows(DType dtype, DType gradient, int64_t R, int64_t W)
{
    begin("residual_layernorm", dtype, R, W, 0, gradient);
    Tensor x = random_tensor(dtype, "x", shape(R, W)), branch = random_tensor(dtype, "branch", shape(R, W));
    Tensor add = random_tensor(dtype, "branch_bias", shape(W)), w = random_tensor(dtype, "weight", shape(W));
    Tensor b = random_tensor(dtype, "bias", shape(W)), stats = guarded(REAL, "stats", shape(R, 2));
    Tensor sum = guarded(dtype, "sum", shape(R, W)), o = guarded(dtype, "out", shape(R, W));
    residual_layernorm_forward(sum, o, stats, x, branch, add, w, b);
    out(sum), out(o);
    if (W > 2) {                                /* as for layernorm above */
        out_of(dtype, stats);                   /* with wide rows: of the rounded sum */
        Tensor d_sum = random_tensor(dtype, "d_sum", shape(R, W)), d_out = random_tensor(dtype, "d_out", shape(R, W));
        Tensor d_add = random_tensor(gradient, "d_branch_bias", shape(W));
        Tensor d_w = random_tensor(gradient, "d_weight", shape(W)), d_b = random_tensor(gradient, "d_bias", shape(W));
        residual_layernorm_backward(d_sum, d_add, d_w, d_b, d_out, sum, stats, w);
        out(d_sum), out_of(dtype, d_add), out_of(dtype, d_w), out_of(dtype, d_b);
    }
    guarded_release();

    begin("cross_entropy_both", dtype, R, W, 0, 0);
    Tensor logits = random_tensor(dtype, "logits", shape(R, W)), targets = ids_below("ids", R, W);
    Tensor loss = zeroed(F64, "loss", shape(1));
    cross_entropy_both(loss, logits, targets, 0.01, 0.02);
    out(logits);
    out_number("loss", tensor_item(loss));
    guarded_release();
}

static void linear_gelu(DType dtype, int64_t R, int64_t K, int64_t M)
{
    begin("linear_gelu", dtype, R, K, M, 0);
    Tensor x = random_tensor(dtype, "x", shape(R, K)), w = random_tensor(dtype, "weight", shape(M, K));
    Tensor o = guarded(dtype, "out", shape(R, M)), up = guarded(dtype, "up", shape(R, M));
    tensor_scale(w, 1 / sqrt(K));               /* puts most numbers near GELU's bend */
    linear_gelu_forward(o, up, x, w, random_tensor(dtype, "bias", shape(M)));
    out(o), out(up);
    Tensor down = random_tensor(dtype, "down", shape(K, M)), d_up = guarded(dtype, "d_up", shape(R, M));
    linear_gelu_backward(d_up, random_tensor(dtype, "d_out", shape(R, K)), down, up);
    out(d_up);
    guarded_release();
}

static void attention_blocks(int64_t B, int64_t C, int64_t K, int64_t A, int64_t D, int64_t Q, bool causal)
{
    begin(causal ? "attention_block causal" : "attention_block", REAL, B, 1000 * C + K, A, 1000 * D + Q);
    Tensor q = random_tensor(REAL, "q", shape(B, C, A, D)), k = random_tensor(REAL, "k", shape(B, K, A, D));
    Tensor v = random_tensor(REAL, "v", shape(B, K, A, D)), o = guarded(REAL, "out", shape(B, C, A, D));
    Tensor lse = guarded(REAL, "lse", shape(B, C, A, 1)), scores = guarded(REAL, "scores", shape(2, A, Q, K));
    attention_block_forward(o, lse, scores, q, k, v, causal);
    out(o), out(lse);
    Tensor d_out = random_tensor(REAL, "d_out", shape(B, C, A, D)), delta = guarded(REAL, "delta", shape(B, C, A, 1));
    Tensor d_q = random_tensor(REAL, "d_q", shape(B, C, A, D)), d_k = random_tensor(REAL, "d_k", shape(B, K, A, D));
    Tensor d_v = random_tensor(REAL, "d_v", shape(B, K, A, D));
    attention_delta(tensor_view(delta, shape(B * C, A)), tensor_view(d_out, shape(B * C, A * D)),
                   tensor_view(o, shape(B * C, A * D)));
    out(delta);
    attention_block_backward(d_q, d_k, d_v, scores, d_out, q, k, v, lse, delta, causal);
    out(d_q), out(d_k), out(d_v);
    Tensor merged = random_tensor(REAL, "merged", shape(B, C, A, D));
    Tensor merged_lse = random_tensor(REAL, "merged lse", shape(B, C, A, 1));
    attention_merge(merged, merged_lse, o, lse);
    out(merged), out(merged_lse);
    guarded_release();
}

/* Queries attend to a sequence chunk of earlier keys, then to their own chunk, causally. */
static void flash_blocks(DType dtype, int64_t B, int64_t C, int64_t K, int64_t A, int64_t D)
{
    begin("flash_block", dtype, B, 1000 * C + K, A, D);
    Tensor q = random_tensor(dtype, "q", shape(B, C, A, D)), d_out = random_tensor(dtype, "d_out", shape(B, C, A, D));
    Tensor o = guarded(REAL, "out", shape(B, C, A, D)), lse = guarded(REAL, "lse", shape(B, C, A, 1));
    Tensor key[2] = {random_tensor(dtype, "k before", shape(B, K, A, D)), random_tensor(dtype, "k", shape(B, C, A, D))};
    Tensor value[2] = {random_tensor(dtype, "v before", shape(B, K, A, D)),
                       random_tensor(dtype, "v", shape(B, C, A, D))};
    tensor_fill(o, 0), tensor_fill(lse, -INFINITY);
    for (int i = 0; i < 2; i++) {
        flash_block_forward(o, lse, q, key[i], value[i], i);
        out_of(dtype, o), out_of(dtype, lse);
    }
    Tensor rounded = guarded(dtype, "rounded", shape(B * C, A * D)), delta = guarded(REAL, "delta", shape(B * C, A));
    tensor_convert(rounded, tensor_view(o, shape(B * C, A * D)));
    attention_delta(delta, tensor_view(d_out, shape(B * C, A * D)), rounded);
    out_of(dtype, delta);
    Tensor d_q = random_tensor(REAL, "d_q", shape(B, C, A, D));
    for (int i = 0; i < 2; i++) {
        Tensor d_k = random_tensor(REAL, "d_k", shape(B, i ? C : K, A, D));
        Tensor d_v = random_tensor(REAL, "d_v", shape(B, i ? C : K, A, D));
        Tensor parts = aligned(REAL, "parts", shape(flash_parts(dtype, B, C, i ? C : K, A, D)));
        flash_block_backward(d_q, d_k, d_v, parts, d_out, q, key[i], value[i], lse,
                             tensor_view(delta, shape(B, C, A, 1)), i);
        out_of(dtype, d_k), out_of(dtype, d_v);
    }
    out_of(dtype, d_q);
    guarded_release();
}

static void sliced(DType dtype, int64_t R, int64_t W)
{
    begin("in slices", dtype, R, W, 0, 0);
    Tensor logits = random_tensor(dtype, "logits", shape(R, W)), max = guarded(REAL, "max", shape(R));
    Tensor sums = guarded(REAL, "sums", shape(R, 2));
    Tensor targets = ids_below("ids", R, 3 * W), slice = guarded(I32, "slice", shape(R));
    Tensor loss = zeroed(F64, "loss", shape(1)), lse = guarded(REAL, "lse", shape(R));
    ids_in_slice(slice, targets, W, W);
    cross_entropy_max(max, logits);
    cross_entropy_sums(sums, logits, max, slice);
    cross_entropy_loss(loss, lse, sums, max, 0.01);
    out(max), out(sums), out(lse);
    out_number("loss", tensor_item(loss));
    Tensor in = random_tensor(dtype, "in", shape(R, 5, W)), t = guarded(dtype, "transposed", shape(5, R, W));
    transpose_rows(t, in);
    out(t);
    Tensor x = guarded(REAL, "x", shape(R * W));
    tensor_fill(x, 0.7);
    tensor_add(x, random_tensor(dtype, "add", shape(R * W)));
    out(x);
    guarded_release();
}

static Tensor with_scale(Tensor t, float *scale)
{
    t.scale = scale;
    return t;
}

static void fp8_operators(DType dtype, DType format, int64_t R, int64_t K, int64_t M)
{
    Tensor scales = guarded(REAL, "scales", shape(3));
    float *scale = scales.data;

    begin(format == E4M3 ? "quantize E4M3" : "quantize E5M2", dtype, R, K, M, 0);
    Tensor x = random_tensor(dtype, "x", shape(R, K));
    Tensor q = with_scale(guarded(format, "out", shape(R, K)), scale);
    Tensor t = with_scale(guarded(format, "transposed", shape(K, R)), scale);
    quantize(q, t, x);
    Tensor alone = with_scale(guarded(format, "alone", shape(K, R)), scale + 1);
    quantize(NONE, alone, x);
    out(q), out(t), out(alone);
    write_tensor(tensor_range(scales, 0, 2), 1e-6, false);
    quantize(q, t, zeroed(dtype, "nothing", shape(R, K)));
    out(q), out(t), out(scales);
    Tensor infinite = random_tensor(dtype, "infinite", shape(R, K));
    tensor_scale(infinite, INFINITY);
    quantize(q, t, infinite);
    out(q), out(t), out(scales);
    quantize(q, t, x);
    if (R % 16 == 0 && K % 16 == 0 && M % 16 == 0) {
        Tensor a = with_scale(aligned(format, "a", shape(R, K)), scale);
        Tensor b = with_scale(aligned(E4M3, "b", shape(M, K)), scale + 2), o = aligned(dtype, "product", shape(R, M));
        Tensor sum = random_like(aligned(dtype == F16 ? REAL : dtype, "sum", shape(R, M)));
        quantize(a, NONE, x);
        quantize(b, NONE, random_tensor(dtype, "weight", shape(M, K)));
        linear_fp8(o, a, b, random_tensor(dtype, "bias", shape(M)));
        linear_fp8_add(sum, a, b);
        write_tensor(o, 1e-2, false), write_tensor(sum, 1e-2, false);
    }
    guarded_release();
}

/* B sequences of T tokens, E experts, K per token, C slots, rows of width H. */
static void experts(DType dtype, int64_t B, int64_t T, int64_t E, int64_t K, int64_t C, int64_t H)
{
    begin("experts", dtype, T, E, K, H);
    Tensor logits = random_tensor(REAL, "probs", shape(B, T, E)), loss = zeroed(F64, "loss", shape(1));
    Tensor totals = zeroed(REAL, "totals", shape(E, 2)), d_logits = guarded(REAL, "d_logits", shape(B, T, E));
    const Routing r = {logits, guarded(REAL, "gates", shape(B, T, K)), guarded(I32, "choice", shape(B, T, K)),
                       guarded(I32, "slot", shape(B, T, K)), guarded(I32, "rows", shape(E, B, C)),
                       guarded(REAL, "load", shape(B, E))};
    route_forward(&r);
    balance_forward(loss, totals, &r, 0.3);
    out(r.probs), out(r.gates), out(r.load), out(totals);
    out_ids(r.choice), out_ids(r.slot), out_ids(r.rows);
    out_number("loss", tensor_item(loss));
    Tensor x = random_tensor(dtype, "x", shape(B * T, H)), slots = guarded(dtype, "slots", shape(E * B * C, H));
    Tensor o = guarded(dtype, "out", shape(B * T, H)), d_x = random_tensor(dtype, "d_x", shape(B * T, H));
    dispatch_forward(slots, x, &r);
    out(slots);
    combine_forward(o, x, random_like(slots), &r);
    out(o);
    Tensor d_slots = guarded(dtype, "d_slots", shape(E * B * C, H)), d_gates = guarded(REAL, "d_gates", shape(B, T, K));
    combine_backward(d_slots, d_gates, o, slots, &r);
    out(d_slots), out_of(dtype, d_gates);
    dispatch_backward(d_x, d_slots, &r);
    out(d_x);
    route_backward(d_logits, random_like(d_gates), &r, 0.3);
    out(d_logits);
    guarded_release();
}

int main(int argc, char **argv)
{
    static const DType types[] = {REAL, BF16, F16, E4M3};
    static const int64_t sizes[][2] = {{1, 1}, {1, 2}, {5, 2}, {3, 17}, {67, 48}, {320, 130}, {67, 1028}, {3, 2504},
                                       {700, 9}};
    static const int64_t linear[][3] = {{1, 1, 1}, {3, 17, 5}, {67, 48, 130}, {128, 256, 64}, {320, 130, 1028}};
    static const int64_t heads[][4] = {{1, 1, 1, 2}, {2, 5, 3, 8}, {2, 65, 2, 20}, {1, 130, 3, 64}, {1, 600, 2, 16},
                                       {1, 1030, 1, 8}};
    /* lengths around the edges of tiles of 16, 32, 64 and 128 tokens; heads of a multiple of 16 bytes, or not */
    static const int64_t flash[][4] = {{3, 1, 2, 2}, {2, 17, 3, 8}, {2, 129, 2, 32}, {1, 65, 3, 48}, {1, 300, 2, 64},
                                       {1, 200, 1, 80}, {1, 131, 2, 96}, {1, 321, 1, 128}, {2, 70, 1, 126},
                                       {1, 97, 2, 34}};
    static const int64_t chunks[][5] = {{2, 1, 3, 2, 8}, {1, 65, 130, 2, 32}, {2, 129, 64, 1, 64}, {1, 300, 33, 1, 128},
                                        {1, 70, 70, 3, 34}};
    static const int64_t mixtures[][6] = {{1, 1, 1, 1, 1, 2}, {2, 5, 3, 3, 5, 17}, {3, 67, 8, 2, 21, 48},
                                          {2, 70, 40, 1, 2, 130}, {1, 33, 70, 4, 3, 1028}};
    /* for backward, then forward: the widest row that one block handles, and the first that is sliced or goes alone */
    static const int64_t wide[][2] = {{5, 5120}, {5, 5122}, {3, 12288}, {3, 12296}};
    static const int64_t fp8_sizes[][3] = {{16, 16, 16}, {3, 17, 5}, {67, 130, 5}, {64, 128, 272}, {320, 160, 48}};
    int types_used;

    error_set_program("parity");
    if (argc != 3 && argc != 4)
        fail_usage("parity FILE TYPES [OTHER]");
    device_init(0, 1, 2);
    types_used = atoi(argv[2]);
    for (int t = 0; t < 4 && !atoi(argv[2]); t++)
        types_used |= (device_supports(types[t]) != SUPPORT_NONE) << t;
    file = fopen(argv[1], "w");
    other = argc > 3 ? fopen(argv[3], "r") : NULL;
    if (!file || (argc > 3 && !other))
        fail("%s cannot be %s", argv[file ? 3 : 1], file ? "read" : "written");
    for (guarded_shift = 0; guarded_shift < 2; guarded_shift++) {
        for (int t = 0; t < 3; t++) {
            const DType dtype = types[t];
            if (!(types_used >> t & 1))
                continue;
            for (int g = 0; g < (t == 1 ? 2 : 1); g++) {
                const DType gradient = g ? BF16 : REAL;
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                    rows_and_widths(dtype, gradient, sizes[i][0], sizes[i][1]);
                    fused_rows(dtype, gradient, sizes[i][0], sizes[i][1]);
                }
                for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
                    fused_rows(dtype, gradient, wide[i][0], wide[i][1]);
                for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
                    linears(dtype, gradient, linear[i][0], linear[i][1], linear[i][2]);
            }
            for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
                linear_gelu(dtype, linear[i][0], linear[i][1], linear[i][2]);
            for (size_t i = 0; i < sizeof flash / sizeof *flash; i++)
                flash_attention(dtype, flash[i][0], flash[i][1], flash[i][2], flash[i][3]);
            if (dtype == BF16 && !guarded_shift)        /* many heads: a block computes several tiles of keys */
                flash_attention(dtype, 3, 513, 43, 8);
            for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
                flash_blocks(dtype, chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3], chunks[i][4]);
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                sliced(dtype, sizes[i][0], sizes[i][1]);
            for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
                experts(dtype, mixtures[i][0], mixtures[i][1], mixtures[i][2], mixtures[i][3], mixtures[i][4],
                        mixtures[i][5]);
            for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
                attention(dtype, heads[i][0], heads[i][1], heads[i][2], heads[i][3]);
            for (size_t i = 0; types_used >> 3 && i < sizeof fp8_sizes / sizeof *fp8_sizes; i++)
                for (int f = 0; f < 2; f++)
                    fp8_operators(dtype, f ? E5M2 : E4M3, fp8_sizes[i][0], fp8_sizes[i][1], fp8_sizes[i][2]);
        }
        for (int causal = 0; causal < 2; causal++) {
            attention_blocks(2, 5, 5, 3, 8, 2, causal);
            attention_blocks(1, 130, 130, 2, 20, 64, causal);
            attention_blocks(2, 65, causal ? 65 : 33, 3, 16, 65, causal);
        }
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
