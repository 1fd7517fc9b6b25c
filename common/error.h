/* What is wrong goes to a person in one line, "STAGE: what, with the values, and what would be right", and
 * every rank ends with the same status.
 */
#ifndef ERROR_H
#define ERROR_H

#include <stdarg.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the program on all ranks with status 1. While starting, every rank runs the same checks: the lowest rank
 * that fails prints its line. Later, the failing rank prints its line and takes the others with it. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* The same with status 2, for a command line that cannot be right. */
void fail_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Fails if standard output has not taken all that was printed: its disk is full, or it is closed. */
void fail_unprinted(void);

/* Memory of the host, zeroed, or a text as printf makes it; `what` is for the message if there is no more. free() takes
 * both. */
void *host_alloc(int64_t bytes, const char *what);
char *new_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Who speaks: the stage's name. */
void error_speaker(const char *stage);
const char *error_name(void);

/* How the line reaches a person, half-written files go and the program ends; comm/start.c sets it as soon as there are
 * other ranks. */
typedef void (*ErrorEnd)(const char *line, int status);
void error_end_with(ErrorEnd end);

/* On failure, removes what would be left half-written: a file or an empty directory, until forgotten. */
void error_cleanup(const char *path);
void error_cleanup_done(const char *path);
void error_cleanup_now(void);           /* only calls what a signal handler may */

#ifdef __cplusplus
}
#endif

#endif
