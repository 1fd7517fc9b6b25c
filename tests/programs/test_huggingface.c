/* The programs against Hugging Face's GPTNeoXForCausalLM: loss and gradients of one batch. Models are a checkpoint of
 * 01 that from_pretrained opened, and one that save_pretrained wrote. tests/programs/huggingface has Hugging Face's
 * results, and the script that computes them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/run/safetensors.h"
#include "../harness.h"

#define FIXTURE SOURCE "/tests/programs/huggingface"
#define MIXTURES SOURCE "/tests/programs/experts"
#define EXPECTED FIXTURE "/expected_logits.safetensors"
#define MODEL "--layers 3 --hidden 24 --heads 3 --vocab 97 --seq 33 --accumulate 1 --quiet " \
    "--data " FIXTURE "/tokens.bin"
#define SHAPE MODEL " --micro-batch 3 --load " FIXTURE "/checkpoint "
enum { STEPS = 100 };               /* the checkpoint's training steps */

/* Returns a number of Hugging Face's results. */
static double read_expected(const char *name)
{
    Safetensors file = safetensors_open(EXPECTED);
    const SafeTensor *t = safetensors_find(&file, name);
    double x;

    if (!t)
        fail_msg("%s: %s is missing", EXPECTED, name);
    safetensors_read(&file, t, 0, 1, &x);
    safetensors_close(&file);
    return x;
}

/* Loss and gradients of one step. compare_gradients also compares the batch. */
static void losses_and_gradients_agree(void **state)
{
    static const char *const programs[] = {BUILD "/cpu/01_single_gpu", BUILD "/cpu64/01_single_gpu"};
    static const double most[] = {1e-5, 1e-6};          /* Hugging Face: float64, but rotation angles in float */
    const double expected = read_expected("loss");
    double loss[2];
    char worst[128] = "";

    for (int i = 0; i < 2; i++) {
        run_well("%s " SHAPE " --steps %d --dump-gradients %d.safetensors --metrics %d.csv", programs[i], STEPS + 1, i,
                 i);
        const double d = compare_gradients(i ? "1.safetensors" : "0.safetensors",
                                           FIXTURE "/expected_gradients.safetensors", 3, worst);
        if (!(d <= most[i]))
            fail_msg("%s: %s differs by %g of its largest", programs[i], worst, d);
        assert_int_equal(read_column(i ? "1.csv" : "0.csv", "loss", &loss[i], 1), 1);
        if (!(fabs(loss[i] - expected) <= most[i] * expected))
            fail_msg("%s: the loss is %.17g, but Hugging Face's is %.17g", programs[i], loss[i], expected);
    }
}

/* 01 still writes the bytes of the checkpoint that from_pretrained opened. */
static void the_saved_checkpoint_is_the_fixtures(void **state)
{
    static const char *const files[] = {"model.safetensors", "config.json", "optimizer.safetensors"};

    run_well(BUILD "/cpu/01_single_gpu " SHAPE " --steps %d --save again", STEPS);
    for (int i = 0; i < 3; i++)
        run_well("cmp again/step-%d/%s " FIXTURE "/checkpoint/%s", STEPS, files[i], files[i]);
}

/* ---- A model that save_pretrained wrote, in every program ---- */

#define SAVED FIXTURE "/save_pretrained"
#define THEIRS SAVED "/F16"
#define THEIR_STEP FIXTURE "/expected_save_pretrained.safetensors"
#define THEIR_SHAPE "--layers 3 --hidden 20 --heads 5 --vocab 97 --seq 16 --data " FIXTURE "/tokens.bin"
#define ONE BUILD "/cpu64/01_single_gpu " THEIR_SHAPE " --seed 3 --micro-batch 3 --accumulate 2"

static const struct {
    int ranks;
    const char *program, *options;
} configurations[] = {
    {1, "01_single_gpu", "--micro-batch 3 --accumulate 2"},
    {1, "02_mixed_precision", "--micro-batch 6 --accumulate 1 --dtype fp32"},
    {2, "03_data_parallel", "--micro-batch 3 --accumulate 1"},
    {3, "04_zero", "--micro-batch 1 --accumulate 2 --zero 3"},
    {5, "05_tensor_parallel", "--micro-batch 3 --accumulate 2"},
    {2, "06_pipeline_parallel", "--micro-batch 1 --accumulate 6"},
    {2, "07_context_parallel", "--micro-batch 2 --accumulate 3"},
    {1, "08_fused_kernels", "--micro-batch 3 --accumulate 2 --dtype fp32 --fuse all"},
    {8, "09_combined", "--micro-batch 1 --accumulate 3 --dtype fp32 --cp 2 --pp 2"},
};

/* Loads a model from a file of F16, or from several. Hugging Face's loss and gradients are in float64, with angles in
 * double. */
static void models_of_save_pretrained_load(void **state)
{
    const double expected = read_expected("their_loss");
    double loss;
    char worst[128] = "";

    for (size_t i = 0; i < sizeof configurations / sizeof *configurations; i++) {
        run_well("mpiexec -n %d " BUILD "/cpu64/%s " THEIR_SHAPE " --quiet --seed 3 %s --load " SAVED
                 "%s --steps 1 --dump-gradients g.safetensors --metrics m.csv", configurations[i].ranks,
                 configurations[i].program, configurations[i].options, i % 2 ? "/sharded" : "/F16");
        const double error = compare_gradients("g.safetensors", THEIR_STEP, 5, worst);
        assert_int_equal(read_column("m.csv", "loss", &loss, 1), 1);
        if (!(error <= 1e-6) || !(fabs(loss - expected) <= 1e-10 * expected))
            fail_msg("%s on %d ranks: %s differs by %g of its largest, the loss is %.17g, and Hugging Face's %.17g",
                     configurations[i].program, configurations[i].ranks, worst, error, loss, expected);
        run_well("rm m.csv");
    }
}

/* Such a model starts at step 0, with the run's seed and zero moments. A run that continues at once has the losses of a
 * run that resumes from 01's checkpoint of it. */
static void it_is_a_model_at_step_0(void **state)
{
    enum { STEPS_AFTER = 4 };
    double at_once[STEPS_AFTER], later[STEPS_AFTER];

    expect(run(ONE " --load " THEIRS " --steps %d --metrics at_once.csv", STEPS_AFTER), 0,
           "starting from the weights of " THEIRS " at step 0");
    run_well(ONE " --load " THEIRS " --steps 0 --save begun");
    assert_true(json_number("begun/step-0/trainer.json", "step") == 0);
    assert_true(json_number("begun/step-0/trainer.json", "optimizer_step") == 0);
    run_well("mpiexec -n 2 " BUILD "/cpu64/06_pipeline_parallel " THEIR_SHAPE " --seed 4 --micro-batch 1 "
             "--accumulate 6 --load begun --steps %d --metrics later.csv", STEPS_AFTER);
    assert_int_equal(read_column("at_once.csv", "loss", at_once, STEPS_AFTER), STEPS_AFTER);
    assert_int_equal(read_column("later.csv", "loss", later, STEPS_AFTER), STEPS_AFTER);
    for (int i = 0; i < STEPS_AFTER; i++)
        if (!(fabs(at_once[i] - later[i]) <= 1e-9 * at_once[i]))
            fail_msg("step %d: the loss is %.17g, but %.17g after a checkpoint", i + 1, at_once[i], later[i]);
}

/* Weights alone are a model, whose optimizer starts anew. --save leaves a model from elsewhere as it is. */
static void a_model_from_elsewhere_stays(void **state)
{
    run_well(ONE " --load " THEIRS " --steps 1 --save ours");
    run_well("rm ours/step-1/trainer.json ours/step-1/optimizer.safetensors");
    run_well(ONE " --load ours/step-1 --steps 1");
    run_well("cp -r " THEIRS " before");
    run_well(ONE " --load before --save before --steps 1");
    run_well("sh -c 'for f in " THEIRS "/*; do cmp $f before/${f##*/} || exit; done'");
    expect(run(ONE " --load before --steps 2"), 0, "resuming from before at step 1");
}

/* 10 has the loss, balance loss, dropped choices and gradients of Hugging Face's model with mixtures of experts
 * (experts/), with few slots per sequence or span, with enough, and with one for each token. */
static void mixtures_of_experts_agree(void **state)
{
    static const struct {
        int number, ranks;              /* the case of expected.csv, which has four sequences */
        const char *options;
    } runs[] = {{0, 1, "--ep 1"}, {0, 4, "--ep 2"}, {1, 2, "--ep 2 --recompute full"}, {2, 4, "--ep 4"},
                {3, 4, "--ep 2"}};
    static const char *const columns[] = {"loss", "balance_loss", "dropped"};
    char options[256], worst[128] = "";
    double expected[3], found;

    (void)state;
    for (int k = 0; k < 5; k++) {
        const int number = runs[k].number, ranks = runs[k].ranks;
        FILE *f = fopen(MIXTURES "/expected.csv", "r");
        for (int i = 0; i <= number; i++)
            assert_int_equal(fscanf(f, i ? " %255[^,],%lf,%lf,%lf" : "%*[^\n] %255[^,],%lf,%lf,%lf", options, expected,
                                    expected + 1, expected + 2), 4);
        fclose(f);
        run_well("rm -rf mixture m.csv");
        run_well("cp -r " MIXTURES " mixture");
        run_well("sed -i 's/\"num_experts_per_tok\": 2/\"num_experts_per_tok\": %d/' mixture/config.json",
                 atoi(strstr(options, "--top-k ") + 8));
        run_well("mpiexec -n %d " BUILD "/cpu64/10_expert_parallel %s %s --micro-batch %d --data mixture/tokens.bin "
                 "--load mixture --steps 1 --threads 1 --check --dump-gradients g.safetensors --metrics m.csv", ranks,
                 runs[k].options, options, 4 / ranks);
        for (int i = 0; i < 3; i++) {
            read_column("m.csv", columns[i], &found, 1);
            if (!(fabs(found - expected[i]) <= 1e-10 * fabs(expected[i])))
                fail_msg("case %d, %d ranks: %s is %.12g, not %.12g", number, ranks, columns[i], found, expected[i]);
        }
        snprintf(options, sizeof options, MIXTURES "/expected_%d.safetensors", number);
        if (!(compare_gradients("g.safetensors", options, 3, worst) <= 1e-10))
            fail_msg("case %d, %d ranks: %s differs", number, ranks, worst);
    }
}

/* Writes the fixture's weights to dense/, and a mixture of them to copies/: each expert is a copy of the MLP, each
 * router the embedding's first rows. */
static void write_copies(void)
{
    enum { LAYERS = 3, EXPERTS = 4, MOST = 100 };
    static SafeTensor to[MOST];
    const SafeTensor *from[MOST];
    int count = 0;

    run_well("mkdir dense copies");
    run_well("cp " FIXTURE "/checkpoint/config.json " FIXTURE "/checkpoint/model.safetensors dense");
    run_well("cp dense/config.json copies");
    run_well("sed -i 's/gpt_neox\"/gpt_neox_moe\", \"num_local_experts\": %d, \"num_experts_per_tok\": 2/' "
             "copies/config.json", EXPERTS);
    Safetensors dense = safetensors_open(in_temporary("dense/model.safetensors"));
    for (const SafeTensor *t = dense.tensors; t < dense.tensors + dense.count; t++) {
        const char *mlp = strstr(t->name, "mlp.");
        for (int e = 0; e < (mlp ? EXPERTS : 1); e++) {
            from[count] = t, to[count] = *t;
            if (mlp)
                sprintf(to[count].name, "%.*smlp.experts.%d.%s", (int)(mlp - t->name), t->name, e, mlp + 4);
            count++;
        }
    }
    for (int l = 0; l < LAYERS; l++, count++) {
        from[count] = safetensors_find(&dense, "gpt_neox.embed_in.weight"), to[count] = *from[count];
        to[count].shape[0] = EXPERTS;
        sprintf(to[count].name, "gpt_neox.layers.%d.mlp.gate.weight", l);
    }
    Safetensors copies = safetensors_create(in_temporary("copies/model.safetensors"), to, count);
    for (int i = 0; i < count; i++) {
        const int64_t elements = copies.tensors[i].bytes / sizeof(float);
        float numbers[elements];
        assert_int_equal(pread(dense.file->descriptor, numbers, sizeof numbers, from[i]->first_byte), sizeof numbers);
        safetensors_write(&copies, &copies.tensors[i], 0, elements, numbers);
    }
    safetensors_close(&copies);
    safetensors_close(&dense);
}

/* With a copy of the MLP as each expert, and nothing dropped, 10 and 11 compute what 01 does: the loss, and the
 * embedding's gradient, to which all others lead. In bf16 only such a mixture can be compared, because others choose
 * other experts; the limit is that of verify's cases. */
static void copies_of_an_mlp_are_the_mlp(void **state)
{
    enum { VOCAB = 97, HIDDEN = 24, COUNT = VOCAB * HIDDEN };
    static const struct {
        const char *program;
        double most;
    } runs[] = {{"01_single_gpu", 0}, {"10_expert_parallel --micro-batch 1 --ep 1", 1e-12},
                {"11_five_dimensions --dtype fp32 --micro-batch 1 --ep 1", 1e-12},
                {"11_five_dimensions --dtype bf16 --tp 3 --micro-batch 3 --ep 1", 0.04}};
    static double loss[4], found[4][COUNT];

    write_copies();
    for (int i = 0; i < 4; i++) {
        run_well("mpiexec -n %d " BUILD "/cpu64/%s " MODEL " --steps 1 --dump-gradients copy%d --metrics copy%d.csv %s",
                 i ? 3 : 1, runs[i].program, i, i,
                 i ? "--load copies --experts 4 --expert-width 96 --capacity 0 --balance 0"
                 : "--load dense --micro-batch 3");
        double error = 0, square = 0;
        Safetensors file = safetensors_open(in_temporary("copy%d", i));
        safetensors_read(&file, safetensors_find(&file, "gpt_neox.embed_in.weight"), 0, COUNT, found[i]);
        safetensors_close(&file);
        assert_int_equal(read_column(in_temporary("copy%d.csv", i), "loss", &loss[i], 1), 1);
        for (int k = 0; k < COUNT; k++)
            error += pow(found[i][k] - found[0][k], 2), square += pow(found[0][k], 2);
        if (!(fabs(loss[i] - loss[0]) <= runs[i].most * loss[0]) || !(sqrt(error / square) <= runs[i].most))
            fail_msg("%s: the loss is %.17g, and %.17g of 01; the embedding's gradient is off by %.2g", runs[i].program,
                     loss[i], loss[0], sqrt(error / square));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_agree),
        cmocka_unit_test(the_saved_checkpoint_is_the_fixtures),
        cmocka_unit_test(models_of_save_pretrained_load),
        cmocka_unit_test(it_is_a_model_at_step_0),
        cmocka_unit_test(a_model_from_elsewhere_stays),
        cmocka_unit_test(mixtures_of_experts_agree),
        cmocka_unit_test(copies_of_an_mlp_are_the_mlp),
    };

    return cmocka_run_group_tests_name("huggingface", tests, NULL, NULL);
}
