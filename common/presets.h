/* Sizes of known models, by name: --preset. */
#ifndef PRESETS_H
#define PRESETS_H

#include "options.h"

typedef struct {
    const char *name;
    Config config;
    int micro_batch, accumulate;
} Preset;

const Preset *preset_named(const char *name);   /* NULL: no such preset */
const char *preset_names(void);                 /* "tiny|small|..." */

#endif
