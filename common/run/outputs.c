#include "outputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../comm/comm.h"
#include "../base/error.h"
#include "../base/print.h"

static bool is_file(const char *path)           /* or not there yet; a link, such as /dev/stdout, is none */
{
    struct stat s;

    return lstat(path, &s) || S_ISREG(s.st_mode);
}

void output_check(const char *option, const char *path, const char *beginning)
{
    char start[64];

    if (!path || comm_rank(world) || !is_file(path))
        return;
    const bool is_new = access(path, F_OK);
    FILE *f = fopen(path, "a+");
    if (!f)
        fail("--%s: cannot create %s: %s", option, path, strerror(errno));
    const size_t length = fread(start, 1, sizeof start, f);
    fclose(f);
    if (length && !memmem(start, length, beginning, strlen(beginning)))
        fail("--%s %s: expected a new file or an earlier one of this option, but the first bytes of this one have no "
             "%s; use another name, or remove it", option, path, beginning);
    if (is_new)
        unlink(path);                           /* a run that fails leaves none */
}

FILE *output_open(const char *option, const char *path, bool first)
{
    FILE *f = fopen(path, first && is_file(path) ? "w" : "a");

    if (!f)
        fail("--%s %s cannot be written: %s", option, path, strerror(errno));
    return f;
}

void output_close(const char *option, const char *path, FILE *f)
{
    if (ferror(f) | fclose(f))
        fail("--%s %s could not be written: %s", option, path, strerror(errno));
}

/* ---- Directories ---- */

char *directory_beside(const char *directory, const char *end)
{
    int length = strlen(directory);

    while (length > 1 && directory[length - 1] == '/')
        length--;
    return new_text("%.*s%s", length, directory, end);
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

void directory_claim(const char *directory, const char *const *files, int64_t bytes, int64_t largest)
{
    char *place = directory_beside(directory, ""), *tmp = directory_beside(directory, ".tmp");
    char *old = directory_beside(directory, ".old"), *lock = directory_beside(directory, ".lock");
    struct statvfs disk;
    struct stat s;

    const int file = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);    /* stays open until the program ends */
    if (file < 0)
        fail("--save %s: cannot create %s: %s", directory, lock, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)         /* some file systems have no locks */
        fail("--save %s: another program is saving there (it holds %s); use another name", directory, lock);
    if ((lstat(place, &s) == 0 && !S_ISDIR(s.st_mode)) || has_others(place, files) || has_others(tmp, files)
        || has_others(old, files))
        fail("--save %s: expected a checkpoint or a new directory, because the next checkpoint replaces it and %s, but "
             "one is a file or link, or has other files; use another name, or move them out", directory, old);

    /* tries what a save needs, and leaves all as it was */
    if ((mkdir(tmp, 0755) && errno != EEXIST) || access(format_text("%s/", tmp), W_OK | X_OK))
        fail("--save %s: cannot create %s: %s", directory, tmp, strerror(errno));
    rmdir(tmp);                                 /* if it is empty */
    const double room = fstatvfs(file, &disk) ? 0 : (double)disk.f_bavail * disk.f_frsize;
    if (room && bytes > room)                   /* 0: a file system without this number */
        fail("--save %s: expected room for a checkpoint of %s, but its disk has %s", directory, bytes_text(bytes),
             bytes_text(room));
    if (fstat(file, &s) == 0 && s.st_size == 0 && (ftruncate(file, largest) || ftruncate(file, 0)))
        fail("--save %s: a checkpoint has a file of %s, which cannot be created there: %s", directory,
             bytes_text(largest), strerror(errno));
    free(place), free(tmp), free(old), free(lock);
}

static void remove_files(const char *directory, const char *const *files)
{
    for (int i = 0; files[i]; i++)
        unlink(format_text("%s/%s", directory, files[i]));
    rmdir(directory);
}

void directory_replace(const char *directory, const char *const *files)
{
    char *place = directory_beside(directory, ""), *old = directory_beside(directory, ".old");
    char *tmp = directory_beside(directory, ".tmp");
    const bool replaces = access(place, F_OK) == 0;

    if (replaces)
        remove_files(old, files);
    if ((replaces && rename(place, old)) || rename(tmp, place))
        fail("--save %s: %s is complete, but could not become %s, and that %s: %s; move it elsewhere, or load it from "
             "there", directory, tmp, place, old, strerror(errno));
    remove_files(old, files);
    free(place), free(old), free(tmp);
}
