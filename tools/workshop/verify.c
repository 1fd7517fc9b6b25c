/* make verify: compares a train.c that the user has edited or written with a reference: 01, or for mixtures 10 on one
 * rank, as git has them. Runs it in float64 with --check in a few parallel configurations, from a trained checkpoint:
 * at initial weights (biases 0, LayerNorm weights 1) some mistakes do not show. Compares the gradients of the first
 * step, tensor by tensor (diagnose.c explains wrong ones), losses, norms and learning rates of all steps, within
 * warm-up and decay, a validation loss, the checkpoint saved at the end, traffic and memory. --check compares the norm
 * and loss of every rank with those of rank 0. --clip is below the norm, so that a rank with another norm makes another
 *update.
 *   verify STAGE PROGRAM [RANKS [OPTION...]]      PROGRAM: built from the train.c, in float64
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
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../common/error.h"
#include "../../common/print.h"
#include "../../common/safetensors.h"
#include "process.h"
#include "verify_cases.h"
#include "verify_costs.h"

/* Steps of the checkpoint, and after it: two of the warm-up, two of the decay. After the second there is an
 * evaluation. */
static const double EXACT = 1e-10;
enum { TRAINED = 3, STEPS = 4, EVALUATED = 5 };
#define SAMPLE "--sample 4 --prompt ABC"

static bool is_set(const char *variable)
{
    return getenv(variable) && *getenv(variable);
}

static bool intended(const char *difference)
{
    return is_set("EXPECT") && strstr(getenv("EXPECT"), difference);
}

static int hidden_of(const Shape *s)
{
    return atoi(strstr(s->model, "--hidden ") + strlen("--hidden "));
}

/* The options of a model of experts. */
static const char *mixture(const Shape *s)
{
    return has_experts() ? format_text("--experts 6 --top-k 2 --capacity 0.9 --balance 0.1 --expert-width %d",
                                       4 * hidden_of(s)) : "";
}

static const char *reference_program(void)
{
    return has_experts() ? "10_expert_parallel" : "01_single_gpu";
}

/* Multiplies the tensors of a checkpoint whose names have these words. */
static void enlarge(const char *directory, const char *words, double factor)
{
    char path[300];
    double x;

    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    Safetensors s = safetensors_open(path);
    const int f = open(path, O_RDWR);
    for (int i = 0; i < s.count; i++)
        for (int64_t at = 0; at < s.tensors[i].bytes && strstr(s.tensors[i].name, words); at += sizeof x) {
            if (pread(f, &x, sizeof x, s.tensors[i].first_byte + at) != sizeof x)
                fail("%s cannot be read", path);
            x *= factor;
            if (pwrite(f, &x, sizeof x, s.tensors[i].first_byte + at) != sizeof x)
                fail("%s cannot be written", path);
        }
    close(f);
    safetensors_close(&s);
}

/* The checkpoint of a trained model of this shape, trained on first use; far: with large weights. */
static const char *checkpoint(const Shape *s, bool far)
{
    static char name[256];
    char saved[64];

    snprintf(saved, sizeof saved, "trained_%d_%d_%d_%d%s", s->layers, s->heads, s->seq, hidden_of(s),
             far ? "_far" : "");
    snprintf(name, sizeof name, "%s", in_temporary(saved));
    if (!access(name, F_OK))
        return name;
    if (far) {
        char near[256];
        snprintf(near, sizeof near, "%s", checkpoint(s, false));
        snprintf(name, sizeof name, "%s", in_temporary(saved));
        run_well("cp -r %s %s", near, name);
        enlarge(name, "final_layer_norm.weight", 2000);
        enlarge(name, "query_key_value", 50);
    } else {
        run_well("%s/%s %s %s --lr 0.03 --warmup 1 --lr-decay-steps 0 --clip 1 --micro-batch 4 --steps %d --save %s",
                 reference, reference_program(), s->model, mixture(s), TRAINED, name);
    }
    return name;
}

/* ---- What a run reports ---- */

static char about[1024];        /* the current configuration: its shape, groups, schedule */
static int faults;              /* found in the current configuration */
static int wrong;               /* configurations already found wrong; later ones print only their first lines */
static int count;               /* of configurations so far */
static int wasteful;            /* configurations that are right, but whose costs differ from the project's program's */

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
    if ((strstr(line, "nan") || strstr(line, "inf and")) && !strstr(line, "under --check"))         /* one rank */
        return " (a number on its way from the device is NaN until the host has waited for it: is it read too early?)";
    if (strstr(line, "has drifted before"))
        return " (no update was made yet: after a load parameters must be all-gathered)";
    if (strstr(line, "has drifted"))
        return " (replicas stay equal only if all get the same gradients and the same norm; parameters that were "
               "all-gathered before an update are stale after it)";
    if (strstr(line, "silent") || strstr(line, "waits") || strstr(line, "waited"))
        return strstr(line, "send") ? " (a send lasts until its receive is posted: ranks that all wait for their sends "
                                      "before they post receives wait for each other)"
               : " (some ranks make calls that others do not make, or in another order)";
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

static cJSON *read_json(const char *name)       /* NULL: there is no such file, because the run ended early */
{
    if (access(in_temporary("%s", name), F_OK))
        return NULL;
    char *text = read_file(in_temporary("%s", name));
    cJSON *json = cJSON_Parse(text);
    free(text);
    return json;
}

static cJSON *ranks_of(cJSON *report)
{
    return cJSON_GetObjectItem(report, "ranks");
}

static char groups[256];        /* all groups of the program, on any rank: "dp=2,tp=4" */

static void read_groups(cJSON *report)
{
    cJSON *rank, *group;

    groups[0] = 0;
    cJSON_ArrayForEach(rank, ranks_of(report))
        cJSON_ArrayForEach(group, cJSON_GetObjectItem(rank, "groups")) {
            char entry[64], before[300];
            snprintf(entry, sizeof entry, ",%.40s=%d,", group->string, cJSON_GetArraySize(group));
            snprintf(before, sizeof before, ",%s", groups);
            if (!strstr(before, entry))
                snprintf(groups + strlen(groups), sizeof groups - strlen(groups), "%s", entry + 1);
        }
}

static void describe(const Shape *s, cJSON *report)
{
    cJSON *first = cJSON_GetArrayItem(ranks_of(report), 0), *rank;

    snprintf(about, sizeof about, "micro_batch %d, accumulate %d, T %d, layers %d", s->micro_batch, s->accumulate,
             s->seq, s->layers);
    for (const char *g = groups; *g; g += strcspn(g, ",") + 1)
        snprintf(about + strlen(about), sizeof about - strlen(about), "%s %.*s %d", g == groups ? "; groups" : ",",
                 (int)strcspn(g, "="), g, atoi(g + strcspn(g, "=") + 1));
    cJSON_ArrayForEach(rank, ranks_of(report))
        if (cJSON_HasObjectItem(first, "in_flight"))
            snprintf(about + strlen(about), sizeof about - strlen(about), "%s%.0f", rank == first
                     ? "; micro-batches in flight " : ", ", number(rank, "in_flight"));
    if (cJSON_HasObjectItem(first, "bubble_simulated"))
        snprintf(about + strlen(about), sizeof about - strlen(about), "; bubble %.3f simulated, %.3f by its formula",
                 number(first, "bubble_simulated"), number(first, "bubble_formula"));
}

/* 06: any schedule that can be executed gives correct gradients. A good one also has the bubble of the formula, and no
 * more micro-batches in flight than the project's (compare_costs). One of another name has no formula: see describe. */
static void compare_schedule(cJSON *report)
{
    const cJSON *first = cJSON_GetArrayItem(ranks_of(report), 0);

    if (number(first, "bubble_simulated") > number(first, "bubble_formula") + 1e-9)
        add_waste("    the bubble of this schedule is %.3f, but the formula gives %.3f: a rank waits where it could "
                  "compute\n", number(first, "bubble_simulated"), number(first, "bubble_formula"));
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

static bool ranks_disagree;     /* about the loss: that of rank 0 is no evidence */
static char farthest[256];      /* 16- and 8-bit types: the largest difference that rounding made; otherwise "" */

static bool near(double a, double b, double most)
{
    return fabs(a - b) <= most * fabs(b);
}

/* Says what is wrong with the gradients, their loss or their norm; true: nothing. */
static bool explain_gradients(const Case *c, const Shape *s, int sequences)
{
    double loss[STEPS], norm[STEPS];
    const int rows = read_column("m.csv", "loss", loss, STEPS);

    read_column("m.csv", "grad_norm", norm, STEPS);
    char known[128] = "";
    if (rows && isfinite(loss[0]) && isfinite(norm[0]) && !ranks_disagree)
        snprintf(known, sizeof known, "--candidate-loss %.17g --candidate-norm %.17g", loss[0], norm[0]);
    Result r = run("%s/diagnose %s --load %s --steps %d --micro-batch %d --accumulate %d --ranks %d "
                   "--data-ranks %d --groups %s --candidate g.safetensors %s --tolerance %g %s", reference, s->model,
                   checkpoint(s, c->kind & FAR), TRAINED + STEPS, s->micro_batch, sequences / s->micro_batch, s->ranks,
                   sequences / (s->micro_batch * s->accumulate), *groups ? groups : "none", known,
                   c->tolerance ? c->tolerance : EXACT, c->tolerance ? "--by-norm" : "");
    const bool right = r.status == 0;
    if (!right && (r.status != 2 || !*r.out))                   /* diagnose itself has failed */
        fault("diagnose ended with status %d: %.1000s", r.status, r.err);
    for (char *line = right ? NULL : strtok(r.out, "\n"); line; line = strtok(NULL, "\n"))
        fault("%s", line);
    result_free(r);
    return right;
}

/* ---- The reference's run: losses, norms, learning rates, the validation loss, the checkpoint at the end ---- */

/* Every replica evaluates all 64 sequences: with many ranks on few cores that takes longer than the steps. */
static bool evaluates(const Case *c)
{
    return c->ranks <= 6 || c->kind & FULL;
}

/* Whether a case samples at its end: in exact types, since rounding may choose other tokens. */
static bool samples(const Case *c)
{
    return !*given_options && !c->tolerance && !(c->kind & FAR) && !own && !has_grid() && !has_experts()
           && !is("05_tensor_parallel") && !is("06_pipeline_parallel") && !is("07_context_parallel");
}

static char *sample_of(char *text)              /* what the run printed for --sample, copied */
{
    char *sample = strstr(text, "\nsample after");

    return strdup(sample ? sample : "");
}

static char *sample;                            /* the reference's, of its last run */

/* Runs the reference on the same sequences, to 01.csv, 01.json and 01.saved. */
static void run_reference(const Case *c, const Shape *s, int sequences)
{
    /* 10 knows no option of a grid but --span */
    const char *of_case = !has_experts() ? "" : has_grid() ? format_text("--span %d", option(c, "--span", 0))
                          : format_text("%s --ep 1", c->options);

    run_well("rm -rf 01.csv 01.json 01.saved");
    Result r = run("%s/%s %s --load %s --steps %d --eval-every %d --micro-batch %d --accumulate %d --metrics 01.csv "
                   "--report 01.json --dump-gradients 01.safetensors --save 01.saved %s %s %s", reference,
                   reference_program(), s->model, checkpoint(s, c->kind & FAR),
                   TRAINED + (c->kind & FAR ? 1 : STEPS), evaluates(c) ? EVALUATED : 0, s->micro_batch,
                   sequences / s->micro_batch, samples(c) ? SAMPLE : "", mixture(s), of_case);
    if (r.status)
        fail("status %d from %s:\n%s", r.status, r.command, r.err);
    free(sample);
    sample = sample_of(r.out);
    result_free(r);
}

/* Compares the gradients of the first step with the reference's, and their loss and norm. */
static bool compare_gradients_of(const Case *c, const Shape *s, int sequences)
{
    char name[128] = "";
    double a[2] = {NAN, NAN}, b[2];

    const int trained = s->micro_batch * s->accumulate * data_ranks(c);
    if (!own && sequences != trained) {
        fault("the dump is of a global batch of %d sequences, but micro_batch %d x accumulate %d x %d data-parallel "
              "ranks = %d are trained: run_set_global_batch was given too %s", sequences, s->micro_batch, s->accumulate,
              data_ranks(c), trained, sequences < trained ? "few" : "many");
        return false;
    }
    run_reference(c, s, sequences);
    const double d = compare_tensors("g.safetensors", "01.safetensors", s->heads, c->tolerance, name);
    read_column("m.csv", "loss", a, 1), read_column("m.csv", "grad_norm", a + 1, 1);
    read_column("01.csv", "loss", b, 1), read_column("01.csv", "grad_norm", b + 1, 1);
    if (c->tolerance)
        snprintf(farthest, sizeof farthest, "the largest difference is %.2g of the norm, in %s", d, name);
    if (d <= (c->tolerance ? c->tolerance : EXACT) && near(a[0], b[0], c->tolerance + 1e-9)
        && near(a[1], b[1], c->tolerance + 1e-9))
        return true;
    if (!has_experts() && wrong < 2)            /* an explanation takes time: two are enough */
        return explain_gradients(c, s, sequences);
    fault("step 1 has the loss %.10g and the norm %.10g, the reference %.10g and %.10g; of the gradients %s differs "
          "most, by %.2g", a[0], a[1], b[0], b[1], name, d);
    return false;
}

/* A number of the state that a run saved; NAN: it saved none. */
static double saved_number(const char *directory, const char *name)
{
    const char *file = in_temporary("%s/trainer.json", directory);

    return access(file, F_OK) ? NAN : json_number(file, "%s", name);
}

/* Why losses differ from step `i` on, although the first gradients are right. */
static const char *cause_of_losses(int i, bool norm)
{
    if (i == 0)
        return "yet the gradients are right";
    if (fabs(saved_number("saved", "optimizer_step") - saved_number("01.saved", "optimizer_step")) > 0)
        return "AdamW counts other updates than the reference (optimizer_step in trainer.json): its bias correction is "
               "that of another step";
    if (norm)
        return "its loss is right, so its parameters are; its gradients are not: something of the previous step was "
               "not set to zero, or was not waited for";
    return "the previous step was right up to the update: AdamW got a wrong scale (clip_scale(norm)), or this step "
           "computes with parameters from before the update: stale copies (a tensor_convert is missing, or its two "
           "arguments are swapped)";
}

/* Compares losses, norms and learning rates of all steps, once the gradients of the first are known to be right. */
static void compare_losses(const Case *c)
{
    double a[3][STEPS], b[3][STEPS];
    static const char *const column[] = {"lr", "loss", "grad_norm"}, *const words[] = {"learning rate", "loss",
                                                                                       "gradient norm"};
    const double most[] = {1e-7, c->tolerance ? 1e-3 : 1e-9, c->tolerance + 1e-9};  /* losses are sums: less rounding */
    int rows = 0, first = -1;

    for (int k = 0; k < 3; k++) {
        rows = read_column("m.csv", column[k], a[k], STEPS);
        read_column("01.csv", column[k], b[k], STEPS);
    }
    for (int i = 0; i < rows && first < 0; i++)
        for (int k = 0; k < 3 && first < 0; k++)
            first = near(a[k][i], b[k][i], most[k]) ? -1 : 3 * i + k;
    if (first >= 0) {
        const int i = first / 3, k = first % 3;
        fault("step %d: the %s is %.10g, but the reference's is %.10g%s%s", i + 1, words[k], a[k][i], b[k][i],
              k ? "; " : "", k ? cause_of_losses(i, k == 2) : "");
    }
    if (rows < (c->kind & FAR ? 1 : STEPS) && !faults)
        fault("the run ended after %d of %d steps", rows, STEPS);
    if (!(b[2][0] > CLIP))
        fault("the gradient norm of step 1 is %g, so verify's --clip %g tests nothing", b[2][0], CLIP);
}

static void compare_validation(const Case *c)
{
    cJSON *mine = read_json("r.json"), *right = read_json("01.json");
    const cJSON *a = cJSON_GetArrayItem(cJSON_GetObjectItem(mine, "held_out"), 0);
    const cJSON *b = cJSON_GetArrayItem(cJSON_GetObjectItem(right, "held_out"), 0);

    if (mine && !a)
        fault("--eval-every %d: the run reported no validation loss (text_evaluate, run_report_validation)", EVALUATED);
    else if (mine && !near(number(a, "loss"), number(b, "loss"), c->tolerance ? 1e-3 : 1e-9))
        fault("the validation loss after step %d is %.10g, but the reference's is %.10g: %s", EVALUATED - TRAINED,
              number(a, "loss"), number(b, "loss"), number(a, "loss") == 0
              ? "rank 0 does not have the loss that it reports" : near(number(a, "loss"), number(b, "loss"), 0.1)
              ? "evaluation has other sequences, or weights from before the update (not all-gathered since)"
              : "its scale, or the sum over the ranks, is wrong");
    cJSON_Delete(mine);
    cJSON_Delete(right);
}

/* Whether every number of the file has at most the 10 bits of a 16-bit type: its weights were rounded. */
static bool is_rounded(const char *file)
{
    Safetensors s = safetensors_open(file);
    bool rounded = true;

    for (int i = 0; i < s.count && rounded; i++) {
        const int64_t count = s.tensors[i].bytes / sizeof(double);
        double *numbers = malloc(count * sizeof *numbers);
        safetensors_read(&s, &s.tensors[i], 0, count, numbers);
        for (int64_t k = 0; k < count && rounded; k++) {
            uint64_t bits;
            memcpy(&bits, &numbers[k], sizeof bits);
            rounded = (bits & ((1ull << 42) - 1)) == 0;
        }
        free(numbers);
    }
    safetensors_close(&s);
    return rounded;
}

static const char *saved_file(const char *directory, const char *name)
{
    return in_temporary("%s/%s.safetensors", directory, name);
}

/* Compares the checkpoint saved at the end with the reference's. */
static void compare_checkpoint(const Case *c, const Shape *s)
{
    static const char *const files[] = {"model", "optimizer"};
    static const char *const numbers[] = {"step", "tokens", "optimizer_step"};
    char name[128];

    if (access(saved_file("saved", "model"), F_OK)) {
        fault("the run succeeded, but wrote no checkpoint to --save");
        return;
    }
    if (c->tolerance && !strstr(c->options, "--master none") && is_rounded(saved_file("saved", "model")))
        fault("every saved weight is a number of 16 bits: the checkpoint, or the update, has the weights that forward "
              "reads instead of the master weights");
    for (int i = 0; i < 2 && !c->tolerance && !faults; i++) {
        const double d = compare_tensors(saved_file("saved", files[i]), saved_file("01.saved", files[i]), s->heads,
                                         false, name);
        if (d > (i ? 1e-7 : 1e-9))
            fault("after the last step, %s of the saved %s differs from the reference's by %.2g of its largest element",
                  name, i ? "moments" : "parameters", d);
    }
    for (int i = 0; i < 3 && !faults; i++) {
        const double mine = saved_number("saved", numbers[i]), right = saved_number("01.saved", numbers[i]);
        if (mine != right)
            fault("trainer.json of the checkpoint has %s %.0f, but the reference's %.0f", numbers[i], mine, right);
    }
}

/* ---- One configuration ---- */

/* fp16's loss scale doubles after every two clean steps, and gradients overflow in steps 4 and 7 of eight. The program
 * skips those updates, halves the scale, counts clean steps from 0 again, and goes on as if resumed from the checkpoint
 * of any step. */
static void compare_overflow(const char *command, const Shape *s)
{
    enum { ALL = 8, OVERFLOW = 4, LATER = 3 };          /* LATER: steps after the last resume */
    static const double expected[ALL] = {1.4e6, 2.8e6, 2.8e6, 1.4e6, 1.4e6, 2.8e6, 1.4e6, 1.4e6};
    static const char *const columns[] = {"loss", "lr", "loss_scale"};
    static const struct { const char *load; int steps; const char *writes; } runs[] = {
        {"", OVERFLOW - 1, "--save before"}, {"before", OVERFLOW, "--save skipped"}, {"", ALL, "--metrics m.csv"},
        {"skipped", ALL - LATER, "--save later"}, {"later", ALL, "--metrics resumed.csv"}};
    double norm[ALL], all[3][ALL], resumed[3][LATER];
    char name[128];

    for (int i = 0; i < 5 && !faults; i++) {
        Result r = run("%s --dtype fp16 --loss-scale 1.4e6 --loss-scale-growth 2 --load %s --steps %d %s", command,
                       *runs[i].load ? runs[i].load : checkpoint(s, false), TRAINED + runs[i].steps, runs[i].writes);
        if (r.status)
            fault("%.*s (steps 4 and 7 overflow: are they skipped?)", (int)strcspn(r.err, "\n"), r.err);
        result_free(r);
    }
    char *metrics = faults ? NULL : read_file(in_temporary("m.csv"));
    if (metrics && !strstr(metrics, ",loss_scale"))
        fault("the program registers no loss_scale (run_register_state), so checkpoints and metrics lack it");
    free(metrics);
    if (faults)
        return;
    read_column("m.csv", "grad_norm", norm, ALL);
    for (int k = 0; k < 3; k++)
        read_column("m.csv", columns[k], all[k], ALL), read_column("resumed.csv", columns[k], resumed[k], LATER);
    for (int i = 0; i < 2 && !faults; i++)
        if (compare_tensors(saved_file("skipped", i ? "optimizer" : "model"),
                            saved_file("before", i ? "optimizer" : "model"), s->heads, false, name) > 0)
            fault("the gradients of step %d have Inf or NaN, but the step was not skipped: %s of the checkpoint "
                  "changed", OVERFLOW, name);
    const double before = saved_number("before", "optimizer_step"), after = saved_number("skipped", "optimizer_step");
    if (!faults && before != after)
        fault("the update of step %d was skipped, but AdamW counts %.0f updates instead of %.0f: its bias correction "
              "is that of another step", OVERFLOW, after, before);
    for (int i = 0; i < ALL && !faults; i++)
        if (all[2][i] != expected[i])
            fault("after step %d, which %s, the loss scale is %.10g, expected %.10g: it halves at every overflow, and "
                  "doubles after two clean steps since the overflow or the doubling before", i + 1,
                  isfinite(norm[i]) ? "is clean" : "overflows", all[2][i], expected[i]);
    for (int i = 0; i < 3 * LATER && !faults; i++) {
        const int k = i % 3, step = ALL - LATER + i / 3;
        if (!near(resumed[k][i / 3], all[k][step], 1e-9))
            fault("step %d: the %s is %.10g, but %.10g in a run that was resumed after steps 3, 4 and 5: the skipped "
                  "step changed weights, or the checkpoint lacks a number, such as the clean steps so far "
                  "(run_register_state)", step + 1, columns[k], all[k][step], resumed[k][i / 3]);
    }
}

static bool verify(const Case *c)
{
    const Shape s = shape_for(c);
    const bool far = c->kind & FAR;
    char ranks[32] = "", command[2048];
    struct stat metrics = {0};                  /* empty if the first step failed */

    faults = 0, *farthest = 0, *waste = 0, count++;
    printf("  %d rank%s%s%s%s: ", c->ranks, c->ranks > 1 ? "s" : "", *c->options ? ", " : "", c->options,
           far ? ", large weights" : c->kind & OVERFLOWS ? ", overflow" : "");
    fflush(stdout);
    checkpoint(&s, far);
    run_well("rm -rf g.safetensors m.csv r.json t.json saved before skipped later resumed.csv");
    if (c->ranks > 1)
        snprintf(ranks, sizeof ranks, "mpiexec -n %d ", c->ranks);
    snprintf(command, sizeof command, "%s%s %s %s %s %s", ranks, program, s.model, s.schedule, c->options, mixture(&s));
    if (c->kind & OVERFLOWS) {
        compare_overflow(command, &s);
        if (!faults)
            printf("correct: two steps are skipped, the loss scale halves and doubles, runs resume\n");
        return faults == 0;
    }
    Result r = run("%s --load %s --steps %d --eval-every %d --save saved --check --timeout 20 "
                   "--dump-gradients g.safetensors --metrics m.csv --report r.json --trace t.json %s", command,
                   checkpoint(&s, far), TRAINED + (far ? 1 : STEPS), evaluates(c) ? EVALUATED : 0,
                   samples(c) ? SAMPLE : "");
    const int sequences = dumped_sequences(in_temporary("g.safetensors"));
    cJSON *report = read_json("r.json"), *of_start = NULL;
    if (!report && sequences) {                 /* a run of no steps, to learn its groups */
        result_free(run("%s --load %s --steps %d --timeout 20 --report r.json", command, checkpoint(&s, far), TRAINED));
        of_start = read_json("r.json");
    }
    read_groups(report ? report : of_start);
    describe(&s, report);
    if (r.status)
        print_messages(r.err, &s, false);
    if (r.status == 2)                          /* refused its options: nothing to compare */
        printf("    (the command was: %s)\n", command);
    compare_schedule(report);
    stat(in_temporary("m.csv"), &metrics);
    const char *left_out = !sequences ? "gradients (run_dump_gradients)"
                         : !metrics.st_size ? "metrics"
                         : !report ? "report" : NULL;
    if (!r.status && left_out)
        fault("the run succeeded, but wrote no %s: there is nothing to compare", left_out);
    const char *unequal = strstr(r.err, ": the loss is");
    ranks_disagree = unequal && strstr(unequal, "on rank 0, but");
    const bool comparable = sequences && metrics.st_size;
    const bool other_gradients = intended("gradients"), other_losses = other_gradients || intended("losses");
    const bool right = comparable && (other_gradients || compare_gradients_of(c, &s, sequences));
    if (r.status && (right || !comparable))     /* wrong gradients explain why replicas drift */
        print_messages(r.err, &s, true);
    if (right && !other_losses)
        compare_losses(c);
    if (right && !other_losses && !far && !faults && !r.status) {
        if (evaluates(c))
            compare_validation(c);
        compare_checkpoint(c, &s);
        char *mine = sample_of(r.out);
        if (samples(c) && !faults && strcmp(mine, sample))
            fault("losses and checkpoint are right, but --sample prints other tokens than the reference (text_sample "
                  "reads the output of the last LayerNorm, computed with the present weights)");
        free(mine);
    }
    if (r.status && !faults && (r.status == 139 || r.status == 11 || strstr(r.err, "Segmentation fault")))
        fault("the run crashed with a segmentation fault: some tensor or pointer is not set; the same make verify with "
              "SANITIZE=1 names the line");
    if (r.status && (!faults || strstr(r.err, "AddressSanitizer") || strstr(r.err, ": runtime error: ")))
        fault("the run ended with status %d:\n%.2000s", r.status, r.err);
    if (!faults && !far && report) {
        const Costs costs = costs_of(report, in_temporary("t.json"));
        if (is_set("RECORD"))
            record_costs(c, &costs);
        else if (!*given_options)
            compare_costs(c, &costs);
        wasteful += *waste != 0;
    }
    if (!faults && other_losses)
        printf("correct except for what EXPECT names: %smemory, traffic\n    %s\n%s",
               other_gradients ? "" : "gradients, ",
               about, waste);
    else if (!faults)
        printf("correct%s: %smemory, traffic%s%s%s\n    %s\n%s",
               !*waste ? "" : strstr(waste, "left out") ? ", but suspicious" : ", but wasteful",
               far ? "gradients, norm, loss, " : "gradients, norms, losses, checkpoint, ",
               *farthest ? " (" : "", farthest, *farthest ? ")" : "", about, waste);
    cJSON_Delete(report);
    cJSON_Delete(of_start);
    result_free(r);
    return faults == 0;
}

/* Options that ARGS may not have: those of mixtures, and those of all programs. */
static const char *const names[] = {
    "--experts", "--top-k", "--expert-width", "--capacity", "--balance",
    "--data", "--vocab", "--load", "--steps", "--preset", "--seed", "--lr", "--clip", "--min-lr", "--warmup",
    "--lr-decay-steps", "--weight-decay"};
enum { OF_ALL = 5, NAMES = sizeof names / sizeof *names };

int main(int argc, char **argv)
{
    char options[1024] = "";

    reference = is_set("REFERENCE") ? getenv("REFERENCE") : reference;
    if (argc < 3)
        errx(2, "expected STAGE PROGRAM [RANKS [OPTION...]], got %d arguments; use make verify", argc - 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);                /* as run.sh: MPICH leaks */
    setenv("UBSAN_OPTIONS", "print_stacktrace=1", 0);
    stage = argv[1], program = realpath(argv[2], NULL);         /* runs start in a temporary directory */
    if (!program)
        errx(2, "there is no program %s", argv[2]);
    const int ranks = argc > 3 ? atoi(argv[3]) : 0;
    if (is_set("EXPECT") && !intended("gradients") && !intended("losses"))
        errx(2, "EXPECT: expected gradients, losses or both, got '%s'", getenv("EXPECT"));
    for (int i = 4; i < argc; i++)
        snprintf(options + strlen(options), sizeof options - strlen(options), "%s%s", i > 4 ? " " : "", argv[i]);
    given_options = options;
    if (argc > 3 && *argv[3] && (ranks < 1 || ranks > 64 || argv[3][strspn(argv[3], "0123456789")]))
        errx(2, "NP: expected a number of ranks from 1 to 64, got '%s'", argv[3]);
    own = true;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        own &= !is(cases[i].stage);
    const bool one_rank = is("01_single_gpu") || is("02_mixed_precision") || is("08_fused_kernels");
    const bool typed = is("02_mixed_precision") || is("08_fused_kernels") || has_grid();
    if (ranks > 1 && one_rank)
        errx(2, "NP=%d, but %s runs on one rank, like 01, 02 and 08; leave NP out", ranks, stage);
    for (int k = has_experts() ? 0 : OF_ALL; k < NAMES; k++)
        if (given(names[k]))
            errx(2, "ARGS has %s, which verify sets itself; %s can be chosen", names[k],
                 k < OF_ALL ? "--ep and --recompute"
                            : "--layers, --hidden, --heads, --seq, --micro-batch and --accumulate");
    const bool only_16_bits = given("--gradients") || given("--master") || given("--loss-scale")
                              || given("--loss-scale-growth");
    /* 02, 08, 09 and 11 default to bf16: without an option that needs it, fp32 allows the exact comparison */
    if (*options && !given("--dtype") && typed)
        snprintf(options + strlen(options), sizeof options - strlen(options), " --dtype %s",
                 given("--gradients") || given("--master") ? "bf16" : "fp32");
    printf("%s against %s, in float64, with --check:\n", stage, has_experts() ? "10 on one rank" : "01");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        Case c = cases[i];
        if (!is(c.stage) && !(own && !*c.stage))
            continue;
        if (c.kind & FULL && !is_set("FULL"))
            continue;
        if (*options)
            c.kind = 0;
        if (own && (ranks || *options) && c.ranks < 4)
            continue;                                           /* the three cases differ in ranks only */
        if (ranks && !*options && !fits(&c, ranks))
            continue;
        if (*options)
            c.options = options, c.tolerance = tolerance_of(given("--dtype"));
        if (ranks)
            c.ranks = ranks;
        if (c.tolerance && *options && !only_16_bits) {
            const Case exact = {c.stage, new_text("%s --dtype fp32", options), c.ranks};
            wrong += !verify(&exact);
        }
        if (!c.tolerance || !has_experts())                     /* in 16 bits a mixture chooses other experts */
            wrong += !verify(&c);
        if (*options)
            break;
    }
    if (wasteful && !wrong && is_set("EXERCISE"))
        printf("the exercise is done when the costs are those of the project's program, too\n");
    printf("%d of %d configurations are %s", wrong ? wrong : count, count, wrong ? "wrong" : "correct");
    printf(wasteful ? "; costs of %d differ from those of the project's program\n" : "\n", wasteful);
    return wrong > 0 || (wasteful && is_set("EXERCISE"));
}
