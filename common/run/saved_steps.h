/* A directory of checkpoints, as Megatron-LM, DeepSpeed and nanotron lay it out:
 *   DIR/step-500/    the checkpoint after step 500
 *   DIR/latest       one line, "step-500": the last checkpoint that is complete
 *   DIR/lock         the run that saves there holds it
 * A killed program leaves all that it had completed, since only `latest` is replaced, by a rename of this one file. All
 * other files in DIR are the user's and stay as they are. Call these functions on rank 0, unless it says otherwise. */
#ifndef SAVED_STEPS_H
#define SAVED_STEPS_H

#include <stdint.h>

/* Returns DIR/step-N. The caller frees it. Any rank may call it. */
char *saved_step(const char *directory, int64_t step);

/* Returns the step that DIR/latest names, -1 if there is no DIR/latest. Any rank may call it. */
int64_t saved_steps_latest(const char *directory);

/* Creates DIR if it is missing, and locks it until the program ends. Fails if another run holds the lock, or if a
 * trial shows that a run could not save there: `bytes` of files in all, the largest of `largest`. */
void saved_steps_claim(const char *directory, int64_t bytes, int64_t largest);

/* Makes an empty DIR/step-N; what an unfinished save left in it goes. `files`, whose names end with NULL, are all that
 * a checkpoint has. The first of them is written last and removed first: where it is, the others are complete. */
void saved_steps_begin(const char *directory, int64_t step, const char *const *files);

/* DIR/step-N has all its files, and they have reached the disk: now DIR/latest names it. Then removes the steps before
 * it, but for the last `keep` - 1. */
void saved_steps_end(const char *directory, int64_t step, const char *const *files, int keep);

#endif
