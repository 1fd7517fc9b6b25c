#include "costs.h"

#include <string.h>

#include "../../common/base/print.h"

/* Attention's rates, without the masked half, for heads of 128 and 4,096 tokens. FlashAttention-2's, both passes: 173
 * of 312 TFLOP/s on A100 and 294 of 989 on H100 (Dao-AILab/flash-attention 0251105, assets/flash2_*_benchmark.png).
 * cuDNN's, which Megatron-LM takes on H100: 518 forward and 499 backward (Shah et al. 2024, figures 5 and 6).
 * Megatron-LM of 2022 computes scores as batched matmuls, all of them. Memory: most of nanotron's runs above 87% took
 * 2.5 to 10 times as long as predicted; the published runs of others used up to 95%. */
const Traits frameworks[FRAMEWORKS] = {
    [FOR_09] = {"09", "09_combined", 4, 0.87, 1 << 0 | 1 << 1, {0.55, 0.3}, false, ""},
    [FOR_MEGATRON] = {"megatron", "Megatron-LM", 4, 0.95, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3, {0.55, 0.5}, true, "h100"},
    [FOR_NANOTRON] = {"nanotron", "nanotron", 6, 0.87, 1 << 0 | 1 << 1, {0}, false, "h100"},
    [FOR_TORCHTITAN] = {"torchtitan", "torchtitan", 2, 0.95, 1 << 0 | 1 << 2 | 1 << 3, {0.55, 0.3}, true, "a100 h100"},
    [FOR_FSDP_2023] = {"fsdp-2023", "FSDP of 2023", 2, 0.95, 1 << 0 | 1 << 2 | 1 << 3, {0}, true, "a100 h100"},
    [FOR_MEGATRON_2022] = {"megatron-2022", "Megatron-LM of 2022", 2, 0.95, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3,
                           {0.6, 0.6}, true, "a100"},
};

/* Not fitted in the last three: launch, hop and step are nanotron's; sync is that of the series of runs in
 * fsdp_runs.csv; links: nccl-tests' all_reduce on A100 reaches 235 of 300 GB/s (stas00/ml-engineering 0030e63,
 * network/README.md). */
const Profile profiles[PROFILES] = {
    [NANOTRON] = {"nanotron", {0.461, 0, 4.51e-3, 2.82e-4, 5.1e-5, 0.069, 1, 0.50},
                  {0.5, 0, 5e-3, 3e-4, 5e-5, 0.1, 0, 1}, 0.09},        /* playbook_runs.csv */
    [UNFUSED] = {"unfused", {0.6, 0.6, 4.51e-3, 2.82e-4, 3e-5, 0.069, 0.8}, {0.5}, 0.15},      /* Megatron-LM, A100 */
    [AMPERE] = {"ampere", {0.71, 0.34, 4.51e-3, 2.82e-4, 3e-5, 0.069, 0.8}, {0.5, 0.3}, 0.07},      /* FSDP, A100 */
    [HOPPER] = {"hopper", {0.59, 0.16, 4.51e-3, 2.82e-4, 3e-5, 0.069, 0.8}, {0.5, 0}, 0.08},        /* both, H100 */
};
const Constants exact_constants = {.efficiency = 1, .attention = 1, .links = 1};

/* Of the rate of a measured matmul. A CPU: fitted to ten layouts of 09 on two cores (tests/bench). A GPU: attention's
 * rate relative to that of matmuls in its profile. */
Constants measured_constants(Framework f, const Hardware *h)
{
    Constants k = constants_for(f, h, NULL);

    if (!h->gpu)
        return (Constants){.efficiency = 0.9, .attention = 0.25, .links = 1};
    k.attention /= k.efficiency;
    k.efficiency = k.links = 1;
    return k;
}

/* Of Blackwell's peak, grouped matmuls of experts reach 0.35 to 0.4, forward and backward (torchao's pull request
 * 3174); on Hopper as much as others do: Megatron-LM reaches 468 TFLOP/s with Mixtral 8x7B. */
static const double BLACKWELL = 1.5e15, GROUPED = 0.38;

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
    return h->peak < 5e14 ? AMPERE : HOPPER;
}

Constants constants_for(Framework f, const Hardware *h, const Constants of[PROFILES])
{
    const int profile = profile_for(f, h);
    Constants k = of ? of[profile] : profiles[profile].constants;
    const double attention = frameworks[f].attention[profile == HOPPER];

    k.attention = profile == NANOTRON ? k.efficiency            /* its runs have sequences of one length */
                  : attention ? attention : k.attention;
    if (h->peak > BLACKWELL)
        k.experts = GROUPED;
    return k;
}

double memory_limit(const Cluster *c)
{
    return frameworks[c->framework].memory_limit;
}
