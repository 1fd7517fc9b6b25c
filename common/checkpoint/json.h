/* A checkpoint's JSON files: config.json, Hugging Face's description of the model, and trainer.json, the state from
 * which a run resumes. */
#ifndef CHECKPOINT_JSON_H
#define CHECKPOINT_JSON_H

#include <cjson/cJSON.h>

#include "directory.h"
#include "../checkpoint.h"
#include "../model.h"

cJSON *json_read(OpenFile from);                        /* reads an object; closes the file */
void json_write(const char *path, cJSON *json);         /* writes and deletes the object */

/* Returns "step 100, ...": what distinguishes this checkpoint from others, the same in each of its files. */
char *checkpoint_text(const TrainState *state);

cJSON *config_json(Config c, const char *checkpoint);
cJSON *trainer_json(const TrainState *state, int argc, char **argv);

/* Fails if Hugging Face would build another model from config.json than the one these programs compute. */
void config_check(const cJSON *config, const char *path, Config c);

void trainer_read(const cJSON *trainer, const char *path, TrainState *state);   /* all but the saved values */
void trainer_read_kept(const cJSON *trainer, const char *path, const TrainState *state);    /* the saved values */

#endif
