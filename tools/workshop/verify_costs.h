/* What a run costs beside the project's own program: a correct program may still send twice the bytes, keep a buffer too
 * many, recompute what it has, or wait for transfers that could overlap. One that costs less is as suspicious. verify_costs.tsv has the project's numbers for
 * the cases of verify_cases.h; `make verify-costs` renews it. Include this once, in verify.c. */
#ifndef VERIFY_COSTS_H
#define VERIFY_COSTS_H

#include <cjson/cJSON.h>
#include <math.h>

#include "../../common/memory.h"
#include "verify_cases.h"

#define COSTS_FILE SOURCE "/tools/workshop/verify_costs.tsv"

enum { KINDS = 16, MOST_RANKS = 64 };

/* Over all ranks: bytes sent in the last step, FLOPs of the run, peak bytes of each category of memory. */
enum { SENT, FLOPS, MEMORY, NUMBERS = MEMORY + MEM_CATEGORIES };
typedef struct {
    double numbers[NUMBERS];
    struct { char name[32], group[32]; int behind, all; } transfers[KINDS];
    int kinds;
} Costs;

static double number(const cJSON *json, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(json, name));
}

/* Counts the trace's transfers, and those during which an operator of the same rank begins. */
static void count_transfers(Costs *c, const char *trace)
{
    char *text = read_file(trace), *const after = text + strlen(text), name[64], group[64];
    double *began[MOST_RANKS] = {0}, ts, dur;
    int count[MOST_RANKS] = {0}, pid, tid, end;

    for (char *end_of_line = text; (end_of_line = strchr(end_of_line, '\n')); )
        *end_of_line++ = 0;                     /* sscanf reads to the end of a string */
    for (int transfers = 0; transfers < 2; transfers++)         /* all operators first */
        for (const char *line = text; line < after; line += strlen(line) + 1) {
            if (sscanf(line, " {\"name\":\"%63[^\"]\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lf,\"dur\":%lf%n", name,
                       &pid, &tid, &ts, &dur, &end) != 5 || pid >= MOST_RANKS)
                continue;
            const bool transfer = sscanf(line + end, ",\"cat\":\"%63[^\"]\"", group) == 1;
            if (!transfers && !transfer && tid == 1) {
                if (count[pid] % 1024 == 0)
                    began[pid] = realloc(began[pid], (count[pid] + 1024) * sizeof(double));
                began[pid][count[pid]++] = ts;
            }
            if (!transfers || !transfer)
                continue;
            int k = 0, behind = 0;
            while (k < c->kinds && (strcmp(c->transfers[k].name, name) || strcmp(c->transfers[k].group, group)))
                k++;
            if (k == KINDS)
                continue;
            if (k == c->kinds) {
                snprintf(c->transfers[k].name, sizeof c->transfers[k].name, "%.31s", name);
                snprintf(c->transfers[k].group, sizeof c->transfers[k].group, "%.31s", group);
                c->kinds++;
            }
            for (int i = 0; i < count[pid] && !behind; i++)
                behind = began[pid][i] > ts && began[pid][i] < ts + dur;
            c->transfers[k].behind += behind, c->transfers[k].all++;
        }
    for (int r = 0; r < MOST_RANKS; r++)
        free(began[r]);
    free(text);
}

static Costs costs_of(const cJSON *report, const char *trace)
{
    Costs c = {0};
    const cJSON *rank, *entry;

    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks")) {
        for (int k = 0; k < MEM_CATEGORIES; k++) {
            entry = cJSON_GetObjectItem(cJSON_GetObjectItem(rank, "memory"), memory_name[k]);
            c.numbers[MEMORY + k] += entry ? number(entry, "measured") : 0;
        }
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "comm"))
            c.numbers[SENT] += number(entry, "bytes");
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "operators"))
            c.numbers[FLOPS] += number(entry, "flops");
    }
    count_transfers(&c, trace);
    return c;
}

static void record_costs(const Case *c, Costs mine)
{
    FILE *f = fopen(COSTS_FILE, "a");

    fprintf(f, "%s\t%s\t%d\t%d\t", c->stage, c->options, c->ranks, c->kind & MIXTURE);
    for (int i = 0; i < NUMBERS; i++)
        fprintf(f, "%.0f\t", mine.numbers[i]);
    for (int k = 0; k < mine.kinds; k++)
        fprintf(f, "%s%s %s %d/%d", k ? ", " : "", mine.transfers[k].name, mine.transfers[k].group,
                mine.transfers[k].behind, mine.transfers[k].all);
    fputc('\n', f);
    fclose(f);
}

/* Adds to the text what the run costs more than the project's program, or less. Returns whether it does; false too for
 * a case that has no row. */
static bool costs_differ(char *text, size_t size, const Case *c, Costs mine)
{
    char row[1024], key[512];
    char *at = "";
    FILE *f = fopen(COSTS_FILE, "r");
    bool found = false;

    snprintf(key, sizeof key, "%s\t%s\t%d\t%d\t", c->stage, c->options, c->ranks, c->kind & MIXTURE);
    while (f && !found && fgets(row, sizeof row, f))
        found = starts_with(row, key);
    if (f)
        fclose(f);
    text[0] = 0;
    if (found)
        at = row + strlen(key);
    for (int i = 0; i < NUMBERS && found; i++) {
        const double mine_i = mine.numbers[i], ours = strtod(at, &at);
        if (fabs(mine_i - ours) > 1e-9 * ours)
            snprintf(text + strlen(text), size - strlen(text), "    %s: %.0f, but %.0f in the project's program%s\n",
                     i == SENT ? "bytes sent per step" : i == FLOPS ? "FLOPs" : memory_name[i - MEMORY], mine_i, ours,
                     mine_i > ours ? "" : ": is something left out, or stored in fewer bits?");
    }
    char name[32], group[32];
    bool first = true;
    for (int behind, all, length; sscanf(at, " %31s %31s %d/%d%n", name, group, &behind, &all, &length) == 4;
         at += length + (at[length] == ','))
        for (int k = 0; k < mine.kinds; k++)
            if (!strcmp(mine.transfers[k].name, name) && !strcmp(mine.transfers[k].group, group)
                && (int64_t)mine.transfers[k].behind * all < (int64_t)behind * mine.transfers[k].all) {
                snprintf(text + strlen(text), size - strlen(text), "%s%d of %d (%s in group %s; the project's program: %d "
                         "of %d)", first ? "    transfers that overlap with computation, which an operator between start "
                         "and wait does: " : ", ", mine.transfers[k].behind, mine.transfers[k].all, name, group, behind,
                         all);
                first = false;
            }
    if (!first)
        snprintf(text + strlen(text), size - strlen(text), "\n");
    return *text;
}

#endif
