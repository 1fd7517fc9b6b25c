/* Checkpoints and gradient dumps: files that hold the full model, for any sharding. Each rank writes the
 * elements that it owns at their place in the full tensors, and reads those that it updates. So a run can resume from a
 * checkpoint of any parallel configuration.
 *
 * A checkpoint is a directory, DIR/step-500 (saved_steps.h), that Hugging Face's GPTNeoXForCausalLM.from_pretrained
 * opens:
 *   model.safetensors       parameters, by Hugging Face's names; F32, or F64 from build/cpu64
 *   config.json             Hugging Face's
 *   optimizer.safetensors   AdamW's moments, as "m.NAME" and "v.NAME"
 *   trainer.json            step, seed, tokens seen, AdamW's update count, a hash of the data, a program's saved
 *                           values, the command line
 * The first two alone load as a model at step 0; there the model may be in several files (safetensors.h).
 *
 * A model with experts (model.h) has mlp.gate.weight, and mlp.experts.5.dense_h_to_4h.weight instead of
 * mlp.dense_h_to_4h.weight. No class of Hugging Face has it; tests/programs/experts/huggingface.py makes one. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "../transformer/optimizer.h"

/* A program's own number that checkpoints save and restore, like a loss scale. */
typedef struct {
    const char *name;
    double *value;
} SavedValue;

enum { SAVED_VALUES = 4 };

typedef struct {
    int64_t step, tokens;           /* since the start of training */
    uint64_t seed;
    const char *place;              /* the directory that checkpoint_open found; NULL: nothing is loaded */
    bool weights_only;              /* it has no trainer.json */
    struct cJSON *trainer;          /* its trainer.json, as checkpoint_open read it */
    SavedValue kept[SAVED_VALUES];
    int kept_count;
} TrainState;

/* Locks DIR. Fails if it has a step of another run than the one that was loaded, or if a trial shows that a checkpoint
 * of this model could not be saved there. Returns whether DIR has the step that was loaded. */
bool checkpoint_claim(const char *directory, Config config, const TrainState *loaded);

/* Writes DIR/step-N. When all of it is on the disk, it is the latest, and the --keep-th before it is removed. */
void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv);

/* Finds the checkpoint: the latest of DIR, or DIR itself. Reads trainer.json into *state. Fails if config.json
 * describes another model (config_file.h); warns if options.data is other data. */
void checkpoint_open(const char *directory, Config *config, TrainState *state);
void checkpoint_load(AdamW *optimizer, const TrainState *state);                /* as it was opened */

/* Writes the full model's gradients to one file, with the global batch as batch.inputs and batch.targets, both
 * (sequences, seq) I64. */
void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences);

#endif
