/* 01's backward against central differences of its forward: every parameter, in double.
 *
 * Without arguments, this program starts itself once per shape, with options of 01. With options, it runs as 01 up to
 * the first step and compares.
 */
#include <stdio.h>
#include <string.h>

#include "../../common/base/random.h"
#include "../../tools/workshop/single_gpu.h"     /* before cmocka, which has a fail() too */
#include "../harness.h"

static int of_each;                 /* --of-each: elements of each tensor; 0: all */

/* The loss whose gradients train_step computes, from forward passes alone. */
static double loss_of_step(Batch batch)
{
    tensor_zero(loss);
    for (int m = 0; m < options.accumulate; m++) {
        batch_load(batch, 0, m * B, 0);
        forward(&acts, batch, 1.0 / (B * T * options.accumulate));
    }
    return tensor_item(loss);
}

/* Separates q, k and v (0, 1, 2) of QKV tensors; 0 for others. Gradients of k are much smaller than those of v, whose
 * largest element would hide errors in k. */
static int class_of(const ParamInfo *p, int64_t element)
{
    return strstr(p->label, "qkv") ? element / p->cols / D % 3 : 0;
}

/* Expects max |difference - gradient| <= 1e-6 max |gradient|, per tensor; in QKV tensors for q, k and v separately. */
static bool check(const ParamInfo *p, Batch batch, real *weights, const real *gradient)
{
    const double e = 1e-5, most = 1e-6;
    const int64_t step = of_each && p->range.count > of_each ? p->range.count / of_each : 1;
    double error[3] = {0}, largest[3] = {0};
    bool good = true;

    for (int64_t i = 0; i < p->range.count; i++)
        largest[class_of(p, i)] = fmax(largest[class_of(p, i)], fabs(gradient[i]));
    for (int64_t i = 0; i < p->range.count; i += step) {
        const real before = weights[i];
        weights[i] = before + e;
        const double above = loss_of_step(batch);
        weights[i] = before - e;
        const double below = loss_of_step(batch);
        weights[i] = before;
        const double difference = fabs((above - below) / (2 * e) - gradient[i]);
        if (!(difference <= error[class_of(p, i)]))                     /* a NaN stays */
            error[class_of(p, i)] = difference;
    }
    for (int k = 0; k < 3; k++)
        if (!(error[k] <= most * largest[k]) || !isfinite(largest[k]) || (k == 0 && largest[k] == 0)) {
            printf("%s (class %d): gradients up to %g, wrong by %g\n", p->label, k, largest[k], error[k]);
            good = false;
        }
    return good;
}

/* Compares all parameters, at weights away from the initial ones: with biases of 0, LayerNorm weights of 1 and almost
 * uniform attention, some terms of backward would vanish. */
static int check_all(Batch batch)
{
    const int64_t N = layout.count;
    real *weights = params.buffer.data, *gradient = gradients.buffer.data, *moved = malloc(N * sizeof *moved);
    bool good = true;
    double squares = 0;

    for (int64_t i = 0; i < N; i++) {
        moved[i] = weights[i] + 0.3 * random_normal(77, STREAM_PARAMETERS, layout.parameters, i);
        gradient[i] = 1;                            /* as if from a previous step */
    }
    *(double *)loss.data = 1;
    memcpy(weights, moved, N * sizeof *moved);
    const StepResult result = train_step(0, batch);
    memcpy(weights, moved, N * sizeof *moved);                          /* undoes the step's update */
    for (int64_t i = 0; i < N; i++)
        squares += gradient[i] * gradient[i];
    if (!(fabs(result.loss - loss_of_step(batch)) <= 1e-14 * result.loss)
        || !(fabs(result.norm / sqrt(squares) - 1) <= 1e-13)) {
        printf("loss %.17g, norm %.17g, but it is %.17g and %.17g\n", result.loss, result.norm, loss_of_step(batch),
               sqrt(squares));
        good = false;
    }
    /* the last block first, in the order of backward: an error there makes all earlier blocks wrong */
    for (int k = layout.parameters - 1; k >= 0; k--) {
        const ParamInfo *p = &layout.table[k];
        good &= check(p, batch, weights + p->range.first, gradient + p->range.first);
    }
    free(moved);
    return good ? 0 : 1;
}

static void shapes(void **state)
{
    static const struct {
        const char *options;
        int vocab;
    } shapes[] = {
        {"--layers 2 --hidden 12 --heads 3 --seq 5 --micro-batch 2 --accumulate 2", 11},
        {"--layers 3 --hidden 10 --heads 1 --seq 4 --micro-batch 3 --accumulate 1 --recompute full", 7},
        {"--layers 1 --hidden 4 --heads 2 --seq 3 --micro-batch 1 --accumulate 3", 2},
        /* sequences longer than one block of 64 queries, and than two */
        {"--layers 2 --hidden 16 --heads 2 --seq 66 --micro-batch 2 --accumulate 1 --of-each 40 --recompute selective",
         13},
        {"--layers 1 --hidden 8 --heads 2 --seq 131 --micro-batch 1 --accumulate 2 --of-each 40", 13}};

    for (int i = 0; i < 5; i++)
        run_well(BUILD "/cpu64/test_gradients --quiet --threads 1 --seed 5 %s --vocab %d --data %s", shapes[i].options,
                 shapes[i].vocab, token_file(2000, shapes[i].vocab));
}

int main(int argc, char **argv)
{
    static const ProgramOption more[] = {
        {"of-each", OPTION_INT, &of_each, "elements of each tensor", "N", 0, 1e9}, {0}};
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes)};

    if (argc > 1)
        comm_exit(check_all(program_begin("test_gradients", "Compares gradients with differences.", argc, argv, more)));
    return cmocka_run_group_tests_name("gradients", tests, NULL, NULL);
}
