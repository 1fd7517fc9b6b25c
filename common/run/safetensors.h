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
    int file;                       /* its file's index in Safetensors' `file` */
} SafeTensor;

typedef struct {
    int count, files;
    SafeTensor *tensors;
    struct SafeFile {
        char *path;
        int descriptor;
    } *file;                        /* a large model is in several */
    bool written;                   /* by this program */
} Safetensors;

/* Opens a file. Fails as the format's reference implementation does: unless each tensor has the bytes of its dtype and
 * shape, the tensors' bytes follow each other and are all of the file after its header, and no two have one name. */
Safetensors safetensors_open(const char *path);

/* Opens the model that save_pretrained wrote to a directory: model.safetensors, or each tensor from the file that
 * model.safetensors.index.json names for it. */
Safetensors safetensors_open_model(const char *directory);
const SafeTensor *safetensors_find(const Safetensors *s, const char *name);     /* NULL: not there */
const char *safetensors_path(const Safetensors *s, const SafeTensor *t);        /* the file that has this tensor */

/* Reads `count` elements from element `first` on, of F64, F32, F16, BF16 or I64; other types cannot be read. */
void safetensors_read(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, double *to);

/* Creates a file of the tensors, whose name, dtype, dims and shape are given. All ranks that write to it call it with
 * the same tensors: each writes the header, and what the others wrote stays. */
Safetensors safetensors_create(const char *path, const SafeTensor *tensors, int count);
void safetensors_write(const Safetensors *s, const SafeTensor *t, int64_t first, int64_t count, const void *from);
void safetensors_close(Safetensors *s);         /* waits until everything has reached the disk */

#endif
