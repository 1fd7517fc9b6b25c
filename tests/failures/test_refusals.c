/* Bad input: each command line, data file, checkpoint or output that cannot work gets one line with the values, a
 * status that is not 0, and changes no file.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/run/safetensors.h"
#include "../harness.h"

#define NAME "01_single_gpu"
/* A step takes a tenth of a millisecond. Fast simulated hardware saves measuring this machine. */
#define SHAPE " --layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --accumulate 1 --warmup 1 " \
              "--threads 1 --data data.bin --pretend 1e6,1e6,0 --steps 3 --quiet"
#define ONE BUILD "/cpu/" NAME SHAPE
#define MIXED BUILD "/cpu/02_mixed_precision" SHAPE

/* The temporary directory: data, a checkpoint `good` of two steps, and files of a user. */
static int set_up(void **state)
{
    run_well("sh -c 'rm -rf ./*'");
    run_well("cp %s data.bin", token_file(2000, 97));
    run_well("sh -c 'mkdir adir; for f in adir/file afile old.csv; do echo precious >$f; done; mkfifo fifo'");
    run_well(ONE " --steps 2 --save good --seed 7");
    return 0;
}

/* A line per file, with its size and when it was changed. */
static char *listing(void)
{
    Result r = run("sh -c 'find . -type f ! -name lock -printf \"%%p %%s %%T@\\n\" | sort'");

    free(r.err);
    return r.out;
}

/* Runs a command that must end with this status and one line with each of the words, which | separates. */
static void fails(int status, const char *words, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fails(int status, const char *words, const char *format, ...)
{
    char command[8000], *before = listing();
    va_list list;

    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    Result r = run("timeout 15 %s", command);
    const char *end = strchr(r.err, '\n');
    const bool hint = end && !strncmp(end + 1, "Try `", 5);             /* argp's second line */
    if (!strstr(r.err, ": ") || !end || (end[1] && !hint))
        fail_msg("%s\nmore than one line:\n%s", command, r.err);
    for (const char *c = r.err; c < end; c++)
        if ((unsigned char)*c < ' ')
            fail_msg("%s\nprints control character %d: %s", command, *c, r.err);
    char *after = listing();
    if (strcmp(before, after))
        fail_msg("%s\nchanged files: before\n%s\nafter\n%s", command, before, after);
    free(before);
    free(after);
    expect(r, status, words);
}

typedef struct {
    int status;
    const char *options, *words;
} Case;

static void all_fail(const Case *cases)                 /* ends with {0} */
{
    for (; cases->status; cases++)
        fails(cases->status, cases->words, ONE " %s", cases->options);
}

/* ---- Command lines ---- */

static void command_lines(void **state)
{
    static const Case cases[] = {
        {2, "--layers 0", "--layers: expected an integer from 1 to 10000, got '0'"},
        {2, "--layers 12x", "got '12x'"},
        {2, "--layers 99999999999999999999", "got '99999999999999999999'"},
        {2, "--lr 1001", "--lr: expected a number from 0 to 1000, got '1001'"},
        {2, "--seed 18446744073709551616", "2^64 - 1, got '18446744073709551616'"},
        {2, "--hidden 50 --heads 4", "--hidden: expected a multiple of --heads 4, got 50"},
        {2, "--seq 16777216 --micro-batch 128", "--micro-batch 128|--seq 16777216|2.15e+09"},
        {2, "--nonsense", "--nonsense"},
        {2, "--steps", "--steps|requires an argument"},
        {2, "stray", "\"stray\""},
        {2, "--preset 10M", "--preset: expected one of tiny|405b, got '10M'"},
        {1, "--comm nccl", "--comm nccl: this build"},
        {2, "--tf32 on", "--tf32 on|sm_80"},
        {2, "--pretend 1,2", "--pretend: expected|got '1,2'"},
        {2, "--save-every 1", "--save-every|--save"},
        {2, "--keep 2", "--keep 2: --save DIR is missing"},
        {2, "--keep 0 --save new", "--keep: expected an integer from 1 to"},
        {2, "--timeline 4", "--timeline: expected a step from 1 to 3, milliseconds per letter such as 30ms, a file "
            "named *.svg, or nothing, got '4'"},
        {2, "--timeline 0ms", "--timeline: expected|got '0ms'"},
        {1, "--timeline afile/x.svg", "--timeline: cannot create afile/x.svg: Not a directory"},
        {2, "--sample 5 --prompt z", "--sample 5|byte 122|--vocab 97"},
        {1, "--preset 405b --data long", "not enough memory: needs | TB, | available|--recompute full"},
        {0}};

    run_well("sh -c 'yes | head -c 100000 >long'");
    all_fail(cases);
    fails(1, "2 ranks|without mpiexec", "mpiexec -n 2 " ONE);
    fails(2, "--hidden: expected|got 50", "mpiexec -n 3 " ONE " --hidden 50 --heads 4");
    fails(1, "standard output", "sh -c 'exec " BUILD "/cpu/" NAME " --help >/dev/full'");
    run_well(ONE " --quie --accum 1 --seed +7 --lr 0x1p-10");           /* unusual, but valid */
}

/* ---- What a program cannot split, or combine ---- */

#define TENSOR "05_tensor_parallel"
#define PIPELINE "06_pipeline_parallel"
#define CONTEXT "07_context_parallel"
#define FUSED 1, "08_fused_kernels"
#define COMBINED 4, "09_combined"
#define EXPERTS "10_expert_parallel"
#define FIVE 4, "11_five_dimensions"
#define LLAMA "12_llama"
#define ONE_CHUNK "--chunks: expected 1 unless --schedule is interleaved, got "
#define TIMES "--times: expected T_F,T_B,T_W,TRANSFER, time slots from 1 to 99 (TRANSFER from 0), got "
#define FUSE "--fuse: expected all, none, or a list like a,b of attention"

static const struct {
    int ranks;
    const char *program;
    int status;
    const char *options, *message;
} refused[] = {
    {1, "02_mixed_precision", 2, "--dtype fp16 --gradients bf16", "--gradients bf16 with --dtype fp16"},
    {1, "02_mixed_precision", 2, "--fp8-scaling mx", "--fp8-scaling mx: expected --dtype fp8"},
    {1, "02_mixed_precision", 2, "--loss-scale 5", "--loss-scale 5, --loss-scale-growth 2000: expected --dtype fp16"},
    {3, "04_zero", 1, "--replicate 2", "--replicate 2: expected a divisor of the 3 ranks"},
    {4, TENSOR, 1, "--heads 6", "--heads 6 is not divisible by 4 ranks; use 1, 2, 3 or 6"},
    {2, TENSOR, 1, "--seq 7 --micro-batch 1 --sequence-parallel",
     "--micro-batch x --seq = 7 is not divisible by 2 ranks; use 1 or 7"},
    {2, TENSOR, 1, "--overlap", "--overlap: expected --sequence-parallel as well"},
    {4, TENSOR, 1, "--heads 4 --vocab 3 --data three.bin", "--vocab 3: expected at least 4, one token per rank"},
    {2, PIPELINE, 2, "--chunks 2", ONE_CHUNK "2"},
    {2, PIPELINE, 2, "--schedule zero-bubble --recompute full",
     "--recompute full: cannot be combined with --schedule zero-bubble"},
    {2, PIPELINE, 2, "--times 1,0,1,1 --print-schedule", TIMES "'1,0,1,1'"},
    {2, PIPELINE, 1, "--schedule zb-v --layers 3", "--layers: expected at least 4 for 2 ranks x 2 model chunks, got 3"},
    {3, PIPELINE, 1, "--schedule interleaved --chunks 2 --accumulate 4 --layers 6",
     "--accumulate: expected a multiple of the 3 ranks with --schedule interleaved, got 4; try 6"},
    {4, CONTEXT, 1, "--seq 20", "--seq: expected a multiple of 8 (4 ranks x 2 sequence chunks), got 20; try 24"},
    {3, CONTEXT, 1, "--seq 24 --heads 4 --attention ulysses",
     "--attention ulysses: --heads 4 is not divisible by 3 ranks; use 1, 2 or 4"},
    {FUSED, 2, "--fuse attention,,gelu", FUSE},
    {COMBINED, 2, "--tp 3", "--tp 3 x --cp 1 x --pp 1 x --dp 1: expected 3 ranks, got 4; start 3, or choose factors "
                            "of 4"},
    {COMBINED, 2, "--tp 2 --dp 4", "--tp 2 x --cp 1 x --pp 1 x --dp 4: expected 8 ranks, got 4; start 8, or choose "
                                   "factors of 4"},
    {COMBINED, 2, "--tp 65536 --cp 65536 --pp 65536 --dp 65536", "expected 18446744073709551616 ranks, got 4"},
    {COMBINED, 1, "--pp 4 --layers 3", "--layers: expected at least 4, one per pipeline stage (--pp), got 3"},
    {4, EXPERTS, 1, "--ep 3", "--ep: the number of ranks = 4 is not divisible by 3 ranks; use 1, 2 or 4"},
    {1, EXPERTS, 2, "--experts 4 --top-k 5", "--top-k: expected at most --experts 4, got 5"},
    {1, EXPERTS, 1, "--seq 10 --span 4", "--span: expected a divisor of --seq 10, got 4"},
    {1, EXPERTS, 2, "--experts 4096 --micro-batch 60000", " rows and tensors of "},
    {1, EXPERTS, 1, "--load dense", "\"num_local_experts\" is missing, but this run's model has 8 by --experts"},
    {1, EXPERTS, 1, "--load mixture --experts 6", "\"num_local_experts\" is 8, but this run's model has 6 by "},
    {FIVE, 1, "--pp 2 --ep 4",
     "--ep: the ranks of a pipeline stage, tp x cp x dp = 2 is not divisible by 4 ranks; use 1 or 2"},
    {FIVE, 1, "--tp 2 --seq 24 --micro-batch 1",
     "--span: expected a divisor of 12, so that no sequence chunk (24 tokens) and no rank (12 rows) has a part of a "
     "span, got 24"},
    {FIVE, 2, "--experts 4 --top-k 5", "--top-k: expected at most --experts 4, got 5"},
    {1, LLAMA, 2, "--heads 6 --kv-heads 4",
     "--kv-heads: expected a divisor of --heads 6, which is 1, 2, 3 or 6, got 4"},
    {4, LLAMA, 1, "--heads 12 --kv-heads 3",
     "--kv-heads 3 on 4 ranks: expected a multiple of the ranks, so that each has its own, or a divisor, so that each "
     "head has as many copies"},
    {4, LLAMA, 1, "--heads 6 --kv-heads 2", "--heads 6 is not divisible by 4 ranks; use 1, 2, 3 or 6"},
    {3, LLAMA, 1, "--heads 6 --mlp 2", "--mlp 2: expected at least 3"},
    {1, LLAMA, 1, "--load dense", "\"model_type\" is \"gpt_neox\", but this run's model has \"llama\""},
    {1, "01_single_gpu", 1, "--load mixture", "\"num_local_experts\" is 8, but this run's model has none"},
};

/* Each rank that finds the mistake may print its line, and no rank prints anything else. */
static void what_cannot_be_split(void **state)
{
    run_well("cp %s three.bin", token_file(2000, 3));
    run_well(BUILD "/cpu/01_single_gpu --data data.bin --hidden 48 --quiet --steps 0 --save dense");
    run_well(BUILD "/cpu/" EXPERTS " --data data.bin --hidden 48 --quiet --steps 0 --save mixture");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char launch[32] = "";
        if (refused[i].ranks > 1)               /* mpiexec may change the status of a single rank that ends early */
            snprintf(launch, sizeof launch, "mpiexec -n %d ", refused[i].ranks);
        Result r = run("%s" BUILD "/cpu/%s --data data.bin --hidden 48 --quiet %s", launch, refused[i].program,
                       refused[i].options);
        bool good = *r.err;
        for (char *line = strtok(r.err, "\n"); line && good; line = strtok(NULL, "\n"))
            good = !strncmp(line, refused[i].program, strlen(refused[i].program)) && strstr(line, refused[i].message);
        if (!good)
            fail_msg("%s: \"%s\", not \"%s\"", r.command, r.err, refused[i].message);
        expect(r, refused[i].status, "");
    }
}

/* ---- Data ---- */

/* `count` tokens of 0, but `token` at position `at`; behind llm.c's header, if its version is not 0. Version 7 is of
 * uint32 tokens: of these, pairs of ours. */
static void write_tokens(const char *name, int version, int says, int count, int at, int token)
{
    int32_t header[256] = {version == 7 ? 20240801 : 20240520, version, says};
    const size_t first = version ? sizeof header : 0;
    char *bytes = calloc(first + 2 * count, 1);

    memcpy(bytes, header, first);
    if (at < count)
        memcpy(bytes + first + 2 * at, &(uint16_t){token}, 2);
    write_file(name, bytes, first + 2 * count);
    free(bytes);
}

static void data(void **state)
{
    static const Case cases[] = {
        {1, "--data missing --metrics old.csv --report new", "--data missing|No such file"},
        {1, "--data adir", "--data adir|regular"},
        {1, "--data fifo", "--data fifo|regular"},
        {1, "--data empty", "--data empty|at least 90 tokens|got 0"},
        {1, "--data 89.bin", "--data 89.bin|89 tokens|--seq 8|90"},
        {1, "--data at.bin", "--data at.bin|token 97, at position 1234,|--vocab 97"},
        {1, "--data odd.bin", "--data odd.bin|2001 bytes|uint16"},
        {1, "--data counted", "--data counted|uint16 tokens after a header of 1024 bytes, which gives 1001|3024 bytes"},
        {1, "--data cut", "--data cut|header of 1024 bytes|has 1000 bytes"},
        {1, "--data llama", "--data llama, as uint32 tokens|token 65536, at position 500"},
        {1, "--data data.bin --vocab 128256", "--data data.bin, as uint32 tokens: token |--vocab 128256"},
        {1, "--data int64.bin", "--data int64.bin: this is neither text nor a token file|*.bin"},
        {1, "--data text.gz --vocab 256", "--data text.gz: this is neither"},
        {0}};
    char latin[2000];
    int64_t wide[2000];

    write_file("empty", "", 0);
    write_tokens("llama", 7, 1000, 2000, 1001, 1);
    for (int i = 0; i < 2000; i++) {
        latin[i] = i % 20 ? 'a' + i % 26 : 0xe9;                        /* a letter of ISO 8859-1 here and there */
        wide[i] = i % 97;
    }
    write_file("latin", latin, sizeof latin);
    write_file("int64.bin", wide, sizeof wide);
    run_well("sh -c 'gzip -c data.bin >text.gz'");
    write_tokens("89.bin", 0, 0, 89, 89, 0);
    write_tokens("90.bin", 0, 0, 90, 90, 0);
    write_tokens("at.bin", 0, 0, 2000, 1234, 97);
    write_tokens("odd.bin", 0, 0, 2000, 2000, 0);
    run_well("truncate -s 2001 odd.bin");
    write_tokens("counted", 1, 1001, 1000, 1000, 0);
    write_tokens("cut", 1, 1000, 1000, 1000, 0);
    write_tokens("right", 1, 1000, 1000, 1000, 0);
    run_well("truncate -s 1000 cut");
    all_fail(cases);
    run_well(ONE " --data right --eval-every 1");
    run_well(ONE " --data 90.bin --eval-every 1 --micro-batch 3");
    run_well(ONE " --data latin --vocab 256");
    run_well(ONE " --data llama --vocab 128256");
}

/* ---- Checkpoints ---- */

#define LOAD ONE " --load bad --report new.json --metrics new.csv --trace new.trace"

/* Copies the good checkpoint to `bad` and replaces the first `from` in one of its files by `to`. */
static void spoil(const char *file, const char *from, const char *to)
{
    run_well("rm -rf bad");
    run_well("cp -r good bad");
    if (!from)
        return;
    char path[64], *whole;
    snprintf(path, sizeof path, "bad/step-2/%s", file);
    char *text = read_file(path);
    char *at = strstr(text, from);
    if (!at)
        fail_msg("%s has no %s", path, from);
    *at = 0;
    assert_true(asprintf(&whole, "%s%s%s", text, to, at + strlen(from)) > 0);
    write_file(path, whole, strlen(whole));
    free(text);
    free(whole);
}

static void checkpoints(void **state)
{
    static const char trainer[] = "trainer.json", config[] = "config.json";
    static const struct {
        const char *file, *from, *to, *words;
    } edits[] = {
        {trainer, "\"step\":\t2", "\"step\":\t-1", "step|-1"},
        {trainer, "\"step\":\t2", "\"stop\":\t2", "step|nothing"},
        {trainer, "\"optimizer_step\":\t2", "\"optimizer_step\":\t1e300", "optimizer_step|1e+300"},
        {trainer, "\"seed\":\t\"7\"", "\"seed\":\t\"7x\"", "seed|7x"},
        {trainer, "{", "[", "not a JSON object"},
        {config, "\"hidden_size\":\t16", "\"hidden_size\":\t\"16\"", "hidden_size"},
        {config, "\"hidden_size\":\t16", "\"hidden_size\":\t32", "\"hidden_size\" is 32|has 16 by --hidden"},
        {config, "\"gpt_neox\"", "\"llama\"", "\"model_type\" is \"llama\"|\"gpt_neox\""},
        {config, "\"gelu_pytorch_tanh\"", "\"gelu\"", "\"hidden_act\" is \"gelu\"|\"gelu_pytorch_tanh\""},
        {config, "\"hidden_act\"", "\"x\"", "\"hidden_act\" is missing|\"gelu_pytorch_tanh\""},
        {config, "\"rotary_pct\":\t1", "\"rotary_pct\":\t0.25", "\"rotary_pct\" is 0.25|has 1"},
        {config, "\"rotary_pct\"", "\"x\"", "\"rotary_pct|is missing"},
        {config, "\"rotary_emb_base\":\t10000", "\"rope_theta\": 500000", "\"rope_theta\" is 500000|10000"},
        {config, "\"rotary_emb_base\"", "\"rope_parameters\": {\"rope_type\": \"yarn\"}, \"rotary_emb_base\"",
         "\"rope_parameters\" is {|\"yarn\"|\"default\""},
        {config, "\"layer_norm_eps\":\t1e-05", "\"layer_norm_eps\":\t1e-12", "\"layer_norm_eps\" is 1e-12"},
        {config, "\"use_parallel_residual\":\tfalse", "\"use_parallel_residual\":\ttrue", "has false"},
        {config, "\"tie_word_embeddings\"", "\"x\"", "\"tie_word_embeddings\" is missing|has true"},
        {config, "\"intermediate_size\":\t64", "\"intermediate_size\":\t48", "\"intermediate_size\" is 48|has 64"},
        {config, "}", "", "not a JSON object"},
    };
    static const char *const files[] = {"model.safetensors", "config.json", "optimizer.safetensors", "trainer.json"};

    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        spoil(edits[i].file, edits[i].from, edits[i].to);
        fails(1, edits[i].words, LOAD);
    }
    spoil(config, "\"rotary_pct\":\t1", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4, "
          "\"partial_rotary_factor\": 1.0}");
    run_well(ONE " --load bad");
    run_well("cp %s other.bin", token_file(2001, 97));                  /* other data: a line, but no refusal */
    expect(run(BUILD "/cpu/" NAME " --layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --steps 3 --load good --data "
               "other.bin"), 0, "these are not the tokens with which good was trained\n");
    fails(1, "--load missing", ONE " --load missing --save new --metrics new.csv");
    fails(1, "--load adir|neither latest nor config.json", ONE " --load adir --metrics new.csv");
    for (int f = 0; f < 4; f++) {
        spoil(NULL, NULL, NULL);
        run_well("truncate -s -1 bad/step-2/%s", files[f]);
        fails(1, files[f], LOAD);
        spoil(NULL, NULL, NULL);
        run_well("rm bad/step-2/%s", files[f]);
        fails(1, files[f], LOAD);
    }
}

/* A weight or moment that is NaN is found when it is read; one so large that it leads to NaN, in the first step's
 * loss, before --lr could matter. The checkpoint is not replaced. A model that trains in bf16 may be too large for
 * fp16. */
static void nan_stops_the_run(void **state)
{
    static const struct {
        const char *file, *tensor;
        float value;
        const char *words;
    } spoiled[] = {
        {"model.safetensors", "gpt_neox.layers.0.mlp.dense_h_to_4h.bias", NAN, "step-2/model.safetensors|at element 0"},
        {"model.safetensors", "gpt_neox.embed_in.weight", -INFINITY, "step-2/model.safetensors|at element 0"},
        {"optimizer.safetensors", "v.gpt_neox.embed_in.weight", -1, "bad/step-2/optimizer.safetensors|at least 0"},
        {"model.safetensors", "gpt_neox.layers.0.input_layernorm.weight", 3e38f,
         "at step 3|unchanged|no update yet, so another --lr does not help"},
        {"model.safetensors", "gpt_neox.layers.0.mlp.dense_h_to_4h.bias", 7e4f, NULL},
    };

    for (int i = 0; i < 5; i++) {
        spoil(NULL, NULL, NULL);
        const char *path = in_temporary("bad/step-2/%s", spoiled[i].file);
        Safetensors file = safetensors_open(path);
        FILE *f = fopen(path, "r+b");
        fseek(f, safetensors_find(&file, spoiled[i].tensor)->first_byte, SEEK_SET);
        fwrite(&spoiled[i].value, 4, 1, f);
        fclose(f);
        safetensors_close(&file);
        if (spoiled[i].words)
            fails(1, spoiled[i].words, ONE " --load bad --save bad --report new.json --trace new.trace");
    }
    run_well(MIXED " --load bad --dtype bf16");
    fails(1, "at step 3|65504|bf16|another --lr does not help", MIXED " --load bad --dtype fp16");
}

/* ---- Outputs ---- */

static void outputs(void **state)
{
    static const char *const options[] = {"metrics", "report", "trace", "dump-gradients"};
    static const Case cases[] = {
        {1, "--save missing/x", "--save missing/x|No such file"},
        {1, "--save afile", "--save afile|file"},
        {1, "--save good", "--save good: it has step 2|--load good"},
        {1, "--save new --report missing/x", "--report: cannot create missing/x"},
        {1, "--save closed", "--save closed: cannot create closed/lock: Is a directory"},
        {1, "--save new --layers 10000 --hidden 65536", "--save new: expected room|PB of checkpoints, but its disk"},
        {0}};

    for (int i = 0; i < 4; i++) {
        fails(1, "missing/x|No such file", ONE " --%s missing/x", options[i]);
        fails(1, "afile|expected|another name", ONE " --%s afile", options[i]);         /* a user's file */
        fails(1, "/dev/full", ONE " --%s /dev/full", options[i]);
    }
    run_well("mkdir -p closed/lock");
    all_fail(cases);
    fails(1, "--save new: a checkpoint has a file of 404 MB, which cannot be created there: File too large",
          "sh -c 'ulimit -f 200000; exec " ONE " --hidden 2048 --save new'");
    for (int i = 0; i < 2; i++)                 /* it replaces its own files */
        run_well(ONE " --steps 2 --metrics kept.csv --report kept.json --trace kept.trace --dump-gradients kept.g");
    for (int i = 0; i < 3; i++) {               /* a stream is written as it is */
        static const char *const begins[] = {"step,tokens,loss,", "{\"ranks\": [", "[\n{\"name\":"};
        Result r = run(ONE " --%s /dev/stdout", options[i]);
        assert_int_equal(r.status, 0);
        assert_memory_equal(r.out, begins[i], strlen(begins[i]));
        result_free(r);
        run_well("sh -c '" ONE " --%s /dev/stdout >log && test -s log && test -L /dev/stdout'", options[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_lines),
        cmocka_unit_test(what_cannot_be_split),
        cmocka_unit_test(data),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(nan_stops_the_run),
        cmocka_unit_test(outputs),
    };

    return cmocka_run_group_tests_name("refusals", tests, set_up, NULL);
}
