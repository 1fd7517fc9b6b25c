/* cuBLAS and cuBLASLt, as far as the project calls them: matmuls in double, which refuse what NVIDIA documents as
 * unsupported. Matrices are column-major. */
#include <cblas.h>
#include <cmath>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_fp8.h>
#include <map>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "runtime.h"

static int size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : 2;
}

static bool is_half(cudaDataType_t type)
{
    return type == CUDA_R_16BF || type == CUDA_R_16F;
}

static bool is_fp8(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static float get(const uint8_t *data, cudaDataType_t type, int64_t i)
{
    switch (type) {
    case CUDA_R_32F:
        return ((const float *)data)[i];
    case CUDA_R_16BF:
        return float_of_bfloat(((const uint16_t *)data)[i]);
    case CUDA_R_16F:
        return float_of_half(((const uint16_t *)data)[i]);
    case CUDA_R_8F_E4M3:
        return (float)((const __nv_fp8_e4m3 *)data)[i];
    case CUDA_R_8F_E5M2:
        return (float)((const __nv_fp8_e5m2 *)data)[i];
    default:
        simulated_error("cuBLAS: a matrix of type %d is not simulated", type);
    }
}

static void put(uint8_t *data, cudaDataType_t type, int64_t i, double x)
{
    if (type == CUDA_R_32F)
        ((float *)data)[i] = (float)x;
    else if (is_half(type))
        ((uint16_t *)data)[i] = type == CUDA_R_16BF ? bfloat_of((float)x) : half_of((float)x);
    else
        simulated_error("cuBLAS: a product of type %d is not simulated", type);
}

static float tf32(float x)                      /* 10 bits of mantissa */
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* A matrix, or several; transposed: as an operand. Rows and columns are those that lie in memory. */
struct Matrix {
    const void *data;
    cudaDataType_t type;
    int64_t rows, columns, ld, stride;
    bool transposed;

    uint64_t address(int64_t i) const
    {
        return (uint64_t)data + i * stride * size_of(type);
    }
};

/* Checks each column's access. What lies between columns is not the matrix's. */
static uint8_t *access(const Matrix &m, int64_t i, bool writes)
{
    const uint64_t column = m.ld * size_of(m.type), bytes = m.rows * size_of(m.type);

    for (int64_t j = 0; j < m.columns; j++)
        global_memory.access_all(m.address(i) + j * column, bytes, writes);
    return global_memory.data + (m.address(i) - global_memory.base);
}

static std::vector<double> doubles(const Matrix &m, int64_t i, bool rounded)
{
    const uint8_t *data = access(m, i, false);
    std::vector<double> x(m.rows * m.columns);

    for (int64_t c = 0; c < m.columns; c++)
        for (int64_t r = 0; r < m.rows; r++) {
            const float y = get(data, m.type, c * m.ld + r);
            x[c * m.rows + r] = rounded ? tf32(y) : y;
        }
    return x;
}

/* Returns a times b, m by n, of matrix i. */
static std::vector<double> product(const Matrix &a, const Matrix &b, int64_t i, bool rounded)
{
    const int64_t m = a.transposed ? a.columns : a.rows, k = a.transposed ? a.rows : a.columns;
    const int64_t n = b.transposed ? b.rows : b.columns;
    const std::vector<double> x = doubles(a, i, rounded), y = doubles(b, i, rounded);
    std::vector<double> z(m * n);

    openblas_set_num_threads(1);                /* ranks share the cores */
    cblas_dgemm(CblasColMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, m, n,
                k, 1, x.data(), a.rows, y.data(), b.rows, 0, z.data(), m);
    return z;
}

extern "C" {

/* ---- cuBLAS ---- */

static cudaStream_t cublas_stream;

cublasStatus_t cublasGemmStridedBatchedEx_64(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m,
                                             int64_t n, int64_t k, const void *alpha, const void *a,
                                             cudaDataType_t type_a, int64_t ld_a, long long stride_a, const void *b,
                                             cudaDataType_t type_b, int64_t ld_b, long long stride_b, const void *beta,
                                             void *c, cudaDataType_t type_c, int64_t ld_c, long long stride_c,
                                             int64_t count, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
    const Matrix of_a = {a, type_a, ta ? k : m, ta ? m : k, ld_a, stride_a, ta};
    const Matrix of_b = {b, type_b, tb ? n : k, tb ? k : n, ld_b, stride_b, tb};
    const Matrix of_c = {c, type_c, m, n, ld_c, stride_c, false};
    const float scale = *(const float *)alpha, old = *(const float *)beta;         /* read at the call, not later */

    if (m <= 0 || n <= 0 || k <= 0 || count <= 0 || ld_a < of_a.rows || ld_b < of_b.rows || ld_c < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (type_a != type_b || (type_c != type_a && !(type_c == CUDA_R_32F && is_half(type_a)))
        || (compute != CUBLAS_COMPUTE_32F && type_a != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    enqueue(cublas_stream, "cublasGemmStridedBatchedEx", [=] {
        for (int64_t i = 0; i < count; i++) {
            const std::vector<double> x = product(of_a, of_b, i, compute == CUBLAS_COMPUTE_32F_FAST_TF32);
            if (old != 0)
                access(of_c, i, false);
            uint8_t *to = access(of_c, i, true);
            for (int64_t j = 0; j < m * n; j++) {
                const int64_t at = j / m * ld_c + j % m;
                put(to, type_c, at, scale * x[j] + (old != 0 ? old * get(to, type_c, at) : 0));
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t type_a, int ld_a, const void *b,
                            cudaDataType_t type_b, int ld_b, const void *beta, void *c, cudaDataType_t type_c, int ld_c,
                            cublasComputeType_t compute, cublasGemmAlgo_t how)
{
    return cublasGemmStridedBatchedEx_64(h, op_a, op_b, m, n, k, alpha, a, type_a, ld_a, 0, b, type_b, ld_b, 0, beta, c,
                                         type_c, ld_c, 0, 1, compute, how);
}

/* Calls that are one statement here. A handle is any address. */
#define CUBLAS_CALL(call, ...) cublasStatus_t call { __VA_ARGS__; return CUBLAS_STATUS_SUCCESS; }

CUBLAS_CALL(cublasCreate_v2(cublasHandle_t *handle), *handle = (cublasHandle_t)&cublas_stream)
CUBLAS_CALL(cublasDestroy_v2(cublasHandle_t))
CUBLAS_CALL(cublasSetStream_v2(cublasHandle_t, cudaStream_t stream), cublas_stream = stream)
CUBLAS_CALL(cublasSetWorkspace_v2(cublasHandle_t, void *, size_t))
CUBLAS_CALL(cublasSetMathMode(cublasHandle_t, cublasMath_t))

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}

/* ---- cuBLASLt: descriptions are attributes by their number, pointers or numbers of 32 or 64 bits ---- */

struct Description {
    cublasComputeType_t compute;                /* of a matmul; the next four: of a matrix */
    cudaDataType_t type;
    int64_t rows, columns, ld;
    std::map<int, uint64_t> attributes;

    uint64_t at(int attribute, uint64_t otherwise = 0) const
    {
        const auto found = attributes.find(attribute);
        return found == attributes.end() ? otherwise : found->second;
    }
    Matrix matrix(const void *data, bool transposed) const
    {
        return {data, type, rows, columns, ld, (int64_t)at(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET), transposed};
    }
};

static void set(void *description, int attribute, const void *value, size_t bytes)
{
    uint64_t &x = ((Description *)description)->attributes[attribute] = 0;

    memcpy(&x, value, bytes);
}

CUBLAS_CALL(cublasLtCreate(cublasLtHandle_t *handle), *handle = (cublasLtHandle_t)&cublas_stream)
CUBLAS_CALL(cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                           const void *value, size_t bytes), set(d, attribute, value, bytes))
CUBLAS_CALL(cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                             const void *value, size_t bytes), set(l, attribute, value, bytes))
CUBLAS_CALL(cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *))
CUBLAS_CALL(cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                 const void *, size_t))
CUBLAS_CALL(cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t))

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    *d = (cublasLtMatmulDesc_t) new Description{compute, scale, 0, 0, 0, {}};
    return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
    *l = (cublasLtMatrixLayout_t) new Description{CUBLAS_COMPUTE_32F, type, (int64_t)rows, (int64_t)columns, ld, {}};
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* Returns whether cuBLASLt supports the matmul. fp8 has one form, with sizes and addresses in multiples of 16. The
 * auxiliary matrix of an epilogue needs rows in multiples of 8. Only the simulator refuses half-precision rows of odd
 * length, so that tests cover the backend's alternative, cuBLAS. */
static bool supported(const Description &matmul, const Description &a, const Description &b, const Description &d)
{
    const int epilogue = matmul.at(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    const bool ta = matmul.at(CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T;
    const bool tb = matmul.at(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
    const bool aux = epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU;

    if ((ta ? a.rows : a.columns) != (tb ? b.columns : b.rows) || (ta ? a.columns : a.rows) != d.rows
        || (tb ? b.rows : b.columns) != d.columns)
        return false;
    if (is_fp8(a.type))
        return is_fp8(b.type) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && ta && !tb
            && a.rows % 16 == 0 && a.columns % 16 == 0 && b.columns % 16 == 0
            && (epilogue == CUBLASLT_EPILOGUE_DEFAULT || (epilogue == CUBLASLT_EPILOGUE_BIAS && is_half(d.type)));
    if (a.type != b.type || (aux && (d.rows % 8 || (int64_t)matmul.at(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) < d.rows)))
        return false;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        return d.type == a.type && (is_half(a.type) || epilogue == CUBLASLT_EPILOGUE_BIAS);
    return (d.type == a.type || (d.type == CUDA_R_32F && is_half(a.type)))
        && !(is_half(a.type) && (a.ld % 2 || b.ld % 2))
        && (matmul.compute == CUBLAS_COMPUTE_32F || a.type == CUDA_R_32F);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    *found = supported(*(Description *)matmul, *(Description *)a, *(Description *)b, *(Description *)d);
    memset(results, 0, sizeof *results);
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static double gelu(double x, bool slope)        /* by tanh, as cuBLASLt */
{
    const double root = std::sqrt(2 / M_PI), t = std::tanh(root * (x + 0.044715 * x * x * x));

    return slope ? 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x) : 0.5 * x * (1 + t);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b,
                              const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *, void *, size_t,
                              cudaStream_t stream)
{
    const Description matmul = *(Description *)description, &of_d = *(Description *)layout_d;
    const Matrix x = ((Description *)layout_a)->matrix(a, matmul.at(CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T);
    const Matrix y = ((Description *)layout_b)->matrix(b, matmul.at(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T);
    const Matrix z = of_d.matrix(d, false);
    const int epilogue = matmul.at(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    const int count = of_d.at(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
    const bool reads_aux = epilogue == CUBLASLT_EPILOGUE_DGELU;
    const bool writes_aux = epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const bool biased = epilogue == CUBLASLT_EPILOGUE_BIAS || writes_aux;
    const Matrix aux = {(void *)matmul.at(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), z.type, z.rows, z.columns,
                        (int64_t)matmul.at(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD), 0, false};
    const Matrix bias = {(void *)matmul.at(CUBLASLT_MATMUL_DESC_BIAS_POINTER), z.type, z.rows, 1, z.rows, 0, false};
    const uint64_t scales[] = {matmul.at(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER),
                               matmul.at(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)};
    const float factor = *(const float *)alpha, old = *(const float *)beta;        /* read at the call, not later */

    if (!supported(matmul, *(Description *)layout_a, *(Description *)layout_b, of_d)
        || (!reads_aux && !biased && epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        || (count > 1 && epilogue != CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    enqueue(stream, "cublasLtMatmul", [=] {
        double scale = factor;
        for (uint64_t s : scales)
            if (s)
                scale *= *(const float *)global_memory.access_all(s, sizeof(float), READS);
        for (int batch = 0; batch < count; batch++) {
            const std::vector<double> p = product(x, y, batch, matmul.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
            Matrix before = z;
            before.data = c;
            const uint8_t *from = old != 0 ? access(before, batch, false) : NULL;
            const uint8_t *of_bias = biased ? access(bias, 0, false) : NULL;
            uint8_t *of_aux = reads_aux || writes_aux ? access(aux, 0, writes_aux) : NULL;
            uint8_t *to = access(z, batch, true);
            for (int64_t i = 0; i < z.rows * z.columns; i++) {
                const int64_t row = i % z.rows, at = i / z.rows * z.ld + row, beside = i / z.rows * aux.ld + row;
                double u = scale * p[i] + (from ? old * get(from, z.type, at) : 0)
                         + (biased ? get(of_bias, z.type, row) : 0);
                if (writes_aux) {
                    put(of_aux, z.type, beside, u);
                    u = gelu(u, false);
                }
                put(to, z.type, at, reads_aux ? u * gelu(get(of_aux, z.type, beside), true) : u);
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

}
