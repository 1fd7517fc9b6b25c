/* A plan as text: the query, the best grids, the reasons, the formulas with their numbers. */
#ifndef EXPLAIN_H
#define EXPLAIN_H

#include "search.h"

/* Searches and prints: of each kind of grid the fastest that fits, the reasons for the best in the playbook's three
 * steps, what is odd about the question, and how to run the best. explain: "best", or one grid as grid_read reads it:
 * prints every formula with its numbers instead; or NULL. csv: a file for every candidate, or NULL. Returns that grid,
 * or the best. Fails as search() does, if the text is no possible grid, or if it cannot write. */
Candidate print_plan(const Query *q, const char *explain, const char *csv);
void print_commands(const Query *q, const Grid *g);     /* how 09, Megatron-LM, nanotron, torchtitan run it */

#endif
