/* The safetensors format: 8 bytes, little-endian, with the header's length; a JSON header with each tensor's dtype,
 * shape and byte range; then the data. https://github.com/huggingface/safetensors
 *
 * Reads and writes take ranges of elements, so that each rank handles only what it owns. Errors end the program.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    char name[96];
    char dtype[16];                 /* "F32", "F64", "I64", "F8_E4M3", ... as in the file */
    int dims;                       /* 0: a scalar, one element */
    int64_t shape[4];               /* of more dimensions the first four */
    int64_t first_byte, bytes;      /* first_byte counts from the start of the file */
} SafeTensor;

typedef struct {
    char *path;
    int file;
    bool written;                   /* by this program */
    int count;
    SafeTensor *tensors;
} Safetensors;

/* Opens a file. Checks that each tensor has the bytes of its dtype and shape, after the header and within the file. */
Safetensors safetensors_open(const char *path);
const SafeTensor *safetensors_find(const Safetensors *s, const char *name);     /* NULL: not there */

/* Reads `count` elements from element `first` on, of F64, F32, F16, BF16 or I64; other types cannot be read. */
void safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, double *to);

/* Creates a file of the tensors, whose name, dtype, dims and shape are given. All ranks that write to it call it with
 * the same tensors: each writes the header, and what the others wrote stays. */
Safetensors safetensors_create(const char *path, const SafeTensor *tensors, int count);
void safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from);
void safetensors_close(Safetensors *s);         /* waits until everything has reached the disk */

#endif
