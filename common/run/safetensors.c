#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/error.h"
#include "../base/formats.h"
#include "json.h"

enum { LENGTH_BYTES = 8, HEADER_LIMIT = 100000000 };            /* the limit: as in the reference implementation */

/* Returns the bytes of an element; 0: a dtype that these programs do not read. */
static int element_bytes(const char *dtype)
{
    return !strcmp(dtype, "F64") || !strcmp(dtype, "I64") ? 8
         : !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "F16") || !strcmp(dtype, "BF16") ? 2 : 0;
}

const char *safetensors_path(const Safetensors *s, const SafeTensor *t)
{
    return s->file[t->file].path;
}

/* Reads or writes bytes of a file; a call moves at most 2 GB. */
static void move_bytes(const struct SafeFile *f, bool write, int64_t first, int64_t bytes, void *data)
{
    for (int64_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        const ssize_t n = write ? pwrite(f->descriptor, at, bytes - done, first + done)
                                : pread(f->descriptor, at, bytes - done, first + done);
        const char *why = n < 0 ? strerror(errno) : "the file ends before";
        if (n <= 0)
            fail("%s: %lld bytes from byte %lld on cannot be %s: %s", f->path, (long long)bytes, (long long)first,
                 write ? "written" : "read", why);
        done += n;
    }
}

/* ---- Reading ---- */

/* Returns entry i of a tensor's shape or data_offsets. */
static int64_t integer_of(const char *path, const char *name, const cJSON *array, int i)
{
    const cJSON *item = cJSON_GetArrayItem(array, i);
    const double x = cJSON_IsNumber(item) ? item->valuedouble : -1;

    if (x < 0 || x >= 0x1p53 || x != (int64_t)x)
        fail("%s: %s: shape and data_offsets must be integers from 0 on", path, name);
    return x;
}

/* Returns the tensor of an entry of the header. Of a dtype that these programs do not read, the size is not checked. */
static SafeTensor tensor_of(const char *path, const cJSON *entry, int64_t data)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    SafeTensor t = {.dims = cJSON_GetArraySize(shape)};

    snprintf(t.name, sizeof t.name, "%s", entry->string);       /* no parameter's name is as long as that */
    snprintf(t.dtype, sizeof t.dtype, "%s", cJSON_IsString(dtype) ? dtype->valuestring : "");
    double bytes = element_bytes(t.dtype);      /* not int64_t, which could overflow */
    const bool known = bytes && t.dims <= 4;
    for (int d = 0; d < t.dims && d < 4; d++)
        bytes *= t.shape[d] = integer_of(path, t.name, shape, d);
    t.first_byte = data + integer_of(path, t.name, offsets, 0);
    t.bytes = data + integer_of(path, t.name, offsets, 1) - t.first_byte;
    if (t.bytes < 0 || (known && t.bytes != bytes))
        fail("%s: %s takes %.0f bytes by dtype and shape, but has bytes %lld to %lld", path, t.name, bytes,
             (long long)t.first_byte, (long long)(t.first_byte + t.bytes));
    return t;
}

static int by_place(const void *a, const void *b)
{
    const SafeTensor *x = a, *y = b;
    const int64_t ends[2] = {x->first_byte + x->bytes, y->first_byte + y->bytes};

    if (x->first_byte != y->first_byte)
        return x->first_byte < y->first_byte ? -1 : 1;
    return (ends[0] > ends[1]) - (ends[0] < ends[1]);
}

/* Sorts tensors by their place in the file. Each must begin where the one before ends, and the last end the file. */
static void check_places(const char *path, SafeTensor *tensors, int count, int64_t data, int64_t file_bytes)
{
    int64_t end = data;

    qsort(tensors, count, sizeof *tensors, by_place);
    for (int i = 0; i < count; end += tensors[i++].bytes)
        if (tensors[i].first_byte != end)
            fail("%s: %s begins at byte %lld, but the bytes before it end at %lld, and a file has neither gaps nor "
                 "overlaps", path, tensors[i].name, (long long)tensors[i].first_byte, (long long)end);
    if (end > file_bytes)
        fail("%s: its header describes %lld bytes, but it has only %lld: was a copy or download cut off?", path,
             (long long)end, (long long)file_bytes);
    if (end < file_bytes)
        fail("%s: its header describes %lld bytes, but it has %lld", path, (long long)end, (long long)file_bytes);
}

/* Opens a file, and appends it and its tensors. */
static void add_file(Safetensors *s, const char *path)
{
    struct SafeFile f = {.path = new_text("%s", path), .descriptor = open(path, O_RDONLY | O_NONBLOCK)};
    static const char pointer[] = "version ";           /* https://git-lfs.github.com/spec/v1 */
    uint64_t length;
    struct stat status;
    const cJSON *entry;

    if (f.descriptor < 0 || fstat(f.descriptor, &status))
        fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        fail("%s: expected a file", path);
    move_bytes(&f, false, 0, LENGTH_BYTES, &length);
    if (!memcmp(&length, pointer, LENGTH_BYTES))
        fail("%s: this is Git LFS's pointer to the file, not the file itself; git lfs pull fetches that", path);
    if (length > HEADER_LIMIT || (int64_t)length > status.st_size - LENGTH_BYTES)
        fail("%s: expected a header of at most %d bytes, within the file's %lld, got %llu; is it a safetensors file?",
             path, HEADER_LIMIT, (long long)status.st_size, (unsigned long long)length);
    char *text = host_alloc(length, path);
    move_bytes(&f, false, LENGTH_BYTES, length, text);
    cJSON *header = cJSON_ParseWithLength(text, length);
    if (!cJSON_IsObject(header))
        fail("%s: the header is no JSON object", path);
    const int before = s->count;
    s->tensors = realloc(s->tensors, (before + cJSON_GetArraySize(header)) * sizeof *s->tensors);
    cJSON_ArrayForEach(entry, header) {
        if (cJSON_GetObjectItemCaseSensitive(header, entry->string) != entry)
            fail("%s: two tensors are named %s", path, entry->string);
        if (!strcmp(entry->string, "__metadata__"))
            continue;
        s->tensors[s->count] = tensor_of(path, entry, LENGTH_BYTES + length);
        s->tensors[s->count++].file = s->files;
    }
    check_places(path, s->tensors + before, s->count - before, LENGTH_BYTES + length, status.st_size);
    s->file = realloc(s->file, (s->files + 1) * sizeof *s->file);
    s->file[s->files++] = f;
    cJSON_Delete(header);
    free(text);
}

Safetensors safetensors_open(const char *path)
{
    Safetensors s = {0};

    add_file(&s, path);
    return s;
}

/* Returns the path that the index gives for a tensor; the caller frees it. NULL: it names no such tensor. */
static char *path_in(const char *directory, const char *index, const cJSON *map, const char *name)
{
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(map, name);

    if (!file)
        return NULL;
    if (!cJSON_IsString(file) || strchr(file->valuestring, '/'))
        fail("%s: %s: expected the name of a file beside it, got %s", index, name, cJSON_PrintUnformatted(file));
    return new_text("%s/%s", directory, file->valuestring);
}

Safetensors safetensors_open_model(const char *directory)
{
    char *one = new_text("%s/model.safetensors", directory), *index = new_text("%s.index.json", one);
    Safetensors s = {0};
    const cJSON *entry;
    int kept = 0;

    if (access(one, F_OK) && access(index, F_OK))
        fail("%s: it has neither model.safetensors nor model.safetensors.index.json; "
             "save_pretrained(DIR, safe_serialization=True) writes one of them", directory);
    if (access(one, F_OK) == 0) {
        add_file(&s, one);
        free(one), free(index);
        return s;
    }
    cJSON *json = json_read(index);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    cJSON_ArrayForEach(entry, map) {
        char *path = path_in(directory, index, map, entry->string);
        bool open = false;
        for (int f = 0; f < s.files; f++)
            open |= !strcmp(path, s.file[f].path);
        if (!open)
            add_file(&s, path);
        free(path);
    }
    for (int i = 0; i < s.count; i++) {         /* a file may have tensors that the index takes from another, or not */
        char *path = path_in(directory, index, map, s.tensors[i].name);
        if (path && !strcmp(path, safetensors_path(&s, &s.tensors[i])))
            s.tensors[kept++] = s.tensors[i];
        free(path);
    }
    s.count = kept;
    cJSON_ArrayForEach(entry, map)
        if (!safetensors_find(&s, entry->string))
            fail("%s: %s should be in %s, which does not have it", index, entry->string, entry->valuestring);
    cJSON_Delete(json);
    free(one), free(index);
    return s;
}

const SafeTensor *safetensors_find(const Safetensors *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->tensors[i].name, name))
            return &s->tensors[i];
    return NULL;
}

void safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, double *to)
{
    const int size = element_bytes(t->dtype);
    const bool integer = !strcmp(t->dtype, "I64"), f16 = !strcmp(t->dtype, "F16");
    const char *path = safetensors_path(s, t);
    void *stored = host_alloc(count * size, path);

    if (!size)
        fail("%s: %s has type %s; these programs read F64, F32, F16, BF16 and I64", path, t->name, t->dtype);
    if (first < 0 || (first + count) * size > t->bytes)
        fail("%s: %s ends before element %lld", path, t->name, (long long)(first + count));
    move_bytes(&s->file[t->file], false, t->first_byte + first * size, count * size, stored);
    for (int64_t i = 0; i < count; i++)
        to[i] = integer ? ((int64_t *)stored)[i] : size == 8 ? ((double *)stored)[i] : size == 4 ? ((float *)stored)[i]
                : f16 ? float_of_f16(((uint16_t *)stored)[i]) : float_of_bf16(((uint16_t *)stored)[i]);
    free(stored);
}

/* ---- Writing ---- */

Safetensors safetensors_create(const char *path, const SafeTensor *tensors, int count)
{
    Safetensors s = {.count = count, .files = 1, .written = true};
    char *text;
    size_t length;
    int64_t end = 0;
    FILE *out = open_memstream(&text, &length);

    s.tensors = host_alloc(count * sizeof *tensors, path);
    memcpy(s.tensors, tensors, count * sizeof *tensors);
    s.file = host_alloc(sizeof *s.file, path);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
    for (SafeTensor *t = s.tensors; t < s.tensors + count; t++) {
        t->first_byte = end, t->bytes = element_bytes(t->dtype);
        fprintf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (int d = 0; d < t->dims; d++) {
            fprintf(out, "%s%lld", d ? "," : "", (long long)t->shape[d]);
            t->bytes *= t->shape[d];
        }
        end += t->bytes;
        fprintf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)t->first_byte, (long long)end);
    }
    fputc('}', out);
    while (ftell(out) % 8)
        fputc(' ', out);                        /* data starts at a multiple of 8 */
    fclose(out);
    for (int i = 0; i < count; i++)
        s.tensors[i].first_byte += LENGTH_BYTES + length;
    *s.file = (struct SafeFile){new_text("%s", path), open(path, O_WRONLY | O_CREAT, 0666)};
    if (s.file->descriptor < 0)
        fail("%s cannot be written: %s", path, strerror(errno));
    move_bytes(s.file, true, 0, LENGTH_BYTES, &(uint64_t){length});
    move_bytes(s.file, true, LENGTH_BYTES, length, text);
    const int64_t bytes = LENGTH_BYTES + length + end;
    if (ftruncate(s.file->descriptor, bytes) && errno != EINVAL)        /* cuts what an earlier file had */
        fail("%s cannot be extended to %lld bytes: %s", path, (long long)bytes, strerror(errno));
    free(text);
    return s;
}

void safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from)
{
    const int size = element_bytes(t->dtype);

    move_bytes(&s->file[t->file], true, t->first_byte + first * size, count * size, (void *)from);
}

void safetensors_close(Safetensors *s)
{
    for (int f = 0; f < s->files; f++) {
        if (s->written && fsync(s->file[f].descriptor) && errno != EROFS && errno != EINVAL)    /* EINVAL: a pipe */
            fail("%s cannot be written to the disk: %s", s->file[f].path, strerror(errno));
        close(s->file[f].descriptor);
        free(s->file[f].path);
    }
    free(s->file);
    free(s->tensors);
}
