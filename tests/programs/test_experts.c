/* 10 against an independent reference (experts/reference.py), against itself on one rank (layouts.h), and against 01:
 * an upcycled model is a dense one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/safetensors.h"
#include "../../common/ultrascale.h"
#include "../harness.h"
#include "../layouts.h"

#define PROGRAM BUILD "/cpu64/10_expert_parallel"
#define FIXTURE SOURCE "/tests/programs/experts"

/* A metric of the first step in m.csv. */
static double metric(const char *column)
{
    double x[8];

    assert_true(read_column(in_temporary("m.csv"), column, x, 8) >= 1);
    return x[0];
}

static void assert_equal_to(const char *what, double is, double want, double most)
{
    if (!(fabs(is - want) <= most * fabs(want)))
        fail_msg("%s is %.17g, but should be %.17g", what, is, want);
}

/* Loss, balance loss, dropped choices and all gradients, with few slots, with enough, and with one for each token, on
 * one rank, on two, and on two ep groups of two. */
static void the_reference_agrees(void **state)
{
    FILE *f = fopen(FIXTURE "/expected.csv", "r");
    char options[256], expected[128], worst[128] = "";
    double loss, balance, dropped;

    (void)state;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*[^\n]\n"), 0);
    for (int n = 0; fscanf(f, " %255[^,],%lf,%lf,%lf", options, &loss, &balance, &dropped) == 4; n++)
        for (int ranks = 1; ranks <= 4; ranks *= 2) {
            run_well("rm -rf model m.csv dump.safetensors");
            run_well("cp -r " FIXTURE " model");
            run_well("sed -i 's/\"num_experts_per_tok\": 2/\"num_experts_per_tok\": %d/' model/config.json",
                     atoi(strstr(options, "--top-k") + strlen("--top-k ")));
            run_well("mpiexec -n %d " PROGRAM " %s --micro-batch %d --ep %d --data model/tokens.bin --load model "
                     "--steps 1 --quiet --check --metrics m.csv --dump-gradients dump.safetensors", ranks, options,
                     4 / ranks, ranks < 2 ? 1 : 2);
            assert_equal_to("the loss", metric("loss"), loss, 1e-14);
            assert_equal_to("the balance loss", metric("balance_loss"), balance, 1e-14);
            assert_equal_to("the dropped part", metric("dropped"), dropped, 1e-14);
            snprintf(expected, sizeof expected, FIXTURE "/expected_%d.safetensors", n);
            const double d = compare_gradients(in_temporary("dump.safetensors"), expected, 3, worst);
            if (!(d <= 1e-12))
                fail_msg("%s, %d ranks: %s differs by %g", options, ranks, worst, d);
        }
    assert_true(feof(f));
    fclose(f);
}

static void configurations_agree(void **state)
{
    (void)state;
    layouts_agree("10_expert_parallel");
}

#define DATA token_file(2000, 97)
#define SHAPE " --layers 2 --hidden 24 --heads 3 --vocab 97 --seq 20 --lr 1e-2 --threads 1 --quiet --data %s "

/* Returns the sum of all experts' tensors that in a dense model are the MLP's `name`; NULL if there is none. */
static double *sum_of_experts(const Safetensors *file, const char *name)
{
    const SafeTensor *t;
    double *sum = NULL, *x = NULL;
    int64_t count = 0;
    char path[128];
    const int mlp = strstr(name, "mlp.") + 4 - name;

    for (int e = 0; ; e++) {
        snprintf(path, sizeof path, "%.*sexperts.%d.%s", mlp, name, e, name + mlp);
        t = safetensors_find(file, path);
        if (!t)
            break;
        count = t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
        sum = sum ? sum : calloc(count, sizeof *sum);
        x = realloc(x, count * sizeof *x);
        safetensors_read(file, t, 0, count, x, true);
        for (int64_t i = 0; i < count; i++)
            sum[i] += x[i];
    }
    free(x);
    return sum;
}

/* A dense checkpoint after three steps, upcycled: every expert is a copy of the MLP, and a token's gates add up to 1,
 * so 10 computes what 01 computes. An expert's gradient is that of the tokens that took it, times their gates, so those
 * of all experts add up to the MLP's. Outputs do not depend on the choice, so the router's gradient is 0. */
static void an_upcycled_model_is_the_dense_one(void **state)
{
    static const struct {
        int ranks;
        const char *options;
    } cases[] = {{1, "--experts 1 --top-k 1"}, {1, "--experts 4 --top-k 2"}, {2, "--experts 6 --top-k 3 --ep 2"},
                 {4, "--experts 4 --top-k 4 --ep 4"}};

    (void)state;
    run_well(BUILD "/cpu64/01_single_gpu" SHAPE "--micro-batch 4 --accumulate 1 --steps 3 --save dense", DATA);
    run_well(BUILD "/cpu64/01_single_gpu" SHAPE "--micro-batch 4 --accumulate 1 --steps 4 --load dense --eval-every 1 "
             "--metrics dense.csv --dump-gradients dense.safetensors --report dense.json", DATA);
    double want;
    assert_int_equal(read_column(in_temporary("dense.csv"), "loss", &want, 1), 1);
    for (int i = 0; i < 4; i++) {
        run_well("rm -rf m.csv dump.safetensors");
        run_well("mpiexec -n %d " PROGRAM SHAPE "--micro-batch %d --accumulate 1 --steps 4 --load dense --capacity 0 "
                 "--balance 0 --expert-width 96 --metrics m.csv --dump-gradients dump.safetensors %s",
                 cases[i].ranks, DATA, 4 / cases[i].ranks, cases[i].options);
        assert_true(metric("step") == 4);
        assert_equal_to("the loss", metric("loss"), want, 1e-14);
        Safetensors a = safetensors_open(in_temporary("dump.safetensors"));
        Safetensors b = safetensors_open(in_temporary("dense.safetensors"));
        for (int k = 0; k < b.count; k++) {
            const SafeTensor *dense = &b.tensors[k], *t = safetensors_find(&a, dense->name);
            const int64_t rows = dense->shape[0], cols = dense->dims > 1 ? dense->shape[1] : 1;
            double *x = malloc(rows * cols * sizeof *x), *y = malloc(rows * cols * sizeof *y);
            safetensors_read(&b, dense, 0, rows * cols, y, true);
            if (t) {
                safetensors_read(&a, t, 0, rows * cols, x, true);
            } else {
                free(x);
                x = sum_of_experts(&a, dense->name);
                assert_non_null(x);
            }
            const double d = matrix_difference(x, y, rows, cols, 0, 0, false);
            if (!(d <= 1e-12))
                fail_msg("%s: %s differs by %g", cases[i].options, dense->name, d);
            free(x);
            free(y);
        }
        const SafeTensor *router = safetensors_find(&a, "gpt_neox.layers.1.mlp.gate.weight");
        double gradient[24 * 6];
        const int64_t count = router->shape[0] * router->shape[1];
        safetensors_read(&a, router, 0, count, gradient, true);
        for (int64_t k = 0; k < count; k++)
            assert_true(fabs(gradient[k]) < 1e-15);
        safetensors_close(&a);
        safetensors_close(&b);
    }
}

static void read_tensor(double *x, const char *checkpoint, const char *name)
{
    char file[64];

    snprintf(file, sizeof file, "%s/model.safetensors", checkpoint);
    Safetensors s = safetensors_open(in_temporary(file));
    const SafeTensor *t = safetensors_find(&s, name);
    assert_non_null(t);
    safetensors_read(&s, t, 0, t->shape[0] * t->shape[1], x, true);
    safetensors_close(&s);
}

/* An upcycled model has copies of the MLP, the initial weights of routers, and the count of updates. */
static void upcycling_leaves_the_router(void **state)
{
    static const char *const router = "gpt_neox.layers.1.mlp.gate.weight", *const options = "--expert-width 96";
    static double fresh[8 * 24], upcycled[8 * 24], dense[96 * 24], expert[96 * 24];

    (void)state;
    run_well("rm -rf dense fresh upcycled");
    run_well(BUILD "/cpu64/01_single_gpu" SHAPE "--micro-batch 4 --accumulate 1 --steps 2 --save dense", DATA);
    run_well(PROGRAM SHAPE "%s --steps 0 --save fresh", DATA, options);
    run_well("mpiexec -n 2 " PROGRAM SHAPE "%s --ep 2 --steps 2 --load dense --save upcycled", DATA, options);
    read_tensor(fresh, "fresh", router);
    read_tensor(upcycled, "upcycled", router);
    assert_memory_equal(fresh, upcycled, sizeof fresh);
    read_tensor(dense, "dense", "gpt_neox.layers.0.mlp.dense_h_to_4h.weight");
    for (int e = 0; e < 8; e++) {
        char name[64];
        snprintf(name, sizeof name, "gpt_neox.layers.0.mlp.experts.%d.dense_h_to_4h.weight", e);
        read_tensor(expert, "upcycled", name);
        assert_memory_equal(dense, expert, sizeof dense);
    }
    assert_true(json_number(in_temporary("upcycled/trainer.json"), "optimizer_step") == 2);
}

/* The router's gradient against central differences of the loss and the balance loss, on two ranks, with dropped
 * choices. Choices and loads count as constants, so a difference must be too small to change one. */
static void the_router_descends(void **state)
{
    static const char *const options = "--micro-batch 1 --accumulate 2 --experts 4 --top-k 2 --capacity 0.8 "
                                       "--balance 0.5 --ep 2";
    const char *name = "gpt_neox.layers.0.mlp.gate.weight";
    double gradient[4 * 24], weight[4 * 24], total[2];

    (void)state;
    run_well("rm -rf model");
    run_well("mpiexec -n 2 " PROGRAM SHAPE "%s --steps 3 --save model", DATA, options);
    run_well("rm model/trainer.json model/optimizer.safetensors");
    run_well("rm -f dump.safetensors");
    run_well("mpiexec -n 2 " PROGRAM SHAPE "%s --steps 1 --load model --dump-gradients dump.safetensors", DATA,
             options);
    Safetensors file = safetensors_open(in_temporary("dump.safetensors"));
    safetensors_read(&file, safetensors_find(&file, name), 0, 4 * 24, gradient, true);
    safetensors_close(&file);
    file = safetensors_open(in_temporary("model/model.safetensors"));
    const int64_t first_byte = safetensors_find(&file, name)->first_byte;
    safetensors_read(&file, safetensors_find(&file, name), 0, 4 * 24, weight, true);
    safetensors_close(&file);
    FILE *model = fopen(in_temporary("model/model.safetensors"), "r+");
    assert_non_null(model);
    for (int i = 0; i < 4 * 24; i += 19) {
        for (int k = 0; k < 2; k++) {
            const double moved = weight[i] + (k ? -1e-5 : 1e-5);
            assert_int_equal(pwrite(fileno(model), &moved, sizeof moved, first_byte + i * sizeof moved), sizeof moved);
            run_well("rm -f m.csv");
            run_well("mpiexec -n 2 " PROGRAM SHAPE "%s --steps 1 --load model --metrics m.csv", DATA, options);
            total[k] = metric("loss") + metric("balance_loss");
        }
        assert_int_equal(pwrite(fileno(model), &weight[i], sizeof weight[i], first_byte + i * sizeof weight[i]),
                         sizeof weight[i]);
        const double difference = (total[0] - total[1]) / 2e-5;
        if (!(fabs(difference - gradient[i]) <= 1e-8))
            fail_msg("element %d: the gradient is %g, the difference %g", i, gradient[i], difference);
        assert_true(fabs(gradient[i]) > 1e-6);
    }
    fclose(model);
}

/* One line each, and the status. */
static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        int ranks, status;
        const char *program, *options, *message;
    } refused[] = {
        {4, 1, "10_expert_parallel", "--ep 3",
         "--ep: the number of ranks = 4 is not divisible by 3 ranks; use 1, 2 or 4"},
        {4, 1, "10_expert_parallel", "--experts 6 --ep 4", "--experts 6 is not divisible by 4 ranks; use 1, 2, 3 or 6"},
        {1, 2, "10_expert_parallel", "--experts 4 --top-k 5", "--top-k: expected at most --experts 4, got 5"},
        {1, 2, "10_expert_parallel", "--capacity -1", "--capacity: expected a number from 0 to 1e+06, got '-1'"},
        {1, 2, "10_expert_parallel", "--experts 4096 --micro-batch 60000", " slots and tensors of "},
        {1, 1, "10_expert_parallel", "--load dense", "the model has no experts; to make each one a copy of its MLP, "
                                                     "--expert-width must be 96, got 48"},
        {1, 1, "10_expert_parallel", "--load mixture --experts 6",
         "a token takes 2 of 8 experts, but in this run 2 of 6"},
        {1, 1, "01_single_gpu", "--load mixture", "a token takes 2 of 8 experts; load it with 10_expert_parallel"},
        {1, 2, "09_combined", "--experts 8", "--experts: only 10_expert_parallel has experts"},
    };

    (void)state;
    run_well("rm -rf dense mixture");
    run_well(BUILD "/cpu64/01_single_gpu" SHAPE "--steps 0 --save dense", DATA);
    run_well(PROGRAM SHAPE "--steps 0 --save mixture", DATA);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Result r = run("mpiexec -n %d " BUILD "/cpu64/%s" SHAPE "%s", refused[i].ranks, refused[i].program,
                       DATA, refused[i].options);
        bool good = r.status == refused[i].status && *r.err;
        for (char *line = strtok(r.err, "\n"); line && good; line = strtok(NULL, "\n"))
            good = !strncmp(line, refused[i].program, strlen(refused[i].program)) && strstr(line, refused[i].message);
        if (!good)
            fail_msg("%s %s: status %d and \"%s\", not \"%s\"", refused[i].program, refused[i].options, r.status, r.err,
                     refused[i].message);
        result_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_agrees),
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(an_upcycled_model_is_the_dense_one),
        cmocka_unit_test(upcycling_leaves_the_router),
        cmocka_unit_test(the_router_descends),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };

    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
