/* Errors: one line, "PROGRAM: what is wrong, with the values, and what would be right", and the same exit status on
 * every rank.
 */
#ifndef ERROR_H
#define ERROR_H

#include <stdarg.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the program on all ranks with status 1. During start-up every rank runs the same checks, and the lowest rank
 * that fails prints its line. Later, the failing rank prints its line and ends the others. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* As fail, with status 2: the command line is invalid. */
void fail_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Fails if standard output has not taken everything that was printed: its disk is full, or it is closed. */
void fail_unprinted(void);

/* Allocates zeroed host memory; fails with `what` if there is too little. The caller frees it. */
void *host_alloc(int64_t bytes, const char *what);

/* Formats a new string, like asprintf; fails if there is no memory. The caller frees it. */
char *new_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sets the program's name, with which error lines begin. */
void error_set_program(const char *program);
const char *error_name(void);

/* Sets the function that prints the line, removes unfinished files and ends the program. comm/start.c sets it once
 * there are other ranks. */
typedef void (*ErrorEnd)(const char *line, int status);
void error_end_with(ErrorEnd end);

/* Registers an unfinished file or an empty directory, which a failure removes; error_cleanup_done removes the entry. */
void error_cleanup(const char *path);
void error_cleanup_done(const char *path);
void error_cleanup_now(void);           /* removes all of them; safe in a signal handler */

#ifdef __cplusplus
}
#endif

#endif
