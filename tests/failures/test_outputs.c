/* Outputs that cannot be written, and files of the user in their place: nothing is lost, no incomplete file is left. */
#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "refusals.h"

/* ---- Outputs that cannot be written ---- */

static void unwritable_outputs_are_refused(void **state)
{
    static const char *const options[] = {"metrics", "report", "trace", "dump-gradients"};
    static const Case saves[] = {
        {"--save missing/x", 1, "--save missing/x|No such file"},
        {"--save afile", 1, "--save afile|not a checkpoint"},
        {"--save afile/x", 1, "--save afile/x|Not a directory"},
        {"--save adir", 1, "--save adir|not a checkpoint|another"},
        {"--save adir/", 1, "--save adir|not a checkpoint|another"},
        {"--save .", 1, "--save .|not a checkpoint"},
        {"--save /dev/null", 1, "--save /dev/null|not a checkpoint"},
        {"--save alink", 1, "--save alink|not there"},
        {"--save ck.tmp/", 2, "--save ck.tmp/|end in .tmp"},
        {"--metrics x.tmp --trace x", 2, "--metrics x.tmp|end in .tmp"},
        {"--save ck.old", 2, "--save ck.old|end in .tmp, .old"},
        {"--save /proc/x", 1, "--save /proc/x|cannot be made"},
        {"--save good --report missing/x", 1, "--report missing/x"},
        {"--save adir --metrics old.csv --report new --trace new.trace --dump-gradients new.g", 1, "--save adir"},
        {"--metrics old.csv --dump-gradients missing/x --report new --trace new.trace", 1,
         "--dump-gradients missing/x"},
        {"--metrics missing/x --report new --trace new.trace --dump-gradients new.g --save new.d", 1,
         "--metrics missing/x"},
        {0}};
    char name[301] = "";

    (void)state;
    memset(name, 'n', 300);
    for (int i = 0; i < 4; i++) {
        char words[128];
        snprintf(words, sizeof words, "--%s missing/x|No such file", options[i]);
        fails(1, words, CPU " " SMALL " --%s missing/x", options[i]);
        snprintf(words, sizeof words, "--%s adir|directory", options[i]);
        fails(1, words, CPU " " SMALL " --%s adir", options[i]);
        snprintf(words, sizeof words, "--%s afile/x|Not a directory", options[i]);
        fails(1, words, CPU " " SMALL " --%s afile/x", options[i]);
        snprintf(words, sizeof words, "--%s afile|not written by --%s", options[i], options[i]);
        fails(1, words, CPU " " SMALL " --%s afile", options[i]);
        snprintf(words, sizeof words, "--%s nnn|too long", options[i]);
        fails(1, words, CPU " " SMALL " --%s %s", options[i], name);
        fails(1, "/dev/full", CPU " " SMALL " --%s /dev/full", options[i]);              /* a full disk */
    }
    all_fail(saves);
    fails(1, "--save nnn|too long", CPU " " SMALL " --save %s", name);
    fails(1, "--save adir", CPU64 " " SMALL " --save adir");
    fails(1, "--metrics old.csv|,precious\"|step,tokens,loss", CPU " " SMALL " --load good --metrics old.csv");
    fails(1, "--dump-gradients good/model|not written by", CPU " " SMALL " --dump-gradients good/model.safetensors");
    /* an output would replace the run's data, the checkpoint to load, or the user's files */
    run_well("cp data.bin x.tmp");
    fails(2, "--data x.tmp|--report x", CPU " " SMALL " --report x --data x.tmp");
    run_well("rm x.tmp");
    run_well("cp -r good ck.tmp");
    run_well("ln -s . self");
    fails(1, "--load ck.tmp|--save ck|another name", CPU " " SMALL " --load ck.tmp --save ck");
    fails(1, "--load self/ck.tmp/|--save ck/|another name", CPU " " SMALL " --load self/ck.tmp/ --save ck/");
    run_well("cp afile ck.tmp/notes");
    fails(1, "--save ck|ck.tmp|move it", CPU " " SMALL " --save ck");
    run_well("rm -r ck.tmp self");
    fails(1, "--save .|name a directory inside",
          "sh -c 'cd good && exec " CPU " " SMALL " --data ../data.bin --save .'");
    fails(1, "--save ../good|runs in|name a directory inside",
          "sh -c 'cd good && exec " CPU " " SMALL " --data ../data.bin --load ../good --save ../good'");
    run_well("mkdir ck");
    run_well("ln -s ../good ck/new.tmp");
    fails(1, "--save ck/new|move it", CPU " " SMALL " --save ck/new");
    run_well("rm -r ck");
    fails(1, "standard output", "sh -c 'exec " CPU " " SMALL " --quiet --sample 5 >/dev/full'");
    fails(1, "standard output", "sh -c 'exec " CPU " --help >/dev/full'");
    fails(1, "standard output", "sh -c 'exec " CPU " " SMALL " <&- >&-'");
}

/* Files that have a checkpoint's names, but were not written by this run. */
static void other_files_stay(void **state)
{
    (void)state;
    run_well("cp -r good good.old");
    run_well(CPU " " SMALL " --steps 4 --load good --save good");
    run_well("test -e good.old/trainer.json");
    /* a run's own outputs are replaced */
    for (int i = 0; i < 2; i++)
        run_well(CPU " " SMALL " --metrics m.csv --report m.json --trace m.trace --dump-gradients m.g");
    run_well("rm m.csv m.json m.trace m.g");
    /* a log that is standard output is neither truncated nor overwritten */
    static const char *const logs[][2] = {
        {"metrics", "^3,"}, {"report", "flops_per_token"}, {"trace", "process_name"}};
    for (int i = 0; i < 3; i++) {
        run_well("sh -c '" CPU " " SMALL " --%s /dev/stdout >log'", logs[i][0]);
        run_well("grep -q '^memory needed: ' log");
        run_well("grep -q '^step 3/3' log");
        run_well("grep -q '^parameters ' log");
        run_well("grep -q '%s' log", logs[i][1]);
    }
    run_well("rm -r good.old log");
}

static void assert_json(const char *text, const char *what)
{
    cJSON *json = cJSON_Parse(text);

    if (!json)
        fail_msg("%s is no JSON: %.300s", what, text);
    cJSON_Delete(json);
}

static void special_files_work(void **state)
{
    struct stat s;
    size_t bytes;
    char *text;

    (void)state;
    char *before = listing();
    run_well(CPU " " SMALL " --report /dev/null --metrics /dev/null --trace /dev/null");
    assert_same_listing(before, listing(), "--report /dev/null");
    assert_int_equal(lstat("/dev/null", &s), 0);
    assert_true(S_ISCHR(s.st_mode));
    for (int i = 0; i < 2; i++) {
        Result r = run(CPU " " SMALL " --quiet --%s /dev/stdout", i ? "report" : "trace");
        assert_int_equal(r.status, 0);
        assert_json(r.out, "/dev/stdout");
        result_free(r);
    }
    Result r = run(CPU " " SMALL " --quiet --metrics /dev/stdout");
    assert_memory_equal(r.out, "step,tokens,loss,", 17);
    result_free(r);

    /* Links stay links: /dev/stdout is one, which leads to an ordinary file under a shell's `> file`. */
    run_well("ln -s /proc/self/fd/1 stdout");
    run_well("ln -s linked link");
    for (int i = 0; i < 2; i++) {
        run_well("cp /dev/null linked");
        run_well("sh -c '" CPU " " SMALL " --quiet --%s stdout > redirected'", i ? "report" : "trace");
        run_well("test -L stdout");
        text = slurp(in_temporary("redirected"), &bytes);
        assert_json(text, "a redirected /dev/stdout");
        free(text);
        run_well(CPU " " SMALL " --quiet --%s link", i ? "report" : "trace");
        run_well("test -L link");
        text = slurp(in_temporary("linked"), &bytes);
        assert_json(text, "a linked file");
        free(text);
        run_well("test ! -e stdout.tmp");
        run_well("test ! -e link.tmp");
    }

    /* a pipe whose reader ends when it has no writer */
    run_well("timeout 10 sh -c 'cat fifo > piped & " CPU " " SMALL " --report fifo; wait'");
    text = slurp(in_temporary("piped"), &bytes);
    assert_json(text, "a pipe");
    free(text);
    run_well("test -p fifo");
    run_well("rm stdout link linked redirected piped");
}

static void what_is_not_ours_stays(void **state)
{
    (void)state;
    /* a file of the user in a checkpoint's directory: put there before a run, and during it */
    run_well("cp -r good noted");
    run_well("cp afile noted/notes.txt");
    fails(1, "--save noted|no files but its own", CPU " " SMALL " --load noted --save noted");
    run_well("rm noted/notes.txt");
    start(CPU " " SHAPE " --pretend 1e6,1e6,0 --accumulate 1000 --steps 5 --save noted --save-every 1");
    run_well("cp afile noted/notes.txt");
    Result r = end_process(60);
    assert_int_equal(r.status, 0);
    result_free(r);
    run_well("sh -c 'cmp afile noted/notes.txt || cmp afile noted.tmp/notes.txt'");
    assert_true(json_number(in_temporary("noted/trainer.json"), "step") == 5);
    run_well("rm -rf noted.tmp");
    /* --save names a link to a directory */
    run_well("mkdir far");
    run_well("ln -s far near");
    run_well(CPU " " SMALL " --save near --save-every 1");
    run_well("test -L near");
    assert_true(json_number(in_temporary("far/trainer.json"), "step") == 3);
    run_well("test ! -e near.tmp");
    run_well("test ! -L near.tmp");
    run_well("rm -r noted near far");
}

static void two_signals_quit_at_once(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    run_well("cp -r good kept");
    for (int i = 0; i < 2; i++) {
        char *before = listing();
        start(CPU " " SHAPE " --accumulate 1048576 --load kept --save kept --report new.json --trace new.trace");
        kill(process, signals[i]);
        if (i == 0)                                     /* no other program may save there */
            fails(1, "--save kept|another program|kept.lock", CPU " " SMALL " --load kept --save kept");
        usleep(500000);                                 /* a second signal that comes sooner does not count */
        assert_int_equal(waitpid(process, NULL, WNOHANG), 0);           /* it still computes the current step */
        kill(process, signals[i]);
        Result r = end_process(2);
        assert_int_equal(r.status, 128 + signals[i]);
        assert_true(r.seconds < 1);
        assert_same_listing(before, listing(), "two signals");
        result_free(r);
    }
    run_well("rm -r kept");
}

/* Before the first step there is nothing to save: one signal ends the program, which reads 6 GB of tokens. And OpenBLAS
 * does not wait for ever if it gets fewer threads than --threads. */
static void the_start_can_be_ended(void **state)
{
    (void)state;
    run_well("truncate -s 6G large.bin");
    Result r = run("timeout -k 5 1 " CPU " " SMALL " --data large.bin --report new.json --save new");
    assert_int_equal(r.status, 124);                    /* by SIGTERM after a second; 137: by SIGKILL */
    assert_true(r.seconds < 4);
    result_free(r);
    run_well("rm large.bin");
    run_well("sh -c 'test ! -e new.json.tmp && test ! -e new.lock'");
    run_well("timeout 15 env OMP_THREAD_LIMIT=1 " CPU " " SMALL " --hidden 128 --threads 2");
}

/* A second run that names an output of the first is refused, and changes no file of the first. */
static void two_runs_do_not_write_one_file(void **state)
{
    static const char *const options[] = {"metrics", "report", "trace", "dump-gradients"};
    static const char *const second[] = {CPU " " SMALL, "mpiexec -n 2 " BUILD "/cpu/03_data_parallel " SMALL};

    (void)state;
    start(CPU " " SHAPE " --steps 2 --accumulate 1000 --metrics a --report b --trace c --dump-gradients d");
    kill(process, SIGSTOP);                             /* it runs until all have tried */
    for (int of = 0; of < 2; of++)
        for (int i = 0; i < (of ? 1 : 4); i++)
            for (int by = 0; by < 2; by++) {            /* its file, named by the same option and by another */
                char words[64], file[] = {"abcd"[i], 0};
                const char *option = options[(i + by) % 4];
                snprintf(words, sizeof words, "--%s %s|another program|%s.lock", option, file, file);
                Result r = run("timeout 15 %s --%s %s --save new", second[of], option, file);
                assert_int_equal(r.status, 1);
                assert_words(r.err, words, second[of]);
                assert_null(strchr(strchr(r.err, '\n') + 1, '\n'));
                result_free(r);
                run_well("test ! -e new");
                run_well("test -e %s.lock", file);
            }
    kill(process, SIGCONT);
    Result r = end_process(60);
    assert_int_equal(r.status, 0);
    result_free(r);
    run_well("sh -c 'test $(grep -c . a) = 3'");
    for (int i = 1; i < 3; i++) {
        size_t bytes;
        char *text = slurp(in_temporary(i == 1 ? "b" : "c"), &bytes);
        assert_json(text, options[i]);
        free(text);
    }
    run_well("sh -c 'test ! -e a.lock && test ! -e b.lock && test ! -e c.lock && test ! -e d.lock && test ! -e b.tmp'");

    /* an empty lock, left by a killed program, is ignored; a file of that name that is not empty is the user's */
    run_well("touch a.lock");
    run_well(CPU " " SMALL " --metrics a");
    run_well("test ! -e a.lock");
    run_well("cp afile a.lock");
    fails(1, "--metrics a|a.lock|bytes|move it", CPU " " SMALL " --metrics a");
    fails(2, "--report a.lock|end in .tmp, .old or .lock", CPU " " SMALL " --metrics a --report a.lock");
    /* several programs may write to a pipe, a device or a link */
    for (int i = 0; i < 2; i++)
        run_well(CPU " " SMALL " --metrics /dev/null --report /dev/null");
    run_well("rm a a.lock b c d");
}

/* ---- A full disk ---- */

/* From the first step on, no file may be larger than `limit` bytes. The limit is set after MPI's start, which needs a
 * file of megabytes. */
static void files_that_cannot_grow(void **state)
{
    static const struct {
        const char *options;
        int limit;
        const char *words;
    } cases[] = {
        {"--load kept --save kept", 0, "kept.tmp/config.json|File too large"},
        {"--load kept --save kept", 100, "kept.tmp/config.json|File too large"},         /* in its middle */
        {"--load kept --save kept", 1200, "kept.tmp/model.safetensors|File too large"},  /* in its header */
        {"--load kept --save kept", 4000, "kept.tmp/model.safetensors|File too large"},
        {"--load kept --save kept", 25000, "kept.tmp/optimizer.safetensors|File too large"},
        {"--load kept --save kept/ --save-every 1 --report new", 38000,
         "kept.tmp/optimizer.safetensors|File too large"},
        {"--report new.json", 200, "--report new.json|File too large"},
        {"--trace new.trace", 2000, "--trace new.trace|File too large"},
        {"--dump-gradients new.g", 4000, "new.g|File too large"},
        {"--load kept --metrics rows.csv", 100, "--metrics rows.csv|File too large"},
    };

    (void)state;
    run_well("cp -r good kept");
    run_well(CPU " " SMALL " --steps 2 --metrics rows.csv");             /* the two steps of `kept` */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rlimit limit = {cases[i].limit, cases[i].limit};
        char command[1024], what[128], *before = listing();
        /* a step is long enough to set the limit before the first file is opened */
        snprintf(command, sizeof command, CPU " " SHAPE " --steps 5 --accumulate 1000 %s", cases[i].options);
        snprintf(what, sizeof what, "%s with files of %d bytes", cases[i].options, cases[i].limit);
        start(command);
        assert_int_equal(prlimit(process, RLIMIT_FSIZE, &limit, NULL), 0);
        Result r = end_process(60);
        if (r.status != 1)
            fail_msg("%s: status %d\n%s%s", what, r.status, r.out, r.err);
        assert_one_line(r, what);
        assert_words(r.err, cases[i].words, what);
        assert_same_listing(before, listing(), what);
        result_free(r);
    }
    run_well("diff -r good kept");
    run_well(CPU " " SMALL " --load kept --save kept");                  /* a run can resume from it */
    run_well("rm -r kept rows.csv");
}

/* A disk with room for one checkpoint of 620 KB, but not for two. */
static void a_full_disk(void **state)
{
    (void)state;
    run_well("mkdir disk");
    Result r = run("mount -t tmpfs -o size=1m tmpfs disk");
    const int status = r.status;
    result_free(r);
    if (status) {
        print_message("skipped: this machine does not permit mounting a small disk\n");
        return;
    }
    fails(1, "--save disk|where a disk is mounted|name a directory inside", CPU " " SMALL " --save disk");
    run_well(CPU " " SMALL " --hidden 64 --steps 2 --save disk/kept");
    run_well("cp -r disk/kept copy");
    fails(1, "disk/kept.tmp/|safetensors|No space left",
          CPU " " SMALL " --hidden 64 --load disk/kept --save disk/kept");
    run_well("diff -r copy disk/kept");
    fails(1, "disk/other.tmp/|No space left", CPU " " SMALL " --hidden 64 --save disk/other --save-every 1");
    run_well(CPU " " SMALL " --hidden 64 --load disk/kept --save elsewhere");
    run_well("rm -r copy elsewhere");
}

/* ---- A read-only directory ---- */

static void nothing_may_be_written(void **state)
{
    (void)state;
    run_well("mkdir readonly");
    run_well("cp -r good data.bin readonly");
    run_well("chmod -R a-w,a+rX readonly");
    run_well("chmod a+x %s", temporary());
    const char *as = geteuid() == 0 ? "setpriv --reuid=65534 --regid=65534 --clear-groups" : "env";
    Result r = run("%s sh -c 'cd readonly && ! test -w . && test -x " CPU " && " CPU " " SMALL " --load good'", as);
    const int status = r.status;
    result_free(r);
    if (status) {
        print_message("skipped: running as a user without write permission\n");
    } else {
        static const char *const options[] = {"metrics", "report", "trace", "dump-gradients", "save"};
        for (int i = 0; i < 5; i++) {
            char words[64];
            snprintf(words, sizeof words, "--%s new|Permission denied", options[i]);
            fails(1, words, "%s sh -c 'cd readonly && exec " CPU " " SMALL " --%s new'", as, options[i]);
        }
        fails(1, "good|Permission denied", "%s sh -c 'cd readonly && exec " CPU " " SMALL " --load good --save good'",
              as);
        run_well("chmod 0 readonly/data.bin readonly/good/trainer.json");
        fails(1, "--data data.bin|Permission denied", "%s sh -c 'cd readonly && exec " CPU " " SMALL "'", as);
        fails(1, "good/trainer.json|Permission denied",
              "%s sh -c 'cd readonly && exec " CPU " " SMALL " --data ../data.bin --load good'", as);
    }
    run_well("chmod -R u+w readonly");
    run_well("rm -r readonly");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(unwritable_outputs_are_refused),
        TEST(other_files_stay),
        TEST(special_files_work),
        TEST(what_is_not_ours_stays),
        TEST(two_signals_quit_at_once),
        TEST(the_start_can_be_ended),
        TEST(two_runs_do_not_write_one_file),
        TEST(files_that_cannot_grow),
        TEST(a_full_disk),
        TEST(nothing_may_be_written),
    };

    return cmocka_run_group_tests_name("outputs", tests, NULL, NULL);
}
