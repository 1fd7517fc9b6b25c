/* Files of tensors, read and written by ranges of elements. header.c reads and checks headers. */
#include "../safetensors.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../formats.h"
#include "header.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian; bytes are not swapped here");

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1}, {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

int element_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(dtype, dtypes[i].name))
            return dtypes[i].bytes;
    return 0;
}

void *have(void *memory)
{
    if (!memory) {
        fputs("safetensors: out of memory\n", stderr);
        abort();
    }
    return memory;
}

char *problem(const char *path, const char *format, ...)
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

char *read_bytes(const Safetensors *s, int64_t first, int64_t bytes, void *to)
{
    /* A call may read less than it was asked to: never more than 2 GB, and less when a signal comes. */
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

char *safetensors_open(Safetensors *s, const char *path)
{
    /* O_NONBLOCK changes nothing for a file, but opening a pipe, which header_read refuses, would wait for a writer. */
    return safetensors_take(s, path, open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

char *safetensors_take(Safetensors *s, const char *path, int file)
{
    *s = (Safetensors){.path = have(strdup(path)), .file = file};
    char *wrong = header_read(s);
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

/* Reads numbers of a floating-point dtype and converts them to floats or doubles, a piece at a time. */
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
    const int size = element_bytes(t->dtype);
    const int64_t first_byte = t->first_byte + first * size;
    char *wrong = check_range(s, t, first, count);

    if (wrong)
        return wrong;
    if (!strcmp(t->dtype, "I64") || !strcmp(t->dtype, double_out ? "F64" : "F32"))
        return read_bytes(s, first_byte, count * size, to);
    if (strstr("F64 F32 F16 BF16", t->dtype))
        return read_converted(s, t->dtype, first_byte, count, to, double_out);
    return problem(s->path, "%.80s is %s, but F64, F32, F16 or BF16 is needed", t->name, t->dtype);
}

static void put_quoted(const char *name, FILE *out)
{
    cJSON *string = have(cJSON_CreateStringReference(name));
    char *quoted = have(cJSON_PrintUnformatted(string));

    fputs(quoted, out);
    free(quoted);
    cJSON_Delete(string);
}

/* Returns the header of tensors that are laid out, whichever byte they start at. Integers are not printed by cJSON,
 * which writes large ones as 1e+15. */
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
    /* The header's offsets count from the start of the data, so its length does not depend on its own length. */
    free(header_text(s, &header_bytes));
    for (int i = 0; i < count; i++)
        s->tensors[i].first_byte += LENGTH_BYTES + header_bytes;
}

/* Returns the byte after the last tensor; 0: there are no tensors. */
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
        wrong = problem(s->path, "cannot be extended to %lld bytes: %s", (long long)data_end(s), strerror(errno));
    free(text);
    if (wrong)
        close_file(s);
    return wrong;
}

char *safetensors_join(Safetensors *s)
{
    struct stat status;
    char *wrong = NULL;

    /* O_WRONLY: for a file that may be read, NFS clients cache full pages, and write them over other ranks' bytes */
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
            wrong = problem(s->path, "cannot be written to the disk: %s", strerror(errno));
        /* After close the descriptor is gone even if it failed. EINTR is no error of the data. */
        if (close(s->file) < 0 && !wrong && errno != EINTR)
            wrong = problem(s->path, "cannot be closed: %s", strerror(errno));
        s->file = -1;
    }
    release(s);
    return wrong;
}
