#include "outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"
#include "lock.h"

/* Devices, pipes and links (/dev/stdout) are written to directly, as renaming would replace them, and by whoever wants
 * to; other files are for one program at a time. What rank 0 sees counts. */
static bool take_file(const char *option, const char *path)
{
    struct stat s;

    comm_agree();                       /* a rank that failed would not come here */
    if (comm_sum(world, comm_rank(world) == 0 && lstat(path, &s) == 0 && !S_ISREG(s.st_mode)) > 0)
        return false;
    lock_take(option, path, path);
    return true;
}

char *output_claim(const char *option, const char *path)
{
    char *tmp;

    if (!path)
        return NULL;
    const bool direct = !take_file(option, path);
    if (asprintf(&tmp, "%s%s", path, direct ? "" : ".tmp") < 0)
        fail("no memory for a path");
    if (!direct)
        error_cleanup(tmp);             /* by whichever rank fails */
    if (comm_rank(world))
        return tmp;
    const int file = open(tmp, O_WRONLY | O_CREAT, 0644);
    if (file < 0)
        fail("--%s %s cannot be written: %s", option, path, strerror(errno));
    if (direct)
        return tmp;                     /* stays open: the reader of a pipe would leave with its only writer */
    close(file);
    return tmp;
}

bool output_is_stdout(const char *path)
{
    struct stat s, out;

    return stat(path, &s) == 0 && fstat(STDOUT_FILENO, &out) == 0 && s.st_dev == out.st_dev && s.st_ino == out.st_ino;
}

void output_find(const char *option, const char *tmp, const char *path)
{
    if (tmp && strcmp(tmp, path) && access(tmp, W_OK))
        fail("--%s %s: rank 0 has made %s, but rank %d doesn't find it: all ranks need one file system", option, path,
             tmp, comm_rank(world));
}

void output_deliver(const char *option, const char *tmp, const char *path)
{
    if (comm_rank(world) == 0 && strcmp(tmp, path) && rename(tmp, path))
        fail("--%s %s cannot be put in place: %s", option, path, strerror(errno));
    error_cleanup_done(tmp);
}

FILE *output_append(const char *option, const char *path)
{
    struct stat s;

    if (path)
        take_file(option, path);
    if (!path || comm_rank(world))
        return NULL;
    const bool there = lstat(path, &s) == 0;         /* a link, wherever it leads, is not ours to remove */
    FILE *f = output_is_stdout(path) ? fdopen(dup(STDOUT_FILENO), "a") : fopen(path, "a");
    if (!f)
        fail("--%s %s cannot be written: %s", option, path, strerror(errno));
    if (!there)
        error_cleanup(path);
    return f;
}

void output_empty(const char *path)
{
    struct stat s;

    if (path && stat(path, &s) == 0 && S_ISREG(s.st_mode) && !output_is_stdout(path) && truncate(path, 0))
        fail("%s cannot be written: %s", path, strerror(errno));
}
