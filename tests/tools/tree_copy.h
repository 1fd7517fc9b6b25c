/* A copy of the tree that uses this build, for commands that would change files of a user who works here. Include this
 * once. */
#ifndef TREE_COPY_H
#define TREE_COPY_H

#include <stdio.h>

#include "../harness.h"

/* The copy; made on first use. Exercises and sweeps are its own, all else in its build/ is a link to this build. */
static const char *copy_of_tree(void)
{
    static char copy[256];

    if (*copy)
        return copy;
    snprintf(copy, sizeof copy, "%s", in_temporary("copy"));    /* whose buffer is used again soon */
    run_well("sh -c 'mkdir -p %s/build && cp -rp " SOURCE "/Makefile " SOURCE "/CITATION.cff " SOURCE "/README.md "
             SOURCE "/common " SOURCE "/tools " SOURCE "/tests " SOURCE "/[0-9][0-9]_* %s && "
             "ln -s " SOURCE "/build/* %s/build && cd %s/build && rm -f exercise sweep && "
             "ln -sfn " BUILD "/cpu " BUILD "/cpu64 .'", copy, copy, copy, copy);
    return copy;
}

/* Runs a command in the root of the copy, as a user would type it. Status 124: it ran longer than 10 minutes. */
static Result run_in_copy(const char *command)
{
    FILE *script = fopen(in_temporary("command.sh"), "w");

    assert_non_null(script);
    fprintf(script, "cd %s\nunset MAKELEVEL\nexport MAKEFLAGS='-- ROOT=" SOURCE "'\n%s\n", copy_of_tree(), command);
    fclose(script);
    return run("timeout 600 sh command.sh");
}

#endif
