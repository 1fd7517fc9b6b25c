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

/* What safetensors.h found wrong, if anything. */
static void check(char *wrong)
{
    if (wrong)
        fail("%s", wrong);
}

/* ---- The whole model's tensors, and our stretches of them ---- */

/* One entry a parameter, named prefix + its name. */
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

static Tensor which_of(const Part *part, Which which)
{
    const Tensor tensors[] = {
        [PARAMS] = part->params, [GRADIENTS] = part->gradients, [MOMENT_M] = part->m, [MOMENT_V] = part->v};

    return tensors[which];
}

/* Writes what this rank owns of one of a part's four tensors to entries [first, first + parameters) of a file. */
static void write_parts(const Safetensors *file, int first, const AdamW *optimizer, Which which)
{
    for (int i = 0; i < optimizer->count; i++) {
        const Part *part = &optimizer->parts[i];
        const Tensor t = which_of(part, which);
        real *host = host_alloc(tensor_count(t) * sizeof *host, file->path);
        tensor_to_host(host, t);
        for (Stretch s = {0}; layout_next(optimizer->layout, (Range){part->first, tensor_count(t)}, &s);)
            if (s.param->owned)
                check(safetensors_write(file, &file->tensors[first + s.parameter], s.in_whole, s.count,
                                        host + s.in_range));
        free(host);
    }
}

/* For up to a minute NFS's clients remember which directory had a name: the last checkpoint's, now moved to its place.
 * Asked for the attributes that the directory above has now, they see that names in it have changed. */
static void ask_for_names(const char *path)
{
    char *copy = strdup(path);
    struct statx now;

    if (copy)
        statx(AT_FDCWD, dirname(dirname(copy)), AT_STATX_FORCE_SYNC, STATX_MTIME, &now);
    free(copy);
}

/* A file with the given tensors: rank 0 makes it, then all open it. */
static Safetensors create_shared(const char *path, SafeTensor *tensors, int count, const char *checkpoint)
{
    Safetensors file;

    safetensors_lay_out(&file, path, tensors, count, checkpoint);
    if (comm_rank(world) == 0)
        check(safetensors_create(&file));
    comm_barrier(world);
    if (comm_rank(world) != 0) {
        ask_for_names(path);
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
    comm_allow(3.0 * sizeof(real) * model_parameters(optimizer->layout->config));
    error_cleanup(tmp);                         /* by whichever rank fails */
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        path[i] = new_text("%s/%s", tmp, checkpoint_file[i]);
        error_cleanup(path[i]);
    }
    if (comm_rank(world) == 0) {
        directory_remove(tmp);                  /* of a program that was killed */
        if (mkdir(tmp, 0755) && errno != EEXIST)        /* what a person put there and can't be moved stays */
            fail("%s cannot be made: %s", tmp, strerror(errno));
        json_write(path[CONFIG_FILE], config_json(optimizer->layout->config, text));
        json_write(path[TRAINER_FILE], trainer_json(&state, argc, argv));
    }
    tensors_of(optimizer->layout, "", tensors);
    Safetensors model = create_shared(path[MODEL_FILE], tensors, count, text);
    write_parts(&model, 0, optimizer, PARAMS);
    check(safetensors_close(&model, true));
    tensors_of(optimizer->layout, "v.", tensors_of(optimizer->layout, "m.", tensors));
    Safetensors moments = create_shared(path[OPTIMIZER_FILE], tensors, 2 * count, text);
    write_parts(&moments, 0, optimizer, MOMENT_M);
    write_parts(&moments, count, optimizer, MOMENT_V);
    check(safetensors_close(&moments, true));

    comm_barrier(world);                        /* all ranks' parts are on the disk */
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        error_cleanup_done(path[i]);
    error_cleanup_done(tmp);
    if (comm_rank(world) == 0)
        directory_replace(tmp, final);
    comm_barrier(world);                        /* nobody goes on, and perhaps ends, before it is in place */
    comm_allow(0);
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

/* A tensor of some file. */
typedef struct {
    const Safetensors *file;
    const SafeTensor *tensor;           /* NULL: there is none */
} Found;

static Found find(Files in, const char *name)
{
    Found found = {NULL, NULL};

    for (int i = 0; i < in.count && !found.tensor; i++)
        found = (Found){&in.file[i], safetensors_find(&in.file[i], name)};
    return found;
}

/* The whole of a parameter, in the shape that it has in this model. */
static void check_shape(Found f, const ParamInfo *p)
{
    const SafeTensor *t = f.tensor;

    if (t->dims != (p->vector ? 1 : 2) || t->shape[0] != p->rows || (!p->vector && t->shape[1] != p->cols))
        fail("%s: %s has %d dimensions (%lld, %lld), but this model's is (%lld, %lld)", f.file->path, t->name, t->dims,
             (long long)t->shape[0], (long long)t->shape[1], (long long)p->rows, (long long)(p->vector ? 0 : p->cols));
    if (!strcmp(t->dtype, "I64"))               /* which safetensors_read would not convert */
        fail("%s: %s is I64, but F64, F32, F16 or BF16 is needed", f.file->path, t->name);
}

/* Hugging Face may write the output projection too. Here it is the embedding, whose stretch was read to x. */
static void check_tied(Found output, Stretch s, const real *x)
{
    real *y = host_alloc(s.count * sizeof *y, output.file->path);

    check_shape(output, s.param);
    check(safetensors_read(output.file, output.tensor, s.in_whole, s.count, y, REAL == F64));
    for (int64_t k = 0; k < s.count; k++)
        if (x[k] != y[k])
            fail("%s: %s differs from %s (%g and %g at element %lld), but these programs compute a model whose output "
                 "projection is the embedding (tie_word_embeddings)", output.file->path, output.tensor->name,
                 s.param->name, y[k], x[k], (long long)(s.in_whole + k));
    free(y);
}

/* Reads what this rank updates. */
static void read_parts(Files in, const char *prefix, const AdamW *optimizer, Which which)
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
        const Part *part = &optimizer->parts[i];
        const Tensor t = which_of(part, which);
        real *host = host_alloc(tensor_count(t) * sizeof *host, in.file->path);
        for (Stretch s = {0}; layout_next(layout, (Range){part->first, tensor_count(t)}, &s);) {
            const Found f = found[s.parameter];
            real *x = host + s.in_range;
            assert(f.file);                     /* all were found above */
            check(safetensors_read(f.file, f.tensor, s.in_whole, s.count, x, REAL == F64));
            /* a weight like this would show in the next loss, if there is a next step; a moment in the loss after that,
             * and the weights between may be the last that are saved */
            for (int64_t k = 0; k < s.count; k++)
                if (!isfinite(x[k]) || (which == MOMENT_V && x[k] < 0))
                    fail("%s: %s has %g at element %lld, but a %s is needed", f.file->path, f.tensor->name, x[k],
                         (long long)(s.in_whole + k), which == MOMENT_V ? "number from 0 on" : "number");
            if (output.tensor && !strcmp(s.param->name, "gpt_neox.embed_in.weight"))
                check_tied(output, s, x);
        }
        tensor_from_host(t, host);
        free(host);
    }
    free(found);
}

/* Adds one to the files. */
static void open_safetensors(Files *to, OpenFile from)
{
    to->file = realloc(to->file, (to->count + 1) * sizeof *to->file);
    if (!to->file)
        fail("no memory for %s", from.path);
    if (from.file < 0)
        fail("%s: %s", from.path, strerror(-from.file));
    check(safetensors_take(&to->file[to->count++], from.path, from.file));
}

/* model.safetensors, or else the files that an index names, by tensor: {"weight_map": {NAME: FILE, ...}}. */
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
            fail("%s: %s is said to be in %s, but the name of a file in the same directory is needed", index.path,
                 entry->string, cJSON_PrintUnformatted(entry));
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

/* Of files' sizes and a megabyte from all over each: enough to tell weights that were trained apart. */
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

/* Each file says of which checkpoint it is; trainer.json, by what stands in it. */
static void check_belongs(const char *path, const char *says, const char *trainer_path, const char *trainer_says)
{
    if (!says || strcmp(says, trainer_says))
        fail("%s is of \"%s\", but %s of \"%s\": they are of two checkpoints (without trainer.json and "
             "optimizer.safetensors there would be only weights to begin with)", path, says ? says : "no checkpoint",
             trainer_path, trainer_says);
}

/* As it is now. NULL, and hash 0: another program was just putting the next one in its place. */
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
        fail("%s: %s, but %s is there: a checkpoint has both, and a model from elsewhere neither",
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
    enum { TRIES = 100 };                       /* a rank may find the next one already; in the end run_begin says so */
    uint64_t *hashes = host_alloc(comm_size(world) * sizeof *hashes, "comparing checkpoints");

    for (int tries = 1;; tries++) {
        TrainState found = *state;
        Checkpoint *c = open_now(directory, config, &found);
        bool same = true;
        if (!c && tries == TRIES)
            fail("--load %s: another program replaced it %d times while its files were opened", directory, TRIES);
        comm_agree();                           /* a rank that failed would not come here */
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
    read_parts(c->model, "", optimizer, PARAMS);
    if (!state->weights_only) {
        optimizer->step = state->optimizer_step;
        trainer_read_kept(c->trainer, c->from.file[TRAINER_FILE].path, state);
        read_parts(c->optimizer, "m.", optimizer, MOMENT_M);
        read_parts(c->optimizer, "v.", optimizer, MOMENT_V);
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
    write_parts(&file, 0, optimizer, GRADIENTS);
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
