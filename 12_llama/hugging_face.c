#include "hugging_face.h"

#include <math.h>
#include <string.h>

#include "../common/base/error.h"
#include "../common/base/print.h"
#include "../common/run/config_file.h"
#include "../common/transformer/model.h"

double rope_theta_of(Config c)
{
    return c.rope_theta ? c.rope_theta : 10000;
}

/* ---- The parameters ---- */

/* N = h*v*(1 or 2) + L*(2*h^2 + 2*h*K*D + 3*h*F + 2*h) + h, with 2 if the output projection is untied */
static int64_t llama_parameters(Config c)
{
    const int64_t h = c.hidden, kv = h / c.heads * c.kv_heads;

    return h * c.vocab * (c.untied ? 2 : 1) + c.layers * (2 * h * h + 2 * h * kv + 3 * h * c.mlp + 2 * h) + h;
}

/* Hugging Face has q, k and v apart, and gate and up. They lie one after another here, so that qkv_weight is one matrix
 * of all their rows, and up_weight one of gate's and up's. */
static ModelTable llama_table(Config c)
{
    const int64_t H = c.hidden, D = H / c.heads, K = c.kv_heads, F = c.mlp;
    const double std = 0.02, into_residual = 0.02 / sqrt(2.0 * c.layers);
    ModelTable t = {
        .layers = "model.layers",
        .embedding = {"model.embed_tokens.weight", VIEW(Params, embedding), c.vocab, H, .row_group = 1, .std = std},
        .block = {
            {"input_layernorm.weight", VIEW(BlockParams, ln1_weight), H, .mean = 1},
            {"post_attention_layernorm.weight", VIEW(BlockParams, ln2_weight), H, .mean = 1},
            {"self_attn.q_proj.weight", "qkv_weight (q)", offsetof(BlockParams, qkv_weight), H, H, .row_group = D,
             .spans = 3, .std = std},
            {"self_attn.k_proj.weight", "qkv_weight (k)", offsetof(BlockParams, kv_weight), K * D, H, .row_group = D,
             .spans = 2, .std = std},
            {"self_attn.v_proj.weight", "qkv_weight (v)", NO_VIEW, K * D, H, .row_group = D, .std = std},
            {"self_attn.o_proj.weight", VIEW(BlockParams, proj_weight), H, H, .col_group = D, .std = into_residual},
            {"mlp.gate_proj.weight", "up_weight (gate)", offsetof(BlockParams, up_weight), F, H, .row_group = 1,
             .spans = 2, .std = std},
            {"mlp.up_proj.weight", "up_weight (up)", NO_VIEW, F, H, .row_group = 1, .std = std},
            {"mlp.down_proj.weight", VIEW(BlockParams, down_weight), H, F, .col_group = 1, .std = into_residual}},
        .final = {
            {"model.norm.weight", VIEW(Params, final_weight), H, .mean = 1},
            {"lm_head.weight", VIEW(Params, head), c.vocab, H, .row_group = 1, .std = std}}};

    if (!c.untied)
        t.final[1].name = NULL;
    return t;
}

static void llama_complete(Config *c)
{
    if (!c->kv_heads)
        c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        fail_usage("--kv-heads: expected a divisor of --heads %d, which is %s, got %d", c->heads,
                   divisors_text(c->heads), c->kv_heads);
    if (!c->mlp)                                /* Llama's rule: as many parameters as in two matrices of 4h */
        c->mlp = (8 * c->hidden / 3 + 255) / 256 * 256;
    if (!c->norm_eps)
        c->norm_eps = 1e-5;
}

static const char *llama_words(Config c)
{
    return format_text("block   %d KV head(s), MLPs of width %d, %s output projection, rotary base %g%s", c.kv_heads,
                       c.mlp, c.untied ? "an untied" : "a tied", rope_theta_of(c),
                       c.rope_scaling.factor ? format_text(" stretched by %g", c.rope_scaling.factor) : "");
}

/* Sizes from the models' config.json. The batches are small. */
static const Preset llama_presets[] = {
    {"tiny", {2, 64, 4, 256, 64, .kv_heads = 2}, 4, 1},
    {"small", {4, 128, 4, 256, 128, .kv_heads = 2}, 8, 4},
    {"smollm2-135m", {30, 576, 9, 49152, 512, .kv_heads = 3, .mlp = 1536, .rope_theta = 100000}, 1, 8},
    {"llama3.2-1b", {16, 2048, 32, 128256, 2048, .kv_heads = 8, .mlp = 8192, .rope_theta = 500000,
                     .rope_scaling = {32, 1, 4, 8192}}, 1, 16},
    {"llama3-8b", {32, 4096, 32, 128256, 4096, .kv_heads = 8, .mlp = 14336, .untied = true, .rope_theta = 500000}, 1,
     16},
    {0}};

/* ---- config.json ---- */

static cJSON *llama_write(Config c)
{
    cJSON *json = cJSON_Parse(format_text(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
        "\"head_dim\": %d, \"intermediate_size\": %d, \"max_position_embeddings\": %d, \"hidden_act\": \"silu\", "
        "\"rms_norm_eps\": %.17g, \"rope_theta\": %.17g, \"initializer_range\": 0.02, \"tie_word_embeddings\": %s, "
        "\"attention_bias\": false, \"mlp_bias\": false, \"attention_dropout\": 0, \"bos_token_id\": 0, "
        "\"eos_token_id\": 0, \"torch_dtype\": \"%s\"}",
        c.vocab, c.hidden, c.layers, c.heads, c.kv_heads, c.hidden / c.heads, c.mlp, c.seq, c.norm_eps,
        rope_theta_of(c), c.untied ? "false" : "true", REAL == F64 ? "float64" : "float32"));
    const RopeScaling s = c.rope_scaling;

    if (s.factor)
        cJSON_AddItemToObject(json, "rope_scaling", cJSON_Parse(format_text(
            "{\"rope_type\": \"llama3\", \"factor\": %.17g, \"low_freq_factor\": %.17g, \"high_freq_factor\": %.17g, "
            "\"original_max_position_embeddings\": %d}", s.factor, s.low_freq_factor, s.high_freq_factor,
            s.original_seq)));
    return json;
}

/* Returns a number above 0. */
static double number_of(const char *path, const cJSON *json, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

    if (!cJSON_IsNumber(item) || !(item->valuedouble > 0))
        fail("%s: \"%s\": expected a number above 0, got %s", path, name,
             item ? cJSON_PrintUnformatted(item) : "nothing");
    return item->valuedouble;
}

/* Transformers 5 has rope_theta, and what used to be rope_scaling, in rope_parameters. */
static RopeScaling read_rope(const char *path, cJSON *theirs)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(theirs, "rope_parameters"), *type;

    if (cJSON_IsObject(rope) && cJSON_HasObjectItem(rope, "rope_theta")) {
        cJSON_DeleteItemFromObjectCaseSensitive(theirs, "rope_theta");
        cJSON_AddNumberToObject(theirs, "rope_theta", number_of(path, rope, "rope_theta"));
    }
    if (!cJSON_IsObject(rope))
        rope = cJSON_GetObjectItemCaseSensitive(theirs, "rope_scaling");
    type = cJSON_GetObjectItemCaseSensitive(rope, cJSON_HasObjectItem(rope, "rope_type") ? "rope_type" : "type");
    if (!cJSON_IsObject(rope) || (cJSON_IsString(type) && !strcmp(type->valuestring, "default")))
        return (RopeScaling){0};
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "llama3"))
        fail("%s: the rotary positions are %s, but this program has none but \"default\" and \"llama3\"", path,
             cJSON_PrintUnformatted(rope));
    return (RopeScaling){number_of(path, rope, "factor"), number_of(path, rope, "low_freq_factor"),
                         number_of(path, rope, "high_freq_factor"),
                         number_of(path, rope, "original_max_position_embeddings")};
}

static void llama_read(const char *path, cJSON *theirs, Config *c)
{
    static const ConfigKey keys[] = {
        {"model_type"}, {"num_hidden_layers", "--layers"}, {"hidden_size", "--hidden"},
        {"num_attention_heads", "--heads"}, {"num_key_value_heads", "--kv-heads"}, {"intermediate_size", "--mlp"},
        {"vocab_size", "--vocab"}, {"tie_word_embeddings", "--untied"}, {"rope_theta", "--rope-theta"}, {"head_dim"},
        {"hidden_act"}, {"attention_bias"}, {"mlp_bias"}, {0}};
    cJSON *defaults = cJSON_Parse(format_text(  /* LlamaConfig's */
        "{\"rope_theta\": 10000, \"num_key_value_heads\": %d, \"head_dim\": %d, \"hidden_act\": \"silu\", "
        "\"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false, \"attention_bias\": false, \"mlp_bias\": false}",
        c->heads, c->hidden / c->heads)), *item;

    c->rope_scaling = read_rope(path, theirs);
    cJSON_ArrayForEach(item, defaults) {
        const cJSON *is = cJSON_GetObjectItemCaseSensitive(theirs, item->string);
        if (is && !cJSON_IsNull(is))
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(theirs, item->string);
        cJSON_AddItemToObject(theirs, item->string, cJSON_Duplicate(item, true));
    }
    c->norm_eps = number_of(path, theirs, "rms_norm_eps");
    if (!c->rope_theta)
        c->rope_theta = number_of(path, theirs, "rope_theta");
    cJSON *ours = llama_write(*c);
    config_compare(path, theirs, ours, keys);
    cJSON_Delete(ours);
    cJSON_Delete(defaults);
}

void use_llama(void)
{
    static const Model llama = {llama_table, llama_parameters, llama_complete, llama_words};
    static const ConfigFile file = {llama_write, llama_read};

    model = &llama;
    config_file = &file;
    presets = llama_presets;
}
