/* What a person reads of a plan. */
#ifndef EXPLAIN_H
#define EXPLAIN_H

#include "search.h"

void print_question(const Question *q);
void print_table(const Question *q, const Choices *c);          /* the best ten */
void print_steps(const Question *q, const Choices *c);          /* why: the playbook's three steps */
void print_formulas(const Question *q, const Grid *g);          /* every formula, with its numbers */
void write_csv(const Choices *c, const char *file);

#endif
