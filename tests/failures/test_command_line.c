/* Command lines that are invalid, or that need more than the machine has: each gets one clear line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "refusals.h"

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
        {ints, no_int, sizeof ints / sizeof *ints, sizeof no_int / sizeof *no_int, "an integer from"},
        {doubles, no_double, sizeof doubles / sizeof *doubles, sizeof no_double / sizeof *no_double, "a number from"},
        {seed, no_seed, 1, sizeof no_seed / sizeof *no_seed, "an integer from 0 to 2^64 - 1"},
    };

    (void)state;
    for (int g = 0; g < 3; g++)
        for (int n = 0, k = 0; n < groups[g].name_count; n++)
            for (int v = 0; v < groups[g].value_count; v++) {
                char words[128];
                if (!full_tests() && k++ % 3 && groups[g].name_count > 1)
                    continue;                   /* every third pair: all options and, with 13 or 11, all values */
                const char *name = groups[g].names[n], *value = groups[g].values[v];
                snprintf(words, sizeof words, "--%s: expected %s|, got '%s'", name, groups[g].kind, value);
                fails(2, words, CPU " " SMALL " --%s '%s'", name, value);
            }
}

static void the_command_line_is_checked(void **state)
{
    static const Case cases[] = {
        {"--hidden 50 --heads 4", 2, "--hidden: expected a multiple of --heads 4, got 50"},
        {"--hidden 16 --heads 32", 2, "--hidden: expected a multiple of --heads 32, got 16"},
        {"--hidden 12 --heads 4", 2, "--hidden 12|--heads 4|even head size|got 3"},
        {"--layers 0", 2, "--layers: expected an integer from 1 to 10000, got '0'"},
        {"--layers 10001", 2, "--layers: expected an integer from 1 to 10000, got '10001'"},
        {"--vocab 1", 2, "--vocab: expected an integer from 2 to |, got '1'"},
        {"--seq 0", 2, "--seq: expected an integer from 1 to |, got '0'"},
        {"--threads 4097", 2, "--threads: expected|4096, got '4097'"},
        {"--tf32 on", 2, "--tf32 on|sm_80"},
        {"--tf32 yes", 2, "--tf32: expected one of auto|on|off, got 'yes'"},
        {"--lr 1001", 2, "--lr: expected a number from 0 to 1000, got '1001'"},
        {"--lr 1e-999", 2, "--lr: expected a number from 0 to 1000, got '1e-999'"},
        /* each number is in its range, the product is too large */
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
        {"--preset 10M", 2, "--preset: expected one of tiny|405b, got '10M'"},
        {"--preset tin", 2, "--preset: expected one of tiny|405b, got 'tin'"},
        {"--preset ''", 2, "--preset: expected one of tiny|405b, got ''"},
        {"--preset tiny|small", 2, "--preset: expected one of|405b, got 'tiny"},
        {"--recompute ''", 2, "--recompute: expected one of none|selective|full, got ''"},
        {"--recompute Full", 2, "--recompute: expected one of none|selective|full, got 'Full'"},
        {"--recompute none|full", 2, "--recompute: expected one of none|selective|, got 'none"},
        {"--comm tcp", 2, "--comm: expected one of auto|, got 'tcp'"},
        {"--comm nccl", 1, "--comm nccl|cuda"},
        {"stray", 2, "\"stray\"|--help"},
        {"tiny --steps 3", 2, "\"tiny\""},
        {"-- --steps", 2, "\"--steps\""},
        {"''", 2, "\"\""},
        {"--save-every 5", 2, "--save-every 5|--save"},
        {"--lr-decay-steps 5 --warmup 10", 2, "--lr-decay-steps: expected more than --warmup 10, got 5"},
        {"--lr-decay-steps 10 --warmup 10", 2, "--lr-decay-steps: expected more than --warmup 10, got 10"},
        {"--lr 1e-4 --min-lr 1e-3 --lr-decay-steps 100", 2, "--min-lr: expected at most --lr 0.0001, got 0.001"},
        {"--data ''", 2, "--data: expected a FILE, got an empty text"},
        {"--save ''", 2, "--save: expected a DIR, got an empty text"},
        {"--load ''", 2, "--load: expected a DIR, got an empty text"},
        {"--metrics ''", 2, "--metrics: expected a FILE, got an empty text"},
        {"--report ''", 2, "--report: expected a FILE, got an empty text"},
        {"--trace ''", 2, "--trace: expected a FILE, got an empty text"},
        {"--dump-gradients ''", 2, "--dump-gradients: expected a FILE, got an empty text"},
        /* errors that are reported before training */
        {"--sample 5 --prompt zz --save new", 2, "--prompt|122|--vocab 97"},
        {"--sample 5 --vocab 5", 2, "--sample 5|--prompt|10|--vocab 5"},
        {"--steps 0 --dump-gradients new --report new.json", 1, "--dump-gradients|no step"},
        {"--report same --trace same", 1, "--trace same|another option of this one"},
        {"--report same --trace ./same", 1, "--trace ./same|another option of this one"},
        {"--metrics adir/same --save ./adir/../adir/same", 1, "--metrics adir/same|another option of this one"},
        {"--save same --dump-gradients same", 1, "--dump-gradients same|another option of this one"},
        {"--metrics data.bin", 2, "--data data.bin|--metrics data.bin"},
        {"--report ./data.bin", 2, "--data data.bin|--report ./data.bin"},
        {0}};
    static const char *const pretends[] = {"''", "1", "1,2", "1,2,3,4", "1,2,3,", ",,", "0,1,1", "1,0,1", "1,1,-1",
                                           "-1,1,1", "a,b,c", "nan,1,1", "1,inf,1", "1,1,nan", "1,1,1e400", "1e308,1,1",
                                           "1,1e308,1", "1e-300,1,1"};

    (void)state;
    all_fail(cases);
    for (size_t i = 0; i < sizeof pretends / sizeof *pretends; i++)
        fails(2, "--pretend: expected|GFLOPS,GB/S,MICROSECONDS", CPU " " SMALL " --pretend %s", pretends[i]);
    /* line ends and control characters in a value do not get into the message */
    fails(2, "--preset: expected|got 'a?b?[2J'", CPU " " SMALL " --preset 'a\nb\033[2J'");
    fails(1, "--data a", CPU " " SMALL " --data 'a\nb'");
    char text[3001] = "";
    memset(text, 'a', 3000);
    fails(1, "--data aaa", CPU " " SMALL " --data %s", text);
    fails(2, "--hidden: expected a multiple of --heads 4, got 50", CPU64 " " SMALL " --hidden 50 --heads 4");
    fails(2, "--nonsense", CPU64 " --nonsense");
    run_well(CPU " " SMALL " --quie --accum 1 --seed +7 --steps ' 1' --lr 0x1p-10");      /* unusual, but valid */
}

/* Reads the names of all options from command_line.c and command_line.h: {"name", OPTION_... and {"name", KEY_... */
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
                continue;                       /* dashes within a word */
            const int n = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
            int i = 0;
            while (i < count && ((int)strlen(names[i]) != n || strncmp(names[i], at + 2, n)))
                i++;
            if (i == count)
                fail_msg("%s mentions --%.*s, which the parser does not have", ways[w], n, at + 2);
            seen[i] = true;
        }
        for (int i = 0; i < count; i++)
            if (!seen[i])
                fail_msg("%s does not mention --%s", ways[w], names[i]);
        result_free(r);
    }
}

/* ---- Memory ---- */

static void what_cannot_fit_is_refused(void **state)
{
    static const Case cases[] = {
        {"--preset 405b --data long.bin", 1,
         "not enough memory: needs | TB, | available|category is activations with|try --recompute full|--micro-batch"},
        {"--preset 405b --recompute full --seq 1", 1, "category is optimizer with|--layers|--hidden"},
        {"--preset 405b --data long.bin --report new.json --metrics new.csv --trace new.trace --dump-gradients new.g "
         "--save new", 1, "available"},
        {"--preset 405b --data long.bin --metrics old.csv", 1, "available"},
        {"--layers 10000 --hidden 1048576 --heads 1024 --seq 1", 1,
         "not enough memory: needs | EB, |optimizer|--layers"},
        {"--vocab 16777216 --hidden 65536 --heads 1024", 1, "not enough memory: needs | TB, |optimizer|--vocab"},
        {"--layers 100 --hidden 16384 --heads 2 --seq 8192 --micro-batch 1024 --data long.bin", 1,
         "activations with|--recompute full"},
        /* a message does not advise an option that is set */
        {"--layers 100 --hidden 16384 --heads 2 --seq 8192 --micro-batch 1024 --data long.bin --recompute full", 1,
         "activations with|--micro-batch|!--recompute full"},
        {0}};

    (void)state;
    run_well("mkdir keep");
    run_well("mv %s long.bin", token_file(100000, 97));
    all_fail(cases);
    fails(1, "not enough memory: needs | TB, |--recompute full", CPU64 " --quiet --preset 405b --data long.bin");
    fails(1, "not enough memory: needs | TB, ", CPU " --preset 405b --data long.bin --save keep");

    /* Memory is enough for either of two ranks, at 16 bytes per parameter, but not for both. The limit of address space
     * is for a program that continues all the same; sanitizers do not work under it. */
    Result r = run(CPU " --preset tiny --steps 0");
    const char *line = strstr(r.out, "memory needed:"), *total = line ? strstr(line, "; total ") : NULL;
    double available = 0;
    const bool known = total && sscanf(total, "; total %*[^,], %lf GB available", &available) == 1;
    const double vocab = 0.7e9 * available / 16 / 1024;
    if (known && vocab <= 1 << 24 && !strstr(BUILD, "/sanitize")) {
        Result two = run("sh -c 'ulimit -v 40000000; timeout 15 mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 1 "
                         "--hidden 1024 --heads 2 --seq 4 --micro-batch 1 --vocab %.0f'", vocab);
        assert_int_equal(two.status, 1);
        assert_words(two.err, "03_data_parallel: not enough memory: needs | for 2 ranks together, | available",
                     "2 ranks");
        result_free(two);
    } else
        print_message("skipped: two ranks that need more memory than the %.0f GB available\n", available);
    result_free(r);

    /* The embedding has 8M x 16 parameters: 0.5 GB, four times with gradients and moments. The check before training
     * sees a limit of address space. It does not see a limit of data, under which an allocation fails. */
    r = run("sh -c 'ulimit -v 1000000; exec " CPU " " SMALL "'");
    if (r.status == 0) {
        fails(1, "not enough memory: needs| available", "sh -c 'ulimit -v 1000000; exec " CPU " " SMALL " --vocab "
              "8000000 --report new'");
        /* far smaller, so that the check before training passes even if other programs use most of the memory */
        fails(1, "not enough memory for|needs|in use|try ", "sh -c 'ulimit -d 500000; exec " CPU " " SMALL " --vocab "
              "2000000 --report new'");
        fails(1, "ulimit -v|too little memory for 16 threads", "sh -c 'ulimit -v 1000000; exec " CPU " " SMALL
              " --threads 16'");
    } else
        print_message("skipped: runs under a limit of address space\n");
    result_free(r);
}

/* ---- Several ranks ---- */

static void ranks_report_once(void **state)
{
    static const Case cases[] = {
        {"", 1, "%d ranks|without mpiexec"},
        {"--save new --metrics new.csv --report new.json --trace new.trace --dump-gradients new.g", 1, "%d ranks"},
        {"--load good --save good --metrics old.csv", 1, "%d ranks|without mpiexec"},
        {"--steps x", 2, "--steps: expected|got 'x'"},
        {"--hidden 50 --heads 4", 2, "--hidden: expected|got 50"},
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

    /* ranks of two programs; ranks in two directories; ranks that resume from two checkpoints */
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

/* ---- Random command lines ---- */

static uint64_t random_state;

static int below(int n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (random_state >> 20) % n;
}

/* No valid value in these lists leads to a run of minutes or to gigabytes, as --steps 1000000000 would. */
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
                joint = " '", end = "'";                            /* run() splits at spaces outside of quotes */
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
            if (strcmp(before, after)) {                            /* an option was to write a file */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_are_checked),
        TEST(the_command_line_is_checked),
        TEST(help_mentions_every_option),
        TEST(what_cannot_fit_is_refused),
        TEST(ranks_report_once),
        TEST(random_command_lines),
    };

    return cmocka_run_group_tests_name("command line", tests, NULL, NULL);
}
