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

/* ---- From JSON files (config.c): only a front end that has files calls these, so others need no cJSON ---- */

/* The text model of a config.json of Hugging Face's transformers. Fails if its model_type is not in the table. */
Model model_read(const char *file);

/* What 00_collectives --machine FILE has measured, with the matmuls' rate in dtype. Fails if there is none. */
Hardware hardware_read(const char *file, const char *dtype, int per_node);

#endif
