/* 01 against Hugging Face's GPTNeoXForCausalLM: logits, loss and gradients of one batch, from a checkpoint of ours that
 * from_pretrained opened. What it computed is in tests/huggingface, with the script that had it computed.
 *
 * Started without arguments, this program runs the tests, one of which starts it again with the stage's options: then
 * it is the stage, for one forward pass.
 */
#include <stdio.h>
#include <string.h>

#include "../common/safetensors.h"
#include "single_gpu.h"     /* before cmocka, which has a fail() too */
#include "harness.h"

#define FIXTURE SOURCE "/tests/huggingface"
#define LOGITS FIXTURE "/expected_logits.safetensors"
#define SHAPE "--layers 3 --hidden 24 --heads 3 --vocab 97 --seq 33 --micro-batch 3 --accumulate 1 --quiet " \
    "--data " FIXTURE "/tokens.bin --load " FIXTURE "/checkpoint"
enum { STEPS = 100 };               /* that the checkpoint has been trained for */

/* A tensor of the file with what Hugging Face computed, as doubles. */
static void read_expected(const char *name, double *to, int64_t count)
{
    Safetensors file;
    char *wrong = safetensors_open(&file, LOGITS);
    const SafeTensor *t = wrong ? NULL : safetensors_find(&file, name);

    if (!wrong && (!t || t->bytes != count * (strcmp(t->dtype, "F64") ? 4 : 8)))
        fail_msg("%s: %s is not there or not of %lld elements", LOGITS, name, (long long)count);
    if (wrong || (wrong = safetensors_read(&file, t, 0, count, to, true)))
        fail_msg("%s", wrong);
    free(safetensors_close(&file, false));
}

/* As the stage: what its main does, up to the logits of the batch that its next step would take. */
static int compare_logits(int argc, char **argv)
{
    Batch batch = set_up("test_huggingface", "Compares logits with Hugging Face's.", argc, argv, (StageOption[]){{0}});

    batch_load(batch, first_step, 0, 0);
    loss_of(batch);

    const int64_t count = B * T * V;
    const real *logits = acts.logits.data;
    double *expected = malloc(count * sizeof *expected), error = 0, largest = 0;
    read_expected("logits", expected, count);
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(logits[i] - expected[i]) <= error))                  /* a NaN stays */
            error = fabs(logits[i] - expected[i]);
        largest = fmax(largest, fabs(expected[i]));
    }
    free(expected);
    printf("logits up to %g differ by up to %g\n", largest, error);
    return error <= 1e-6 * largest && largest > 1 ? 0 : 1;
}

static void logits_are_theirs(void **state)
{
    (void)state;
    run_well(BUILD "/cpu64/test_huggingface " SHAPE);
}

/* The batch is compared too: it is what the expected numbers are of. */
static void a_step_is_theirs(void **state)
{
    static const char *const programs[] = {BUILD "/cpu/01_single_gpu", BUILD "/cpu64/01_single_gpu"};
    static const double most[] = {1e-5, 1e-6};          /* theirs: float64, but with angles of rotation in float */
    double expected, loss[2];
    char worst[128] = "";

    (void)state;
    read_expected("loss", &expected, 1);
    for (int i = 0; i < 2; i++) {
        run_well("%s " SHAPE " --steps %d --dump-gradients %d.safetensors --metrics %d.csv", programs[i], STEPS + 1, i,
                 i);
        const double d = compare_gradients(in_temporary(i ? "1.safetensors" : "0.safetensors"),
                                           FIXTURE "/expected_gradients.safetensors", 3, worst);
        if (!(d <= most[i]))
            fail_msg("%s: %s differs by %g of its largest", programs[i], worst, d);
        assert_int_equal(read_column(in_temporary(i ? "1.csv" : "0.csv"), "loss", &loss[i], 1), 1);
        if (!(fabs(loss[i] - expected) <= most[i] * expected))
            fail_msg("%s: the loss is %.17g, and theirs %.17g", programs[i], loss[i], expected);
    }
}

/* So what from_pretrained was shown to open is what we write today. */
static void we_still_save_it_so(void **state)
{
    static const char *const files[] = {"model.safetensors", "config.json", "optimizer.safetensors"};

    (void)state;
    run_well(BUILD "/cpu/01_single_gpu " SHAPE " --steps %d --save again", STEPS);
    for (int i = 0; i < 3; i++)
        run_well("cmp again/%s " FIXTURE "/checkpoint/%s", files[i], files[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_theirs),
        cmocka_unit_test(a_step_is_theirs),
        cmocka_unit_test(we_still_save_it_so),
    };

    if (argc > 1)
        comm_exit(compare_logits(argc, argv));
    temporary();                        /* before the first child, which would make a directory of its own */
    return cmocka_run_group_tests_name("huggingface", tests, NULL, NULL);
}
