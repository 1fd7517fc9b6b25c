#include "directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../checkpoint.h"
#include "../comm.h"
#include "../error.h"
#include "../lock.h"
#include "../print.h"

const char *const checkpoint_file[CHECKPOINT_FILES] = {
    [MODEL_FILE] = "model.safetensors", [CONFIG_FILE] = "config.json", [OPTIMIZER_FILE] = "optimizer.safetensors",
    [TRAINER_FILE] = "trainer.json"};

char *path_of(const char *directory, const char *suffix, const char *file)
{
    char *plain = strdup(directory), *real = NULL, *path;
    struct stat s;

    for (size_t length = plain ? strlen(plain) : 0; length > 1 && plain[length - 1] == '/';)     /* "DIR/" is DIR */
        plain[--length] = 0;
    if (plain && lstat(plain, &s) == 0 && S_ISLNK(s.st_mode))
        real = realpath(plain, NULL);
    if (!plain || asprintf(&path, "%s%s%s%s", real ? real : plain, suffix, file ? "/" : "", file ? file : "") < 0)
        fail("no memory for a path");
    free(plain);
    free(real);
    return path;
}

static bool exists(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0;
}

/* ---- Before training: may it be written? ---- */

static bool is_empty_directory(const char *path)
{
    DIR *d = opendir(path);
    int count = 0;

    while (d && readdir(d))
        count++;
    if (d)
        closedir(d);
    return count == 2;                          /* . and .. */
}

static bool is_same(const char *a, const char *b)
{
    struct stat s, t;

    return stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Whether another directory can be put in the place of this one: not of a disk's mount point, of "." and "..", or of
 * where this program runs, by whatever name: other files that it writes would go with the old one. */
static bool is_replaceable(const char *directory)
{
    const char *slash = strrchr(directory, '/'), *name = slash ? slash + 1 : directory;
    char *parent = path_of(directory, "", "..");
    struct stat here, above;
    const bool there = stat(directory, &here) == 0 && stat(parent, &above) == 0;

    free(parent);
    return strcmp(name, ".") && strcmp(name, "..") && !(there && here.st_dev != above.st_dev)
           && !is_same(directory, ".");
}

/* Whether all in a directory has the names of a checkpoint's files; so too if it isn't there. */
static bool is_ours(const char *directory)
{
    DIR *d = opendir(directory);
    bool ours = true;

    for (const struct dirent *e; d && (e = readdir(d));) {
        bool known = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
        for (int i = 0; i < CHECKPOINT_FILES; i++)
            known |= !strcmp(e->d_name, checkpoint_file[i]);
        ours &= known;
    }
    if (d)
        closedir(d);
    return ours;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), n = strlen(end);

    return length >= n && !strcmp(text + length - n, end);
}

/* An empty directory may be replaced, a checkpoint too; anything else is somebody's. */
static void check_place(const char *directory, const char *plain, const char *tmp, const char *load)
{
    char *trainer = path_of(directory, "", checkpoint_file[TRAINER_FILE]);
    struct stat s;

    if (ends_with(plain, ".tmp") || ends_with(plain, ".old") || ends_with(plain, ".lock"))
        fail("--save %s: names that end in .tmp, .old or .lock are those of what --save makes beside a checkpoint, and "
             "removes", directory);
    if (stat(directory, &s) == 0 && S_ISDIR(s.st_mode) && access(directory, R_OK | W_OK | X_OK))
        fail("--save %s: it is there, but cannot be changed: %s", directory, strerror(errno));
    if (exists(directory) && !exists(trainer) && !is_empty_directory(directory))
        fail("--save %s: it is there and is not a checkpoint (it has no trainer.json); name another directory",
             directory);
    if (lstat(plain, &s) == 0 && !exists(plain))
        fail("--save %s: it is a link to a directory that is not there; make that directory", directory);
    if (!is_replaceable(plain))
        fail("--save %s: a checkpoint takes the place of the old one, but nothing can take that of \".\", of \"..\", "
             "of the directory that this runs in, or of where a disk is mounted; name a directory inside", directory);
    if (load && is_same(load, tmp))
        fail("--load %s is where --save %s is written until it is complete; give --save another name", load,
             directory);
    if (!is_ours(tmp) || (lstat(tmp, &s) == 0 && !S_ISDIR(s.st_mode)))
        fail("--save %s: %s is where it is written until it is complete, but other files are there; move them",
             directory, tmp);
    free(trainer);
}

void checkpoint_claim(const char *directory, const char *load)
{
    char *plain = path_of(directory, "", NULL), *tmp = path_of(directory, ".tmp", NULL);
    bool made = false;

    if (comm_rank(world) == 0)
        check_place(directory, plain, tmp, load);
    lock_take("save", directory, plain);        /* two programs would write into each other's DIR.tmp */
    if (comm_rank(world) == 0) {
        made = mkdir(tmp, 0755) == 0;
        if (!made && (errno != EEXIST || access(tmp, W_OK | X_OK)))     /* it is there if a program was killed */
            fail("--save %s: %s cannot be made: %s", directory, tmp, strerror(errno));
        if (made)
            error_cleanup(tmp);
    }
    comm_agree();
    if (!exists(tmp))
        fail("--save %s: rank 0 has made %s, but rank %d doesn't find it: all ranks need one file system", directory,
             tmp, comm_rank(world));
    comm_agree();
    if (made) {
        rmdir(tmp);
        error_cleanup_done(tmp);
    }
    free(plain);
    free(tmp);
}

/* ---- Saving ---- */

void directory_remove(const char *directory)
{
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        char *path = path_of(directory, "", checkpoint_file[i]);
        unlink(path);
        free(path);
    }
    rmdir(directory);
}

/* What a person put beside a checkpoint's files (a tokenizer, notes) goes on into the new one. */
static void keep_others(const char *from, const char *to)
{
    DIR *d = opendir(from);

    for (const struct dirent *e; d && (e = readdir(d));) {
        char *old = path_of(from, "", e->d_name), *new = path_of(to, "", e->d_name);
        if (!exists(new))
            rename(old, new);
        free(old);
        free(new);
    }
    if (d)
        closedir(d);
}

void directory_replace(const char *finished, const char *directory)
{
    if (!exists(directory)) {
        if (rename(finished, directory))
            fail("%s could not be renamed to %s: %s", finished, directory, strerror(errno));
        return;
    }
    if (renameat2(AT_FDCWD, finished, AT_FDCWD, directory, RENAME_EXCHANGE) == 0) {
        keep_others(finished, directory);
        directory_remove(finished);
        return;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        fail("%s could not be put in the place of %s: %s", finished, directory, strerror(errno));
    /* not every file system can: for a moment only the old one is there */
    char *old = path_of(directory, ".old", NULL);
    directory_remove(old);
    if (rename(directory, old) || rename(finished, directory))
        fail("%s could not be renamed to %s (what was there is %s): %s", finished, directory, old, strerror(errno));
    keep_others(old, directory);
    directory_remove(old);
    free(old);
}

/* ---- Loading ---- */

/* DIR, or DIR.old, if that alone is there. */
static char *path_to_load(const char *directory, bool *old)
{
    char *given = path_of(directory, "", NULL), *before = path_of(directory, ".old", NULL);

    *old = !exists(given) && exists(before);
    free(*old ? given : before);
    return *old ? before : given;
}

int directory_open_file(const OpenDirectory *from, const char *name)
{
    return openat(from->directory, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);    /* a pipe would wait for a writer */
}

/* Opens what is there. False: a file may be missing because it was just taken away. If all are there, or the directory
 * still has its name, none was. */
static bool open_files(OpenDirectory *d)
{
    struct stat opened, named;
    bool all = true;

    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        d->file[i] = directory_open_file(d, checkpoint_file[i]);
        d->error[i] = d->file[i] < 0 ? errno : 0;
        all &= d->file[i] >= 0;
    }
    return all || (fstat(d->directory, &opened) == 0 && stat(d->path, &named) == 0 && opened.st_dev == named.st_dev
                   && opened.st_ino == named.st_ino);
}

OpenDirectory directory_open(const char *directory)
{
    enum { TRIES = 100 };               /* one fails only if another program puts a checkpoint there just then */

    for (int left = TRIES; ; left--) {
        bool old;
        OpenDirectory d = {.path = path_to_load(directory, &old)};
        d.directory = open(d.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (d.directory < 0 && !left)
            fail("--load %s: %s", d.path, strerror(errno));
        if (d.directory >= 0 && open_files(&d)) {
            if (old)
                print_rank_0("%s is not there, but %s is: the program that saved it was stopped half-way; using that\n",
                             directory, d.path);
            return d;
        }
        if (!left)
            fail("--load %s: another program replaced it %d times while its files were opened", d.path, TRIES);
        for (int i = 0; d.directory >= 0 && i < CHECKPOINT_FILES; i++)
            if (d.file[i] >= 0)
                close(d.file[i]);
        directory_close(&d);
    }
}

void directory_close(OpenDirectory *d)
{
    if (d->directory >= 0)
        close(d->directory);
    free(d->path);
    *d = (OpenDirectory){.directory = -1};
}
