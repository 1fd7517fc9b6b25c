/* What users of cuBLASLt share with matmul.cu: checked calls, one handle, one workspace. */
#ifndef CUBLAS_CUH
#define CUBLAS_CUH

#include <cublasLt.h>

#include "../tensor.h"

#define CUBLAS(call) cublas_check(call, #call, __FILE__, __LINE__)
void cublas_check(cublasStatus_t status, const char *call, const char *file, int line);

cublasLtHandle_t cublas_lt(void);
cudaDataType_t cuda_type(DType dtype);

/* Scratch memory, of the size that cuBLAS takes for itself on the largest GPUs. With memory of its own it would be free
 * to choose anew. */
static const int64_t WORKSPACE = 32 << 20;
void *matmul_workspace(void);

#endif
