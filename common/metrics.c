#include "metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"
#include "memory.h"
#include "options.h"
#include "outputs.h"

static FILE *metrics;
static bool rows;                       /* the file may contain rows already */

void metrics_open(void)
{
    metrics = output_append("metrics", options.metrics, &rows);
}

/* Returns how many bytes of the file to keep: without --load none. With --load the columns must be this run's (saved
 * values add columns). Rows after the checkpoint's step are dropped, since this run makes them again, and so is an
 * incomplete last row of a run that was killed or whose disk was full. */
static off_t bytes_to_keep(const char *header, int64_t step)
{
    FILE *f = options.load ? fopen(options.metrics, "r") : NULL;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    off_t stay = 0;

    while (f && (length = getline(&line, &room, f)) > 0) {
        const bool whole = line[length - 1] == '\n';
        line[strcspn(line, "\r\n")] = 0;
        if (!stay && strcmp(line, header))
            fail("--metrics %s: expected the columns \"%s\", got \"%s\"; use another file", options.metrics, header,
                 line);
        if (!whole || (stay && atoll(line) > step))
            break;
        stay += length;
    }
    free(line);
    if (f)
        fclose(f);
    return stay;
}

void metrics_begin(const TrainState *state)
{
    char header[256] = "step,tokens,loss,grad_norm,lr,seconds,tokens_per_second,mfu,peak_bytes,comm_bytes";

    if (!metrics)
        return;
    for (int i = 0; i < state->kept_count; i++)
        strcat(strcat(header, ","), state->kept[i].name);
    const off_t stay = rows ? bytes_to_keep(header, state->step) : 0;
    if (rows && ftruncate(fileno(metrics), stay))
        fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
    if (!stay)
        fprintf(metrics, "%s\n", header);
    if (fflush(metrics))
        fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
    error_cleanup_done(options.metrics);
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
