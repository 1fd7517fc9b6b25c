/* --check: finds communication errors that do not always show.
 *
 * Before a collective its ranks compare their arguments, and a send carries a label for its receiver. Transfers work on
 * private copies. A buffer that a transfer writes holds NaN until the wait, and must still hold NaN then; one that it
 * reads must not change. So a buffer that is used too early is found in every run, not only if the transfer is slow.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/print.h"

/* Fails unless all ranks of the group call the same operation with the same count and dtype. All ranks find out; rank 0
 * prints the line. */
void check_agreement(const Transfer *t, const char *name)
{
    struct Call { int64_t operation; CommOp op; char operand[60], name[40]; } mine = {t->number, t->op, "", ""};
    struct Call *all = host_alloc(t->comm->size * sizeof *all, "--check"), *a = all;
    const int end = snprintf(mine.operand, sizeof mine.operand, "%lld %s", (long long)t->count, dtype_name(t->dtype));

    if (t->op == BROADCAST)
        sprintf(mine.operand + end, ", from rank %d", t->peer);
    if (t->op == ALL_REDUCE)
        strcpy(mine.operand + end, t->reduce == SUM ? ", SUM" : ", MAX");
    snprintf(mine.name, sizeof mine.name, "%s", name ? name : "a tensor it lacks");
    comm_gather_host(t->comm, all, &mine, sizeof mine);
    for (const struct Call *b = all + 1; b < all + t->comm->size; b++)
        if (memcmp(a, b, offsetof(struct Call, name)))
            fail("operation %lld of group %s: rank 0 calls %s of %s, %s, but rank %d %s of %s, %s",
                 (long long)a->operation, t->comm->name, comm_op_name[a->op], a->name, a->operand, (int)(b - all),
                 comm_op_name[b->op], b->name, b->operand);
    free(all);
}

static bool inside(Tensor shard, Tensor full)
{
    const char *s = shard.data, *f = full.data;

    return s && f && s >= f && s + tensor_bytes(shard) <= f + tensor_bytes(full);
}

static void *copy_of(Tensor t)
{
    void *copy = device_alloc(tensor_bytes(t));

    if (!copy)
        fail("not enough memory for --check's copy of %s: needs %s", t.name, bytes_text(tensor_bytes(t)));
    device_copy(copy, t.data, tensor_bytes(t));
    return copy;
}

static void *on_host(const void *data, int64_t bytes)
{
    void *host = host_alloc(bytes, "--check");

    device_download(host, data, bytes);
    device_waits--;                             /* without --check the host would not have waited */
    return host;
}

/* Returns signaling NaNs: results that use them are NaN, and any arithmetic on one, even adding 0, changes its bits. */
static char *poison_for(Tensor t)
{
    static const uint64_t nan[] = {[F64] = 0x7ff5a5a5a5a5a5a5, [F32] = 0x7fa5a5a5, [BF16] = 0x7fa5, [F16] = 0x7da5,
                                   [E4M3] = 0x7f, [E5M2] = 0x7d, [I32] = 0x7fa5a5a5};
    const int size = dtype_size(t.dtype);
    char *host = host_alloc(tensor_bytes(t), "--check");

    for (int64_t i = 0; i < tensor_count(t); i++)
        memcpy(host + i * size, &nan[t.dtype], size);           /* its low bytes, which come first */
    return host;
}

static Request *open_requests;

static void label_of(char label[LABEL], const Transfer *t, int64_t count)
{
    snprintf(label, LABEL, "tag %d and %lld %s", t->tag, (long long)count, dtype_name(t->dtype));
}

/* The longest chain of transfers, each of which begins after the one before has ended, in this step up to now. */
static int64_t hops;

int64_t comm_hops(void)
{
    return hops;
}

void check_begin(Request *q, const char *name)
{
    Transfer *t = &q->t;
    Checked *c = &q->checked;

    if (!is_point_to_point(t->op))
        check_agreement(t, name);
    c->before = open_requests, open_requests = q;
    c->written = t->op == REDUCE_SCATTER && inside(q->out, q->in) ? q->in : q->out;
    c->watched = inside(q->in, c->written) ? NONE : q->in;
    if (q->out.data)
        t->out = c->out_copy = copy_of(q->out);
    if (q->in.data)
        t->in = c->in_copy = copy_of(q->in);
    if (c->written.data) {
        char *nan = poison_for(c->written);
        device_upload(c->written.data, nan, tensor_bytes(c->written));
        free(nan);
    }
    t->rendezvous = true;
    if (!is_point_to_point(t->op))
        return;
    c->hops = hops;
    label_of(c->own, t, t->count);
    memcpy(c->own + LABEL, &hops, sizeof hops);
    label_of(c->wanted, t, t->out_count);
    c->label = mpi_start_host((Transfer){.comm = t->comm, .op = t->op, .out = c->sent, .in = c->own,
                                         .count = t->in ? SENT_LABEL / 4 : 0,
                                         .out_count = t->out ? SENT_LABEL / 4 : 0,
                                         .dtype = I32, .peer = t->peer, .from = t->from, .tag = LABEL_TAG});
}

void check_label(Request *q)
{
    Checked *c = &q->checked;
    int64_t theirs;

    comm_wait_for(mpi_done, &c->label);
    if (is_point_to_point(q->t.op)) {           /* it began when the later of both sides was there */
        memcpy(&theirs, c->sent + LABEL, sizeof theirs);
        theirs = q->t.out && theirs > c->hops ? theirs : c->hops;
        hops = theirs + 1 > hops ? theirs + 1 : hops;
    }
    if ((q->t.op == RECV || q->t.op == EXCHANGE) && q->out.data && strcmp(c->sent, c->wanted))
        fail("%s of %s in group %s: expected %s, but the sender sent %s; post receives in the order of the sends",
             comm_op_name[q->t.op], q->out.name, q->t.comm->name, c->wanted, c->sent);
}

void check_waited_for(void)
{
    const Request *q = open_requests;

    hops = 0;
    if (q)
        fail("%s of %s in group %s was started, but comm_wait was not called for it in this step",
             comm_op_name[q->t.op], q->out.data ? q->out.name : q->in.name, q->t.comm->name);
}

void check_end(Request *q)
{
    const Checked *c = &q->checked;
    Request **at = &open_requests;

    while (*at != q)
        at = &(*at)->checked.before;
    *at = c->before;
    if (c->written.data) {
        char *now = on_host(c->written.data, tensor_bytes(c->written)), *nan = poison_for(c->written);
        const int size = dtype_size(c->written.dtype);
        for (int64_t i = 0; i < tensor_count(c->written); i++)
            if (memcmp(now + i * size, nan + i * size, size))
                fail("%s of %s in group %s: element %lld was written to before comm_wait", comm_op_name[q->t.op],
                     c->written.name, q->t.comm->name, (long long)i);
        free(now);
        free(nan);
    }
    if (c->watched.data) {
        void *now = on_host(c->watched.data, tensor_bytes(c->watched));
        void *then = on_host(c->in_copy, tensor_bytes(c->watched));
        if (memcmp(now, then, tensor_bytes(c->watched)))
            fail("%s of %s in group %s: it was changed before comm_wait", comm_op_name[q->t.op], c->watched.name,
                 q->t.comm->name);
        free(now);
        free(then);
    }
    if (c->out_copy) {
        device_copy(q->out.data, c->out_copy, tensor_bytes(q->out));
        device_free(c->out_copy, tensor_bytes(q->out));
    }
    if (c->in_copy)
        device_free(c->in_copy, tensor_bytes(q->in));
}

