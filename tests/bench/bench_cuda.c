/* Speed on a GPU.
 *
 *     bench_cuda PROGRAMS [WHAT COMMAND]...
 *
 * PROGRAMS is the directory of the programs, build/cuda, and COMMAND one of them with its options. WHAT is `speed`:
 * tokens/s and MFU, medians without the first step; or `operators`: each operator's time, rates and floor; or a word,
 * such as `flash`: the operators whose names begin with it. Events around the operators take time, so the two are
 * different runs. Without commands it measures a list, of which each speed is followed by the operators. A model that
 * needs more than the GPU's memory prints an error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "bench.h"

#define ATTENTION " --accumulate 1 --layers 4 --vocab 256 --steps 6"
static const char *const list[][2] = {
    {"speed", "01_single_gpu --preset 10m --steps 20"},
    {"speed", "01_single_gpu --preset 124m --tf32 off --steps 8"},
    {"speed", "01_single_gpu --preset 124m --steps 8"},
    {"speed", "02_mixed_precision --preset 124m --dtype bf16 --steps 8"},
    {"speed", "02_mixed_precision --preset 124m --dtype bf16 --vocab 50257 --steps 8"},     /* rows of odd length */
    {"speed", "02_mixed_precision --preset 124m --dtype fp8 --steps 8"},
    {"speed", "02_mixed_precision --preset 350m --dtype bf16 --steps 6"},
    {"speed", "02_mixed_precision --preset 774m --dtype bf16 --steps 6"},
    {"speed", "02_mixed_precision --preset 1.3b --dtype bf16 --steps 4"},
    {"speed", "02_mixed_precision --preset 1.3b --dtype fp8 --steps 4"},
    {"speed", "08_fused_kernels --preset 10m --steps 20"},
    {"speed", "08_fused_kernels --preset 124m --fuse none --steps 8"},
    {"speed", "08_fused_kernels --preset 124m --fuse all --steps 8"},
    {"speed", "08_fused_kernels --preset 1.3b --fuse none --steps 4"},
    {"speed", "08_fused_kernels --preset 1.3b --fuse all --steps 4"},
    {"flash", "08_fused_kernels --hidden 2048 --heads 16 --seq 2048 --micro-batch 8" ATTENTION},     /* heads of 128 */
    {"flash", "08_fused_kernels --hidden 2048 --heads 16 --seq 8192 --micro-batch 2" ATTENTION},
    {"flash", "08_fused_kernels --hidden 2048 --heads 32 --seq 2048 --micro-batch 8" ATTENTION},     /* of 64 */
    {"flash", "08_fused_kernels --hidden 2048 --heads 32 --seq 8192 --micro-batch 2" ATTENTION},
};
enum { LIST = sizeof list / sizeof *list };

/* Bytes per second of a GPU's memory, from NVIDIA's datasheets, by its name in the report; 0: unknown. */
static double bandwidth(void)
{
    static const struct {
        const char *name;
        double bandwidth;
    } gpus[] = {{"T4", 0.32e12}, {"A100-SXM4-80GB", 2.04e12}, {"A100 80GB PCIe", 1.94e12}, {"A100", 1.56e12},
                {"A10G", 0.6e12}, {"L40S", 0.86e12}, {"L4", 0.3e12}, {"RTX 4090", 1.01e12}, {"RTX 5090", 1.79e12},
                {"H100 PCIe", 2.0e12}, {"H100", 3.35e12}, {"H200", 4.8e12}, {"B200", 8e12}};
    char *device = json_text("r.json", "ranks", 0, "device");
    double found = 0;

    for (unsigned i = 0; i < sizeof gpus / sizeof *gpus && !found; i++)
        found = strstr(device, gpus[i].name) ? gpus[i].bandwidth : 0;
    free(device);
    return found;
}

/* Returns whether the program ran. */
static bool measure(const char *programs, const char *what, const char *command)
{
    const bool speed = !strcmp(what, "speed");
    const char *output = speed ? "--metrics m.csv" : "--report r.json";
    Result r = run("%s/%s --quiet --warmup 1 %s", programs, command, output);
    const bool well = r.status == 0;

    printf("%s: ", command);
    if (!well)
        printf("status %d: %s", r.status, r.status == 127 ? "there is no such program\n" : r.err);
    else if (speed)
        printf("%.0f tokens/s, MFU %.1f%%, %.1f ms per step, peak %.1f GB\n", median_of("tokens_per_second"),
               100 * median_of("mfu"), 1e3 * median_of("seconds"), 1e-9 * median_of("peak_bytes"));
    else
        print_operators(strcmp(what, "operators") ? what : "", 0.004, bandwidth());
    result_free(r);
    return well;
}

int main(int argc, char **argv)
{
    bool well = true;

    setvbuf(stdout, NULL, _IOLBF, 0);
    error_set_program("bench_cuda");
    if (argc < 2 || argc % 2)
        fail_usage("expected PROGRAMS, and then a pair of WHAT and COMMAND for each measurement: build/cuda speed "
                   "\"01_single_gpu --preset 124m --steps 8\"");
    char *programs = realpath(argv[1], NULL);
    if (!programs)
        fail_usage("%s: expected the directory of the programs, build/cuda", argv[1]);
    for (int i = 2; i < argc; i += 2)
        well &= measure(programs, argv[i], argv[i + 1]);
    for (int i = 0; argc == 2 && i < LIST; i++) {
        measure(programs, list[i][0], list[i][1]);
        if (!strcmp(list[i][0], "speed"))
            measure(programs, "operators", list[i][1]);
    }
    free(programs);
    return !well;
}
