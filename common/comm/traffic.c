/* Traffic counters: what each group sends, and what is predicted that it will. */
#include <string.h>

#include "transport.h"

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

int64_t traffic_count(const Transfer *t)
{
    const CommOp op = t->op == EXCHANGE ? SEND : t->op;
    const int64_t bytes = elements_sent(t->comm, op, t->count, t->comm->rank == t->peer) * dtype_size(t->dtype);

    if (op == RECV || (t->op == EXCHANGE && !t->in))
        return 0;
    t->comm->calls[op]++;
    t->comm->bytes[op] += bytes;
    return bytes;
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

void traffic_step_begins(void)
{
    for (Comm *c = world; c; c = c->next) {
        memset(c->calls, 0, sizeof c->calls);
        memset(c->bytes, 0, sizeof c->bytes);
    }
}
