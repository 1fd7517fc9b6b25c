#include "run.h"

#include <cjson/cJSON.h>
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
#include "lock.h"
#include "memory_plan.h"
#include "operator.h"
#include "ops.h"
#include "print.h"
#include "trace.h"

static const char *stage_name;
static int arguments;
static char **argument;
static int data_ranks = 1;
static DType matmul_dtype = REAL;

static const AdamW *run_optimizer;
static TrainState state;                /* what trainer.json will say */
static Checkpoint *loaded;              /* --load, open from run_begin to run_load */
static int first_step, saved_step = -1;
static double run_began, step_began;
static volatile sig_atomic_t training;  /* the start is over */
static volatile sig_atomic_t stopped_by;
static int stopping;                    /* a signal that reached some rank; the same on all; 0: none */
static bool differs;                    /* something was not as predicted */
static CommAccount sent[64];            /* in the last step */
static int sent_count;
static double operators_before;         /* a step's beginning: operators' seconds until then */
static struct { int steps; double seconds, operators, waiting, late; } timed;    /* --report: steps but the first */

static FILE *metrics;
static char *report_file, *trace_file, *gradients_file;
static cJSON *held_out;                 /* for the report: losses on held-out tokens, by step */
static struct { const char *name; double value; } reported[8];     /* and a stage's own numbers */
static int reported_count;

/* ---- Output files: one program writes them, beside their place, and puts them there when complete ---- */

/* Devices, pipes and links (/dev/stdout) are written to directly, as renaming would replace them, and by whoever wants
 * to; other files are for one program at a time. What rank 0 sees counts. */
static bool take_file(const char *option, const char *path)
{
    struct stat s;

    comm_agree();                       /* a rank that failed would not come here */
    if (comm_sum(world, comm_rank(world) == 0 && lstat(path, &s) == 0 && !S_ISREG(s.st_mode)) > 0)
        return false;
    lock_take(option, path, path);
    return true;
}

/* Checks, before anything is computed, that a file can be written, and returns where to write it. */
static char *claim(const char *option, const char *path)
{
    char *tmp;

    if (!path)
        return NULL;
    const bool direct = !take_file(option, path);
    if (asprintf(&tmp, "%s%s", path, direct ? "" : ".tmp") < 0)
        fail("no memory for a path");
    if (!direct)
        error_cleanup(tmp);             /* by whichever rank fails */
    if (comm_rank(world))
        return tmp;
    const int file = open(tmp, O_WRONLY | O_CREAT, 0644);
    if (file < 0)
        fail("--%s %s cannot be written: %s", option, path, strerror(errno));
    if (direct)
        return tmp;                     /* stays open: the reader of a pipe would leave with its only writer */
    close(file);
    return tmp;
}

/* "/dev/stdout", when that is a file: a log, which keeps what it has, and gets what is printed in between. */
static bool is_stdout(const char *path)
{
    struct stat s, out;

    return stat(path, &s) == 0 && fstat(STDOUT_FILENO, &out) == 0 && s.st_dev == out.st_dev && s.st_ino == out.st_ino;
}

/* Rank after rank adds to a file: all must find what rank 0 has made. */
static void check_shared(const char *option, const char *tmp, const char *path)
{
    if (tmp && strcmp(tmp, path) && access(tmp, W_OK))
        fail("--%s %s: rank 0 has made %s, but rank %d doesn't find it: all ranks need one file system", option, path,
             tmp, comm_rank(world));
}

static void deliver(const char *option, const char *tmp, const char *path)
{
    if (comm_rank(world) == 0 && strcmp(tmp, path) && rename(tmp, path))
        fail("--%s %s cannot be put in place: %s", option, path, strerror(errno));
    error_cleanup_done(tmp);
}

static void open_metrics(void)
{
    struct stat s;

    if (options.metrics)
        take_file("metrics", options.metrics);
    if (!options.metrics || comm_rank(world))
        return;
    const bool there = lstat(options.metrics, &s) == 0;         /* a link, wherever it leads, is not ours to remove */
    metrics = is_stdout(options.metrics) ? fdopen(dup(STDOUT_FILENO), "a") : fopen(options.metrics, "a");
    if (!metrics)
        fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
    if (!there)
        error_cleanup(options.metrics);
}

/* Rows that are added to a file need the columns that it has: a program that keeps more numbers has more. A row
 * without its end, of a run that was killed or whose disk was full, goes, and so do rows of steps that a killed run has
 * made since its last checkpoint: they are made again. */
static void continue_rows(const char *header)
{
    FILE *f = fopen(options.metrics, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    off_t whole = 0;

    for (bool first = true; f && (length = getline(&line, &room, f)) > 0; first = false) {
        if (!first && atoll(line) > state.step)
            break;
        whole += line[length - 1] == '\n' ? length : 0;
        line[strcspn(line, "\r\n")] = 0;
        if (first && strcmp(line, header))
            fail("--metrics %s has the columns \"%s\", but this run's rows have \"%s\"; name another file",
                 options.metrics, line, header);
    }
    if (f && ftruncate(fileno(metrics), whole))
        fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
    free(line);
    if (f)
        fclose(f);
}

/* Nothing else can be wrong any more: now the old file's rows may go. */
static void begin_metrics(void)
{
    char header[256] = "step,tokens,loss,grad_norm,lr,seconds,tokens_per_second,mfu,peak_bytes,comm_bytes";
    struct stat s;

    if (!metrics)
        return;
    for (int i = 0; i < state.kept_count; i++)
        strcat(strcat(header, ","), state.kept[i].name);
    if (!is_stdout(options.metrics) && fstat(fileno(metrics), &s) == 0 && S_ISREG(s.st_mode)) {
        if (!options.load && ftruncate(fileno(metrics), 0))
            fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
        continue_rows(header);
    }
    fseek(metrics, 0, SEEK_END);
    if (ftell(metrics) <= 0 || is_stdout(options.metrics))
        fprintf(metrics, "%s\n", header);
    if (fflush(metrics))
        fail("--metrics %s cannot be written: %s", options.metrics, strerror(errno));
    error_cleanup_done(options.metrics);
}

/* ---- The start ---- */

static void on_signal(int signal_number)
{
    static double first;

    if (!training) {                                /* nothing to save yet, and what is waited for may never come */
        error_cleanup_now();
        _exit(128 + signal_number);
    }
    if (!stopped_by) {
        stopped_by = signal_number;
        first = clock_seconds();
    } else if (clock_seconds() - first > 0.2) {     /* a second one: at once. Sooner, it is the first one again: */
        error_cleanup_now();                        /* a launcher passes on what the terminal sent to all */
        _exit(128 + signal_number);
    }
}

/* The command line with a line for each option, for comparing ranks. */
static char *arguments_text(int argc, char **argv)
{
    size_t size;
    char *text;
    FILE *f = open_memstream(&text, &size);

    if (!f)
        fail("no memory for comparing arguments");
    fprintf(f, "%s in %s\n", stage_name, dtype_name(REAL));      /* programs of two kinds don't train together */
    for (int i = 1; i < argc; i++)
        fprintf(f, "%s%s", i == 1 ? "" : strncmp(argv[i], "--", 2) ? " " : "\n", argv[i]);
    fprintf(f, "\n");
    fclose(f);
    return text;
}

static double peak_flops(void)
{
    return comm_size(world) * (options.pretend_flops ? options.pretend_flops : device_peak_flops(matmul_dtype));
}

static const char *peak_text(void)
{
    static char text[64];

    snprintf(text, sizeof text, peak_flops() ? "%.0f GFLOP/s" : "no known rate, so no MFU,", peak_flops() / 1e9);
    return text;
}

/* On one machine all ranks' clocks are one; on several each counts from when its own ranks left a barrier. */
static double trace_start(void)
{
    const double first = comm_sum(world, comm_rank(world) ? 0 : clock_seconds());

    return comm_local_size() == comm_size(world) ? first : clock_seconds();
}

/* Otherwise what is opened first takes their numbers, a socket of MPI's perhaps, and gets what is printed. */
static void open_standard_streams(void)
{
    for (int file = 0; file <= STDERR_FILENO; file++)
        if (fcntl(file, F_GETFD) < 0)
            open("/dev/null", file ? O_RDONLY : O_WRONLY);      /* using it stays an error, and is found */
}

void run_begin(const char *stage, const char *summary, int argc, char **argv, const StageOption *more)
{
    open_standard_streams();
    device_prepare(argv);
    stage_name = stage;
    arguments = argc, argument = argv;
    error_speaker(stage);
    comm_begin(&argc, &argv);
    char *same = arguments_text(argc, argv);
    comm_same(same);                    /* first: then all ranks find the same mistakes in it */
    free(same);
    options_parse(stage, summary, argc, argv, more);
    print_enable(comm_rank(world) == 0 && !options.quiet);

    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* The terminal is closed. Not under nohup, which takes the streams away from it; that it ignores the signal can't
     * be seen any more, as UCX under MPI has taken that for its debugging, before main. */
    if (isatty(STDIN_FILENO) || isatty(STDOUT_FILENO) || isatty(STDERR_FILENO))
        sigaction(SIGHUP, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);           /* a file that may not grow is an error of write, like a full disk */
    signal(SIGPIPE, SIG_IGN);

    device_init(comm_local_rank(), comm_local_size(), options.threads ? options.threads : comm_local_threads());
    if (options.pretend && comm_local_size() < comm_size(world))
        fail_usage("--pretend %s, but the ranks are on several machines: it compares their clocks, and works on one",
                   options.pretend);
    if (options.tf32 && !device_use_tf32())
        fail_usage("--tf32, but the device is %s, and only GPUs from sm_80 on have TF32", device_name());
    const char *carrier = comm_choose();
    ops_pretend(options.pretend_flops);
    ops_count(false);
    if (options.report)
        ops_time();
    data_open();
    if (options.save)
        checkpoint_claim(options.save, options.load);
    state.seed = options.seed;
    if (options.load)
        loaded = checkpoint_open(options.load, options.config, &state), options.seed = state.seed;
    report_file = claim("report", options.report);
    trace_file = claim("trace", options.trace);
    gradients_file = claim("dump-gradients", options.dump_gradients);
    open_metrics();
    held_out = cJSON_CreateArray();
    char seen[256];
    int at = snprintf(seen, sizeof seen, "--data whose tokens hash to %016llx\n", (unsigned long long)data_hash());
    if (options.load)
        snprintf(seen + at, sizeof seen - at, "--load of step %lld, %lld tokens and seed %llu, whose weights hash to "
                 "%016llx\n", (long long)state.step, (long long)state.tokens, (unsigned long long)state.seed,
                 (unsigned long long)state.hash);
    comm_agree();
    comm_allow(0);
    check_shared("report", report_file, options.report);
    check_shared("trace", trace_file, options.trace);
    check_shared("dump-gradients", gradients_file, options.dump_gradients);
    comm_same(seen);
    if (trace_file)
        trace_open(comm_rank(world), trace_start());

    const Config *c = &options.config;
    print_rank_0("%s%s\n", stage, options.pretend ? ", pretending other hardware: times are not this machine's" : "");
    print_rank_0("model   %d layers, hidden %d, %d heads of %d, vocabulary %d: %s parameters\n", c->layers, c->hidden,
                 c->heads, c->hidden / c->heads, c->vocab, number_text(model_parameters(*c)));
    if (comm_size(world) > 1) {
        char *table = comm_rank_table();
        print_rank_0("ranks   %s\n", table);
        free(table);
    }
    print_rank_0("device  %s%s, %s in matmul%s%s\n", comm_size(world) > 1 ? "each rank " : "", device_name(),
                 peak_text(), comm_size(world) > 1 ? " together" : "", options.pretend ? " (pretended)" : "");
    if (comm_size(world) > 1 && !device_is_host())
        print_rank_0("comm    %s\n", carrier);
    print_rank_0("data    %s: %s, %s to train on, %s held out\n", options.data, data_kind(), number_text(data_tokens()),
                 number_text(data_held_out()));
}

void run_data_parallel(int ranks)
{
    data_ranks = ranks;
}

void run_matmuls_in(DType dtype)
{
    matmul_dtype = dtype;
    if (dtype == REAL)
        return;
    print_rank_0("matmul  of %s%s%s: %s\n", dtype_name(dtype),
                 device_supports(dtype) == SUPPORT_EMULATED ? ", emulated: stored as such, multiplied as " : "",
                 device_supports(dtype) == SUPPORT_EMULATED ? dtype_name(REAL) : "", peak_text());
}

void run_keep(const char *name, double *value)
{
    state.kept[state.kept_count++] = (Kept){name, value};
}

static int64_t global_batch(void)          /* sequences of a step */
{
    return (int64_t)options.micro_batch * options.accumulate * data_ranks;
}

int run_load(AdamW *optimizer)
{
    const int64_t sequences = global_batch();

    comm_allow(options.load ? 3.0 * sizeof(real) * model_parameters(options.config) : 0);
    if (loaded)
        checkpoint_load(loaded, optimizer, &state);
    for (int i = 0; i < optimizer->count && !loaded; i++)
        params_init(optimizer->layout, optimizer->parts[i].first, optimizer->parts[i].params, options.seed);
    if (gradients_file && state.step >= options.steps)
        fail("--dump-gradients %s: no step will be done, as this is step %lld and --steps %d is where to stop",
             options.dump_gradients, (long long)state.step, options.steps);
    begin_metrics();
    comm_started();
    training = true;
    comm_allow(0);
    run_optimizer = optimizer;
    first_step = state.step;
    char ranks[32] = "";
    if (data_ranks > 1)
        snprintf(ranks, sizeof ranks, " x %d ranks", data_ranks);
    print_rank_0("batch   %d sequences x %d accumulated%s = %s sequences of %d = %s tokens a step\n",
                 options.micro_batch, options.accumulate, ranks, number_text(sequences), options.config.seq,
                 number_text(sequences * options.config.seq));
    if (options.load)
        print_rank_0("%s %s at step %d%s%s\n", state.weights_only ? "beginning with the weights of" : "going on from",
                     options.load, first_step,
                     state.weights_only ? ", as there are no trainer.json and no optimizer.safetensors" : "",
                     first_step < options.steps ? "" : ": no step to do, as --steps says at which to stop");
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

/* What was sent in the step must be what predict() said, call by call and byte by byte. */
static void check_account(int step)
{
    sent_count = comm_account(sent, sizeof sent / sizeof *sent);
    for (const CommAccount *a = sent; a < sent + sent_count && !differs; a++)
        if (a->calls != a->predicted_calls || a->bytes != a->predicted_bytes) {
            fprintf(stderr, "%s: rank %d, step %d: %s in group %s: %lld calls sent %lld bytes, but predict() said %lld "
                    "calls and %lld bytes\n", stage_name, comm_rank(world), step, a->op, a->group,
                    (long long)a->calls, (long long)a->bytes, (long long)a->predicted_calls,
                    (long long)a->predicted_bytes);
            differs = true;
        }
}

/* On every rank, and with --quiet too: the table that follows is rank 0's. */
static void check_memory(void)
{
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        const MemoryEntry e = memory_entry(c);
        if (e.peak == e.predicted)
            continue;
        fprintf(stderr, "%s: rank %d: %s took %lld bytes, but predict() said %.0f\n", stage_name, comm_rank(world),
                memory_name[c], (long long)e.peak, e.predicted);
        differs = true;
    }
}

static void print_account(void)
{
    if (sent_count)
        print_rank_0("\n%-15s %-8s %7s %16s %7s %16s\n", "sent in a step", "group", "calls", "bytes", "calls",
                     "predicted");
    for (const CommAccount *a = sent; a < sent + sent_count; a++)
        print_rank_0("%-15s %-8s %7lld %16lld %7lld %16lld\n", a->op, a->group, (long long)a->calls,
                     (long long)a->bytes, (long long)a->predicted_calls, (long long)a->predicted_bytes);
}

static double operators_seconds(void)
{
    const OpAccount *account;
    const int count = ops_account(&account);
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += account[i].seconds;
    return sum;
}

/* Where a step's time went. The first one also makes threads, and meets memory and libraries for the first time. */
static void time_step(double seconds)
{
    ops_count(false);                           /* evaluations and samples are no part of a step */
    if (!options.report)
        return;
    if (state.step == first_step + 1) {
        if (state.step < options.steps)
            ops_account_reset();                /* on a GPU it loads cuBLAS, and every kernel, inside of operators */
        return;
    }
    timed.steps++;
    timed.seconds += seconds;
    timed.operators += operators_seconds() - operators_before;
    timed.waiting += comm_waited();
    timed.late += comm_late();
}

bool run_continues(int step)
{
    if (options.check && step == first_step)
        adamw_check_replicas(run_optimizer);
    if (step < options.steps && !stopping) {
        comm_account_reset();
        ops_count(true);
        operators_before = operators_seconds();
        step_began = clock_seconds();
        return true;
    }
    if (stopping)
        print_rank_0("stopped by signal %d after step %d\n", stopping, step);
    save();
    check_memory();
    memory_print();
    print_account();
    return false;
}

void run_dump_gradients(const AdamW *optimizer)
{
    if (!gradients_file || state.step != first_step)
        return;
    checkpoint_dump_gradients(gradients_file, optimizer, state.step, global_batch());
    deliver("dump-gradients", gradients_file, options.dump_gradients);
}

/* At most a few lines a second on a terminal; a file gets all of them. mfu: NaN if the device's rate isn't known. */
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

/* --check: loss and norm are of the global batch, so every rank must have the same. Only rank 0's are written. */
static void check_same(int step, StepResult mine)
{
    double (*all)[2] = calloc(comm_size(world), sizeof *all);

    if (!all)
        fail("no memory for --check");
    comm_gather_host(world, all, (double[2]){mine.loss, mine.norm}, sizeof *all);
    for (int r = 1; r < comm_size(world); r++)
        for (int k = 0; k < 2; k++)
            if (memcmp(&all[r][k], &all[0][k], sizeof(double)))
                fail("step %d: the %s is %.10g on rank 0, but %.10g on rank %d: the ranks' shares of it have to be "
                     "summed (comm_sum)", step, k ? "gradients' norm" : "loss", all[0][k], all[r][k], r);
    free(all);
}

void run_step(int step, StepResult result)
{
    const double seconds = clock_seconds() - step_began, tokens = (double)global_batch() * options.config.seq;
    const double peak = peak_flops();
    const double mfu = peak ? model_flops_per_token(options.config) * tokens / seconds / peak : NAN;

    if (isnan(result.loss))                     /* a NaN's sign says nothing: "nan", never "-nan" */
        result.loss = NAN;
    result.norm = fabs(result.norm);
    state.step = step;
    state.tokens += tokens;
    checkpoint_note(&state, (double[]){result.loss, result.norm, result.lr, options.weight_decay, options.clip}, 5);
    time_step(seconds);
    if (!isfinite(result.loss) || (!isfinite(result.norm) && !result.skipped))
        fail("the loss is %g and the gradients' norm %g at step %d%s; a smaller --lr or --clip may help%s", result.loss,
             result.norm, step, options.save ? ", and the last checkpoint is as it was" : "",
             !options.check || comm_size(world) == 1 ? "" : "; under --check what a transfer will write is NaN until "
             "comm_wait, so it may have been read before");
    if (metrics) {
        fprintf(metrics, "%d,%lld,%.17g,%.17g,%.9g,%.6f,%.1f,%.5f,%lld,%lld", step, (long long)state.tokens,
                result.loss, result.norm, result.lr, seconds, tokens / seconds, mfu, (long long)memory_total().peak,
                (long long)comm_bytes());
        for (int i = 0; i < state.kept_count; i++)
            fprintf(metrics, ",%.17g", *state.kept[i].value);
        fputc('\n', metrics);
        if (fflush(metrics))
            fail("--metrics %s could not be written: %s", options.metrics, strerror(errno));
    }
    check_account(step);
    if (options.check) {
        check_same(step, result);
        adamw_check_replicas(run_optimizer);
    }
    if (comm_orphaned())                                    /* nobody reads what is printed: as if a terminal closed */
        stopped_by = SIGHUP;
    if (comm_sum(world, stopped_by != 0) > 0)               /* signals reach ranks in different steps */
        stopping = comm_sum(world, stopped_by == SIGTERM) > 0  ? SIGTERM
                   : comm_sum(world, stopped_by == SIGHUP) > 0 ? SIGHUP
                                                               : SIGINT;
    print_step(step, result, tokens / seconds, mfu);
    if (options.save_every && step % options.save_every == 0)
        save();
}

void run_report(const char *name, double value)
{
    if (reported_count == sizeof reported / sizeof *reported)
        fail("--report has room for %d numbers of a stage, and %s is one more", reported_count, name);
    reported[reported_count].name = name;
    reported[reported_count++].value = value;
}

void run_held_out(double loss)
{
    cJSON *entry = cJSON_CreateObject();

    cJSON_AddNumberToObject(entry, "step", state.step);
    cJSON_AddNumberToObject(entry, "loss", loss);
    cJSON_AddItemToArray(held_out, entry);
    print_rank_0("step %lld: %.4f nats a token on held-out data\n", (long long)state.step, loss);
}

bool run_interrupted(void)
{
    static bool interrupted;

    if (stopped_by && !stopping)                /* not the one that ended training */
        stopping = stopped_by, interrupted = true;
    return interrupted;
}

/* ---- The end ---- */

static void add_bytes(cJSON *memory, const char *name, MemoryEntry e)
{
    cJSON *entry = cJSON_AddObjectToObject(memory, name);

    cJSON_AddNumberToObject(entry, "measured", e.peak);
    cJSON_AddNumberToObject(entry, "predicted", e.predicted);
    if (e.formula)
        cJSON_AddNumberToObject(entry, "playbook", e.playbook);
}

/* One rank's entry. */
static cJSON *rank_json(void)
{
    cJSON *rank = cJSON_CreateObject(), *groups, *memory, *comm, *time, *operators;
    const OpAccount *account;
    const int accounts = ops_account(&account);

    cJSON_AddNumberToObject(rank, "rank", comm_rank(world));
    groups = cJSON_AddObjectToObject(rank, "groups");
    for (const Comm *c = world; c; c = comm_next(c))
        cJSON_AddNumberToObject(groups, comm_name(c), comm_size(c));
    memory = cJSON_AddObjectToObject(rank, "memory");
    for (int c = 0; c < MEM_CATEGORIES; c++)
        add_bytes(memory, memory_name[c], memory_entry(c));
    add_bytes(memory, "total", memory_total());
    comm = cJSON_AddArrayToObject(rank, "comm");
    for (int i = 0; i < sent_count; i++) {
        cJSON *c = cJSON_CreateObject();
        cJSON_AddStringToObject(c, "op", sent[i].op);
        cJSON_AddStringToObject(c, "group", sent[i].group);
        cJSON_AddNumberToObject(c, "calls", sent[i].calls);
        cJSON_AddNumberToObject(c, "predicted_calls", sent[i].predicted_calls);
        cJSON_AddNumberToObject(c, "bytes", sent[i].bytes);
        cJSON_AddNumberToObject(c, "predicted", sent[i].predicted_bytes);
        cJSON_AddItemToArray(comm, c);
    }
    for (int i = 0; i < reported_count; i++)
        cJSON_AddNumberToObject(rank, reported[i].name, reported[i].value);
    time = cJSON_AddObjectToObject(rank, "time");
    cJSON_AddNumberToObject(time, "steps", timed.steps);
    cJSON_AddNumberToObject(time, "seconds", timed.seconds);
    cJSON_AddNumberToObject(time, "operators", timed.operators);
    cJSON_AddNumberToObject(time, "waiting", timed.waiting);
    if (options.pretend)
        cJSON_AddNumberToObject(time, "late", timed.late);
    operators = cJSON_AddArrayToObject(rank, "operators");
    for (int i = 0; i < accounts; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "op", account[i].name);
        cJSON_AddNumberToObject(o, "calls", account[i].calls);
        cJSON_AddNumberToObject(o, "seconds", account[i].seconds);
        cJSON_AddNumberToObject(o, "flops", account[i].flops);
        cJSON_AddNumberToObject(o, "bytes", account[i].bytes);
        cJSON_AddItemToArray(operators, o);
    }
    if (attention_pairs())              /* of all steps */
        cJSON_AddNumberToObject(rank, "attention_pairs", attention_pairs());
    return rank;
}

/* Rank after rank adds its entry; the last one closes the array and adds what is the same for all. */
static void write_report(bool first, bool last)
{
    cJSON *rank = rank_json(), *common = cJSON_CreateObject();
    FILE *f = fopen(report_file, "a");

    cJSON_AddStringToObject(common, "stage", stage_name);
    cJSON_AddNumberToObject(common, "parameters", model_parameters(options.config));
    cJSON_AddNumberToObject(common, "flops_per_token", model_flops_per_token(options.config));
    cJSON_AddNumberToObject(common, "peak_flops", peak_flops());
    if (options.pretend)                /* so that no time in it is taken for a real one */
        cJSON_AddStringToObject(common, "pretend", options.pretend);
    cJSON_AddItemToObject(common, "held_out", held_out);
    char *text = cJSON_Print(rank), *rest = cJSON_Print(common);
    if (!f || !text || !rest || fprintf(f, "%s%s", first ? "{\"ranks\": [" : ", ", text) < 0
        || (last && fprintf(f, "],%s\n", rest + 1) < 0) || fclose(f))           /* + 1: without its brace */
        fail("--report %s could not be written: %s", options.report, strerror(errno));
    free(text);
    free(rest);
    cJSON_Delete(rank);
    cJSON_Delete(common);
}

/* What is in a file from before goes. */
static void empty(const char *path)
{
    struct stat s;

    if (path && stat(path, &s) == 0 && S_ISREG(s.st_mode) && !is_stdout(path) && truncate(path, 0))
        fail("%s cannot be written: %s", path, strerror(errno));
}

_Noreturn void run_end(void)
{
    if (comm_rank(world) == 0) {
        empty(report_file);
        empty(trace_file);
    }
    for (int r = 0; r < comm_size(world); r++) {
        if (r == comm_rank(world) && report_file)
            write_report(r == 0, r == comm_size(world) - 1);
        if (r == comm_rank(world) && trace_file)
            trace_write(trace_file, r == 0, r == comm_size(world) - 1);
        comm_barrier(world);
    }
    if (report_file)
        deliver("report", report_file, options.report);
    if (trace_file)
        deliver("trace", trace_file, options.trace);
    if (metrics && fclose(metrics))
        fail("--metrics %s could not be written: %s", options.metrics, strerror(errno));
    lock_release_all();
    if (stopping != SIGHUP)                     /* then the terminal may be gone */
        fail_unprinted();
    const bool wrong = comm_sum(world, differs) > 0;
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
        fail("%d ranks were started, but this program is for one: start it without mpiexec", comm_size(world));
}
