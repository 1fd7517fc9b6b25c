/* Transfers between GPUs over MPI, which knows only the host's memory: each is a download, MPI's transfer and an
 * upload. So several ranks can share one GPU, which NCCL refuses.
 *
 * The copies are queued in the device's one stream. A download starts when the work queued before it is done, and work
 * queued after an upload finds its data: the host need not wait for uploads. An upload's buffer may be reused at once:
 * MPI does not touch it before the next transfer's event, which is queued after the upload.
 */
#include <stdlib.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"
#include "../print.h"

/* ---- Buffers on the host, reused, since pinning memory takes longer than most transfers ---- */

typedef struct Buffer {
    char *data;
    int64_t bytes;
    bool taken;
    struct Buffer *next;
} Buffer;

static Buffer *buffers;

static Buffer *take(int64_t bytes)
{
    Buffer *best = NULL;

    for (Buffer *b = buffers; b; b = b->next)       /* the smallest that is large enough, but not far too large */
        if (!b->taken && b->bytes >= bytes && b->bytes / 2 <= bytes && (!best || b->bytes < best->bytes))
            best = b;
    if (!best) {
        best = malloc(sizeof *best);
        char *data = device_host_alloc(bytes);
        if (!best || !data)
            fail("not enough memory on the host for a transfer: needs %s", bytes_text(bytes));
        *best = (Buffer){.data = data, .bytes = bytes, .next = buffers};
        buffers = best;
    }
    best->taken = true;
    return best;
}

static void give_back(Buffer *b)
{
    if (b)
        b->taken = false;
}

/* ---- Transfers ---- */

typedef struct Staged {
    Transfer t;                                     /* between tensors on the device */
    enum { DOWNLOADING, IN_FLIGHT, DONE } state;
    Buffer *out, *in;                               /* host buffers */
    DeviceEvent downloaded;                         /* the download, if any, is done */
    void *handle;                                   /* MPI's */
    struct Staged *next;
} Staged;

static Staged *pending_list;                        /* in the order of their starts */

static Range shard_of(const Transfer *t)            /* this rank's shard, in bytes */
{
    const Range shard = range_split(t->count, t->comm->rank, t->comm->size);

    return (Range){shard.first * dtype_size(t->dtype), shard.count * dtype_size(t->dtype)};
}

static void *start(Transfer t)
{
    const int64_t bytes = t.count * dtype_size(t.dtype);
    const Range shard = shard_of(&t);
    Staged *s = host_alloc(sizeof *s, "a transfer"), **last = &pending_list;

    s->t = t;
    s->t.staged = true;
    switch (t.op) {
    case REDUCE_SCATTER:
        s->out = take(shard.count);
        s->in = take(bytes);
        break;
    case ALL_TO_ALL:
        s->out = take(bytes);
        s->in = take(bytes);
        break;
    case SEND:
        s->in = take(bytes);
        break;
    default:                                        /* ALL_GATHER's buffer works in place, even if the tensors don't */
        s->out = take(bytes);
    }
    if (s->in)
        device_download_start(s->in->data, t.in, bytes);
    else if (t.op == ALL_GATHER)
        device_download_start(s->out->data + shard.first, t.in, shard.count);
    else if (t.op == ALL_REDUCE || (t.op == BROADCAST && t.peer == t.comm->rank))
        device_download_start(s->out->data, t.out, bytes);
    s->downloaded = device_event();
    while (*last)
        last = &(*last)->next;
    *last = s;
    return s;
}

static void start_mpi(Staged *s)
{
    Transfer on_host = s->t;

    on_host.out = s->out ? s->out->data : NULL;
    on_host.in = s->in ? s->in->data : s->out ? s->out->data + shard_of(&s->t).first : NULL;    /* ALL_GATHER's */
    s->handle = transport_mpi.start(on_host);
    s->state = IN_FLIGHT;
}

static void upload(Staged *s)
{
    const Transfer *t = &s->t;
    const int64_t bytes = t->count * dtype_size(t->dtype);
    const Range shard = shard_of(t);
    char *out = t->out;

    if (t->op == REDUCE_SCATTER)
        device_upload_start(out, s->out->data, shard.count);
    else if (t->op == ALL_GATHER && out + shard.first == t->in) {       /* in place: all but our own shard */
        const int64_t end = shard.first + shard.count;
        device_upload_start(out, s->out->data, shard.first);
        device_upload_start(out + end, s->out->data + end, bytes - end);
    } else if (s->out && !(t->op == BROADCAST && t->peer == t->comm->rank))
        device_upload_start(out, s->out->data, bytes);
}

/* Passes transfers to MPI in the order of their starts: MPI matches a group's collectives, and a pair's sends and
 * receives, by their order. */
static bool progress(void)
{
    bool first = true;

    for (Staged *s = pending_list; s; s = s->next) {
        if (s->state == DOWNLOADING && first && device_event_reached(&s->downloaded)) {
            device_event_seconds(&s->downloaded);   /* frees it */
            start_mpi(s);
        }
        first &= s->state != DOWNLOADING;
        if (s->state == IN_FLIGHT && transport_mpi.done(s->handle)) {
            upload(s);
            s->state = DONE;
        }
    }
    return false;
}

static bool done(void *handle)
{
    Staged *s = handle, **at = &pending_list;

    if (s->state != DONE)
        return false;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    give_back(s->out);
    give_back(s->in);
    free(s);
    return true;
}

static bool pending(void *handle)
{
    return ((Staged *)handle)->state == DOWNLOADING;
}

const Transport transport_staged = {.name = "MPI", .start = start, .done = done, .progress = progress,
                                    .pending = pending};
