/* For tests: cmocka, and programs that are started (process.h). */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../tools/workshop/process.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"     /* each test gets cmocka's state, which few need */

/* Fails the test and shows the command's output unless its status is right, or with FAILS any but 0, and it printed all
 * of these words, which | separates. Frees the result. */
enum { FAILS = -1 };
void expect(Result r, int status, const char *words);

/* Calls a function, which should end by fail(), in a child process. It has ten seconds and one thread, so that an
 * operator that starts its work may wait forever. The result has no `out`. */
Result run_function(void (*function)(const void *), const void *argument);

/* Returns the number that follows these words in a text. */
double number_after(const char *text, const char *words);

/* Writes a file in the temporary directory. Returns its path. */
const char *write_file(const char *name, const void *bytes, size_t count);

bool full_tests(void);          /* make test-full: run all cases */

#endif
