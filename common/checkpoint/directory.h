/* A checkpoint's directory: replaced in one step, and opened as one checkpoint. */
#ifndef CHECKPOINT_DIRECTORY_H
#define CHECKPOINT_DIRECTORY_H

#include <stdbool.h>

enum { MODEL_FILE, CONFIG_FILE, OPTIMIZER_FILE, TRAINER_FILE, CHECKPOINT_FILES };
extern const char *const checkpoint_file[CHECKPOINT_FILES];         /* their names: "model.safetensors", ... */

/* Removes a checkpoint's files from a directory, and the directory if nothing else is in it. */
void directory_remove(const char *directory);

/* Puts the finished directory in place of the old one. Files that the user has added to the old one stay, in
 * `finished`. */
void directory_replace(const char *finished, const char *directory);

typedef struct {
    char *path;
    int file;                           /* descriptor; below 0: opening failed with -errno */
} OpenFile;

/* A directory whose files were opened together, before another one took its place: they are of one save, and stay
 * readable when another program saves the next checkpoint. */
typedef struct {
    char *path;                         /* DIR, or DIR.old */
    int directory;                      /* descriptor */
    OpenFile file[CHECKPOINT_FILES];
} OpenDirectory;

/* Opens DIR, or DIR.old if only that exists; fails if neither does. Returns false if another program replaced the
 * directory meanwhile. */
bool directory_open(const char *directory, OpenDirectory *d);
OpenFile directory_file(const OpenDirectory *from, const char *name);   /* opens one more file */
void directory_close(OpenDirectory *from);      /* readers of the files have closed them */

#endif
