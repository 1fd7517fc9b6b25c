#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../error.h"
#include "../print.h"

void json_write(const char *path, cJSON *json)
{
    char *text = cJSON_Print(json);
    FILE *f = fopen(path, "w");

    if (!text)
        fail("not enough memory on the host for %s", path);
    if (!f || fputs(text, f) < 0 || fflush(f) || fsync(fileno(f)) || fclose(f))
        fail("%s could not be written: %s", path, strerror(errno));
    free(text);
    cJSON_Delete(json);
}

cJSON *json_read(OpenFile from)
{
    enum { LIMIT = 1 << 24 };
    const char *path = from.path;
    struct stat s;

    if (from.file < 0 || fstat(from.file, &s))
        fail("%s: %s", path, strerror(from.file < 0 ? -from.file : errno));
    if (!S_ISREG(s.st_mode) || s.st_size > LIMIT)
        fail("%s: expected a JSON file of at most %d bytes, but this is %s", path, LIMIT,
             S_ISREG(s.st_mode) ? bytes_text(s.st_size) : "not a regular file");
    char *text = host_alloc(s.st_size, path);
    if (pread(from.file, text, s.st_size, 0) != s.st_size)
        fail("%s could not be read", path);
    close(from.file);
    cJSON *json = cJSON_ParseWithLengthOpts(text, s.st_size + 1, NULL, true);
    if (!cJSON_IsObject(json) || (off_t)strlen(text) != s.st_size)
        fail("%s: not a JSON object", path);
    free(text);
    return json;
}

/* Returns an item as text ("12", "missing"), for messages. Not freed: a message ends the program. */
static const char *item_text(const cJSON *item)
{
    return item ? cJSON_PrintUnformatted(item) : "missing";
}

static int64_t json_integer(const cJSON *json, const char *path, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53
        || item->valuedouble != (double)(int64_t)item->valuedouble)
        fail("%s: \"%s\": expected an integer from 0 to 2^53, got %s", path, name, item_text(item));
    return item->valuedouble;
}

/* Reads an integer in quotes: to most readers a JSON number is a double. */
static uint64_t json_quoted(const cJSON *json, const char *path, const char *name, int base)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    uint64_t n = 0;
    char *end = "?";

    errno = 0;
    if (cJSON_IsString(item) && strspn(item->valuestring, base == 16 ? "0123456789abcdef" : "0123456789"))
        n = strtoull(item->valuestring, &end, base);
    if (*end || errno)
        fail("%s: \"%s\": expected an integer from 0 to 2^64 - 1, %sin quotes, got %s", path, name,
             base == 16 ? "in hexadecimal and " : "", item_text(item));
    return n;
}

/* ---- config.json ---- */

cJSON *config_json(Config c, const char *checkpoint)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddItemToArray(cJSON_AddArrayToObject(json, "architectures"), cJSON_CreateString("GPTNeoXForCausalLM"));
    cJSON_AddStringToObject(json, "model_type", "gpt_neox");
    cJSON_AddNumberToObject(json, "vocab_size", c.vocab);
    cJSON_AddNumberToObject(json, "hidden_size", c.hidden);
    cJSON_AddNumberToObject(json, "num_hidden_layers", c.layers);
    cJSON_AddNumberToObject(json, "num_attention_heads", c.heads);
    cJSON_AddNumberToObject(json, "intermediate_size", 4 * c.hidden);
    cJSON_AddNumberToObject(json, "max_position_embeddings", c.seq);
    cJSON_AddStringToObject(json, "hidden_act", "gelu_pytorch_tanh");
    cJSON_AddNumberToObject(json, "rotary_pct", 1.0);
    cJSON_AddNumberToObject(json, "rotary_emb_base", 10000);
    cJSON_AddNumberToObject(json, "layer_norm_eps", 1e-5);
    cJSON_AddNumberToObject(json, "initializer_range", 0.02);
    cJSON_AddFalseToObject(json, "use_parallel_residual");
    cJSON_AddTrueToObject(json, "tie_word_embeddings");
    cJSON_AddTrueToObject(json, "attention_bias");
    cJSON_AddNumberToObject(json, "attention_dropout", 0);
    cJSON_AddNumberToObject(json, "hidden_dropout", 0);
    cJSON_AddNumberToObject(json, "bos_token_id", 0);
    cJSON_AddNumberToObject(json, "eos_token_id", 0);
    cJSON_AddStringToObject(json, "torch_dtype", REAL == F64 ? "float64" : "float32");
    cJSON_AddStringToObject(json, "checkpoint", checkpoint);
    return json;
}

/* The value, as JSON, that a key of config.json must have. Hugging Face has renamed some keys: `keys` lists all names,
 * separated by |, with a dot before a key of an object. Every name that is present is checked; if none is,
 * GPTNeoXConfig uses `standard`. */
typedef struct {
    const char *keys, *ours, *standard;
} ModelKey;

/* Keys that are not listed do not change what the model computes: dropout affects only training, which has none here,
 * and max_position_embeddings does not limit rotary positions. */
static const ModelKey model_keys[] = {
    {"model_type", "\"gpt_neox\"", "\"gpt_neox\""},
    /* three names for GELU's tanh form */
    {"hidden_act", "[\"gelu_pytorch_tanh\", \"gelu_new\", \"gelu_fast\"]", "\"gelu\""},
    {"use_parallel_residual", "false", "true"},
    {"tie_word_embeddings", "true", "false"},
    {"attention_bias", "true", "true"},
    {"layer_norm_eps", "1e-5", "1e-5"},
    {"rotary_pct|partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", "0.25"},
    {"rotary_emb_base|rope_theta|rope_parameters.rope_theta", "10000", "10000"},
    {"rope_parameters.rope_type", "\"default\"", "\"default\""},
    {"rope_scaling", "null", "null"},
};

/* Returns the value of key "a" or "a.b"; NULL: missing, or null, which means the same. */
static const cJSON *find(const cJSON *json, const char *key)
{
    const char *dot = strchr(key, '.');
    char outer[64];

    if (dot) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        json = cJSON_GetObjectItemCaseSensitive(json, outer);
        key = dot + 1;
    }
    json = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNull(json) ? NULL : json;
}

static bool is_one_of(const cJSON *value, const cJSON *list)
{
    bool found = false;

    for (const cJSON *item = cJSON_IsArray(list) ? list->child : list; item && !found; item = item->next)
        found = cJSON_Compare(value, item, true);
    return found;
}

static void check_key(const cJSON *config, const char *path, ModelKey k)
{
    cJSON *ours = cJSON_Parse(k.ours), *standard = cJSON_Parse(k.standard);
    char keys[128], *rest = keys;
    bool there = false;

    snprintf(keys, sizeof keys, "%s", k.keys);
    for (char *key; (key = strsep(&rest, "|"));) {
        const cJSON *value = find(config, key);
        there |= value != NULL;
        if (value && !is_one_of(value, ours))
            fail("%s: \"%s\" is %s, but must be %s%s: that is what these programs compute", path, key,
                 cJSON_PrintUnformatted(value), cJSON_IsArray(ours) ? "one of " : "", k.ours);
    }
    if (!there && !is_one_of(standard, ours))
        fail("%s: \"%.*s\" is missing, which to Hugging Face means %s, but must be %s%s: that is what these programs "
             "compute", path, (int)strcspn(k.keys, "|"), k.keys, k.standard, cJSON_IsArray(ours) ? "one of " : "",
             k.ours);
    cJSON_Delete(ours);
    cJSON_Delete(standard);
}

void config_check(const cJSON *config, const char *path, Config c)
{
    for (size_t i = 0; i < sizeof model_keys / sizeof *model_keys; i++)
        check_key(config, path, model_keys[i]);
    const int64_t layers = json_integer(config, path, "num_hidden_layers");
    const int64_t hidden = json_integer(config, path, "hidden_size");
    const int64_t heads = json_integer(config, path, "num_attention_heads");
    const int64_t vocab = json_integer(config, path, "vocab_size");
    if (layers != c.layers || hidden != c.hidden || heads != c.heads || vocab != c.vocab)
        fail("--load %.*s: the model has --layers %lld --hidden %lld --heads %lld --vocab %lld, but this run --layers "
             "%d --hidden %d --heads %d --vocab %d", (int)(strrchr(path, '/') - path), path, (long long)layers,
             (long long)hidden, (long long)heads, (long long)vocab, c.layers, c.hidden, c.heads, c.vocab);
    char width[32];
    snprintf(width, sizeof width, "%lld", 4 * (long long)hidden);
    check_key(config, path, (ModelKey){"intermediate_size", width, "24576"});
}

/* ---- trainer.json ---- */

char *checkpoint_text(const TrainState *s)
{
    return new_text("step %lld, optimizer_step %lld, tokens %lld, seed %llu, history %016llx", (long long)s->step,
                    (long long)s->optimizer_step, (long long)s->tokens, (unsigned long long)s->seed,
                    (unsigned long long)s->history);
}

/* Adds an integer as raw text, because cJSON's numbers are doubles. */
static void add_integer(cJSON *json, const char *name, int64_t n)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)n);
    cJSON_AddRawToObject(json, name, text);
}

cJSON *trainer_json(const TrainState *s, int argc, char **argv)
{
    cJSON *json = cJSON_CreateObject(), *arguments;
    char text[32];

    add_integer(json, "step", s->step);
    add_integer(json, "tokens", s->tokens);
    add_integer(json, "optimizer_step", s->optimizer_step);
    snprintf(text, sizeof text, "%llu", (unsigned long long)s->seed);
    cJSON_AddStringToObject(json, "seed", text);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)s->history);
    cJSON_AddStringToObject(json, "history", text);
    for (const SavedValue *k = s->kept; k < s->kept + s->kept_count; k++)
        cJSON_AddNumberToObject(json, k->name, *k->value);
    arguments = cJSON_AddArrayToObject(json, "arguments");
    for (int i = 0; i < argc; i++)
        cJSON_AddItemToArray(arguments, cJSON_CreateString(argv[i]));
    return json;
}

void trainer_read(const cJSON *trainer, const char *path, TrainState *s)
{
    s->step = json_integer(trainer, path, "step");
    if (s->step > 1000000000)
        fail("%s: \"step\": expected at most 1000000000, got %lld", path, (long long)s->step);
    s->tokens = json_integer(trainer, path, "tokens");
    s->optimizer_step = json_integer(trainer, path, "optimizer_step");
    s->seed = json_quoted(trainer, path, "seed", 10);
    s->history = json_quoted(trainer, path, "history", 16);
}

void trainer_read_kept(const cJSON *trainer, const char *path, const TrainState *s)
{
    for (const SavedValue *k = s->kept; k < s->kept + s->kept_count; k++) {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(trainer, k->name);
        if (number && (!cJSON_IsNumber(number) || !(number->valuedouble >= 0) || !isfinite(number->valuedouble)))
            fail("%s: \"%s\": expected a number of at least 0, got %s", path, k->name, item_text(number));
        if (number)
            *k->value = number->valuedouble;
    }
}
