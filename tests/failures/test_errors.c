/* Whatever is wrong with the command line, the files or the machine: one line that says it, the right status, in
 * seconds, and the directory as it was before.
 */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../common/safetensors.h"
#include "../harness.h"

#define NAME "01_single_gpu"
#define CPU BUILD "/cpu/" NAME
#define CPU64 BUILD "/cpu64/" NAME

/* A step takes a tenth of a millisecond on one thread; pretending a fast machine saves measuring this one. */
#define SHAPE "--layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --accumulate 1 --warmup 1 " \
              "--threads 1 --data data.bin"
#define SMALL SHAPE " --pretend 1e6,1e6,0 --steps 3"

/* ---- Looking before and after ---- */

static char *slurp(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *all = NULL;
    size_t room = 0;

    *bytes = 0;
    if (!f)
        fail_msg("%s is not there", path);
    do {
        all = realloc(all, room += 65536);
        *bytes += fread(all + *bytes, 1, room - 1 - *bytes, f);
    } while (*bytes == room - 1);
    fclose(f);
    all[*bytes] = 0;
    return all;
}

static void spill(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(bytes, 1, count, f) != count || fclose(f))
        fail_msg("%s could not be written", path);
}

static void list_directory(FILE *to, const char *path)
{
    struct dirent **entry;
    const int count = scandir(path, &entry, NULL, alphasort);

    for (int i = 0; i < count; i++) {
        char *full;
        struct stat s;
        if (strcmp(entry[i]->d_name, ".") && strcmp(entry[i]->d_name, "..")) {
            assert_true(asprintf(&full, "%s/%s", path, entry[i]->d_name) > 0);
            assert_int_equal(lstat(full, &s), 0);
            uint64_t hash = 14695981039346656037u;                      /* FNV-1a */
            if (S_ISREG(s.st_mode)) {
                size_t bytes;
                char *text = slurp(full, &bytes);
                for (size_t k = 0; k < bytes; k++)
                    hash = (hash ^ (unsigned char)text[k]) * 1099511628211u;
                free(text);
            }
            fprintf(to, "%s mode %o, %lld bytes, hash %llx\n", full + strlen(temporary()) + 1, s.st_mode,
                    (long long)(S_ISREG(s.st_mode) ? s.st_size : 0), (unsigned long long)hash);
            if (S_ISDIR(s.st_mode))
                list_directory(to, full);
            free(full);
        }
        free(entry[i]);
    }
    if (count >= 0)
        free(entry);
}

/* Every file in the temporary directory with its contents, as a line of text. */
static char *listing(void)
{
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    list_directory(f, temporary());
    fclose(f);
    return text;
}

/* Frees both. */
static void assert_same_listing(char *before, char *after, const char *what)
{
    if (strcmp(before, after)) {
        size_t line = 0;
        for (size_t i = 0; before[i] && before[i] == after[i]; i++)
            line = before[i] == '\n' ? i + 1 : line;
        fail_msg("%s\nchanged files: there was \"%.*s\", there is \"%.*s\"", what, (int)strcspn(before + line, "\n"),
                 before + line, (int)strcspn(after + line, "\n"), after + line);
    }
    free(before);
    free(after);
}

/* ---- What a failure looks like ---- */

/* One line that begins with the program's name. argp adds a second one to its own messages, all with status 2. */
static void assert_one_line(Result r, const char *what)
{
    const char *end = strchr(r.err, '\n');
    const bool more = end && end[1], hint = end && r.status == 2 && !strncmp(end + 1, "Try `" NAME " --help'", 13);

    if (strncmp(r.err, NAME ": ", strlen(NAME) + 2) || !end || (more && !(hint && !strchr(end + 1, '\n')[1])))
        fail_msg("%s\nstatus %d, and not one line that begins with \"" NAME ": \":\n%s", what, r.status, r.err);
    for (const char *c = r.err; c < end; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            fail_msg("%s\nprints control character %d:\n%s", what, *c, r.err);
    if (end - r.err < 35)
        fail_msg("%s\nsays too little: %s", what, r.err);
}

/* `words` are parts of the message, with | between them; what follows a ! must not be in it. */
static void assert_words(const char *text, const char *words, const char *what)
{
    char copy[512], *rest = copy;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(text, word + (*word == '!')) == (*word != '!'))
            fail_msg("%s\nthe message must %scontain \"%s\": %s", what, *word == '!' ? "not " : "",
                     word + (*word == '!'), text);
}

/* Runs a command that must fail in the described way, and leave every file as it was. */
static void fails(int status, const char *words, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fails(int status, const char *words, const char *format, ...)
{
    char command[8000], *before = listing();
    va_list list;

    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    Result r = run("timeout 15 %s", command);
    if (r.status == 124)
        fail_msg("%s\nhangs", command);
    if (r.status != status)
        fail_msg("%s\nends with status %d, not %d: %s", command, r.status, status, r.err);
    assert_one_line(r, command);
    assert_words(r.err, words, command);
    assert_same_listing(before, listing(), command);
    result_free(r);
}

typedef struct {
    const char *options;
    int status;
    const char *words;          /* as in assert_words */
} Case;

static void all_fail(const Case *cases)         /* ends with {0} */
{
    for (; cases->options; cases++)
        fails(cases->status, cases->words, CPU " " SMALL " %s", cases->options);
}

/* ---- What every test finds in the temporary directory, and where it leaves nothing to the next ---- */

static pid_t process;           /* started by start(); 0: none */

static int clean_up(void **state)
{
    (void)state;
    if (process)
        kill(process, SIGKILL), waitpid(process, NULL, 0);
    process = 0;
    result_free(run("sh -c 'umount -l disk; chmod -R u+w .; rm -rf ./* ./.[!.]*'"));
    return 0;
}

static int set_up(void **state)
{
    clean_up(state);            /* where setting up failed, cmocka doesn't clean up */
    run_well("mv %s data.bin", token_file(2000, 97));
    run_well("mkdir adir");
    run_well("sh -c 'echo precious > adir/file; echo precious > afile; echo precious > old.csv; mkfifo fifo'");
    run_well("ln -s nowhere alink");
    run_well(CPU " " SMALL " --steps 2 --save good --seed 7");
    return 0;
}

/* ---- The command line ---- */

static void numbers_are_checked(void **state)
{
    static const char *const ints[] = {"layers", "hidden", "heads", "vocab", "seq", "micro-batch", "accumulate",
                                       "steps", "warmup", "lr-decay-steps", "eval-every", "save-every", "threads",
                                       "timeout", "sample"};
    static const char *const doubles[] = {"lr", "min-lr", "weight-decay", "clip", "temperature"};
    static const char *const seed[] = {"seed"};
    static const char *const no_int[] = {"", " ", "-1", "12x", "1e3", "1.5", "0x10", "nan", "--", "2147483648",
                                         "4294967297", "99999999999999999999", "-9223372036854775809"};
    static const char *const no_double[] = {"", " ", "-1e-3", "1x", "nan", "-nan", "inf", "1e999", "1,5", "0x", "1e31"};
    static const char *const no_seed[] = {"", " ", "-1", " -1", "1x", "1e3", "1.0", "18446744073709551616"};
    static const struct {
        const char *const *names, *const *values;
        int name_count, value_count;
        const char *kind;
    } groups[] = {
        {ints, no_int, sizeof ints / sizeof *ints, sizeof no_int / sizeof *no_int, "whole number from"},
        {doubles, no_double, sizeof doubles / sizeof *doubles, sizeof no_double / sizeof *no_double, "a number from"},
        {seed, no_seed, 1, sizeof no_seed / sizeof *no_seed, "from 0 to 2^64 - 1"},
    };

    (void)state;
    for (int g = 0; g < 3; g++)
        for (int n = 0, k = 0; n < groups[g].name_count; n++)
            for (int v = 0; v < groups[g].value_count; v++) {
                char words[128];
                if (!full_tests() && k++ % 3 && groups[g].name_count > 1)
                    continue;                   /* 13 and 11 values: each with some option, each option with some */
                const char *name = groups[g].names[n], *value = groups[g].values[v];
                snprintf(words, sizeof words, "--%s %s, but|%s", name, value, groups[g].kind);
                fails(2, words, CPU " " SMALL " --%s '%s'", name, value);
            }
}

static void the_command_line_is_checked(void **state)
{
    static const Case cases[] = {
        {"--hidden 50 --heads 4", 2, "--hidden 50|multiple|--heads 4"},
        {"--hidden 16 --heads 32", 2, "--hidden 16|multiple|--heads 32"},
        {"--hidden 12 --heads 4", 2, "--hidden 12|--heads 4|heads of 3|even"},
        {"--layers 0", 2, "--layers 0|from 1 to 10000"},
        {"--layers 10001", 2, "--layers 10001|from 1 to 10000"},
        {"--vocab 1", 2, "--vocab 1|from 2"},
        {"--seq 0", 2, "--seq 0|from 1"},
        {"--threads 4097", 2, "--threads 4097|4096"},
        {"--tf32 on", 2, "--tf32 on|sm_80"},
        {"--autotune on", 2, "--autotune on|GPUs"},
        {"--tf32 yes", 2, "--tf32 yes|auto|on|off"},
        {"--lr 1001", 2, "--lr 1001|from 0 to 1000"},
        {"--lr 1e-999", 2, "--lr 1e-999|from 0 to 1000"},
        /* each fits, their product doesn't */
        {"--seq 16777216 --micro-batch 65536", 2, "--micro-batch 65536|--seq 16777216|2.15e+09"},
        {"--seq 16777216 --micro-batch 128", 2, "--micro-batch 128|--seq 16777216|2.15e+09"},
        {"--seq 16777216 --layers 4", 2, "--seq 16777216|1e+15"},
        {"--vocab 16777216 --micro-batch 65536 --seq 32767", 2, "--vocab 16777216|--micro-batch 65536|1e+15"},
        {"--seq 16777216 --micro-batch 65536 --accumulate 1048576 --layers 10000 --hidden 1048576 --heads 65536 "
         "--vocab 16777216", 2, "--micro-batch 65536|--seq 16777216"},
        {"--nonsense", 2, "--nonsense"},
        {"--nonsense=3", 2, "--nonsense"},
        {"-x", 2, "'x'"},
        {"--m 3", 2, "--m|ambiguous|--micro-batch|--metrics"},
        {"--steps", 2, "--steps|requires an argument"},
        {"--quiet=3", 2, "--quiet"},
        {"--check=", 2, "--check"},
        {"--preset 10M", 2, "--preset 10M|tiny|405b"},
        {"--preset tin", 2, "--preset tin|tiny|405b"},
        {"--preset ''", 2, "--preset|tiny|405b"},
        {"--preset tiny|small", 2, "--preset tiny"},
        {"--recompute ''", 2, "--recompute|none|selective|full"},
        {"--recompute Full", 2, "--recompute Full|selective"},
        {"--recompute none|full", 2, "--recompute none|selective"},
        {"--comm tcp", 2, "--comm tcp|auto"},
        {"--comm nccl", 1, "--comm nccl|cuda"},
        {"stray", 2, "\"stray\"|--help"},
        {"tiny --steps 3", 2, "\"tiny\""},
        {"-- --steps", 2, "\"--steps\""},
        {"''", 2, "\"\""},
        {"--save-every 5", 2, "--save-every 5|--save"},
        {"--lr-decay-steps 5 --warmup 10", 2, "--lr-decay-steps 5|--warmup 10"},
        {"--lr-decay-steps 10 --warmup 10", 2, "--lr-decay-steps 10|--warmup 10"},
        {"--lr 1e-4 --min-lr 1e-3 --lr-decay-steps 100", 2, "--min-lr 0.001|--lr 0.0001"},
        {"--data ''", 2, "--data|empty|FILE"},
        {"--save ''", 2, "--save|empty|DIR"},
        {"--load ''", 2, "--load|empty|DIR"},
        {"--metrics ''", 2, "--metrics|empty|FILE"},
        {"--report ''", 2, "--report|empty|FILE"},
        {"--trace ''", 2, "--trace|empty|FILE"},
        {"--dump-gradients ''", 2, "--dump-gradients|empty|FILE"},
        /* what can be known before training is said before it */
        {"--sample 5 --prompt zz --save new", 2, "--prompt|122|--vocab 97"},
        {"--sample 5 --vocab 5", 2, "--sample 5|--prompt|10|--vocab 5"},
        {"--steps 0 --dump-gradients new --report new.json", 1, "--dump-gradients|no step"},
        {"--report same --trace same", 2, "--report|--trace|same"},
        {"--report same --trace ./same", 2, "--report|--trace|same"},
        {"--metrics adir/same --save ./adir/../adir/same", 2, "--metrics|--save|same"},
        {"--save same --dump-gradients same", 2, "--save|--dump-gradients|same"},
        {"--metrics data.bin", 2, "--data data.bin|--metrics data.bin"},
        {"--report ./data.bin", 2, "--data data.bin|--report ./data.bin"},
        {0}};
    static const char *const pretends[] = {"''", "1", "1,2", "1,2,3,4", "1,2,3,", ",,", "0,1,1", "1,0,1", "1,1,-1",
                                           "-1,1,1", "a,b,c", "nan,1,1", "1,inf,1", "1,1,nan", "1,1,1e400", "1e308,1,1",
                                           "1,1e308,1", "1e-300,1,1"};

    (void)state;
    all_fail(cases);
    for (size_t i = 0; i < sizeof pretends / sizeof *pretends; i++)
        fails(2, "--pretend|GFLOPS,GB/S,MICROSECONDS", CPU " " SMALL " --pretend %s", pretends[i]);
    /* a line stays a line */
    fails(2, "--preset a", CPU " " SMALL " --preset 'a\nb\033[2J'");
    fails(1, "--data a", CPU " " SMALL " --data 'a\nb'");
    char text[3001] = "";
    memset(text, 'a', 3000);
    fails(1, "--data aaa", CPU " " SMALL " --data %s", text);
    fails(2, "--hidden 50|multiple", CPU64 " " SMALL " --hidden 50 --heads 4");
    fails(2, "--nonsense", CPU64 " --nonsense");
    run_well(CPU " " SMALL " --quie --accum 1 --seed +7 --steps ' 1' --lr 0x1p-10");      /* unusual, but no errors */
}

/* The names that command_line.c and command_line.h give to argp: {"name", OPTION_... and {"name", KEY_... */
static int option_names(char names[][32], int most)
{
    static const char *const sources[] = {SOURCE "/common/command_line.c", SOURCE "/common/command_line.h"};
    int count = 0;

    for (int i = 0; i < 2; i++) {
        size_t bytes;
        char *text = slurp(sources[i], &bytes);
        for (char *at = text; (at = strstr(at, "{\"")); at += 2) {
            const size_t n = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
            const char *after = at + 2 + n;
            if (n && n < 32 && (!strncmp(after, "\", OPTION_", 10) || !strncmp(after, "\", KEY_", 7))) {
                assert_true(count < most);
                snprintf(names[count++], 32, "%.*s", (int)n, at + 2);
            }
        }
        free(text);
    }
    return count;
}

static void help_mentions_every_option(void **state)
{
    enum { MOST = 100 };
    static const char *const ways[] = {"--help", "--usage", "--steps 5 --help --nonsense", "--hel"};
    char names[MOST][32];
    const int count = option_names(names, MOST);

    (void)state;
    assert_true(count > 30);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        bool seen[MOST] = {0};
        Result r = run(CPU " %s", ways[w]);
        assert_int_equal(r.status, 0);
        assert_string_equal(r.err, "");
        for (char *at = r.out; (at = strstr(at, "--")); at += 2) {
            if (at != r.out && !strchr(" [\n(", at[-1]))
                continue;                       /* a dash in a word */
            const int n = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
            int i = 0;
            while (i < count && ((int)strlen(names[i]) != n || strncmp(names[i], at + 2, n)))
                i++;
            if (i == count)
                fail_msg("%s mentions --%.*s, which the parser doesn't know", ways[w], n, at + 2);
            seen[i] = true;
        }
        for (int i = 0; i < count; i++)
            if (!seen[i])
                fail_msg("%s doesn't mention --%s", ways[w], names[i]);
        result_free(r);
    }
}

/* ---- Memory ---- */

static void what_cannot_fit_is_refused(void **state)
{
    static const Case cases[] = {
        {"--preset 405b --data long.bin", 1,
         " TB of memory|available|category is activations with|--recompute full|--micro-batch"},
        {"--preset 405b --recompute full --seq 1", 1, "category is optimizer with|--layers|--hidden"},
        {"--preset 405b --data long.bin --report new.json --metrics new.csv --trace new.trace --dump-gradients new.g "
         "--save new", 1, "available"},
        {"--preset 405b --data long.bin --metrics old.csv", 1, "available"},
        {"--layers 10000 --hidden 1048576 --heads 1024 --seq 1", 1, "EB of memory|optimizer|--layers"},
        {"--vocab 16777216 --hidden 65536 --heads 1024", 1, "TB of memory|optimizer|--vocab"},
        {"--layers 100 --hidden 16384 --heads 2 --seq 8192 --micro-batch 1024 --data long.bin", 1,
         "activations with|--recompute full"},
        /* no advice to do what was done */
        {"--layers 100 --hidden 16384 --heads 2 --seq 8192 --micro-batch 1024 --data long.bin --recompute full", 1,
         "activations with|--micro-batch|!--recompute full"},
        {0}};

    (void)state;
    run_well("mkdir keep");
    run_well("mv %s long.bin", token_file(100000, 97));
    all_fail(cases);
    fails(1, "TB of memory|--recompute full", CPU64 " --quiet --preset 405b --data long.bin");
    fails(1, "TB of memory", CPU " --preset 405b --data long.bin --save keep");          /* an empty directory stays */

    /* Two ranks of which each would find enough, but not both: 16 bytes a parameter. A limit, in case they go on (which
     * sanitizers don't take). */
    Result r = run(CPU " --preset tiny --steps 0");
    const char *said = strstr(r.out, "memory will be"), *of = said ? strstr(said, " of ") : NULL;
    double available = 0;
    const bool known = of && sscanf(of, " of %lf GB available", &available) == 1;
    const double vocab = 0.7e9 * available / 16 / 1024;
    if (known && vocab <= 1 << 24 && !strstr(BUILD, "/sanitize")) {
        Result two = run("sh -c 'ulimit -v 40000000; timeout 15 mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 1 "
                         "--hidden 1024 --heads 2 --seq 4 --micro-batch 1 --vocab %.0f'", vocab);
        assert_int_equal(two.status, 1);
        assert_words(two.err, "03_data_parallel: |of memory for the 2 ranks here, and|available", "2 ranks");
        result_free(two);
    } else
        print_message("skipped: two ranks that share memory, of which %.0f GB are available\n", available);
    result_free(r);

    /* 8M x 16 parameters are 0.5 GB, four times. With a limit of address space it is known before; with one of data an
     * allocation fails although there seems to be memory enough. */
    r = run("sh -c 'ulimit -v 1000000; exec " CPU " " SMALL "'");
    if (r.status == 0) {
        fails(1, "of memory, and|are available", "sh -c 'ulimit -v 1000000; exec " CPU " " SMALL " --vocab 8000000 "
              "--report new'");
        /* far smaller: other programs may have taken the machine's memory, and then it is known before */
        fails(1, "needs|in use|would need less", "sh -c 'ulimit -d 500000; exec " CPU " " SMALL " --vocab 2000000 "
              "--report new'");
        fails(1, "ulimit -v|too little memory for 16 threads", "sh -c 'ulimit -v 1000000; exec " CPU " " SMALL
              " --threads 16'");
    } else
        print_message("skipped: a limit of address space\n");
    result_free(r);
}

/* ---- Data ---- */

static void write_tokens(const char *name, int count, int at, int token)        /* 0, but at `at` and behind it */
{
    uint16_t *tokens = calloc(count, sizeof *tokens);

    if (at < count)
        tokens[at] = token, tokens[count - 1] = token + 1;
    spill(in_temporary(name), tokens, count * sizeof *tokens);
    free(tokens);
}

static void write_with_header(const char *name, int version, int said, int tokens)
{
    int32_t header[256] = {20240520, version, said};
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
        {"--data said", 1, "--data said|1001 tokens|has 1000"},
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
    write_with_header("said", 1, 1001, 1000);
    write_with_header("negative", 1, -1, 1000);
    write_with_header("right", 1, 1000, 1000);
    text = slurp(in_temporary("right"), &bytes);
    spill(in_temporary("cut"), text, 2023);
    spill(in_temporary("cut_in_header"), text, 1000);
    spill(in_temporary("cut_in_magic.bin"), text, 2);
    free(text);
    all_fail(cases);
    fails(1, "--data missing", CPU64 " " SMALL " --data missing");
    run_well(CPU " " SMALL " --data right --eval-every 1");          /* just enough, and right */
    run_well(CPU " " SMALL " --data 90.bin --eval-every 1 --micro-batch 3");
    run_well(CPU " " SMALL " --data text --vocab 123");
}

/* Ids that were right when the run began, and are overwritten in place: tokens and text. */
static void overwritten_data_is_noticed(void **state)
{
    static const char *const table[][2] = {{"over.bin", "97"}, {"over.txt", "122"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *text = memset(malloc(40000), i ? 'a' : 0, 40000);
        spill(in_temporary(table[i][0]), text, 40000);
        Result r = run("timeout 15 sh -c 'rm -f steps; " CPU " " SMALL " --vocab %s --data %s --steps 1000000 >steps & "
                       "p=$!; until grep -qs step.9/ steps; do sleep .01; done; head -c 40000 /dev/zero | "
                       "tr \"\\0\" z | dd of=%s conv=notrunc status=none; wait $p'", table[i][1], table[i][0],
                       table[i][0]);
        assert_int_equal(r.status, 1);
        assert_one_line(r, table[i][0]);
        assert_words(r.err, i ? "token 122, at position |is not below --vocab 122|overwritten during the run"
                              : "token 31354, at position |is not below --vocab 97|overwritten during the run",
                     table[i][0]);
        result_free(r);
        free(text);
    }
}

/* ---- Checkpoints that cannot be right ---- */

#define GO_ON CPU " " SMALL " --load bad --save bad --report new.json --metrics new.csv --trace new.trace"

static const char *const checkpoint_files[] = {"model.safetensors", "config.json", "optimizer.safetensors",
                                               "trainer.json"};

/* A copy of the good checkpoint, to be spoilt; bad/FILE's path, in one of harness.c's buffers. */
static const char *spoil(const char *file)
{
    char name[64];

    run_well("rm -rf bad");
    run_well("cp -r good bad");
    snprintf(name, sizeof name, "bad/%s", file);
    return in_temporary(name);
}

/* Puts `to` in the place of `from`, which must be in the file. */
static void change(const char *path, const char *from, const char *to)
{
    size_t bytes;
    char *text = slurp(path, &bytes), *at = memmem(text, bytes, from, strlen(from));
    char *whole = malloc(bytes + strlen(to));

    if (!at)
        fail_msg("%s has no %s", path, from);
    const size_t before = at - text, after = bytes - before - strlen(from);
    memcpy(whole, text, before);
    memcpy(whole + before, to, strlen(to));
    memcpy(whole + before + strlen(to), at + strlen(from), after);
    spill(path, whole, before + strlen(to) + after);
    free(text);
    free(whole);
}

static void incomplete_checkpoints_are_refused(void **state)
{
    (void)state;
    fails(1, "--load missing|No such file", CPU " " SMALL " --load missing --save new --metrics new.csv");
    fails(1, "afile|Not a directory", CPU " " SMALL " --load afile --report new");
    fails(1, "adir/|No such file", CPU " " SMALL " --load adir --metrics old.csv");
    for (int f = 0; f < 4; f++) {
        const char *name = checkpoint_files[f];
        char words[128];
        snprintf(words, sizeof words, "bad/%s|No such file", name);
        run_well("rm %s", spoil(name));
        if (f >= 2)
            strcat(words, "|has both");
        fails(1, words, CPU " " SMALL " --load bad --report new.json --metrics new.csv --trace new.trace");
        fails(1, name, GO_ON);                  /* --save doesn't want it either, without its trainer.json */
        run_well("mkdir bad/%s", name);
        fails(1, name, GO_ON);
        run_well("rmdir bad/%s", name);
        run_well("mkfifo bad/%s", name);
        fails(1, name, GO_ON);
        run_well("rm bad/%s", name);
        run_well("ln -s /dev/zero bad/%s", name);
        fails(1, name, GO_ON);
        run_well("rm bad/%s", name);

        size_t bytes;
        char *text = slurp(spoil(name), &bytes), path[256];
        snprintf(path, sizeof path, "%s/bad/%s", temporary(), name);
        const int points = full_tests() ? 200 : 20;
        snprintf(words, sizeof words, "bad/%s", name);
        for (int i = 0; i < points; i++) {
            /* the ends, the header's borders, and what lies between */
            static const size_t special[] = {0, 1, 7, 8, 9};
            const size_t length = i < 5 ? special[i] : i == 5 ? bytes - 1 : i == 6 ? bytes / 2
                                : (uint64_t)i * 2654435761u % bytes;
            spill(path, text, length);
            fails(1, words, GO_ON);
        }
        free(text);
    }
}

static void other_models_are_refused(void **state)
{
    static const char *const shapes[] = {"--layers 2", "--hidden 32", "--heads 4", "--vocab 98"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        char words[256];
        snprintf(words, sizeof words, "--load good|--layers 1 --hidden 16 --heads 2 --vocab 97|but|%s", shapes[i]);
        fails(1, words, CPU " " SMALL " --load good %s --save new", shapes[i]);
    }
    fails(1, "--load good|--hidden 16|--hidden 32", CPU64 " " SMALL " --load good --hidden 32");

    /* config.json says that the shape fits, the tensors say otherwise */
    const char *config = spoil("config.json");
    change(config, "\"vocab_size\":\t97", "\"vocab_size\":\t98");
    fails(1, "bad/model.safetensors|embed|97|98", GO_ON " --vocab 98");

    /* dtypes that aren't read, one of them wider than what is; a tensor that isn't there */
    static const char *const dtypes[] = {"I32", "I64", "F32"};
    Safetensors good, bad;
    for (int way = 0; way < 3; way++) {
        const char *path = spoil("model.safetensors");
        char words[64];
        assert_null(safetensors_open(&good, in_temporary("good/model.safetensors")));
        for (int i = 0; i < good.count; i++)
            strcpy(good.tensors[i].dtype, dtypes[way]);
        safetensors_lay_out(&bad, path, good.tensors, good.count - (way == 2), good.checkpoint);
        assert_null(safetensors_create(&bad));
        assert_null(safetensors_close(&bad, false));
        free(safetensors_close(&good, false));
        snprintf(words, sizeof words, "bad/model.safetensors|%s", way == 2 ? "missing" : dtypes[way]);
        fails(1, words, GO_ON);
    }
}

/* Each key that makes another model, as every version of transformers has called it, in a checkpoint of ours and in a
 * model from elsewhere. */
static void configurations_of_other_models_are_refused(void **state)
{
#define KEY(name) "\"" name "\":\t"
    static const struct {
        const char *from, *to, *words;
    } changes[] = {
        {KEY("model_type") "\"gpt_neox\"", KEY("model_type") "\"llama\"", "\"model_type\" is \"llama\"|\"gpt_neox\""},
        {"\"gelu_pytorch_tanh\"", "\"gelu\"", "\"hidden_act\" is \"gelu\"|one of|\"gelu_pytorch_tanh\""},
        {"\"hidden_act\"", "\"x\"", "\"hidden_act\" is missing|means \"gelu\"|\"gelu_pytorch_tanh\""},
        {KEY("rotary_pct") "1", KEY("rotary_pct") "0.25", "\"rotary_pct\" is 0.25|must be 1"},
        {"\"rotary_pct\"", "\"x\"", "\"rotary_pct\" is missing|means 0.25|must be 1"},
        {KEY("rotary_pct") "1", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\" is 0.5|must be 1"},
        {KEY("rotary_pct") "1", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
         "\"rope_parameters.partial_rotary_factor\" is 0.5|must be 1"},
        {KEY("rotary_emb_base") "10000", KEY("rotary_emb_base") "500000", "\"rotary_emb_base\" is 500000|10000"},
        {KEY("rotary_emb_base") "10000", "\"rope_theta\": 500000", "\"rope_theta\" is 500000|10000"},
        {KEY("rotary_emb_base") "10000", "\"rope_parameters\": {\"rope_theta\": 1e6}",
         "\"rope_parameters.rope_theta\" is 1000000|10000"},
        {KEY("rotary_emb_base"), "\"rope_parameters\": {\"rope_type\": \"yarn\"}, \"rotary_emb_base\": ",
         "\"rope_parameters.rope_type\" is \"yarn\"|\"default\""},
        {KEY("rotary_emb_base"), "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rotary_emb_base\": ",
         "\"rope_scaling\" is {\"type\":\"linear\",\"factor\":2}|must be null"},
        {KEY("layer_norm_eps") "1e-05", KEY("layer_norm_eps") "1e-12", "\"layer_norm_eps\" is 1e-12|1e-5"},
        {KEY("use_parallel_residual") "false", KEY("use_parallel_residual") "true",
         "\"use_parallel_residual\" is true|must be false"},
        {"\"use_parallel_residual\"", "\"x\"", "\"use_parallel_residual\" is missing|means true|must be false"},
        {KEY("tie_word_embeddings") "true", KEY("tie_word_embeddings") "false",
         "\"tie_word_embeddings\" is false|must be true"},
        {"\"tie_word_embeddings\"", "\"x\"", "\"tie_word_embeddings\" is missing|means false|must be true"},
        {KEY("attention_bias") "true", KEY("attention_bias") "false", "\"attention_bias\" is false|must be true"},
        {KEY("intermediate_size") "64", KEY("intermediate_size") "48", "\"intermediate_size\" is 48|must be 64"},
        {"\"intermediate_size\"", "\"x\"", "\"intermediate_size\" is missing|means 24576|must be 64"},
    };
    static const struct {
        const char *from, *to;
    } same[] = {
        {"\"gelu_pytorch_tanh\"", "\"gelu_new\""},
        {"\"rotary_emb_base\"", "\"rope_scaling\": null, \"rope_theta\": 1e4, \"rotary_emb_base\""},
        {KEY("rotary_pct") "1", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4, "
         "\"partial_rotary_factor\": 1.0}"},
        {"\"rotary_emb_base\"", "\"x\""},                       /* missing: 10000 to them too */
        {"\"max_position_embeddings\":\t8", "\"max_position_embeddings\":\t2048"},
        {KEY("hidden_dropout") "0", KEY("hidden_dropout") "0.1"},
    };
#undef KEY

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        for (int foreign = 0; foreign < 2; foreign++) {
            char words[256];
            if (!full_tests() && foreign != (int)i % 2)
                continue;
            change(spoil("config.json"), changes[i].from, changes[i].to);
            if (foreign)
                run_well("rm bad/trainer.json bad/optimizer.safetensors");
            snprintf(words, sizeof words, "bad/config.json|%s", changes[i].words);
            fails(1, words, CPU " " SMALL " --load bad --report new.json --metrics new.csv");
        }
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        change(spoil("config.json"), same[i].from, same[i].to);
        run_well(CPU " " SMALL " --load bad");
    }
}

/* A file of another run, or of another step of the same, or of a trainer.json that was edited. */
static void files_of_two_checkpoints_are_refused(void **state)
{
    static const char *const others[] = {"--seed 8 --steps 2", "--seed 7 --steps 1", "--seed 7 --steps 2 --lr 0.5",
                                         "--seed 7 --steps 2 --weight-decay 0.5", "--load good --steps 3"};
    static const char *const edits[][2] = {{"\"step\":\t2", "\"step\":\t1"}, {"\"tokens\":\t16", "\"tokens\":\t8"},
        {"\"optimizer_step\":\t2", "\"optimizer_step\":\t1"}, {"\"seed\":\t\"7\"", "\"seed\":\t\"8\""}};

    (void)state;
    run_well(CPU " " SHAPE " --pretend 1e6,1e6,0 --seed 7 --steps 2 --save again");
    run_well("diff -r -x trainer.json good again");             /* the same run: the same files */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        run_well(CPU " " SHAPE " --pretend 1e6,1e6,0 %s --save other", others[i]);
        for (int f = 0; f < 4; f++) {
            char words[128];
            snprintf(words, sizeof words, "bad/%s|bad/trainer.json|history|two checkpoints",
                     checkpoint_files[f == 3 ? 1 : f]);
            run_well("cp other/%s %s", checkpoint_files[f], spoil(checkpoint_files[f]));
            fails(1, words, CPU " " SMALL " --load bad --save new");
        }
        run_well(CPU " " SMALL " --load other");
        run_well("rm -r other");
    }
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        change(spoil("trainer.json"), edits[i][0], edits[i][1]);
        fails(1, "bad/trainer.json|two checkpoints", GO_ON);
    }
    run_well("rm -r again bad");
}

static void hostile_headers_are_refused(void **state)
{
    static const struct {
        uint64_t length;                /* 0: the header's */
        const char *header, *words;
    } cases[] = {
        {1u << 30, "{}", "1073741824"},
        {UINT64_MAX, "{}", "18446744073709551615"},
        {(uint64_t)1 << 63, "{}", "9223372036854775808"},
        {0, "", "header"},
        {0, "[]", "header"},
        {0, "not JSON at all", "header"},
        {0, "{\"a\":", "JSON"},
        {0, "{} x", "header"},
        {0, "{\"a\":1}", "object"},
        {0, "{}", "last tensor ends"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", "overlap"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1000000],\"data_offsets\":[0,4000000]}}", "4000000"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", "shape"},
        {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,-4]}}", "-1"},
        {0, "{\"\\u001b[2J\\n\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", "F99"},
    };
    char bytes[1024];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f = 0; f < 4; f += 2) {
            const uint64_t n = strlen(cases[i].header), length = cases[i].length ? cases[i].length : n;
            char words[256];
            memset(bytes, 0, sizeof bytes);
            memcpy(bytes, &length, 8);
            memcpy(bytes + 8, cases[i].header, n);
            spill(spoil(checkpoint_files[f]), bytes, 8 + n + 100);
            snprintf(words, sizeof words, "bad/%s|%s", checkpoint_files[f], cases[i].words);
            fails(1, words, GO_ON);
        }
}

static void garbage_in_json_is_refused(void **state)
{
    static const char *const garbage[] = {"", " ", "null", "12", "[]", "{", "{}", "\"x\"", "{\"step\":}",
                                          "garbage", "\xff\xfe"};
    static const struct {
        int file;
        const char *from, *to, *words;
    } changes[] = {
        {3, "\"step\":\t2", "\"step\":\t-1", "step|-1"},
        {3, "\"step\":\t2", "\"step\":\t1.5", "step|1.5"},
        {3, "\"step\":\t2", "\"step\":\t1e300", "step|1e+300"},
        {3, "\"step\":\t2", "\"step\":\t1000000001", "step|1000000001"},
        {3, "\"step\":\t2", "\"step\":\t\"2\"", "step"},
        {3, "\"step\":\t2", "\"step\":\tnull", "step"},
        {3, "\"step\":\t2", "\"stop\":\t2", "step"},
        {3, "\"tokens\":\t16", "\"tokens\":\t-16", "tokens|-16"},
        {3, "\"optimizer_step\":\t2", "\"optimizer_step\":\t-2", "optimizer_step|-2"},
        {3, "\"optimizer_step\":\t2", "\"x\":\t2", "optimizer_step"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t7", "seed"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"\"", "seed"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"-7\"", "seed|-7"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"7x\"", "seed|7x"},
        {3, "\"seed\":\t\"7\"", "\"seed\":\t\"18446744073709551616\"", "seed|18446744073709551616"},
        {3, "\"seed\":\t\"7\"", "\"sea\":\t\"7\"", "seed"},
        {3, "\"history\":\t\"", "\"history\":\t\"x", "history|hexadecimal"},
        {3, "\"history\"", "\"story\"", "history|missing"},
        {1, "\"hidden_size\":\t16", "\"hidden_size\":\t-16", "hidden_size|-16"},
        {1, "\"hidden_size\":\t16", "\"hidden_size\":\t\"16\"", "hidden_size"},
        {1, "\"hidden_size\":\t16", "\"hidden_size\":\t1e999", "hidden_size"},
        {1, "\"hidden_size\":\t16", "\"hidden\":\t16", "hidden_size"},
        {1, "\"num_hidden_layers\":\t1", "\"num_hidden_layers\":\t4611686018427387905", "num_hidden_layers"},
    };
    char words[256];

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        change(spoil(checkpoint_files[changes[i].file]), changes[i].from, changes[i].to);
        snprintf(words, sizeof words, "bad/%s|%s", checkpoint_files[changes[i].file], changes[i].words);
        fails(1, words, GO_ON);
    }
    for (int f = 1; f < 4; f += 2) {
        snprintf(words, sizeof words, "bad/%s", checkpoint_files[f]);
        for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
            spill(spoil(checkpoint_files[f]), garbage[i], strlen(garbage[i]));
            fails(1, words, GO_ON);
        }
        char *deep = memset(malloc(500000), '[', 500000);                /* a parser that recurses runs out of stack */
        spill(spoil(checkpoint_files[f]), deep, 500000);
        fails(1, words, GO_ON);
        memcpy(deep, "{\"step\":", 8);
        spill(spoil(checkpoint_files[f]), deep, 500000);
        fails(1, words, GO_ON);
        free(deep);
        run_well("truncate -s 3G %s", spoil(checkpoint_files[f]));
        run_well("truncate -s 2000000 %s", spoil(checkpoint_files[f]));
        fails(1, words, GO_ON);
        run_well("sh -c 'echo x >> %s'", spoil(checkpoint_files[f]));   /* behind the object */
        fails(1, words, GO_ON);
    }
}

/* ---- NaN and Inf ---- */

/* A weight that is no number is found when it is read, also where no step follows; one so large that it makes NaN of
 * others, in the first step's loss. The checkpoint isn't replaced. */
static void nan_stops_the_run(void **state)
{
    static const float values[] = {NAN, INFINITY, -INFINITY}, large = 3e38f;
    Safetensors good;

    (void)state;
    assert_null(safetensors_open(&good, in_temporary("good/model.safetensors")));
    for (int i = 0; i < good.count; i++)
        for (int v = 0; v < 3; v++) {
            if (!full_tests() && v != i % 3)
                continue;
            FILE *f = fopen(spoil("model.safetensors"), "r+b");
            fseek(f, good.tensors[i].first_byte, SEEK_SET);
            fwrite(&values[v], sizeof *values, 1, f);
            fclose(f);
            fails(1, "bad/model.safetensors|at element 0", CPU " " SMALL " --load bad --save bad --report new.json "
                     "--trace new.trace");
        }
    fails(1, "bad/model.safetensors|at element 0", CPU64 " " SMALL " --steps 0 --load bad --sample 5");
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(spoil("model.safetensors"), "r+b");
        fseek(f, safetensors_find(&good, "gpt_neox.layers.0.input_layernorm.weight")->first_byte, SEEK_SET);
        fwrite(&large, sizeof large, 1, f);
        fclose(f);
        fails(1, "at step 3", "%s " SMALL " --load bad --save bad --report new.json --trace new.trace",
              i ? CPU " --save-every 1 --recompute full" : CPU);
    }
    free(safetensors_close(&good, false));

    /* Moments that are none would make the weights so, after the loss of the last step was seen. */
    assert_null(safetensors_open(&good, in_temporary("good/optimizer.safetensors")));
    for (int i = 0; i < good.count; i += good.count - 1) {
        FILE *f = fopen(spoil("optimizer.safetensors"), "r+b");
        fseek(f, good.tensors[i].first_byte, SEEK_SET);
        fwrite(values, sizeof *values, 1, f);
        fclose(f);
        fails(1, "nan", GO_ON);
    }
    free(safetensors_close(&good, false));
}

static void a_blow_up_ends_clearly(void **state)
{
    (void)state;
    run_well("cp -r good before");
    run_well("cp -r good blown");
    Result r = run("timeout 15 " CPU " " SMALL " --lr 1e3 --clip 0 --weight-decay 1e3 --steps 60 --load blown "
                   "--save blown --report new.json");
    if (r.status) {
        assert_int_equal(r.status, 1);
        assert_one_line(r, "--lr 1e3 --clip 0");
        assert_words(r.err, "at step |--lr|checkpoint", "--lr 1e3 --clip 0");
        run_well("diff -r before blown");
        run_well("test ! -e new.json");
        run_well("test ! -e new.json.tmp");
    } else {
        run_well("rm new.json");
        run_well(CPU " " SMALL " --load blown --steps 60");
    }
    result_free(r);
}

/* ---- What cannot be written ---- */

static void unwritable_outputs_are_refused(void **state)
{
    static const char *const options[] = {"metrics", "report", "trace", "dump-gradients"};
    static const Case saves[] = {
        {"--save missing/x", 1, "--save missing/x|No such file"},
        {"--save afile", 1, "--save afile|not a checkpoint"},
        {"--save afile/x", 1, "--save afile/x|Not a directory"},
        {"--save adir", 1, "--save adir|not a checkpoint|another"},
        {"--save adir/", 1, "--save adir|not a checkpoint|another"},
        {"--save .", 1, "--save .|not a checkpoint"},
        {"--save /dev/null", 1, "--save /dev/null|not a checkpoint"},
        {"--save alink", 1, "--save alink|not there"},
        {"--save ck.tmp/", 1, "--save ck.tmp/|end in .tmp"},
        {"--report x --data x.tmp", 2, "--data x.tmp|--report x"},
        {"--metrics x.tmp --trace x", 2, "--metrics x.tmp|--trace x"},
        {"--save ck --report ck.tmp", 2, "--report ck.tmp|--save ck"},
        {"--save /proc/x", 1, "--save /proc/x|cannot be made"},
        {"--save good --report missing/x", 1, "--report missing/x"},
        {"--save adir --metrics old.csv --report new --trace new.trace --dump-gradients new.g", 1, "--save adir"},
        {"--metrics old.csv --dump-gradients missing/x --report new --trace new.trace", 1,
         "--dump-gradients missing/x"},
        {"--metrics missing/x --report new --trace new.trace --dump-gradients new.g --save new.d", 1,
         "--metrics missing/x"},
        {0}};
    char name[301] = "";

    (void)state;
    memset(name, 'n', 300);
    for (int i = 0; i < 4; i++) {
        char words[128];
        snprintf(words, sizeof words, "--%s missing/x|No such file", options[i]);
        fails(1, words, CPU " " SMALL " --%s missing/x", options[i]);
        snprintf(words, sizeof words, "--%s adir|directory", options[i]);
        fails(1, words, CPU " " SMALL " --%s adir", options[i]);
        snprintf(words, sizeof words, "--%s afile/x|Not a directory", options[i]);
        fails(1, words, CPU " " SMALL " --%s afile/x", options[i]);
        snprintf(words, sizeof words, "--%s nnn|too long", options[i]);
        fails(1, words, CPU " " SMALL " --%s %s", options[i], name);
        fails(1, "/dev/full", CPU " " SMALL " --%s /dev/full", options[i]);              /* a full disk */
    }
    all_fail(saves);
    fails(1, "--save nnn|too long", CPU " " SMALL " --save %s", name);
    fails(1, "--save adir", CPU64 " " SMALL " --save adir");
    fails(1, "--metrics old.csv|\"precious\"|step,tokens,loss", CPU " " SMALL " --load good --metrics old.csv");
    /* what lies where a checkpoint is written: one to read, and others' files */
    run_well("cp -r good ck.tmp");
    run_well("ln -s . here");
    fails(1, "--load ck.tmp|--save ck|another name", CPU " " SMALL " --load ck.tmp --save ck");
    fails(1, "--load here/ck.tmp/|--save ck/|another name", CPU " " SMALL " --load here/ck.tmp/ --save ck/");
    run_well("cp afile ck.tmp/notes");
    fails(1, "--save ck|ck.tmp|move them", CPU " " SMALL " --save ck");
    run_well("rm -r ck.tmp here");
    fails(1, "--save .|name a directory inside",
          "sh -c 'cd good && exec " CPU " " SMALL " --data ../data.bin --save .'");
    fails(1, "--save ../good|runs in|name a directory inside",
          "sh -c 'cd good && exec " CPU " " SMALL " --data ../data.bin --load ../good --save ../good'");
    run_well("mkdir ck");
    run_well("ln -s ../good ck/new.tmp");
    fails(1, "--save ck/new|move them", CPU " " SMALL " --save ck/new");
    run_well("rm -r ck");
    fails(1, "standard output", "sh -c 'exec " CPU " " SMALL " --quiet --sample 5 >/dev/full'");
    fails(1, "standard output", "sh -c 'exec " CPU " --help >/dev/full'");
    fails(1, "standard output", "sh -c 'exec " CPU " " SMALL " <&- >&-'");
}

/* What is called like a checkpoint's own file, but is none of this run's. */
static void others_stay(void **state)
{
    (void)state;
    run_well("cp -r good good.old");
    run_well(CPU " " SMALL " --steps 4 --load good --save good");
    run_well("test -e good.old/trainer.json");
    /* a log is not emptied, nor written over */
    static const char *const logs[][2] = {
        {"metrics", "^3,"}, {"report", "flops_per_token"}, {"trace", "process_name"}};
    for (int i = 0; i < 3; i++) {
        run_well("sh -c '" CPU " " SMALL " --%s /dev/stdout >log'", logs[i][0]);
        run_well("grep -q '^memory will be' log");
        run_well("grep -q '^step 3/3' log");
        run_well("grep -q '^parameters ' log");
        run_well("grep -q '%s' log", logs[i][1]);
    }
    run_well("rm -r good.old log");
}

static void assert_json(const char *text, const char *what)
{
    cJSON *json = cJSON_Parse(text);

    if (!json)
        fail_msg("%s is no JSON: %.300s", what, text);
    cJSON_Delete(json);
}

static void special_files_work(void **state)
{
    struct stat s;
    size_t bytes;
    char *text;

    (void)state;
    char *before = listing();
    run_well(CPU " " SMALL " --report /dev/null --metrics /dev/null --trace /dev/null");
    assert_same_listing(before, listing(), "--report /dev/null");
    assert_int_equal(lstat("/dev/null", &s), 0);
    assert_true(S_ISCHR(s.st_mode));
    for (int i = 0; i < 2; i++) {
        Result r = run(CPU " " SMALL " --quiet --%s /dev/stdout", i ? "report" : "trace");
        assert_int_equal(r.status, 0);
        assert_json(r.out, "/dev/stdout");
        result_free(r);
    }
    Result r = run(CPU " " SMALL " --quiet --metrics /dev/stdout");
    assert_memory_equal(r.out, "step,tokens,loss,", 17);
    result_free(r);

    /* Links stay what they are: /dev/stdout is one, and leads to an ordinary file in a shell's `> file`. */
    run_well("ln -s /proc/self/fd/1 stdout");
    run_well("ln -s linked link");
    run_well("touch linked");
    for (int i = 0; i < 2; i++) {
        run_well("sh -c '" CPU " " SMALL " --quiet --%s stdout > redirected'", i ? "report" : "trace");
        run_well("test -L stdout");
        text = slurp(in_temporary("redirected"), &bytes);
        assert_json(text, "a redirected /dev/stdout");
        free(text);
        run_well(CPU " " SMALL " --quiet --%s link", i ? "report" : "trace");
        run_well("test -L link");
        text = slurp(in_temporary("linked"), &bytes);
        assert_json(text, "a linked file");
        free(text);
        run_well("test ! -e stdout.tmp");
        run_well("test ! -e link.tmp");
    }

    /* a pipe whose reader goes when nobody writes */
    run_well("timeout 10 sh -c 'cat fifo > piped & " CPU " " SMALL " --report fifo; wait'");
    text = slurp(in_temporary("piped"), &bytes);
    assert_json(text, "a pipe");
    free(text);
    run_well("test -p fifo");
    run_well("rm stdout link linked redirected piped");
}

static void what_is_not_ours_stays(void **state)
{
    (void)state;
    /* a person's file in the directory of a checkpoint */
    run_well("cp -r good noted");
    run_well("cp afile noted/notes.txt");
    run_well(CPU " " SMALL " --steps 5 --save noted --save-every 1");
    run_well("cmp afile noted/notes.txt");
    assert_true(json_number(in_temporary("noted/trainer.json"), "step") == 5);
    run_well("test ! -e noted.tmp");
    run_well("test ! -e noted.old");
    /* a link to where checkpoints shall go */
    run_well("mkdir far");
    run_well("ln -s far near");
    run_well(CPU " " SMALL " --save near --save-every 1");
    run_well("test -L near");
    assert_true(json_number(in_temporary("far/trainer.json"), "step") == 3);
    run_well("test ! -e near.tmp");
    run_well("test ! -L near.tmp");
    run_well("rm -r noted near far");
}

/* ---- Programs that are met while they run ---- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int process_out, process_err;
static char *printed;           /* to its stdout until now */

/* All that comes until `text` is in it (NULL: until the end), added to `to`; false: it ended or took 15 seconds. */
static bool read_until(int file, char **to, const char *text)
{
    const double began = now();
    size_t length = strlen(*to);

    while (!text || !strstr(*to, text)) {
        struct pollfd p = {file, POLLIN, 0};
        char chunk[4096];
        if (now() - began > 15 || poll(&p, 1, 100) < 0)
            return false;
        if (!p.revents)
            continue;
        const ssize_t n = read(file, chunk, sizeof chunk);
        if (n <= 0)
            return false;
        *to = realloc(*to, length + n + 1);
        memcpy(*to + length, chunk, n);
        (*to)[length += n] = 0;
    }
    return true;
}

/* Starts a program and waits for it to be ready to train. */
static void start(const char *command)
{
    int out[2], err[2];
    char line[2048];

    snprintf(line, sizeof line, "exec %s", command);
    assert_int_equal(pipe(out) | pipe(err), 0);
    process = fork();
    if (process == 0) {
        dup2(out[1], 1), dup2(err[1], 2);
        close(out[0]), close(err[0]), close(out[1]), close(err[1]);
        if (chdir(temporary()))
            _exit(127);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    close(out[1]), close(err[1]);
    process_out = out[0], process_err = err[0];
    printed = strdup("");
    if (!read_until(process_out, &printed, "tokens a step\n"))
        fail_msg("%s\ndoesn't begin: %s", command, printed);
}

/* Waits for its end; 124 if that takes longer than so many seconds. */
static Result end_process(double seconds)
{
    Result r = {.status = 124, .out = printed, .err = strdup("")};
    const double began = now();
    int status;

    while (waitpid(process, &status, WNOHANG) == 0 && (r.seconds = now() - began) < seconds)
        usleep(5000);
    if (r.seconds >= seconds)
        kill(process, SIGKILL), waitpid(process, &status, 0);
    else
        r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    process = 0;
    read_until(process_out, &r.out, NULL);
    read_until(process_err, &r.err, NULL);
    close(process_out), close(process_err);
    return r;
}

static void two_signals_quit_at_once(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    run_well("cp -r good kept");
    for (int i = 0; i < 2; i++) {
        char *before = listing();
        start(CPU " " SHAPE " --accumulate 1048576 --load kept --save kept --report new.json --trace new.trace");
        kill(process, signals[i]);
        if (i == 0)                                     /* what it saves to is nobody else's */
            fails(1, "--save kept|another program|kept.lock", CPU " " SMALL " --load kept --save kept");
        usleep(500000);                                 /* sooner it would count as the first one again */
        assert_int_equal(waitpid(process, NULL, WNOHANG), 0);           /* it would finish the step */
        kill(process, signals[i]);
        Result r = end_process(2);
        assert_int_equal(r.status, 128 + signals[i]);
        assert_true(r.seconds < 1);
        assert_same_listing(before, listing(), "two signals");
        result_free(r);
    }
    run_well("rm -r kept");
}

/* Before the first step there is nothing to save: one signal ends it, here while it reads 6 GB of tokens. And fewer
 * threads than asked for don't keep OpenBLAS waiting. */
static void the_start_can_be_ended(void **state)
{
    (void)state;
    run_well("truncate -s 6G large.bin");
    Result r = run("timeout -k 5 1 " CPU " " SMALL " --data large.bin --report new.json --save new");
    assert_int_equal(r.status, 124);                    /* by SIGTERM after a second; 137: by SIGKILL */
    assert_true(r.seconds < 4);
    result_free(r);
    run_well("rm large.bin");
    run_well("sh -c 'test ! -e new.json.tmp && test ! -e new.lock'");
    run_well("timeout 15 env OMP_THREAD_LIMIT=1 " CPU " " SMALL " --hidden 128 --threads 2");
}

/* A second run with one of the first's outputs: refused, and nothing of the first's is touched. */
static void two_runs_do_not_write_one_file(void **state)
{
    static const char *const options[] = {"metrics", "report", "trace", "dump-gradients"};
    static const char *const second[] = {CPU " " SMALL, "mpiexec -n 2 " BUILD "/cpu/03_data_parallel " SMALL};

    (void)state;
    start(CPU " " SHAPE " --steps 2 --accumulate 1000 --metrics a --report b --trace c --dump-gradients d");
    kill(process, SIGSTOP);                             /* it lives until all have tried */
    for (int of = 0; of < 2; of++)
        for (int i = 0; i < (of ? 1 : 4); i++)
            for (int by = 0; by < 2; by++) {            /* its file, by the same option and by another one */
                char words[64], file[] = {"abcd"[i], 0};
                const char *option = options[(i + by) % 4];
                snprintf(words, sizeof words, "--%s %s|another program|%s.lock", option, file, file);
                Result r = run("timeout 15 %s --%s %s --save new", second[of], option, file);
                assert_int_equal(r.status, 1);
                assert_words(r.err, words, second[of]);
                assert_null(strchr(strchr(r.err, '\n') + 1, '\n'));
                result_free(r);
                run_well("test ! -e new");
                run_well("test -e %s.lock", file);
            }
    kill(process, SIGCONT);
    Result r = end_process(60);
    assert_int_equal(r.status, 0);
    result_free(r);
    run_well("sh -c 'test $(grep -c . a) = 3'");
    for (int i = 1; i < 3; i++) {
        size_t bytes;
        char *text = slurp(in_temporary(i == 1 ? "b" : "c"), &bytes);
        assert_json(text, options[i]);
        free(text);
    }
    run_well("sh -c 'test ! -e a.lock && test ! -e b.lock && test ! -e c.lock && test ! -e d.lock && test ! -e b.tmp'");

    /* the lock of a program that was killed means nothing; a file of that name that isn't empty is somebody's */
    run_well("touch a.lock");
    run_well(CPU " " SMALL " --metrics a");
    run_well("test ! -e a.lock");
    run_well("cp afile a.lock");
    fails(1, "--metrics a|a.lock|bytes|move it", CPU " " SMALL " --metrics a");
    fails(2, "--report a.lock|--metrics a|name another", CPU " " SMALL " --metrics a --report a.lock");
    /* pipes, devices and links are anybody's */
    for (int i = 0; i < 2; i++)
        run_well(CPU " " SMALL " --metrics /dev/null --report /dev/null");
    run_well("rm a a.lock b c d");
}

/* ---- A full disk ---- */

/* Files may not grow beyond so many bytes, from the first step on: MPI's own start needs one of megabytes. */
static void files_that_cannot_grow(void **state)
{
    static const struct {
        const char *options;
        int limit;
        const char *words;
    } cases[] = {
        {"--load kept --save kept", 0, "kept.tmp/config.json|File too large"},
        {"--load kept --save kept", 100, "kept.tmp/config.json|File too large"},         /* written in part */
        {"--load kept --save kept", 1200, "kept.tmp/model.safetensors|File too large"},  /* in its header */
        {"--load kept --save kept", 4000, "kept.tmp/model.safetensors|File too large"},
        {"--load kept --save kept", 25000, "kept.tmp/optimizer.safetensors|File too large"},
        {"--load kept --save kept/ --save-every 1 --report new", 38000,
         "kept.tmp/optimizer.safetensors|File too large"},
        {"--report new.json", 200, "--report new.json|File too large"},
        {"--trace new.trace", 2000, "--trace new.trace|File too large"},
        {"--dump-gradients new.g", 4000, "new.g|File too large"},
        {"--load kept --metrics rows.csv", 100, "--metrics rows.csv|File too large"},
    };

    (void)state;
    run_well("cp -r good kept");
    run_well(CPU " " SMALL " --steps 2 --metrics rows.csv");             /* as many as kept has done */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rlimit limit = {cases[i].limit, cases[i].limit};
        char command[1024], what[128], *before = listing();
        /* long enough for the limit to come in time, and for the file not to be begun yet */
        snprintf(command, sizeof command, CPU " " SHAPE " --steps 5 --accumulate 1000 %s", cases[i].options);
        snprintf(what, sizeof what, "%s with files of %d bytes", cases[i].options, cases[i].limit);
        start(command);
        assert_int_equal(prlimit(process, RLIMIT_FSIZE, &limit, NULL), 0);
        Result r = end_process(60);
        if (r.status != 1)
            fail_msg("%s: status %d\n%s%s", what, r.status, r.out, r.err);
        assert_one_line(r, what);
        assert_words(r.err, cases[i].words, what);
        assert_same_listing(before, listing(), what);
        result_free(r);
    }
    run_well("diff -r good kept");
    run_well(CPU " " SMALL " --load kept --save kept");                  /* and it is good for going on */
    run_well("rm -r kept rows.csv");
}

/* A disk with room for one checkpoint of 620 KB, but not for two. */
static void a_full_disk(void **state)
{
    (void)state;
    run_well("mkdir disk");
    Result r = run("mount -t tmpfs -o size=1m tmpfs disk");
    const int status = r.status;
    result_free(r);
    if (status) {
        print_message("skipped: mounting a small disk isn't permitted here\n");
        return;
    }
    fails(1, "--save disk|where a disk is mounted|name a directory inside", CPU " " SMALL " --save disk");
    run_well(CPU " " SMALL " --hidden 64 --steps 2 --save disk/kept");
    run_well("cp -r disk/kept copy");
    fails(1, "disk/kept.tmp/|safetensors|No space left",
          CPU " " SMALL " --hidden 64 --load disk/kept --save disk/kept");
    run_well("diff -r copy disk/kept");
    fails(1, "disk/other.tmp/|No space left", CPU " " SMALL " --hidden 64 --save disk/other --save-every 1");
    run_well(CPU " " SMALL " --hidden 64 --load disk/kept --save elsewhere");
    run_well("rm -r copy elsewhere");
}

/* ---- A directory that may only be read ---- */

static void nothing_may_be_written(void **state)
{
    (void)state;
    run_well("mkdir readonly");
    run_well("cp -r good data.bin readonly");
    run_well("chmod -R a-w,a+rX readonly");
    run_well("chmod a+x %s", temporary());
    const char *as = geteuid() == 0 ? "setpriv --reuid=65534 --regid=65534 --clear-groups" : "env";
    Result r = run("%s sh -c 'cd readonly && ! test -w . && test -x " CPU " && " CPU " " SMALL " --load good'", as);
    const int status = r.status;
    result_free(r);
    if (status) {
        print_message("skipped: running as somebody who may not write\n");
    } else {
        static const char *const options[] = {"metrics", "report", "trace", "dump-gradients", "save"};
        for (int i = 0; i < 5; i++) {
            char words[64];
            snprintf(words, sizeof words, "--%s new|Permission denied", options[i]);
            fails(1, words, "%s sh -c 'cd readonly && exec " CPU " " SMALL " --%s new'", as, options[i]);
        }
        fails(1, "good|Permission denied", "%s sh -c 'cd readonly && exec " CPU " " SMALL " --load good --save good'",
              as);
        run_well("chmod 0 readonly/data.bin readonly/good/trainer.json");
        fails(1, "--data data.bin|Permission denied", "%s sh -c 'cd readonly && exec " CPU " " SMALL "'", as);
        fails(1, "good/trainer.json|Permission denied",
              "%s sh -c 'cd readonly && exec " CPU " " SMALL " --data ../data.bin --load good'", as);
    }
    run_well("chmod -R u+w readonly");
    run_well("rm -r readonly");
}

/* ---- Several ranks ---- */

static void ranks_speak_once(void **state)
{
    static const Case cases[] = {
        {"", 1, "%d ranks|without mpiexec"},
        {"--save new --metrics new.csv --report new.json --trace new.trace --dump-gradients new.g", 1, "%d ranks"},
        {"--load good --save good --metrics old.csv", 1, "%d ranks|without mpiexec"},
        {"--steps x", 2, "--steps x"},
        {"--hidden 50 --heads 4", 2, "--hidden 50"},
        {"--nonsense", 2, "--nonsense"},
        {"stray", 2, "\"stray\""},
        {"--comm nccl", 1, "--comm nccl"},
        {"--data missing", 1, "--data missing"},
        {"--load missing", 1, "--load missing"},
        {"--save adir", 1, "--save adir"},
        {"--report missing/x", 1, "--report missing/x"},
        {0}};

    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++)
        for (const Case *c = cases; c->options; c++) {
            char words[128], *before = listing();
            snprintf(words, sizeof words, c->words, ranks);
            Result r = run("timeout 15 mpiexec -n %d " CPU " " SMALL " %s", ranks, c->options);
            if (r.status != c->status)
                fail_msg("%d ranks with %s: status %d, not %d\n%s", ranks, c->options, r.status, c->status, r.err);
            assert_one_line(r, c->options);
            assert_words(r.err, words, c->options);
            assert_same_listing(before, listing(), c->options);
            result_free(r);
        }

    /* ranks of two programs, in two directories, going on from two checkpoints */
#define DATA_PARALLEL BUILD "/cpu/03_data_parallel " SMALL
    static const char *const pairs[][3] = {
        {"", BUILD "/cpu/05_tensor_parallel " SMALL, "rank 0 has 03_data_parallel in F32|rank 1 05_tensor_parallel"},
        {"--report new", "sh -c 'cd elsewhere && exec " DATA_PARALLEL " --report new'", "one file system"},
        {"--metrics new.csv --save new", "sh -c 'cd elsewhere && exec " DATA_PARALLEL " --metrics new.csv --save new'",
         "one file system"},
        {"--load good", "sh -c 'cd elsewhere && exec " DATA_PARALLEL " --load good'", "seed 7|seed 8"},
        {"--load like", "sh -c 'cd elsewhere && exec " DATA_PARALLEL " --load like'", "weights hash to"}};
    run_well("mkdir elsewhere");
    run_well("cp data.bin elsewhere");
    run_well("sh -c 'cd elsewhere && exec " CPU " " SMALL " --steps 2 --save good --seed 8'");
    run_well("cp -r good like");
    run_well("sh -c 'cd elsewhere && exec " CPU " " SMALL " --steps 2 --save like --seed 7 --lr 0.1'");
    for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *before = listing();
        Result r = run("timeout 15 mpiexec -n 1 " DATA_PARALLEL " %s : -n 1 %s", pairs[i][0], pairs[i][1]);
        if (r.status != 1 && r.status != 2)
            fail_msg("%s with %s: status %d", pairs[i][0], pairs[i][1], r.status);
        assert_words(r.err, pairs[i][2], pairs[i][1]);
        assert_same_listing(before, listing(), pairs[i][1]);
        result_free(r);
    }
    run_well("rm -r elsewhere like");

    Result r = run("timeout 15 mpiexec -n 3 " CPU " --help");
    assert_int_equal(r.status, 0);
    const char *usage = strstr(r.out, "Usage:");
    assert_non_null(usage);
    assert_null(strstr(usage + 1, "Usage:"));
    result_free(r);
}

/* ---- Anything at all ---- */

static uint64_t random_state;

static int below(int n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (random_state >> 20) % n;
}

/* No value here may ask for a run of minutes or for gigabytes, and be right: not --steps 1000000000. */
static void random_command_lines(void **state)
{
    static const char *const numbers[] = {
        "1", "2", "3", "8", "16", "", " ", "-", "--", "0", "-1", "+4", " 2", "2 ", "12x", "1e3", "1.5", "0x10", "nan",
        "-nan", "inf", "-inf", "1e-400", "1e400", "2147483647", "2147483648", "-2147483649", "4294967298",
        "18446744073709551617", "999999999999999999999999999", "%s%n", "\xff\xfe", "\xe2\x88\x9e", "1,000", "1\n2"};
    static const char *const number_options[] = {
        "layers", "hidden", "heads", "seq", "micro-batch", "accumulate", "warmup", "lr-decay-steps", "eval-every",
        "save-every", "threads", "timeout", "sample", "seed", "lr", "min-lr", "weight-decay", "clip", "temperature"};
    static const char *const files[] = {
        "new", "new.bin", "new/", "./new", "missing/x", "adir", "adir/", "afile", "afile/x", "good", "good/", ".",
        "/dev/null", "/dev/full", "/proc/self/mem", "", " ", "-", "--", "%s%n%s", "a b", "\n", "\033[31m",
        "good/model.safetensors", "old.csv", "data.bin", "\xff"};
    static const char *const file_options[] = {"save", "load", "metrics", "report", "trace", "dump-gradients", "data",
                                               "prompt"};
    static const char *const words[] = {
        "tiny", "405b", "none", "selective", "full", "auto", "mpi", "nccl", "", "|", "none|full", "ful", "TINY",
        "1,1,1", "1e6,1e6,0", "1,1", ",,", "0,0,0", "nan,nan,nan", "%d", "\t"};
    static const char *const word_options[] = {"preset", "recompute", "comm", "pretend"};
    static const char *const flags[] = {"--check", "--quiet", "--nonsense", "--s", "stray", "-x", "--quiet=1", "-",
                                        "--help", "--usage", "---", "--=", "''"};
    const int runs = full_tests() ? 3000 : 60;
    char *before = listing();
    int count[3] = {0};

    (void)state;
    for (int i = 0; i < runs; i++) {
        char command[4096] = CPU " " SMALL, option[256];
        random_state = 88172645463325252u + 1000003u * i;
        for (int k = 0; k < 8; k++)
            below(2);
        for (int k = 1 + below(5); k > 0; k--) {
            const char *joint = below(4) ? " '" : "=", *end = *joint == '=' ? "" : "'";
            const char *name, *value;
            switch (below(9)) {
            case 0: case 1: case 2: case 3: case 4:
                name = number_options[below(sizeof number_options / sizeof *number_options)];
                value = numbers[below(below(5) ? 5 : sizeof numbers / sizeof *numbers)];
                break;
            case 5: case 6:
                name = file_options[below(sizeof file_options / sizeof *file_options)];
                value = files[below(sizeof files / sizeof *files)];
                break;
            case 7:
                name = word_options[below(sizeof word_options / sizeof *word_options)];
                value = words[below(sizeof words / sizeof *words)];
                break;
            default:
                name = NULL, value = flags[below(sizeof flags / sizeof *flags)];
            }
            if (name && *joint == '=' && strchr(value, ' '))
                joint = " '", end = "'";                            /* harness.c's words */
            if (name)
                snprintf(option, sizeof option, " --%s%s%s%s", name, joint, value, end);
            else
                snprintf(option, sizeof option, " %s", value);
            strcat(command, option);
        }
        Result r = run("timeout 10 %s", command);
        if (r.status < 0 || r.status > 2)
            fail_msg("%s\nstatus %d: %s", command, r.status, r.err);
        if (r.status) {
            assert_one_line(r, command);
            assert_same_listing(strdup(before), listing(), command);
        } else {
            if (*r.err)
                fail_msg("%s\nsucceeds and prints: %s", command, r.err);
            char *after = listing();
            if (strcmp(before, after)) {                            /* it was to write something */
                clean_up(NULL);
                set_up(NULL);
                free(before);
                before = listing();
            }
            free(after);
        }
        count[r.status]++;
        result_free(r);
    }
    print_message("%d random command lines: status 0: %d, 1: %d, 2: %d\n", runs, count[0], count[1], count[2]);
    assert_true(count[0] > runs / 50 && count[1] > runs / 50);
    free(before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, clean_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_are_checked),
        TEST(the_command_line_is_checked),
        TEST(help_mentions_every_option),
        TEST(what_cannot_fit_is_refused),
        TEST(bad_data_is_refused),
        TEST(overwritten_data_is_noticed),
        TEST(incomplete_checkpoints_are_refused),
        TEST(other_models_are_refused),
        TEST(configurations_of_other_models_are_refused),
        TEST(files_of_two_checkpoints_are_refused),
        TEST(hostile_headers_are_refused),
        TEST(garbage_in_json_is_refused),
        TEST(nan_stops_the_run),
        TEST(a_blow_up_ends_clearly),
        TEST(unwritable_outputs_are_refused),
        TEST(others_stay),
        TEST(special_files_work),
        TEST(what_is_not_ours_stays),
        TEST(two_signals_quit_at_once),
        TEST(the_start_can_be_ended),
        TEST(two_runs_do_not_write_one_file),
        TEST(files_that_cannot_grow),
        TEST(a_full_disk),
        TEST(nothing_may_be_written),
        TEST(ranks_speak_once),
        TEST(random_command_lines),
    };

    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
