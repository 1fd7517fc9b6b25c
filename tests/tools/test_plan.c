/* The planner: its predictions against the published runs, its memory and times against 09, its output and
 * error messages. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/memory.h"
#include "../harness.h"

#define PLAN BUILD "/cpu/plan "
#define RUNS SOURCE "/tools/planner/playbook_runs.csv"
#define OTHERS SOURCE "/tools/planner/published_runs.csv"

/* The number with commas that follows a text. */
static double count_after(const char *out, const char *text)
{
    const char *at = strstr(out, text);
    double count = 0;

    assert_non_null(at);
    for (at += strlen(text); *at == ' ' || *at == ',' || (*at >= '0' && *at <= '9'); at++)
        count = *at >= '0' && *at <= '9' ? 10 * count + *at - '0' : count;
    return count;
}

/* Of the fastest grid, in the table's first row: tokens/s per GPU, MFU in percent, GiB. */
static void read_best(const char *out, double best[3])
{
    const char *row = strchr(strstr(out, "| tok/s/GPU"), '\n') + 1, *bar = strchr(row, '|'), *gib = bar - 1;

    while (gib[-1] != ' ')
        gib--;
    best[2] = atof(gib);
    assert_int_equal(sscanf(strchr(bar + 1, '|'), "| %lf %lf%%", &best[0], &best[1]), 2);
}

/* The error of a line of the table of sources: "Megatron-LM README, ...   4   6.1%". */
static double error_of(const char *line)
{
    const char *percent = strchr(line, '%');

    while (percent[-1] != ' ')
        percent--;
    return atof(percent);
}

/* Of all runs: median error of tokens/s and of memory in percent, mean rank correlation, and regret in percent. */
static void read_scores(const char *out, double score[4])
{
    char memory[16];
    const char *line = strstr(out, "all that count");

    assert_non_null(line);
    assert_int_equal(sscanf(line, "all that count %*d %lf%% %*f%% %15s %lf %lf%%", &score[0], memory, &score[2],
                            &score[3]), 4);
    score[1] = atof(memory);
}

/* What a plan says of its error is what --cross-validate finds for its constants: runs, median, nine in ten. */
static void error_is_the_found(const char *out, const char *constants, const char *question)
{
    char words[128];
    double median, most;
    int runs;

    snprintf(words, sizeof words, "\n%s ", constants);
    const char *line = strstr(out, words);
    assert_non_null(line);
    assert_int_equal(sscanf(strchr(line, ','), ", %*s %d %lf%% %lf%%", &runs, &median, &most), 3);
    snprintf(words, sizeof words, "the %d published runs|less than %.1f%%, nine in ten by less than %.0f%%", runs,
             median, most);
    expect(run(PLAN "%s", question), 0, words);
}

/* Errors with the constants in profiles.c; in make test-full cross-validated, too: fitted to other runs. */
static void comes_near_the_published_runs(void **state)
{
    for (int full = 0; full <= full_tests(); full++) {
        Result r = run(PLAN "--runs " RUNS "%s", full ? " --cross-validate" : "");
        assert_int_equal(r.status, 0);
        double score[4];
        read_scores(r.out, score);
        assert_true(score[0] <= 9.2 && score[1] <= 8 && score[2] >= 0.86 && score[3] <= 6.6);
        assert_true(error_of(strstr(r.out, "pp = 1 and tp <= 8  ")) <= 4.5);
        if (full)
            error_is_the_found(r.out, "nanotron, dense", "--for nanotron");
        result_free(r);
    }
}

/* Runs of other programs: each source with constants fitted to the others. */
static void comes_near_other_programs(void **state)
{
    static const char *const odd =
        "gpu,seq,sequences_per_step,layout,gpus,heads,mlp,hidden,layers,vocab,gated,tied,framework,dtype,source,note\n"
        "tpu,4096,8,tp=1,8,32,16384,4096,32,32000,no,no,megatron,bf16,Google,x\n"
        "H100,4096,8,\"tp=1,zero=1\",8,32,16384,4096,32,32000,no,no,torchtitan,bf16,torchtitan,y\n"
        "a100,4096,8,tp=3,8,32,16384,4096,32,32000,no,no,megatron-2022,bf16,NeoX,z\n";
    static const char *const vague =
        "gpu,seq,sequences_per_step,layout,gpus,layers,hidden,heads,mlp,vocab,tied,source\n"
        "h100,4096,8,tp=1,8,32,4096,32,16384,32000,no,x\n";
    static const char *const evidence[][2] = {
        {"unfused, dense", "--for megatron-2022 --hardware a100"},
        {"ampere, dense", "--for torchtitan --hardware a100"},
        {"hopper, dense", "--for torchtitan"}, {"megatron-hopper, dense", ""},
        {"megatron-hopper, mixtures", "--model mixtral-8x7b"},
        {"blackwell-2025, dense", "--for megatron-2025 --hardware gb200"},
        {"blackwell-2025, mixtures", "--for megatron-2025 --hardware gb200 --model mixtral-8x7b"},
        {"megatron-blackwell, dense", "--dtype fp8 --hardware gb200"},
        {"megatron-blackwell, mixtures", "--dtype mxfp8 --hardware gb200 --model mixtral-8x7b"},
    };
    double score[4];
    int sources = 0;

    Result r = run(PLAN "--published " OTHERS " --cross-validate --predictions %s", in_temporary("predicted.csv"));
    assert_int_equal(r.status, 0);
    const char *line = strchr(r.out, '\n') + 1;
    for (; *line != '\n'; line = strchr(line, '\n') + 1)
        sources++;
    assert_int_equal(sources, 24);
    assert_true(error_of(strstr(r.out, "mixtures of experts")) <= 14);
    const char *dense = strstr(r.out, "medians of the sources, dense: ");
    assert_true(number_after(dense, "dense: ") <= 6.5 && number_after(dense, "the worst ") <= 15);
    assert_true(number_after(dense, "mixtures: ") <= 16);
    assert_true(number_after(r.out, "the gain is off by") <= 5);
    read_scores(r.out, score);
    assert_true(score[0] <= 8.5 && score[2] >= 0.82 && score[3] <= 0.6);
    assert_non_null(strstr(r.out, "chunks unknown: Narayanan 2021 table 2, A100, GPT 175B PTD: 103.9, predicted 9"));
    for (size_t i = 0; i < sizeof evidence / sizeof *evidence; i++)
        error_is_the_found(r.out, evidence[i][0], evidence[i][1]);
    expect(run(PLAN "--hardware gb200"), 0, "knows no published run of dense models in Megatron-LM, in bf16 on gb200");
    expect(run(PLAN "--model 1b --dtype fp32"), 0, "knows no published run of dense models in Megatron-LM, in fp32");
    write_file("odd.csv", odd, strlen(odd));            /* what cannot be predicted is named, the rest is */
    expect(run(PLAN "--published %s --predictions %s", in_temporary("odd.csv"), in_temporary("given")), 0,
           "not predicted: Google|expected one of rtx4090|got 'tpu'|not predicted: NeoX|expected 8 ranks");
    expect(run("cat %s", in_temporary("given")), 0, ",x,,|,z,,|torchtitan,y,8|predicted_tokens_per_second_per_gpu");
    expect(run(PLAN "--published %s", write_file("odd.csv", vague, strlen(vague))), 1,
           "odd.csv, line 2: column gated: expected yes or no, got ''");
    run_well("sh -c 'grep -v ^# " OTHERS " | cut -c 1-20 >%s && cut -c 1-20 %s | cmp - %s'", in_temporary("given"),
             in_temporary("predicted.csv"), in_temporary("given"));
}

/* In every row of --csv, ranks, sequences, bytes and seconds add up; after the best, rows are in the order promised. */
static void all_grids_add_up(void **state)
{
    enum { TP, CP, PP, EP, ETP, DP, MICRO_BATCH, ACCUMULATE, CHUNKS, REPLICATE, ZERO, RECOMPUTE, FITS, BYTES,
           TOTAL = BYTES + 7, SECONDS, STEP = SECONDS + 9, TOKENS, MFU, COLUMNS };
    static const char *const models[] = {"8b", "mixtral-8x7b"};
    char line[1024];

    for (int i = 0; i < 2; i++) {
        double before = 0;
        int rows = 0, fits_before = 1, fitting = 0;
        run_well(PLAN "--model %s --seq 4096 --gpus 64 --csv %s", models[i], in_temporary("all.csv"));
        FILE *in = fopen(in_temporary("all.csv"), "r");
        assert_true(in && fgets(line, sizeof line, in));
        while (fgets(line, sizeof line, in)) {
            double x[COLUMNS] = {0}, bytes = 0, seconds = 0;
            int n = 0;
            for (char *word = strtok(line, ","); word; word = strtok(NULL, ","))
                x[n++] = atof(word);
            assert_int_equal(n, COLUMNS);
            for (int k = BYTES; k < TOTAL; k++)
                bytes += x[k];
            for (int k = SECONDS; k < STEP; k++) {
                assert_true(x[k] >= 0);
                seconds += x[k];
            }
            assert_true(x[TP] * x[CP] * x[PP] * x[DP] == 64 && x[DP] * x[MICRO_BATCH] * x[ACCUMULATE] == 256);
            assert_true(i ? (int)(x[DP] * x[CP] * x[TP]) % (int)x[EP] == 0 : x[EP] == 1);
            assert_true(fabs(bytes - x[TOTAL]) <= 8 && fabs(seconds / x[STEP] - 1) < 1e-4);
            assert_true(fabs(x[TOKENS] * 64 * x[STEP] / 1048576 - 1) < 1e-4);
            assert_true(x[FITS] <= fits_before && (x[FITS] == fits_before ? x[x[FITS] ? STEP : TOTAL] >= before : 1));
            assert_true((x[FITS] == 1) == (x[TOTAL] <= 0.95 * 79.6 * (1 << 30)));
            fits_before = x[FITS], before = rows ? x[x[FITS] ? STEP : TOTAL] : 0;
            fitting += x[FITS] == 1;
            rows++;
        }
        fclose(in);
        assert_true(rows > 1000 && fitting > 100 && fitting < rows);
    }
}

/* "tp=2,zero=1" as options of 09: " --tp 2 --zero 1". In a static buffer. */
static const char *as_options(const char *grid)
{
    static char text[256];
    char *at = text;

    at += sprintf(at, " --");
    for (; *grid; grid++)
        at += *grid == ',' ? sprintf(at, " --") : sprintf(at, "%c", *grid == '=' ? ' ' : *grid);
    return text;
}

#define MIXTURE "--experts 8 --top-k 2 --expert-width 96"

/* The memory of the fullest rank equals that of 09, or of 11 for a mixture, to the byte. */
static void memory_is_the_programs(void **state)
{
    static const struct {
        int ranks, batch;
        const char *grid, *dtype;
        int span;                       /* of 11; 0: 09 */
    } cases[] = {
        {4, 6, "tp=2,pp=2,micro-batch=2,accumulate=3,zero=1,recompute=none", "bf16"},
        {6, 4, "pp=3,cp=2,micro-batch=1,accumulate=4,zero=1,recompute=full", "fp32"},
        {8, 2, "tp=2,cp=2,pp=2,micro-batch=2,accumulate=1,zero=0,recompute=none", "bf16"},
        {3, 27, "dp=3,micro-batch=9,accumulate=1,zero=1,recompute=none", "fp32"},
        {8, 12, "tp=2,pp=2,dp=2,micro-batch=3,accumulate=2,zero=1,recompute=full", "bf16"},
        {8, 4, "tp=2,cp=2,pp=2,ep=4,micro-batch=1,accumulate=4,zero=1,recompute=none", "bf16", 8},
        {8, 8, "tp=4,dp=2,ep=2,micro-batch=2,accumulate=2,zero=1,recompute=full", "fp32", 16},
    };
    static const char *const shape = "--layers 5 --hidden 48 --heads 4 --vocab 257 --seq 32";

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *report = in_temporary("report");
        char program[128] = "09_combined";
        if (cases[i].span)
            snprintf(program, sizeof program, "11_five_dimensions " MIXTURE " --span %d", cases[i].span);
        run_well("mpiexec -n %d " BUILD "/cpu/%s %s%s --dtype %s --steps 1 --threads 1 --quiet --report %s",
                 cases[i].ranks, program, shape, as_options(cases[i].grid), cases[i].dtype, report);
        Result r = run(PLAN "--model %s %s %s --gpus %d --pretend 1,1,1 --dtype %s --batch %d --explain %s",
                       i % 2 ? "8b --not-gated --tied --mlp 192" : "tiny", cases[i].span ? MIXTURE " --for 09" : "",
                       shape, cases[i].ranks, cases[i].dtype, 32 * cases[i].batch, cases[i].grid);
        if (r.status)
            fail_msg("%s", r.err);
        int fullest = 0;
        double most = 0;
        for (int rank = 0; rank < cases[i].ranks; rank++) {
            const double total = json_number(report, "ranks.%d.memory.total.measured", rank);
            fullest = total > most ? rank : fullest;
            most = fmax(most, total);
        }
        static const char *const names[] = {"parameters", "master", "gradients", "optimizer", "activations",
                                            "communication", "workspace", "total"};
        for (int k = 0; k < 8; k++) {
            const double measured = json_number(report, "ranks.%d.memory.%s.measured", fullest, names[k]);
            const double planned = count_after(strstr(r.out, "\nmemory of the fullest rank"), names[k]);
            if (planned != measured)
                fail_msg("%s: %s: %.0f planned, %.0f measured", cases[i].grid, names[k], planned, measured);
        }
        result_free(r);
    }
}

/* The planned time of a step against that of 09, or of 11 with ep, under --pretend: 2 to 10 seconds, mostly simulated.
 * Other work on the machine makes a step longer, never shorter. */
static void times_are_the_programs(void **state)
{
    static const struct {
        int ranks;
        const char *grid;
        bool always;
    } cases[] = {
        {4, "dp=4,micro-batch=2,accumulate=2,zero=1", false}, {4, "dp=4,micro-batch=2,accumulate=2,zero=0", false},
        {4, "tp=4,micro-batch=8,accumulate=2,zero=0", false}, {4, "pp=4,micro-batch=2,accumulate=8,zero=0", true},
        {4, "cp=4,micro-batch=8,accumulate=2,zero=1", false}, {4, "tp=2,pp=2,micro-batch=4,accumulate=4,zero=0", false},
        {4, "tp=2,dp=2,micro-batch=4,accumulate=2,zero=1", true},
        {4, "pp=2,cp=2,micro-batch=4,accumulate=4,zero=1", false},
        {8, "tp=2,cp=2,pp=2,micro-batch=4,accumulate=4,zero=1", false},
        {8, "tp=2,pp=2,dp=2,micro-batch=2,accumulate=4,zero=1", false},
        {8, "pp=4,dp=2,micro-batch=2,accumulate=4,zero=1,recompute=full", false},
        {8, "tp=2,cp=2,dp=2,micro-batch=4,accumulate=2,zero=1", false},
        {8, "dp=8,micro-batch=2,accumulate=1,zero=1", false},
        {4, "tp=2,dp=2,ep=4,micro-batch=4,accumulate=2,zero=1", false},
        {8, "dp=8,ep=4,micro-batch=2,accumulate=1,zero=1", false},
        {8, "tp=2,cp=2,pp=2,ep=4,micro-batch=4,accumulate=4,zero=1", true},
    };
    static const char *const shape = "--layers 4 --hidden 64 --heads 8 --vocab 256 --seq 64";
    const char *pretend = full_tests() ? "0.03,0.0075,13000" : "0.4,0.1,1000";
    char hardware[300];

    snprintf(hardware, sizeof hardware, "--pretend %s", pretend);
    if (full_tests()) {                 /* what 00 measures of the simulated machine stands for it */
        snprintf(hardware, sizeof hardware, "--hardware %s", in_temporary("machine.json"));
        run_well("mpiexec -n 4 " BUILD "/cpu/00_collectives --pretend %s --max 30000 --machine %s", pretend,
                 in_temporary("machine.json"));
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double seconds[2], unit = 1;
        if (!cases[i].always && !full_tests())
            continue;
        const bool mixture = strstr(cases[i].grid, "ep=");
        Result r = run(PLAN "--model tiny %s %s --gpus %d --dtype fp32 %s --batch 1024 --explain %s", shape,
                       mixture ? MIXTURE : "", cases[i].ranks, hardware, cases[i].grid);
        if (r.status)
            fail_msg("%s", r.err);
        const char *step = strstr(r.out, "\na step: "), *end = strstr(strstr(step, "\n  total "), "s  ");
        const double planned = number_after(step, "\n  total ");
        unit = end[-1] == 'm' ? 1e-3 : 1;
        double least = INFINITY;
        for (int attempt = 0; attempt < (full_tests() ? 3 : 1) && !(least <= planned * unit * 1.1); attempt++) {
            remove(in_temporary("metrics"));
            run_well("mpiexec -n %d " BUILD "/cpu/%s %s%s --dtype fp32 --steps 2 --threads 1 --quiet --pretend %s "
                     "--metrics %s", cases[i].ranks, mixture ? "11_five_dimensions --span 16 " MIXTURE : "09_combined",
                     shape, as_options(cases[i].grid), pretend,
                     in_temporary("metrics"));
            assert_int_equal(read_column("metrics", "seconds", seconds, 2), 2);
            least = fmin(least, fmin(seconds[0], seconds[1]));
        }
        const double ratio = planned * unit / least;
        if (!(ratio <= 1.1) || (full_tests() && !(ratio >= 0.9)))
            fail_msg("%s: %.3f s planned, %.3f measured", cases[i].grid, planned * unit, least);
        result_free(r);
    }
}

/* plan_answers.txt: the answers keep their grid, and their numbers within 10%. */
static void eighty_questions_keep_their_answers(void **state)
{
    char line[512], question[128], grid[128], words[128];
    double then[3], now[3];
    int questions = 0;

    FILE *in = fopen(SOURCE "/tests/tools/plan_answers.txt", "r");
    assert_non_null(in);
    for (; fgets(line, sizeof line, in); questions += *line == '-') {
        strcpy(words, "The best grid");
        const int fields = sscanf(line, "%127[^|]|%127[^|\n]|%lf|%lf|%lf|%127[^\n]", question, grid, &then[0], &then[1],
                                  &then[2], words);
        if (*line != '-')
            continue;
        Result r = run(PLAN "%s", question);
        if (fields >= 5) {
            read_best(r.out, now);
            for (int i = 0; i < 3; i++)
                if (!(fabs(now[i] / then[i] - 1) <= 0.1))
                    fail_msg("%s: %g, not %g", question, now[i], then[i]);
            if (!strstr(r.out, grid) || !strstr(strstr(r.out, "grid that fits: "), grid))
                fail_msg("%s: not %s, but %.120s", question, grid, strstr(r.out, "The best grid that fits: "));
        }
        for (char *at = fields < 5 ? strcpy(words, grid) : words; (at = strchr(at, '/')); )
            *at = '|';
        expect(r, fields < 5, words);
    }
    fclose(in);
    assert_int_equal(questions, 80);
}

/* The README's bytes and FLOPs of six grids, by hand; those of 09's model leave out buffers of less than 3%. */
static void six_grids_by_hand(void **state)
{
    static const struct {
        const char *question;
        double bytes, flops;
    } cases[] = {
        {"--model 1b --gpus 1 --explain micro-batch=4", 5.895e10, 9.429e15},
        {"--model 8b --gpus 64 --explain zero=1", 7.833e10, 5.629e16},
        {"--model 7b --gpus 64 --hardware a100 --explain zero=1", 5.842e10, 4.53e16},
        {"--model llama3-8b --gpus 128 --seq 128K --batch 4M --explain cp=8,zero=3,recompute=selective", 6.530e10,
         6.933e17},
        {"--model llama3-8b --for torchtitan --gpus 512 --batch 16M --explain replicate=64,zero=2", 6.784e10, 8.815e17},
        {"--model mixtral-8x7b --gpus 64 --batch 4M --explain tp=2,ep=8,zero=1", 8.029e10, 3.524e17}
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Result r = run(PLAN "%s", cases[i].question);
        const double bytes = count_after(r.out, "\n  total "), flops = number_after(r.out, "a step, all ranks:");
        if (!(fabs(bytes / cases[i].bytes - 1) < (i == 2 ? 0.03 : 0.002) && fabs(flops / cases[i].flops - 1) < 0.002))
            fail_msg("%s: %.4g bytes, by hand %.4g; %.4g FLOPs, by hand %.4g", cases[i].question, bytes, cases[i].bytes,
                     flops, cases[i].flops);
        result_free(r);
    }
}

/* Bytes by hand of what ranks of tp and etp share, and of what fp8 saves. With two heads of keys and tp 4, each rank
 * saves one head. Grok-1 as NVIDIA ran it on 128 GB200: without etp a rank would need 316 GiB. */
static void shares_by_hand(void **state)
{
    const double h = 4096, f = 14336, v = 128256, tokens = 8192, k = 6144, m = 32768, w = 131072;
    const struct {
        const char *question;
        double parameters, activations;
    } cases[] = {
        {"--model llama3-8b --kv-heads 2 --gpus 4 --batch 8192 --explain tp=4",
         2 * (32 * (2 * h * h * (1 + 2 / 32.0) + 3 * h * f + 2 * h) + 2 * h * v + h) / 4,
         tokens * (32 * (8 * h + 2 * h * (2 + 2 * 4 / 32.0) + 6 * f) + 6 * v) / 4},
        {"--layers 64 --hidden 6144 --expert-width 32768 --experts 8 --heads 48 --kv-heads 8 --vocab 131072 --seq 8192 "
         "--gpus 128 --per-node 4 --batch 2M --hardware 2450,172.3,8000,900,3600 --explain tp=4,ep=8,etp=4,zero=1",
         2 * (64 * (2 * k * k * 7 / 6 + 8 * k + 2 * k) + 2 * k * w + k) / 4 + 2 * 64.0 * 8 * 3 * k * m / 32,
         tokens * (64 * (8 * k + 2 * k * 7 / 3 + 2 * (4 * 2 * k + 6 * m)) + 6 * w) / 4},
        /* In fp8 the inputs of three matmuls take one byte of two; attention's output is saved in both types. */
        {"--model llama3-8b --gpus 1 --batch 8192 --dtype fp8 --explain tp=1",
         2 * (32 * (2 * h * h * (1 + 8 / 32.0) + 3 * h * f + 2 * h) + 2 * h * v + h),
         tokens * (32 * (6 * h + 2 * h * (2 + 2 * 8 / 32.0) + 5 * f + h) + 6 * v)},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Result r = run(PLAN "%s", cases[i].question);
        const double parameters = count_after(r.out, "\n  parameters"), saved = count_after(r.out, "\n  activations");
        if (!(fabs(parameters - cases[i].parameters) <= 1 && fabs(saved - cases[i].activations) <= 1))
            fail_msg("%s: %.0f and %.0f bytes, by hand %.0f and %.0f", cases[i].question, parameters, saved,
                     cases[i].parameters, cases[i].activations);
        result_free(r);
    }
}

/* How much slower published runs of FSDP become on more GPUs, in percent of the series' first: predicted within 4. */
static void zero_3_hides_what_published_runs_hide(void **state)
{
    char line[512], series[32], before[32] = "", options[128], recompute[12];
    int seq, gpus, b, rows = 0;
    double measured, first[2] = {0};

    FILE *in = fopen(SOURCE "/tools/planner/fsdp_runs.csv", "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        if (sscanf(line, "%31[^,],%127[^,],%d,%d,%d,%11[^,],%lf", series, options, &seq, &gpus, &b, recompute,
                   &measured) != 7)
            continue;
        Result r = run(PLAN "%s --seq %d --gpus %d --batch %d --explain dp=%d,micro-batch=%d,zero=3,recompute=%s",
                       options, seq, gpus, seq * gpus * b, gpus, b, recompute);
        const char *at = strstr(r.out, " tokens/s per GPU");
        while (at[-1] != ' ')
            at--;
        const double predicted = atof(at);
        if (strcmp(series, before))
            first[0] = measured, first[1] = predicted;
        if (!(fabs(measured / first[0] - predicted / first[1]) < 0.04))
            fail_msg("%s: on %d GPUs %.3f of the first, predicted %.3f", series, gpus, measured / first[0],
                     predicted / first[1]);
        strcpy(before, series);
        result_free(r);
        rows++;
    }
    fclose(in);
    assert_int_equal(rows, 24);
}

/* 09's command runs as printed; the other programs' commands have the grid's sizes. */
static void commands_have_the_grid(void **state)
{
    /* A question, what its commands have, and what they don't. */
    static const char *const others[][3] = {
        {"--model llama3-70b --gpus 256 --batch 4M --pp 4 --chunks 5", "--config llama3_70b|Interleaved1F1B|"
         "layers_per_stage 4|first_stage_less_layers 0|last_stage_less_layers 0", "lacks options"},
        {"--model llama3-70b --layers 78 --gpus 256 --batch 4M --pp 4 --chunks 5", "less_layers 1|"
         "last_stage_less_layers 1|layers_per_stage 4|lacks options for the model's sizes", "lacks chunks"},
        {"--model deepseek-v3 --gpus 2048 --batch 64M --hardware b200 --pp 16 --chunks 4",
         "--module deepseek_v3 --config deepseek_v3_671b|lacks chunks without layers|lacks latent attention|"
         "shared_expert_intermediate_size: 2048|layers: [3, 4, 5,|59,\n        60]}}}|--moe-router-dtype fp32",
         "lacks options"},
        {"--model llama3-70b --gpus 64 --pp 16 --chunks 1", "last_stage_less_layers 1", "layers_per_stage"},
        {"--model mixtral-8x7b --gpus 64 --ep 8", "--module qwen3 --config qwen3_30b_a3b|disable_cuda_graphs|"
         "lacks options for the model's sizes|lacks expert parallelism", "the file"},
        {"--model llama3-8b --kv-heads 2 --tp 4 --gpus 8", "--num-query-groups 2|--tensor-model-parallel-size 4|"
         "lacks tp above the 2 key-value heads"},
        {"--model mixtral-8x7b --gpus 64 --ep 4 --etp 2 --tp 4",
         "--expert-tensor-parallel-size 2|alltoall|lacks expert tensor", "moe-router-dtype"},
        {"--model mixtral-8x7b --gpus 64 --ep 4", "flex --moe-flex-dispatcher-backend deepep|--moe-router-dtype fp32",
         "alltoall"},
        {"--model 3b", "--module llama3 --config llama3_8b|lacks options for the model's sizes"},
        {"--model llama3-405b --gpus 1024 --batch 4M", "--config llama3_405b|lacks bf16", "lacks options"},
    };
    static const char *const config = "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 48, \"head_dim\": 128}";
    char command[1024] = "";

    Result r = run(PLAN "--model tiny --gpus 4 --batch 512 --hardware 1,1,1,0.1,1 --pp 2 --dp 2");
    char *at = strstr(r.out, "mpiexec");
    assert_non_null(at);
    for (; strncmp(at, "\n   Megatron", 12); at++)          /* without the backslashes at ends of lines */
        sprintf(command + strlen(command), "%c", *at == '\\' || *at == '\n' ? ' ' : *at);
    at = strstr(command, "build/cuda");
    run_well("%.*s" BUILD "/cpu%s --steps 1 --threads 1 --quiet", (int)(at - command), command, at + 10);
    expect(r, 0, "--tensor-model-parallel-size 1|--pipeline-model-parallel-size 2|dp: 2, tp: 1, pp: 2|"
           "--parallelism.pipeline_parallel_degree 2|lacks an MLP of two matrices");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        Result r = run(PLAN "%s", others[i][0]);
        if (others[i][2] && strstr(r.out, others[i][2]))
            fail_msg("%s: it prints %s", others[i][0], others[i][2]);
        expect(r, 0, others[i][1]);
    }
    write_file("config.json", config, strlen(config));
    Result named = run(PLAN "--model %s", in_temporary("config.json"));
    assert_null(strstr(named.out, "lacks options"));
    expect(named, 0, "--module qwen3 --config qwen3_30b_a3b|lacks what the file says|lacks heads of another width");
    expect(run(PLAN "--zero 3"), 0, "optim_grads_params|lacks ZeRO-3|reshard_after_forward always");
    expect(run("env -u MAKEFLAGS make -C " SOURCE " plan GPU=64"), 2, "GPU: no variable of make plan; it has");
}

/* Every option that is printed for another program is one that it has (printed_options.tsv), and all of these are
 * printed for some question. */
static void options_are_those_of_the_sources(void **state)
{
    static const char *const questions[] = {
        "--model llama3-70b --gpus 64 --tp 2 --cp 2", "--gpus 64 --zero 3", "--gpus 64 --zero 2",
        "--gpus 64 --zero 1 --recompute full --model llama3-8b", "--model mixtral-8x7b --gpus 64 --recompute selective",
        "--model llama3-70b --gpus 128 --pp 4 --chunks '>=2'",
        "--model llama3-8b --layers 34 --gpus 32 --pp 4 --chunks '>=2'",
        "--model llama3-70b --gpus 64 --pp 16 --layers 79 --chunks 1",
        "--gpus 8 --model 1b --for torchtitan --pp 2 --zero 0", "--model mixtral-8x7b --capacity 1.25 --ep 8",
        "--model deepseek-v3 --gpus 2048 --batch 64M --hardware h800", "--zero 3 --replicate 8 --head-dim 64",
        "--model llama3-8b --gpus 64 --state-bytes 16",
        "--model qwen3-235b --gpus 256 --hardware gb200 --dtype mxfp8 --batch 32M --tp 4"};
    struct { char framework[16], option[64]; bool printed; } known[160];
    char line[256];
    int count = 0;

    FILE *in = fopen(SOURCE "/tests/tools/printed_options.tsv", "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in))
        if (*line != '#') {
            assert_int_equal(sscanf(line, "%15s %63s", known[count].framework, known[count].option), 2);
            known[count++].printed = false;
        }
    fclose(in);
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        Result r = run(PLAN "%s", questions[i]);
        if (r.status)
            fail_msg("%s: %s", questions[i], r.err);
        char *at = strstr(r.out, "4. Run it."), framework[16] = "";
        for (char *word = strtok(at, " \n{},"); word; word = strtok(NULL, " \n{},")) {
            const size_t n = strlen(word);
            if (!strcmp(word, "Megatron-LM:") || !strcmp(word, "nanotron:") || !strcmp(word, "torchtitan:"))
                sprintf(framework, "%.*s", (int)n - 1, word);
            if (!strcmp(word, "lacks"))                 /* words, up to the next command */
                *framework = 0;
            const bool yaml = !strcmp(framework, "nanotron") && word[n - 1] == ':';
            if (!*framework || strstr("fragment: parallelism: optimizer: tokens: model: model_config: nanotron:", word)
                || !(yaml || !strncmp(word, "--", 2))
                || strstr("--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --config-file --module --config",
                          word))
                continue;
            int k = 0;
            while (k < count && (strcmp(known[k].framework, framework)
                                 || strncmp(known[k].option, word, n - yaml) || known[k].option[n - yaml]))
                k++;
            if (k == count)
                fail_msg("%s: %s has no %s", questions[i], framework, word);
            known[k].printed = true;
        }
        result_free(r);
    }
    for (int k = 0; k < count; k++)
        if (!known[k].printed)
            fail_msg("no question prints %s's %s", known[k].framework, known[k].option);
}

/* Names ignore case; a config.json has the sizes of the model named as it is; --tokens gives days and GPU-hours. */
static void models_have_their_published_sizes(void **state)
{
    static const char *const config = "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, "
        "\"num_hidden_layers\": 61, \"num_attention_heads\": 128, \"num_key_value_heads\": 128, "
        "\"intermediate_size\": 18432, \"vocab_size\": 129280, \"n_routed_experts\": 256, "
        "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"n_shared_experts\": 1, \"q_lora_rank\": 1536, "
        "\"first_k_dense_replace\": 3, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "
        "\"v_head_dim\": 128, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false}";
    static const char *const names[] = {"DeepSeek-V3", NULL}, *const more = "--gpus 2048 --seq 4096 --batch 64M";

    write_file("config.json", config, strlen(config));
    for (int i = 0; i < 2; i++)
        expect(run(PLAN "--model %s %s", names[i] ? names[i] : in_temporary("config.json"), more), 0,
               "671.03 billion parameters|uses 37.55 billion parameters");
    expect(run(PLAN "--model mixtral-8x7b"), 0, "46.70 billion parameters|uses 12.88 billion");
    expect(run(PLAN "--model Qwen3-30B-A3B"), 0, "qwen3-30b-a3b: 30.53 billion parameters|uses 3.35 billion");
    expect(run(PLAN "--model qwen3-235b --gpus 256 --batch 4M"), 0, "qwen3-235b-a22b: 235.09 billion|uses 22.19 ");
    expect(run(PLAN "--model gpt-oss-120b --gpus 128"), 0, "116.79 billion parameters|uses 5.71");
    expect(run(PLAN "--model LLAMA3-70B --gpus 512 --batch 4M --tokens 1T"), 0,
           "70.55 billion|1T tokens take|GPU-hours.");
    Result r = run(PLAN "--model llama3-8b --tokens 15T --price 2.5");
    const double hours = count_after(r.out, "days and"), cost = count_after(r.out, "GPU-hours, which cost");
    assert_true(hours > 1e5 && fabs(cost / hours / 2.5 - 1) < 1e-4);
    expect(r, 0, "15T tokens take | days and | at 2.5 each.");
    expect(run(PLAN "--model llama3-8b --tokens 300B"), 0, "300B tokens take ");
    expect(run(PLAN "--model 70b --gpus 512 --batch 4M"), 0, "Llama 3's is --model llama3-70b");
}

/* Writes a JSON file, in which ' stands for the quotation mark. Returns its path. */
static const char *write_json(const char *text)
{
    char json[1024];

    strcpy(json, text);
    for (char *at = json; (at = strchr(at, '\'')); )
        *at = '"';
    return write_file("given.json", json, strlen(json));
}

/* Parameters in billions, as published, within 1%: of a multimodal model those of the text model. */
static void config_files_have_their_parameters(void **state)
{
    static const struct {
        double billions;
        const char *json;
    } cases[] = {
        {20.555, "{'model_type': 'gpt_neox', 'hidden_act': 'gelu_fast', 'hidden_size': 6144, 'num_hidden_layers': 44, "
                 "'num_attention_heads': 64, 'intermediate_size': 24576, 'vocab_size': 50432}"}, /* its model card */
        {2.780, "{'model_type': 'phi', 'hidden_act': 'gelu_new', 'hidden_size': 2560, 'num_hidden_layers': 32, "
                "'num_attention_heads': 32, 'num_key_value_heads': null, 'intermediate_size': 10240}"},
                                                                        /* Phi-2: elements of its safetensors */
        {7.174, "{'model_type': 'starcoder2', 'hidden_act': 'gelu_pytorch_tanh', 'hidden_size': 4608, "
                "'num_hidden_layers': 32, 'num_attention_heads': 36, 'num_key_value_heads': 4, "
                "'intermediate_size': 18432, 'vocab_size': 49152}"},    /* StarCoder2-7B, likewise */
        {2.614, "{'model_type': 'gemma2', 'hidden_activation': 'gelu_pytorch_tanh', 'hidden_size': 2304, "
                "'num_hidden_layers': 26, 'num_attention_heads': 8, 'num_key_value_heads': 4, 'head_dim': 256, "
                "'intermediate_size': 9216, 'vocab_size': 256000}"},    /* Gemma 2 2B: its report, 0.590 + 2.025 */
        {15.7, "{'model_type': 'nemotron', 'hidden_act': 'relu2', 'hidden_size': 6144, 'num_hidden_layers': 32, "
               "'num_attention_heads': 48, 'num_key_value_heads': 8, 'intermediate_size': 24576, "
               "'vocab_size': 256000}"},                                /* Nemotron-4 15B: its report, 3.2 + 12.5 */
        {11.771, "{'model_type': 'gemma3', 'vision_config': {'hidden_size': 1152, 'intermediate_size': 4304, "
                 "'num_attention_heads': 16, 'num_hidden_layers': 27}, 'text_config': {'model_type': 'gemma3_text', "
                 "'hidden_size': 3840, 'intermediate_size': 15360, 'num_attention_heads': 16, "
                 "'num_hidden_layers': 48, 'num_key_value_heads': 8}}"}, /* Gemma 3 12B: its report, 1.012 + 10.759 */
        {6.739, "{'model_type': 'llava', 'text_config': {'model_type': 'llama', 'vocab_size': 32064}, "
                "'vision_config': {'hidden_size': 1024, 'num_hidden_layers': 24}}"},    /* LLaVA 1.5: Llama-2-7B's */
        {14.316, "{'model_type': 'qwen2_moe', 'hidden_size': 2048, 'intermediate_size': 5632, "
                 "'num_hidden_layers': 24, 'num_attention_heads': 16, 'num_key_value_heads': 16, "
                 "'moe_intermediate_size': 1408, 'shared_expert_intermediate_size': 5632, 'num_experts': 60, "
                 "'num_experts_per_tok': 4, 'decoder_sparse_step': 1, 'vocab_size': 151936}"},  /* Qwen1.5-MoE-A2.7B */
        {15.517, "{'model_type': 'gpt_bigcode', 'n_embd': 6144, 'n_head': 48, 'n_layer': 40, 'n_inner': null, "
                 "'multi_query': true, 'n_positions': 8192, 'vocab_size': 49152}"},     /* StarCoder */
        {3.075, "{'model_type': 'smollm3', 'hidden_size': 2048, 'intermediate_size': 11008, 'vocab_size': 128256}"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Result r = run(PLAN "--model %s", write_json(cases[i].json));
        if (r.status || !(fabs(number_after(r.out, "config.json: ") / cases[i].billions - 1) < 0.01))
            fail_msg("%s: %.3f, not %.60s%s", cases[i].json, cases[i].billions, r.out, r.err);
        result_free(r);
    }
}

/* What 00_collectives --machine wrote is read by its names, in any order. */
static void machines_are_read_by_names(void **state)
{
    static const char *const orders[] = {
        "{'name': 'x', 'gpu': true, 'gflops': {'fp32': 50000, 'bf16': 7e5}, 'memory_gb': 80, 'links': [{'ranks': 2, "
        "'alpha_us': 9, 'beta_gb_per_s': 100}, {'ranks': 8, 'alpha_us': 2, 'beta_gb_per_s': 400}], 'between_nodes': "
        "{'ranks': 2, 'alpha_us': 5, 'beta_gb_per_s': 50}}",
        "{'between_nodes': {'beta_gb_per_s': 50}, 'links': [{'beta_gb_per_s': 100}, {'beta_gb_per_s': 400, 'alpha_us': "
        "2, 'ranks': 8}], 'memory_gb': 80, 'gflops': {'bf16': 7e5}, 'gpu': true, 'name': 'x'}"};
    Result r[2];

    for (int i = 0; i < 2; i++)
        r[i] = run(PLAN "--model 1b --gpus 16 --hardware %s", write_json(orders[i]));
    assert_int_equal(r[0].status, 0);
    assert_string_equal(r[0].out, r[1].out);
    result_free(r[0]);
    result_free(r[1]);
}

/* A job takes as many GPUs of each rack, but torchrun counts those of a tray. A GPU has an adapter of its own. */
static void racks_are_divided_evenly(void **state)
{
    static const char *const grid = "--model llama3-8b --gpus 144 --batch 9M --explain tp=1,dp=144,zero=3";

    expect(run(PLAN "--model llama3-8b --hardware gb200 --gpus 256 --batch 4M"), 0,
           "256 x gb200 in nodes of 64 (of racks of 72)|in 175.8 GiB|torchrun --nnodes 64 --nproc-per-node 4");
    expect(run(PLAN "--model llama3-8b --hardware gb300 --gpus 64"), 0, "64 x gb300 in nodes of 64;|in 263.6 GiB");
    expect(run(PLAN "--model llama3-8b --hardware b300 --gpus 64"), 0, "in nodes of 8;|in 255.2 GiB|--nnodes 8 ");
    expect(run(PLAN "--model llama3-8b --hardware MI300X --gpus 64"), 0, "in nodes of 8;|in 182.1 GiB");
    for (int node = 18; node <= 36; node *= 2) {
        Result rack = run(PLAN "%s --hardware gb200 --per-node %d", grid, node);
        Result same = run(PLAN "%s --hardware 2450,185,8000,900,%d --per-node %d", grid, 50 * node, node);
        assert_int_equal(rack.status, 0);
        *strstr(rack.out, "4. Run it.") = *strstr(same.out, "4. Run it.") = 0;
        assert_string_equal(strstr(rack.out, "\na step: "), strstr(same.out, "\na step: "));
        result_free(rack);
        result_free(same);
    }
}

static void large_plans_are_fast(void **state)
{
    expect(run("sh -c 'ulimit -t 2; exec " PLAN "--model 70b --gpus 512 --batch 4194304'"), 0,        /* CPU seconds */
           "1. Fit in memory|2. Reach the batch. 1024 sequences|3. Raise throughput");
    expect(run("sh -c 'ulimit -t 20; exec " PLAN "--model deepseek-v3 --gpus 2048 --hardware h800 --seq 4096 --batch "
               "62914560'"), 0, "1,166,940 grids, of which 351,207 fit|3. Raise throughput");
}

static void errors_name_valid_values(void **state)
{
    static const struct {
        int status;
        const char *options, *message;
    } cases[] = {
        {2, "--gpus 60", "expected up to 8, or a multiple of --per-node 8, such as 56 or 64"},
        {2, "--batch 1000", "expected at least the 4096 tokens of a sequence"},
        {1, "--gpus 37 --per-node 37", "dp 37 x micro-batch 1 x accumulate 6: expected the batch of 256 sequences"},
        {2, "--hardware h300", "expected one of rtx4090|l40s|a100-40gb|a100|h100|h100-96gb|h800|h200|b200|"
             "gb200|b300|gb300|mi300x, or five numbers TFLOPS,GIB,GB/S,GB/S,GB/S"},
        {2, "--hardware 989,80", "such as 989,79.6,3350,450,400, with --per-node unless a node has 8 GPUs"},
        {2, "--hardware gb200 --gpus 74", "expected up to 72, or a multiple of --per-node 4, such as 72 or 76"},
        {1, "--gpus 1 --hardware rtx4090 --model llama3-8b", "not planned here: about 69 with all states in bf16, "
             "99 with 8-bit Adam, 39 with the optimizer's states on the CPU, 24 with LoRA"},
        {1, "--gpus 10000", "got 10000); try --gpus 9728 or 10240, or --batch 1024000 (250 sequences)"},
        {1, "--gpus 1000 --batch 4096", "try --gpus 992 or 1024, or --batch 20480 (5 sequences)"},
        {2, "--model 9b", "expected one of 1b|3b|8b|80b|llama3-8b|"},
        {2, "--model l", "expected one of 1b|3b|8b|80b|llama3-8b|"},
        {2, "--tp 4..2", "expected a number or a bound, like 4, \"<=4\", \">=2\" or 2..8, got '4..2'"},
        {1, "--tp 3", "restrictions given (tp 3 x cp 1 x pp 1 x dp 21: expected 64 ranks"},
        {1, "--model llama3-8b --for torchtitan --tp 16", "(tp 16: expected a divisor of the 8 key-value heads: "},
        {1, "--model llama3-8b --kv-heads 4 --tp 6 --gpus 6", " 4, or a multiple that divides the 32 heads"},
        {1, "--model mixtral-8x7b --etp 3", "(etp 3: expected 1, or for a mixture without biases in Megatron-LM a "
         "divisor of the experts' width 14336"},
        {2, "--model /nowhere/config.json", "--model /nowhere/config.json: No such file or directory"},
        {1, "--replicate 3", "(replicate 3: expected 1, or with zero 2 or 3 a divisor of dp 64"},
        {2, "--for pytorch", "expected one of 09|megatron|nanotron|torchtitan|fsdp-2023|megatron-2025|megatron-2022, "
         "got 'pytorch'"},
        {2, "--dtype fp4", "--dtype: expected one of bf16|fp32|fp8|mxfp8, got 'fp4'"},
        {2, "--dtype fp8 --hardware a100", "--dtype fp8: expected bf16 or fp32, which a100 has"},
        {2, "--dtype mxfp8", "--dtype mxfp8: expected bf16, fp32 or fp8, which h100 has"},
        {2, "--dtype fp8 --for nanotron", "as nanotron has no fp8; --for megatron and torchtitan have it"},
        {1, "--model 70b --gpus 64 --pp 1 --tp 1", "the fastest without the restrictions given would be tp=4"},
        {2, "--price 2.5", "--price 2.5: expected the tokens of the training with it, such as --tokens 15T"},
        {2, "--price 0 --tokens 1T", "--price: expected a number above 0"},
        {2, "--heads 33", "expected each to be a multiple of the next"},
        {2, "--explain tp=3", "tp 3 x cp 1 x pp 1 x dp 21: expected 64 ranks, one per GPU, got 63"},
        {2, "--fit", "expected --runs FILE with them"},
        {1, "--csv /nowhere/x", "--csv /nowhere/x: No such file or directory"},
        {2, "8b", "\"8b\" is not an option"},
    };
    static const char *const bad_json[][3] = {
        {"model", "{'model_type': 'mamba'}", "expected one of bloom|got \"mamba\"; give the sizes instead: --layers, "},
        {"model", "{'hidden_size': 2048}", "\"model_type\": expected one of bloom|got nothing;"},
        {"model", "hidden_size: 2048", ": expected a JSON object, got something else"},
        {"model", "{'model_type': 'llama', 'hidden_size': '2048'}", "expected an integer from 1 to |, got \"2048\""},
        {"model", "{'model_type': 'qwen3_moe', 'decoder_sparse_step': 2}", "experts in all blocks|one of 2 blocks"},
        {"model", "{'model_type': 'qwen2_moe', 'shared_expert_intermediate_size': 2000}",
         "a multiple of|1408, got 2000"},
        {"model", "{'model_type': 'deepseek_v2', 'q_lora_rank': null}", "\"q_lora_rank\": expected |, got null"},
        {"model", "{'model_type': 'llama', 'tie_word_embeddings': 1}", "expected true or false, got 1"},
        {"hardware", "{'gflops': {'bf16': '989'}, 'links': []}", "\"bf16\": expected a number, got \"989\""},
        {"hardware", "{'gflops': {'bf16': 989}}", ": expected what 00_collectives --machine writes"},
    };
    static const char *const bad_runs[][2] = {
        {"model,nodes\n1B,1\n", ": expected an integer of at least 1, got ''"},
        {"model,nodes,micro_batch,accumulate,dp,pp,tp,zero,tokens_per_second_per_gpu,memory\n1B,1,1,1,8,1,1,0,x,3\n",
         "line 2: column tokens_per_second_per_gpu: expected a number of at least 0, got 'x'"},
        {"# c\nmodel,nodes,micro_batch,accumulate,dp,pp,tp,zero,tokens_per_second_per_gpu,memory\n"
         "1B,1,1,1,4,1,1,0,9,3\n",
         "line 3: dp 4 x pp 1 x tp 1: expected 8 ranks, 8 per node, got 4"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Result r = run(PLAN "%s", cases[i].options);
        if (r.status != cases[i].status || strncmp(r.err, "plan: ", 6) || !strstr(r.err, cases[i].message)
            || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
            fail_msg("plan %s: status %d, \"%s\"", cases[i].options, r.status, r.err);
        result_free(r);
    }
    for (size_t i = 0; i < sizeof bad_json / sizeof *bad_json; i++)
        expect(run(PLAN "--%s %s", bad_json[i][0], write_json(bad_json[i][1])), 2, bad_json[i][2]);
    for (size_t i = 0; i < sizeof bad_runs / sizeof *bad_runs; i++) {
        const char *path = write_file("bad.csv", bad_runs[i][0], strlen(bad_runs[i][0]));
        expect(run(PLAN "--runs %s", path), 1, bad_runs[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_near_the_published_runs),
        cmocka_unit_test(comes_near_other_programs),
        cmocka_unit_test(all_grids_add_up),
        cmocka_unit_test(memory_is_the_programs),
        cmocka_unit_test(times_are_the_programs),
        cmocka_unit_test(eighty_questions_keep_their_answers),
        cmocka_unit_test(six_grids_by_hand),
        cmocka_unit_test(shares_by_hand),
        cmocka_unit_test(zero_3_hides_what_published_runs_hide),
        cmocka_unit_test(commands_have_the_grid),
        cmocka_unit_test(options_are_those_of_the_sources),
        cmocka_unit_test(models_have_their_published_sizes),
        cmocka_unit_test(config_files_have_their_parameters),
        cmocka_unit_test(machines_are_read_by_names),
        cmocka_unit_test(racks_are_divided_evenly),
        cmocka_unit_test(large_plans_are_fast),
        cmocka_unit_test(errors_name_valid_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
