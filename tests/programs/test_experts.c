/* 10 against an independent reference and 01 (by verify), and upcycling. */
#include <stdio.h>
#include <string.h>

#include "../../common/safetensors.h"
#include "../harness.h"

#define PROGRAM BUILD "/cpu64/10_expert_parallel"

/* verify runs the reference's cases, in experts/: loss, balance loss, dropped choices and all gradients, with few slots
 * per sequence or span, with enough, and with one for each token. Models whose experts are copies of an MLP compute what
 * 01 does. */
static void the_reference_and_01_agree(void **state)
{
    expect(run(BUILD "/cpu64/verify 10_expert_parallel " PROGRAM), 0, "9 of 9 configurations are correct");
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
        cmocka_unit_test(the_reference_and_01_agree),
        cmocka_unit_test(upcycling_leaves_the_router),
    };

    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
