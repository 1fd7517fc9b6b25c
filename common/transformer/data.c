#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/allocate.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/options.h"
#include "../base/print.h"
#include "../base/random.h"

/* llm.c's headers of token files: 256 int32, the first ones magic, version and number of tokens. */
enum { HEADER_BYTES = 256 * 4 };

static int file, width, first_byte; /* descriptor; bytes per token; where tokens begin */
DataFile data_file;

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
            const uint8_t *b = bytes + i * width;
            const uint32_t id = b[0] | (width > 1 ? b[1] << 8 : 0)
                                | (width > 2 ? b[2] << 16 | (uint32_t)b[3] << 24 : 0);
            if (id >= (uint32_t)options.config.vocab)
                fail("--data %s, as %s: token %u, at position %lld, is not below --vocab %d", options.data,
                     data_file.kind, id, (long long)(first + done + i), options.config.vocab);
            to[done + i] = id;
        }
    }
}

/* Reads all tokens, checks and hashes them. Text has no byte 0; archives and arrays have. raw: the file does not say
 * how wide its tokens are; if every second one is 0, they are wider. */
static void check_all(int64_t tokens, bool raw)
{
    enum { PIECE = 16384 };             /* even */
    int32_t piece[PIECE], any[2] = {0};
    uint64_t sum = 14695981039346656037u;                       /* FNV-1a */
    bool zero = false;

    for (int64_t first = 0, n; first < tokens; first += n) {
        n = tokens - first < PIECE ? tokens - first : PIECE;
        read_tokens(first, n, piece);
        for (int64_t i = 0; i < n; i++) {
            sum = (sum ^ piece[i]) * 1099511628211u;
            any[i % 2] |= piece[i];
            zero |= piece[i] == 0;
        }
    }
    if (width == 1 ? zero : raw && any[0] && !any[1])
        fail("--data %s: this is neither text nor a token file; accepted are text without a byte 0, llm.c's files of "
             "tokens, and, named *.bin, uint16 tokens (uint32 if --vocab exceeds 65536)", options.data);
    data_file.hash = sum;
}

/* Returns the path of the text that comes with the project. The tree that has this program may have been copied from
 * the machine that built it, so it comes first. */
static const char *own_text(void)
{
    static const char name[] = "01_single_gpu/shakespeare.txt";
    char *above = realpath("/proc/self/exe", NULL), *end, *text;

    while (above && (end = strrchr(above, '/'))) {
        *end = 0;
        text = new_text("%s/%s", above, name);
        if (!access(text, F_OK))
            return text;
        free(text);
    }
    if (access(text = new_text(SOURCE "/%s", name), F_OK))
        fail("the project's own text, %s, is in no directory above this program, nor in " SOURCE ", where the program "
             "was built; --data FILE trains on another text", name);
    return text;
}

void data_open(void)
{
    options.data = options.data ? options.data : own_text();
    const char *path = options.data, *dot = strrchr(path, '.');
    const int seq = options.config.seq;
    static const char *const kinds[] = {[1] = "text, one token per byte", [2] = "uint16 tokens", [4] = "uint32 tokens"};
    int32_t begin[3] = {0};
    struct stat s;

    file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);       /* without waiting for a pipe's writer; refused below */
    if (file < 0 || fstat(file, &s))
        fail("--data %s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        fail("--data %s: expected a regular file of text or tokens, but this is none", path);
    if (pread(file, begin, sizeof begin, 0) < 0)
        fail("--data %s: %s", path, strerror(errno));
    const bool gpt2 = begin[0] == 20240520 && begin[1] == 1, llama3 = begin[0] == 20240801 && begin[1] == 7;
    const bool header = gpt2 || llama3;
    first_byte = header ? HEADER_BYTES : 0;
    width = 1;
    if (header)
        width = gpt2 ? 2 : 4;
    else if (dot && !strcmp(dot, ".bin"))
        width = options.config.vocab > 65536 ? 4 : 2;
    data_file.kind = kinds[width];
    const int64_t bytes = s.st_size - first_byte, tokens = bytes / width;
    const char *after = "";
    if (header)
        after = format_text(" after a header of %d bytes, which gives %d", HEADER_BYTES, begin[2]);
    if (bytes < 0 || bytes % width || (header && begin[2] != tokens))
        fail("--data %s: expected a whole number of %s%s, but the file has %lld bytes", path, data_file.kind, after,
             (long long)s.st_size);
    data_file.validation = tokens / 10;
    data_file.training = tokens - data_file.validation;
    if (data_file.validation <= seq)
        fail("--data %s: expected at least %lld tokens, so that the last tenth, for validation, exceeds --seq %d; got "
             "%lld tokens", path, 10ll * (seq + 1), seq, (long long)tokens);
    check_all(tokens, !header);
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
    return random_bits(options.seed, STREAM_BATCHES, step, sequence) % (data_file.training - options.config.seq);
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
    const int64_t B = batch.inputs.shape[0], n = pieces * B;
    const int64_t last = data_file.validation - options.config.seq - 1;
    int64_t starts[B];

    for (int64_t b = 0; b < B; b++)             /* the first at the beginning, the last at the end */
        starts[b] = data_file.training + (n > 1 ? last * (i * B + b) / (n - 1) : 0) + first;
    load(batch, B, starts);
}
