#include "options.h"

#include <string.h>

Options options = {
    .config = {.layers = 4, .hidden = 128, .heads = 4, .vocab = 256, .seq = 128},
    .micro_batch = 8, .accumulate = 4, .steps = 200, .warmup = 20, .decay_steps = 0,
    .lr = 1e-3, .min_lr = 1e-4, .weight_decay = 0.1, .clip = 1, .seed = 1,
    .keep = 1, .timeout = 300, .temperature = 0.8,
};

/* Sizes from GPT-2 (Radford et al. 2019), GPT-3 (Brown et al. 2020, table 2.1; 1.3B has 16 heads of 128, since 24 do
 * not divide its width) and Llama (Touvron et al. 2023; 405B and 70B's vocabulary: Dubey et al. 2024). The blocks are
 * ours, so parameter counts are close to the names, not always equal. GPT-2's vocabulary of 50,257 is rounded
 * up to a multiple of 64, as in Pythia (Biderman et al. 2023): a GPU's matmuls load 16 bytes at a time, and rows of
 * 50,257 logits are not a multiple of that. Batches are small, for trying the models: the largest were trained on
 * millions of tokens per step. */
static const Preset gpt_presets[] = {
    {"tiny", {2, 64, 2, 256, 64}, 4, 1},
    {"small", {4, 128, 4, 256, 128}, 8, 4},
    {"10m", {6, 384, 6, 256, 256}, 8, 4},
    {"124m", {12, 768, 12, 50304, 1024}, 4, 8},
    {"350m", {24, 1024, 16, 50304, 1024}, 4, 8},
    {"774m", {36, 1280, 20, 50304, 1024}, 4, 8},
    {"1.3b", {24, 2048, 16, 50304, 2048}, 2, 16},
    {"7b", {32, 4096, 32, 32000, 4096}, 1, 16},
    {"13b", {40, 5120, 40, 32000, 4096}, 1, 16},
    {"70b", {80, 8192, 64, 128256, 4096}, 1, 16},
    {"175b", {96, 12288, 96, 50304, 2048}, 1, 16},
    {"405b", {126, 16384, 128, 128256, 8192}, 1, 16},
    {0}};
const Preset *presets = gpt_presets;

const Preset *preset_named(const char *name)
{
    for (const Preset *p = presets; p->name; p++)
        if (!strcmp(name, p->name))
            return p;
    return NULL;
}

const char *preset_names(void)
{
    static char names[256];

    if (!names[0])
        for (const Preset *p = presets; p->name; p++)
            strcat(strcat(names, p == presets ? "" : "|"), p->name);
    return names;
}
