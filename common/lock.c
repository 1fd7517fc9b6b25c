#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"

enum { LOCKS = 8 };                     /* --save and four files */
static char *taken[LOCKS];

/* The descriptor stays open until the process ends. */
static void hold(const char *option, const char *given, const char *path)
{
    struct stat mine, there;

    for (;;) {
        const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0)
            fail("--%s %s cannot be written: %s cannot be made: %s", option, given, path, strerror(errno));
        if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)     /* some file systems have no locks */
            fail("--%s %s: another program that is running writes there (it holds %s); wait for it, or name another "
                 "place", option, given, path);
        if (fstat(file, &mine) == 0 && mine.st_size)
            fail("--%s %s: %s would be its lock, an empty file, but has %lld bytes; move it", option, given, path,
                 (long long)mine.st_size);
        if (stat(path, &there) == 0 && mine.st_ino == there.st_ino)
            return;
        close(file);                            /* who had it has ended meanwhile, and removed it */
    }
}

void lock_take(const char *option, const char *given, const char *place)
{
    char **path = taken;

    while (*path)
        path++;
    if (asprintf(path, "%s.lock", place) < 0)
        fail("no memory for a path");
    if (comm_rank(world) == 0) {
        hold(option, given, *path);
        error_cleanup(*path);
    }
    comm_agree();
    if (comm_rank(world))                       /* not sooner: another program's lock is not ours to remove */
        error_cleanup(*path);
}

void lock_release_all(void)
{
    for (char **path = taken; *path; path++) {
        if (comm_rank(world) == 0)
            unlink(*path);
        error_cleanup_done(*path);
        free(*path);
        *path = NULL;
    }
}
