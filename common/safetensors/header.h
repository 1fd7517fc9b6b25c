/* What the files of safetensors/ share. */
#ifndef SAFETENSORS_HEADER_H
#define SAFETENSORS_HEADER_H

#include "../safetensors.h"

#define LENGTH_BYTES 8                          /* of the header's length, at the start of the file */
#define METADATA "__metadata__"
#define CHECKPOINT "checkpoint"                 /* the entry of METADATA that is ours */

/* Reads and checks the header of an open file, and fills in its tensors. NULL, or what is wrong. */
char *header_read(Safetensors *s);

int element_bytes(const char *dtype);           /* 0: there is no such dtype */

/* The memory asked for, which is small next to a tensor: without it there is no message to hand back either. */
void *have(void *memory);

/* "PATH: what is wrong", in a new string. Names come from the file: whatever isn't plain ASCII turns into '?', so that
 * the message stays one line and cannot steer the terminal. */
char *problem(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

char *read_bytes(const Safetensors *s, int64_t first, int64_t bytes, void *to);

#endif
