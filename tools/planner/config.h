/* What the planner reads from JSON files. The front end that has files calls it (plan.c), so others need no cJSON. */
#ifndef CONFIG_H
#define CONFIG_H

#include "costs.h"

/* The text model of a config.json of Hugging Face's transformers. Fails if its model_type is not in the table. */
Model model_read(const char *file);

/* What 00_collectives --machine FILE has measured, with the matmuls' rate in dtype. Fails if there is none. */
Hardware hardware_read(const char *file, const char *dtype, int per_node);

#endif
