/* Tensors: a pointer, a name, a dtype, a shape. Always contiguous and row-major, passed by value.
 *
 * A tensor owns no memory: allocate.h allocates and frees it. Views and ranges share the memory of their tensor.
 */
#ifndef TENSOR_H
#define TENSOR_H

#include <stdint.h>

/* The type that common/ computes in: float, or double in build/cpu64, where parallel configurations are compared. */
#ifdef REAL64
typedef double real;
#define REAL F64
#else
typedef float real;
#define REAL F32
#endif

/* How elements are stored. Operators compute in `real` for every dtype. formats.h has the four small formats. */
typedef enum { F64, F32, BF16, F16, E4M3, E5M2, I32 } DType;

/* Which elements of an fp8 tensor share a scale: all, 128 of a row, 128 of each of 128 rows, 32 of a row. */
typedef enum { PER_TENSOR, PER_1X128, PER_128X128, PER_1X32 } Scaling;

typedef struct {
    void *data;             /* on the device; NULL: no tensor */
    const char *name;       /* for messages: "qkv", "blocks.3.qkv_weight"; not copied */
    DType dtype;
    int dims;
    int64_t shape[4];
    float *scale;           /* on the device: the factor of an fp8 tensor's elements, or factors; NULL: 1 */
    Scaling scaling;        /* which elements share a factor */
} Tensor;

typedef struct {
    int dims;
    int64_t n[4];
} Shape;

#define shape(...) ((Shape){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})
#define NONE ((Tensor){0})

typedef struct {            /* [first, first + count), of elements, rows, or bytes */
    int64_t first, count;
} Range;

/* Splits `count` things n ways and returns shard r: [count*r/n, count*(r+1)/n). Vocabulary, layers and elements are all
 * split by this rule. n need not divide count: sizes differ by at most one. */
Range range_split(int64_t count, int r, int n);
/* As range_split, but of even cost: the last range costs as much as `more` elements beside its own, of which it has at
 * least one, so it is shorter than the others. */
Range range_split_last(int64_t count, double more, int r, int n);

/* Returns count / n. Fails if n does not divide count; `what` ("--heads") begins the message. */
int64_t equal_share(int64_t count, int n, const char *what);

Tensor tensor_view(Tensor t, Shape shape);                      /* the same elements in another shape */
Tensor tensor_range(Tensor t, int64_t first, int64_t count);    /* rows [first, first + count) of dimension 0 */

int64_t tensor_count(Tensor t);                                 /* elements; 0 for NONE */
int64_t tensor_bytes(Tensor t);
int64_t tensor_rows(Tensor t);                                  /* the product of all dimensions but the last */
int64_t tensor_width(Tensor t);                                 /* the last dimension */
int dtype_size(DType dtype);                                    /* bytes per element */
const char *dtype_name(DType dtype);                            /* as in safetensors: "F32", "F8_E4M3" */

const char *tensor_describe(Tensor t);                          /* "qkv is (8, 128, 384)", a format_text of print.h */

#endif
