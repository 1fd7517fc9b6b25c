/* The operations on groups, waiting for them, and the traffic counters. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../device.h"
#include "../error.h"
#include "../options.h"
#include "../trace.h"
#include "transport.h"

/* ---- Waiting ---- */

static double waited, late;             /* seconds; late: by which real transfers overran those of --pretend */

double comm_waited(void)
{
    return waited;
}

double comm_pretend_overrun(void)
{
    return late;
}

static double behind;                   /* seconds by which this rank's clock runs ahead of simulated time */

double comm_clock(void)
{
    return clock_seconds() - (options.pretend ? behind : 0);
}

double comm_sum(Comm *comm, double x)
{
    double (*all)[2] = host_alloc(comm->size * sizeof *all, "a sum"), sum = 0, last = 0;

    if (options.check && comm->size > 1)
        check_agreement(&(Transfer){.comm = comm, .op = NUMBER, .count = 1, .dtype = F64}, "a number");
    const double begin = clock_seconds();
    const int span = comm->size > 1 ? trace_transfer_begin("sum", comm->name) : -1;
    comm_gather_host(comm, all, (double[2]){x, comm_clock()}, sizeof *all);
    trace_transfer_end(span);
    waited += comm->size > 1 ? clock_seconds() - begin : 0;
    for (int r = 0; r < comm->size; r++) {
        sum += all[r][0];
        last = fmax(last, all[r][1]);
    }
    if (options.pretend)                        /* all ranks leave when the last one came */
        behind = clock_seconds() - last;
    free(all);
    return sum;
}

void comm_barrier(Comm *comm)
{
    comm_sum(comm, 0);
}

/* ---- Traffic ---- */

/* Returns the elements that this rank sends for a full tensor of K elements, by the formulas in comm.h. */
static int64_t elements_sent(const Comm *c, CommOp op, int64_t K, bool root)
{
    const int64_t scatter = K - range_split(K, c->rank, c->size).count;
    const int64_t gather = K - range_split(K, (c->rank + 1) % c->size, c->size).count;

    switch (op) {
    case ALL_REDUCE:
        return scatter + gather;
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return scatter;
    case ALL_GATHER:
        return gather;
    case BROADCAST:
        return root && c->size > 1 ? K : 0;
    default:
        return c->size > 1 ? K : 0;
    }
}

void comm_predict_as(Comm *comm, CommOp op, DType dtype, int64_t calls, int64_t elements)
{
    if (comm_transport == &transport_mpi && comm->size > 1)
        mpi_check_count(comm, op, dtype, elements);     /* now, not in the first step */
    comm->used[op] = true;
    op = op == EXCHANGE ? SEND : op;
    comm->predicted_calls[op] += calls;
    comm->predicted_bytes[op] += calls * elements_sent(comm, op, elements, comm->rank == 0) * dtype_size(dtype);
}

void comm_predict(Comm *comm, CommOp op, int64_t calls, int64_t elements)
{
    comm_predict_as(comm, op, REAL, calls, elements);
}

void comm_sends_to(Comm *comm, int to)
{
    if (to >= 0)
        comm->used[SEND] = comm->sends[to != (comm->rank + 1) % comm->size] = true;
}

void comm_connect(void)
{
    for (Comm *c = world; c; c = c->next) {
        bool *all = host_alloc(c->size * sizeof c->used, "what the ranks of a group will send");
        comm_gather_host(c, all, c->used, sizeof c->used);
        for (size_t i = 0; i < c->size * sizeof c->used; i++)   /* some predictions are made on one rank only */
            c->used[i % sizeof c->used] |= all[i];
        free(all);
    }
    for (Comm *c = world; c && comm_transport->connect; c = c->next)
        if (c->size > 1)
            comm_transport->connect(c);
}

int comm_stats(CommStats *stats, int capacity)
{
    int n = 0;

    for (const Comm *c = world; c; c = c->next)
        for (int op = 0; op < COMM_OPS && n < capacity; op++)
            if (c->calls[op] || c->predicted_calls[op])
                stats[n++] = (CommStats){c->name, comm_op_name[op], c->calls[op], c->bytes[op], c->predicted_calls[op],
                                         c->predicted_bytes[op]};
    return n;
}

int64_t comm_bytes(void)
{
    int64_t sum = 0;

    for (const Comm *c = world; c; c = c->next)
        for (int op = 0; op < COMM_OPS; op++)
            sum += c->bytes[op];
    return sum;
}

void comm_stats_reset(void)
{
    for (Comm *c = world; c; c = c->next) {
        memset(c->calls, 0, sizeof c->calls);
        memset(c->bytes, 0, sizeof c->bytes);
    }
    if (options.check)
        check_waited_for();
    waited = late = 0;
}

/* ---- Requests ---- */

static bool is_point_to_point(CommOp op)
{
    return op == SEND || op == RECV || op == EXCHANGE;
}

/* --pretend: a transfer is ready when this rank's link is free, and begins when the last of its ranks is ready; the
 * ranks exchange these times. A ring of n ranks takes n - 1 hops one after the other for an all-gather or a
 * reduce-scatter. */
static void pretend_begin(Request *q, Transfer t, int64_t bytes, double now)
{
    static double link_free;
    const int size = t.comm->size, ring = t.op == ALL_REDUCE ? 2 * (size - 1) : size - 1;
    const int hops = is_point_to_point(t.op) ? 1 : ring;
    const bool both = t.op == EXCHANGE;

    q->when[0] = q->begin = now;
    if (t.in || !is_point_to_point(t.op)) {
        q->when[1] = hops * options.pretend_latency + bytes / options.pretend_bandwidth;
        q->when[0] = q->begin = link_free > now ? link_free : now;
        link_free = q->when[0] + q->when[1];
    }
    q->clock = mpi_start_host((Transfer){.comm = t.comm, .op = is_point_to_point(t.op) ? t.op : ALL_REDUCE,
                                         .reduce = MAX, .out = both ? q->arrives : q->when, .in = q->when,
                                         .count = both && !t.in ? 0 : 2, .out_count = both && !t.out ? 0 : 2,
                                         .dtype = F64, .peer = t.peer, .from = t.from, .tag = t.tag + CLOCK_TAG});
}

/* Starts a transfer of the full tensor `full`. t has what the tensors do not tell. */
static Request *start_transfer(Transfer t, Tensor out, Tensor in, Tensor full)
{
    Comm *comm = t.comm;
    const CommOp op = t.op;
    const bool collective = !is_point_to_point(op);
    const bool only_receives = op == RECV || (op == EXCHANGE && !in.data);
    const double called = comm_clock();
    int64_t bytes = 0;

    t.out = out.data, t.out_count = tensor_count(out), t.in = in.data;
    t.count = tensor_count(full), t.dtype = only_receives ? out.dtype : full.dtype;
    t.number = comm->operations += collective;  /* point-to-point transfers differ between ranks */
    if (!only_receives) {
        const CommOp counted = is_point_to_point(op) ? SEND : op;
        bytes = elements_sent(comm, op, t.count, comm->rank == t.peer) * dtype_size(t.dtype);
        comm->calls[counted]++;
        comm->bytes[counted] += bytes;
    }
    if (comm->size == 1) {                      /* the only shard is the full tensor */
        if (out.data != in.data && in.data)
            device_copy(out.data, in.data, tensor_bytes(in));
        return NULL;
    }
    Request *q = host_alloc(sizeof *q, "a request");
    *q = (Request){.comm = comm, .op = op, .number = t.number, .peer = t.peer, .out = out, .in = in};
    if (options.check && collective)
        check_agreement(&t, full.name);
    if (options.check)
        check_begin(q, &t);
    t.tag %= TAGS;
    q->span = trace_transfer_begin(comm_op_name[op], comm->name);
    if (options.pretend)
        pretend_begin(q, t, bytes, called);
    q->handle = comm_transport->start(t);
    return q;
}

static void finish(Request *q)
{
    const double began = comm_clock();

    if (q->op == SEND || q->op == RECV)
        comm_deadline("waits for a %s %s rank %d of group %s", comm_op_name[q->op], q->op == SEND ? "to" : "from",
                      q->peer, q->comm->name);
    else
        comm_deadline("waits for %s, %soperation %lld of group %s", comm_op_name[q->op],
                      q->op == EXCHANGE ? "after " : "", (long long)q->number, q->comm->name);
    comm_wait_for(mpi_done, &q->label);
    if (options.check)
        check_label(q);                         /* before a wait that would never end if the labels differ */
    comm_wait_for(mpi_done, &q->clock);
    comm_wait_for(comm_transport->done, &q->handle);
    comm_deadline_met();
    const double end = fmax(q->when[0] + q->when[1], q->arrives[0] + q->arrives[1]);    /* --pretend; else 0 */
    while (comm_clock() < end) {
        comm_progress();
        sched_yield();
    }
    trace_transfer_end(q->span);
    const double begin = is_point_to_point(q->op) ? q->begin : q->when[0];      /* a receive's may be after its end */
    if (options.pretend)
        trace_transfer_was(q->span, behind + begin, behind + fmax(begin, end));
    if (options.check)
        check_end(q);
    if (options.pretend) {
        const double overrun = comm_clock() - fmax(began, end);
        behind += overrun;
        late += overrun;
    }
    free(q);
}

void comm_wait(Request **request)
{
    Request *q = *request;

    if (!q)
        return;
    *request = NULL;
    const double begin = clock_seconds();
    finish(q);
    waited += clock_seconds() - begin;
}

void comm_complete(Request *request)
{
    comm_wait(&request);
}

/* ---- The operations ---- */

Request *comm_start_all_reduce(Comm *comm, Tensor t, Reduce reduce)
{
    return start_transfer((Transfer){.comm = comm, .op = ALL_REDUCE, .reduce = reduce}, t, NONE, t);
}

static bool overlap(Tensor a, Tensor b)
{
    const char *p = a.data, *q = b.data;

    return p < q + tensor_bytes(b) && q < p + tensor_bytes(a);
}

/* Fails unless `shard` is this rank's shard of `full`, at its own place if it lies inside. */
static void check_shard(const Comm *comm, const char *op, Tensor shard, Tensor full)
{
    const Range r = comm_shard(comm, tensor_count(full));
    const char *place = (char *)full.data + r.first * dtype_size(full.dtype), *p = shard.data;

    if (shard.dtype != full.dtype || tensor_count(shard) != r.count)
        fail("%s: %s %s; but rank %d's shard of %s %s of group %s has %lld elements", op, tensor_describe(shard),
             dtype_name(shard.dtype), comm->rank, tensor_describe(full), dtype_name(full.dtype), comm->name,
             (long long)r.count);
    if (r.count && p != place && overlap(shard, full))
        fail("%s: %s lies inside %s, but not at the place of rank %d's shard", op, shard.name, full.name, comm->rank);
}

Request *comm_start_reduce_scatter(Comm *comm, Tensor out, Tensor in)
{
    check_shard(comm, "reduce_scatter", out, in);
    return start_transfer((Transfer){.comm = comm, .op = REDUCE_SCATTER}, out, in, in);
}

Request *comm_start_all_gather(Comm *comm, Tensor out, Tensor in)
{
    check_shard(comm, "all_gather", in, out);
    return start_transfer((Transfer){.comm = comm, .op = ALL_GATHER}, out, in, out);
}

Request *comm_start_all_to_all(Comm *comm, Tensor out, Tensor in)
{
    if (tensor_count(out) != tensor_count(in) || out.dtype != in.dtype || tensor_count(in) % comm->size)
        fail("all_to_all: %s, %s; but both must have the same dtype and count, a multiple of %d ranks",
             tensor_describe(out), tensor_describe(in), comm->size);
    if (overlap(out, in))
        fail("all_to_all: %s and %s overlap", out.name, in.name);
    return start_transfer((Transfer){.comm = comm, .op = ALL_TO_ALL}, out, in, in);
}

Request *comm_start_broadcast(Comm *comm, Tensor t, int root)
{
    if (root < 0 || root >= comm->size)
        fail("broadcast of %s: rank %d is not in group %s, which has %d", t.name, root, comm->name, comm->size);
    return start_transfer((Transfer){.comm = comm, .op = BROADCAST, .peer = root}, t, NONE, t);
}

/* Fails unless the peer is another rank of the group, or its only rank; if it must be a neighbor, one beside this rank
 * in the ring. */
static void check_peer(const Comm *comm, const char *op, Tensor t, int peer, bool neighbor)
{
    const int n = comm->size, away = (peer - comm->rank + n) % n;

    if (peer < 0 || peer >= n || (away == 0 && (neighbor || n > 1)) || (neighbor && away != 1 && away != n - 1))
        fail("%s of %s: rank %d is no %s of rank %d in group %s, which has %d in a ring", op, t.name, peer,
             neighbor ? "neighbor" : "peer", comm->rank, comm->name, n);
}

Request *comm_start_send(Comm *comm, Tensor t, int to, int tag)
{
    check_peer(comm, "send", t, to, true);
    return start_transfer((Transfer){.comm = comm, .op = SEND, .peer = to, .tag = tag}, NONE, t, t);
}

Request *comm_start_recv(Comm *comm, Tensor t, int from, int tag)
{
    check_peer(comm, "recv", t, from, true);
    return start_transfer((Transfer){.comm = comm, .op = RECV, .peer = from, .tag = tag}, t, NONE, t);
}

Request *comm_start_exchange(Comm *comm, Tensor out, int from, Tensor in, int to)
{
    out = tensor_count(out) ? out : NONE, in = tensor_count(in) ? in : NONE;
    if (!out.data && !in.data)
        return NULL;
    if (out.data)
        check_peer(comm, "exchange", out, from, false);
    if (in.data)
        check_peer(comm, "exchange", in, to, false);
    return start_transfer((Transfer){.comm = comm, .op = EXCHANGE, .peer = to, .from = from, .tag = TAGS - 1}, out, in,
                          in);
}
