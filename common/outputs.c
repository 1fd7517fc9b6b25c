#include "outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_stdout(const char *path)
{
    struct stat s, out;

    return stat(path, &s) == 0 && fstat(STDOUT_FILENO, &out) == 0 && same(&s, &out);
}

/* Returns whether `path` is written directly, because no file could replace it; rank 0 decides. */
static bool is_direct(const char *path)
{
    struct stat s;

    comm_agree();                       /* if a rank failed, all end here */
    const bool direct = stat(path, &s) == 0 && (!S_ISREG(s.st_mode) || is_stdout(path));
    return comm_sum(world, comm_rank(world) == 0 && direct) > 0;
}

char *output_place(const char *option, const char *path)
{
    char *place = new_text("%s", path);
    struct stat s;

    for (size_t length = strlen(place); length > 1 && place[length - 1] == '/';)
        place[--length] = 0;
    char *real = realpath(place, NULL);
    if (!real && lstat(place, &s) == 0)
        fail("--%s %s: the link's target is not there: %s", option, path, strerror(errno));
    if (real)
        free(place);
    return real ? real : place;
}

/* Locks the file `path`. The descriptor stays open until the process ends. */
static void hold(const char *option, const char *given, const char *path)
{
    struct stat mine, there;

    for (;;) {
        const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0)
            fail("--%s %s cannot be written: %s cannot be made: %s", option, given, path, strerror(errno));
        if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)     /* some file systems have no locks */
            fail("--%s %s: another program, or another option of this one, is writing there (it holds %s); use another "
                 "name", option, given, path);
        if (fstat(file, &mine) == 0 && mine.st_size)
            fail("--%s %s: expected an empty lock file %s, but it has %lld bytes; move it", option, given, path,
                 (long long)mine.st_size);
        if (stat(path, &there) == 0 && same(&mine, &there))
            return;
        close(file);                            /* the lock's run has ended and removed the file: try again */
    }
}

static void take_lock(const char *option, const char *given, const char *place)
{
    char *path = new_text("%s.lock", place);

    if (comm_rank(world) == 0) {
        hold(option, given, path);
        error_cleanup(path);
    }
    comm_agree();
    if (comm_rank(world))                       /* not sooner: it could be another program's lock */
        error_cleanup(path);
    free(path);
}

/* Fails if an output would replace a file that its option did not write. An empty file is nobody's. */
static void refuse_others(const char *option, const char *path)
{
    static const struct { const char *option, *mark; } kinds[] = {
        {"metrics", "step,tokens,loss,"}, {"report", "{\"ranks\": ["}, {"trace", "[\n{\"name\":\"process_name\""},
        {"dump-gradients", "\"batch.inputs\":"}};         /* the last one is not at the beginning, but in the header */
    enum { HEADER = 1 << 24, KINDS = sizeof kinds / sizeof *kinds };
    FILE *f = comm_rank(world) == 0 ? fopen(path, "r") : NULL;

    for (int i = 0; f && i < KINDS; i++) {
        const size_t length = strlen(kinds[i].mark), within = i < KINDS - 1 ? length : HEADER;
        char *text = host_alloc(within, path);
        const size_t count = strcmp(option, kinds[i].option) ? 0 : fread(text, 1, within, f);
        if (count && !memmem(text, count, kinds[i].mark, length))
            fail("--%s %s: the file that is there was not written by --%s; move it, or use another name", option, path,
                 option);
        free(text);
    }
    if (f)
        fclose(f);
}

char *output_claim(const char *option, const char *path, bool directory)
{
    if (!path)
        return NULL;
    if (!directory && is_direct(path)) {
        if (comm_rank(world) == 0 && open(path, O_WRONLY) < 0)  /* stays open: a pipe's reader ends with its writer */
            fail("--%s %s cannot be written: %s", option, path, strerror(errno));
        return strdup(path);
    }
    char *place = output_place(option, path), *tmp = new_text("%s.tmp", place);
    take_lock(option, path, place);
    if (!directory)
        refuse_others(option, path);
    error_cleanup(tmp);                         /* on every rank, since any may fail */
    if (comm_rank(world) == 0) {
        if (!directory)
            unlink(tmp);                        /* left by a program that was killed */
        const int file = directory ? mkdir(tmp, 0755) : open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (file < 0 && !(directory && errno == EEXIST))
            fail("--%s %s cannot be written: %s cannot be made: %s", option, path, tmp, strerror(errno));
        if (!directory)
            close(file);
    }
    comm_agree();
    if (access(tmp, W_OK))
        fail("--%s %s: rank 0 has made %s, but rank %d cannot find it: all ranks must share one file system", option,
             path, tmp, comm_rank(world));
    free(place);
    return tmp;
}

void output_deliver(const char *option, const char *tmp, const char *path)
{
    char *place = comm_rank(world) == 0 && strcmp(tmp, path) ? output_place(option, path) : NULL;

    if (place && rename(tmp, place))
        fail("--%s %s cannot be put in place: %s", option, path, strerror(errno));
    error_cleanup_done(tmp);
    free(place);
}

FILE *output_append(const char *option, const char *path, bool *rows)
{
    if (!path)
        return NULL;
    *rows = !is_direct(path);
    if (*rows) {
        char *place = output_place(option, path);
        take_lock(option, path, place);
        refuse_others(option, path);
        free(place);
    }
    if (comm_rank(world))
        return NULL;
    const bool there = access(path, F_OK) == 0;
    FILE *f = is_stdout(path) ? fdopen(dup(STDOUT_FILENO), "a") : fopen(path, "a");
    if (!f)
        fail("--%s %s cannot be written: %s", option, path, strerror(errno));
    if (!there)
        error_cleanup(path);
    return f;
}
