#include "error.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *program_name = "ultrascale";
static int rank;
static void (*end)(int status);

void error_set_program(const char *program)
{
    program_name = program;
    setvbuf(stderr, NULL, _IOLBF, 0);           /* each line at once: a launcher prints the parts of two ranks mixed */
}

void error_set_rank(int number, void (*end_all)(int status))
{
    rank = number, end = end_all;
}

const char *error_name(void)
{
    return program_name;
}

static void on_sigill(int number)
{
    (void)number;
    dprintf(STDERR_FILENO, "%s: this processor lacks an instruction that the program was built with; run make on this "
            "machine, or \"make PORTABLE=1\" on any (for x86-64 with AVX2, or arm64)\n", program_name);
    _exit(1);
}

/* Before main, whose first lines may have such an instruction. */
__attribute__((constructor)) static void explain_sigill(void)
{
    signal(SIGILL, on_sigill);
}

/* On a terminal, what takes the place of a line that has no end yet. */
static const char *erase(void)
{
    return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) ? "\r\033[K" : "";
}

static _Noreturn void fail_list(int status, const char *format, va_list list)
{
    char line[2048];

    vsnprintf(line, sizeof line, format, list);
    fflush(stdout);
    if (rank) {                                 /* a lower rank may have the same line, and ends this one */
        signal(SIGTERM, SIG_DFL);               /* Open MPI does it by this signal */
        usleep(800000 + 200000 * (rank < 8 ? rank : 8));
    }
    fprintf(stderr, rank ? "%s%s: %s (rank %d)\n" : "%s%s: %s\n", erase(), program_name, line, rank);
    if (end)
        end(status);
    exit(status);
}

void fail(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fail_list(1, format, list);
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
