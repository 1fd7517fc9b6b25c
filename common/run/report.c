#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../comm/comm.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/memory.h"
#include "../transformer/model.h"
#include "../transformer/op_call.h"
#include "../base/options.h"
#include "outputs.h"
#include "prediction.h"
#include "../base/print.h"

static struct { int steps; double seconds, waiting, late, host_waits; } timed;      /* all steps but the first */
static const char *held_out = "";       /* validation losses, by step, as JSON */
static const char *numbers = "";        /* report_number's, as JSON */

void report_step_ends(double seconds, bool first, bool last)
{
    ops_stats_enable(false);                    /* evaluations and samples do not belong to a step */
    if (!options.report)
        return;
    if (first && !last)
        ops_stats_reset();                      /* on a GPU, operators load cuBLAS and kernels in the first step */
    if (first)
        return;
    timed.steps++;
    timed.seconds += seconds;
    timed.waiting += comm_waited();
    timed.late += comm_pretend_overrun();
    timed.host_waits += device_waits;
}

void report_number(const char *name, double value)
{
    numbers = new_text("%s, \"%s\": %.17g", numbers, name, value);
}

void report_validation(int64_t step, double loss)
{
    const char *number = isfinite(loss) ? format_text("%.17g", loss) : "null";

    held_out = new_text("%s%s{\"step\": %lld, \"loss\": %s}", held_out, *held_out ? ", " : "", (long long)step, number);
}

static void write_memory(FILE *f, const char *name, MemoryStats e)
{
    fprintf(f, "\"%s\": {\"measured\": %lld, \"predicted\": %.0f", name, (long long)e.peak, e.predicted);
    fprintf(f, e.formula ? ", \"playbook\": %.17g}" : "}", e.playbook);
}

void report_write(FILE *f, double peak_flops, bool first, bool last)
{
    const OpStats *ops;
    const CommStats *sent;
    const int op_count = ops_stats(&ops), sent_count = traffic_of_step(&sent);
    double operators = 0;

    for (int i = 0; i < op_count && timed.steps; i++)
        operators += ops[i].seconds;
    fprintf(f, "%s{\"rank\": %d, \"device\": \"%s\", \"groups\": {", first ? "{\"ranks\": [" : ", ",
            comm_rank(world), device_name());
    for (const Comm *c = comm_next(world); c; c = comm_next(c)) {
        fprintf(f, "%s\"%s\": [", c == comm_next(world) ? "" : ", ", comm_name(c));
        for (int i = 0; i < comm_size(c); i++)
            fprintf(f, i ? ", %d" : "%d", comm_members(c)[i]);
        fprintf(f, "]");
    }
    fprintf(f, "}, \"memory\": {");
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        write_memory(f, memory_name[c], memory_entry(c));
        fprintf(f, ", ");
    }
    write_memory(f, "total", memory_total());
    fprintf(f, "}, \"comm\": [");
    for (int i = 0; i < sent_count; i++)
        fprintf(f, "%s{\"op\": \"%s\", \"group\": \"%s\", \"calls\": %lld, \"predicted_calls\": %lld, \"bytes\": %lld, "
                "\"predicted\": %lld}", i ? ", " : "", sent[i].op, sent[i].group, (long long)sent[i].calls,
                (long long)sent[i].predicted_calls, (long long)sent[i].bytes, (long long)sent[i].predicted_bytes);
    /* a GPU's stream waits for NCCL's transfers by itself: there all time without an operator counts as waiting */
    fprintf(f, "], \"time\": {\"steps\": %d, \"seconds\": %.17g, \"operators\": %.17g, \"waiting\": %.17g, "
            "\"host_waits\": %.17g", timed.steps, timed.seconds, operators,
            device_is_host() ? timed.waiting : timed.seconds - operators,
            timed.steps ? timed.host_waits / timed.steps : 0);
    fprintf(f, options.pretend ? ", \"late\": %.17g}" : "}", timed.late);
    fprintf(f, "%s,\n\"operators\": [", numbers);
    for (int i = 0; i < op_count; i++)
        fprintf(f, "%s{\"op\": \"%s\", \"calls\": %lld, \"seconds\": %.17g, \"flops\": %.17g, \"bytes\": %.17g}",
                i ? ",\n" : "", ops[i].name, (long long)ops[i].calls, ops[i].seconds, ops[i].flops, ops[i].bytes);
    fprintf(f, "]}\n");
    if (!last)
        return;
    fprintf(f, "], \"stage\": \"%s\", \"parameters\": %lld, \"flops_per_token\": %.17g, \"peak_flops\": %.17g",
            error_name(), (long long)model_parameters(options.config), model_flops_per_token(options.config),
            peak_flops);
    if (options.pretend)                        /* marks all times as simulated */
        fprintf(f, ", \"pretend\": \"%s\"", options.pretend);
    fprintf(f, ", \"held_out\": [%s]}\n", held_out);
}

/* ---- --metrics ---- */

static FILE *metrics;

void metrics_open(const TrainState *state)
{
    if (!options.metrics || comm_rank(world))
        return;
    metrics = output_open("metrics", options.metrics, !options.load);
    if (fseek(metrics, 0, SEEK_END) == 0 && ftell(metrics) > 0)
        return;                                 /* --load continues a file */
    fputs("step,tokens,loss,grad_norm,lr,seconds,tokens_per_second,mfu,peak_bytes,comm_bytes", metrics);
    for (int i = 0; i < state->kept_count; i++)
        fprintf(metrics, ",%s", state->kept[i].name);
    fputc('\n', metrics);
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
    if (metrics)
        output_close("metrics", options.metrics, metrics);
}
