/* make verify STAGE=10. 01 computes what an upcycled model computes, but there routers get no gradient, and no choice
 * is dropped. So the program is also compared with a reference in float64 (tests/programs/experts): its three cases,
 * and in the first one its numbers with well-known mistakes. Include this once, in verify.c, behind what it calls. */
#ifndef VERIFY_EXPERTS_H
#define VERIFY_EXPERTS_H

#define FIXTURE SOURCE "/tests/programs/experts"

/* The reference's cases have four sequences. */
static const struct {
    int number, ranks;
    const char *options;
} reference_runs[] = {{0, 1, "--ep 1"}, {0, 4, "--ep 2"}, {1, 2, "--ep 2 --recompute full"}, {2, 4, "--ep 4"}};

/* Sums over a part of the parameters. */
enum { ROUTERS, EXPERTS, REST, PARTS };
static const char *const part_names[] = {"routers", "experts", "all else"};
static struct {
    double found, right, product;       /* squares of the gradients, and found times right */
    double difference;                  /* the largest of a tensor, and its name */
    char name[128];
} parts[PARTS];

static void sum_parts(const char *found_file, const char *right_file)
{
    Safetensors found = safetensors_open(found_file), right = safetensors_open(right_file);

    memset(parts, 0, sizeof parts);
    for (int i = 0; i < right.count; i++) {
        const SafeTensor *t = &right.tensors[i], *f = safetensors_find(&found, t->name);
        const int part = strstr(t->name, ".experts.") ? EXPERTS : strstr(t->name, ".gate.") ? ROUTERS : REST;
        const int64_t rows = t->shape[0], cols = t->dims > 1 ? t->shape[1] : 1;
        if (starts_with(t->name, "batch."))
            continue;
        double *x = calloc(rows * cols, sizeof *x), *y = calloc(rows * cols, sizeof *y);
        if (f)
            safetensors_read(&found, f, 0, rows * cols, x, true);
        safetensors_read(&right, t, 0, rows * cols, y, true);
        const double d = matrix_difference(x, y, rows, cols, 0, 0, false);
        if (d > parts[part].difference) {
            parts[part].difference = d;
            snprintf(parts[part].name, sizeof parts[part].name, "%s", t->name);
        }
        for (int64_t k = 0; k < rows * cols; k++)
            parts[part].found += x[k] * x[k], parts[part].right += y[k] * y[k], parts[part].product += x[k] * y[k];
        free(x);
        free(y);
    }
    safetensors_close(&found);
    safetensors_close(&right);
}

static bool same(double a, double b)
{
    return fabs(a - b) <= 1e-8 * fabs(b);
}

/* Whether loss and gradients are those of one of the reference's runs with a mistake: then says which. */
static bool name_mistake(double loss)
{
    FILE *f = fopen(FIXTURE "/known_mistakes.csv", "r");
    double of[1 + PARTS];
    char text[512];
    bool found = false;

    while (f && !found && fscanf(f, "%lf,%lf,%lf,%lf,%511[^\n]", of, of + 1, of + 2, of + 3, text) == 5) {
        found = same(loss, of[0]);
        for (int i = 0; i < PARTS; i++)
            found &= same(sqrt(parts[i].found), of[1 + i]);
        if (found)
            fault("loss and gradients match, to eight digits, a run in which %s", text);
    }
    if (f)
        fclose(f);
    return found;
}

/* " (= the number of ranks, the size of edp)": the names that a factor may have; or "". */
static const char *names_of(double factor, int ranks)
{
    static char text[256];

    snprintf(text, sizeof text, "%s", same(factor, ranks) && ranks > 1 ? ", the number of ranks" : "");
    for (const char *g = groups; *g; g += strcspn(g, ",") + 1)
        if (atoi(g + strcspn(g, "=") + 1) == lrint(factor) && same(factor, lrint(factor)) && factor > 1.5)
            snprintf(text + strlen(text), sizeof text - strlen(text), ", the size of %.*s", (int)strcspn(g, "="), g);
    if (*text) {
        memmove(text + 3, text + 1, strlen(text));
        memcpy(text, " (=", 3);
        strcat(text, ")");
    }
    return text;
}

static void explain_parts(double loss, int ranks)
{
    if (name_mistake(loss))
        return;
    for (int i = 0; i < PARTS; i++) {
        const double x = parts[i].found, y = parts[i].right, factor = parts[i].product / y;
        if (parts[i].difference <= 1e-10)
            continue;
        if (x == 0)
            fault("the gradients of %s are zero", part_names[i]);
        else if (fabs(x * y - parts[i].product * parts[i].product) <= 1e-12 * x * y)
            fault("the gradients of %s are %.4g times too %s%s", part_names[i], factor > 1 ? factor : 1 / factor,
                  factor > 1 ? "large" : "small", names_of(factor > 1 ? factor : 1 / factor, ranks));
        else
            fault("the gradients of %s are wrong, most of all %s, by %.2g", part_names[i], parts[i].name,
                  parts[i].difference);
    }
}

static void compare_column(const char *column, double right)
{
    double is = NAN;

    read_column(in_temporary("m.csv"), column, &is, 1);
    if (!(fabs(is - right) <= 1e-10 * fabs(right)))
        fault("%s is %.10g, but the reference gives %.10g", column, is, right);
}

/* Runs one of the reference's cases and compares it. more: further options. */
static bool verify_reference(int number, int ranks, const char *more)
{
    char options[256], right_file[256];
    double right[3], loss = NAN, norm = NAN;
    const Shape s = {.ranks = ranks, .layers = 2, .seq = 10, .micro_batch = 4 / ranks, .accumulate = 1};
    FILE *f = fopen(FIXTURE "/expected.csv", "r");

    for (int i = 0; f && i <= number; i++)
        if (fscanf(f, i ? " %255[^,],%lf,%lf,%lf" : "%*[^\n] %255[^,],%lf,%lf,%lf", options, right, right + 1,
                   right + 2) != 4)
            fail("there is no case %d in %s", number, FIXTURE "/expected.csv");
    fclose(f);
    faults = 0;
    printf("  %d rank%s, %s: the reference's case of%s: ", ranks, ranks > 1 ? "s" : "", more,
           strstr(options, " --top-k"));
    fflush(stdout);
    run_well("rm -rf reference g.safetensors m.csv r.json");
    run_well("cp -r " FIXTURE " reference");
    run_well("sed -i 's/\"num_experts_per_tok\": 2/\"num_experts_per_tok\": %d/' reference/config.json",
             atoi(strstr(options, "--top-k ") + 8));
    Result r = run("mpiexec -n %d %s %s %s --micro-batch %d --accumulate 1 --data reference/tokens.bin "
                   "--load reference --steps 1 --threads 1 --quiet --check --timeout 20 --dump-gradients g.safetensors "
                   "--metrics m.csv --report r.json", ranks, program, more, options, s.micro_batch);
    cJSON *report = read_json("r.json");
    read_groups(report);
    describe(&s, report);
    if (r.status)
        print_messages(r.err, &s, false);
    compare_memory(report);
    snprintf(right_file, sizeof right_file, FIXTURE "/expected_%d.safetensors", number);
    if (!access(in_temporary("g.safetensors"), F_OK) && read_column(in_temporary("m.csv"), "loss", &loss, 1)) {
        double total = 0;
        sum_parts(in_temporary("g.safetensors"), right_file);
        for (int i = 0; i < PARTS; i++)
            total += parts[i].right;
        read_column(in_temporary("m.csv"), "grad_norm", &norm, 1);
        if (fmax(parts[ROUTERS].difference, fmax(parts[EXPERTS].difference, parts[REST].difference)) > 1e-10)
            explain_parts(loss, ranks);
        else if (!same(norm, sqrt(total)))
            fault("the gradients are right, but their norm is %.10g instead of %.10g%s", norm, sqrt(total),
                  norm * norm < total + 0.5 * parts[EXPERTS].right ? ""
                  : ": experts count on several ranks of edp, but only replica 0 owns them (Placement.expert_replica)");
        compare_column("loss", right[0]);
        compare_column("balance_loss", right[1]);
        compare_column("dropped", right[2]);
    }
    if (r.status)
        print_messages(r.err, &s, true);
    if (r.status && !faults)
        fault("the run ended with status %d:\n%.2000s", r.status, r.err);
    if (!faults)
        printf("right: loss, balance loss, dropped choices, gradients, norm, memory, traffic\n    %s\n", about);
    cJSON_Delete(report);
    result_free(r);
    return faults == 0;
}

#endif
