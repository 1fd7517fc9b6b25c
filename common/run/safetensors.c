#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/error.h"
#include "../base/formats.h"

enum { LENGTH_BYTES = 8, HEADER_LIMIT = 100000000 };            /* the limit: as in the reference implementation */

/* Returns the bytes of an element; 0: a dtype that these programs do not read. */
static int element_bytes(const char *dtype)
{
    return !strcmp(dtype, "F64") || !strcmp(dtype, "I64") ? 8
         : !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "F16") || !strcmp(dtype, "BF16") ? 2 : 0;
}

/* Reads or writes bytes of the file; a call moves at most 2 GB. */
static void move_bytes(const Safetensors *s, bool write, int64_t first, int64_t bytes, void *data)
{
    for (int64_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        const ssize_t n = write ? pwrite(s->file, at, bytes - done, first + done)
                                : pread(s->file, at, bytes - done, first + done);
        const char *why = n < 0 ? strerror(errno) : "the file ends before";
        if (n <= 0)
            fail("%s: %lld bytes from byte %lld on cannot be %s: %s", s->path, (long long)bytes, (long long)first,
                 write ? "written" : "read", why);
        done += n;
    }
}

/* ---- Reading ---- */

/* Returns entry i of a tensor's shape or data_offsets. */
static int64_t integer_of(const Safetensors *s, const char *name, const cJSON *array, int i)
{
    const cJSON *item = cJSON_GetArrayItem(array, i);
    const double x = cJSON_IsNumber(item) ? item->valuedouble : -1;

    if (x < 0 || x >= 0x1p53 || x != (int64_t)x)
        fail("%s: %s: shape and data_offsets must be integers from 0 on", s->path, name);
    return x;
}

/* Returns the tensor of an entry of the header. Of a dtype that these programs do not read, the size is not checked. */
static SafeTensor tensor_of(const Safetensors *s, const cJSON *entry, int64_t data, int64_t file_bytes)
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
        bytes *= t.shape[d] = integer_of(s, t.name, shape, d);
    t.first_byte = data + integer_of(s, t.name, offsets, 0);
    t.bytes = data + integer_of(s, t.name, offsets, 1) - t.first_byte;
    if (t.bytes < 0 || (known && t.bytes != bytes) || t.first_byte + t.bytes > file_bytes)
        fail("%s: %s takes %.0f bytes by dtype and shape, but has bytes %lld to %lld of %lld", s->path, t.name, bytes,
             (long long)t.first_byte, (long long)(t.first_byte + t.bytes), (long long)file_bytes);
    return t;
}

Safetensors safetensors_open(const char *path)
{
    Safetensors s = {.path = new_text("%s", path), .file = open(path, O_RDONLY | O_NONBLOCK)};
    uint64_t length;
    struct stat status;
    const cJSON *entry;

    if (s.file < 0 || fstat(s.file, &status))
        fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        fail("%s: expected a file", path);
    move_bytes(&s, false, 0, LENGTH_BYTES, &length);
    if (length > HEADER_LIMIT || (int64_t)length > status.st_size - LENGTH_BYTES)
        fail("%s: expected a header of at most %d bytes, within the file's %lld, got %llu", path, HEADER_LIMIT,
             (long long)status.st_size, (unsigned long long)length);
    char *text = host_alloc(length, path);
    move_bytes(&s, false, LENGTH_BYTES, length, text);
    cJSON *header = cJSON_ParseWithLength(text, length);
    if (!cJSON_IsObject(header))
        fail("%s: the header is no JSON object", path);
    s.tensors = host_alloc(cJSON_GetArraySize(header) * sizeof *s.tensors, path);
    cJSON_ArrayForEach(entry, header)
        if (strcmp(entry->string, "__metadata__"))
            s.tensors[s.count++] = tensor_of(&s, entry, LENGTH_BYTES + length, status.st_size);
    cJSON_Delete(header);
    free(text);
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
    void *stored = host_alloc(count * size, s->path);

    if (!size)
        fail("%s: %s has type %s; these programs read F64, F32, F16, BF16 and I64", s->path, t->name, t->dtype);
    if (first < 0 || (first + count) * size > t->bytes)
        fail("%s: %s ends before element %lld", s->path, t->name, (long long)(first + count));
    move_bytes(s, false, t->first_byte + first * size, count * size, stored);
    for (int64_t i = 0; i < count; i++)
        to[i] = integer ? ((int64_t *)stored)[i] : size == 8 ? ((double *)stored)[i] : size == 4 ? ((float *)stored)[i]
                : f16 ? float_of_f16(((uint16_t *)stored)[i]) : float_of_bf16(((uint16_t *)stored)[i]);
    free(stored);
}

/* ---- Writing ---- */

Safetensors safetensors_create(const char *path, const SafeTensor *tensors, int count)
{
    Safetensors s = {.path = new_text("%s", path), .count = count, .written = true};
    char *text;
    size_t length;
    int64_t end = 0;
    FILE *out = open_memstream(&text, &length);

    s.tensors = host_alloc(count * sizeof *tensors, path);
    memcpy(s.tensors, tensors, count * sizeof *tensors);
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
    s.file = open(path, O_WRONLY | O_CREAT, 0644);
    if (s.file < 0)
        fail("%s cannot be written: %s", path, strerror(errno));
    move_bytes(&s, true, 0, LENGTH_BYTES, &(uint64_t){length});
    move_bytes(&s, true, LENGTH_BYTES, length, text);
    if (ftruncate(s.file, LENGTH_BYTES + length + end) && errno != EINVAL)      /* cuts what an earlier file had */
        fail("%s cannot be extended to %lld bytes: %s", path, LENGTH_BYTES + length + (long long)end, strerror(errno));
    free(text);
    return s;
}

void safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from)
{
    const int size = element_bytes(t->dtype);

    move_bytes(s, true, t->first_byte + first * size, count * size, (void *)from);
}

void safetensors_close(Safetensors *s)
{
    if (s->written && fsync(s->file) && errno != EROFS && errno != EINVAL)      /* EINVAL: a pipe */
        fail("%s cannot be written to the disk: %s", s->path, strerror(errno));
    close(s->file);
    free(s->tensors);
    free(s->path);
}
