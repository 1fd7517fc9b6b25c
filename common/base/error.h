/* Errors: one line, "PROGRAM: what is wrong, with the values, and what would be right". */
#ifndef ERROR_H
#define ERROR_H

#include <stdint.h>

/* Prints the line and ends the program on all ranks: with status 1, or 2 for an invalid command line. Mistakes that
 * several ranks find at once are printed by the lowest: the others wait a second or two before they print. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void fail_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Fails if something printed could not be written. Call it before the program ends. */
void fail_unprinted(void);

/* Allocates zeroed host memory; fails with `what` if there is too little. The caller frees it. */
void *host_alloc(int64_t bytes, const char *what);

/* Formats a new string, like asprintf. The caller frees it. */
char *new_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

void error_set_program(const char *program);                    /* first of all: from then on a line is one write */
void error_set_rank(int rank, void (*end)(int status));         /* end: ends all ranks; NULL: there is one */
const char *error_name(void);

#endif
