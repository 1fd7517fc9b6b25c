/* fp16's loss scale doubles after every two clean steps, and gradients overflow in steps 4 and 7 of eight. The program
 * skips those updates, halves the scale, counts clean steps from 0 again, and goes on as if resumed from the checkpoint
 * of any step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "verify_compare.h"
#include "verify_report.h"

enum { OF_OVERFLOW = 8, OVERFLOW = 4, LATER = 3 };      /* steps; the first to overflow; those after the last resume */

/* Runs all steps to m.csv; steps up to 3, 4 and 5, each from the last checkpoint; and the others to resumed.csv. */
static void run_overflow(const char *command, const Shape *s)
{
    static const struct { const char *load; int steps; const char *writes; } runs[] = {
        {"", OVERFLOW - 1, "--save before"}, {"before", OVERFLOW, "--save skipped"},
        {"", OF_OVERFLOW, "--metrics m.csv"}, {"skipped", OF_OVERFLOW - LATER, "--save later"},
        {"later", OF_OVERFLOW, "--metrics resumed.csv"}};

    for (int i = 0; i < 5 && !faults; i++) {
        const char *load = *runs[i].load ? runs[i].load : checkpoint(s, 0);
        Result r = run("%s --dtype fp16 --loss-scale 1.4e6 --loss-scale-growth 2 --load %s --steps %d %s", command,
                       load, TRAINED + runs[i].steps, runs[i].writes);
        if (r.status)
            fault("%.*s (steps 4 and 7 overflow: are they skipped?)", (int)strcspn(r.err, "\n"), r.err);
        result_free(r);
    }
    char *metrics = faults ? NULL : read_file("m.csv");
    if (metrics && !strstr(metrics, ",loss_scale"))
        fault("the program registers no loss_scale (run_register_state), so checkpoints and metrics lack it");
    free(metrics);
}

/* The step that overflows changes neither weights nor moments, nor AdamW's count. */
static void compare_skipped(const Shape *s)
{
    static const char *const files[] = {"model", "optimizer"};
    char name[128];

    for (int i = 0; i < 2 && !faults; i++)
        if (compare_tensors(saved_file("skipped", files[i]), saved_file("before", files[i]), s->heads, false, name) > 0)
            fault("the gradients of step %d have Inf or NaN, but the step was not skipped: %s of the checkpoint "
                  "changed", OVERFLOW, name);
    const double before = saved_number("before", "optimizer_step"), after = saved_number("skipped", "optimizer_step");
    if (!faults && before != after)
        fault("the update of step %d was skipped, but AdamW counts %.0f updates instead of %.0f: its bias correction "
              "is that of another step", OVERFLOW, after, before);
}

static void compare_scales(void)
{
    static const double expected[OF_OVERFLOW] = {1.4e6, 2.8e6, 2.8e6, 1.4e6, 1.4e6, 2.8e6, 1.4e6, 1.4e6};
    double norm[OF_OVERFLOW], scale[OF_OVERFLOW];

    read_column("m.csv", "grad_norm", norm, OF_OVERFLOW);
    read_column("m.csv", "loss_scale", scale, OF_OVERFLOW);
    for (int i = 0; i < OF_OVERFLOW && !faults; i++)
        if (scale[i] != expected[i])
            fault("after step %d, which %s, the loss scale is %.10g, expected %.10g: it halves at every overflow, and "
                  "doubles after two clean steps since the overflow or the doubling before", i + 1,
                  isfinite(norm[i]) ? "is clean" : "overflows", scale[i], expected[i]);
}

/* Whatever the loss scale, gradients are divided by it: up to the first overflow, norms are those of a small scale that
 * stays as it is, to fp16's rounding. */
static void compare_norms(const char *command, const Shape *s)
{
    double large[OVERFLOW - 1], small[OVERFLOW - 1];
    Result r = run("%s --dtype fp16 --loss-scale 65536 --load %s --steps %d --metrics small.csv", command,
                   checkpoint(s, 0), TRAINED + OVERFLOW - 1);

    if (r.status)
        fault("%.*s (--loss-scale 65536)", (int)strcspn(r.err, "\n"), r.err);
    result_free(r);
    if (faults)
        return;
    read_column("m.csv", "grad_norm", large, OVERFLOW - 1);
    read_column("small.csv", "grad_norm", small, OVERFLOW - 1);
    for (int i = 0; i < OVERFLOW - 1 && !faults; i++)
        if (!near(large[i], small[i], 0.01))
            fault("step %d: the gradient norm is %.4g with a loss scale of %s, but %.4g with 65536: gradients are not "
                  "divided by the loss scale of their step", i + 1, large[i], i < 2 ? "1.4e6" : "2.8e6", small[i]);
}

/* The last steps of the run that was resumed are those of the other, in every column of --metrics. */
static void compare_resumed(void)
{
    const char *columns[16];
    const int count = metrics_columns("m.csv", columns);
    double all[OF_OVERFLOW], resumed[LATER];

    for (int k = 0; k < count; k++) {
        read_column("m.csv", columns[k], all, OF_OVERFLOW);
        read_column("resumed.csv", columns[k], resumed, LATER);
        for (int i = 0; i < LATER && !faults; i++) {
            const double right = all[OF_OVERFLOW - LATER + i];
            if (!near(resumed[i], right, 1e-9) && isfinite(right))
                fault("step %d: the %s is %.10g, but %.10g in a run that was resumed after steps 3, 4 and 5: the "
                      "skipped step changed weights, forward read weights from before an update, or the checkpoint "
                      "lacks a number, such as the clean steps so far (run_register_state)",
                      OF_OVERFLOW - LATER + i + 1, columns[k], right, resumed[i]);
        }
    }
}

void verify_overflow(const char *command, const Shape *s)
{
    run_overflow(command, s);
    if (faults)
        return;
    compare_skipped(s);
    compare_scales();
    compare_norms(command, s);
    compare_resumed();
    if (!faults)
        printf("correct: two steps are skipped, the loss scale halves and doubles, runs resume\n");
}
