/* For the tests of bad input. set_up makes a directory of good and bad files. fails expects a command to fail with one
 * line and to change no file. start and end_process run a program to which a test does something meanwhile.
 */
#ifndef REFUSALS_H
#define REFUSALS_H

#include <sys/types.h>

#include "../harness.h"

#define NAME "01_single_gpu"
#define CPU BUILD "/cpu/" NAME
#define CPU64 BUILD "/cpu64/" NAME

/* A step takes a tenth of a millisecond on one thread. Fast simulated hardware saves measuring this machine. */
#define SHAPE "--layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --accumulate 1 --warmup 1 " \
              "--threads 1 --data data.bin"
#define SMALL SHAPE " --pretend 1e6,1e6,0 --steps 3"

/* Run before and after each test. The temporary directory has data.bin, a checkpoint `good`, and the user's files. */
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, clean_up)
int set_up(void **state);
int clean_up(void **state);

/* ---- Files ---- */

char *slurp(const char *path, size_t *bytes);                   /* all bytes of a file; the caller frees them */
void spill(const char *path, const void *bytes, size_t count);

char *listing(void);            /* one line per file in the temporary directory, with a hash of its contents */
void assert_same_listing(char *before, char *after, const char *what);          /* frees both */

/* ---- What a failure looks like ---- */

/* Expects one line that begins with the program's name. argp adds a second one to its own messages, of status 2. */
void assert_one_line(Result r, const char *what);

/* Expects each of `words`, separated by |, in `text`; words after a ! must not be in it. */
void assert_words(const char *text, const char *words, const char *what);

/* Runs a command that must end with this status and one line with these words, and change no file. */
void fails(int status, const char *words, const char *format, ...) __attribute__((format(printf, 3, 4)));

typedef struct {
    const char *options;
    int status;
    const char *words;          /* as in assert_words */
} Case;

void all_fail(const Case *cases);               /* runs 01 with each case's options; ends with {0} */

/* ---- A program to which something happens while it runs ---- */

extern pid_t process;           /* 0: none */

void start(const char *command);                /* returns when the program is ready to train */
Result end_process(double seconds);             /* waits for its end; kills it after `seconds`: status 124 */

#endif
