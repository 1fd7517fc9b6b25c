/* What can be planned for, by name. */
#ifndef MACHINES_H
#define MACHINES_H

#include "costs.h"

const char *hardware_names(void);               /* "a100|h100|..." */
Hardware hardware_named(const char *text);      /* one of these, or five numbers; fails with what would be right */
Hardware hardware_pretended(const char *text);  /* what the programs' --pretend takes */

const char *model_names(void);
bool model_find(Model *m, const char *name);    /* the published runs' models, then the programs' presets */

#endif
