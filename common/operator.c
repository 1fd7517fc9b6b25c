#include "operator.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "device.h"
#include "error.h"
#include "trace.h"

static OpStats stats[64];
static int stats_count;
static double pretend_flops;

static OpStats *current;                        /* the operator between op_begin and op_end */
static OpStats uncounted;                       /* operators while counting is disabled */
static bool counting = true;
static double began, flops_of_call, read_before;

/* On a GPU an operator has not run yet when its call returns. Its time is that between two events in the stream, read
 * once the device has reached them. */
enum { POINTS = 4096 };
static struct {
    OpStats *stats;
    DeviceEvent begin, end;
} points[POINTS];
static int64_t points_begun, points_read;       /* since the start; number n is at n mod POINTS */
static bool timed;

static OpStats *stats_of(const char *name)
{
    for (int i = 0; i < stats_count; i++)
        if (!strcmp(stats[i].name, name))
            return &stats[i];
    stats[stats_count].name = name;
    return &stats[stats_count++];
}

static void read_point(void)
{
    const int64_t i = points_read++ % POINTS;
    const double begin = device_event_seconds(&points[i].begin), end = device_event_seconds(&points[i].end);

    points[i].stats->seconds += end - begin;
}

void op_begin(const char *name, Operands writes, Operands updates, Operands reads, double flops, bool fits,
              const char *rule)
{
    const Operands *all[] = {&writes, &updates, &reads};
    double bytes = read_before;

    if (!fits) {
        char text[1024];
        int at = 0;
        for (int k = 0; k < 3; k++)
            for (int i = 0; i < all[k]->count; i++) {
                const Tensor t = all[k]->t[i];
                char *one = tensor_describe(t);
                at += snprintf(text + at, at < (int)sizeof text ? sizeof text - at : 0, "%s%s%s%s", at ? ", " : "",
                               t.data ? one : "none", t.data ? " " : "", t.data ? dtype_name(t.dtype) : "");
                free(one);
            }
        fail("%s: %s; but it takes %s", name, text, rule);
    }
    for (int k = 2; k >= 0; k--)                /* reads first: an operator may write where it reads */
        for (int i = 0; i < all[k]->count; i++) {
            bytes += tensor_bytes(all[k]->t[i]);
            trace_operand(all[k]->t[i], k == 0 ? TRACE_WRITE : k == 1 ? TRACE_UPDATE : TRACE_READ);
        }
    current = counting ? stats_of(name) : &uncounted;
    current->calls++;
    current->flops += flops;
    current->bytes += bytes;
    read_before = 0;
    flops_of_call = flops;
    trace_operator(name);
    began = clock_seconds();
    if (timed) {
        if (points_begun - points_read == POINTS)
            read_point();
        points[points_begun % POINTS].stats = current;
        points[points_begun % POINTS].begin = device_event();
    }
}

void op_reads(Tensor t)
{
    trace_operand(t, TRACE_READ);
    read_before += tensor_bytes(t);
}

void op_end(void)
{
    if (pretend_flops) {
        device_wait();
        while (clock_seconds() - began < flops_of_call / pretend_flops) {
            comm_progress();
            sched_yield();                      /* to other ranks on this core that have real work */
        }
    }
    comm_progress();                            /* MPI moves data only inside its calls */
    if (timed)
        points[points_begun++ % POINTS].end = device_event();
    else if (device_is_host())
        current->seconds += clock_seconds() - began;
    trace_end();
}

int ops_stats(const OpStats **s)
{
    while (points_read < points_begun)
        read_point();
    *s = stats;
    return stats_count;
}

void ops_stats_reset(void)
{
    while (points_read < points_begun)
        read_point();
    stats_count = 0;
    memset(stats, 0, sizeof stats);
}

void ops_stats_enable(bool yes)
{
    counting = yes;
}

void ops_time(void)
{
    timed = !device_is_host();
}

void ops_pretend(double flops_per_second)
{
    pretend_flops = flops_per_second;
}
