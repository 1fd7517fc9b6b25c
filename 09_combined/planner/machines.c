/* Models and hardware to plan for. */
#include "machines.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../common/error.h"
#include "../../common/options.h"

#define GiB 1073741824.0

/* From datasheets. Memory: what a program can allocate. Network: the eight adapters of a node. */
static const Hardware table[] = {
    {"a100", 312e12, 79.2 * GiB, 2.039e12, 300e9, 200e9, 0,
     "NVIDIA A100 80GB SXM: 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s both ways; DGX A100: 8 x 200 Gb/s"},
    {"h100", 989.4e12, 79.6 * GiB, 3.35e12, 450e9, 400e9, 0,
     "NVIDIA H100 SXM: 989.4 TFLOP/s dense, 3.35 TB/s, NVLink 900 GB/s both ways; DGX H100, AWS p5: 3,200 Gb/s"},
    {"h200", 989.4e12, 140.4 * GiB, 4.8e12, 450e9, 400e9, 0,
     "NVIDIA H200 SXM: as H100, 141 GB at 4.8 TB/s; DGX H200: 8 x 400 Gb/s"},
    {"b200", 2250e12, 179.0 * GiB, 8e12, 900e9, 400e9, 0,
     "NVIDIA DGX B200: 18 PFLOP/s dense bf16, 1,440 GB at 64 TB/s, NVLink 1.8 TB/s both ways; 8 x 400 Gb/s"},
};
enum { KINDS = sizeof table / sizeof *table };

const char *hardware_names(void)
{
    static char names[128];

    if (!names[0])
        for (int i = 0; i < KINDS; i++)
            strcat(strcat(names, i ? "|" : ""), table[i].name);
    return names;
}

Hardware hardware_named(const char *text)
{
    Hardware h = {.name = text, .source = "as given"};
    double tflops, memory, bandwidth, nvlink, network;
    char rest;

    for (int i = 0; i < KINDS; i++)
        if (!strcmp(text, table[i].name))
            return table[i];
    if (sscanf(text, "%lf,%lf,%lf,%lf,%lf%c", &tflops, &memory, &bandwidth, &nvlink, &network, &rest) != 5
        || !(tflops > 0 && memory > 0 && bandwidth > 0 && nvlink > 0 && network > 0) || !isfinite(tflops + memory)
        || !isfinite(bandwidth + nvlink + network))
        fail_usage("--hardware: expected one of %s, or five numbers TFLOPS,GIB,GB/S,GB/S,GB/S (per GPU peak, memory, "
                   "memory bandwidth, NVLink; network per node), such as 989,79.6,3350,450,400; got '%s'",
                   hardware_names(), text);
    h.peak = 1e12 * tflops, h.memory = GiB * memory, h.bandwidth = 1e9 * bandwidth;
    h.nvlink = 1e9 * nvlink, h.network = 1e9 * network;
    return h;
}

Hardware hardware_simulated(const char *text)
{
    double gflops, gigabytes, microseconds;
    char rest;

    if (sscanf(text, "%lf,%lf,%lf%c", &gflops, &gigabytes, &microseconds, &rest) != 3 || !(gflops > 0)
        || !(gigabytes > 0) || !(microseconds >= 0) || !isfinite(gflops + gigabytes + microseconds))
        fail_usage("--pretend: expected GFLOPS,GB/S,MICROSECONDS as for the programs, such as 10,0.7,100; got '%s'",
                   text);
    return (Hardware){.name = "--pretend", .peak = 1e9 * gflops, .memory = INFINITY, .bandwidth = INFINITY,
                      .nvlink = 1e9 * gigabytes, .network = 1e9 * gigabytes, .latency = 1e-6 * microseconds};
}

/* The models of the published runs: Llama's architecture; 1B and 3B tie the embedding. The number of heads is not
 * published, but 32 tensor-parallel ranks divided it in each model. */
static const Model published[] = {
    {"1b", 16, 2048, 32, 32, 8192, 131072, 4096, true, true, false},
    {"3b", 28, 3072, 32, 32, 8192, 131072, 4096, true, true, false},
    {"8b", 32, 4096, 32, 32, 14336, 131072, 4096, true, false, false},
    {"80b", 80, 8192, 64, 64, 28672, 131072, 4096, true, false, false},
};
enum { MODELS = sizeof published / sizeof *published };

const char *model_names(void)
{
    static char names[512];

    if (!names[0]) {
        for (int i = 0; i < MODELS; i++)
            strcat(strcat(names, published[i].name), "|");
        strcat(names, preset_names());
    }
    return names;
}

bool model_find(Model *m, const char *name)
{
    const Preset *p = preset_named(name);

    for (int i = 0; i < MODELS; i++)
        if (!strcasecmp(name, published[i].name)) {
            *m = published[i];
            return true;
        }
    if (!p)
        return false;
    *m = (Model){.layers = p->config.layers, .hidden = p->config.hidden, .heads = p->config.heads,
                 .kv_heads = p->config.heads, .mlp = 4 * p->config.hidden, .vocab = p->config.vocab,
                 .seq = p->config.seq, .tied = true, .in_09 = true};
    snprintf(m->name, sizeof m->name, "%s", name);
    return true;
}
