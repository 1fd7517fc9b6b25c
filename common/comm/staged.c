/* Transfers between GPUs over MPI, which knows only the host's memory: each is a download, MPI's transfer and an
 * upload. So several ranks can share one GPU, which NCCL refuses.
 *
 * The copies are queued in the device's one stream: a download begins when what was queued before it is done, and
 * what is queued after an upload finds its data. So nobody waits for an upload, and its buffer may go to the next
 * transfer: that one's event, before which MPI doesn't touch it, stands behind the upload in the stream.
 */
#include <stdlib.h>

#include "transport.h"
#include "../device.h"
#include "../error.h"
#include "../print.h"

/* ---- Buffers on the host, kept for the next transfer: pinning memory takes longer than most transfers ---- */

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
            fail("no memory on the host for a transfer of %s", bytes_text(bytes));
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
    enum { DOWNLOADING, TRAVELING, DONE } state;
    Buffer *out, *in;                               /* what of them is on the host */
    DeviceEvent downloaded;                         /* or nothing was to be */
    void *handle;                                   /* MPI's */
    struct Staged *next;
} Staged;

static Staged *under_way;                           /* in the order of their starts */

static Range part_of(const Transfer *t)             /* this rank's, in bytes */
{
    const Range part = range_part(t->count, t->comm->rank, t->comm->size);

    return (Range){part.first * dtype_size(t->dtype), part.count * dtype_size(t->dtype)};
}

static void *start(Transfer t)
{
    const int64_t bytes = t.count * dtype_size(t.dtype);
    const Range part = part_of(&t);
    Staged *s = host_alloc(sizeof *s, "a transfer"), **last = &under_way;

    s->t = t;
    s->t.staged = true;
    switch (t.op) {
    case REDUCE_SCATTER:
        s->out = take(part.count);
        s->in = take(bytes);
        break;
    case ALL_TO_ALL:
        s->out = take(bytes);
        s->in = take(bytes);
        break;
    case SEND:
        s->in = take(bytes);
        break;
    default:                                        /* ALL_GATHER works in place, whether its part lies there or not */
        s->out = take(bytes);
    }
    if (s->in)
        device_download_start(s->in->data, t.in, bytes);
    else if (t.op == ALL_GATHER)
        device_download_start(s->out->data + part.first, t.in, part.count);
    else if (t.op == ALL_REDUCE || (t.op == BROADCAST && t.peer == t.comm->rank))
        device_download_start(s->out->data, t.out, bytes);
    s->downloaded = device_event();
    while (*last)
        last = &(*last)->next;
    *last = s;
    return s;
}

static void travel(Staged *s)
{
    Transfer on_host = s->t;

    on_host.out = s->out ? s->out->data : NULL;
    on_host.in = s->in ? s->in->data : s->out ? s->out->data + part_of(&s->t).first : NULL;     /* ALL_GATHER's */
    s->handle = transport_mpi.start(on_host);
    s->state = TRAVELING;
}

static void upload(Staged *s)
{
    const Transfer *t = &s->t;
    const int64_t bytes = t->count * dtype_size(t->dtype);
    const Range part = part_of(t);
    char *out = t->out;

    if (t->op == REDUCE_SCATTER)
        device_upload_start(out, s->out->data, part.count);
    else if (t->op == ALL_GATHER && out + part.first == t->in) {        /* in place: our part is there */
        const int64_t end = part.first + part.count;
        device_upload_start(out, s->out->data, part.first);
        device_upload_start(out + end, s->out->data + end, bytes - end);
    } else if (s->out && !(t->op == BROADCAST && t->peer == t->comm->rank))
        device_upload_start(out, s->out->data, bytes);
}

/* MPI wants a group's collectives in the same order from all ranks, and messages in theirs: so none overtakes another
 * on its way to MPI. */
static bool progress(void)
{
    bool first = true;

    for (Staged *s = under_way; s; s = s->next) {
        if (s->state == DOWNLOADING && first && device_event_reached(&s->downloaded)) {
            device_event_seconds(&s->downloaded);   /* frees it */
            travel(s);
        }
        first &= s->state != DOWNLOADING;
        if (s->state == TRAVELING && transport_mpi.done(s->handle)) {
            upload(s);
            s->state = DONE;
        }
    }
    return false;
}

static bool done(void *handle)
{
    Staged *s = handle, **at = &under_way;

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
