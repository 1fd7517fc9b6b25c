#include "machines.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/print.h"

static cJSON *json_of(const char *option, const char *file)
{
    FILE *f = fopen(file, "r");
    char *text = NULL;
    size_t capacity = 0;

    if (!f)
        fail_usage("--%s %s: %s", option, file, strerror(errno));
    cJSON *json = getdelim(&text, &capacity, 0, f) > 0 ? cJSON_Parse(text) : NULL;
    if (!cJSON_IsObject(json))
        fail_usage("--%s %s: expected a JSON object, got something else", option, file);
    free(text);
    fclose(f);
    return json;
}

static const cJSON *member(const cJSON *json, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(json, name);
}

static const char *text_of(const cJSON *item)
{
    return item ? cJSON_PrintUnformatted(item) : "nothing";
}

/* ---- Models ---- */

/* The models that can be planned, by model_type, with the sizes that a file may omit: those of the type's configuration
 * class in Hugging Face's transformers (4.57.3 and 5.24.0: models/.../configuration_*.py). The type alone says whether
 * an MLP is gated (modeling_*.py), not the activation: with gelu Gemma's has three matrices, and GPT-NeoX's two. Two
 * types are not in transformers, but their files omit nothing: gpt_neox_moe, which 11 writes, and kimi_k2.
 */
static const Model types[] = {
    {"bloom", 2, 64, 8, 0, 0, 250880, 2048, .tied = true},
    {"cohere|cohere2", 40, 8192, 64, 0, 22528, 256000, 8192, .gated = true, .tied = true},
    {"deepseek_v2", 32, 4096, 32, 0, 11008, 102400, 2048, 64, 0, 1407, .shared = 2, LATENT},
    {"deepseek_v3", 61, 7168, 128, 128, 18432, 129280, 4096, 256, 8, 2048, .shared = 1, .dense = 3, LATENT},
    {"falcon", 32, 4544, 71, 1, 0, 65024, 2048, .tied = true},
    {"gemma", 28, 3072, 16, 16, 24576, 256000, 8192, .head_dim = 256, .gated = true, .tied = true},
    {"gemma2", 26, 2304, 8, 4, 9216, 256000, 8192, .head_dim = 256, .gated = true, .tied = true},
    {"gemma3", 26, 2304, 8, 4, 9216, 262208, 131072, .head_dim = 256, .gated = true, .tied = true},
    {"glm|glm4", 40, 4096, 32, 2, 13696, 151552, 131072, .head_dim = 128, .gated = true},
    {"glm4_moe", 46, 4096, 96, 8, 10944, 151552, 131072, 128, 8, 1408, .shared = 1, .dense = 1, .gated = true},
    {"gpt2", 12, 768, 12, 0, 0, 50257, 1024, .tied = true},
    {"gpt_bigcode", 12, 768, 12, 1, 0, 50257, 1024, .tied = true},
    {"gpt_neox", 44, 6144, 64, 0, 24576, 50432, 2048},
    {"gpt_neox_moe", 44, 6144, 64, 0, 24576, 50432, 2048, 8, 2},
    {"gpt_oss", 36, 2880, 64, 8, 2880, 201088, 131072, 128, 4, .head_dim = 64, .gated = true},
    {"granite", 32, 4096, 32, 0, 11008, 32000, 2048, .gated = true},
    {"kimi_k2", 61, 7168, 64, 64, 18432, 163840, 131072, 384, 8, 2048, .shared = 1, .dense = 1, LATENT},
    {"llama", 32, 4096, 32, 0, 11008, 32000, 2048, .gated = true},
    {"llama4", 48, 5120, 40, 8, 8192, 202048, 131072, 16, 1, .shared = 1, .head_dim = 128, .gated = true},
    {"mistral", 32, 4096, 32, 8, 14336, 32000, 131072, .gated = true},
    {"ministral3", 34, 4096, 32, 8, 14336, 131072, 262144, .head_dim = 128, .gated = true},
    {"mixtral", 32, 4096, 32, 8, 14336, 32000, 131072, 8, 2, .gated = true},
    {"mllama", 40, 4096, 32, 8, 14336, 128256, 131072, .gated = true},
    {"nemotron", 32, 6144, 48, 0, 24576, 256000, 4096},
    {"olmo|olmo2|olmo3", 32, 4096, 32, 0, 11008, 50304, 2048, .gated = true},
    {"olmoe", 16, 2048, 16, 0, 2048, 50304, 4096, 64, 8, .gated = true},
    {"phi", 24, 2048, 32, 0, 8192, 51200, 2048},
    {"phi3", 32, 3072, 32, 0, 8192, 32064, 4096, .gated = true},
    {"phimoe", 32, 4096, 32, 8, 6400, 32064, 131072, 16, 2, .gated = true},
    {"qwen2", 32, 4096, 32, 32, 22016, 151936, 32768, .gated = true},
    {"qwen2_moe", 24, 2048, 16, 16, 5632, 151936, 32768, 60, 4, 1408, .shared = 4, .gated = true},
    {"qwen2_vl|qwen2_5_vl", 80, 8192, 64, 8, 29568, 152064, 32768, .gated = true},
    {"qwen3", 32, 4096, 32, 32, 22016, 151936, 32768, .head_dim = 128, .gated = true},
    {"qwen3_moe", 24, 2048, 32, 4, 6144, 151936, 32768, 128, 8, 768, .gated = true},
    {"qwen3_vl", 32, 4096, 32, 32, 22016, 151936, 128000, .head_dim = 128, .gated = true},
    {"smollm3", 36, 2048, 16, 4, 11008, 128256, 32768, .gated = true, .tied = true},
    {"stablelm", 32, 2560, 32, 32, 6912, 50304, 4096, .gated = true},
    {"starcoder2", 30, 3072, 24, 2, 12288, 49152, 4096, .tied = true},
};
enum { TYPES = sizeof types / sizeof *types };

/* The names of a size. Of those that may be 0, null stands for 0 as well. */
typedef const char *Names[5];
static const struct {
    size_t at;
    int least;
    Names names;
} sizes[] = {
    {offsetof(Model, layers), 1, {"num_hidden_layers", "n_layer"}},
    {offsetof(Model, hidden), 1, {"hidden_size", "n_embd", "n_embed"}},
    {offsetof(Model, heads), 1, {"num_attention_heads", "n_head"}},
    {offsetof(Model, kv_heads), 0, {"num_key_value_heads", "num_kv_heads"}},
    {offsetof(Model, mlp), 0, {"intermediate_size", "n_inner", "ffn_hidden_size"}},
    {offsetof(Model, vocab), 1, {"vocab_size"}},
    {offsetof(Model, seq), 1, {"max_position_embeddings", "n_positions"}},
    {offsetof(Model, experts), 0, {"num_local_experts", "num_experts", "n_routed_experts"}},
    {offsetof(Model, top_k), 0, {"num_experts_per_tok"}},
    {offsetof(Model, expert_width), 0, {"moe_intermediate_size"}},
    {offsetof(Model, shared), 0, {"n_shared_experts"}},
    {offsetof(Model, dense), 0, {"first_k_dense_replace"}},
    {offsetof(Model, head_dim), 0, {"head_dim"}},
    {offsetof(Model, value_dim), 0, {"v_head_dim"}},
    {offsetof(Model, q_rank), 1, {"q_lora_rank"}},
    {offsetof(Model, kv_rank), 1, {"kv_lora_rank"}},
    {offsetof(Model, rope_dim), 0, {"qk_rope_head_dim"}},
};

/* Sets a size from its first name that is there. */
static void read_size(const char *file, const cJSON *json, const Names names, int least, int *size)
{
    static const int most = 1 << 24;
    const cJSON *item = NULL;

    while (*names && !(item = member(json, *names)))
        names++;
    if (!item)
        return;
    const double x = cJSON_IsNumber(item) ? item->valuedouble : cJSON_IsNull(item) ? 0 : NAN;
    if (!(x >= least && x <= most) || x != floor(x))
        fail_usage("--model %s: \"%s\": expected an integer from %d to %d, got %s", file, *names, least, most,
                   text_of(item));
    *size = x;
}

static bool flag(const char *file, const cJSON *json, const char *name, bool otherwise)
{
    const cJSON *item = member(json, name);

    if (!item || cJSON_IsNull(item))
        return otherwise;
    if (!cJSON_IsBool(item))
        fail_usage("--model %s: \"%s\": expected true or false, got %s", file, name, text_of(item));
    return cJSON_IsTrue(item);
}

/* The row of a model_type. A text model within another has the other's name and _text, or _text_model. */
static Model type_named(const char *file, const cJSON *item)
{
    const char *names = types[0].name, *type = cJSON_IsString(item) ? item->valuestring : "";
    const size_t n = strlen(type) - strlen(strstr(type, "_text") ? strstr(type, "_text") : "");
    char word[64];

    snprintf(word, sizeof word, "|%.*s|", (int)n, type);
    for (int i = 0; i < TYPES; i++)
        if (strstr(format_text("|%s|", types[i].name), word))
            return types[i];
    for (int i = 1; i < TYPES; i++)
        names = format_text("%s|%s", names, types[i].name);
    fail_usage("--model %s: \"model_type\": expected one of %s, got %s; give the sizes instead: --layers, --hidden, "
               "--heads, --kv-heads, --mlp, --vocab, --gated or --not-gated, --tied or --untied", file, names,
               text_of(item));
}

Model model_read(const char *file)
{
    cJSON *json = json_of("model", file);
    const cJSON *text = cJSON_IsObject(member(json, "text_config")) ? member(json, "text_config") : json;
    const cJSON *type = member(text, "model_type") ? member(text, "model_type") : member(json, "model_type");
    const int dense_only = cJSON_GetArraySize(member(text, "mlp_only_layers"));
    Model m = type_named(file, type);
    int nope = m.head_dim - m.rope_dim, step = 1;

    strcpy(m.name, "config.json");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        read_size(file, text, sizes[i].names, sizes[i].least, (int *)((char *)&m + sizes[i].at));
    m.tied = flag(file, text, "tie_word_embeddings", flag(file, json, "tie_word_embeddings", m.tied));
    if (member(text, "multi_query") && !flag(file, text, "new_decoder_architecture", false))
        m.kv_heads = flag(file, text, "multi_query", true);     /* all heads share one, or 0: none */
    m.kv_heads = m.kv_heads ? m.kv_heads : m.heads;
    m.mlp = m.mlp ? m.mlp : 4 * m.hidden;
    m.seq = m.seq < 8192 ? m.seq : 8192;
    m.expert_width = m.expert_width ? m.expert_width : m.mlp;
    if (member(text, "shared_expert_intermediate_size")) {      /* of all shared experts together */
        read_size(file, text, (Names){"shared_expert_intermediate_size"}, 0, &m.shared);
        if (m.shared % m.expert_width)
            fail_usage("--model %s: \"shared_expert_intermediate_size\": expected a multiple of an expert's width %d, "
                       "got %d", file, m.expert_width, m.shared);
        m.shared /= m.expert_width;
    }
    read_size(file, text, (Names){"decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"}, 1, &step);
    if (step > 1 || dense_only)
        fail_usage("--model %s: expected experts in all blocks but the first few, got them in one of %d blocks, and %d "
                   "mlp_only_layers", file, step, dense_only);
    if (m.kv_rank) {                                            /* multi-head latent attention */
        read_size(file, text, (Names){"qk_nope_head_dim"}, 0, &nope);
        m.head_dim = nope + m.rope_dim;
    }
    cJSON_Delete(json);
    return m;
}

/* ---- Hardware ---- */

static double number(const char *file, const cJSON *json, const char *name, double otherwise)
{
    const cJSON *item = member(json, name);

    if (item && !cJSON_IsNumber(item))
        fail_usage("--hardware %s: \"%s\": expected a number, got %s", file, name, text_of(item));
    return item ? item->valuedouble : otherwise;
}

/* Links: the hop of the most ranks, all at once. */
Hardware hardware_read(const char *file, const char *dtype, int per_node)
{
    cJSON *json = json_of("hardware", file);
    const cJSON *links = member(json, "links"), *between = member(json, "between_nodes");
    const cJSON *last = cJSON_GetArrayItem(links, cJSON_GetArraySize(links) - 1);
    Hardware h = {.name = file, .peak = 1e9 * number(file, member(json, "gflops"), dtype, 0), .measured = true,
                  .memory = 1e9 * number(file, json, "memory_gb", INFINITY),
                  .bandwidth = 1e9 * number(file, json, "memory_gb_per_s", INFINITY),
                  .gpu = cJSON_IsTrue(member(json, "gpu"))};

    if (!cJSON_IsArray(links))
        fail_usage("--hardware %s: expected what 00_collectives --machine writes", file);
    if (!h.peak)
        fail_usage("--hardware %s: it has no rate of %s; try --dtype fp32", file, dtype);
    h.nvlink = 1e9 * number(file, last, "beta_gb_per_s", INFINITY);
    h.latency = 1e-6 * number(file, last, "alpha_us", 0);
    h.network = between ? 1e9 * per_node * number(file, between, "beta_gb_per_s", INFINITY) : h.nvlink;
    cJSON_Delete(json);
    return h;
}
