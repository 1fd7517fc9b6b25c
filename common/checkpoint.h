/* Checkpoints and dumps: files that hold the whole model, whatever part of it each rank has. Each rank writes what it
 * owns where it belongs in the whole, and reads what it updates; so any layout can go on from any other's file.
 *
 * A checkpoint is a directory that Hugging Face's GPTNeoXForCausalLM.from_pretrained opens:
 *   model.safetensors       parameters, by Hugging Face's names; F32, or F64 from build/cpu64
 *   config.json             Hugging Face's
 *   optimizer.safetensors   AdamW's moments, as "m.NAME" and "v.NAME"
 *   trainer.json            step, seed, tokens seen, the optimizer's t, a stage's kept numbers, the command line
 * They belong together: each says of which step of which run it is ("checkpoint" in config.json and in the metadata of
 * safetensors). A directory with the first two alone, the parameters of any floating type and in one file or several,
 * is what Hugging Face's save_pretrained writes: a model at step 0.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "optimizer.h"

/* A number of a stage's own that a run goes on with. */
typedef struct {
    const char *name;
    double *value;
} Kept;

typedef struct {
    int64_t step, tokens;           /* since the model's birth */
    int64_t optimizer_step;         /* Adam's t */
    uint64_t seed;
    uint64_t history;               /* a hash of what each step came to: other runs, other histories */
    uint64_t hash;                  /* of the weights that were loaded: all ranks must have found the same */
    bool weights_only;              /* that is all there was to load */
    Kept kept[4];
    int kept_count;
} TrainState;

typedef struct Checkpoint Checkpoint;       /* one that is open for reading */

/* Before training: claims DIR (outputs.h). Fails if it is neither a checkpoint alone nor empty, since saving would
 * replace it; so too if what lies in DIR.tmp isn't ours, or is load, the checkpoint to read (NULL: none). */
void checkpoint_claim(const char *directory, const char *load);

/* Writes DIR.tmp, and when all of it is on the disk puts it in DIR's place in one step: a program killed at any
 * moment leaves the previous checkpoint whole. */
void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv);

/* Opens all files of a checkpoint, on all ranks the same one, so that another run may go on saving there. Fills in
 * *state, but of weights alone hash and history only. Fails if config.json says another model, or if the files don't
 * belong together. If only DIR.old is there (from a program killed while it saved on a file system without renameat2's
 * exchange), uses it and says so. */
Checkpoint *checkpoint_open(const char *directory, Config config, TrainState *state);

/* Reads parameters, moments, t, and kept numbers, which stay as they are if another stage's file has none; closes. Of
 * weights alone moments stay too: zero, as they were made. */
void checkpoint_load(Checkpoint *from, AdamW *optimizer, const TrainState *state);

/* Adds to history what a step came to. */
void checkpoint_note(TrainState *state, const double *numbers, int count);

/* The gradients of the whole model in one file, with the global batch as batch.inputs and batch.targets. */
void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences);

#endif
