/* Is the algorithm that cuBLASLt lists first the fastest? For the matmuls of a block (R rows, hidden H) and of the head
 * (vocabulary V), in bf16 and in fp8, this times the first eight that the library lists. A row has the product, its
 * size (column-major m x n x k, as the library sees it), how many were listed, and the TFLOP/s of the first and of the
 * best.
 *
 *   nvcc -O2 -arch=sm_90 tests/bench/gpu/lt_algorithms.cu -lcublasLt -o build/lt_algorithms
 *   build/lt_algorithms [R [H [V]]]
 */
#include <algorithm>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) check(call, #call)
static void check(int status, const char *call)
{
    if (status != 0) {
        fprintf(stderr, "lt_algorithms: %s: error %d\n", call, status);
        exit(1);
    }
}

enum { MOST = 8, TIMES = 5, REPEATS = 3 };
static const size_t WORKSPACE = 32 << 20;
static cublasLtHandle_t lt;
static cudaEvent_t begin, end;
static void *workspace, *a, *b, *c, *aux, *bias;
static float *scales;

/* Numbers of which each byte is random, but no bf16 is larger than 2 and no fp8 is NaN. */
__global__ void fill(uint8_t *x, size_t bytes, unsigned seed, bool fp8)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < bytes; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u ^ seed;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        x[i] = fp8 ? (h & 0x80) | (0x28 + h % 24) : i % 2 ? (h & 0x80) | 0x3e | (h >> 8 & 1) : h;
    }
}

__global__ void ones(float *x, size_t count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        x[i] = 1;
}

typedef struct {
    const char *name;
    int64_t m, n, k;
    bool a_transposed, b_transposed, to_float;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t a, b;
    bool fast;                                              /* fp8: sums with few bits */
    cublasLtMatmulMatrixScale_t a_scales, b_scales;         /* of fp8 */
} Product;

#define SET(attribute, value) \
    CHECK(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))
#define PREFER(attribute, value) \
    CHECK(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_##attribute, &(value), sizeof(value)))

static void measure(const Product &p)
{
    const cublasOperation_t op_a = p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const bool fp8 = p.a != CUDA_R_16BF;
    const float one = 1, add = p.to_float && !fp8;          /* weight gradients add up */
    const int8_t fast = p.fast;
    const bool plain = p.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    const uint32_t aligned = 16;
    const uint32_t parts = plain ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t of_a, of_b, of_c;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t listed[MOST];
    double first = 0, best = 0;
    int found = 0, at = 0;

    CHECK(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(TRANSA, op_a);
    SET(TRANSB, op_b);
    SET(EPILOGUE, p.epilogue);
    if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        SET(BIAS_POINTER, bias);
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        SET(EPILOGUE_AUX_POINTER, aux);
        SET(EPILOGUE_AUX_LD, p.m);
    }
    if (fp8) {
        SET(FAST_ACCUM, fast);
        SET(A_SCALE_POINTER, scales);
        SET(B_SCALE_POINTER, scales);
        SET(A_SCALE_MODE, p.a_scales);
        SET(B_SCALE_MODE, p.b_scales);
    }
    CHECK(cublasLtMatrixLayoutCreate(&of_a, p.a, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k,
                                     p.a_transposed ? p.k : p.m));
    CHECK(cublasLtMatrixLayoutCreate(&of_b, p.b, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n,
                                     p.b_transposed ? p.n : p.k));
    CHECK(cublasLtMatrixLayoutCreate(&of_c, p.to_float ? CUDA_R_32F : CUDA_R_16BF, p.m, p.n, p.m));
    CHECK(cublasLtMatmulPreferenceCreate(&wish));
    PREFER(MAX_WORKSPACE_BYTES, WORKSPACE);
    PREFER(REDUCTION_SCHEME_MASK, parts);
    PREFER(MIN_ALIGNMENT_A_BYTES, aligned);
    PREFER(MIN_ALIGNMENT_B_BYTES, aligned);
    PREFER(MIN_ALIGNMENT_C_BYTES, aligned);
    PREFER(MIN_ALIGNMENT_D_BYTES, aligned);
    if (cublasLtMatmulAlgoGetHeuristic(lt, matmul, of_a, of_b, of_c, of_c, wish, MOST, listed, &found))
        found = 0;
    for (int i = 0; i < found; i++) {
        float times[TIMES];
        bool runs = true;
        for (int t = -1; t < TIMES && runs; t++) {          /* -1: to warm up */
            CHECK(cudaEventRecord(begin));
            for (int r = 0; r < REPEATS && runs; r++)
                runs = cublasLtMatmul(lt, matmul, &one, a, of_a, b, of_b, &add, c, of_c, c, of_c, &listed[i].algo,
                                      workspace, WORKSPACE, 0) == CUBLAS_STATUS_SUCCESS;
            CHECK(cudaEventRecord(end));
            CHECK(cudaEventSynchronize(end));
            if (t >= 0)
                CHECK(cudaEventElapsedTime(&times[t], begin, end));
        }
        if (!runs)
            continue;
        std::sort(times, times + TIMES);
        const double rate = 2.0 * p.m * p.n * p.k * REPEATS / (times[TIMES / 2] * 1e9);
        first = i ? first : rate;
        at = rate > best ? i : at;
        best = std::max(best, rate);
    }
    printf("%-44s %6lld x %6lld x %6lld  %d listed, first %5.0f, best %5.0f (%d)\n", p.name, (long long)p.m,
           (long long)p.n, (long long)p.k, found, first, best, at);
    fflush(stdout);
    CHECK(cublasLtMatmulPreferenceDestroy(wish));
    CHECK(cublasLtMatrixLayoutDestroy(of_a));
    CHECK(cublasLtMatrixLayoutDestroy(of_b));
    CHECK(cublasLtMatrixLayoutDestroy(of_c));
    CHECK(cublasLtMatmulDescDestroy(matmul));
}

static int64_t argument(int argc, char **argv, int i, int64_t otherwise)
{
    const long long x = argc > i ? atoll(argv[i]) : otherwise;

    if (x < 128 || x % 128) {
        fprintf(stderr, "lt_algorithms: expected R, H and V as multiples of 128, got '%s'\n", argv[i]);
        exit(2);
    }
    return x;
}

int main(int argc, char **argv)
{
    const int64_t R = argument(argc, argv, 1, 16384), H = argument(argc, argv, 2, 2048);
    const int64_t V = argument(argc, argv, 3, 50304), S = std::min<int64_t>(R, 8192);       /* S: rows of the loss */
    const size_t most = std::max({R * 4 * H, S * V, V * H, 4 * H * H});
    const auto plain = CUBLASLT_EPILOGUE_DEFAULT, with_bias = CUBLASLT_EPILOGUE_BIAS;
    const auto gelu = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, d_gelu = CUBLASLT_EPILOGUE_DGELU;
    const auto half = CUDA_R_16BF, e4m3 = CUDA_R_8F_E4M3, e5m2 = CUDA_R_8F_E5M2;
    const auto whole = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, row = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const auto block = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const Product products[] = {
        {"qkv forward, bias", 3 * H, R, H, true, false, false, with_bias, half, half},
        {"proj forward", H, R, H, true, false, false, plain, half, half},
        {"up forward, bias", 4 * H, R, H, true, false, false, with_bias, half, half},
        {"up forward, bias and GELU", 4 * H, R, H, true, false, false, gelu, half, half},
        {"down forward", H, R, 4 * H, true, false, false, plain, half, half},
        {"down input gradient", 4 * H, R, H, false, false, false, plain, half, half},
        {"down input gradient, GELU's", 4 * H, R, H, false, false, false, d_gelu, half, half},
        {"up input gradient", H, R, 4 * H, false, false, false, plain, half, half},
        {"qkv input gradient", H, R, 3 * H, false, false, false, plain, half, half},
        {"proj input gradient", H, R, H, false, false, false, plain, half, half},
        {"qkv weight gradient", H, 3 * H, R, false, true, true, plain, half, half},
        {"up weight gradient", H, 4 * H, R, false, true, true, plain, half, half},
        {"down weight gradient", 4 * H, H, R, false, true, true, plain, half, half},
        {"proj weight gradient", H, H, R, false, true, true, plain, half, half},
        {"head forward", V, S, H, true, false, false, plain, half, half},
        {"head input gradient", H, S, V, false, false, false, plain, half, half},
        {"head weight gradient", H, V, S, false, true, true, plain, half, half},
        {"fp8 up, fast", 4 * H, R, H, true, false, false, plain, e4m3, e4m3, true, whole, whole},
        {"fp8 up", 4 * H, R, H, true, false, false, plain, e4m3, e4m3, false, whole, whole},
        {"fp8 up, E4M3 by E5M2", 4 * H, R, H, true, false, false, plain, e4m3, e5m2, false, whole, whole},
        {"fp8 up, E4M3 by E5M2, fast", 4 * H, R, H, true, false, false, plain, e4m3, e5m2, true, whole, whole},
        {"fp8 up weight gradient", 4 * H, H, R, true, false, true, plain, e4m3, e5m2, false, whole, whole},
        {"fp8 up, 128 x 128 by 1 x 128, fast", 4 * H, R, H, true, false, false, plain, e4m3, e4m3, true, block, row},
        {"fp8 up, 128 x 128 by 1 x 128", 4 * H, R, H, true, false, false, plain, e4m3, e4m3, false, block, row},
        {"fp8 up, 1 x 128 by 1 x 128", 4 * H, R, H, true, false, false, plain, e4m3, e4m3, false, row, row},
        {"fp8 up weight gradient, 1 x 128", 4 * H, H, R, true, false, true, plain, e4m3, e4m3, false, row, row},
    };

    if (cudaFree(NULL)) {
        fprintf(stderr, "lt_algorithms: no GPU found\n");
        return 1;
    }
    CHECK(cublasLtCreate(&lt));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaMalloc(&workspace, WORKSPACE));
    CHECK(cudaMalloc(&a, 2 * most));
    CHECK(cudaMalloc(&b, 2 * most));
    CHECK(cudaMalloc(&c, 4 * most));
    CHECK(cudaMalloc(&aux, 2 * most));
    CHECK(cudaMalloc(&bias, 2 * V));
    CHECK(cudaMalloc((void **)&scales, most));              /* 4 bytes per 128 elements, or fewer */
    ones<<<1024, 256>>>(scales, most / 4);
    CHECK(cudaMemset(c, 0, 4 * most));
    printf("TFLOP/s, cuBLASLt %zu\n", cublasLtGetVersion());
    for (const Product &p : products) {
        static int before = -1;
        const bool fp8 = p.a != half;
        if (fp8 != before)                                  /* other numbers */
            for (void *x : {a, b, aux, bias})
                fill<<<1024, 256>>>((uint8_t *)x, x == bias ? 2 * V : 2 * most, 1 + (x == b), fp8);
        before = fp8;
        measure(p);
    }
    return 0;
}
