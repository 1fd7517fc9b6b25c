/* The playbook's formulas, printed beside the tracked memory (memory.h), where several programs use the same one. */
#ifndef PLAYBOOK_H
#define PLAYBOOK_H

#include "options.h"

/* Estimates the bytes of the activations that blocks save for backward. rows: L s b, rows of the residual stream summed
 * over layers. Bytes: rows * h (34 + 5 a s / h); without attention's scores rows * h * 34; with the blocks' inputs
 * alone rows * h * 2. The table prints `note` behind the formula. */
void estimate_activations(Recompute recompute, double rows, const char *note);

#endif
