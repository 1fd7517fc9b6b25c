/* --pretend: transfers on simulated links. Each lasts at least as long as it would there. What the real transfer took
 * beyond that is subtracted from this rank's clock. */
#include <math.h>

#include "transport.h"
#include "../base/device.h"
#include "../base/options.h"
#include "../base/trace.h"

static double ahead;                    /* seconds by which the host's clock runs ahead of simulated time */
static double overrun;                  /* seconds of this step that real transfers took beyond simulated ones */

double comm_clock(void)
{
    return clock_seconds() - (options.pretend ? ahead : 0);
}

double comm_pretend_overrun(void)
{
    return overrun;
}

void pretend_step_begins(void)
{
    overrun = 0;
}

void pretend_left_together(int span, double last)
{
    const double now = clock_seconds();

    ahead = now - last;
    trace_transfer_was(span, now, now);         /* its numbers take no time; a rank only waits for the last one */
}

/* A rank is ready for a transfer when its link is free. The transfer begins when the last of its ranks is ready, so
 * the ranks exchange these times. A ring of n ranks takes n - 1 hops one after the other for an all-gather or a
 * reduce-scatter. */
void pretend_begin(Request *q, int64_t bytes)
{
    static double link_free;
    const Transfer *t = &q->t;
    const bool collective = !is_point_to_point(t->op), exchange = t->op == EXCHANGE;
    const int ring = t->comm->size - 1, hops = !collective ? 1 : t->op == ALL_REDUCE ? 2 * ring : ring;
    Pretended *p = &q->pretended;

    p->transfer.ready = comm_clock();
    if (t->in || collective) {
        p->transfer.ready = fmax(p->transfer.ready, link_free);
        p->transfer.seconds = hops * options.pretend_latency + bytes / options.pretend_bandwidth;
        link_free = p->transfer.ready + p->transfer.seconds;
    }
    p->clock = mpi_start_host((Transfer){
        .comm = t->comm, .op = collective ? ALL_REDUCE : t->op, .reduce = MAX,
        .out = exchange ? &p->received : &p->transfer, .in = &p->transfer,
        .count = exchange && !t->in ? 0 : 2, .out_count = exchange && !t->out ? 0 : 2,
        .dtype = F64, .peer = t->peer, .from = t->from, .tag = t->tag % TAGS + CLOCK_TAG});
}

void pretend_end(Request *q, double waited_from)
{
    const LinkTime transfer = q->pretended.transfer, received = q->pretended.received;
    const double end = fmax(transfer.ready + transfer.seconds, received.ready + received.seconds);

    comm_wait_until(ahead + end);
    trace_transfer_was(q->span, ahead + fmax(transfer.ready, received.ready), ahead + end);
    const double late = comm_clock() - fmax(waited_from, end);
    ahead += late;
    overrun += late;
}
