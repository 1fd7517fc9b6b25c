/* 01: its numbers do not depend on micro-batches, recomputation, or an interruption, and its memory is as predicted. */
#include <cjson/cJSON.h>
#include <math.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void recomputation_changes_nothing(void **state)
{
    static const char *const modes[] = {"none", "selective", "full"};

    (void)state;
    for (int i = 0; i < 3; i++)
        run_well(CPU64 " " SHAPE " --data %s --micro-batch 3 --accumulate 2 --steps 3 --recompute %s "
                 "--dump-gradients %s.safetensors --metrics %s.csv", tokens(), modes[i], modes[i], modes[i]);
    for (int i = 1; i < 3; i++) {
        double a[3], b[3];
        char name[2][64];
        for (int k = 0; k < 2; k++)
            snprintf(name[k], sizeof name[k], "%s.safetensors", modes[k * i]);
        assert_true(compare_gradients(in_temporary(name[1]), in_temporary(name[0]), 6, NULL) == 0);
        for (int k = 0; k < 2; k++)
            snprintf(name[k], sizeof name[k], "%s.csv", modes[k * i]);
        assert_int_equal(read_column(in_temporary(name[0]), "loss", a, 3), 3);
        assert_int_equal(read_column(in_temporary(name[1]), "loss", b, 3), 3);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void accumulation_changes_nothing(void **state)
{
    static const int micro[] = {6, 3, 1};
    char worst[128] = "";

    (void)state;
    for (int i = 0; i < 3; i++)
        run_well(CPU64 " " SHAPE " --data %s --micro-batch %d --accumulate %d --steps 20 "
                 "--dump-gradients %d.safetensors --metrics %d.csv", tokens(), micro[i], 6 / micro[i], micro[i],
                 micro[i]);
    for (int i = 1; i < 3; i++) {
        double a[20], b[20];
        char name[64];
        snprintf(name, sizeof name, "%d.safetensors", micro[i]);
        const double d = compare_gradients(in_temporary(name), in_temporary("6.safetensors"), 6, worst);
        if (!(d <= 1e-12))
            fail_msg("%d x %d: %s differs by %g", micro[i], 6 / micro[i], worst, d);
        snprintf(name, sizeof name, "%d.csv", micro[i]);
        assert_int_equal(read_column(in_temporary("6.csv"), "loss", a, 20), 20);
        assert_int_equal(read_column(in_temporary(name), "loss", b, 20), 20);
        for (int s = 0; s < 20; s++)
            assert_true(fabs(a[s] - b[s]) <= 1e-12 * a[s]);
    }
}

/* Expects two files with the same bytes. */
static void assert_files_equal(const char *a, const char *b)
{
    Result r = run("cmp %s %s", a, b);

    if (r.status)
        fail_msg("%s and %s: %s%s", a, b, r.out, r.err);
    result_free(r);
}

static void runs_repeat_bit_for_bit(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        for (int i = 0; i < 2; i++)
            run_well(CPU " " SHAPE " --data %s --micro-batch 4 --steps 4 --threads %d --save repeat%d", tokens(),
                     threads, i);
        assert_files_equal("repeat0/model.safetensors", "repeat1/model.safetensors");
        assert_files_equal("repeat0/optimizer.safetensors", "repeat1/optimizer.safetensors");
    }
}

static void a_checkpoint_loses_nothing(void **state)
{
    static const char *const programs[] = {CPU, CPU64};

    (void)state;
    for (int i = 0; i < 2; i++) {
        double six[6], halves[6];
        run_well("%s " SHAPE " --data %s --steps 6 --save six --metrics six.csv --seed 7", programs[i], tokens());
        run_well("%s " SHAPE " --data %s --steps 3 --save three --metrics three.csv --seed 7", programs[i], tokens());
        run_well("%s " SHAPE " --data %s --steps 6 --load three --save three --metrics three.csv", programs[i],
                 tokens());
        assert_files_equal("six/model.safetensors", "three/model.safetensors");
        assert_files_equal("six/optimizer.safetensors", "three/optimizer.safetensors");
        assert_int_equal(read_column(in_temporary("six.csv"), "loss", six, 6), 6);
        assert_int_equal(read_column(in_temporary("three.csv"), "loss", halves, 6), 6);
        assert_memory_equal(six, halves, sizeof six);
        assert_true(json_number(in_temporary("three/trainer.json"), "step") == 6);
        assert_true(json_number(in_temporary("three/trainer.json"), "tokens") == 6 * 32 * 70);
        run_well("rm -r six three six.csv three.csv");
    }
}

/* --save-every saves a checkpoint at each of its steps, and at the end. */
static void saving_during_training(void **state)
{
    (void)state;
    run_well(CPU " " SHAPE " --data %s --steps 5 --save way --save-every 2", tokens());
    assert_true(json_number(in_temporary("way/trainer.json"), "step") == 5);
    run_well("test ! -e way.tmp");
    run_well("test ! -e way.old");
    /* a resumed run counts steps from the start of training */
    Result r = run(CPU " --layers 3 --hidden 48 --heads 6 --vocab 97 --seq 70 --data %s --steps 8 --save-every 3 "
                   "--load way --save way", tokens());
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "saved step 6 "));
    assert_non_null(strstr(r.out, "saved step 8 "));
    assert_null(strstr(r.out, "saved step 7 "));
    result_free(r);
}

/* A resumed run removes an incomplete row or header, which a full disk may leave, before it appends rows. */
static void an_incomplete_row_is_removed(void **state)
{
    static const char *const cut[] = {"truncate -s -9 cut.csv",
                                      "sh -c 'head -n 1 cut.csv >x; truncate -s -1 x; mv x cut.csv'"};
    double step[4];

    (void)state;
    for (int i = 0; i < 2; i++) {
        run_well("rm -f cut.csv");
        run_well(CPU " " SHAPE " --data %s --steps 2 --save cut --metrics cut.csv", tokens());
        run_well("%s", cut[i]);
        run_well(CPU " " SHAPE " --data %s --steps 4 --load cut --metrics cut.csv", tokens());
        assert_int_equal(read_column(in_temporary("cut.csv"), "step", step, 4), i ? 2 : 3);
        assert_true(step[i ? 0 : 1] == 3 && step[i ? 1 : 2] == 4);
    }
}

/* Steps that a resumed run repeats, because the killed run did not save them, have one row each. */
static void repeated_steps_have_one_row(void **state)
{
    double step[5];

    (void)state;
    run_well(CPU " " SHAPE " --data %s --steps 2 --save again", tokens());
    run_well(CPU " " SHAPE " --data %s --steps 4 --metrics again.csv", tokens());
    run_well(CPU " " SHAPE " --data %s --steps 3 --load again --metrics again.csv", tokens());
    assert_int_equal(read_column(in_temporary("again.csv"), "step", step, 5), 3);
    for (int i = 0; i < 3; i++)
        assert_true(step[i] == i + 1);
}

/* On a file system without exchange, a program killed between its two renames leaves DIR.old alone: it is loaded. */
static void an_old_checkpoint_is_found(void **state)
{
    (void)state;
    run_well(CPU " " SHAPE " --data %s --steps 1 --save lost", tokens());
    run_well("mv lost lost.old");
    Result r = run(CPU " --layers 3 --hidden 48 --heads 6 --vocab 97 --seq 70 --data %s --steps 2 --load lost "
                   "--save lost", tokens());
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "lost.old"));
    assert_true(json_number(in_temporary("lost/trainer.json"), "step") == 2);
    result_free(r);
}

/* Every training option changes the trained weights, and the defaults are those in --help. */
static void each_option_counts(void **state)
{
    static const char *const others[] = {"--lr 2e-3", "--weight-decay 0", "--clip 0.01", "--warmup 3", "--seed 2"};
    const char *run_of = CPU " --layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 2 --accumulate 1 "
                         "--threads 1 --quiet";

    (void)state;
    run_well("%s --data %s --steps 4 --save standard", run_of, tokens());
    run_well("%s --data %s --steps 4 --lr 1e-3 --weight-decay 0.1 --clip 1 --warmup 20 --seed 1 --save explicit",
             run_of, tokens());
    run_well("cmp standard/model.safetensors explicit/model.safetensors");
    for (int i = 0; i < 5; i++) {
        run_well("%s --data %s --steps 4 --save other %s", run_of, tokens(), others[i]);
        Result r = run("cmp -s standard/model.safetensors other/model.safetensors");
        if (r.status != 1)
            fail_msg("%s changes nothing", others[i]);
        result_free(r);
    }
    for (int i = 0; i < 2; i++)
        run_well("%s --data %s --steps 12 --warmup 2 --lr-decay-steps 10 --save %s", run_of, tokens(),
                 i ? "explicit --min-lr 1e-4" : "standard");
    run_well("cmp standard/model.safetensors explicit/model.safetensors");
    run_well("%s --data %s --steps 12 --warmup 2 --lr-decay-steps 10 --min-lr 1e-5 --save other", run_of, tokens());
    Result r = run("cmp -s standard/model.safetensors other/model.safetensors");
    assert_int_equal(r.status, 1);
    result_free(r);
}

/* A sample has its prompt, then 12 bytes, and depends on the seed. */
static void samples_are_texts(void **state)
{
    const char *run_of = CPU " --preset tiny --steps 0 --sample 12 --quiet --threads 1 --prompt Hi";

    (void)state;
    Result r = run("%s", run_of), other = run("%s --seed 2", run_of);
    assert_int_equal(r.status, 0);
    assert_int_equal(strlen(r.out), 1 + 2 + 12 + 1);
    assert_memory_equal(r.out, "\nHi", 3);
    assert_string_not_equal(r.out, other.out);
    result_free(r);
    result_free(other);
}

static void memory_is_as_predicted(void **state)
{
    static const char *const categories[] = {"parameters", "gradients", "optimizer", "activations", "workspace",
                                             "master", "communication", "total"};
    static const char *const modes[] = {"none", "selective", "full"};
    static const char *const shapes[] = {SHAPE " --micro-batch 3", SHAPE " --micro-batch 1 --seq 1",
                                         "--quiet --layers 1 --hidden 2 --heads 1 --vocab 97 --seq 5"};
    static const double parameters[] = {48 * 97 + 3 * (12 * 48 * 48 + 13 * 48) + 96,
                                        48 * 97 + 3 * (12 * 48 * 48 + 13 * 48) + 96, 2 * 97 + 12 * 4 + 13 * 2 + 4};

    (void)state;
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < 3; i++) {
            run_well(CPU " %s --data %s --steps 2 --recompute %s --report r.json", shapes[s], tokens(), modes[i]);
            for (int c = 0; c < 8; c++) {
                char path[128];
                snprintf(path, sizeof path, "ranks.0.memory.%s.measured", categories[c]);
                const double measured = json_number(in_temporary("r.json"), path);
                snprintf(path, sizeof path, "ranks.0.memory.%s.predicted", categories[c]);
                if (measured != json_number(in_temporary("r.json"), path))
                    fail_msg("%s with --recompute %s: %s are %.0f bytes, predicted %.0f", shapes[s], modes[i],
                             categories[c], measured, json_number(in_temporary("r.json"), path));
                if (c < 3 && measured != (c == 2 ? 8 : 4) * parameters[s])
                    fail_msg("%s: %s are %.0f bytes for %.0f parameters", shapes[s], categories[c], measured,
                             parameters[s]);
            }
        }
}

/* The loss falls fastest in the first steps. They are enough to check that evaluation, sampling and the learning-rate
 * schedule work together. make test-full trains longer: below 2.2 nats per byte after 600 steps. */
static void it_learns(void **state)
{
    const char *shakespeare = SOURCE "/../shared/data/tinyshakespeare.txt";

    (void)state;
    if (full_tests() && access(shakespeare, R_OK) == 0) {
        run_well(CPU " --layers 4 --hidden 128 --heads 4 --seq 256 --micro-batch 8 --accumulate 2 --steps 600 "
                 "--lr 2e-3 --lr-decay-steps 600 --eval-every 600 --data %s --report r.json --quiet", shakespeare);
        const double loss = json_number(in_temporary("r.json"), "held_out.0.loss");
        print_message("validation loss after 600 steps: %.4f nats per byte\n", loss);
        assert_true(loss < 2.2);
    }
    Result r = run(CPU " --preset tiny --steps 120 --lr 3e-3 --warmup 5 --eval-every 60 --report r.json --sample 20 "
                   "--quiet");
    assert_int_equal(r.status, 0);
    assert_true(strlen(r.out) >= 20);
    assert_true(json_number(in_temporary("r.json"), "held_out.0.step") == 60);
    assert_true(json_number(in_temporary("r.json"), "held_out.1.loss") < 3.4);
    assert_true(json_number(in_temporary("r.json"), "held_out.1.loss") > 1.5);
    result_free(r);
}

/* Runs the program, and sends it a signal after its first step. */
static Result signalled(int signal, const char *options)
{
    return run("sh -c 'rm -f rows; timeout -k 20 60 " CPU " " SHAPE " --data %s --steps 1000000 --metrics rows %s & "
               "until [ $(grep -c . rows) -gt 1 ] || ! kill -0 $!; do sleep 0.05; done; kill -%d $!; wait $!'",
               tokens(), options, signal);
}

static int lines(const char *path)
{
    FILE *f = fopen(path, "r");
    int count = 0;

    for (int c; f && (c = getc(f)) != EOF;)
        count += c == '\n';
    if (f)
        fclose(f);
    return count;
}

/* Starts a program in a terminal, closes the terminal after the first step, and returns the program's status. */
static int hung_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int hung_up(const char *format, ...)
{
    char command[2000];
    int terminal, status;
    va_list list;

    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    unlink(in_temporary("rows"));
    const pid_t process = forkpty(&terminal, NULL, NULL, NULL);
    if (process == 0) {
        if (!chdir(in_temporary("")))
            execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(127);
    }
    assert_true(process > 0);
    for (int i = 0; i < 1000 && lines(in_temporary("rows")) < 2; i++)
        usleep(20000);
    close(terminal);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_closed_terminal_saves(void **state)
{
    (void)state;
    assert_int_equal(hung_up("exec " CPU " " SHAPE " --data %s --steps 1000000 --metrics rows --save left", tokens()),
                     128 + SIGHUP);
    assert_true(json_number(in_temporary("left/trainer.json"), "step") >= 1);
    assert_int_equal(hung_up("exec nohup " CPU " " SHAPE " --data %s --steps 100 --metrics rows", tokens()), 0);
}

/* A signal ends the run after the current step, with a checkpoint and status 128 + the signal's number. */
static void signals_save(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    for (int i = 0; i < 2; i++) {
        Result r = signalled(signals[i], "--save stopped");
        assert_int_equal(r.status, 128 + signals[i]);
        assert_true(json_number(in_temporary("stopped/trainer.json"), "step") >= 1);
        result_free(r);
        r = signalled(signals[i], "");
        assert_int_equal(r.status, 128 + signals[i]);
        result_free(r);
        run_well("rm -r stopped");
    }
    /* after the last step, while it samples */
    Result r = run("sh -c 'rm -f rows; timeout -k 20 60 " CPU " " SHAPE " --data %s --steps 1 --metrics rows --seq 64 "
                   "--sample 1000000 & until [ $(grep -c . rows) -gt 1 ] || ! kill -0 $!; do sleep 0.05; done; "
                   "sleep 0.5; kill $!; wait $!'", tokens());
    assert_int_equal(r.status, 128 + SIGTERM);
    assert_true(r.seconds < 30);
    result_free(r);
}

/* The trace is JSON and has the spans of every step and both counters. Live memory never exceeds allocated memory. */
static void the_trace_is_complete(void **state)
{
    (void)state;
    run_well(CPU " " SHAPE " --data %s --steps 2 --micro-batch 2 --accumulate 3 --trace trace.json", tokens());
    Result r = run("grep -c '\"forward\",\"ph\":\"X\"' trace.json");
    assert_int_equal(atoi(r.out), 6);
    result_free(r);
    r = run("grep -c '\"optimizer\",\"ph\":\"X\"' trace.json");
    assert_int_equal(atoi(r.out), 2);
    result_free(r);
    /* the peak of each category: allocated [0], live [1] */
    r = run("cat trace.json");
    cJSON *trace = cJSON_Parse(r.out), *event, *value;
    double most[2][MEM_CATEGORIES] = {{0}};
    int samples = 0, category;
    assert_true(cJSON_IsArray(trace));
    cJSON_ArrayForEach(event, trace) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
        const bool live = !strcmp(name, "live");
        if (!live && strcmp(name, "allocated"))
            continue;
        samples += live;
        category = 0;
        cJSON_ArrayForEach(value, cJSON_GetObjectItem(event, "args")) {
            most[live][category] = fmax(most[live][category], value->valuedouble);
            category++;
        }
        assert_int_equal(category, MEM_CATEGORIES);
    }
    assert_true(samples > 50);
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        if (most[1][c] > most[0][c])
            fail_msg("%s: %.0f bytes live, %.0f allocated", memory_name[c], most[1][c], most[0][c]);
        if (most[1][c] < most[0][c] / 4)
            fail_msg("%s: only %.0f bytes live of %.0f allocated", memory_name[c], most[1][c], most[0][c]);
    }
    /* d_x, the residual stream's gradient, is live when residual_backward, a block's first operator, reads it */
    int reads = 0;
    cJSON_ArrayForEach(event, trace)
        if (!strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(event, "name")), "residual_backward")) {
            const double begin = cJSON_GetObjectItem(event, "ts")->valuedouble;
            cJSON *sample, *then = NULL;
            cJSON_ArrayForEach(sample, trace)
                if (!strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(sample, "name")), "live")
                    && cJSON_GetObjectItem(sample, "ts")->valuedouble <= begin)
                    then = sample;
            assert_non_null(then);
            const double live = cJSON_GetObjectItem(cJSON_GetObjectItem(then, "args"), "workspace")->valuedouble;
            if (live < 4.0 * 2 * 70 * 48)
                fail_msg("%.0f bytes of workspace are live, less than d_x has", live);
            reads++;
        }
    assert_int_equal(reads, 2 * 3 * 3 * 2);     /* steps, micro-batches, layers, halves of a block */
    cJSON_Delete(trace);
    result_free(r);
}

static void simulated_hardware_is_slower(void **state)
{
    (void)state;
    double seconds[3], mfu[3];
    Result r = run(CPU " --preset tiny --steps 3 --pretend 0.5,1,0 --metrics pretend.csv");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "pretend"));
    result_free(r);
    /* tiny: 6N + 12*L*h*s = 797,184 FLOPs per token, 256 tokens, at 0.5 GFLOP/s; operators count nearly all of them */
    assert_int_equal(read_column(in_temporary("pretend.csv"), "seconds", seconds, 3), 3);
    assert_int_equal(read_column(in_temporary("pretend.csv"), "mfu", mfu, 3), 3);
    for (int i = 0; i < 3; i++) {
        assert_true(seconds[i] > 0.99 * 797184 * 256 / 0.5e9 * 0.97);
        assert_true(mfu[i] < 1.05);
    }
}

/* The columns of --metrics agree with each other and with the report. Simulated hardware has a known peak rate. */
static void metrics_are_consistent(void **state)
{
    static const char *const names[] = {"tokens", "lr", "seconds", "tokens_per_second", "mfu", "peak_bytes"};
    double x[6][4];

    (void)state;
    run_well("mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 2 --hidden 32 --heads 2 --vocab 97 --seq 16 "
             "--micro-batch 2 --accumulate 3 --lr 1e-3 --warmup 2 --steps 4 --quiet --pretend 1,1,0 --threads 1 "
             "--eval-every 2 --data %s --metrics row.csv --report row.json --save row", tokens());
    for (int k = 0; k < 6; k++)
        assert_int_equal(read_column(in_temporary("row.csv"), names[k], x[k], 4), 4);
    const double step = 2 * 2 * 3 * 16, N = 97 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 64;
    for (int i = 0; i < 4; i++) {
        assert_true(x[0][i] == (i + 1) * step && x[1][i] == (i ? 1e-3 : 5e-4));
        assert_true(fabs(x[3][i] * x[2][i] / step - 1) < 1e-3);
        assert_true(fabs(x[4][i] / ((6 * N + 12 * 2 * 32 * 16) * x[3][i] / 2e9) - 1) < 1e-2);
        assert_true(x[5][i] == json_number(in_temporary("row.json"), "ranks.0.memory.total.measured"));
    }
    assert_true(json_number(in_temporary("row/trainer.json"), "tokens") == 4 * step);

    /* the report covers three steps of 3 micro-batches, each with 2 blocks of 4 linears and the output projection;
     * evaluations between steps do not count */
    const double R = 2 * 16, linears = R * (32 + 96) + 96 * 33 + R * (32 + 32) + 32 * 32 + R * (32 + 128) + 128 * 33
                                       + R * (128 + 32) + 128 * 32, output = R * (32 + 97) + 97 * 32;
    assert_true(json_number(in_temporary("row.json"), "parameters") == N);
    assert_true(json_number(in_temporary("row.json"), "flops_per_token") == 6 * N + 12 * 2 * 32 * 16);
    char *name = NULL, path[64];
    int at = -1;
    do
        free(name), name = json_text(in_temporary("row.json"), "ranks.1.operators", ++at, "op");
    while (name && strcmp(name, "linear_forward"));
    assert_non_null(name);
    snprintf(path, sizeof path, "ranks.1.operators.%d.calls", at);
    assert_true(json_number(in_temporary("row.json"), path) == 3 * 3 * (2 * 4 + 1));
    snprintf(path, sizeof path, "ranks.1.operators.%d.bytes", at);
    assert_true(json_number(in_temporary("row.json"), path) == 3 * 3 * 4 * (2 * linears + output));
    snprintf(path, sizeof path, "ranks.1.operators.%d.flops", at);
    assert_true(json_number(in_temporary("row.json"), path) == 3 * 3 * 2 * R * (2 * 12 * 32 * 32 + 97 * 32));
    free(name);
}

/* Ranks write one trace file. Every span ends, and the spans fill their steps. */
static void ranks_share_a_trace(void **state)
{
    static const char *const names[] = {"forward", "backward", "optimizer"};
    double seconds[2], lasted[2] = {0};
    int count[2][3] = {{0}};

    (void)state;
    run_well("mpiexec -n 2 " BUILD "/cpu/03_data_parallel --layers 2 --hidden 32 --heads 2 --vocab 97 --seq 16 "
             "--micro-batch 2 --accumulate 3 --steps 2 --quiet --pretend 0.5,1,0 --threads 1 --data %s --trace t.json "
             "--metrics t.csv", tokens());
    assert_int_equal(read_column(in_temporary("t.csv"), "seconds", seconds, 2), 2);
    Result r = run("cat t.json");
    cJSON *trace = cJSON_Parse(r.out), *event;
    assert_true(cJSON_IsArray(trace));
    cJSON_ArrayForEach(event, trace) {
        const int rank = cJSON_GetNumberValue(cJSON_GetObjectItem(event, "pid"));
        const double took = cJSON_GetNumberValue(cJSON_GetObjectItem(event, "dur"));
        assert_in_range(rank, 0, 1);
        for (int k = 0; k < 3; k++)
            if (!strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(event, "name")), names[k])) {
                assert_true(took > 0);
                lasted[rank] += 1e-6 * took;
                count[rank][k]++;
            }
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_true(count[rank][0] == 6 && count[rank][1] == 6 && count[rank][2] == 2);
        assert_true(lasted[rank] > 0.2 * (seconds[0] + seconds[1]) && lasted[rank] < 1.1 * (seconds[0] + seconds[1]));
    }
    cJSON_Delete(trace);
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_a_trace),
        cmocka_unit_test(metrics_are_consistent),
        cmocka_unit_test(recomputation_changes_nothing),
        cmocka_unit_test(accumulation_changes_nothing),
        cmocka_unit_test(runs_repeat_bit_for_bit),
        cmocka_unit_test(a_checkpoint_loses_nothing),
        cmocka_unit_test(saving_during_training),
        cmocka_unit_test(an_incomplete_row_is_removed),
        cmocka_unit_test(repeated_steps_have_one_row),
        cmocka_unit_test(an_old_checkpoint_is_found),
        cmocka_unit_test(memory_is_as_predicted),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(each_option_counts),
        cmocka_unit_test(samples_are_texts),
        cmocka_unit_test(signals_save),
        cmocka_unit_test(a_closed_terminal_saves),
        cmocka_unit_test(the_trace_is_complete),
        cmocka_unit_test(simulated_hardware_is_slower),
    };

    return cmocka_run_group_tests_name("01_single_gpu", tests, NULL, NULL);
}
