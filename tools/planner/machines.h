/* Models and hardware to plan for, by name. */
#ifndef MACHINES_H
#define MACHINES_H

#include "costs.h"

const char *hardware_names(void);               /* "a100|h100|..." */
const Hardware *hardware_find(const char *name);        /* in the table; NULL: it is not */
Hardware hardware_named(const char *text);      /* a name, or five numbers as in --help; fails if it is neither */
Hardware hardware_simulated(const char *text);  /* simulated hardware, as for the programs' --pretend */

const char *model_names(void);
bool model_find(Model *m, const char *name);    /* the published runs' models, then the programs' presets */

#endif
