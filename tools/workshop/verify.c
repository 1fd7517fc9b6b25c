/* make verify: compares a train.c that the user has edited or written with a reference: 01, for mixtures 10 and for
 * Llamas 12 on one rank, as git has them. Runs it in float64 with --check in a few parallel configurations, from a
 * trained checkpoint: at initial weights (biases 0, LayerNorm weights 1) some mistakes do not show. Compares the
 * gradients of the first step, tensor by tensor (diagnose.c explains wrong ones), losses, norms and learning rates of
 * all steps, within warm-up and decay, a validation loss, the checkpoint saved at the end, traffic and memory. --check
 * compares the norm and loss of every rank with those of rank 0. --clip is below the norm, so that a rank with another
 * norm makes another update. verify_cases.c has the configurations, verify_compare.c and verify_overflow.c the
 * comparisons with the reference, verify_costs.c that of traffic and memory; verify_report.c prints what is wrong.
 *
 *   verify STAGE PROGRAM [RANKS [OPTION...]]      PROGRAM: built from the train.c, in float64; if there is a
 *                                                 PROGRAM_sanitized, some cases run it instead: AddressSanitizer finds
 *                                                 accesses beyond arrays, which often change no result
 *
 * Environment:
 *   EXPECT      "gradients" or "losses", which shall differ, because the technique changes the arithmetic: then they
 *               are not compared, nor the checkpoint. All else is: finite losses, the same on all ranks; replicas;
 *               buffers in flight; memory and traffic
 *   FULL=1      runs the cases of FULL, too
 *   REFERENCE   directory of the reference's programs
 *   RECORD=1    appends each case's costs to verify_costs.tsv
 */
#include <cjson/cJSON.h>
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"
#include "../../common/run/safetensors.h"
#include "process.h"
#include "verify_cases.h"
#include "verify_compare.h"
#include "verify_costs.h"
#include "verify_report.h"

static const char *program, *sanitized;         /* sanitized: NULL if there is none */
static int count;               /* of configurations so far */
static int wasteful;            /* configurations that are right, but whose costs differ from the project's program's */

static bool is_set(const char *variable)
{
    return getenv(variable) && *getenv(variable);
}

static bool intended(const char *difference)
{
    return is_set("EXPECT") && strstr(getenv("EXPECT"), difference);
}

/* Whether losses shall differ, because gradients do, or by themselves. */
static bool losses_differ(void)
{
    return intended("gradients") || intended("losses");
}

/* The command of a case: one of the few texts of this length, which are never freed. */
static const char *command_of(const Case *c, const Shape *s, const char *binary)
{
    const char *launcher = c->ranks > 1 ? format_text("mpiexec -n %d ", c->ranks) : "";

    return new_text("%s%s %s %s %s %s", launcher, binary, s->model, s->schedule, c->options, mixture(s));
}

/* Whether AddressSanitizer watches the run: also every one with ARGS, and after it has found something. */
static bool watched(const Case *c)
{
    return sanitized && (c->kind & SANITIZED || *given_options || accesses);
}

/* ---- One configuration ---- */

/* Sequences in the dumped batch; 0: there is no dump. */
static int dumped_sequences(const char *file)
{
    if (access(file, F_OK))
        return 0;
    Safetensors s = safetensors_open(file);
    const int count = safetensors_find(&s, "batch.inputs")->shape[0];
    safetensors_close(&s);
    return count;
}

typedef struct {
    Result result;
    cJSON *report;              /* NULL: the run ended early */
    int sequences;              /* in the dumped batch; 0: there is no dump */
    bool metrics;               /* false: the first step failed */
} Run;

/* Runs a case, and reads what it wrote. */
static Run run_case(const char *command, const Case *c, const Shape *s)
{
    struct stat metrics = {0};

    run_well("rm -rf saved");
    Run r = {.result = run("%s %s --save saved --check --timeout 20 --dump-gradients g.safetensors --metrics m.csv "
                           "--report r.json --trace t.json", command, task(c, s))};

    stat(in_temporary("m.csv"), &metrics);
    r.metrics = metrics.st_size > 0;
    r.sequences = dumped_sequences(in_temporary("g.safetensors"));
    r.report = read_json("r.json");
    return r;
}

/* Whether a signal ended a rank, most often because memory was damaged: then the same run under AddressSanitizer tells
 * where. A program that fails has the status 1 or 2. */
static bool crashed(const Result *r)
{
    return r->status > 2 && !strstr(r->err, "AddressSanitizer:");
}

/* Reads the program's groups: from the report, or if the run wrote none, from that of a run of no steps. */
static void learn_groups(const char *command, const Case *c, const Shape *s, const Run *r)
{
    if (r->report || !r->sequences) {
        read_groups(r->report);
        return;
    }
    result_free(run("%s --load %s --steps %d --timeout 20 --report r.json", command, checkpoint(s, c->kind),
                    TRAINED));
    cJSON *of_start = read_json("r.json");
    read_groups(of_start);
    cJSON_Delete(of_start);
}

/* 06: any schedule that can be executed gives correct gradients. A good one also has the bubble of the formula, and no
 * more micro-batches in flight than the project's (compare_costs). One of another name has no formula: see describe. */
static void compare_schedule(cJSON *report)
{
    const cJSON *first = cJSON_GetArrayItem(ranks_of(report), 0);

    if (number_of(first, "bubble_simulated") > number_of(first, "bubble_formula") + 1e-9)
        add_text(waste, sizeof waste, "    the bubble of this schedule is %.3f, but the formula gives %.3f: a rank "
                 "waits where it could compute\n", number_of(first, "bubble_simulated"),
                 number_of(first, "bubble_formula"));
}

/* A run that succeeds writes all that is compared. */
static void check_files(const Run *r)
{
    const char *missing = NULL;

    if (!r->sequences)
        missing = "gradients (run_dump_gradients)";
    else if (!r->metrics)
        missing = "metrics";
    else if (!r->report)
        missing = "report";
    if (missing && !r->result.status)
        fault("the run succeeded, but wrote no %s: there is nothing to compare", missing);
}

/* Compares what the run wrote with what the reference writes, in the order in which mistakes spread: gradients, losses,
 * then what follows from the last weights. */
static void compare_run(const Case *c, const Shape *s, const Run *r)
{
    const int status = r->result.status;
    const char *unequal = strstr(r->result.err, ": the loss is");
    const bool ranks_agree = !unequal || !strstr(unequal, "on rank 0, but");
    const bool comparable = r->sequences && r->metrics;
    const bool right = comparable && (intended("gradients") || compare_gradients_of(c, s, r->sequences, ranks_agree));

    if (status && (right || !comparable))       /* wrong gradients explain why replicas drift */
        print_messages(r->result.err, s, true);
    if (!right || losses_differ())
        return;
    compare_losses(c);
    if (c->kind & FAR || faults || status)
        return;
    if (evaluates(c))
        compare_validation(c, r->report);
    compare_checkpoint(c, s);
    compare_model(r->report);
    if (samples(c) && !faults)
        compare_sample(r->result.out);
}

/* Says how the run ended, unless a fault explains that; what a sanitizer has found in any case. */
static void explain_ending(const Result *r)
{
    const bool watches = strstr(r->err, "ERROR: AddressSanitizer:");

    if (!r->status)
        return;
    if (watches)
        print_access(r->err);
    else if (crashed(r) && !faults)
        fault("the run crashed: a tensor or pointer is not set, or an array is too small; the same make verify with "
              "SANITIZE=1 names the line");
    if (!faults || strstr(r->err, ": runtime error: "))
        fault("the run ended with status %d:\n%.2000s", r->status, r->err);
}

static void check_costs(const Case *c, const cJSON *report)
{
    const char *trace = in_temporary("t.json");

    if (is_set("RECORD"))
        record_costs(c, report, trace);
    else if (!*given_options)
        compare_costs(c, report, trace);
    wasteful += *waste != 0;
}

static void print_verdict(const Case *c)
{
    if (losses_differ())
        printf("correct except for what EXPECT names: %s", intended("gradients") ? "" : "gradients, ");
    else if (suspicious)
        printf("correct, but suspicious: ");
    else if (*waste)
        printf("correct, but wasteful: ");
    else
        printf("correct: ");
    if (!losses_differ())
        printf(c->kind & FAR ? "gradients, norm, loss, " : "gradients, norms, losses, checkpoint, ");
    printf(watched(c) ? "memory, traffic, array bounds" : "memory, traffic");
    if (*farthest && !losses_differ())
        printf(" (%s)", farthest);
    printf("\n    %s\n%s", about, waste);
}

static void verify_run(const char *command, const Case *c, const Shape *s)
{
    Run r = run_case(command, c, s);

    if (crashed(&r.result) && sanitized && !watched(c)) {
        result_free(r.result);
        cJSON_Delete(r.report);
        r = run_case(command_of(c, s, sanitized), c, s);
    }

    learn_groups(command, c, s, &r);
    describe(s, r.report);
    if (r.result.status)
        print_messages(r.result.err, s, false);
    if (r.result.status == 2)                   /* refused its options: nothing to compare */
        printf("    (the command was: %s)\n", command);
    compare_schedule(r.report);
    check_files(&r);
    compare_run(c, s, &r);
    explain_ending(&r.result);
    if (!faults && !(c->kind & FAR) && r.report)
        check_costs(c, r.report);
    if (!faults && count == 1 && !c->tolerance && !intended("losses") && !intended("gradients"))
        compare_initial(command, c, s);
    if (!faults)
        print_verdict(c);
    cJSON_Delete(r.report);
    result_free(r.result);
}

/* ---- All configurations ---- */

/* A run that must fail with a line: at once, or with infinite weights at its first step. */
static void verify_failure(const char *command, const Case *c, const Shape *s)
{
    const bool infinite = c->kind & INFINITE;
    const char *load = infinite ? format_text("--load %s", checkpoint(s, c->kind)) : "";
    Result r = run("%s %s --steps %d --timeout 20", command, load, TRAINED + 1);

    if (!r.status && infinite)
        fault("some weights are Inf, but the loss is finite: what is not finite must not become a number");
    else if (!r.status)
        fault("the program runs, but it must refuse these options: together, or on these ranks, they cannot be right");
    else if (infinite && !strstr(r.err, "the loss is "))
        fault("some weights are Inf, but the run ends with another line than that of such a loss:\n%.500s", r.err);
    else
        printf("correct: %.*s\n", (int)strcspn(r.err, "\n"), r.err);
    result_free(r);
}

/* "  4 ranks, --zero 1, large weights: " */
static void print_case(const Case *c)
{
    printf(c->ranks > 1 ? "  %d ranks" : "  %d rank", c->ranks);
    if (*c->options)
        printf(", %s", c->options);
    if (c->kind & FAR)
        printf(", large weights");
    if (c->kind & OVERFLOWS)
        printf(", overflow");
    if (c->kind & INFINITE)
        printf(", infinite weights");
    if (c->kind & REFUSED)
        printf(", which must be refused");
    printf(": ");
    fflush(stdout);
}

/* Runs a case and compares it. Counts it, and whether it is wrong. */
static void verify(const Case *c)
{
    const Shape s = shape_for(c);
    const char *command = command_of(c, &s, watched(c) ? sanitized : program);

    faults = 0, suspicious = false, *farthest = 0, rounding = 0, *waste = 0, *groups = 0, count++;
    describe(&s, NULL);
    print_case(c);
    run_well("rm -rf g.safetensors m.csv r.json t.json saved before skipped later resumed.csv");
    if (c->kind & OVERFLOWS)
        verify_overflow(command, &s);
    else if (c->kind & (REFUSED | INFINITE))
        verify_failure(command, c, &s);
    else
        verify_run(command, c, &s);
    wrong += faults != 0;
}

/* Whether a case of the list runs. */
static bool is_chosen(const Case *c, int ranks)
{
    if (!stage_is(c->stage) && !(own && !*c->stage))
        return false;
    if (c->kind & FULL && !is_set("FULL"))
        return false;
    if (c->kind & (REFUSED | LONG) && ranks && ranks != c->ranks)
        return false;                                           /* on other ranks these options mean something else */
    if (own && (ranks || *given_options) && c->ranks < 4)
        return false;                                           /* the three cases differ in ranks only */
    return !ranks || *given_options || fits(c, ranks);
}

/* Runs a case, with NP and ARGS in place of its own ranks and options. ARGS in 16 or 8 bits run in fp32 as well, which
 * is compared exactly; a mixture in fp32 only, because in 16 bits it chooses other experts. */
static void run_chosen(Case c, int ranks)
{
    const bool only_16_bits = given("--gradients") || given("--master") || given("--loss-scale")
                              || given("--loss-scale-growth") || given("--fp8-scaling");

    if (*given_options)
        c.options = given_options, c.tolerance = tolerance_of(given("--dtype")), c.kind = 0;
    if (ranks)
        c.ranks = ranks;
    if (c.tolerance && *given_options && !only_16_bits)
        verify(&(Case){c.stage, new_text("%s --dtype fp32", given_options), c.ranks});
    if (!c.tolerance || !has_experts())
        verify(&c);
}

/* ---- The command line ---- */

/* Options that ARGS may not have: those of mixtures, and those of all programs. */
static const char *const names[] = {
    "--experts", "--top-k", "--expert-width", "--capacity", "--balance",
    "--data", "--vocab", "--load", "--steps", "--preset", "--seed", "--lr", "--clip", "--min-lr", "--warmup",
    "--lr-decay-steps", "--weight-decay"};
enum { OF_ALL = 5, NAMES = sizeof names / sizeof *names };

static int ranks_given(const char *text)            /* 0: none */
{
    const int ranks = atoi(text);

    if (*text && (ranks < 1 || ranks > 64 || text[strspn(text, "0123456789")]))
        errx(2, "NP: expected a number of ranks from 1 to 64, got '%s'", text);
    if (ranks > 1 && (stage_is("01_single_gpu") || stage_is("02_mixed_precision") || stage_is("08_fused_kernels")))
        errx(2, "NP=%d, but %s runs on one rank, like 01, 02 and 08; leave NP out", ranks, stage);
    return ranks;
}

static void check_options(void)
{
    for (int k = has_experts() ? 0 : OF_ALL; k < NAMES; k++)
        if (given(names[k]))
            errx(2, "ARGS has %s, which verify sets itself; %s can be chosen", names[k],
                 k < OF_ALL ? "--ep and --recompute"
                            : "--layers, --hidden, --heads, --seq, --micro-batch and --accumulate");
}

/* Takes ARGS. 02, 08, 09 and 11 default to bf16: without an option that needs it, fp32 allows the exact comparison. */
static void take_options(char **words)
{
    static char options[1024];
    const bool typed = stage_is("02_mixed_precision") || stage_is("08_fused_kernels") || has_grid();

    for (; *words; words++)
        add_text(options, sizeof options, "%s%s", *options ? " " : "", *words);
    given_options = options;
    check_options();
    if (*options && !given("--dtype") && typed)
        add_text(options, sizeof options, " --dtype %s", given("--gradients") || given("--master") ? "bf16" : "fp32");
}

/* Whether a wrong case is right without one of its options. A child process tries it: then nothing is printed or
 * counted, and it may fail, since without --heads there may be no such model. */
static bool is_right_without(const Case *c, const char *option)
{
    const char *at = strstr(c->options, option), *after = at + strlen(option);
    Case other = *c;
    int status = 1;

    other.options = new_text("%.*s%s", (int)(at - c->options), c->options, after + (*after == ' '));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1), dup2(nowhere, 2);
        count = 0;                              /* the first compares initial weights, too */
        verify(&other);
        _exit(faults != 0);
    }
    waitpid(child, &status, 0);
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Says which options make the first wrong configuration wrong: it is right without any one of them. Ranks that wait for
 * each other take their time: then not all options are tried. */
static void print_decisive_options(const Case *c)
{
    const time_t begin = time(NULL);
    bool any = false, tiles = false;

    for (const char *o = c->options; (o = strstr(o, "--")) && time(NULL) < begin + 30; o += 2) {
        const char *next = strstr(o, " --");
        char option[64];
        snprintf(option, sizeof option, "%.*s", (int)(next ? next - o : (long)strlen(o)), o);
        if (!is_right_without(c, option))
            continue;
        printf(any ? ", or without %s" : "the first wrong configuration is right without %s", option);
        any = true, tiles |= c->kind & LONG && starts_with(option, "--seq");
    }
    if (any)
        printf("%s\n", tiles ? ": its sequences have more than one tile (64 queries, 256 keys), so an offset or a "
               "bound may be wrong from the second tile on" : "");
}

/* The number of wrong configurations or, if none is, of correct ones. */
static void print_summary(void)
{
    if (wasteful && !wrong && is_set("EXERCISE"))
        printf("the exercise is done when the costs are those of the project's program, too\n");
    if (wrong)
        printf("%d of %d configurations %s wrong", wrong, count, wrong == 1 ? "is" : "are");
    else
        printf("%d of %d configurations are correct", count, count);
    if (wasteful)
        printf("; costs of %d differ from those of the project's program", wasteful);
    printf("\n");
}

int main(int argc, char **argv)
{
    if (argc < 3)
        errx(2, "expected STAGE PROGRAM [RANKS [OPTION...]], got %d arguments; use make verify", argc - 1);
    if (is_set("REFERENCE"))
        reference = getenv("REFERENCE");
    /* as run.sh: MPICH leaks; freed memory is kept for a while, which takes more time than all else */
    setenv("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=4", 0);
    setenv("UBSAN_OPTIONS", "print_stacktrace=1", 0);
    stage = argv[1], program = realpath(argv[2], NULL);         /* runs start in a temporary directory */
    if (!program)
        errx(2, "there is no program %s", argv[2]);
    sanitized = realpath(format_text("%s_sanitized", program), NULL);
    if (is_set("EXPECT") && !intended("gradients") && !intended("losses"))
        errx(2, "EXPECT: expected gradients, losses or both, got '%s'", getenv("EXPECT"));
    own = true;
    for (int i = 0; i < case_count; i++)
        own &= !stage_is(cases[i].stage);
    const int ranks = argc > 3 ? ranks_given(argv[3]) : 0;
    if (argc > 4)
        take_options(argv + 4);
    printf("%s against %s, in float64, with --check:\n", stage,
           has_experts() ? "10 on one rank" : has_llama() ? "12 on one rank" : "01");
    const Case *first = NULL;                   /* that is wrong */
    for (int i = 0; i < case_count; i++)
        if (is_chosen(&cases[i], ranks)) {
            const int before = wrong;
            run_chosen(cases[i], ranks);
            if (*given_options)
                break;
            first = first || wrong == before ? first : &cases[i];
        }
    if (first && wrong < count && !(first->kind & (OVERFLOWS | REFUSED | INFINITE)))
        print_decisive_options(first);
    print_summary();
    return wrong > 0 || (wasteful && is_set("EXERCISE"));
}
