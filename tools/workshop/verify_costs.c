#include "verify_costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/memory.h"
#include "process.h"

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

char waste[4096];

double number_of(const cJSON *json, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(json, name));
}

/* ---- What the run costs ---- */

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

typedef struct {
    char name[64], group[64];       /* group: ""  an operator */
    double ts, end;
    int rank;
} Span;

/* Reads the transfers and operators of the trace, and counts the calls of operators. A rank's spans lie in the order in
 * which they began. */
static Span *read_spans(Costs *c, const char *trace, int *count)
{
    Span *spans = NULL;
    char *text = read_file(trace);
    int tid, length;

    *count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (*count % 4096 == 0)
            spans = realloc(spans, (*count + 4096) * sizeof *spans);
        Span *s = &spans[*count];
        s->group[0] = 0;
        if (sscanf(line, " {\"name\":\"%63[^\"]\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lf,\"dur\":%lf%n", s->name,
                   &s->rank, &tid, &s->ts, &s->end, &length) != 5)
            continue;
        s->end += s->ts;
        if (sscanf(line + length, ",\"cat\":\"%63[^\"]\"", s->group) != 1)
            c->numbers[CALLS] += tid == 1 && (starts_with(s->name, "linear") || strstr(s->name, "attention"));
        *count += *s->group || tid == 1;
    }
    free(text);
    return spans;
}

static void count_spans(Costs *c, const char *trace)
{
    int count;
    Span *spans = read_spans(c, trace, &count);

    for (const Span *s = spans; s < spans + count; s++) {
        bool behind = false, queued = false;
        if (!*s->group)
            continue;
        for (const Span *o = s + 1; o < spans + count && o->rank == s->rank && o->ts < s->end; o++)
            behind |= !*o->group && o->ts > s->ts;
        for (const Transfers *t = c->transfers; t < c->transfers + c->kinds; t++)
            queued |= !strcmp(t->group, s->group) && t->rank == s->rank && t->until > s->end && !behind;
        Transfers *kind = kind_of(c, s->name, s->group);
        kind->count[BEHIND] += behind, kind->count[QUEUED] += queued, kind->count[ALL]++;
        kind->rank = s->rank, kind->until = s->end;
    }
    free(spans);
}

/* Adds a rank's groups that are not in the list yet. */
static void add_groups(Costs *c, const cJSON *groups)
{
    const cJSON *group, *member;

    cJSON_ArrayForEach(group, groups) {
        char ranks[256];
        snprintf(ranks, sizeof ranks, ",%.31s", group->string);
        cJSON_ArrayForEach(member, group)
            add_text(ranks, sizeof ranks, " %.0f", cJSON_GetNumberValue(member));
        add_text(ranks, sizeof ranks, ",");
        if (!strstr(c->groups, ranks))
            add_text(c->groups, sizeof c->groups, "%s", ranks + 1);
    }
}

static Costs costs_of(const cJSON *report, const char *trace)
{
    Costs c = {.groups = ","};
    const cJSON *rank, *entry;

    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks")) {
        for (int k = 0; k < MEM_CATEGORIES; k++) {
            entry = cJSON_GetObjectItem(cJSON_GetObjectItem(rank, "memory"), memory_name[k]);
            c.numbers[MEMORY + k] += entry ? number_of(entry, "measured") : 0;
        }
        c.numbers[IN_FLIGHT] += cJSON_HasObjectItem(rank, "in_flight") ? number_of(rank, "in_flight") : 0;
        add_groups(&c, cJSON_GetObjectItem(rank, "groups"));
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "comm"))
            c.numbers[SENT] += number_of(entry, "bytes");
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "operators"))
            c.numbers[FLOPS] += number_of(entry, "flops");
    }
    count_spans(&c, trace);
    return c;
}

/* ---- The project's costs, in verify_costs.tsv ---- */

void record_costs(const Case *c, const cJSON *report, const char *trace)
{
    const Costs mine = costs_of(report, trace);
    FILE *f = fopen(COSTS_FILE, "a");

    fprintf(f, "%s\t%s\t%d\t", c->stage, c->options, c->ranks);
    for (int i = 0; i < NUMBERS; i++)
        fprintf(f, "%.0f\t", mine.numbers[i]);
    fprintf(f, "%s\t", mine.groups);
    for (const Transfers *t = mine.transfers; t < mine.transfers + mine.kinds; t++)
        fprintf(f, "%s%s %s %d/%d/%d", t > mine.transfers ? ", " : "", t->name, t->group, t->count[BEHIND],
                t->count[QUEUED], t->count[ALL]);
    fputc('\n', f);
    fclose(f);
}

/* The row of a case, after its key; NULL: it has none. The next call overwrites it. */
static char *row_of(const Case *c)
{
    static char row[4096];
    char key[512];
    FILE *f = fopen(COSTS_FILE, "r");
    bool found = false;

    snprintf(key, sizeof key, "%s\t%s\t%d\t", c->stage, c->options, c->ranks);
    while (f && !found && fgets(row, sizeof row, f))
        found = starts_with(row, key);
    if (f)
        fclose(f);
    return found ? row + strlen(key) : NULL;
}

/* Compares the numbers, with which a row begins. Returns what follows them. */
static char *compare_numbers(const Costs *mine, char *row)
{
    static const char *const names[] = {"bytes sent per step", "FLOPs of the steps", "calls of linear and attention "
                                        "operators, those of evaluations included", "micro-batches in flight, of all "
                                        "ranks"};

    for (int i = 0; i < NUMBERS; i++) {
        const double mine_i = mine->numbers[i], ours = strtod(row, &row);
        const char *name = i < MEMORY ? names[i] : memory_name[i - MEMORY];
        const char *question = mine_i < ours ? ": is something left out, or stored in fewer bits?" : "";
        if (fabs(mine_i - ours) > 1e-9 * ours)
            add_text(waste, sizeof waste, "    %s: %.0f, but %.0f in the project's program%s\n", name, mine_i, ours,
                     question);
    }
    return row + 1;
}

/* Names the first of the project's groups whose ranks form no group of that name. */
static void compare_groups(const Costs *mine, char *groups)
{
    char name[40], ranks[300];

    for (char *group = strtok(groups, ","); group; group = strtok(NULL, ",")) {
        snprintf(name, sizeof name, ",%.*s ", (int)strcspn(group, " "), group);
        snprintf(ranks, sizeof ranks, ",%s,", group);
        if (strstr(mine->groups, name) && !strstr(mine->groups, ranks)) {
            add_text(waste, sizeof waste, "    no group is %s, as in the project's program: neighbors share a machine "
                     "and its links\n", group);
            return;
        }
    }
}

/* Lists the transfers of which fewer overlap (k: BEHIND), or more wait (QUEUED), than in the project's program. */
static void compare_transfers(const Costs *mine, const char *transfers, int k)
{
    static const char *const words[] = {"    transfers that overlap with computation, which an operator between start "
                                        "and wait does: ", "    transfers that wait behind an earlier one of their "
                                        "group: "};
    const char *before = words[k];
    Transfers t;
    int *n = t.count, length;

    for (const char *next = transfers;
         sscanf(next, " %31s %31s %d/%d/%d%n", t.name, t.group, n, n + 1, n + 2, &length) == 5;
         next += length + (next[length] == ','))
        for (const Transfers *m = mine->transfers; m < mine->transfers + mine->kinds; m++) {
            const int64_t more = (int64_t)m->count[k] * n[ALL] - (int64_t)n[k] * m->count[ALL];
            if (strcmp(m->name, t.name) || strcmp(m->group, t.group) || !(k == BEHIND ? more < 0 : more > 0))
                continue;
            add_text(waste, sizeof waste, "%s%d of %d (%s in group %s; the project's program: %d of %d)", before,
                     m->count[k], m->count[ALL], t.name, t.group, n[k], n[ALL]);
            before = ", ";
        }
    if (before != words[k])
        add_text(waste, sizeof waste, "\n");
}

void compare_costs(const Case *c, const cJSON *report, const char *trace)
{
    const Costs mine = costs_of(report, trace);
    char *row = row_of(c);

    if (!row)
        return;
    char *groups = compare_numbers(&mine, row), *transfers = groups + strcspn(groups, "\t");
    *transfers++ = 0;
    compare_groups(&mine, groups);
    compare_transfers(&mine, transfers, BEHIND);
    compare_transfers(&mine, transfers, QUEUED);
}
