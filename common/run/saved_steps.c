#include "saved_steps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../base/error.h"
#include "../base/print.h"

char *saved_step(const char *directory, int64_t step)
{
    return new_text("%s/step-%lld", directory, (long long)step);
}

int64_t saved_steps_latest(const char *directory)
{
    const char *path = format_text("%s/latest", directory);
    FILE *f = fopen(path, "r");
    long long step = -1;
    char rest;

    if (!f && errno != ENOENT && errno != ENOTDIR)
        fail("%s: %s", path, strerror(errno));
    if (f && (fscanf(f, "step-%lld %c", &step, &rest) != 1 || step < 0))
        fail("%s: expected one line with the name of a checkpoint beside it, such as step-500", path);
    if (f)
        fclose(f);
    return step;
}

void saved_steps_claim(const char *directory, int64_t bytes, int64_t largest)
{
    const char *lock = format_text("%s/lock", directory);
    struct statvfs disk;
    struct stat s;

    if (mkdir(directory, 0777) && errno != EEXIST)
        fail("--save %s: cannot create this directory: %s", directory, strerror(errno));
    const int file = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);    /* stays open until the program ends */
    if (file < 0)
        fail("--save %s: cannot create %s: %s", directory, lock, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)         /* some file systems have no locks */
        fail("--save %s: another run is saving there (it holds %s); use another name", directory, lock);

    /* tries what a save needs, and leaves all as it was */
    const double room = fstatvfs(file, &disk) ? 0 : (double)disk.f_bavail * disk.f_frsize;
    if (room && bytes > room)                   /* 0: a file system without this number */
        fail("--save %s: expected room for %s of checkpoints, but its disk has %s", directory, bytes_text(bytes),
             bytes_text(room));
    if (fstat(file, &s) == 0 && s.st_size == 0 && (ftruncate(file, largest) || ftruncate(file, 0)))
        fail("--save %s: a checkpoint has a file of %s, which cannot be created there: %s", directory,
             bytes_text(largest), strerror(errno));
}

/* A crash of the machine loses no file that a directory lists, once the directory too has reached the disk. */
static void directory_sync(const char *path)
{
    const int directory = open(path, O_RDONLY | O_DIRECTORY);

    if (directory < 0)
        return;
    fsync(directory);                           /* file systems that cannot do this write directories at once */
    close(directory);
}

static void remove_files(const char *step, const char *const *files)
{
    for (int i = 0; files[i]; i++)
        unlink(format_text("%s/%s", step, files[i]));
}

void saved_steps_begin(const char *directory, int64_t step, const char *const *files)
{
    char *place = saved_step(directory, step);

    if (mkdir(place, 0777) && errno != EEXIST)
        fail("--save %s: cannot create %s: %s", directory, place, strerror(errno));
    remove_files(place, files);
    free(place);
}

static int is_step(const struct dirent *e)
{
    long long step;

    return sscanf(e->d_name, "step-%lld", &step) == 1 && !strcmp(e->d_name, format_text("step-%lld", step));
}

/* Removes the steps up to `last` but for the last `keep` that are complete. */
static void remove_before(const char *directory, int64_t last, const char *const *files, int keep)
{
    struct dirent **steps;
    int complete = 0;

    for (int i = scandir(directory, &steps, is_step, versionsort) - 1; i >= 0; free(steps[i--])) {
        char *place = new_text("%s/%s", directory, steps[i]->d_name);
        const bool is_complete = access(format_text("%s/%s", place, files[0]), F_OK) == 0;
        if (atoll(steps[i]->d_name + strlen("step-")) <= last && (!is_complete || ++complete > keep)) {
            remove_files(place, files);
            rmdir(place);                       /* unless the user has put files there */
        }
        free(place);
    }
    free(steps);
}

void saved_steps_end(const char *directory, int64_t step, const char *const *files, int keep)
{
    char *place = saved_step(directory, step), *latest = new_text("%s/latest", directory);
    char *tmp = new_text("%s/latest.tmp", directory);

    directory_sync(place);
    FILE *f = fopen(tmp, "w");
    if (!f || fprintf(f, "step-%lld\n", (long long)step) < 0 || fflush(f) || fsync(fileno(f)) || fclose(f)
        || rename(tmp, latest))
        fail("--save %s: %s is complete, but %s cannot be written: %s; --load %s resumes from it", directory, place,
             latest, strerror(errno), place);
    directory_sync(directory);
    remove_before(directory, step, files, keep);
    free(place), free(latest), free(tmp);
}
