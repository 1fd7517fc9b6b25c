#include "layouts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

static double worst_gradient, worst_number[2];     /* worst_number: losses, norms */

int layout_print_worst(void **state)
{
    (void)state;
    print_message("worst difference: gradients %.1e, losses %.1e, norms %.1e\n", worst_gradient, worst_number[0],
                  worst_number[1]);
    return 0;
}

static int or_default(int value, int standard)
{
    return value ? value : standard;
}

/* Returns the options of the model, the data and the schedule, which both programs get, in a static buffer. */
static const char *model_options(const LayoutCase *l, int steps)
{
    static char text[512];
    const int vocab = or_default(l->vocab, 97);

    snprintf(text, sizeof text, "--layers %d --hidden %d --heads %d --vocab %d --seq %d --lr 1e-3 --warmup 3 "
             "--steps %d --data %s --quiet", l->layers, or_default(l->hidden, 48), or_default(l->heads, 6), vocab,
             or_default(l->seq, 16), steps, token_file(20000, vocab));
    return text;
}

void layout_reference(const LayoutCase *l, char *gradients, char *metrics)
{
    const int sequences = l->micro_batch * l->accumulate * or_default(l->dp, l->full_batch ? 1 : l->ranks);
    char name[128];

    snprintf(name, sizeof name, "reference_%d_%d_%d_%d_%d_%d", l->layers, sequences, l->seq, l->hidden, l->heads,
             l->vocab);
    snprintf(gradients, 256, "%s.safetensors", in_temporary(name));
    snprintf(metrics, 256, "%s.csv", in_temporary(name));
    Result exists = run("test -e %s", metrics);
    if (exists.status)
        run_well(BUILD "/cpu64/01_single_gpu %s --micro-batch 1 --accumulate %d --dump-gradients %s --metrics %s",
                 model_options(l, LAYOUT_STEPS), sequences, gradients, metrics);
    result_free(exists);
}

/* Compares, on every rank, each memory category's bytes and each operation's calls and bytes with the prediction. */
static void check_report(const LayoutCase *l)
{
    static const char *const categories[] = {"parameters", "master", "gradients", "optimizer", "activations",
                                             "communication", "workspace"};
    char path[128];

    for (int r = 0; r < l->ranks; r++) {
        for (int k = 0; k < 7; k++) {
            snprintf(path, sizeof path, "ranks.%d.memory.%s.measured", r, categories[k]);
            const double measured = json_number(in_temporary("r.json"), path);
            snprintf(path, sizeof path, "ranks.%d.memory.%s.predicted", r, categories[k]);
            if (measured != json_number(in_temporary("r.json"), path))
                fail_msg("%s %s, rank %d: %s %.0f bytes, predicted %.0f", l->program, l->options, r, categories[k],
                         measured, json_number(in_temporary("r.json"), path));
        }
        snprintf(path, sizeof path, "ranks.%d.comm", r);
        char *op;
        int k;
        for (k = 0; (op = json_text(in_temporary("r.json"), path, k, "op")); k++) {
            static const char *const names[] = {"calls", "predicted_calls", "bytes", "predicted"};
            char field[160];
            double value[4];
            for (int i = 0; i < 4; i++) {
                snprintf(field, sizeof field, "%s.%d.%s", path, k, names[i]);
                value[i] = json_number(in_temporary("r.json"), field);
            }
            if (value[0] != value[1] || value[2] != value[3])
                fail_msg("%s %s, rank %d: %s, %.0f calls and %.0f bytes, predicted %.0f and %.0f", l->program,
                         l->options, r, op, value[0], value[2], value[1], value[3]);
            free(op);
        }
        if (l->ranks > 1 && !k)
            fail_msg("%s %s, rank %d: the report has no communication", l->program, l->options, r);
    }
}

void layout_compare(const LayoutCase *l)
{
    char gradients[256], losses[256], worst[128] = "", command[1024];
    double a[LAYOUT_STEPS], b[LAYOUT_STEPS];
    const int steps = full_tests() ? LAYOUT_STEPS : 10;

    layout_reference(l, gradients, losses);
    snprintf(command, sizeof command, "mpiexec -n %d " BUILD "/cpu64/%s %s %s --micro-batch %d --accumulate %d "
             "--recompute %s", l->ranks, l->program, l->options, model_options(l, steps), l->micro_batch, l->accumulate,
             l->recompute);
    result_free(run("rm -f g.safetensors m.csv r.json"));
    run_well("%s --check --dump-gradients g.safetensors --metrics m.csv --report r.json", command);
    const double d = compare_gradients(in_temporary("g.safetensors"), gradients, or_default(l->heads, 6), worst);
    if (!(d <= 1e-10))
        fail_msg("%s: the gradient of %s differs by %g", command, worst, d);
    worst_gradient = fmax(worst_gradient, d);
    for (int k = 0; k < 2; k++) {
        const char *column = k ? "grad_norm" : "loss";
        assert_int_equal(read_column(in_temporary("m.csv"), column, a, LAYOUT_STEPS), steps);
        assert_int_equal(read_column(losses, column, b, LAYOUT_STEPS), LAYOUT_STEPS);
        for (int s = 0; s < steps; s++) {
            if (!(fabs(a[s] - b[s]) <= 1e-10 * b[s]))
                fail_msg("%s: the %s of step %d is %.17g, but %.17g in 01", command, column, s + 1, a[s], b[s]);
            worst_number[k] = fmax(worst_number[k], fabs(a[s] - b[s]) / b[s]);
        }
    }
    check_report(l);
}
