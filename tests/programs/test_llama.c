/* 12 against Hugging Face's LlamaForCausalLM in float64: loss and gradients of one step of models that save_pretrained
 * wrote, and what 12 makes of a config.json. tests/programs/llama has Hugging Face's results, and the script that
 * computes them.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/run/safetensors.h"
#include "../harness.h"

#define FIXTURE SOURCE "/tests/programs/llama"
#define BATCH " --vocab 97 --seq 17 --seed 3 --micro-batch 3 --accumulate 2 --threads 1 --quiet " \
    "--data " SOURCE "/tests/programs/huggingface/tokens.bin "
#define GROUPED "--layers 2 --hidden 36 --heads 6 --kv-heads 3 --mlp 37 --untied" BATCH
#define ONE "--layers 3 --hidden 16 --heads 4 --kv-heads 1 --mlp 29" BATCH
#define ALL "--layers 3 --hidden 12 --heads 3 --kv-heads 3 --mlp 20 --untied" BATCH
#define LLAMA BUILD "/cpu64/12_llama "

/* Ranks below, equal to and above the KV heads. */
static const struct {
    const char *model, *options;
    int ranks;
} cases[] = {
    {"grouped", GROUPED, 1},
    {"grouped", GROUPED "--sequence-parallel", 3},
    {"grouped", GROUPED "--recompute full", 6},
    {"one", ONE "--recompute selective", 1},
    {"one", ONE, 2},
    {"one", ONE, 4},
    {"all", ALL, 1},
    {"all", ALL "--sequence-parallel --recompute full", 3},
};

static double expected_loss(const char *model)
{
    double x;

    Safetensors file = safetensors_open(FIXTURE "/expected_losses.safetensors");
    safetensors_read(&file, safetensors_find(&file, model), 0, 1, &x);
    safetensors_close(&file);
    return x;
}

/* Compares loss and gradients of a step from the model in a directory with Hugging Face's. */
static void compare_step(const char *program, const char *options, const char *directory, const char *model,
                         double most)
{
    char worst[128] = "", file[256];
    double loss;

    run_well("rm -f m.csv");
    run_well("%s %s --load %s --steps 1 --check --dump-gradients g.safetensors --metrics m.csv", program, options,
             directory);
    snprintf(file, sizeof file, FIXTURE "/expected_%s.safetensors", model);
    const double error = compare_gradients("g.safetensors", file, 0, worst);
    assert_int_equal(read_column("m.csv", "loss", &loss, 1), 1);
    if (!(error <= most) || !(fabs(loss / expected_loss(model) - 1) <= most))
        fail_msg("%s %s: %s differs by %g of its largest, the loss is %.17g, and Hugging Face's %.17g", program,
                 options, worst, error, loss, expected_loss(model));
}

static void loss_and_gradients_agree(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char program[256], directory[256];
        snprintf(program, sizeof program, "mpiexec -n %d " LLAMA, cases[i].ranks);
        snprintf(directory, sizeof directory, FIXTURE "/%s", cases[i].model);
        compare_step(program, cases[i].options, directory, cases[i].model, 1e-12);
    }
    compare_step("mpiexec -n 3 " BUILD "/cpu/12_llama", GROUPED, FIXTURE "/grouped", "grouped", 1e-5);
}

/* What 12 saves is the same model: 12 loads it, and with all other numbers as well it resumes with the losses of a run
 * that was not interrupted. (make_fixture.py opens it with transformers.) */
static void what_it_saves_it_loads(void **state)
{
    double at_once[4], later[2];

    run_well(LLAMA GROUPED "--load " FIXTURE "/grouped --steps 0 --save begun");
    compare_step("mpiexec -n 6 " LLAMA, GROUPED, "begun", "grouped", 1e-12);
    run_well(LLAMA GROUPED "--load begun --steps 4 --metrics at_once.csv");
    run_well("mpiexec -n 6 " LLAMA GROUPED "--load begun --steps 2 --save half");
    run_well("mpiexec -n 3 " LLAMA GROUPED "--load half --steps 4 --metrics later.csv");
    assert_int_equal(read_column("at_once.csv", "loss", at_once, 4), 4);
    assert_int_equal(read_column("later.csv", "loss", later, 2), 2);
    for (int i = 0; i < 2; i++)
        if (!(fabs(later[i] / at_once[i + 2] - 1) <= 1e-10))
            fail_msg("step %d: the loss is %.17g, but %.17g without a checkpoint", i + 3, later[i], at_once[i + 2]);
    run_well(LLAMA ONE "--load " FIXTURE "/one --steps 0 --save tied");
    compare_step(LLAMA, ONE, "tied", "one", 1e-12);
}

/* ---- config.json ---- */

static cJSON *config;                           /* of grouped/, edited */

static void begin_config(void)
{
    char *text = read_file(FIXTURE "/grouped/config.json");

    run_well("rm -rf edited");
    run_well("cp -r " FIXTURE "/grouped edited");
    config = cJSON_Parse(text);
    free(text);
}

static void end_config(void)
{
    char *text = cJSON_Print(config);

    write_file("edited/config.json", text, strlen(text));
    free(text);
    cJSON_Delete(config);
}

static void set(const char *name, const char *json)     /* NULL: removes it */
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, name);
    if (json)
        cJSON_AddItemToObject(config, name, cJSON_Parse(json));
}

/* Transformers before version 5 wrote the rotation in other words. What a config lacks is LlamaConfig's default. */
static void older_words_are_read(void **state)
{
    begin_config();
    set("rope_parameters", NULL);
    set("rope_theta", "500000.0");
    set("rope_scaling", "{\"type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 1024}");
    set("head_dim", NULL);
    set("attention_bias", "null");
    set("mlp_bias", NULL);
    set("hidden_act", NULL);
    set("tie_word_embeddings", NULL);
    end_config();
    compare_step(LLAMA, GROUPED, "edited", "grouped", 1e-12);
    expect(run(LLAMA GROUPED "--rope-theta 10000 --load " FIXTURE "/grouped --steps 1"), FAILS,
           "\"rope_theta\" is 500000, but this run's model has 10000 by --rope-theta");
}

static void other_models_are_refused(void **state)
{
    static const struct {
        const char *name, *value, *words;
    } edits[] = {
        {"model_type", "\"qwen2\"", "\"model_type\" is \"qwen2\", but this run's model has \"llama\""},
        {"attention_bias", "true", "\"attention_bias\" is true, but this run's model has false"},
        {"mlp_bias", "true", "\"mlp_bias\" is true"},
        {"hidden_act", "\"gelu\"", "\"hidden_act\" is \"gelu\", but this run's model has \"silu\""},
        {"head_dim", "8", "\"head_dim\" is 8, but this run's model has 6"},
        {"num_key_value_heads", "6", "\"num_key_value_heads\" is 6, but this run's model has 3 by --kv-heads"},
        {"num_key_value_heads", NULL, "\"num_key_value_heads\" is 6, but this run's model has 3 by --kv-heads"},
        {"intermediate_size", "38", "\"intermediate_size\" is 38, but this run's model has 37 by --mlp"},
        {"tie_word_embeddings", "true", "\"tie_word_embeddings\" is true, but this run's model has false by --untied"},
        {"rms_norm_eps", "\"1e-5\"", "\"rms_norm_eps\": expected a number above 0, got \"1e-5\""},
        {"rope_parameters", "{\"rope_theta\": 10000, \"rope_type\": \"yarn\", \"factor\": 4}",
         "\"yarn\"|this program has none but \"default\" and \"llama3\""},
        {"rope_parameters", "{\"rope_theta\": 10000, \"rope_type\": \"llama3\", \"factor\": 8}",
         "\"low_freq_factor\": expected a number above 0, got nothing"},
        {"rope_parameters", "{\"rope_theta\": 0}", "\"rope_theta\": expected a number above 0, got 0"},
    };

    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        begin_config();
        set(edits[i].name, edits[i].value);
        end_config();
        expect(run("mpiexec -n 3 " LLAMA GROUPED "--load edited --steps 1"), FAILS, edits[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients_agree),
        cmocka_unit_test(what_it_saves_it_loads),
        cmocka_unit_test(older_words_are_read),
        cmocka_unit_test(other_models_are_refused),
    };

    return cmocka_run_group_tests_name("llama", tests, NULL, NULL);
}
