/* A grid as commands and configurations: of 09, of Megatron-LM, nanotron and torchtitan. Names of options as in
 *
 *   NVIDIA/Megatron-LM d98e8a6 (August 2026): megatron/training/arguments.py, and the dataclasses whose members become
 *       options: core/model_parallel_config.py, core/transformer/transformer_config.py, training/config
 *   huggingface/nanotron 2411b02 (April 2026): src/nanotron/config, models/llama.py, models/qwen.py, optim/zero.py
 *   pytorch/torchtitan b5bcd76 (August 2026): torchtitan/trainer.py, config/configs.py,
 *       distributed/activation_checkpoint.py
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../../common/print.h"
#include "explain.h"

/* Prints a word of a command, on the next line where this one would exceed 90 columns; "": nothing. */
static int column;
static void word(const char *format, ...)
{
    char text[160];
    va_list list;

    va_start(list, format);
    const int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (!length)
        return;
    const bool wraps = column + 1 + length > 90;
    column = (wraps ? 6 : column + 1) + length;
    printf(wraps ? " \\\n      %s" : " %s", text);
}

static void begin(const char *name)
{
    column = printf("   %s", name);
}

static void lacks(const char *what)
{
    printf("\n     lacks %s", what);
}

/* "torchrun --nnodes 8 --nproc-per-node 8": on each node, with the address of the first. */
static void launcher(const Query *q)
{
    const int gpus = q->cluster.gpus, node = q->cluster.per_node;

    word("torchrun --nnodes %d --nproc-per-node %d", gpus > node ? gpus / node : 1, gpus > node ? node : gpus);
    if (gpus > node)
        word("--rdzv-backend c10d --rdzv-endpoint $HOST:29500");
}

static void print_09(const Query *q, const Grid *g)
{
    const Model *m = &q->model;

    if (!m->in_09) {
        printf("   09_combined, 11_five_dimensions: lack this model. Their MLPs have two matrices (in 09 of width 4h), the\n"
               "     embedding is tied, each head has its own keys and values\n");
        return;
    }
    const char *program = m->experts ? "11_five_dimensions" : "09_combined";
    begin(format_text("%s:", program));
    word("mpiexec -n %d", q->cluster.gpus);
    if (q->cluster.gpus > q->cluster.per_node)
        word("-ppn %d -hosts $HOSTS", q->cluster.per_node);
    word("build/cuda/%s --layers %d", program, m->layers);
    word("--hidden %d --heads %d", m->hidden, m->heads);
    word("--vocab %d --seq %d", m->vocab, m->seq);
    if (m->experts)
        word("--experts %d --top-k %d --expert-width %d", m->experts, m->top_k, m->expert_width);
    if (m->experts)
        word("--capacity %g --span %lld", m->capacity, (long long)grid_span(m, g));
    word("--tp %d --cp %d --pp %d%s", g->tp, g->cp, g->pp, m->experts ? format_text(" --ep %d", g->ep) : "");
    word("--micro-batch %d --accumulate %d", g->micro_batch, g->accumulate);
    word("--zero %d --recompute %s --dtype %s", g->zero, size_text(RECOMPUTE, g->recompute),
         q->cluster.stored == 2 ? "bf16" : "fp32");
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
    begin("Megatron-LM:");
    if (g->zero <= 1 && g->tp * g->cp > 1 && !hides_exchange(g, &q->cluster))
        word("CUDA_DEVICE_MAX_CONNECTIONS=1");
    launcher(q);
    word("pretrain_gpt.py --num-layers %d", m->layers);
    word("--hidden-size %d --ffn-hidden-size %d", m->hidden, m->mlp);
    word("--num-attention-heads %d", m->heads);
    if (m->kv_heads < m->heads)
        word("--group-query-attention --num-query-groups %d", m->kv_heads);
    word("--seq-length %d --max-position-embeddings %d", m->seq, m->seq);
    word("--position-embedding-type rope");
    if (!m->in_09)
        word("--normalization RMSNorm --disable-bias-linear");
    word(m->gated ? "--swiglu" : "");
    word(m->tied ? "" : "--untie-embeddings-and-output-weights");
    if (m->experts)
        word("--num-experts %d --moe-ffn-hidden-size %d --moe-router-topk %d", m->experts, m->expert_width, m->top_k);
    if (m->experts)
        word("--moe-grouped-gemm --moe-token-dispatcher-type %s",
             g->ep > q->cluster.per_node ? "flex --moe-flex-dispatcher-backend deepep" : "alltoall");
    if (m->experts && m->capacity > 1)
        word("--moe-expert-capacity-factor %g", m->capacity);
    if (m->shared)
        word("--moe-shared-expert-intermediate-size %d", m->shared * m->expert_width);
    if (m->dense)
        word("--moe-layer-freq \"[0]*%d+[1]*%d\"", m->dense, m->layers - m->dense);
    if (m->q_rank)
        word("--multi-latent-attention --q-lora-rank %d --kv-lora-rank %d", m->q_rank, m->kv_rank);
    if (m->q_rank)
        word("--qk-head-dim %d --qk-pos-emb-head-dim %d --v-head-dim %d", m->head_dim - m->rope_dim, m->rope_dim,
             m->value_dim);
    else if (m->head_dim)
        word("--kv-channels %d", m->head_dim);
    if (hides_exchange(g, &q->cluster))
        word("--overlap-moe-expert-parallel-comm --delay-wgrad-compute");
    word("--hidden-dropout 0 --attention-dropout 0");
    word("--mock-data --tokenizer-type NullTokenizer");
    word("--vocab-size %d %s--lr 3e-4 --train-iters 100", m->vocab, q->cluster.stored == 2 ? "--bf16 " : "");
    word("--micro-batch-size %d --global-batch-size %d", g->micro_batch, q->sequences);
    word("--tensor-model-parallel-size %d%s", g->tp, g->tp > 1 ? " --sequence-parallel" : "");
    word("--context-parallel-size %d", g->cp);
    word("--pipeline-model-parallel-size %d", g->pp);
    if (g->chunks > 1)
        word("--num-virtual-stages-per-pipeline-rank %d", g->chunks);
    if (g->chunks > 1 && !even && (m->layers + 2) % (g->pp * g->chunks) == 0)
        word("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split");
    if (g->chunks == 1 && !even && first == g->pp - 1)
        word("--decoder-last-pipeline-num-layers %d", stages[g->pp - 1].layers);
    if (m->experts)
        word("--expert-model-parallel-size %d --expert-tensor-parallel-size 1", g->ep);
    if (g->zero == 1)
        word("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
    if (g->zero >= 2)
        word("--use-megatron-fsdp --init-model-with-meta-device --ckpt-format fsdp_dtensor");
    if (g->zero >= 2)
        word("--no-gradient-accumulation-fusion");
    if (g->zero >= 2)
        word("--data-parallel-sharding-strategy %s", g->zero == 2 ? "optim_grads" : "optim_grads_params");
    if (g->replicate > 1)
        word("--num-distributed-optimizer-instances %d", g->replicate);
    if (g->recompute == FULL_RECOMPUTATION)
        word("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
    if (g->recompute == SELECTIVE_RECOMPUTATION)
        word("--recompute-granularity selective --recompute-modules layernorm%s%s",
             m->experts ? " moe_act" : "", m->q_rank ? " mla_up_proj" : "");
    if (!even && (g->chunks > 1 ? (m->layers + 2) % (g->pp * g->chunks) : first < g->pp - 1))
        lacks("these pipeline stages by an option: see --pipeline-model-parallel-layout");
    if (g->zero >= 2 && g->tp * g->cp > 1)
        lacks("one CUDA_DEVICE_MAX_CONNECTIONS for both: FSDP needs it unset, tp and cp prefer 1");
    printf("\n");
}

static void print_nanotron(const Query *q, const Grid *g)
{
    const Model *m = &q->model;

    begin("nanotron:");
    word("CUDA_DEVICE_MAX_CONNECTIONS=1");
    launcher(q);
    word("run_train.py --config-file config.yaml");
    printf(", of which this is a fragment:\n"
           "      parallelism: {dp: %d, tp: %d, pp: %d, context_parallel_size: %d, expert_parallel_size: %d,\n"
           "        pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true,\n"
           "        recompute_layer: %s}\n", g->dp, g->tp, g->pp, g->cp, g->ep, g->recompute ? "true" : "false");
    printf("      optimizer: {zero_stage: %d, accumulate_grad_in_fp32: true}\n", g->zero > 1 ? 1 : g->zero);
    printf("      tokens: {sequence_length: %d, micro_batch_size: %d, batch_accumulation_per_replica: %d}\n", m->seq,
           g->micro_batch, g->accumulate);
    printf("      model: {dtype: %s, model_config: {%s: true,\n        num_hidden_layers: %d, hidden_size: %d, "
           "intermediate_size: %d, num_attention_heads: %d,\n        num_key_value_heads: %d, vocab_size: %d, "
           "tie_word_embeddings: %s", q->cluster.stored == 2 ? "bfloat16" : "float32",
           g->cp > 1 || m->experts ? "is_qwen2_config" : "is_llama_config", m->layers, m->hidden, m->mlp, m->heads,
           m->kv_heads, m->vocab, m->tied ? "true" : "false");
    if (m->experts)
        printf(",\n        moe_config: {num_experts: %d, top_k: %d, moe_intermediate_size: %d}", m->experts, m->top_k,
               m->expert_width);
    printf("}}");
    if (g->zero > 1)
        lacks(format_text("ZeRO-%d: zero_stage is 0 or 1; plan with --zero \"<=1\"", g->zero));
    if (!m->gated)
        lacks("an MLP of two matrices: its models are gated");
    if (g->cp > 1 || m->experts)
        lacks(g->cp > 1 ? "context parallelism: NotImplementedError" : "experts in its Llama model; Qwen2 has them");
    if (g->chunks > 1 || g->recompute == SELECTIVE_RECOMPUTATION)
        lacks("interleaved pipelines and selective recomputation");
    printf("\n");
}

static void print_torchtitan(const Query *q, const Grid *g)
{
    const Model *m = &q->model;
    const double size = model_parameters(m);
    const char *config = size < 2e10 ? "llama3_8b" : size < 2e11 ? "llama3_70b" : "llama3_405b";

    begin("torchtitan:");
    launcher(q);
    word("-m torchtitan.train --module llama3 --config %s", config);
    word("--training.max_context_length %d", m->seq);
    word("--training.num_tokens_per_microbatch_per_dp_rank %d", g->micro_batch * m->seq);
    word("--training.num_tokens_per_train_step %lld", (long long)q->sequences * m->seq);
    word("--parallelism.tensor_parallel_degree %d", g->tp);
    word("--parallelism.context_parallel_degree %d", g->cp);
    word("--parallelism.pipeline_parallel_degree %d", g->pp);
    if (g->pp > 1)
        word("--parallelism.pipeline_parallel_schedule %s --parallelism.num_pp_microbatches %d",
             g->chunks > 1 ? "Interleaved1F1B" : "1F1B", g->accumulate);
    if (g->pp > 1)
        word("--training.disable_cuda_graphs");
    if (m->experts)
        word("--parallelism.expert_parallel_degree %d", g->ep);
    word("--parallelism.data_parallel_replicate_degree %d", g->zero ? g->replicate : g->dp);
    word("--parallelism.data_parallel_shard_degree %d", g->zero ? g->dp / g->replicate : 1);
    if (g->zero)
        word("--parallelism.fsdp_reshard_after_forward %s", g->zero == 3 ? "always" : "never");
    word("activation_checkpoint:%s", size_text(RECOMPUTE, g->recompute));
    lacks(format_text("options for the model's sizes: a Trainer.Config function sets them (%s stands for it)", config));
    if (g->zero == 1)
        lacks("ZeRO-1: this is FSDP that keeps weights from forward to backward (ZeRO-2)");
    if (!g->zero && g->cp > 1)
        lacks("ZeRO-0 with cp: FSDP shards over cp");
    if (m->experts || !m->gated)
        lacks(m->experts ? "experts in llama3: see qwen3 and deepseek_v3" : "an MLP of two matrices in llama3");
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
