#include "config_file.h"

#include "../base/error.h"
#include "../base/print.h"
#include "../base/tensor.h"

void config_compare(const char *path, const cJSON *theirs, const cJSON *ours, const ConfigKey *keys)
{
    for (const ConfigKey *k = keys; k->key; k++) {
        const cJSON *is = cJSON_GetObjectItemCaseSensitive(theirs, k->key);
        const cJSON *needed = cJSON_GetObjectItemCaseSensitive(ours, k->key);
        const bool missing = !is || cJSON_IsNull(is);
        if (missing ? !needed || k->standard : cJSON_Compare(is, needed, true))
            continue;
        const char *found = missing ? "missing" : cJSON_PrintUnformatted(is);
        if (!needed)
            fail("%s: \"%s\" is %s, but this run's model has none", path, k->key, found);
        fail("%s: \"%s\" is %s, but this run's model has %s%s", path, k->key, found, cJSON_PrintUnformatted(needed),
             k->option ? format_text(" by %s", k->option) : "");
    }
}

/* ---- GPT-NeoX; with experts, in Mixtral's words ---- */

static cJSON *gpt_neox_write(Config c)
{
    const char *class = "GPTNeoXForCausalLM", *type = "gpt_neox";
    int width = 4 * c.hidden;

    if (c.experts)
        class = "GPTNeoXMoeForCausalLM", type = "gpt_neox_moe", width = c.expert_width;
    cJSON *json = cJSON_Parse(format_text(
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"intermediate_size\": %d, "
        "\"max_position_embeddings\": %d, \"hidden_act\": \"gelu_pytorch_tanh\", \"rotary_pct\": 1.0, "
        "\"rotary_emb_base\": 10000, \"layer_norm_eps\": 1e-5, \"initializer_range\": 0.02, "
        "\"use_parallel_residual\": false, \"tie_word_embeddings\": true, \"attention_bias\": true, "
        "\"attention_dropout\": 0, \"hidden_dropout\": 0, \"bos_token_id\": 0, \"eos_token_id\": 0, "
        "\"torch_dtype\": \"%s\"}",
        class, type, c.vocab, c.hidden, c.layers, c.heads, width, c.seq, REAL == F64 ? "float64" : "float32"));
    if (c.experts) {
        cJSON_AddNumberToObject(json, "num_local_experts", c.experts);
        cJSON_AddNumberToObject(json, "num_experts_per_tok", c.top_k);
    }
    return json;
}

static void gpt_neox_read(const char *path, cJSON *theirs, Config *config)
{
    static const ConfigKey keys[] = {           /* without a number of experts there are none */
        {"num_hidden_layers", "--layers"}, {"hidden_size", "--hidden"}, {"num_attention_heads", "--heads"},
        {"vocab_size", "--vocab"}, {"num_local_experts", "--experts"}, {"num_experts_per_tok", "--top-k"},
        {"model_type"}, {"intermediate_size"}, {"hidden_act"}, {"use_parallel_residual"}, {"tie_word_embeddings"},
        {"attention_bias", NULL, true}, {"layer_norm_eps", NULL, true}, {"rotary_pct"},
        {"rotary_emb_base", NULL, true}, {"rope_theta", NULL, true}, {"rope_scaling", NULL, true},
        {"rope_parameters", NULL, true}, {0}};
    cJSON *ours = gpt_neox_write(*config);

    cJSON_AddNumberToObject(ours, "rope_theta", 10000);
    cJSON_AddItemToObject(ours, "rope_parameters", cJSON_Parse(         /* transformers 5 has rotary_pct in it */
        "{\"partial_rotary_factor\": 1, \"rope_theta\": 10000, \"rope_type\": \"default\"}"));
    if (cJSON_HasObjectItem(theirs, "rope_parameters"))
        cJSON_AddNumberToObject(theirs, "rotary_pct", 1);
    config_compare(path, theirs, ours, keys);
    cJSON_Delete(ours);
}

const ConfigFile *config_file = &(const ConfigFile){gpt_neox_write, gpt_neox_read};
