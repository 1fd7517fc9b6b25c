/* The memory account: every byte of device memory has a category, and every stage says beforehand, from its
 * configuration alone, how many bytes each category will take. At the end both stand side by side and are
 * equal. (Playbook: "Memory usage in transformers".)
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MEM_PARAMETERS, MEM_MASTER, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_ACTIVATIONS, MEM_COMMUNICATION, MEM_WORKSPACE,
    MEM_CATEGORIES
} Category;

typedef struct {
    int64_t used, peak;         /* bytes now, and the most there ever were */
    double predicted;           /* what the stage's predict() said */
    double playbook;            /* what the playbook's formula gives, and the formula; NULL: it has none */
    const char *formula;
} MemoryEntry;

extern const char *const memory_name[MEM_CATEGORIES];

/* Called for every allocation: `bytes` more, or, if negative, fewer. */
void memory_account(Category category, int64_t bytes);
MemoryEntry memory_entry(Category category);
MemoryEntry memory_total(void);                 /* its peak is that of the sum, not the sum of the peaks */

/* In predict(): bytes that a category will take, added up over calls; and what the playbook's formula says. */
void memory_predict(Category category, double bytes);
void memory_playbook(Category category, double bytes, const char *formula);

const char *memory_in_use(void);                /* "3.1 GB in use, parameters 0.5 GB, ...": a static buffer */
const char *memory_remedy(Category category);   /* which options make a category smaller */

#ifdef __cplusplus
}
#endif

#endif
