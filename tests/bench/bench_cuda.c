/* Speed on a GPU: tokens/s and MFU of presets from 10M parameters up, with the time of each operator in a step. The
 * bandwidth of memory-bound operators over that of a device copy. A preset that needs more than the GPU's memory prints
 * an error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/ultrascale.h"
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

#define TIMED(NAME, CALL) static void NAME(void) { CALL; }
TIMED(copy, tensor_copy(a, b))
TIMED(zero, tensor_zero(a))
TIMED(add, tensor_add(a, b))
TIMED(gelu, gelu_forward(a, b))
TIMED(gelu_back, gelu_backward(a, b, c))
TIMED(residual, residual_forward(a, b, c, vector))
TIMED(adamw, adamw_update(a, NONE, b, c, d, (AdamWArguments){.eps = 1e-8, .correction1 = 1, .correction2 = 1}))
TIMED(squares, square_sum(&a, 1))

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

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (system("nvidia-smi -L >/dev/null 2>&1")) {
        printf("SKIPPED: no GPU found; nothing was measured\n");
        return 0;
    }
    device_id(0);                               /* ends with the reason if the GPUs cannot be used */
    for (int i = 0; i < SHAPES; i++)
        measure(i);
    comm_begin(&argc, &argv);
    device_init(0, 1, 1);
    printf("%s\n", device_name());
    print_bandwidths();
    comm_exit(0);
}
