/* The book's pages multiply no matrices, so these are declared only. */
#include <stdint.h>

enum { CblasRowMajor, CblasNoTrans, CblasTrans };
void cblas_sgemm(int order, int a_transposed, int b_transposed, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
