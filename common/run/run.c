#include "run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "../comm/comm.h"
#include "../transformer/data.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/formats.h"
#include "../base/memory.h"
#include "outputs.h"
#include "../transformer/op_call.h"
#include "prediction.h"
#include "../base/print.h"
#include "report.h"
#include "../base/start.h"
#include "../base/threads.h"
#include "timeline.h"
#include "../base/trace.h"

static TrainState state;                /* saved as trainer.json */

static struct {
    int argc;                           /* the command line */
    char **argv;
    int64_t global_batch;               /* sequences per step */
    DType matmul_dtype;
    const AdamW *optimizer;
    int first_step, saved_step, timeline_step;
    double began, step_began;
    int stopping;                       /* a signal that reached some rank, agreed on by all; 0: none */
    char waits[200];                    /* what limits the last step, in words */
    bool differs;                       /* memory or traffic differed from the prediction */
} run = {.matmul_dtype = REAL, .saved_step = -1};

/* Open MPI's mpiexec and Slurm send on SIGUSR1. A closed terminal sends SIGHUP, and a closed pipe, as of "| head",
 * SIGPIPE. */
static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
enum { SIGNALS = sizeof signals / sizeof *signals };
static volatile sig_atomic_t stopped_by;

/* ---- The start ---- */

/* The first signal ends the run after its step; a later one ends it at once. A terminal and mpiexec may both send the
 * first one. All that is printed to a closed pipe sends SIGPIPE again. */
static void on_signal(int signal_number)
{
    static double first;

    if (stopped_by && signal_number != SIGPIPE && clock_seconds() > first + 0.5)
        _exit(128 + signal_number);
    if (!stopped_by)
        first = clock_seconds();
    stopped_by = signal_number;
}

static void set_signals(void (*handler)(int))
{
    for (int i = 0; i < SIGNALS; i++)
        signal(signals[i], started_by_nohup() && signals[i] == SIGHUP ? SIG_IGN : handler);
}

/* FNV-1a over the arguments and the build. */
static uint64_t arguments_hash(int argc, char **argv)
{
    uint64_t hash = 14695981039346656037u;

    for (int i = 0; i < argc; i++) {
        const char *text = i ? argv[i] : dtype_name(REAL);
        for (size_t c = 0; c <= strlen(text); c++)
            hash = (hash ^ (unsigned char)text[c]) * 1099511628211u;
    }
    return hash;
}

static double peak_flops(void)
{
    return comm_size(world) * (options.pretend_flops ? options.pretend_flops : device_peak_flops(run.matmul_dtype));
}

/* Time 0 of the trace: on one machine, where all ranks share a clock, rank 0's; on several, when this rank left a
 * barrier. */
static double trace_start(void)
{
    const double first = comm_sum(world, comm_rank(world) ? 0 : clock_seconds());

    return comm_local.size == comm_size(world) ? first : clock_seconds();
}

/* Opens what the run reads, and checks what it will write, before it computes anything. */
static void open_files(void)
{
    data_open();
    output_check("metrics", options.metrics, "step,tokens,loss,");
    output_check("report", options.report, "{\"ranks\": [");
    output_check("trace", options.trace, "{\"name\":\"process_name\"");
    output_check("dump-gradients", options.dump_gradients, "\"batch.inputs\":");
    state.seed = options.seed;
    if (options.load)
        checkpoint_open(options.load, &options.config, &state);
    options.seed = state.seed;
    comm_check_same("--load", state.step);      /* another run may save there now */
    if (options.save && checkpoint_claim(options.save, options.config, &state))
        run.saved_step = state.step;
    comm_check_same("--data", data_file.hash);
}

static void print_device(bool tf32)
{
    const char *precision = tf32 ? ", in TF32" : ", in float", *simulated = options.pretend ? " (simulated)" : "";
    const double gflops = peak_flops() / 1e9;
    const int digits = gflops < 1 ? 2 : gflops < 10;

    if (device_is_host())
        precision = "";
    if (comm_size(world) == 1)
        print_rank_0("device  %s, %.*f GFLOP/s of matmul%s%s\n", device_name(), digits, gflops, precision, simulated);
    else
        print_rank_0("device  %s per rank, %.*f GFLOP/s of matmul in total%s%s\n", device_name(), digits, gflops,
                     precision, simulated);
}

static void print_summary(const char *carrier, bool tf32)
{
    const Config *c = &options.config;
    const bool several = comm_size(world) > 1;

    print_rank_0("%s%s\n", error_name(),
                 options.pretend ? " on simulated hardware (--pretend): times are not this machine's" : "");
    print_rank_0("model   %d layers, hidden %d, %d heads of %d, vocabulary %d: %s parameters\n", c->layers, c->hidden,
                 c->heads, c->hidden / c->heads, c->vocab, number_text(model_parameters(*c)));
    if (c->experts)
        print_rank_0("experts %d per block, of width %d; a token takes %d, and so uses %s parameters\n", c->experts,
                     c->expert_width, c->top_k, number_text(model_active_parameters(*c)));
    if (model->words)
        print_rank_0("%s\n", model->words(*c));
    if (several)
        print_rank_0("%s\n", comm_rank_table());
    print_device(tf32);
    if (several && !device_is_host())
        print_rank_0("comm    %s\n", carrier);
    print_rank_0("data    %s: %s: %s training, %s validation\n", options.data, data_file.kind,
                 number_text(data_file.training), number_text(data_file.validation));
}

void run_begin(const char *program, const char *summary, int argc, char **argv, const ProgramOption *more)
{
    run.argc = argc, run.argv = argv;
    device_prepare(argv);
    error_set_program(program);
    comm_begin(&argc, &argv);
    comm_check_same("the command line", arguments_hash(argc, argv));    /* so that all ranks find the same mistakes */
    options_parse(summary, argc, argv, more);
    print_enable(comm_rank(world) == 0 && !options.quiet);
    set_signals(on_signal);
    signal(SIGXFSZ, SIG_IGN);                   /* then a write fails, as it does on a full disk */
    const char *carrier = comm_choose();
    threads_set(options.threads, comm_local.cores);
    device_init(comm_local.rank);
    if (options.pretend && comm_local.size < comm_size(world))
        fail_usage("--pretend %s: expected all ranks on one machine, since it compares their clocks; got several",
                   options.pretend);
    /* dumped gradients are for comparing, and TF32 would differ from the CPU in the fourth digit */
    const bool wanted = options.tf32 == TF32_ON || (options.tf32 == TF32_AUTO && !options.dump_gradients);
    const bool tf32 = wanted && device_use_tf32();
    if (options.tf32 == TF32_ON && !tf32)
        fail_usage("--tf32 on: the device is %s, but only GPUs from sm_80 on have TF32", device_name());
    ops_stats_enable(false);
    open_files();
    if (options.trace || options.timeline)
        trace_open(comm_rank(world), trace_start());
    print_summary(carrier, tf32);
}

void run_set_global_batch(int64_t sequences)
{
    run.global_batch = sequences;
}

void run_set_matmul_dtype(DType dtype)
{
    run.matmul_dtype = dtype;
    if (dtype == REAL)
        return;
    print_rank_0("matmul  %s", dtype_name(dtype));
    if (device_supports(dtype) == SUPPORT_EMULATED)
        print_rank_0(", emulated (stored as %s, multiplied as %s)", dtype_name(dtype), dtype_name(REAL));
    print_rank_0(": %.0f GFLOP/s\n", peak_flops() / 1e9);
}

void run_register_state(const char *name, double *value)
{
    if (state.kept_count == SAVED_VALUES)
        fail("%s: there are more than %d saved values; raise SAVED_VALUES in checkpoint.h", name, SAVED_VALUES);
    state.kept[state.kept_count++] = (SavedValue){name, value};
}

static void print_loaded(void)
{
    if (state.weights_only)
        print_rank_0("starting from the weights of %s at step %d, without trainer.json and optimizer.safetensors",
                     options.load, run.first_step);
    else
        print_rank_0("resuming from %s at step %d", options.load, run.first_step);
    if (run.first_step >= options.steps)
        print_rank_0("; nothing to do: --steps must exceed %d", run.first_step);
    print_rank_0("\n");
}

int run_load(AdamW *optimizer)
{
    const int64_t of_rank = (int64_t)options.micro_batch * options.accumulate;

    for (int i = 0; i < optimizer->count && !options.load; i++)
        params_init(optimizer->layout, optimizer->shards[i].first, optimizer->shards[i].params, options.seed);
    if (options.load)
        checkpoint_load(optimizer, &state);
    metrics_open(&state);
    run.optimizer = optimizer;
    run.first_step = state.step;
    run.timeline_step = timeline_open(run.first_step);
    run.global_batch = run.global_batch ? run.global_batch : of_rank;
    const long long ranks = run.global_batch / of_rank;
    print_rank_0("batch   %d sequence(s) x %d micro-batch(es)%s = %s sequence(s) of %d = %s tokens per step\n",
                 options.micro_batch, options.accumulate, ranks > 1 ? format_text(" x dp %lld", ranks) : "",
                 number_text(run.global_batch), options.config.seq, number_text(run.global_batch * options.config.seq));
    if (options.load)
        print_loaded();
    print_rank_0("\n");
    run.began = run.step_began = clock_seconds();
    return run.first_step;
}

/* ---- Around a step ---- */

static void save(void)
{
    if (!options.save || run.saved_step == state.step)
        return;
    checkpoint_save(options.save, run.optimizer, state, run.argc, run.argv);
    run.saved_step = state.step;
    print_rank_0("saved step %lld to %s\n", (long long)state.step, options.save);
}

bool run_continues(int step)
{
    if (options.check && step == run.first_step)
        adamw_check_replicas(run.optimizer, "before the first step");
    if (step < options.steps && !run.stopping) {
        comm_stats_reset();
        ops_stats_enable(true);
        device_waits = 0;
        if (step + 1 == run.timeline_step)
            trace_step_begins();
        run.step_began = clock_seconds();
        return true;
    }
    if (run.stopping == SIGPIPE) {              /* nobody reads on */
        print_enable(false);
        clearerr(stdout);
    }
    if (run.stopping)
        print_rank_0("stopped by signal %d after step %d\n", run.stopping, step);
    save();
    if (!run.stopping)
        set_signals(SIG_DFL);                   /* nothing is left to save */
    run.differs |= memory_check();
    traffic_print();
    print_rank_0("%s", run.waits);
    timeline_draw();
    return false;
}

void run_dump_gradients(const AdamW *optimizer)
{
    if (options.dump_gradients && state.step == run.first_step)
        checkpoint_dump_gradients(options.dump_gradients, optimizer, state.step, run.global_batch);
}

/* What limits a run on several ranks: how long they wait in the last step, and the one that waits longest. */
static void measure_waits(double seconds)
{
    const int n = comm_size(world);
    double mine = 100 * comm_waited() / seconds, each[n], mean = 0;
    int most = 0;

    comm_gather_host(world, each, &mine, sizeof mine);
    for (int r = 0; r < n; r++) {
        mean += each[r] / n;
        most = each[r] > each[most] ? r : most;
    }
    if (n > 1 && mean < 5)
        snprintf(run.waits, sizeof run.waits, "ranks wait %.0f%% of a step: the devices limit it, not the links\n",
                 mean);
    else if (n > 1)
        snprintf(run.waits, sizeof run.waits, "ranks wait %.0f%% of a step; rank %d longest, %.0f%%; --timeline shows "
                 "when, and for what\n", mean, most, each[most]);
}

/* On a terminal one line that changes, at most ten times a second; every tenth step stays. To a file, the first ten
 * steps and every tenth (--metrics writes all). */
static void print_step(int step, StepResult r, double tokens_per_second, double mfu)
{
    static double printed;
    const double now = clock_seconds();
    const bool terminal = print_to_terminal(), stays = step % 10 == 0 || step >= options.steps || run.stopping;
    const char *dim = terminal ? "\033[2m" : "", *bold = terminal ? "\033[1m" : "", *plain = terminal ? "\033[0m" : "";
    const int filled = 10.0 * (step - run.first_step) / (options.steps - run.first_step);
    const char *bar = terminal ? format_text("%.*s%.*s ", filled, "##########", 10 - filled, "..........") : "";

    if (!stays && (terminal ? now - printed < 0.1 : step > run.first_step + 10))
        return;
    printed = now;
    print_status(stays, format_text("%sstep %d/%d  loss %s%.4f%s  norm %.3f  lr %.2e  %s%s tokens/s  MFU %.1f%%  peak "
                                    "%s  %s left%s", bar, step, options.steps, bold, r.loss, plain,
                                    r.norm, r.lr, dim, number_text(tokens_per_second), 100 * mfu,
                                    bytes_text(memory_total().peak), duration_text((now - run.began)
                                    / (step - run.first_step) * (options.steps - step)), plain));
}

/* --check: loss and norm are of the global batch, so every rank must have the same bits; rank 0 writes its own. of:
 * "validation ", or "". */
static void check_same(int step, StepResult mine, const char *of)
{
    double (*all)[2] = host_alloc(comm_size(world) * sizeof *all, "--check");

    comm_gather_host(world, all, (double[2]){mine.loss, mine.norm}, sizeof *all);
    for (int r = 1; r < comm_size(world); r++)
        for (int k = 0; k < 2; k++)
            if (memcmp((const char *)&all[r][k], (const char *)&all[0][k], sizeof(double)))     /* NaN equals NaN */
                fail("step %d: the %s%s is %.10g on rank 0, but %.10g on rank %d, and must be the same: is a sum "
                     "over the ranks missing (comm_sum, comm_all_reduce)?", step, of, k ? "gradient norm" : "loss",
                     all[0][k], all[r][k], r);
    free(all);
}

/* Signals reach ranks in different steps; all stop by the signal of the lowest rank that has one. */
static int first_signal(void)
{
    int all[comm_size(world)], mine = stopped_by, signal = 0;

    comm_gather_host(world, all, &mine, sizeof mine);
    for (int r = 0; r < comm_size(world); r++)
        signal = signal ? signal : all[r];
    return signal;
}

static _Noreturn void fail_diverged(int step, StepResult r)
{
    const char *saved = options.save ? "; the last checkpoint is unchanged" : "", *race = "", *range = "", *rate;

    if (options.check && comm_size(world) > 1)
        race = "under --check NaN may also mean that a buffer was read before comm_wait; otherwise ";
    if (run.matmul_dtype == F16)
        range = format_text("%s ends at %g, which some models exceed: try bf16; ", dtype_name(F16),
                            format_largest(F16));
    if (run.matmul_dtype == F16 && isfinite(r.loss))
        range = "gradients overflow under a loss scale, and a step that skips its update for that must say so "
                "(StepResult.skipped); ";
    if (step == run.first_step + 1)
        rate = "the weights had no update yet, so another --lr does not help";
    else if (options.clip)
        rate = "try a smaller --lr or a smaller --clip";
    else
        rate = "try a smaller --lr or --clip 1";
    fail("the loss is %g and the gradient norm is %g at step %d%s; %s%s%s", r.loss, r.norm, step, saved, race, range,
         rate);
}

void run_step(int step, StepResult result)
{
    const double seconds = clock_seconds() - run.step_began, tokens = (double)run.global_batch * options.config.seq;
    const double mfu = model_flops_per_token(options.config) * tokens / seconds / peak_flops();

    if (isnan(result.loss))                     /* without a sign, so that it prints as "nan", never "-nan" */
        result.loss = NAN;
    result.norm = fabs(result.norm);
    state.step = step;
    state.tokens += tokens;
    trace_step_ends();
    run.stopping = first_signal();
    if (step >= options.steps || run.stopping)
        measure_waits(seconds);
    report_step_ends(seconds, step == run.first_step + 1, step >= options.steps);
    const double clipped = result.norm * clip_scale(result.norm);       /* AdamW squares gradients in REAL */
    if (!isfinite(result.loss) || (!isfinite((real)(clipped * clipped)) && !result.skipped))
        fail_diverged(step, result);
    metrics_row(&state, result.loss, result.norm, result.lr, seconds, tokens / seconds, mfu);
    run.differs = run.differs || traffic_check(step);
    if (options.check) {
        check_same(step, result, "");
        adamw_check_replicas(run.optimizer, "after a step");
    }
    print_step(step, result, tokens / seconds, mfu);
    if (options.save_every && step % options.save_every == 0)
        save();
}

void run_report_validation(double loss)
{
    if (options.check)
        check_same(state.step, (StepResult){.loss = loss}, "validation ");
    report_validation(state.step, loss);
    print_rank_0("step %lld: validation loss %.4f nats per token\n", (long long)state.step, loss);
}

/* ---- The end ---- */

_Noreturn void run_end(void)
{
    for (int r = 0; r < comm_size(world); r++) {                /* ranks take turns to append */
        const bool first = r == 0, last = r == comm_size(world) - 1, mine = r == comm_rank(world);
        FILE *report = mine && options.report ? output_open("report", options.report, first) : NULL;
        FILE *trace = mine && options.trace ? output_open("trace", options.trace, first) : NULL;
        if (report) {
            report_write(report, peak_flops(), first, last);
            output_close("report", options.report, report);
        }
        if (trace) {
            trace_write(trace, first, last);
            output_close("trace", options.trace, trace);
        }
        comm_barrier(world);
    }
    metrics_close();
    const bool wrong = comm_sum(world, run.differs) > 0;
    comm_exit(run.stopping ? 128 + run.stopping : wrong);
}

void run_on_one_rank(void)
{
    if (comm_size(world) > 1)
        fail("this program runs on one rank, but %d ranks were started: start it without mpiexec", comm_size(world));
}
