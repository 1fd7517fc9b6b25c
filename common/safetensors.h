/* The safetensors format: 8 bytes, little-endian, of header length; a JSON header that says of every tensor its
 * dtype, shape and byte range; then the bytes. https://github.com/huggingface/safetensors
 *
 * Both directions work on ranges of elements, so that each rank reads and writes only what it owns.
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
    char *checkpoint;               /* __metadata__'s text of that name: which one the file is of; NULL: it has none */
    int file;                       /* descriptor, open for reading or for writing; -1: closed */
    int count;
    SafeTensor *tensors;            /* ordered by first_byte */
} Safetensors;

/* Reads and checks the header of a file, whoever wrote it: every length and offset lies within the file, ranges
 * don't overlap and leave no hole, names are unique, dtype and shape give the bytes. Returns NULL if all is well,
 * else what is wrong, in a new string, with the path and the values ("x.safetensors: the header claims 99 bytes,
 * but the file has 40"); *s is then closed and empty. Data is read later, by safetensors_read. */
char *safetensors_open(Safetensors *s, const char *path);

/* The same of a file that is open already (-1: it could not be opened; errno says why). *s owns the descriptor. */
char *safetensors_take(Safetensors *s, const char *path, int file);

/* The tensor of that name; NULL if there is none. */
const SafeTensor *safetensors_find(const Safetensors *s, const char *name);

/* `count` elements from element `first` on, converted from the file's F64, F32, F16 or BF16 to doubles or floats
 * (double_out), or copied as they are for I64 (to int64_t; double_out is not looked at). NULL, or what is wrong. */
char *safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, void *to,
                       bool double_out);

/* A file to write: give name, dtype, dims and shape of each tensor, and `checkpoint` or NULL; offsets are computed, in
 * this order, and the header is padded with spaces so that data starts at a multiple of 8. safetensors_lay_out does
 * only the computing (each rank does it and gets the same numbers, for a `checkpoint` of the same length);
 * safetensors_create also writes the header and gives the file its full length (one rank); safetensors_join opens what
 * another rank created. NULL, or what is wrong. */
void safetensors_lay_out(Safetensors *s, const char *path, const SafeTensor *tensors, int count,
                         const char *checkpoint);
char *safetensors_create(Safetensors *s);
char *safetensors_join(Safetensors *s);
char *safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from);

/* Closes; with `sync`, after everything written has reached the disk. NULL, or what is wrong (a full disk shows
 * here at the latest). Frees what the struct holds. */
char *safetensors_close(Safetensors *s, bool sync);

#endif
