/* An emulated GPU for machines without one. g++ compiles CUDA C++ with this header in front of every .cu (-include).
 * Each thread of a block is a fiber of the CPU (emulator.cc). bf16 and fp16 come from the toolkit's headers. Results
 * follow from thread indices, tensor-core layouts and barriers, as on a GPU; speed does not.
 *
 * Threads run one at a time, from one barrier (or exchange between lanes) to the next, warp after warp. Every second
 * block and every second launch runs them in reverse order: a missing barrier gives a wrong result in one of the two. A
 * barrier or an exchange that only some of the threads reach is an error. emulator_check.h has the errors of memory.
 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <math.h>
#include <stdint.h>

#define __CUDA_ARCH_LIST__ 750                  /* what nvcc would build for */
#define __shared__ thread_local                 /* a CPU thread runs one block at a time */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <string.h>
#include <type_traits>

/* ---- a thread, as a kernel sees itself ---- */

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;
extern thread_local int emulated_lane;
#define __launch_bounds__(...)

[[noreturn]] void emulated_wrong(const char *what);
void emulated_syncthreads(int line);
bool emulated_syncthreads_or(int line, bool value);
/* Returns the values of all lanes of the warp, each of `bytes` (at most 64) bytes, at multiples of 64. All lanes must
 * call it. */
const char *emulated_exchange(const void *mine, int bytes);
void emulated_syncwarp(void);

#define __syncthreads() emulated_syncthreads(__LINE__)
#define __syncthreads_or(value) emulated_syncthreads_or(__LINE__, value)
#define __syncwarp() emulated_syncwarp()
#define __shfl_sync(mask, x, lane) emulated_shuffle(mask, x, lane)
#define __shfl_xor_sync(mask, x, apart) emulated_shuffle(mask, x, emulated_lane ^ (apart))
#define __ballot_sync(mask, x) emulated_ballot(mask, x)
#define __any_sync(mask, x) (emulated_ballot(mask, x) != 0)
#define __popc __builtin_popcount
#define __fdividef(x, y) ((x) / (y))

inline int min(int x, int y)
{
    return x < y ? x : y;
}

template <typename T> T emulated_shuffle(unsigned, T x, int lane)
{
    const char *all = emulated_exchange(&x, sizeof x);

    memcpy(&x, all + 64 * lane, sizeof x);
    return x;
}

inline unsigned emulated_ballot(unsigned, bool x)
{
    const char *all = emulated_exchange(&x, sizeof x);
    unsigned lanes = 0;

    for (int i = 0; i < 32; i++)
        lanes |= (unsigned)(all[64 * i] != 0) << i;
    return lanes;
}

/* ---- launches ---- */

#define UNCHECKED __attribute__((no_sanitize("thread")))        /* reads the kernel's arguments, in host memory */

/* Queues a launch. call: the function object that each thread runs, with the kernel's arguments; it is copied. */
void emulated_grid(const cudaLaunchConfig_t *config, void (*thread)(const void *call), const void *call, size_t bytes);
cudaError_t emulated_check(const cudaLaunchConfig_t *config, const void *kernel);

template <typename Call> UNCHECKED void emulated_thread(const void *call)
{
    (*(const Call *)call)();
}

template <typename... P, typename... A>
cudaError_t emulated_launch(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... a)
{
    const cudaError_t error = emulated_check(config, (const void *)kernel);
    const auto call = [=]() UNCHECKED { kernel((P)a...); };

    static_assert(std::is_trivially_copyable<decltype(call)>::value, "kernels have plain arguments");
    if (error == cudaSuccess)
        emulated_grid(config, emulated_thread<decltype(call)>, &call, sizeof call);
    return error;
}
#define cudaLaunchKernelEx emulated_launch

template <typename... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

/* The Makefile rewrites kernel<<<grid, block, shared>>>(...) as emulated_start({grid, block, shared}, kernel, ...). */
struct EmulatedStart {
    dim3 grid, block;
    size_t shared = 0;
};

template <typename... P, typename... A> void emulated_start(EmulatedStart s, void (*kernel)(P...), A... a)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = s.grid, config.blockDim = s.block, config.dynamicSmemBytes = s.shared;
    if (emulated_launch(&config, kernel, a...) != cudaSuccess)
        emulated_wrong("a launch with a grid, a block or shared memory that no GPU supports");
}

/* ---- tensor_cores.cuh, with the layouts of the PTX manual ---- */

#define TENSOR_CORES_CUH

inline void emulated_load(uint32_t (&m)[4], const void *row, bool transposed)
{
    const int lane = emulated_lane, g = lane / 4, t = lane % 4;
    const char *all = emulated_exchange(&row, sizeof row);

    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int k = 0; k < 2; k++) {
            const int r = transposed ? 2 * t + k : g, c = transposed ? g : 2 * t + k;
            const uint16_t *of_row;
            memcpy(&of_row, all + 64 * (8 * i + r), sizeof of_row);
            if ((uintptr_t)of_row % 16)
                emulated_wrong("ldmatrix of a row that does not begin at a multiple of 16 bytes");
            pair[k] = of_row[c];
        }
        memcpy(&m[i], pair, sizeof pair);
    }
}

inline void load_matrices(uint32_t (&m)[4], const void *row)
{
    emulated_load(m, row, false);
}

inline void load_matrices_transposed(uint32_t (&m)[4], const void *row)
{
    emulated_load(m, row, true);
}

template <typename T> float emulated_half(uint32_t two, int which)
{
    const uint16_t bits = two >> 16 * which;
    T x;

    memcpy((void *)&x, &bits, sizeof x);
    return (float)x;
}

template <typename T> void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const int lane = emulated_lane, g = lane / 4, t = lane % 4;
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const char *all = emulated_exchange(mine, sizeof mine);
    uint32_t of[32][6];

    for (int i = 0; i < 32; i++)
        memcpy(of[i], all + 64 * i, sizeof of[i]);
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++)
            sum[i] += emulated_half<T>(of[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2)
                      * emulated_half<T>(of[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
    }
}

template <typename T> uint32_t pair(float x, float y)
{
    const T both[2] = {(T)x, (T)y};
    uint32_t bits;

    memcpy(&bits, both, sizeof bits);
    return bits;
}

/* Asynchronous copies. Their data are NaN until the wait. */
void emulated_copy(void *to, const void *from, int bytes, bool there);
void emulated_copies_wait(int groups);
void copies_done(void);
void copies_end(void);

template <int N> void copies_wait()
{
    emulated_copies_wait(N);
}

template <int BYTES> void begin_copy(void *to, const void *from, bool there)
{
    emulated_copy(to, from, BYTES, there);
}

inline float power_of_two(float x)
{
    return exp2f(x);
}

#endif
