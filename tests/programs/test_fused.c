/* 08: FlashAttention against the chain of operators that it replaces, on ragged sizes. The program against 02: the same
 * numbers. (test_equivalence compares each fusion in double, and parity.c the CPU's with the GPU's.) */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../08_fused_kernels/fused.h"
#include "../../common/ultrascale.h"
#include "../harness.h"
#include "../tensors.h"

#define FUSED BUILD "/cpu/08_fused_kernels"
#define MIXED BUILD "/cpu/02_mixed_precision"
#define SINGLE64 BUILD "/cpu64/01_single_gpu"

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
            Tensor qkv = seeded(t, t, "qkv", shape(B, T, 3 * A * D), 1.5);
            Tensor d_out = seeded(t, t, "d_out", shape(B, T, A * D), 1);
            Tensor out = zeroed(t, "out", shape(B, T, A * D)), want = zeroed(t, "want", shape(B, T, A * D));
            Tensor probs = zeroed(t, "probs", shape(B, A, T, T)), d_probs = zeroed(t, "d_probs", shape(B, A, T, T));
            Tensor lse = zeroed(REAL, "lse", shape(B, A, T)), delta = zeroed(REAL, "delta", shape(B, A, T));
            Tensor d_qkv = seeded(t, t, "d_qkv", shape(B, T, 3 * A * D), 1);          /* overwritten */
            Tensor d_want = zeroed(t, "d_want", shape(B, T, 3 * A * D));
            Tensor parts = zeroed(REAL, "parts", shape(flash_parts(t, B, T, T, A, D)));
            attention_forward(want, probs, qkv);
            attention_backward(d_want, d_probs, d_out, qkv, probs);
            flash_attention_forward(out, lse, qkv);
            flash_attention_backward(d_qkv, delta, parts, d_out, qkv, out, lse);
            assert_near(out, numbers(want), tolerance_of(t));
            assert_near(d_qkv, numbers(d_want), tolerance_of(t));
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
 * scale doubles after every clean step, so it overflows repeatedly. The second case clips every step, the third none.
 */
static void the_update_needs_no_host(void **state)
{
    static const char *const cases[] = {"--dtype fp16 --loss-scale 1048576 --loss-scale-growth 1",
                                        "--dtype bf16 --clip 0.1",
                                        "--dtype bf16 --gradients bf16 --clip 0 --master none"};
    double norm[30];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int steps = 30;
        run_well(FUSED " " SHAPE " --fuse adamw %s --data %s --steps 30 --save a --metrics a.csv", cases[i],
                 token_file(20000, 97));
        run_well(MIXED " " SHAPE " %s --data %s --steps 30 --save b", cases[i], token_file(20000, 97));
        run_well("cmp a/step-30/model.safetensors b/step-30/model.safetensors");
        run_well("cmp a/step-30/optimizer.safetensors b/step-30/optimizer.safetensors");
        assert_int_equal(read_column("a.csv", "grad_norm", norm, 30), 30);
        for (int s = 0; s < 30; s++) {
            steps -= !isfinite(norm[s]);
            assert_true(i != 1 || norm[s] > 0.1);
        }
        assert_true(i ? steps == 30 : steps > 5 && steps < 28);
        assert_true(json_number("a/step-30/trainer.json", "optimizer_step") == steps);
        run_well("rm -r a b");
    }
}

/* Without fusion, 08 gives 02's numbers bit for bit; fused operators round less often. */
static void programs_agree(void **state)
{
    char worst[128] = "";

    compare_runs(FUSED " " SHAPE " --fuse none", MIXED " " SHAPE, 0, 0);
    compare_runs(FUSED " " SHAPE " --fuse none --dtype fp16 --recompute full", MIXED " " SHAPE " --dtype fp16", 0, 0);
    compare_runs(FUSED " " SHAPE " --fuse cross-entropy --dtype fp16", MIXED " " SHAPE " --dtype fp16", 1e-2, 1e-3);
    compare_runs(FUSED " " SHAPE " --fuse all", MIXED " " SHAPE, 3e-2, 2e-3);
    /* compared with float64, as 02 is: fp8 may turn a difference in the last bit into one of 1/8 */
    run_well(FUSED " --layers 3 --hidden 48 --heads 3 --seq 64 --dtype fp8 --steps 1 --quiet --threads 1 "
             "--dump-gradients a.st");
    run_well(SINGLE64 " --layers 3 --hidden 48 --heads 3 --seq 64 --steps 1 --quiet --threads 1 --dump-gradients b.st");
    const double d = compare_gradients_by_norm("a.st", "b.st", 3, worst);
    if (!(d <= 0.25))
        fail_msg("fp8: %s is %g from float64's, by its norm", worst, d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_chain),
        cmocka_unit_test(the_update_needs_no_host),
        cmocka_unit_test(programs_agree),
    };

    device_prepare(argv);               /* the kernels that the programs have */
    comm_begin(&argc, &argv);
    device_init(0);
    comm_exit(cmocka_run_group_tests_name("08_fused_kernels", tests, NULL, NULL));
}
