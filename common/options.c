#include "options.h"

Options options = {
    .config = {.layers = 4, .hidden = 128, .heads = 4, .vocab = 256, .seq = 128},
    .micro_batch = 8, .accumulate = 4, .steps = 200, .warmup = 20, .decay_steps = 0,
    .lr = 1e-3, .min_lr = 1e-4, .weight_decay = 0.1, .clip = 1, .seed = 1,
    .data = DEFAULT_DATA,
    .timeout = 300, .temperature = 0.8, .prompt = "\n",
};
