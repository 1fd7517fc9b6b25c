/* Models and hardware to plan for, by name. */
#ifndef MACHINES_H
#define MACHINES_H

#include "costs.h"

const char *hardware_names(void);               /* "a100|h100|..." */
const Hardware *hardware_find(const char *name);        /* in the table; NULL: it is not */
/* A name, five numbers as in --help, or a file that 00_collectives --machine wrote, of which it takes the matmuls' rate
 * in dtype. Fails if it is none. */
Hardware hardware_named(const char *text, const char *dtype, int per_node);
Hardware hardware_simulated(const char *text);  /* simulated hardware, as for the programs' --pretend */

const char *model_names(void);
bool model_find(Model *m, const char *name);    /* the published runs' models, then the programs' presets */

#endif
