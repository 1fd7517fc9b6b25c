/* The READMEs, by readmes.sh: those of programs have the same headings, links lead to files and headings, and commands
 * print what is below them. make test runs those whose output the reader predicts, and one program's "Run this"; make
 * test-full runs them all. */
#include <stdio.h>

#include "tree_copy.h"

#define PROGRAMS "[0-9][0-9]_*/README.md"

static void no_check_finds_a_fault(void **state)
{
    const struct { const char *check, *files, *in; } table[] = {
        {"headings", PROGRAMS, SOURCE},
        {"links", "*.md */*.md */*/*.md", SOURCE},
        {"citations", "*.md */*.md */*/*.md", SOURCE},
        {"figures", "README.md */README.md */*/README.md", SOURCE},
        {"widths", "*.md */README.md */*/README.md", SOURCE},
        {"quotes", "README.md", SOURCE},
        {"plans", "tools/workshop/run_sheet.md tools/workshop/instructors.md", SOURCE},
        {"predict", PROGRAMS, copy_of_tree()},
        {"run-this", full_tests() ? PROGRAMS : "04_zero/README.md", copy_of_tree()},
        {"commands", PROGRAMS, copy_of_tree()},
    };

    for (int i = 0; i < (full_tests() ? 10 : 9); i++) {
        char command[512];
        snprintf(command, sizeof command, "cd %s && tools/workshop/readmes.sh %s %s", table[i].in, table[i].check,
                 table[i].files);
        print_message("%s\n", table[i].check);
        expect(run_in_copy(command), 0, "");
    }
}

static void changes_and_tables_are_up_to_date(void **state)
{
    expect(run_in_copy("cd " SOURCE " && tools/workshop/changes.sh --check"), 0, "");
    expect(run_in_copy("cd " SOURCE " && PLAN=" BUILD "/cpu/plan tools/workshop/journey.sh --check"), 0, "");
    expect(run_in_copy("cd " SOURCE " && PLAN=" BUILD "/cpu/plan tools/planner/memory.sh --check"), 0, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_check_finds_a_fault),
                                       cmocka_unit_test(changes_and_tables_are_up_to_date)};

    return cmocka_run_group_tests_name("readmes", tests, NULL, NULL);
}
