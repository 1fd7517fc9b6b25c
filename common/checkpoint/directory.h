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

/* A directory whose files were opened together, while it had its name: they are of one save, and stay readable when
 * another program puts the next one in its place. */
typedef struct {
    char *path;                         /* DIR, or DIR.old; for messages */
    int directory;                      /* descriptors: its own, */
    int file[CHECKPOINT_FILES];         /* and the files'; -1: not opened, and error is the errno that says why */
    int error[CHECKPOINT_FILES];
} OpenDirectory;

/* Opens DIR, or DIR.old if that alone is there; fails if neither is. False: another program put the next one in its
 * place just then. */
bool directory_open(const char *directory, OpenDirectory *d);
int directory_open_file(const OpenDirectory *from, const char *name);   /* one more file; -1: not, and errno says why */
void directory_close(OpenDirectory *from);              /* the directory; files stay open */

#endif
