/* Fuzzes the safetensors reader: each input is a file. For a file that the reader accepts, all that safetensors.h says
 * must hold, and reading must be safe. Written and opened again, it must be the same. */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../common/safetensors.h"

enum { MOST_ELEMENTS = 10000 };         /* elements read per tensor: several pieces of a conversion */

/* Creates an empty file in memory; sets the path that opens it. */
static int memory_file(char path[32])
{
    const int file = memfd_create("fuzz_safetensors", 0);

    assert(file >= 0);
    snprintf(path, 32, "/proc/self/fd/%d", file);
    return file;
}

static int64_t element_bytes(const char *dtype)
{
    if (!strcmp(dtype, "BOOL") || !strncmp(dtype, "F8", 2))
        return 1;
    return strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : 1;
}

static void check_message(const char *message, const char *path)
{
    assert(!strncmp(message, path, strlen(path)));
    for (const char *c = message; *c; c++)
        assert(*c >= ' ' && *c <= '~');
}

/* Tensors follow one another without overlap or gap, up to the end of the file. */
static void check_layout(const Safetensors *s, int64_t file_bytes)
{
    int64_t end = s->count ? s->tensors[0].first_byte : file_bytes;

    assert(end >= 8);
    for (int i = 0; i < s->count; i++) {
        const SafeTensor *t = &s->tensors[i];
        int64_t bytes = element_bytes(t->dtype);

        assert(t->first_byte == end && t->bytes >= 0 && t->bytes <= file_bytes - end);
        assert(t->dims >= 0 && t->dims <= 4);
        for (int d = 0; d < t->dims; d++) {
            assert(t->shape[d] >= 0);
            bytes *= t->shape[d];
        }
        assert(t->bytes == bytes);
        assert(safetensors_find(s, t->name) == t);
        end += t->bytes;
    }
    assert(end == file_bytes);
}

static void check_reading(const Safetensors *s)
{
    static double to[MOST_ELEMENTS];

    for (int i = 0; i < s->count; i++) {
        const SafeTensor *t = &s->tensors[i];
        const bool readable = strstr("F64 F32 F16 BF16 I64", t->dtype);
        const int64_t elements = t->bytes / element_bytes(t->dtype);
        const int64_t count = elements < MOST_ELEMENTS ? elements : MOST_ELEMENTS;

        for (int double_out = 0; double_out < 2; double_out++) {
            char *wrong = safetensors_read(s, t, elements - count, count, to, double_out);

            assert(!wrong == readable);
            free(wrong);
            wrong = safetensors_read(s, t, 1, elements, to, double_out);
            assert(wrong);
            check_message(wrong, s->path);
            free(wrong);
        }
    }
}

static void check_round_trip(const Safetensors *s)
{
    char path[32];
    const int file = memory_file(path);
    Safetensors written, again;

    safetensors_lay_out(&written, path, s->tensors, s->count, s->checkpoint);
    assert(!safetensors_create(&written));
    assert(!safetensors_open(&again, path));
    assert(again.count == s->count);
    assert(!s->checkpoint == !again.checkpoint && (!s->checkpoint || !strcmp(s->checkpoint, again.checkpoint)));
    for (int i = 0; i < s->count; i++) {
        const SafeTensor *t = &s->tensors[i], *u = &again.tensors[i];

        assert(!strcmp(t->name, u->name) && !strcmp(t->dtype, u->dtype) && t->dims == u->dims && t->bytes == u->bytes);
        assert(!memcmp(t->shape, u->shape, sizeof t->shape));
        assert(u->first_byte == written.tensors[i].first_byte);
    }
    assert(!safetensors_close(&written, true));
    assert(!safetensors_close(&again, false));
    close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_bytes)
{
    char path[32];
    const int file = memory_file(path);
    Safetensors s;

    assert(write(file, input, input_bytes) == (ssize_t)input_bytes);
    char *wrong = safetensors_open(&s, path);
    if (wrong) {
        check_message(wrong, path);
        assert(s.file == -1 && s.count == 0 && !s.tensors && !s.path && !s.checkpoint);
        free(wrong);
    } else {
        check_layout(&s, input_bytes);
        check_reading(&s);
        check_round_trip(&s);
        assert(!safetensors_close(&s, false));
    }
    close(file);
    return 0;
}
