/* Checkpoints as jobs and people treat them: runs that are killed at any point of a save, directories with other files,
 * links, mount points, a second run, a closed terminal or pipe. Whatever happens, --load resumes from the last
 * checkpoint that was complete.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness.h"

#define SHAPE "--layers 2 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --warmup 1 --data data.bin " \
              "--threads 1 --pretend 1e6,1e6,0"
#define ONE BUILD "/cpu64/01_single_gpu " SHAPE " --accumulate 2"
#define TWO BUILD "/cpu64/04_zero " SHAPE " --zero 1 --accumulate 1"
enum { STEPS = 4 };
static double reference[STEPS];         /* the losses of a run that nothing disturbs */

static int set_up(void **state)
{
    run_well("cp %s data.bin", token_file(2000, 97));
    run_well(ONE " --steps %d --quiet --metrics reference.csv", STEPS);
    assert_int_equal(read_column("reference.csv", "loss", reference, STEPS), STEPS);
    return 0;
}

/* Fails unless these are all files of DIR, in alphabetical order. */
static void assert_files(const char *directory, const char *expected)
{
    Result r = run("sh -c 'cd %s && find . -type f | sort | tr \"\\n\" \" \"'", directory);

    if (strcmp(r.out, expected))
        fail_msg("%s has %s, expected %s", directory, r.out, expected);
    result_free(r);
}

#define STEP(n) "./step-" #n "/config.json ./step-" #n "/model.safetensors ./step-" #n "/optimizer.safetensors " \
                "./step-" #n "/trainer.json "

/* Fails unless a run resumes from DIR after that step, computes the reference's losses, and saves. */
static void assert_resumes(const char *directory, int from)
{
    double loss[STEPS];

    run_well("rm -f on.csv");
    run_well(ONE " --steps %d --quiet --load %s --save %s --metrics on.csv", STEPS, directory, directory);
    assert_int_equal(read_column("on.csv", "loss", loss, STEPS), STEPS - from);
    for (int i = from; i < STEPS; i++)
        assert_true(fabs(loss[i - from] - reference[i]) <= 1e-9 * reference[i]);
    run_well("grep -qx step-%d %s/latest", STEPS, directory);
}

static void steps_are_kept(void **state)
{
    run_well(ONE " --steps 3 --quiet --save kept --save-every 2");
    assert_files("kept", "./latest ./lock " STEP(3));
    Result r = run(ONE " --steps 9 --load kept --save kept --save-every 2 --keep 3");
    assert_null(strstr(r.out, "saved step 7 "));
    expect(r, 0, "resuming from kept at step 3|saved step 4 to kept|saved step 6 |saved step 8 |saved step 9 ");
    assert_files("kept", "./latest ./lock " STEP(6) STEP(8) STEP(9));
    expect(run(ONE " --steps 9 --load kept/step-6"), 0, "resuming from kept/step-6 at step 6");
    expect(run(ONE " --steps 9 --load kept --save kept"), 0, "nothing to do: --steps must exceed 9");
    run_well("sh -c 'echo step-6 >kept/latest'");                       /* the user goes back */
    run_well(ONE " --steps 8 --load kept --save kept");
    assert_files("kept", "./latest ./lock " STEP(8) STEP(9));
    run_well("cp -r kept/step-8 alone");                                /* a checkpoint without the directory above */
    expect(run(ONE " --steps 9 --load alone --save kept"), 1, "--save kept: it has step 8");
    run_well(ONE " --steps 9 --load alone --save alone");
    assert_files("alone", "./config.json ./latest ./lock ./model.safetensors ./optimizer.safetensors " STEP(9)
                 "./trainer.json ");
    run_well("rm -r kept alone");
}

/* A run that does not go on from the latest step would replace it, perhaps after hours by the first one. */
static void other_runs_are_refused(void **state)
{
    run_well(ONE " --steps 3 --quiet --save kept --save-every 1 --keep 2");
    expect(run(ONE " --steps 1 --save kept"), 1, "--save kept: it has step 3|--load kept|another directory\n");
    expect(run(ONE " --steps 4 --load kept/step-2 --save kept"), 1, "--save kept: it has step 3|--load kept");
    run_well(ONE " --steps 4 --load kept/step-3 --save ./kept/");
    assert_files("kept", "./latest ./lock " STEP(4));
    expect(run("sh -c '" ONE " --steps 1000000 --save held & p=$!; until test -e held/lock; do sleep .01; done; " ONE
               " --save held; s=$?; kill $p; wait $p; test $? = 143 && exit $s'"), 1, "another run is saving there");
    run_well("rm -r kept held");
}

/* One --metrics file for two runs would mix their rows. */
static void one_metrics_file_has_one_run(void **state)
{
    run_well("rm -f m.csv");
    expect(run("sh -c '" ONE " --steps 1000000 --metrics m.csv >/dev/null & p=$!; until test -s m.csv; do sleep .01; "
               "done; " ONE " --metrics m.csv; s=$?; test $(wc -l <m.csv) -gt 1 || s=7; kill $p; wait $p; exit $s'"), 1,
           "--metrics m.csv: another run is writing to it");
}

/* What people have as DIR: a link, their own files in it, a group's directory. */
static void directories_of_all_kinds(void **state)
{
    run_well("mkdir disk");
    run_well("ln -s disk kept");
    run_well("sh -c 'echo mine >kept/notes'");
    run_well(ONE " --steps 2 --quiet --save kept --save-every 1");
    run_well("sh -c 'echo 0.5 >kept/step-2/evaluation'");
    assert_resumes("kept", 2);
    assert_files("disk", "./latest ./lock ./notes ./step-2/evaluation " STEP(4));
    run_well("sh -c 'umask 007; " ONE " --steps 1 --quiet --save shared'");
    expect(run("find shared -printf '%%m %%P,'"), 0, "770 ,|770 step-1,|660 step-1/model.safetensors,|"
           "660 step-1/optimizer.safetensors,|660 step-1/config.json,|660 latest,|660 lock,");
    run_well("rm -r kept disk shared");
}

static void a_mount_point(void **state)
{
    Result may = run("unshare -rm true");

    if (may.status)
        print_message("this user may not mount, so there is no mount point: %s", may.err);
    else
        run_well("sh -c 'mkdir volume kept; unshare -rm sh -c \"mount --bind volume kept && for n in 1 2; do "
                 ONE " --steps \\$n --quiet --save kept \\$([ -e kept/latest ] && echo --load kept) || exit; done\"'");
    if (!may.status) {
        assert_resumes("volume", 2);
        run_well("rm -r volume kept");
    }
    result_free(may);
}

/* ---- A run that is killed ---- */

/* A library that kills its program before the KILL_AT-th call, from the save of step 2 on, that changes files. */
static const char killer[] =
    "#define _GNU_SOURCE\n"
    "#include <dlfcn.h>\n#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
    "#include <string.h>\n#include <sys/stat.h>\n#include <unistd.h>\n"
    "static int calls = -1;\n"
    "static void call(const char *path)\n"
    "{\n"
    "    const char *at = getenv(\"KILL_AT\");\n"
    "    if (calls < 0 && path && strstr(path, \"kept/step-2\")) calls = 0;\n"
    "    if (calls >= 0 && at && ++calls == atoi(at)) kill(getpid(), SIGKILL);\n"
    "}\n"
    "#define WRAP(type, name, parameters, path, ...) type name parameters \\\n"
    "    { call(path); return ((type (*) parameters)dlsym(RTLD_NEXT, #name))(__VA_ARGS__); }\n"
    "WRAP(int, mkdir, (const char *p, mode_t m), p, p, m)\n"
    "WRAP(int, unlink, (const char *p), p, p)\n"
    "WRAP(int, rmdir, (const char *p), p, p)\n"
    "WRAP(int, rename, (const char *p, const char *q), p, p, q)\n"
    "WRAP(int, fsync, (int f), NULL, f)\n"
    "WRAP(int, ftruncate, (int f, off_t n), NULL, f, n)\n"
    "WRAP(ssize_t, pwrite, (int f, const void *d, size_t n, off_t o), NULL, f, d, n, o)\n"
    "WRAP(FILE *, fopen, (const char *p, const char *m), p, p, m)\n"
    "WRAP(int, open, (const char *p, int o, mode_t m), p, p, o, m)\n";

/* At each point (in make test, at some) of the saves of steps 2 and 3, the step before is still there, or this one is
 * complete. */
static void a_save_killed_at_any_point(void **state)
{
    const int stride = full_tests() ? 1 : 8;
    int points = 0, complete = 0;

    write_file("killer.c", killer, strlen(killer));
    run_well("gcc -shared -fPIC killer.c -o killer.so -ldl");
    for (int rank = 0; rank < 2; rank++) {
        bool lasted = false;
        for (int at = 1 + rank; !lasted; at += stride) {
            run_well("rm -rf kept");
            Result r = run("mpiexec -n 2 sh -c '[ ${PMI_RANK-$OMPI_COMM_WORLD_RANK} != %d ] || export KILL_AT=%d "
                           "LD_PRELOAD=./killer.so ASAN_OPTIONS=verify_asan_link_order=0; exec " TWO
                           " --steps 3 --save kept --save-every 1'", rank, at);
            lasted = strstr(r.out, "saved step 3") != NULL;         /* MPI may be killed when it ends */
            result_free(r);
            const int step = json_number(saved("kept", "trainer.json"), "step");
            assert_true(!lasted || step == 3);
            assert_resumes("kept", step);
            assert_files("kept", "./latest ./lock " STEP(4));
            points += !lasted;
            complete += step == 2;
        }
    }
    assert_true(points >= 10 && complete > 0);
}

/* ---- A run that nobody watches any longer ---- */

/* A closed terminal, and a reader that ends: the run saves and ends. After nohup it goes on. */
static void a_closed_terminal_or_pipe(void **state)
{
    static const struct {
        const char *before, *after, *signal;
        int status;
    } runs[] = {
        {"", "& p=$!; until grep -q \"^step 2/\" out; do sleep .01; done; kill -HUP $p; wait $p", "1", 129},
        {"trap \"\" HUP; ", "& p=$!; until grep -q \"^step 2/\" out; do sleep .01; done; kill -HUP $p; sleep .5; "
         "kill $p; wait $p", "15", 143},
    };

    for (int i = 0; i < 2; i++) {
        run_well("rm -rf kept out");
        expect(run("sh -c '%s" ONE " --steps 1000000 --save kept --pretend 1e6,1e6,10000 >out %s'", runs[i].before,
                   runs[i].after), runs[i].status, "");
        run_well("grep -q 'stopped by signal %s after step' out", runs[i].signal);
        run_well("grep -q step- kept/latest");
    }
    run_well("rm -rf kept");
    expect(run("sh -c '{ " ONE " --steps 1000000 --save kept; echo $? >status; } | head -n 9'"), 0, "step 1/");
    run_well("grep -qx 141 status");
    run_well(ONE " --steps 0 --load kept");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_kept),
        cmocka_unit_test(other_runs_are_refused),
        cmocka_unit_test(one_metrics_file_has_one_run),
        cmocka_unit_test(directories_of_all_kinds),
        cmocka_unit_test(a_mount_point),
        cmocka_unit_test(a_save_killed_at_any_point),
        cmocka_unit_test(a_closed_terminal_or_pipe),
    };

    return cmocka_run_group_tests_name("saves", tests, set_up, NULL);
}
