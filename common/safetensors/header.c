/* Reads the header of a safetensors file, whoever wrote it: JSON with each tensor's dtype, shape and place. Checks each
 * tensor by itself, then all together.
 */
#include "header.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HEADER_LIMIT 100000000                  /* as in the reference implementation */
#define EXACT_LIMIT ((int64_t)1 << 53)          /* from here on, a double no longer holds every integer */

/* Describes an item for messages: the value of a number, the kind of anything else. */
static const char *describe(const cJSON *item, char text[32])
{
    if (cJSON_IsNumber(item))
        snprintf(text, 32, "%.17g", item->valuedouble);
    else
        snprintf(text, 32, "%s", !item ? "missing" : cJSON_IsString(item) ? "a string" :
                 cJSON_IsArray(item) ? "an array" : cJSON_IsObject(item) ? "an object" :
                 cJSON_IsNull(item) ? "null" : "true or false");
    return text;
}

static bool is_integer(const cJSON *item, int64_t *n)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < EXACT_LIMIT))
        return false;
    *n = (int64_t)item->valuedouble;
    return *n == item->valuedouble;
}

/* Parses the header, `bytes` bytes of JSON, to *header. */
static char *parse_header(const Safetensors *s, const char *text, int64_t bytes, cJSON **header)
{
    const char *end = text;

    if (text[0] != '{')
        return problem(s->path, "the header, of %lld bytes, does not begin with '{': it must be a JSON object",
                       (long long)bytes);
    *header = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
    if (!*header)
        return problem(s->path, "the header, of %lld bytes, is not JSON from its byte %lld on, or nested too deep",
                       (long long)bytes, (long long)(end - text));
    end += strspn(end, " ");
    if (end < text + bytes)
        return problem(s->path, "the header's object is followed by \"%.20s\" at byte %lld of %lld, but only spaces "
                       "may follow it", end, (long long)(end - text), (long long)bytes);
    return NULL;
}

/* Reads the header to *header, the byte at which data starts, and the length of the file. */
static char *read_header(const Safetensors *s, cJSON **header, int64_t *data_start, int64_t *file_bytes)
{
    struct stat status;
    uint64_t header_bytes;

    if (s->file < 0 || fstat(s->file, &status) < 0)
        return problem(s->path, "cannot be opened for reading: %s", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return problem(s->path, "is %s, but a file is needed",
                       S_ISDIR(status.st_mode) ? "a directory" : "a device, pipe or socket");
    if (status.st_size < LENGTH_BYTES)
        return problem(s->path, "the file has %lld bytes, but the header's length alone takes %d",
                       (long long)status.st_size, LENGTH_BYTES);
    char *wrong = read_bytes(s, 0, LENGTH_BYTES, &header_bytes);
    if (wrong)
        return wrong;
    if (header_bytes > (uint64_t)status.st_size - LENGTH_BYTES)
        return problem(s->path, "the header claims %llu bytes, but the file has %lld after the first %d",
                       (unsigned long long)header_bytes, (long long)status.st_size - LENGTH_BYTES, LENGTH_BYTES);
    if (header_bytes > HEADER_LIMIT)
        return problem(s->path, "the header claims %llu bytes, but a header has at most %d",
                       (unsigned long long)header_bytes, HEADER_LIMIT);
    *data_start = LENGTH_BYTES + (int64_t)header_bytes;
    *file_bytes = status.st_size;

    char *text = have(calloc(header_bytes + 1, 1));
    wrong = read_bytes(s, LENGTH_BYTES, header_bytes, text);
    if (!wrong)
        wrong = parse_header(s, text, header_bytes, header);
    free(text);
    return wrong;
}

static char *read_dtype(const Safetensors *s, const cJSON *entry, SafeTensor *t)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    char text[32];

    if (!cJSON_IsString(dtype))
        return problem(s->path, "%.80s: dtype is %s, but a string is needed", t->name, describe(dtype, text));
    if (!element_bytes(dtype->valuestring))
        return problem(s->path, "%.80s: dtype is %.20s, but the known ones are F64, F32, F16, BF16, I64, I32, I16, I8, "
                       "U8, BOOL, F8_E4M3 and F8_E5M2", t->name, dtype->valuestring);
    strcpy(t->dtype, dtype->valuestring);
    return NULL;
}

/* Reads the shape, and computes the tensor's bytes from dtype and shape. */
static char *read_shape(const Safetensors *s, const cJSON *entry, SafeTensor *t)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *length;
    char text[32];

    if (!cJSON_IsArray(shape))
        return problem(s->path, "%.80s: shape is %s, but an array is needed", t->name, describe(shape, text));
    t->dims = cJSON_GetArraySize(shape);
    if (t->dims > 4)
        return problem(s->path, "%.80s: shape has %d dimensions, but there can be at most 4", t->name, t->dims);
    t->bytes = element_bytes(t->dtype);
    int i = 0;
    cJSON_ArrayForEach(length, shape) {
        if (!is_integer(length, &t->shape[i]))
            return problem(s->path, "%.80s: shape[%d] is %s, but an integer from 0 to 2^53 - 1 is needed", t->name,
                           i, describe(length, text));
        if (__builtin_mul_overflow(t->bytes, t->shape[i], &t->bytes))
            return problem(s->path, "%.80s: the shape up to shape[%d], which is %lld, takes more than 2^63 - 1 bytes",
                           t->name, i, (long long)t->shape[i]);
        i++;
    }
    return NULL;
}

static char *read_offsets(const Safetensors *s, const cJSON *entry, SafeTensor *t, int64_t data_start,
                          int64_t data_bytes)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets"), *offset;
    int64_t limits[2];
    char text[32];

    if (!cJSON_IsArray(offsets))
        return problem(s->path, "%.80s: data_offsets is %s, but an array is needed", t->name, describe(offsets, text));
    if (cJSON_GetArraySize(offsets) != 2)
        return problem(s->path, "%.80s: data_offsets has %d numbers, but 2 are needed: begin and end", t->name,
                       cJSON_GetArraySize(offsets));
    int i = 0;
    cJSON_ArrayForEach(offset, offsets) {
        if (!is_integer(offset, &limits[i]))
            return problem(s->path, "%.80s: data_offsets[%d] is %s, but an integer from 0 to 2^53 - 1 is needed",
                           t->name, i, describe(offset, text));
        i++;
    }
    const int64_t begin = limits[0], end = limits[1];
    if (begin > end)
        return problem(s->path, "%.80s: data_offsets begin at %lld, after their end at %lld", t->name, (long long)begin,
                       (long long)end);
    if (end > data_bytes)
        return problem(s->path, "%.80s: data_offsets end at %lld, but the file has %lld bytes of data", t->name,
                       (long long)end, (long long)data_bytes);
    if (end - begin != t->bytes)
        return problem(s->path, "%.80s: data_offsets are %lld bytes apart, but dtype %s and the shape give %lld",
                       t->name, (long long)(end - begin), t->dtype, (long long)t->bytes);
    t->first_byte = data_start + begin;
    return NULL;
}

static char *read_tensor(const Safetensors *s, const cJSON *entry, SafeTensor *t, int64_t data_start,
                         int64_t data_bytes)
{
    char text[32];

    if (!cJSON_IsObject(entry))
        return problem(s->path, "%.80s is %s, but an object is needed", t->name, describe(entry, text));
    char *wrong = read_dtype(s, entry, t);
    if (!wrong)
        wrong = read_shape(s, entry, t);
    if (!wrong)
        wrong = read_offsets(s, entry, t, data_start, data_bytes);
    /* All three are present: a fourth field is unknown, or repeats one of them. */
    if (!wrong && cJSON_GetArraySize(entry) != 3)
        wrong = problem(s->path, "%.80s has %d fields, but dtype, shape and data_offsets, once each, are needed",
                        t->name, cJSON_GetArraySize(entry));
    return wrong;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

/* Orders tensors by first byte; of those that begin at the same byte, empty ones come first. */
static int by_first_byte(const void *a, const void *b)
{
    const SafeTensor *s = a, *t = b;

    if (s->first_byte != t->first_byte)
        return s->first_byte < t->first_byte ? -1 : 1;
    return s->bytes != t->bytes ? (s->bytes < t->bytes ? -1 : 1) : by_name(a, b);
}

/* Fills in s->tensors, each checked by itself, and s->checkpoint from the metadata. */
static char *read_tensors(Safetensors *s, const cJSON *header, int64_t data_start, int64_t data_bytes)
{
    const cJSON *entry, *metadata = cJSON_GetObjectItemCaseSensitive(header, METADATA);
    const char *checkpoint = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, CHECKPOINT));
    char *wrong = NULL;

    s->checkpoint = checkpoint ? have(strdup(checkpoint)) : NULL;
    s->tensors = have(calloc(cJSON_GetArraySize(header) + 1, sizeof *s->tensors));
    cJSON_ArrayForEach(entry, header)
        if (!wrong && strcmp(entry->string, METADATA)) {
            SafeTensor *t = &s->tensors[s->count++];
            t->name = have(strdup(entry->string));
            wrong = read_tensor(s, entry, t, data_start, data_bytes);
        }
    return wrong;
}

/* Checks the tensors together: names, overlaps, holes. Leaves them ordered by first_byte. */
static char *check_together(Safetensors *s, int64_t data_start, int64_t file_bytes)
{
    int64_t end = data_start;

    qsort(s->tensors, s->count, sizeof *s->tensors, by_name);
    for (int i = 1; i < s->count; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return problem(s->path, "%.80s is there twice", s->tensors[i].name);

    qsort(s->tensors, s->count, sizeof *s->tensors, by_first_byte);
    for (int i = 0; i < s->count; i++) {
        const SafeTensor *t = &s->tensors[i];

        if (t->first_byte < end)
            return problem(s->path, "%.80s and %.80s overlap: one ends at byte %lld of the data, the other begins at "
                           "%lld", t[-1].name, t->name, (long long)(end - data_start),
                           (long long)(t->first_byte - data_start));
        if (t->first_byte > end)
            return problem(s->path, "a hole before %.80s: it begins at byte %lld of the data, but should at %lld",
                           t->name, (long long)(t->first_byte - data_start), (long long)(end - data_start));
        end += t->bytes;
    }
    if (end != file_bytes)
        return problem(s->path, "the file has %lld bytes, but the last tensor ends at byte %lld: nothing may follow",
                       (long long)file_bytes, (long long)end);
    return NULL;
}

char *header_read(Safetensors *s)
{
    cJSON *header = NULL;
    int64_t data_start = 0, file_bytes = 0;
    char *wrong = read_header(s, &header, &data_start, &file_bytes);

    if (!wrong)
        wrong = read_tensors(s, header, data_start, file_bytes - data_start);
    if (!wrong)
        wrong = check_together(s, data_start, file_bytes);
    cJSON_Delete(header);
    return wrong;
}
