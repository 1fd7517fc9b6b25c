#include "print.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool enabled = true;

void print_enable(bool yes)
{
    enabled = yes;
}

bool print_to_terminal(void)
{
    return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
}

static bool open_line;              /* a status that something else must not continue */

void print_status(bool stays, const char *line)
{
    const bool terminal = print_to_terminal();

    if (!enabled)
        return;
    open_line = !stays && terminal;
    printf(terminal ? "\r\033[K%s" : "%s", line);
    if (!open_line)
        putchar('\n');
    fflush(stdout);
}

void print_rank_0(const char *format, ...)
{
    va_list list;

    if (!enabled || !*format)
        return;
    if (open_line)
        putchar('\n');
    open_line = false;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

const char *format_text(const char *format, ...)
{
    static char *recent[32];
    static int next;
    char **text = &recent[next++ % 32], *old = *text;
    va_list list;

    va_start(list, format);
    if (vasprintf(text, format, list) < 0)
        *text = NULL;
    va_end(list);
    free(old);
    return *text ? *text : "";
}

const char *number_text(int64_t n)
{
    if (n > -1000 && n < 1000)
        return format_text("%lld", (long long)n);
    return format_text("%s,%03lld", number_text(n / 1000), llabs(n % 1000));
}

const char *bytes_text(double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int u = 0;

    for (; u < 6 && fabs(bytes) >= 999.5; u++)
        bytes /= 1000;
    return format_text(u && bytes < 99.95 ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}

const char *duration_text(double seconds)
{
    const long long s = lround(seconds);

    return s < 3600 ? format_text("%lld:%02lld", s / 60, s % 60)
                    : format_text("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

const char *divisors_text(int n)
{
    const char *text = "1";

    for (int d = 2; d <= n; d++)
        if (n % d == 0)
            text = format_text(d < n ? "%s, %d" : "%s or %d", text, d);
    return text;
}
