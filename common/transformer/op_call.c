#include "op_call.h"

#include <string.h>

#include "../comm/comm.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/options.h"
#include "../base/trace.h"

enum { OPERATORS = 64 };
static OpStats stats[OPERATORS];
static int stats_count;

static OpStats uncounted;                       /* operators while counting is disabled */
static bool counting = true;

static struct {                                 /* the operator between op_begin and op_end */
    const char *name;
    OpStats *stats;
    double began, flops;
} current;

/* On a GPU an operator has not run yet when its call returns. Its time is that between two events in the stream, read
 * once the device has reached them. */
enum { POINTS = 4096 };
static struct {
    OpStats *stats;
    DeviceEvent begin, end;
} points[POINTS];
static int64_t points_begun, points_read;       /* since the start; number n is at n mod POINTS */

static OpStats *stats_of(const char *name)
{
    for (int i = 0; i < stats_count; i++)
        if (!strcmp(stats[i].name, name))
            return &stats[i];
    if (stats_count == OPERATORS)
        fail("%s: there are more than %d operators; raise OPERATORS in op_call.c", name, OPERATORS);
    stats[stats_count].name = name;
    return &stats[stats_count++];
}

static void read_point(void)
{
    const int64_t i = points_read++ % POINTS;
    const double begin = device_event_seconds(&points[i].begin), end = device_event_seconds(&points[i].end);

    points[i].stats->seconds += end - begin;
}

static void begin_point(void)
{
    if (points_begun - points_read == POINTS)
        read_point();
    points[points_begun % POINTS].stats = current.stats;
    points[points_begun % POINTS].begin = device_event();
}

void op_begin(const char *name, double flops, const char *takes, Operands o)
{
    operands_check(name, takes, &o);
    current.name = name;
    current.stats = counting ? stats_of(name) : &uncounted;
    current.stats->calls++;
    current.stats->flops += flops;
    for (int i = 0; i < o.count; i++)
        current.stats->bytes += tensor_bytes(o.t[i]);
    trace_operator(name, takes, o.t, o.count);
    current.flops = flops;
    current.began = clock_seconds();
    if (options.report && !device_is_host())
        begin_point();
}

void op_reads(const char *takes, Tensor t)
{
    operands_check(current.name, takes, &OPERANDS(t));
    current.stats->bytes += tensor_bytes(t);
}

void op_end(void)
{
    if (options.pretend) {
        device_wait();
        comm_wait_until(current.began + current.flops / options.pretend_flops);
    }
    comm_progress();                            /* MPI moves data only inside its calls */
    if (device_is_host())
        current.stats->seconds += clock_seconds() - current.began;
    else if (options.report)
        points[points_begun++ % POINTS].end = device_event();
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
