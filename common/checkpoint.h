/* Checkpoints and gradient dumps: files that hold the full model, whichever shards the ranks have. Each rank writes the
 * elements that it owns at their place in the full tensors, and reads those that it updates. So a run can resume from a
 * checkpoint of any parallel configuration.
 *
 * A checkpoint is a directory that Hugging Face's GPTNeoXForCausalLM.from_pretrained opens:
 *   model.safetensors       parameters, by Hugging Face's names; F32, or F64 from build/cpu64
 *   config.json             Hugging Face's
 *   optimizer.safetensors   AdamW's moments, as "m.NAME" and "v.NAME"
 *   trainer.json            step, seed, tokens seen, AdamW's update count, a program's saved values, the command line
 * The four files belong together: each names its run and step ("checkpoint" in config.json and in the metadata of the
 * safetensors files). Hugging Face's save_pretrained writes the first two alone, with parameters of any floating-point
 * type, in one file or several: that loads as a model at step 0.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "optimizer.h"

/* A program's own number that checkpoints save and restore, like a loss scale. */
typedef struct {
    const char *name;
    double *value;
} SavedValue;

typedef struct {
    int64_t step, tokens;           /* since the start of training */
    int64_t optimizer_step;         /* AdamW's update count */
    uint64_t seed;
    uint64_t history;               /* hash of every step's results: runs that differ have different histories */
    uint64_t hash;                  /* of the loaded weights: ranks compare it */
    bool weights_only;              /* the checkpoint has neither trainer.json nor optimizer.safetensors */
    SavedValue kept[4];
    int kept_count;
} TrainState;

typedef struct Checkpoint Checkpoint;       /* a checkpoint that is open for reading */

/* Claims DIR (outputs.h) before training. Fails if DIR is neither empty nor a checkpoint alone, since saving replaces
 * it; if DIR.tmp holds something else than a checkpoint's files; or if DIR.tmp is `load`, the checkpoint to read (NULL:
 * none). */
void checkpoint_claim(const char *directory, const char *load);

/* Writes DIR.tmp, and puts it in DIR's place in one step when all of it is on the disk. A program that is killed at any
 * moment leaves the previous checkpoint whole. */
void checkpoint_save(const char *directory, const AdamW *optimizer, TrainState state, int argc, char **argv);

/* Opens all files of a checkpoint, the same one on all ranks, even while another run saves there. Fills in *state; if
 * there are only weights, just hash and history. Fails if config.json describes another model, or if the files do not
 * belong together. If only DIR.old exists (a program was killed while it saved, on a file system without renameat2's
 * exchange), opens that and prints so. */
Checkpoint *checkpoint_open(const char *directory, Config config, TrainState *state);

/* Reads parameters, moments, update count and saved values; then closes the checkpoint. A saved value that the file
 * lacks keeps its current value. If there are only weights, the moments stay zero. */
void checkpoint_load(Checkpoint *from, AdamW *optimizer, const TrainState *state);

/* Adds a step's results to state->history. */
void checkpoint_note(TrainState *state, const double *numbers, int count);

/* Writes the full model's gradients to one file, with the global batch as batch.inputs and batch.targets, both
 * (sequences, seq) I64. */
void checkpoint_dump_gradients(const char *path, const AdamW *optimizer, int64_t step, int64_t sequences);

#endif
