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
bool safetensors_is_float(const SafeTensor *t);         /* F64, F32, F16 or BF16 */

/* Reads `count` elements from element `first` on. F64, F32, F16 and BF16 are converted to doubles (double_out) or
 * floats; I64 is copied as int64_t; other types cannot be read. */
void safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, void *to,
                      bool double_out);

/* Creates a file of the tensors, whose name, dtype, dims and shape are given. All ranks call it; `create` is true on
 * one, which must return before the others call it. */
Safetensors safetensors_create(const char *path, const SafeTensor *tensors, int count, bool create);
void safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from);
void safetensors_close(Safetensors *s);         /* waits until everything has reached the disk */

#endif
