#include "outputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"
#include "print.h"

static bool is_file(const char *path)           /* or not there yet; a link, such as /dev/stdout, is none */
{
    struct stat s;

    return lstat(path, &s) || S_ISREG(s.st_mode);
}

void output_check(const char *option, const char *path, const char *beginning)
{
    char start[64] = "";

    if (!path || comm_rank(world) || !is_file(path))
        return;
    FILE *f = fopen(path, "r");
    const size_t length = f ? fread(start, 1, sizeof start, f) : 0;
    if (f)
        fclose(f);
    if (length && !memmem(start, length, beginning, strlen(beginning)))
        fail("--%s %s: expected a new file or an earlier one of this option, but the first bytes of this one have no %s; "
             "use another name, or remove it", option, path, beginning);
    char *writing = output_begin(path);
    FILE *out = fopen(writing, "a");
    if (!out || (f && access(path, W_OK)))
        fail("--%s: cannot create %s: %s", option, path, strerror(errno));
    fclose(out);
    unlink(writing);
    free(writing);
}

char *output_begin(const char *path)
{
    char *written = path ? new_text(is_file(path) ? "%s.tmp" : "%s", path) : NULL;

    if (written && strcmp(written, path) && comm_rank(world) == 0)
        unlink(written);                        /* left by a program that was killed */
    return written;
}

void output_end(const char *option, char *written, const char *path)
{
    if (written && comm_rank(world) == 0 && strcmp(written, path) && rename(written, path))
        fail("--%s: %s could not be renamed to %s: %s", option, written, path, strerror(errno));
    free(written);
}

/* ---- Directories ---- */

char *directory_beside(const char *directory, const char *end)
{
    char name[PATH_MAX], target[PATH_MAX];

    snprintf(name, sizeof name, "%s", directory);
    for (int links = 0;; links++) {
        for (char *last = name + strlen(name) - 1; last > name && *last == '/'; last--)
            *last = 0;
        const ssize_t length = links < 8 ? readlink(name, target, sizeof target - 1) : -1;
        if (length < 0)
            return new_text("%s%s", name, end);
        target[length] = 0;
        char *slash = target[0] == '/' ? NULL : strrchr(name, '/'), *from = slash ? slash + 1 : name;
        snprintf(from, sizeof name - (from - name), "%s", target);      /* relative to the link's directory */
    }
}

static bool is_there(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0;
}

/* Returns whether the directory has a file that is none of `files`. */
static bool has_others(const char *directory, const char *const *files)
{
    DIR *d = opendir(directory);
    bool others = false;

    for (const struct dirent *e; d && (e = readdir(d));) {
        bool ours = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
        for (int i = 0; files[i]; i++)
            ours |= !strcmp(e->d_name, files[i]);
        others |= !ours;
    }
    if (d)
        closedir(d);
    return others;
}

static int64_t bytes_in(const char *directory, const char *const *files)
{
    int64_t bytes = 0;
    struct stat s;

    for (int i = 0; files[i]; i++)
        bytes += stat(format_text("%s/%s", directory, files[i]), &s) ? 0 : 512 * (int64_t)s.st_blocks;
    return bytes;
}

/* Tries what a save needs, and leaves all as it was. DIR becomes DIR.old and DIR again; if neither is there, an empty
 * one does. */
static void try_to_save(const char *directory, int lock, const char *const *files, int64_t bytes, int64_t largest)
{
    char *place = directory_beside(directory, ""), *tmp = directory_beside(directory, ".tmp");
    char *old = directory_beside(directory, ".old");
    const bool has_old = is_there(old);
    struct statvfs disk;
    struct stat s;

    if ((mkdir(tmp, 0755) && errno != EEXIST) || access(format_text("%s/", tmp), W_OK | X_OK))
        fail("--save %s: cannot create %s: %s", directory, tmp, strerror(errno));
    rmdir(tmp);                                 /* if it is empty */
    const bool created = !has_old && mkdir(place, 0755) == 0;
    const int error = !has_old && (rename(place, old) || rename(old, place)) ? errno : 0;
    if (created)
        rmdir(place);
    if (error)
        fail("--save %s: the next checkpoint will replace it, but it cannot be renamed to %s: %s%s", directory, old,
             strerror(error), error != EBUSY ? "" : format_text("; if it is a mount point, use --save %s/NAME", place));

    if (fstatvfs(lock, &disk) == 0 && disk.f_blocks) {          /* 0: a file system without this number */
        const double room = (double)disk.f_bavail * disk.f_frsize + bytes_in(tmp, files)
                            + (is_there(place) ? bytes_in(old, files) : 0);
        if (bytes > room)
            fail("--save %s: expected room for a checkpoint of %s, but its disk has %s", directory, bytes_text(bytes),
                 bytes_text(room));
    }
    if (fstat(lock, &s) == 0 && s.st_size == 0 && (ftruncate(lock, largest) || ftruncate(lock, 0)))
        fail("--save %s: a checkpoint has a file of %s, which cannot be created there: %s", directory,
             bytes_text(largest), strerror(errno));
    free(place), free(tmp), free(old);
}

void directory_claim(const char *directory, const char *const *files, int64_t bytes, int64_t largest)
{
    char *place = directory_beside(directory, ""), *tmp = directory_beside(directory, ".tmp");
    char *lock = directory_beside(directory, ".lock");
    struct stat s;

    const int file = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);    /* stays open until the program ends */
    if (file < 0)
        fail("--save %s: cannot create %s: %s", directory, lock, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)         /* some file systems have no locks */
        fail("--save %s: another program is saving there (it holds %s); use another name", directory, lock);
    if ((lstat(place, &s) == 0 && !S_ISDIR(s.st_mode)) || has_others(place, files) || has_others(tmp, files))
        fail("--save %s: expected a checkpoint or a new directory, because the next checkpoint replaces it, but it is "
             "a file or has other files; use another name, or move them out", directory);
    try_to_save(directory, file, files, bytes, largest);
    free(place), free(tmp), free(lock);
}

/* Removes DIR.old. If it has a user's files, moves them aside. */
static void discard(const char *old, const char *const *files)
{
    char aside[PATH_MAX];

    for (int i = 0; files[i]; i++)
        unlink(format_text("%s/%s", old, files[i]));
    if (rmdir(old) == 0 || !is_there(old))
        return;
    for (int i = 1; i == 1 || is_there(aside); i++)
        snprintf(aside, sizeof aside, "%s.%d", old, i);
    if (rename(old, aside) == 0)
        warn("%s has other files than a checkpoint's: moved aside to %s", old, aside);
}

void directory_replace(const char *directory, const char *const *files)
{
    char *place = directory_beside(directory, ""), *old = directory_beside(directory, ".old");
    char *tmp = directory_beside(directory, ".tmp");

    if (is_there(place))
        discard(old, files);
    if ((is_there(place) && rename(place, old)) || rename(tmp, place))
        fail("--save %s: %s is complete, but could not become %s, and that %s: %s; move it elsewhere, or load it from "
             "there", directory, tmp, place, old, strerror(errno));
    discard(old, files);
    free(place), free(old), free(tmp);
}
