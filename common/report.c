#include "report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "error.h"
#include "memory.h"
#include "model.h"
#include "operator.h"
#include "options.h"
#include "prediction.h"

static double operators_before;         /* operators' seconds when the step began */
static struct { int steps; double seconds, operators, waiting, late; } timed;   /* all steps but the first */
static cJSON *held_out;                 /* validation losses, by step */
static struct { const char *name; double value; } reported[8];
static int reported_count;

static double operators_seconds(void)
{
    const OpStats *stats;
    const int count = ops_stats(&stats);
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += stats[i].seconds;
    return sum;
}

void report_step_begins(void)
{
    ops_stats_enable(true);
    operators_before = operators_seconds();
}

void report_step_ends(double seconds, bool first, bool last)
{
    ops_stats_enable(false);                    /* evaluations and samples do not belong to a step */
    if (!options.report)
        return;
    if (first) {
        if (!last)
            ops_stats_reset();                  /* on a GPU, operators load cuBLAS and kernels in the first step */
        return;
    }
    timed.steps++;
    timed.seconds += seconds;
    timed.operators += operators_seconds() - operators_before;
    timed.waiting += comm_waited();
    timed.late += comm_pretend_overrun();
}

void report_number(const char *name, double value)
{
    if (reported_count == sizeof reported / sizeof *reported)
        fail("--report: a program can add %d numbers, and %s is one more", reported_count, name);
    reported[reported_count].name = name;
    reported[reported_count++].value = value;
}

void report_validation(int64_t step, double loss)
{
    cJSON *entry = cJSON_CreateObject();

    held_out = held_out ? held_out : cJSON_CreateArray();
    cJSON_AddNumberToObject(entry, "step", step);
    cJSON_AddNumberToObject(entry, "loss", loss);
    cJSON_AddItemToArray(held_out, entry);
}

static void add_bytes(cJSON *memory, const char *name, MemoryStats e)
{
    cJSON *entry = cJSON_AddObjectToObject(memory, name);

    cJSON_AddNumberToObject(entry, "measured", e.peak);
    cJSON_AddNumberToObject(entry, "predicted", e.predicted);
    if (e.formula)
        cJSON_AddNumberToObject(entry, "playbook", e.playbook);
}

static cJSON *rank_json(void)
{
    cJSON *rank = cJSON_CreateObject(), *groups, *memory, *comm, *time, *operators;
    const OpStats *stats;
    const CommStats *sent;
    const int stats_count = ops_stats(&stats), sent_count = traffic_of_step(&sent);

    cJSON_AddNumberToObject(rank, "rank", comm_rank(world));
    groups = cJSON_AddObjectToObject(rank, "groups");
    for (const Comm *c = world; c; c = comm_next(c))
        cJSON_AddNumberToObject(groups, comm_name(c), comm_size(c));
    memory = cJSON_AddObjectToObject(rank, "memory");
    for (int c = 0; c < MEM_CATEGORIES; c++)
        add_bytes(memory, memory_name[c], memory_entry(c));
    add_bytes(memory, "total", memory_total());
    comm = cJSON_AddArrayToObject(rank, "comm");
    for (int i = 0; i < sent_count; i++) {
        cJSON *c = cJSON_CreateObject();
        cJSON_AddStringToObject(c, "op", sent[i].op);
        cJSON_AddStringToObject(c, "group", sent[i].group);
        cJSON_AddNumberToObject(c, "calls", sent[i].calls);
        cJSON_AddNumberToObject(c, "predicted_calls", sent[i].predicted_calls);
        cJSON_AddNumberToObject(c, "bytes", sent[i].bytes);
        cJSON_AddNumberToObject(c, "predicted", sent[i].predicted_bytes);
        cJSON_AddItemToArray(comm, c);
    }
    for (int i = 0; i < reported_count; i++)
        cJSON_AddNumberToObject(rank, reported[i].name, reported[i].value);
    time = cJSON_AddObjectToObject(rank, "time");
    cJSON_AddNumberToObject(time, "steps", timed.steps);
    cJSON_AddNumberToObject(time, "seconds", timed.seconds);
    cJSON_AddNumberToObject(time, "operators", timed.operators);
    cJSON_AddNumberToObject(time, "waiting", timed.waiting);
    if (options.pretend)
        cJSON_AddNumberToObject(time, "late", timed.late);
    operators = cJSON_AddArrayToObject(rank, "operators");
    for (int i = 0; i < stats_count; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "op", stats[i].name);
        cJSON_AddNumberToObject(o, "calls", stats[i].calls);
        cJSON_AddNumberToObject(o, "seconds", stats[i].seconds);
        cJSON_AddNumberToObject(o, "flops", stats[i].flops);
        cJSON_AddNumberToObject(o, "bytes", stats[i].bytes);
        cJSON_AddItemToArray(operators, o);
    }
    return rank;
}

void report_write(const char *path, double peak_flops, bool first, bool last)
{
    cJSON *rank = rank_json(), *common = cJSON_CreateObject();
    FILE *f = fopen(path, "a");

    cJSON_AddStringToObject(common, "stage", error_name());
    cJSON_AddNumberToObject(common, "parameters", model_parameters(options.config));
    cJSON_AddNumberToObject(common, "flops_per_token", model_flops_per_token(options.config));
    cJSON_AddNumberToObject(common, "peak_flops", peak_flops);
    if (options.pretend)                /* marks all times as simulated */
        cJSON_AddStringToObject(common, "pretend", options.pretend);
    cJSON_AddItemToObject(common, "held_out", held_out ? held_out : cJSON_CreateArray());
    char *text = cJSON_Print(rank), *rest = cJSON_Print(common);
    if (!f || !text || !rest || fprintf(f, "%s%s", first ? "{\"ranks\": [" : ", ", text) < 0
        || (last && fprintf(f, "],%s\n", rest + 1) < 0) || fclose(f))           /* + 1: without its brace */
        fail("--report %s could not be written: %s", options.report, strerror(errno));
    free(text);
    free(rest);
    cJSON_Delete(rank);
    cJSON_Delete(common);
}
