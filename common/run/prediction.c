#include "prediction.h"

#include <stdio.h>

#include "../comm/comm.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/memory.h"
#include "../base/print.h"

void estimate_activations(Recompute recompute, double rows, const char *note)
{
    static const char *const formulas[] = {[RECOMPUTE_NONE] = "L s b h (34 + 5 a s / h)",
                                           [RECOMPUTE_SELECTIVE] = "L s b h 34", [RECOMPUTE_FULL] = "L s b h 2"};
    const double h = options.config.hidden, scores = (double)options.config.heads * options.config.seq;
    const double bytes[] = {[RECOMPUTE_NONE] = 34 * h + 5 * scores, [RECOMPUTE_SELECTIVE] = 34 * h,
                            [RECOMPUTE_FULL] = 2 * h};

    memory_estimate(MEM_ACTIVATIONS, rows * bytes[recompute], new_text("%s%s", formulas[recompute], note));
}

void memory_check_fits(void)
{
    const int64_t available = device_memory_available();    /* before other ranks begin to take it */
    const double mine = memory_total().predicted;
    const int ranks = comm_local.sharing;   /* that share a memory */
    const double average = comm_sum(world, mine) / comm_size(world);
    const double needed = ranks == 1 ? mine : ranks * average;

    print_rank_0("memory needed:");
    for (int c = 0; c < MEM_CATEGORIES; c++)
        if (memory_entry(c).predicted)
            print_rank_0("%s %s %s", c ? "," : "", memory_name[c], bytes_text(memory_entry(c).predicted));
    print_rank_0("; total %s", bytes_text(mine));
    if (ranks > 1)
        print_rank_0(", %s for %d ranks together", bytes_text(needed), ranks);
    if (available >= 0)
        print_rank_0(", %s available", bytes_text(available));
    print_rank_0("\n");
    if (available >= 0 && needed > available)
        fail("not enough memory: needs %s%s, %s available; " MEMORY_HINT, bytes_text(needed),
             ranks > 1 ? format_text(" for %d ranks together", ranks) : "", bytes_text(available));
}

bool memory_check(void)
{
    bool differs = false;

    print_rank_0("\n%-14s %16s %16s %16s\n", "memory, bytes", "measured", "predicted", "playbook");
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        const MemoryStats e = memory_entry(c);
        if (!e.peak && !e.predicted)
            continue;
        print_rank_0("%-14s %16s %16s", memory_name[c], number_text(e.peak), number_text(e.predicted));
        if (e.formula)
            print_rank_0(" %16s  %s", number_text(e.playbook), e.formula);
        print_rank_0("%s\n", e.peak == e.predicted ? "" : "  DIFFERS");
        if (e.peak == e.predicted)
            continue;
        fprintf(stderr, "%s: rank %d: the peak of %s is %lld bytes, but predict() gives %.0f\n", error_name(),
                comm_rank(world), memory_name[c], (long long)e.peak, e.predicted);
        differs = true;
    }
    print_rank_0("%-14s %16s %16s\n", "total", number_text(memory_total().peak),
                 number_text(memory_total().predicted));
    if (memory_entry(MEM_ACTIVATIONS).formula)
        print_rank_0(
            "(the playbook counts only the blocks' activations, with 2 bytes per number and with dropout masks; these "
            "blocks have no dropout)\n");
    if (REAL == F64)
        print_rank_0("(with 8 bytes per number in place of the playbook's 4: this program computes in float64)\n");
    return differs;
}

static CommStats sent[64];              /* in the last step that was checked */
static int sent_count;

bool traffic_check(int step)
{
    bool differs = false;

    sent_count = comm_stats(sent, sizeof sent / sizeof *sent);
    for (const CommStats *a = sent; a < sent + sent_count; a++)
        if (a->calls != a->predicted_calls || a->bytes != a->predicted_bytes) {
            differs = true;
            fprintf(stderr, "%s: rank %d, step %d: %s in group %s: %lld calls sent %lld bytes, but predict() gives "
                    "%lld calls and %lld bytes\n", error_name(), comm_rank(world), step, a->op, a->group,
                    (long long)a->calls, (long long)a->bytes, (long long)a->predicted_calls,
                    (long long)a->predicted_bytes);
        }
    return differs;
}

int traffic_of_step(const CommStats **stats)
{
    *stats = sent;
    return sent_count;
}

void traffic_print(void)
{
    if (sent_count)
        print_rank_0("\n%-15s %-8s %7s %16s %7s %16s\n", "sent per step", "group", "calls", "bytes", "calls",
                     "predicted");
    for (const CommStats *a = sent; a < sent + sent_count; a++)
        print_rank_0("%-15s %-8s %7lld %16s %7lld %16s\n", a->op, a->group, (long long)a->calls, number_text(a->bytes),
                     (long long)a->predicted_calls, number_text(a->predicted_bytes));
}
