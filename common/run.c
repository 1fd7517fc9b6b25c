#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "comm.h"
#include "data.h"
#include "device.h"
#include "error.h"
#include "metrics.h"
#include "operator.h"
#include "outputs.h"
#include "prediction.h"
#include "print.h"
#include "report.h"
#include "trace.h"

static const char *program_name;
static int arguments;
static char **argument;
static int64_t global_batch;            /* sequences per step */
static DType matmul_dtype = REAL;

static const AdamW *run_optimizer;
static TrainState state;                /* saved as trainer.json */
static Checkpoint *loaded;              /* --load, open from run_begin to run_load */
static int first_step, saved_step = -1;
static double run_began, step_began;
static volatile sig_atomic_t training;  /* start-up is over */
static volatile sig_atomic_t stopped_by;
static int stopping;                    /* a signal that reached some rank, agreed on by all; 0: none */
static bool differs;                    /* memory or traffic differed from the prediction */
static char *report_file, *trace_file, *gradients_file;         /* paths to write to until the files are complete */

/* ---- The start ---- */

static void on_signal(int signal_number)
{
    static double first;

    if (!training) {                                /* nothing to save yet, and a wait may never end */
        error_cleanup_now();
        _exit(128 + signal_number);
    }
    if (!stopped_by) {
        stopped_by = signal_number;
        first = clock_seconds();
    } else if (clock_seconds() - first > 0.2) {     /* a second signal ends at once. Within 0.2 s it is the same one: */
        error_cleanup_now();                        /* the terminal sends it to all, and the launcher forwards it */
        _exit(128 + signal_number);
    }
}

/* The program, its precision, and each option on a line of its own: ranks compare it. */
static char *arguments_text(int argc, char **argv)
{
    char *text = new_text("%s in %s", program_name, dtype_name(REAL));

    for (int i = 1; i < argc; i++) {
        char *longer = new_text("%s%s%s", text, i > 1 && strncmp(argv[i], "--", 2) ? " " : "\n", argv[i]);
        free(text);
        text = longer;
    }
    return text;
}

static double peak_flops(void)
{
    return comm_size(world) * (options.pretend_flops ? options.pretend_flops : device_peak_flops(matmul_dtype));
}

static const char *peak_text(void)
{
    static char text[64];

    snprintf(text, sizeof text, peak_flops() ? "%.0f GFLOP/s" : "unknown peak, so no MFU,", peak_flops() / 1e9);
    return text;
}

/* Time 0 of the trace: on one machine, where all ranks share a clock, rank 0's; on several, when this rank left a
 * barrier. */
static double trace_start(void)
{
    const double first = comm_sum(world, comm_rank(world) ? 0 : clock_seconds());

    return comm_local_size() == comm_size(world) ? first : clock_seconds();
}

/* Opens the standard streams that are closed. Otherwise the next file opened, perhaps a socket of MPI's, would get
 * their number and all that is printed. */
static void open_standard_streams(void)
{
    for (int file = 0; file <= STDERR_FILENO; file++)
        if (fcntl(file, F_GETFD) < 0)
            open("/dev/null", file ? O_RDONLY : O_WRONLY);      /* using it is still an error, which is reported */
}

static void catch_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* SIGHUP: the terminal was closed. Ignored under nohup, which redirects all three streams. (The signal's
     * disposition would not tell: UCX under MPI replaces it before main.) */
    if (isatty(STDIN_FILENO) || isatty(STDOUT_FILENO) || isatty(STDERR_FILENO))
        sigaction(SIGHUP, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);           /* then write fails, as it does on a full disk */
    signal(SIGPIPE, SIG_IGN);
}

/* Opens the data and the checkpoint, claims the outputs, and checks that all ranks read the same. */
static void open_files(void)
{
    char *loading = NULL;

    data_open();
    if (options.save)
        checkpoint_claim(options.save, options.load);
    state.seed = options.seed;
    if (options.load) {
        loaded = checkpoint_open(options.load, options.config, &state);
        options.seed = state.seed;
        loading = new_text("--load of step %lld, %lld tokens and seed %llu, whose weights hash to %016llx\n",
                           (long long)state.step, (long long)state.tokens, (unsigned long long)state.seed,
                           (unsigned long long)state.hash);
    }
    report_file = output_claim("report", options.report, false);
    trace_file = output_claim("trace", options.trace, false);
    gradients_file = output_claim("dump-gradients", options.dump_gradients, false);
    metrics_open();
    char *seen = new_text("--data whose tokens hash to %016llx\n%s", (unsigned long long)data_hash(),
                          loading ? loading : "");
    comm_agree();
    comm_extend_timeout(0);
    comm_check_same(seen);
    free(seen);
    free(loading);
}

static void print_summary(const char *carrier, bool tf32)
{
    const Config *c = &options.config;
    const bool several = comm_size(world) > 1;

    print_rank_0("%s%s\n", program_name,
                 options.pretend ? " on simulated hardware (--pretend): times are not this machine's" : "");
    print_rank_0("model   %d layers, hidden %d, %d heads of %d, vocabulary %d: %s parameters\n", c->layers, c->hidden,
                 c->heads, c->hidden / c->heads, c->vocab, number_text(model_parameters(*c)));
    if (several) {
        char *table = comm_rank_table();
        print_rank_0("ranks   %s\n", table);
        free(table);
    }
    print_rank_0("device  %s%s, %s in matmul%s%s%s\n", several ? "each rank " : "", device_name(), peak_text(),
                 device_is_host() ? "" : tf32 ? " of TF32" : " of float", several ? " together" : "",
                 options.pretend ? " (simulated)" : "");
    if (several && !device_is_host())
        print_rank_0("comm    %s\n", carrier);
    print_rank_0("data    %s: %s: %s training, %s validation\n", options.data, data_kind(), number_text(data_tokens()),
                 number_text(data_held_out()));
}

void run_begin(const char *program, const char *summary, int argc, char **argv, const ProgramOption *more)
{
    open_standard_streams();
    device_prepare(argv);
    program_name = program;
    arguments = argc, argument = argv;
    error_set_program(program);
    comm_begin(&argc, &argv);
    char *same = arguments_text(argc, argv);
    comm_check_same(same);                      /* before parsing, so that all ranks find the same mistakes */
    free(same);
    options_parse(program, summary, argc, argv, more);
    print_enable(comm_rank(world) == 0 && !options.quiet);
    catch_signals();
    const char *carrier = comm_choose();
    device_init(comm_local_rank(), comm_local_size(), options.threads ? options.threads : comm_local_threads());
    if (options.pretend && comm_local_size() < comm_size(world))
        fail_usage("--pretend %s: expected all ranks on one machine, since it compares their clocks; got several",
                   options.pretend);
    /* dumped gradients are for comparing, and TF32 would differ from the CPU in the fourth digit */
    const bool wanted = options.tf32 == TF32_ON || (options.tf32 == TF32_AUTO && !options.dump_gradients);
    const bool tf32 = wanted && device_use_tf32();
    if (options.tf32 == TF32_ON && !tf32)
        fail_usage("--tf32 on: the device is %s, but only GPUs from sm_80 on have TF32", device_name());
    ops_pretend(options.pretend_flops);
    ops_stats_enable(false);
    if (options.report)
        ops_time();
    open_files();
    if (trace_file)
        trace_open(comm_rank(world), trace_start());
    print_summary(carrier, tf32);
}

void run_set_global_batch(int64_t sequences)
{
    global_batch = sequences;
}

void run_set_matmul_dtype(DType dtype)
{
    matmul_dtype = dtype;
    if (dtype == REAL)
        return;
    print_rank_0("matmul  of %s%s%s: %s\n", dtype_name(dtype),
                 device_supports(dtype) == SUPPORT_EMULATED ? ", emulated: stored as such, multiplied as " : "",
                 device_supports(dtype) == SUPPORT_EMULATED ? dtype_name(REAL) : "", peak_text());
}

void run_register_state(const char *name, double *value)
{
    state.kept[state.kept_count++] = (SavedValue){name, value};
}

/* Warns about a vocabulary that slows down the output projection. A GPU's matmuls load 16 bytes at a time, and Hopper's
 * (by TMA) only if rows are multiples of that: others use a slower algorithm, three times per micro-batch. V: rank 0's
 * rows of the embedding; where the vocabulary is split unevenly, some ranks have one more. */
static void print_odd_vocabulary(int64_t V)
{
    const int64_t vocab = options.config.vocab, slices = vocab / V, unit = 64 * slices;
    const int64_t size = dtype_size(matmul_dtype == REAL ? REAL : BF16);
    const int64_t width = V * size % 16 || vocab % slices == 0 ? V : V + 1;

    if (!device_is_host() && width * size % 16)
        print_rank_0("vocab   rows of %lld logits are %lld bytes, no multiple of 16: the output projection is slower "
                     "than with --vocab %lld\n", (long long)width, (long long)(width * size),
                     (long long)((vocab + unit - 1) / unit * unit));
}

int run_load(AdamW *optimizer)
{
    const int64_t of_rank = (int64_t)options.micro_batch * options.accumulate;

    comm_extend_timeout(options.load ? 3.0 * sizeof(real) * model_parameters(options.config) : 0);
    if (loaded)
        checkpoint_load(loaded, optimizer, &state);
    for (int i = 0; i < optimizer->count && !loaded; i++)
        params_init(optimizer->layout, optimizer->shards[i].first, optimizer->shards[i].params, options.seed);
    if (gradients_file && state.step >= options.steps)
        fail("--dump-gradients %s: no step to do after step %lld with --steps %d; --steps must be larger",
             options.dump_gradients, (long long)state.step, options.steps);
    metrics_begin(&state);
    comm_started();
    training = true;
    comm_extend_timeout(0);
    run_optimizer = optimizer;
    first_step = state.step;
    char ranks[32] = "";
    global_batch = global_batch ? global_batch : of_rank;
    if (global_batch > of_rank)
        snprintf(ranks, sizeof ranks, " x %lld ranks", (long long)(global_batch / of_rank));
    print_rank_0("batch   %d sequence%s x %d micro-batch%s%s = %s sequence%s of %d = %s tokens per step\n",
                 options.micro_batch, options.micro_batch == 1 ? "" : "s", options.accumulate,
                 options.accumulate == 1 ? "" : "es", ranks, number_text(global_batch), global_batch == 1 ? "" : "s",
                 options.config.seq, number_text(global_batch * options.config.seq));
    print_odd_vocabulary(optimizer->layout->table[0].local_rows);
    if (options.load)
        print_rank_0("%s %s at step %d%s%s\n", state.weights_only ? "starting from the weights of" : "resuming from",
                     options.load, first_step,
                     state.weights_only ? ", without trainer.json and optimizer.safetensors" : "",
                     first_step < options.steps ? "" : "; nothing to do: --steps must be larger");
    print_rank_0("\n");
    run_began = step_began = clock_seconds();
    return first_step;
}

/* ---- Around a step ---- */

static void save(void)
{
    if (!options.save || saved_step == state.step)
        return;
    checkpoint_save(options.save, run_optimizer, state, arguments, argument);
    saved_step = state.step;
    print_rank_0("saved step %lld to %s\n", (long long)state.step, options.save);
}

bool run_continues(int step)
{
    if (options.check && step == first_step)
        adamw_check_replicas(run_optimizer);
    if (step < options.steps && !stopping) {
        comm_stats_reset();
        report_step_begins();
        step_began = clock_seconds();
        return true;
    }
    if (stopping)
        print_rank_0("stopped by signal %d after step %d\n", stopping, step);
    save();
    differs |= memory_check();
    memory_print();
    traffic_print();
    return false;
}

void run_dump_gradients(const AdamW *optimizer)
{
    if (!gradients_file || state.step != first_step)
        return;
    checkpoint_dump_gradients(gradients_file, optimizer, state.step, global_batch);
    output_deliver("dump-gradients", gradients_file, options.dump_gradients);
}

/* On a terminal, prints at most four lines per second; to a file, every step. mfu: NaN if the device's peak is
 * unknown. */
static void print_step(int step, StepResult r, double tokens_per_second, double mfu)
{
    static double printed;
    const double now = clock_seconds();
    const bool terminal = isatty(STDOUT_FILENO), last = step >= options.steps || stopping;
    const char *dim = terminal ? "\033[2m" : "", *bold = terminal ? "\033[1m" : "", *plain = terminal ? "\033[0m" : "";
    char utilization[32] = "";

    if (terminal && now - printed < 0.25 && !last)
        return;
    printed = now;
    if (!isnan(mfu))
        snprintf(utilization, sizeof utilization, "  MFU %.1f%%", 100 * mfu);
    print_rank_0("step %d/%d  loss %s%.4f%s  norm %.3f  lr %.2e  %s%s tokens/s%s  peak %s  %s left%s\n", step,
                 options.steps, bold, r.loss, plain, r.norm, r.lr, dim, number_text(tokens_per_second), utilization,
                 bytes_text(memory_total().peak),
                 duration_text((now - run_began) / (step - first_step) * (options.steps - step)), plain);
}

/* --check: loss and norm are the global batch's, so every rank must have the same bits; only rank 0's are written. */
static void check_same(int step, StepResult mine)
{
    double (*all)[2] = host_alloc(comm_size(world) * sizeof *all, "--check");

    comm_gather_host(world, all, (double[2]){mine.loss, mine.norm}, sizeof *all);
    for (int r = 1; r < comm_size(world); r++)
        for (int k = 0; k < 2; k++)
            if (memcmp((const char *)&all[r][k], (const char *)&all[0][k], sizeof(double)))     /* NaN is NaN */
                fail("step %d: the %s is %.10g on rank 0, but %.10g on rank %d: add the ranks' partial sums (comm_sum)",
                     step, k ? "gradients' norm" : "loss", all[0][k], all[r][k], r);
    free(all);
}

void run_step(int step, StepResult result)
{
    const double seconds = clock_seconds() - step_began, tokens = (double)global_batch * options.config.seq;
    const double peak = peak_flops();
    const double mfu = peak ? model_flops_per_token(options.config) * tokens / seconds / peak : NAN;

    if (isnan(result.loss))                     /* without a sign, so that it prints as "nan", never "-nan" */
        result.loss = NAN;
    result.norm = fabs(result.norm);
    state.step = step;
    state.tokens += tokens;
    checkpoint_note(&state, (double[]){result.loss, result.norm, result.lr, options.weight_decay, options.clip}, 5);
    report_step_ends(seconds, step == first_step + 1, step >= options.steps);
    if (!isfinite(result.loss) || (!isfinite(result.norm) && !result.skipped))
        fail("the loss is %g and the gradients' norm %g at step %d%s; try a smaller --lr or --clip%s", result.loss,
             result.norm, step, options.save ? "; the last checkpoint is unchanged" : "",
             !options.check || comm_size(world) == 1 ? "" : "; under --check a buffer that a transfer writes is NaN "
             "until comm_wait, so one may have been read too early");
    metrics_row(&state, result.loss, result.norm, result.lr, seconds, tokens / seconds, mfu);
    differs = differs || traffic_check(step);
    if (options.check) {
        check_same(step, result);
        adamw_check_replicas(run_optimizer);
    }
    if (comm_orphaned())                                    /* as if the terminal were closed */
        stopped_by = SIGHUP;
    if (comm_sum(world, stopped_by != 0) > 0)               /* signals reach ranks in different steps */
        stopping = comm_sum(world, stopped_by == SIGTERM) > 0  ? SIGTERM
                   : comm_sum(world, stopped_by == SIGHUP) > 0 ? SIGHUP
                                                               : SIGINT;
    print_step(step, result, tokens / seconds, mfu);
    if (options.save_every && step % options.save_every == 0)
        save();
}

void run_report_validation(double loss)
{
    report_validation(state.step, loss);
    print_rank_0("step %lld: validation loss %.4f nats per token\n", (long long)state.step, loss);
}

bool run_interrupted(void)
{
    static bool interrupted;

    if (stopped_by && !stopping)                /* not the signal that ended training */
        stopping = stopped_by, interrupted = true;
    return interrupted;
}

/* ---- The end ---- */

_Noreturn void run_end(void)
{
    for (int r = 0; r < comm_size(world); r++) {
        if (r == comm_rank(world) && report_file)
            report_write(report_file, peak_flops(), r == 0, r == comm_size(world) - 1);
        if (r == comm_rank(world) && trace_file)
            trace_write(trace_file, r == 0, r == comm_size(world) - 1);
        comm_barrier(world);
    }
    if (report_file)
        output_deliver("report", report_file, options.report);
    if (trace_file)
        output_deliver("trace", trace_file, options.trace);
    metrics_close();
    if (stopping != SIGHUP)                     /* after a SIGHUP the terminal may be gone */
        fail_unprinted();
    const bool wrong = comm_sum(world, differs) > 0;
    if (comm_rank(world) == 0)
        error_cleanup_now();                    /* removes the lock files; all else is complete */
    comm_exit(stopping ? 128 + stopping : wrong);
}

_Noreturn void run_leave(void)
{
    fail_unprinted();
    comm_agree();
    error_cleanup_now();
    comm_exit(0);
}

void run_alone(void)
{
    if (comm_size(world) > 1)
        fail("this program runs on one rank, but %d ranks were started: start it without mpiexec", comm_size(world));
}
