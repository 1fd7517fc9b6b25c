#include "verify_compare.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"
#include "../../common/run/safetensors.h"
#include "process.h"
#include "verify_costs.h"
#include "verify_report.h"

static const double EXACT = 1e-10;
#define SAMPLE "--sample 4 --prompt ABC"

const char *reference = BUILD "/cpu64";
char farthest[256];
double rounding;

bool near(double a, double b, double most)
{
    return fabs(a - b) <= most * fabs(b);
}

const char *saved_file(const char *directory, const char *name)
{
    return saved(directory, format_text("%s.safetensors", name));
}

double saved_number(const char *directory, const char *name)
{
    const char *file = saved(directory, "trainer.json");

    return access(file, F_OK) ? NAN : json_number(file, "%s", name);
}

/* ---- The checkpoint from which runs start ---- */

static int hidden_of(const Shape *s)
{
    return atoi(strstr(s->model, "--hidden ") + strlen("--hidden "));
}

const char *mixture(const Shape *s)
{
    return has_experts() ? format_text("--experts 6 --top-k %d --capacity %g --balance 0.1 --expert-width %d",
                                       s->top_k, s->capacity, 4 * hidden_of(s)) : "";
}

static const char *reference_program(void)
{
    return has_experts() ? "10_expert_parallel" : has_llama() ? "12_llama" : "01_single_gpu";
}

/* Multiplies the tensors of a checkpoint whose names have these words; of each the first `most` elements. */
static void enlarge(const char *directory, const char *words, double factor, int64_t most)
{
    const char *path = format_text("%s/step-%d/model.safetensors", directory, TRAINED);
    double x;

    Safetensors s = safetensors_open(path);
    const int f = open(path, O_RDWR);
    for (int i = 0; i < s.count; i++)
        for (int64_t at = 0; at < s.tensors[i].bytes && at < most * (int64_t)sizeof x
                         && strstr(s.tensors[i].name, words); at += sizeof x) {
            if (pread(f, &x, sizeof x, s.tensors[i].first_byte + at) != sizeof x)
                fail("%s cannot be read", path);
            x *= factor;
            if (pwrite(f, &x, sizeof x, s.tensors[i].first_byte + at) != sizeof x)
                fail("%s cannot be written", path);
        }
    close(f);
    safetensors_close(&s);
}

const char *checkpoint(const Shape *s, Kind kind)
{
    const bool far = kind & FAR, infinite = kind & INFINITE;
    static char name[256];
    char saved[64];

    snprintf(saved, sizeof saved, "trained_%d_%d_%d_%d_%d_%d_%d_%d_%g%s", s->layers, s->heads, s->seq, hidden_of(s),
             s->kv_heads, s->mlp, s->tied, s->top_k, s->capacity, far ? "_far" : infinite ? "_infinite" : "");
    snprintf(name, sizeof name, "%s", in_temporary(saved));
    if (!access(name, F_OK))
        return name;
    if (far || infinite) {
        char usual[256];
        snprintf(usual, sizeof usual, "%s", checkpoint(s, 0));
        snprintf(name, sizeof name, "%s", in_temporary(saved));
        run_well("cp -r %s %s", usual, name);
    }
    if (infinite) {
        enlarge(name, "dense_h_to_4h.weight", 1e300, hidden_of(s));         /* Inf in bf16 */
    } else if (far) {
        enlarge(name, has_llama() ? "model.norm.weight" : "final_layer_norm.weight", 2000, INT32_MAX);
        for (int i = 0; i < 3; i++)
            enlarge(name, (const char *[]){"query_key_value", "q_proj", "k_proj"}[i], 50, INT32_MAX);
    } else {
        run_well("%s/%s %s %s --lr 0.03 --warmup 1 --lr-decay-steps 0 --clip 1 --micro-batch 4 --steps %d --save %s",
                 reference, reference_program(), s->model, mixture(s), TRAINED, name);
        if (has_llama())                        /* not the defaults: a loaded model may have any */
            run_well("sed -i 's/\"rms_norm_eps\":[^,]*/\"rms_norm_eps\":0.001/;"
                     "s/\"rope_theta\":[^,]*/\"rope_theta\":500/' %s/step-%d/config.json", name, TRAINED);
    }
    return name;
}

/* ---- The reference's run ---- */

/* Every replica evaluates all 64 sequences: with many ranks on few cores that takes longer than the steps. */
bool evaluates(const Case *c)
{
    return c->ranks <= 6 || c->kind & FULL;
}

/* In exact types, since rounding may choose other tokens. */
bool samples(const Case *c)
{
    return !*given_options && !c->tolerance && !(c->kind & FAR) && !own && !has_grid() && !has_experts()
           && !stage_is("05_tensor_parallel") && !stage_is("06_pipeline_parallel") && !stage_is("07_context_parallel");
}

static char *sample_of(char *text)              /* what the run printed for --sample, copied */
{
    char *sample = strstr(text, "\nsample after");

    return strdup(sample ? sample : "");
}

static char *sample;                            /* the reference's, of its last run */

const char *task(const Case *c, const Shape *s)
{
    const bool far = c->kind & FAR;
    const int steps = TRAINED + (far ? 1 : STEPS), every = evaluates(c) ? EVALUATED : 0;

    return format_text("--load %s --steps %d --eval-every %d %s", checkpoint(s, c->kind), steps, every,
                       samples(c) ? SAMPLE : "");
}

/* The options of a case that the reference has too. 10 knows no option of a grid but --span. */
static const char *reference_options(const Case *c)
{
    if (!has_experts())
        return "";
    return has_grid() ? format_text("--span %d", option(c, "--span", 0)) : format_text("%s --ep 1", c->options);
}

/* Runs the reference on the same sequences, to 01.csv, 01.json and 01.saved. */
static void run_reference(const Case *c, const Shape *s, int sequences)
{
    run_well("rm -rf 01.csv 01.json 01.saved");
    Result r = run("%s/%s %s %s --micro-batch %d --accumulate %d --metrics 01.csv --report 01.json "
                   "--dump-gradients 01.safetensors --save 01.saved %s %s", reference, reference_program(), s->model,
                   task(c, s), s->micro_batch, sequences / s->micro_batch, mixture(s), reference_options(c));
    if (r.status)
        fail("status %d from %s:\n%s", r.status, r.command, r.err);
    free(sample);
    sample = sample_of(r.out);
    result_free(r);
}

/* ---- Gradients ---- */

static double tolerance_for(const Case *c)
{
    return c->tolerance ? c->tolerance : EXACT;
}

/* Says what is wrong with the gradients, their loss or their norm; true: nothing. */
static bool explain_gradients(const Case *c, const Shape *s, int sequences, bool ranks_agree)
{
    double loss[STEPS], norm[STEPS];
    const int rows = read_column("m.csv", "loss", loss, STEPS);
    const char *by_norm = c->tolerance ? "--by-norm" : "";
    char known[128] = "";

    read_column("m.csv", "grad_norm", norm, STEPS);
    if (rows && isfinite(loss[0]) && isfinite(norm[0]) && ranks_agree)
        snprintf(known, sizeof known, "--candidate-loss %.17g --candidate-norm %.17g", loss[0], norm[0]);
    Result r = run("%s/diagnose%s %s %s %s --load %s --steps %d --micro-batch %d --accumulate %d --ranks %d "
                   "--data-ranks %d --groups %s --candidate g.safetensors %s --tolerance %g %s %s", reference,
                   has_llama() ? "_llama" : has_experts() ? "_experts" : "", s->model, mixture(s),
                   reference_options(c), checkpoint(s, c->kind), TRAINED + STEPS, s->micro_batch,
                   sequences / s->micro_batch, s->ranks, sequences / (s->micro_batch * s->accumulate),
                   *groups ? groups : "none", known, tolerance_for(c), by_norm, wrong < 2 ? "" : "--brief");
    const bool right = r.status == 0;
    if (!right && (r.status != 2 || !*r.out))                   /* diagnose itself has failed */
        fault("diagnose ended with status %d: %.1000s", r.status, r.err);
    for (char *line = right ? NULL : strtok(r.out, "\n"); line; line = strtok(NULL, "\n"))
        fault("%s", line);
    result_free(r);
    return right;
}

bool compare_gradients_of(const Case *c, const Shape *s, int sequences, bool ranks_agree)
{
    const int trained = s->micro_batch * s->accumulate * data_ranks(c);
    double a[2] = {NAN, NAN}, b[2];
    char name[128] = "";

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
        rounding = mean_difference("g.safetensors", "01.safetensors", s->heads);
    if (c->tolerance)
        snprintf(farthest, sizeof farthest, "the largest difference is %.2g of the norm, in %s", d, name);
    if (d <= tolerance_for(c) && near(a[0], b[0], c->tolerance + 1e-9) && near(a[1], b[1], c->tolerance + 1e-9))
        return true;
    return explain_gradients(c, s, sequences, ranks_agree);     /* a long one takes time: two are enough */
}

/* ---- Losses and what was saved ---- */

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

/* The columns that only some programs have, as run_register_state named them: the loads of experts. */
static void compare_other_columns(void)
{
    const char *names[16];
    char mine[1024] = ",";
    double a[STEPS], b[STEPS];

    for (int i = 0, count = metrics_columns("m.csv", names); i < count; i++)
        add_text(mine, sizeof mine, "%s,", names[i]);
    for (int k = 0, count = metrics_columns("01.csv", names); k < count && !faults; k++) {
        if (!strstr(mine, format_text(",%s,", names[k]))) {
            fault("--metrics has no column %s, which the reference has (run_register_state)", names[k]);
            return;
        }
        const int rows = read_column("m.csv", names[k], a, STEPS);
        read_column("01.csv", names[k], b, STEPS);
        for (int i = 0; i < rows && !faults; i++)
            if (!near(a[i], b[i], 1e-9))
                fault("step %d: column %s of --metrics is %.10g, but the reference's %.10g; losses and gradients are "
                      "right, so only this number is computed wrongly", i + 1, names[k], a[i], b[i]);
    }
}

void compare_losses(const Case *c)
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
        const char *cause = k ? format_text("; %s", cause_of_losses(i, k == 2)) : "";
        fault("step %d: the %s is %.10g, but the reference's is %.10g%s", i + 1, words[k], a[k][i], b[k][i], cause);
    } else if (!c->tolerance) {
        compare_other_columns();
    }
    if (rows < (c->kind & FAR ? 1 : STEPS) && !faults)
        fault("the run ended after %d of %d steps", rows, STEPS);
    if (!(b[2][0] > CLIP))
        fault("the gradient norm of step 1 is %g, so verify's --clip %g tests nothing", b[2][0], CLIP);
}

static const char *cause_of_validation(double mine, double right)
{
    if (mine == 0)
        return "rank 0 does not have the loss that it reports";
    if (near(mine, right, 0.1))
        return "evaluation has other sequences, or weights from before the update (not all-gathered since)";
    const double factor = mine > right ? mine / right : right / mine;
    if (near(factor, round(factor), 1e-4))
        return format_text("it is %.0f times too %s: is it added up over ranks that all have it, or divided by them?",
                           factor, mine > right ? "large" : "small");
    return "its scale, or the sum over the ranks, is wrong";
}

static const cJSON *first_validation(const cJSON *report)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(report, "held_out"), 0);
}

void compare_validation(const Case *c, const cJSON *report)
{
    cJSON *of_reference = read_json("01.json");
    const cJSON *validation = first_validation(report);
    const double mine = number_of(validation, "loss"), right = number_of(first_validation(of_reference), "loss");

    if (report && !validation)
        fault("--eval-every %d: the run reported no validation loss (text_evaluate, run_report_validation)", EVALUATED);
    else if (report && !near(mine, right, c->tolerance ? 1e-3 : 1e-9))
        fault("the validation loss after step %d is %.10g, but the reference's is %.10g: %s", EVALUATED - TRAINED,
              mine, right, cause_of_validation(mine, right));
    cJSON_Delete(of_reference);
}

void compare_initial(const char *command, const Case *c, const Shape *s)
{
    char name[128] = "";

    run_well("rm -rf saved 01.saved");
    Result r = run("%s --steps 0 --save saved --timeout 20", command);
    run_well("%s/%s %s --micro-batch %d %s %s --steps 0 --save 01.saved", reference, reference_program(), s->model,
             s->micro_batch, mixture(s), reference_options(c));
    if (r.status)
        fault("--steps 0 --save: %.*s", (int)strcspn(r.err, "\n"), r.err);
    else if (compare_tensors(saved_file("saved", "model"), saved_file("01.saved", "model"), 0, false, name) > 0)
        fault("the initial weights of %s are not the reference's", name);
    result_free(r);
}

void compare_model(const cJSON *report)
{
    static const char *const names[] = {"parameters", "flops_per_token"};
    cJSON *of_reference = read_json("01.json");

    for (int i = 0; i < 2 && report && of_reference; i++)
        if (number_of(report, names[i]) != number_of(of_reference, names[i]))
            fault("the report has %.0f %s, but the reference's %.0f: a formula of the model's size is wrong, and so is "
                  "MFU", number_of(report, names[i]), i ? "FLOPs per token" : "parameters",
                  number_of(of_reference, names[i]));
    cJSON_Delete(of_reference);
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

void compare_checkpoint(const Case *c, const Shape *s)
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

void compare_sample(char *text)
{
    char *mine = sample_of(text);

    if (strcmp(mine, sample))
        fault("losses and checkpoint are right, but --sample prints other tokens than the reference (text_sample "
              "reads the output of the last LayerNorm, computed with the present weights)");
    free(mine);
}
