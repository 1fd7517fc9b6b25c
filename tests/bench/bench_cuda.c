/* Speed on a GPU: tokens/s and MFU of presets from 10M parameters up, with each operator's time and bandwidth in a
 * step. A preset that needs more than the GPU's memory prints an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/device.h"
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

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    device_id(0);                               /* ends with the reason if the GPUs cannot be used */
    for (int i = 0; i < SHAPES; i++)
        measure(i);
    return 0;
}
