/* 01: its runs repeat, its outputs agree with each other, and a checkpoint survives what may happen to it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/ultrascale.h"
#include "../harness.h"

#define CPU BUILD "/cpu/01_single_gpu"
#define CPU64 BUILD "/cpu64/01_single_gpu"

/* An odd shape: 3 layers, 6 heads of 8, a prime vocabulary, sequences that are no multiple of a block of queries. */
#define SHAPE "--layers 3 --hidden 48 --heads 6 --vocab 97 --seq 70 --lr 1e-3 --quiet"

static const char *tokens(void)
{
    return token_file(20000, 97);
}

static void runs_repeat_bit_for_bit(void **state)
{
    static const char *const runs[] = {CPU " --threads 1", CPU " --threads 2",
                                       "mpiexec -n 3 " BUILD "/cpu/03_data_parallel --accumulate 2 --threads 1"};

    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 2; i++)
            run_well("%s " SHAPE " --data %s --micro-batch 4 --steps 4 --save repeat%d", runs[k], tokens(), i);
        run_well("cmp repeat0/step-4/model.safetensors repeat1/step-4/model.safetensors");
        run_well("cmp repeat0/step-4/optimizer.safetensors repeat1/step-4/optimizer.safetensors");
        run_well("rm -r repeat0 repeat1");
    }
}

/* CITATION.cff has the version; --version prints it, and the changelog says what is in it. */
static void the_version_is_one(void **state)
{
    run_well("sh -c 'v=$(sed -n s/^version:.//p " SOURCE "/CITATION.cff) && grep -q \"^## $v \" " SOURCE
             "/CHANGELOG.md && [ \"$(" CPU " --version)\" = \"01_single_gpu of ultrascale.c $v\" ]'");
}

/* Every training option changes the trained weights. The defaults, but --warmup's, are those in --help. */
static void each_option_counts(void **state)
{
    static const char *const others[] = {"--lr 2e-3", "--weight-decay 0", "--clip 0.01", "--warmup 3", "--seed 2",
                                         "--lr-decay-steps 9", "--min-lr 1e-5"};
    const char *of_all = CPU " --layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 2 --accumulate 1 "
                         "--threads 1 --quiet --warmup 2 --lr-decay-steps 10 --steps 12";

    run_well("%s --data %s --save standard", of_all, tokens());
    run_well("%s --data %s --lr 1e-3 --weight-decay 0.1 --clip 1 --seed 1 --min-lr 1e-4 --save explicit", of_all,
             tokens());
    run_well("cmp standard/step-12/model.safetensors explicit/step-12/model.safetensors");
    for (int i = 0; i < 7; i++) {
        run_well("%s --data %s --save other%d %s", of_all, tokens(), i, others[i]);
        expect(run("cmp standard/step-12/model.safetensors other%d/step-12/model.safetensors", i), 1, "differ");
    }
}

/* A sample has its prompt, then 12 bytes, and depends on the seed. 04 draws the same bytes from sharded parameters. */
static void samples_are_texts(void **state)
{
    const char *options = "--preset tiny --steps 0 --sample 12 --quiet --threads 1 --prompt Hi";

    Result r = run(CPU " %s", options), other = run(CPU " %s --seed 2", options);
    Result sharded = run("mpiexec -n 2 " BUILD "/cpu/04_zero --zero 3 %s", options);
    assert_int_equal(r.status, 0);
    const char *at = r.out, *heading = "\nsample after the prompt \"Hi\":\n";
    assert_memory_equal(r.out, heading, strlen(heading));
    assert_memory_equal(at += strlen(heading), "Hi", 2);
    assert_int_equal(strlen(at), 2 + 12 + 1);
    assert_string_not_equal(r.out, other.out);
    assert_string_equal(r.out, sharded.out);
    result_free(r);
    result_free(other);
    result_free(sharded);
}

/* The columns of --metrics agree with each other and with the report. Simulated hardware has a known peak rate. */
static void metrics_are_consistent(void **state)
{
    static const char *const names[] = {"tokens", "lr", "seconds", "tokens_per_second", "mfu", "peak_bytes"};
    double x[6][4];

    run_well("mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 2 --hidden 32 --heads 2 --vocab 97 --seq 16 "
             "--micro-batch 2 --accumulate 3 --lr 1e-3 --warmup 2 --steps 4 --quiet --pretend 1,1,0 --threads 1 "
             "--eval-every 2 --data %s --metrics row.csv --report row.json --save row", tokens());
    for (int k = 0; k < 6; k++)
        assert_int_equal(read_column("row.csv", names[k], x[k], 4), 4);
    const double step = 2 * 2 * 3 * 16, N = 97 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 64;
    for (int i = 0; i < 4; i++) {
        assert_true(x[0][i] == (i + 1) * step && x[1][i] == (i ? 1e-3 : 5e-4));
        assert_true(fabs(x[3][i] * x[2][i] / step - 1) < 1e-3);
        assert_true(fabs(x[4][i] / ((6 * N + 12 * 2 * 32 * 16) * x[3][i] / 2e9) - 1) < 1e-2);
        assert_true(x[4][i] < 1.05);            /* simulated hardware is no faster; operators count nearly all FLOPs */
        assert_true(x[5][i] == json_number("row.json", "ranks.0.memory.total.measured"));
    }
    assert_true(json_number("row/step-4/trainer.json", "tokens") == 4 * step);
    assert_true(json_number("row.json", "ranks.1.memory.parameters.measured") == 4 * N);
    assert_true(json_number("row.json", "ranks.1.memory.gradients.measured") == 4 * N);
    assert_true(json_number("row.json", "ranks.1.memory.optimizer.measured") == 8 * N);

    assert_true(json_number("row.json", "parameters") == N);
    assert_true(json_number("row.json", "flops_per_token") == 6 * N + 12 * 2 * 32 * 16);
}

/* Ranks write one trace file. Every span ends, and the spans fill their steps. */
static void ranks_share_a_trace(void **state)
{
    static const char *const names[] = {"forward", "backward", "optimizer"};
    double seconds[2], lasted[2] = {0};
    int count[2][3] = {{0}};

    run_well("mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 2 --hidden 32 --heads 2 --vocab 97 --seq 16 "
             "--micro-batch 2 --accumulate 3 --steps 2 --quiet --pretend 0.5,1,0 --threads 1 --data %s --trace t.json "
             "--metrics t.csv", tokens());
    assert_int_equal(read_column("t.csv", "seconds", seconds, 2), 2);
    char *text = read_file("t.json");
    cJSON *trace = cJSON_Parse(text), *event;
    assert_true(cJSON_IsArray(trace));
    cJSON_ArrayForEach(event, trace) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
        const int rank = cJSON_GetNumberValue(cJSON_GetObjectItem(event, "pid"));
        assert_in_range(rank, 0, 1);
        for (int k = 0; k < 3; k++)
            if (!strcmp(name, names[k])) {
                lasted[rank] += 1e-6 * cJSON_GetNumberValue(cJSON_GetObjectItem(event, "dur"));
                count[rank][k]++;
            }
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_true(count[rank][0] == 6 && count[rank][1] == 6 && count[rank][2] == 2);
        assert_true(lasted[rank] > 0.2 * (seconds[0] + seconds[1]) && lasted[rank] < 1.1 * (seconds[0] + seconds[1]));
    }
    cJSON_Delete(trace);
    free(text);
}

/* Of each category, live.awk finds at most what is allocated in the trace, and not much less. */
static void live_memory_is_in_the_trace(void **state)
{
    run_well(CPU " " SHAPE " --data %s --steps 2 --trace live.json --report live", tokens());
    Result r = run("awk -f " BUILD "/../01_single_gpu/live.awk live.json");
    double most[MEM_CATEGORIES] = {0};
    char *at = r.out;
    while (*at) {
        strtod(at, &at);                        /* the time */
        for (int c = 0; c < MEM_CATEGORIES; c++)
            most[c] = fmax(most[c], 1e6 * strtod(at, &at));
        at += strspn(at, "\n");
    }
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        char path[64];
        snprintf(path, sizeof path, "ranks.0.memory.%s.measured", memory_name[c]);
        const double allocated = json_number("live", path);
        if (most[c] > 1.0001 * allocated || most[c] < allocated / 4)
            fail_msg("%s: %.0f bytes live, %.0f allocated", memory_name[c], most[c], allocated);
    }
    assert_true(most[MEM_ACTIVATIONS] > 0);
}

/* The number after a text in the line of rank `rank` that has it. */
static double said(const char *out, int rank, const char *text)
{
    char line[24];

    snprintf(line, sizeof line, "\nrank %-3dcomputes", rank);
    const char *at = strstr(out, line);
    return number_after(at ? at : "", text);
}

/* The timeline's letters and shares are those of the trace's spans of that step. */
static void the_timeline_shows_the_trace(void **state)
{
    Result r = run("mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 2 --hidden 32 --heads 2 --vocab 97 --seq 16 "
                   "--micro-batch 2 --steps 3 --quiet --pretend 0.5,0.001,1000 --threads 1 --data %s --trace line.json "
                   "--timeline 2 --sync naive", tokens());
    assert_int_equal(r.status, 0);
    char *text = read_file("line.json");
    cJSON *trace = cJSON_Parse(text), *event;
    for (int rank = 0; rank < 2; rank++) {
        double begin = 0, step = 0, computes[2] = {0}, flies = 0, letters[128] = {0};
        int cells = 0;
        cJSON_ArrayForEach(event, trace) {
            const double *ts = &cJSON_GetObjectItem(event, "ts")->valuedouble, dur = cJSON_GetNumberValue(
                cJSON_GetObjectItem(event, "dur")), row = cJSON_GetNumberValue(cJSON_GetObjectItem(event, "tid"));
            const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
            if (cJSON_GetNumberValue(cJSON_GetObjectItem(event, "pid")) != rank || isnan(dur))
                continue;
            if (!strcmp(name, "step"))
                begin = *ts, step = dur;
            if (!step || *ts >= begin + step)
                continue;
            flies += row >= 2 ? dur : 0;
            if (row == 1)
                computes[strstr(name, "backward") != NULL] += dur;
        }
        const char *lane = strstr(r.out, rank ? "rank 1  compute" : "rank 0  compute") + 18;
        for (; lane[cells] != '\n'; cells++)
            letters[(int)lane[cells]]++;
        assert_int_equal(cells, 82);
        assert_true(fabs(letters['.'] / cells - 1 + (computes[0] + computes[1]) / step) < 0.04);
        assert_true(fabs(letters['B'] / cells - computes[1] / step) < 0.04);
        assert_true(fabs(said(r.out, rank, "computes ") - 100 * (computes[0] + computes[1]) / step) <= 0.51);
        assert_true(said(r.out, rank, "computes ") + said(r.out, rank, "waits ") == 100);
        assert_true(fabs(said(r.out, rank, "all_reduce dp ") - said(r.out, rank, "waits ")) < 6);
        assert_true(fabs(said(r.out, rank, " of ") / (flies / 1e3) - 1) < 0.01);
    }
    cJSON_Delete(trace);
    free(text);
    result_free(r);
    expect(run("mpiexec -n 17 " BUILD "/cpu/03_data_parallel --preset tiny --steps 1 --threads 1 --quiet --data %s "
               "--timeline line.svg", tokens()), 0, "rank 15 computes|of all 17 ranks");
    r = run("grep -c 'rank 1[0-9]*<' line.svg");
    assert_int_equal(atoi(r.out), 7);                       /* 1, 10 to 15 */
    result_free(r);
}

/* With --timeline 20ms a letter is 20 ms, or longer if the step would not fit. */
static void a_letter_is_as_long_as_asked(void **state)
{
    static const char *scales[] = {"20", "1e-3", NULL};

    for (const char **scale = scales; *scale; scale++) {
        Result r = run(CPU " " SHAPE " --data %s --steps 1 --pretend 5,1,20 --threads 1 --timeline %sms",
                       tokens(), *scale);
        assert_int_equal(r.status, 0);
        const char *lane = strstr(r.out, "rank 0  compute   ") + 18;
        const double cells = strcspn(lane, "\n"), letter = number_after(r.out, " ms, ");
        assert_true(fabs(cells * letter - number_after(r.out, "step 1, ")) < 1.01 * letter);
        assert_true(scale == scales ? letter == 20 : cells == 82);
        result_free(r);
    }
}

/* Under --pretend a receive that waits for its sender is not in flight: only 1 ms + 2,048 bytes at 1 MB/s are, for each
 * of the middle rank's 6 sends and 6 receives. What it waits for is said all the same. */
static void only_moving_bytes_are_in_flight(void **state)
{
    Result r = run("mpiexec -n 3 " BUILD "/cpu/06_pipeline_parallel --layers 3 --hidden 32 --heads 2 --vocab 97 "
                   "--seq 16 --micro-batch 1 --accumulate 3 --steps 2 --quiet --pretend 0.05,0.001,1000 --threads 1 "
                   "--data %s --timeline", tokens());

    assert_int_equal(r.status, 0);
    assert_true(fabs(said(r.out, 1, " of ") / (12 * 3.048) - 1) < 0.01);
    assert_true(said(r.out, 0, "recv back ") > 10);
    assert_true(said(r.out, 2, "recv pp ") + said(r.out, 2, "sum pp ") > 10);
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_a_trace),
        cmocka_unit_test(live_memory_is_in_the_trace),
        cmocka_unit_test(the_timeline_shows_the_trace),
        cmocka_unit_test(a_letter_is_as_long_as_asked),
        cmocka_unit_test(only_moving_bytes_are_in_flight),
        cmocka_unit_test(metrics_are_consistent),
        cmocka_unit_test(runs_repeat_bit_for_bit),
        cmocka_unit_test(the_version_is_one),
        cmocka_unit_test(each_option_counts),
        cmocka_unit_test(samples_are_texts),
    };

    return cmocka_run_group_tests_name("01_single_gpu", tests, NULL, NULL);
}
