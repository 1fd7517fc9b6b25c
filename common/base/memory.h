/* The memory tracker: every tensor's bytes belong to a category, and every program predicts each category's
 * bytes from its configuration alone. At the end the tracked peaks must equal the predictions to the byte. (Playbook:
 * "Memory usage in transformers".) */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdint.h>

typedef enum {
    MEM_PARAMETERS, MEM_MASTER, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_ACTIVATIONS, MEM_COMMUNICATION, MEM_WORKSPACE,
    MEM_CATEGORIES
} Category;

typedef struct {
    int64_t used, peak;         /* bytes now, and at most so far */
    double predicted;           /* bytes, by the program's predict() */
    double playbook;            /* bytes, by the playbook's formula */
    const char *formula;        /* that formula as text; NULL: the playbook has none */
} MemoryStats;

extern const char *const memory_name[MEM_CATEGORIES];

/* Tracks an allocation of `bytes` bytes; a negative number tracks a deallocation. */
void memory_track(Category category, int64_t bytes);
MemoryStats memory_entry(Category category);
MemoryStats memory_total(void);                 /* its peak is the peak of the sum, not the sum of the peaks */

/* Adds to a category's predicted bytes (in predict()). */
void memory_predict(Category category, double bytes);

/* Adds to the bytes that the playbook's formula gives for a category. */
void memory_estimate(Category category, double bytes, const char *formula);

/* What to try if memory is too small. */
#define MEMORY_HINT "try --recompute full, a smaller --micro-batch (with more --accumulate), --seq or model"

#endif
