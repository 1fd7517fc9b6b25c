/* A GPU's operators and the programs' gradients against the CPU's, and against themselves in a second run. Tolerances
 * are relative to a tensor's largest number. Operators (parity.c runs them): 1e-5 in float, 1e-2 in smaller types.
 * Gradients of step 1 in float against the CPU's in double: 1e-5, with q, k and v of QKV tensors compared separately;
 * 20 losses: 1e-4. In smaller types: four losses 1e-3, gradients' norms 1e-2.
 *
 * build/simulated has the same backend on a simulated GPU (tools/simulator), on which make test runs a subset. An
 * argument names another build to test: "cpu" tests the test.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../08_fused_kernels/fused.h"
#include "../../common/base/device.h"
#include "../harness.h"

static const char *build;
static int types;               /* the types that the device computes with: the sum of 1 float, 2 bf16, 4 fp16, 8 fp8;
                                 * 16 and 32, fp8 with a scale per tile of 128, per 32 */

static bool simulated(void)
{
    return !strcmp(build, "simulated");
}

/* Whether to test a subset, two types and some programs, because simulated threads are slow. */
static bool covering(void)
{
    return simulated() && !full_tests();
}

/* ---- Operators ---- */

static void operators_agree(void **state)
{
    static const char *const names[] = {" F32", " BF16", " F16", " fp8", " fp8 per 128", " fp8 per 32"};
    Result r = run(BUILD "/%s/parity tested %d", build, covering() ? 1 + 2 : 0);

    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    types = atoi(r.out);
    result_free(r);
    printf("types:");
    for (int i = 0; i < 6; i++)
        printf("%s", types >> i & 1 ? names[i] : "");
    printf("%s\n", covering() ? "; make test-full has the others" : "; this device has no others");
    expect(run(BUILD "/cpu/parity reference %d tested", types), 0, " outputs compared, 0 differ");
    if (simulated() && full_tests()) {          /* one GPU has tiles of 128, another blocks of 32 */
        run_well("env SIMULATED_SM=100 " BUILD "/simulated/parity tested 41");
        expect(run(BUILD "/cpu/parity reference 41 tested"), 0, " outputs compared, 0 differ");
    }
}

/* ---- Gradients and losses ---- */

/* One rank, then several, which share the GPU if there is only one. */
static const struct {
    const char *program, *options;
    int ranks;
    bool covering;
} cases[] = {
    {"01_single_gpu", "", 1},
    {"01_single_gpu", "--recompute full", 1},
    {"01_single_gpu", "--layers 1 --seq 8 --accumulate 20 --trace trace.json --report report.json", 1, true},
    {"02_mixed_precision", "--dtype fp32", 1},
    {"03_data_parallel", "", 1},
    {"04_zero", "--zero 3", 1},
    {"05_tensor_parallel", "", 1},
    {"06_pipeline_parallel", "", 1},
    {"07_context_parallel", "", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse attention", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse layernorm", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse gelu", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse cross-entropy", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse all --recompute full", 1, true},
    /* more rows than the loss has in a slice */
    {"08_fused_kernels", "--dtype fp32 --fuse cross-entropy --layers 1 --hidden 24 --seq 65 --micro-batch 130", 1},
    {"09_combined", "--dtype fp32", 1},
    {"03_data_parallel", "--sync overlap", 2},
    {"04_zero", "--zero 3", 2},
    {"04_zero", "--zero 3 --replicate 2", 4},
    {"05_tensor_parallel", "--sequence-parallel", 2},
    {"05_tensor_parallel", "--sequence-parallel --overlap", 4, true},
    {"06_pipeline_parallel", "--schedule zero-bubble", 2},
    {"06_pipeline_parallel", "--schedule zb-v --layers 5 --accumulate 5 --micro-batch 1", 2},
    {"07_context_parallel", "--attention ulysses", 2},
    {"09_combined", "--dtype fp32 --tp 2 --cp 2 --layers 2", 4},
    {"09_combined", "--dtype fp32 --pp 2 --cp 2 --recompute full", 4},
    {"10_expert_parallel", "", 1},
    {"10_expert_parallel", "--top-k 1 --ep 2", 2, true},
    {"11_five_dimensions", "--dtype fp32 --tp 2 --cp 2 --ep 4 --span 10 --layers 2", 4},
    {"12_llama", "", 1},
    {"12_llama", "--kv-heads 1 --mlp 99 --untied --sequence-parallel --layers 1", 2, true},
    {"12_llama", "--kv-heads 2 --recompute selective", 4},
    {"12_llama", "--kv-heads 2 --sequence-parallel --overlap --recompute full --layers 1", 4},
    {"03_data_parallel", "--sync overlap --accumulate 1", 8},
    {"04_zero", "--zero 3 --accumulate 1", 8},
    {"05_tensor_parallel", "--sequence-parallel --heads 24", 8},
    {"06_pipeline_parallel", "--schedule 1f1b --layers 8", 8},
    {"07_context_parallel", "--attention ring --seq 48", 8},
    {"09_combined", "--dtype fp32 --tp 2 --pp 2 --cp 2", 8},
    {"10_expert_parallel", "--ep 4 --accumulate 1", 8},
    {"11_five_dimensions", "--dtype fp32 --tp 2 --pp 2 --cp 2 --ep 4 --span 10", 8},
};

/* Runs case i in a build. Weights and global batch do not depend on the build or the ranks. Prints the output of a
 * program that fails, and returns false. */
static bool run_program(const char *which, int i, const char *more, const char *gradients)
{
    char launch[32] = "";
    const bool divides = strstr("03_data_parallel 04_zero 10_expert_parallel", cases[i].program);

    if (cases[i].ranks > 1)
        snprintf(launch, sizeof launch, "mpiexec -n %d ", cases[i].ranks);
    unlink(in_temporary("%s", gradients));
    Result r = run("%s" BUILD "/%s/%s --layers 3 --hidden 96 --heads 12 --vocab 97 --seq 40 --micro-batch %d "
                   "--accumulate 2 --steps 2 --warmup 1 --data %s --quiet --dump-gradients %s %s %s", launch, which,
                   cases[i].program, !divides ? 4 : cases[i].ranks > 4 ? 1 : 4 / cases[i].ranks, token_file(20000, 97),
                   gradients, more, cases[i].options);
    const bool well = r.status == 0;
    if (!well)
        printf("%s/%s %s on %d ranks: status %d\n%s%s", which, cases[i].program, cases[i].options, cases[i].ranks,
               r.status, r.out, r.err);
    result_free(r);
    return well;
}

static void gradients_agree(void **state)
{
    char worst[128] = "";
    int compared = 0, failed = 0;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* simulated ranks have a GPU each, and so communicate over NCCL unless told otherwise */
        const bool both = simulated() && cases[i].ranks > 1;
        if (covering() && !cases[i].covering)
            continue;
        compared++;
        const bool well = run_program("cpu64", i, "", "reference.safetensors");
        failed += !well;
        for (int over_mpi = 0; well && over_mpi <= both; over_mpi++) {
            if (!run_program(build, i, over_mpi ? "--comm mpi" : "", "tested.safetensors")) {
                failed++;
                continue;
            }
            const double d = compare_gradients("tested.safetensors", "reference.safetensors",
                                               strstr(cases[i].options, "--heads 24") ? 24 : 12, worst);
            printf("%-20s %-38s %d rank%s%s: gradients differ by %.1e at most (%s)%s\n", cases[i].program,
                   cases[i].options, cases[i].ranks, cases[i].ranks > 1 ? "s" : " ", over_mpi ? " over MPI" : "", d,
                   worst, d <= 1e-5 ? "" : ": WRONG");
            failed += !(d <= 1e-5);
        }
    }
    assert_true(compared > 0);
    assert_int_equal(failed, 0);
}

/* The largest relative difference of a metric between two runs. */
static double metric_difference(const char *column, int steps)
{
    double tested[32], reference[32], most = 0;
    int compared = 0;

    assert_int_equal(read_column("tested.csv", column, tested, 32), steps);
    assert_int_equal(read_column("reference.csv", column, reference, 32), steps);
    for (int i = 0; i < steps; i++) {
        if (!isfinite(tested[i]) && !isfinite(reference[i]))    /* fp16 has overflowed in both */
            continue;
        compared++;
        most = fmax(most, isfinite(tested[i]) ? fabs(tested[i] / reference[i] - 1) : INFINITY);
    }
    assert_true(compared > 0);
    return most;
}

static void losses_agree(void **state)
{
    static const char *const programs[] = {"01_single_gpu", "08_fused_kernels --dtype fp32"};
    const char *preset = simulated() ? "tiny" : "small";

    for (int i = 0; i < 2; i++) {
        const int steps = covering() ? 4 : 20;
        run_well("rm -f tested.csv reference.csv");
        run_well(BUILD "/%s/%s --preset %s --steps %d --tf32 off --quiet --metrics tested.csv", build, programs[i],
                 preset, steps);
        run_well(BUILD "/cpu/%s --preset %s --steps %d --quiet --metrics reference.csv", programs[i], preset, steps);
        const double loss = metric_difference("loss", steps), norm = metric_difference("grad_norm", steps);
        printf("%s: %d losses differ by %.1e at most, gradients' norms by %.1e\n", programs[i], steps, loss, norm);
        assert_true(loss <= 1e-4);
        assert_true(norm <= 1e-4);
    }
}

#define SMALL "--hidden 32 --heads 2 --seq 8 --vocab 97 --micro-batch 1 --steps 2 --quiet --data %s"

/* What a program prints if cuBLASLt has no matmul that also adds a bias or computes GELU. Its own kernels then do, and
 * only speed is lost. */
#define REFUSED " with bias or GELU: other kernels compute these"

static void refused_epilogues_are_told(void **state)
{
    if (!simulated())
        skip();
    for (int refuses = 0; refuses < 2; refuses++) {
        Result r = run("env SIMULATED_EPILOGUES=%d " BUILD "/simulated/08_fused_kernels --layers 1 " SMALL
                       " --dtype bf16 --metrics %s", !refuses, token_file(20000, 97),
                       refuses ? "tested.csv" : "reference.csv");
        assert_int_equal(r.status, 0);
        assert_int_equal(strstr(r.err, REFUSED) != NULL, refuses);
        result_free(r);
    }
    assert_true(metric_difference("loss", 2) <= 1e-3);
}

/* Training in smaller types. Tolerances are wider, because each build rounds in different places. */
static void small_types_agree(void **state)
{
    static const struct {
        int type;
        const char *program, *options;
        int ranks;                      /* 0 stands for 1 */
    } runs[] = {
        {2, "02_mixed_precision", "--dtype bf16"},
        {2, "02_mixed_precision", "--dtype bf16 --gradients bf16 --master none"},
        {2, "08_fused_kernels", "--dtype bf16"},
        {2, "09_combined", "--dtype bf16"},
        {2, "09_combined", "--dtype bf16 --tp 2 --pp 2 --cp 2", 8},
        {4, "02_mixed_precision", "--dtype fp16"},
        {4, "08_fused_kernels", "--dtype fp16 --recompute full"},
        {4, "08_fused_kernels", "--dtype fp16 --loss-scale 2e6 --loss-scale-growth 1"},
        {8, "02_mixed_precision", "--dtype fp8"},
        {8, "08_fused_kernels", "--dtype fp8"},
        {16, "02_mixed_precision", "--dtype fp8 --fp8-scaling tile --hidden 128 --heads 4 --seq 64"},
        {16, "08_fused_kernels", "--dtype fp8 --fp8-scaling tile --hidden 128 --heads 4 --seq 64"},
    };

    if (covering())
        skip();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        if (!(types & runs[i].type))
            continue;
        /* fp8 is so coarse that another order of additions changes norms by 0.01 after three updates. On the CPU,
         * --fuse all and none round alike, and yet differ by 0.007 with one of six seeds. */
        const int steps = runs[i].type >= 8 ? 2 : 4;
        for (int k = 0; k < 2; k++) {
            const char *metrics = k ? "reference.csv" : "tested.csv";
            run_well("rm -f %s", metrics);
            Result r = run("mpiexec -n %d " BUILD "/%s/%s --layers 2 --hidden 96 --heads 6 --seq 48 --micro-batch 4 "
                           "--accumulate 2 --steps %d --warmup 1 --lr 1e-3 --vocab 97 --tf32 off --data %s --quiet "
                           "--metrics %s %s", runs[i].ranks ? runs[i].ranks : 1, k ? "cpu" : build, runs[i].program,
                           steps, token_file(20000, 97), metrics, runs[i].options);
            /* whether cuBLASLt adds a bias to a product of tiles is not documented; the simulated one does not */
            if (r.status || (runs[i].type < 16 && strstr(r.err, REFUSED)))
                fail_msg("%s %s: status %d: %s", runs[i].program, runs[i].options, r.status, r.err);
            result_free(r);
        }
        const double loss = metric_difference("loss", steps), norm = metric_difference("grad_norm", steps);
        printf("%-20s %-53s: losses differ by %.1e at most, gradients' norms by %.1e\n", runs[i].program,
               runs[i].options, loss, norm);
        assert_true(loss <= 1e-3);
        assert_true(norm <= 1e-2);
    }
}

/* If the device has TF32, matmuls of float use it, except with --dump-gradients; --tf32 overrides both. */
static void tf32_is_the_default(void **state)
{
    static const struct {
        const char *options, *line;
        bool rounded;
    } runs[] = {
        {"--tf32 off", "of matmul, in float\n", false},
        {"", "of matmul, in TF32\n", true},
        {"--tf32 on", "of matmul, in TF32\n", true},
        {"--dump-gradients exact.safetensors", "of matmul, in float\n", false},
        {"--tf32 on --dump-gradients rounded.safetensors", "of matmul, in TF32\n", true},
    };
    double loss, exact = 0;
    char worst[128];

    Result r = run(BUILD "/%s/01_single_gpu --preset tiny --steps 0 --tf32 on", build);
    const bool without = r.status == 2 && strstr(r.err, "only GPUs from sm_80 on have TF32");
    result_free(r);
    if (without)
        skip();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        unlink(in_temporary("m.csv"));
        expect(run(BUILD "/%s/01_single_gpu --preset tiny --layers 1 --seq 16 --steps 1 --metrics m.csv %s", build,
                   runs[i].options), 0, runs[i].line);
        assert_int_equal(read_column("m.csv", "loss", &loss, 1), 1);
        exact = i ? exact : loss;
        assert_true((loss != exact) == runs[i].rounded);
        assert_true(fabs(loss / exact - 1) < 1e-3);
    }
    const double d = compare_gradients("rounded.safetensors", "exact.safetensors", 2,
                                       worst);
    printf("in TF32 gradients differ by %.1e at most (%s)\n", d, worst);
    assert_true(d > 1e-5 && d < 1e-1);
}

/* FlashAttention's backward adds up dQ in float, once per group of thread blocks: here two tiles of keys, so two
 * groups. predict() counts these bytes as workspace, to the byte, or the run would fail. On the CPU there are none. */
static void dq_is_counted(void **state)
{
    const double groups = 2, rows_of_full_tiles = 384, head_size = 64;
    double bytes[2];

    if (!simulated())
        skip();
    for (int i = 0; i < 2; i++) {
        run_well(BUILD "/%s/08_fused_kernels --layers 1 --hidden 64 --heads 1 --vocab 97 --seq 300 --micro-batch 1 "
                 "--steps 1 --data %s --fuse attention --quiet --report r.json", i ? build : "cpu",
                 token_file(20000, 97));
        bytes[i] = json_number("r.json", "ranks.0.memory.workspace.measured");
    }
    assert_true(bytes[1] - bytes[0] == groups * rows_of_full_tiles * head_size * 4);
    /* heads of 128: 16 groups of a 1.3b's 16 heads; 1 GB holds two groups of a 405b's 128 heads, and two of eight with
     * 32k tokens; with 128k tokens one group needs more */
    assert_int_equal(flash_parts(BF16, 1, 2048, 2048, 16, 128), 16LL * 16 * 2048 * 128);
    assert_int_equal(flash_parts(BF16, 1, 8192, 8192, 128, 128), 1 << 28);
    assert_int_equal(flash_parts(BF16, 1, 32768, 32768, 32, 128), 1 << 28);
    assert_int_equal(flash_parts(BF16, 1, 131072, 131072, 32, 128), 1 << 29);
}

/* The matmul ladder compares each rung with the last one, and fails if they differ. */
static void ladder_is_right(void **state)
{
    static const char *const sizes[] = {"1", "100x37x129", "129x257x33", "300x270x70", "520x512x64"};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        run_well(BUILD "/%s/ladder --size %s --seconds 0 --copy 1", build, sizes[i]);
}

/* A launcher may show each rank a single GPU: its own (srun --gpus-per-task=1), or one that others see as well. Only
 * ranks that share a GPU need MPI, and memory for all of them: beside the matmuls' workspace of 34 MB there is room for
 * one rank, not for two. */
static void ranks_may_see_one_gpu_each(void **state)
{
    static const struct {
        const char *devices, *options;          /* devices: a digit per rank */
        int status;
        const char *words;
    } runs[] = {
        {"01", "", 0, "comm    NCCL\n| available\n"},
        {"5555", "", 1, "NCCL needs a GPU for each rank| for 4 ranks together, "},
        {"033", "", 1, "NCCL needs a GPU for each rank| for 2 ranks together, "},
        {"00", "--comm mpi", 1, " for 2 ranks together, "},
        {"01", "--comm mpi", 0, "comm    MPI, through the host's memory\n"},
        {"0232", "--comm nccl", 1, "expected a GPU for each rank, but rank 1 shares its GPU with 1 other rank; try"},
    };

    if (!simulated())
        skip();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char ranks[2000], *end = ranks;
        for (const char *device = runs[i].devices; *device; device++)
            end += sprintf(end, "%s -n 1 env SIMULATED_VISIBLE_DEVICES=%c " BUILD "/simulated/03_data_parallel "
                           "--layers 1 --hidden 32 --heads 2 --seq 16 --steps 1 %s",
                           device == runs[i].devices ? "" : " :", *device, runs[i].options);
        expect(run("env SIMULATED_MEMORY=35500000 mpiexec%s", ranks), runs[i].status,
               runs[i].words);
    }
}

/* Two runs give the same bits, in every operator and in a program. */
static void runs_repeat(void **state)
{
    static const char *const names[] = {"once", "again"};

    for (int i = 0; i < 2; i++) {
        if (!simulated())
            run_well(BUILD "/%s/parity %s 0", build, names[i]);
        assert_true(run_program(build, 0, "", i ? "again.safetensors" : "once.safetensors"));
    }
    if (!simulated())
        run_well("cmp once again");
    run_well("cmp once.safetensors again.safetensors");
}

/* What NCCL needs holds whatever the environment says; the fake ends the run where it does not: each stream has a
 * hardware queue, also of ranks in the middle of a pipeline, and no kernel is loaded on first use. Ranks that share a
 * GPU take MPI. */
static void settings_are_those_of_nccl(void **state)
{
    const char *data = token_file(20000, 97);

    if (!simulated())
        skip();
    run_well("env CUDA_DEVICE_MAX_CONNECTIONS=1 CUDA_MODULE_LOADING=LAZY CUDA_MODULE_DATA_LOADING=LAZY mpiexec -n 2 "
             BUILD "/simulated/03_data_parallel --layers 1 " SMALL, data);
    run_well("mpiexec -n 3 " BUILD "/simulated/06_pipeline_parallel --layers 3 --accumulate 3 " SMALL, data);
    run_well("mpiexec -n 3 " BUILD "/simulated/06_pipeline_parallel --schedule zb-v --layers 6 --accumulate 6 " SMALL,
             data);
    expect(run("env SIMULATED_GPUS=1 mpiexec -n 2 " BUILD "/simulated/03_data_parallel --layers 1 --hidden 32 --heads "
               "2 --seq 8 --steps 1"), 0, "NCCL needs a GPU for each rank");
}

#define TILES "env CUBLASLT_LOG_LEVEL=2 " BUILD "/simulated/02_mixed_precision --micro-batch 2 --layers 1 " \
    "--hidden 128 --heads 2 --seq 64 --vocab 97 --steps 1 --quiet --dtype fp8 --fp8-scaling "

/* The arguments of matmuls, as cuBLASLt logs them: activations times weights in fp8 accumulate fast, gradients do
 * not. */
static void matmuls_are_told(void **state)
{
    if (!simulated())
        skip();
    expect(run("env CUBLASLT_LOG_LEVEL=2 " BUILD "/simulated/02_mixed_precision --dtype fp8 --micro-batch 16 --layers "
               "2 --hidden 32 --heads 2 --seq 8 --vocab 97 --steps 1 --quiet --data %s", token_file(20000, 97)), 0,
           "E4M3 by E4M3 to BF16 FAST_ACCUM=1|E4M3 by E5M2 to F32 FAST_ACCUM=0");
    /* 5: a scale per 128 x 128; 4: per 1 x 128; 2: per 1 x 32. The library's first operand is our weight. */
    expect(run(TILES "tile --data %s", token_file(20000, 97)), 0,
           "E4M3 by E4M3 to BF16 FAST_ACCUM=0 SCALE_MODE=5,4|E4M3 by E4M3 to F32 FAST_ACCUM=0 SCALE_MODE=4,4");
    expect(run("env SIMULATED_SM=100 " TILES "mx --data %s", token_file(20000, 97)), 0,
           "E4M3 by E4M3 to BF16 FAST_ACCUM=0 SCALE_MODE=2,2|E4M3 by E4M3 to F32 FAST_ACCUM=0 SCALE_MODE=2,2");
    expect(run(TILES "mx --data %s", token_file(20000, 97)), 1,
           "does not support --fp8-scaling mx, which needs compute capability 10.0 and CUDA 12.9: use tensor");
    expect(run("env SIMULATED_SM=100 " TILES "tile --data %s", token_file(20000, 97)), 1,
           "does not support --fp8-scaling tile, which needs compute capability 9.0");
}

/* Returns the calls of the host in a run of 01 or 08. */
static double calls(const char *what, int ranks, const char *program)
{
    Result r = run("env SIMULATED_COUNTS=calls mpiexec -n %d " BUILD "/simulated/%s --layers 1 --hidden 32 --heads 2 "
                   "--vocab 97 --quiet --data %s", ranks, program, token_file(20000, 97));
    const char *line = strstr(r.out, what);
    const double n = line ? atof(line + strlen(what)) : 0;

    assert_int_equal(r.status, 0);
    result_free(r);
    return n;
}

/* Attention launches as many kernels for five sequences as for two, in one matmul over the heads of all of them. A
 * kernel gets its shared memory once, not in every step, and so does a transfer by MPI the host's memory. */
static void the_host_calls_little(void **state)
{
    if (!simulated())
        skip();
    const double two = calls("launches ", 1, "01_single_gpu --seq 8 --micro-batch 2 --steps 1");
    assert_true(two > 0 && two == calls("launches ", 1, "01_single_gpu --seq 8 --micro-batch 5 --steps 1"));
    const double once = calls("cudaFuncSetAttribute ", 1, "08_fused_kernels --seq 200 --steps 1");
    assert_true(once > 0 && once == calls("cudaFuncSetAttribute ", 1, "08_fused_kernels --seq 200 --steps 2"));
    const double pinned = calls("cudaHostAlloc ", 2, "04_zero --comm mpi --steps 1");
    assert_true(pinned == calls("cudaHostAlloc ", 2, "04_zero --comm mpi --steps 2"));
    assert_true(pinned > calls("cudaHostAlloc ", 2, "04_zero --comm nccl --steps 1"));
}

/* Only NCCL needs that CUDA loads all kernels at the start: not ranks that share a GPU, where this takes long. */
static void sharing_ranks_load_what_they_launch(void **state)
{
    if (!simulated())
        skip();
    assert_true(calls("all loaded at the start ", 2, "03_data_parallel --steps 1") == 1);
    setenv("SIMULATED_GPUS", "1", 1);
    assert_true(calls("all loaded at the start ", 2, "03_data_parallel --steps 1") == 0);
    unsetenv("SIMULATED_GPUS");
}

/* Kernels of NCCL that wait for other ranks occupy multiprocessors. All that a rank may start fit beside each other, so
 * no order of launches stalls. Each has 11 blocks here. With room for one block less than a receive and a send have
 * together, it stalls. */
static void blocks_fit_together(void **state)
{
    static const char *const orders[] = {"shuffled", "reversed", "in-order"};
    static const char *const runs[] = {
        "4 " BUILD "/simulated/06_pipeline_parallel --schedule zb-v", "4 " BUILD "/simulated/06_pipeline_parallel",
        "8 " BUILD "/simulated/09_combined --tp 2 --cp 2 --pp 2 --dtype fp32",
        "4 " BUILD "/simulated/06_pipeline_parallel --schedule afab",
        "4 " BUILD "/simulated/06_pipeline_parallel --schedule interleaved --chunks 2",
        "4 " BUILD "/simulated/06_pipeline_parallel --schedule zero-bubble",
        "4 " BUILD "/simulated/06_pipeline_parallel --schedule dualpipe-v"};

    if (!simulated())
        skip();
    for (int i = 0; i < (covering() ? 1 : 7); i++)
        for (int o = 0; o < (covering() ? 2 : 3); o++)
            run_well("env SIMULATED_ORDER=%s mpiexec -n %s --layers 8 --accumulate 8 " SMALL, orders[o], runs[i],
                     token_file(20000, 97));
    expect(run("env FAKE_NCCL_ROOM=21 mpiexec -n %s --layers 8 --accumulate 8 --timeout 2 " SMALL, runs[0],
               token_file(20000, 97)), 1, "(--timeout)");
}

/* The script of the first day on a GPU, with four simulated ones: what does not fit any more is left out aloud, the
 * rest passes. In make test that is little: a check counts on 15 seconds, and needs two. */
static void gpu_day_runs(void **state)
{
    if (!simulated())
        skip();
    setenv("SIMULATE", "1", 1);
    expect(run("sh -c 'cd " SOURCE " && PACK=/none OUT=%s tools/machine/gpu_day.sh 20 several'", in_temporary("day")),
           0, "== smoke: status 0|== fused: status 0|left out, it needs 15 s and|start        2 passed, failed: none|"
           "several ");
    if (!covering()) {
        run_well("sh -c 'cd " SOURCE " && tools/machine/gpu_references.sh %s build'", in_temporary("pack/reference"));
        expect(run("sh -c 'cd " SOURCE " && PACK=%s OUT=%s tools/machine/gpu_day.sh 3000'", in_temporary("pack"),
                   in_temporary("day")), 0,
               "08_1.3b: |prove       38 passed, failed: none, left out: none|"
               "speed       20 passed, failed: none, left out: none|several     19 passed, failed: none|"
               "more        23 passed, failed: none, left out: none");
    }
    unsetenv("SIMULATE");
}

/* NCCL's transport, on simulated GPUs: all operations, types and groups; then NCCL's errors, and a transfer whose other
 * ranks never come. Each is one line, and ends all ranks. */
static void transfers_over_nccl(void **state)
{
    static const char *const faults[][3] = {
        {"FAIL=ncclCommInitRankConfig:1", "ncclCommInitRankConfig(", "an error of the fake; its last words (rank 1)"},
        {"FAIL=ncclAllReduce:2", "ncclAllReduce(", "an error of the fake; its last words (rank 1)"},
        {"FAIL=async:1", "NCCL, on a communicator of 2 ranks", "an error of the fake; its last words (rank 1)"},
        {"LOSE=1", "waits for its GPU's all_reduce, operation 1 of group dp", ", for 2 seconds (--timeout)"}};

    if (!simulated())
        skip();
    for (int n = covering() ? 3 : 2; n <= (covering() ? 3 : 4); n++)    /* more groups do not fit on a GPU together */
        run_well("env FAKE_NCCL_QUEUES=64 mpiexec -n %d " BUILD "/simulated/test_comm worker all", n);
    for (int n = 1; n <= 8; n++)
        if (!covering() || n == 3)
            run_well("mpiexec -n %d " BUILD "/simulated/00_collectives --verify", n);
    for (int i = 0; i < 4; i++) {
        Result r = run("timeout 30 env FAKE_NCCL_%s mpiexec -n 2 " BUILD "/simulated/03_data_parallel --preset tiny "
                       "--layers 1 --seq 8 --micro-batch 1 --steps 2 --timeout 2 --quiet", faults[i][0]);
        if (r.status != 1 || !strstr(r.err, faults[i][1]) || !strstr(r.err, faults[i][2]))
            fail_msg("%s: status %d\n%s", faults[i][0], r.status, r.err);
        result_free(r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_agree),
        cmocka_unit_test(gradients_agree),
        cmocka_unit_test(losses_agree),
        cmocka_unit_test(tf32_is_the_default),
        cmocka_unit_test(dq_is_counted),
        cmocka_unit_test(refused_epilogues_are_told),
        cmocka_unit_test(small_types_agree),
        cmocka_unit_test(ladder_is_right),
        cmocka_unit_test(ranks_may_see_one_gpu_each),
        cmocka_unit_test(runs_repeat),
        cmocka_unit_test(settings_are_those_of_nccl),
        cmocka_unit_test(matmuls_are_told),
        cmocka_unit_test(the_host_calls_little),
        cmocka_unit_test(sharing_ranks_load_what_they_launch),
        cmocka_unit_test(blocks_fit_together),
        cmocka_unit_test(gpu_day_runs),
        cmocka_unit_test(transfers_over_nccl),
    };

    build = argc > 1 ? argv[1] : strstr(argv[0], "simulated/") ? "simulated" : "cuda";
    setvbuf(stdout, NULL, _IOLBF, 0);           /* results appear at once, also in a pipe */
    device_id(0);                               /* ends with the reason if the GPUs cannot be used */
    return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
