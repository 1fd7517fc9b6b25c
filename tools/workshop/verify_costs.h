/* What a run costs beside the project's own program: a correct program may still send twice the bytes, keep a buffer
 * too many, recompute what it has, wait for transfers that could overlap, or have groups whose ranks are far apart. One
 * that costs less is as suspicious. verify_costs.tsv has the project's numbers for the cases of verify_cases.h; `make
 * verify-costs` renews it. Include this once, in verify.c. */
#ifndef VERIFY_COSTS_H
#define VERIFY_COSTS_H

#include <cjson/cJSON.h>
#include <math.h>

#include "../../common/memory.h"
#include "verify_cases.h"

#define COSTS_FILE SOURCE "/tools/workshop/verify_costs.tsv"

enum { KINDS = 16 };

/* Over all ranks: bytes sent in the last step; FLOPs of the steps; calls of linear and attention operators, those of
 * evaluations too; a pipeline's micro-batches in flight; peak bytes of each category of memory. Of each kind of
 * transfer: during how many an operator of the same rank begins (behind); during how many none does, while an earlier
 * one of the group is in flight (queued); all. */
enum { SENT, FLOPS, CALLS, IN_FLIGHT, MEMORY, NUMBERS = MEMORY + MEM_CATEGORIES };
enum { BEHIND, QUEUED, ALL, COUNTS };
typedef struct {
    char name[32], group[32];
    int count[COUNTS], rank;    /* rank: of the last one counted, which ended at `until` */
    double until;
} Transfers;
typedef struct {
    double numbers[NUMBERS];
    char groups[1024];          /* every group's ranks, once: ",tp 0 1,tp 2 3," */
    Transfers transfers[KINDS];
    int kinds;
} Costs;

static char waste[4096];        /* what the current configuration costs more than the project's program, or less */

static void add_waste(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void add_waste(const char *format, ...)
{
    const size_t length = strlen(waste);
    va_list list;

    va_start(list, format);
    vsnprintf(waste + length, sizeof waste - length, format, list);
    va_end(list);
}

static double number(const cJSON *json, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(json, name));
}

/* A transfer's kind in the list, which may grow by it. */
static Transfers *kind_of(Costs *c, const char *name, const char *group)
{
    int k = 0;

    while (k < c->kinds && (strcmp(c->transfers[k].name, name) || strcmp(c->transfers[k].group, group)))
        k++;
    if (k == KINDS)
        fail("a run has more than %d kinds of transfers", KINDS);
    if (k == c->kinds) {
        snprintf(c->transfers[k].name, sizeof c->transfers[k].name, "%.31s", name);
        snprintf(c->transfers[k].group, sizeof c->transfers[k].group, "%.31s", group);
        c->kinds++;
    }
    return &c->transfers[k];
}

/* Counts what the trace has: transfers and operators. A rank's spans lie in the order in which they began. */
static void count_spans(Costs *c, const char *trace)
{
    struct Span { char name[64], group[64]; double ts, end; int rank; } *spans = NULL, *s;
    char *text = read_file(trace);
    int count = 0, tid, length;

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (count % 4096 == 0)
            spans = realloc(spans, (count + 4096) * sizeof *spans);
        s = &spans[count];
        s->group[0] = 0;
        if (sscanf(line, " {\"name\":\"%63[^\"]\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lf,\"dur\":%lf%n", s->name,
                   &s->rank, &tid, &s->ts, &s->end, &length) != 5)
            continue;
        s->end += s->ts;
        if (sscanf(line + length, ",\"cat\":\"%63[^\"]\"", s->group) != 1)
            c->numbers[CALLS] += tid == 1 && (starts_with(s->name, "linear") || strstr(s->name, "attention"));
        count += *s->group || tid == 1;
    }
    for (s = spans; s < spans + count; s++) {
        bool behind = false, queued = false;
        if (!*s->group)
            continue;
        for (const struct Span *o = s + 1; o < spans + count && o->rank == s->rank && o->ts < s->end; o++)
            behind |= !*o->group && o->ts > s->ts;
        for (const Transfers *t = c->transfers; t < c->transfers + c->kinds; t++)
            queued |= !strcmp(t->group, s->group) && t->rank == s->rank && t->until > s->end && !behind;
        Transfers *kind = kind_of(c, s->name, s->group);
        kind->count[BEHIND] += behind, kind->count[QUEUED] += queued, kind->count[ALL]++;
        kind->rank = s->rank, kind->until = s->end;
    }
    free(spans);
    free(text);
}

static Costs costs_of(const cJSON *report, const char *trace)
{
    Costs c = {.groups = ","};
    const cJSON *rank, *entry;

    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks")) {
        for (int k = 0; k < MEM_CATEGORIES; k++) {
            entry = cJSON_GetObjectItem(cJSON_GetObjectItem(rank, "memory"), memory_name[k]);
            c.numbers[MEMORY + k] += entry ? number(entry, "measured") : 0;
        }
        c.numbers[IN_FLIGHT] += cJSON_HasObjectItem(rank, "in_flight") ? number(rank, "in_flight") : 0;
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "groups")) {
            char ranks[256];
            int length = snprintf(ranks, sizeof ranks, ",%.31s", entry->string);
            const cJSON *member;
            cJSON_ArrayForEach(member, entry)
                length += snprintf(ranks + length, sizeof ranks - length, " %.0f", cJSON_GetNumberValue(member));
            snprintf(ranks + length, sizeof ranks - length, ",");
            if (!strstr(c.groups, ranks))
                strncat(c.groups, ranks + 1, sizeof c.groups - strlen(c.groups) - 1);
        }
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "comm"))
            c.numbers[SENT] += number(entry, "bytes");
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "operators"))
            c.numbers[FLOPS] += number(entry, "flops");
    }
    count_spans(&c, trace);
    return c;
}

static void record_costs(const Case *c, const Costs *mine)
{
    FILE *f = fopen(COSTS_FILE, "a");

    fprintf(f, "%s\t%s\t%d\t", c->stage, c->options, c->ranks);
    for (int i = 0; i < NUMBERS; i++)
        fprintf(f, "%.0f\t", mine->numbers[i]);
    fprintf(f, "%s\t", mine->groups);
    for (const Transfers *t = mine->transfers; t < mine->transfers + mine->kinds; t++)
        fprintf(f, "%s%s %s %d/%d/%d", t > mine->transfers ? ", " : "", t->name, t->group, t->count[BEHIND],
                t->count[QUEUED], t->count[ALL]);
    fputc('\n', f);
    fclose(f);
}

/* Adds what the run costs more than the project's program, or less; nothing for a case that has no row. */
static void compare_costs(const Case *c, const Costs *mine)
{
    static const char *const names[] = {"bytes sent per step", "FLOPs of the steps", "calls of linear and attention "
                                        "operators, those of evaluations included", "micro-batches in flight, of all "
                                        "ranks"};
    static const char *const words[] = {"    transfers that overlap with computation, which an operator between start "
                                        "and wait does: ", "    transfers that wait behind an earlier one of their "
                                        "group: "};
    char row[4096], key[512], *at;
    FILE *f = fopen(COSTS_FILE, "r");
    bool found = false;

    snprintf(key, sizeof key, "%s\t%s\t%d\t", c->stage, c->options, c->ranks);
    while (f && !found && fgets(row, sizeof row, f))
        found = starts_with(row, key);
    if (f)
        fclose(f);
    if (!found)
        return;
    at = row + strlen(key);
    for (int i = 0; i < NUMBERS; i++) {
        const double mine_i = mine->numbers[i], ours = strtod(at, &at);
        if (fabs(mine_i - ours) > 1e-9 * ours)
            add_waste("    %s: %.0f, but %.0f in the project's program%s\n",
                      i < MEMORY ? names[i] : memory_name[i - MEMORY], mine_i, ours,
                      mine_i > ours ? "" : ": is something left out, or stored in fewer bits?");
    }
    at++;
    char *transfers = at + strcspn(at, "\t");
    *transfers++ = 0;
    for (char *group = strtok(at, ","), name[40], ranks[300]; group; group = strtok(NULL, ",")) {
        snprintf(name, sizeof name, ",%.*s ", (int)strcspn(group, " "), group);
        snprintf(ranks, sizeof ranks, ",%s,", group);
        if (strstr(mine->groups, name) && !strstr(mine->groups, ranks)) {
            add_waste("    no group is %s, as in the project's program: neighbors share a machine and its links\n",
                      group);
            break;
        }
    }
    for (int k = BEHIND; k <= QUEUED; k++) {
        bool first = true;
        Transfers t;
        int *n = t.count, length;
        for (char *next = transfers;
             sscanf(next, " %31s %31s %d/%d/%d%n", t.name, t.group, n, n + 1, n + 2, &length) == 5;
             next += length + (next[length] == ','))
            for (const Transfers *m = mine->transfers; m < mine->transfers + mine->kinds; m++) {
                const int64_t more = (int64_t)m->count[k] * n[ALL] - (int64_t)n[k] * m->count[ALL];
                if (strcmp(m->name, t.name) || strcmp(m->group, t.group) || !(k == BEHIND ? more < 0 : more > 0))
                    continue;
                add_waste("%s%d of %d (%s in group %s; the project's program: %d of %d)", first ? words[k] : ", ",
                          m->count[k], m->count[ALL], t.name, t.group, n[k], n[ALL]);
                first = false;
            }
        if (!first)
            add_waste("\n");
    }
}

#endif
