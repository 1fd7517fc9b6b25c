/* What ranks do when one of them dies, hangs, is interrupted, or was started differently: no rank waits forever, a
 * message gives the reason, and the previous checkpoint is complete.
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../common/base/device.h"
#include "../harness.h"

#define ONE BUILD "/cpu64/01_single_gpu"
/* A step takes a millisecond. Fast simulated hardware saves measuring this machine. */
#define SHAPE "--layers 4 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --warmup 1 --data data.bin " \
              "--threads 1 --pretend 1e6,1e6,0"

/* The programs of several ranks; with these options two ranks can train a model of four layers. */
static const struct {
    const char *name, *options;
    int batch;                                  /* accumulation with which one rank of 01 trains on the same batches */
} programs[] = {
    {"03_data_parallel", "--accumulate 1", 2},
    {"04_zero", "--zero 1 --accumulate 1", 2},
    {"06_pipeline_parallel", "--accumulate 2", 2},
    {"09_combined", "--dtype fp32 --accumulate 1", 2},
    {"05_tensor_parallel", "--accumulate 2", 2},
    {"04_zero", "--zero 3 --accumulate 1", 2},
    {"07_context_parallel", "--accumulate 2", 2},
    {"09_combined", "--dtype fp32 --tp 2 --accumulate 2", 2},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* ---- A run in the background, and its ranks ---- */

enum { RANKS = 8 };
static struct {
    pid_t launcher, rank[RANKS];
    int ranks;
    bool continued;             /* Open MPI continues a stopped rank before it ends it: its deadline may have passed */
} job;

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
    for (int r = 0; r < job.ranks; r++)
        if (!gone(job.rank[r]))
            kill(job.rank[r], SIGKILL);
    if (job.launcher)
        kill(-job.launcher, SIGKILL), waitpid(job.launcher, NULL, 0);
    job.launcher = job.ranks = 0;
    job.continued = false;
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
    char *out = read_file("out"), *err = read_file("err");

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
    write_file("out", "", 0);                   /* the previous run's names other ranks */
    write_file("err", "", 0);
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
    for (double begin = clock_seconds(); clock_seconds() < begin + 20; usleep(2000)) {
        char *out = read_file("out"), *at = out;
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
    const double begin = clock_seconds();
    int status = -1, left;

    do {
        usleep(2000);
        if (job.launcher && waitpid(job.launcher, &status, WNOHANG) == job.launcher)
            job.launcher = 0;
        left = job.launcher != 0;
        for (int r = 0; r < job.ranks; r++)
            left += !gone(job.rank[r]);
    } while (left && clock_seconds() < begin + seconds);
    if (left) {
        char what[128];
        snprintf(what, sizeof what, "after %.0f seconds %d processes are left%s", seconds, left,
                 job.launcher ? ", mpiexec among them" : "");
        give_up(what);
    }
    job.ranks = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Whether mpiexec is Open MPI's, which does some things differently. It starts no two different commands at once in
 * version 5.0.7, where it crashes; so a shell chooses what a rank runs, by RANK. */
static bool open_mpi;
#define RANK "${PMI_RANK-$OMPI_COMM_WORLD_RANK}"

/* Expects one line in `err` that begins with the program's name, and these words, separated by |. Frees `err`. */
static void assert_message(char *err, const char *name, const char *words)
{
    char begin[64];
    int lines = 0;

    snprintf(begin, sizeof begin, "%s: ", name);
    for (const char *at = err; (at = strstr(at, begin)); at++)
        lines += at == err || at[-1] == '\n';
    if (lines != 1 && !(lines == 2 && job.continued))
        fail_msg("%d lines instead of one begin with \"%s\":\n%s", lines, begin, err);
    expect((Result){.out = strdup(""), .err = err}, 0, words);
}

static int64_t step_saved(const char *directory)
{
    return json_number(saved(directory, "trainer.json"), "step");
}

/* Starts two ranks of a program. */
static void launch_two(int program, const char *options)
{
    launch("mpiexec -n 2 " BUILD "/cpu64/%s " SHAPE " %s %s", programs[program].name, programs[program].options,
           options);
}

/* ---- A rank dies ---- */

/* A rank is killed at a random moment of a run that saves after every step, so often in the middle of a save. A
 * checkpoint of a complete step is left, and one rank that resumes from it has the same losses. The status is
 * mpiexec's, which from MPICH 4.2 on is sometimes 0. */
static void a_killed_rank_ends_all(void **state)
{
    enum { STEPS = 3000 };
    static double reference[STEPS];
    const int times = full_tests() ? 50 : PROGRAMS;

    run_well(ONE " " SHAPE " --accumulate 2 --steps %d --metrics reference.csv --quiet", STEPS);
    assert_int_equal(read_column("reference.csv", "loss", reference, STEPS), STEPS);
    for (int i = 0; i < times; i++) {
        double loss[3];
        run_well("sh -c 'rm -rf kept*'");
        launch_two(i % PROGRAMS, "--steps 1000000 --save kept --save-every 1");
        wait_for("saved step 2");
        usleep(random_below(100000));
        kill(job.rank[random_below(2)], SIGKILL);
        end_within(5);
        const int64_t step = step_saved("kept");
        assert_true(step >= 2 && step + 3 <= STEPS);
        run_well(ONE " " SHAPE " --accumulate 2 --steps %lld --load kept --save kept --metrics on.csv --quiet",
                 (long long)step + 3);
        assert_int_equal(read_column("on.csv", "loss", loss, 3), 3);
        for (int k = 0; k < 3; k++)
            if (!(fabs(loss[k] - reference[step + k]) <= 1e-9 * reference[step + k]))
                fail_msg("resuming from step %lld, the loss of step %lld is %.17g instead of %.17g",
                         (long long)step, (long long)step + k + 1, loss[k], reference[step + k]);
        run_well("sh -c 'test $(ls kept | wc -l) = 3 && rm -r kept on.csv'");       /* latest, lock and a step */
    }
}

/* A rank meets an instruction that its processor lacks. */
static void an_unknown_instruction_ends_all(void **state)
{
    launch_two(0, "--steps 1000000");
    wait_for("step 2/");
    kill(job.rank[1], SIGILL);
    assert_int_not_equal(end_within(5), 0);
    assert_message(read_file("err"), programs[0].name, "this processor lacks an instruction|make PORTABLE=1");
}

/* ---- A rank hangs ---- */

/* A rank is stopped. The other rank says what it waits for, and all end within --timeout and a tenth of it. */
static void a_stopped_rank_ends_all(void **state)
{
    enum { TIMEOUT = 2 };

    for (int p = full_tests() ? 0 : PROGRAMS - 2; p < PROGRAMS; p++) {          /* each takes --timeout */
        launch_two(p, "--timeout 2 --steps 1000000");
        wait_for("step 5/");
        usleep(random_below(20000));
        kill(job.rank[p % 2], SIGSTOP);
        const double begin = clock_seconds();
        const int status = end_within(1.1 * TIMEOUT + (open_mpi ? 4 : 1));      /* a second for this machine */
        job.continued = open_mpi;
        if (status == 0 || clock_seconds() - begin < 0.8 * TIMEOUT)
            fail_msg("%s: status %d after %.1f seconds", programs[p].name, status, clock_seconds() - begin);
        assert_message(read_file("err"), programs[p].name, "waits for|of group|for 2 seconds (--timeout)");
    }
}

/* ---- The user or a scheduler ends the run ---- */

/* All ranks stop after the same step, save it, and end with 128 + the signal. The status of an interrupted mpiexec is
 * its own (0, with MPICH 4.0), so it is not checked. Open MPI's passes SIGUSR1 on. For Ctrl-C and SIGTERM it stops to
 * read what its ranks print, sends them SIGTERM, and kills them a moment later. So steps are not too short here: ranks
 * that print much would wait for their reader. */
static void signals_stop_all_ranks(void **state)
{
    static const struct {
        const char *what;
        int signal, rank;       /* rank: the receiver; -2: mpiexec's process group, as Ctrl-C; -3: mpiexec */
        int status;             /* -1: not checked */
    } table[] = {
        {"Ctrl-C", SIGINT, -2, -1},
        {"SIGTERM to mpiexec", SIGTERM, -3, -1},
        {"SIGTERM to rank 1", SIGTERM, 1, 143},
        {"SIGUSR1 to mpiexec", SIGUSR1, -3, -1},
        {"SIGHUP to rank 0", SIGHUP, 0, 129},
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[64];
        run_well("sh -c 'rm -rf kept'");
        launch_two(i, "--steps 1000000 --save kept --pretend 1e6,1e6,10000");
        wait_for("step 5/");
        if (table[i].rank <= -2)
            kill(table[i].rank == -2 ? -job.launcher : job.launcher, table[i].signal);
        else
            kill(job.rank[table[i].rank], table[i].signal);
        const int status = end_within(5);
        char *out = read_file("out");
        snprintf(text, sizeof text, "stopped by signal %d after step %lld\n", table[i].signal,
                 (long long)step_saved("kept"));
        const bool heard = !open_mpi || table[i].rank > -2 || table[i].signal == SIGUSR1;
        if ((table[i].status >= 0 && status != table[i].status) || (heard && !strstr(out, text)))
            fail_msg("%s: status %d, and \"%s\" expected\n%s", table[i].what, status, text, out);
        free(out);
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
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
    assert_message(strdup(r.err), name, words);
    expect(r, status, "");
}

#define P03 BUILD "/cpu/03_data_parallel " SHAPE " --quiet"
#define P04 BUILD "/cpu/04_zero " SHAPE " --quiet"

static void ranks_that_cannot_start_end_all(void **state)
{
    fails(1, "04_zero", "the command line: rank 2",
          "mpiexec -n 3 sh -c 'exec " P04 " --zero $((" RANK " == 2 ? 3 : 1))'");
    fails(1, "03_data_parallel", "the command line: rank 1",
          "mpiexec -n 2 sh -c 'exec " P03 " $([ " RANK " = 0 ] || echo --nonsense)'");
    /* --data names another file on one rank, or no file */
    run_well("mkdir none other");
    run_well("cp %s other/data.bin", token_file(2001, 97));
    fails(1, "03_data_parallel", "--data: rank 1",
          "mpiexec -n 2 sh -c '[ " RANK " = 0 ] || cd other && exec " P03 "'");
    fails(1, "04_zero", "--data data.bin: No such file|(rank 2)",
          "mpiexec -n 3 sh -c '[ " RANK " != 2 ] || cd none && exec " P04 "'");
    fails(2, "04_zero", "--zero: expected an integer from 1 to 3, got '4'", "mpiexec -n 3 " P04 " --zero 4");
    /* one rank's checkpoint is damaged */
    run_well(ONE " " SHAPE " --steps 1 --save kept --quiet");
    run_well("sh -c 'cp -r kept data.bin other; truncate -s 1000 other/kept/step-1/optimizer.safetensors'");
    fails(1, "03_data_parallel", "optimizer.safetensors",
          "mpiexec -n 3 sh -c '[ " RANK " = 0 ] || cd other && exec " P03 " --load kept'");
    /* a launcher of another MPI: each rank is alone */
    fails(1, "03_data_parallel", "_SIZE is 2, but this rank is alone|of one installation", "env %s=2 " P03,
          open_mpi ? "PMI_SIZE" : "OMPI_COMM_WORLD_SIZE");
    fails(1, "03_data_parallel", "SLURM_STEP_NUM_TASKS is 2, but this rank is alone|--mpi=",
          "env SLURM_STEP_NUM_TASKS=2 " P03);
}

/* ---- A failure during training ---- */

/* Every rank finds an infinite loss; one of them reports it, and the checkpoint before stays. */
static void divergence_ends_all(void **state)
{
    for (int i = 0; i < (full_tests() ? PROGRAMS : 2); i++) {
        fails(1, programs[i].name, "the loss is|at step|--lr|last checkpoint is unchanged",
              "mpiexec -n 2 " BUILD "/cpu/%s " SHAPE " %s --steps 1000 --lr 1000 --clip 0 --save kept --save-every 1 "
              "--report r.json --trace t.json --quiet", programs[i].name, programs[i].options);
        run_well("sh -c 'test ! -e r.json && test ! -e t.json'");
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
        run_well("rm -r kept");
    }
}

/* One rank cannot write its shard of a checkpoint. A limit on file sizes replaces the full disk. */
static void a_rank_that_cannot_write_ends_all(void **state)
{
    static const struct rlimit limit = {1000, 1000};

    for (int i = 0; i < (full_tests() ? PROGRAMS : 2); i++) {
        launch_two(i, "--steps 1000000 --save kept --save-every 1 --report r.json");
        wait_for("saved step");
        assert_int_equal(prlimit(job.rank[i == 0 ? 0 : i % 2], RLIMIT_FSIZE, &limit, NULL), 0);    /* 03's 0 writes */
        assert_int_equal(end_within(5), 1);
        assert_message(read_file("err"), programs[i].name, "kept/step-|File too large");
        run_well(ONE " " SHAPE " --steps 0 --load kept --quiet");
        run_well("sh -c 'test ! -e r.json && rm -r kept'");
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, clean_up)
    const struct CMUnitTest tests[] = {
        TEST(a_killed_rank_ends_all),
        TEST(an_unknown_instruction_ends_all),
        TEST(a_stopped_rank_ends_all),
        TEST(signals_stop_all_ranks),
        TEST(ranks_that_cannot_start_end_all),
        TEST(divergence_ends_all),
        TEST(a_rank_that_cannot_write_ends_all),
    };

    open_mpi = strstr(run("mpiexec --version").out, "Open");
    return cmocka_run_group_tests_name("failures of ranks", tests, NULL, NULL);
}
