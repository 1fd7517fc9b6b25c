/* Checkpoints and dumps: files that hold the whole model, whatever part of it each rank has. Each rank writes what it
 * owns where it belongs in the whole, and reads what it updates; so any layout can go on from any other's file.
 *
 * A checkpoint is a directory that Hugging Face's GPTNeoXForCausalLM.from_pretrained opens:
 *   model.safetensors       parameters, by Hugging Face's names; F32, or F64 from build/cpu64
 *   config.json             Hugging Face's
 *   optimizer.safetensors   AdamW's moments, as "m.NAME" and "v.NAME"
 *   trainer.json            step, seed, tokens seen, the optimizer's t, a stage's kept numbers, the command line
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdint.h>

#include "optimizer.h"

/* A number of a stage's own that a run goes on with. */
typedef struct {
    const char *name;
    double *value;
} Kept;

typedef struct {
    int64_t step, tokens;           /* since the model's birth */
    uint64_t seed;
    uint64_t hash;                  /* of the weights that were loaded: all ranks must have found the same */
    Kept kept[4];
    int kept_count;
} TrainState;

/* Before training: fails if DIR cannot be written, or is neither a checkpoint nor empty: saving would replace it. So
 * too if what lies in DIR.tmp isn't ours, or is load, the checkpoint to read (NULL: none), or if another program that
 * is running has claimed DIR: until checkpoint_release, or its end, DIR.lock is locked. (Of a program that was killed
 * the file stays, and means nothing.) */
void checkpoint_claim(const char *directory, const char *load);
void checkpoint_release(const char *directory);

/* Writes DIR.tmp, and when all of it is on the disk puts it in DIR's place in one step: a program killed at any
 * moment leaves the previous checkpoint whole. */
void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv);

/* Reads state from trainer.json; fails if config.json says another model. If only DIR.old is there (from a program
 * killed while it saved on a file system without renameat2's exchange), uses it and says so. */
TrainState checkpoint_open(const char *directory, Config config);
void checkpoint_load(const char *directory, AdamW *optimizer, const TrainState *state);     /* parameters, moments, t,
                                       and kept numbers, which stay as they are if another stage's file has none */

/* The gradients of the whole model in one file, with the global batch as batch.inputs and batch.targets. */
void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences);

#endif
