/* Speed on a GPU: tokens/s and MFU of presets from 10M parameters up, with the time of each operator in a step. The
 * bandwidth of memory-bound operators over that of a device copy. The rate of FlashAttention over that of a matmul. A
 * preset that needs more than the GPU's memory prints an error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../08_fused_kernels/fused.h"
#include "../../common/ultrascale.h"
#include "../../common/formats.h"
#include "bench.h"

static const struct {
    const char *program, *options;
    int steps;
} shapes[] = {
    {"01_single_gpu", "--preset 10m", 20},
    {"01_single_gpu", "--preset 124m --tf32 off", 8},
    {"01_single_gpu", "--preset 124m", 8},
    {"02_mixed_precision", "--preset 124m --dtype bf16", 8},
    {"02_mixed_precision", "--preset 124m --dtype bf16 --vocab 50257", 8},     /* rows are no multiple of 16 bytes */
    {"02_mixed_precision", "--preset 124m --dtype fp8", 8},
    {"02_mixed_precision", "--preset 350m --dtype bf16", 6},
    {"02_mixed_precision", "--preset 774m --dtype bf16", 6},
    {"02_mixed_precision", "--preset 1.3b --dtype bf16", 4},
    {"02_mixed_precision", "--preset 1.3b --dtype fp8", 4},
    {"08_fused_kernels", "--preset 10m", 20},
    {"08_fused_kernels", "--preset 124m --fuse none", 8},
    {"08_fused_kernels", "--preset 124m --fuse all", 8},
    {"08_fused_kernels", "--preset 1.3b --fuse none", 4},
    {"08_fused_kernels", "--preset 1.3b --fuse all", 4},
    {"08_fused_kernels", "--preset 1.3b --fuse all", 4},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Measures the speed without events around operators, then the time of each operator with them. */
static void measure(int i)
{
    const int steps = shapes[i].steps;
    char command[512];

    snprintf(command, sizeof command, BUILD "/cuda/%s", shapes[i].program);
    if (access(command, X_OK))
        return;
    snprintf(command, sizeof command, BUILD "/cuda/%s %s --quiet --warmup 1 --metrics m.csv", shapes[i].program,
             shapes[i].options);
    Result r = run("%s --steps %d", command, steps);
    if (r.status) {
        printf("%s %s: %s", shapes[i].program, shapes[i].options, r.err);
        result_free(r);
        return;
    }
    result_free(r);
    printf("%s %s: %.0f tokens/s, MFU %.1f%%, %.1f ms per step\n", shapes[i].program, shapes[i].options,
           median_of("tokens_per_second"), 100 * median_of("mfu"), 1e3 * median_of("seconds"));
    r = run("%s --steps 4 --report r.json", command);     /* the report omits the first step */
    if (r.status)
        printf("%s", r.err);
    else
        print_operators(3, 0.005);
    result_free(r);
}

/* ---- bandwidth: bytes read and written, in GB/s ---- */

static Tensor a, b, c, d, vector;

#define OPERATOR(NAME, CALL) static void NAME(void) { CALL; }
OPERATOR(copy, tensor_copy(a, b))
OPERATOR(zero, tensor_zero(a))
OPERATOR(add, tensor_add(a, b))
OPERATOR(gelu, gelu_forward(a, b))
OPERATOR(gelu_back, gelu_backward(a, b, c))
OPERATOR(residual, residual_forward(a, b, c, vector))
OPERATOR(adamw, adamw_update(a, NONE, b, c, d, (AdamWArguments){.eps = 1e-8, .correction1 = 1, .correction2 = 1}))
OPERATOR(squares, square_sum(&a, 1))

/* Returns the least seconds of several calls. An untimed call precedes each: while the GPU computes it, the host queues
 * the timed one. On an idle GPU the time would include the host's, some microseconds per launch. */
static double seconds_of(void (*operator)(void))
{
    double best = INFINITY;

    for (int i = 0; i < 10; i++) {
        operator();
        DeviceEvent begin = device_event();
        operator();
        DeviceEvent end = device_event();
        const double seconds = -device_event_seconds(&begin) + device_event_seconds(&end);
        best = fmin(best, seconds);
    }
    return best;
}

/* Bytes per second in GB/s, where each operand counts once, as in ops.c. */
static double bandwidth(void (*operator)(void), int operands)
{
    return operands * (double)tensor_bytes(a) / seconds_of(operator) / 1e9;
}

static void print_bandwidths(void)
{
    enum { WIDTH = 1024 };
    /* 2 GB each if memory allows: some GPUs move 256 MB in 60 us, and square_sum's host takes half as long */
    const int64_t ROWS = device_memory_available() > 16ll << 30 ? 1 << 19 : 1 << 16;
    static const struct {
        const char *name;
        void (*operator)(void);
        int operands;
    } all[] = {{"copy", copy, 2}, {"zero", zero, 1}, {"add", add, 3}, {"gelu_forward", gelu, 2},
               {"gelu_backward", gelu_back, 3}, {"residual_forward", residual, 3}, {"adamw_update", adamw, 7},
               {"square_sum", squares, 1}};
    Tensor *const tensors[] = {&a, &b, &c, &d};

    for (int i = 0; i < 4; i++)
        *tensors[i] = tensor_create(MEM_WORKSPACE, REAL, "a", shape(ROWS, WIDTH));
    vector = tensor_create(MEM_WORKSPACE, REAL, "vector", shape(WIDTH));
    const double of_copy = bandwidth(copy, 2);
    printf("bandwidth, float tensors of %d MB:\n", (int)(ROWS / 1024 * WIDTH * 4 / 1024));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const double x = bandwidth(all[i].operator, all[i].operands);
        printf("    %-24s %8.0f GB/s, %3.0f%% of a device copy's\n", all[i].name, x, 100 * x / of_copy);
    }
    for (int i = 0; i < 4; i++)
        tensor_free(tensors[i], MEM_WORKSPACE);
}

/* ---- FlashAttention: FLOP/s, counting the unmasked half of all pairs; and a square matmul's rate ---- */

static Tensor qkv, out, lse, d_qkv, delta, d_out;

/* A tensor of random numbers. Zeros need less power, which lets some GPUs run faster. */
static Tensor random_of(DType dtype, Shape s)
{
    enum { AT_ONCE = 1 << 20 };
    static real x[AT_ONCE];
    const Tensor t = tensor_create(MEM_WORKSPACE, dtype, "random", s);
    const int64_t count = tensor_count(t);
    const Tensor flat = tensor_view(t, shape(count));

    for (int64_t i = 0; i < AT_ONCE; i++)
        x[i] = (real)rand() / RAND_MAX - (real)0.5;
    for (int64_t i = 0; i < count; i += AT_ONCE)
        tensor_from_host(tensor_range(flat, i, count - i < AT_ONCE ? count - i : AT_ONCE), x);
    return t;
}

OPERATOR(product, linear_forward(a, b, c, NONE))
OPERATOR(flash_forward, flash_attention_forward(out, lse, qkv))
OPERATOR(flash_backward, flash_attention_backward(d_qkv, delta, d_out, qkv, out, lse))

static void print_flash(DType dtype)
{
    enum { SQUARE = 8192, TOKENS = 16384, WIDTH = 2048 };
    static const int heads[] = {64, 128}, lengths[] = {1024, 4096, 16384};
    Tensor *const squares_of[] = {&a, &b, &c};

    for (int i = 0; i < 3; i++)
        *squares_of[i] = random_of(dtype, shape(SQUARE, SQUARE));
    const double matmul = 2.0 * SQUARE * SQUARE * SQUARE / seconds_of(product);
    printf("FlashAttention in %s, %d tokens, hidden %d; a matmul of %d by %d: %.1f TFLOP/s\n", dtype_name(dtype),
           TOKENS, WIDTH, SQUARE, SQUARE, matmul / 1e12);
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 3; l++) {
            const int64_t D = heads[h], T = lengths[l], A = WIDTH / D, B = TOKENS / T;
            const struct {
                Tensor *t;
                DType dtype;
                Shape shape;
            } all[] = {{&qkv, dtype, shape(B, T, 3 * WIDTH)}, {&d_qkv, dtype, shape(B, T, 3 * WIDTH)},
                       {&out, dtype, shape(B, T, WIDTH)}, {&d_out, dtype, shape(B, T, WIDTH)},
                       {&lse, REAL, shape(B, A, T)}, {&delta, REAL, shape(B, A, T)}};
            for (int i = 0; i < 6; i++)
                *all[i].t = random_of(all[i].dtype, all[i].shape);
            const double flops = 4.0 * B * A * T * T * D / 2;
            const double forward = flops / seconds_of(flash_forward);
            const double backward = 2.5 * flops / seconds_of(flash_backward);
            printf("    heads of %3d, %5d tokens: forward %6.1f TFLOP/s, %3.0f%% of the matmul's; backward %6.1f, "
                   "%3.0f%%\n", (int)D, (int)T, forward / 1e12, 100 * forward / matmul, backward / 1e12,
                   100 * backward / matmul);
            for (int i = 0; i < 6; i++)
                tensor_free(all[i].t, MEM_WORKSPACE);
        }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (device_count() == 0) {
        if (system("nvidia-smi -L >/dev/null 2>&1") == 0)
            device_init(0, 1, 1);               /* a GPU exists but cannot be used: ends with the reason */
        printf("SKIPPED: no GPU found; nothing was measured\n");
        return 0;
    }
    for (int i = 0; i < SHAPES; i++)
        measure(i);
    comm_begin(&argc, &argv);
    device_init(0, 1, 1);
    printf("%s\n", device_name());
    print_bandwidths();
    print_flash(device_supports(BF16) == SUPPORT_NATIVE ? BF16 : F16);
    comm_exit(0);
}
