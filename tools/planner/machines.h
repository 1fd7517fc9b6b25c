/* Models and hardware to plan for, by name. */
#ifndef MACHINES_H
#define MACHINES_H

#include "costs.h"

const char *hardware_names(void);               /* "a100|h100|..." */
bool hardware_known(const char *name);                  /* is in the table */
Hardware hardware_named(const char *text);      /* a name, or five numbers as in --help; fails if neither */
Hardware hardware_simulated(const char *text);  /* simulated hardware, as for the programs' --pretend */

const char *model_names(void);
bool model_find(Model *m, const char *name);    /* the published runs' models, then the programs' presets */

#endif
