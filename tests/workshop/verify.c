/* make verify: compares a train.c that the user has edited or written with 01. Runs it in float64 with --check in a few
 * parallel configurations, from a trained checkpoint: at initial weights (biases 0, LayerNorm weights 1) some mistakes
 * do not show. Compares the gradients of the first step, tensor by tensor (diagnose.c explains wrong ones), norms and
 * losses of the next steps, traffic and memory. --check compares the norm and loss of every rank with those
 * of rank 0. --clip is below the norm, so that a rank with another norm makes another update.
 *
 *   verify STAGE PROGRAM [RANKS [OPTION...]]      PROGRAM: built from the train.c, in float64
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/safetensors.h"
#include "../harness.h"
#include "verify_cases.h"

enum { TRAINED = 3, STEPS = 4 };        /* steps of the checkpoint, and after it */

static int hidden_of(const Shape *s)
{
    return atoi(strstr(s->model, "--hidden ") + strlen("--hidden "));
}

/* The checkpoint of a trained model of this shape; trained on first use. */
static const char *checkpoint(const Shape *s)
{
    static char name[256];
    char saved[64];

    snprintf(saved, sizeof saved, "trained_%d_%d_%d_%d", s->layers, s->heads, s->seq, hidden_of(s));
    snprintf(name, sizeof name, "%s", in_temporary(saved));
    if (access(name, F_OK))
        run_well(BUILD "/cpu64/01_single_gpu %s --lr 0.03 --clip 1 --micro-batch 4 --steps %d --save %s", s->model,
                 TRAINED, name);
    return name;
}

/* ---- What a run reports ---- */

static char about[1024];        /* the current configuration: its shape, groups, schedule */
static int faults;              /* found in the current configuration */
static int wrong;               /* wrong configurations before it: after one, the first lines are enough */

static void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fault(const char *format, ...)
{
    va_list list;

    if (!faults++)
        printf("WRONG\n    %s\n", about);
    if (wrong && faults > 2)
        return;
    va_start(list, format);
    printf("    ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

/* What a message of the program may mean, appended to it; "" if the message is clear by itself. */
static const char *hint(const char *line)
{
    if ((strstr(line, "nan") || strstr(line, "inf and")) && !strstr(line, "under --check"))
        return " (under --check a buffer in flight holds NaN until comm_wait: it may be read too early)";
    if (strstr(line, "has drifted"))
        return " (replicas stay equal only if all get the same gradients and the same norm; parameters that were "
               "all-gathered before an update are stale after it)";
    if (strstr(line, "silent") || strstr(line, "waits") || strstr(line, "waited"))
        return " (some ranks make calls that others do not make, or in another order)";
    return "";
}

/* A surplus or lack of calls as a multiple of what a schedule counts: " = 2 per layer and micro-batch"; or "". */
static const char *count_name(int64_t calls, const Shape *s)
{
    static char text[128];
    const struct {
        int64_t unit;
        const char *words;
    } units[] = {{(int64_t)s->layers * s->accumulate, "layer and micro-batch"}, {s->layers, "layer"},
                 {s->accumulate, "micro-batch"}};

    text[0] = 0;
    for (int i = 0; i < 3 && !text[0]; i++)
        if (units[i].unit > 1 && calls % units[i].unit == 0 && calls / units[i].unit <= 4)
            snprintf(text, sizeof text, " = %lld per %s", (long long)(calls / units[i].unit), units[i].words);
    return text;
}

static void traffic_fault(int rank, const char *op, const char *group, int64_t calls, int64_t bytes, int64_t expected,
                          int64_t expected_bytes, const Shape *s)
{
    const long long off = llabs((long long)(calls - expected));

    if (off == 0)
        fault("rank %d: the %lld calls of %s in group %s send %lld bytes, but predict() gives %lld: other tensors are "
              "sent", rank, (long long)calls, op, group, (long long)bytes, (long long)expected_bytes);
    else
        fault("rank %d: %s in group %s is called %lld times per step, but predict() gives %lld: %lld %s%s", rank, op,
              group, (long long)calls, (long long)expected, off, calls < expected ? "missing" : "too many",
              count_name(off, s));
}

/* Prints the program's first error lines, "11_mine: what", and one about traffic; if `drifted`, only those about
 * replicas that have drifted. A program that began as a copy of another may still print the other's name. */
static void print_messages(const char *text, const Shape *s, bool drifted)
{
    char copy[4096], op[64], group[64];
    int count = 0, rank;
    long long calls, bytes, expected, expected_bytes;
    bool traffic = false;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *line = strtok(copy, "\n"); line && count < 3; line = strtok(NULL, "\n")) {
        const size_t name = strcspn(line, ": ");
        if (name < 3 || line[0] < '0' || line[0] > '9' || line[2] != '_' || line[name] != ':'
            || (strstr(line, "has drifted") != NULL) != drifted)
            continue;
        if (sscanf(line + name, ": rank %d, step %*d: %63s in group %63[^:]: %lld calls sent %lld bytes, but "
                   "predict() gives %lld calls and %lld", &rank, op, group, &calls, &bytes, &expected, &expected_bytes)
            == 7) {
            if (!traffic)
                traffic_fault(rank, op, group, calls, bytes, expected, expected_bytes, s);
            traffic = true;
        } else {
            fault("%s%s", line, hint(line));
            count++;
        }
    }
}

static double number(const cJSON *json, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(json, name));
}

static cJSON *read_report(void)                 /* NULL: the run ended early */
{
    if (access(in_temporary("r.json"), F_OK))
        return NULL;
    char *text = read_file(in_temporary("r.json"));
    cJSON *json = cJSON_Parse(text);
    free(text);
    return json;
}

static cJSON *ranks_of(cJSON *report)
{
    return cJSON_GetObjectItem(report, "ranks");
}

static char groups[256];        /* all groups of the program but world, on any rank: "dp=2,tp=4" */

static void read_groups(cJSON *report)
{
    cJSON *rank, *group;

    groups[0] = 0;
    cJSON_ArrayForEach(rank, ranks_of(report))
        cJSON_ArrayForEach(group, cJSON_GetObjectItem(rank, "groups")) {
            char entry[64], before[300];
            snprintf(entry, sizeof entry, ",%.40s=%.0f,", group->string, cJSON_GetNumberValue(group));
            snprintf(before, sizeof before, ",%s", groups);
            if (strcmp(group->string, "world") && !strstr(before, entry))
                snprintf(groups + strlen(groups), sizeof groups - strlen(groups), "%s", entry + 1);
        }
}

/* "3, 2, 1": one value of the report, rank by rank. */
static const char *of_ranks(cJSON *report, const char *name)
{
    static char text[512];
    cJSON *rank;

    text[0] = 0;
    cJSON_ArrayForEach(rank, ranks_of(report))
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.0f", *text ? ", " : "", number(rank, name));
    return text;
}

static void describe(const Shape *s, cJSON *report)
{
    cJSON *first = cJSON_GetArrayItem(ranks_of(report), 0);

    snprintf(about, sizeof about, "micro_batch %d, accumulate %d, T %d, layers %d", s->micro_batch, s->accumulate,
             s->seq, s->layers);
    for (const char *g = groups; *g; g += strcspn(g, ",") + 1)
        snprintf(about + strlen(about), sizeof about - strlen(about), "%s %.*s %d", g == groups ? "; groups" : ",",
                 (int)strcspn(g, "="), g, atoi(g + strcspn(g, "=") + 1));
    if (cJSON_HasObjectItem(first, "in_flight"))
        snprintf(about + strlen(about), sizeof about - strlen(about), "; micro-batches in flight %s",
                 of_ranks(report, "in_flight"));
    if (cJSON_HasObjectItem(first, "bubble_simulated"))
        snprintf(about + strlen(about), sizeof about - strlen(about), "; bubble %.3f simulated, %.3f by its formula",
                 number(first, "bubble_simulated"), number(first, "bubble_formula"));
}

/* Compares memory with predict(), category by category; reports the first difference. */
static void compare_memory(cJSON *report)
{
    cJSON *rank, *entry;
    bool said = false;

    cJSON_ArrayForEach(rank, ranks_of(report))
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "memory"))
            if (!said && number(entry, "measured") != number(entry, "predicted")) {
                fault("rank %.0f: %s take %.0f bytes, but predict() gives %.0f", number(rank, "rank"), entry->string,
                      number(entry, "measured"), number(entry, "predicted"));
                said = true;
            }
}

/* The largest number of micro-batches that a rank needs in flight: of a model chunk, half the rank's layers, for the V
 * schedules (*halves). 0: unknown for this schedule. */
static int needed_in_flight(const char *options, const Shape *s, int rank, bool *halves)
{
    const int p = s->ranks, m = s->accumulate;

    *halves = strstr(options, "zb-v") || strstr(options, "dualpipe-v");
    const int needed = strstr(options, "--schedule 1f1b") ? p - rank
                       : strstr(options, "zero-bubble")   ? p
                       : strstr(options, "zb-v")          ? 2 * p
                       : strstr(options, "dualpipe-v")    ? 2 * p + 1
                                                          : 0;
    const int all = *halves ? 2 * m : m;
    return needed < all ? needed : all;
}

/* 06: any schedule that can be executed gives the right gradients. A good one also has the bubble of the formula, and
 * no more micro-batches in flight than necessary. Schedules of other names have no formula here: see describe. */
static void compare_schedule(cJSON *report, const char *options, const Shape *s)
{
    cJSON *rank;
    bool waits = false, keeps = false, halves;

    cJSON_ArrayForEach(rank, ranks_of(report)) {
        const double simulated = number(rank, "bubble_simulated"), formula = number(rank, "bubble_formula");
        const int needed = needed_in_flight(options, s, number(rank, "rank"), &halves);
        if (simulated > formula + 1e-9 && !waits)
            fault("rank %.0f: the bubble of this schedule is %.3f, but the formula gives %.3f: a rank waits where it "
                  "could compute", number(rank, "rank"), simulated, formula);
        waits |= simulated > formula + 1e-9;
        if (needed && number(rank, "in_flight") > needed && !keeps) {
            fault("rank %.0f has %.0f micro-batches%s in flight, but %d are enough: backward passes come too late",
                  number(rank, "rank"), number(rank, "in_flight"), halves ? " of a model chunk" : "", needed);
            keeps = true;
        }
    }
}

/* ---- Gradients ---- */

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

static void print_indented(const char *text)
{
    char *copy = strdup(text);

    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n"))
        fault("%s", line);
    free(copy);
}

static char farthest[256];      /* 16- and 8-bit types: the largest difference that rounding made; otherwise "" */

static bool compare_gradients_of(const Case *c, const Shape *s, int sequences)
{
    double loss[STEPS], norm[STEPS];
    const int rows = read_column(in_temporary("m.csv"), "loss", loss, STEPS);

    read_column(in_temporary("m.csv"), "grad_norm", norm, STEPS);
    char known[128] = "";
    if (rows && isfinite(loss[0]) && isfinite(norm[0]))     /* experts' gradients have another norm than their sum */
        snprintf(known, sizeof known, is("10_expert_parallel") ? "--candidate-loss %.17g"
                 : "--candidate-loss %.17g --candidate-norm %.17g", loss[0], norm[0]);
    Result r = run(BUILD "/cpu64/diagnose %s --load %s --steps %d --micro-batch %d --accumulate %d --ranks %d "
                   "--data-ranks %d --groups %s --candidate g.safetensors %s --tolerance %g %s", s->model,
                   checkpoint(s), TRAINED + STEPS, s->micro_batch, sequences / s->micro_batch, s->ranks,
                   sequences / (s->micro_batch * s->accumulate), *groups ? groups : "none", known,
                   c->tolerance ? c->tolerance : 1e-10, c->tolerance ? "--by-norm" : "");
    const bool right = r.status == 0;
    if (right)
        snprintf(farthest, sizeof farthest, "%.*s", (int)strcspn(r.out, "\n"), r.out);
    else
        print_indented(r.out);
    if (!right && (r.status != 2 || !*r.out))                   /* diagnose itself has failed */
        fault("diagnose ended with status %d: %.1000s", r.status, r.err);
    result_free(r);
    return right;
}

/* Losses and norms of 01 in the same steps, with further options. */
static void read_01(double b[2][STEPS], const Shape *s, int sequences, const char *more)
{
    run_well(BUILD "/cpu64/01_single_gpu %s %s --load %s --steps %d --micro-batch 1 --accumulate %d --metrics 01.csv",
             s->model, more, checkpoint(s), TRAINED + STEPS, sequences);
    read_column(in_temporary("01.csv"), "loss", b[0], STEPS);
    read_column(in_temporary("01.csv"), "grad_norm", b[1], STEPS);
    result_free(run("rm -f 01.csv"));
}

static double loss_distance(const double *a, const double *b, int rows)
{
    double sum = 0;

    for (int i = 0; i < rows; i++)
        sum += pow(a[i] - b[i], 2);
    return sqrt(sum);
}

/* Compares norms and losses of all steps, once the gradients of the first are known to be right. */
static void compare_losses(const Case *c, const Shape *s, int sequences)
{
    double a[2][STEPS], b[2][STEPS], never[2][STEPS];
    static const char *const column[] = {"loss", "grad_norm"};
    const double most = c->tolerance ? 1e-3 : 1e-9;             /* losses are sums, with less rounding */
    int rows = 0, first = -1, k;

    for (k = 0; k < 2; k++)
        rows = read_column(in_temporary("m.csv"), column[k], a[k], STEPS);
    read_01(b, s, sequences, "");
    for (int i = 0; i < rows && first < 0; i++)
        for (k = 0; k < 2 && first < 0; k++)
            if (!(fabs(a[k][i] / b[k][i] - 1) <= (k ? c->tolerance + 1e-9 : most)))
                first = 2 * i + k;
    if (first >= 0) {
        const int i = first / 2;
        k = first % 2;
        read_01(never, s, sequences, "--lr 0 --min-lr 0");
        fault("step %d: the %s is %.10g, but 01 gives %.10g; %s", i + 1, k ? "gradient norm" : "loss", a[k][i], b[k][i],
              i == 0 ? "yet the gradients are right"
              : loss_distance(a[0], never[0], rows) < 0.2 * loss_distance(b[0], never[0], rows)
              ? "the losses are as if no step had changed the weights that forward reads: stale copies (after the "
                "update a tensor_convert is missing, or its two arguments are swapped)"
              : "the first step was right, so AdamW got wrong inputs, or the next step computes with parameters from "
                "before the update: stale copies");
    }
    if (rows < STEPS && !faults)
        fault("the run ended after %d of %d steps", rows, STEPS);
    if (!(b[1][0] > CLIP))
        fault("the gradient norm of step 1 is %g, so verify's --clip %g tests nothing", b[1][0], CLIP);
}

/* ---- One configuration ---- */

/* Prints what a sanitizer found, and the stack frames in our files. (MPICH's UCX may print a page before, and several
 * ranks print at once.) */
static void print_sanitizer(const char *err)
{
    char *copy = strdup(err), last[256] = "";
    bool found = false;

    for (char *line = strtok(copy, "\n"); line && !strstr(line, "is located"); line = strtok(NULL, "\n")) {
        const bool what = strstr(line, "ERROR: AddressSanitizer") || strstr(line, ": runtime error: ");
        const bool frame = found && starts_with(line, "    #") && strstr(line, ".c:") && !strstr(line, "../");
        if ((what && !found) || (frame && strcmp(last, line + strcspn(line, "i"))))
            fault("%.250s", line);
        snprintf(last, sizeof last, "%s", frame ? line + strcspn(line, "i") : last);
        found |= what;
    }
    free(copy);
}

static bool verify(const Case *c)
{
    const Shape s = shape_for(c);
    char ranks[32] = "", command[2048], upcycled[128] = "";

    faults = 0;
    printf("  %d rank%s%s%s: ", c->ranks, c->ranks > 1 ? "s" : "", *c->options ? ", " : "", c->options);
    fflush(stdout);
    checkpoint(&s);
    result_free(run("rm -f g.safetensors m.csv r.json"));
    if (c->ranks > 1)
        snprintf(ranks, sizeof ranks, "mpiexec -n %d ", c->ranks);
    if (is("10_expert_parallel"))               /* the model that computes what 01 computes */
        snprintf(upcycled, sizeof upcycled, "--experts 4 --top-k 2 --capacity 0 --balance 0 --expert-width %d",
                 4 * hidden_of(&s));
    snprintf(command, sizeof command, "%s%s %s %s %s %s", ranks, program, s.model, s.schedule, c->options, upcycled);
    Result r = run("%s --load %s --steps %d --check --timeout 20 --dump-gradients g.safetensors --metrics m.csv "
                   "--report r.json", command, checkpoint(&s), TRAINED + STEPS);
    const int sequences = dumped_sequences(in_temporary("g.safetensors"));
    cJSON *report = read_report(), *of_start = NULL;
    if (!report && sequences) {                 /* a run of no steps, to learn its groups */
        result_free(run("%s --load %s --steps %d --timeout 20 --report r.json", command, checkpoint(&s), TRAINED));
        of_start = read_report();
    }
    read_groups(report ? report : of_start);
    describe(&s, report);
    if (r.status)
        print_messages(r.err, &s, false);
    if (r.status == 2)                          /* refused its options: nothing to compare */
        printf("    (the command was: %s)\n", command);
    compare_memory(report);
    compare_schedule(report, c->options, &s);
    const char *left_out = !sequences ? "gradients (run_dump_gradients)"
                         : access(in_temporary("m.csv"), F_OK) ? "metrics"
                         : !report ? "report" : NULL;
    if (!r.status && left_out)
        fault("the run succeeded, but wrote no %s: there is nothing to compare", left_out);
    const bool comparable = sequences && !access(in_temporary("m.csv"), F_OK);
    const bool right = comparable && compare_gradients_of(c, &s, sequences);
    if (r.status && (right || !comparable))     /* wrong gradients explain why replicas drift */
        print_messages(r.err, &s, true);
    if (right && !is("10_expert_parallel"))     /* experts differ after an update */
        compare_losses(c, &s, sequences);
    if (r.status)
        print_sanitizer(r.err);
    if (r.status && !faults && (r.status == 139 || r.status == 11 || strstr(r.err, "Segmentation fault")))
        fault("the run crashed with a segmentation fault: some tensor or pointer is not set; the same make verify with "
              "SANITIZE=1 names the line");
    if (r.status && !faults)
        fault("the run ended with status %d:\n%.2000s", r.status, r.err);
    if (!faults)
        printf("right: %smemory, traffic%s%s%s\n    %s\n", is("10_expert_parallel")
               ? "loss, gradients (the experts' together: the MLP's), " : "gradients, norms, losses, ",
               *farthest ? " (" : "", farthest,
               *farthest ? ")" : "", about);
    cJSON_Delete(report);
    cJSON_Delete(of_start);
    result_free(r);
    return faults == 0;
}

#include "verify_experts.h"

int main(int argc, char **argv)
{
    char options[1024] = "";
    int count = 0;

    if (argc < 3) {
        fprintf(stderr, "verify: expected STAGE PROGRAM [RANKS [OPTION...]], got %d arguments; use make verify\n",
                argc - 1);
        return 2;
    }
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);                /* as run.sh: MPICH leaks */
    setenv("UBSAN_OPTIONS", "print_stacktrace=1", 0);
    stage = argv[1], program = realpath(argv[2], NULL);         /* runs start in a temporary directory */
    if (!program) {
        fprintf(stderr, "verify: there is no program %s\n", argv[2]);
        return 2;
    }
    const int ranks = argc > 3 ? atoi(argv[3]) : 0;
    for (int i = 4; i < argc; i++)
        snprintf(options + strlen(options), sizeof options - strlen(options), "%s%s", i > 4 ? " " : "", argv[i]);
    given_options = options;
    if (argc > 3 && *argv[3] && (ranks < 1 || ranks > 64 || argv[3][strspn(argv[3], "0123456789")])) {
        fprintf(stderr, "verify: NP: expected a number of ranks from 1 to 64, got '%s'\n", argv[3]);
        return 2;
    }
    own = true;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        own &= !is(cases[i].stage);
    const bool one_rank = is("01_single_gpu") || is("02_mixed_precision") || is("08_fused_kernels");
    const bool typed = is("02_mixed_precision") || is("08_fused_kernels") || is("09_combined");
    if (ranks > 1 && one_rank) {
        fprintf(stderr, "verify: NP=%d, but %s runs on one rank, like 01, 02 and 08; leave NP out\n", ranks, stage);
        return 2;
    }
    static const char *const fixed[] = {"--data", "--vocab", "--load", "--steps", "--preset", "--seed", "--lr",
                                        "--clip", "--min-lr", "--warmup", "--lr-decay-steps", "--weight-decay"};
    static const char *const others[] = {"--layers", "--hidden", "--heads", "--seq", "--micro-batch", "--accumulate",
                                         "--dtype", "--gradients", "--master"};
    static const char *const set[] = {"--experts", "--top-k", "--expert-width", "--capacity", "--balance"};
    for (unsigned i = 0; i < sizeof set / sizeof *set && is("10_expert_parallel"); i++)
        if (given(set[i])) {
            fprintf(stderr, "verify: ARGS has %s, which verify sets itself; --ep and --recompute can be chosen\n",
                    set[i]);
            return 2;
        }
    for (int i = 4; i < argc; i++) {
        for (unsigned k = 0; k < sizeof fixed / sizeof *fixed; k++)
            refuse_short(argv[i], fixed[k]);
        for (unsigned k = 0; k < sizeof others / sizeof *others; k++)
            refuse_short(argv[i], others[k]);
    }
    for (unsigned i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (given(fixed[i])) {
            fprintf(stderr, "verify: ARGS has %s, which verify sets itself, the same for both programs; --layers, "
                    "--hidden, --heads, --seq, --micro-batch and --accumulate can be chosen\n", fixed[i]);
            return 2;
        }
    /* 02, 08 and 09 default to bf16: without an option that needs it, fp32 allows the exact comparison */
    if (*options && !given("--dtype") && typed)
        snprintf(options + strlen(options), sizeof options - strlen(options), " --dtype %s",
                 given("--gradients") || given("--master") ? "bf16" : "fp32");
    printf("%s against 01, in float64, with --check:\n", stage);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        Case c = cases[i];
        if (!is(c.stage) && !(own && !*c.stage))
            continue;
        if (own && (ranks || *options) && c.ranks < 4)
            continue;                                           /* the three cases differ in ranks only */
        if (ranks && !*options && !fits(&c, ranks))
            continue;
        if (*options)
            c.options = options, c.tolerance = tolerance_of(given("--dtype"));
        if (ranks)
            c.ranks = ranks;
        if (*options && c.tolerance) {
            const Case exact = {c.stage, in_fp32(options), c.ranks};
            wrong += !verify(&exact);
            count++;
        }
        wrong += !verify(&c);
        count++;
        if (*options)
            break;
    }
    for (unsigned i = 0; i < sizeof reference_runs / sizeof *reference_runs && is("10_expert_parallel"); i++) {
        const int n = ranks ? ranks : reference_runs[i].ranks;
        if (4 % n || (i == 0 && (ranks || *options)))           /* the same case as the next */
            continue;
        const char *more = *options ? options : ranks ? "" : reference_runs[i].options;
        wrong += !verify_reference(reference_runs[i].number, n, more);
        count++;
    }
    printf("%d of %d configurations are %s\n", wrong ? wrong : count, count, wrong ? "wrong" : "right");
    return wrong > 0;
}
