#include "verify_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process.h"
#include "verify_costs.h"

char about[1024], groups[256];
int faults, wrong;

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
        return " (a number on its way from the device is NaN until the host has waited for it: is it read too early?)";
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

static void traffic_fault(int rank, const char *op, const char *group, int64_t calls, int64_t bytes, int64_t expected,
                          int64_t expected_bytes, const Shape *s)
{
    const long long off = llabs((long long)(calls - expected));

    if (off == 0)
        fault("rank %d: the %lld calls of %s in group %s send %lld bytes, but predict() gives %lld: other tensors are "
              "sent", rank, (long long)calls, op, group, (long long)bytes, (long long)expected_bytes);
    else
        fault("rank %d: %s in group %s is called %lld times per step, but predict() gives %lld: %lld %s%s", rank, op,
              group, (long long)calls, (long long)expected, off, calls < expected ? "missing" : "too many",
              count_name(off, s));
}

/* A program that began as a copy of another may still print the other's name. */
void print_messages(const char *text, const Shape *s, bool drifted)
{
    char copy[4096], op[64], group[64];
    int count = 0, rank;
    long long calls, bytes, expected, expected_bytes;
    bool traffic = false;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *line = strtok(copy, "\n"); line && count < 3; line = strtok(NULL, "\n")) {
        const size_t name = strcspn(line, ": ");
        if (name < 3 || line[0] < '0' || line[0] > '9' || line[2] != '_' || line[name] != ':'
            || (strstr(line, "has drifted") != NULL) != drifted)
            continue;
        if (sscanf(line + name, ": rank %d, step %*d: %63s in group %63[^:]: %lld calls sent %lld bytes, but "
                   "predict() gives %lld calls and %lld", &rank, op, group, &calls, &bytes, &expected, &expected_bytes)
            == 7) {
            if (!traffic)
                traffic_fault(rank, op, group, calls, bytes, expected, expected_bytes, s);
            traffic = true;
        } else {
            fault("%s%s", line, hint(line));
            count++;
        }
    }
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
