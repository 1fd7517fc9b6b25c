/* Models and hardware to plan for. */
#include "machines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/error.h"
#include "../../common/base/options.h"
#include "../../common/base/print.h"

/* From datasheets: dense FLOP/s in bf16 and fp8; bytes that a program can allocate, and their bytes/s; bytes/s to a GPU
 * of the node, one way (NVLink, or PCIe 4.0 x16), and of the node's adapters. Peaks of Blackwell are those by which
 * NVIDIA computes MFU (NVIDIA/dgxc-benchmarking 841f546, README); the memory of b300, gb200 and gb300 is what
 * nvidia-smi reports. A rack, of which 72 is the domain, has an adapter per GPU. */
static const Hardware table[] = {
    {"rtx4090", 165.2e12, 330.3e12, 23.6 * GiB, 1.008e12, 32e9, 12.5e9},        /* Ada whitepaper; network assumed */
    {"l40s", 362.05e12, 733e12, 44.4 * GiB, 864e9, 32e9, 50e9},         /* network assumed: 2 x 200 Gb/s */
    {"a100-40gb", 312e12, 0, 39.4 * GiB, 1.555e12, 300e9, 200e9},       /* SXM; DGX A100: 8 x 200 Gb/s */
    {"a100", 312e12, 0, 79.2 * GiB, 2.039e12, 300e9, 200e9},            /* 80GB SXM; likewise */
    {"h100", 989.4e12, 1978.9e12, 79.6 * GiB, 3.35e12, 450e9, 400e9},   /* SXM; DGX H100, AWS p5: 3,200 Gb/s */
    {"h100-96gb", 835e12, 1670e12, 94 * GiB, 2.4e12, 450e9, 400e9},     /* torchtitan's of 2024-12: HBM2e, limited to
                                                                 * 500 W; its peak isn't published: that of H100 NVL */
    {"h800", 989.4e12, 1978.9e12, 79.6 * GiB, 3.35e12, 200e9, 400e9},   /* SXM */
    {"h200", 989.4e12, 1978.9e12, 140.4 * GiB, 4.8e12, 450e9, 400e9},   /* SXM; DGX H200: 8 x 400 Gb/s */
    {"b200", 2250e12, 4500e12, 179.0 * GiB, 8e12, 900e9, 400e9},        /* an eighth of a DGX B200; 8 x 400 Gb/s */
    {"gb200", 2450e12, 4900e12, 185.0 * GiB, 8e12, 900e9, 72 * 50e9, 72},       /* DGX GB200: ConnectX-7, 400 Gb/s */
    {"b300", 2250e12, 4500e12, 268.6 * GiB, 8e12, 900e9, 800e9},        /* DGX B300: 8 x ConnectX-8, 800 Gb/s */
    {"gb300", 2450e12, 4900e12, 277.5 * GiB, 8e12, 900e9, 72 * 100e9, 72, .boost = 1.2},        /* ConnectX-8; 1,400 W:
                                                                 * in published runs of one model it is 1.12 to 1.31
                                                                 * times as fast as GB200 with its 1,200 W */
    {"mi300x", 1307.4e12, 2614.9e12, 191.7 * GiB, 5.3e12, 448e9, 400e9},        /* 7 links of 64 GB/s, one per peer, all
                                                                 * of which a ring of 8 can use; 8 x 400 Gb/s */
};
enum { KINDS = sizeof table / sizeof *table };

const char *hardware_names(void)
{
    const char *names = table[0].name;

    for (int i = 1; i < KINDS; i++)
        names = format_text("%s|%s", names, table[i].name);
    return names;
}

const Hardware *hardware_find(const char *name)
{
    int i = 0;

    while (i < KINDS && strcasecmp(name, table[i].name))
        i++;
    return i < KINDS ? &table[i] : NULL;
}

/* Reads n numbers between commas, all of them above 0 but the last, which may be 0. */
static bool numbers(const char *text, int n, double *x)
{
    char *end;

    for (int i = 0; i < n; i++, text = end + 1) {
        x[i] = strtod(text, &end);
        if (end == text || *end != (i < n - 1 ? ',' : 0) || !isfinite(x[i]) || x[i] < 0 || (!x[i] && i < n - 1))
            return false;
    }
    return true;
}

Hardware hardware_named(const char *text)
{
    const Hardware *known = hardware_find(text);
    double x[5];

    if (known)
        return *known;
    if (!numbers(text, 5, x) || !x[4])
        fail_usage("--hardware: expected one of %s, or five numbers TFLOPS,GIB,GB/S,GB/S,GB/S (per GPU peak, memory, "
                   "memory bandwidth, NVLink; network per node), such as 989,79.6,3350,450,400, with --per-node unless "
                   "a node has 8 GPUs, or what 00_collectives --machine wrote, FILE.json; got '%s'", hardware_names(),
                   text);
    return (Hardware){text, 1e12 * x[0], 2e12 * x[0], GiB * x[1], 1e9 * x[2], 1e9 * x[3], 1e9 * x[4]};
}

Hardware hardware_simulated(const char *text)
{
    double x[3];

    if (!numbers(text, 3, x))
        fail_usage("--pretend: expected GFLOPS,GB/S,MICROSECONDS as for the programs, such as 10,0.7,100; got '%s'",
                   text);
    return (Hardware){"--pretend", 1e9 * x[0], 0, INFINITY, INFINITY, 1e9 * x[1], 1e9 * x[1], .latency = 1e-6 * x[2]};
}

/* The models of the published runs: Llama's architecture; 1B and 3B tie the embedding. The number of heads is not
 * published, but 32 tensor-parallel ranks divided it in each model. Then Llama 3 (Dubey et al. 2024, table 3),
 * Mixtral (Jiang et al. 2024, table 1), DeepSeek-V3 (its technical report, 4.2), Qwen3 and gpt-oss (config.json). */
static const Model published[] = {
    {"1b", 16, 2048, 32, 32, 8192, 131072, 4096, .gated = true, .tied = true},
    {"3b", 28, 3072, 32, 32, 8192, 131072, 4096, .gated = true, .tied = true},
    {"8b", 32, 4096, 32, 32, 14336, 131072, 4096, .gated = true},
    {"80b", 80, 8192, 64, 64, 28672, 131072, 4096, .gated = true},
    {"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, .gated = true},
    {"llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, .gated = true},
    {"llama3-405b", 126, 16384, 128, 8, 53248, 128256, 8192, .gated = true},
    {"mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 8192, 8, 2, 14336, .gated = true},
    {"deepseek-v3", 61, 7168, 128, 128, 18432, 129280, 4096, 256, 8, 2048, .shared = 1, .dense = 3, LATENT},
    {"qwen3-30b-a3b", 48, 2048, 32, 4, 6144, 151936, 4096, 128, 8, 768, .head_dim = 128, .gated = true},
    {"qwen3-235b-a22b", 94, 4096, 64, 4, 12288, 151936, 4096, 128, 8, 1536, .head_dim = 128, .gated = true},
    {"gpt-oss-120b", 36, 2880, 64, 8, 2880, 201088, 4096, 128, 4, 2880, .head_dim = 64, .gated = true},
};
enum { MODELS = sizeof published / sizeof *published };

const char *model_names(void)
{
    const char *names = preset_names();

    for (int i = MODELS - 1; i >= 0; i--)
        names = format_text("%s|%s", published[i].name, names);
    return names;
}

bool model_find(Model *m, const char *name)
{
    const size_t n = strlen(name);

    for (int i = 0; i < MODELS; i++)                    /* "qwen3-235b-a22b", or without what is active */
        if (!strncasecmp(name, published[i].name, n)
            && (!published[i].name[n] || !strncmp(published[i].name + n, "-a", 2))) {
            *m = published[i];
            return true;
        }
    for (const Preset *p = presets; p->name; p++)
        if (!strcasecmp(name, p->name)) {
            *m = (Model){.layers = p->config.layers, .hidden = p->config.hidden, .heads = p->config.heads,
                         .kv_heads = p->config.heads, .mlp = 4 * p->config.hidden, .vocab = p->config.vocab,
                         .seq = p->config.seq, .tied = true, .in_09 = true};
            strcpy(m->name, p->name);
            return true;
        }
    return false;
}
