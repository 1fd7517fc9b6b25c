/* What the tests of bad input share: a directory of good and of bad files, commands that must fail with one clear line
 * and leave every file as it was, and programs that are met while they run.
 */
#ifndef REFUSALS_H
#define REFUSALS_H

#include <sys/types.h>

#include "../harness.h"

#define NAME "01_single_gpu"
#define CPU BUILD "/cpu/" NAME
#define CPU64 BUILD "/cpu64/" NAME

/* A step takes a tenth of a millisecond on one thread; pretending a fast machine saves measuring this one. */
#define SHAPE "--layers 1 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --accumulate 1 --warmup 1 " \
              "--threads 1 --data data.bin"
#define SMALL SHAPE " --pretend 1e6,1e6,0 --steps 3"

/* Before and after each test: in the temporary directory are data.bin, a checkpoint good, and files of others. */
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, clean_up)
int set_up(void **state);
int clean_up(void **state);

/* ---- Files ---- */

char *slurp(const char *path, size_t *bytes);                   /* the caller frees it */
void spill(const char *path, const void *bytes, size_t count);

char *listing(void);            /* every file in the temporary directory with its contents, as a line of text */
void assert_same_listing(char *before, char *after, const char *what);          /* frees both */

/* ---- What a failure looks like ---- */

/* One line that begins with the program's name. argp adds a second one to its own messages, all with status 2. */
void assert_one_line(Result r, const char *what);

/* `words` are parts of the message, with | between them; what follows a ! must not be in it. */
void assert_words(const char *text, const char *words, const char *what);

/* Runs a command that must fail in the described way, and leave every file as it was. */
void fails(int status, const char *words, const char *format, ...) __attribute__((format(printf, 3, 4)));

typedef struct {
    const char *options;
    int status;
    const char *words;          /* as in assert_words */
} Case;

void all_fail(const Case *cases);               /* 01 with these options; ends with {0} */

/* ---- A program that is met while it runs ---- */

extern pid_t process;           /* 0: none */

void start(const char *command);                /* and waits until it is ready to train */
Result end_process(double seconds);             /* waits for its end; status 124 if that takes longer than this */

#endif
