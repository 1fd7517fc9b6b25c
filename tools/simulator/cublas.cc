/* cuBLAS and cuBLASLt, as far as the project calls them: matmuls in double, which refuse what NVIDIA documents as
 * unsupported. Matrices are column-major. */
#include <cblas.h>
#include <cmath>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ptx.h"
#include "runtime.h"

static bool is_half(cudaDataType_t type)
{
    return type == CUDA_R_16BF || type == CUDA_R_16F;
}

static bool is_fp8(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static float tf32(float x)                      /* 10 bits of mantissa */
{
    const uint32_t bits = std::bit_cast<uint32_t>(x);

    return std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

/* The numbers of attributes and modes that cublasLt.h names from CUDA 12.9 on; NO_SCALE is ours. */
enum { A_SCALE_MODE = 31, B_SCALE_MODE = 32 };
enum ScaleMode { SCALAR = 0, VEC32 = 2, VEC128 = 4, BLK128X128 = 5, NO_SCALE };

/* A matrix, or several; transposed: as an operand. Rows and columns are those that lie in memory. */
struct Matrix {
    const void *data;
    cudaDataType_t type;
    int64_t rows, columns, ld, stride;
    bool transposed;
    uint64_t scales;                            /* of fp8: their address; 0: none */
    ScaleMode mode;

    /* Checks the access of each column: what lies between columns is not of the matrix. Returns where matrix i lies. */
    uint8_t *access(int64_t i, bool writes) const
    {
        const uint64_t address = (uint64_t)data + i * stride * size_of(type);

        for (int64_t c = 0; c < columns; c++)
            global_memory.access_all(address + c * ld * size_of(type), rows * size_of(type), writes);
        return global_memory.data + (address - global_memory.base);
    }

    /* Returns the scale of an element. Sums are over rows: fp8 has no other form. */
    double scale_at(int64_t row, int64_t column) const
    {
        const int64_t tiles = (rows + 127) / 128, tile = column / 128 * tiles + row / 128;
        const auto number = [&](int64_t i) { return *(float *)global_memory.access_all(scales + 4 * i, 4, READS); };

        switch (scales ? mode : NO_SCALE) {
        case VEC128:
            return number(row / 128 * columns + column);
        case BLK128X128:
            return number(column / 128 * ((tiles + 3) & ~3) + row / 128);
        case VEC32: {
            const int64_t outer = column % 128, inner = row % 128 / 32;
            const int64_t at = tile * 512 + outer % 32 * 16 + outer / 32 * 4 + inner;
            const uint8_t exponent = *(uint8_t *)global_memory.access_all(scales + at, 1, READS);
            return exponent == 255 ? NAN : std::ldexp(1, exponent - 127);
        }
        case SCALAR:
            return number(0);
        default:
            return 1;
        }
    }
};

static std::vector<double> doubles(const Matrix &m, int64_t i, bool rounded)
{
    const uint8_t *data = m.access(i, READS);
    std::vector<double> x;

    for (int64_t c = 0; c < m.columns; c++)
        for (int64_t r = 0; r < m.rows; r++) {
            const float y = get(data, m.type, c * m.ld + r);
            x.push_back((rounded ? tf32(y) : y) * m.scale_at(r, c));
        }
    return x;
}

/* ---- a matmul ---- */

struct Matmul {
    const char *name;
    Matrix a, b, d;
    cublasComputeType_t compute;
    int64_t count;
    cublasLtEpilogue_t epilogue;
    Matrix aux, bias;                           /* of the epilogue */

    int64_t inner_of_a() const { return a.transposed ? a.rows : a.columns; }
    int64_t inner_of_b() const { return b.transposed ? b.columns : b.rows; }
    bool reads_aux() const { return epilogue == CUBLASLT_EPILOGUE_DGELU; }
    bool writes_aux() const { return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
    bool biased() const { return epilogue == CUBLASLT_EPILOGUE_BIAS || writes_aux(); }

    /* Returns whether cuBLAS and cuBLASLt multiply numbers of these types; only cuBLASLt multiplies fp8. */
    bool types_fit() const
    {
        const bool half = is_half(a.type), full = a.type == CUDA_R_32F;

        return (full || half) && a.type == b.type && (d.type == a.type || (d.type == CUDA_R_32F && half))
            && (compute == CUBLAS_COMPUTE_32F || full);
    }
    void run(const void *c, float alpha, float beta) const;
};

static double gelu(double x, bool slope)        /* by tanh, as cuBLASLt */
{
    const double root = std::sqrt(2 / M_PI), t = std::tanh(root * (x + 0.044715 * x * x * x));

    return slope ? 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x) : 0.5 * x * (1 + t);
}

void Matmul::run(const void *c, float alpha, float beta) const
{
    const bool rounded = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<double> p(d.rows * d.columns);
    Matrix before = d;
    before.data = c;
    openblas_set_num_threads(1);                /* ranks share the cores */
    for (int64_t batch = 0; batch < count; batch++) {
        cblas_dgemm(CblasColMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                    d.rows, d.columns, inner_of_a(), 1, doubles(a, batch, rounded).data(), a.rows,
                    doubles(b, batch, rounded).data(), b.rows, 0, p.data(), d.rows);
        const uint8_t *from = beta != 0 ? before.access(batch, READS) : NULL;
        const uint8_t *of_bias = biased() ? bias.access(0, READS) : NULL;
        uint8_t *of_aux = reads_aux() || writes_aux() ? aux.access(0, writes_aux()) : NULL;
        uint8_t *to = d.access(batch, WRITES);
        for (int64_t i = 0; i < d.rows * d.columns; i++) {
            const int64_t row = i % d.rows, at = i / d.rows * d.ld + row, beside = i / d.rows * aux.ld + row;
            double u = alpha * p[i] + (from ? beta * get(from, d.type, at) : 0)
                     + (of_bias ? get(of_bias, d.type, row) : 0);
            if (writes_aux()) {
                put(of_aux, d.type, beside, u);
                u = gelu(u, false);
            }
            put(to, d.type, at, reads_aux() ? u * gelu(get(of_aux, d.type, beside), true) : u);
        }
    }
}

/* alpha and beta are read at the call, not later. */
static cublasStatus_t queue(cudaStream_t stream, const Matmul &m, const void *c, const void *alpha, const void *beta)
{
    const float scale = *(const float *)alpha, old = *(const float *)beta;

    count_call("launches");
    enqueue(stream, m.name, [=] { m.run(c, scale, old); });
    return CUBLAS_STATUS_SUCCESS;
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
    const Matmul x = {"cublasGemmStridedBatchedEx", {a, type_a, ta ? k : m, ta ? m : k, ld_a, stride_a, ta},
                      {b, type_b, tb ? n : k, tb ? k : n, ld_b, stride_b, tb}, {c, type_c, m, n, ld_c, stride_c, false},
                      compute, count, CUBLASLT_EPILOGUE_DEFAULT, {}, {}};

    if (m <= 0 || n <= 0 || k <= 0 || count <= 0 || ld_a < x.a.rows || ld_b < x.b.rows || ld_c < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    return x.types_fit() ? queue(cublas_stream, x, c, alpha, beta) : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Lists of addresses, which the GPU reads. cuBLAS may assume that the matrices lie at multiples of 16 bytes. */
cublasStatus_t cublasGemmBatchedEx_64(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m,
                                      int64_t n, int64_t k, const void *alpha, const void *const a[],
                                      cudaDataType_t type_a, int64_t ld_a, const void *const b[], cudaDataType_t type_b,
                                      int64_t ld_b, const void *beta, void *const c[], cudaDataType_t type_c,
                                      int64_t ld_c, int64_t count, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
    const float scale = *(const float *)alpha, old = *(const float *)beta;
    const Matmul all = {"cublasGemmBatchedEx", {NULL, type_a, ta ? k : m, ta ? m : k, ld_a, 0, ta},
                        {NULL, type_b, tb ? n : k, tb ? k : n, ld_b, 0, tb}, {NULL, type_c, m, n, ld_c, 0, false},
                        compute, 1, CUBLASLT_EPILOGUE_DEFAULT, {}, {}};

    if (m <= 0 || n <= 0 || k <= 0 || count <= 0 || ld_a < all.a.rows || ld_b < all.b.rows || ld_c < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!all.types_fit())
        return CUBLAS_STATUS_NOT_SUPPORTED;
    count_call("launches");
    enqueue(cublas_stream, all.name, [=] {
        const auto list = [=](const void *from) {
            return (void *const *)global_memory.access_all((uint64_t)from, count * sizeof(void *), READS);
        };
        void *const *of_a = list(a), *const *of_b = list(b), *const *of_c = list(c);
        for (int64_t i = 0; i < count; i++) {
            Matmul x = all;
            x.a.data = of_a[i], x.b.data = of_b[i], x.d.data = of_c[i];
            if (((uintptr_t)of_a[i] | (uintptr_t)of_b[i] | (uintptr_t)of_c[i]) % 16)
                simulated_error("cublasGemmBatchedEx: matrix %lld is not at a multiple of 16 bytes", (long long)i);
            x.run(of_c[i], scale, old);
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

static Matrix matrix(const void *data, const void *layout, bool transposed)
{
    const Description &l = *(const Description *)layout;

    return {data, l.type, l.rows, l.columns, l.ld, (int64_t)l.at(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET),
            transposed};
}

static Matmul described(const void *matmul, const void *a, const void *layout_a, const void *b, const void *layout_b,
                        const void *d, const void *layout_d)
{
    const Description &m = *(const Description *)matmul;
    Matrix x = matrix(a, layout_a, m.at(CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T);
    Matrix y = matrix(b, layout_b, m.at(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T);
    const Matrix z = matrix(d, layout_d, false);

    x.scales = m.at(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER), y.scales = m.at(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
    x.mode = (ScaleMode)m.at(A_SCALE_MODE);
    y.mode = (ScaleMode)m.at(B_SCALE_MODE);
    return {"cublasLtMatmul", x, y, z, m.compute,
            (int64_t)((const Description *)layout_d)->at(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1),
            (cublasLtEpilogue_t)m.at(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT),
            {(void *)m.at(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), z.type, z.rows, z.columns,
             (int64_t)m.at(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD), 0, false},
            {(void *)m.at(CUBLASLT_MATMUL_DESC_BIAS_POINTER), z.type, z.rows, 1, z.rows, 0, false}};
}

/* Returns whether cuBLASLt multiplies matrices with these scales: one each, or E4M3 with tiles, without fast sums and
 * epilogues. */
static bool scales_fit(const Matmul &m, bool fast)
{
    const auto a = m.a.mode, b = m.b.mode;

    if (a == SCALAR)
        return b == a;
    cudaDeviceProp gpu;
    cudaGetDeviceProperties(&gpu, 0);
    if (a == VEC32 || b == VEC32 ? gpu.major < 10 : gpu.major != 9)
        return false;
    if (fast || m.epilogue != CUBLASLT_EPILOGUE_DEFAULT || m.a.type != CUDA_R_8F_E4M3 || m.b.type != CUDA_R_8F_E4M3)
        return false;
    if (a == b)
        return a != BLK128X128;
    return a != VEC32 && b != VEC32;
}

/* Returns whether cuBLASLt supports the matmul. fp8 has one form, with sizes and addresses in multiples of 16. The
 * auxiliary matrix of an epilogue needs rows in multiples of 8. Only the simulator refuses half-precision rows of odd
 * length, so that tests cover the backend's alternative, cuBLAS. */
static bool supported(const Matmul &m)
{
    const Matrix &a = m.a, &b = m.b, &d = m.d;
    const bool plain = m.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    const char *epilogues = getenv("SIMULATED_EPILOGUES");

    if (!plain && epilogues && !atoi(epilogues))
        return false;
    if (m.inner_of_a() != m.inner_of_b() || (a.transposed ? a.columns : a.rows) != d.rows
        || (b.transposed ? b.rows : b.columns) != d.columns
        || (!plain && (m.count > 1 || (!m.biased() && !m.reads_aux()))))
        return false;
    if (is_fp8(a.type))
        return is_fp8(b.type) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && a.transposed
            && !b.transposed && a.rows % 16 == 0 && a.columns % 16 == 0 && b.columns % 16 == 0
            && (plain || (m.epilogue == CUBLASLT_EPILOGUE_BIAS && is_half(d.type)));
    if ((m.writes_aux() || m.reads_aux()) && (d.rows % 8 || m.aux.ld < d.rows))
        return false;
    if (!plain)
        return m.types_fit() && d.type == a.type && (is_half(a.type) || m.epilogue == CUBLASLT_EPILOGUE_BIAS);
    return m.types_fit() && !(is_half(a.type) && (a.ld % 2 || b.ld % 2));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    const Matmul m = described(matmul, NULL, a, NULL, b, NULL, d);

    *found = supported(m) && scales_fit(m, ((const Description *)matmul)->at(CUBLASLT_MATMUL_DESC_FAST_ACCUM));
    memset(results, 0, sizeof *results);
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* CUBLASLT_LOG_LEVEL=2: each kind of matmul, once. */
static void log_matmul(const Matmul &m, const Description &d)
{
    static const std::map<cudaDataType_t, const char *> names = {
        {CUDA_R_32F, "F32"}, {CUDA_R_16BF, "BF16"}, {CUDA_R_16F, "F16"}, {CUDA_R_8F_E4M3, "E4M3"},
        {CUDA_R_8F_E5M2, "E5M2"}};
    static std::set<std::string> logged;
    const char *level = getenv("CUBLASLT_LOG_LEVEL");
    const std::string kind = std::string(names.at(m.a.type)) + " by " + names.at(m.b.type) + " to "
        + names.at(m.d.type) + " FAST_ACCUM=" + std::to_string(d.at(CUBLASLT_MATMUL_DESC_FAST_ACCUM))
        + (m.a.mode || m.b.mode ? " SCALE_MODE=" + std::to_string(m.a.mode) + "," + std::to_string(m.b.mode) : "");

    if (level && atoi(level) >= 2 && logged.insert(kind).second)
        printf("cublasLtMatmul: %s\n", kind.c_str());
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b,
                              const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *, void *, size_t,
                              cudaStream_t stream)
{
    const Matmul m = described(description, a, layout_a, b, layout_b, d, layout_d);

    log_matmul(m, *(const Description *)description);
    const bool aligned = m.a.scales % 16 == 0 && m.b.scales % 16 == 0;
    return supported(m) && aligned ? queue(stream, m, c, alpha, beta) : CUBLAS_STATUS_NOT_SUPPORTED;
}

}
