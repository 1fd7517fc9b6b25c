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

/* Whether it is no file that another could take the place of. What rank 0 sees counts. */
static bool is_direct(const char *path)
{
    struct stat s;

    comm_agree();                       /* a rank that failed would not come here */
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
        fail("--%s %s: it is a link to what is not there: %s", option, path, strerror(errno));
    if (real)
        free(place);
    return real ? real : place;
}

/* The descriptor stays open until the process ends. */
static void hold(const char *option, const char *given, const char *path)
{
    struct stat mine, there;

    for (;;) {
        const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0)
            fail("--%s %s cannot be written: %s cannot be made: %s", option, given, path, strerror(errno));
        if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)     /* some file systems have no locks */
            fail("--%s %s: another program that is running, or another option of this one, writes there (it holds %s); "
                 "name another place", option, given, path);
        if (fstat(file, &mine) == 0 && mine.st_size)
            fail("--%s %s: %s would be its lock, an empty file, but has %lld bytes; move it", option, given, path,
                 (long long)mine.st_size);
        if (stat(path, &there) == 0 && same(&mine, &there))
            return;
        close(file);                            /* who had it has ended meanwhile, and removed it */
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
    if (comm_rank(world))                       /* not sooner: another program's lock is not ours to remove */
        error_cleanup(path);
    free(path);
}

char *output_claim(const char *option, const char *path, bool directory)
{
    if (!path)
        return NULL;
    if (!directory && is_direct(path)) {
        if (comm_rank(world) == 0 && open(path, O_WRONLY) < 0)  /* stays open: a pipe's reader leaves with its writer */
            fail("--%s %s cannot be written: %s", option, path, strerror(errno));
        return strdup(path);
    }
    char *place = output_place(option, path), *tmp = new_text("%s.tmp", place);
    take_lock(option, path, place);
    error_cleanup(tmp);                         /* by whichever rank fails */
    if (comm_rank(world) == 0) {
        if (!directory)
            unlink(tmp);                        /* of a program that was killed */
        const int file = directory ? mkdir(tmp, 0755) : open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (file < 0 && !(directory && errno == EEXIST))
            fail("--%s %s cannot be written: %s cannot be made: %s", option, path, tmp, strerror(errno));
        if (!directory)
            close(file);
    }
    comm_agree();
    if (access(tmp, W_OK))
        fail("--%s %s: rank 0 has made %s, but rank %d doesn't find it: all ranks need one file system", option, path,
             tmp, comm_rank(world));
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
