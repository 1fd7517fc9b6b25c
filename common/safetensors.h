/* The safetensors format: 8 bytes, little-endian, with the header's length; a JSON header with each tensor's dtype,
 * shape and byte range; then the data. https://github.com/huggingface/safetensors
 *
 * Reads and writes take ranges of elements, so that each rank handles only what it owns.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    char *name;
    char dtype[8];                  /* "F32", "F64", "I64", ... as in the file */
    int dims;                       /* 0: a scalar, one element */
    int64_t shape[4];
    int64_t first_byte, bytes;      /* first_byte counts from the start of the file */
} SafeTensor;

typedef struct {
    char *path;                     /* for messages */
    char *checkpoint;               /* the text "checkpoint" in __metadata__: which one the file belongs to; or NULL */
    int file;                       /* descriptor, open for reading or for writing; -1: closed */
    int count;
    SafeTensor *tensors;            /* ordered by first_byte */
} Safetensors;

/* Opens a file and checks its header, whoever wrote it: every length and offset lies within the file, ranges neither
 * overlap nor leave a hole, names are unique, dtype and shape give the bytes. Returns NULL, or what is wrong: a new
 * string with the path and the values ("x.safetensors: the header claims 99 bytes, but the file has 40"); *s is then
 * closed and empty. */
char *safetensors_open(Safetensors *s, const char *path);

/* As safetensors_open, for a file that is open (-1: opening failed; errno has the reason). *s owns the descriptor. */
char *safetensors_take(Safetensors *s, const char *path, int file);

/* Returns the tensor of that name, or NULL. */
const SafeTensor *safetensors_find(const Safetensors *s, const char *name);

/* Reads `count` elements from element `first` on. F64, F32, F16 and BF16 are converted to doubles (double_out) or
 * floats; I64 is copied as int64_t, and double_out is ignored. Returns NULL, or what is wrong. */
char *safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, void *to,
                       bool double_out);

/* Writing. safetensors_lay_out takes each tensor's name, dtype, dims and shape, and `checkpoint` or NULL, and computes
 * the offsets in this order; spaces pad the header so that data starts at a multiple of 8. Every rank calls it and gets
 * the same offsets, if their `checkpoint` texts have the same length. Then one rank calls safetensors_create, which
 * writes the header and gives the file its full length, and the others call safetensors_join, which opens that file.
 * All but safetensors_lay_out return NULL, or what is wrong. */
void safetensors_lay_out(Safetensors *s, const char *path, const SafeTensor *tensors, int count,
                         const char *checkpoint);
char *safetensors_create(Safetensors *s);
char *safetensors_join(Safetensors *s);
char *safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from);

/* Closes the file and frees what *s holds; with `sync`, waits until everything written has reached the disk. Returns
 * NULL, or what is wrong (a full disk shows here at the latest). */
char *safetensors_close(Safetensors *s, bool sync);

#endif
