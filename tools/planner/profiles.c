#include "costs.h"

#include <math.h>
#include <string.h>

#include "../../common/base/print.h"

/* Attention's rates, without the masked half, for heads of 128 and 4,096 tokens. FlashAttention-2's, both passes: 173
 * of 312 TFLOP/s on A100 and 294 of 989 on H100 (Dao-AILab/flash-attention 0251105, assets/flash2_*_benchmark.png).
 * cuDNN's, which Megatron-LM takes on H100: 518 forward and 499 backward (Shah et al. 2024, figures 5 and 6); assumed
 * on Blackwell. Megatron-LM of 2022 computes scores as batched matmuls, all of them. Memory: most of nanotron's runs
 * above 87% took 2.5 to 10 times as long as predicted; the published runs of others used up to 95%. */
const Traits frameworks[FRAMEWORKS] = {
    [FOR_09] = {"09", "09_combined", 4, 0.87, "0, 1", {0.55, 0.3}, false, false},
    [FOR_MEGATRON] = {"megatron", "Megatron-LM", 4, 0.95, "0, 1, 2, 3", {0.55, 0.5}, true, true},
    [FOR_NANOTRON] = {"nanotron", "nanotron", 6, 0.87, "0, 1", {0}, false, false},
    [FOR_TORCHTITAN] = {"torchtitan", "torchtitan", 2, 0.95, "0, 2, 3", {0.55, 0.3}, true, true},
    [FOR_FSDP_2023] = {"fsdp-2023", "FSDP of 2023", 2, 0.95, "0, 2, 3", {0}, true, false},
    [FOR_MEGATRON_2025] = {"megatron-2025", "Megatron-LM of 2025", 4, 0.95, "0, 1, 2, 3", {0.55, 0.5}, true, true},
    [FOR_MEGATRON_2022] = {"megatron-2022", "Megatron-LM of 2022", 2, 0.95, "0, 1, 2, 3", {0.6, 0.6}, true, false},
};

/* Fitted are the constants with a start, to playbook_runs.csv (nanotron) and published_runs.csv (the others). Of
 * nanotron's runs the others take launch, hop and step; of fsdp_runs.csv sync. nccl-tests' all_reduce on A100 reaches
 * 235 of 300 GB/s, so links are 0.8 (stas00/ml-engineering 0030e63, network/README.md). fp8 and routing are
 * a framework's and a host's: they are fitted on Hopper, and fit Blackwell as well. */
#define OTHERS .launch = 4.51e-3, .hop = 2.82e-4, .step = 0.069, .sync = 3e-5, .links = 0.8
#define TRANSFORMER_ENGINE .fp8 = 0.88, .attention = 0.5, .routing = 4.8e-3, OTHERS
const Profile profiles[PROFILES] = {
    [NANOTRON] = {"nanotron", " nanotron ", " h100 ", false, {.efficiency = 0.461, .launch = 4.51e-3, .hop = 2.82e-4,
                  .sync = 5.1e-5, .step = 0.069, .links = 1, .stall = 0.50},
                  {.efficiency = 0.5, .launch = 5e-3, .hop = 3e-4, .sync = 5e-5, .step = 0.1, .stall = 1},
                  {{358, 4.8, 33.1}}},
    [UNFUSED] = {"unfused", " megatron-2022 ", " a100 a100-40gb ", false, {.efficiency = 0.597, .attention = 0.6,
                 OTHERS}, {.efficiency = 0.5}, {{65, 12.6, 21.0}}},
    [AMPERE] = {"ampere", " fsdp-2023 torchtitan ", " a100 a100-40gb ", false, {.efficiency = 0.71, .attention = 0.34,
                OTHERS}, {.efficiency = 0.5, .attention = 0.3}, {{15, 5.6, 23.4}}},
    [HOPPER] = {"hopper", " fsdp-2023 torchtitan ", " h100 h100-96gb ", false, {.efficiency = 0.631, .fp8 = 0.88,
                .attention = 0.16, OTHERS}, {.efficiency = 0.5}, {{16, 5.9, 32.8}}},
    [MEGATRON_HOPPER] = {"megatron-hopper", " megatron megatron-2025 ", " h100 ", false, {.efficiency = 0.647,
                         TRANSFORMER_ENGINE}, {.efficiency = 0.6, .fp8 = 0.9, .routing = 4e-3},
                         {{24, 2.7, 11.9}, {6, 8.2, 14.8}}},
    [BLACKWELL_2025] = {"blackwell-2025", " megatron-2025 ", " b200 gb200 b300 ", false, {.efficiency = 0.494,
                        TRANSFORMER_ENGINE}, {.efficiency = 0.5}, {{5, 3.1, 6.6}, {14, 23.2, 73.4}}},
    [MEGATRON_BLACKWELL] = {"megatron-blackwell", " megatron ", " b200 gb200 b300 gb300 ", true, {.efficiency = 0.573,
                            TRANSFORMER_ENGINE}, {.efficiency = 0.6}, {{12, 4.8, 11.1}, {9, 9.1, 13.3}}},
};

/* Between H200's and B200's. */
const double BLACKWELL = 1.5e15;

const char *framework_names(void)
{
    const char *names = frameworks[0].name;

    for (int i = 1; i < FRAMEWORKS; i++)
        names = format_text("%s|%s", names, frameworks[i].name);
    return names;
}

Framework framework_named(const char *name)
{
    Framework f = 0;

    while (f < FRAMEWORKS && strcasecmp(name, frameworks[f].name))
        f++;
    return f;
}

int profile_for(Framework f, const Hardware *h)
{
    if (f == FOR_NANOTRON)
        return NANOTRON;
    if (f == FOR_MEGATRON_2022)
        return UNFUSED;
    if ((f == FOR_MEGATRON || f == FOR_MEGATRON_2025) && h->peak > 5e14)
        return h->peak < BLACKWELL ? MEGATRON_HOPPER : f == FOR_MEGATRON ? MEGATRON_BLACKWELL : BLACKWELL_2025;
    return h->peak < 5e14 ? AMPERE : HOPPER;
}

Constants constants_for(Framework f, const Hardware *h, const Constants of[PROFILES])
{
    const int profile = profile_for(f, h);
    Constants k = of ? of[profile] : profiles[profile].constants;
    const double attention = frameworks[f].attention[h->peak > 5e14];

    k.attention = profile == NANOTRON ? k.efficiency            /* its runs have sequences of one length */
                  : attention ? attention : k.attention;
    if (isinf(h->bandwidth))                                    /* simulated, or measured so: it reaches its numbers */
        return (Constants){.efficiency = 1, .attention = 1, .fp8 = 1, .links = 1};
    /* Of the rate of a measured matmul. A CPU: fitted to ten layouts of 09 on two cores (tests/bench). A GPU:
     * attention's rate relative to that of matmuls in its profile. */
    if (h->measured && !h->gpu)
        return (Constants){.efficiency = 0.9, .attention = 0.25, .links = 1};
    if (!h->measured)
        return k;
    k.attention /= k.efficiency;
    k.efficiency = k.links = 1;
    return k;
}
