#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *speaker = "ultrascale";

enum { PATHS = 64 };
static char *half_written[PATHS];

static void end_alone(const char *line, int status);

static ErrorEnd end = end_alone;

void error_speaker(const char *stage)
{
    speaker = stage;
}

const char *error_name(void)
{
    return speaker;
}

void error_end_with(ErrorEnd e)
{
    end = e;
}

void error_cleanup(const char *path)
{
    for (int i = 0; i < PATHS; i++)
        if (!half_written[i]) {
            half_written[i] = strdup(path);
            return;
        }
}

void error_cleanup_done(const char *path)
{
    for (int i = 0; i < PATHS; i++)
        if (half_written[i] && !strcmp(half_written[i], path)) {
            char *done = half_written[i];
            half_written[i] = NULL;             /* first: a signal may come, and error_cleanup_now with it */
            free(done);
        }
}

void error_cleanup_now(void)
{
    for (int i = PATHS - 1; i >= 0; i--)            /* files were made after the directories they are in */
        if (half_written[i] && unlink(half_written[i]))
            rmdir(half_written[i]);
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
    const int at = snprintf(line, sizeof line, "%s: ", speaker);

    vsnprintf(line + at, sizeof line - at, format, list);
    for (char *c = line; *c; c++)                   /* what a person or a file gave may hold more lines, or escapes */
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    fflush(stdout);
    end(line, status);
    abort();                                        /* an ErrorEnd doesn't return */
}

void fail(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fail_list(1, format, list);
}

void *host_alloc(int64_t bytes, const char *what)
{
    void *memory = calloc(bytes + 1, 1);            /* of 0 bytes it could be NULL */

    if (!memory)
        fail("no memory for %s: %lld bytes", what, (long long)bytes);
    return memory;
}

char *new_text(const char *format, ...)
{
    char *text;
    va_list list;

    va_start(list, format);
    if (vasprintf(&text, format, list) < 0)
        fail("no memory for a text");
    va_end(list);
    return text;
}

void fail_unprinted(void)
{
    if (fflush(stdout) || ferror(stdout))
        fail("what was printed could not be written to standard output");
}

void fail_usage(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fail_list(2, format, list);
}
