#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program_name = "ultrascale";

enum { PATHS = 64 };
static char *unfinished[PATHS];

static void end_alone(const char *line, int status);

static ErrorEnd end = end_alone;

void error_set_program(const char *program)
{
    program_name = program;
}

const char *error_name(void)
{
    return program_name;
}

void error_end_with(ErrorEnd e)
{
    end = e;
}

void error_cleanup(const char *path)
{
    for (int i = 0; i < PATHS; i++)
        if (!unfinished[i]) {
            unfinished[i] = strdup(path);
            return;
        }
}

void error_cleanup_done(const char *path)
{
    for (int i = 0; i < PATHS; i++)
        if (unfinished[i] && !strcmp(unfinished[i], path)) {
            char *done = unfinished[i];
            unfinished[i] = NULL;             /* first: a signal may come, and error_cleanup_now with it */
            free(done);
        }
}

void error_cleanup_now(void)
{
    for (int i = PATHS - 1; i >= 0; i--)            /* files were made after the directories they are in */
        if (unfinished[i] && unlink(unfinished[i]))
            rmdir(unfinished[i]);
}

static void end_alone(const char *line, int status)
{
    error_cleanup_now();
    fprintf(stderr, "%s\n", line);
    exit(status);
}

static _Noreturn void fail_list(int status, const char *format, va_list list)
{
    char line[2048];
    const int at = snprintf(line, sizeof line, "%s: ", program_name);

    vsnprintf(line + at, sizeof line - at, format, list);
    for (char *c = line; *c; c++)                   /* texts from the user or a file may hold newlines and escapes */
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    fflush(stdout);
    end(line, status);
    abort();                                        /* not reached: an ErrorEnd doesn't return */
}

void fail(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fail_list(1, format, list);
}

void *host_alloc(int64_t bytes, const char *what)
{
    void *memory = calloc(bytes + 1, 1);            /* + 1: calloc(0, 1) may return NULL */

    if (!memory)
        fail("not enough memory on the host for %s: needs %lld bytes", what, (long long)bytes);
    return memory;
}

char *new_text(const char *format, ...)
{
    char *text;
    va_list list;

    va_start(list, format);
    if (vasprintf(&text, format, list) < 0)
        fail("not enough memory on the host for a text");
    va_end(list);
    return text;
}

void fail_unprinted(void)
{
    if (fflush(stdout) || ferror(stdout))
        fail("standard output could not be written: its disk is full, or it is closed");
}

void fail_usage(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fail_list(2, format, list);
}
