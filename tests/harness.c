#include "../common/base/error.h"    /* before cmocka, whose macro is called fail too */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail_test(int status)
{
    fail_msg("status %d", status);
}

/* What process.h finds wrong fails the test that runs, and the next test goes on. */
__attribute__((constructor)) static void fail_tests(void)
{
    error_set_rank(0, fail_test);
}

bool full_tests(void)
{
    const char *which = getenv("ULTRASCALE_TESTS");

    return which && !strcmp(which, "full");
}

double number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    double x;

    if (!at || sscanf(at + strlen(words), "%lf", &x) != 1)
        fail_msg("no number after \"%s\" in:\n%s", words, text);
    return x;
}

const char *write_file(const char *name, const void *bytes, size_t count)
{
    const char *path = in_temporary("%s", name);
    FILE *f = fopen(path, "wb");

    assert_true(f && fwrite(bytes, 1, count, f) == count && fclose(f) == 0);
    return path;
}

void expect(Result r, int status, const char *words)
{
    char copy[1024], *rest = copy;
    bool good = status == FAILS ? r.status != 0 : r.status == status;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; good && (word = strsep(&rest, "|"));)
        good = strstr(r.out, word) || strstr(r.err, word);
    if (!good) {
        fprintf(stderr, "%s%s", r.out, r.err);          /* fail_msg shows only 1,024 characters */
        fail_msg("status %d from %s, expected %s%d and \"%s\"", r.status, r.command, status == FAILS ? "not " : "",
                 status == FAILS ? 0 : status, words);
    }
    result_free(r);
}

Result run_function(void (*function)(const void *), const void *argument)
{
    Result r = {.err = calloc(1, 8192)};
    int ends[2], status;
    size_t length = 0;

    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);               /* comm.h may have a handler */
        alarm(10);
        dup2(ends[1], STDERR_FILENO);
        error_set_rank(0, _exit);               /* exit would remove the temporary directory */
        function(argument);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], r.err + length, 8191 - length)) > 0;)
        length += n;
    close(ends[0]);
    waitpid(child, &status, 0);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return r;
}
