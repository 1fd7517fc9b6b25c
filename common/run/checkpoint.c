#include "checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../comm/comm.h"
#include "../transformer/data.h"
#include "../base/error.h"
#include "../base/formats.h"
#include "../base/print.h"
#include "config_file.h"
#include "json.h"
#include "safetensors.h"
#include "saved_steps.h"

static const char *const files[] = {"config.json", "trainer.json", "model.safetensors", "optimizer.safetensors", NULL};
enum { CONFIG, TRAINER, MODEL, OPTIMIZER };

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
        real *host = host_alloc(tensor_count(t) * sizeof *host, "a checkpoint");
        tensor_to_host(host, t);
        for (Segment s = {0}; layout_next(optimizer->layout, (Range){shard->first, tensor_count(t)}, &s);)
            if (s.param->owned)
                safetensors_write(file, &file->tensors[first + s.parameter], s.in_full, s.count, host + s.in_range);
        free(host);
    }
}

/* Finds the parameter's tensor, named prefix + its name. */
static const SafeTensor *find(const Safetensors *file, const char *prefix, const ParamInfo *p)
{
    const char *name = format_text("%s%s", prefix, p->name);
    const SafeTensor *t = safetensors_find(file, name);

    if (!t)
        fail("%s%s: expected a tensor %s, which is not there", file->file->path,
             file->files > 1 ? format_text(" and %d other files", file->files - 1) : "", name);
    if (t->dims != (p->vector ? 1 : 2) || t->shape[0] != p->rows || (!p->vector && t->shape[1] != p->cols))
        fail("%s: %s has %d dimensions, the first %lld; expected (%lld, %lld)", safetensors_path(file, t), name,
             t->dims, (long long)t->shape[0], (long long)p->rows, (long long)p->cols);
    return t;
}

/* Reads one of the four tensors of each of this rank's shards. */
static void read_shards(const Safetensors *file, const char *prefix, const AdamW *optimizer, Which which)
{
    for (int i = 0; i < optimizer->count; i++) {
        const ParamShard *shard = &optimizer->shards[i];
        const Tensor t = which_of(shard, which);
        real *host = host_alloc(tensor_count(t) * sizeof *host, "a checkpoint");
        for (Segment s = {0}; layout_next(optimizer->layout, (Range){shard->first, tensor_count(t)}, &s);) {
            const SafeTensor *tensor = find(file, prefix, s.param);
            double *numbers = host_alloc(s.count * sizeof *numbers, tensor->name);
            safetensors_read(file, tensor, s.in_full, s.count, numbers);
            for (int64_t k = 0; k < s.count; k++) {
                const real x = host[s.in_range + k] = numbers[k];
                if (!isfinite(x) || (which == MOMENT_V && x < 0))
                    fail("%s: %s has %g at element %lld, but a finite number%s is needed",
                         safetensors_path(file, tensor), tensor->name, x, (long long)(s.in_full + k),
                         which == MOMENT_V ? " of at least 0" : "");
            }
            free(numbers);
        }
        tensor_from_host(t, host);
        free(host);
    }
}

static cJSON *trainer_json(const TrainState *s, int64_t updates, int argc, char **argv)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "step", s->step);
    cJSON_AddNumberToObject(json, "tokens", s->tokens);
    cJSON_AddNumberToObject(json, "optimizer_step", updates);
    cJSON_AddStringToObject(json, "seed", format_text("%llu", (unsigned long long)s->seed));    /* numbers: doubles */
    cJSON_AddStringToObject(json, "data", format_text("%llu", (unsigned long long)data_file.hash));
    for (const SavedValue *k = s->kept; k < s->kept + s->kept_count; k++)
        cJSON_AddNumberToObject(json, k->name, *k->value);
    cJSON_AddItemToObject(json, "arguments", cJSON_CreateStringArray((const char *const *)argv, argc));
    return json;
}

/* ---- Saving ---- */

static bool same_directory(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool checkpoint_claim(const char *directory, Config config, const TrainState *loaded)
{
    const int64_t model = model_parameters(config) * sizeof(real), latest = saved_steps_latest(directory);
    const bool goes_on = latest >= 0 && loaded->place && same_directory(loaded->place, saved_step(directory, latest));
    int64_t copies = options.save_every ? 1 + options.steps / options.save_every : 1;

    if (latest >= 0 && !goes_on)
        fail("--save %s: it has step %lld, from which this run does not go on; add --load %s, or take another "
             "directory", directory, (long long)latest, directory);
    if (copies > options.keep + 1)
        copies = options.keep + 1;              /* the last one is removed after the next one is complete */
    if (goes_on)
        copies = 1;
    comm_barrier(world);                        /* all ranks have looked */
    if (comm_rank(world) == 0)                  /* the weights, and two moments in one file */
        saved_steps_claim(directory, copies * 3 * model, 2 * model);
    comm_barrier(world);
    if (access(format_text("%s/lock", directory), F_OK))
        fail("--save %s: rank 0 has created a file there, which is missing here: all machines must share the directory",
             directory);
    return goes_on;
}

void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv)
{
    const int count = optimizer->layout->parameters;
    SafeTensor *tensors = host_alloc(2 * count * sizeof *tensors, "names");
    char *place = saved_step(directory, state.step);

    if (comm_rank(world) == 0)
        saved_steps_begin(directory, state.step, files);
    comm_barrier(world);                        /* the directory is there, and empty */
    tensors_of(optimizer->layout, "", tensors);
    Safetensors model = safetensors_create(path_of(place, MODEL), tensors, count);
    tensors_of(optimizer->layout, "v.", tensors_of(optimizer->layout, "m.", tensors));
    Safetensors moments = safetensors_create(path_of(place, OPTIMIZER), tensors, 2 * count);
    write_shards(&model, 0, optimizer, PARAMS);
    write_shards(&moments, 0, optimizer, MOMENT_M);
    write_shards(&moments, count, optimizer, MOMENT_V);
    safetensors_close(&model);
    safetensors_close(&moments);

    comm_barrier(world);                        /* all ranks' shards are on the disk */
    if (comm_rank(world) == 0) {
        json_write(path_of(place, TRAINER), trainer_json(&state, optimizer->step, argc, argv));
        json_write(path_of(place, CONFIG), config_file->write(optimizer->layout->config));
        saved_steps_end(directory, state.step, files, options.keep);
    }
    comm_barrier(world);                        /* no rank continues, and perhaps ends, before it is in place */
    free(tensors);
    free(place);
}

/* ---- Loading ---- */

/* Returns the directory with a checkpoint's files: DIR/step-N that DIR/latest names, or DIR itself. */
static char *place_of(const char *directory)
{
    const int64_t latest = saved_steps_latest(directory);
    char *place = latest < 0 ? new_text("%s", directory) : saved_step(directory, latest);
    struct stat s;

    if (stat(directory, &s))
        fail("--load %s: %s", directory, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        fail("--load %s: expected a directory, got a file", directory);
    if (access(path_of(place, CONFIG), F_OK) == 0)
        return place;
    if (latest >= 0)
        fail("--load %s: %s/latest names step-%lld, but there is no complete checkpoint %s (no config.json); "
             "--load %s/step-N takes another step", directory, directory, (long long)latest, place, directory);
    fail("--load %s: it has no complete checkpoint, and no model from Hugging Face (neither latest nor config.json is "
         "there); without --load a run starts anew", directory);
}

void checkpoint_open(const char *directory, Config *config, TrainState *s)
{
    const char *place = s->place = place_of(directory);
    const char *path = path_of(place, TRAINER), *moments = path_of(place, OPTIMIZER);
    char *end = "?";

    cJSON *theirs = json_read(path_of(place, CONFIG));
    config_file->read(path_of(place, CONFIG), theirs, config);
    cJSON_Delete(theirs);
    s->weights_only = access(path, F_OK) != 0;
    if (s->weights_only != (access(moments, F_OK) != 0))
        fail("%s: No such file; a checkpoint has both %s and %s, a model from elsewhere none of them",
             s->weights_only ? path : moments, files[TRAINER], files[OPTIMIZER]);
    if (s->weights_only)
        return;
    const cJSON *trainer = s->trainer = json_read(path);
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(trainer, "seed");
    s->step = json_integer(trainer, path, "step");
    s->tokens = json_integer(trainer, path, "tokens");
    if (cJSON_IsString(seed) && seed->valuestring[0] >= '0' && seed->valuestring[0] <= '9')
        s->seed = strtoull(seed->valuestring, &end, 10);
    if (*end)
        fail("%s: \"seed\": expected an integer from 0 to 2^64 - 1 in quotes, got %s", path,
             seed ? cJSON_PrintUnformatted(seed) : "nothing");
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(trainer, "data");
    if (cJSON_IsString(data) && strcmp(data->valuestring, format_text("%llu", (unsigned long long)data_file.hash)))
        print_rank_0("--data %s: these are not the tokens with which %s was trained\n", options.data, directory);
}

void checkpoint_load(AdamW *optimizer, const TrainState *state)
{
    Safetensors model = safetensors_open_model(state->place);

    read_shards(&model, "", optimizer, PARAMS);
    safetensors_close(&model);
    if (state->weights_only)
        return;
    Safetensors moments = safetensors_open(path_of(state->place, OPTIMIZER));
    read_shards(&moments, "m.", optimizer, MOMENT_M);
    read_shards(&moments, "v.", optimizer, MOMENT_V);
    safetensors_close(&moments);
    optimizer->step = json_integer(state->trainer, path_of(state->place, TRAINER), "optimizer_step");
    for (const SavedValue *k = state->kept; k < state->kept + state->kept_count; k++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(state->trainer, k->name);     /* if its program has it too */
        if (x && (!cJSON_IsNumber(x) || !(x->valuedouble >= 0) || !isfinite(x->valuedouble)))
            fail("%s: \"%s\": expected a number of at least 0, got %s", path_of(state->place, TRAINER), k->name,
                 cJSON_PrintUnformatted(x));
        if (x)
            *k->value = x->valuedouble;
    }
}

/* ---- The dump ---- */

void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences)
{
    const int count = optimizer->layout->parameters;
    const int64_t seq = optimizer->layout->config.seq;
    SafeTensor *tensors = host_alloc((count + 2) * sizeof *tensors, "names");

    tensors_of(optimizer->layout, "", tensors + 2);
    for (int i = 0; i < 2; i++) {               /* the batch comes first: the file begins as no checkpoint does */
        tensors[i] = (SafeTensor){.dtype = "I64", .dims = 2, .shape = {sequences, seq}};
        strcpy(tensors[i].name, i ? "batch.targets" : "batch.inputs");
    }
    if (comm_rank(world) > 0) {
        comm_barrier(world);                    /* rank 0 has created it */
        if (access(path, F_OK))
            fail("%s: rank 0 has created it, but it is not there; all machines must share its directory", path);
    }
    Safetensors file = safetensors_create(path, tensors, count + 2);
    if (comm_rank(world) == 0)
        comm_barrier(world);
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
    free(tensors);
}
