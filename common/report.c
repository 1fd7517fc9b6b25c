#include "report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "device.h"
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
    /* a GPU's stream waits for NCCL's transfers by itself: there all time without an operator counts */
    timed.waiting += device_is_host() ? comm_waited() : seconds - (operators_seconds() - operators_before);
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
    for (const Comm *c = comm_next(world); c; c = comm_next(c))
        cJSON_AddItemToObject(groups, comm_name(c), cJSON_CreateIntArray(comm_members(c), comm_size(c)));
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

/* ---- --metrics ---- */

static FILE *metrics;

/* Returns how many bytes of the file to keep with --load: those of the rows up to the checkpoint's step, since this run
 * makes later ones again. An incomplete last row, of a run that was killed, goes too. */
static off_t bytes_to_keep(const char *header, int64_t step)
{
    FILE *f = fopen(options.metrics, "r");
    char *line = NULL;
    size_t capacity = 0;
    off_t keep = 0;

    for (ssize_t length; f && (length = getline(&line, &capacity, f)) > 0; keep += length) {
        const bool whole = line[length - 1] == '\n';
        if (whole && !keep && strcmp(line, header))
            fail("--metrics %s: expected the columns %.*s, got %.*s; use another file", options.metrics,
                 (int)strlen(header) - 1, header, (int)strcspn(line, "\n"), line);
        if (!whole || (keep && atoll(line) > step))
            break;
    }
    free(line);
    if (f)
        fclose(f);
    return keep;
}

void metrics_open(const TrainState *state)
{
    char *header, *at = "step,tokens,loss,grad_norm,lr,seconds,tokens_per_second,mfu,peak_bytes,comm_bytes";
    size_t size;

    if (!options.metrics || comm_rank(world))
        return;
    FILE *columns = open_memstream(&header, &size);
    fputs(at, columns);
    for (int i = 0; i < state->kept_count; i++)
        fprintf(columns, ",%s", state->kept[i].name);
    fputc('\n', columns);
    fclose(columns);
    const off_t keep = options.load ? bytes_to_keep(header, state->step) : 0;
    metrics = fopen(options.metrics, keep ? "a" : "w");
    if (!metrics || (keep && ftruncate(fileno(metrics), keep)) || (!keep && fputs(header, metrics) < 0)
        || fflush(metrics))
        fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
    free(header);
}

void metrics_row(const TrainState *state, double loss, double norm, double lr, double seconds, double tokens_per_second,
                 double mfu)
{
    if (!metrics)
        return;
    fprintf(metrics, "%lld,%lld,%.17g,%.17g,%.9g,%.6f,%.1f,%.5f,%lld,%lld", (long long)state->step,
            (long long)state->tokens, loss, norm, lr, seconds, tokens_per_second, mfu, (long long)memory_total().peak,
            (long long)comm_bytes());
    for (int i = 0; i < state->kept_count; i++)
        fprintf(metrics, ",%.17g", *state->kept[i].value);
    fputc('\n', metrics);
    if (fflush(metrics))
        fail("--metrics %s could not be written: %s", options.metrics, strerror(errno));
}

void metrics_close(void)
{
    if (metrics && fclose(metrics))
        fail("--metrics %s could not be written: %s", options.metrics, strerror(errno));
}
