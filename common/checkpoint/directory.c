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
#include "../outputs.h"
#include "../print.h"

const char *const checkpoint_file[CHECKPOINT_FILES] = {
    [MODEL_FILE] = "model.safetensors", [CONFIG_FILE] = "config.json", [OPTIMIZER_FILE] = "optimizer.safetensors",
    [TRAINER_FILE] = "trainer.json"};

/* ---- Before training: checking the place ---- */

static bool is_same(const char *a, const char *b)
{
    struct stat s, t;

    return stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Returns how many of a checkpoint's files a directory has, 0 if it is missing; -1: it has others, or is no
 * directory. */
static int files_in(const char *path)
{
    struct stat s;
    int count = 0;

    if (lstat(path, &s))
        return 0;
    DIR *d = S_ISDIR(s.st_mode) ? opendir(path) : NULL;
    for (const struct dirent *e; d && count >= 0 && (e = readdir(d));) {
        bool known = false;
        for (int i = 0; i < CHECKPOINT_FILES; i++)
            known |= !strcmp(e->d_name, checkpoint_file[i]);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            count = known ? count + 1 : -1;
    }
    if (d)
        closedir(d);
    return d ? count : -1;
}

/* Fails unless the place is free, empty, or has a checkpoint alone: anything else is not ours to replace. */
static void check_place(const char *directory, const char *load)
{
    char *place = output_place("save", directory), *tmp = new_text("%s.tmp", place);
    char *above = new_text("%s/..", place), *trainer = new_text("%s/%s", place, checkpoint_file[TRAINER_FILE]);
    struct stat here, there;
    const int files = files_in(place);

    if (files < 0 || (files > 0 && access(trainer, F_OK)))
        fail("--save %s: expected a checkpoint or an empty directory, but this is not a checkpoint: that has a "
             "trainer.json and no files but its own; use another directory", directory);
    if (files > 0 && access(place, W_OK | X_OK))
        fail("--save %s cannot be changed: %s", directory, strerror(errno));
    if (stat(place, &here) == 0 && stat(above, &there) == 0 && (here.st_dev != there.st_dev || is_same(place, ".")))
        fail("--save %s: a new checkpoint replaces the directory, but this is one that the program runs in, or where a "
             "disk is mounted; name a directory inside it", directory);
    if (load && is_same(load, tmp))
        fail("--load %s: --save %s writes there until it is complete; give --save another name", load, directory);
    if (files_in(tmp) < 0)
        fail("--save %s: it is written to %s until it is complete, but something else is there; move it", directory,
             tmp);
    free(place);
    free(tmp);
    free(above);
    free(trainer);
}

void checkpoint_claim(const char *directory, const char *load)
{
    if (comm_rank(world) == 0)
        check_place(directory, load);
    free(output_claim("save", directory, true));
}

/* ---- Saving ---- */

void directory_remove(const char *directory)
{
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        char *path = new_text("%s/%s", directory, checkpoint_file[i]);
        unlink(path);
        free(path);
    }
    rmdir(directory);
}

void directory_replace(const char *finished, const char *directory)
{
    if (renameat2(AT_FDCWD, finished, AT_FDCWD, directory, RENAME_EXCHANGE) == 0) {
        directory_remove(finished);
        return;
    }
    /* there is none yet, or the file system cannot exchange them: then for a moment only DIR.old exists */
    char *old = new_text("%s.old", directory);
    const bool there = access(directory, F_OK) == 0;
    if (there)
        directory_remove(old);
    if ((there && rename(directory, old)) || rename(finished, directory))
        fail("%s could not be renamed to %s (the previous one is %s): %s", finished, directory, old, strerror(errno));
    if (there)
        directory_remove(old);
    free(old);
}

/* ---- Loading ---- */

OpenFile directory_file(const OpenDirectory *from, const char *name)
{
    const int file = openat(from->directory, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);  /* without waiting for a pipe */

    return (OpenFile){new_text("%s/%s", from->path, name), file < 0 ? -errno : file};
}

bool directory_open(const char *directory, OpenDirectory *d)
{
    char *place = output_place("load", directory);
    struct stat opened, named;
    bool all = true;

    *d = (OpenDirectory){.directory = -1};
    for (int i = 0; i < 3 && d->directory < 0 && (i == 0 || errno == ENOENT); i++) {    /* DIR, DIR.old, DIR again */
        free(d->path);
        d->path = i == 1 ? new_text("%s.old", place) : strdup(directory);
        d->directory = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (d->directory >= 0 && i == 1)
            print_rank_0("%s is missing, but %s is there: a program was stopped while it saved; loading that one\n",
                         directory, d->path);
    }
    if (d->directory < 0)
        fail("--load %s: %s", directory, strerror(errno));
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        d->file[i] = directory_file(d, checkpoint_file[i]);
        all &= d->file[i].file >= 0;
    }
    free(place);
    /* a missing file may just have been replaced, but not if the directory still has its name */
    if (all || (fstat(d->directory, &opened) == 0 && stat(d->path, &named) == 0 && opened.st_dev == named.st_dev
                && opened.st_ino == named.st_ino))
        return true;
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        if (d->file[i].file >= 0)
            close(d->file[i].file);
    directory_close(d);
    return false;
}

void directory_close(OpenDirectory *d)
{
    close(d->directory);
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        free(d->file[i].path);
    free(d->path);
}
