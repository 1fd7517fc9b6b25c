#include "refusals.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Files ---- */

char *slurp(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *all = NULL;
    size_t room = 0;

    *bytes = 0;
    if (!f)
        fail_msg("%s does not exist", path);
    do {
        all = realloc(all, room += 65536);
        *bytes += fread(all + *bytes, 1, room - 1 - *bytes, f);
    } while (*bytes == room - 1);
    fclose(f);
    all[*bytes] = 0;
    return all;
}

void spill(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(bytes, 1, count, f) != count || fclose(f))
        fail_msg("%s could not be written", path);
}

static void list_directory(FILE *to, const char *path)
{
    struct dirent **entry;
    const int count = scandir(path, &entry, NULL, alphasort);

    for (int i = 0; i < count; i++) {
        char *full;
        struct stat s;
        if (strcmp(entry[i]->d_name, ".") && strcmp(entry[i]->d_name, "..")) {
            assert_true(asprintf(&full, "%s/%s", path, entry[i]->d_name) > 0);
            assert_int_equal(lstat(full, &s), 0);
            uint64_t hash = 14695981039346656037u;                      /* FNV-1a */
            if (S_ISREG(s.st_mode)) {
                size_t bytes;
                char *text = slurp(full, &bytes);
                for (size_t k = 0; k < bytes; k++)
                    hash = (hash ^ (unsigned char)text[k]) * 1099511628211u;
                free(text);
            }
            fprintf(to, "%s mode %o, %lld bytes, hash %llx\n", full + strlen(temporary()) + 1, s.st_mode,
                    (long long)(S_ISREG(s.st_mode) ? s.st_size : 0), (unsigned long long)hash);
            if (S_ISDIR(s.st_mode))
                list_directory(to, full);
            free(full);
        }
        free(entry[i]);
    }
    if (count >= 0)
        free(entry);
}

char *listing(void)
{
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    list_directory(f, temporary());
    fclose(f);
    return text;
}

void assert_same_listing(char *before, char *after, const char *what)
{
    if (strcmp(before, after)) {
        size_t line = 0;
        for (size_t i = 0; before[i] && before[i] == after[i]; i++)
            line = before[i] == '\n' ? i + 1 : line;
        fail_msg("%s\nchanged files: before \"%.*s\", after \"%.*s\"", what, (int)strcspn(before + line, "\n"),
                 before + line, (int)strcspn(after + line, "\n"), after + line);
    }
    free(before);
    free(after);
}

/* ---- What a failure looks like ---- */

void assert_one_line(Result r, const char *what)
{
    const char *end = strchr(r.err, '\n');
    const bool more = end && end[1], hint = end && r.status == 2 && !strncmp(end + 1, "Try `" NAME " --help'", 13);

    if (strncmp(r.err, NAME ": ", strlen(NAME) + 2) || !end || (more && !(hint && !strchr(end + 1, '\n')[1])))
        fail_msg("%s\nstatus %d, and not one line that begins with \"" NAME ": \":\n%s", what, r.status, r.err);
    for (const char *c = r.err; c < end; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            fail_msg("%s\nprints control character %d:\n%s", what, *c, r.err);
    if (end - r.err < 35)
        fail_msg("%s\nprints too short a message: %s", what, r.err);
}

void assert_words(const char *text, const char *words, const char *what)
{
    char copy[512], *rest = copy;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(text, word + (*word == '!')) == (*word != '!'))
            fail_msg("%s\nthe message must %scontain \"%s\": %s", what, *word == '!' ? "not " : "",
                     word + (*word == '!'), text);
}

void fails(int status, const char *words, const char *format, ...)
{
    char command[8000], *before = listing();
    va_list list;

    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    Result r = run("timeout 15 %s", command);
    if (r.status == 124)
        fail_msg("%s\nhangs", command);
    if (r.status != status)
        fail_msg("%s\nends with status %d, not %d: %s", command, r.status, status, r.err);
    assert_one_line(r, command);
    assert_words(r.err, words, command);
    assert_same_listing(before, listing(), command);
    result_free(r);
}

void all_fail(const Case *cases)
{
    for (; cases->options; cases++)
        fails(cases->status, cases->words, CPU " " SMALL " %s", cases->options);
}

/* ---- The temporary directory: the same files before each test, none after it ---- */

pid_t process;

int clean_up(void **state)
{
    (void)state;
    if (process)
        kill(process, SIGKILL), waitpid(process, NULL, 0);
    process = 0;
    result_free(run("sh -c 'umount -l disk; chmod -R u+w .; rm -rf ./* ./.[!.]*'"));
    return 0;
}

int set_up(void **state)
{
    clean_up(state);            /* cmocka does not clean up after a set_up that failed */
    run_well("mv %s data.bin", token_file(2000, 97));
    run_well("mkdir adir");
    run_well("sh -c 'echo precious > adir/file; echo precious > afile; echo step,tokens,loss,precious > old.csv; mkfifo fifo'");
    run_well("ln -s nowhere alink");
    run_well(CPU " " SMALL " --steps 2 --save good --seed 7");
    return 0;
}

/* ---- A program to which something happens while it runs ---- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int process_out, process_err;
char *printed;           /* its output on stdout so far */

/* Appends output to *to until it contains `text`; NULL: until its end. False: it ended, or 15 seconds passed. */
static bool read_until(int file, char **to, const char *text)
{
    const double began = now();
    size_t length = strlen(*to);

    while (!text || !strstr(*to, text)) {
        struct pollfd p = {file, POLLIN, 0};
        char chunk[4096];
        if (now() - began > 15 || poll(&p, 1, 100) < 0)
            return false;
        if (!p.revents)
            continue;
        const ssize_t n = read(file, chunk, sizeof chunk);
        if (n <= 0)
            return false;
        *to = realloc(*to, length + n + 1);
        memcpy(*to + length, chunk, n);
        (*to)[length += n] = 0;
    }
    return true;
}

void start(const char *command)
{
    int out[2], err[2];
    char line[2048];

    snprintf(line, sizeof line, "exec %s", command);
    assert_int_equal(pipe(out) | pipe(err), 0);
    process = fork();
    if (process == 0) {
        dup2(out[1], 1), dup2(err[1], 2);
        close(out[0]), close(err[0]), close(out[1]), close(err[1]);
        if (chdir(temporary()))
            _exit(127);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    close(out[1]), close(err[1]);
    process_out = out[0], process_err = err[0];
    printed = strdup("");
    if (!read_until(process_out, &printed, "tokens per step\n"))
        fail_msg("%s\ndoes not begin to train: %s", command, printed);
}

Result end_process(double seconds)
{
    Result r = {.status = 124, .out = printed, .err = strdup("")};
    const double began = now();
    int status;

    while (waitpid(process, &status, WNOHANG) == 0 && (r.seconds = now() - began) < seconds)
        usleep(5000);
    if (r.seconds >= seconds)
        kill(process, SIGKILL), waitpid(process, &status, 0);
    else
        r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    process = 0;
    read_until(process_out, &r.out, NULL);
    read_until(process_err, &r.err, NULL);
    close(process_out), close(process_err);
    return r;
}
