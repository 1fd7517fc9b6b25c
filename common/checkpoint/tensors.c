#include "../checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "directory.h"
#include "json.h"
#include "../comm.h"
#include "../data.h"
#include "../error.h"
#include "../formats.h"
#include "../outputs.h"
#include "../safetensors.h"

/* Fails with a message of safetensors.h, if there is one. */
static void check(char *wrong)
{
    if (wrong)
        fail("%s", wrong);
}

/* ---- The full model's tensors, and this rank's segments of them ---- */

/* Appends an entry per parameter, named prefix + its name; returns the end. */
static SafeTensor *tensors_of(const Layout *layout, const char *prefix, SafeTensor *to)
{
    for (int i = 0; i < layout->parameters; i++) {
        const ParamInfo *p = &layout->table[i];
        *to = (SafeTensor){.dims = p->vector ? 1 : 2, .shape = {p->rows, p->vector ? 0 : p->cols}};
        strcpy(to->dtype, dtype_name(REAL));
        to++->name = new_text("%s%s", prefix, p->name);
    }
    return to;
}

typedef enum { PARAMS, GRADIENTS, MOMENT_M, MOMENT_V } Which;

static Tensor which_of(const ParamShard *shard, Which which)
{
    const Tensor tensors[] = {
        [PARAMS] = shard->params, [GRADIENTS] = shard->gradients, [MOMENT_M] = shard->m, [MOMENT_V] = shard->v};

    return tensors[which];
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
                check(safetensors_write(file, &file->tensors[first + s.parameter], s.in_full, s.count,
                                        host + s.in_range));
        free(host);
    }
}

/* Makes an NFS client look up the path's directory again. For up to a minute clients cache which directory has a name:
 * here the previous checkpoint's, since moved to its place. Asking for the parent directory's current attributes shows
 * them that names in it have changed. */
static void refresh_names(const char *path)
{
    char *copy = strdup(path);
    struct statx now;

    if (copy)
        statx(AT_FDCWD, dirname(dirname(copy)), AT_STATX_FORCE_SYNC, STATX_MTIME, &now);
    free(copy);
}

/* Creates a file with the given tensors on rank 0, then opens it on all ranks. */
static Safetensors create_shared(const char *path, SafeTensor *tensors, int count, const char *checkpoint)
{
    Safetensors file;

    safetensors_lay_out(&file, path, tensors, count, checkpoint);
    if (comm_rank(world) == 0)
        check(safetensors_create(&file));
    comm_barrier(world);
    if (comm_rank(world) != 0) {
        refresh_names(path);
        check(safetensors_join(&file));
    }
    for (int i = 0; i < count; i++)
        free(tensors[i].name);
    return file;
}

/* ---- Saving ---- */

void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv)
{
    const int count = optimizer->layout->parameters;
    SafeTensor *tensors = host_alloc(2 * count * sizeof *tensors, "names");
    char *final = output_place("save", directory), *tmp = new_text("%s.tmp", final), *path[CHECKPOINT_FILES];

    state.optimizer_step = optimizer->step;
    char *text = checkpoint_text(&state);
    comm_extend_timeout(3.0 * sizeof(real) * model_parameters(optimizer->layout->config));
    error_cleanup(tmp);                         /* on every rank, since any may fail */
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        path[i] = new_text("%s/%s", tmp, checkpoint_file[i]);
        error_cleanup(path[i]);
    }
    if (comm_rank(world) == 0) {
        directory_remove(tmp);                  /* left by a program that was killed */
        if (mkdir(tmp, 0755) && errno != EEXIST)        /* EEXIST: files that the user put there stay */
            fail("%s cannot be made: %s", tmp, strerror(errno));
        json_write(path[CONFIG_FILE], config_json(optimizer->layout->config, text));
        json_write(path[TRAINER_FILE], trainer_json(&state, argc, argv));
    }
    tensors_of(optimizer->layout, "", tensors);
    Safetensors model = create_shared(path[MODEL_FILE], tensors, count, text);
    write_shards(&model, 0, optimizer, PARAMS);
    check(safetensors_close(&model, true));
    tensors_of(optimizer->layout, "v.", tensors_of(optimizer->layout, "m.", tensors));
    Safetensors moments = create_shared(path[OPTIMIZER_FILE], tensors, 2 * count, text);
    write_shards(&moments, 0, optimizer, MOMENT_M);
    write_shards(&moments, count, optimizer, MOMENT_V);
    check(safetensors_close(&moments, true));

    comm_barrier(world);                        /* all ranks' shards are on the disk */
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        error_cleanup_done(path[i]);
    error_cleanup_done(tmp);
    if (comm_rank(world) == 0)
        directory_replace(tmp, final);
    comm_barrier(world);                        /* no rank continues, and perhaps ends, before it is in place */
    comm_extend_timeout(0);
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        free(path[i]);
    free(final);
    free(tmp);
    free(text);
    free(tensors);
}

/* ---- Loading ---- */

typedef struct {
    Safetensors *file;
    int count;
} Files;

struct Checkpoint {
    OpenDirectory from;
    cJSON *trainer;                     /* NULL: weights only */
    Files model, optimizer;
};

/* A tensor, and the file that has it. */
typedef struct {
    const Safetensors *file;
    const SafeTensor *tensor;           /* NULL: not found */
} Found;

static Found find(Files in, const char *name)
{
    Found found = {NULL, NULL};

    for (int i = 0; i < in.count && !found.tensor; i++)
        found = (Found){&in.file[i], safetensors_find(&in.file[i], name)};
    return found;
}

/* Fails unless the tensor has the parameter's full shape, and a floating-point dtype. */
static void check_shape(Found f, const ParamInfo *p)
{
    const SafeTensor *t = f.tensor;

    if (t->dims != (p->vector ? 1 : 2) || t->shape[0] != p->rows || (!p->vector && t->shape[1] != p->cols))
        fail("%s: %s has %d dimensions (%lld, %lld), but this model's is (%lld, %lld)", f.file->path, t->name, t->dims,
             (long long)t->shape[0], (long long)t->shape[1], (long long)p->rows, (long long)(p->vector ? 0 : p->cols));
    if (!strcmp(t->dtype, "I64"))               /* safetensors_read would not convert it */
        fail("%s: %s is I64, but F64, F32, F16 or BF16 is needed", f.file->path, t->name);
}

/* Checks the output projection, if Hugging Face has written it: it must equal the embedding, whose segment is in x. */
static void check_tied(Found output, Segment s, const real *x)
{
    real *y = host_alloc(s.count * sizeof *y, output.file->path);

    check_shape(output, s.param);
    check(safetensors_read(output.file, output.tensor, s.in_full, s.count, y, REAL == F64));
    for (int64_t k = 0; k < s.count; k++)
        if (x[k] != y[k])
            fail("%s: %s differs from %s (%g and %g at element %lld), but these programs compute a model whose output "
                 "projection is the embedding (tie_word_embeddings)", output.file->path, output.tensor->name,
                 s.param->name, y[k], x[k], (long long)(s.in_full + k));
    free(y);
}

/* Reads one of the four tensors of each of this rank's shards. */
static void read_shards(Files in, const char *prefix, const AdamW *optimizer, Which which)
{
    const Layout *layout = optimizer->layout;
    Found *found = host_alloc(layout->parameters * sizeof *found, "names"), output = find(in, "embed_out.weight");

    for (int i = 0; i < layout->parameters; i++) {
        char *name = new_text("%s%s", prefix, layout->table[i].name);
        found[i] = find(in, name);
        if (!found[i].tensor)
            fail("%s: %s is missing%s", in.file->path, name, in.count > 1 ? ", and in the other files too" : "");
        check_shape(found[i], &layout->table[i]);
        free(name);
    }
    for (int i = 0; i < optimizer->count; i++) {
        const ParamShard *shard = &optimizer->shards[i];
        const Tensor t = which_of(shard, which);
        real *host = host_alloc(tensor_count(t) * sizeof *host, in.file->path);
        for (Segment s = {0}; layout_next(layout, (Range){shard->first, tensor_count(t)}, &s);) {
            const Found f = found[s.parameter];
            real *x = host + s.in_range;
            assert(f.file);                     /* all were found above */
            check(safetensors_read(f.file, f.tensor, s.in_full, s.count, x, REAL == F64));
            /* not left to the loss: a bad weight shows there only if a step follows, a bad moment one step later, and
             * the weights between may be the last that are saved */
            for (int64_t k = 0; k < s.count; k++)
                if (!isfinite(x[k]) || (which == MOMENT_V && x[k] < 0))
                    fail("%s: %s has %g at element %lld, but a finite number%s is needed", f.file->path,
                         f.tensor->name, x[k], (long long)(s.in_full + k), which == MOMENT_V ? " of at least 0" : "");
            if (output.tensor && !strcmp(s.param->name, "gpt_neox.embed_in.weight"))
                check_tied(output, s, x);
        }
        tensor_from_host(t, host);
        free(host);
    }
    free(found);
}

static void open_safetensors(Files *to, OpenFile from)
{
    to->file = realloc(to->file, (to->count + 1) * sizeof *to->file);
    if (!to->file)
        fail("not enough memory on the host for %s", from.path);
    if (from.file < 0)
        fail("%s: %s", from.path, strerror(-from.file));
    check(safetensors_take(&to->file[to->count++], from.path, from.file));
}

/* Opens model.safetensors; if it is missing, the files that the index names: {"weight_map": {NAME: FILE, ...}}. */
static Files open_model(const OpenDirectory *from)
{
    Files model = {NULL, 0};
    OpenFile index = {NULL, -ENOENT};

    if (from->file[MODEL_FILE].file == -ENOENT)
        index = directory_file(from, "model.safetensors.index.json");
    if (index.file < 0) {
        open_safetensors(&model, from->file[MODEL_FILE]);
        free(index.path);
        return model;
    }
    cJSON *json = json_read(index);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map"), *entry;
    if (!cJSON_IsObject(map) || !map->child)
        fail("%s: \"weight_map\" must be an object that names a file for each tensor", index.path);
    cJSON_ArrayForEach(entry, map) {
        const char *name = cJSON_GetStringValue(entry);
        if (!name || !*name || strchr(name, '/'))
            fail("%s: \"%s\": expected the name of a file in the same directory, got %s", index.path, entry->string,
                 cJSON_PrintUnformatted(entry));
        bool known = false;
        for (int i = 0; i < model.count && !known; i++)
            known = !strcmp(strrchr(model.file[i].path, '/') + 1, name);
        if (!known) {
            OpenFile one = directory_file(from, name);
            open_safetensors(&model, one);
            free(one.path);
        }
    }
    cJSON_Delete(json);
    free(index.path);
    return model;
}

static void close_files(Files *files)
{
    for (int i = 0; i < files->count; i++)
        check(safetensors_close(&files->file[i], false));
    free(files->file);
}

static uint64_t hash_on(uint64_t hash, const void *bytes, int64_t count)        /* FNV-1a */
{
    for (const unsigned char *b = bytes; count > 0; count--)
        hash = (hash ^ *b++) * 1099511628211u;
    return hash;
}

void checkpoint_note(TrainState *state, const double *numbers, int count)
{
    state->history = hash_on(state->history, numbers, count * sizeof *numbers);
}

/* Hashes the files' sizes and 256 blocks of 4 KB spread over each: enough to distinguish trained weights. */
static uint64_t hash_of(Files files)
{
    enum { BLOCKS = 256 };
    uint64_t hash = 14695981039346656037u;
    unsigned char block[4096];
    struct stat s;

    for (int f = 0; f < files.count; f++) {
        if (fstat(files.file[f].file, &s))
            fail("%s: %s", files.file[f].path, strerror(errno));
        hash = hash_on(hash, &s.st_size, sizeof s.st_size);
        for (int64_t i = 0; i < BLOCKS; i++) {
            const ssize_t length = pread(files.file[f].file, block, sizeof block, s.st_size * i / BLOCKS);
            hash = hash_on(hash, block, length);
        }
    }
    return hash;
}

/* Fails unless a file and trainer.json name the same checkpoint (checkpoint_text). */
static void check_belongs(const char *path, const char *text, const char *trainer_path, const char *trainer_text)
{
    if (!text || strcmp(text, trainer_text))
        fail("%s belongs to \"%s\", but %s to \"%s\": these are two checkpoints (to start from the weights alone, "
             "remove trainer.json and optimizer.safetensors)", path, text ? text : "no checkpoint", trainer_path,
             trainer_text);
}

/* Opens the checkpoint that is there now. Returns NULL, and hash 0, if another program replaced it meanwhile. */
static Checkpoint *open_now(const char *directory, Config c, TrainState *state)
{
    Checkpoint *new = host_alloc(sizeof *new, "--load");
    const OpenFile *file = new->from.file, *trainer = &file[TRAINER_FILE], *moments = &file[OPTIMIZER_FILE];

    state->hash = 0;
    if (!directory_open(directory, &new->from)) {
        free(new);
        return NULL;
    }
    state->weights_only = trainer->file == -ENOENT && moments->file == -ENOENT;
    if (!state->weights_only && (trainer->file == -ENOENT || moments->file == -ENOENT))
        fail("%s: %s, but %s is there: a checkpoint has both, and weights alone have neither",
             (trainer->file < 0 ? trainer : moments)->path, strerror(ENOENT),
             checkpoint_file[trainer->file < 0 ? OPTIMIZER_FILE : TRAINER_FILE]);
    cJSON *config = json_read(file[CONFIG_FILE]);
    config_check(config, file[CONFIG_FILE].path, c);
    new->model = open_model(&new->from);
    state->hash = state->history = hash_of(new->model);
    if (!state->weights_only) {
        new->trainer = json_read(*trainer);
        trainer_read(new->trainer, trainer->path, state);
        open_safetensors(&new->optimizer, *moments);
        char *text = checkpoint_text(state);
        const cJSON *of = cJSON_GetObjectItemCaseSensitive(config, "checkpoint");
        check_belongs(file[CONFIG_FILE].path, cJSON_GetStringValue(of), trainer->path, text);
        for (int i = 0; i < new->model.count; i++)
            check_belongs(new->model.file[i].path, new->model.file[i].checkpoint, trainer->path, text);
        check_belongs(moments->path, new->optimizer.file->checkpoint, trainer->path, text);
        free(text);
    }
    cJSON_Delete(config);
    return new;
}

static void close_checkpoint(Checkpoint *c)
{
    close_files(&c->model);
    close_files(&c->optimizer);
    cJSON_Delete(c->trainer);
    directory_close(&c->from);
    free(c);
}

Checkpoint *checkpoint_open(const char *directory, Config config, TrainState *state)
{
    enum { TRIES = 100 };                       /* ranks may find different ones; after that run_begin reports it */
    uint64_t *hashes = host_alloc(comm_size(world) * sizeof *hashes, "comparing checkpoints");

    for (int tries = 1;; tries++) {
        TrainState found = *state;
        Checkpoint *c = open_now(directory, config, &found);
        bool same = true;
        if (!c && tries == TRIES)
            fail("--load %s: another program replaced it %d times while its files were opened", directory, TRIES);
        comm_agree();                           /* if a rank failed, all end here */
        comm_gather_host(world, hashes, &found.hash, sizeof *hashes);
        for (int r = 0; r < comm_size(world); r++)
            same &= hashes[r] && hashes[r] == hashes[0];
        if (same || tries == TRIES) {
            free(hashes);
            *state = found;
            return c;
        }
        if (c)
            close_checkpoint(c);
    }
}

void checkpoint_load(Checkpoint *c, AdamW *optimizer, const TrainState *state)
{
    read_shards(c->model, "", optimizer, PARAMS);
    if (!state->weights_only) {
        optimizer->step = state->optimizer_step;
        trainer_read_kept(c->trainer, c->from.file[TRAINER_FILE].path, state);
        read_shards(c->optimizer, "m.", optimizer, MOMENT_M);
        read_shards(c->optimizer, "v.", optimizer, MOMENT_V);
    }
    close_checkpoint(c);
}

/* ---- The dump ---- */

void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences)
{
    const int count = optimizer->layout->parameters;
    const int64_t seq = optimizer->layout->config.seq;
    SafeTensor *tensors = host_alloc((count + 2) * sizeof *tensors, "names");
    SafeTensor *batch = tensors_of(optimizer->layout, "", tensors);

    for (int i = 0; i < 2; i++) {
        batch[i] = (SafeTensor){.name = strdup(i ? "batch.targets" : "batch.inputs"), .dtype = "I64", .dims = 2,
                                .shape = {sequences, seq}};
    }
    Safetensors file = create_shared(path, tensors, count + 2, NULL);
    write_shards(&file, 0, optimizer, GRADIENTS);
    if (comm_rank(world) == 0) {
        int64_t *tokens = host_alloc((seq + 1) * sizeof *tokens, "a sequence");
        for (int64_t g = 0; g < sequences; g++) {
            data_sequence(step, g, tokens);
            for (int i = 0; i < 2; i++)
                check(safetensors_write(&file, &file.tensors[count + i], g * seq, seq, tokens + i));
        }
        free(tokens);
    }
    check(safetensors_close(&file, false));
    comm_barrier(world);
    free(tensors);
}
