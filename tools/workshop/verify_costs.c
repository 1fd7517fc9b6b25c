#include "verify_costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/memory.h"
#include "../../common/base/print.h"
#include "process.h"
#include "verify_compare.h"
#include "verify_report.h"

#define COSTS_FILE SOURCE "/tools/workshop/verify_costs.tsv"

enum { KINDS = 16, OPERATORS = 64 };

/* Over all ranks: bytes sent in the last step; FLOPs of the steps; how often hosts wait for their device in a step; a
 * pipeline's micro-batches in flight, and 1000 times its bubble, simulated and by formula; the playbook's bytes of all
 * categories; the billionths by which rounding changes gradients; peak bytes of each category of memory. Of each
 * operator: its calls, those of evaluations too. Of each kind of transfer: during how many an operator of the same rank
 * begins (behind); during how many none does, while an earlier one of the group is in flight (queued); how many end
 * before an earlier one of the group (overtakes); all. A barrier is a transfer called sum. */
enum {
    SENT, FLOPS, HOST_WAITS, IN_FLIGHT, BUBBLE, FORMULA, PLAYBOOK, ROUNDING, MEMORY, NUMBERS = MEMORY + MEM_CATEGORIES
};
enum { BEHIND, QUEUED, OVERTAKES, ALL, COUNTS };
typedef struct {
    char name[64];
    int calls;
} Calls;
typedef struct {
    char name[32], group[32];
    int count[COUNTS], rank;    /* rank: of the last one counted; until: when the last of this rank's ends */
    double until;
} Transfers;
typedef struct {
    double numbers[NUMBERS];
    char groups[1024];          /* every group's ranks, once: ",tp 0 1,tp 2 3," */
    Calls operators[OPERATORS];
    int operator_count;
    Transfers transfers[KINDS];
    int kinds;
} Costs;

char waste[4096];
bool suspicious;

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

static Calls *calls_of(Costs *c, const char *name)
{
    int k = 0;

    while (k < c->operator_count && strcmp(c->operators[k].name, name))
        k++;
    if (k == OPERATORS)
        fail("a run has more than %d operators", OPERATORS);
    if (k == c->operator_count)
        snprintf(c->operators[c->operator_count++].name, sizeof c->operators[k].name, "%.63s", name);
    return &c->operators[k];
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
        if (sscanf(line + length, ",\"cat\":\"%63[^\"]\"", s->group) != 1 && tid == 1)
            calls_of(c, s->name)->calls++;
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
        bool behind = false, overtakes = false;
        if (!*s->group)
            continue;
        for (const Span *o = s + 1; o < spans + count && o->rank == s->rank && o->ts < s->end; o++)
            behind |= !*o->group && o->ts > s->ts;
        for (const Transfers *t = c->transfers; t < c->transfers + c->kinds; t++)
            overtakes |= !strcmp(t->group, s->group) && t->rank == s->rank && t->until > s->end;
        Transfers *kind = kind_of(c, s->name, s->group);
        kind->count[BEHIND] += behind, kind->count[QUEUED] += overtakes && !behind;
        kind->count[OVERTAKES] += overtakes, kind->count[ALL]++;
        kind->until = kind->rank == s->rank ? fmax(kind->until, s->end) : s->end;
        kind->rank = s->rank;
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
    Costs c = {.groups = ",", .numbers[ROUNDING] = rint(1e9 * rounding)};
    const cJSON *rank, *entry;

    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks")) {
        for (int k = 0; k < MEM_CATEGORIES; k++) {
            entry = cJSON_GetObjectItem(cJSON_GetObjectItem(rank, "memory"), memory_name[k]);
            c.numbers[MEMORY + k] += entry ? number_of(entry, "measured") : 0;
            c.numbers[PLAYBOOK] += cJSON_HasObjectItem(entry, "playbook") ? number_of(entry, "playbook") : 0;
        }
        c.numbers[HOST_WAITS] += number_of(cJSON_GetObjectItem(rank, "time"), "host_waits");
        c.numbers[IN_FLIGHT] += cJSON_HasObjectItem(rank, "in_flight") ? number_of(rank, "in_flight") : 0;
        if (cJSON_HasObjectItem(rank, "bubble_simulated"))
            c.numbers[BUBBLE] = rint(1000 * number_of(rank, "bubble_simulated"));
        if (cJSON_HasObjectItem(rank, "bubble_formula"))
            c.numbers[FORMULA] = rint(1000 * number_of(rank, "bubble_formula"));
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

/* A shape whose matmuls stay in bf16 tests nothing of fp8. */
static void check_fp8(const Case *c, Costs *mine)
{
    if (strstr(c->options, "--dtype fp8") && !calls_of(mine, "linear_fp8")->calls)
        fault("no matmul ran in fp8 (linear_fp8): this shape stays in bf16");
}

void record_costs(const Case *c, const cJSON *report, const char *trace)
{
    Costs mine = costs_of(report, trace);
    FILE *f = fopen(COSTS_FILE, "a");

    check_fp8(c, &mine);
    fprintf(f, "%s\t%s\t%d\t", c->stage, c->options, c->ranks);
    for (int i = 0; i < NUMBERS; i++)
        fprintf(f, "%.0f\t", mine.numbers[i]);
    fprintf(f, "%s\t", mine.groups);
    for (const Calls *o = mine.operators; o < mine.operators + mine.operator_count; o++)
        fprintf(f, "%s%s %d", o > mine.operators ? ", " : "", o->name, o->calls);
    fputc('\t', f);
    for (const Transfers *t = mine.transfers; t < mine.transfers + mine.kinds; t++)
        fprintf(f, "%s%s %s %d/%d/%d/%d", t > mine.transfers ? ", " : "", t->name, t->group, t->count[BEHIND],
                t->count[QUEUED], t->count[OVERTAKES], t->count[ALL]);
    fputc('\n', f);
    fclose(f);
}

/* The row of a case, after its key; NULL: it has none. The next call overwrites it. */
static char *row_of(const Case *c)
{
    static char row[8192];
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

/* Adds a cost that is not the project's, and notes whether it is lower or higher. */
enum { LOWER = 1, HIGHER = 2 };
static int add_cost(const char *name, double mine, double ours)
{
    if (fabs(mine - ours) <= 1e-9 * ours)
        return 0;
    add_text(waste, sizeof waste, "    %s: %.0f, but %.0f in the project's program\n", name, mine, ours);
    return mine < ours ? LOWER : HIGHER;
}

/* Sums are of float64, so another machine's order of adding hardly ever moves a number across the middle between two
 * numbers of 8 or 16 bits: the same program rounds alike. */
static void compare_rounding(double mine, double ours)
{
    if (!mine || fabs(mine - ours) <= 1e-5 * ours)              /* 0: not compared, by EXPECT */
        return;
    suspicious = true;
    add_text(waste, sizeof waste, "    rounding changes the gradients by %.9g of their norms on average, but by %.9g "
             "in the project's program: is something %s?\n", 1e-9 * mine, 1e-9 * ours,
             mine > ours ? "rounded once more, rounded with a wrong scale, or added up in a smaller type"
             : "not rounded that should be");
}

/* Compares the numbers, with which a row begins. *rest: what follows them. */
static int compare_numbers(const Costs *mine, char *row, char **rest)
{
    static const char *const names[] = {"bytes sent per step", "FLOPs of the steps", "times that the host waits for "
                                        "the device (tensor_item, device_wait), per step and over all ranks",
                                        "micro-batches in flight, of all ranks", "thousandths of a step that are "
                                        "bubble, simulated", "the same by bubble_formula",
                                        "the playbook's bytes (memory_estimate), of all categories", ""};
    int found = 0;

    for (int i = 0; i < NUMBERS; i++)
        if (i == ROUNDING)
            compare_rounding(mine->numbers[i], strtod(row, &row));
        else
            found |= add_cost(i < MEMORY ? names[i] : memory_name[i - MEMORY], mine->numbers[i], strtod(row, &row));
    *rest = row + 1;
    return found;
}

/* Compares the calls of each operator: lists the first that differ. */
static int compare_operators(const Costs *mine, const char *operators)
{
    enum { MOST = 5 };
    Costs both = *mine;
    Calls ours;
    int found = 0, listed = 0, length;

    for (const char *next = operators; sscanf(next, " %63s %d%n", ours.name, &ours.calls, &length) == 2;
         next += length + (next[length] == ',')) {
        Calls *o = calls_of(&both, ours.name);
        if (o->calls != ours.calls && listed++ < MOST)
            found |= add_cost(format_text("calls of %s, evaluations included", o->name), o->calls, ours.calls);
        o->calls = 0;
    }
    for (const Calls *o = both.operators; o < both.operators + both.operator_count; o++)
        if (o->calls && listed++ < MOST)
            found |= add_cost(format_text("calls of %s, evaluations included", o->name), o->calls, 0);
    if (listed > MOST)
        add_text(waste, sizeof waste, "    and of %d more operators\n", listed - MOST);
    return found;
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

/* Lists the transfers of which fewer overlap (k: BEHIND), more wait (QUEUED) or overtake (OVERTAKES), or that are more
 * (ALL) than in the project's program. Returns whether there are any. */
static bool compare_transfers(const Costs *mine, const char *transfers, int k)
{
    static const char *const words[] = {"    transfers that overlap with computation, which an operator between start "
                                        "and wait does: ", "    transfers that wait behind an earlier one of their "
                                        "group: ", "    transfers that are waited for before an earlier one of their "
                                        "group, which arrives first: ",
                                        "    calls (a sum is comm_sum's or a barrier's): "};
    const char *before = words[k];
    Transfers t;
    int *n = t.count, length;

    for (const char *next = transfers;
         sscanf(next, " %31s %31s %d/%d/%d/%d%n", t.name, t.group, n, n + 1, n + 2, n + 3, &length) == 2 + COUNTS;
         next += length + (next[length] == ','))
        for (const Transfers *m = mine->transfers; m < mine->transfers + mine->kinds; m++) {
            const int64_t more = k == ALL ? m->count[ALL] - n[ALL]
                                 : (int64_t)m->count[k] * n[ALL] - (int64_t)n[k] * m->count[ALL];
            if (strcmp(m->name, t.name) || strcmp(m->group, t.group) || !(k == BEHIND ? more < 0 : more > 0))
                continue;
            if (k == ALL)
                add_text(waste, sizeof waste, "%s%d of %s in group %s, but %d in the project's program", before,
                         m->count[ALL], t.name, t.group, n[ALL]);
            else
                add_text(waste, sizeof waste, "%s%d of %d (%s in group %s; the project's program: %d of %d)", before,
                         m->count[k], m->count[ALL], t.name, t.group, n[k], n[ALL]);
            before = ", ";
        }
    if (before != words[k])
        add_text(waste, sizeof waste, "\n");
    return before != words[k];
}

void compare_costs(const Case *c, const cJSON *report, const char *trace)
{
    Costs mine = costs_of(report, trace);
    char *row = row_of(c), *groups;

    check_fp8(c, &mine);
    if (!row)
        return;
    int found = compare_numbers(&mine, row, &groups);
    char *operators = groups + strcspn(groups, "\t");
    *operators++ = 0;
    char *transfers = operators + strcspn(operators, "\t");
    *transfers++ = 0;
    found |= compare_operators(&mine, operators);
    suspicious |= found == LOWER;
    if (found == LOWER)
        add_text(waste, sizeof waste, "    is something left out, or stored in fewer bits?\n");
    else if (found == (LOWER | HIGHER))
        add_text(waste, sizeof waste, "    some costs are lower and others higher: something is computed by other "
                 "operators, on another rank or in other pieces than in the project's program\n");
    compare_groups(&mine, groups);
    compare_transfers(&mine, transfers, BEHIND);
    if (!compare_transfers(&mine, transfers, QUEUED))
        compare_transfers(&mine, transfers, OVERTAKES);
    compare_transfers(&mine, transfers, ALL);
}
