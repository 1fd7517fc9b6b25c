/* Tensors over MPI. On a GPU a transfer is a download, MPI's transfer and an upload, without overlap: so several ranks
 * can share a GPU. */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

#include "transport.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/formats.h"

typedef struct Handle {
    MPI_Request request[2];     /* the second: an exchange's receive */
    int *counts, *firsts;       /* MPI reads them until the transfer is done */
    void *out, *in;             /* host copies of a GPU's tensors, or an in-place reduce_scatter's result */
    int64_t out_bytes, in_bytes;
    void *upload;               /* where `out` goes at the end */
    struct Handle *next;
} Handle;

static Handle *idle;

/* Handles and their memory are kept: all steps have transfers of the same sizes, and new memory takes about as long as
 * a copy. */
static Handle *handle_with(int64_t out_bytes, int64_t in_bytes)
{
    Handle **at = &idle, *h;

    while (*at && ((*at)->out_bytes != out_bytes || (*at)->in_bytes != in_bytes))
        at = &(*at)->next;
    if ((h = *at)) {
        *at = h->next;
        return h;
    }
    h = host_alloc(sizeof *h, "a transfer");
    *h = (Handle){.out_bytes = out_bytes, .in_bytes = in_bytes};
    h->out = out_bytes ? device_pinned(out_bytes) : NULL;
    h->in = in_bytes ? device_pinned(in_bytes) : NULL;
    return h;
}

/* Adds BF16 numbers, which MPI has no sum for. Each sum is rounded, as NCCL's are. */
static void add_bf16(void *from, void *to, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        ((uint16_t *)to)[i] = bf16_of(float_of_bf16(((uint16_t *)to)[i]) + float_of_bf16(((uint16_t *)from)[i]));
}

static MPI_Op op_of(const Transfer *t)
{
    static MPI_Op bf16 = MPI_OP_NULL;

    if (t->dtype != BF16)
        return t->reduce == SUM ? MPI_SUM : MPI_MAX;
    if (bf16 == MPI_OP_NULL)
        MPI_Op_create(add_bf16, true, &bf16);
    return bf16;
}

/* Any dtype can be moved; few can be reduced. */
static MPI_Datatype type_of(const Transfer *t)
{
    const int size = dtype_size(t->dtype);

    if ((t->op == ALL_REDUCE || t->op == REDUCE_SCATTER) && t->dtype != F64 && t->dtype != F32 && t->dtype != I32
        && !(t->dtype == BF16 && t->reduce == SUM))
        fail("%s of %s in group %s: MPI reduces F64, F32, I32 and sums of BF16 only", comm_op_name[t->op],
             dtype_name(t->dtype), t->comm->name);
    return t->dtype == F64 ? MPI_DOUBLE : t->dtype == F32 ? MPI_FLOAT : size == 4 ? MPI_INT32_T
         : size == 2 ? MPI_INT16_T : MPI_INT8_T;
}

/* Sets the handle's counts and offsets to the shards of a tensor of `count` elements. */
static void split(Handle *h, const Comm *comm, int64_t count)
{
    h->counts = host_alloc(comm->size * sizeof *h->counts, "a collective");
    h->firsts = host_alloc(comm->size * sizeof *h->firsts, "a collective");
    for (int r = 0; r < comm->size; r++) {
        const Range shard = range_split(count, r, comm->size);
        h->counts[r] = shard.count;
        h->firsts[r] = shard.first;
    }
}

void mpi_check_count(const Comm *comm, CommOp op, DType dtype, int64_t count)
{
    if (count > INT_MAX)
        fail("%s of %lld %s in group %s: MPI counts to %d only; try --comm nccl, or a smaller model or batch",
             comm_op_name[op], (long long)count, dtype_name(dtype), comm->name, INT_MAX);
}

static void *call_mpi(Handle *h, Transfer t)
{
    const MPI_Comm mpi = *(MPI_Comm *)t.comm->mpi;
    const MPI_Datatype type = type_of(&t);
    char *out = t.out, *in = t.in;

    mpi_check_count(t.comm, t.op, t.dtype, t.count);
    h->request[0] = h->request[1] = MPI_REQUEST_NULL;
    switch (t.op) {
    case ALL_REDUCE:
        MPI_Iallreduce(MPI_IN_PLACE, out, t.count, type, op_of(&t), mpi, h->request);
        break;
    case REDUCE_SCATTER:
        split(h, t.comm, t.count);
        MPI_Ireduce_scatter(in, out, h->counts, type, op_of(&t), mpi, h->request);
        break;
    case ALL_GATHER:
        split(h, t.comm, t.count);
        in = in >= out && in < out + t.count * dtype_size(t.dtype) ? MPI_IN_PLACE : in;
        MPI_Iallgatherv(in, h->counts[t.comm->rank], type, out, h->counts, h->firsts, type, mpi, h->request);
        break;
    case ALL_TO_ALL:
        MPI_Ialltoall(in, t.count / t.comm->size, type, out, t.count / t.comm->size, type, mpi, h->request);
        break;
    case BROADCAST:
        MPI_Ibcast(out, t.count, type, t.peer, mpi, h->request);
        break;
    case SEND:
        if (t.rendezvous)
            MPI_Issend(in, t.count, type, t.peer, t.tag, mpi, h->request);
        else
            MPI_Isend(in, t.count, type, t.peer, t.tag, mpi, h->request);
        break;
    case EXCHANGE:
        if (t.out_count)
            MPI_Irecv(out, t.out_count, type, t.from, t.tag, mpi, h->request + 1);
        if (t.count)
            MPI_Isend(in, t.count, type, t.peer, t.tag, mpi, h->request);
        break;
    default:
        MPI_Irecv(out, t.out_count, type, t.peer, t.tag, mpi, h->request);
    }
    return h;
}

/* Gives t the host's tensors as MPI takes them. MPI's buffers must not overlap, and MPICH's MPI_IN_PLACE ends the
 * program if shard 1 is larger than shard 0, because it copies between overlapping buffers. So an in-place
 * reduce_scatter has a buffer of its own. */
static Handle *from_host(Transfer *t)
{
    const int64_t size = dtype_size(t->dtype);
    const char *in = t->in, *out = t->out;
    const bool inside = t->op == REDUCE_SCATTER && out >= in && out < in + t->count * size;
    Handle *h = handle_with(inside ? t->out_count * size : 0, 0);

    h->upload = t->out;
    t->out = inside ? h->out : t->out;
    return h;
}

/* Gives t copies of a GPU's tensors in the host's memory; mpi_done copies the result back. */
static Handle *from_gpu(Transfer *t)
{
    const int64_t size = dtype_size(t->dtype), full = t->count * size, received = t->out_count * size;
    const Range shard = range_split(t->count, t->comm->rank, t->comm->size);
    const int64_t in_bytes = !t->in ? 0 : t->op == ALL_GATHER ? shard.count * size : full;
    Handle *h = handle_with(received, in_bytes);

    if (t->in)
        device_download(h->in, t->in, in_bytes);
    else if (t->op == ALL_REDUCE || (t->op == BROADCAST && t->peer == t->comm->rank))
        device_download(h->out, t->out, full);
    h->upload = t->out;
    t->out = h->out, t->in = h->in;
    return h;
}

static void *start_by_mpi(Transfer t)
{
    Handle *h = device_is_host() ? from_host(&t) : from_gpu(&t);

    return call_mpi(h, t);
}

void *mpi_start_host(Transfer t)
{
    Handle *h = from_host(&t);

    return call_mpi(h, t);
}

bool mpi_done(void *handle)
{
    Handle *h = handle;
    MPI_Status unused[2];
    int done;

    MPI_Testall(2, h->request, &done, unused);
    if (!done)
        return false;
    if (h->out_bytes)
        device_upload(h->upload, h->out, h->out_bytes);
    free(h->counts);
    free(h->firsts);
    h->counts = h->firsts = NULL;
    h->next = idle;
    idle = h;
    return true;
}

const Transport transport_mpi = {.start = start_by_mpi, .done = mpi_done};
