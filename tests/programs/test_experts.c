/* 10 against an independent reference, and itself on one rank (by verify); and upcycling. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/print.h"
#include "../../common/safetensors.h"
#include "../harness.h"

#define PROGRAM BUILD "/cpu64/10_expert_parallel"
#define FIXTURE SOURCE "/tests/programs/experts"

/* The reference's cases, in experts/: loss, balance loss, dropped choices and all gradients, with few slots per sequence
 * or span, with enough, and with one for each token. Each has four sequences. */
static void the_reference_agrees(void **state)
{
    static const struct {
        int number, ranks;
        const char *options;
    } runs[] = {{0, 1, "--ep 1"}, {0, 4, "--ep 2"}, {1, 2, "--ep 2 --recompute full"}, {2, 4, "--ep 4"},
                {3, 4, "--ep 2"}};
    static const char *const columns[] = {"loss", "balance_loss", "dropped"};

    (void)state;
    for (int k = 0; k < 5; k++) {
        char options[256], name[128];
        double right[3], x;
        FILE *f = fopen(FIXTURE "/expected.csv", "r");
        for (int i = 0; i <= runs[k].number; i++)
            assert_int_equal(fscanf(f, i ? " %255[^,],%lf,%lf,%lf" : "%*[^\n] %255[^,],%lf,%lf,%lf", options, right,
                                    right + 1, right + 2), 4);
        fclose(f);
        run_well("rm -rf reference m.csv");
        run_well("cp -r " FIXTURE " reference");
        run_well("sed -i 's/\"num_experts_per_tok\": 2/\"num_experts_per_tok\": %d/' reference/config.json",
                 atoi(strstr(options, "--top-k ") + 8));
        run_well("mpiexec -n %d " PROGRAM " %s %s --micro-batch %d --data reference/tokens.bin --load reference "
                 "--steps 1 --threads 1 --check --dump-gradients g --metrics m.csv", runs[k].ranks, runs[k].options, options,
                 4 / runs[k].ranks);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(read_column("m.csv", columns[i], &x, 1), 1);
            if (!(fabs(x - right[i]) <= 1e-10 * fabs(right[i])))
                fail_msg("case %d on %d ranks: %s is %.12g, expected %.12g", runs[k].number, runs[k].ranks, columns[i],
                         x, right[i]);
        }
        if (compare_gradients("g", format_text(FIXTURE "/expected_%d.safetensors", runs[k].number), 3, name) > 1e-10)
            fail_msg("case %d on %d ranks: %s differs", runs[k].number, runs[k].ranks, name);
    }
}

/* make verify finds 10 equal to itself on one rank. */
static void ranks_agree(void **state)
{
    (void)state;
    expect(run(BUILD "/cpu64/verify 10_expert_parallel " PROGRAM), 0, "2 of 2 configurations are correct");
}

#define DATA token_file(2000, 97)
#define SHAPE " --layers 2 --hidden 24 --heads 3 --vocab 97 --seq 20 --lr 1e-2 --threads 1 --quiet --data %s "

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_agrees),
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(upcycling_leaves_the_router),
    };

    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
