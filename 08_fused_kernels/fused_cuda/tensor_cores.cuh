/* PTX instructions that C++ cannot express: a warp's products on tensor cores, loads of their operands, asynchronous
 * copies to shared memory, and 2^x. Layouts are those of the PTX manual.
 *
 * A fragment is a small matrix, of which each lane holds some elements. With g = lane / 4 and t = lane % 4:
 *   left operand, 16 x 16:   registers 0 to 3 are (row g, columns 2t, 2t + 1), the same 8 rows below, 8 columns to the
 *                            right, and both;
 *   right operand, 16 x 8:   (rows 2t, 2t + 1, column g), and 8 rows below;
 *   sum, 16 x 8, float:      (row g, columns 2t, 2t + 1), and 8 rows below.
 * So where a sum becomes a left operand, each lane already has the elements it needs, and only rounds them. */
#ifndef TENSOR_CORES_CUH
#define TENSOR_CORES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <type_traits>

__device__ inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads four 8 x 8 matrices of 2-byte elements. Lane l passes the address of row l % 8 of matrix l / 8: 16 bytes, at a
 * multiple of 16. Of each matrix a lane gets (row g, columns 2t, 2t + 1); transposed: (rows 2t, 2t + 1, column g). */
__device__ inline void load_matrices(uint32_t (&m)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&m)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}

/* sum += a times b, elements of type T. Tensor cores take bf16 from sm_80 on (device_supports tells programs). Before,
 * they take fp16, half as many columns of a per instruction. */
template <typename T>
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if constexpr (std::is_same<T, __half>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    if constexpr (std::is_same<T, __half>::value) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
    }
#endif
}

/* Two rounded numbers as they lie in memory: x in the lower half. */
template <typename T> __device__ inline uint32_t pair(float x, float y)
{
    union {
        __nv_bfloat162 bf16;
        __half2 fp16;
        uint32_t bits;
    } p = {};

    if constexpr (std::is_same<T, __half>::value)
        p.fp16 = __floats2half2_rn(x, y);
    else
        p.bf16 = __floats2bfloat162_rn(x, y);
    return p.bits;
}

/* Starts copying 16 or 4 bytes to shared memory, or zeros if not `there`. The copy has arrived after copies_done for
 * the thread that started it, and after the next barrier for the others. Before sm_80 it is synchronous. To wait for
 * some copies only: copies_end closes a group, copies_wait<N> waits for all groups but the last N. */
template <int BYTES> __device__ inline void begin_copy(void *to, const void *from, bool there)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0) : "memory");
#else
    if constexpr (BYTES == 16)
        *(uint4 *)to = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    else
        *(uint32_t *)to = there ? *(const uint32_t *)from : 0;
#endif
}

__device__ inline void copies_done(void)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ inline void copies_end(void)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> __device__ inline void copies_wait(void)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
#endif
}

/* to[0 to 3] += x. No other thread uses these numbers, so the order of additions is this thread's, the same in every
 * run. From sm_90 on (and CUDA 12.1) the L2 cache adds, and the thread doesn't wait for the earlier numbers. */
__device__ inline void add_alone(float *to, const float (&x)[4])
{
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(to)), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#else
    float4 sum = *(const float4 *)to;

    sum.x += x[0], sum.y += x[1], sum.z += x[2], sum.w += x[3];
    *(float4 *)to = sum;
#endif
}

/* 2^x, within 2 units in the last place. Results too small for a normal number are 0, and so is 2^-Inf. */
__device__ inline float power_of_two(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
