/* The operations on groups, and waiting for them. */
#include <math.h>
#include <stdlib.h>

#include "../base/device.h"
#include "../base/error.h"
#include "../base/options.h"
#include "../base/trace.h"
#include "transport.h"

/* ---- Waiting ---- */

static double waited;                   /* seconds of this step */

double comm_waited(void)
{
    return waited;
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
    if (options.pretend)
        pretend_left_together(span, last);
    free(all);
    return sum;
}

void comm_barrier(Comm *comm)
{
    comm_sum(comm, 0);
}

void comm_stats_reset(void)
{
    if (options.check)
        check_waited_for();
    traffic_step_begins();
    pretend_step_begins();
    waited = 0;
}

/* ---- Requests ---- */

/* Starts a transfer of the full tensor `full`. t comes with the group, the operation, and what else the tensors do not
 * tell: reduction, peers, tag. */
static Request *start_transfer(Transfer t, Tensor out, Tensor in, Tensor full)
{
    t.out = out.data, t.out_count = tensor_count(out), t.in = in.data;
    t.count = tensor_count(full), t.dtype = full.dtype;
    if (!is_point_to_point(t.op))               /* only collectives have numbers: all ranks call the same ones */
        t.comm->operations++;
    t.number = t.comm->operations;
    const int64_t bytes = traffic_count(&t);
    if (t.comm->size == 1) {                    /* the only shard is the full tensor */
        if (in.data && in.data != out.data)
            device_copy(out.data, in.data, tensor_bytes(in));
        return NULL;
    }
    Request *q = host_alloc(sizeof *q, "a request");
    *q = (Request){.t = t, .out = out, .in = in};
    if (options.pretend)
        pretend_begin(q, bytes);
    if (options.check)
        check_begin(q, full.name);
    q->span = trace_transfer_begin(comm_op_name[t.op], t.comm->name);
    q->t.tag %= TAGS;                           /* --check has compared all of it */
    q->handle = comm_transport->start(q->t);    /* start_by_mpi in mpi.c, or start_by_nccl in nccl.c */
    return q;
}

static void begin_deadline(const Transfer *t)
{
    const char *op = comm_op_name[t->op], *group = t->comm->name;

    if (t->op == SEND || t->op == RECV)
        comm_deadline("waits for a %s %s rank %d of group %s", op, t->op == SEND ? "to" : "from", t->peer, group);
    else
        comm_deadline("waits for %s, %soperation %lld of group %s", op, t->op == EXCHANGE ? "after " : "",
                      (long long)t->number, group);
}

static void finish(Request *q)
{
    const double waited_from = comm_clock();

    begin_deadline(&q->t);
    if (options.check)
        check_label(q);                         /* before a wait that would never end if the labels differ */
    comm_wait_for(mpi_done, &q->pretended.clock);       /* NULL without --pretend */
    comm_wait_for(comm_transport->done, &q->handle);
    comm_deadline_met();
    trace_transfer_end(q->span);
    if (options.check)
        check_end(q);
    if (options.pretend)
        pretend_end(q, waited_from);
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
    if (!in.data)
        in.dtype = out.dtype;
    if (out.data)
        check_peer(comm, "exchange", out, from, false);
    if (in.data)
        check_peer(comm, "exchange", in, to, false);
    return start_transfer((Transfer){.comm = comm, .op = EXCHANGE, .peer = to, .from = from, .tag = TAGS - 1}, out, in,
                          in);
}
