/* make exercise and make verify. Every exercise can be made; its copy fails with the sentence that exercises.md says,
 * and passes with the stage's own text in place; classic mistakes, planted in the programs, are found and named; the
 * instructor's commands print what README.md says.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness.h"

/* As a person would call it, whatever make is running this test. */
#define MAKE_SH "cd " SOURCE " && env -u MAKEFLAGS -u MAKELEVEL make -s %s "

static const char *sanitize(void)
{
    return strstr(BUILD, "/sanitize") ? "SANITIZE=1" : "";
}

/* A stage's files in a directory of their own, beside links to where it includes from. */
static const char *copy_of(const char *stage)
{
    static char directory[256];

    snprintf(directory, sizeof directory, "%s", in_temporary("edited"));
    run_well("sh -c 'rm -rf %s && mkdir %s && cp " SOURCE "/%s/*.[ch] %s && ln -sfn " SOURCE "/common " SOURCE
             "/08_fused_kernels %s/..'", directory, directory, stage, directory, directory);
    return directory;
}

/* ---- Mistakes ---- */

/* Replaces every `from` in the copy's files, of which there must be one at least. */
static void replace(const char *directory, const char *from, const char *to)
{
    char pattern[300];
    glob_t files;
    int found = 0;

    snprintf(pattern, sizeof pattern, "%s/*.c", directory);
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char *text = read_file(files.gl_pathv[i]), *at = text, *next;
        FILE *f = fopen(files.gl_pathv[i], "w");
        assert_non_null(f);
        for (; (next = strstr(at, from)); at = next + strlen(from), found++)
            fprintf(f, "%.*s%s", (int)(next - at), at, to);
        fputs(at, f);
        assert_int_equal(fclose(f), 0);
        free(text);
    }
    globfree(&files);
    if (!found)
        fail_msg("the program has no \"%s\" any more", from);
}

typedef struct {
    const char *stage, *from, *to;
    int ranks;                  /* 0: the stage's own layouts, of which all must be wrong */
    const char *options, *says[2];
    bool covering;
} Planted;

static const Planted planted[] = {
    /* the sum of the ranks' gradients for their average */
    {"03_data_parallel", "(B * T * options.accumulate * comm_size(dp))", "(B * T * options.accumulate)", 4, "--sync naive",
     {"the loss and every gradient are 4 times too large (= the number of ranks)"}, true},
    /* a bias on every rank */
    {"05_tensor_parallel", "a->gelu, w->down_weight, NONE)", "a->gelu, w->down_weight, w->down_bias)", 3,
     "--recompute none",
     {"as if down_bias was added on every rank, and once more after the sum over the ranks"}},
    /* a missing all-reduce, backward */
    {"05_tensor_parallel", "    sum = f_backward(d->ln1);\n", "", 2, "--recompute none",
     {"all_reduce in group tp is called 112 times in a step, and predict() says 140: 28 are missing = 1 for each layer "
      "and micro-batch",
      "it is, to eight digits, what it would be as if the ranks' shares of d_ln1 were not added up"}},
    /* a tied embedding whose gradient is one end's */
    {"06_pipeline_parallel", "        comm_all_reduce(tied, gradients.embedding, SUM);\n", "        ;\n", 3,
     "--schedule 1f1b", {"as if the tied embedding had only the", "all_reduce in group tied is called 0 times"}},
    /* a scale that forgets accumulation */
    {"06_pipeline_parallel", "1.0 / (B * T * options.accumulate)", "1.0 / (B * T)", 2, "--schedule zero-bubble",
     {"the loss and every gradient are 4 times too large (= accumulate"}},
    /* wrong positions */
    {"07_context_parallel", "(i * B + b) * C, C), C * chunk_number(comm_rank(cp), i));",
     "(i * B + b) * C, C), C * (held * comm_rank(cp) + i));", 2, "--attention zigzag",
     {"as if a rank's chunks had consecutive positions"}},
    /* a mask that is off by one */
    {"07_context_parallel", "if (key > query)", "if (key > query + 1)", 3, "--attention ring",
     {"as if the mask were off by one chunk: a token sees all of the chunk after its own"}},
    {"07_context_parallel", "if (key > query)", "if (key >= query)", 2, "--attention zigzag",
     {"as if the mask were off by one chunk: a token sees none of its own chunk"}},
    /* parameters gathered before the last update; and read before they are here */
    {"04_zero", "        slot_unit[i] = -1;\n    for (int u",
     "        slot_unit[i] += slot_unit[i] == 0 ? -1 : 0;\n    for (int u", 2, "--zero 3", {"stale copies"}},
    {"04_zero", "    comm_wait(&gather_request[slot_of(u)]);\n", "", 2, "--zero 3",
     {"NaN until comm_wait, so it may have been read before"}},
    /* a norm over the own shard */
    {"04_zero", "comm_sum(dp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 3, "--zero 2",
     {"the gradients are right, but their norm is", "it is the norm of the part of each unit that rank 0 updates"},
     true},
    {"05_tensor_parallel", "comm_sum(tp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 2,
     "--recompute none", {"it is the norm of rank 0's slice of each matrix"}},
    /* one that is right on rank 0 alone; one that clips nothing */
    {"03_data_parallel", "comm_sum(dp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 0, "",
     {"but 0 on rank 1: the ranks' shares of it have to be summed (comm_sum)", "3 of 3 layouts are wrong"}, true},
    {"06_pipeline_parallel", "comm_sum(pp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 0, "",
     {"the gradients' norm is", "6 of 6 layouts are wrong"}},
    {"07_context_parallel", "comm_sum(cp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 0, "",
     {"but 0 on rank 1: the ranks' shares of it have to be summed (comm_sum)", "4 of 4 layouts are wrong"}},
    {"03_data_parallel", "clip_scale(norm)", "1", 2, "--sync naive", {"step 2: the loss is"}},
    /* weights in two bytes that are never filled, or never updated; a mistake that they hide */
    {"02_mixed_precision", "tensor_convert(params.buffer, master)", "tensor_convert(master, params.buffer)", 1,
     "--dtype bf16", {"as if all parameters were 0", "its two arguments are swapped"}},
    {"02_mixed_precision", "    if (!overflow && has_master)\n        tensor_convert(params.buffer, master);",
     "    if (!overflow && has_master)\n        tensor_convert(master, params.buffer);", 1, "--dtype fp16",
     {"the losses are as if no step had changed the weights that forward reads", "its two arguments are swapped"}},
    {"08_fused_kernels", "linear_backward_weight(gradients.embedding, NONE, logits, final)",
     "linear_backward_weight(gradients.embedding, NONE, logits, tensor_range(a->final, 0, rows))", 1,
     "--dtype bf16 --fuse cross-entropy",
     {"--dtype fp32 --fuse cross-entropy: WRONG",
      "as if every slice's share of the embedding's gradient were made with the first slice's rows of `final`"}},
    {"08_fused_kernels", "final = tensor_range(a->final, first, rows)", "final = tensor_range(a->final, 0, rows)", 1,
     "--fuse all", {"as if every slice's logits and gradients were made with the first slice's rows of `final`"}},
    /* a mask in forward only, for the same chunk and for later ones; ranks in the place of chunks */
    {"07_context_parallel", "chunk(d->lse, i),\n                                     key == query);",
     "chunk(d->lse, i),\n                                     false);", 3, "--attention ring",
     {"as if keys of a token's own chunk were not masked: a token sees those after it too, in backward only",
      "57 of 67 gradients are wrong; the first, in the order of backward, is blocks.3.qkv_weight (q)"}, true},
    {"07_context_parallel",
     "            if (key > query)\n                continue;\n            attention_block_backward",
     "            attention_block_backward", 2, "--attention zigzag",
     {"as if keys of other chunks were not masked: a token sees those after it too, in backward only"}},
    {"07_context_parallel", "const int query = chunk_number(queries_of, i), key = chunk_number(keys_of, j);",
     "const int query = queries_of, key = keys_of;", 4, "--attention zigzag",
     {"as if ranks were compared, and not chunks, to tell which keys come after a query"}},
    {"07_context_parallel", "if (key > query)", "if (keys_of > queries_of)", 2, "--attention zigzag",
     {"as if ranks were compared, and not chunks, to tell which keys to leave out"}},
    {"07_context_parallel", "key == query)", "keys_of == queries_of)", 2, "--attention zigzag",
     {"as if ranks were compared, and not chunks, to tell where to mask"}},
    /* dK and dV at the wrong rank */
    {"07_context_parallel", "tensor_range(d_kv_all, 2 * o, 2)", "tensor_range(d_kv_all, 2 * ((o + 1) % n), 2)", 3,
     "--attention allgather", {"as if dK and dV were added at the next rank, not at the keys' owner"}},
    /* every rank computes the same sequences; the last micro-batch only */
    {"03_data_parallel", "((int64_t)comm_rank(dp) * options.accumulate + m) * B", "m * B", 4, "--sync overlap",
     {"ranks of the global batch counted differently, not once each: 4 of 0, 0 of 1 to 3"}},
    {"03_data_parallel", "        trace_begin(\"backward\");\n",
     "        trace_begin(\"backward\");\n        tensor_zero(gradients.buffer);\n", 2, "--sync naive",
     {"(67 tensors): only the share of micro-batch 6 (of 0 to 6)"}},
    /* what the numbers of one tensor tell: its factor, its rows, its shape */
    {"05_tensor_parallel", "    run_dump_gradients(&optimizer);\n",
     "    for (int l = 0; l < L; l++)\n        comm_all_reduce(tp, gradients.blocks[l].down_bias, SUM);\n"
     "    run_dump_gradients(&optimizer);\n", 4, "--recompute none",
     {"blocks.*.down_bias (3 tensors): 4 times too large (= the number of ranks)", "3 too many = 1 for each layer"}},
    {"05_tensor_parallel", "    run_dump_gradients(&optimizer);\n",
     "    if (comm_rank(tp) == 2)\n        tensor_scale(gradients.blocks[1].up_weight, 3);\n"
     "    run_dump_gradients(&optimizer);\n", 4, "--recompute none",
     {"blocks.1.up_weight: in rows 144 to 215 (rank 2's of 4) only: 3 times too large"}},
    {"01_single_gpu", "linear_backward_weight(g->proj_weight, NONE, d_x, a->heads);",
     "linear_backward_weight(g->proj_weight, NONE, a->heads, d_x);", 1, "--recompute none",
     {"blocks.*.proj_weight (3 tensors): transposed"}},
    {"01_single_gpu", "    gelu_backward(d->up, d->gelu, a->up);\n", "    tensor_zero(d->up);\n", 1, "--recompute none",
     {"the first, in the order of backward, is blocks.2.up_weight", ": zero"}},
    /* nothing to compare; a schedule that keeps more than it must */
    {"03_data_parallel", "    run_dump_gradients(&optimizer);\n", "", 2, "--sync naive",
     {"it ended well, but left no gradients (run_dump_gradients)"}},
    {"06_pipeline_parallel", "const int warmup = p - r - 1 < m ? p - r - 1 : m;",
     "const int warmup = p - r - 1 < m ? m : m;", 3, "--schedule 1f1b",
     {"rank 0 keeps the activations of 6 micro-batches at once, and 3 are enough"}},
    {"06_pipeline_parallel", "repeat(&w, 2 * (p - r) - 1, \"F0\");", "repeat(&w, 2 * (p - r), \"F0\");", 3,
     "--schedule zb-v", {"rank 0 keeps the activations of 7 micro-batches of a chunk at once, and 6 are enough",
                         "micro-batches in flight 7, 7, 7; bubble"}, true},
    {"06_pipeline_parallel", "        if (warmup + i < m)\n            schedule_add(s, FORWARD, warmup + i, 0);\n"
     "        schedule_add(s, BACKWARD, i, 0);\n",
     "        schedule_add(s, BACKWARD, i, 0);\n        if (warmup + i < m)\n"
     "            schedule_add(s, FORWARD, warmup + i, 0);\n", 3, "--schedule 1f1b",
     {"this schedule waits for itself: rank 0 waits at its action B0 for B0 of rank 1"}},
    /* replicas that drift apart: what ranks update, and what they gather */
    {"03_data_parallel", "    adamw_step(&optimizer, lr, clip_scale(norm));\n",
     "    adamw_step(&optimizer, lr, clip_scale(norm));\n"
     "    if (comm_rank(dp) == 1)\n        tensor_scale(params.final_weight, 1 + 1e-15);\n", 2, "--sync naive",
     {"final_weight has drifted"}, true},
    {"04_zero", "    adamw_step(&optimizer, lr, clip_scale(norm));\n    refresh_params();\n",
     "    adamw_step(&optimizer, lr, clip_scale(norm));\n    refresh_params();\n"
     "    if (comm_rank(dp) == 1)\n        tensor_scale(params.final_weight, 1 + 1e-15);\n", 2, "--zero 2",
     {"final_weight has drifted"}},
    /* what several directions do to each other: the batch by the replica's rank, not dp's; the loss of all tp ranks */
    {"09_combined", "((int64_t)dp_rank * m", "((int64_t)comm_rank(replicas) * m", 2,
     "--cp 2 --layers 2 --accumulate 2",
     {"as if the batch were indexed by a rank's number among all replicas (dp x cp), not by dp's"}, true},
    {"09_combined", "comm_rank(tp) ? 0 : tensor_item(loss));      /*", "tensor_item(loss));      /*", 8,
     "--tp 2 --cp 2 --pp 2", {"2 times too large (= the size of tp, or"}},
    /* whose gradients are summed: over dp alone, what tp doesn't shard, the embedding's two ends */
    {"09_combined", ": comm_start_all_reduce(replicas, unit, SUM);", ": comm_start_all_reduce(pp, unit, SUM);", 2,
     "--cp 2 --zero 0",
     {"all_reduce in group pp is called 6 times",
      "as if gradients were not summed over cp: they are those of its first rank's tokens"}},
    {"09_combined", "    if (tp_size > 1 && u > 0)\n        comm_all_reduce(tp, u <= L ? gradients.blocks[u - 1].uncut "
     ": gradients.final, SUM);\n", "", 8, "--tp 2 --cp 2 --pp 2",
     {"as if LayerNorms' parameters and the biases after a projection had the gradients of the first rank's rows"}},
    {"09_combined", "    if (tied)\n        comm_all_reduce(tied, parts[0].gradients, SUM);\n", "", 4, "--pp 2",
     {"as if the tied embedding had only the", "all_reduce in group tied is called 0 times"}},
    {"09_combined", "    reducing[u] = zero ?", "    if (tied && u == 0)\n        comm_all_reduce(tied, unit, SUM);\n"
     "    reducing[u] = zero ?", 4, "--pp 2", {"all ranks wait for each other"}},
    /* who owns what: shards of ZeRO that nobody owns; a norm over the replicas alone */
    {"09_combined", ".replica = zero ? 0 : comm_rank(replicas)", ".replica = comm_rank(replicas)", 4, "--tp 2",
     {"wherever one is wrong it is zero, in parts of tensors: ", "does not own what it updates (Shard.replica)"}},
    {"09_combined", "comm_sum(world, gradient_square_sum", "comm_sum(replicas, gradient_square_sum", 8,
     "--tp 2 --cp 2 --pp 2", {"the ranks' shares of it have to be summed (comm_sum)"}},
    /* shards that are not gathered after loading; ids that are looked for in a slice of a slice */
    {"09_combined", "    gather_params();\n    while", "    while", 2, "--dtype fp32",
     {"has drifted: ranks 0 and 1 hold the same elements of it"}},
    {"09_combined", "    layernorm_forward(final, final_stats, a->x[L]",
     "    ids_in_slice(a->batch.targets, a->batch.targets, layout.first_id, V);\n"
     "    layernorm_forward(final, final_stats, a->x[L]", 2, "--tp 2",
     {"as if ids_in_slice had been called twice on the targets"}},
    /* buffers that are in use: d_x while it is sent; the gathered rows while another product reads them */
    {"09_combined", "        comm_wait(&a->sending[1]);              /* of the micro-batch that was here before */\n"
     "        a->receiving[1]", "        a->receiving[1]", 3, "--pp 3",
     {"send of d_x in group pp: it was changed before comm_wait"}},
    {"09_combined", "    Tensor d_out = g_backward(d_x);\n    linear_backward_weight(g->down_weight",
     "    Tensor d_out = g_backward(d_x);\n    f_forward(a->ln2);\n    linear_backward_weight(g->down_weight", 2,
     "--tp 2", {"8 too many = 1 for each layer and micro-batch", "is blocks.3.down_weight"}},
};

static void mistakes_are_named(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof planted / sizeof *planted; i++) {
        const Planted *p = &planted[i];
        if (!full_tests() && !p->covering)      /* the others in make test-full */
            continue;
        const char *directory = copy_of(p->stage);
        replace(directory, p->from, p->to);
        char ranks[16] = "";
        if (p->ranks)
            snprintf(ranks, sizeof ranks, "NP=%d", p->ranks);
        Result r = run("sh -c '" MAKE_SH "verify STAGE=%.2s %s EDITED=%s ARGS=\"%s\"'", sanitize(), p->stage, ranks,
                       directory, p->options);
        for (int k = 0; k < 2 && p->says[k]; k++)
            if (!r.status || !strstr(r.out, p->says[k]))
                fail_msg("%s, \"%s\" for \"%s\": status %d, and not \"%s\", but\n%s%s", p->stage, p->to, p->from,
                         r.status, p->says[k], r.out, r.err);
        result_free(r);
    }
}

/* A schedule under a name that nobody knows makes no promise: what it keeps and where it waits is printed. */
static void what_a_new_schedule_costs_is_printed(void **state)
{
    const char *directory = copy_of("06_pipeline_parallel");

    (void)state;
    replace(directory, "zb-v|dualpipe-v", "zb-v|dualpipe-v|eager");
    replace(directory, "dualpipe_v(&s, r, p, m); break;",
            "dualpipe_v(&s, r, p, m); break;\n    default: afab(&s, m);");
    Result r = run("sh -c '" MAKE_SH "verify STAGE=06 NP=3 EDITED=%s ARGS=\"--schedule eager\"'", sanitize(),
                   directory);
    if (r.status || !strstr(r.out, "micro-batches in flight 6, 6, 6; bubble 0.333 simulated"))
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    result_free(r);
    r = run("mpiexec -n 3 " BUILD "/cpu64/06_pipeline_parallel --preset tiny --layers 3 --accumulate 6 --steps 3");
    double idle[3], simulated;                  /* and what it took: of every rank */
    const char *line = strstr(r.out, "bubble  idle over busy time");
    if (!line || sscanf(line, "bubble %*[^:]: %lf %lf %lf; simulated, with --times 1,1,1,0, %lf", &idle[0], &idle[1],
                        &idle[2], &simulated) != 4)
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    result_free(r);
}

/* Where a sanitizer knows the line, verify says it. */
static void sanitizers_name_the_line(void **state)
{
    static const struct {
        const char *from, *to, *says[2];
    } table[] = {
        {"    gelu_backward(d->up, d->gelu, a->up);\n",
         "    gelu_backward(d->up, d->gelu, a->up);    ((double *)d->up.data)[R * F] = 1;\n",
         {"ERROR: AddressSanitizer: heap-buffer-overflow", "in block_backward"}},
        {"    tensor_zero(loss);\n", "    static int three[3]; three[options.accumulate % 4] = 1;\n",
         {"runtime error: index 3 out of bounds", "in train_step"}},
    };

    (void)state;
    for (int i = 0; i < 2 && full_tests(); i++) {
        const char *directory = copy_of("01_single_gpu");
        replace(directory, table[i].from, table[i].to);
        Result r = run("sh -c '" MAKE_SH "verify STAGE=01 EDITED=%s ARGS=--check'", "SANITIZE=1", directory);
        const char *frame = strstr(r.out, table[i].says[1]);
        if (!r.status || !strstr(r.out, table[i].says[0]) || !frame
            || !memmem(frame, strcspn(frame, "\n"), "/train.c:", 9))
            fail_msg("status %d\n%s%s", r.status, r.out, r.err);
        result_free(r);
    }
}

/* Memory or traffic unlike predict()'s is said, and is no success. */
static void wrong_predictions_are_failures(void **state)
{
    static const struct {
        const char *stage, *from, *to, *start, *says;
    } table[] = {
        {"01_single_gpu", "memory_predict(MEM_GRADIENTS, real * N);", "memory_predict(MEM_GRADIENTS, real * N + 4);", "",
         "DIFFERS"},
        {"03_data_parallel", "    memory_plan();\n", "    memory_plan();\n    comm_predict(dp, ALL_REDUCE, 1, 7);\n",
         "mpiexec -n 2 ", "but predict() said"},
        {"04_zero", "comm_part(dp, embedding).count + L", "embedding / comm_size(dp) + L", "mpiexec -n 3 ",
         "rank 2: optimizer took "},
    };

    (void)state;
    for (int i = full_tests() ? 0 : 2; i < 3; i++) {
        const char *directory = copy_of(table[i].stage);
        replace(directory, table[i].from, table[i].to);
        result_free(run("sh -c '" MAKE_SH "verify STAGE=%.2s EDITED=%s NP=1 ARGS=--quiet'", sanitize(), table[i].stage,
                        directory));
        Result r = run("%s" BUILD "/verify/edited --preset tiny --steps 1 --threads 1", table[i].start);
        if (r.status != 1 || (!strstr(r.out, table[i].says) && !strstr(r.err, table[i].says)))
            fail_msg("%s with \"%s\": status %d, and not \"%s\": %s%s", table[i].stage, table[i].to, r.status,
                     table[i].says, r.out, r.err);
        result_free(r);
    }
}

/* ---- Exercises ---- */

/* What exercises.md says of exercise n: the title (NULL: there is no such exercise), and the *sentences* that verify
 * begins with. */
static char *exercise(const char *stage, int n, char says[4][256])
{
    char path[256], mark[32], *title = NULL;

    snprintf(path, sizeof path, SOURCE "/%s/exercises.md", stage);
    snprintf(mark, sizeof mark, "\n## %d. ", n);
    char *text = read_file(path), *at = strstr(text, mark);
    if (at) {
        at += strlen(mark);
        title = strndup(at, strcspn(at, "\n"));
        at = strstr(at, "At first `make verify` says: ");
        char *end = at ? strstr(at, "\n\n") : NULL;
        if (!end)
            fail_msg("exercise %d of %s does not say what make verify says at first", n, stage);
        *end = 0;
        for (int k = 0; k < 4 && (at = strchr(at, '*')); k++) {
            int length = 0;
            for (at++; *at && *at != '*'; at++) {       /* as Markdown has it: \* is a star, a line's end a space */
                at += *at == '\\';
                says[k][length++] = *at == '\n' ? ' ' : *at;
            }
            says[k][length] = 0;
            at++;
        }
    }
    free(text);
    return title;
}

static const char *const stages[] = {"01_single_gpu", "02_mixed_precision", "03_data_parallel", "04_zero",
                                     "05_tensor_parallel", "06_pipeline_parallel", "07_context_parallel",
                                     "08_fused_kernels", "09_combined"};

/* Made in a directory of this test's, not in build/exercise, where someone may be at work. */
static void exercises_fail_until_they_are_done(void **state)
{
    (void)state;
    for (unsigned s = 0; s < sizeof stages / sizeof *stages; s++) {
        int n = 0;
        for (;; n++) {
            char says[4][256] = {"", "", "", ""};
            char *title = exercise(stages[s], n + 1, says);
            if (!title)
                break;
            assert_true(says[0][0]);
            run_well("sh -c 'cd " SOURCE " && rm -rf %s && tests/workshop/exercise.sh %s %d %s'",
                     in_temporary("edited"), stages[s], n + 1, in_temporary("edited"));
            run_well("grep -rq 'EXERCISE %.2s.%d:' %s", stages[s], n + 1, in_temporary("edited"));
            if (full_tests()) {
                Result r = run("sh -c '" MAKE_SH "verify STAGE=%.2s N=%d EDITED=%s'", sanitize(), stages[s], n + 1,
                               in_temporary("edited"));
                for (int k = 0; k < 4; k++)
                    if (!r.status || !strstr(r.out, says[k]))
                        fail_msg("exercise %d of %s: status %d, and not \"%s\", but\n%s%s", n + 1, stages[s], r.status,
                                 says[k], r.out, r.err);
                result_free(r);
            }
            free(title);
        }
        assert_true(n >= 3);
        if (full_tests()) {             /* the answer */
            Result r = run("sh -c '" MAKE_SH "verify STAGE=%.2s EDITED=%s'", sanitize(), stages[s], copy_of(stages[s]));
            if (r.status)
                fail_msg("%s: status %d\n%s%s", stages[s], r.status, r.out, r.err);
            result_free(r);
        }
    }
}

static void what_is_there_is_not_overwritten(void **state)
{
    (void)state;
    run_well("sh -c 'cd " SOURCE " && rm -rf %s && tests/workshop/exercise.sh 03_data_parallel 1 %s'",
             in_temporary("mine"), in_temporary("mine"));
    Result r = run("sh -c 'cd " SOURCE " && tests/workshop/exercise.sh 03_data_parallel 1 %s'", in_temporary("mine"));
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.out, "is there already"));
    result_free(r);
    r = run("sh -c '" MAKE_SH "exercise STAGE=03 N=99'", sanitize());
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.out, "03_data_parallel has no exercise 99; it has:\n  make exercise STAGE=03 N=1"));
    result_free(r);
    r = run("sh -c '" MAKE_SH "verify STAGE=99'", sanitize());
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.out, "STAGE=99 is none of: 01_single_gpu"));
    result_free(r);
    r = run("sh -c '" MAKE_SH "exercise STAGE=0'", sanitize());
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.out, "STAGE=0 is the beginning of several names; write one of them whole: 01_single_gpu"));
    result_free(r);
    r = run(BUILD "/cpu64/verify 03_data_parallel " BUILD "/cpu64/03_data_parallel 2 --hid 48");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "ARGS has --hid, which may be --hidden"));
    result_free(r);
}

/* A copy of the tree with this one's build, for what would be in the way of someone who is at work here. */
static const char *copy_of_tree(void)
{
    static char copy[256];

    if (*copy)
        return copy;
    snprintf(copy, sizeof copy, "%s", in_temporary("copy"));    /* whose buffer serves others soon */
    run_well("sh -c 'mkdir -p %s/build && cp -rp " SOURCE "/Makefile " SOURCE "/README.md " SOURCE "/common " SOURCE
             "/tests " SOURCE "/[0-9][0-9]_* %s && ln -s " SOURCE "/build/* %s/build && rm -f %s/build/exercise "
             "%s/build/sweep && ln -sfn " BUILD "/cpu " BUILD "/cpu64 %s/build'", copy, copy, copy, copy, copy, copy);
    return copy;
}

/* A command in that copy, as a person would type it. */
static Result run_in_copy(const char *command)
{
    FILE *script = fopen(in_temporary("command.sh"), "w");

    assert_non_null(script);
    fprintf(script, "cd %s\nunset MAKELEVEL\nexport MAKEFLAGS='-- ROOT=" SOURCE "'\n%s\n", copy_of_tree(), command);
    fclose(script);
    return run("sh command.sh");
}

static void expect_in_copy(const char *command, int status, const char *says)
{
    Result r = run_in_copy(command);

    if (r.status != status || !strstr(r.out, says))
        fail_msg("%s: status %d, and not \"%s\", but\n%s%s", command, r.status, says, r.out, r.err);
    result_free(r);
}

/* An exercise is made of the program as it is here: of another it says so. */
static void an_exercise_of_a_changed_program_says_so(void **state)
{
    (void)state;
    expect_in_copy("sed -i s/warmup/warm/ 06_pipeline_parallel/*.c && make -s exercise STAGE=06 N=2; status=$?; "
                   "cp -p " SOURCE "/06_pipeline_parallel/*.c 06_pipeline_parallel; exit $status", 2,
                   "exercise 06.2 takes its lines out of 06_pipeline_parallel, where they are not: has it been changed? "
                   "\"git stash\" puts your changes aside");
}

/* Someone's own program, data and tensor parallel, made of 05's: 99_mine. */
static void a_program_of_ones_own_is_compared(void **state)
{
    static const char *const changes[][2] = {
        {"static bool sequence_parallel;", "static Comm *dp;\nstatic int tp_size = 1;\nstatic bool sequence_parallel;"},
        {"cut the residual stream's rows too\"}, ",
         "cut the residual stream's rows too\"}, {\"tp\", OPTION_INT, &tp_size, \"\", \"N\", 1, 64}, "},
        {"tp = comm_split(world, 0, \"tp\");",
         "tp = comm_split(world, comm_rank(world) / tp_size, \"tp\");\n"
         "    dp = comm_split(world, comm_rank(world) % tp_size, \"dp\");\n"
         "    run_global_batch((int64_t)options.micro_batch * options.accumulate * comm_size(dp));"},
        {"    memory_plan();\n", "    memory_plan();\n    comm_predict(dp, ALL_REDUCE, 1, N);\n"},
        {"1.0 / (B * T * options.accumulate)", "1.0 / (B * T * options.accumulate * comm_size(dp))"},
        {"m * B, 0);", "((int64_t)comm_rank(dp) * options.accumulate + m) * B, 0);"},
        {"    run_dump_gradients(", "    comm_all_reduce(dp, gradients.buffer, SUM);\n    run_dump_gradients("},
        {"comm_sum(tp, gradient_square_sum", "comm_sum(world, gradient_square_sum"},
        {"mean = tensor_item(loss);", "mean = comm_sum(dp, tensor_item(loss));"},
        {".head = true});", ".head = true, .replica = comm_rank(dp)});"},
    };
    char directory[300];

    (void)state;
    snprintf(directory, sizeof directory, "%s/99_mine", copy_of_tree());
    run_well("sh -c 'mkdir %s && cp " SOURCE "/05_tensor_parallel/*.[ch] %s && mkdir %s2 && touch %s2/train.c'",
             directory, directory, directory, directory);
    expect_in_copy("make -s verify STAGE=99", 2, "STAGE=99 is the beginning of several names; write one of them whole: "
                   "99_mine 99_mine2");
    run_well("rm -r %s2", directory);
    for (unsigned i = 0; i < sizeof changes / sizeof *changes; i++)
        replace(directory, changes[i][0], changes[i][1]);
    if (full_tests()) {
        expect_in_copy("make -s verify STAGE=99", 0, "3 of 3 layouts are right");
        expect_in_copy("make -s verify STAGE=99 NP=4 ARGS='--tp 2'", 0,
                       "micro_batch 3, accumulate 8, T 24, layers 9; groups tp 2, dp 2");
        replace(directory, "(B * T * options.accumulate * comm_size(dp))", "(B * T * options.accumulate)");
        expect_in_copy("make -s verify STAGE=99 NP=4 ARGS='--tp 2'", 2,
                       "the loss and every gradient are 2 times too large (= the size of tp, or the size of dp)");
    }
    run_well("rm -r %s", directory);            /* others would build it */
}

static void dumps_are_compared(void **state)
{
    static const char *const options = "--preset tiny --steps 1 --threads 1 --quiet";

    (void)state;
    run_well(BUILD "/cpu64/01_single_gpu %s --accumulate 2 --dump-gradients one", options);
    run_well("mpiexec -n 2 " BUILD "/cpu64/03_data_parallel %s --dump-gradients two", options);
    run_well(BUILD "/cpu64/01_single_gpu %s --accumulate 2 --layers 1 --dump-gradients three", options);
    run_well(BUILD "/cpu/01_single_gpu %s --accumulate 2 --dump-gradients four", options);
    run_well(BUILD "/cpu64/01_single_gpu %s --accumulate 2 --seed 2 --dump-gradients five", options);
    static const struct {
        const char *arguments, *says[2];
        int status;
    } table[] = {
        {"one two", {"0 of 27 tensors are farther than 1e-10 (HEADS=n compares q, k and v apart)\n"}, 0},
        {"one two 0", {"tensors are farther than 0 (HEADS=n compares q, k and v apart)"}, 1},
        {"one four", {"0 of 27 tensors are farther than 0.0001"}, 0},
        {"one four 1e-10", {"27 of 27 tensors are farther than 1e-10"}, 1},
        {"one three", {"gpt_neox.layers.1.mlp.dense_h_to_4h.bias is (256) in one, and not in three\n"}, 1},
        {"three one", {"gpt_neox.layers.1.mlp.dense_h_to_4h.bias is in one, and not in three\n"}, 1},
        {"one five", {"batch.inputs differs: these are gradients of other sequences", "tensors are farther"}, 1},
        {"one none", {"none: cannot be opened for reading"}, 2},
        {"one two many", {"TOLERANCE=many, but a number from 0 on is wanted"}, 2},
        {"one", {"two files are wanted: make compare A=one.safetensors B=two.safetensors"}, 2},
    };
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        Result r = run(BUILD "/cpu/compare %s", table[i].arguments);
        for (int k = 0; k < 2 && table[i].says[k]; k++)
            if (r.status != table[i].status || (!strstr(r.out, table[i].says[k]) && !strstr(r.err, table[i].says[k])))
                fail_msg("%s: status %d, and not \"%s\", but\n%s%s", table[i].arguments, r.status, table[i].says[k],
                         r.out, r.err);
        result_free(r);
    }
    Result r = run("sh -c '" MAKE_SH "compare A=%s B=%s HEADS=2'", sanitize(), in_temporary("one"),
                   in_temporary("two"));
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "0 of 35 tensors are farther than 1e-10\n"));
    result_free(r);
}

/* ---- The README's table of commands ---- */

/* Every command of the instructor's table prints what the table says. They are run in a copy of the tree with this
 * one's build, so that exercises which someone is doing stay as they are. Long ones, and the tests themselves, are for
 * make test-full, or for who reads this. */
static void commands_print_what_the_readme_says(void **state)
{
    char *readme = read_file(SOURCE "/README.md"), *at = strstr(readme, "\n## For an instructor\n");
    int rows = 0;

    (void)state;
    assert_non_null(at);
    *strstr(at + 1, "\n## ") = 0;
    for (char *line = strtok(at, "\n"); line; line = strtok(NULL, "\n")) {
        char command[512], prints[256];
        int seconds;
        if (sscanf(line, "| %*c | `%511[^`]` | %d | `%255[^`]` |", command, &seconds, prints) != 3)
            continue;
        rows++;
        if (seconds > 100 || (seconds > 2 && !full_tests()))
            continue;
        Result r = run_in_copy(command);
        if (!strstr(r.out, prints) && !strstr(r.err, prints))
            fail_msg("%s: status %d, and not \"%s\", but\n%s%s", command, r.status, prints, r.out, r.err);
        if (full_tests())
            print_message("%4d s in the README, %5.1f here: %s\n", seconds, r.seconds, command);
        result_free(r);
    }
    assert_true(rows >= 15);
    free(readme);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_there_is_not_overwritten),
        cmocka_unit_test(exercises_fail_until_they_are_done),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(what_a_new_schedule_costs_is_printed),
        cmocka_unit_test(sanitizers_name_the_line),
        cmocka_unit_test(an_exercise_of_a_changed_program_says_so),
        cmocka_unit_test(a_program_of_ones_own_is_compared),
        cmocka_unit_test(dumps_are_compared),
        cmocka_unit_test(wrong_predictions_are_failures),
        cmocka_unit_test(commands_print_what_the_readme_says),
    };

    return cmocka_run_group_tests_name("workshop", tests, NULL, NULL);
}
