/* All programs but 00 against 01: parallel configurations in float64, on the same global batch. A model with experts is
 * compared with 10 on one rank, a Llama with 12 on one rank. Also the playbook column of the memory table, and the
 * pairs of attention in 07. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness.h"

typedef struct {
    const char *program, *options;
    int ranks, layers, micro_batch, accumulate;
    const char *recompute;
    int dp;                             /* replicas that split the global batch; 0 stands for 1, in 03 and 04 for all */
    int seq, hidden, heads, vocab;      /* 0 stands for 16, 48, 6 and 97: heads of size 8, a prime vocabulary */
    bool exact;                         /* the same numbers bit for bit, not only within 1e-10 */
    const char *model;                  /* options of a model that 01 does not have */
} Configuration;

enum { BEFORE = 2, MOST_STEPS = 20 };   /* the reference saves a checkpoint after BEFORE steps, and after the last */

#define EXPERTS(e, k, more) .model = "--experts " #e " --top-k " #k " --balance 0.1 " more
#define SPAN(tokens) "--capacity 0.8 --span " #tokens
#define LLAMA(K, more) .model = "--kv-heads " #K " --mlp 37 " more
#define FP32 "--dtype fp32 "
#define TENSOR_OPTIONS {"", "--sequence-parallel", "--sequence-parallel --overlap"}
#define PIPELINE 0, 8, 16, 2            /* dp, seq, hidden, heads */

/* What make test compares beside the products below. Cases share global batches, thus 01's results. */
static const Configuration cases[] = {
    /* sequences that are no multiple of 64, of one token; heads of two numbers */
    {"01_single_gpu", "", 1, 3, 6, 1, "none", .seq = 70},
    {"01_single_gpu", "", 1, 3, 3, 2, "none", .seq = 70},
    {"01_single_gpu", "", 1, 3, 1, 6, "selective", .seq = 70, .exact = true},
    {"01_single_gpu", "", 1, 3, 1, 6, "full", .seq = 70, .exact = true},
    {"01_single_gpu", "", 1, 1, 2, 2, "selective", .seq = 5, .hidden = 2, .heads = 1},
    {"01_single_gpu", "", 1, 3, 2, 2, "full", .seq = 1},

    {"02_mixed_precision", "--dtype fp32", 1, 3, 1, 6, "none", .seq = 70, .exact = true},

    {"03_data_parallel", "--sync bucket", 1, 3, 1, 3, "none", .exact = true},
    {"04_zero", "--zero 1", 1, 3, 1, 3, "none", .exact = true},
    {"04_zero", "--zero 2", 1, 3, 1, 3, "none", .exact = true},
    {"04_zero", "--zero 3", 1, 3, 1, 3, "selective", .exact = true},

    /* neither 7 rows nor a vocabulary of 101 is a multiple of the ranks; heads of size 8 */
    {"05_tensor_parallel", "", 3, 2, 1, 1, "selective", .seq = 7},
    {"05_tensor_parallel", "--sequence-parallel", 8, 2, 1, 2, "none", 0, 16, 64, 8, 101},
    {"05_tensor_parallel", "--sequence-parallel --overlap", 7, 2, 1, 2, "full", 0, 21, 56, 7, 101},

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
    {"09_combined", FP32 "--cp 2", 2, 1, 1, 1, "none", .seq = 1040, .hidden = 16, .heads = 2},      /* several tiles */

    /* ep over each dimension but pp, and over several; below, equal to and above tp; both --zero */
    {"11_five_dimensions", FP32 "--tp 2 --cp 2 --pp 2 --ep 4", 8, 3, 1, 4, "full", .seq = 24, EXPERTS(4, 2, SPAN(6))},
    {"11_five_dimensions", FP32 "--tp 2 --ep 2", 4, 3, 1, 2, "none", .dp = 2, .seq = 24, EXPERTS(4, 2, SPAN(6))},
    {"11_five_dimensions", FP32 "--cp 2 --ep 4 --zero 0", 4, 3, 1, 2, "none", .dp = 2, .seq = 24,
     EXPERTS(4, 2, SPAN(6))},
    {"11_five_dimensions", FP32 "--pp 3 --dp 2 --ep 2", 6, 3, 1, 3, "full", .dp = 2, EXPERTS(6, 3, "--capacity 0")},
    {"11_five_dimensions", FP32 "--tp 3 --ep 6 --zero 0", 6, 3, 3, 1, "full", .dp = 2, EXPERTS(6, 3, "--capacity 0")},
    {"11_five_dimensions", FP32, 1, 3, 3, 2, "none", EXPERTS(6, 3, "--capacity 0")},
    {"11_five_dimensions", FP32 "--cp 2", 2, 1, 1, 1, "none", .seq = 1040, .hidden = 16, .heads = 2,
     EXPERTS(4, 2, SPAN(52))},

    /* KV heads below, equal to and above the ranks; MLPs, rows and a vocabulary that are no multiple of the ranks */
    {"12_llama", "", 1, 3, 1, 3, "full", LLAMA(2, "--untied"), .exact = true},
    {"12_llama", "", 3, 2, 1, 1, "selective", .seq = 7, LLAMA(3, "")},
    {"12_llama", "", 2, 2, 1, 2, "none", .seq = 150, LLAMA(2, "")},                         /* several tiles */
    {"12_llama", "", 5, 1, 2, 2, "full", .hidden = 60, .heads = 10, LLAMA(1, "--untied --rope-theta 500000")},
    {"12_llama", "--sequence-parallel", 8, 2, 1, 2, "none", 0, 16, 64, 8, 101, LLAMA(4, "")},
};

/* Options, numbers of ranks and shapes, with 24 heads, which every number of ranks divides. make test-full compares all
 * combinations, make test one for two of three pairs of an option and a number of ranks, and for one of three in 12. */
static const struct {
    const char *program, *options[4];
    int ranks[6], layers[3], micro_batch[3], seq[3];
    const char *model;
} products[] = {
    {"03_data_parallel", {"--sync naive", "--sync overlap", "--sync bucket --bucket-mb 0.05"}, {1, 2, 3, 4, 8},
     {1, 2, 3}, {3}, {16}},
    {"04_zero", {"--zero 1", "--zero 2", "--zero 3"}, {1, 2, 3, 4, 8}, {1, 2, 3}, {3}, {16}},
    {"04_zero", {"--zero 1 --replicate 2", "--zero 2 --replicate 2", "--zero 3 --replicate 2"}, {2, 4, 6, 8}, {3}, {3},
     {16}},
    {"04_zero", {"--zero 2 --replicate 3", "--zero 3 --replicate 3"}, {3, 6}, {1, 2, 4}, {3}, {16}},
    {"05_tensor_parallel", TENSOR_OPTIONS, {1, 2, 3, 4, 6, 8}, {3}, {3}, {16}},
    /* sequence chunks of more than 64 tokens, and of odd length */
    {"07_context_parallel", {"--attention zigzag", "--attention ring", "--attention allgather", "--attention ulysses"},
     {1, 2, 3, 4, 8}, {2}, {1, 3}, {48, 144}},
    /* every way to split n ranks; tokens dropped, or none, per sequence or span; k = 1 and more; uneven capacities */
    {"10_expert_parallel", {"--ep 1"}, {1, 2, 3, 4, 6, 8}, {2}, {2}, {16}, EXPERTS(4, 2, "--capacity 0.8")},
    {"10_expert_parallel", {"--ep 2"}, {2, 4, 6, 8}, {2}, {1, 2}, {16}, EXPERTS(8, 1, "--expert-width 40 --span 4")},
    {"10_expert_parallel", {"--ep 4"}, {4, 8}, {2}, {1, 2}, {16}, EXPERTS(8, 1, "--capacity 1")},
    {"10_expert_parallel", {"--ep 3"}, {3, 6}, {2}, {1, 2}, {16}, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", {"--ep 6"}, {6}, {2}, {1, 2}, {16}, EXPERTS(6, 3, "--capacity 0")},
    {"10_expert_parallel", {"--ep 8"}, {8}, {2}, {1, 2}, {16}, EXPERTS(8, 3, "--capacity 0.7")},
    /* of 24 heads, as many of k and v, half, two, one */
    {"12_llama", TENSOR_OPTIONS, {1, 2, 3, 4, 6, 8}, {3}, {3}, {16}, LLAMA(24, "")},
    {"12_llama", TENSOR_OPTIONS, {2, 3, 4, 6}, {2}, {3}, {16}, LLAMA(12, "--untied")},
    {"12_llama", TENSOR_OPTIONS, {2, 4, 6, 8}, {2}, {3}, {16}, LLAMA(2, "")},
    {"12_llama", TENSOR_OPTIONS, {2, 3, 4, 8}, {2}, {3}, {16}, LLAMA(1, "--untied")},
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

static bool has_experts(const Configuration *l)
{
    return l->model && strstr(l->model, "--experts");
}

static const char *reference_program(const Configuration *l)
{
    return has_experts(l) ? "10_expert_parallel" : l->model ? "12_llama" : "01_single_gpu";
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
                 reference_program(l), model_options(l), sequences,
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

static void compare_number(const Configuration *l, const char *command, const char *what, double is, double want,
                           int of)
{
    const double d = is == want ? 0 : fabs(is - want) / want;

    if (!(d <= (l->exact ? 0 : 1e-10)))
        fail_msg("%s: the %s is %.17g, but %.17g in the reference", command, what, is, want);
    worst[of] = fmax(worst[of], d);
}

/* Runs both, for 4 steps, under full_tests() for 20; the configuration with --check, every other call from a checkpoint
 * of 01. Fails the test unless
 * - gradients of the first step agree within 1e-10 per tensor (q, k and v separately);
 * - losses, norms and the validation loss agree within 1e-10;
 * - the checkpoint saved at the end equals that of 01, its tensors within 1e-10;
 * - memory and traffic of every rank equal the prediction.
 * 01's results are stored for the next call with the same global batch. */
static void compare_with_01(const Configuration *l)
{
    static const char *const columns[] = {"loss", "grad_norm", "balance_loss", "dropped"};
    static const char *const counts[] = {"step", "tokens", "optimizer_step"};
    static int calls;
    const int first = calls++ % 2 ? BEFORE : 0;         /* the step from which it resumes */
    char base[128], last[132], command[2048];
    const int steps = last_step();
    double is[MOST_STEPS], want[MOST_STEPS];

    reference(l, base);
    run_well("rm -rf row row.safetensors row.csv row.json");
    snprintf(command, sizeof command, "mpiexec -n %d " BUILD "/cpu64/%s %s %s --micro-batch %d --accumulate %d "
             "--recompute %s --steps %d %s%s%s", l->ranks, l->program, model_options(l), l->options, l->micro_batch,
             l->accumulate, l->recompute, steps, first ? "--load " : "", first ? base : "", first ? "/0" : "");
    run_well("%s --check --dump-gradients row.safetensors --metrics row.csv --report row.json --save row", command);

    compare_file(l, command, "row.safetensors", in_temporary("%s/%d.safetensors", base, first != 0), 0);
    snprintf(last, sizeof last, "%s/1", base);
    compare_file(l, command, saved("row", "model.safetensors"), saved(last, "model.safetensors"), 1);
    compare_file(l, command, saved("row", "optimizer.safetensors"), saved(last, "optimizer.safetensors"), 1);
    run_well("cmp %s %s", saved("row", "config.json"), saved(last, "config.json"));
    for (int k = 0; k < 3; k++)
        assert_true(json_number(saved("row", "trainer.json"), "%s", counts[k])
                    == json_number(saved(last, "trainer.json"), "%s", counts[k]));
    for (int k = 0; k < (has_experts(l) ? 4 : 2); k++) {
        assert_int_equal(read_column("row.csv", columns[k], is, MOST_STEPS), steps - first);
        assert_int_equal(read_column(in_temporary("%s/m.csv", base), columns[k], want, MOST_STEPS), steps);
        for (int s = first; s < steps; s++)
            compare_number(l, command, columns[k], is[s - first], want[s], k == 1 ? 3 : 2);
    }
    compare_number(l, command, "validation loss", check_report("row.json", l->ranks, command),
                   check_report(in_temporary("%s/1.json", base), 1, "the reference"), 2);
}

static const char *const recomputed[] = {"none", "selective", "full"};

static int length(const int *list, int most)
{
    int n = 0;

    while (n < most && list[n])
        n++;
    return n;
}

/* Compares product i with one option on n ranks. `number` chooses the other values, if not all are compared. */
static void compare_product(int i, const char *options, int n, int number)
{
    const int layers = length(products[i].layers, 3), sizes = length(products[i].micro_batch, 3);
    const int lengths = length(products[i].seq, 3);

    for (int all = 0; all < (full_tests() ? 6 * layers * sizes * lengths : 1); all++) {
        const int k = full_tests() ? all % 6 : number % 6, j = full_tests() ? all / 6 : number / 2;
        compare_with_01(&(Configuration){
            products[i].program, options, n, products[i].layers[j % layers],
            products[i].micro_batch[j / layers % sizes], 1 + k / 3, recomputed[k % 3],
            .dp = strncmp(products[i].program, "10", 2) ? 0 : n, .seq = products[i].seq[j / layers / sizes % lengths],
            .heads = 24, .model = products[i].model});
    }
}

/* Compares 06 in every schedule, with micro-batches below, equal to and above the ranks. */
static void compare_schedules(void)
{
    static const struct {
        const char *options;
        int chunks;                             /* model chunks per rank */
        bool multiple, full;                    /* m must be a multiple of p; --recompute full is allowed */
    } schedules[] = {{"afab", 1, false, true}, {"1f1b", 1, false, true}, {"interleaved --chunks 1", 1, true, true},
                     {"interleaved --chunks 2", 2, true, true}, {"interleaved --chunks 3", 3, true, true},
                     {"zero-bubble", 1}, {"zb-v", 2}, {"dualpipe-v", 2}};
    static const int ranks[] = {1, 2, 3, 4, 8}, micros[] = {1, 2, 3, 4, 5, 7, 8, 12, 16};

    for (int i = 0; i < 5 * 9 * 3; i++)
        for (int s = 0; s < 8; s++) {
            const int p = ranks[i / 27], m = micros[i / 3 % 9], layers = p * schedules[s].chunks + (m % 2 && p > 1);
            char options[64];
            if ((schedules[s].multiple && m % p) || (!schedules[s].full && i % 3 == 2))
                continue;
            snprintf(options, sizeof options, "--schedule %s", schedules[s].options);
            compare_with_01(&(Configuration){"06_pipeline_parallel", options, p, layers, 1 + (m % 3 == 0), m,
                                             recomputed[i % 3], PIPELINE});
        }
}

/* Compares a grid of 09, or of 11 with one of the largest three ep. The other options alternate with `number`. */
static void compare_grid(bool experts, int n, int tp, int cp, int pp, int number)
{
    char options[128], model[128];
    int ep = n / pp, end;

    for (int smaller = number % 3; smaller && ep > 1; smaller--)
        do
            ep--;
        while (n / pp % ep);
    snprintf(model, sizeof model, "--experts %d --top-k %d --balance 0.1 --capacity 0.8 --span %d", 2 * ep,
             1 + number / 2 % 2, 2 * (number % 3 + 1));
    end = snprintf(options, sizeof options, "--dtype fp32 --tp %d --cp %d --pp %d --zero %d", tp, cp, pp, number % 2);
    if (experts)
        snprintf(options + end, sizeof options - end, " --ep %d", ep);
    /* heads and tokens for tp, layers for pp, an even number of tokens per rank of cp */
    compare_with_01(&(Configuration){
        experts ? "11_five_dimensions" : "09_combined", options, n, pp + 1, 1 + number % 2, number / 3 % 3 + 1,
        recomputed[number / 4 % 2 * 2], .dp = n / (tp * cp * pp), .seq = (experts ? 24 : 6) * cp * tp, .heads = tp,
        .hidden = 8 * tp, .model = experts ? model : NULL});
}

/* Every way to split 1 to 8 ranks into tp, cp, pp and dp, and two ways to split 32: no program is bound to eight. */
static void compare_grids(bool experts)
{
    int grids = 0;

    for (int n = 1; n <= 8; n++)
        for (int tp = 1; tp <= n; tp++)
            for (int cp = 1; cp <= n / tp; cp++)
                for (int pp = 1; pp <= n / tp / cp; pp++)
                    if (n % (tp * cp * pp) == 0) {
                        compare_grid(experts, n, tp, cp, pp, grids);
                        compare_grid(experts, n, tp, cp, pp, ++grids);
                    }
    compare_grid(experts, 32, 2, 2, 2, 0);
    compare_grid(experts, 32, 4, 2, 1, 1);
    print_message("%d grids\n", grids);
    assert_int_equal(grids, 63);
}

/* cmocka's state is the name of the program. */
static void agrees_with_01(void **state)
{
    const char *program = *state;
    const int most = strcmp(program, "12_llama") ? 2 : 1;       /* of three; its four products are more than others' */
    int number = 0;

    memset(worst, 0, sizeof worst);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].program, program))
            compare_with_01(&cases[i]);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int o = 0; o < 4 && products[i].options[o] && !strcmp(products[i].program, program); o++)
            for (int r = 0; r < length(products[i].ranks, 6); r++)
                if (full_tests() || (o + r) % 3 < most)
                    compare_product(i, products[i].options[o], products[i].ranks[r], number++);
    if (full_tests() && !strcmp(program, "06_pipeline_parallel"))
        compare_schedules();
    if (full_tests() && (!strcmp(program, "09_combined") || !strcmp(program, "11_five_dimensions")))
        compare_grids(program[0] == '1');
    print_message("worst difference: gradients %.1e, checkpoints %.1e, losses %.1e, norms %.1e\n", worst[0], worst[1],
                  worst[2], worst[3]);
}

#define LARGE "--layers 2 --hidden 48 --heads 6 --vocab 97 --seq 24 --micro-batch 3 --accumulate 1 --warmup 1 " \
    "--threads 1 --quiet --data %s"

/* exp of a logit or score of several hundred is infinite, so each row's largest over all slices, or blocks of keys, is
 * subtracted first. Three steps with a learning rate of 5 give weights with which both reach a thousand. */
static void large_numbers_do_not_overflow(void **state)
{
    static const char *const runs[] = {"3 " BUILD "/cpu64/05_tensor_parallel",
                                       "2 " BUILD "/cpu64/07_context_parallel --attention ring",
                                       "3 " BUILD "/cpu64/07_context_parallel --attention zigzag"};
    double loss[2], norm[2];

    run_well(BUILD "/cpu64/01_single_gpu " LARGE " --lr 5 --clip 0 --steps 3 --save far", token_file(2000, 97));
    for (int i = 0; i < 4; i++) {
        run_well("rm -f far.csv");
        run_well("mpiexec -n %s " LARGE " --load far --steps 4 --metrics far.csv",
                 i ? runs[i - 1] : "1 " BUILD "/cpu64/01_single_gpu", token_file(2000, 97));
        assert_int_equal(read_column("far.csv", "loss", &loss[i > 0], 1), 1);
        assert_int_equal(read_column("far.csv", "grad_norm", &norm[i > 0], 1), 1);
        if (i && !(fabs(loss[1] / loss[0] - 1) <= 1e-10 && fabs(norm[1] / norm[0] - 1) <= 1e-8))
            fail_msg("%s: loss %g and norm %g, but 01 has %g and %g", runs[i - 1], loss[1], norm[1], loss[0], norm[0]);
    }
}

/* The column "playbook" of each program's memory against the formulas: L = 4, s = 32, b = 2, h = 64, a = 4. */
static void playbook_columns(void **state)
{
    const double block = 12 * 64 * 64 + 13 * 64, N = 64 * 97 + 4 * block + 2 * 64, sbh = 32 * 2 * 64;
    const double square = 5.0 * 4 * 32 / 64;                    /* 5 a s / h */
    const double llama = 2 * 64 * 97 + 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64;
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
        {"mpiexec -n 2 12_llama", "--kv-heads 2 --mlp 96 --untied", 1, "optimizer", 8 * llama / 2},
        {"mpiexec -n 2 12_llama", "--sequence-parallel", 1, "activations", 4 * sbh * (34 + square) / 2},
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

/* Each rank computes only the pairs that the mask leaves. Queries of chunk c attend to C*c keys of earlier chunks and
 * to C(C+1)/2 pairs in their own. A causal sequence has s(s+1)/2. */
static void pairs_are_what_the_mask_leaves(void **state)
{
    static const char *const methods[] = {"ring", "zigzag", "allgather", "ulysses"};
    static const int all_ranks[] = {3, 4, 1, 2, 8};
    enum { S = 48, LAYERS = 2, MICRO_BATCH = 3, ACCUMULATE = 2, HEADS = 24 };

    for (int m = 0; m < 4; m++)
        for (int i = 0; i < (full_tests() ? 5 : m < 2 ? 2 : 1); i++) {
            const int n = all_ranks[i], C = S / n;
            run_well("mpiexec -n %d " BUILD "/cpu64/07_context_parallel --attention %s --layers %d --heads %d "
                     "--hidden 48 --vocab 97 --seq %d --micro-batch %d --accumulate %d --steps 1 --quiet --data %s "
                     "--report r.json", n, methods[m], LAYERS, HEADS, S, MICRO_BATCH, ACCUMULATE,
                     token_file(20000, 97));
            for (int r = 0; r < n; r++) {
                const double is = json_number("r.json", "ranks.%d.attention_pairs", r)
                                  / (LAYERS * MICRO_BATCH * ACCUMULATE * HEADS);
                const double want = m == 0 || m == 2 ? C * (C + 1) / 2.0 + C * C * (double)r : S * (S + 1) / 2.0 / n;
                if (is != want)
                    fail_msg("%s, rank %d of %d: %g pairs per head and sequence, not %g", methods[m], r, n, is, want);
            }
        }
}

#define AGREES(program) {program, agrees_with_01, NULL, NULL, program}

int main(void)
{
    const struct CMUnitTest tests[] = {
        AGREES("01_single_gpu"),
        AGREES("02_mixed_precision"),
        AGREES("03_data_parallel"),
        AGREES("04_zero"),
        AGREES("05_tensor_parallel"),
        AGREES("06_pipeline_parallel"),
        AGREES("07_context_parallel"),
        AGREES("08_fused_kernels"),
        AGREES("09_combined"),
        AGREES("10_expert_parallel"),
        AGREES("11_five_dimensions"),
        AGREES("12_llama"),
        cmocka_unit_test(large_numbers_do_not_overflow),
        cmocka_unit_test(playbook_columns),
        cmocka_unit_test(pairs_are_what_the_mask_leaves),
    };

    return cmocka_run_group_tests_name("equivalence", tests, NULL, NULL);
}
