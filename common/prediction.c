#include "prediction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "device.h"
#include "error.h"
#include "memory.h"
#include "print.h"

/* Returns the bytes that the ranks on this machine's memory, or on the same GPU, need together, and their number. */
static double needed_together(int *ranks)
{
    struct Need { int machine; char device[DEVICE_IDENTITY]; double bytes; } mine = {.machine = comm_machine()}, *all;
    double bytes = 0;

    mine.bytes = memory_total().predicted + device_memory_beside();
    strcpy(mine.device, device_identity());
    all = calloc(comm_size(world), sizeof *all);
    if (!all)
        fail("not enough memory on the host for a table of %d ranks", comm_size(world));
    comm_agree();                               /* if a rank failed, all end here */
    comm_gather_host(world, all, &mine, sizeof mine);
    *ranks = 0;
    for (const struct Need *r = all; r < all + comm_size(world); r++)
        if (r->machine == mine.machine && !strcmp(r->device, mine.device)) {
            bytes += r->bytes;
            ++*ranks;
        }
    free(all);
    return bytes;
}

void memory_check_fits(void)
{
    const int64_t before = device_memory_available();
    const bool connected = comm_connect();
    const int64_t available = device_memory_available();    /* before other ranks begin to take it */
    const double beside = device_memory_beside();
    int largest = 0, ranks;
    const double needed = needed_together(&ranks);

    print_rank_0("memory needed:");
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        const double bytes = memory_entry(c).predicted;
        largest = bytes > memory_entry(largest).predicted ? c : largest;
        if (bytes)
            print_rank_0("%s %s %s", c ? "," : "", memory_name[c], bytes_text(bytes));
    }
    print_rank_0("; total %s", bytes_text(memory_total().predicted));
    if (beside)
        print_rank_0(", and an estimated %s for scratch and kernels", bytes_text(beside));
    if (ranks > 1)
        print_rank_0(", %s for %d ranks together", bytes_text(needed), ranks);
    if (available >= 0)
        print_rank_0(", %s available", bytes_text(available));
    if (connected)
        print_rank_0(" after connecting the ranks took %s", bytes_text(before - available));
    print_rank_0("\n");
    if (available >= 0 && needed > available) {
        char shared[64] = "";
        if (ranks > 1)
            snprintf(shared, sizeof shared, " for %d ranks together", ranks);
        fail("not enough memory: needs %s%s, %s available; the largest category is %s with %s: try %s",
             bytes_text(needed), shared, bytes_text(available), memory_name[largest],
             bytes_text(memory_entry(largest).predicted), memory_remedy(largest));
    }
}

void memory_print(void)
{
    print_rank_0("\n%-14s %16s %16s %16s\n", "memory, bytes", "measured", "predicted", "playbook");
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        const MemoryStats e = memory_entry(c);
        if (!e.peak && !e.predicted)
            continue;
        print_rank_0("%-14s %16lld %16.0f", memory_name[c], (long long)e.peak, e.predicted);
        if (e.formula)
            print_rank_0(" %16.0f  %s", e.playbook, e.formula);
        print_rank_0("%s\n", e.peak == e.predicted ? "" : "  DIFFERS");
    }
    print_rank_0("%-14s %16lld %16.0f\n", "total", (long long)memory_total().peak, memory_total().predicted);
    if (memory_entry(MEM_ACTIVATIONS).formula)
        print_rank_0(
            "(the playbook counts only the blocks' activations, with 2 bytes per number and with dropout masks; these "
            "blocks have no dropout)\n");
    if (REAL == F64)
        print_rank_0("(with 8 bytes per number in place of the playbook's 4: this program computes in float64)\n");
    if (device_memory_reserved())
        print_rank_0("%-14s %16lld  taken from the GPU, including operators' scratch and the pool's free memory\n",
                     "reserved", (long long)device_memory_reserved());
}

static CommStats sent[64];              /* in the last step that was checked */
static int sent_count;

bool traffic_check(int step)
{
    bool differs = false;

    sent_count = comm_stats(sent, sizeof sent / sizeof *sent);
    for (const CommStats *a = sent; a < sent + sent_count && !differs; a++)
        if (a->calls != a->predicted_calls || a->bytes != a->predicted_bytes) {
            fprintf(stderr, "%s: rank %d, step %d: %s in group %s: %lld calls sent %lld bytes, but predict() gives "
                    "%lld calls and %lld bytes\n", error_name(), comm_rank(world), step, a->op, a->group,
                    (long long)a->calls, (long long)a->bytes, (long long)a->predicted_calls,
                    (long long)a->predicted_bytes);
            differs = true;
        }
    return differs;
}

int traffic_of_step(const CommStats **stats)
{
    *stats = sent;
    return sent_count;
}

bool memory_check(void)
{
    bool differs = false;

    for (int c = 0; c < MEM_CATEGORIES; c++) {
        const MemoryStats e = memory_entry(c);
        if (e.peak == e.predicted)
            continue;
        fprintf(stderr, "%s: rank %d: the peak of %s is %lld bytes, but predict() gives %.0f\n", error_name(),
                comm_rank(world), memory_name[c], (long long)e.peak, e.predicted);
        differs = true;
    }
    return differs;
}

void traffic_print(void)
{
    if (sent_count)
        print_rank_0("\n%-15s %-8s %7s %16s %7s %16s\n", "sent per step", "group", "calls", "bytes", "calls",
                     "predicted");
    for (const CommStats *a = sent; a < sent + sent_count; a++)
        print_rank_0("%-15s %-8s %7lld %16lld %7lld %16lld\n", a->op, a->group, (long long)a->calls,
                     (long long)a->bytes, (long long)a->predicted_calls, (long long)a->predicted_bytes);
}
