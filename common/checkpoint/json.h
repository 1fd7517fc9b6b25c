/* A checkpoint's JSON files: config.json, Hugging Face's description of the model, and trainer.json, what a run goes on
 * with. */
#ifndef CHECKPOINT_JSON_H
#define CHECKPOINT_JSON_H

#include <cjson/cJSON.h>

#include "directory.h"
#include "../checkpoint.h"
#include "../model.h"

cJSON *json_read(OpenFile from);                        /* an object; closes the file */
void json_write(const char *path, cJSON *json);         /* and deletes it */

/* "step 100, ...": all that tells this checkpoint from others, the same in each of its files. */
char *checkpoint_text(const TrainState *state);

cJSON *config_json(Config c, const char *checkpoint);
cJSON *trainer_json(const TrainState *state, int argc, char **argv);

/* Fails if config.json tells of another model than the one we compute, by what Hugging Face makes of it. */
void config_check(const cJSON *config, const char *path, Config c);

void trainer_read(const cJSON *trainer, const char *path, TrainState *state);   /* all but kept numbers, */
void trainer_read_kept(const cJSON *trainer, const char *path, const TrainState *state);    /* and those */

#endif
