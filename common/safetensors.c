#include "safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "formats.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian; bytes are not swapped here");

#define LENGTH_BYTES 8                          /* of the header's length, at the start of the file */
#define HEADER_LIMIT 100000000                  /* as in the reference implementation */
#define EXACT_LIMIT ((int64_t)1 << 53)          /* from here on, a double no longer holds every whole number */
#define METADATA "__metadata__"
#define CHECKPOINT "checkpoint"                 /* the entry of METADATA that is ours */

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1}, {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

/* Bytes of an element; 0: there is no such dtype. */
static int element_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(dtype, dtypes[i].name))
            return dtypes[i].bytes;
    return 0;
}

/* The memory asked for, which is small next to a tensor: without it there is no message to hand back either. */
static void *have(void *memory)
{
    if (!memory) {
        fputs("safetensors: out of memory\n", stderr);
        abort();
    }
    return memory;
}

/* "PATH: what is wrong", in a new string. Names come from the file: whatever isn't plain ASCII turns into '?', so
 * that the message stays one line and cannot steer the terminal. */
__attribute__((format(printf, 2, 3)))
static char *problem(const char *path, const char *format, ...)
{
    char *what = NULL, *line = NULL;
    va_list values;

    va_start(values, format);
    if (vasprintf(&what, format, values) < 0)
        have(NULL);
    va_end(values);
    for (char *c = what; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    if (asprintf(&line, "%s: %s", path, what) < 0)
        have(NULL);
    free(what);
    return line;
}

static char *read_bytes(const Safetensors *s, int64_t first, int64_t bytes, void *to)
{
    /* A call may move less than it was asked to: never more than 2 GB, and less when a signal comes. */
    for (int64_t done = 0; done < bytes;) {
        const ssize_t n = pread(s->file, (char *)to + done, bytes - done, first + done);

        if (n > 0)
            done += n;
        else if (n == 0)
            return problem(s->path, "the file ends at byte %lld, but bytes up to %lld are needed: it was cut short "
                           "after it was opened", (long long)(first + done), (long long)(first + bytes));
        else if (errno != EINTR)
            return problem(s->path, "%lld bytes from byte %lld on cannot be read: %s", (long long)(bytes - done),
                           (long long)(first + done), strerror(errno));
    }
    return NULL;
}

static char *write_bytes(const Safetensors *s, int64_t first, int64_t bytes, const void *from)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t n = pwrite(s->file, (const char *)from + done, bytes - done, first + done);

        if (n > 0)
            done += n;
        else if (n == 0 || errno != EINTR)
            return problem(s->path, "%lld bytes from byte %lld on cannot be written: %s", (long long)(bytes - done),
                           (long long)(first + done), n ? strerror(errno) : "the system takes none");
    }
    return NULL;
}

static void close_file(Safetensors *s)
{
    if (s->file >= 0)
        close(s->file);
    s->file = -1;
}

static void release(Safetensors *s)
{
    close_file(s);
    for (int i = 0; i < s->count; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    free(s->checkpoint);
    free(s->path);
    *s = (Safetensors){.file = -1};
}

/* For messages: the value of a number, the kind of anything else. */
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

static bool whole_number(const cJSON *item, int64_t *n)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < EXACT_LIMIT))
        return false;
    *n = (int64_t)item->valuedouble;
    return *n == item->valuedouble;
}

/* Where an escape \u stands for NUL, or for nothing, which cJSON takes for NUL; it would end the name there, and two
 * names could look the same. NULL: nowhere. */
static const char *find_nul_escape(const char *text)
{
    for (const char *c = strchr(text, '\\'); c && c[1]; c = strchr(c + 2, '\\'))
        if (c[1] == 'u' && (strspn(c + 2, "0123456789abcdefABCDEF") < 4 || !strncmp(c + 2, "0000", 4)))
            return c;
    return NULL;
}

/* The header of `bytes` bytes as JSON, in *header. */
static char *parse_header(const Safetensors *s, const char *text, int64_t bytes, cJSON **header)
{
    const char *nul = memchr(text, '\0', bytes), *end = text;

    if (text[0] != '{')
        return problem(s->path, "the header, of %lld bytes, does not begin with '{': it must be a JSON object",
                       (long long)bytes);
    if (nul)
        return problem(s->path, "the header's byte %lld is NUL, which JSON does not have", (long long)(nul - text));
    nul = find_nul_escape(text);
    if (nul)
        return problem(s->path, "the header has the escape %.6s at its byte %lld, but four hexadecimal digits other "
                       "than 0000 must follow \\u", nul, (long long)(nul - text));
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

/* The header as JSON in *header, the byte of the file at which data starts, and the length of the file. */
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

static char *read_metadata(Safetensors *s, const cJSON *metadata)
{
    const cJSON *entry;
    char text[32];

    if (!cJSON_IsObject(metadata))
        return problem(s->path, METADATA " is %s, but an object of strings is needed", describe(metadata, text));
    cJSON_ArrayForEach(entry, metadata)
        if (!cJSON_IsString(entry))
            return problem(s->path, METADATA ": %.80s is %s, but a string is needed", entry->string,
                           describe(entry, text));
    entry = cJSON_GetObjectItemCaseSensitive(metadata, CHECKPOINT);
    if (entry)
        s->checkpoint = have(strdup(entry->valuestring));
    return NULL;
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

/* Also the bytes that dtype and shape give. */
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
        if (!whole_number(length, &t->shape[i]))
            return problem(s->path, "%.80s: shape[%d] is %s, but a whole number from 0 to 2^53 - 1 is needed", t->name,
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
        if (!whole_number(offset, &limits[i]))
            return problem(s->path, "%.80s: data_offsets[%d] is %s, but a whole number from 0 to 2^53 - 1 is needed",
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
    /* All three are there: one more is a stranger, or one of them again. */
    if (!wrong && cJSON_GetArraySize(entry) != 3)
        wrong = problem(s->path, "%.80s has %d fields, but dtype, shape and data_offsets, once each, are needed",
                        t->name, cJSON_GetArraySize(entry));
    return wrong;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

/* Of those that begin at the same byte, the empty ones come first. */
static int by_first_byte(const void *a, const void *b)
{
    const SafeTensor *s = a, *t = b;

    if (s->first_byte != t->first_byte)
        return s->first_byte < t->first_byte ? -1 : 1;
    if (s->bytes != t->bytes)
        return s->bytes < t->bytes ? -1 : 1;
    return by_name(a, b);
}

/* Fills in s->tensors, each good for itself. */
static char *read_tensors(Safetensors *s, const cJSON *header, int64_t data_start, int64_t data_bytes)
{
    const cJSON *entry;
    bool metadata = false;

    s->tensors = have(calloc(cJSON_GetArraySize(header) + 1, sizeof *s->tensors));
    cJSON_ArrayForEach(entry, header) {
        char *wrong;

        if (!strcmp(entry->string, METADATA)) {
            wrong = metadata ? problem(s->path, METADATA " is there twice") : read_metadata(s, entry);
            metadata = true;
        } else {
            SafeTensor *t = &s->tensors[s->count++];
            t->name = have(strdup(entry->string));
            wrong = read_tensor(s, entry, t, data_start, data_bytes);
        }
        if (wrong)
            return wrong;
    }
    return NULL;
}

/* Whether tensors, each good for itself, are also good together; leaves them ordered by first_byte. */
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

char *safetensors_open(Safetensors *s, const char *path)
{
    /* O_NONBLOCK changes nothing for a file, but keeps a pipe, refused a little later, from waiting for a writer. */
    return safetensors_take(s, path, open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

char *safetensors_take(Safetensors *s, const char *path, int file)
{
    cJSON *header = NULL;
    int64_t data_start = 0, file_bytes = 0;

    *s = (Safetensors){.path = have(strdup(path)), .file = file};
    char *wrong = read_header(s, &header, &data_start, &file_bytes);
    if (!wrong)
        wrong = read_tensors(s, header, data_start, file_bytes - data_start);
    if (!wrong)
        wrong = check_together(s, data_start, file_bytes);
    cJSON_Delete(header);
    if (wrong)
        release(s);
    return wrong;
}

const SafeTensor *safetensors_find(const Safetensors *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->tensors[i].name, name))
            return &s->tensors[i];
    return NULL;
}

static char *check_range(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count)
{
    const int64_t elements = t->bytes / element_bytes(t->dtype);

    if (first < 0 || count < 0 || first > elements || count > elements - first)
        return problem(s->path, "%.80s has %lld elements, but %lld from element %lld on were asked for", t->name,
                       (long long)elements, (long long)count, (long long)first);
    return NULL;
}

/* Reads numbers of one dtype as floats or doubles of another, a piece at a time. */
static char *read_converted(const Safetensors *s, const char *dtype, int64_t first_byte, int64_t count, void *to,
                            bool double_out)
{
    enum { PIECE = 4096 };
    union { double f64[PIECE]; float f32[PIECE]; uint16_t half[PIECE]; } piece = {{0}};
    const int size = element_bytes(dtype);
    const bool f16 = !strcmp(dtype, "F16");
    for (int64_t done = 0; done < count; done += PIECE) {
        const int64_t n = count - done < PIECE ? count - done : PIECE;
        char *wrong = read_bytes(s, first_byte + done * size, n * size, &piece);

        if (wrong)
            return wrong;
        for (int64_t i = 0; i < n; i++) {
            const double x = size == 8 ? piece.f64[i] : size == 4 ? piece.f32[i]
                             : f16 ? float_of_f16(piece.half[i]) : float_of_bf16(piece.half[i]);
            if (double_out)
                ((double *)to)[done + i] = x;
            else
                ((float *)to)[done + i] = (float)x;
        }
    }
    return NULL;
}

char *safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, void *to,
                       bool double_out)
{
    static const char *const readable[] = {"F64", "F32", "F16", "BF16"};
    const int size = element_bytes(t->dtype);
    const int64_t first_byte = t->first_byte + first * size;
    char *wrong = check_range(s, t, first, count);

    if (wrong)
        return wrong;
    if (!strcmp(t->dtype, "I64") || !strcmp(t->dtype, double_out ? "F64" : "F32"))
        return read_bytes(s, first_byte, count * size, to);
    for (size_t i = 0; i < sizeof readable / sizeof *readable; i++)
        if (!strcmp(t->dtype, readable[i]))
            return read_converted(s, t->dtype, first_byte, count, to, double_out);
    return problem(s->path, "%.80s is %s, but F64, F32, F16 or BF16 is needed", t->name, t->dtype);
}

static void put_quoted(const char *name, FILE *out)
{
    fputc('"', out);
    for (const char *c = name; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if ((unsigned char)*c < ' ')
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    fputc('"', out);
}

/* The header of tensors that are laid out, from whichever byte on. By hand, not by cJSON, whose numbers are doubles
 * and turn into 1e+15 when they grow. */
static char *header_text(const Safetensors *s, size_t *bytes)
{
    char *text = NULL;
    FILE *out = have(open_memstream(&text, bytes));

    fputs("{\"" METADATA "\":{\"format\":\"pt\"", out);
    if (s->checkpoint) {
        fputs(",\"" CHECKPOINT "\":", out);
        put_quoted(s->checkpoint, out);
    }
    fputc('}', out);
    for (int i = 0; i < s->count; i++) {
        const SafeTensor *t = &s->tensors[i];
        const int64_t begin = t->first_byte - s->tensors[0].first_byte;

        fputc(',', out);
        put_quoted(t->name, out);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (int d = 0; d < t->dims; d++)
            fprintf(out, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        fprintf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)(begin + t->bytes));
    }
    fputc('}', out);
    while (ftell(out) % 8)
        fputc(' ', out);
    if (fclose(out))
        have(NULL);
    return text;
}

void safetensors_lay_out(Safetensors *s, const char *path, const SafeTensor *tensors, int count,
                         const char *checkpoint)
{
    int64_t end = 0;
    size_t header_bytes;

    *s = (Safetensors){.path = have(strdup(path)), .file = -1, .count = count,
                       .checkpoint = checkpoint ? have(strdup(checkpoint)) : NULL,
                       .tensors = have(calloc(count + 1, sizeof *s->tensors))};
    for (int i = 0; i < count; i++) {
        SafeTensor *t = &s->tensors[i];

        *t = tensors[i];
        t->name = have(strdup(tensors[i].name));
        t->first_byte = end;
        t->bytes = element_bytes(t->dtype);
        assert(t->bytes && t->dims >= 0 && t->dims <= 4);
        for (int d = 0; d < t->dims; d++)
            t->bytes *= t->shape[d];
        end += t->bytes;
    }
    /* Offsets in the header count from where data starts, so its length is known before that is. */
    free(header_text(s, &header_bytes));
    for (int i = 0; i < count; i++)
        s->tensors[i].first_byte += LENGTH_BYTES + header_bytes;
}

/* The byte after the last tensor; 0: there is no tensor. */
static int64_t data_end(const Safetensors *s)
{
    return s->count ? s->tensors[s->count - 1].first_byte + s->tensors[s->count - 1].bytes : 0;
}

char *safetensors_create(Safetensors *s)
{
    s->file = open(s->path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (s->file < 0)
        return problem(s->path, "cannot be created: %s", strerror(errno));

    size_t header_bytes;
    char *text = header_text(s, &header_bytes);
    const uint64_t length = header_bytes;
    char *wrong = write_bytes(s, 0, LENGTH_BYTES, &length);
    if (!wrong)
        wrong = write_bytes(s, LENGTH_BYTES, header_bytes, text);
    if (!wrong && s->count && ftruncate(s->file, data_end(s)) < 0)
        wrong = problem(s->path, "cannot be given its %lld bytes: %s", (long long)data_end(s), strerror(errno));
    free(text);
    if (wrong)
        close_file(s);
    return wrong;
}

char *safetensors_join(Safetensors *s)
{
    struct stat status;
    char *wrong = NULL;

    /* O_WRONLY: of a file that may be read NFS's clients keep whole pages, and write their bytes over other ranks' */
    s->file = open(s->path, O_WRONLY | O_CLOEXEC);
    if (s->file < 0 || fstat(s->file, &status) < 0)
        wrong = problem(s->path, "cannot be opened for writing: %s", strerror(errno));
    else if (status.st_size < data_end(s))
        wrong = problem(s->path, "the file has %lld bytes, but its tensors end at byte %lld: it must be created before "
                        "others join", (long long)status.st_size, (long long)data_end(s));
    if (wrong)
        close_file(s);
    return wrong;
}

char *safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from)
{
    char *wrong = check_range(s, t, first, count);
    const int size = element_bytes(t->dtype);

    return wrong ? wrong : write_bytes(s, t->first_byte + first * size, count * size, from);
}

char *safetensors_close(Safetensors *s, bool sync)
{
    char *wrong = NULL;

    if (s->file >= 0) {
        if (sync && fsync(s->file) < 0)
            wrong = problem(s->path, "cannot be brought to the disk: %s", strerror(errno));
        /* After close, the descriptor is gone even if it failed. EINTR says nothing about the data. */
        if (close(s->file) < 0 && !wrong && errno != EINTR)
            wrong = problem(s->path, "cannot be closed: %s", strerror(errno));
        s->file = -1;
    }
    release(s);
    return wrong;
}
