/* What the playbook's formulas give, printed beside what was measured (memory.h), where several programs take the
 * same. */
#ifndef PLAYBOOK_H
#define PLAYBOOK_H

#include "options.h"

/* Bytes of the activations that blocks keep, for so many rows of the residual stream in all layers together (L s b):
 * rows * h (34 + 5 a s / h); without scores, rows * h * 34; with blocks' inputs alone, rows * h * 2. The note is
 * printed behind the formula. */
void playbook_activations(Recompute recompute, double rows, const char *note);

#endif
