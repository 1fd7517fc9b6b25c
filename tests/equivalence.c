#include "equivalence.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { BEFORE = 2, MOST_STEPS = 20 };   /* the reference saves a checkpoint after BEFORE steps, and after the last */

#define EXPERTS(e, k, more) .model = "--experts " #e " --top-k " #k " --balance 0.1 " more
#define SPAN(tokens) "--capacity 0.8 --span " #tokens
#define FP32 "--dtype fp32 "
#define PIPELINE 0, 8, 16, 2            /* dp, seq, hidden, heads */

/* Covering subsets of options, rank counts, recomputation and accumulation: each value, and each pair of values. Cases
 * share global batches, thus 01's results. */
static const Configuration cases[] = {
    /* sequences that are no multiple of 64, of one token; heads of two numbers */
    {"01_single_gpu", "", 1, 3, 6, 1, "none", .seq = 70},
    {"01_single_gpu", "", 1, 3, 3, 2, "none", .seq = 70},
    {"01_single_gpu", "", 1, 3, 1, 6, "selective", .seq = 70, .exact = true},
    {"01_single_gpu", "", 1, 3, 1, 6, "full", .seq = 70, .exact = true},
    {"01_single_gpu", "", 1, 1, 2, 2, "selective", .seq = 5, .hidden = 2, .heads = 1},
    {"01_single_gpu", "", 1, 3, 2, 2, "full", .seq = 1},

    {"02_mixed_precision", "--dtype fp32", 1, 3, 1, 6, "none", .seq = 70, .exact = true},

    {"03_data_parallel", "--sync naive", 2, 3, 3, 2, "none"},
    {"03_data_parallel", "--sync overlap", 3, 3, 1, 1, "selective"},
    {"03_data_parallel", "--sync bucket --bucket-mb 0.05", 4, 2, 1, 3, "full"},
    {"03_data_parallel", "--sync bucket", 8, 1, 1, 1, "none"},
    {"03_data_parallel", "--sync naive", 1, 3, 1, 3, "full", .exact = true},
    {"03_data_parallel", "--sync bucket", 1, 3, 1, 3, "none", .exact = true},

    {"04_zero", "--zero 1", 2, 3, 3, 1, "full"},
    {"04_zero", "--zero 1", 8, 2, 1, 2, "none"},
    {"04_zero", "--zero 1", 1, 3, 1, 3, "none", .exact = true},
    {"04_zero", "--zero 2", 3, 1, 1, 2, "selective"},
    {"04_zero", "--zero 2", 4, 3, 1, 1, "full"},
    {"04_zero", "--zero 2", 1, 3, 1, 3, "none", .exact = true},
    {"04_zero", "--zero 3", 1, 3, 1, 3, "selective", .exact = true},
    {"04_zero", "--zero 3", 3, 5, 1, 3, "full"},
    {"04_zero", "--zero 3", 8, 3, 1, 1, "none"},

    /* neither 7 rows nor a vocabulary of 97 or 101 is a multiple of the ranks */
    {"05_tensor_parallel", "", 1, 3, 3, 2, "none"},
    {"05_tensor_parallel", "", 2, 3, 3, 2, "full"},
    {"05_tensor_parallel", "", 3, 2, 1, 1, "selective", .seq = 7},
    {"05_tensor_parallel", "", 6, 1, 1, 2, "none"},
    {"05_tensor_parallel", "", 4, 3, 1, 1, "full", 0, 16, 64, 8, 101},
    {"05_tensor_parallel", "", 8, 2, 1, 1, "none", 0, 16, 64, 8, 101},
    {"05_tensor_parallel", "--sequence-parallel", 1, 3, 2, 3, "full"},
    {"05_tensor_parallel", "--sequence-parallel", 2, 3, 3, 2, "selective"},
    {"05_tensor_parallel", "--sequence-parallel", 3, 2, 3, 1, "full"},
    {"05_tensor_parallel", "--sequence-parallel", 6, 1, 3, 1, "none"},
    {"05_tensor_parallel", "--sequence-parallel", 8, 2, 1, 2, "none", 0, 16, 64, 8, 101},

    /* every schedule; m below, equal to and above p; layers that are no multiple of the ranks */
    {"06_pipeline_parallel", "--schedule afab", 1, 3, 2, 3, "full", PIPELINE},
    {"06_pipeline_parallel", "--schedule afab", 2, 3, 1, 6, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule afab", 4, 5, 3, 2, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule 1f1b", 2, 3, 3, 2, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule 1f1b", 3, 5, 1, 6, "full", PIPELINE},
    {"06_pipeline_parallel", "--schedule 1f1b", 4, 5, 6, 1, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule 1f1b", 8, 9, 3, 2, "full", PIPELINE},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 3", 1, 3, 1, 6, "full", PIPELINE},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 3", 2, 9, 1, 6, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 2", 3, 9, 1, 6, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 2", 4, 9, 1, 16, "full", PIPELINE},
    {"06_pipeline_parallel", "--schedule zero-bubble", 1, 3, 1, 6, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule zero-bubble", 2, 3, 6, 1, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule zero-bubble", 3, 5, 1, 6, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule zero-bubble --pretend 1e6,1e6,0", 8, 9, 1, 16, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule zb-v", 1, 3, 1, 6, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule zb-v", 2, 5, 1, 6, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule zb-v", 3, 7, 1, 6, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule zb-v", 4, 9, 3, 2, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule dualpipe-v", 2, 5, 1, 6, "none", PIPELINE},
    {"06_pipeline_parallel", "--schedule dualpipe-v", 3, 7, 3, 2, "selective", PIPELINE},
    {"06_pipeline_parallel", "--schedule dualpipe-v", 4, 9, 1, 16, "none", PIPELINE},

    /* sequence chunks of more than 64 tokens, and of odd length */
    {"07_context_parallel", "--attention zigzag", 1, 2, 3, 1, "none", .seq = 24},
    {"07_context_parallel", "--attention zigzag", 2, 3, 3, 1, "full", .seq = 24},
    {"07_context_parallel", "--attention zigzag", 3, 1, 1, 3, "selective", .seq = 150},
    {"07_context_parallel", "--attention zigzag", 4, 2, 3, 1, "none", .seq = 24},
    {"07_context_parallel", "--attention zigzag", 8, 1, 1, 1, "full", .seq = 16},
    {"07_context_parallel", "--attention ring", 2, 1, 1, 3, "none", .seq = 150},
    {"07_context_parallel", "--attention ring", 3, 2, 3, 1, "full", .seq = 24},
    {"07_context_parallel", "--attention ring", 8, 1, 1, 1, "none", .seq = 16},
    {"07_context_parallel", "--attention allgather", 3, 2, 3, 1, "full", .seq = 24},
    {"07_context_parallel", "--attention allgather", 4, 1, 1, 1, "none", .seq = 16},
    {"07_context_parallel", "--attention ulysses", 2, 3, 3, 1, "full", .seq = 24},
    {"07_context_parallel", "--attention ulysses", 3, 1, 1, 3, "selective", .seq = 150},
    {"07_context_parallel", "--attention ulysses", 4, 1, 1, 1, "none", .seq = 16, .heads = 8},

    {"08_fused_kernels", FP32 "--fuse none", 1, 3, 1, 4, "none", .seq = 70, .exact = true},
    {"08_fused_kernels", FP32 "--fuse attention", 1, 3, 4, 1, "selective", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse layernorm", 1, 3, 2, 2, "full", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse gelu", 1, 3, 1, 4, "none", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse cross-entropy", 1, 3, 4, 1, "selective", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse adamw", 1, 3, 1, 4, "full", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse gelu,attention", 1, 3, 2, 2, "full", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse all", 1, 3, 2, 2, "none", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse all", 1, 3, 4, 1, "selective", .seq = 70},
    {"08_fused_kernels", FP32 "--fuse all", 1, 3, 1, 4, "full", .seq = 70},

    /* each pair of dimensions; both --zero; fewer micro-batches than pipeline stages, and more; rows that are no
     * multiple of the ranks, or of the 256 rows in a slice of the loss */
    {"09_combined", FP32 "--tp 2 --cp 2 --pp 2", 8, 3, 1, 2, "none", .seq = 24},
    {"09_combined", FP32 "--tp 2 --cp 2", 8, 2, 3, 1, "full", .seq = 24, .dp = 2},
    {"09_combined", FP32 "--pp 2 --dp 2 --zero 0", 4, 3, 1, 3, "none", .dp = 2},
    {"09_combined", FP32 "--pp 3", 3, 5, 1, 2, "full"},
    {"09_combined", FP32 "--tp 3", 3, 1, 4, 1, "none", .seq = 150},
    {"09_combined", FP32 "--cp 4 --zero 0", 4, 1, 1, 2, "none", .seq = 32},
    {"09_combined", FP32, 1, 2, 3, 2, "full"},

    /* every way to split n ranks; tokens dropped, or none, per sequence or span; k = 1 and more; uneven capacities */
    {"10_expert_parallel", "--ep 1", 1, 2, 3, 2, "full", EXPERTS(4, 2, "--capacity 0.8")},
    {"10_expert_parallel", "--ep 2", 2, 2, 3, 1, "none", 2, EXPERTS(4, 2, "--capacity 0.8")},
    {"10_expert_parallel", "--ep 1", 2, 2, 1, 3, "full", 2, EXPERTS(4, 2, "--capacity 0.8")},
    {"10_expert_parallel", "--ep 3", 3, 2, 2, 1, "full", 3, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", "--ep 1", 3, 2, 1, 2, "selective", 3, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", "--ep 6", 6, 2, 1, 1, "none", 6, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", "--ep 2", 6, 2, 1, 1, "full", 6, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", "--ep 4", 4, 1, 1, 2, "selective", 4, EXPERTS(8, 1, "--expert-width 40 --span 4")},
    {"10_expert_parallel", "--ep 2", 4, 1, 2, 1, "none", 4, EXPERTS(8, 1, "--expert-width 40 --span 4")},
    {"10_expert_parallel", "--ep 8", 8, 1, 1, 1, "full", 8, EXPERTS(8, 1, "--expert-width 40 --span 4")},
    {"10_expert_parallel", "--ep 4", 8, 1, 1, 1, "none", 8, EXPERTS(8, 1, "--expert-width 40 --span 4")},

    /* ep over each dimension but pp, and over several; below, equal to and above tp; both --zero */
    {"11_five_dimensions", FP32 "--tp 2 --cp 2 --pp 2 --ep 4", 8, 3, 1, 4, "full", .seq = 24, EXPERTS(4, 2, SPAN(6))},
    {"11_five_dimensions", FP32 "--tp 2 --ep 2", 4, 3, 1, 2, "none", .dp = 2, .seq = 24, EXPERTS(4, 2, SPAN(6))},
    {"11_five_dimensions", FP32 "--cp 2 --ep 4 --zero 0", 4, 3, 1, 2, "none", .dp = 2, .seq = 24,
     EXPERTS(4, 2, SPAN(6))},
    {"11_five_dimensions", FP32 "--pp 3 --dp 2 --ep 2", 6, 3, 1, 3, "full", .dp = 2, EXPERTS(6, 3, "--capacity 0")},
    {"11_five_dimensions", FP32 "--tp 3 --ep 6 --zero 0", 6, 3, 3, 1, "full", .dp = 2, EXPERTS(6, 3, "--capacity 0")},
    {"11_five_dimensions", FP32, 1, 3, 3, 2, "none", EXPERTS(6, 3, "--capacity 0")},
};

/* All combinations, with 24 heads, which every number of ranks divides. */
static const struct {
    const char *program, *options[4];
    int ranks[7], layers[4], micro_batch[3], seq;
    const char *model;
} products[] = {
    {"03_data_parallel", {"--sync naive", "--sync overlap", "--sync bucket --bucket-mb 0.05"}, {1, 2, 3, 4, 8},
     {1, 2, 3}, {3}, 16},
    {"04_zero", {"--zero 1", "--zero 2", "--zero 3"}, {1, 2, 3, 4, 8}, {1, 2, 3}, {3}, 16},
    {"05_tensor_parallel", {"", "--sequence-parallel"}, {1, 2, 3, 4, 6, 8}, {3}, {3}, 16},
    {"07_context_parallel", {"--attention zigzag", "--attention ring", "--attention allgather", "--attention ulysses"},
     {1, 2, 3, 4, 8}, {2}, {1, 3}, 48},
    {"07_context_parallel", {"--attention zigzag", "--attention ring", "--attention allgather", "--attention ulysses"},
     {1, 2, 3, 4, 8}, {2}, {1, 3}, 144},
    {"10_expert_parallel", {"--ep 1"}, {1, 2, 3, 4, 6, 8}, {2}, {2}, 16, EXPERTS(8, 2, "--capacity 1")},
    {"10_expert_parallel", {"--ep 2"}, {2, 4, 6, 8}, {2}, {1, 2}, 16, EXPERTS(8, 2, "--capacity 1")},
    {"10_expert_parallel", {"--ep 4"}, {4, 8}, {2}, {1, 2}, 16, EXPERTS(8, 1, "--capacity 1")},
    {"10_expert_parallel", {"--ep 3"}, {3, 6}, {2}, {1, 2}, 16, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", {"--ep 8"}, {8}, {2}, {1, 2}, 16, EXPERTS(8, 3, "--capacity 0.7")},
};

static double worst[4];                 /* differences of gradients, checkpoints, losses and norms */

static int last_step(void)
{
    return full_tests() ? MOST_STEPS : 4;
}

static int or_default(int value, int standard)
{
    return value ? value : standard;
}

/* Returns the options of the model, the data and the schedule, which both programs get, in a static buffer. The
 * validation data are 12 sequences: as many for each micro-batch that divides 12. */
static const char *model_options(const Configuration *l)
{
    static char text[512];
    const int vocab = or_default(l->vocab, 97), seq = or_default(l->seq, 16);

    snprintf(text, sizeof text, "--layers %d --hidden %d --heads %d --vocab %d --seq %d --lr 1e-3 --warmup 3 "
             "--eval-every 2 --threads 1 --quiet --data %s %s", l->layers, or_default(l->hidden, 48),
             or_default(l->heads, 6), vocab, seq, token_file(120 * seq, vocab), l->model ? l->model : "");
    return text;
}

/* Runs the reference on the same global batch, unless its results are stored: BEFORE steps, then from a checkpoint to
 * the last. Each part leaves PART.safetensors, PART.json and a checkpoint PART, both one m.csv, in the directory of
 * which it sets the name. */
static void reference(const Configuration *l, char name[128])
{
    const bool replicas = l->program[1] == '3' || l->program[1] == '4';
    const int sequences = l->micro_batch * l->accumulate * or_default(l->dp, replicas ? l->ranks : 1);

    snprintf(name, 128, "%d_%d_%d_%d_%d_%d%s", l->layers, sequences, l->seq, l->hidden, l->heads, l->vocab,
             l->model ? l->model : "");
    for (char *c = name; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    Result exists = run("mkdir %s", name);
    for (int part = 0; part < 2 && !exists.status; part++)
        run_well(BUILD "/cpu64/%s %s --micro-batch 1 --accumulate %d --steps %d --dump-gradients "
                 "%s/%d.safetensors --metrics %s/m.csv --report %s/%d.json --save %s/%d %s %s%s",
                 l->model ? "10_expert_parallel" : "01_single_gpu", model_options(l), sequences,
                 part ? last_step() : BEFORE, name, part, name, name, part, name, part, part ? "--load" : "",
                 part ? name : "", part ? "/0" : "");
    result_free(exists);
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);

    if (!cJSON_IsNumber(item))
        fail_msg("the report has no number %s", name);
    return item->valuedouble;
}

/* Compares memory and traffic of every rank with the prediction. Returns the last validation loss. */
static double check_report(const char *file, int ranks, const char *command)
{
    char *text = read_file(file);
    cJSON *json = cJSON_Parse(text);
    const cJSON *all = cJSON_GetObjectItem(json, "ranks"), *rank, *entry, *losses;

    assert_int_equal(cJSON_GetArraySize(all), ranks);
    cJSON_ArrayForEach(rank, all) {
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "memory"))
            if (number(entry, "measured") != number(entry, "predicted"))
                fail_msg("%s: rank %g has %.0f bytes of %s, predicted %.0f", command, number(rank, "rank"),
                         number(entry, "measured"), entry->string, number(entry, "predicted"));
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "comm"))
            if (number(entry, "calls") != number(entry, "predicted_calls")
                || number(entry, "bytes") != number(entry, "predicted"))
                fail_msg("%s: rank %g calls %s %.0f times with %.0f bytes, predicted %.0f and %.0f", command,
                         number(rank, "rank"), cJSON_GetStringValue(cJSON_GetObjectItem(entry, "op")),
                         number(entry, "calls"), number(entry, "bytes"), number(entry, "predicted_calls"),
                         number(entry, "predicted"));
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(rank, "memory")), 8);
        assert_true(ranks == 1 || cJSON_GetArraySize(cJSON_GetObjectItem(rank, "comm")));
    }
    losses = cJSON_GetObjectItem(json, "held_out");
    const double loss = number(cJSON_GetArrayItem(losses, cJSON_GetArraySize(losses) - 1), "loss");
    cJSON_Delete(json);
    free(text);
    return loss;
}

/* Compares row/NAME with the reference's NAME: gradients (of = 0), or tensors of a checkpoint. */
static void compare_file(const Configuration *l, const char *command, const char *row, const char *base, int of)
{
    char tensor[128] = "";
    const double d = compare_gradients(row, base, or_default(l->heads, 6), tensor);

    if (!(d <= (l->exact ? 0 : 1e-10)))
        fail_msg("%s: %s of %s differs by %g from the reference's", command, tensor, row, d);
    worst[of] = fmax(worst[of], d);
}

static void compare_number(const Configuration *l, const char *command, const char *what, double is, double want, int of)
{
    const double d = is == want ? 0 : fabs(is - want) / want;

    if (!(d <= (l->exact ? 0 : 1e-10)))
        fail_msg("%s: the %s is %.17g, but %.17g in the reference", command, what, is, want);
    worst[of] = fmax(worst[of], d);
}

void compare_with_01(const Configuration *l)
{
    static const char *const columns[] = {"loss", "grad_norm", "balance_loss", "dropped"};
    static const char *const counts[] = {"step", "tokens", "optimizer_step"};
    static int calls;
    const int first = calls++ % 2 ? BEFORE : 0;         /* the step from which it resumes */
    char base[128], command[2048];
    const int steps = last_step();
    double is[MOST_STEPS], want[MOST_STEPS];

    reference(l, base);
    run_well("rm -rf row row.safetensors row.csv row.json");
    snprintf(command, sizeof command, "mpiexec -n %d " BUILD "/cpu64/%s %s %s --micro-batch %d --accumulate %d "
             "--recompute %s --steps %d %s%s%s", l->ranks, l->program, model_options(l), l->options, l->micro_batch,
             l->accumulate, l->recompute, steps, first ? "--load " : "", first ? base : "", first ? "/0" : "");
    run_well("%s --check --dump-gradients row.safetensors --metrics row.csv --report row.json --save row", command);

    compare_file(l, command, "row.safetensors", in_temporary("%s/%d.safetensors", base, first != 0), 0);
    compare_file(l, command, "row/model.safetensors", in_temporary("%s/1/model.safetensors", base), 1);
    compare_file(l, command, "row/optimizer.safetensors", in_temporary("%s/1/optimizer.safetensors", base), 1);
    run_well("cmp row/config.json %s/1/config.json", base);
    for (int k = 0; k < 3; k++)
        assert_true(json_number("row/trainer.json", "%s", counts[k])
                    == json_number(in_temporary("%s/1/trainer.json", base), "%s", counts[k]));
    for (int k = 0; k < (l->model ? 4 : 2); k++) {
        assert_int_equal(read_column("row.csv", columns[k], is, MOST_STEPS), steps - first);
        assert_int_equal(read_column(in_temporary("%s/m.csv", base), columns[k], want, MOST_STEPS), steps);
        for (int s = first; s < steps; s++)
            compare_number(l, command, columns[k], is[s - first], want[s], k == 1 ? 3 : 2);
    }
    compare_number(l, command, "validation loss", check_report("row.json", l->ranks, command),
                   check_report(in_temporary("%s/1.json", base), 1, "the reference"), 2);
}

void agrees_with_01(const char *program)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    Configuration c;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].program, program))
            compare_with_01(&cases[i]);
    for (size_t i = 0; full_tests() && i < sizeof products / sizeof *products; i++)
        if (!strcmp(products[i].program, program))
            for (int o = 0; o < 4 && products[i].options[o]; o++)
                for (const int *n = products[i].ranks; *n; n++)
                    for (const int *layers = products[i].layers; *layers; layers++)
                        for (const int *b = products[i].micro_batch; *b; b++)
                            for (int k = 0; k < 6; k++) {
                                c = (Configuration){program, products[i].options[o], *n, *layers, *b, 1 + k / 3,
                                                 recompute[k % 3], .dp = products[i].model ? *n : 0,
                                                 .seq = products[i].seq, .heads = 24, .model = products[i].model};
                                compare_with_01(&c);
                            }
    print_message("worst difference: gradients %.1e, checkpoints %.1e, losses %.1e, norms %.1e\n", worst[0], worst[1],
                  worst[2], worst[3]);
}
