/* Where a checkpoint lies: a directory that takes its place as a whole, and is opened as a whole. */
#ifndef CHECKPOINT_DIRECTORY_H
#define CHECKPOINT_DIRECTORY_H

#include <stdbool.h>

enum { MODEL_FILE, CONFIG_FILE, OPTIMIZER_FILE, TRAINER_FILE, CHECKPOINT_FILES };
extern const char *const checkpoint_file[CHECKPOINT_FILES];         /* their names: "model.safetensors", ... */

/* Removes a checkpoint's files from a directory, and the directory, if nothing else is in it. */
void directory_remove(const char *directory);

/* Puts the finished directory in the place of the old one. What a person has put among the old one's files meanwhile
 * stays there, in `finished`. */
void directory_replace(const char *finished, const char *directory);

typedef struct {
    char *path;
    int file;                           /* descriptor; below 0: it could not be opened, and is -errno */
} OpenFile;

/* A directory whose files were opened together, while it had its name: they are of one save, and stay readable when
 * another program puts the next one in its place. */
typedef struct {
    char *path;                         /* DIR, or DIR.old */
    int directory;                      /* descriptor */
    OpenFile file[CHECKPOINT_FILES];
} OpenDirectory;

/* Opens DIR, or DIR.old if that alone is there; fails if neither is. False: another program put the next one in its
 * place just then. */
bool directory_open(const char *directory, OpenDirectory *d);
OpenFile directory_file(const OpenDirectory *from, const char *name);   /* opens one more */
void directory_close(OpenDirectory *from);      /* who has read a file has closed it */

#endif
