/* Invalid data, before a run and during it. */
#include <stdlib.h>
#include <string.h>

#include "refusals.h"

/* ---- Data ---- */

/* Writes `count` uint16 tokens of 0, but `token` at position `at` and token + 1 at the last position. */
static void write_tokens(const char *name, int count, int at, int token)
{
    uint16_t *tokens = calloc(count, sizeof *tokens);

    if (at < count)
        tokens[at] = token, tokens[count - 1] = token + 1;
    spill(in_temporary(name), tokens, count * sizeof *tokens);
    free(tokens);
}

/* Writes `tokens` tokens of 0 behind llm.c's header, which gives their number as `count`. */
static void write_with_header(const char *name, int version, int count, int tokens)
{
    int32_t header[256] = {20240520, version, count};
    char *bytes = calloc(sizeof header + 2 * tokens, 1);

    memcpy(bytes, header, sizeof header);
    spill(in_temporary(name), bytes, sizeof header + 2 * tokens);
    free(bytes);
}

static void bad_data_is_refused(void **state)
{
    static const Case cases[] = {
        {"--data missing", 1, "--data missing|No such file"},
        {"--data missing/x", 1, "--data missing/x|No such file"},
        {"--data afile/x", 1, "--data afile/x|Not a directory"},
        {"--data empty", 1, "--data empty|is empty"},
        {"--data one", 1, "--data one|1 tokens|--seq 8|90"},
        {"--data 89.bin", 1, "--data 89.bin|89 tokens|--seq 8|90"},
        {"--data adir", 1, "--data adir|directory"},
        {"--data /dev/null", 1, "--data /dev/null|regular"},
        {"--data /dev/zero", 1, "--data /dev/zero|regular"},
        {"--data fifo", 1, "--data fifo|regular"},
        {"--data at.bin", 1, "--data at.bin|token 97, at position 1234,|--vocab 97"},
        {"--data top.bin", 1, "--data top.bin|token 65534, at position 0,|--vocab 97"},
        {"--data last.bin --vocab 1000", 1, "--data last.bin|token 1001, at position 1999,|--vocab 1000"},
        {"--data text", 1, "--data text|token 122, at position 500,|--vocab 97"},
        {"--data odd.bin", 1, "--data odd.bin|3999 bytes|uint16"},
        {"--data version", 1, "--data version|version 2|version 1"},
        {"--data counted", 1, "--data counted|1001 tokens|has 1000"},
        {"--data negative", 1, "--data negative|-1 tokens|has 1000"},
        {"--data cut", 1, "--data cut|2023 bytes|uint16|1024"},
        {"--data cut_in_header", 1, "--data cut_in_header|1000 bytes|1024"},
        {"--data cut_in_magic.bin", 1, "--data cut_in_magic.bin|1 tokens"},
        {"--data missing --metrics old.csv --report new --trace new.trace --dump-gradients new.g", 1, "--data missing"},
        {0}};
    size_t bytes;

    (void)state;
    spill(in_temporary("empty"), "", 0);
    spill(in_temporary("one"), "x", 1);
    write_tokens("89.bin", 89, 89, 0);
    write_tokens("90.bin", 90, 90, 0);
    write_tokens("at.bin", 2000, 1234, 97);
    write_tokens("top.bin", 2000, 0, 65534);
    write_tokens("last.bin", 2000, 1999, 1000);
    char *text = memset(malloc(1000), ' ', 1000);
    text[500] = text[600] = 'z';
    spill(in_temporary("text"), text, 1000);
    free(text);
    text = slurp(in_temporary("data.bin"), &bytes);
    spill(in_temporary("odd.bin"), text, bytes - 1);
    free(text);
    write_with_header("version", 2, 1000, 1000);
    write_with_header("counted", 1, 1001, 1000);
    write_with_header("negative", 1, -1, 1000);
    write_with_header("right", 1, 1000, 1000);
    text = slurp(in_temporary("right"), &bytes);
    spill(in_temporary("cut"), text, 2023);
    spill(in_temporary("cut_in_header"), text, 1000);
    spill(in_temporary("cut_in_magic.bin"), text, 2);
    free(text);
    all_fail(cases);
    fails(1, "--data missing", CPU64 " " SMALL " --data missing");
    run_well(CPU " " SMALL " --data right --eval-every 1");          /* valid, and 90 tokens are enough */
    run_well(CPU " " SMALL " --data 90.bin --eval-every 1 --micro-batch 3");
    run_well(CPU " " SMALL " --data text --vocab 123");
}

/* Token ids that were valid when the run began, and are then overwritten in place, in tokens and in text; and a file
 * that is truncated during the run. */
static void overwritten_data_is_noticed(void **state)
{
#define OVERWRITE(file) "head -c 40000 /dev/zero | tr \"\\0\" z | dd of=" file " conv=notrunc status=none"
    static const char *const table[][4] = {
        {"over.bin", "97", OVERWRITE("over.bin"), "token 31354, at position |is not below --vocab 97|overwritten"},
        {"over.txt", "122", OVERWRITE("over.txt"), "token 122, at position |is not below --vocab 122|overwritten"},
        {"cut.bin", "97", "truncate -s 2000 cut.bin", "--data cut.bin|cut short"}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char *text = memset(malloc(40000), i == 1 ? 'a' : 0, 40000);
        spill(in_temporary(table[i][0]), text, 40000);
        Result r = run("timeout 15 sh -c 'rm -f steps; " CPU " " SMALL " --vocab %s --data %s --steps 1000000 >steps & "
                       "p=$!; until grep -qs step.9/ steps; do sleep .01; done; %s; wait $p'", table[i][1], table[i][0],
                       table[i][2]);
        assert_int_equal(r.status, 1);
        assert_one_line(r, table[i][0]);
        assert_words(r.err, table[i][3], table[i][0]);
        result_free(r);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bad_data_is_refused),
        TEST(overwritten_data_is_noticed),
    };

    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
