/* What predict() says of memory (memory.h) and of traffic (comm.h), held against the machine before training, and
 * against what was measured.
 */
#ifndef PREDICTION_H
#define PREDICTION_H

#include <stdbool.h>

#include "comm.h"

/* Last in predict(), on all ranks: connects them (comm_connect), prints the prediction, and refuses what the device
 * cannot hold, for all ranks that share it: names the category to shrink, and how. */
void memory_plan(void);

/* At the end: measured beside predicted, and beside the playbook's formulas. */
void memory_print(void);

/* Whether a category took other bytes than predicted; says so on every rank, with --quiet too. */
bool memory_check(void);

/* After a step: whether a group sent anything else than predicted, call by call and byte by byte; says so. */
bool traffic_check(int step);
void traffic_print(void);                                       /* of the last step that was checked */
int traffic_of_step(const CommAccount **account);               /* the same for a report: how many */

#endif
