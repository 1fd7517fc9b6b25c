/* A grid as commands and configurations: of 09, of Megatron-LM, nanotron and torchtitan. Names of options as in
 *
 *   NVIDIA/Megatron-LM d98e8a6 (August 2026): megatron/training/arguments.py, and the dataclasses whose members become
 *       options: core/model_parallel_config.py, core/transformer/transformer_config.py, training/config
 *   huggingface/nanotron 2411b02 (April 2026): src/nanotron/config, models/llama.py, models/qwen.py, optim/zero.py
 *   pytorch/torchtitan b5bcd76 (August 2026): torchtitan/trainer.py, config/configs.py, models/.../config_registry.py,
 *       distributed/activation_checkpoint.py, pipeline_parallel.py, parallel_dims.py
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../../common/base/print.h"
#include "explain.h"

/* Prints a word of a command, if it is needed, on the next line where this one would exceed 90 columns. */
static int column;
static void word(bool needed, const char *format, ...)
{
    char text[160];
    va_list list;

    if (!needed)
        return;
    va_start(list, format);
    const int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const bool wraps = column + 1 + length > 90;
    column = (wraps ? 6 : column + 1) + length;
    printf(wraps ? " \\\n      %s" : " %s", text);
}

static void lacks(bool it, const char *what)
{
    if (it)
        printf("\n     lacks %s", what);
}

static int host(const Query *q)                         /* its GPUs */
{
    return q->hardware.domain ? TRAY : q->cluster.per_node;
}

/* "torchrun --nnodes 8 --nproc-per-node 8": on each node, with the address of the first. */
static void launcher(const Query *q)
{
    const int gpus = q->cluster.gpus, node = host(q);

    word(true, "torchrun --nnodes %d --nproc-per-node %d", gpus > node ? gpus / node : 1, gpus > node ? node : gpus);
    word(gpus > node, "--rdzv-backend c10d --rdzv-endpoint $HOST:29500");
}

static void print_09(const Query *q, const Grid *g)
{
    const Model *m = &q->model;

    if (!m->in_09) {
        printf("   09_combined, 11_five_dimensions: lack this model. Their MLPs have two matrices (in 09 of width\n"
               "     4h), the embedding is tied, and each head has its own keys and values\n");
        return;
    }
    const char *program = m->experts ? "11_five_dimensions" : "09_combined";
    column = printf("   %s:", program);
    word(true, "mpiexec -n %d", q->cluster.gpus);
    word(q->cluster.gpus > host(q), "-ppn %d -hosts $HOSTS", host(q));
    word(true, "build/cuda/%s --layers %d", program, m->layers);
    word(true, "--hidden %d --heads %d", m->hidden, m->heads);
    word(true, "--vocab %d --seq %d", m->vocab, m->seq);
    word(m->experts, "--experts %d --top-k %d --expert-width %d", m->experts, m->top_k, m->expert_width);
    word(m->experts, "--capacity %g --span %lld", m->capacity, (long long)grid_span(m, g));
    word(true, "--tp %d --cp %d --pp %d%s", g->tp, g->cp, g->pp, m->experts ? format_text(" --ep %d", g->ep) : "");
    word(true, "--micro-batch %d --accumulate %d", g->micro_batch, g->accumulate);
    word(true, "--zero %d --recompute %s --dtype %s", g->zero, size_text(RECOMPUTE, g->recompute),
         q->cluster.stored == 2 ? "bf16" : "fp32");
    lacks(q->cluster.fp8, "matmuls in fp8");
    printf("\n");
}

static void print_megatron(const Query *q, const Grid *g)
{
    const Model *m = &q->model;
    const bool even = m->layers % g->pp == 0;
    Stage stages[g->pp];
    int first = 1;

    grid_stages(m, g, &(Cluster){.framework = FOR_MEGATRON}, stages);
    while (first < g->pp - 1 && stages[first].layers == stages[0].layers)
        first++;
    const bool accounts = g->chunks > 1 && !even && (m->layers + 2) % (g->pp * g->chunks) == 0;
    const bool last = g->chunks == 1 && !even && first == g->pp - 1, mxfp8 = q->cluster.fp8 == MXFP8;
    const bool graph = m->experts && mxfp8 && q->cluster.framework == FOR_MEGATRON;
    const bool deep = has_deep_ep(g, &q->cluster);
    const char *dispatcher = graph ? "flex --moe-flex-dispatcher-backend hybridep"
                             : deep ? "flex --moe-flex-dispatcher-backend deepep" : "alltoall";
    column = printf("   Megatron-LM:");
    word(g->zero <= 1 && g->tp * g->cp > 1 && !hides_exchange(g, &q->cluster), "CUDA_DEVICE_MAX_CONNECTIONS=1");
    launcher(q);
    word(true, "pretrain_gpt.py --num-layers %d", m->layers);
    word(true, "--hidden-size %d --ffn-hidden-size %d", m->hidden, m->mlp);
    word(true, "--num-attention-heads %d", m->heads);
    word(m->kv_heads < m->heads, "--group-query-attention --num-query-groups %d", m->kv_heads);
    word(true, "--seq-length %d --max-position-embeddings %d", m->seq, m->seq);
    word(true, "--position-embedding-type rope");
    word(!m->in_09, "--normalization RMSNorm --disable-bias-linear");
    word(m->gated, "--swiglu");
    word(!m->tied, "--untie-embeddings-and-output-weights");
    word(m->experts, "--num-experts %d --moe-ffn-hidden-size %d", m->experts, m->expert_width);
    word(m->experts, "--moe-router-topk %d --moe-grouped-gemm", m->top_k);
    word(m->experts, "--moe-token-dispatcher-type %s", dispatcher);
    word(graph, "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad --te-rng-tracker");
    word(graph, "--use-transformer-engine-op-fuser --moe-pad-experts-for-cuda-graph-inference");
    word(graph, "--moe-paged-stash --moe-expert-rank-capacity-factor 1.5");
    word(graph || deep || m->experts >= 32, "--moe-router-dtype fp32");        /* else it warns */
    word(m->experts && m->capacity > 1, "--moe-expert-capacity-factor %g", m->capacity);
    word(m->shared, "--moe-shared-expert-intermediate-size %d", m->shared * m->expert_width);
    word(m->dense, "--moe-layer-freq \"[0]*%d+[1]*%d\"", m->dense, m->layers - m->dense);
    word(m->q_rank, "--multi-latent-attention --q-lora-rank %d --kv-lora-rank %d", m->q_rank, m->kv_rank);
    word(m->q_rank, "--qk-head-dim %d --qk-pos-emb-head-dim %d", m->head_dim - m->rope_dim, m->rope_dim);
    word(m->q_rank, "--v-head-dim %d", m->value_dim);
    word(m->head_dim && !m->q_rank, "--kv-channels %d", m->head_dim);
    word(hides_exchange(g, &q->cluster), "--overlap-moe-expert-parallel-comm --delay-wgrad-compute");
    word(true, "--hidden-dropout 0 --attention-dropout 0");
    word(true, "--mock-data --tokenizer-type NullTokenizer");
    word(true, "--vocab-size %d %s--lr 3e-4 --train-iters 100", m->vocab, q->cluster.stored == 2 ? "--bf16 " : "");
    word(q->cluster.fp8, "--fp8-format %s%s", mxfp8 ? "e4m3 --fp8-recipe mxfp8" : "hybrid --fp8-recipe tensorwise",
         g->zero ? " --fp8-param-gather" : "");
    word(mxfp8 && g->zero == 1, "--reuse-grad-buf-for-mxfp8-param-ag");
    word(true, "--micro-batch-size %d --global-batch-size %d", g->micro_batch, q->sequences);
    word(true, "--tensor-model-parallel-size %d%s", g->tp, g->tp > 1 ? " --sequence-parallel --tp-comm-overlap" : "");
    word(true, "--context-parallel-size %d", g->cp);
    word(true, "--pipeline-model-parallel-size %d", g->pp);
    word(g->chunks > 1, "--num-virtual-stages-per-pipeline-rank %d", g->chunks);
    word(accounts, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split");
    word(last, "--decoder-last-pipeline-num-layers %d", stages[g->pp - 1].layers);
    word(m->experts, "--expert-model-parallel-size %d --expert-tensor-parallel-size %d", g->ep, g->etp);
    word(g->zero == 1, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
    word(g->zero >= 2, "--use-megatron-fsdp --init-model-with-meta-device --ckpt-format fsdp_dtensor");
    word(g->zero >= 2, "--no-gradient-accumulation-fusion%s", q->cluster.stored == 2 && q->cluster.gradients > 2
         ? " --megatron-fsdp-main-grads-dtype fp32" : "");
    word(g->zero < 2 && q->cluster.gradients == 2, "--grad-reduce-in-bf16");
    word(g->zero >= 2, "--data-parallel-sharding-strategy %s", g->zero == 2 ? "optim_grads" : "optim_grads_params");
    word(g->replicate > 1, "--num-distributed-optimizer-instances %d", g->replicate);
    word(g->recompute, "--recompute-granularity %s", size_text(RECOMPUTE, g->recompute));
    word(g->recompute == FULL_RECOMPUTATION, "--recompute-method uniform --recompute-num-layers 1");
    word(g->recompute == SELECTIVE_RECOMPUTATION, "--recompute-modules layernorm%s%s", m->experts ? " moe_act" : "",
         m->q_rank ? " mla_up_proj" : "");
    lacks(!even && !accounts && !last, "these pipeline stages by an option: see --pipeline-model-parallel-layout");
    lacks(strstr(m->name, ".json"), format_text("what the file says about norms of q and k, biases, windows and RoPE%s",
                                                m->experts ? ", and how it routes tokens" : ""));
    lacks(g->zero >= 2 && g->tp * g->cp > 1, "one CUDA_DEVICE_MAX_CONNECTIONS for both: FSDP needs it unset, tp and cp "
          "prefer 1");
    printf("\n");
}

static void print_nanotron(const Query *q, const Grid *g)
{
    const Model *m = &q->model;
    const char *dtype = q->cluster.stored == 2 ? "bfloat16" : "float32";
    const char *kind = g->cp > 1 || m->experts ? "is_qwen2_config" : "is_llama_config";
    const char *tied = m->tied ? "true" : "false";

    column = printf("   nanotron:");
    word(true, "CUDA_DEVICE_MAX_CONNECTIONS=1");
    launcher(q);
    word(true, "run_train.py --config-file config.yaml");
    printf(", of which this is a fragment:\n"
           "      parallelism: {dp: %d, tp: %d, pp: %d, context_parallel_size: %d, expert_parallel_size: %d,\n"
           "        pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true,\n"
           "        recompute_layer: %s}\n", g->dp, g->tp, g->pp, g->cp, g->ep, g->recompute ? "true" : "false");
    printf("      optimizer: {zero_stage: %d, accumulate_grad_in_fp32: %s}\n", g->zero > 1 ? 1 : g->zero,
           q->cluster.gradients == 2 ? "false" : "true");
    printf("      tokens: {sequence_length: %d, micro_batch_size: %d, batch_accumulation_per_replica: %d}\n", m->seq,
           g->micro_batch, g->accumulate);
    printf("      model: {dtype: %s, model_config: {%s: true,\n", dtype, kind);
    printf("        num_hidden_layers: %d, hidden_size: %d, intermediate_size: %d, num_attention_heads: %d,\n",
           m->layers, m->hidden, m->mlp, m->heads);
    printf("        num_key_value_heads: %d, vocab_size: %d, tie_word_embeddings: %s", m->kv_heads, m->vocab, tied);
    if (m->experts)
        printf(",\n        moe_config: {num_experts: %d, top_k: %d, moe_intermediate_size: %d", m->experts, m->top_k,
               m->expert_width);
    if (m->shared)
        printf(",\n        enable_shared_expert: true, shared_expert_intermediate_size: %d",
               m->shared * m->expert_width);
    if (m->dense) {
        printf(",\n        layers: [%d", m->dense);          /* the blocks that have experts */
        for (int i = m->dense + 1; i < m->layers; i++)
            printf(i % 20 ? ", %d" : ",\n        %d", i);
        printf("]");
    }
    printf(m->experts ? "}}}" : "}}");
    lacks(g->zero > 1, format_text("ZeRO-%d: zero_stage is 0 or 1; plan with --zero \"<=1\"", g->zero));
    lacks(!m->gated, "an MLP of two matrices: its models are gated");
    lacks(q->cluster.fp8, "matmuls in fp8");
    lacks(g->cp > 1, "context parallelism: NotImplementedError");
    lacks(m->experts, "experts in its Llama model; Qwen2 has them");
    lacks(g->ep > 1, "expert parallelism: with ep above 1 it cannot make its groups");
    lacks(m->shared, "shared experts without a gate");
    lacks(m->q_rank, "latent attention");
    lacks(m->head_dim && m->head_dim * m->heads != m->hidden, "heads of another width than hidden / heads");
    lacks(m->kv_heads % g->tp, format_text("tp above the %d key-value heads", m->kv_heads));
    lacks(g->chunks > 1, "interleaved pipelines");
    lacks(g->recompute == SELECTIVE_RECOMPUTATION, "selective recomputation");
    printf("\n");
}

/* torchtitan's modules and configurations, each of one model; seq: its last position. own: differs from other models of
 * its kind (norms of q and k, biases, windows), and so stands for none of them. */
static const struct { const char *module; bool own; Model model; } titans[] = {
    {"llama3", false, {"llama3_8b", 32, 4096, 32, 8, 14336, 128256, 131072, .gated = true}},
    {"llama3", false, {"llama3_70b", 80, 8192, 64, 8, 28672, 128256, 131072, .gated = true}},
    {"llama3", false, {"llama3_405b", 126, 16384, 128, 8, 53248, 128256, 131072, .gated = true}},
    {"qwen3", true, {"qwen3_0_6b", 28, 1024, 16, 8, 3072, 151936, 40960, .head_dim = 128, .gated = true, .tied = true}},
    {"qwen3", true, {"qwen3_1_7b", 28, 2048, 16, 8, 6144, 151936, 40960, .head_dim = 128, .gated = true, .tied = true}},
    {"qwen3", true, {"qwen3_14b", 40, 5120, 40, 8, 17408, 151936, 40960, .head_dim = 128, .gated = true}},
    {"qwen3", true, {"qwen3_32b", 64, 5120, 64, 8, 25600, 151936, 40960, .head_dim = 128, .gated = true}},
    {"qwen3", false, {"qwen3_30b_a3b", 48, 2048, 32, 4, 0, 151936, 40960, 128, 8, 768, .head_dim = 128, .gated = true}},
    {"gpt_oss", true, {"gpt_oss_20b", 24, 2880, 64, 8, 0, 201088, 131072, 32, 4, 2880, 0, 0, 64, .gated = true}},
    {"gpt_oss", true, {"gpt_oss_120b", 36, 2880, 64, 8, 0, 201088, 131072, 128, 4, 2880, 0, 0, 64, .gated = true}},
    {"deepseek_v3", false, {"deepseek_v3_671b", 61, 7168, 128, 128, 18432, 129280, 16384, 256, 8, 2048, 1, 3, LATENT}},
};

/* 0: the same sizes; else larger, the farther the number of parameters, and larger still, if the kind is another. */
static double distance(const Model *m, int titan)
{
    const Model *t = &titans[titan].model;
    const double size = fabs(log(model_parameters(m) / model_parameters(t)));
    const bool same = size == 0 && active_parameters(m) == active_parameters(t) && m->layers == t->layers
                      && m->hidden == t->hidden && m->heads == t->heads && m->kv_heads == t->kv_heads;

    return same ? 0 : 1 + size + 100 * (titans[titan].own + (!m->q_rank != !t->q_rank) + (!m->experts != !t->experts));
}

/* torchtitan deals out the layers, and as many more as the first and the last pipeline stage have less, in equal parts.
 * A chunk counts as a stage; interleaved, a rank has two unless the layers of one are given. */
static void print_torchtitan(const Query *q, const Grid *g)
{
    const Model *m = &q->model;
    const int parts = g->pp * g->chunks, missing = (parts - m->layers % parts) % parts;
    Stage stages[g->pp];
    int nearest = 0;

    for (int i = 1; i < (int)(sizeof titans / sizeof *titans); i++)
        nearest = distance(m, i) < distance(m, nearest) ? i : nearest;
    const char *module = titans[nearest].module;
    const Model *t = &titans[nearest].model;
    grid_stages(m, g, &(Cluster){.framework = FOR_TORCHTITAN}, stages);
    column = printf("   torchtitan:");
    launcher(q);
    word(true, "-m torchtitan.train --module %s --config %s", module, t->name);
    word(true, "--training.max_context_length %d", m->seq);
    word(true, "--training.num_tokens_per_microbatch_per_dp_rank %d", g->micro_batch * m->seq);
    word(true, "--training.num_tokens_per_train_step %lld", (long long)q->sequences * m->seq);
    word(true, "--parallelism.tensor_parallel_degree %d", g->tp);
    word(true, "--parallelism.context_parallel_degree %d", g->cp);
    word(true, "--parallelism.pipeline_parallel_degree %d", g->pp);
    word(g->pp > 1, "--parallelism.pipeline_parallel_schedule %s --parallelism.num_pp_microbatches %d",
         g->chunks > 1 ? "Interleaved1F1B" : "1F1B", g->accumulate);
    word(g->chunks > 1, "--parallelism.pipeline_parallel_layers_per_stage %d", (m->layers + missing) / parts);
    word(g->pp > 1, "--parallelism.pipeline_parallel_first_stage_less_layers %d", g->chunks > 1 ? missing / 2 : 0);
    word(g->pp > 1, "--parallelism.pipeline_parallel_last_stage_less_layers %d",
         g->chunks > 1 ? missing - missing / 2 : stages[0].layers - stages[g->pp - 1].layers);
    word(g->pp > 1 || g->ep > 1, "--training.disable_cuda_graphs");
    word(m->experts, "--parallelism.expert_parallel_degree %d", g->ep);
    word(true, "--parallelism.data_parallel_replicate_degree %d", g->zero ? g->replicate : g->dp);
    word(true, "--parallelism.data_parallel_shard_degree %d", g->zero ? g->dp / g->replicate : 1);
    word(g->zero, "--parallelism.fsdp_reshard_after_forward %s", g->zero == 3 ? "always" : "never");
    word(true, "activation-checkpoint:%s", size_text(RECOMPUTE, g->recompute));
    lacks(distance(m, nearest), "options for the model's sizes: this Trainer.Config has the nearest");
    lacks(m->seq > t->seq, format_text("positions after %d", t->seq));
    lacks(t->layers == 126 && !q->cluster.fp8, "bf16 in this configuration, which computes in float8");
    lacks(t->layers != 126 && q->cluster.fp8, "an option for fp8: a Trainer.Config function sets its LinearConverter");
    lacks(g->zero == 1, "ZeRO-1: this is FSDP that keeps weights from forward to backward (ZeRO-2)");
    lacks(!g->zero && (g->cp > 1 || g->tp % g->ep), "ZeRO-0 with cp or ep: FSDP shards over them");
    lacks(g->cp > 1 && !strcmp(module, "gpt_oss"), "context parallelism with varlen attention, which this module has");
    lacks(m->kv_heads % g->tp, format_text("tp above the %d key-value heads", m->kv_heads));
    lacks(g->etp > 1, "expert tensor parallelism");
    lacks(!m->gated, "an MLP of two matrices");
    lacks(g->pp > 1 && m->tied, "tied embeddings in a pipeline");
    lacks(parts > m->layers + 2, "chunks without layers beside the first and the last");
    printf("\n");
}

void print_commands(const Query *q, const Grid *g)
{
    printf("4. Run it.\n");
    print_09(q, g);
    print_megatron(q, g);
    print_nanotron(q, g);
    print_torchtitan(q, g);
}
