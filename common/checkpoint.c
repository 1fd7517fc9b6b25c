#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "data.h"
#include "error.h"
#include "formats.h"
#include "outputs.h"
#include "print.h"
#include "safetensors.h"

static const char *const files[] = {"model.safetensors", "config.json", "optimizer.safetensors", "trainer.json", NULL};
enum { MODEL, CONFIG, OPTIMIZER, TRAINER };

static const char *path_of(const char *place, int file)
{
    return format_text("%s/%s", place, files[file]);
}

/* ---- The full model's tensors, and this rank's segments of them ---- */

/* Appends an entry per parameter, named prefix + its name; returns the end. */
static SafeTensor *tensors_of(const Layout *layout, const char *prefix, SafeTensor *to)
{
    for (int i = 0; i < layout->parameters; i++, to++) {
        const ParamInfo *p = &layout->table[i];
        *to = (SafeTensor){.dims = p->vector ? 1 : 2, .shape = {p->rows, p->cols}};
        strcpy(to->dtype, dtype_name(REAL));
        snprintf(to->name, sizeof to->name, "%s%s", prefix, p->name);
    }
    return to;
}

typedef enum { PARAMS, GRADIENTS, MOMENT_M, MOMENT_V } Which;

static Tensor which_of(const ParamShard *shard, Which which)
{
    return (const Tensor[]){shard->params, shard->gradients, shard->m, shard->v}[which];
}

/* Writes the elements that this rank owns, of one of its shards' four tensors, to the file's entries from `first`
 * on. */
static void write_shards(const Safetensors *file, int first, const AdamW *optimizer, Which which)
{
    for (int i = 0; i < optimizer->count; i++) {
        const ParamShard *shard = &optimizer->shards[i];
        const Tensor t = which_of(shard, which);
        real *host = host_alloc(tensor_count(t) * sizeof *host, file->path);
        tensor_to_host(host, t);
        for (Segment s = {0}; layout_next(optimizer->layout, (Range){shard->first, tensor_count(t)}, &s);)
            if (s.param->owned)
                safetensors_write(file, &file->tensors[first + s.parameter], s.in_full, s.count, host + s.in_range);
        free(host);
    }
}

typedef struct {
    int count;
    Safetensors *file;
    cJSON *index;               /* {"weight_map": {NAME: FILE, ...}}; NULL: one file has all tensors */
} Files;

/* Returns the file in which a tensor should be: the one that the index names. NULL: none. */
static const Safetensors *file_of(const Files *from, const char *name)
{
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(from->index, "weight_map");
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(map, name);

    for (int i = 0; i < from->count; i++)
        if (!map || (entry && !strcmp(strrchr(from->file[i].path, '/') + 1, entry->valuestring)))
            return &from->file[i];
    return NULL;
}

/* Finds the parameter's tensor, named prefix + its name. upcycled: an expert has that of the MLP, "mlp.experts.5.x" is
 * "mlp.x"; a router has none: NULL. */
static const SafeTensor *find(const Files *from, const char *prefix, const ParamInfo *p, bool upcycled,
                              const Safetensors **in)
{
    const char *expert = upcycled ? strstr(p->name, "experts.") : NULL;
    char name[96];

    if (upcycled && strstr(p->name, "mlp.gate."))
        return NULL;
    snprintf(name, sizeof name, "%s%.*s%s", prefix, expert ? (int)(expert - p->name) : 0, p->name,
             expert ? strchr(expert + strlen("experts."), '.') + 1 : p->name);
    *in = file_of(from, name);
    const SafeTensor *t = *in ? safetensors_find(*in, name) : NULL;
    if (!t)
        fail("%s: expected a tensor %s, which is not %s", *in ? (*in)->path : from->file[0].path, name,
             *in ? "there" : "in the index's \"weight_map\"");
    if (t->dims != (p->vector ? 1 : 2) || t->shape[0] != p->rows || (!p->vector && t->shape[1] != p->cols)
        || !safetensors_is_float(t))
        fail("%s: %s has %d dimensions, the first %lld, of %s; expected (%lld, %lld) of F64, F32, F16 or BF16",
             (*in)->path, name, t->dims, (long long)t->shape[0], t->dtype, (long long)p->rows, (long long)p->cols);
    return t;
}

/* Reads one of the four tensors of each of this rank's shards. */
static void read_shards(const Files *from, const char *prefix, const AdamW *optimizer, Which which, bool upcycled)
{
    for (int i = 0; i < optimizer->count; i++) {
        const ParamShard *shard = &optimizer->shards[i];
        const Tensor t = which_of(shard, which);
        real *host = host_alloc(tensor_count(t) * sizeof *host, "a checkpoint");
        if (upcycled)
            tensor_to_host(host, t);                    /* what is not in the files stays */
        for (Segment s = {0}; layout_next(optimizer->layout, (Range){shard->first, tensor_count(t)}, &s);) {
            const Safetensors *file;
            const SafeTensor *tensor = find(from, prefix, s.param, upcycled, &file);
            real *x = host + s.in_range;
            if (!tensor)
                continue;
            safetensors_read(file, tensor, s.in_full, s.count, x, REAL == F64);
            for (int64_t k = 0; k < s.count; k++)
                if (!isfinite(x[k]) || (which == MOMENT_V && x[k] < 0))
                    fail("%s: %s has %g at element %lld, but a finite number%s is needed", file->path, tensor->name,
                         x[k], (long long)(s.in_full + k), which == MOMENT_V ? " of at least 0" : "");
        }
        tensor_from_host(t, host);
        free(host);
    }
}

/* Rank 0 creates the file; then all open it. */
static Safetensors create_shared(const char *path, const SafeTensor *tensors, int count)
{
    Safetensors file;

    if (comm_rank(world) == 0)
        file = safetensors_create(path, tensors, count, true);
    comm_barrier(world);
    if (comm_rank(world) != 0)
        file = safetensors_create(path, tensors, count, false);
    return file;
}

/* ---- JSON ---- */

static void json_write(const char *path, cJSON *json)
{
    char *text = cJSON_Print(json);
    FILE *f = fopen(path, "w");

    if (!f || fputs(text, f) < 0 || fflush(f) || fsync(fileno(f)) || fclose(f))
        fail("%s could not be written: %s", path, strerror(errno));
    free(text);
    cJSON_Delete(json);
}

static cJSON *json_read(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;

    if (!f)
        fail("%s: %s", path, strerror(errno));
    cJSON *json = getdelim(&text, &capacity, 0, f) > 0 ? cJSON_Parse(text) : NULL;
    if (!cJSON_IsObject(json))
        fail("%s: not a JSON object", path);
    safetensors_check_names(path, json);
    free(text);
    fclose(f);
    return json;
}

/* The configuration from which Hugging Face builds the same model; with experts, in Mixtral's words. */
static cJSON *config_json(Config c)
{
    cJSON *json = cJSON_Parse(format_text(
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"intermediate_size\": %d, "
        "\"max_position_embeddings\": %d, \"hidden_act\": \"gelu_pytorch_tanh\", \"rotary_pct\": 1.0, "
        "\"rotary_emb_base\": 10000, \"layer_norm_eps\": 1e-5, \"initializer_range\": 0.02, "
        "\"use_parallel_residual\": false, \"tie_word_embeddings\": true, \"attention_bias\": true, "
        "\"attention_dropout\": 0, \"hidden_dropout\": 0, \"bos_token_id\": 0, \"eos_token_id\": 0, "
        "\"torch_dtype\": \"%s\"}",
        c.experts ? "GPTNeoXMoeForCausalLM" : "GPTNeoXForCausalLM", c.experts ? "gpt_neox_moe" : "gpt_neox", c.vocab,
        c.hidden, c.layers, c.heads, c.experts ? c.expert_width : 4 * c.hidden, c.seq,
        REAL == F64 ? "float64" : "float32"));

    if (c.experts) {
        cJSON_AddNumberToObject(json, "num_local_experts", c.experts);
        cJSON_AddNumberToObject(json, "num_experts_per_tok", c.top_k);
    }
    return json;
}

/* The values, as JSON, that a key of config.json may have. Hugging Face has renamed some keys, and moved some into
 * "rope_parameters". Every name that is present is checked; if none is, GPTNeoXConfig uses `standard`. Other keys do not
 * change what the model computes: dropout affects only training, which has none here, and positions have no limit. */
static const struct {
    const char *key[2], *ours, *standard;
} config_keys[] = {
    {{"model_type"}, "\"gpt_neox\"|\"gpt_neox_moe\"", "\"gpt_neox\""},
    {{"hidden_act"}, "\"gelu_pytorch_tanh\"|\"gelu_new\"|\"gelu_fast\"", "\"gelu\""},         /* GELU's tanh form */
    {{"use_parallel_residual"}, "false", "true"},
    {{"tie_word_embeddings"}, "true", "false"},
    {{"attention_bias"}, "true", "true"},
    {{"layer_norm_eps"}, "1e-05", "1e-05"},
    {{"rotary_pct", "partial_rotary_factor"}, "1", "0.25"},
    {{"rotary_emb_base", "rope_theta"}, "10000", "10000"},
    {{"rope_type"}, "\"default\"", "\"default\""},
    {{"rope_scaling"}, "null", "null"},
};

/* Fails unless each name's value is `ours`, or one of its words in quotes. */
static void check_key(const cJSON *config, const char *path, const char *const key[2], const char *ours,
                      const char *standard)
{
    const cJSON *of_rope = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    bool there = false;

    for (int name = 0; name < 2 && key[name]; name++)
        for (int nested = 0; nested < 2; nested++) {
            const cJSON *value = cJSON_GetObjectItemCaseSensitive(nested ? of_rope : config, key[name]);
            if (!value || cJSON_IsNull(value))  /* null means missing */
                continue;
            char *is = cJSON_PrintUnformatted(value);
            there = true;
            if (strcmp(ours, is) && !(is[0] == '"' && strstr(ours, is)))
                fail("%s: \"%s\" is %s, but these programs compute %s", path, key[name], is, ours);
            free(is);
        }
    if (!there && strcmp(ours, standard))
        fail("%s: \"%s\" is missing (Hugging Face's default is %s); these programs compute %s", path, key[0], standard,
             ours);
}

static int64_t json_integer(const cJSON *json, const char *path, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53
        || item->valuedouble != floor(item->valuedouble))
        fail("%s: \"%s\": expected an integer from 0 to 2^53, got %s", path, name,
             item ? cJSON_PrintUnformatted(item) : "nothing");
    return item->valuedouble;
}

/* Returns whether the model has no experts, but the run has. */
static bool config_check(const char *path, Config c)
{
    cJSON *config = json_read(path);
    const bool mixture = cJSON_HasObjectItem(config, "num_local_experts");
    const int64_t experts = mixture ? json_integer(config, path, "num_local_experts") : 0;
    const int64_t top_k = mixture ? json_integer(config, path, "num_experts_per_tok") : 0;

    for (size_t i = 0; i < sizeof config_keys / sizeof *config_keys; i++)
        check_key(config, path, config_keys[i].key, config_keys[i].ours, config_keys[i].standard);
    const int64_t layers = json_integer(config, path, "num_hidden_layers");
    const int64_t hidden = json_integer(config, path, "hidden_size");
    const int64_t heads = json_integer(config, path, "num_attention_heads");
    const int64_t vocab = json_integer(config, path, "vocab_size");
    if (layers != c.layers || hidden != c.hidden || heads != c.heads || vocab != c.vocab)
        fail("%s: the model has --layers %lld --hidden %lld --heads %lld --vocab %lld, but this run --layers %d --hidden "
             "%d --heads %d --vocab %d", path, (long long)layers, (long long)hidden, (long long)heads, (long long)vocab,
             c.layers, c.hidden, c.heads, c.vocab);
    if (mixture && (experts != c.experts || top_k != c.top_k))
        fail("%s: a token takes %lld of %lld experts%s", path, (long long)top_k, (long long)experts, c.experts
             ? format_text(", but in this run %d of %d", c.top_k, c.experts) : ", but this program has none");
    if (!mixture && c.experts && c.expert_width != 4 * c.hidden)
        fail("%s: the model has no experts; to make each one a copy of its MLP, --expert-width must be %d, got %d",
             path, 4 * c.hidden, c.expert_width);
    check_key(config, path, (const char *[2]){"intermediate_size"},
              format_text("%d", c.experts ? c.expert_width : 4 * c.hidden), "24576");
    cJSON_Delete(config);
    return !mixture && c.experts;
}

static cJSON *trainer_json(const TrainState *s, int argc, char **argv)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "step", s->step);
    cJSON_AddNumberToObject(json, "tokens", s->tokens);
    cJSON_AddNumberToObject(json, "optimizer_step", s->optimizer_step);
    cJSON_AddStringToObject(json, "seed", format_text("%llu", (unsigned long long)s->seed));    /* numbers: doubles */
    cJSON_AddStringToObject(json, "data", format_text("%llu", (unsigned long long)data_hash()));
    for (const SavedValue *k = s->kept; k < s->kept + s->kept_count; k++)
        cJSON_AddNumberToObject(json, k->name, *k->value);
    cJSON_AddItemToObject(json, "arguments", cJSON_CreateStringArray((const char *const *)argv, argc));
    return json;
}

/* ---- Saving ---- */

void checkpoint_claim(const char *directory, Config config)
{
    const int64_t model = model_parameters(config) * sizeof(real);

    if (comm_rank(world) == 0)
        directory_claim(directory, files, 3 * model, 2 * model);        /* the weights, and two moments in one file */
    comm_barrier(world);                        /* a trial is over that renames DIR, which ranks may load next */
}

void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv)
{
    const int count = optimizer->layout->parameters;
    SafeTensor *tensors = host_alloc(2 * count * sizeof *tensors, "names");
    char *tmp = directory_beside(directory, ".tmp");

    state.optimizer_step = optimizer->step;
    if (comm_rank(world) == 0) {
        if (mkdir(tmp, 0755) && errno != EEXIST)
            fail("--save %s: cannot create %s: %s", directory, tmp, strerror(errno));
        json_write(path_of(tmp, CONFIG), config_json(optimizer->layout->config));
        json_write(path_of(tmp, TRAINER), trainer_json(&state, argc, argv));
    }
    tensors_of(optimizer->layout, "", tensors);
    Safetensors model = create_shared(path_of(tmp, MODEL), tensors, count);
    write_shards(&model, 0, optimizer, PARAMS);
    safetensors_close(&model);
    tensors_of(optimizer->layout, "v.", tensors_of(optimizer->layout, "m.", tensors));
    Safetensors moments = create_shared(path_of(tmp, OPTIMIZER), tensors, 2 * count);
    write_shards(&moments, 0, optimizer, MOMENT_M);
    write_shards(&moments, count, optimizer, MOMENT_V);
    safetensors_close(&moments);

    comm_barrier(world);                        /* all ranks' shards are on the disk */
    if (comm_rank(world) == 0)
        directory_replace(directory, files);
    comm_barrier(world);                        /* no rank continues, and perhaps ends, before it is in place */
    free(tensors);
    free(tmp);
}

/* ---- Loading ---- */

/* Where the checkpoint is: DIR; or DIR.old, if a program was killed while it replaced DIR. */
static char *place_of(const char *directory)
{
    char *place = directory_beside(directory, ""), *old = directory_beside(directory, ".old");

    if (access(place, F_OK) == 0)
        return place;
    if (access(old, F_OK))
        fail("--load %s: there is no such checkpoint", directory);
    print_rank_0("%s is missing, but %s is there: a program was stopped while it saved; loading that one\n", place, old);
    return old;
}

void checkpoint_open(const char *directory, Config config, TrainState *s)
{
    const char *place = s->place = place_of(directory), *path = new_text("%s/%s", place, files[TRAINER]);
    const char *moments = path_of(place, OPTIMIZER);
    char *end = "?";

    s->upcycled = config_check(path_of(place, CONFIG), config);
    s->weights_only = access(path, F_OK) != 0;
    if (s->weights_only != (access(moments, F_OK) != 0))
        fail("%s: No such file; a checkpoint has both %s and %s, a model from elsewhere none of them",
             s->weights_only ? path : moments, files[TRAINER], files[OPTIMIZER]);
    if (s->weights_only)
        return;
    cJSON *trainer = json_read(path);
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(trainer, "seed");
    s->step = json_integer(trainer, path, "step");
    s->tokens = json_integer(trainer, path, "tokens");
    s->optimizer_step = json_integer(trainer, path, "optimizer_step");
    if (cJSON_IsString(seed) && seed->valuestring[0] >= '0' && seed->valuestring[0] <= '9')
        s->seed = strtoull(seed->valuestring, &end, 10);
    if (*end)
        fail("%s: \"seed\": expected an integer from 0 to 2^64 - 1 in quotes, got %s", path,
             seed ? cJSON_PrintUnformatted(seed) : "nothing");
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(trainer, "data");
    if (cJSON_IsString(data) && strcmp(data->valuestring, format_text("%llu", (unsigned long long)data_hash())))
        warn("--data %s: these are not the tokens with which %s was trained", options.data, place);
    cJSON_Delete(trainer);
}

/* Opens model.safetensors; or, if there is none, the files that its index names. */
static Files open_model(const char *place)
{
    const char *whole = path_of(place, MODEL), *index = format_text("%s.index.json", whole);
    const bool in_shards = access(whole, F_OK) && access(index, F_OK) == 0;
    Files f = {.index = in_shards ? json_read(index) : NULL};
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(f.index, "weight_map"), *entry;

    f.file = host_alloc((cJSON_GetArraySize(map) + 1) * sizeof *f.file, "a model");
    if (!in_shards)
        f.file[f.count++] = safetensors_open(whole);
    else if (!cJSON_IsObject(map) || !map->child)
        fail("%s: \"weight_map\" must be an object that names a file for each tensor", index);
    else
        safetensors_check_names(index, map);
    cJSON_ArrayForEach(entry, map) {
        if (!cJSON_IsString(entry) || strchr(entry->valuestring, '/'))
            fail("%s: %s: expected the name of a file in the same directory, got %s", index, entry->string,
                 cJSON_PrintUnformatted(entry));
        char *path = new_text("%s/%s", place, entry->valuestring);
        if (!file_of(&f, entry->string))
            f.file[f.count++] = safetensors_open(path);
        free(path);
    }
    return f;
}

static void close_files(Files *f)
{
    for (int i = 0; i < f->count; i++)
        safetensors_close(&f->file[i]);
    free(f->file);
    cJSON_Delete(f->index);
}

/* The program's own numbers, as far as the checkpoint's program has the same. */
static void read_saved_values(const char *path, const TrainState *state)
{
    cJSON *trainer = json_read(path);

    for (const SavedValue *k = state->kept; k < state->kept + state->kept_count; k++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(trainer, k->name);
        if (x && (!cJSON_IsNumber(x) || !(x->valuedouble >= 0) || !isfinite(x->valuedouble)))
            fail("%s: \"%s\": expected a number of at least 0, got %s", path, k->name, cJSON_PrintUnformatted(x));
        if (x)
            *k->value = x->valuedouble;
    }
    cJSON_Delete(trainer);
}

void checkpoint_load(AdamW *optimizer, const TrainState *state)
{
    Files model = open_model(state->place);

    read_shards(&model, "", optimizer, PARAMS, state->upcycled);
    close_files(&model);
    if (!state->weights_only) {
        Safetensors moments = safetensors_open(path_of(state->place, OPTIMIZER));
        read_shards(&(Files){1, &moments, NULL}, "m.", optimizer, MOMENT_M, state->upcycled);
        read_shards(&(Files){1, &moments, NULL}, "v.", optimizer, MOMENT_V, state->upcycled);
        safetensors_close(&moments);
        optimizer->step = state->optimizer_step;
        read_saved_values(path_of(state->place, TRAINER), state);
    }
}

/* ---- The dump ---- */

void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences)
{
    const int count = optimizer->layout->parameters;
    const int64_t seq = optimizer->layout->config.seq;
    SafeTensor *tensors = host_alloc((count + 2) * sizeof *tensors, "names");

    tensors_of(optimizer->layout, "", tensors + 2);
    for (int i = 0; i < 2; i++) {               /* the batch comes first, so that the file begins as no checkpoint does */
        tensors[i] = (SafeTensor){.dtype = "I64", .dims = 2, .shape = {sequences, seq}};
        strcpy(tensors[i].name, i ? "batch.targets" : "batch.inputs");
    }
    char *written = output_begin(path);
    Safetensors file = create_shared(written, tensors, count + 2);
    write_shards(&file, 2, optimizer, GRADIENTS);
    if (comm_rank(world) == 0) {
        int64_t *tokens = host_alloc((seq + 1) * sizeof *tokens, "a sequence");
        for (int64_t g = 0; g < sequences; g++) {
            data_sequence(step, g, tokens);
            for (int i = 0; i < 2; i++)
                safetensors_write(&file, &file.tensors[i], g * seq, seq, tokens + i);
        }
        free(tokens);
    }
    safetensors_close(&file);
    comm_barrier(world);
    output_end("dump-gradients", written, path);
    free(tensors);
}
