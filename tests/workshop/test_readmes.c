/* The READMEs, by readmes.sh: those of programs have the same headings, links lead to files, and commands print what is
 * below them. make test compares the output of one program's command; make test-full runs all commands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tree_copy.h"

#define PROGRAMS "[0-9][0-9]_*/README.md"

static void find_no_fault(const char *check, const char *files)
{
    const bool runs_commands = !strcmp(check, "run-this") || !strcmp(check, "commands");
    char command[512];

    snprintf(command, sizeof command, "cd %s && tests/workshop/readmes.sh %s %s",
             runs_commands ? copy_of_tree() : SOURCE, check, files);
    expect(run_in_copy(command), 0, "");
}

static void programs_have_the_same_headings(void **state)
{
    (void)state;
    find_no_fault("headings", PROGRAMS);
}

static void links_lead_to_files(void **state)
{
    (void)state;
    find_no_fault("links", "*.md */*.md */*/*.md");
}

static void fenced_lines_are_not_cut_off(void **state)
{
    (void)state;
    find_no_fault("widths", "README.md */README.md */*/README.md");
}

static void the_front_page_quotes_the_programs(void **state)
{
    (void)state;
    find_no_fault("quotes", "README.md");
}

static void commands_print_what_is_below_them(void **state)
{
    (void)state;
    find_no_fault("run-this", full_tests() ? PROGRAMS : "04_zero/README.md");
}

static void all_commands_run(void **state)
{
    (void)state;
    if (!full_tests())
        skip();
    find_no_fault("commands", PROGRAMS);
}

#define START "# 04: ZeRO\n\nPlaybook: *Data Parallelism*.\n\n## The picture\n## The formula\n"
#define MIDDLE "## Read these five places in train.c\n## Run this\n```\n## no heading\n```\n## Costs\n"
#define DIGITS "123456789012345678901234567890123456789012345"
#define RUN(BLOCK) "\n## Run this\n\n```\n" BLOCK "```\n```\nfalse\n```\n"

static void planted_faults_are_found(void **state)
{
    static const struct {
        const char *check, *readme, *finds;             /* "": nothing is wrong */
    } table[] = {
        {"headings", START MIDDLE "## Pitfalls\n## Exercises\n", ""},
        {"headings", START MIDDLE "## Which one?\n## And more\n## Pitfalls\n## Exercises\n", ""},
        {"headings", "# 05: ZeRO\nPlaybook: x\n", "expected the title \"# 04: ...\""},
        {"headings", START MIDDLE "## Exercises\n## Pitfalls\n", "has no \"## Exercises\" in its place"},
        {"headings", START "## Run this\n" MIDDLE "## Pitfalls\n## Exercises\n",
         "found \"## Run this\", expected Read these "},
        {"headings", "# 04: ZeRO\n## The picture\n", "expected \"Playbook: \" with a chapter"},
        {"links", "[code](train.c), [03](../03_data_parallel), [x](#x), [y](https://example.org/z)\n", ""},
        {"links", "see [03](../03_data_parallel) and\n[this](nothing.c#line)\n", "links to nothing.c"},
        {"links", "```\n[this](nothing.c)\n```\n", ""},
        {"quotes", "```diff\n rope_forward(a->qkv, rope);\n+g_forward(a->none);\n```\n",
         "05_tensor_parallel/train.c has no \"g_forward(a->none);\""},
        {"quotes", "```diff\n-rope_forward(a->qkv, rope);\n```\n[9](01_single_gpu/train.c)\n",
         "01_single_gpu/train.c does not have 9 lines"},
        {"widths", "```\n" DIGITS DIGITS "··\n```\n" DIGITS DIGITS "333\n", ""},
        {"widths", "```\n" DIGITS DIGITS "·23\n```\n", "more than 92 columns: 1234"},
        {"run-this", RUN("printf 'x\\na b\\nc\\n d\\n'\na  b   <- a note\n...\n d\n"), ""},
        {"run-this", RUN("printf \\\n  'a b\\n'\na b\n"), ""},
        {"run-this", RUN("printf 'a b\\nd\\n'\nd\na b\n"), "in another place: a b"},
        {"run-this", RUN("echo a 11\na 12\n"), "lacks, or has in another place: a 12"},
        {"run-this", RUN("false\n"), "false: status 1"},
        {"run-this", "\n## Run this\n\nText.\n\n## Costs\n```\ntrue\n```\n", "has no fenced block"},
        {"commands", "make no-such-target\n```\nmake --version\nresult: make no-such-target\n```\n", ""},
        {"commands", "```\nbuild/no/program   # needs a GPU\nmake test\n```\n", ""},
        {"commands", "```\n# all this needs a GPU\nbuild/no/program\n```\n```\ntests/no/script\n```\n",
         "tests/no/script: status"},
        {"commands", "```\nmake --version \\\n  no-such-target\nfor i in 1 2; do\n  test $i = 2\ndone\n```\n", ""},
    };

    (void)state;
    run_well("sh -c 'mkdir 04_zero && touch 04_zero/train.c && ln -s " SOURCE "/[0-9][0-9]_* . 2>1; true'");
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        FILE *f = fopen(in_temporary("04_zero/README.md"), "w");
        assert_true(f && fputs(table[i].readme, f) >= 0 && fclose(f) == 0);
        expect(run(SOURCE "/tests/workshop/readmes.sh %s 04_zero/README.md", table[i].check), *table[i].finds != 0,
               table[i].finds);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_faults_are_found),
        cmocka_unit_test(the_front_page_quotes_the_programs),
        cmocka_unit_test(links_lead_to_files),
        cmocka_unit_test(fenced_lines_are_not_cut_off),
        cmocka_unit_test(programs_have_the_same_headings),
        cmocka_unit_test(commands_print_what_is_below_them),
        cmocka_unit_test(all_commands_run),
    };

    return cmocka_run_group_tests_name("readmes", tests, NULL, NULL);
}
