#include "memory.h"

const char *const memory_name[MEM_CATEGORIES] = {
    "parameters", "master", "gradients", "optimizer", "activations", "communication", "workspace"};

static MemoryStats entry[MEM_CATEGORIES];
static int64_t used, peak;

void memory_track(Category category, int64_t bytes)
{
    MemoryStats *e = &entry[category];

    e->used += bytes;
    e->peak = e->used > e->peak ? e->used : e->peak;
    used += bytes;
    peak = used > peak ? used : peak;
}

MemoryStats memory_entry(Category category)
{
    return entry[category];
}

MemoryStats memory_total(void)
{
    MemoryStats total = {.used = used, .peak = peak};

    for (int c = 0; c < MEM_CATEGORIES; c++)
        total.predicted += entry[c].predicted;
    return total;
}

void memory_predict(Category category, double bytes)
{
    entry[category].predicted += bytes;
}

void memory_estimate(Category category, double bytes, const char *formula)
{
    entry[category].playbook += bytes;
    entry[category].formula = formula;
}
