/* 08: each fused operator against the chain of operators that it replaces, on ragged sizes. The program against 02: the
 * same numbers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../07_context_parallel/key_blocks.h"
#include "../../08_fused_kernels/fused.h"
#include "../../common/ultrascale.h"
#include "../../common/formats.h"
#include "../harness.h"
#include "../tensors.h"

#define FUSED BUILD "/cpu/08_fused_kernels"
#define FUSED64 BUILD "/cpu64/08_fused_kernels"
#define MIXED BUILD "/cpu/02_mixed_precision"
#define SINGLE64 BUILD "/cpu64/01_single_gpu"

static Tensor drawn(DType dtype, const char *name, Shape shape, double scale)
{
    return seeded(dtype, dtype, name, shape, scale);
}

/* Expects max |a - b| <= tolerance max |b|. */
static void assert_same(Tensor a, Tensor b, double tolerance)
{
    const int64_t count = tensor_count(a);
    real *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
    double error = 0, largest = 0;

    assert_int_equal(count, tensor_count(b));
    tensor_to_host(x, a);
    tensor_to_host(y, b);
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i]))
            fail_msg("%s: element %lld is %g, and %g of the chain", a.name, (long long)i, (double)x[i], (double)y[i]);
        error = fmax(error, fabs(x[i] - y[i]));
        largest = fmax(largest, fabs(y[i]));
    }
    if (!(error <= tolerance * largest) || largest == 0)
        fail_msg("%s %s: %g of the largest, %g, from the chain", a.name, dtype_name(a.dtype), error / largest, largest);
    free(x);
    free(y);
}

static double tolerance_of(DType dtype)
{
    return dtype == BF16 ? 1e-2 : dtype == F16 ? 2e-3 : sizeof(real) == 8 ? 1e-10 : 1e-5;
}

static const DType types[] = {REAL, BF16, F16};

/* Sequences around the tiles' sizes, common head sizes, and sequences of several tiles. */
static void attention_is_the_chain(void **state)
{
    static const struct {
        int64_t B, T, A, D;
    } cases[] = {{2, 1, 2, 8},    {1, 127, 2, 32}, {1, 128, 1, 48},  {1, 129, 2, 64},
                 {2, 257, 1, 80}, {1, 300, 2, 96}, {1, 520, 1, 128}, {3, 70, 3, 10}};

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int k = 0; k < 3; k++) {
            const int64_t B = cases[c].B, T = cases[c].T, A = cases[c].A, D = cases[c].D;
            const DType t = types[k];
            Tensor qkv = drawn(t, "qkv", shape(B, T, 3 * A * D), 1.5),
                   d_out = drawn(t, "d_out", shape(B, T, A * D), 1);
            Tensor out = zeroed(t, "out", shape(B, T, A * D)), want = zeroed(t, "want", shape(B, T, A * D));
            Tensor probs = zeroed(t, "probs", shape(B, A, T, T)), d_probs = zeroed(t, "d_probs", shape(B, A, T, T));
            Tensor lse = zeroed(REAL, "lse", shape(B, A, T)), delta = zeroed(REAL, "delta", shape(B, A, T));
            Tensor d_qkv = drawn(t, "d_qkv", shape(B, T, 3 * A * D), 1);          /* overwritten */
            Tensor d_want = zeroed(t, "d_want", shape(B, T, 3 * A * D));
            Tensor parts = zeroed(REAL, "parts", shape(flash_parts(t, B, T, T, A, D)));
            attention_forward(want, probs, qkv);
            attention_backward(d_want, d_probs, d_out, qkv, probs);
            flash_attention_forward(out, lse, qkv);
            flash_attention_backward(d_qkv, delta, parts, d_out, qkv, out, lse);
            assert_same(out, want, tolerance_of(t));
            assert_same(d_qkv, d_want, tolerance_of(t));
            guarded_release();
        }
}

/* Scores of several thousand, with the largest last or first, give no Inf and no NaN. */
static void attention_of_extremes(void **state)
{
    enum { T = 300, D = 16 };

    for (int k = 0; k < 2; k++) {
        Tensor qkv = drawn(REAL, "qkv", shape(1, T, 3 * D), 40);
        Tensor out = zeroed(REAL, "out", shape(1, T, D)), want = zeroed(REAL, "want", shape(1, T, D));
        Tensor probs = zeroed(REAL, "probs", shape(1, 1, T, T)), lse = zeroed(REAL, "lse", shape(1, 1, T));
        real *x = qkv.data;
        for (int i = 0; i < T; i++)
            for (int d = 0; d < D; d++)
                x[i * 3 * D + D + d] *= k ? (T - i) / 10. : i / 10.;
        attention_forward(want, probs, qkv);
        flash_attention_forward(out, lse, qkv);
        assert_same(out, want, sizeof(real) == 8 ? 1e-9 : 1e-3);
        guarded_release();
    }
}

static Tensor as_real(Tensor t)
{
    Tensor r = zeroed(REAL, t.name, (Shape){t.dims, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]}});

    tensor_convert(r, t);
    return r;
}

/* Attends to a chunk of earlier keys, then to the queries' own chunk. Compared with 07's blocks and their merge. */
static void attention_by_chunks_is_the_chain(void **state)
{
    static const struct {
        int64_t B, C, K, A, D;              /* K: number of earlier keys */
    } cases[] = {{2, 1, 3, 2, 8}, {1, 127, 65, 2, 32}, {1, 128, 128, 1, 48}, {2, 129, 260, 2, 64}, {1, 70, 1, 3, 10}};

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int k = 0; k < 3; k++) {
            const int64_t B = cases[c].B, C = cases[c].C, A = cases[c].A, D = cases[c].D;
            const DType t = types[k];
            const Shape of_q = shape(B, C, A, D), of_sum = shape(B, C, A, 1);
            Tensor q = drawn(t, "q", of_q, 1.5), d_out = drawn(t, "d_out", of_q, 1), real_q = as_real(q);
            Tensor out = zeroed(REAL, "out", of_q), lse = zeroed(REAL, "lse", of_sum);
            Tensor want = zeroed(REAL, "want", of_q), want_lse = zeroed(REAL, "want_lse", of_sum);
            Tensor block_out = zeroed(REAL, "block_out", of_q), block_lse = zeroed(REAL, "block_lse", of_sum);
            Tensor delta = zeroed(REAL, "delta", of_sum), rounded = zeroed(t, "rounded", of_q);
            Tensor d_q = drawn(REAL, "d_q", of_q, 1), d_want = drawn(REAL, "d_q", of_q, 1);      /* added to */
            Tensor key[2], value[2], d_key[2], d_value[2], d_want_key[2], d_want_value[2], scores[2];
            tensor_fill(lse, -INFINITY), tensor_fill(want_lse, -INFINITY);
            for (int i = 0; i < 2; i++) {
                const int64_t K = i ? C : cases[c].K;
                const Shape of_k = shape(B, K, A, D);
                key[i] = drawn(t, i ? "k" : "k before", of_k, 1.5);
                value[i] = drawn(t, i ? "v" : "v before", of_k, 1);
                d_key[i] = drawn(REAL, "d_k", of_k, 1), d_want_key[i] = drawn(REAL, "d_k", of_k, 1);
                d_value[i] = drawn(REAL, "d_v", of_k, 1), d_want_value[i] = drawn(REAL, "d_v", of_k, 1);
                scores[i] = zeroed(REAL, "scores", shape(2, A, C, K));
                flash_block_forward(out, lse, q, key[i], value[i], i);
                attention_block_forward(block_out, block_lse, scores[i], real_q, as_real(key[i]), as_real(value[i]), i);
                attention_merge(want, want_lse, block_out, block_lse);
            }
            const double tolerance = tolerance_of(REAL);
            assert_same(out, want, tolerance);
            assert_same(lse, want_lse, tolerance);
            tensor_convert(rounded, out);
            attention_delta(tensor_view(delta, shape(B * C, A)), tensor_view(d_out, shape(B * C, A * D)),
                            tensor_view(rounded, shape(B * C, A * D)));
            for (int i = 0; i < 2; i++) {
                Tensor parts = zeroed(REAL, "parts", shape(flash_parts(t, B, C, i ? C : cases[c].K, A, D)));
                flash_block_backward(d_q, d_key[i], d_value[i], parts, d_out, q, key[i], value[i], lse, delta, i);
                attention_block_backward(d_want, d_want_key[i], d_want_value[i], scores[i], as_real(d_out), real_q,
                                         as_real(key[i]), as_real(value[i]), want_lse, delta, i);
                assert_same(d_key[i], d_want_key[i], 2 * tolerance);
                assert_same(d_value[i], d_want_value[i], 2 * tolerance);
            }
            assert_same(d_q, d_want, 2 * tolerance);
            guarded_release();
        }
}

static void the_others_are_their_chains(void **state)
{
    static const struct {
        int64_t R, H, M, V;
    } cases[] = {{1, 8, 24, 11}, {37, 50, 200, 97}, {130, 64, 256, 1031}, {300, 33, 1100, 7}};

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int k = 0; k < 3; k++)
            for (int g = 0; g < (types[k] == BF16 ? 2 : 1); g++) {
                const int64_t R = cases[c].R, H = cases[c].H, M = cases[c].M, V = cases[c].V;
                const DType t = types[k], tg = g ? BF16 : REAL;
                const double tolerance = tolerance_of(t);
                Tensor x = drawn(t, "x", shape(R, H), 1), branch = drawn(t, "branch", shape(R, H), 1);
                Tensor add = drawn(t, "add", shape(H), 1), w = drawn(t, "w", shape(H), 1),
                       b = drawn(t, "b", shape(H), 1);
                Tensor sum = zeroed(t, "sum", shape(R, H)), out = zeroed(t, "out", shape(R, H));
                Tensor want_sum = zeroed(t, "sum", shape(R, H)), want = zeroed(t, "out", shape(R, H));
                Tensor stats = zeroed(REAL, "stats", shape(R, 2)), want_stats = zeroed(REAL, "stats", shape(R, 2));
                residual_layernorm_forward(sum, out, stats, x, branch, add, w, b);
                residual_forward(want_sum, x, branch, add);
                layernorm_forward(want, want_stats, want_sum, w, b);
                assert_same(sum, want_sum, tolerance);
                assert_same(out, want, tolerance);

                Tensor d[4], d_want[4];
                for (int i = 0; i < 2; i++) {
                    Tensor *to = i ? d_want : d;
                    to[0] = drawn(t, "d_sum", shape(R, H), 1), to[1] = drawn(tg, "d_branch_bias", shape(H), 1);
                    to[2] = drawn(tg, "d_weight", shape(H), 1), to[3] = drawn(tg, "d_bias", shape(H), 1);
                }
                residual_layernorm_backward(d[0], d[1], d[2], d[3], branch, want_sum, want_stats, w);
                layernorm_backward(d_want[0], d_want[2], d_want[3], branch, want_sum, want_stats, w);
                residual_backward(d_want[1], d_want[0]);
                for (int i = 0; i < 4; i++)
                    assert_same(d[i], d_want[i], tolerance);

                Tensor weight = drawn(t, "weight", shape(M, H), 0.3), bias = drawn(t, "bias", shape(M), 1);
                Tensor down = drawn(t, "down", shape(H, M), 0.3);
                Tensor up = zeroed(t, "up", shape(R, M)), gelu = zeroed(t, "gelu", shape(R, M));
                Tensor want_up = zeroed(t, "up", shape(R, M)), want_gelu = zeroed(t, "gelu", shape(R, M));
                linear_gelu_forward(gelu, up, x, weight, bias);
                linear_forward(want_up, x, weight, bias);
                gelu_forward(want_gelu, want_up);
                assert_same(up, want_up, tolerance);
                assert_same(gelu, want_gelu, tolerance);
                linear_gelu_backward(up, branch, down, want_up);
                linear_backward_input(gelu, branch, down);
                gelu_backward(gelu, gelu, want_up);
                assert_same(up, gelu, tolerance);

                Tensor logits = drawn(t, "logits", shape(R, V), 3), d_logits = drawn(t, "logits", shape(R, V), 3);
                Tensor loss = zeroed(F64, "loss", shape(1)), want_loss = zeroed(F64, "loss", shape(1));
                Tensor lse = zeroed(REAL, "lse", shape(R)), ids = zeroed(I32, "ids", shape(R));
                int32_t id[300];
                for (int i = 0; i < R; i++)
                    id[i] = i % 5 == 4 ? -1 : i * i % V;
                device_upload(ids.data, id, R * sizeof *id);
                cross_entropy_both(loss, logits, ids, 0.25, 3);
                cross_entropy_forward(want_loss, lse, d_logits, ids, 0.25);
                cross_entropy_backward(d_logits, d_logits, lse, ids, 3);
                assert_true(fabs(tensor_item(loss) - tensor_item(want_loss))
                            <= (sizeof(real) == 8 ? 1e-13 : 1e-5) * fabs(tensor_item(want_loss)));
                assert_same(logits, d_logits, tolerance);
                guarded_release();
            }
}

/* The copy has the bits that tensor_convert gives for the weights. The device clips gradients as the host does. If
 * their square sum is Inf or NaN, nothing is updated. */
static void adamw_clips_by_itself(void **state)
{
    enum { N = 10001 };
    static const struct { double sum, clip; } cases[] = {{4, 1}, {4, 2}, {4, 2.000001}, {4, 3}, {0, 1}, {4e200, 1},
                                                         {4, 0}, {INFINITY, 1}, {NAN, 1}, {INFINITY, 0}};
    AdamWArguments a = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                        .correction1 = 0.1, .correction2 = 0.05};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++) {
            Tensor g = drawn(REAL, "g", shape(N), 1), by_host[4], by_device[4];
            Tensor sum = zeroed(F64, "sum", shape(1)), scale = zeroed(F64, "scale", shape(1));
            for (int h = 0; h < 2; h++) {
                Tensor *t = h ? by_host : by_device;
                t[0] = drawn(REAL, "w", shape(N), 1), t[1] = drawn(types[k], "copy", shape(N), 1);
                t[2] = drawn(REAL, "m", shape(N), 1), t[3] = zeroed(REAL, "v", shape(N));
                tensor_fill(t[3], 0.3);
            }
            device_upload(sum.data, &cases[i].sum, sizeof cases[i].sum);
            clip_scale_into(scale, sum, cases[i].clip);
            a.scale = scale, a.gradient_scale = 7;                      /* ignored if a.scale is set */
            adamw_update(by_device[0], by_device[1], by_device[2], by_device[3], g, a);
            options.clip = cases[i].clip;
            a.scale = NONE, a.gradient_scale = clip_scale(sqrt(cases[i].sum));
            if (isfinite(cases[i].sum))
                adamw_update(by_host[0], by_host[1], by_host[2], by_host[3], g, a);
            for (int j = 0; j < 4; j++)
                assert_memory_equal(by_host[j].data, by_device[j].data, tensor_bytes(by_host[j]));
            const Tensor converted = zeroed(types[k], "converted", shape(N));
            tensor_convert(converted, by_device[0]);
            if (isfinite(cases[i].sum))
                assert_memory_equal(by_device[1].data, converted.data, tensor_bytes(converted));
            guarded_release();
        }
}

/* ---- The program ---- */

#define SHAPE "--layers 3 --hidden 48 --heads 6 --vocab 97 --seq 70 --lr 1e-3 --quiet --threads 1"

static void compare_runs(const char *fused, const char *base, double tolerance, double of_losses)
{
    double a[10], b[10];
    char worst[128] = "";

    result_free(run("rm -f a.st b.st a.csv b.csv"));
    run_well("%s --data %s --micro-batch 4 --accumulate 2 --steps 10 --dump-gradients a.st --metrics a.csv", fused,
             token_file(20000, 97));
    run_well("%s --data %s --micro-batch 4 --accumulate 2 --steps 10 --dump-gradients b.st --metrics b.csv", base,
             token_file(20000, 97));
    const double d = compare_gradients("a.st", "b.st", 6, worst);
    if (!(d <= tolerance))
        fail_msg("%s: %s is %g from \"%s\"", fused, worst, d, base);
    assert_int_equal(read_column("a.csv", "loss", a, 10), 10);
    assert_int_equal(read_column("b.csv", "loss", b, 10), 10);
    for (int i = 0; i < 10; i++)
        assert_true(fabs(a[i] - b[i]) <= of_losses * b[i]);
}

/* 08's device clips the update, and skips it if fp16 overflows; 02's host does. Both give the same weights. The loss
 * scale doubles after every clean step, so it overflows repeatedly. The other cases clip little or nothing. */
static void the_update_needs_no_host(void **state)
{
    static const char *const cases[] = {"--dtype fp16 --loss-scale 1048576 --loss-scale-growth 1",
                                        "--dtype bf16 --clip 3",
                                        "--dtype bf16 --gradients bf16 --clip 0 --master none"};
    double norm[30];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int steps = 30;
        run_well(FUSED " " SHAPE " --fuse adamw %s --data %s --steps 30 --save a --metrics a.csv", cases[i],
                 token_file(20000, 97));
        run_well(MIXED " " SHAPE " %s --data %s --steps 30 --save b", cases[i], token_file(20000, 97));
        run_well("cmp a/model.safetensors b/model.safetensors");
        run_well("cmp a/optimizer.safetensors b/optimizer.safetensors");
        assert_int_equal(read_column("a.csv", "grad_norm", norm, 30), 30);
        for (int s = 0; s < 30; s++)
            steps -= !isfinite(norm[s]);
        assert_true(i ? steps == 30 : steps > 5 && steps < 28);
        assert_true(json_number("a/trainer.json", "optimizer_step") == steps);
        run_well("rm -r a b");
    }
}

/* Without fusion, 08 gives 02's numbers bit for bit. */
static void programs_agree(void **state)
{
    char worst[128] = "";

    compare_runs(FUSED " " SHAPE " --fuse none", MIXED " " SHAPE, 0, 0);
    compare_runs(FUSED " " SHAPE " --fuse none --dtype fp16 --recompute full", MIXED " " SHAPE " --dtype fp16", 0, 0);
    compare_runs(FUSED " " SHAPE " --fuse cross-entropy --dtype fp16", MIXED " " SHAPE " --dtype fp16", 1e-2, 1e-3);
    /* compared with float64, as 02 is: fp8 may turn a difference in the last bit into one of 1/8 */
    run_well(FUSED " --layers 3 --hidden 48 --heads 3 --seq 64 --dtype fp8 --steps 1 --quiet --threads 1 "
             "--dump-gradients a.st");
    run_well(SINGLE64 " --layers 3 --hidden 48 --heads 3 --seq 64 --steps 1 --quiet --threads 1 --dump-gradients b.st");
    const double d = compare_gradients_by_norm("a.st", "b.st", 3, worst);
    if (!(d <= 0.25))
        fail_msg("fp8: %s is %g from float64's, by its norm", worst, d);
}

static void samples_are_the_base(void **state)
{
    const char *options = "--steps 4 --sample 40 --micro-batch 8";

    Result a = run(FUSED64 " " SHAPE " --data %s --dtype fp32 %s", token_file(20000, 97), options);
    Result b = run(SINGLE64 " " SHAPE " --data %s %s", token_file(20000, 97), options);
    assert_true(a.status == 0 && b.status == 0 && strlen(a.out) > 40);
    assert_string_equal(a.out, b.out);
    result_free(a);
    result_free(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_chain),
        cmocka_unit_test(attention_of_extremes),
        cmocka_unit_test(attention_by_chunks_is_the_chain),
        cmocka_unit_test(the_others_are_their_chains),
        cmocka_unit_test(adamw_clips_by_itself),
        cmocka_unit_test(the_update_needs_no_host),
        cmocka_unit_test(programs_agree),
        cmocka_unit_test(samples_are_the_base),
    };

    comm_begin(&argc, &argv);
    device_init(0, 1, 0);
    comm_exit(cmocka_run_group_tests_name("08_fused_kernels", tests, NULL, NULL));
}
