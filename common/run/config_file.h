/* config.json: how Hugging Face describes the model of a checkpoint. */
#ifndef CONFIG_FILE_H
#define CONFIG_FILE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "../base/options.h"

typedef struct {
    cJSON *(*write)(Config config);     /* the configuration from which Hugging Face builds this model */

    /* Fails unless `theirs` describes the run's model, with a line that begins with path. May set what of *config the
     * command line left to the file, and add to `theirs`. */
    void (*read)(const char *path, cJSON *theirs, Config *config);
} ConfigFile;

/* GPT-NeoX's, the model of model.h. A program with another model sets its own before run_begin. */
extern const ConfigFile *config_file;

/* A key that changes what the model computes, and the option that sets it in a run, or NULL. A key that is missing, or
 * null, has the architecture's default (`standard`: that is ours). */
typedef struct {
    const char *key, *option;
    bool standard;
} ConfigKey;

/* Fails at the first key, of a list that ends with {0}, in which `theirs` differs from `ours`. A key that is missing in
 * `ours` must be missing in `theirs`. */
void config_compare(const char *path, const cJSON *theirs, const cJSON *ours, const ConfigKey *keys);

#endif
