/* What ranks do when one of them dies, hangs, is interrupted, or was started differently: no rank waits for ever, a
 * message gives the reason, and the previous checkpoint is complete.
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../harness.h"

#define ONE BUILD "/cpu64/01_single_gpu"
/* A step takes a millisecond. Fast simulated hardware saves measuring this machine. */
#define SHAPE "--layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --warmup 1 --data data.bin " \
              "--threads 1 --pretend 1e6,1e6,0"

static const struct {
    const char *name, *path, *options;
} programs[] = {
    {"03_data_parallel", BUILD "/cpu/03_data_parallel", ""},
    {"04_zero", BUILD "/cpu/04_zero", " --zero 1"},
    {"04_zero", BUILD "/cpu/04_zero", " --zero 2"},
    {"04_zero", BUILD "/cpu/04_zero", " --zero 3"},
    {"09_combined", BUILD "/cpu/09_combined", " --dtype fp32"},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };
static const struct {
    const char *path, *options;
} programs64[] = {
    {BUILD "/cpu64/03_data_parallel", ""},
    {BUILD "/cpu64/04_zero", " --zero 1"},
    {BUILD "/cpu64/04_zero", " --zero 2"},
    {BUILD "/cpu64/04_zero", " --zero 3"},
    {BUILD "/cpu64/09_combined", " --dtype fp32"},
};

/* ---- A run in the background, and its ranks ---- */

enum { RANKS = 8 };
static struct {
    pid_t launcher, rank[RANKS];
    int ranks;
} job;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static char *text_of(const char *name)                  /* the caller frees it */
{
    FILE *f = fopen(in_temporary(name), "r");
    char *text = NULL;
    size_t size = 0;

    if (!f || getdelim(&text, &size, 0, f) < 0)
        text = strcpy(realloc(text, 1), "");
    if (f)
        fclose(f);
    return text;
}

/* Whether a process has ended: it is gone, or a zombie. */
static bool gone(pid_t pid)
{
    char path[64], state = 'Z';

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    if (f)
        fclose(f);
    return state == 'Z' || state == 'X';
}

static int clean_up(void **state)
{
    (void)state;
    for (int r = 0; r < job.ranks; r++)
        if (!gone(job.rank[r]))
            kill(job.rank[r], SIGKILL);
    if (job.launcher)
        kill(-job.launcher, SIGKILL), waitpid(job.launcher, NULL, 0);
    job.launcher = job.ranks = 0;
    result_free(run("sh -c 'rm -rf ./*'"));
    return 0;
}

static int set_up(void **state)
{
    clean_up(state);
    run_well("mv %s data.bin", token_file(2000, 97));
    return 0;
}

static _Noreturn void give_up(const char *what)
{
    char *out = text_of("out"), *err = text_of("err");

    fail_msg("%s\n%s%s", what, out + (strlen(out) > 2000 ? strlen(out) - 2000 : 0), err);
    abort();
}

/* Starts a command in its own process group, as a shell does. Files out and err get its output. */
static void launch(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void launch(const char *format, ...)
{
    char command[4096] = "exec ";
    va_list list;

    va_start(list, format);
    vsnprintf(command + 5, sizeof command - 5, format, list);
    va_end(list);
    const char *in = temporary();
    unlink(in_temporary("out"));                /* of the previous run, which names other ranks */
    unlink(in_temporary("err"));
    job.ranks = 0;
    job.launcher = fork();
    if (job.launcher == 0) {
        setpgid(0, 0);
        if (chdir(in) || !freopen("/dev/null", "r", stdin) || !freopen("out", "w", stdout)
            || !freopen("err", "w", stderr))
            _exit(127);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(127);
    }
    setpgid(job.launcher, job.launcher);
}

/* Waits until the run has printed `text`, and stores its ranks' process ids, from "rank 0 = host:pid". */
static void wait_for(const char *text)
{
    for (double begin = now(); now() < begin + 20; usleep(2000)) {
        char *out = text_of("out"), *at = out;
        const bool there = strstr(out, text);
        if (there) {
            char name[32];
            for (job.ranks = 0; job.ranks < RANKS; job.ranks++) {
                snprintf(name, sizeof name, "rank %d = ", job.ranks);
                at = strstr(at, name);
                if (!at || !(at = strchr(at, ':')))
                    break;
                job.rank[job.ranks] = atoi(at + 1);
            }
            if (!job.ranks)
                give_up("the run does not print its ranks' process ids");
        }
        free(out);
        if (there)
            return;
        if (gone(job.launcher))
            give_up("the run ended too early");
    }
    give_up(text);
}

/* Returns the launcher's status. Fails unless the launcher and all ranks end within `seconds`. */
static int end_within(double seconds)
{
    const double begin = now();
    int status = -1, left;

    do {
        usleep(2000);
        if (job.launcher && waitpid(job.launcher, &status, WNOHANG) == job.launcher)
            job.launcher = 0;
        left = job.launcher != 0;
        for (int r = 0; r < job.ranks; r++)
            left += !gone(job.rank[r]);
    } while (left && now() < begin + seconds);
    if (left) {
        char what[128];
        snprintf(what, sizeof what, "after %.0f seconds %d processes are left%s", seconds, left,
                 job.launcher ? ", mpiexec among them" : "");
        give_up(what);
    }
    job.ranks = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Expects one line in `err` that begins with the program's name, and these words, separated by |. */
static void assert_message(const char *err, const char *name, const char *words)
{
    char begin[64], copy[512], *rest = copy;
    int lines = 0;

    snprintf(begin, sizeof begin, "%s: ", name);
    snprintf(copy, sizeof copy, "%s", words);
    for (const char *at = err; (at = strstr(at, begin)); at++)
        lines += at == err || at[-1] == '\n';
    if (lines != 1)
        fail_msg("%d lines instead of one begin with \"%s\":\n%s", lines, begin, err);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(err, word))
            fail_msg("no \"%s\" in\n%s", word, err);
}

static int64_t step_saved(const char *directory)
{
    char path[64];

    snprintf(path, sizeof path, "%s/trainer.json", directory);
    return json_number(in_temporary(path), "step");
}

static uint32_t below(uint32_t n)               /* a random number below n, the same in every run of the tests */
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) % n;
}

/* ---- A rank dies ---- */

/* When a rank is killed, mpiexec of MPICH 4.3 sometimes ends with status 0 and no message: 36 of 200 times, in a
 * program that only calls MPI_Allreduce. */
static bool mpiexec_loses_statuses(void)
{
    Result r = run("mpiexec --version");
    const char *at = strstr(r.out, "Version:");
    int major = 0, minor = 0;
    const bool known = at && sscanf(at + strlen("Version:"), "%d.%d", &major, &minor) == 2;

    result_free(r);
    return known && (major > 4 || (major == 4 && minor >= 3));
}

/* A rank is killed at a random moment of a run that saves after every step. The checkpoint is of a complete step, and
 * one rank that resumes from it has the same losses. */
static void a_killed_rank_ends_all(void **state)
{
    enum { STEPS = 4000 };
    static double reference[STEPS];
    const int times = full_tests() ? 50 : PROGRAMS;

    (void)state;
    run_well(ONE " " SHAPE " --accumulate 3 --steps 1 --save base --quiet");
    run_well(ONE " " SHAPE " --accumulate 3 --steps %d --metrics reference.csv --quiet", STEPS);
    assert_int_equal(read_column(in_temporary("reference.csv"), "loss", reference, STEPS), STEPS);
    for (int i = 0; i < times; i++) {
        const int victim = below(3);
        double loss[3];
        run_well("cp -r base kept");
        launch("mpiexec -n 3 %s " SHAPE " --accumulate 1%s --steps 1000000 --load kept --save kept --save-every 1",
               programs64[i % PROGRAMS].path, programs64[i % PROGRAMS].options);
        wait_for("saved step");
        usleep(below(100000));
        kill(job.rank[victim], SIGKILL);
        if (end_within(5) == 0 && !mpiexec_loses_statuses())
            give_up("a rank was killed, and the status is 0");
        const char *left = access(in_temporary("kept"), F_OK) ? "kept.old" : "kept";
        const int64_t step = step_saved(left);
        assert_true(step >= 2);
        if (step + 3 <= STEPS) {
            run_well(ONE " " SHAPE " --accumulate 3 --steps %lld --load kept --save kept --metrics on.csv --quiet",
                     (long long)step + 3);
            assert_int_equal(read_column(in_temporary("on.csv"), "loss", loss, 3), 3);
            for (int k = 0; k < 3; k++)
                if (!(fabs(loss[k] - reference[step + k]) <= 1e-9 * reference[step + k]))
                    fail_msg("resuming from step %lld, the loss of step %lld is %.17g instead of %.17g",
                             (long long)step, (long long)step + k + 1, loss[k], reference[step + k]);
        } else {
            run_well(ONE " " SHAPE " --accumulate 3 --steps 0 --load kept --quiet");
        }
        run_well("sh -c 'test ! -e kept.tmp && test ! -e kept.old && rm -rf kept on.csv'");
    }
}

/* ---- A run loads a checkpoint while another saves it ---- */

/* All ranks load the same step: a run that resumes from it has the losses of the saving run. */
static void what_is_loaded_is_one_checkpoint(void **state)
{
    enum { STEPS = 8000 };
    static double reference[STEPS];
    static const char *const loaders[] = {ONE " " SHAPE " --accumulate 2",
                                          "mpiexec -n 2 " BUILD "/cpu64/04_zero --zero 3 " SHAPE " --accumulate 1",
                                          "mpiexec -n 4 " BUILD "/cpu64/03_data_parallel " SHAPE " --accumulate 1"};
    const int times = full_tests() ? 60 : 6;
    int64_t last = 0;
    int compared = 0;

    (void)state;
    run_well(ONE " " SHAPE " --accumulate 2 --steps %d --metrics reference.csv --quiet", STEPS);
    assert_int_equal(read_column(in_temporary("reference.csv"), "loss", reference, STEPS), STEPS);
    launch("mpiexec -n 2 %s " SHAPE " --accumulate 1 --steps 1000000 --save kept --save-every 1", programs64[0].path);
    wait_for("saved step");
    for (int i = 0; i < times; i++) {
        double loss[3];
        /* with no step left to do, it saves what it has loaded */
        run_well("%s --load kept --steps 0 --save copy --quiet", loaders[i % 3]);
        const int64_t step = step_saved("copy");
        assert_true(step >= last);
        last = step;
        if (step + 3 <= STEPS) {
            run_well(ONE " " SHAPE " --accumulate 2 --steps %lld --load copy --metrics on.csv --quiet",
                     (long long)step + 3);
            assert_int_equal(read_column(in_temporary("on.csv"), "loss", loss, 3), 3);
            for (int k = 0; k < 3; k++)
                if (!(fabs(loss[k] - reference[step + k]) <= 1e-9 * reference[step + k]))
                    fail_msg("%s: after step %lld, the loss of step %lld is %.17g instead of %.17g", loaders[i % 3],
                             (long long)step, (long long)step + k + 1, loss[k], reference[step + k]);
            run_well("rm on.csv");
            compared++;
        }
    }
    assert_true(last > 1 && compared > 2);
    kill(job.rank[0], SIGTERM);
    end_within(5);
}

/* A process exchanges two checkpoints in a tight loop. A load finds one of them, never a mixture. */
static void a_directory_is_opened_at_once(void **state)
{
    static const char *const loaders[] = {ONE " " SHAPE " --accumulate 2",
                                          "mpiexec -n 2 " BUILD "/cpu64/04_zero --zero 3 " SHAPE " --accumulate 1"};
    const int times = full_tests() ? 100 : 10;

    (void)state;
    for (int seed = 1; seed <= 2; seed++)
        run_well(ONE " " SHAPE " --accumulate 2 --seed %d --steps %d --save seed%d --quiet", seed, seed, seed);
    const char *in = temporary();
    job.launcher = fork();
    if (job.launcher == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (chdir(in) == 0)
            renameat2(AT_FDCWD, "seed1", AT_FDCWD, "seed2", RENAME_EXCHANGE);
        _exit(1);
    }
    setpgid(job.launcher, job.launcher);
    for (int i = 0; i < times; i++) {
        run_well("%s --load seed1 --steps 0 --save copy --quiet", loaders[i % 2]);
        char *seed = NULL, *text = text_of("copy/trainer.json");
        const int64_t step = step_saved("copy");
        assert_true(step == 1 || step == 2);
        assert_true(asprintf(&seed, "\"seed\":\t\"%lld\"", (long long)step) > 0);
        assert_non_null(strstr(text, seed));
        free(seed);
        free(text);
    }
}

/* ---- A rank hangs ---- */

static void a_stopped_rank_is_named(void **state)
{
    static const struct {
        int program, ranks, stopped, timeout;
    } table[] = {{0, 3, 1, 2}, {3, 2, 0, 1}, {1, 3, 2, 1}, {2, 4, 3, 2}, {0, 2, 0, 2}, {3, 4, 1, 2}, {0, 4, 3, 1},
               {4, 4, 2, 1}};

    (void)state;
    for (int i = 0; i < (full_tests() ? 8 : 2); i++) {
        const char *const saving = i % 2 ? "--save kept --save-every 1" : "";
        char words[64];
        launch("mpiexec -n %d %s " SHAPE " --accumulate 1%s --steps 1000000 --timeout %d %s", table[i].ranks,
               programs[table[i].program].path, programs[table[i].program].options, table[i].timeout, saving);
        wait_for("step 5/");
        usleep(below(20000));
        kill(job.rank[table[i].stopped], SIGSTOP);
        const int status = end_within(table[i].timeout + 5);
        char *err = text_of("err");
        snprintf(words, sizeof words, "silent for %d seconds: rank %d;|waits for", table[i].timeout, table[i].stopped);
        assert_message(err, programs[table[i].program].name, words);
        assert_true(status != 0);
        free(err);
        result_free(run("sh -c 'rm -rf kept kept.*'"));
    }
}

/* The parent of process pid; 0: pid does not exist. */
static pid_t parent_of(pid_t pid)
{
    char path[64];
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %*c %d", &parent) != 1)
        parent = 0;
    if (f)
        fclose(f);
    return parent;
}

/* A rank is stopped after its last step: in the last all-reduces, in MPI_Finalize, or at exit. */
static void a_rank_stopped_at_the_end_is_named(void **state)
{
    const int times = full_tests() ? 20 : 3;
    int ended = 0;

    (void)state;
    for (int i = 0; i < times; i++) {
        const int victim = i % 2, timeout = full_tests() ? 3 : 1;
        char words[64];
        launch("mpiexec -n 2 %s " SHAPE " --accumulate 1%s --steps 60 --timeout %d", programs[i % PROGRAMS].path,
               programs[i % PROGRAMS].options, timeout);
        wait_for("step 60/60");
        usleep(below(4000));
        kill(job.rank[victim], SIGSTOP);
        const int status = end_within(timeout + 5);
        char *err = text_of("err");
        snprintf(words, sizeof words,
                 strstr(err, "silent") ? "silent for %d seconds: rank %d;" : "%d seconds|rank %d = ", timeout, victim);
        if (status)
            assert_message(err, programs[i % PROGRAMS].name, words);
        ended += !status;                       /* it had ended when the signal came */
        free(err);
    }
    assert_true(ended < times);
}

/* A rank is stopped before MPI_Init. The other one waits in MPI_Init, where it does not know its own rank yet. */
static void a_rank_stopped_at_the_start_ends_all(void **state)
{
    (void)state;
    if (!full_tests())
        skip();                                 /* some seconds of waiting each */
    launch("mpiexec -n 1 " BUILD "/cpu/03_data_parallel " SHAPE " --timeout 1 : -n 1 sh -c 'kill -STOP $$; exec " BUILD
           "/cpu/03_data_parallel " SHAPE " --timeout 1'");
    assert_true(end_within(12) != 0);
    char *err = text_of("err");
    assert_message(err, "03_data_parallel", "still waits for other ranks|it had 1 seconds to start");
    free(err);
}

/* A rank continues just after the others reached their deadline: the message says that it was stopped. */
static void a_rank_that_was_stopped_is_reported(void **state)
{
    (void)state;
    if (!full_tests())
        skip();                                 /* some seconds of waiting each */
    launch("mpiexec -n 2 " BUILD "/cpu/03_data_parallel " SHAPE " --accumulate 1 --steps 1000000 --timeout 2");
    wait_for("step 5/");
    kill(job.rank[1], SIGSTOP);
    usleep(2400000);
    kill(job.rank[1], SIGCONT);
    assert_true(end_within(6) != 0);
    char *err = text_of("err");
    assert_message(err, "03_data_parallel",
                   "a rank that was stopped kept others waiting, for 2 seconds|rank 1 was stopped");
    free(err);
}

/* The launcher's process on this machine is killed. It alone would end the ranks, so they must end by themselves. */
static void ranks_without_a_launcher_end(void **state)
{
    (void)state;
    for (int i = 0; i < (full_tests() ? 4 : 1); i++) {
        launch("mpiexec -n 3 %s " SHAPE " --accumulate 1%s --steps 1000000 --save kept", programs[3 - i].path,
               programs[3 - i].options);
        wait_for("step 5/");
        kill(parent_of(job.rank[0]), SIGKILL);
        end_within(5);
        assert_true(step_saved("kept") >= 5);
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
        run_well("sh -c 'test ! -e kept.tmp && rm -r kept'");
    }
}

/* As on a machine without its network: MPI_Abort waits for a launcher that does not respond. The ranks print to a file,
 * because such a launcher may lose what they print. */
static void a_silent_launcher_delays_no_rank(void **state)
{
    (void)state;
    if (!full_tests())
        skip();                                 /* some seconds of waiting each */
    launch("mpiexec -n 2 sh -c 'exec " BUILD "/cpu/03_data_parallel " SHAPE
           " --accumulate 1 --steps 1000000 --timeout 1 2>>ranks'");
    wait_for("step 5/");
    const pid_t proxy = parent_of(job.rank[0]);
    kill(proxy, SIGSTOP);
    kill(job.rank[1], SIGSTOP);
    for (double begin = now(); !gone(job.rank[0]) && now() < begin + 12;)
        usleep(10000);
    assert_true(gone(job.rank[0]));
    kill(proxy, SIGCONT);
    end_within(5);
    char *err = text_of("ranks");
    assert_message(err, "03_data_parallel", "silent for 1 seconds: rank 1");
    free(err);
}

/* A scheduler stops all ranks for longer than --timeout: they continue afterwards. */
static void a_suspended_run_continues(void **state)
{
    (void)state;
    launch("mpiexec -n 2 %s " SHAPE " --accumulate 1 --steps 1000000 --timeout 2", programs[0].path);
    wait_for("step 5/");
    for (int r = 0; r < 2; r++, usleep(100000))
        kill(job.rank[r], SIGSTOP);             /* rank 1 while it waits for rank 0 */
    usleep(3000000);
    for (int r = 1; r >= 0; r--, usleep(100000))
        kill(job.rank[r], SIGCONT);
    usleep(2500000);
    for (int r = 0; r < 2; r++)
        assert_false(gone(job.rank[r]));
    kill(job.rank[0], SIGTERM);
    end_within(5);
}

/* ---- The user or a scheduler ends the run ---- */

/* All ranks stop after the same step, save it, and end with 128 + the signal. The status of an interrupted mpiexec is
 * its own (0, with MPICH 4.0), so it is not checked. */
static void signals_stop_all_ranks(void **state)
{
    static const struct {
        const char *what;
        int signal, rank;       /* rank: the receiver; -1: all; -2: mpiexec's process group, as Ctrl-C; -3: mpiexec */
        int status;             /* -1: not checked */
    } table[] = {
        {"Ctrl-C", SIGINT, -2, -1},
        {"SIGTERM to mpiexec", SIGTERM, -3, -1},
        {"SIGTERM to rank 1", SIGTERM, 1, 143},
        {"SIGTERM to rank 0", SIGTERM, 0, 143},
        {"SIGINT to rank 2", SIGINT, 2, 130},
        {"SIGINT to all", SIGINT, -1, 130},
    };

    (void)state;
    for (int i = 0; i < 6; i++) {
        char text[64];
        launch("mpiexec -n 3 %s " SHAPE " --accumulate 1%s --steps 1000000 --save kept --timeout 10",
               programs[i % PROGRAMS].path, programs[i % PROGRAMS].options);
        wait_for("step 5/");
        if (table[i].rank == -2)
            kill(-job.launcher, table[i].signal);
        else if (table[i].rank == -3)
            kill(job.launcher, table[i].signal);
        for (int r = 0; r < job.ranks; r++)
            if (table[i].rank == -1 || table[i].rank == r)
                kill(job.rank[r], table[i].signal);
        const int status = end_within(5);
        char *out = text_of("out"), *err = text_of("err");
        if (table[i].status >= 0 && status != table[i].status)
            fail_msg("%s: status %d\n%s", table[i].what, status, err);
        snprintf(text, sizeof text, "stopped by signal %d after step %lld\n", table[i].signal,
                 (long long)step_saved("kept"));
        if (!strstr(out, text))
            fail_msg("%s: no \"%s\" in\n%s", table[i].what, text, out + (strlen(out) > 2000 ? strlen(out) - 2000 : 0));
        free(out);
        free(err);
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
        run_well("sh -c 'test ! -e kept.tmp && rm -r kept'");
    }
}

/* ---- Ranks with different command lines, and ranks that cannot start ---- */

/* Runs a command that must end with this status and one line. */
static void fails(int status, const char *name, const char *words, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void fails(int status, const char *name, const char *words, const char *format, ...)
{
    char command[4096];
    va_list list;

    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    Result r = run("timeout 15 %s", command);
    if (r.status != status)
        fail_msg("%s\nstatus %d, not %d\n%s%s", command, r.status, status, r.out, r.err);
    assert_message(r.err, name, words);
    result_free(r);
}

#define P03 BUILD "/cpu/03_data_parallel " SHAPE
#define P04 BUILD "/cpu/04_zero " SHAPE

static void ranks_must_be_started_alike(void **state)
{
    (void)state;
    fails(2, "03_data_parallel", "rank 0 has --seq 9|rank 1 --seq 10|same",
          "mpiexec -n 1 " P03 " --seq 9 : -n 1 " P03 " --seq 10");
    fails(2, "04_zero", "rank 0 has --zero 1|rank 2 --zero 3", "mpiexec -n 2 " P04 " --zero 1 : -n 1 " P04 " --zero 3");
    fails(2, "03_data_parallel", "rank 1|--check", "mpiexec -n 1 " P03 " : -n 1 " P03 " --check");
    /* an error on one rank alone */
    fails(2, "03_data_parallel", "rank 1|--nonsense", "mpiexec -n 1 " P03 " : -n 1 " P03 " --nonsense");
    fails(2, "03_data_parallel", "--nonsense", "mpiexec -n 1 " P03 " --nonsense : -n 2 " P03);
    fails(2, "03_data_parallel", "rank 2|--hidden x", "mpiexec -n 2 " P03 " : -n 1 " P03 " --hidden x");
    fails(2, "03_data_parallel", "rank 1|--help", "mpiexec -n 1 " P03 " : -n 1 " P03 " --help");
    /* --data names another file on one rank, no file, or one that is too short */
    run_well("mkdir other none short");
    run_well("cp %s other/data.bin", token_file(2001, 97));
    run_well("cp %s short/data.bin", token_file(20, 97));
    fails(2, "03_data_parallel", "rank 0 has --data whose tokens hash to|rank 1 --data whose tokens hash to",
          "mpiexec -n 1 " P03 " : -n 1 sh -c 'cd other && exec " P03 "'");
    fails(1, "04_zero", "--data data.bin: No such file", "mpiexec -n 1 " P04 " : -n 2 sh -c 'cd none && exec " P04 "'");
    fails(1, "04_zero", "--data data.bin: expected at least 90 tokens|got 20 tokens",
          "mpiexec -n 2 " P04 " : -n 1 sh -c 'cd short && exec " P04 "'");
}

static void all_end_if_one_cannot_start(void **state)
{
    (void)state;
    /* rank 0 alone opens these outputs */
    fails(1, "03_data_parallel", "--trace nowhere/t.json cannot be written",
          "mpiexec -n 3 " P03 " --trace nowhere/t.json");
    fails(1, "04_zero", "--report nowhere/r.json cannot be written", "mpiexec -n 2 " P04 " --report nowhere/r.json");
    fails(1, "04_zero", "--metrics nowhere/m.csv cannot be written", "mpiexec -n 2 " P04 " --metrics nowhere/m.csv");
    fails(1, "04_zero", "--save nowhere/kept", "mpiexec -n 2 " P04 " --save nowhere/kept");
    fails(1, "04_zero", "--load nowhere", "mpiexec -n 3 " P04 " --load nowhere");
    /* one rank's checkpoint is damaged */
    run_well(ONE " " SHAPE " --steps 1 --save kept --quiet");
    run_well("sh -c 'mkdir other; cp -r kept data.bin other; truncate -s 1000 other/kept/optimizer.safetensors'");
    fails(1, "03_data_parallel", "optimizer.safetensors",
          "mpiexec -n 1 " P03 " --load kept : -n 2 sh -c 'cd other && exec " P03 " --load kept'");
}

static void a_wrong_command_line_gets_one_message(void **state)
{
    (void)state;
    fails(2, "03_data_parallel", "unrecognized option|--nonsense", "mpiexec -n 3 " P03 " --nonsense");
    fails(2, "03_data_parallel", "--hidden: expected an integer from 2 to |, got 'x'",
          "mpiexec -n 3 " P03 " --hidden x");
    fails(2, "03_data_parallel", "--sync: expected one of naive|overlap|got 'sometimes'",
          "mpiexec -n 3 " P03 " --sync sometimes");
    fails(2, "04_zero", "--hidden: expected a multiple of --heads 4, got 50",
          "mpiexec -n 3 " P04 " --hidden 50 --heads 4");
    fails(2, "04_zero", "--zero: expected an integer from 1 to 3, got '4'", "mpiexec -n 3 " P04 " --zero 4");
    Result r = run("timeout 15 mpiexec -n 3 " P04 " --help");
    assert_int_equal(r.status, 0);
    const char *first = strstr(r.out, "sequences per micro-batch");
    assert_true(first && !strstr(first + 1, "sequences per micro-batch"));
    assert_string_equal(r.err, "");
    result_free(r);
}

/* ---- A failure during training ---- */

static void assert_nothing_half_written(void)
{
    Result r = run("sh -c 'ls -d *.tmp *.old 2>/dev/null'");

    if (r.out[0])
        fail_msg("left behind: %s", r.out);
    result_free(r);
}

/* Every rank finds an infinite loss; one of them reports it. */
static void divergence_ends_all(void **state)
{
    (void)state;
    for (int i = 0; i < (full_tests() ? PROGRAMS : 2); i++) {
        const int p = full_tests() ? i : 3 * i;
        const double begin = now();
        fails(1, programs[p].name, "the loss is|at step|--lr|last checkpoint is unchanged",
              "mpiexec -n 3 %s " SHAPE " --accumulate 1 --steps 1000 --lr 1000 --clip 0 --save kept --save-every 1 "
              "--report r.json --trace t.json --quiet%s", programs[p].path, programs[p].options);
        assert_true(now() - begin < 10);
        assert_nothing_half_written();
        assert_true(access(in_temporary("r.json"), F_OK) && access(in_temporary("t.json"), F_OK));
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
        run_well("rm -r kept");
    }
}

/* One rank cannot write its shard of a checkpoint. A limit on file sizes replaces the full disk. */
static void a_rank_that_cannot_write_ends_all(void **state)
{
    static const struct rlimit limit = {1000, 1000};

    (void)state;
    for (int i = 0; i < (full_tests() ? 2 * PROGRAMS : 2); i++) {
        const int p = full_tests() ? i / 2 : 3 * i, rank = p ? i % 2 : 0;       /* in 03 rank 0 writes all */
        launch("mpiexec -n 2 %s " SHAPE " --accumulate 1%s --steps 1000000 --save kept --save-every 1 --report r.json "
               "--trace t.json", programs[p].path, programs[p].options);
        wait_for("saved step");
        assert_int_equal(prlimit(job.rank[rank], RLIMIT_FSIZE, &limit, NULL), 0);
        assert_int_equal(end_within(5), 1);
        char *err = text_of("err");
        assert_message(err, programs[p].name, "kept.tmp/|File too large");
        free(err);
        assert_nothing_half_written();
        assert_true(step_saved("kept") >= 1);
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
        run_well("rm -r kept");
    }
}

/* Ranks 4 to 7 of 8 fail in the same way: one of them reports it. */
static void one_rank_reports_for_all(void **state)
{
    static const struct rlimit limit = {1000, 1000};

    (void)state;
    launch("mpiexec -n 8 " BUILD "/cpu/04_zero --zero 1 --layers 1 --hidden 16 --heads 2 --seq 8 --micro-batch 1 "
           "--accumulate 1 --threads 1 --steps 1000000 --save kept --save-every 1");
    wait_for("saved step");
    for (int r = 4; r < 8; r++)
        assert_int_equal(prlimit(job.rank[r], RLIMIT_FSIZE, &limit, NULL), 0);
    assert_int_equal(end_within(8), 1);
    char *err = text_of("err");
    int lines = 0;
    for (const char *at = err; (at = strstr(at, "File too large")); at++)
        lines++;
    if (lines != 1)
        fail_msg("%d lines for one failure:\n%s", lines, err);
    free(err);
    run_well("rm -r kept");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, clean_up)
    const struct CMUnitTest tests[] = {
        TEST(a_killed_rank_ends_all),
        TEST(what_is_loaded_is_one_checkpoint),
        TEST(a_directory_is_opened_at_once),
        TEST(a_stopped_rank_is_named),
        TEST(a_rank_stopped_at_the_end_is_named),
        TEST(a_rank_stopped_at_the_start_ends_all),
        TEST(a_rank_that_was_stopped_is_reported),
        TEST(ranks_without_a_launcher_end),
        TEST(a_silent_launcher_delays_no_rank),
        TEST(a_suspended_run_continues),
        TEST(signals_stop_all_ranks),
        TEST(ranks_must_be_started_alike),
        TEST(all_end_if_one_cannot_start),
        TEST(a_wrong_command_line_gets_one_message),
        TEST(divergence_ends_all),
        TEST(a_rank_that_cannot_write_ends_all),
        TEST(one_rank_reports_for_all),
    };

    return cmocka_run_group_tests_name("failures of ranks", tests, NULL, NULL);
}
