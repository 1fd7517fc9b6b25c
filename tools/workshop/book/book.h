/* What the pages of the book ask the project's C: a word and name=value arguments, which a form or a puzzle has. */
#ifndef BOOK_H
#define BOOK_H

typedef struct {
    int count;
    char **name, **value;
} Given;

const char *given_text(Given g, const char *name, const char *otherwise);
int given_number(Given g, const char *name, int otherwise, int least, int most);    /* fails outside of least to most */

/* A puzzle has goals: name=the most that is allowed. If `name` is one, prints whether `value` reaches it, a line that
 * the page reads: "goal: steps: 3 (at most 2): not yet". */
void goal(Given g, const char *name, const char *what, double value);

/* The next word of a typed text, up to a space or the end of its line; at the end of the line NULL, and *text is at the
 * next line or at the end. */
const char *next_word(const char **text);

/* ---- each prints what a page draws, and fails with one line if the question is wrong ---- */
void schedule(Given g);             /* book_schedule.c: 06's schedules, or typed lists of actions */
void collective(Given g);           /* book_collectives.c: 00's algorithms, or typed sends */
void attention(Given g);            /* book_attention.c: ring attention for typed sequence chunks */
void routing(Given g);              /* book_routing.c: 10's router for typed choices */

#endif
