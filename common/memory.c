#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "options.h"
#include "print.h"

const char *const memory_name[MEM_CATEGORIES] = {
    "parameters", "master", "gradients", "optimizer", "activations", "communication", "workspace"};

static const char *const remedy[MEM_CATEGORIES] = {
    [MEM_PARAMETERS ... MEM_OPTIMIZER] = "a smaller model (--layers, --hidden, --vocab)",
    [MEM_ACTIVATIONS] = "--recompute full, or a smaller --micro-batch (with more --accumulate) or --seq",
    [MEM_COMMUNICATION] = "a smaller model or --micro-batch",
    [MEM_WORKSPACE] = "a smaller --micro-batch (with more --accumulate) or --seq"};

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

const char *memory_in_use(void)
{
    const char *text = format_text("%s in use", bytes_text(used));

    for (int c = 0; c < MEM_CATEGORIES; c++)
        if (entry[c].used)
            text = format_text("%s, %s %s", text, memory_name[c], bytes_text(entry[c].used));
    return text;
}

const char *memory_remedy(Category category)
{
    if (category == MEM_ACTIVATIONS && options.recompute == RECOMPUTE_FULL)
        return remedy[MEM_WORKSPACE];           /* the same advice without --recompute full */
    return remedy[category];
}
