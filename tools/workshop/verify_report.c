#include "verify_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/print.h"
#include "process.h"
#include "verify_costs.h"

char about[1024], groups[256];
int faults, wrong, accesses;

void fault(const char *format, ...)
{
    va_list list;

    if (!faults++)
        printf("WRONG\n    %s\n", about);
    if (wrong && faults > 2)
        return;
    va_start(list, format);
    printf("    ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

/* What a message of the program may mean, appended to it; "" if the message is clear by itself. */
static const char *hint(const char *line)
{
    if ((strstr(line, "nan") || strstr(line, "inf and")) && !strstr(line, "under --check"))         /* one rank */
        return " (a number on its way from the device is NaN until the host has waited for it; so may be what lies "
               "beyond an array, or was never written)";
    if (strstr(line, "has drifted before"))
        return " (no update was made yet: after a load parameters must be all-gathered)";
    if (strstr(line, "has drifted"))
        return " (replicas stay equal only if all get the same gradients and the same norm; parameters that were "
               "all-gathered before an update are stale after it)";
    if (strstr(line, "silent") || strstr(line, "waits") || strstr(line, "waited"))
        return strstr(line, "send") ? " (a send lasts until its receive is posted: ranks that all wait for their sends "
                                      "before they post receives wait for each other)"
               : " (some ranks make calls that others do not make, or in another order)";
    return "";
}

/* A surplus or lack of calls as a multiple of what a schedule counts: " = 2 per layer and micro-batch"; or "". */
static const char *count_name(int64_t calls, const Shape *s)
{
    static char text[128];
    const struct {
        int64_t unit;
        const char *words;
    } units[] = {{(int64_t)s->layers * s->accumulate, "layer and micro-batch"}, {s->layers, "layer"},
                 {s->accumulate, "micro-batch"}};

    text[0] = 0;
    for (int i = 0; i < 3 && !text[0]; i++)
        if (units[i].unit > 1 && calls % units[i].unit == 0 && calls / units[i].unit <= 4)
            snprintf(text, sizeof text, " = %lld per %s", (long long)(calls / units[i].unit), units[i].words);
    return text;
}

/* A line in which a program finds that a group's traffic is not what it predicted. */
typedef struct {
    int rank;
    char op[64], group[64];
    long long calls, bytes, expected, expected_bytes;
} Traffic;

static bool read_traffic(Traffic *t, const char *line)
{
    return sscanf(line, ": rank %d, step %*d: %63s in group %63[^:]: %lld calls sent %lld bytes, but predict() gives "
                  "%lld calls and %lld", &t->rank, t->op, t->group, &t->calls, &t->bytes, &t->expected,
                  &t->expected_bytes) == 7;
}

static const char *calls_text(long long n)
{
    return format_text(n == 1 ? "%lld call" : "%lld calls", n);
}

/* Prints one rank's lines. Calls missing in one group, and as many too many in another, are made in the wrong one. */
static void print_traffic(const Traffic *list, int count, const Shape *s)
{
    for (const Traffic *t = list; t < list + count; t++) {
        const long long more = t->calls - t->expected;
        const Traffic *other = list;
        while (other < list + count && (strcmp(other->op, t->op) || other->expected - other->calls != more || !more))
            other++;
        if (other < list + count && more < 0)
            continue;                                   /* said with the other */
        if (other < list + count)
            fault("rank %d: %s of %s per step %s made in group %s, but predict() has %s in group %s", t->rank,
                  calls_text(more), t->op, more == 1 ? "is" : "are", t->group, more == 1 ? "it" : "them",
                  other->group);
        else if (more == 0)
            fault("rank %d: the %s of %s in group %s %s %lld bytes, but predict() gives %lld: other tensors are sent",
                  t->rank, calls_text(t->calls), t->op, t->group, t->calls == 1 ? "sends" : "send", t->bytes,
                  t->expected_bytes);
        else
            fault("rank %d: %s in group %s is called %lld time%s per step, but predict() gives %lld: %lld %s%s",
                  t->rank, t->op, t->group, t->calls, t->calls == 1 ? "" : "s", t->expected, llabs(more),
                  more < 0 ? "missing" : "too many", count_name(llabs(more), s));
    }
}

/* A program that began as a copy of another may still print the other's name. */
void print_messages(const char *text, const Shape *s, bool drifted)
{
    enum { MOST = 4 };
    char *copy = strdup(text);
    Traffic list[MOST];
    int count = 0, traffic = 0;

    for (char *line = strtok(copy, "\n"); line && count < 3; line = strtok(NULL, "\n")) {
        const size_t name = strcspn(line, ": ");
        if (name < 3 || line[0] < '0' || line[0] > '9' || line[2] != '_' || line[name] != ':'
            || (strstr(line, "has drifted") != NULL) != drifted)
            continue;
        if (traffic < MOST && read_traffic(&list[traffic], line + name)) {
            traffic += list[traffic].rank == list[0].rank;
        } else if (!strstr(line, " calls sent ")) {
            fault("%s%s", line, hint(line));
            count++;
        }
    }
    free(copy);
    print_traffic(list, traffic, s);
}

/* The first place in a file of a stack, "route_forward_kernel (experts_cpu.c:45)", until the next call; "": none. Only
 * the program's own files have line numbers. */
static const char *first_place(const char *stack, bool with_line)
{
    static char place[2][200];
    static int next;
    char function[100], path[300];
    char *to = place[next++ % 2];

    *to = 0;
    for (const char *at = strstr(stack, "    #"); at && !*to; at = strchr(at + 1, '\n'), at = at ? at + 1 : NULL) {
        if (strncmp(at, "    #", 5))
            break;
        const int found = sscanf(at, " #%*d 0x%*x in %99s %299[^\n]", function, path);
        const char *file = found == 2 && strrchr(path, '/') ? strrchr(path, '/') + 1 : "";
        if (found >= 1 && !strstr(path, "asan_") && !strstr(path, "sanitizer_") && (strchr(file, ':') || !with_line))
            snprintf(to, 200, *file ? "%s (%s)" : "%s", function, file);
    }
    return to;
}

void print_access(const char *text)
{
    const char *error = strstr(text, "ERROR: AddressSanitizer: ") + strlen("ERROR: AddressSanitizer: ");
    const char *access = strstr(error, " of size "), *made = strstr(error, "allocated by thread");
    const char *beyond = strstr(error, " is located "), *place = first_place(error, true);
    const char *of = made ? first_place(made, true) : "";
    char where[100] = "";

    accesses++;
    place = *place ? place : first_place(error, false);
    if (!strncmp(error, "SEGV", 4)) {
        fault("the run crashed in %s: a pointer is not set, or was read from beyond an array", place);
        return;
    }
    if (beyond)                                 /* "8 bytes to the left of 32257-byte region [0x...": of gcc 12 */
        snprintf(where, sizeof where, ", %.*s", (int)strcspn(beyond + 12, "[\n("), beyond + 12);
    where[strlen(where) - (*where && where[strlen(where) - 1] == ' ')] = 0;
    fault("%.*s: a %s in %s%s%s%s (found by AddressSanitizer; results may be right all the same, because what lies "
          "beyond an array is often not used)", (int)strcspn(error, " \n"), error,
          access && access > error && !strncmp(access - 4, "READ", 4) ? "read" : "write", place, where,
          *of ? "; the array is made in " : "", of);
}

cJSON *read_json(const char *name)
{
    if (access(in_temporary("%s", name), F_OK))
        return NULL;
    char *text = read_file(in_temporary("%s", name));
    cJSON *json = cJSON_Parse(text);
    free(text);
    return json;
}

cJSON *ranks_of(const cJSON *report)
{
    return cJSON_GetObjectItem(report, "ranks");
}

void read_groups(const cJSON *report)
{
    const cJSON *rank, *group;

    groups[0] = 0;
    cJSON_ArrayForEach(rank, ranks_of(report))
        cJSON_ArrayForEach(group, cJSON_GetObjectItem(rank, "groups")) {
            char entry[64], before[300];
            snprintf(entry, sizeof entry, ",%.40s=%d,", group->string, cJSON_GetArraySize(group));
            snprintf(before, sizeof before, ",%s", groups);
            if (!strstr(before, entry))
                add_text(groups, sizeof groups, "%s", entry + 1);
        }
}

void describe(const Shape *s, const cJSON *report)
{
    const cJSON *first = cJSON_GetArrayItem(ranks_of(report), 0), *rank;

    snprintf(about, sizeof about, "micro_batch %d, accumulate %d, T %d, layers %d", s->micro_batch, s->accumulate,
             s->seq, s->layers);
    for (const char *g = groups; *g; g += strcspn(g, ",") + 1)
        add_text(about, sizeof about, "%s %.*s %d", g == groups ? "; groups" : ",", (int)strcspn(g, "="), g,
                 atoi(g + strcspn(g, "=") + 1));
    cJSON_ArrayForEach(rank, ranks_of(report))
        if (cJSON_HasObjectItem(first, "in_flight"))
            add_text(about, sizeof about, "%s%.0f", rank == first ? "; micro-batches in flight " : ", ",
                     number_of(rank, "in_flight"));
    if (cJSON_HasObjectItem(first, "bubble_simulated"))
        add_text(about, sizeof about, "; bubble %.3f simulated, %.3f by its formula",
                 number_of(first, "bubble_simulated"), number_of(first, "bubble_formula"));
}
