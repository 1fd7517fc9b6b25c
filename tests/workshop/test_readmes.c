/* The READMEs: those of programs have the same headings, links lead to files, and commands print the text below them.
 * make test compares the output of one program's command; make test-full runs all commands.
 */
#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tree_copy.h"

/* ---- Lines ---- */

/* The next line of a text, without its end; NULL: there is none. Changes the text. */
static char *next_line(char **text)
{
    char *line = *text;

    if (!*line)
        return NULL;
    *text += strcspn(line, "\n");
    if (**text)
        *(*text)++ = 0;
    return line;
}

/* Whether a line opens or closes a fenced block. */
static bool is_fence(const char *line)
{
    return !strncmp(line, "```", 3);
}

static bool starts_with(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* Writes every run of white space as one space, none at the ends. `to` may be `from`. */
static void squeeze(char *to, const char *from)
{
    char *end = to;

    for (; *from; from++)
        if (!isspace((unsigned char)*from))
            *end++ = *from;
        else if (end > to && end[-1] != ' ')
            *end++ = ' ';
    while (end > to && end[-1] == ' ')
        end--;
    *end = 0;
}

/* ---- Faults: a check writes one line per fault to a stream ---- */

static char *faults;
static size_t faults_size;

static FILE *faults_begin(void)
{
    return open_memstream(&faults, &faults_size);
}

static void expect_no_faults(FILE *f)
{
    fclose(f);
    const bool found = faults_size > 0;
    char *rest = faults;
    for (const char *line; (line = next_line(&rest));)
        print_message("%s\n", line);
    free(faults);
    if (found)
        fail_msg("see the lines above");
}

/* ---- Headings ---- */

/* The shape of a program's README. Sections of other names stand between Costs and Pitfalls. */
static void check_headings(FILE *to, const char *name, char *text)
{
    static const char *const headings[] = {"The picture", "The formula", "Read these ", "Run this", "Costs", "Pitfalls",
                                           "Exercises"};
    enum { COUNT = sizeof headings / sizeof *headings, PLACES = 2, PITFALLS = 5 };
    bool fenced = false, playbook = false;
    int found = 0;
    char title[8];

    snprintf(title, sizeof title, "# %.2s: ", name);
    if (!starts_with(text, title))
        fprintf(to, "%s: expected the title \"%s...\" in its first line\n", name, title);
    for (const char *line; (line = next_line(&text));) {
        fenced ^= is_fence(line);
        playbook |= !found && strstr(line, "Playbook: ");
        if (fenced || !starts_with(line, "## "))
            continue;
        const char *heading = line + 3, *expected = found < COUNT ? headings[found] : "no other section";
        if (!strcmp(heading, expected) || (found == PLACES && starts_with(heading, expected)
                                           && strstr(heading, " places in train.c")))
            found++;
        else if (found != PITFALLS)
            fprintf(to, "%s: found \"## %s\", expected %s\n", name, heading, expected);
    }
    if (found < COUNT)
        fprintf(to, "%s: has no \"## %s\" in its place\n", name, headings[found]);
    if (!playbook)
        fprintf(to, "%s: expected \"Playbook: \" with a chapter before its first section\n", name);
}

/* ---- Links ---- */

/* Links to files of the repository: ](PATH) outside of fenced blocks. */
static void check_links(FILE *to, const char *path, char *text)
{
    bool fenced = false;

    for (const char *line; (line = next_line(&text));) {
        fenced ^= is_fence(line);
        for (const char *at = line; !fenced && (at = strstr(at, "](")); at += 2) {
            const int length = strcspn(at + 2, ")#"), folder = strrchr(path, '/') ? strrchr(path, '/') - path + 1 : 0;
            char target[512];
            if (!length || starts_with(at + 2, "http"))
                continue;
            snprintf(target, sizeof target, SOURCE "/%.*s%.*s", folder, path, length, at + 2);
            if (access(target, F_OK))
                fprintf(to, "%s: links to %.*s, which does not exist\n", path, length, at + 2);
        }
    }
}

/* ---- Output ---- */

/* A block's lines must occur in the output, in this order. White space does not count, "..." alone stands for lines
 * left out, and "<-" begins a note. */
static void check_output(FILE *to, const char *name, char *block, char *output)
{
    for (char *line; (line = next_line(&block));) {
        char *rest = output, *copy = strdup(output), *at = copy, *found = NULL, expected[1024];
        char *note = strstr(line, "<-");
        if (note)
            *note = 0;
        snprintf(expected, sizeof expected, "%s", line);
        squeeze(expected, expected);
        if (*expected && strcmp(expected, "..."))
            for (char *printed; !found && (printed = next_line(&at));) {
                squeeze(printed, printed);
                if (strstr(printed, expected))
                    found = rest + (at - copy);         /* the output after this line */
            }
        else
            found = rest;
        if (found)
            output = found;
        else
            fprintf(to, "%s: the output lacks, or has in another place: %s\n", name, expected);
        free(copy);
    }
}

/* The first fenced block of the section "Run this", without the fences: a new string; NULL: there is none. */
static char *run_this(const char *text)
{
    const char *at = strstr(text, "\n## Run this\n"), *end = at ? strstr(at + 1, "\n## ") : NULL;
    const char *block = at ? strstr(at, "\n```") : NULL;

    if (!block || (end && block > end))
        return NULL;
    block += 1 + strcspn(block + 1, "\n");
    end = strstr(block, "\n```");
    return end ? strndup(block + 1, end - block) : NULL;
}

static void check_run_this(FILE *to, const char *name, const char *text)
{
    char *block = run_this(text), *rest = block, *command = block ? next_line(&rest) : NULL;

    if (!command || !*command) {
        fprintf(to, "%s: its section \"Run this\" has no fenced block with a command in the first line\n", name);
    } else {
        Result r = run_in_copy(command);
        if (r.status)
            fprintf(to, "%s: %s: status %d\n%.2000s\n", name, command, r.status, r.err);
        else
            check_output(to, name, rest, r.out);
        result_free(r);
    }
    free(block);
}

/* ---- Commands ---- */

/* Commands that this test does not run, and the reasons. */
static const struct {
    const char *begins, *reason;
} skipped[] = {
    {"make test", "would run this test again"},
    {"make figures", "takes half an hour"},
    {"make bench", "measures for minutes, and asserts nothing"},
    {"make fuzz", "takes a minute, and needs clang"},
    {"make cuda", "compiles for minutes, and needs nvcc"},
};

static const char *reason_to_skip(const char *command)
{
    if (strstr(command, "needs a GPU"))
        return "needs a GPU";
    if (starts_with(command, "make verify") && strstr(command, " N="))
        return "fails until the exercise is done: test_workshop runs it";
    for (unsigned i = 0; i < sizeof skipped / sizeof *skipped; i++)
        if (starts_with(command, skipped[i].begins))
            return skipped[i].reason;
    return NULL;
}

/* Whether a line of a fenced block is a command. */
static bool is_command(const char *line)
{
    static const char *const beginnings[] = {"make ", "mpiexec ", "build/", "tests/", "for "};

    for (unsigned i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (starts_with(line, beginnings[i]))
            return true;
    return false;
}

/* Whether a block has a line "# ... needs a GPU", which holds for all its commands. `block` is the text after the
 * opening fence. */
static bool block_needs_gpu(const char *block)
{
    for (const char *line = block; *line && !is_fence(line); line += *line == '\n') {
        const char *mark = strstr(line, "needs a GPU"), *end = line + strcspn(line, "\n");
        if (*line == '#' && mark && mark < end)
            return true;
        line = end;
    }
    return false;
}

static void check_command(FILE *to, const char *name, const char *command)
{
    const char *reason = reason_to_skip(command);

    if (reason) {
        print_message("%s: skipped (%s): %s\n", name, reason, command);
        return;
    }
    Result r = run_in_copy(command);
    print_message("%s: %.1f s: %s\n", name, r.seconds, command);
    if (r.status)
        fprintf(to, "%s: %s: status %d\n%.2000s\n", name, command, r.status, r.err);
    result_free(r);
}

/* Whether a command continues after this line. */
static bool continues(const char *command, const char *line)
{
    const size_t length = strlen(line);

    return (length && line[length - 1] == '\\') || (starts_with(command, "for ") && !strstr(line, "done"));
}

/* Runs each command in fenced blocks. */
static void check_commands(FILE *to, const char *name, char *text)
{
    bool fenced = false, skip = false;

    for (char *line; (line = next_line(&text));) {
        if (is_fence(line)) {
            fenced ^= true;
            skip = fenced && block_needs_gpu(text);
            continue;
        }
        if (!fenced || skip || !is_command(line))
            continue;
        for (char *last = line; last && continues(line, last);)
            if ((last = next_line(&text)))
                last[-1] = '\n';                        /* joins the lines again */
        check_command(to, name, line);
    }
}

/* ---- The tests ---- */

static glob_t programs;         /* their READMEs */

static int find_programs(void **state)
{
    (void)state;
    return glob(SOURCE "/[0-9][0-9]_*/README.md", 0, NULL, &programs);
}

/* "04_zero" for its README. */
static const char *name_of(const char *path)
{
    static char name[128];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(path + sizeof SOURCE, "/"), path + sizeof SOURCE);
    return name;
}

static void programs_have_the_same_headings(void **state)
{
    FILE *f = faults_begin();

    (void)state;
    assert_true(programs.gl_pathc >= 9);
    for (size_t i = 0; i < programs.gl_pathc; i++) {
        char *text = read_file(programs.gl_pathv[i]);
        check_headings(f, name_of(programs.gl_pathv[i]), text);
        free(text);
    }
    expect_no_faults(f);
}

static void links_lead_to_files(void **state)
{
    static const char *const patterns[] = {"/README.md", "/*/README.md", "/*/*/README.md", "/*/exercises.md"};
    FILE *f = faults_begin();
    int files = 0;

    (void)state;
    for (unsigned p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        char pattern[300];
        glob_t found;
        snprintf(pattern, sizeof pattern, SOURCE "%s", patterns[p]);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        for (size_t i = 0; i < found.gl_pathc; i++, files++) {
            char *text = read_file(found.gl_pathv[i]);
            check_links(f, found.gl_pathv[i] + sizeof SOURCE, text);
            free(text);
        }
        globfree(&found);
    }
    assert_true(files >= 25);
    expect_no_faults(f);
}

static void commands_print_what_is_below_them(void **state)
{
    FILE *f = faults_begin();

    (void)state;
    for (size_t i = 0; i < programs.gl_pathc; i++) {
        const char *name = name_of(programs.gl_pathv[i]);
        if (!full_tests() && !starts_with(name, "04"))
            continue;
        char *text = read_file(programs.gl_pathv[i]);
        check_run_this(f, name, text);
        free(text);
    }
    expect_no_faults(f);
}

static void all_commands_run(void **state)
{
    FILE *f = faults_begin();

    (void)state;
    for (size_t i = 0; i < programs.gl_pathc && full_tests(); i++) {
        char *text = read_file(programs.gl_pathv[i]);
        check_commands(f, name_of(programs.gl_pathv[i]), text);
        free(text);
    }
    expect_no_faults(f);
}

/* The front page quotes block_forward of 01 and the lines that 05 changes: both programs must have these lines. */
static void the_front_page_quotes_the_programs(void **state)
{
    char *page = read_file(SOURCE "/README.md"), *one = read_file(SOURCE "/01_single_gpu/train.c");
    char *five = read_file(SOURCE "/05_tensor_parallel/train.c"), *rest = strstr(page, "\n```\n01_single_gpu");
    int lines = 0, calls = 0;

    (void)state;
    assert_non_null(rest);
    for (const char *c = page; *c; c++)
        lines += *c == '\n';
    assert_in_range(lines, 1, 120);
    rest += 5;
    next_line(&rest);                                   /* the columns' titles */
    for (char *line; (line = next_line(&rest)) && !is_fence(line);) {
        char *right = strstr(line, "  ");
        if (right)
            *right = 0, right += 2 + strspn(right + 2, " ");
        if (right && strstr(right, ", ...);"))
            *strstr(right, ", ...);") = 0;
        calls += *line != 0;
        if (!strstr(one, line))
            fail_msg("01 has no \"%s\"", line);
        if (right && !strstr(five, right))
            fail_msg("05 has no \"%s\"", right);
    }
    assert_int_equal(calls, 11);
    free(page);
    free(one);
    free(five);
}

/* ---- The checks themselves, on planted faults ---- */

/* What a check finds; freed by the caller. `checks` names the check. */
static char *found_in(const char *checks, const char *readme, const char *output)
{
    char *text = strdup(readme), *printed = strdup(output);
    FILE *f = faults_begin();

    if (!strcmp(checks, "headings"))
        check_headings(f, "04_zero", text);
    else if (!strcmp(checks, "links"))
        check_links(f, "04_zero/README.md", text);
    else if (!strcmp(checks, "output"))
        check_output(f, "04_zero", text, printed);
    else if (!strcmp(checks, "run this"))
        check_run_this(f, "04_zero", text);
    else
        check_commands(f, "04_zero", text);
    fclose(f);
    free(text);
    free(printed);
    return faults;
}

#define START "# 04: ZeRO\n\nPlaybook: *Data Parallelism*.\n\n## The picture\n## The formula\n"
#define MIDDLE "## Read these five places in train.c\n## Run this\n```\n## no heading\n```\n## Costs\n"

static void planted_faults_are_found(void **state)
{
    static const struct {
        const char *checks, *readme, *output, *finds;           /* "": nothing is wrong */
    } table[] = {
        {"headings", START MIDDLE "## Pitfalls\n## Exercises\n", "", ""},
        {"headings", START MIDDLE "## Which one?\n## And more\n## Pitfalls\n## Exercises\n", "", ""},
        {"headings", "# 05: ZeRO\nPlaybook: x\n", "", "expected the title \"# 04: ...\""},
        {"headings", START MIDDLE "## Exercises\n## Pitfalls\n", "", "has no \"## Exercises\" in its place"},
        {"headings", START "## Run this\n" MIDDLE "## Pitfalls\n## Exercises\n", "",
         "found \"## Run this\", expected Read these "},
        {"headings", START MIDDLE "## Pitfalls\n## Exercises\n## More\n", "", "found \"## More\", expected no other"},
        {"headings", "# 04: ZeRO\n## The picture\n", "", "expected \"Playbook: \" with a chapter"},
        {"links", "[code](train.c), [03](../03_data_parallel), [x](#x), [y](https://example.org/z)\n", "", ""},
        {"links", "see [03](../03_data_parallel) and\n[this](nothing.c#line)\n", "", "links to nothing.c"},
        {"output", "a  b   <- a note\n...\n d\n", "x\na b\nc\nd\n", ""},
        {"output", "d\na b\n", "a b\nd\n", "in another place: a b"},
        {"output", "a b\na b\n", "a b\n", "in another place: a b"},
        {"output", "a 12\n", "a 11\n", "lacks, or has in another place: a 12"},
        {"run this", "\n## Run this\n\n```\nprintf '1\\n2\\n'\n2   <- two\n```\n", "", ""},
        {"run this", "\n## Run this\n\n```\necho 1\n2\n```\n", "", "in another place: 2"},
        {"run this", "\n## Run this\n\n```\nfalse\n```\n", "", "false: status 1"},
        {"run this", "\n## Run this\n\nText.\n\n## Costs\n```\ntrue\n```\n", "", "has no fenced block"},
        {"commands", "make no-such-target\n```\nmake --version\nresult: make no-such-target\n```\n", "", ""},
        {"commands", "```\nbuild/no/program   # needs a GPU\nmake test\n```\n", "", ""},
        {"commands", "```\n# all this needs a GPU\nbuild/no/program\n```\n```\ntests/no/script\n```\n", "",
         "tests/no/script: status"},
        {"commands", "```\nmake --version \\\n  no-such-target\nfor i in 1 2; do\n  test $i = 2\ndone\n```\n", "", ""},
        {"commands", "```\nfor i in 1 2; do\n  test $i = 1\ndone\n```\n", "", "status 1"},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        char *found = found_in(table[i].checks, table[i].readme, table[i].output);
        if (*table[i].finds ? !strstr(found, table[i].finds) : *found)
            fail_msg("%s of \"%s\": expected \"%s\", found \"%s\"", table[i].checks, table[i].readme, table[i].finds,
                     found);
        free(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_faults_are_found),
        cmocka_unit_test(the_front_page_quotes_the_programs),
        cmocka_unit_test(links_lead_to_files),
        cmocka_unit_test(programs_have_the_same_headings),
        cmocka_unit_test(commands_print_what_is_below_them),
        cmocka_unit_test(all_commands_run),
    };

    return cmocka_run_group_tests_name("readmes", tests, find_programs, NULL);
}
