/* A plan as text: the query, the best grids, the reasons, the formulas with their numbers. */
#ifndef EXPLAIN_H
#define EXPLAIN_H

#include "search.h"

void print_query(const Query *q);
void print_table(const Query *q, const Candidates *c);          /* of each kind the fastest that fits */
void print_steps(const Query *q, const Candidates *c);          /* the reasons, in the playbook's three steps */
void print_advice(const Query *q, const Candidates *c);         /* what is odd about the question or the best grid */
void print_commands(const Query *q, const Grid *g);             /* how 09, Megatron-LM, nanotron, torchtitan run it */
void print_formulas(const Query *q, const Grid *g);             /* every formula with its numbers */
void write_csv(const Query *q, const Candidates *c, const char *file);  /* every candidate; fails if it cannot */

#endif
