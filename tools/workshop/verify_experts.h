/* make verify STAGE=10. 01 computes what an upcycled model computes, but there routers get no gradient, and no choice
 * is dropped. So the program is also compared with a reference in float64 (tests/programs/experts): its four cases.
 * Include this once, in verify.c, behind what it calls. */
#ifndef VERIFY_EXPERTS_H
#define VERIFY_EXPERTS_H

#define FIXTURE SOURCE "/tests/programs/experts"

/* The reference's cases have four sequences. */
static const struct {
    int number, ranks;
    const char *options;
} reference_runs[] = {{0, 1, "--ep 1"}, {0, 4, "--ep 2"}, {1, 2, "--ep 2 --recompute full"}, {2, 4, "--ep 4"}, {3, 4, "--ep 2"}};

/* Runs one of the reference's cases and compares it. more: further options. */
static bool verify_reference(int number, int ranks, const char *more)
{
    static const char *const columns[] = {"loss", "balance_loss", "dropped"};
    char options[256], right_file[256], name[128] = "";
    double right[3], loss = NAN;
    const Shape s = {.ranks = ranks, .layers = 2, .seq = 10, .micro_batch = 4 / ranks, .accumulate = 1};
    FILE *f = fopen(FIXTURE "/expected.csv", "r");

    for (int i = 0; f && i <= number; i++)
        if (fscanf(f, i ? " %255[^,],%lf,%lf,%lf" : "%*[^\n] %255[^,],%lf,%lf,%lf", options, right, right + 1,
                   right + 2) != 4)
            fail("there is no case %d in %s", number, FIXTURE "/expected.csv");
    fclose(f);
    faults = 0, count++;
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
    snprintf(right_file, sizeof right_file, FIXTURE "/expected_%d.safetensors", number);
    if (!access(in_temporary("g.safetensors"), F_OK) && read_column(in_temporary("m.csv"), "loss", &loss, 1)) {
        for (int i = 0; i < 3; i++) {
            double is = NAN;
            read_column("m.csv", columns[i], &is, 1);
            if (!near(is, right[i], 1e-10))
                fault("%s is %.10g, but the reference gives %.10g", columns[i], is, right[i]);
        }
        const double d = compare_gradients(in_temporary("g.safetensors"), right_file, 3, name);
        if (d > EXACT)
            fault("gradients differ from the reference's, most of all %s, by %.2g", name, d);
    }
    if (r.status)
        print_messages(r.err, &s, true);
    if (r.status && !faults)
        fault("the run ended with status %d:\n%.2000s", r.status, r.err);
    if (!faults)
        printf("correct: loss, balance loss, dropped choices, gradients, memory, traffic\n    %s\n", about);
    cJSON_Delete(report);
    result_free(r);
    return faults == 0;
}

#endif
