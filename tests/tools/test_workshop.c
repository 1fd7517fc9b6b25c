/* make exercise, make verify, make passed. Every exercise can be made; its copy fails with the sentence in
 * exercises.md, and passes with the program's own code in place. Classic mistakes, planted in the programs, are found
 * and named. The instructor's commands print what README.md shows. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tree_copy.h"

/* Runs make as a user would, without the variables of the make that runs this test. */
#define MAKE_SH "cd " SOURCE " && env -u MAKEFLAGS -u MAKELEVEL make -s %s "

static const char *sanitize(void)
{
    return strstr(BUILD, "/sanitize") ? "SANITIZE=1" : "";
}

/* Copies a program's files to a directory, beside links to the directories that they include from. */
static const char *copy_of(const char *program)
{
    static char directory[256];

    snprintf(directory, sizeof directory, "%s", in_temporary("edited"));
    run_well("sh -c 'rm -rf %s && mkdir %s && cp " SOURCE "/%s/*.[ch] %s && ln -sfn " SOURCE "/common " SOURCE
             "/[0-9][0-9]_* %s/..'", directory, directory, program, directory, directory);
    return directory;
}

/* ---- Mistakes ---- */

/* Replaces every `from` in the copy's files, which must have at least one. */
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
    const char *program, *from, *to;
    int ranks;                  /* 0: the program's own parallel configurations, all of which must be wrong */
    const char *options, *prints;          /* all these words, which | separates */
    bool covering;
} Planted;

static const Planted planted[] = {
    /* an option as it was typed, where its default means something else */
    {"11_five_dimensions", "    G = given;\n", "    G = span;\n", 4, "--pp 2 --ep 2", "in sizes (train.c:"},
    /* a loss scale that is not the step's */
    {"02_mixed_precision", "tensor_scale(gradients.buffer, 1 / loss_scale)",
     "tensor_scale(gradients.buffer, 1.0 / 65536)", 0, "",
     "with a loss scale of 1.4e6, but |gradients are not divided by the loss scale of their step"},
    /* the sum of the ranks' gradients instead of their average */
    {"03_data_parallel", "(B * T * options.accumulate * comm_size(dp))", "(B * T * options.accumulate)", 4,
     "--sync naive", "the loss and every gradient are 4 times too large (= the number of ranks)", true},
    /* a bias that every rank adds */
    {"05_tensor_parallel", "    linear_g_forward(a->branch, a->gelu, w->down_weight);\n",
     "    linear_forward(partial_out(a->branch), a->gelu, w->down_weight, w->down_bias);\n    g_forward(a->branch);\n",
     3, "--recompute none", "a run in which down_bias was added on every rank, and once more after the all-reduce"},
    /* a sum that is overwritten while a ring still sends it */
    {"05_tensor_parallel", "piece(partial_sums, k % 2)", "piece(partial_sums, 0)", 4, "--sequence-parallel --overlap",
     "exchange of partial_sums in group tp: it was changed before comm_wait"},
    /* a missing all-reduce, backward */
    {"05_tensor_parallel", "    sum = f_backward(d->ln1);\n", "", 2, "--recompute none",
     "all_reduce in group tp is called 112 times per step, but predict() gives 140: 28 missing = 1 per layer and "
     "micro-batch|it matches, to eight digits, a run in which the ranks' partial sums of d_ln1 were not all-reduced"},
    /* a tied embedding whose gradient is that of one end alone */
    {"06_pipeline_parallel", "        comm_all_reduce(embedding_group, gradients.embedding, SUM);\n", "        ;\n", 3,
     "--schedule 1f1b",
     "a run in which the tied embedding had only the|all_reduce in group embedding is called 0 times"},
    /* parameters from an all-gather before the last update; parameters read before their all-gather is complete */
    {"04_zero", "    memset(slot_unit, -1, sizeof slot_unit);\n    for (int u",
     "    slot_unit[2] = slot_unit[3] = -1;\n    for (int u", 2, "--zero 3", "stale copies"},
    {"04_zero", "    comm_wait(&gathering[slot_of(u)]);\n", "", 2, "--zero 3",
     "NaN may also mean that a buffer was read before comm_wait"},
    /* copies of the state that each know half of the batch; a shard added up while its reduce-scatter is in flight */
    {"04_zero", "    summing[u] = comm_start_all_reduce(replicas, optimizer.shards[u].gradients, SUM);\n", "", 4,
     "--zero 3 --replicate 2", "all_reduce in group replicas is called 0 times per step, but predict() gives 5|"
     "different weights instead of 1 each: 1 for 0 to 1, 0 for 2 to 3", true},
    {"04_zero", "    comm_wait(&reducing[slot_of(u)]);\n    summing", "    summing", 4, "--zero 3 --replicate 2",
     "all_reduce of gradients in group replicas: element 0 was written to before comm_wait"},
    /* a norm over the local shard alone */
    {"04_zero", "comm_sum(dp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 3, "--zero 2",
     "the gradients are right, but their norm is|is a sum over the ranks missing", true},
    {"05_tensor_parallel", "comm_sum(tp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 2,
     "--recompute none", "is a sum over the ranks missing"},
    /* a norm that is right on rank 0 alone; no clipping */
    {"03_data_parallel", "comm_sum(dp, gradient_square_sum(&optimizer))", "gradient_square_sum(&optimizer)", 0, "",
     "but 0 on rank 1, and must be the same|5 of 5 configurations are wrong"},
    {"03_data_parallel", "clip_scale(norm)", "1", 2, "--sync naive", "step 2: the loss is"},
    /* 2-byte weights that are never filled, or never updated; mistakes that only --dtype fp32 shows */
    {"02_mixed_precision", "tensor_convert(params.buffer, master)", "tensor_convert(master, params.buffer)", 1,
     "--dtype bf16", "a run in which all parameters were 0|its two arguments are swapped"},
    {"02_mixed_precision", "    if (!overflow && has_master)\n        tensor_convert(params.buffer, master);",
     "    if (!overflow && has_master)\n        tensor_convert(master, params.buffer);", 1, "--dtype fp16",
     "every saved weight is a number of 16 bits"},
    {"08_fused_kernels", "linear_backward_weight(gradients.embedding, NONE, logits, final)",
     "linear_backward_weight(gradients.embedding, NONE, logits, tensor_range(a->final, 0, rows))", 1,
     "--dtype bf16 --fuse cross-entropy", "--fuse cross-entropy --dtype fp32: WRONG|"
     "1 of 35 gradients is wrong; the first, in the order of backward, is embedding"},
    /* a mask in forward only, for the same chunk and for later ones; ranks instead of chunks */
    {"07_context_parallel", "chunk(d->lse, i),\n                                     key == query);",
     "chunk(d->lse, i),\n                                     false);", 3, "--attention ring",
     "57 of 67 gradients are wrong; the first, in the order of backward, is blocks.3.qkv_weight (q)", true},
    /* activations of another block, and d_x of another micro-batch or operator */
    {"04_zero", "d->attn_out, a->qkv, a->probs);", "d->attn_out, a->qkv, acts.blocks[0].probs);", 2, "--zero 1",
     "a run in which backward read the attention probabilities of the first block in every block", true},
    {"01_single_gpu", "            block_forward(&w->blocks[l], &a->blocks[l], a->x[l + 1], a->x[l]);\n        if",
     "            ;\n        if", 1, "--recompute full",
     "a run in which backward read the activations of the last block in every block"},
    {"03_data_parallel", "    tensor_zero(d_x);\n", "", 2, "--sync naive", "a run in which d_x was not set to zero"},
    /* the same sequences on every rank; gradients of the last micro-batch only */
    {"03_data_parallel", "((int64_t)comm_rank(dp) * options.accumulate + m) * B", "m * B", 4, "--sync overlap",
     "ranks contribute to the global batch with different weights instead of 1 each: 4 for 0, 0 for 1 to 3"},
    {"03_data_parallel", "        trace_begin(\"backward\");\n",
     "        trace_begin(\"backward\");\n        tensor_zero(gradients.buffer);\n", 2, "--sync naive",
     "(67 tensors): only the contribution of micro-batch 6 (of 0 to 6)"},
    /* mistakes in one tensor: a factor, some of its rows, zero */
    {"05_tensor_parallel", "    run_dump_gradients(&optimizer);\n",
     "    for (int l = 0; l < L; l++)\n        comm_all_reduce(tp, gradients.blocks[l].down_bias, SUM);\n"
     "    run_dump_gradients(&optimizer);\n", 4, "--recompute none",
     "blocks.*.down_bias (3 tensors): 4 times too large (= the number of ranks)|3 too many = 1 per layer"},
    {"05_tensor_parallel", "    run_dump_gradients(&optimizer);\n",
     "    if (comm_rank(tp) == 2)\n        tensor_scale(gradients.blocks[1].up_weight, 3);\n"
     "    run_dump_gradients(&optimizer);\n", 4, "--recompute none",
     "blocks.1.up_weight: in rows 144 to 215 (shard of rank 2 of 4) only: 3 times too large"},
    {"01_single_gpu", "    gelu_backward(d->up, d->gelu, a->up);\n", "    tensor_zero(d->up);\n", 1, "--recompute none",
     "the first, in the order of backward, is blocks.2.up_weight|: zero"},
    /* no gradients to compare; a deadlock */
    {"03_data_parallel", "    run_dump_gradients(&optimizer);\n", "", 2, "--sync naive",
     "the run succeeded, but wrote no gradients (run_dump_gradients)"},
    {"06_pipeline_parallel", "        if (warmup + i < m)\n            schedule_add(s, FORWARD, warmup + i, 0);\n"
     "        schedule_add(s, BACKWARD, i, 0);\n",
     "        schedule_add(s, BACKWARD, i, 0);\n        if (warmup + i < m)\n"
     "            schedule_add(s, FORWARD, warmup + i, 0);\n", 3, "--schedule 1f1b",
     "this schedule deadlocks: rank 2 waits at its action B0 for F0 of rank 2", true},
    /* replicas that drift apart: after the update, and after the all-gather */
    {"03_data_parallel", "    adamw_step(&optimizer, lr, clip_scale(norm));\n",
     "    adamw_step(&optimizer, lr, clip_scale(norm));\n"
     "    if (comm_rank(dp) == 1)\n        tensor_scale(params.final_weight, 1 + 1e-15);\n", 2, "--sync naive",
     "final_weight has drifted"},
    /* mistakes across dimensions: the batch indexed by the rank in replicas, not in dp; the loss of all tp ranks */
    {"09_combined", "((int64_t)dp_rank *", "((int64_t)comm_rank(replicas) *", 2, "--cp 2 --layers 2 --accumulate 2",
     "a run in which the batch was indexed by the rank among all replicas (dp x cp) instead of the rank in dp", true},
    {"09_combined", "comm_rank(tp) ? 0 : tensor_item(loss));      /*", "tensor_item(loss));      /*", 8,
     "--tp 2 --cp 2 --pp 2", "2 times too large (= the size of tp, or"},
    /* gradients without an all-reduce: over cp, over tp for replicated parameters, of the embedding's two ends */
    {"09_combined", ": comm_start_all_reduce(replicas, unit, SUM);", ": comm_start_all_reduce(pp, unit, SUM);", 2,
     "--cp 2 --zero 0", "7 calls of all_reduce per step are made in group pp, but predict() has them in group replicas|"
     "a run in which gradients were not all-reduced over cp: only the tokens of its first rank contributed"},
    {"09_combined", "    if (tp_size > 1 && u > 0)\n"
     "        comm_all_reduce(tp, u <= L ? gradients.blocks[u - 1].replicated : gradients.final, SUM);\n", "", 8,
     "--tp 2 --cp 2 --pp 2",
     "a run in which the gradients of LayerNorm parameters, proj_bias and down_bias came from the first rank's rows"},
    {"09_combined", "    unit_request[u] = zero ?", "    if (embedding_group && u == 0)\n"
     "        comm_all_reduce(embedding_group, unit, SUM);\n    unit_request[u] = zero ?", 4, "--pp 2",
     "waits for a recv from rank 1 of group pp|some ranks make calls that others do not make"},
    /* ZeRO shards that no rank owns */
    {"09_combined", ".replica = zero ? 0 : comm_rank(replicas)", ".replica = comm_rank(replicas)", 4, "--tp 2",
     "all wrong elements are zero, in shards of tensors: |does not own the shard that it updates (Placement.replica)"},
    /* experts: gradients summed over the wrong ranks; several owners; no gradient of the gates */
    {"10_expert_parallel", "comm_all_reduce(edp, tensor_range", "comm_all_reduce(dp, tensor_range", 4, "--ep 2",
     "1 call of all_reduce per step is made in group dp, but predict() has it in group edp|blocks.2.experts.0."
     "down_weight\n|the sum of the gradients of 2 experts: it was added up over ranks that hold different", true},
    {"10_expert_parallel", "at.expert_replica = comm_rank(edp)", "at.expert_replica = 0", 4, "--ep 2",
     "the squares of experts count 2 times"},
    {"10_expert_parallel", "    route_backward(d_logits, d_gates,",
     "    tensor_zero(d_gates);\n    route_backward(d_logits, d_gates,", 4, "--ep 2",
     "the first, in the order of backward, is blocks.2.router"},
    {"10_expert_parallel", "    comm_all_reduce(dp, tensor_range(gradients.buffer, 0, others), SUM);\n", "", 4,
     "--ep 2", "final_weight, final_bias, blocks.*.router|only the contribution of rank 0 (of 0 to 3): the all-"},
    {"11_five_dimensions", "balance_of_step = comm_sum(world, tensor_item(balance_loss));",
     "balance_of_step = comm_sum(world, comm_rank(tp) ? 0 : tensor_item(balance_loss));", 8,
     "--dtype fp32 --tp 2 --cp 2 --pp 2 --ep 2 --span 3", "step 1: column balance_loss of --metrics is "},
    /* accesses beyond arrays that change no result; a tile after the first; options that few runs have */
    {"10_expert_parallel", "i < n; i++) {\n        choices", "i <= n; i++) {\n        choices", 2, "--ep 2",
     "heap-buffer-overflow: a read in count_loads (train.c:|the array is made in count_loads (train.c:"},
    {"07_context_parallel", "*dot = tokens_of(delta, b, first, a).data;", "*dot = tokens_of(delta, b, 0, a).data;", 0,
     "", "the first wrong configuration is right without --seq 260|more than one tile"},
    {"09_combined", "attend_kv(a, r, current, (r - step + n) % n)", "attend_kv(a, r, kv[step > 0], (r - step + n) % n)",
     0, "", "the first wrong configuration is right without --cp 3"},
    /* what must be refused; Inf that becomes a number */
    {"06_pipeline_parallel", "(pipe->kind == ZERO_BUBBLE || is_v(*pipe))", "is_v(*pipe)", 0, "",
     "--recompute full, which must be refused: WRONG"},
    {"02_mixed_precision", "return a > b || isnan(a) ? a : b;", "return a > b ? a : b;", 0, "",
     "infinite weights: WRONG"},
    /* a norm and a loss that are wrong although the gradients are right */
    {"04_zero", "replica(comm_rank(replicas))", "replica(0)", 6, "--zero 3 --replicate 2",
     "(= the square root of the size of replicas"},
    {"01_single_gpu", "double mean = tensor_item(loss);", "double mean = tensor_item(loss) + 1;", 1, "--recompute none",
     "every gradient is right, but the loss of this step is |only the number that is reported is wrong"},
    {"12_llama", "layout.config.norm_eps", "1e-5", 1, "--kv-heads 3", "the loss of this step is "},
    {"12_llama", ".col_group = 1, .std = into_residual}}", ".col_group = 1, .std = std}}", 1, "--untied",
     "the initial weights of model.layers.|.mlp.down_proj.weight are not the reference's"},
    {"12_llama", "(c.untied ? 2 : 1)", "1", 1, "--untied", "a formula of the model's size is wrong"},
    /* Llama's block: a KV head's copies, partial sums of copies, norms of local rows, the head's gradient, one half of
     * the MLP */
    {"12_llama", "        comm_all_reduce(kv, gradients.blocks[l].kv_weight, SUM);\n", "        ;\n", 4, "--kv-heads 2",
     "all_reduce in group kv is called 0 times per step, but predict() gives 3: 3 missing = 1 per layer|"
     "a run in which the gradients of a KV head's copies were not all-reduced (kv): only the heads of q beside its "
     "first copy contributed|6 of 29 gradients are wrong", true},
    {"12_llama", "    sum = f_backward(d->ln1);\n", "", 4, "--kv-heads 2",
     "a run in which the ranks' partial sums of d_ln1 were not all-reduced before rmsnorm_backward read them"},
    {"12_llama", "    Request *sum = f_backward(d->ln2);\n", "    Request *sum = NULL;\n", 3, "--kv-heads 3 --untied",
     "a run in which the ranks' partial sums of d_ln2 were not all-reduced before rmsnorm_backward read them"},
    {"12_llama", "comm_all_reduce(tp, l < L ? gradients.blocks[l].replicated : gradients.final, SUM);", ";", 3,
     "--sequence-parallel --kv-heads 1", "the gradients of RMSNorm weights came from the first rank's rows only"},
    {"12_llama", "linear_backward_weight(g->head,", "linear_backward_weight(g->embedding,", 1, "--untied",
     "head: zero"},
    {"12_llama", "    swiglu_backward(d->up, d->swiglu, a->up);\n", "    tensor_zero(d->up);\n", 1, "--kv-heads 2",
     "blocks.*.up_weight (gate), blocks.*.up_weight (up), blocks.*.ln2_weight (9 tensors): zero"},
    /* the update: a learning rate of another step, a wrong clipping, gradients that stay, a step that is not skipped */
    {"01_single_gpu", "learning_rate(step)", "learning_rate(step + 1)", 1, "--recompute none",
     "the learning rate is 0.001, but the reference's is 0.0008"},
    {"01_single_gpu", "clip_scale(norm))", "1)", 1, "--recompute none", "step 2: the loss is |AdamW got a wrong scale"},
    {"01_single_gpu", "    tensor_zero(gradients.buffer);\n",
     "    if (step % 2)\n        tensor_zero(gradients.buffer);\n", 1, "--recompute none",
     "something of the previous step was not set to zero"},
    {"02_mixed_precision", "    if (!overflow)\n        adamw_step", "    adamw_step", 0, "",
     "--dtype fp16: correct|--dtype fp16, overflow: WRONG|(steps 4 and 7 overflow: are they skipped?)"},
    {"02_mixed_precision", "clean_steps = overflow ? 0 : clean_steps + 1;", "clean_steps++;", 0, "",
     "after step 5, which is clean, the loss scale is 2800000, expected 1400000"},
    {"08_fused_kernels", "    device_event_seconds(&both);", "    (void)both;", 1, "--dtype fp32 --fuse adamw",
     "a number on its way from the device is NaN until the host has waited for it"},
    {"02_mixed_precision", "    if (!overflow && has_master)\n        tensor_convert(params.buffer, master);",
     "    if (!overflow && has_master) {\n        tensor_convert(params.buffer, master);\n"
     "        tensor_convert(master, params.buffer);\n    }", 1, "--dtype bf16",
     "every saved weight is a number of 16 bits"},
    {"08_fused_kernels", "        optimizer.step--; ", "        ; ", 0, "",
     "AdamW counts 7 updates instead of 6: its bias correction is that of another step"},
    {"09_combined", "    gather_begin();\n    execute(", "    execute(", 4, "--dtype fp32 --tp 2",
     "all_gather in group replicas is called 0 times per step, but predict() gives 6"},
    /* evaluation: its scale, and slots that it leaves full */
    {"06_pipeline_parallel", "comm_broadcast(pp, loss, rank_of(pipeline, pipeline.p * pipeline.v_c - 1))",
     "comm_broadcast(pp, loss, 0)", 3, "--schedule 1f1b",
     "the validation loss after step 2 is 0, but the reference's is"},
    {"04_zero", "    forward(&acts, batch, 1.0 / (B * T));\n    memset(slot_unit, -1, sizeof slot_unit);",
     "    forward(&acts, batch, 1.0 / (B * T));", 4, "--zero 3",
     "all_gather in group dp is called 15 times per step, but predict() gives 18"},
    /* far tails: only large weights show that the maximum is not the ranks' largest */
    {"05_tensor_parallel", "comm_all_reduce(tp, max, MAX);", "comm_all_reduce(tp, max, SUM);", 0, "",
     "3 ranks, --sequence-parallel: correct|3 ranks, large weights: WRONG", true},
    /* buffers overwritten while in use: d_x while it is sent; the full rows before a product reads them */
    {"09_combined",
     "        comm_wait(&a->sending[1]);              /* of the micro-batch that last used this buffer */\n"
     "        a->receiving[1]", "        a->receiving[1]", 3, "--pp 3",
     "send of d_x in group pp: it was changed before comm_wait"},
    {"09_combined", "    Tensor d_out = g_backward(d_x);\n    linear_backward_weight(g->down_weight",
     "    Tensor d_out = g_backward(d_x);\n    f_forward(a->ln2);\n    linear_backward_weight(g->down_weight", 2,
     "--tp 2", "8 too many = 1 per layer and micro-batch|is blocks.3.down_weight"},
    /* collectives: of other elements, or of too few ranks */
    {"00_collectives", "shard(c, t, r - k - 1), (r + 1)", "shard(c, t, r - k - 2), (r + 1)", 0, "",
     "reduce_scatter, ring, of 840 elements on 2 ranks|it has other elements' contributions", true},
    {"00_collectives", "shard(c, t, r - k), (r + 1) % n", "shard(c, t, r), (r + 1) % n", 0, "",
     "all_gather, ring, of 840 elements on 3 ranks|that is element |of rank", true},
    /* received, but not added; if it were not received, an MPI may report the send that waits for it */
    {"00_collectives", "exchange_add(c, t, r + power, NONE, -1)",
     "receive(c, tensor_range(inbox, 0, tensor_count(t)), r + power)", 0, "",
     "all_reduce, doubling, of 840 elements on 3 ranks|it lacks the contribution of rank 2"},
    {"00_collectives", "far < n; far *= 2)", "far < n - 1; far *= 2)", 0, "",
     "barrier, doubling, of 840 elements on 2 ranks|sends 0 bytes"},
    {"00_collectives", "shard(c, t, r + k), (r + k)", "shard(c, t, r + k + 1), (r + k)", 0, "",
     "all_to_all, pairwise, of |that is element |expected element"},
    {"00_collectives", "ring_all_reduce(across, shard(node, t, comm_rank(node)))",
     "ring_all_reduce(across, shard(node, t, 0))", 0, "", "all_reduce, two-level, of 840 elements on 4 ranks"},
};

static void mistakes_are_named(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof planted / sizeof *planted; i++) {
        const Planted *p = &planted[i];
        if (!full_tests() && !p->covering)      /* the others in make test-full */
            continue;
        const char *directory = copy_of(p->program);
        replace(directory, p->from, p->to);
        char ranks[16] = "";
        if (p->ranks)
            snprintf(ranks, sizeof ranks, "NP=%d", p->ranks);
        print_message("%s: \"%s\" for \"%s\"\n", p->program, p->to, p->from);
        expect(run("sh -c '" MAKE_SH "verify STAGE=%.2s %s EDITED=%s ARGS=\"%s\"'", sanitize(), p->program, ranks,
                   directory, p->options), FAILS, p->prints);
    }
}

/* Correct programs that cost more than the project's or less: verify says what. */
static void waste_is_named(void **state)
{
    static const struct { const char *program, *from, *to, *prints; } table[] = {
        {"03_data_parallel", "tensor_range(gradients.buffer, r.first, r.count), SUM);",
         "tensor_range(gradients.buffer, r.first, r.count), SUM);\n        comm_wait(&reducing[started]);",
         "3 ranks, --sync overlap --recompute full: correct, but wasteful|0 of 72 (all_reduce in group dp; the "
         "project's program: 60 of 72)"},
        {"02_mixed_precision", "gradients_dtype = gradients_option == GRADIENTS_BF16 ? BF16 : REAL;",
         "gradients_dtype = gradients_option == GRADIENTS_BF16 || master_option == MASTER_NONE ? BF16 : REAL;",
         "--dtype bf16 --master none --recompute full: correct, but suspicious|    gradients: |is something left out, "
         "or stored in fewer bits?"},
        {"05_tensor_parallel", "    rows = f_start(a->ln1);\n    linear_backward_input(partial_out(d->ln1), d->qkv, "
         "w->qkv_weight);\n    comm_wait(&rows);\n    sum = f_backward(d->ln1);\n",
         "    linear_backward_input(partial_out(d->ln1), d->qkv, w->qkv_weight);\n    sum = f_backward(d->ln1);\n"
         "    f_forward(a->ln1);\n", "transfers that wait behind an earlier one"},
        {"05_tensor_parallel", "    return comm_start_exchange(tp, arriving, (r + n - 1) % n, leaving, (r + 1) % n);\n",
         "    comm_exchange(tp, arriving, (r + n - 1) % n, leaving, (r + 1) % n);\n    return NULL;\n",
         "--overlap --recompute full: correct, but wasteful"},
        {"06_pipeline_parallel", "repeat(&w, 2 * (p - r) - 1, \"F0\");", "repeat(&w, 2 * (p - r), \"F0\");",
         "--schedule zb-v: correct, but wasteful|micro-batches in flight, of all ranks: 21, but 18"},
        {"06_pipeline_parallel", "        if (i >= r)\n", "        if (i >= 0)\n",
         "the bubble of this schedule is 0.250, but the formula gives 0.125|some costs are lower and others higher"},
        {"08_fused_kernels", "    if (fuse.layernorm) {\n        residual_layernorm_forward(",
         "    if (false) {\n        residual_layernorm_forward(",
         "calls of residual_layernorm_forward, evaluations included: 0, but"},
        {"02_mixed_precision", "x8 = fp8_copy(right8, 1, ACTIVATION, x, true);",
         "x8 = fp8_copy(right8, 1, WEIGHT, x, true);", "--fp8-scaling tile --heads 4 --hidden 128 --seq 128: correct, "
         "but suspicious|rounding changes the gradients by "},
        {"03_data_parallel", "    run_dump_gradients(&optimizer);\n",
         "    run_dump_gradients(&optimizer);\n    comm_barrier(world);\n    device_wait();\n",
         "times that the host waits for the device (tensor_item, device_wait), per step and over all ranks: 6, but 4|"
         "19 of sum in group world, but 11"},
        {"00_collectives", "return (Steps){rounds, 0};", "return (Steps){rounds + 1, 0};",
         "correct, but hops, bytes, groups or their formulas are not the project's"},
        {"09_combined", "const int t = w % tp_size, c = w / tp_size % cp_size,",
         "const int t = w / cp_size % tp_size, c = w % cp_size,", "no group is tp 0 1, as in the project's program"},
        {"01_single_gpu", "    forward(&acts, batch, 1.0 / (B * T));\n",
         "    forward(&acts, batch, 1.0 / (B * T));\n    backward(&acts, batch, 1.0 / (B * T));\n",
         "calls of linear_backward_input, evaluations included: "},
    };

    (void)state;
    for (size_t i = 0; i < (full_tests() ? sizeof table / sizeof *table : 2); i++) {
        const char *directory = copy_of(table[i].program);
        replace(directory, table[i].from, table[i].to);
        expect(run("sh -c '" MAKE_SH "verify STAGE=%.2s EDITED=%s'", sanitize(), table[i].program, directory), 0,
               table[i].prints);
    }
}

/* A schedule with a new name has no expected costs: verify prints its micro-batches in flight and its bubble. */
static void what_a_new_schedule_costs_is_printed(void **state)
{
    const char *directory = copy_of("06_pipeline_parallel");

    (void)state;
    replace(directory, "zb-v|dualpipe-v", "zb-v|dualpipe-v|eager");
    replace(directory, "dualpipe_v(&s, r, p, m); break;",
            "dualpipe_v(&s, r, p, m); break;\n    default: afab(&s, m);");
    expect(run("sh -c '" MAKE_SH "verify STAGE=06 NP=3 EDITED=%s ARGS=\"--schedule eager\"'", sanitize(), directory), 0,
           "micro-batches in flight 6, 6, 6; bubble 0.333 simulated");
}

/* verify prints the line that a sanitizer names. */
static void sanitizers_name_the_line(void **state)
{
    const char *directory = copy_of("01_single_gpu");

    (void)state;
    if (!full_tests())
        skip();
    replace(directory, "    gelu_backward(d->up, d->gelu, a->up);\n",
            "    gelu_backward(d->up, d->gelu, a->up);    ((double *)d->up.data)[R * F] = 1;\n");
    Result r = run("sh -c '" MAKE_SH "verify STAGE=01 EDITED=%s ARGS=--check'", "SANITIZE=1", directory);
    expect(r, FAILS, "heap-buffer-overflow: a write in block_backward (train.c:|the array is made in ");
}

/* Memory or traffic that differs from predict()'s is reported, and the status is 1. */
static void wrong_predictions_are_failures(void **state)
{
    static const struct {
        const char *program, *from, *to, *start, *prints;
    } table[] = {
        {"01_single_gpu", "memory_predict(MEM_GRADIENTS, stored * N);",
         "memory_predict(MEM_GRADIENTS, stored * N + 4);",
         "", "DIFFERS"},
        {"04_zero", "comm_shard(dp_shard, embedding).count + L", "embedding / comm_size(dp_shard) + L", "mpiexec -n 3 ",
         "rank 2: the peak of optimizer is "},
    };

    (void)state;
    for (int i = full_tests() ? 0 : 1; i < 2; i++) {
        const char *directory = copy_of(table[i].program);
        replace(directory, table[i].from, table[i].to);
        result_free(run("sh -c '" MAKE_SH "verify STAGE=%.2s EDITED=%s NP=1 ARGS=--quiet'", sanitize(),
                        table[i].program, directory));
        expect(run("%s" BUILD "/verify/edited --preset tiny --steps 1 --threads 1", table[i].start), 1,
               table[i].prints);
    }
}

/* ---- Exercises ---- */

/* Reads exercise n in exercises.md. Returns its title, NULL if there is no such exercise; fills in the *sentences* that
 * verify prints before the exercise is done, separated by |. */
static char *exercise(const char *program, int n, char prints[1024])
{
    char path[256], mark[32], *title = NULL;

    snprintf(path, sizeof path, SOURCE "/%s/exercises.md", program);
    snprintf(mark, sizeof mark, "\n## %d. ", n);
    char *text = read_file(path), *at = strstr(text, mark);
    if (at) {
        at += strlen(mark);
        title = strndup(at, strcspn(at, "\n"));
        at = strstr(at, "Before you start, `make verify` reports: ");
        char *end = at ? strstr(at, "\n\n") : NULL;
        if (!end)
            fail_msg("exercise %d of %s does not quote what make verify prints at first", n, program);
        *end = 0;
        for (; (at = strchr(at, '*')); at++, *prints++ = '|') {
            for (at++; *at && *at != '*'; at++) {       /* Markdown: \* is a star, a line's end a space */
                at += *at == '\\';
                *prints++ = *at == '\n' ? ' ' : *at;
            }
        }
        *prints = 0;
    }
    free(text);
    return title;
}

static const char *const programs[] = {"00_collectives", "01_single_gpu", "02_mixed_precision", "03_data_parallel",
                                       "04_zero", "05_tensor_parallel", "06_pipeline_parallel",
                                       "07_context_parallel", "08_fused_kernels", "09_combined",
                                       "10_expert_parallel", "11_five_dimensions", "12_llama"};

/* Makes each exercise in the temporary directory, since build/exercise may hold the user's work. */
static void exercises_fail_until_they_are_done(void **state)
{
    (void)state;
    for (unsigned s = 0; s < sizeof programs / sizeof *programs; s++) {
        int n = 0;
        for (;; n++) {
            char prints[1024] = "";
            char *title = exercise(programs[s], n + 1, prints);
            if (!title)
                break;
            assert_true(*prints);
            run_well("sh -c 'cd " SOURCE " && rm -rf %s && tools/workshop/exercise.sh %s %d %s'",
                     in_temporary("edited"), programs[s], n + 1, in_temporary("edited"));
            run_well("grep -rq 'EXERCISE %.2s.%d:' %s", programs[s], n + 1, in_temporary("edited"));
            if (full_tests())
                expect(run("sh -c '" MAKE_SH "verify STAGE=%.2s N=%d EDITED=%s'", sanitize(), programs[s], n + 1,
                           in_temporary("edited")), FAILS, prints);
            free(title);
        }
        assert_true(n >= 3);
        if (full_tests())               /* the solution */
            run_well("sh -c '" MAKE_SH "verify STAGE=%.2s EDITED=%s'", sanitize(), programs[s], copy_of(programs[s]));
    }
}

/* An exercise that passes, at the second attempt, has a row in passed.csv. */
static void attempts_are_counted(void **state)
{
    (void)state;
    run_well("sh -c 'mkdir -p build/exercise/05.1/.as_made && cd build/exercise/05.1 && echo removed >train.c &&"
             " cp train.c .as_made'");
    expect(run(SOURCE "/tools/workshop/exercise.sh --tried 05.1 2 build/exercise/05.1"), 0,
           "nothing in build/exercise/05.1 is changed yet, so this was no attempt\n");
    run_well("sh -c 'echo tried >build/exercise/05.1/train.c'");
    run_well(SOURCE "/tools/workshop/exercise.sh --tried 05.1 1 build/exercise/05.1");
    expect(run(SOURCE "/tools/workshop/exercise.sh --tried 05.1 0 build/exercise/05.1"), 0,
           "exercise 05.1 passed, at attempt 2\n");
    run_well("grep -q '^05.1,....-..-.. ..:..:..,2$' build/exercise/passed.csv");
    run_well("grep -q '^+tried$' build/exercise/passed/05.1");
}

/* Twenty-one participants hand in what make passed wrote: eight have solved two exercises, four one; one claims a wrong
 * solution, and eight files were edited, cut off or are none. Without FULL only these eight, which need no verify. */
static void summaries_are_verified(void **state)
{
    static const char *const script =
        "rm -rf build/exercise handed && mkdir -p build/exercise handed\n"
        "tried() { tools/workshop/exercise.sh --tried $1 1 build/exercise/$1\n"
        "    tools/workshop/exercise.sh --tried $1 0 build/exercise/$1; }\n"
        "tools/workshop/exercise.sh 03_data_parallel 1 build/exercise/03.1\n"
        "sed -i 's|accumulate);|accumulate * comm_size(dp));|' build/exercise/03.1/train.c && tried 03.1\n"
        "make -s passed NAME='Ada L.' && mv build/exercise/passed_Ada_L..txt handed/one.txt\n"
        "tools/workshop/exercise.sh 00_collectives 2 build/exercise/00.2\n"
        "sed -i 's|^ *(void)k, (void)r;|comm_exchange(c, shard(c, t, r - k - 1), (r + n - 1) % n, shard(c, t, r - k),"
        " (r + 1) % n);|' build/exercise/00.2/collectives.c && tried 00.2\n"
        "make -s passed NAME=Ada && mv build/exercise/passed_Ada.txt handed/both.txt\n"
        "sed -i 's|comm_size(dp));|comm_size(dp) * 2);|' build/exercise/03.1/train.c && tried 03.1\n"
        "make -s passed NAME=wrong && mv build/exercise/passed_wrong.txt handed/13.txt && cd handed\n"
        "hand() { sed \"s/^name .*/name participant $2/\" $1.txt >$2.txt; }\n"
        "for i in 1 2 3 4 5 6 7 8; do hand both $i; done\n"
        "for i in 9 10 11 12 14 15 16 17 18 19 20; do hand one $i; done\n"
        "sed -i 's|comm_size(dp));|comm_size(world));|' 14.txt\n"
        "sed -i 's/^sha256 .*/sha256 .*/; s/^name .*/name pattern/' 15.txt\n"
        "sed -i '$d' 16.txt; sed -i 's/$/\\r/' 12.txt\n"
        "cp 14.txt many.txt; sed -i 's/^attempts .*/attempts many/' many.txt\n"
        "echo hello >17.txt; sed -i 's/^exercise 03.1/exercise 03.9/' 18.txt\n"
        "sed -i 's|^-    const double scale|-    const float scale|' 19.txt\n"
        "sed -i 's|^\\(+++ .\\)/train.c|\\1/../../../train.c|; s|^\\(--- .\\)/train.c|\\1/../../../train.c|' 20.txt\n"
        "rm one.txt both.txt; cd ..\n";

    (void)state;
    FILE *f = fopen(in_temporary("hand_in.sh"), "w");
    assert_non_null(f);
    fputs(script, f);
    fclose(f);
    char command[600];
    snprintf(command, sizeof command, ". %s && %smake passed CHECK=handed MINIMUM=2", in_temporary("hand_in.sh"),
             full_tests() ? "" : "(cd handed && rm [1-9].txt 1[0-3].txt) && ");
    expect(run_in_copy(command), 0,
           full_tests() ? "participant 8             2 passed,  4 attempts\n|"
                          "participant 12            1 passed,  2 attempts, 1 to go|"
                          "wrong                     1 passed,  2 attempts, 1 to go\n  03.1, from commit none: "
                          "fails: WRONG|21 summaries, 3 different solutions, 8 with 2 exercises or more"
                        : "14            0 passed,  0 attempts, 2 to go\n  03.1, from commit none: its patch or hash|"
                          "14            0 passed,  0 attempts, 2 to go\n  many.txt is no summary of make passed|"
                          "pattern                   0 passed,  0 attempts, 2 to go\n  03.1, from commit none: its |"
                          "16            0 passed,  0 attempts, 2 to go\n  16.txt is no summary of make passed|"
                          "17.txt                    0 passed,  0 attempts, 2 to go\n  17.txt is no summary|"
                          "the exercise cannot be made here: 03_data_parallel has no exercise 9|"
                          "19            0 passed,  0 attempts, 2 to go\n  03.1, from commit none: its patch does not|"
                          "20            0 passed,  0 attempts, 2 to go\n  03.1, from commit none: its patch does not|"
                          "8 summaries, 0 different solutions, 0 with 2 exercises or more");
    expect(run_in_copy("make passed CHECK=handed MINIMUM=many"), 2,
           "MINIMUM: expected a number of exercises, got 'many'");
    expect(run_in_copy("make passed CHECK=nowhere"), 2, "CHECK: there is no directory nowhere");
    expect(run_in_copy("make passed CHECK=common"), 2, "CHECK: common has no summary, which make passed writes");
    expect(run_in_copy("rm -r build/exercise; make passed"), 2,
           "no exercise has passed yet: make exercise STAGE=03 N=1");
}

/* helpers.md: each wrong solution is a diff of the program's text; with FULL verify prints what the table says. */
static void wrong_solutions_are_reported(void **state)
{
    char *text = read_file(SOURCE "/tools/workshop/helpers.md"), *rest = text;
    char prints[200] = "", from[4000], to[4000];
    const char *program = NULL, *directory = NULL;
    int solutions = 0, exercises = 0, diffs = 0, stage;

    (void)state;
    from[0] = to[0] = 0;
    bool inside = false;
    for (char *line = strsep(&rest, "\n");; line = strsep(&rest, "\n")) {
        bool begins = !line || !strncmp(line, "**", 2) || !strncmp(line, "## ", 3);
        if (begins && *prints)                          /* the solution before this line is complete */
            assert_true(diffs > 0);
        if (begins && *prints && full_tests()) {
            Result r = run("sh -c '" MAKE_SH "verify STAGE=%.2s EDITED=%s'", sanitize(), program, directory);
            if (!strstr(r.out, prints))
                fail_msg("%s: a wrong solution does not print \"%s\", but\n%s", program, prints, r.out);
            result_free(r);
        }
        if (begins)
            *prints = diffs = 0;
        if (!line)
            break;
        if (sscanf(line, "## %d.", &stage) == 1) {
            program = programs[stage], exercises++;
        } else if (program && !strncmp(line, "**", 2)) {
            assert_int_equal(sscanf(line, "%*[^`]`%199[^`]`", prints), 1);
            directory = copy_of(program), solutions++;
        } else if (!strcmp(line, "```diff")) {
            inside = true;
        } else if (inside && !strcmp(line, "```")) {
            replace(directory, from, to);
            inside = false, from[0] = to[0] = 0, diffs++;
        } else if (inside) {
            if (*line != '+')
                snprintf(from + strlen(from), sizeof from - strlen(from), "%s\n", *line ? line + 1 : line);
            if (*line != '-')
                snprintf(to + strlen(to), sizeof to - strlen(to), "%s\n", *line ? line + 1 : line);
        }
    }
    Result all = run("sh -c 'cat " SOURCE "/[01]*/exercises.md | grep -c \"^## [0-9]\"'");
    assert_int_equal(exercises, atoi(all.out));         /* none is missing */
    assert_true(solutions >= 2 * exercises);
    result_free(all);
    free(text);
}

static void what_is_there_is_not_overwritten(void **state)
{
    (void)state;
    run_well("sh -c 'cd " SOURCE " && rm -rf %s && tools/workshop/exercise.sh 03_data_parallel 1 %s'",
             in_temporary("mine"), in_temporary("mine"));
    expect(run("sh -c 'cd " SOURCE " && tools/workshop/exercise.sh 03_data_parallel 1 %s'", in_temporary("mine")), 2,
           "exists already");
    expect(run("sh -c '" MAKE_SH "exercise STAGE=03 N=99'", sanitize()), 2,
           "03_data_parallel has no exercise 99; it has:\n  make exercise STAGE=03 N=1");
    expect(run("sh -c '" MAKE_SH "verify STAGE=99'", sanitize()), 2,
           "no program 99; choose STAGE=00_collectives ... 12_llama");
    expect(run("sh -c '" MAKE_SH "exercise STAGE=0'", sanitize()), 0, "make exercise STAGE=00 N=1");
}

/* An exercise of a program that the user has changed cannot be made: the message gives the reason. */
static void an_exercise_of_a_changed_program_says_so(void **state)
{
    (void)state;
    expect(run_in_copy("sed -i s/warmup/warm/ 06_pipeline_parallel/*.c && make -s exercise STAGE=06 N=2; status=$?; "
                   "cp -p " SOURCE "/06_pipeline_parallel/*.c 06_pipeline_parallel; exit $status"), 2,
                   "exercise 06.2 removes lines of 06_pipeline_parallel, which are there no longer: did you change it? "
                   "\"git stash\" puts your changes aside");
}

/* make verify with a user's own program: 99_mine, a copy of 03. */
static void a_program_of_ones_own_is_compared(void **state)
{
    char directory[300];

    (void)state;
    snprintf(directory, sizeof directory, "%s/99_mine", copy_of_tree());
    run_well("sh -c 'mkdir %s && cp " SOURCE "/03_data_parallel/*.[ch] %s && mkdir %s2 && touch %s2/train.c'",
             directory, directory, directory, directory);
    expect(run_in_copy("make -s verify STAGE=99"), 2,
           "STAGE=99 is the beginning of several names; write the full name of one: 99_mine 99_mine2");
    run_well("rm -r %s2", directory);
    if (full_tests()) {
        expect(run_in_copy("make -s verify STAGE=99"), 0, "3 of 3 configurations are correct");
        replace(directory, "(B * T * options.accumulate * comm_size(dp))", "(B * T * options.accumulate)");
        expect(run_in_copy("make -s verify STAGE=99 NP=4 ARGS='--sync naive'"), 2,
               "the loss and every gradient are 4 times too large (= the number of ranks");
    }
    run_well("rm -r %s", directory);            /* so that other tests do not build it */
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
        const char *arguments, *prints;
        int status;
    } table[] = {
        {"one two", ": the files agree to 1e-10 (HEADS=n compares q, k and v separately)\n", 0},
        {"one two 0", ": the files do not agree to 0 (", 1},
        {"one four", ": the files agree to 0.0001", 0},
        {"one four 1e-10", ": the files do not agree to 1e-10", 1},
        {"one three", "gpt_neox.layers.1.|is in one file only, has another shape", 1},
        {"three one", "gpt_neox.layers.1.|is in one file only, has another shape", 1},
        {"one five", "batch.inputs is in one file only, has another shape or other tokens", 1},
        {"one none", "there is no file none", 2},
        {"one two many", "TOLERANCE: expected a number, 0 or larger, got 'many'", 2},
        {"one", "expected two files: make compare A=one.safetensors B=two.safetensors", 2},
    };
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        expect(run(BUILD "/cpu/compare %s", table[i].arguments), table[i].status, table[i].prints);
    expect(run("sh -c '" MAKE_SH "compare A=%s B=%s HEADS=2'", sanitize(), in_temporary("one"), in_temporary("two")), 0,
           ": the files agree to 1e-10\n");
}

/* The metrics of a run reach a tracker, here one that prints them. */
static void metrics_are_tracked(void **state)
{
    (void)state;
    if (system("python3 -c '' 2>/dev/null"))
        skip();
    run_well("sh -c 'echo \"def init(project, name): print(project, name)\n"
             "def log(metrics, step): print(step, metrics[\\\"loss\\\"] > 5, len(metrics))\n"
             "def finish(): print(\\\"end\\\")\" >printer.py'");
    run_well(BUILD "/cpu/01_single_gpu --preset tiny --steps 2 --threads 1 --quiet --metrics run.csv");
    expect(run("sh -c 'TRACKER=printer PYTHONPATH=. python3 " SOURCE "/tools/workshop/track.py project name <run.csv'"),
           0, "project name\n1 True 9\n2 True 9\nend\n");
    expect(run("python3 " SOURCE "/tools/workshop/track.py"), 1, "track.py PROJECT [NAME]: reads a run's --metrics");
}

/* ---- The README's table of commands ---- */

/* Every command of the instructor's table (tools/workshop/README.md) prints what its last column shows. Commands run in
 * a copy of the tree with this build, so that exercises in progress stay unchanged. Those of more than 2 seconds run in
 * make test-full. Those of more than 100 seconds, among them make test itself, never run. */
static void commands_print_what_the_readme_says(void **state)
{
    char *readme = read_file(SOURCE "/tools/workshop/README.md"), *at = strstr(readme, "\n## For instructors\n");
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
            print_message("%4d s in the README, %5.1f s measured: %s\n", seconds, r.seconds, command);
        result_free(r);
    }
    assert_true(rows >= 15);
    free(readme);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attempts_are_counted),
        cmocka_unit_test(summaries_are_verified),
        cmocka_unit_test(what_is_there_is_not_overwritten),
        cmocka_unit_test(exercises_fail_until_they_are_done),
        cmocka_unit_test(wrong_solutions_are_reported),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(waste_is_named),
        cmocka_unit_test(what_a_new_schedule_costs_is_printed),
        cmocka_unit_test(sanitizers_name_the_line),
        cmocka_unit_test(an_exercise_of_a_changed_program_says_so),
        cmocka_unit_test(a_program_of_ones_own_is_compared),
        cmocka_unit_test(dumps_are_compared),
        cmocka_unit_test(wrong_predictions_are_failures),
        cmocka_unit_test(metrics_are_tracked),
        cmocka_unit_test(commands_print_what_the_readme_says),
    };

    return cmocka_run_group_tests_name("workshop", tests, NULL, NULL);
}
