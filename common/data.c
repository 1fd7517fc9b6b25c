#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "allocate.h"
#include "device.h"
#include "error.h"
#include "options.h"
#include "random.h"

enum { HEADER_BYTES = 256 * 4, HEADER_MAGIC = 20240520, HEADER_VERSION = 1 };

static int file, width, first_byte; /* descriptor; bytes per token; where tokens begin */
static int64_t training, held_out;
static uint64_t hash;

/* Reads `count` tokens from number `first` on. Checks every id, because another program may overwrite the file during
 * the run, or cut it short. */
static void read_tokens(int64_t first, int64_t count, int32_t *to)
{
    enum { PIECE = 65536 };
    uint8_t bytes[PIECE];

    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < PIECE / width ? count - done : PIECE / width;
        if (pread(file, bytes, n * width, first_byte + (first + done) * width) != n * width)
            fail("--data %s: it was cut short while it was in use", options.data);
        for (int64_t i = 0; i < n; i++) {
            const int32_t id = width == 1 ? bytes[i] : bytes[2 * i] | bytes[2 * i + 1] << 8;
            if (id >= options.config.vocab)
                fail("--data %s: token %d, at position %lld, is not below --vocab %d%s", options.data, id,
                     (long long)(first + done + i), options.config.vocab,
                     hash ? "; it was at the start, so the file was overwritten during the run" : "");
            to[done + i] = id;
        }
    }
}

void data_open(void)
{
    const char *path = options.data, *dot = strrchr(path, '.');
    const int seq = options.config.seq;
    struct stat s;

    file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);       /* without waiting for a pipe's writer; refused below */
    if (file < 0 || fstat(file, &s))
        fail("--data %s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        fail("--data %s: expected a file of text or tokens, but this is %s", path,
             S_ISDIR(s.st_mode) ? "a directory" : "not a regular file");
    if (s.st_size == 0)
        fail("--data %s: the file is empty", path);

    int32_t header[3] = {0};
    if (pread(file, header, sizeof header, 0) < 0)
        fail("--data %s: %s", path, strerror(errno));
    const bool has_header = header[0] == HEADER_MAGIC;
    int64_t tokens = s.st_size;
    first_byte = 0, width = 1;
    if (has_header || (dot && !strcmp(dot, ".bin"))) {
        first_byte = has_header ? HEADER_BYTES : 0, width = 2;
        if (has_header && header[1] != HEADER_VERSION)
            fail("--data %s: expected version %d of the token header, got version %d", path, HEADER_VERSION, header[1]);
        if ((s.st_size - first_byte) % 2 || s.st_size < first_byte)
            fail("--data %s: %lld bytes are not a whole number of uint16 tokens after a header of %d bytes", path,
                 (long long)s.st_size, first_byte);
        tokens = (s.st_size - first_byte) / 2;
        if (has_header && header[2] != tokens)
            fail("--data %s: the header gives %d tokens, but the file has %lld", path, header[2], (long long)tokens);
    }
    held_out = tokens / 10;
    training = tokens - held_out;
    if (held_out <= seq)
        fail("--data %s: expected at least %lld tokens, so that the last tenth, for validation, exceeds --seq %d; got "
             "%lld tokens", path, 10ll * (seq + 1), seq, (long long)tokens);
    uint64_t sum = 14695981039346656037u;                       /* FNV-1a over the tokens */
    for (int64_t first = 0, n; first < tokens; first += n) {
        int32_t piece[16384];
        n = tokens - first < 16384 ? tokens - first : 16384;
        read_tokens(first, n, piece);
        for (int64_t i = 0; i < n; i++)
            sum = (sum ^ piece[i]) * 1099511628211u;
    }
    hash = sum;
}

uint64_t data_hash(void)
{
    return hash;
}

int64_t data_tokens(void)
{
    return training;
}

int64_t data_validation_tokens(void)
{
    return held_out;
}

const char *data_kind(void)
{
    return width == 1 ? "text, one token per byte" : "uint16 tokens";
}

Batch batch_create(void)
{
    const int64_t B = options.micro_batch, T = options.config.seq;

    return (Batch){tensor_create(MEM_WORKSPACE, I32, "inputs", shape(B, T)),
                   tensor_create(MEM_WORKSPACE, I32, "targets", shape(B, T))};
}

/* Fills row b of the B rows with the tokens from starts[b] on; a token's target is the next one. */
static void load(Batch batch, int64_t B, const int64_t *starts)
{
    const int64_t T = batch.inputs.shape[1];
    int32_t *host = host_alloc(2 * B * T * sizeof *host, "a batch"), *targets = host + B * T;

    for (int64_t b = 0; b < B; b++) {
        read_tokens(starts[b], T, host + b * T);
        read_tokens(starts[b] + 1, T, targets + b * T);
    }
    device_upload(batch.inputs.data, host, tensor_bytes(batch.inputs));
    device_upload(batch.targets.data, targets, tensor_bytes(batch.targets));
    free(host);
}

static int64_t start_of(int64_t step, int64_t sequence)
{
    return random_bits(options.seed, STREAM_BATCHES, step, sequence) % (uint64_t)(training - options.config.seq);
}

void batch_load(Batch batch, int64_t step, int64_t sequence, int64_t first)
{
    const int64_t B = batch.inputs.shape[0];
    int64_t starts[B];

    for (int64_t b = 0; b < B; b++)
        starts[b] = start_of(step, sequence + b) + first;
    load(batch, B, starts);
}

void data_sequence(int64_t step, int64_t g, int64_t *tokens)
{
    for (int t = 0; t <= options.config.seq; t++) {
        int32_t id;
        read_tokens(start_of(step, g) + t, 1, &id);
        tokens[t] = id;
    }
}

void batch_validation(Batch batch, int64_t i, int64_t pieces, int64_t first)
{
    const int64_t B = batch.inputs.shape[0], last = held_out - options.config.seq - 1, n = pieces * B;
    int64_t starts[B];

    for (int64_t b = 0; b < B; b++)             /* the first at the beginning, the last at the end */
        starts[b] = training + (n > 1 ? last * (i * B + b) / (n - 1) : 0) + first;
    load(batch, B, starts);
}

void batch_tokens(Batch batch, const int32_t *tokens)
{
    int32_t *none = host_alloc(tensor_bytes(batch.targets), "targets");

    memset(none, 0xff, tensor_bytes(batch.targets));            /* -1 */
    device_upload(batch.inputs.data, tokens, tensor_bytes(batch.inputs));
    device_upload(batch.targets.data, none, tensor_bytes(batch.targets));
    free(none);
}
