#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "data.h"
#include "error.h"
#include "formats.h"
#include "print.h"
#include "run.h"
#include "safetensors.h"

static const char *const files[] = {"model.safetensors", "config.json", "optimizer.safetensors", "trainer.json"};
enum { FILES = sizeof files / sizeof *files };

/* directory + suffix + "/" + file, or without the last two if file is NULL; the caller frees it. A link stands for the
 * directory it leads to: the link itself is never replaced. */
static char *path_of(const char *directory, const char *suffix, const char *file)
{
    char *plain = strdup(directory), *real = NULL, *path;
    struct stat s;

    for (size_t length = plain ? strlen(plain) : 0; length > 1 && plain[length - 1] == '/';)     /* "DIR/" is DIR */
        plain[--length] = 0;
    if (plain && lstat(plain, &s) == 0 && S_ISLNK(s.st_mode))
        real = realpath(plain, NULL);
    if (!plain || asprintf(&path, "%s%s%s%s", real ? real : plain, suffix, file ? "/" : "", file ? file : "") < 0)
        fail("no memory for a path");
    free(plain);
    free(real);
    return path;
}

static bool exists(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0;
}

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
        if (asprintf(&to->name, "%s%s", prefix, p->name) < 0)
            fail("no memory for names");
        to++;
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
        real *host = malloc(tensor_count(t) * sizeof *host + 1);
        if (!host)
            fail("no memory for %s on their way to %s", bytes_text(tensor_bytes(t)), file->path);
        tensor_to_host(host, t);
        for (Stretch s = {0}; layout_next(optimizer->layout, (Range){part->first, tensor_count(t)}, &s);)
            if (s.param->owned)
                check(safetensors_write(file, &file->tensors[first + s.parameter], s.in_whole, s.count,
                                        host + s.in_range));
        free(host);
    }
}

/* Reads what this rank updates. */
static void read_parts(const Safetensors *file, const char *prefix, const AdamW *optimizer, Which which)
{
    const Layout *layout = optimizer->layout;
    const SafeTensor **found = calloc(layout->parameters, sizeof *found);

    if (!found)
        fail("no memory for names");
    for (int i = 0; i < layout->parameters; i++) {
        const ParamInfo *p = &layout->table[i];
        char *name;
        if (asprintf(&name, "%s%s", prefix, p->name) < 0)
            fail("no memory for names");
        const SafeTensor *t = found[i] = safetensors_find(file, name);
        if (!t)
            fail("%s: %s is missing", file->path, name);
        if (t->dims != (p->vector ? 1 : 2) || t->shape[0] != p->rows || (!p->vector && t->shape[1] != p->cols))
            fail("%s: %s has %d dimensions (%lld, %lld), but this model's is (%lld, %lld)", file->path, name, t->dims,
                 (long long)t->shape[0], (long long)t->shape[1], (long long)p->rows,
                 (long long)(p->vector ? 0 : p->cols));
        if (strcmp(t->dtype, "F32") && strcmp(t->dtype, "F64"))
            fail("%s: %s is %s, but F32 or F64 is needed", file->path, name, t->dtype);
        free(name);
    }
    for (int i = 0; i < optimizer->count; i++) {
        const Part *part = &optimizer->parts[i];
        const Tensor t = which_of(part, which);
        real *host = malloc(tensor_count(t) * sizeof *host + 1);
        if (!host)
            fail("no memory for %s on their way from %s", bytes_text(tensor_bytes(t)), file->path);
        for (Stretch s = {0}; layout_next(layout, (Range){part->first, tensor_count(t)}, &s);) {
            check(safetensors_read(file, found[s.parameter], s.in_whole, s.count, host + s.in_range, REAL == F64));
            /* a weight like this would show in the next loss, if there is a next step; a moment in the loss after that,
             * and the weights between may be the last that are saved */
            const real *x = host + s.in_range;
            for (int64_t k = 0; k < s.count; k++)
                if (!isfinite(x[k]) || (which == MOMENT_V && x[k] < 0))
                    fail("%s: %s has %g at element %lld, but a %s is needed", file->path, found[s.parameter]->name,
                         x[k], (long long)(s.in_whole + k), which == MOMENT_V ? "number from 0 on" : "number");
        }
        tensor_from_host(t, host);
        free(host);
    }
    free(found);
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
static Safetensors create_shared(const char *path, SafeTensor *tensors, int count)
{
    Safetensors file;

    safetensors_lay_out(&file, path, tensors, count);
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

/* ---- JSON ---- */

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    if (!f || fputs(text, f) < 0 || fflush(f) || fsync(fileno(f)) || fclose(f))
        fail("%s could not be written: %s", path, strerror(errno));
}

static void write_json(const char *path, cJSON *json)
{
    char *text = cJSON_Print(json);

    if (!text)
        fail("no memory for %s", path);
    write_text(path, text);
    free(text);
    cJSON_Delete(json);
}

/* Hugging Face's configuration of the same model. */
static cJSON *config_json(Config c)
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
    return json;
}

/* 64-bit integers as text: a JSON number is a double to most readers. */
static void add_integer(cJSON *json, const char *name, uint64_t n)
{
    char text[32];

    snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    cJSON_AddRawToObject(json, name, text);
}

static cJSON *trainer_json(const AdamW *optimizer, TrainState state, int argc, char **argv)
{
    cJSON *json = cJSON_CreateObject(), *arguments;

    add_integer(json, "step", state.step);
    add_integer(json, "tokens", state.tokens);
    add_integer(json, "optimizer_step", optimizer->step);
    char seed[32];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)state.seed);
    cJSON_AddStringToObject(json, "seed", seed);
    for (const Kept *k = state.kept; k < state.kept + state.kept_count; k++)
        cJSON_AddNumberToObject(json, k->name, *k->value);
    arguments = cJSON_AddArrayToObject(json, "arguments");
    for (int i = 0; i < argc; i++)
        cJSON_AddItemToArray(arguments, cJSON_CreateString(argv[i]));
    return json;
}

static cJSON *read_json(const char *path)
{
    enum { LIMIT = 1 << 20 };
    struct stat s;
    const int file = open(path, O_RDONLY | O_NONBLOCK);     /* a pipe, refused below, would wait for a writer */

    if (file < 0 || fstat(file, &s))
        fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode) || s.st_size > LIMIT)
        fail("%s: a JSON file of at most %d bytes is needed, and this is %s", path, LIMIT,
             S_ISREG(s.st_mode) ? bytes_text(s.st_size) : "not a regular file");
    char *text = calloc(s.st_size + 1, 1);
    if (!text || read(file, text, s.st_size) != s.st_size)
        fail("%s could not be read", path);
    close(file);
    cJSON *json = cJSON_ParseWithLengthOpts(text, s.st_size + 1, NULL, true);
    if (!cJSON_IsObject(json))
        fail("%s: not a JSON object", path);
    free(text);
    return json;
}

static int64_t json_integer(const cJSON *json, const char *path, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53
        || item->valuedouble != (double)(int64_t)item->valuedouble)
        fail("%s: \"%s\" is %s, but a whole number from 0 to 2^53 is needed", path, name,
             item ? cJSON_PrintUnformatted(item) : "missing");
    return item->valuedouble;
}

/* ---- Saving ---- */

static void remove_directory(char *directory)
{
    for (int i = 0; i < FILES; i++) {
        char *path = path_of(directory, "", files[i]);
        unlink(path);
        free(path);
    }
    rmdir(directory);
}

/* What a person put beside a checkpoint's files (a tokenizer, notes) goes on into the new one. */
static void keep_others(const char *from, const char *to)
{
    DIR *d = opendir(from);

    for (const struct dirent *e; d && (e = readdir(d));) {
        char *old = path_of(from, "", e->d_name), *new = path_of(to, "", e->d_name);
        if (!exists(new))
            rename(old, new);
        free(old);
        free(new);
    }
    if (d)
        closedir(d);
}

static bool is_empty_directory(const char *path)
{
    DIR *d = opendir(path);
    int count = 0;

    while (d && readdir(d))
        count++;
    if (d)
        closedir(d);
    return count == 2;                          /* . and .. */
}

static bool is_same(const char *a, const char *b)
{
    struct stat s, t;

    return stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Whether another directory can be put in the place of this one: not of a disk's mount point, of "." and "..", or of
 * where this program runs, by whatever name: other files that it writes would go with the old one. */
static bool is_replaceable(const char *directory)
{
    const char *slash = strrchr(directory, '/'), *name = slash ? slash + 1 : directory;
    char *parent = path_of(directory, "", "..");
    struct stat here, above;
    const bool there = stat(directory, &here) == 0 && stat(parent, &above) == 0;

    free(parent);
    return strcmp(name, ".") && strcmp(name, "..") && !(there && here.st_dev != above.st_dev)
           && !is_same(directory, ".");
}

/* Whether all in a directory has the names of a checkpoint's files; so too if it isn't there. */
static bool is_ours(const char *directory)
{
    DIR *d = opendir(directory);
    bool ours = true;

    for (const struct dirent *e; d && (e = readdir(d));) {
        bool known = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
        for (int i = 0; i < FILES; i++)
            known |= !strcmp(e->d_name, files[i]);
        ours &= known;
    }
    if (d)
        closedir(d);
    return ours;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), n = strlen(end);

    return length >= n && !strcmp(text + length - n, end);
}

/* One program at a time saves to a directory: two would write into each other's DIR.tmp. The system gives the lock back
 * when the process ends, however it does; the file goes when it ends well. */
static void lock(const char *directory)
{
    char *path = path_of(directory, ".lock", NULL);
    struct stat mine, there;

    for (;;) {
        const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0)
            fail("--save %s: %s cannot be made: %s", directory, path, strerror(errno));
        if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)     /* some file systems have no locks */
            fail("--save %s: another program that is running saves to it (it holds %s); wait for it, or name another "
                 "directory", directory, path);
        if (fstat(file, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino)
            break;
        close(file);                            /* who had it has ended meanwhile, and removed it */
    }
    error_cleanup(path);
    free(path);
}

void checkpoint_claim(const char *directory, const char *load)
{
    char *plain = path_of(directory, "", NULL), *tmp = path_of(directory, ".tmp", NULL);
    char *trainer = path_of(directory, "", "trainer.json");
    bool made = false;
    struct stat s;

    /* an empty directory may be replaced, a checkpoint too; anything else is somebody's */
    if (comm_rank(world) == 0) {
        if (ends_with(plain, ".tmp") || ends_with(plain, ".old") || ends_with(plain, ".lock"))
            fail("--save %s: names that end in .tmp, .old or .lock are those of what --save makes beside a checkpoint, "
                 "and removes", directory);
        if (stat(directory, &s) == 0 && S_ISDIR(s.st_mode) && access(directory, R_OK | W_OK | X_OK))
            fail("--save %s: it is there, but cannot be changed: %s", directory, strerror(errno));
        if (exists(directory) && !exists(trainer) && !is_empty_directory(directory))
            fail("--save %s: it is there and is not a checkpoint (it has no trainer.json); name another directory",
                 directory);
        if (lstat(plain, &s) == 0 && !exists(plain))
            fail("--save %s: it is a link to a directory that is not there; make that directory", directory);
        if (!is_replaceable(plain))
            fail("--save %s: a checkpoint takes the place of the old one, but nothing can take that of \".\", of "
                 "\"..\", of the directory that this runs in, or of where a disk is mounted; name a directory inside",
                 directory);
        if (load && is_same(load, tmp))
            fail("--load %s is where --save %s is written until it is complete; give --save another name", load,
                 directory);
        if (!is_ours(tmp) || (lstat(tmp, &s) == 0 && !S_ISDIR(s.st_mode)))
            fail("--save %s: %s is where it is written until it is complete, but other files are there; move them",
                 directory, tmp);
        lock(directory);
        made = mkdir(tmp, 0755) == 0;
        if (!made && (errno != EEXIST || access(tmp, W_OK | X_OK)))     /* it is there if a program was killed */
            fail("--save %s: %s cannot be made: %s", directory, tmp, strerror(errno));
        if (made)
            error_cleanup(tmp);
    }
    comm_agree();
    if (!exists(tmp))
        fail("--save %s: rank 0 has made %s, but rank %d doesn't find it: all ranks need one file system", directory,
             tmp, comm_rank(world));
    comm_agree();
    if (made) {
        rmdir(tmp);
        error_cleanup_done(tmp);
    }
    free(plain);
    free(tmp);
    free(trainer);
}

void checkpoint_release(const char *directory)
{
    char *path = path_of(directory, ".lock", NULL);

    if (comm_rank(world) == 0)
        unlink(path);
    error_cleanup_done(path);
    free(path);
}

/* Puts the finished directory in the place of the old one. */
static void exchange(char *tmp, char *directory, char *old)
{
    if (!exists(directory)) {
        if (rename(tmp, directory))
            fail("%s could not be renamed to %s: %s", tmp, directory, strerror(errno));
    } else if (renameat2(AT_FDCWD, tmp, AT_FDCWD, directory, RENAME_EXCHANGE) == 0) {
        keep_others(tmp, directory);
        remove_directory(tmp);
    } else {                                    /* not every file system can: for a moment only the old one is there */
        if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
            fail("%s could not be put in the place of %s: %s", tmp, directory, strerror(errno));
        remove_directory(old);
        if (rename(directory, old) || rename(tmp, directory))
            fail("%s could not be renamed to %s (what was there is %s): %s", tmp, directory, old, strerror(errno));
        keep_others(old, directory);
        remove_directory(old);
    }
}

void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv)
{
    const int count = optimizer->layout->parameters;
    SafeTensor *tensors = calloc(2 * count, sizeof *tensors);
    char *final = path_of(directory, "", NULL), *tmp = path_of(directory, ".tmp", NULL);
    char *old = path_of(directory, ".old", NULL), *path[FILES];

    if (!tensors)
        fail("no memory for names");
    comm_allow(3.0 * sizeof(real) * model_parameters(optimizer->layout->config));
    for (int i = 0; i < FILES; i++)
        path[i] = path_of(tmp, "", files[i]);
    error_cleanup(tmp);                         /* by whichever rank fails */
    for (int i = 0; i < FILES; i++)
        error_cleanup(path[i]);
    if (comm_rank(world) == 0) {
        remove_directory(tmp);                  /* of a program that was killed */
        if (mkdir(tmp, 0755) && errno != EEXIST)        /* what keep_others may not move stays there */
            fail("%s cannot be made: %s", tmp, strerror(errno));
        write_json(path[1], config_json(optimizer->layout->config));
        write_json(path[3], trainer_json(optimizer, state, argc, argv));
    }
    tensors_of(optimizer->layout, "", tensors);
    Safetensors model = create_shared(path[0], tensors, count);
    write_parts(&model, 0, optimizer, PARAMS);
    check(safetensors_close(&model, true));
    tensors_of(optimizer->layout, "v.", tensors_of(optimizer->layout, "m.", tensors));
    Safetensors moments = create_shared(path[2], tensors, 2 * count);
    write_parts(&moments, 0, optimizer, MOMENT_M);
    write_parts(&moments, count, optimizer, MOMENT_V);
    check(safetensors_close(&moments, true));

    comm_barrier(world);                        /* all ranks' parts are on the disk */
    for (int i = 0; i < FILES; i++)
        error_cleanup_done(path[i]);
    error_cleanup_done(tmp);
    if (comm_rank(world) == 0)
        exchange(tmp, final, old);
    comm_barrier(world);                        /* nobody goes on, and perhaps ends, before it is in place */
    comm_allow(0);
    for (int i = 0; i < FILES; i++)
        free(path[i]);
    free(final);
    free(tmp);
    free(old);
    free(tensors);
}

/* ---- Loading ---- */

static char *directory_to_load(const char *directory)
{
    char *given = path_of(directory, "", NULL), *old = path_of(directory, ".old", NULL);

    if (!exists(given) && exists(old)) {
        run_print("%s is not there, but %s is: the program that saved it was stopped half-way; using that\n", given,
                  old);
        free(given);
        return old;
    }
    if (!exists(given))
        fail("--load %s: %s", given, strerror(errno));
    free(old);
    return given;
}

/* Of a file's size and a megabyte from all over it: enough to tell weights that were trained apart. */
static uint64_t hash_of(const char *path)
{
    enum { BLOCKS = 256 };
    const int file = open(path, O_RDONLY | O_NONBLOCK);
    unsigned char block[4096];
    struct stat s;

    if (file < 0 || fstat(file, &s))
        fail("%s: %s", path, strerror(errno));
    uint64_t hash = 14695981039346656037u ^ (uint64_t)s.st_size;        /* FNV-1a */
    for (int64_t i = 0; i < BLOCKS; i++) {
        const ssize_t length = pread(file, block, sizeof block, s.st_size * i / BLOCKS);
        for (ssize_t k = 0; k < length; k++)
            hash = (hash ^ block[k]) * 1099511628211u;
    }
    close(file);
    return hash;
}

TrainState checkpoint_open(const char *directory, Config c)
{
    char *from = directory_to_load(directory);
    char *config_path = path_of(from, "", "config.json"), *trainer_path = path_of(from, "", "trainer.json");
    char *model_path = path_of(from, "", "model.safetensors");
    cJSON *config = read_json(config_path), *trainer = read_json(trainer_path);
    const int64_t layers = json_integer(config, config_path, "num_hidden_layers");
    const int64_t hidden = json_integer(config, config_path, "hidden_size");
    const int64_t heads = json_integer(config, config_path, "num_attention_heads");
    const int64_t vocab = json_integer(config, config_path, "vocab_size");
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(trainer, "seed");
    TrainState state = {.step = json_integer(trainer, trainer_path, "step"),
                        .tokens = json_integer(trainer, trainer_path, "tokens")};
    char *end = "?";

    if (layers != c.layers || hidden != c.hidden || heads != c.heads || vocab != c.vocab)
        fail("--load %s: it has --layers %lld --hidden %lld --heads %lld --vocab %lld, but this run --layers %d "
             "--hidden %d --heads %d --vocab %d", from, (long long)layers, (long long)hidden, (long long)heads,
             (long long)vocab, c.layers, c.hidden, c.heads, c.vocab);
    if (state.step > 1000000000)
        fail("%s: \"step\" is %lld, more than any run has", trainer_path, (long long)state.step);
    errno = 0;
    if (cJSON_IsString(seed) && strspn(seed->valuestring, "0123456789"))
        state.seed = strtoull(seed->valuestring, &end, 10);
    if (*end || errno)
        fail("%s: \"seed\" is %s, but a whole number from 0 to 2^64 - 1 in quotes is needed", trainer_path,
             seed ? cJSON_PrintUnformatted(seed) : "missing");
    state.hash = hash_of(model_path);
    cJSON_Delete(config);
    cJSON_Delete(trainer);
    free(config_path);
    free(trainer_path);
    free(model_path);
    free(from);
    return state;
}

void checkpoint_load(const char *directory, AdamW *optimizer, const TrainState *state)
{
    char *from = directory_to_load(directory);
    char *model_path = path_of(from, "", "model.safetensors"), *trainer_path = path_of(from, "", "trainer.json");
    char *moments_path = path_of(from, "", "optimizer.safetensors");
    Safetensors model, moments;
    cJSON *trainer = read_json(trainer_path);

    optimizer->step = json_integer(trainer, trainer_path, "optimizer_step");
    for (const Kept *k = state->kept; k < state->kept + state->kept_count; k++) {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(trainer, k->name);
        if (number && (!cJSON_IsNumber(number) || !(number->valuedouble >= 0) || !isfinite(number->valuedouble)))
            fail("%s: \"%s\" is %s, but a number from 0 on is needed", trainer_path, k->name,
                 cJSON_PrintUnformatted(number));
        if (number)
            *k->value = number->valuedouble;
    }
    check(safetensors_open(&model, model_path));
    read_parts(&model, "", optimizer, PARAMS);
    check(safetensors_close(&model, false));
    check(safetensors_open(&moments, moments_path));
    read_parts(&moments, "m.", optimizer, MOMENT_M);
    read_parts(&moments, "v.", optimizer, MOMENT_V);
    check(safetensors_close(&moments, false));
    cJSON_Delete(trainer);
    free(model_path);
    free(moments_path);
    free(trainer_path);
    free(from);
}

/* ---- The dump ---- */

void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences)
{
    const int count = optimizer->layout->parameters;
    const int64_t seq = optimizer->layout->config.seq;
    SafeTensor *tensors = calloc(count + 2, sizeof *tensors), *batch = tensors_of(optimizer->layout, "", tensors);

    if (!tensors)
        fail("no memory for names");
    for (int i = 0; i < 2; i++) {
        batch[i] = (SafeTensor){.name = strdup(i ? "batch.targets" : "batch.inputs"), .dtype = "I64", .dims = 2,
                                .shape = {sequences, seq}};
    }
    Safetensors file = create_shared(path, tensors, count + 2);
    write_parts(&file, 0, optimizer, GRADIENTS);
    if (comm_rank(world) == 0) {
        int64_t *tokens = malloc((seq + 1) * sizeof *tokens);
        if (!tokens)
            fail("no memory for a sequence");
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
