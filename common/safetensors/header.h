/* Declarations that the files of safetensors/ share. */
#ifndef SAFETENSORS_HEADER_H
#define SAFETENSORS_HEADER_H

#include "../safetensors.h"

#define LENGTH_BYTES 8                          /* of the header's length, at the start of the file */
#define METADATA "__metadata__"
#define CHECKPOINT "checkpoint"                 /* our entry of METADATA */

/* Reads and checks the header of an open file, and fills in its tensors. Returns NULL, or what is wrong. */
char *header_read(Safetensors *s);

int element_bytes(const char *dtype);           /* 0: unknown dtype */

/* Returns `memory`; if it is NULL, aborts. Only for small allocations, without which no error could be returned
 * either. */
void *have(void *memory);

/* Returns "PATH: what is wrong" in a new string. Names come from the file: characters that are not plain ASCII become
 * '?', so that the message stays one line and cannot control the terminal. */
char *problem(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reads bytes [first, first + bytes) of the file. Returns NULL, or what is wrong. */
char *read_bytes(const Safetensors *s, int64_t first, int64_t bytes, void *to);

#endif
