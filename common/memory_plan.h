/* What predict() says (memory.h), held against the machine before training, and against what was measured after it. */
#ifndef MEMORY_PLAN_H
#define MEMORY_PLAN_H

/* All ranks call it: prints the prediction, and refuses what the device cannot hold, for all ranks that share it: names
 * the category to shrink, and how. */
void memory_plan(void);

/* At the end: measured beside predicted, and beside the playbook's formulas. */
void memory_print(void);

#endif
