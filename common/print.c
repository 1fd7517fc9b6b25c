#include "print.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static bool enabled = true;

void print_enable(bool yes)
{
    enabled = yes;
}

void print_rank_0(const char *format, ...)
{
    va_list list;

    if (!enabled)
        return;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

const char *number_text(int64_t n)
{
    static char text[8][32];
    static int next;
    char digits[32], *t = text[next++ % 8], *to = t;
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)n);

    for (int i = 0; i < length; i++) {
        *to++ = digits[i];
        if (digits[i] != '-' && i + 1 < length && (length - i - 1) % 3 == 0)
            *to++ = ',';
    }
    *to = 0;
    return t;
}

const char *bytes_text(double bytes)
{
    static char text[8][32];
    static int next;
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    char *t = text[next++ % 8];
    int u = 0;

    while (u < 6 && (bytes >= 999.5 || bytes <= -999.5)) {
        bytes /= 1000;
        u++;
    }
    snprintf(t, sizeof text[0], u && bytes < 99.95 ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return t;
}

const char *duration_text(double seconds)
{
    static char text[32];
    const int64_t s = lround(seconds);

    if (s >= 3600)
        snprintf(text, sizeof text, "%lld:%02d:%02d", (long long)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(text, sizeof text, "%d:%02d", (int)(s / 60), (int)(s % 60));
    return text;
}

const char *divisors_text(int n)
{
    static char text[1024];             /* enough for 120 divisors, the most that a number below 2^16 has (55440) */
    int at = 0;

    for (int d = 1; d <= n; d++)
        if (n % d == 0)
            at += snprintf(text + at, sizeof text - at, "%s%d", d == 1 ? "" : ", ", d);
    return text;
}
