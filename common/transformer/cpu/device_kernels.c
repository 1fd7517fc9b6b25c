/* OpenBLAS's kernels. It chooses them by the processor's model when it is loaded. Before 0.3.25 it takes Intel's models
 * from 0xB0 on, such as Raptor Lake and Emerald Rapids, for a Pentium 4 ("Prescott"), and is then several times slower.
 * The variable OPENBLAS_CORETYPE, which it reads at that moment, overrides the choice. */
#include "../../base/device.h"

#include <cblas.h>
#include <stdlib.h>
#include <strings.h>

#include "../../base/start.h"

/* Returns the kernels that OpenBLAS should have taken; NULL: those that it took are for a processor like this one. */
static const char *better_kernels(void)
{
#ifdef __x86_64__
    /* All kernels without AVX2: they get no more, whereas there may be new ones for new processors. */
    static const char *const old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Atom", "Nehalem", "Sandybridge",
                                      "Opteron", "Opteron_SSE3", "Barcelona", "Nano", "Bobcat", "Bulldozer",
                                      "Piledriver", "Steamroller"};
    bool is_old = false;

    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        is_old = is_old || !strcasecmp(openblas_get_corename(), old[i]);
    /* Cooperlake and SapphireRapids have the same products of floats, and not every OpenBLAS knows their names. */
    if (is_old && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512cd"))
        return "SkylakeX";
    if (is_old && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

void device_prepare(char **argv)
{
    /* set by the user, or by this function before: an OpenBLAS that has only one processor's kernels ignores it */
    const char *better = getenv("OPENBLAS_CORETYPE") ? NULL : better_kernels();

    if (!better)
        return;
    setenv("OPENBLAS_CORETYPE", better, 1);
    start_again(argv);          /* if it returns, the program goes on with the kernels that it has */
}
