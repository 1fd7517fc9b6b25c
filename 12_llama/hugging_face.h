/* The model as Hugging Face's LlamaForCausalLM has it: its parameters, its sizes, and its config.json. */
#ifndef HUGGING_FACE_H
#define HUGGING_FACE_H

#include "../common/run/command_line.h"

/* Makes Llama the model of model.h, config_file.h and --preset. Call it before run_begin. */
void use_llama(void);

/* Sizes that GPT's block does not have, for run_begin. */
#define LLAMA_OPTIONS \
    {"kv-heads", OPTION_INT, &options.config.kv_heads, "heads of k and v, a divisor of --heads; 0: as many", "N", 0, \
     1 << 16}, \
    {"mlp", OPTION_INT, &options.config.mlp, "width of the MLP; 0: 8/3 of --hidden, rounded up to a multiple of 256", \
     "N", 0, 1 << 22}, \
    {"untied", OPTION_FLAG, &options.config.untied, "an output projection of its own, instead of the embedding"}, \
    {"rope-theta", OPTION_DOUBLE, &options.config.rope_theta, \
     "base of the rotary positions; 0: that of --load, or 10000", "X", 0, 1e12}

double rope_theta_of(Config config);            /* as given by --rope-theta or --load's config.json; else 10000 */
#endif
