/* Invalid checkpoints, and weights that are NaN or Inf. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/safetensors.h"
#include "refusals.h"

/* ---- Invalid checkpoints ---- */

#define RESUME CPU " " SMALL " --load bad --save bad --report new.json --metrics new.csv --trace new.trace"

static const char *const checkpoint_files[] = {"model.safetensors", "config.json", "optimizer.safetensors",
                                               "trainer.json"};

/* Makes `bad`, a copy of the good checkpoint for a test to damage. Returns the path of bad/FILE, in one of harness.c's
 * buffers. */
static const char *spoil(const char *file)
{
    char name[64];

    run_well("rm -rf bad");
    run_well("cp -r good bad");
    snprintf(name, sizeof name, "bad/%s", file);
    return in_temporary(name);
}

/* Replaces the first `from`, which the file must have, by `to`. */
static void change(const char *path, const char *from, const char *to)
{
    size_t bytes;
    char *text = slurp(path, &bytes), *at = memmem(text, bytes, from, strlen(from));
    char *changed = malloc(bytes + strlen(to));

    if (!at)
        fail_msg("%s has no %s", path, from);
    const size_t before = at - text, after = bytes - before - strlen(from);
    memcpy(changed, text, before);
    memcpy(changed + before, to, strlen(to));
    memcpy(changed + before + strlen(to), at + strlen(from), after);
    spill(path, changed, before + strlen(to) + after);
    free(text);
    free(changed);
}

static void incomplete_checkpoints_are_refused(void **state)
{
    (void)state;
    fails(1, "--load missing|No such file", CPU " " SMALL " --load missing --save new --metrics new.csv");
    fails(1, "afile|Not a directory", CPU " " SMALL " --load afile --report new");
    fails(1, "adir/|No such file", CPU " " SMALL " --load adir --metrics old.csv");
    for (int f = 0; f < 4; f++) {
        const char *name = checkpoint_files[f];
        char words[128];
        snprintf(words, sizeof words, "bad/%s|No such file", name);
        run_well("rm %s", spoil(name));
        if (f >= 2)
            strcat(words, "|has both");
        fails(1, words, CPU " " SMALL " --load bad --report new.json --metrics new.csv --trace new.trace");
        fails(1, name, RESUME);                 /* --save would refuse it without its trainer.json */
        run_well("mkdir bad/%s", name);
        fails(1, name, RESUME);
        run_well("rmdir bad/%s", name);
        run_well("mkfifo bad/%s", name);
        fails(1, name, RESUME);
        run_well("rm bad/%s", name);
        run_well("ln -s /dev/zero bad/%s", name);
        fails(1, name, RESUME);
        run_well("rm bad/%s", name);

        size_t bytes;
        char *text = slurp(spoil(name), &bytes), path[256];
        snprintf(path, sizeof path, "%s/bad/%s", temporary(), name);
        const int points = full_tests() ? 200 : 20;
        snprintf(words, sizeof words, "bad/%s", name);
        for (int i = 0; i < points; i++) {
            /* lengths around the ends and the header's length field, and in between */
            static const size_t special[] = {0, 1, 7, 8, 9};
            const size_t length = i < 5 ? special[i] : i == 5 ? bytes - 1 : i == 6 ? bytes / 2
                                : (uint64_t)i * 2654435761u % bytes;
            spill(path, text, length);
            fails(1, words, RESUME);
        }
        free(text);
    }
}

static void other_models_are_refused(void **state)
{
    static const char *const shapes[] = {"--layers 2", "--hidden 32", "--heads 4", "--vocab 98"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        char words[256];
        snprintf(words, sizeof words, "--load good|--layers 1 --hidden 16 --heads 2 --vocab 97|but|%s", shapes[i]);
        fails(1, words, CPU " " SMALL " --load good %s --save new", shapes[i]);
    }
    fails(1, "--load good|--hidden 16|--hidden 32", CPU64 " " SMALL " --load good --hidden 32");

    /* config.json has the options' shape, the tensors have another */
    const char *config = spoil("config.json");
    change(config, "\"vocab_size\":\t97", "\"vocab_size\":\t98");
    fails(1, "bad/model.safetensors|embed|97|98", RESUME " --vocab 98");

    /* dtypes that the programs do not read, one of them wider than F32; a missing tensor */
    static const char *const dtypes[] = {"I32", "I64", "F32"};
    Safetensors good, bad;
    for (int way = 0; way < 3; way++) {
        const char *path = spoil("model.safetensors");
        char words[64];
        assert_null(safetensors_open(&good, in_temporary("good/model.safetensors")));
        for (int i = 0; i < good.count; i++)
            strcpy(good.tensors[i].dtype, dtypes[way]);
        safetensors_lay_out(&bad, path, good.tensors, good.count - (way == 2), good.checkpoint);
        assert_null(safetensors_create(&bad));
        assert_null(safetensors_close(&bad, false));
        free(safetensors_close(&good, false));
        snprintf(words, sizeof words, "bad/model.safetensors|%s", way == 2 ? "missing" : dtypes[way]);
        fails(1, words, RESUME);
    }
}

/* Each key that would make another model, under its name in every version of transformers. Tested in this project's
 * checkpoints and in models from elsewhere. */
static void configurations_of_other_models_are_refused(void **state)
{
#define KEY(name) "\"" name "\":\t"
    static const struct {
        const char *from, *to, *words;
    } changes[] = {
        {KEY("model_type") "\"gpt_neox\"", KEY("model_type") "\"llama\"", "\"model_type\" is \"llama\"|\"gpt_neox\""},
        {"\"gelu_pytorch_tanh\"", "\"gelu\"", "\"hidden_act\" is \"gelu\"|one of|\"gelu_pytorch_tanh\""},
        {"\"hidden_act\"", "\"x\"", "\"hidden_act\" is missing|means \"gelu\"|\"gelu_pytorch_tanh\""},
        {KEY("rotary_pct") "1", KEY("rotary_pct") "0.25", "\"rotary_pct\" is 0.25|must be 1"},
        {"\"rotary_pct\"", "\"x\"", "\"rotary_pct\" is missing|means 0.25|must be 1"},
        {KEY("rotary_pct") "1", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\" is 0.5|must be 1"},
        {KEY("rotary_pct") "1", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
         "\"rope_parameters.partial_rotary_factor\" is 0.5|must be 1"},
        {KEY("rotary_emb_base") "10000", KEY("rotary_emb_base") "500000", "\"rotary_emb_base\" is 500000|10000"},
        {KEY("rotary_emb_base") "10000", "\"rope_theta\": 500000", "\"rope_theta\" is 500000|10000"},
        {KEY("rotary_emb_base") "10000", "\"rope_parameters\": {\"rope_theta\": 1e6}",
         "\"rope_parameters.rope_theta\" is 1000000|10000"},
        {KEY("rotary_emb_base"), "\"rope_parameters\": {\"rope_type\": \"yarn\"}, \"rotary_emb_base\": ",
         "\"rope_parameters.rope_type\" is \"yarn\"|\"default\""},
        {KEY("rotary_emb_base"), "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rotary_emb_base\": ",
         "\"rope_scaling\" is {\"type\":\"linear\",\"factor\":2}|must be null"},
        {KEY("layer_norm_eps") "1e-05", KEY("layer_norm_eps") "1e-12", "\"layer_norm_eps\" is 1e-12|1e-5"},
        {KEY("use_parallel_residual") "false", KEY("use_parallel_residual") "true",
         "\"use_parallel_residual\" is true|must be false"},
        {"\"use_parallel_residual\"", "\"x\"", "\"use_parallel_residual\" is missing|means true|must be false"},
        {KEY("tie_word_embeddings") "true", KEY("tie_word_embeddings") "false",
         "\"tie_word_embeddings\" is false|must be true"},
        {"\"tie_word_embeddings\"", "\"x\"", "\"tie_word_embeddings\" is missing|means false|must be true"},
        {KEY("attention_bias") "true", KEY("attention_bias") "false", "\"attention_bias\" is false|must be true"},
        {KEY("intermediate_size") "64", KEY("intermediate_size") "48", "\"intermediate_size\" is 48|must be 64"},
        {"\"intermediate_size\"", "\"x\"", "\"intermediate_size\" is missing|means 24576|must be 64"},
    };
    static const struct {
        const char *from, *to;
    } same[] = {
        {"\"gelu_pytorch_tanh\"", "\"gelu_new\""},
        {"\"rotary_emb_base\"", "\"rope_scaling\": null, \"rope_theta\": 1e4, \"rotary_emb_base\""},
        {KEY("rotary_pct") "1", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4, "
         "\"partial_rotary_factor\": 1.0}"},
        {"\"rotary_emb_base\"", "\"x\""},                       /* missing: transformers uses 10000 */
        {"\"max_position_embeddings\":\t8", "\"max_position_embeddings\":\t2048"},
        {KEY("hidden_dropout") "0", KEY("hidden_dropout") "0.1"},
    };
#undef KEY

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        for (int foreign = 0; foreign < 2; foreign++) {
            char words[256];
            if (!full_tests() && foreign != (int)i % 2)
                continue;
            change(spoil("config.json"), changes[i].from, changes[i].to);
            if (foreign)
                run_well("rm bad/trainer.json bad/optimizer.safetensors");
            snprintf(words, sizeof words, "bad/config.json|%s", changes[i].words);
            fails(1, words, CPU " " SMALL " --load bad --report new.json --metrics new.csv");
        }
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        change(spoil("config.json"), same[i].from, same[i].to);
        run_well(CPU " " SMALL " --load bad");
    }
}

/* A checkpoint with one file of another run or step, or with an edited trainer.json. */
static void files_of_two_checkpoints_are_refused(void **state)
{
    static const char *const others[] = {"--seed 8 --steps 2", "--seed 7 --steps 1", "--seed 7 --steps 2 --lr 0.5",
                                         "--seed 7 --steps 2 --weight-decay 0.5", "--load good --steps 3"};
    static const char *const edits[][2] = {{"\"step\":\t2", "\"step\":\t1"}, {"\"tokens\":\t16", "\"tokens\":\t8"},
        {"\"optimizer_step\":\t2", "\"optimizer_step\":\t1"}, {"\"seed\":\t\"7\"", "\"seed\":\t\"8\""}};

    (void)state;
    run_well(CPU " " SHAPE " --pretend 1e6,1e6,0 --seed 7 --steps 2 --save again");
    run_well("diff -r -x trainer.json good again");             /* the same run: the same files */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        run_well(CPU " " SHAPE " --pretend 1e6,1e6,0 %s --save other", others[i]);
        for (int f = 0; f < 4; f++) {
            char words[128];
            snprintf(words, sizeof words, "bad/%s|bad/trainer.json|history|two checkpoints",
                     checkpoint_files[f == 3 ? 1 : f]);
            run_well("cp other/%s %s", checkpoint_files[f], spoil(checkpoint_files[f]));
            fails(1, words, CPU " " SMALL " --load bad --save new");
        }
        run_well(CPU " " SMALL " --load other");
        run_well("rm -r other");
    }
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        change(spoil("trainer.json"), edits[i][0], edits[i][1]);
        fails(1, "bad/trainer.json|two checkpoints", RESUME);
    }
    run_well("rm -r again bad");
}

static void hostile_headers_are_refused(void **state)
{
    static const struct {
        uint64_t length;                /* 0: the header's */
        const char *header, *words;
    } cases[] = {
        {1u << 30, "{}", "1073741824"},
        {UINT64_MAX, "{}", "18446744073709551615"},
        {(uint64_t)1 << 63, "{}", "9223372036854775808"},
        {0, "", "header"},
        {0, "[]", "header"},
        {0, "not JSON at all", "header"},
        {0, "{\"a\":", "JSON"},
        {0, "{} x", "header"},
        {0, "{\"a\":1}", "object"},
        {0, "{}", "last tensor ends"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", "overlap"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1000000],\"data_offsets\":[0,4000000]}}", "4000000"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", "shape"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,-4]}}", "-1"},
        {0, "{\"\\u001b[2J\\n\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", "F99"},
    };
    char bytes[1024];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f = 0; f < 4; f += 2) {
            const uint64_t n = strlen(cases[i].header), length = cases[i].length ? cases[i].length : n;
            char words[256];
            memset(bytes, 0, sizeof bytes);
            memcpy(bytes, &length, 8);
            memcpy(bytes + 8, cases[i].header, n);
            spill(spoil(checkpoint_files[f]), bytes, 8 + n + 100);
            snprintf(words, sizeof words, "bad/%s|%s", checkpoint_files[f], cases[i].words);
            fails(1, words, RESUME);
        }
}

static void garbage_in_json_is_refused(void **state)
{
    static const char *const garbage[] = {"", " ", "null", "12", "[]", "{", "{}", "\"x\"", "{\"step\":}",
                                          "garbage", "\xff\xfe"};
    static const struct {
        int file;
        const char *from, *to, *words;
    } changes[] = {
        {3, "\"step\":\t2", "\"step\":\t-1", "step|-1"},
        {3, "\"step\":\t2", "\"step\":\t1.5", "step|1.5"},
        {3, "\"step\":\t2", "\"step\":\t1e300", "step|1e+300"},
        {3, "\"step\":\t2", "\"step\":\t1000000001", "step|1000000001"},
        {3, "\"step\":\t2", "\"step\":\t\"2\"", "step"},
        {3, "\"step\":\t2", "\"step\":\tnull", "step"},
        {3, "\"step\":\t2", "\"stop\":\t2", "step"},
        {3, "\"tokens\":\t16", "\"tokens\":\t-16", "tokens|-16"},
        {3, "\"optimizer_step\":\t2", "\"optimizer_step\":\t-2", "optimizer_step|-2"},
        {3, "\"optimizer_step\":\t2", "\"x\":\t2", "optimizer_step"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t7", "seed"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"\"", "seed"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"-7\"", "seed|-7"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"7x\"", "seed|7x"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"18446744073709551616\"", "seed|18446744073709551616"},
        {3, "\"seed\":\t\"7\"", "\"sea\":\t\"7\"", "seed"},
        {3, "\"history\":\t\"", "\"history\":\t\"x", "history|hexadecimal"},
        {3, "\"history\"", "\"story\"", "history|missing"},
        {1, "\"hidden_size\":\t16", "\"hidden_size\":\t-16", "hidden_size|-16"},
        {1, "\"hidden_size\":\t16", "\"hidden_size\":\t\"16\"", "hidden_size"},
        {1, "\"hidden_size\":\t16", "\"hidden_size\":\t1e999", "hidden_size"},
        {1, "\"hidden_size\":\t16", "\"hidden\":\t16", "hidden_size"},
        {1, "\"num_hidden_layers\":\t1", "\"num_hidden_layers\":\t4611686018427387905", "num_hidden_layers"},
    };
    char words[256];

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        change(spoil(checkpoint_files[changes[i].file]), changes[i].from, changes[i].to);
        snprintf(words, sizeof words, "bad/%s|%s", checkpoint_files[changes[i].file], changes[i].words);
        fails(1, words, RESUME);
    }
    for (int f = 1; f < 4; f += 2) {
        snprintf(words, sizeof words, "bad/%s", checkpoint_files[f]);
        for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
            spill(spoil(checkpoint_files[f]), garbage[i], strlen(garbage[i]));
            fails(1, words, RESUME);
        }
        char *deep = memset(malloc(500000), '[', 500000);                /* a parser that recurses runs out of stack */
        spill(spoil(checkpoint_files[f]), deep, 500000);
        fails(1, words, RESUME);
        memcpy(deep, "{\"step\":", 8);
        spill(spoil(checkpoint_files[f]), deep, 500000);
        fails(1, words, RESUME);
        free(deep);
        run_well("truncate -s 3G %s", spoil(checkpoint_files[f]));
        run_well("truncate -s 2000000 %s", spoil(checkpoint_files[f]));
        fails(1, words, RESUME);
        run_well("sh -c 'echo x >> %s'", spoil(checkpoint_files[f]));   /* text after the object */
        fails(1, words, RESUME);
    }
}

/* ---- NaN and Inf ---- */

/* A weight that is NaN or Inf is found when it is read, even if no step follows. A weight so large that it leads to NaN
 * is found in the first step's loss. The checkpoint is not replaced. */
static void nan_stops_the_run(void **state)
{
    static const float values[] = {NAN, INFINITY, -INFINITY}, large = 3e38f;
    Safetensors good;

    (void)state;
    assert_null(safetensors_open(&good, in_temporary("good/model.safetensors")));
    for (int i = 0; i < good.count; i++)
        for (int v = 0; v < 3; v++) {
            if (!full_tests() && v != i % 3)
                continue;
            FILE *f = fopen(spoil("model.safetensors"), "r+b");
            fseek(f, good.tensors[i].first_byte, SEEK_SET);
            fwrite(&values[v], sizeof *values, 1, f);
            fclose(f);
            fails(1, "bad/model.safetensors|at element 0", CPU " " SMALL " --load bad --save bad --report new.json "
                     "--trace new.trace");
        }
    fails(1, "bad/model.safetensors|at element 0", CPU64 " " SMALL " --steps 0 --load bad --sample 5");
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(spoil("model.safetensors"), "r+b");
        fseek(f, safetensors_find(&good, "gpt_neox.layers.0.input_layernorm.weight")->first_byte, SEEK_SET);
        fwrite(&large, sizeof large, 1, f);
        fclose(f);
        fails(1, "at step 3", "%s " SMALL " --load bad --save bad --report new.json --trace new.trace",
              i ? CPU " --save-every 1 --recompute full" : CPU);
    }
    free(safetensors_close(&good, false));

    /* Moments that are NaN would make the weights NaN after the last step's loss was computed. */
    assert_null(safetensors_open(&good, in_temporary("good/optimizer.safetensors")));
    for (int i = 0; i < good.count; i += good.count - 1) {
        FILE *f = fopen(spoil("optimizer.safetensors"), "r+b");
        fseek(f, good.tensors[i].first_byte, SEEK_SET);
        fwrite(values, sizeof *values, 1, f);
        fclose(f);
        fails(1, "nan", RESUME);
    }
    free(safetensors_close(&good, false));
}

static void a_blow_up_ends_clearly(void **state)
{
    (void)state;
    run_well("cp -r good before");
    run_well("cp -r good blown");
    Result r = run("timeout 15 " CPU " " SMALL " --lr 1e3 --clip 0 --weight-decay 1e3 --steps 60 --load blown "
                   "--save blown --report new.json");
    if (r.status) {
        assert_int_equal(r.status, 1);
        assert_one_line(r, "--lr 1e3 --clip 0");
        assert_words(r.err, "at step |--lr|checkpoint", "--lr 1e3 --clip 0");
        run_well("diff -r before blown");
        run_well("test ! -e new.json");
        run_well("test ! -e new.json.tmp");
    } else {
        run_well("rm new.json");
        run_well(CPU " " SMALL " --load blown --steps 60");
    }
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(incomplete_checkpoints_are_refused),
        TEST(other_models_are_refused),
        TEST(configurations_of_other_models_are_refused),
        TEST(files_of_two_checkpoints_are_refused),
        TEST(hostile_headers_are_refused),
        TEST(garbage_in_json_is_refused),
        TEST(nan_stops_the_run),
        TEST(a_blow_up_ends_clearly),
    };

    return cmocka_run_group_tests_name("checkpoints", tests, NULL, NULL);
}
