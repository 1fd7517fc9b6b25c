/* make verify: a train.c that someone has edited, against 01. It is run in float64 with --check on a few layouts, from
 * a checkpoint whose biases and LayerNorms are not 0 and 1 any more, since at initial weights some mistakes don't show.
 * Compared are the gradients of the first step, tensor by tensor (diagnose.c says what is wrong with them), norms and
 * losses of the next steps, traffic and memory.
 *
 *   verify STAGE PROGRAM [RANKS [OPTION...]]      PROGRAM: built from the train.c, in float64
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/safetensors.h"
#include "harness.h"

enum { TRAINED = 3, STEPS = 4 };        /* steps of the checkpoint, and after it */

typedef struct {
    const char *stage, *options;
    int ranks;
    double tolerance;           /* by norm, of a type of two bytes or one; 0: to ten digits */
} Case;

/* What is run if nobody says what: every option of a stage. */
static const Case cases[] = {
    {"01_single_gpu", "", 1},
    {"01_single_gpu", "--recompute selective", 1},
    {"01_single_gpu", "--recompute full", 1},
    {"02_mixed_precision", "--dtype fp32", 1},
    {"02_mixed_precision", "--dtype bf16", 1, 0.04},
    {"02_mixed_precision", "--dtype bf16 --gradients bf16 --recompute full", 1, 0.04},
    {"02_mixed_precision", "--dtype fp16", 1, 0.01},
    {"02_mixed_precision", "--dtype fp8", 1, 0.25},
    {"03_data_parallel", "--sync naive", 2},
    {"03_data_parallel", "--sync overlap --recompute full", 3},
    {"03_data_parallel", "--sync bucket --bucket-mb 0.3", 4},
    {"04_zero", "--zero 1", 2},
    {"04_zero", "--zero 2 --recompute selective", 3},
    {"04_zero", "--zero 3", 4},
    {"05_tensor_parallel", "", 2},
    {"05_tensor_parallel", "--recompute full", 4},
    {"05_tensor_parallel", "--sequence-parallel", 3},
    {"06_pipeline_parallel", "--schedule afab --recompute full", 2},
    {"06_pipeline_parallel", "--schedule 1f1b", 3},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 2", 3},
    {"06_pipeline_parallel", "--schedule zero-bubble --recompute selective", 4},
    {"07_context_parallel", "--attention ring", 3},
    {"07_context_parallel", "--attention zigzag --recompute full", 4},
    {"07_context_parallel", "--attention allgather", 2},
    {"07_context_parallel", "--attention ulysses", 3},
    {"08_fused_kernels", "--dtype fp32 --fuse none", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse attention", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse layernorm,gelu --recompute full", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse cross-entropy,adamw", 1},
    {"08_fused_kernels", "--dtype fp16 --fuse all", 1, 0.01},
    {"08_fused_kernels", "--dtype bf16 --fuse layernorm,gelu,cross-entropy,adamw", 1, 0.04},
};

static const char *stage, *program, *given_options = "";

/* ---- Shapes ---- */

typedef struct {
    int ranks, layers, heads, seq, micro_batch, accumulate;
    char model[512], schedule[128];     /* options: for all runs, for the program's */
} Shape;

static bool starts_with(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* What follows an option of the command line, after a space or "="; NULL: it isn't there. */
static const char *given(const char *name)
{
    for (const char *at = given_options; (at = strstr(at, name)); at += strlen(name))
        if (at[strlen(name)] == ' ' || at[strlen(name)] == '=')
            return at + strlen(name) + 1;
    return NULL;
}

/* Programs take "--hid" for "--hidden"; here options are looked for by their names. */
static void refuse_short(const char *word, const char *name)
{
    const size_t length = strcspn(word, "=");

    if (length > 2 && length < strlen(name) && !strncmp(word, name, length)) {
        fprintf(stderr, "verify: ARGS has %.*s, which may be %s: write options with their whole names here\n",
                (int)length, word, name);
        exit(2);
    }
}

static int option(const char *name, int otherwise)
{
    return given(name) ? atoi(given(name)) : otherwise;
}

static double tolerance_of(const char *dtype)
{
    return !dtype || starts_with(dtype, "fp32") ? 0
           : starts_with(dtype, "fp16")         ? 0.01
           : starts_with(dtype, "bf16")         ? 0.04
                                                : 0.25;
}

/* Small, divisible by the ranks where it must be, and with no two of ranks, layers, micro-batch and accumulation
 * alike: then a factor has one name. For 08 more than one tile of attention, more than one slice of rows. */
static Shape shape_for(const Case *c)
{
    const int n = c->ranks;
    const bool pipeline = starts_with(stage, "06");
    Shape s = {
        .ranks = n,
        .layers = option("--layers", pipeline ? 2 * n + 1 : n == 3 ? 4 : 3),
        .heads = option("--heads", 12 % n ? n : 12),
        .seq = option("--seq", starts_with(stage, "08") ? 300 : (24 + 2 * n - 1) / (2 * n) * 2 * n),
        .micro_batch = option("--micro-batch", n == 2 ? 3 : 2),
        .accumulate = option("--accumulate", pipeline ? 2 * n : 7)};

    snprintf(s.model, sizeof s.model, "--layers %d --hidden %d --heads %d --vocab 97 --seq %d --lr 1e-3 --warmup 1 "
             "--threads 1 --quiet --data %s", s.layers, option("--hidden", (n == 1 ? 4 : 6) * s.heads), s.heads, s.seq,
             token_file(20000, 97));
    snprintf(s.schedule, sizeof s.schedule, "--micro-batch %d --accumulate %d", s.micro_batch, s.accumulate);
    return s;
}

/* A trained model of this shape, made once. */
static const char *checkpoint(const Shape *s)
{
    static char name[256];
    char saved[64];

    snprintf(saved, sizeof saved, "trained_%d_%d_%d_%d", s->layers, s->heads, s->seq, option("--hidden", 0));
    snprintf(name, sizeof name, "%s", in_temporary(saved));
    if (access(name, F_OK))
        run_well(BUILD "/cpu64/01_single_gpu %s --lr 0.03 --micro-batch 4 --steps %d --save %s", s->model, TRAINED,
                 name);
    return name;
}

/* ---- What a run says ---- */

static int faults;              /* of the layout at hand */
static int wrong;               /* layouts before it that were wrong: of later ones the first lines are enough */

static void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fault(const char *format, ...)
{
    va_list list;

    if (!faults++)
        printf("WRONG\n");
    if (wrong && faults > 2)
        return;
    va_start(list, format);
    printf("    ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

/* What a message of the program's may mean; "" if it says all there is to say. */
static const char *hint(const char *line)
{
    if ((strstr(line, "nan") || strstr(line, "inf and")) && !strstr(line, "under --check"))
        return " (under --check a buffer is NaN from a transfer's start to comm_wait: one may be read too early)";
    if (strstr(line, "has drifted"))
        return " (replicas get the same update only from the same gradients and the same norm; what was gathered before "
               "an update is out of date)";
    if (strstr(line, "silent") || strstr(line, "waits") || strstr(line, "waited"))
        return " (some ranks call what others don't, or in another order)";
    return "";
}

/* So many calls too many or too few, in what a schedule counts in: " = 2 for each layer and micro-batch". */
static const char *count_name(int64_t calls, const Shape *s)
{
    static char text[128];
    const struct {
        int64_t unit;
        const char *words;
    } units[] = {{(int64_t)s->layers * s->accumulate, "each layer and micro-batch"}, {s->layers, "each layer"},
                 {s->accumulate, "each micro-batch"}};

    text[0] = 0;
    for (int i = 0; i < 3 && !text[0]; i++)
        if (units[i].unit > 1 && calls % units[i].unit == 0 && calls / units[i].unit <= 4)
            snprintf(text, sizeof text, " = %lld for %s", (long long)(calls / units[i].unit), units[i].words);
    return text;
}

static void traffic_fault(int rank, const char *op, const char *group, int64_t calls, int64_t bytes, int64_t expected,
                          int64_t expected_bytes, const Shape *s)
{
    const long long off = llabs((long long)(calls - expected));

    if (off == 0)
        fault("rank %d: the %lld calls of %s in group %s send %lld bytes, and predict() says %lld: something else is "
              "sent", rank, (long long)calls, op, group, (long long)bytes, (long long)expected_bytes);
    else
        fault("rank %d: %s in group %s is called %lld times in a step, and predict() says %lld: %lld %s%s", rank, op,
              group, (long long)calls, (long long)expected, off, calls < expected ? "are missing" : "too many",
              count_name(off, s));
}

/* The program's own lines: the first ones, and one about its traffic. */
static void print_messages(const char *text, const Shape *s)
{
    char copy[4096], op[64], group[64];
    int count = 0, rank;
    long long calls, bytes, expected, expected_bytes;
    bool traffic = false;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *line = strtok(copy, "\n"); line && count < 3; line = strtok(NULL, "\n")) {
        if (!starts_with(line, stage))
            continue;
        if (sscanf(line + strlen(stage), ": rank %d, step %*d: %63s in group %63[^:]: %lld calls sent %lld bytes, but "
                   "predict() said %lld calls and %lld", &rank, op, group, &calls, &bytes, &expected, &expected_bytes)
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

/* Memory against predict(), category by category. */
static void compare_memory(const char *file)
{
    if (access(file, F_OK))                     /* it ended early, and has said why */
        return;
    char *text = read_file(file);
    cJSON *json = cJSON_Parse(text), *rank, *entry;
    bool said = false;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(json, "ranks"))
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(rank, "memory"))
            if (!said && number(entry, "measured") != number(entry, "predicted")) {
                fault("rank %.0f: %s take %.0f bytes, and predict() says %.0f", number(rank, "rank"), entry->string,
                      number(entry, "measured"), number(entry, "predicted"));
                said = true;
            }
    cJSON_Delete(json);
    free(text);
}

/* 06: any order that can be executed gives the right gradients; a good one has the formula's bubble too, and keeps no
 * more micro-batches than it must. */
static void compare_schedule(const char *file, const char *options, const Shape *s)
{
    if (access(file, F_OK) || !starts_with(stage, "06"))
        return;
    const bool one_f_one_b = strstr(options, "--schedule 1f1b"), zero_bubble = strstr(options, "zero-bubble");
    char *text = read_file(file);
    cJSON *json = cJSON_Parse(text), *list = cJSON_GetObjectItem(json, "ranks"), *rank = cJSON_GetArrayItem(list, 0);
    const double simulated = number(rank, "bubble_simulated"), formula = number(rank, "bubble_formula");
    bool said = false;
    if (simulated > formula + 1e-9)
        fault("the schedule's bubble is %.3f, and it should be %.3f: a rank waits where it could compute", simulated,
              formula);
    cJSON_ArrayForEach(rank, list) {
        const int behind = s->ranks - (one_f_one_b ? (int)number(rank, "rank") : 0);
        const int needed = behind < s->accumulate ? behind : s->accumulate;
        if ((one_f_one_b || zero_bubble) && number(rank, "in_flight") > needed && !said) {
            fault("rank %.0f keeps the activations of %.0f micro-batches at once, and %d are enough: backwards come "
                  "too late", number(rank, "rank"), number(rank, "in_flight"), needed);
            said = true;
        }
    }
    cJSON_Delete(json);
    free(text);
}

/* ---- Gradients ---- */

/* Sequences of the batch that was dumped; 0: there is no dump. */
static int dumped_sequences(const char *file)
{
    Safetensors s;
    char *wrong = safetensors_open(&s, file);

    if (wrong) {
        free(wrong);
        return 0;
    }
    const int count = safetensors_find(&s, "batch.inputs")->shape[0];
    free(safetensors_close(&s, false));
    return count;
}

static void print_indented(const char *text)
{
    char *copy = strdup(text);

    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n"))
        fault("%s", line);
    free(copy);
}

static char farthest[256];      /* of a type of two bytes or one, what rounding did to the gradients; otherwise "" */

static bool compare_gradients_of(const Case *c, const Shape *s, int sequences)
{
    double loss[STEPS], norm[STEPS];
    const int rows = read_column(in_temporary("m.csv"), "loss", loss, STEPS);

    read_column(in_temporary("m.csv"), "grad_norm", norm, STEPS);
    char known[128] = "";
    if (rows && isfinite(loss[0]) && isfinite(norm[0]))
        snprintf(known, sizeof known, "--candidate-loss %.17g --candidate-norm %.17g", loss[0], norm[0]);
    Result r = run(BUILD "/cpu64/diagnose %s --load %s --steps %d --micro-batch %d --accumulate %d --ranks %d "
                   "--data-ranks %d --candidate g.safetensors %s --tolerance %g %s", s->model, checkpoint(s),
                   TRAINED + STEPS, s->micro_batch, sequences / s->micro_batch, s->ranks,
                   sequences / (s->micro_batch * s->accumulate), known, c->tolerance ? c->tolerance : 1e-10,
                   c->tolerance ? "--by-norm" : "");
    const bool right = r.status == 0;
    if (right)
        snprintf(farthest, sizeof farthest, "%.*s", (int)strcspn(r.out, "\n"), r.out);
    else
        print_indented(r.out);
    if (!right && r.status != 2)
        print_indented(r.err);
    result_free(r);
    return right;
}

/* Norms and losses of all steps, after a first one whose gradients were right. */
static void compare_losses(const Case *c, const Shape *s, int sequences)
{
    double a[2][STEPS], b[2][STEPS];
    static const char *const column[] = {"loss", "grad_norm"};
    const double most = c->tolerance ? 1e-3 : 1e-9;             /* losses are sums: rounding is less in them */

    run_well(BUILD "/cpu64/01_single_gpu %s --load %s --steps %d --micro-batch 1 --accumulate %d --metrics 01.csv",
             s->model, checkpoint(s), TRAINED + STEPS, sequences);
    int rows = 0;
    bool said = false;
    for (int k = 0; k < 2; k++) {
        rows = read_column(in_temporary("m.csv"), column[k], a[k], STEPS);
        read_column(in_temporary("01.csv"), column[k], b[k], STEPS);
    }
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < 2 && !said; k++)
            if (!(fabs(a[k][i] / b[k][i] - 1) <= (k ? c->tolerance + 1e-9 : most))) {
                fault("step %d: the %s is %.10g, and 01's %.10g; %s", i + 1, k ? "gradients' norm" : "loss", a[k][i],
                      b[k][i], i == 0 ? "yet the gradients are right"
                      : "the first step was right, so AdamW got something else than it should, or the next step "
                        "computes with parameters from before it: stale copies");
                said = true;
            }
    if (rows < STEPS && !faults)
        fault("it ended after %d of %d steps", rows, STEPS);
}

/* ---- One layout ---- */

static bool verify(const Case *c)
{
    const Shape s = shape_for(c);
    char ranks[32] = "", command[2048];

    faults = 0;
    printf("  %d rank%s%s%s: ", c->ranks, c->ranks > 1 ? "s" : "", *c->options ? ", " : "", c->options);
    fflush(stdout);
    checkpoint(&s);
    Result gone = run("rm -f g.safetensors m.csv r.json 01.csv");
    result_free(gone);
    if (c->ranks > 1)
        snprintf(ranks, sizeof ranks, "mpiexec -n %d ", c->ranks);
    snprintf(command, sizeof command, "%s%s %s %s %s", ranks, program, s.model, s.schedule, c->options);
    Result r = run("%s --load %s --steps %d --check --timeout 20 --dump-gradients g.safetensors --metrics m.csv "
                   "--report r.json", command, checkpoint(&s), TRAINED + STEPS);
    const int sequences = dumped_sequences(in_temporary("g.safetensors"));
    if (r.status)
        print_messages(r.err, &s);
    if (r.status == 2)                          /* its options: nothing to compare */
        printf("    (it was: %s)\n", command);
    compare_memory(in_temporary("r.json"));
    compare_schedule(in_temporary("r.json"), c->options, &s);
    const char *left_out = !sequences ? "gradients (run_dump_gradients)"
                         : access(in_temporary("m.csv"), F_OK) ? "metrics"
                         : access(in_temporary("r.json"), F_OK) ? "report" : NULL;
    if (!r.status && left_out)
        fault("it ended well, but left no %s: there is nothing to compare", left_out);
    if (sequences && !access(in_temporary("m.csv"), F_OK)) {
        if (compare_gradients_of(c, &s, sequences))
            compare_losses(c, &s, sequences);
    }
    const char *where = strstr(r.err, "ERROR: AddressSanitizer");       /* MPICH's UCX has printed a page before it */
    if (r.status && where)
        fault("it ended with status %d:\n%.2000s", r.status, where);
    if (r.status && !faults && (r.status == 139 || r.status == 11 || strstr(r.err, "Segmentation fault")))
        fault("it crashed: a segmentation fault, so a tensor or pointer that isn't there; the same make verify with "
              "SANITIZE=1 says where");
    if (r.status && !faults)
        fault("it ended with status %d:\n%.2000s", r.status, r.err);
    if (!faults)
        printf("right: gradients, norms, losses, memory, bytes%s%s%s\n", *farthest ? " (" : "", farthest,
               *farthest ? ")" : "");
    result_free(r);
    return faults == 0;
}

int main(int argc, char **argv)
{
    char options[1024] = "";
    int count = 0;

    if (argc < 3) {
        fprintf(stderr, "verify STAGE PROGRAM [RANKS [OPTION...]], but %d were given; make verify does it\n", argc - 1);
        return 2;
    }
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);                /* as run.sh: MPICH leaves memory behind */
    stage = argv[1], program = realpath(argv[2], NULL);         /* runs begin in a directory of their own */
    if (!program) {
        fprintf(stderr, "verify: there is no program %s\n", argv[2]);
        return 2;
    }
    const int ranks = argc > 3 ? atoi(argv[3]) : 0;
    for (int i = 4; i < argc; i++)
        snprintf(options + strlen(options), sizeof options - strlen(options), "%s%s", i > 4 ? " " : "", argv[i]);
    given_options = options;
    if (argc > 3 && *argv[3] && (ranks < 1 || ranks > 64 || argv[3][strspn(argv[3], "0123456789")])) {
        fprintf(stderr, "verify: NP=%s, but a number of ranks from 1 to 64 is wanted\n", argv[3]);
        return 2;
    }
    if (ranks > 1 && (starts_with(stage, "01") || starts_with(stage, "02") || starts_with(stage, "08"))) {
        fprintf(stderr, "verify: NP=%d, but %s is for one rank, as 01, 02 and 08 are\n", ranks, stage);
        return 2;
    }
    static const char *const own[] = {"--data", "--vocab", "--load", "--steps", "--preset", "--lr", "--seed"};
    static const char *const others[] = {"--layers", "--hidden", "--heads", "--seq", "--micro-batch", "--accumulate",
                                         "--dtype", "--gradients", "--master"};
    for (int i = 4; i < argc; i++) {
        for (unsigned k = 0; k < sizeof own / sizeof *own; k++)
            refuse_short(argv[i], own[k]);
        for (unsigned k = 0; k < sizeof others / sizeof *others; k++)
            refuse_short(argv[i], others[k]);
    }
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
        if (given(own[i])) {
            fprintf(stderr, "verify: ARGS has %s, but data, model and steps are the same for all that are compared; "
                    "--layers, --hidden, --heads, --seq, --micro-batch and --accumulate can be chosen\n", own[i]);
            return 2;
        }
    /* 02's and 08's own type is bf16: who asks for nothing that needs it gets the exact comparison */
    if (*options && !given("--dtype") && (starts_with(stage, "02") || starts_with(stage, "08")))
        snprintf(options + strlen(options), sizeof options - strlen(options), " --dtype %s",
                 given("--gradients") || given("--master") ? "bf16" : "fp32");
    printf("%s against 01, in float64, with --check:\n", stage);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        Case c = cases[i];
        if (strcmp(c.stage, stage) || (*options && count))
            continue;
        if (*options)
            c.options = options, c.tolerance = tolerance_of(given("--dtype"));
        if (ranks)
            c.ranks = ranks;
        wrong += !verify(&c);
        count++;
    }
    if (!count) {
        fprintf(stderr, "verify: there is no stage %s\n", stage);
        return 2;
    }
    printf("%d of %d layouts are %s\n", wrong ? wrong : count, count, wrong ? "wrong" : "right");
    return wrong > 0;
}
