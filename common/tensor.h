/* Tensors: a pointer, a name, a type, a shape. Always contiguous and row-major, passed by value.
 *
 * A tensor owns nothing: allocate.h takes memory for it and gives it back; views and ranges are other ways to look at
 * the same memory.
 */
#ifndef TENSOR_H
#define TENSOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What common/ computes in: float, or double in build/cpu64, where layouts are compared. */
#ifdef REAL64
typedef double real;
#define REAL F64
#else
typedef float real;
#define REAL F32
#endif

/* How elements are stored. Operators compute in `real`, whatever the storage: formats.h has the four small ones. */
typedef enum { F64, F32, BF16, F16, E4M3, E5M2, I32 } DType;

typedef struct {
    void *data;             /* on the device; NULL: no tensor */
    const char *name;       /* for messages: "qkv", "blocks.3.qkv_weight"; not copied */
    DType dtype;
    int dims;
    int64_t shape[4];
    float *scale;           /* on the device: what the elements of an fp8 tensor are multiplied with; NULL: 1 */
} Tensor;

typedef struct {
    int dims;
    int64_t n[4];
} Shape;

#define shape(...) ((Shape){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})
#define NONE ((Tensor){0})

typedef struct {            /* so many elements (or rows, or bytes) from the first on */
    int64_t first, count;
} Range;

/* Part r of `count` things cut n ways: [count*r/n, count*(r+1)/n). The one rule by which vocabulary,
 * layers, shards and elements are cut; the parts differ by at most one and leave nothing over. */
Range range_part(int64_t count, int r, int n);

/* What each of n ranks has of `count`, which n must divide: otherwise fails, and what is divided begins the message
 * ("--heads"). */
int64_t equal_share(int64_t count, int n, const char *what);

Tensor tensor_view(Tensor t, Shape shape);                      /* the same elements in another shape */
Tensor tensor_range(Tensor t, int64_t first, int64_t count);    /* rows of dimension 0; elements, if t is flat */

int64_t tensor_count(Tensor t);                                 /* elements; 0 for NONE */
int64_t tensor_bytes(Tensor t);
int64_t tensor_rows(Tensor t);                                  /* all dimensions but the last, multiplied */
int64_t tensor_width(Tensor t);                                 /* the last dimension */
int dtype_size(DType dtype);                                    /* bytes of an element */
const char *dtype_name(DType dtype);                            /* as in safetensors: "F32", "F8_E4M3" */

/* "qkv is (8, 128, 384)", for messages; a new string, which the caller frees. */
char *tensor_describe(Tensor t);

#ifdef __cplusplus
}
#endif

#endif
