/* Tests the safetensors reader and writer: files are read back as they were written, and for every hostile file the
 * program ends with one clear line. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../common/run/safetensors.h"
#include "../harness.h"

static const char *path;                /* the test's file */

/* Writes a file: the header's length, the header, `data_bytes` zeros. */
static void write_header(uint64_t length, const char *header, int64_t data_bytes)
{
    FILE *f = fopen(path, "wb");

    fwrite(&length, sizeof length, 1, f);
    fputs(header, f);
    fflush(f);
    assert_int_equal(ftruncate(fileno(f), ftell(f) + data_bytes), 0);
    fclose(f);
}

/* Fails unless the function ends the program with one line, which begins with the path and contains the words. */
static void assert_fails(void (*function)(const void *), const char *at, const char *words)
{
    Result r = run_function(function, at);

    if (r.status != 1 || strncmp(r.err, "ultrascale: ", 12) || strncmp(r.err + 12, at, strlen(at))
        || strchr(r.err, '\n') != r.err + strlen(r.err) - 1 || !strstr(r.err, words))
        fail_msg("expected status 1 and \"%s\", got %d and %s", words, r.status, r.err);
    result_free(r);
}

/* ---- Files that are read back ---- */

/* The first tensor has more than 2^32 bytes. Nothing is written to it, so the file is sparse. */
enum { LARGE, DOUBLES, FLOATS, F16S, BF16S, INTEGERS, TENSORS };
static const SafeTensor layout[TENSORS] = {{.name = "large", .dtype = "F32", .dims = 2, .shape = {100000, 20000}},
                                           {.name = "a", .dtype = "F64", .dims = 2, .shape = {3, 2}},
                                           {.name = "b", .dtype = "F32", .dims = 1, .shape = {6}},
                                           {.name = "c", .dtype = "F16", .dims = 4, .shape = {1, 3, 1, 2}},
                                           {.name = "d", .dtype = "BF16", .dims = 3, .shape = {2, 3, 1}},
                                           {.name = "e", .dtype = "I64", .dims = 1, .shape = {6}}};
static const float floats[6] = {1, -2.5f, 3.4e38f, 1e-45f, 0, 3.14159274f};
static const uint16_t f16s[6] = {0x3c00, 0xc200, 0x0001, 0x7bff, 0xfc00, 0x8000};
static const uint16_t bf16s[6] = {0x3f80, 0xc040, 0x0001, 0x7f80, 0x8000, 0x4049};
static const int64_t integers[6] = {INT64_MIN, -1, 0, 1, (1ll << 53) + 1, INT64_MAX};
static const double numbers[][6] = {[DOUBLES] = {1.0 / 3, 1e308, 0x1p-1074, -INFINITY, -0.0, 2},
                                    {1, -2.5, 3.4e38f, 1e-45f, 0, 3.14159274f},
                                    {1, -3, 0x1p-24, 65504, -INFINITY, -0.0},           /* what f16s stand for */
                                    {1, -3, 0x1p-133, INFINITY, -0.0, 3.140625},        /* bf16s */
                                    {-0x1p63, -1, 0, 1, 0x1p53, 0x1p63}};               /* integers, rounded */
static const void *const data[TENSORS] = {NULL, numbers[DOUBLES], floats, f16s, bf16s, integers};

/* Two ranks write the file: rank 0 elements 0 and 1 of each tensor, rank 1 the others. */
static void write_all(void)
{
    for (int rank = 0; rank < 2; rank++) {
        Safetensors s = safetensors_create(path, layout, TENSORS);
        for (int i = TENSORS - 1; i > LARGE; i--)
            safetensors_write(&s, &s.tensors[i], 2 * rank, rank ? 4 : 2,
                              (const char *)data[i] + 2 * rank * s.tensors[i].bytes / 6);
        safetensors_close(&s);
    }
}

static void files_are_read_back(void **state)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"large\":{\"dtype\":\"F32\",\"shape\":[100000,20000],\"data_offsets\":[0,8000000000]},\"a\":{";
    struct { uint64_t length; char text[512]; } begin;
    double found[6];

    write_all();
    Safetensors s = safetensors_open(path);
    assert_true(pread(s.file->descriptor, &begin, sizeof begin, 0) > 0 && begin.length % 8 == 0);
    assert_memory_equal(begin.text, header, strlen(header));
    assert_int_equal(s.count, TENSORS);
    assert_null(safetensors_find(&s, "f"));
    for (int i = 0; i < TENSORS; i++) {
        const SafeTensor *t = safetensors_find(&s, layout[i].name);
        assert_true(t == &s.tensors[i] && !strcmp(t->dtype, layout[i].dtype) && t->dims == layout[i].dims
                    && !memcmp(t->shape, layout[i].shape, sizeof t->shape));
        for (int first = 0; first < 6 && i != LARGE; first++) {
            safetensors_read(&s, t, first, 6 - first, found);
            assert_memory_equal(found, &numbers[i][first], 8 * (6 - first));
        }
    }
    safetensors_close(&s);
}

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define NAME_OF_96 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Other writers' headers: any order, spaces. Tensors that the programs do not read are there all the same, with their
 * dtype. */
static void foreign_files_are_read(void **state)
{
    static const char header[] =
        "{ \"b\": {\"data_offsets\": [8, 12], \"dtype\": \"BF16\", \"shape\": [1, 2.0]},\n"
        "\"__metadata__\": {\"format\": \"pt\"}," TENSOR("fp8", "F8_E4M3", "[8]", "[0,8]") ","
        TENSOR("unknown", "F128_OF_ANOTHER_TIME", "[1]", "[12,28]") "," TENSOR("deep", "F32", "[1,1,1,1,1]", "[28,32]")
        "," TENSOR(NAME_OF_96, "F32", "[1]", "[32,36]") "," TENSOR("\\u00fc", "F64", "[]", "[36,44]") ","
        TENSOR("empty", "F32", "[0,5]", "[8,8]") "}   ";
    static const char *const names[] = {"fp8", "empty", "b", "unknown", "deep", NULL, "\u00fc"};     /* by place */
    double two[2] = {1, 1};

    write_header(strlen(header), header, 44);
    Safetensors s = safetensors_open(path);
    assert_int_equal(s.count, 7);
    for (int i = 0; i < 7; i++)
        assert_true(!names[i] || safetensors_find(&s, names[i]) == &s.tensors[i]);
    const SafeTensor *b = safetensors_find(&s, "b");
    assert_int_equal(b->first_byte, 8 + strlen(header) + 8);
    assert_true(s.tensors[1].bytes == 0 && s.tensors[4].dims == 5 && s.tensors[6].dims == 0 && s.tensors[6].bytes == 8);
    assert_string_equal(s.tensors[0].dtype, "F8_E4M3");
    safetensors_read(&s, b, 0, 2, two);
    assert_true(two[0] == 0 && two[1] == 0);
    safetensors_close(&s);
}

/* ---- Files that are refused, and files that cannot be written ---- */

static const struct {
    const char *header;
    int64_t data_bytes;
    const char *words;
} hostile[] = {
    {"", 0, "no JSON object"},
    {"{\"a\":\"\\", 0, "no JSON object"},
    {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7, "its header describes 70 bytes, but it has only 69: was a copy or"},
    {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 9, "its header describes 70 bytes, but it has 71"},
    {"{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "a takes 8 bytes by dtype and shape, but has bytes 62 to 66"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "two tensors are named a"},
    {"{" TENSOR("b", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[8,12]") "}", 12, "a begins at byte "},
    {"{" TENSOR("b", "F32", "[2]", "[0,8]") "," TENSOR("a", "F32", "[2]", "[4,12]") "}", 12, "neither gaps nor over"},
    {"{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "a begins at byte "},
    {"{" TENSOR("a", "F16", "[3]", "[0,12]") "}", 12, "a takes 6 bytes"},
    {"{" TENSOR("a", "F32", "[1]", "[9007199254740987,9007199254740991]") "}", 4, "a begins at byte 90071992547410"},
    {"{" TENSOR("a", "F64", "[4294967296,4294967296,4294967296]", "[0,0]") "}", 0, "a takes 6338253001141147"},
    {"{" TENSOR("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, "a: shape and data_offsets must be integers"},
    {"{" TENSOR("a", "F32", "[-1,-1]", "[0,4]") "}", 4, "must be integers"},
    {"{" TENSOR("a", "F32", "[1.5]", "[0,4]") "}", 4, "must be integers"},
    {"{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "must be integers"},
    {"{" TENSOR("a", "F32", "[1]", "[4]") "}", 4, "must be integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "must be integers"},
    {"{\"a\":3}", 0, "must be integers"},
    {"{" TENSOR("a", "U8", "[1]", "[4,0]") "}", 4, "a takes"},
    {"{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 4, "a begins at byte"},
};

static void open_it(const void *at)
{
    safetensors_open(at);
}

static void read_too_much(const void *at)
{
    Safetensors s = safetensors_open(at);
    double x[7];

    safetensors_read(&s, &s.tensors[FLOATS], 0, 7, x);
}

static void read_fp8(const void *at)
{
    Safetensors s = safetensors_open(at);
    double x[8];

    safetensors_read(&s, &s.tensors[0], 0, 8, x);
}

static void create_it(const void *at)
{
    safetensors_create(at, layout, TENSORS);
}

/* The system writes the bytes up to its limit, then none: a short write, then an error. */
static void write_too_much(const void *at)
{
    Safetensors s = safetensors_create(at, layout, TENSORS);

    signal(SIGXFSZ, SIG_IGN);
    if (!setrlimit(RLIMIT_FSIZE, &(struct rlimit){s.tensors[DOUBLES].first_byte + 8, RLIM_INFINITY}))
        safetensors_write(&s, &s.tensors[DOUBLES], 0, 6, data[DOUBLES]);
}

static void failures_are_said(void **state)
{
    static const char fp8[] = "{" TENSOR("a", "F8_E4M3", "[8]", "[0,8]") "}";
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
    static char deep[1000001] = "{\"a\":";
    struct stat status;

    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        write_header(strlen(hostile[i].header), hostile[i].header, hostile[i].data_bytes);
        assert_fails(open_it, path, hostile[i].words);
    }
    write_file("x.safetensors", pointer, strlen(pointer));
    assert_fails(open_it, path, "this is Git LFS's pointer to the file, not the file itself; git lfs pull");
    write_header(strlen(fp8), fp8, 8);
    assert_fails(read_fp8, path, "a has type F8_E4M3; these programs read F64, F32, F16, BF16 and I64");
    memset(deep + 5, '[', sizeof deep - 6);
    write_header(sizeof deep - 1, deep, 0);
    assert_fails(open_it, path, "no JSON object");
    write_header(100000001, "{}", 200000000);
    assert_fails(open_it, path, "a header of at most 100000000 bytes, within the file's 200000010, got 100000001");
    write_header(UINT64_MAX, "{}", 0);
    assert_fails(open_it, path, "within the file's 10, got 18446744073709551615");
    write_all();
    assert_fails(read_too_much, path, "b ends before element 7");
    assert_int_equal(stat(path, &status), 0);
    for (int64_t length = status.st_size - 1; length >= 0; length -= length > 600 ? length - 600 : 3) {
        assert_int_equal(truncate(path, length), 0);
        assert_fails(open_it, path, "bytes");
    }
    assert_fails(open_it, temporary(), "expected a file");
    assert_fails(open_it, "/no/such/file", "No such file");
    assert_fails(create_it, temporary(), "cannot be written: Is a directory");
    assert_fails(create_it, "/dev/full", "cannot be written: No space left on device");
    assert_fails(write_too_much, path, "cannot be written: File too large");
}

/* ---- A model in several files ---- */

static const char *const indices[][2] = {           /* model.safetensors.index.json; its error, or NULL */
    {"{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}", NULL},
    {"{\"weight_map\": {\"a\": \"1.safetensors\", \"c\": \"2.safetensors\"}}",
     "c should be in 2.safetensors, which does not have it"},
    {"{\"weight_map\": {\"b\": \"../2.safetensors\"}}", "b: expected the name of a file beside it, got \"../2"},
    {"{\"weight_map\": {\"b\": 2}}", "b: expected the name of a file beside it, got 2"},
    {"{\"weight_map\": {\"a\": \"3.safetensors\"}}", "3.safetensors: No such file"},
    {"[]", "not a JSON object"},
};

static void open_model(const void *directory)
{
    safetensors_open_model(directory);
}

/* Each tensor comes from the file that the index names, though another file has one of this name. */
static void models_in_several_files(void **state)
{
    static const SafeTensor in_file[2][2] = {{{.name = "a", .dtype = "F64"}, {.name = "b", .dtype = "F64"}},
                                             {{.name = "b", .dtype = "F64"}, {.name = "a", .dtype = "F64"}}};
    const char *directory = temporary();
    double x;

    run_well("rm -f model.safetensors");
    for (int f = 0; f < 2; f++) {
        Safetensors s = safetensors_create(in_temporary("%d.safetensors", f + 1), in_file[f], 2);
        for (int i = 0; i < 2; i++)
            safetensors_write(&s, &s.tensors[i], 0, 1, &(double){10 * f + i});
        safetensors_close(&s);
    }
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        write_file("model.safetensors.index.json", indices[i][0], strlen(indices[i][0]));
        if (indices[i][1])
            assert_fails(open_model, directory, indices[i][1]);
        if (indices[i][1])
            continue;
        Safetensors s = safetensors_open_model(directory);
        assert_int_equal(s.count, 2);
        for (int k = 0; k < 2; k++) {
            safetensors_read(&s, safetensors_find(&s, k ? "b" : "a"), 0, 1, &x);
            assert_true(x == (k ? 10 : 0));
        }
        safetensors_close(&s);
    }
    run_well("rm model.safetensors.index.json");
    assert_fails(open_model, directory, "it has neither model.safetensors nor model.safetensors.index.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_read_back), cmocka_unit_test(foreign_files_are_read),
                                       cmocka_unit_test(failures_are_said), cmocka_unit_test(models_in_several_files)};

    path = in_temporary("x.safetensors");
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
