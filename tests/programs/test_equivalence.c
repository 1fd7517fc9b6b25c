/* 03, 04 and 05 against 01 (equivalence.h). Of all programs: the playbook column of the memory table, and the options that
 * they refuse. */
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "../equivalence.h"

static void data_parallel_agrees(void **state)
{
    agrees_with_01("03_data_parallel");
}

static void zero_agrees(void **state)
{
    agrees_with_01("04_zero");
}

/* exp of a logit of several hundred is infinite, so each row's largest logit over all slices is subtracted first. One
 * of verify's cases has weights that make such logits. */
static void tensor_parallel_agrees(void **state)
{
    agrees_with_01("05_tensor_parallel");
    expect(run(BUILD "/cpu64/verify 05_tensor_parallel " BUILD "/cpu64/05_tensor_parallel 3"), 0,
           "3 ranks, large weights: right");
}

/* The column "playbook" of each program's memory against the formulas: L = 4, s = 32, b = 2, h = 64, a = 4. */
static void playbook_columns(void **state)
{
    const double block = 12 * 64 * 64 + 13 * 64, N = 64 * 97 + 4 * block + 2 * 64, sbh = 32 * 2 * 64;
    const double square = 5.0 * 4 * 32 / 64;                    /* 5 a s / h */
    const struct {
        const char *start, *options;
        int rank;
        const char *category;
        double bytes;
    } cases[] = {
        {"01_single_gpu", "", 0, "activations", 4 * sbh * (34 + square)},
        {"01_single_gpu", "--recompute selective", 0, "activations", 4 * sbh * 34},
        {"01_single_gpu", "--recompute full", 0, "activations", 4 * sbh * 2},
        {"01_single_gpu", "", 0, "optimizer", 8 * N},
        {"02_mixed_precision", "--gradients bf16", 0, "parameters", 2 * N},
        {"02_mixed_precision", "--gradients bf16", 0, "master", 4 * N},
        {"02_mixed_precision", "--gradients bf16", 0, "gradients", 2 * N},
        {"mpiexec -n 2 03_data_parallel", "", 1, "gradients", 4 * N},
        {"mpiexec -n 2 04_zero", "--zero 1", 1, "gradients", 4 * N},
        {"mpiexec -n 2 04_zero", "--zero 1", 1, "optimizer", 8 * N / 2},
        {"mpiexec -n 2 04_zero", "--zero 2", 1, "gradients", 4 * N / 2},
        {"mpiexec -n 2 04_zero", "--zero 3", 1, "parameters", 4 * N / 2},
        {"mpiexec -n 2 05_tensor_parallel", "", 1, "parameters", 4 * N / 2},
        {"mpiexec -n 2 05_tensor_parallel", "", 1, "activations", 4 * sbh * (10 + 24 / 2 + square / 2)},
        {"mpiexec -n 2 05_tensor_parallel", "--sequence-parallel", 1, "activations", 4 * sbh * (34 + square) / 2},
        {"mpiexec -n 2 06_pipeline_parallel", "", 0, "parameters", 4 * (64 * 97 + 2 * block)},
        {"mpiexec -n 2 06_pipeline_parallel", "", 0, "activations", 2 * 2 * sbh * (34 + square)},
        {"mpiexec -n 2 06_pipeline_parallel", "", 1, "activations", 2 * sbh * (34 + square)},
        {"mpiexec -n 2 07_context_parallel", "", 1, "activations", 4 * sbh * 34 / 2},
        {"08_fused_kernels", "", 0, "activations", 4 * sbh * 34},
        {"08_fused_kernels", "--fuse none", 0, "activations", 4 * sbh * (34 + square)},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *program = strrchr(cases[i].start, ' ') ? strrchr(cases[i].start, ' ') + 1 : cases[i].start;
        run_well("%.*s" BUILD "/cpu/%s --layers 4 --hidden 64 --heads 4 --vocab 97 --seq 32 --micro-batch 2 "
                 "--accumulate 2 --steps 0 --threads 1 --quiet --data %s --report playbook.json %s",
                 (int)(program - cases[i].start), cases[i].start, program, token_file(20000, 97), cases[i].options);
        const double bytes = json_number("playbook.json", "ranks.%d.memory.%s.playbook", cases[i].rank,
                                         cases[i].category);
        if (bytes != cases[i].bytes)
            fail_msg("%s %s: the playbook's %s are %.0f bytes, not %.0f", cases[i].start, cases[i].options,
                     cases[i].category, cases[i].bytes, bytes);
    }
}

/* ---- Refused options ---- */

#define MIXED 1, "02_mixed_precision"
#define TENSOR "05_tensor_parallel"
#define PIPELINE "06_pipeline_parallel"
#define CONTEXT "07_context_parallel"
#define FUSED 1, "08_fused_kernels"
#define COMBINED 4, "09_combined"
#define EXPERTS "10_expert_parallel"
#define FIVE 4, "11_five_dimensions"
#define ONE_CHUNK "--chunks: expected 1 unless --schedule is interleaved, got "
#define TIMES "--times: expected T_F,T_B,T_W,TRANSFER, time slots from 1 to 99 (TRANSFER from 0), got "
#define FUSE "--fuse: expected all, none, or a list like a,b of attention"

static const struct {
    int ranks;
    const char *program;
    int status;
    const char *options, *message;
} refused[] = {
    {MIXED, 2, "--dtype fp16 --gradients bf16", "--gradients bf16 with --dtype fp16"},
    {MIXED, 2, "--loss-scale 5", "--loss-scale 5, --loss-scale-growth 2000: expected --dtype fp16"},
    {1, "08_fused_kernels", 2, "--loss-scale 5", "--loss-scale 5, --loss-scale-growth 2000: expected --dtype fp16"},
    {4, TENSOR, 1, "--heads 6", "--heads 6 is not divisible by 4 ranks; use 1, 2, 3 or 6"},
    {2, TENSOR, 1, "--seq 7 --micro-batch 1 --sequence-parallel",
     "--micro-batch x --seq = 7 is not divisible by 2 ranks; use 1 or 7"},
    {4, TENSOR, 1, "--heads 4 --vocab 3 --data three.bin", "--vocab 3: expected at least 4, one token per rank"},
    {2, PIPELINE, 2, "--chunks 2", ONE_CHUNK "2"},
    {2, PIPELINE, 2, "--schedule zb-v --chunks 3", ONE_CHUNK "3"},
    {2, PIPELINE, 2, "--schedule gpipe",
     "--schedule: expected one of afab|1f1b|interleaved|zero-bubble|zb-v|dualpipe-v, got 'gpipe'"},
    {2, PIPELINE, 2, "--schedule zero-bubble --recompute full",
     "--recompute full: cannot be combined with --schedule zero-bubble"},
    {2, PIPELINE, 2, "--schedule dualpipe-v --layers 4 --recompute full",
     "--recompute full: cannot be combined with --schedule zero-bubble, zb-v or dualpipe-v"},
    {2, PIPELINE, 2, "--times 1,0,1,1 --print-schedule", TIMES "'1,0,1,1'"},
    {2, PIPELINE, 1, "--schedule zb-v --layers 3", "--layers: expected at least 4 for 2 ranks x 2 model chunks, got 3"},
    {3, PIPELINE, 1, "--schedule interleaved --chunks 2 --accumulate 4 --layers 6",
     "--accumulate: expected a multiple of the 3 ranks with --schedule interleaved, got 4; try 6"},
    {3, PIPELINE, 1, "--layers 2", "--layers: expected at least 3 for 3 ranks x 1 model chunk, got 2"},
    {4, CONTEXT, 1, "--seq 18 --attention ring",
     "--seq: expected a multiple of 4 (4 ranks x 1 sequence chunk), got 18; try 20"},
    {4, CONTEXT, 1, "--seq 20", "--seq: expected a multiple of 8 (4 ranks x 2 sequence chunks), got 20; try 24"},
    {3, CONTEXT, 1, "--seq 2 --heads 2 --attention ulysses", "--seq: expected a multiple of 3 "},
    {3, CONTEXT, 1, "--seq 24 --heads 4 --attention ulysses",
     "--attention ulysses: --heads 4 is not divisible by 3 ranks; use 1, 2 or 4"},
    {FUSED, 2, "--fuse attention,,gelu", FUSE},
    {FUSED, 2, "--fuse all,nothing", FUSE},
    {FUSED, 2, "--fuse none,attention", FUSE},
    {COMBINED, 2, "--tp 3", "--tp 3 x --cp 1 x --pp 1 x --dp 0: 3 does not divide the 4 ranks; start a "
                            "multiple of 3 ranks, or choose factors of 4"},
    {COMBINED, 2, "--tp 2 --dp 4", "--tp 2 x --cp 1 x --pp 1 x --dp 4: 8 does not equal the 4 ranks; start 8 "
                                   "ranks, or choose factors of 4"},
    {COMBINED, 2, "--tp 65536 --cp 65536 --pp 65536", "281474976710656 does not divide the 4 ranks"},
    {COMBINED, 2, "--tp 65536 --cp 65536 --pp 65536 --dp 65536", "18446744073709551616 does not equal"},
    {COMBINED, 1, "--tp 4 --heads 6", "--tp: --heads 6 is not divisible by 4 ranks; use 1, 2, 3 or 6"},
    {COMBINED, 1, "--tp 4 --heads 4 --seq 5 --micro-batch 1",
     "--tp: --micro-batch x --seq / --cp = 5 is not divisible by 4 ranks; use 1 or 5"},
    {COMBINED, 1, "--cp 4 --seq 20",
     "--seq: expected a multiple of 8 (4 ranks of --cp x 2 sequence chunks), got 20; try 24"},
    {COMBINED, 1, "--pp 4 --layers 3", "--layers: expected at least 4, one per pipeline stage (--pp), got 3"},
    {COMBINED, 1, "--tp 4 --heads 4 --vocab 3 --data three.bin",
     "--vocab: expected at least 4, one token per rank of --tp, got 3"},
    {4, EXPERTS, 1, "--ep 3", "--ep: the number of ranks = 4 is not divisible by 3 ranks; use 1, 2 or 4"},
    {4, EXPERTS, 1, "--experts 6 --ep 4", "--experts 6 is not divisible by 4 ranks; use 1, 2, 3 or 6"},
    {1, EXPERTS, 2, "--experts 4 --top-k 5", "--top-k: expected at most --experts 4, got 5"},
    {1, EXPERTS, 1, "--seq 10 --span 4", "--span: expected a divisor of --seq 10, got 4"},
    {1, EXPERTS, 2, "--capacity -1", "--capacity: expected a number from 0 to 1e+06, got '-1'"},
    {1, EXPERTS, 2, "--experts 4096 --micro-batch 60000", " slots and tensors of "},
    {1, EXPERTS, 1, "--load dense",
     "the model has no experts; to make each one a copy of its MLP, --expert-width must be 192, got 96"},
    {1, EXPERTS, 1, "--load mixture --experts 6", "a token takes 2 of 8 experts, but in this run 2 of 6"},
    {FIVE, 1, "--pp 2 --ep 4",
     "--ep: the ranks of a pipeline stage, tp x cp x dp = 2 is not divisible by 4 ranks; use 1 or 2"},
    {FIVE, 1, "--tp 2 --seq 24 --micro-batch 1",
     "--span: expected a divisor of 12, so that no sequence chunk (24 tokens) and no rank (12 rows) has a part of a "
     "span, got 24"},
    {FIVE, 1, "--cp 4 --seq 24 --span 2", "--span: expected a divisor of 3, "},
    {FIVE, 2, "--experts 4 --top-k 5", "--top-k: expected at most --experts 4, got 5"},
    {1, "01_single_gpu", 1, "--load mixture", "a token takes 2 of 8 experts, but this program has none"},
};

/* Each rank that finds the mistake may print its line, and no rank prints anything else. */
static void what_cannot_be_split_is_refused(void **state)
{
    run_well("cp %s three.bin", token_file(20000, 3));
    run_well(BUILD "/cpu64/01_single_gpu --data %s --hidden 48 --quiet --steps 0 --save dense", token_file(20000, 97));
    run_well(BUILD "/cpu64/" EXPERTS " --data %s --hidden 48 --quiet --steps 0 --save mixture", token_file(20000, 97));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char launch[32] = "";
        if (refused[i].ranks > 1)               /* mpiexec may change the status of a single rank that ends early */
            snprintf(launch, sizeof launch, "mpiexec -n %d ", refused[i].ranks);
        Result r = run("%s" BUILD "/cpu64/%s --data %s --hidden 48 --quiet %s", launch, refused[i].program,
                       token_file(20000, 97), refused[i].options);
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
        cmocka_unit_test(data_parallel_agrees),
        cmocka_unit_test(zero_agrees),
        cmocka_unit_test(tensor_parallel_agrees),
        cmocka_unit_test(playbook_columns),
        cmocka_unit_test(what_cannot_be_split_is_refused),
    };

    return cmocka_run_group_tests_name("layouts", tests, NULL, NULL);
}
