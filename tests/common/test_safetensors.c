/* Tests the safetensors reader and writer: files are read back as they were written, and the reader refuses every
 * hostile file with one clear line. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../common/formats.h"
#include "../../common/safetensors.h"

static char directory[] = "/tmp/test_safetensors.XXXXXX";
static char path[64];           /* the test's file, removed after each test */

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path) && errno != ENOENT;
}

/* Fails if there is an error message. */
static void assert_fine(char *message)
{
    if (message)
        fail_msg("%s", message);
}

/* Fails unless the message is one line that begins with the file's path and contains each word up to NULL. Frees it. */
static void assert_complains(char *message, const char *of_path, const char *const *words)
{
    assert_non_null(message);
    if (strncmp(message, of_path, strlen(of_path)) || strncmp(message + strlen(of_path), ": ", 2))
        fail_msg("\"%s\" does not begin with \"%s: \"", message, of_path);
    if (strchr(message, '\n'))
        fail_msg("\"%s\" has more than one line", message);
    for (; *words; words++)
        if (!strstr(message, *words))
            fail_msg("\"%s\" does not contain \"%s\"", message, *words);
    free(message);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Fails unless the reader refuses the file and leaves nothing open. */
static void assert_refused(const char *at_path, const char *const *words)
{
    Safetensors s;

    assert_complains(safetensors_open(&s, at_path), at_path, words);
    assert_int_equal(s.file, -1);
    assert_int_equal(s.count, 0);
    assert_null(s.tensors);
    assert_null(s.path);
}

/* Writes a file of these bytes, followed by `zeros` zeros. */
static void write_file(const void *bytes, size_t count, int64_t zeros)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), (int64_t)count + zeros), 0);
    assert_int_equal(fclose(f), 0);
}

/* Writes a file: the header's length, the header, `data_bytes` zeros. */
static void write_header(const char *header, size_t header_bytes, int64_t data_bytes)
{
    const uint64_t length = header_bytes;
    char *bytes = malloc(sizeof length + header_bytes);

    assert_non_null(bytes);
    memcpy(bytes, &length, sizeof length);
    memcpy(bytes + sizeof length, header, header_bytes);
    write_file(bytes, sizeof length + header_bytes, data_bytes);
    free(bytes);
}

static void assert_same_tensor(const SafeTensor *a, const SafeTensor *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->dtype, b->dtype);
    assert_int_equal(a->dims, b->dims);
    assert_int_equal(a->first_byte, b->first_byte);
    assert_int_equal(a->bytes, b->bytes);
    for (int d = 0; d < a->dims; d++)
        assert_int_equal(a->shape[d], b->shape[d]);
}

enum { SCALAR, EMPTY, FLOATS, INTS, DOUBLES, BYTES, TENSORS };

static const SafeTensor layout[TENSORS] = {
    [SCALAR] = {.name = "scalar", .dtype = "F64"},
    [EMPTY] = {.name = "empty", .dtype = "F32", .dims = 2, .shape = {0, 5}},
    [FLOATS] = {.name = "floats", .dtype = "F32", .dims = 2, .shape = {3, 2}},
    [INTS] = {.name = "ints", .dtype = "I64", .dims = 1, .shape = {3}},
    [DOUBLES] = {.name = "\"quotes\", \\ and \t, in UTF-8: \u00fc", .dtype = "F64", .dims = 4, .shape = {2, 1, 1, 2}},
    [BYTES] = {.name = "bytes", .dtype = "U8", .dims = 1, .shape = {3}},
};

static const double scalar = -0.1, doubles[4] = {1.0 / 3, DBL_MAX, 4.9e-324, -HUGE_VAL};
static const float floats[6] = {1, -2.5f, FLT_MAX, 1e-45f, 0, 3.14159274f};
static const int64_t ints[3] = {INT64_MIN, 0, INT64_MAX};
static const uint8_t bytes[3] = {1, 2, 255};

/* Writes the tensors of `layout` to the test's file, from the last to the first. */
static void write_all(void)
{
    const void *const data[TENSORS] = {&scalar, NULL, floats, ints, doubles, bytes};
    const int64_t counts[TENSORS] = {1, 0, 6, 3, 4, 3};
    Safetensors s;

    safetensors_lay_out(&s, path, layout, TENSORS, NULL);
    assert_fine(safetensors_create(&s));
    for (int i = TENSORS - 1; i >= 0; i--)
        assert_fine(safetensors_write(&s, &s.tensors[i], 0, counts[i], data[i]));
    assert_fine(safetensors_close(&s, true));
}

static void test_round_trip(void **state)
{
    Safetensors laid_out, s;
    struct stat status;
    double one, four[4];
    float six[6];
    int64_t three[3];

    (void)state;
    write_all();
    safetensors_lay_out(&laid_out, path, layout, TENSORS, NULL);
    assert_fine(safetensors_open(&s, path));
    assert_int_equal(s.count, TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        assert_ptr_equal(safetensors_find(&s, layout[i].name), &s.tensors[i]);
        assert_same_tensor(&s.tensors[i], &laid_out.tensors[i]);
    }
    assert_null(safetensors_find(&s, "scala"));
    assert_int_equal(s.tensors[0].first_byte % 8, 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777 & ~0644, 0);

    assert_fine(safetensors_read(&s, &s.tensors[SCALAR], 0, 1, &one, true));
    assert_memory_equal(&one, &scalar, sizeof one);
    assert_fine(safetensors_read(&s, &s.tensors[EMPTY], 0, 0, NULL, true));
    assert_fine(safetensors_read(&s, &s.tensors[FLOATS], 0, 6, six, false));
    assert_memory_equal(six, floats, sizeof six);
    assert_fine(safetensors_read(&s, &s.tensors[INTS], 0, 3, three, true));
    assert_memory_equal(three, ints, sizeof three);
    assert_fine(safetensors_read(&s, &s.tensors[DOUBLES], 0, 4, four, true));
    assert_memory_equal(four, doubles, sizeof four);
    assert_complains(safetensors_read(&s, &s.tensors[BYTES], 0, 3, four, true), path,
                     WORDS("bytes is U8, but F64, F32, F16 or BF16 is needed"));
    assert_fine(safetensors_close(&s, false));
    assert_fine(safetensors_close(&laid_out, false));
}

/* The count needs several pieces of the conversion, the last of them partial. */
static void test_conversion(void **state)
{
    enum { COUNT = 10001, DTYPES = 4 };
    static const char *const dtypes[DTYPES] = {"F64", "F32", "BF16", "F16"};
    static double numbers[DTYPES][COUNT], wide[COUNT];
    static float singles[COUNT], narrow[COUNT];
    static uint16_t halves[2][COUNT];
    const void *const data[DTYPES] = {numbers[0], singles, halves[0], halves[1]};
    SafeTensor all[DTYPES] = {{0}};
    Safetensors s;

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        const double x = numbers[0][i] = ldexp(i % 7 ? i / 7.0 : -i, i % 23 - 15);
        numbers[1][i] = singles[i] = (float)x;
        numbers[2][i] = float_of_bf16(halves[0][i] = bf16_of((real)x));
        numbers[3][i] = float_of_f16(halves[1][i] = f16_of((real)x));      /* some are subnormal */
    }
    for (int d = 0; d < DTYPES; d++) {
        all[d] = (SafeTensor){.name = (char *)dtypes[d], .dims = 1, .shape = {COUNT}};
        strcpy(all[d].dtype, dtypes[d]);
    }
    safetensors_lay_out(&s, path, all, DTYPES, NULL);
    assert_fine(safetensors_create(&s));
    for (int d = 0; d < DTYPES; d++)
        assert_fine(safetensors_write(&s, &s.tensors[d], 0, COUNT, data[d]));
    assert_fine(safetensors_close(&s, false));

    assert_fine(safetensors_open(&s, path));
    for (int d = 0; d < DTYPES; d++) {
        const SafeTensor *t = safetensors_find(&s, dtypes[d]);
        assert_fine(safetensors_read(&s, t, 0, COUNT, wide, true));
        assert_fine(safetensors_read(&s, t, 0, COUNT, narrow, false));
        for (int i = 0; i < COUNT; i++)
            assert_true(wide[i] == numbers[d][i] && narrow[i] == (float)numbers[d][i]);
        assert_fine(safetensors_read(&s, t, COUNT - 2, 2, wide, true));
        assert_true(wide[1] == numbers[d][COUNT - 1]);
    }
    assert_fine(safetensors_close(&s, false));
}

/* The expected numbers come from the formats' definitions, not from our conversions. */
static void test_halves(void **state)
{
    static const char header[] = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
                                 "\"h\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[8,18]}}";
    static const uint16_t bits[9] = {0x3f80, 0xc040, 0x0001, 0x7f80, 0x3c00, 0xc200, 0x0001, 0x7bff, 0xfc00};
    static const double expected[9] = {1, -3, 0x1p-133, HUGE_VAL, 1, -3, 0x1p-24, 65504, -HUGE_VAL};
    Safetensors s;
    double x[9];

    (void)state;
    write_header(header, sizeof header - 1, 18);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -18, SEEK_END), 0);
    assert_int_equal(fwrite(bits, sizeof *bits, 9, f), 9);
    assert_int_equal(fclose(f), 0);
    assert_fine(safetensors_open(&s, path));
    assert_fine(safetensors_read(&s, safetensors_find(&s, "b"), 0, 4, x, true));
    assert_fine(safetensors_read(&s, safetensors_find(&s, "h"), 0, 5, x + 4, true));
    assert_memory_equal(x, expected, sizeof x);
    assert_fine(safetensors_close(&s, false));
}

static void test_ranges_of_a_tensor(void **state)
{
    Safetensors s;
    double two[2];
    float three[3];
    int64_t one;

    (void)state;
    write_all();
    assert_fine(safetensors_open(&s, path));
    assert_fine(safetensors_read(&s, &s.tensors[FLOATS], 4, 2, two, true));
    assert_true(two[0] == floats[4] && two[1] == floats[5]);
    assert_fine(safetensors_read(&s, &s.tensors[FLOATS], 1, 3, three, false));
    assert_memory_equal(three, floats + 1, sizeof three);
    assert_fine(safetensors_read(&s, &s.tensors[INTS], 2, 1, &one, false));
    assert_true(one == INT64_MAX);
    assert_fine(safetensors_read(&s, &s.tensors[INTS], 3, 0, NULL, false));

    const int64_t outside[][2] = {{0, 7}, {6, 1}, {7, 0}, {-1, 1}, {0, -1}, {1, INT64_MAX}, {INT64_MAX, 1}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        assert_complains(safetensors_read(&s, &s.tensors[FLOATS], outside[i][0], outside[i][1], two, true), path,
                         WORDS("floats has 6 elements, but "));
        assert_complains(safetensors_write(&s, &s.tensors[FLOATS], outside[i][0], outside[i][1], two), path,
                         WORDS("floats has 6 elements, but "));
    }
    assert_fine(safetensors_close(&s, false));
}

static void test_two_writers(void **state)
{
    const SafeTensor both[2] = {{.name = "a", .dtype = "F32", .dims = 1, .shape = {6}},
                                {.name = "b", .dtype = "I64", .dims = 1, .shape = {3}}};
    Safetensors creator, writers[2], s;
    float six[6];
    int64_t three[3];

    (void)state;
    for (int r = 0; r < 2; r++)
        safetensors_lay_out(&writers[r], path, both, 2, NULL);
    assert_complains(safetensors_join(&writers[0]), path, WORDS("cannot be opened for writing: No such file"));
    write_file("", 0, 0);
    assert_complains(safetensors_join(&writers[0]), path, WORDS("the file has 0 bytes", "must be created before"));

    safetensors_lay_out(&creator, path, both, 2, NULL);
    assert_fine(safetensors_create(&creator));
    for (int r = 0; r < 2; r++)
        assert_fine(safetensors_join(&writers[r]));
    for (int r = 1; r >= 0; r--) {
        const int64_t first = 3 * r / 2, end = 3 * (r + 1) / 2;

        assert_fine(safetensors_write(&writers[r], &writers[r].tensors[1], first, end - first, ints + first));
        assert_fine(safetensors_write(&writers[r], &writers[r].tensors[0], 3 * r, 3, floats + 3 * r));
        assert_fine(safetensors_close(&writers[r], true));
    }
    assert_fine(safetensors_close(&creator, true));

    assert_fine(safetensors_open(&s, path));
    assert_fine(safetensors_read(&s, safetensors_find(&s, "a"), 0, 6, six, false));
    assert_memory_equal(six, floats, sizeof six);
    assert_fine(safetensors_read(&s, safetensors_find(&s, "b"), 0, 3, three, false));
    assert_memory_equal(three, ints, sizeof three);
    assert_fine(safetensors_close(&s, false));
}

/* A tensor of more than 2^32 bytes. The file is sparse: it takes no room on disk. */
static void test_large(void **state)
{
    const SafeTensor large = {.name = "large", .dtype = "F32", .dims = 2, .shape = {100000, 20000}};
    Safetensors s;
    float two[2];

    (void)state;
    safetensors_lay_out(&s, path, &large, 1, NULL);
    assert_fine(safetensors_create(&s));
    assert_fine(safetensors_write(&s, s.tensors, 1999999998, 2, floats));
    assert_fine(safetensors_close(&s, false));
    assert_fine(safetensors_open(&s, path));
    assert_int_equal(s.tensors[0].bytes, 8000000000);
    assert_fine(safetensors_read(&s, s.tensors, 1999999998, 2, two, false));
    assert_memory_equal(two, floats, sizeof two);
    assert_fine(safetensors_close(&s, false));
}

static void test_header_as_written(void **state)
{
    const SafeTensor two[2] = {{.name = "abc", .dtype = "F64", .dims = 2, .shape = {2, 3}},
                               {.name = "\"\\\t\u00fc", .dtype = "U8"}};
    const char expected[] = "{\"__metadata__\":{\"format\":\"pt\",\"checkpoint\":\"step \\\"1\\\"\"},"
                            "\"abc\":{\"dtype\":\"F64\",\"shape\":[2,3],\"data_offsets\":[0,48]},"
                            "\"\\\"\\\\\\t\u00fc\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[48,49]}}";
    Safetensors s;
    struct {
        uint64_t length;
        char text[256];
    } header = {0};

    (void)state;
    safetensors_lay_out(&s, path, two, 2, "step \"1\"");
    assert_fine(safetensors_create(&s));
    const int written = open(path, O_RDONLY);           /* s.file is open for writing only */
    assert_true(pread(written, &header, sizeof header, 0) > 0);
    close(written);
    assert_int_equal(header.length % 8, 0);
    assert_int_equal(s.tensors[0].first_byte, 8 + header.length);
    assert_memory_equal(header.text, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < header.length; i++)
        assert_int_equal(header.text[i], ' ');
    assert_fine(safetensors_close(&s, false));
    assert_fine(safetensors_open(&s, path));
    assert_string_equal(s.checkpoint, "step \"1\"");
    assert_fine(safetensors_close(&s, false));
}

/* Offsets of 10^15 and more are written as integers, not as 1e+15. */
static void test_offsets_are_exact(void **state)
{
    const SafeTensor two[2] = {{.name = "a", .dtype = "U8", .dims = 1, .shape = {3000000000000000}},
                               {.name = "b", .dtype = "U8"}};
    Safetensors s;
    char text[256] = "";

    (void)state;
    safetensors_lay_out(&s, path, two, 2, NULL);
    free(safetensors_create(&s));           /* the disk may refuse this length, after the header */
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 8, SEEK_SET), 0);
    assert_non_null(fgets(text, sizeof text, f));
    assert_int_equal(fclose(f), 0);
    assert_non_null(strstr(text, "\"shape\":[3000000000000000]"));
    assert_non_null(strstr(text, "\"data_offsets\":[3000000000000000,3000000000000001]"));
    assert_fine(safetensors_close(&s, false));
}

static void test_no_tensors(void **state)
{
    Safetensors s;

    (void)state;
    write_file("", 0, 100);                 /* must be overwritten */
    safetensors_lay_out(&s, path, NULL, 0, NULL);
    assert_fine(safetensors_create(&s));
    assert_fine(safetensors_close(&s, true));
    assert_fine(safetensors_open(&s, path));
    assert_int_equal(s.count, 0);
    assert_null(safetensors_find(&s, "a"));
    assert_fine(safetensors_close(&s, false));
    assert_fine(safetensors_close(&s, false));          /* already closed: no effect */
}

/* Other writers' headers: any order, spaces, metadata anywhere, integers with a decimal point. */
static void test_foreign_header(void **state)
{
    const char header[] = "{ \"b\": {\"data_offsets\": [8, 12], \"dtype\": \"BF16\", \"shape\": [1, 2]},\n"
                          "\"__metadata__\": {\"format\": \"pt\", \"empty\": \"\"},\n"
                          "\"\": {\"shape\": [2.0], \"data_offsets\": [0, 8], \"dtype\": \"F32\"},\n"
                          "\"z\": {\"shape\": [3, 0], \"data_offsets\": [8, 8], \"dtype\": \"F8_E4M3\"}}   ";
    Safetensors s;

    (void)state;
    write_header(header, sizeof header - 1, 12);
    assert_fine(safetensors_open(&s, path));
    assert_int_equal(s.count, 3);
    assert_string_equal(s.tensors[0].name, "");
    assert_string_equal(s.tensors[1].name, "z");
    assert_string_equal(s.tensors[2].name, "b");
    assert_int_equal(s.tensors[2].first_byte, 8 + sizeof header - 1 + 8);
    assert_int_equal(s.tensors[2].bytes, 4);
    assert_null(s.checkpoint);
    double one[2];
    assert_fine(safetensors_read(&s, &s.tensors[2], 0, 2, one, true));
    assert_true(one[0] == 0 && one[1] == 0);
    assert_fine(safetensors_close(&s, false));
}

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    int64_t data_bytes;
    const char *words[4];
} hostile[] = {
    {"", 0, {"header", "0 bytes", "must be a JSON object"}},
    {"[]", 0, {"must be a JSON object"}},
    {" {}", 0, {"does not begin with '{'"}},
    {"\xef\xbb\xbf{}", 0, {"does not begin with '{'"}},
    {"{", 0, {"not JSON", "of 1 bytes"}},
    {"{\"a\":", 0, {"not JSON"}},
    {"{\"a\" 1}", 0, {"not JSON", "byte 5"}},
    {"{\"a\":tru}", 0, {"not JSON"}},
    {"{\"a", 0, {"not JSON"}},
    {"{\"a\":\"\\", 0, {"not JSON"}},
    {"{}{}", 0, {"followed by \"{}\"", "byte 2 of 4", "only spaces"}},
    {"{} \n", 0, {"followed by \"?\"", "only spaces"}},

    {"{\"a\":[]}", 0, {"a is an array", "object is needed"}},
    {"{\"a\\n\\u001b[2J\":null}", 0, {"a??[2J is null", "object is needed"}},
    {"{\"a\":{}}", 0, {"a: dtype is missing"}},
    {"{\"a\":{\"dtype\":32}}", 0, {"a: dtype is 32", "string is needed"}},
    {"{\"a\":{\"DTYPE\":\"F32\"}}", 0, {"a: dtype is missing"}},
    {"{" TENSOR("a", "F128", "[1]", "[0,16]") "}", 16, {"a: dtype is F128", "known", "F8_E5M2"}},
    {"{" TENSOR("a", "F8_E4M3FNUZ", "[1]", "[0,1]") "}", 1, {"a: dtype is F8_E4M3FNUZ", "known"}},
    {"{" TENSOR("a", "", "[1]", "[0,1]") "}", 1, {"a: dtype is ,", "known"}},

    {"{\"a\":{\"dtype\":\"F32\"}}", 0, {"a: shape is missing"}},
    {"{" TENSOR("a", "F32", "4", "[0,16]") "}", 16, {"a: shape is 4", "array is needed"}},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1]", "[0,4]") "}", 4, {"a: shape has 5 dimensions", "at most 4"}},
    {"{" TENSOR("a", "F32", "[1,-1]", "[0,4]") "}", 4, {"a: shape[1] is -1", "an integer"}},
    {"{" TENSOR("a", "F32", "[1.5]", "[0,6]") "}", 6, {"a: shape[0] is 1.5", "an integer"}},
    {"{" TENSOR("a", "F32", "[1e400]", "[0,6]") "}", 6, {"a: shape[0] is inf", "an integer"}},
    {"{" TENSOR("a", "F32", "[9007199254740992,0]", "[0,0]") "}", 0, {"a: shape[0] is 9007199254740992", "2^53 - 1"}},
    {"{" TENSOR("a", "F32", "[\"1\"]", "[0,4]") "}", 4, {"a: shape[0] is a string", "an integer"}},
    {"{" TENSOR("a", "F32", "[true]", "[0,4]") "}", 4, {"a: shape[0] is true or false", "an integer"}},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296,4294967296]", "[0,0]") "}", 0,
     {"a: ", "shape[1]", "4294967296", "more than 2^63 - 1 bytes"}},
    {"{" TENSOR("a", "I8", "[4294967296,2147483648]", "[0,0]") "}", 0, {"a: ", "shape[1]", "more than 2^63 - 1 bytes"}},

    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, {"a: data_offsets is missing"}},
    {"{" TENSOR("a", "F32", "[]", "{}") "}", 4, {"a: data_offsets is an object", "array is needed"}},
    {"{" TENSOR("a", "F32", "[]", "[4]") "}", 4, {"a: data_offsets has 1 numbers", "2 are needed"}},
    {"{" TENSOR("a", "F32", "[]", "[0,4,8]") "}", 8, {"a: data_offsets has 3 numbers", "2 are needed"}},
    {"{" TENSOR("a", "F32", "[]", "[-4,0]") "}", 4, {"a: data_offsets[0] is -4", "an integer"}},
    {"{" TENSOR("a", "F32", "[]", "[0,4.5]") "}", 5, {"a: data_offsets[1] is 4.5", "an integer"}},
    {"{" TENSOR("a", "F32", "[]", "[0,1e300]") "}", 4, {"a: data_offsets[1] is 1", "an integer"}},
    {"{" TENSOR("a", "F32", "[]", "[0,null]") "}", 4, {"a: data_offsets[1] is null", "an integer"}},
    {"{" TENSOR("a", "F32", "[]", "[8,4]") "}", 8, {"a: data_offsets begin at 8, after their end at 4"}},
    {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7, {"a: data_offsets end at 8", "7 bytes of data"}},
    {"{" TENSOR("a", "F32", "[]", "[9007199254740987,9007199254740991]") "}", 4,
     {"a: data_offsets end at 9007199254740991", "4 bytes of data"}},
    {"{" TENSOR("a", "F32", "[3]", "[0,8]") "}", 8, {"a: data_offsets are 8 bytes apart", "F32", "give 12"}},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"shape\":[7]}}", 1,
     {"a has 4 fields", "once each"}},

    {"{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[4,12]") "}", 12,
     {"a and b overlap", "ends at byte 8", "begins at 4"}},
    {"{" TENSOR("a", "U8", "[8]", "[0,8]") "," TENSOR("b", "U8", "[0]", "[4,4]") "}", 8, {"a and b overlap"}},
    {"{" TENSOR("a", "U8", "[8]", "[0,8]") "," TENSOR("b", "U8", "[8]", "[0,8]") "}", 8, {"a and b overlap"}},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[8,12]") "}", 12,
     {"hole before b", "begins at byte 8", "should at 4"}},
    {"{" TENSOR("a", "U8", "[4]", "[1,5]") "}", 5, {"hole before a", "begins at byte 1", "should at 0"}},
    {"{" TENSOR("a", "U8", "[]", "[0,1]") "," TENSOR("b", "U8", "[]", "[1,2]") "," TENSOR("a", "U8", "[]", "[2,3]") "}",
     3, {"a is there twice"}},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "}", 5, {"nothing may follow"}},
    {"{}", 1, {"the file has 11 bytes", "ends at byte 10", "nothing may follow"}},
};

static void test_hostile_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        const char *words[5] = {NULL};

        memcpy(words, hostile[i].words, sizeof hostile[i].words);
        write_header(hostile[i].header, strlen(hostile[i].header), hostile[i].data_bytes);
        assert_refused(path, words);
    }
}

static void test_hostile_lengths(void **state)
{
    const struct {
        uint64_t claimed;
        int64_t zeros;
        const char *words[3];
    } cases[] = {
        {3, 2, {"header claims 3 bytes", "file has 2"}},
        {99, 32, {"header claims 99 bytes", "file has 32"}},
        {UINT64_MAX, 2, {"header claims 18446744073709551615 bytes", "file has 2"}},
        {(uint64_t)INT64_MAX + 1, 2, {"header claims 9223372036854775808 bytes", "file has 2"}},
        {100000001, 200000000, {"header claims 100000001 bytes", "at most 100000000"}},
        {100000000, 200000000, {"does not begin with '{'"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(&cases[i].claimed, sizeof cases[i].claimed, cases[i].zeros);
        assert_refused(path, cases[i].words);
    }
    write_file("", 0, 0);
    assert_refused(path, WORDS("the file has 0 bytes"));
    write_file("\1\0\0\0\0\0\0", 7, 0);
    assert_refused(path, WORDS("the file has 7 bytes"));
}

static void test_deep_nesting(void **state)
{
    enum { DEPTH = 1000000 };
    char *header = malloc(DEPTH);

    (void)state;
    assert_non_null(header);
    memset(header, '[', DEPTH);
    memcpy(header, "{\"a\":", 5);
    write_header(header, DEPTH, 0);
    free(header);
    assert_refused(path, WORDS("nested too deep"));
}

/* The message about a tensor with a very long name stays short, and tells what is wrong. */
static void test_long_name(void **state)
{
    enum { LENGTH = 100000 };
    char *header = malloc(LENGTH);

    (void)state;
    assert_non_null(header);
    memset(header, 'a', LENGTH);
    memcpy(header, "{\"", 2);
    memcpy(header + LENGTH - 4, "\":1}", 4);
    write_header(header, LENGTH, 0);
    free(header);
    Safetensors s;
    char *message = safetensors_open(&s, path);
    assert_non_null(message);
    assert_true(strlen(message) < 300);
    assert_complains(message, path, WORDS("aaa is 1, but an object is needed"));
}

static void test_truncated_everywhere(void **state)
{
    Safetensors s;
    struct stat status;

    (void)state;
    write_all();
    assert_int_equal(stat(path, &status), 0);
    for (int64_t length = status.st_size - 1; length >= 0; length--) {
        assert_int_equal(truncate(path, length), 0);
        assert_refused(path, WORDS("bytes"));
    }
    write_all();
    assert_fine(safetensors_open(&s, path));
    assert_int_equal(truncate(path, s.tensors[FLOATS].first_byte + 4), 0);
    float six[6];
    assert_complains(safetensors_read(&s, &s.tensors[FLOATS], 0, 6, six, false), path, WORDS("cut short"));
    assert_fine(safetensors_close(&s, false));
}

static void test_not_a_file(void **state)
{
    (void)state;
    assert_refused(path, WORDS("cannot be opened", "No such file"));
    assert_refused(directory, WORDS("is a directory"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(path, WORDS("pipe"));
    assert_int_equal(unlink(path), 0);
    write_file("", 0, 0);
    assert_int_equal(chmod(path, 0), 0);
    if (geteuid() != 0)                     /* root can read any file */
        assert_refused(path, WORDS("cannot be opened", "Permission denied"));
}

static void test_writing_fails(void **state)
{
    const SafeTensor one = {.name = "a", .dtype = "F32", .dims = 1, .shape = {6}};
    Safetensors s;

    (void)state;
    safetensors_lay_out(&s, directory, &one, 1, NULL);
    assert_complains(safetensors_create(&s), directory, WORDS("cannot be created", "directory"));
    assert_fine(safetensors_close(&s, false));

    safetensors_lay_out(&s, "/dev/full", &one, 1, NULL);
    assert_complains(safetensors_create(&s), "/dev/full", WORDS("cannot be written", "No space left on device"));
    assert_int_equal(s.file, -1);
    assert_fine(safetensors_close(&s, false));
}

/* The system writes the bytes up to its limit, then none: a short write, then an error. */
static void test_short_write(void **state)
{
    const SafeTensor one = {.name = "a", .dtype = "F32", .dims = 1, .shape = {6}};
    Safetensors s;
    struct rlimit before;

    (void)state;
    safetensors_lay_out(&s, path, &one, 1, NULL);
    assert_fine(safetensors_create(&s));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit lower = {.rlim_cur = s.tensors[0].first_byte + 8, .rlim_max = before.rlim_max};
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &lower), 0);
    char *wrong = safetensors_write(&s, s.tensors, 0, 6, floats);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_complains(wrong, path, WORDS("16 bytes", "cannot be written: File too large"));
    assert_fine(safetensors_close(&s, false));
}

#define TEST(function) cmocka_unit_test_teardown(function, remove_file)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip), TEST(test_conversion), TEST(test_halves), TEST(test_ranges_of_a_tensor),
        TEST(test_two_writers), TEST(test_large), TEST(test_header_as_written), TEST(test_offsets_are_exact),
        TEST(test_no_tensors), TEST(test_foreign_header), TEST(test_hostile_headers), TEST(test_hostile_lengths),
        TEST(test_deep_nesting), TEST(test_long_name), TEST(test_truncated_everywhere),
        TEST(test_not_a_file), TEST(test_writing_fails), TEST(test_short_write),
    };

    return cmocka_run_group_tests_name("safetensors", tests, make_directory, remove_directory);
}
