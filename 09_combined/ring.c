/* cp: which tokens a rank has, and attention, the only place where tokens are combined: 07's zig-zag ring, with 08's
 * FlashAttention. K, V and their gradients travel in dtype; sums are accumulated in REAL.
 */
#include "../07_context_parallel/key_blocks.h"
#include "../08_fused_kernels/fused.h"
#include "combined.h"

static Tensor split, d_split;       /* (3, B*T, A*D)  q, k, v, each contiguous; their gradients, accumulated in REAL */
static Tensor merged;               /* (B*T, A*D)  attention's output, accumulated in REAL over the ring's steps */
static Tensor d_q_parts;            /* on a GPU: thread blocks' sums of d_q, as flash_parts says */
static Tensor kv_next;              /* (2, B*T, A*D)  K, V being received */
static Tensor d_arrived, d_leaving; /* (2, B*T, A*D)  dK, dV: the previous ranks' sum; this rank's contribution added */

/* Index, in the full sequence, of a rank's i-th sequence chunk. Under the causal mask a late chunk's queries see more
 * keys than an early one's. Zig-zag gives each rank one chunk from each end, and so all ranks the same load (4 ranks: 0
 * and 7, 1 and 6, 2 and 5, 3 and 4). */
int chunk_number(int rank, int i)
{
    return i ? 2 * comm_size(cp) - 1 - rank : rank;
}

/* Inputs and targets of this rank's i-th sequence chunk, (B, C) each. */
Batch chunk_of(Batch batch, int i)
{
    return (Batch){tensor_range(batch.inputs, i * B, B), tensor_range(batch.targets, i * B, B)};
}

/* The i-th sequence chunk of q, k, v, attn_out or their gradients, (B, C, A, D); of lse and delta, D = 1. */
static Tensor chunk(Tensor t, int i)
{
    return tensor_range(tensor_view(t, shape(local_chunks * B, C, A, tensor_count(t) / (B * T * A))), i * B, B);
}

/* Attention of one rank's queries to another rank's keys, chunk by chunk, merged into `merged` and lse. Key chunks
 * after the query chunk are skipped: the causal mask hides them entirely. */
static void attend_kv(BlockActs *a, int query_rank, Tensor kv, int key_rank)
{
    Tensor q = tensor_range(split, 0, 1), k = tensor_range(kv, 0, 1), v = tensor_range(kv, 1, 1);

    for (int i = 0; i < local_chunks; i++)
        for (int j = 0; j < local_chunks; j++) {
            const int query = chunk_number(query_rank, i), key = chunk_number(key_rank, j);
            if (key > query)
                continue;
            flash_block_forward(chunk(merged, i), chunk(a->lse, i), chunk(q, i), chunk(k, j), chunk(v, j),
                                key == query);
        }
}

/* Backward of attend_kv: adds to dQ of the queries, and to dK and dV (d_kv) of the keys. */
static void attend_kv_backward(BlockActs *a, BlockActs *d, int query_rank, Tensor d_kv, Tensor kv, int key_rank)
{
    Tensor q = tensor_range(split, 0, 1), k = tensor_range(kv, 0, 1), v = tensor_range(kv, 1, 1);
    Tensor d_q = tensor_range(d_split, 0, 1), d_k = tensor_range(d_kv, 0, 1), d_v = tensor_range(d_kv, 1, 1);

    for (int i = 0; i < local_chunks; i++)
        for (int j = 0; j < local_chunks; j++) {
            const int query = chunk_number(query_rank, i), key = chunk_number(key_rank, j);
            if (key > query)
                continue;
            flash_block_backward(chunk(d_q, i), chunk(d_k, j), chunk(d_v, j), d_q_parts, chunk(d->attn_out, i),
                                 chunk(q, i), chunk(k, j), chunk(v, j), chunk(a->lse, i), chunk(d->lse, i),
                                 key == query);
        }
}

/* Ring attention (Liu et al. 2023): n steps. In each, this rank attends to the K and V of one rank, while the K and V
 * for its next step are in flight. */
static void ring_forward(BlockActs *a)
{
    const int n = comm_size(cp), r = comm_rank(cp), before = (r + n - 1) % n, after = (r + 1) % n;
    Tensor kv[2] = {tensor_range(split, 1, 2), kv_next};

    for (int step = 0; step < n; step++) {
        Tensor current = kv[step % 2], next = kv[(step + 1) % 2];
        Request *arriving = step < n - 1 ? comm_start_exchange(cp, next, before, current, after) : NULL;
        attend_kv(a, r, current, (r - step + n) % n);
        comm_wait(&arriving);
    }
}

/* K and V go around again, and their gradients follow one step behind. A rank computes its contribution to dK and dV
 * while the sum of the ranks before it is in flight, adds the two, and sends the result on. After n hops, one more than
 * K and V make, the sum is at the owner of the keys. Sums are sent in dtype: rounded once per hop, which costs no
 * accuracy beside the rounding of dQ, dK and dV themselves. */
static void ring_backward(BlockActs *a, BlockActs *d)
{
    const int n = comm_size(cp), r = comm_rank(cp), before = (r + n - 1) % n, after = (r + 1) % n;
    Tensor kv[2] = {tensor_range(split, 1, 2), kv_next}, d_kv = tensor_range(d_split, 1, 2);
    Request *d_arriving = NULL;

    for (int step = 0; step < n; step++) {
        Tensor current = kv[step % 2], next = kv[(step + 1) % 2];
        Request *arriving = step < n - 1 ? comm_start_exchange(cp, next, before, current, after) : NULL;
        tensor_zero(d_kv);
        attend_kv_backward(a, d, r, d_kv, current, (r - step + n) % n);
        comm_wait(&arriving);
        comm_wait(&d_arriving);
        if (step > 0)
            tensor_add(d_kv, d_arrived);
        tensor_convert(d_leaving, d_kv);
        d_arriving = comm_start_exchange(cp, d_arrived, before, d_leaving, after);
    }
    comm_wait(&d_arriving);
}

/* From a->qkv to a->attn_out and a->lse. */
void context_attention_forward(BlockActs *a)
{
    if (cp_size == 1) {
        flash_attention_forward(a->attn_out, tensor_view(a->lse, shape(B, A, T)), a->qkv);
        return;
    }
    /* qkv has q, k, v per token and head; the transfers need all of k and all of v contiguous */
    transpose_rows(tensor_view(split, shape(3, B * T * A, D)), tensor_view(a->qkv, shape(B * T * A, 3, D)));
    tensor_zero(merged);
    tensor_fill(a->lse, -INFINITY);
    ring_forward(a);
    tensor_convert(a->attn_out, merged);
}

/* From d->attn_out to d->qkv. */
void context_attention_backward(BlockActs *a, BlockActs *d)
{
    if (cp_size == 1) {
        flash_attention_backward(d->qkv, tensor_view(d->lse, shape(B, A, T)), d_q_parts, d->attn_out, a->qkv,
                                 a->attn_out, tensor_view(a->lse, shape(B, A, T)));
        return;
    }
    transpose_rows(tensor_view(split, shape(3, B * T * A, D)), tensor_view(a->qkv, shape(B * T * A, 3, D)));
    attention_delta(tensor_view(d->lse, shape(B * T, A)), d->attn_out, a->attn_out);
    tensor_zero(tensor_range(d_split, 0, 1));
    ring_backward(a, d);
    tensor_convert(tensor_range(split, 0, 1), tensor_range(d_split, 0, 1));     /* q, k, v are not needed again */
    tensor_copy(tensor_range(split, 1, 2), d_arrived);
    transpose_rows(tensor_view(d->qkv, shape(B * T * A, 3, D)), tensor_view(split, shape(3, B * T * A, D)));
}

void ring_create(void)
{
    d_q_parts = tensor_create(MEM_WORKSPACE, REAL, "d_q_parts", shape(flash_parts(dtype, B, C, C, A, D)));
    if (cp_size == 1)
        return;
    split = tensor_create(MEM_WORKSPACE, dtype, "split", shape(3, B * T, A * D));
    d_split = tensor_create(MEM_WORKSPACE, REAL, "d_split", shape(3, B * T, A * D));
    merged = tensor_create(MEM_WORKSPACE, REAL, "merged", shape(B * T, A * D));
    kv_next = tensor_create(MEM_COMMUNICATION, dtype, "kv_next", shape(2, B * T, A * D));
    d_arrived = tensor_create(MEM_COMMUNICATION, dtype, "d_arrived", shape(2, B * T, A * D));
    d_leaving = tensor_create(MEM_COMMUNICATION, dtype, "d_leaving", shape(2, B * T, A * D));
}
